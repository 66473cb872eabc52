"""0/1 Adam: signs between ever rarer dense steps, then local steps between ever rarer exchanges of signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simnet.base.quantities import Count
from simnet.costs import onebit_allreduce, ring_allreduce
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange, State, checked_part
from simnet.sparsifier_models.onebit import OneBit, OneBitOptions
from simnet.sparsifier_models.selection import Values, squared_norms

_COUNTERS = ("var_interval", "var_counter", "local_step_interval", "local_step_counter", "local_steps")


@dataclass(frozen=True, kw_only=True)
class ZeroOneAdamOptions(OneBitOptions):
    """Options of `ZeroOneAdam`. Defaults are those of the released code.

    Parameters
    ----------
    var_freeze_step : int
        Last step in which v may change, >= 1; local steps begin after the next one.
    var_update_scaler : int
        Variance steps after which the interval between them doubles, >= 1.
    local_step_scaler : int
        Local steps after which the interval between exchanges doubles, >= 1; 32678 (sic) in the released code.
    local_step_clipper : int
        Longest such interval, >= 1.
    """

    var_freeze_step: Count = 100_000
    var_update_scaler: Count = 16
    local_step_scaler: Count = 32_678
    local_step_clipper: Count = 16


class ZeroOneAdam(OneBit):
    """0/1 Adam. Its steps are those of the optimiser, whose moments it holds; use SGD without momentum after it.

    First, every ``var_interval`` steps the gradient is reduced densely and enters m and v; in between the compressed
    all-reduce of the gradients enters m. Later v stays, and workers take local steps: each adds m / (sqrt v + eps) of
    its own to what it has to say, u. Every ``local_step_interval`` steps the compressed all-reduce of u (sqrt v + eps)
    takes the place of what all have done since the last one, and its mean over these steps that of m. In the steps
    between nothing is sent.

    Meanwhile workers differ: ``replicas`` of the exchange are what each applies, and the update is their mean. Learning
    rates must stay the same between two exchanges; u is in units of it.

    With ``compat="released"`` the first step updates nothing, as in 1-bit Adam. Wires ``paper`` and ``released`` are
    the same, that of the code.

    Statistics of its own: the intervals in force, ``var_interval`` and ``local_step_interval``.

    References
    ----------
    Y. Lu, C. Li, M. Zhang, C. De Sa, Y. He, "Maximizing Communication Efficiency for Large-scale Training via 0/1
    Adam", ICLR 2023; code deepspeedai/DeepSpeed, commit edaa722, ``runtime/fp16/onebit``.

    Examples
    --------
    Two dense steps, then signs in every other one; from step 5 on local steps, exchanged one by one and then by twos.

    >>> intervals = {"var_freeze_step": 3, "var_update_scaler": 2, "local_step_scaler": 2, "local_step_clipper": 4}
    >>> model = ZeroOneAdam(workers=2, parameters=1000, **intervals)
    >>> gradients = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float32)
    >>> [int(model.exchange(gradients).schedule.bytes_sent()[0]) for _ in range(8)]
    [4000, 4000, 134, 4000, 134, 134, 0, 134]
    """

    name = "zerooneadam"
    restarts = False
    paper = "Lu et al., ICLR 2023, arXiv 2202.06009"
    costs = (onebit_allreduce, ring_allreduce)
    option_type = ZeroOneAdamOptions
    options: ZeroOneAdamOptions

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        super().__init__(workers, parameters, density, **options)
        self.u = np.zeros((0, parameters), dtype=np.float32)
        self.counters = dict.fromkeys(_COUNTERS, 0) | {"var_interval": 1, "local_step_interval": 1}

    @property
    def frozen(self) -> bool:
        """Whether v stays, and steps are local."""
        return len(self.u) > 0

    @property
    def tracks(self) -> bool:
        """True: in local steps everything is updated, and nothing is sent."""
        return True

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        given = squared_norms(corrected)
        self.step, self.counters = self.step + 1, dict(self.counters)
        if self.options.compat == "released" and self.step == 1:
            exchange = self._exchanged("first", np.zeros(self.parameters, dtype=np.float32), self._first, sent=given)
        elif self.frozen:
            exchange = self._local(corrected, given)
        else:
            exchange = self._common(corrected, given)
        exchange.stats |= {one: float(self.counters[one]) for one in ("var_interval", "local_step_interval")}
        return exchange

    def _common(self, corrected: Values, given: Any) -> Exchange:
        """Take a step that is the same for all: a variance step, or one with the signs of the gradients."""
        count, dense = self.counters, self.step % self.counters["var_interval"] == 0
        mean = self._mean(corrected) if dense else self._reduce(corrected.__getitem__)
        self.m = self._averaged(mean, self.m)
        if dense:
            self._squared(mean)
            count["var_counter"] += 1
            if count["var_counter"] == self.options.var_update_scaler:
                count["var_counter"], count["var_interval"] = 0, 2 * count["var_interval"]
        update = self.m[0] / self.denominator
        if self.step > self.options.var_freeze_step:
            self.m = np.repeat(self.m, self.workers, axis=0)
            self.u = np.zeros_like(self.m)
            self.worker_error, self.server_error = np.zeros_like(self.worker_error), np.zeros_like(self.server_error)
        if dense:
            return self._exchanged("dense", update, self._warm, sent=given)
        return self._exchanged("compressed", update, self._compressed, sent=given)

    def _local(self, corrected: Values, given: Any) -> Exchange:
        """Take a local step, and every so often one that makes all equal again."""
        count, denominator = self.counters, self.denominator
        m, u = np.empty_like(self.m), np.empty_like(self.u)
        for worker, row in enumerate(corrected):
            m[worker] = self._averaged(row, self.m[worker])
            row[:] = m[worker] / denominator
            u[worker] = self.u[worker] + row
        count["local_steps"] += 1
        exchanged = self.step % count["local_step_interval"] == 0
        if exchanged:
            weights = np.where(np.isfinite(denominator), denominator, np.float32(0))
            # What parameters have changed by, down the gradient: zero counts as plus there.
            total = -self._reduce(lambda worker: -u[worker] * weights)
            corrected -= u
            corrected += total / denominator
            m[:] = np.where(weights > 0, total, np.float32(0)) / np.float32(count["local_steps"])
            u[:], count["local_steps"] = 0, 0
        self.m, self.u = m, u
        count["local_step_counter"] += 1
        if count["local_step_counter"] == self.options.local_step_scaler:
            longest = self.options.local_step_clipper
            count["local_step_counter"] = 0
            count["local_step_interval"] = min(longest, 2 * count["local_step_interval"])
        update = self._mean(corrected)
        if exchanged:
            return self._exchanged("compressed", update, self._compressed, sent=given, replicas=corrected)
        return Exchange(
            update=update,
            schedule=Schedule(self.workers),
            selected=np.zeros(self.workers, dtype=np.int64),
            kernels=(),
            union=0,
            sent=np.zeros(self.workers),
            replicas=corrected,
        )

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes that a worker holds between exchanges; also u, which is there once steps are local."""
        return super().held_bytes() | {"u": float(self.u.itemsize * self.parameters * self.options.scale)}

    def _own_state(self) -> State:
        counters = np.array([self.counters[one] for one in _COUNTERS])
        return {**super()._own_state(), "u": self.u, "counters": counters}

    def _restore_own(self, state: State) -> None:
        u = checked_part(state, "u", np.float32, (range(self.workers + 1), self.parameters))
        counters = checked_part(state, "counters", np.int64, (len(_COUNTERS),), 0).tolist()
        super()._restore_own(state)
        self.u, self.counters = u, dict(zip(_COUNTERS, counters, strict=True))
