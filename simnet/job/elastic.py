"""Workers that come and go, and exchanges that do not wait for all: who is there, and until when the others wait.

A worker that leaves with notice takes part in the iteration that is under way, and is missing from the next one that
begins while it is away. One that leaves without notice stops at its moment, as a worker that fails does: the others
find it missing after the patience of the job, and repeat the exchange without it. Either comes back with the first
iteration that begins once it has the parameters from another worker, which the others do not wait for.

With a deadline, those that have not computed their part so long after the first are not waited for. The others wait
until then, as nobody knows who is late, and exchange without them; these come back in the same way once they have
computed.
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
    from simnet.job.job import Job

# Iterations whose computing a quantile is of, at most.
_DRAWN = 200
_FLOAT = 4.0
_SHORTEST = 1e-3


class Absence(NamedTuple):
    """A time in which a worker is away.

    Parameters
    ----------
    worker : int
        Which.
    begin, end : float
        From when until when [s], on the clock of the network; end may be infinite.
    notice : bool
        Whether it finishes the iteration that is under way.
    """

    worker: int
    begin: float
    end: float
    notice: bool


@dataclass(frozen=True)
class Churn:
    """Workers that leave and come back at random, each for itself, after times that are exponentially distributed.

    Parameters
    ----------
    stay, away : float
        How long one is there, and away, on average [s], >= 1 ms.
    notice : bool
        Whether it finishes the iteration that is under way.

    Raises
    ------
    ValueError
        If a time is not >= 1 ms and finite.
    """

    stay: Duration
    away: Duration
    notice: bool = True

    def __post_init__(self) -> None:
        for name in ("stay", "away"):
            if not _SHORTEST <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be >= {_SHORTEST:g} s and finite, got {getattr(self, name):g} s")

    def absences(self, seed: int, worker: int) -> Iterator[Absence]:
        """Yield when a worker is away, without end.

        Parameters
        ----------
        seed : int
            Of the random stream, of which each worker has its own.
        worker : int
            Which.

        Examples
        --------
        >>> from itertools import islice
        >>> first, second = islice(Churn(100.0, 10.0).absences(1, 0), 2)
        >>> 0 < first.begin < first.end < second.begin < second.end
        True
        """
        draws, now = stream(seed, "churn", worker), 0.0
        while True:
            begin = now + draws.exponential(self.stay)
            now = begin + draws.exponential(self.away)
            yield Absence(worker, begin, now, self.notice)


class WorkerPresence:
    """Who is there at a time.

    Parameters
    ----------
    job : Job
        The job, of whose workers some are away at times.
    """

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
    """Return how long after a time the parameters of a worker have come to another one [s].

    Parameters
    ----------
    job : Job
        The job.
    iteration : int
        Which iteration is next, whose network is in force.
    now : float
        The time [s].
    source, target : int
        The worker that sends them, and the one that gets them.
    stream : tuple of str or int
        Name of the random stream of the jitter.
    """
    hosts = range(job.source.workers) if job.placement is None else job.placement
    order = Schedule(2, [Round([0], [1], [_FLOAT * job.source.true_parameters], phase="parameters")])
    placement, named = [hosts[source], hosts[target]], (*stream, target)
    timing = job.network(iteration).time(order, placement=placement, stream=named, origin=now)
    return float(timing.left[1])


def deadline_at(job: Job, quantile: float) -> float:
    """Return by how much a worker computes longer than the first in its iteration, at a quantile [s].

    Of the first iterations, of which it takes as many however long the job is.

    Parameters
    ----------
    job : Job
        The job.
    quantile : float
        Within 0..1.

    Examples
    --------
    >>> from simnet.scenario import load
    >>> job = load("local_steps_wan", ["job.scale=200000", "job.strategy.period=5"]).build().job
    >>> 0 < deadline_at(job, 0.5) < deadline_at(job, 0.9) < job.compute.mean
    True
    """
    everybody = np.arange(job.source.workers)
    each = np.array([job.computes(number, everybody) for number in range(_DRAWN)])
    return float(np.quantile(each - each.min(axis=1, keepdims=True), quantile))
