"""One-bit all-reduce with error feedback at workers and at servers, for 1-bit Adam and 0/1 Adam.

Every worker is the server of one chunk: it gets the signs that all have there, and sends the signs of their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from simnet import collectives
from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.cost_models.costs import onebit_allreduce, ring_allreduce
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.options import Allreduce, Beta, Positive
from simnet.sparsifier_models.selection import Values, squared_norm, squared_norms
from simnet.sparsifier_models.wire import Step, all_reduced


def padded(entries: int, workers: int) -> int:
    """Return the least multiple of P lcm(P, 8) that is >= `entries`, so that each of P servers gets whole bytes."""
    each = workers * 8 * workers // math.gcd(workers, 8)
    return -(-entries // each) * each


def signs_of(values: Values) -> tuple[np.float32, Values]:
    """Return a vector's scale, norm / sqrt(n), and its signs times that scale; the sign of 0 is plus."""
    scale = np.float32(math.sqrt(squared_norm(values) / values.size))
    return scale, np.where(values >= 0, scale, -scale)


class OneBitOptions(GatheredOptions):
    """Options of schemes that combine a one-bit all-reduce with the state of Adam.

    Parameters
    ----------
    beta1, beta2 : float
        Factors of the moving averages of gradients and of their squares, in [0, 1).
    epsilon : float
        What is added to the root of the latter, > 0.
    masked : bool
        Whether entries whose v is zero are not updated. A sign is never zero, so such an entry is divided by epsilon
        alone and gets a huge update, as in the released code unless users give a mask.
    collective : str
        How dense gradients are reduced: an all-reduce of `simnet.collectives.registry`.
    """

    beta1: Beta = 0.9
    beta2: Beta = 0.999
    epsilon: Positive = 1e-8
    masked: bool = True
    collective: Allreduce = "ring"


class OneBit(
    Sparsifier,
    sends_all=True,
    keeps_residual=False,
    moments=("m", "v"),
    state=("step", "v", "worker_error", "server_error"),
    history=("m",),
    memory_factor=(1.7, 12.0),
    reads_gradients=False,
    conserves=False,
):
    """Base of 1-bit Adam and 0/1 Adam: their one-bit and dense all-reduces, and the state of Adam.

    A worker on its own compresses nothing. Its vector is padded to N entries, and so are the memories: (P, N) of the
    workers, and N of all servers together.

    What is applied is the direction of Adam, which an optimiser multiplies by a learning rate: it is not the mean
    gradient, so that mass is not conserved, and nothing becomes a residual. The density does not matter. v is in double
    precision, so that squares do not overflow.

    The time to update the moments is that of any Adam, and no part of the exchange.
    """

    options: OneBitOptions

    def _set_up(self) -> None:
        entries = padded(self.parameters, self.workers) if self.workers > 1 else 0
        self.step = 0
        self.v = np.zeros(self.parameters)
        self.m = np.zeros((1, self.parameters), dtype=np.float32)
        self.worker_error = np.zeros((self.workers, entries), dtype=np.float32)
        self.server_error = np.zeros(entries, dtype=np.float32)

    def _reduce(self, vector: Callable[[int], Values]) -> Values:
        """Return the mean of the workers' vectors by a one-bit all-reduce; all are float32 of shape (n,)."""
        P, n = self.workers, self.parameters
        if P == 1:
            return vector(0)
        kept = self.options.error_feedback
        worker_error, total = np.zeros_like(self.worker_error), np.zeros_like(self.server_error)
        for worker, error in enumerate(worker_error):
            error[:n] = vector(worker)
            error += self.worker_error[worker]
            _, sent = signs_of(error)
            total += sent
            error -= sent
        total /= np.float32(P)
        total += self.server_error
        result = np.empty_like(total)
        for served, into in zip(total.reshape(P, -1), result.reshape(P, -1), strict=True):
            into[:] = signs_of(served)[1]
        self.worker_error = worker_error if kept else self.worker_error
        self.server_error = total - result if kept else self.server_error
        return result[:n]

    def _mean(self, rows: Values) -> Values:
        return np.asarray(np.add.reduce(rows, axis=0) / np.float32(self.workers))

    def _squared(self, mean: Values) -> None:
        """Update the second moment v of Adam with the squares of a mean gradient."""
        beta2 = self.options.beta2
        self.v = beta2 * self.v + (1 - beta2) * np.square(mean, dtype=np.float64)

    def _averaged(self, gradient: Values, m: Values) -> Values:
        """Return the first moment `m` of Adam after one step of its moving average with `gradient`."""
        beta1 = np.float32(self.options.beta1)
        return beta1 * m + (1 - beta1) * gradient

    @property
    def denominator(self) -> Values:
        """Denominator of Adam's step, sqrt(v) + eps, shape (n,); infinite where v is 0 if ``masked`` is set."""
        found: Values = (np.sqrt(self.v) + self.options.epsilon).astype(np.float32)
        if self.options.masked:
            found[self.v == 0] = np.inf
        return found

    # Messages

    def _dense(self) -> Schedule:
        """Return the all-reduce messages of the whole gradient."""
        nbytes = float(self.options.value_bytes or 4) * self.parameters * self.options.scale
        return all_reduced(self.workers, nbytes, self.options.collective, "dense")

    def _first(self, sent: Floats) -> Exchange:
        """Return the first exchange as in the reference code: a zero update, a dense and a compressed all-reduce."""
        update = np.zeros(self.parameters, dtype=np.float32)
        return self._make_exchange(update, [self._dense(), *self._compressed()], sent, key="first")

    def _compressed(self) -> Iterator[Step]:
        """Yield kernels and messages of a compressed all-reduce: signs and scales travel to servers and back."""
        P, entries = self.workers, self.parameters
        if P == 1:
            return
        N = padded(self.k_of_model, P)
        yield from (DeviceOp(one, entries) for one in ("norm", "cast", "sum"))
        yield collectives.alltoall_pairwise(P, N / 8 / P).in_phase("signs")
        yield self.options.gather_equal(P, self.wire.scalar_bytes, "scales")
        yield DeviceOp("sum", entries / P, launches=P)
        yield from (DeviceOp(one, entries / P) for one in ("norm", "cast", "sum"))
        yield self.options.gather_equal(P, N / 8 / P, "server signs")
        yield self.options.gather_equal(P, self.wire.scalar_bytes, "server scales")
        yield DeviceOp("cast", entries)

    # State

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes of each array that a worker stores, by name; it stores 1 / P of the servers' errors."""
        found = super().held_bytes()
        return found | {"server_error": found["server_error"] / self.workers}


