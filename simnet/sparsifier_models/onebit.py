"""The all-reduce of signs with error at workers and at servers, on which 1-bit Adam and 0/1 Adam rest.

Every worker is the server of one chunk: it gets the signs that all have there, and sends the signs of their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Lt

from simnet import collectives
from simnet.collectives import registry
from simnet.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Sparsifier, State, checked_part
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.options import Allreduce, Positive
from simnet.sparsifier_models.selection import Values, squared_norm
from simnet.sparsifier_models.steps import Step

Beta = Annotated[float, Ge(0), Lt(1)]
"""The type of an option that is a factor in [0, 1)."""


def padded(entries: int, workers: int) -> int:
    """Return N, the least multiple of P 8 P / gcd(P, 8) that is >= n: whole bytes for each server.

    Examples
    --------
    >>> padded(3000, 4), padded(2, 3), padded(64, 8)
    (3008, 72, 64)
    """
    each = workers * 8 * workers // math.gcd(workers, 8)
    return -(-entries // each) * each


def signs_of(values: Values) -> tuple[np.float32, Values]:
    """Return the scale of a vector, its norm over the root of n, and the vector that receivers read; 0 is plus.

    Examples
    --------
    >>> signs_of(np.array([3, -4, 0, 0], dtype=np.float32))
    (np.float32(2.5), array([ 2.5, -2.5,  2.5,  2.5], dtype=float32))
    """
    scale = np.float32(math.sqrt(squared_norm(values) / values.size))
    return scale, np.where(values >= 0, scale, -scale)


@dataclass(frozen=True, kw_only=True)
class OneBitOptions(GatheredOptions):
    """Options of schemes that all-reduce signs and hold the state of Adam.

    Parameters
    ----------
    beta1, beta2 : float
        Factors of the moving averages of gradients and of their squares, in [0, 1).
    epsilon : float
        What is added to the root of the latter, > 0.
    masked : bool
        Whether entries whose v is zero are not updated. Signs know no zero, so that such an entry, divided by epsilon
        alone, goes far astray: as released, unless users give a mask.
    collective : str
        How dense gradients are reduced: an all-reduce of `simnet.collectives.registry`.
    """

    beta1: Beta = 0.9
    beta2: Beta = 0.999
    epsilon: Positive = 1e-8
    masked: bool = True
    collective: Allreduce = "ring"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 0 and < 1, got {getattr(self, name)!r}")


class OneBit(Sparsifier):
    """Common part: the compressed all-reduce, its memories, and the dense one.

    A worker on its own compresses nothing. Its vector is padded to N entries, and so are the memories: (P, N) of the
    workers, and N of all servers together.

    What is applied is the direction of Adam, which an optimiser multiplies by a learning rate: it is not the mean
    gradient, so that mass is not conserved, and nothing becomes a residual. The density does not matter. v is in double
    precision, so that squares do not overflow.

    The time to update the moments is that of any Adam, and no part of the exchange.
    """

    option_type = OneBitOptions
    sends_all = True
    options: OneBitOptions
    keeps_residual = False
    moments = ("m", "v")
    room = (1.7, 12.0)
    reads_gradients = False

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        super().__init__(workers, parameters, density, **options)
        self.padded = padded(parameters, workers) if workers > 1 else parameters
        self.step = 0
        self.v = np.zeros(parameters)
        self.m = np.zeros((1, parameters), dtype=np.float32)
        self.worker_error = np.zeros((workers, self.padded if workers > 1 else 0), dtype=np.float32)
        self.server_error = np.zeros(self.padded if workers > 1 else 0, dtype=np.float32)

    @property
    def conserves(self) -> bool:
        """False: the update is the direction of Adam."""
        return False

    def _reduce(self, vector: Callable[[int], Values]) -> Values:
        """Return what all make of the vectors of the workers, each float32 of shape (n,): about their mean."""
        P, n = self.workers, self.parameters
        if P == 1:
            return vector(0)
        kept = self.options.error_feedback
        worker_error, total = np.zeros_like(self.worker_error), np.zeros(self.padded, dtype=np.float32)
        for worker, error in enumerate(worker_error):
            error[:n] = vector(worker)
            error += self.worker_error[worker]
            _, sent = signs_of(error)
            total += sent
            error -= sent
        total /= np.float32(P)
        total += self.server_error
        result = np.empty_like(total)
        each = self.padded // P
        for first in range(0, self.padded, each):
            served = slice(first, first + each)
            result[served] = signs_of(total[served])[1]
        self.worker_error = worker_error if kept else self.worker_error
        self.server_error = total - result if kept else self.server_error
        return result[:n]

    def _mean(self, rows: Values) -> Values:
        mean: Values = np.add.reduce(rows, axis=0) / np.float32(self.workers)
        return mean

    def _squared(self, mean: Values) -> None:
        """Take the squares of a mean gradient into v."""
        beta2 = self.options.beta2
        self.v = beta2 * self.v + (1 - beta2) * np.square(mean, dtype=np.float64)

    def _averaged(self, gradient: Values, m: Values) -> Values:
        """Return the moving average with one gradient more."""
        beta1 = np.float32(self.options.beta1)
        found: Values = beta1 * m + (1 - beta1) * gradient
        return found

    @property
    def denominator(self) -> Values:
        """What m is divided by, sqrt v + eps; infinite where masked; float32 of shape (n,)."""
        found: Values = (np.sqrt(self.v) + self.options.epsilon).astype(np.float32)
        if self.options.masked:
            found[self.v == 0] = np.inf
        return found

    # Messages

    def _dense(self) -> Schedule:
        """Return the messages that reduce a gradient."""
        nbytes = float(self.options.value_bytes or 4) * self.parameters * self.options.scale
        return registry.find("all_reduce", self.options.collective).schedule(self.workers, nbytes).in_phase("dense")

    def _warm(self) -> Iterator[Step]:
        """Yield what workers do in a dense step."""
        yield self._dense()

    def _first(self) -> Iterator[Step]:
        """Yield what workers do in the first step of the released code."""
        yield self._dense()
        yield from self._compressed()

    def _compressed(self) -> Iterator[Step]:
        """Yield what workers do in a compressed all-reduce: four calls."""
        P, entries = self.workers, self.parameters
        if P == 1:
            return
        N = padded(self.k_of_model, P)
        scalars = self.options.gather(np.full(P, self.wire.scalar_bytes))
        yield from (DeviceOp(one, entries) for one in ("norm", "cast", "sum"))
        yield collectives.alltoall_pairwise(P, N / 8 / P).in_phase("signs")
        yield scalars.in_phase("scales")
        yield DeviceOp("sum", entries / P, launches=P)
        yield from (DeviceOp(one, entries / P) for one in ("norm", "cast", "sum"))
        yield self.options.gather(np.full(P, N / 8 / P)).in_phase("server signs")
        yield scalars.in_phase("server scales")
        yield DeviceOp("cast", entries)

    # State

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes that a worker holds between exchanges: of the memory of the servers one part of P."""
        found = super().held_bytes()
        return found | {"server_error": found["server_error"] / self.workers}

    def _own_state(self) -> State:
        return {
            "step": np.array(self.step),
            "m": self.m,
            "v": self.v,
            "worker_error": self.worker_error,
            "server_error": self.server_error,
        }

    def _restore_own(self, state: State) -> None:
        P, n = self.workers, self.parameters
        step = checked_part(state, "step", np.int64, (), 0).item()
        m = checked_part(state, "m", np.float32, (range(1, P + 1), n))
        v = checked_part(state, "v", np.float64, (n,), 0)
        errors = [
            checked_part(state, one, np.float32, getattr(self, one).shape) for one in ("worker_error", "server_error")
        ]
        self.step, self.m, self.v, (self.worker_error, self.server_error) = step, m, v, errors
