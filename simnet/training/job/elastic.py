"""Elastic jobs: workers that leave and return, and exchanges with a deadline.

With notice, a worker finishes its iteration before it leaves. Without, the others repeat the exchange after the
patience of the job. A worker that returns, or was late, first receives the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.quantities import Duration
from simnet.base.rng import stream
from simnet.schedule import Round, Schedule

if TYPE_CHECKING:
    from simnet.training.job.job import Job

# Iterations whose computing a quantile is of, at most.
_DRAWN = 200
_FLOAT = 4.0
_SHORTEST = 1e-3


class Absence(NamedTuple):
    """A period from `begin` to `end` [s] in which a worker is away; with `notice` it first finishes its iteration."""

    worker: int
    begin: float
    end: float = math.inf
    notice: bool = True


@dataclass(frozen=True)
class Churn:
    """Workers that leave and return at random, independently, after exponentially distributed times.

    Raises ValueError if a time is not >= 1 ms and finite.

    Parameters
    ----------
    stay, away : float
        How long one is there, and away, on average [s], >= 1 ms.
    notice : bool
        Whether it finishes the iteration that is under way.
    """

    stay: Duration
    away: Duration
    notice: bool = True

    def __post_init__(self) -> None:
        for name in ("stay", "away"):
            if not _SHORTEST <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be >= {_SHORTEST:g} s and finite, got {getattr(self, name):g} s")

    def absences(self, seed: int, worker: int) -> Iterator[Absence]:
        """Yield a worker's absences, endlessly, from the worker's own random stream."""
        draws, now = stream(seed, "churn", worker), 0.0
        while True:
            begin = now + draws.exponential(self.stay)
            now = begin + draws.exponential(self.away)
            yield Absence(worker, begin, now, self.notice)


class WorkerPresence:
    """Which workers are present at each simulated time of an elastic job."""

    def __init__(self, job: Job) -> None:
        workers = range(job.source.workers)
        self._of: list[list[Absence]] = [[] for _ in workers]
        for one in sorted(job.absences, key=lambda one: one.begin):
            self._of[one.worker].append(one)
        self._more = [None if job.churn is None else job.churn.absences(job.seed, worker) for worker in workers]

    def _absences(self, worker: int, now: float) -> list[Absence]:
        """Return a worker's absences, drawn until one begins after `now`; earlier ones are dropped."""
        own, more = self._of[worker], self._more[worker]
        while more is not None and (not own or own[-1].begin <= now):
            # Of those that are past the last tells when the worker came back.
            past = [place for place, one in enumerate(own) if one.end <= now]
            del own[: max(len(past) - 1, 0)]
            own.append(next(more))
        return own

    def present(self, workers: NDArray[np.intp], now: float) -> NDArray[np.bool_]:
        """Return a mask of the given workers that are present at `now`; shape (P',)."""
        away = [any(one.begin <= now < one.end for one in self._absences(worker, now)) for worker in workers.tolist()]
        return ~np.array(away, dtype=np.bool_)

    def returned(self, worker: int, now: float) -> float:
        """Return when a present worker last came back [s]; `now` if the worker was never away."""
        return max((one.end for one in self._absences(worker, now) if one.end <= now), default=now)

    def returns(self, workers: NDArray[np.intp], now: float) -> float:
        """Return the earliest time at which an absent worker among those given returns [s]; infinite if none does."""
        away = [one for worker in workers.tolist() for one in self._absences(worker, now)]
        return min((one.end for one in away if one.begin <= now < one.end), default=math.inf)

    def leaves(self, workers: NDArray[np.intp], now: float) -> dict[int, float]:
        """Return the next departure without notice [s] by worker, only for workers that have one."""
        found = {}
        for worker in workers.tolist():
            soon = [one.begin for one in self._absences(worker, now) if one.begin > now and not one.notice]
            if soon:
                found[worker] = soon[0]
        return found


def parameters_sent(
    job: Job, iteration: int, now: float, source: int, target: int, stream: tuple[str | int, ...]
) -> float:
    """Return the seconds to send the model parameters from worker `source` to worker `target` at time `now`."""
    order = Schedule(2, [Round([0], [1], [_FLOAT * job.source.true_parameters], phase="parameters")])
    placement, named = job.hosts[[source, target]], (*stream, target)
    timing = job.network(iteration).time(order, placement=placement, stream=named, origin=now)
    return float(timing.left[1])


def deadline_at(job: Job, quantile: float) -> float:
    """Return a quantile of workers' compute delay behind the fastest worker [s], over 200 iterations."""
    everybody = np.arange(job.source.workers)
    each = np.array([job.computes(number, everybody) for number in range(_DRAWN)])
    return float(np.quantile(each - each.min(axis=1, keepdims=True), quantile))