class OneBitAdamOptions(OneBitOptions):
    """Options of `OneBitAdam`.

    Parameters
    ----------
    freeze_step : int
        Dense steps before the compressed ones, >= 1. In them v is learnt, so that jobs take many.
    """

    freeze_step: Count = 2


class OneBitAdam(OneBit, is_restartable=False, costs=(onebit_allreduce, ring_allreduce)):
    """1-bit Adam: one-bit all-reduces of Adam's momentum after a dense warm-up. Apply updates by SGD without momentum.

    In the warm-up gradients are reduced densely, and m and v are those of Adam without bias correction. Then v stays
    constant; each worker updates its copy of m with its gradient, and a compressed all-reduce of the copies gives the
    new m. The update is m / (sqrt v + eps).

    With ``compat="released"`` the first step updates nothing: its gradient is reduced, a compressed all-reduce of zeros
    allocates the memories, and the steps are counted from there. Wires ``paper`` and ``released`` are the same, that of
    the code.

    References
    ----------
    H. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed", ICML 2021;
    code deepspeedai/DeepSpeed, commit edaa722, ``runtime/fp16/onebit``, ``runtime/comm/compressed.py``.

    Examples
    --------
    >>> model = OneBitAdam(workers=2, parameters=1000, freeze_step=1)
    >>> gradients = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float32)
    >>> [int(model.exchange(gradients).schedule.bytes_sent()[0]) for _ in range(2)]
    [4000, 134]
    """

    name = "onebitadam"
    paper = "Tang et al., ICML 2021, arXiv 2102.02888"
    options: OneBitAdamOptions

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        sent, step = squared_norms(corrected), self.step
        self.step += 1
        if self.options.compat == "released" and step == 0:
            return self._first(sent)
        if step < self.options.freeze_step:
            mean = self._mean(corrected)
            self.m = self._averaged(mean, self.m)
            self._squared(mean)
            return self._make_exchange(self.m[0] / self.denominator, [self._dense()], sent, key="dense")
        denominator, common = self.denominator, self.m[0]
        m = self._reduce(lambda worker: self._averaged(corrected[worker], common))
        if self.options.masked:
            m[self.v == 0] = 0
        self.m = m[None].copy()
        return self._make_exchange(m / denominator, self._compressed(), sent, key="compressed")


