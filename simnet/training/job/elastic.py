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
    """A time in which a worker is away, from `begin` to `end` [s]; with `notice` it finishes its iteration first."""

    worker: int
    begin: float
    end: float = math.inf
    notice: bool = True


@dataclass(frozen=True)
class Churn:
    """Workers that leave and come back at random, each for itself, after times that are exponentially distributed.

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
        """Yield the absences of a worker without end, from its own random stream."""
        draws, now = stream(seed, "churn", worker), 0.0
        while True:
            begin = now + draws.exponential(self.stay)
            now = begin + draws.exponential(self.away)
            yield Absence(worker, begin, now, self.notice)


class WorkerPresence:
    """The workers that are present at each time of a job."""

    def __init__(self, job: Job) -> None:
        workers = range(job.source.workers)
        self._of: list[list[Absence]] = [[] for _ in workers]
        for one in sorted(job.absences, key=lambda one: one.begin):
            self._of[one.worker].append(one)
        self._more = [None if job.churn is None else job.churn.absences(job.seed, worker) for worker in workers]

    def _absences(self, worker: int, now: float) -> list[Absence]:
        """Return the absences of a worker: all that are drawn up to one that begins later than a time."""
        own, more = self._of[worker], self._more[worker]
        while more is not None and (not own or own[-1].begin <= now):
            # Of those that are past the last tells when the worker came back.
            past = [place for place, one in enumerate(own) if one.end <= now]
            del own[: max(len(past) - 1, 0)]
            own.append(next(more))
        return own

    def present(self, workers: NDArray[np.intp], now: float) -> NDArray[np.bool_]:
        """Return which of some workers are there at a time; shape (P',)."""
        away = [any(one.begin <= now < one.end for one in self._absences(worker, now)) for worker in workers.tolist()]
        return ~np.array(away, dtype=np.bool_)

    def returned(self, worker: int, now: float) -> float:
        """Return when a worker that is there last came back [s]; a time itself if it was never away before."""
        return max((one.end for one in self._absences(worker, now) if one.end <= now), default=now)

    def returns(self, workers: NDArray[np.intp], now: float) -> float:
        """Return when the first of some workers that are away is there again [s]; infinite if none ever is."""
        away = [one for worker in workers.tolist() for one in self._absences(worker, now)]
        return min((one.end for one in away if one.begin <= now < one.end), default=math.inf)

    def leaves(self, workers: NDArray[np.intp], now: float) -> dict[int, float]:
        """Return when workers next leave without notice [s], of those that do."""
        found = {}
        for worker in workers.tolist():
            soon = [one.begin for one in self._absences(worker, now) if one.begin > now and not one.notice]
            if soon:
                found[worker] = soon[0]
        return found


def parameters_sent(
    job: Job, iteration: int, now: float, source: int, target: int, stream: tuple[str | int, ...]
) -> float:
    """Return the seconds in which the parameters travel from worker `source` to worker `target` from `now` on."""
    order = Schedule(2, [Round([0], [1], [_FLOAT * job.source.true_parameters], phase="parameters")])
    placement, named = job.hosts[[source, target]], (*stream, target)
    timing = job.network(iteration).time(order, placement=placement, stream=named, origin=now)
    return float(timing.left[1])


def deadline_at(job: Job, quantile: float) -> float:
    """Return a quantile of the seconds by which workers compute longer than the first, over 200 iterations."""
    everybody = np.arange(job.source.workers)
    each = np.array([job.computes(number, everybody) for number in range(_DRAWN)])
    return float(np.quantile(each - each.min(axis=1, keepdims=True), quantile))