_COUNTERS = ("var_counter", "local_step_counter", "local_steps")
_INTERVALS = ("var_interval", "local_step_interval")


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


class ZeroOneAdam(
    OneBit,
    is_restartable=False,
    tracks=True,
    state=(*_COUNTERS, *_INTERVALS),
    history=("u",),
    costs=(onebit_allreduce, ring_allreduce),
):
    """0/1 Adam: one-bit all-reduces of gradients, then of sums of local steps. Apply updates by SGD without momentum.

    First, every ``var_interval`` steps the gradient is reduced densely and enters m and v; in between the compressed
    all-reduce of the gradients enters m. Later v stays, and workers take local steps: each adds its own m / (sqrt v +
    eps) to a sum u that it has not sent yet. Every ``local_step_interval`` steps a compressed all-reduce of u (sqrt v +
    eps) replaces the local steps since the last exchange, and its mean over these steps replaces m. Between exchanges
    nothing is sent.

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
    paper = "Lu et al., ICLR 2023, arXiv 2202.06009"
    options: ZeroOneAdamOptions

    def _set_up(self) -> None:
        super()._set_up()
        self.u = np.zeros((0, self.parameters), dtype=np.float32)
        self.var_counter = self.local_step_counter = self.local_steps = 0
        self.var_interval = self.local_step_interval = 1

    @property
    def frozen(self) -> bool:
        """Whether the second moment v is frozen and workers take local steps."""
        return len(self.u) > 0

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        given = squared_norms(corrected)
        self.step += 1
        if self.options.compat == "released" and self.step == 1:
            exchange = self._first(given)
        else:
            exchange = self._local(corrected, given) if self.frozen else self._common(corrected, given)
        exchange.stats |= {one: float(getattr(self, one)) for one in _INTERVALS}
        return exchange

    def _common(self, corrected: Values, given: Any) -> Exchange:
        """Take a step with the same update at all workers, by a dense or one-bit all-reduce of gradients."""
        dense = self.step % self.var_interval == 0
        mean = self._mean(corrected) if dense else self._reduce(corrected.__getitem__)
        self.m = self._averaged(mean, self.m)
        if dense:
            self._squared(mean)
            self.var_counter += 1
            if self.var_counter == self.options.var_update_scaler:
                self.var_counter, self.var_interval = 0, 2 * self.var_interval
        update = self.m[0] / self.denominator
        if self.step > self.options.var_freeze_step:
            self.m = np.repeat(self.m, self.workers, axis=0)
            self.u = np.zeros_like(self.m)
            self.worker_error, self.server_error = np.zeros_like(self.worker_error), np.zeros_like(self.server_error)
        steps = [self._dense()] if dense else self._compressed()
        return self._make_exchange(update, steps, given, key="dense" if dense else "compressed")

    def _local(self, corrected: Values, given: Any) -> Exchange:
        """Take a local step at each worker; every `local_step_interval` steps, synchronise the workers' parameters."""
        denominator = self.denominator
        m, u = np.empty_like(self.m), np.empty_like(self.u)
        for worker, row in enumerate(corrected):
            m[worker] = self._averaged(row, self.m[worker])
            row[:] = m[worker] / denominator
            u[worker] = self.u[worker] + row
        self.local_steps += 1
        exchanged = self.step % self.local_step_interval == 0
        if exchanged:
            weights = np.where(np.isfinite(denominator), denominator, np.float32(0))
            # What parameters have changed by, down the gradient: zero counts as plus there.
            total = -self._reduce(lambda worker: -u[worker] * weights)
            corrected -= u
            corrected += total / denominator
            m[:] = total / np.float32(self.local_steps)
            u[:], self.local_steps = 0, 0
        self.m, self.u = m, u
        self.local_step_counter += 1
        if self.local_step_counter == self.options.local_step_scaler:
            longest = self.options.local_step_clipper
            self.local_step_counter = 0
            self.local_step_interval = min(longest, 2 * self.local_step_interval)
        update = self._mean(corrected)
        if exchanged:
            return self._make_exchange(update, self._compressed(), given, key="compressed", replicas=corrected)
        return self._make_exchange(
            update,
            [Schedule(self.workers)],
            np.zeros(self.workers),
            selected=np.zeros(self.workers, dtype=np.int64),
            union=0,
            replicas=corrected,
        )

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes of each array that a worker stores, by name, including those of local steps."""
        u = float(self.u.itemsize * self.parameters * self.options.scale)
        return super().held_bytes() | {"u": u, "counters": 8.0 * len(_COUNTERS + _INTERVALS)}
