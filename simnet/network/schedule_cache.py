"""Compiled timing of short schedules that recur on the same links.

From its second use on, a schedule is prepared as one batch (`simnet.network.batched_schedule`) and timed by one call.
Cases that this leaves open, repeated rounds with all ranks in step and messages that meet, go round by round through
`simnet.network.max_plus`. Both give the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.network.batched_schedule import MOST_SUMMED, BatchedSchedule, RankIntervals
from simnet.network.links import Links
from simnet.network.program import Program
from simnet.network.recurrence import BEYOND, COMPLETED, Progress, RouteState, Traffic
from simnet.network.timing import Split
from simnet.network.weather_forecast import WeatherForecast
from simnet.schedule import Round, Schedule

# Messages of a schedule up to which it is laid out, and how many schedules stay so, or are remembered, per network.
MOST_MESSAGES, _MOST_SCHEDULES = 4096, 256
_NONE = np.zeros(0)


class ScheduleCache:
    """Schedules seen on some links, prepared by placement; holding them keeps their ids unique."""

    def __init__(self) -> None:
        self._seen: dict[int, Schedule] = {}
        self._laid: dict[tuple[bytes, int], tuple[Schedule, CachedSchedule | None]] = {}

    def comes_again(self, program: Program) -> bool:
        """Return whether the single schedule of a program has been seen before."""
        ((schedule, _),) = program.parts
        if self._seen.get(id(schedule)) is schedule:
            return True
        if len(self._seen) == _MOST_SCHEDULES:
            self._seen.clear()
        self._seen[id(schedule)] = schedule
        return False

    def of(self, program: Program, lay_out: Callable[[], CachedSchedule | None]) -> CachedSchedule | None:
        """Return the prepared schedule, made by `lay_out` if needed; None if it cannot be prepared."""
        ((schedule, _),) = program.parts
        key = program.hosts.tobytes(), id(schedule)
        if key not in self._laid:
            if len(self._laid) == _MOST_SCHEDULES:
                self._laid.clear()
            self._laid[key] = schedule, lay_out()
        return self._laid[key][1]


class RepeatedRound(NamedTuple):
    """A round, its consecutive occurrences, its messages on their routes, and the initial route state."""

    one: Round
    repeats: int
    traffic: Traffic
    routes: RouteState


class CachedSchedule:
    """A schedule prepared on links.

    - `rounds`: its rounds.
    - `n_ranks`: number of ranks.
    - `links`: the links.
    """

    def __init__(self, rounds: Iterable[RepeatedRound], n_ranks: int, links: Links) -> None:
        laid = list(rounds)
        traffics, repeats = [one.traffic for one in laid], np.array([one.repeats for one in laid], dtype=np.int64)
        count = np.array([len(one.one) for one in laid], dtype=np.int64)
        works = np.array([one.traffic.compute.size for one in laid], dtype=np.int64)
        longest = max((one.links.shape[1] for one in traffics), default=0)
        table = np.full((int(count.sum()), longest), -1, dtype=np.int64)
        for first, one in zip(_ends(count), traffics, strict=False):
            table[first : first + len(one.links), : one.links.shape[1]] = one.links
        self.batch = BatchedSchedule(
            src=_joined([one.src for one in traffics], int),
            dst=_joined([one.dst for one in traffics], int),
            nbytes=_joined([one.nbytes for one in traffics], float),
            links=table,
            own=_joined([one.own for one in traffics], int),
            compute=_joined([one.compute for one in traffics], float),
            single=np.array([one.single for one in traffics], dtype=np.bool_),
            exclusive=np.array([one.exclusive for one in traffics], dtype=np.bool_),
            repeats=repeats,
            message=_ends(count),
            sent=_ends(count * repeats),
            work=_ends(works),
            worked=_ends(works * repeats),
        )
        self._before = [_joined([getattr(one.routes, name) for one in laid], float) for name in RouteState._fields]
        self._routes = RouteState(*(one.copy() for one in self._before))
        self._n_ranks, self._n_messages = n_ranks, int((count * repeats).sum())
        self._n_worked, n_links = int(self.batch.worked[-1]), len(links.routes.links)
        self._segments = np.zeros((2, n_links), dtype=np.int64)
        self._busy, self._ends = np.zeros(n_links), np.zeros((2, n_links))
        self._pair = np.zeros(n_links, dtype=np.int64)
        ends = [
            _joined([np.tile(getattr(one.traffic, end), one.repeats) for one in laid], int) for end in ("src", "dst")
        ]
        worked = np.arange(self._n_worked) % n_ranks
        self._everything = _shares([*ends, worked], 0, n_ranks)
        self._working = _shares([worked], 2 * self._n_messages, n_ranks)
        self._works = list(itertools.pairwise(np.unique(self.batch.worked).tolist()))
        most = int(np.diff(self._everything.first).max(initial=0))
        self._scratch = np.zeros(most), np.zeros(most)
        self.adds_up = most <= MOST_SUMMED
        """Whether `split` may be called."""

    def go(
        self,
        program: Program,
        links: Links,
        overheads: tuple[float, float],
        loops: ModuleType,
        outlook: WeatherForecast,
    ) -> Progress | None:
        """Time the schedule; None if it has to go round by round.

        - `program`, `links`, `overheads`: as of `simnet.network.max_plus.time_max_plus`.
        - `loops`: the functions of `simnet.network.batched_schedule`.
        - `outlook`: the weather ahead.
        """
        ((_, ready),) = program.parts
        done = np.maximum(program.start, ready)
        for state, before in zip(self._routes, self._before, strict=True):
            state[:] = before
        self._busy.fill(-np.inf)
        self._pair.fill(-1)
        self._ends.fill(0.0)
        times, work = np.empty((2, self._n_messages)), np.empty(2 * self._n_worked + self._n_ranks)
        progress = Progress(
            work[: self._n_worked],
            work[self._n_worked :],
            done,
            self._busy,
            self._pair,
            self._ends[0],
            self._ends[1],
            times[0],
            times[1],
            np.array([0, -1]),
        )
        one = 0
        while True:
            forecast, extents = outlook.along(self._segments)
            one, outcome, when = loops.run_rounds(
                self.batch, self._routes, forecast, extents, progress, overheads, one, links.constant
            )
            if outcome == COMPLETED:
                return progress
            if outcome != BEYOND:
                return None
            turn, message = progress.place.tolist()
            batch, P = self.batch, self._n_ranks
            first, m = int(batch.message[one]), int(batch.message[one + 1] - batch.message[one])
            works = batch.worked[one + 1] > batch.worked[one]
            entered = progress.entered[int(batch.worked[one]) + turn * P if works else -P :][:P]
            through = int(batch.sent[one]) + turn * m + message
            if not outlook.extend(through, batch.links[first + message], float(entered.min()), when):
                return None

    def split(self, program: Program, progress: Progress, loops: ModuleType) -> Split:
        """Return how each rank spent its accounted time."""
        split = Split(*np.empty((3, self._n_ranks)))
        loops.split_time(self._everything, self._working, progress, program.accounted, self._scratch, tuple(split))
        return split

    def computing(self, progress: Progress) -> list[tuple[Floats, Floats]]:
        """Return start and end of the work before each round that has some, as in `MaxPlusResult`."""
        return [(progress.begun[a:b], progress.entered[a:b]) for a, b in self._works]


def _ends(sizes: Ranks) -> Ranks:
    return np.append(0, np.cumsum(sizes))


def _joined(arrays: list[Any], kind: type) -> Any:
    return np.ascontiguousarray(np.concatenate([np.zeros(0, dtype=kind), *arrays]))


def _shares(who: list[Ranks], first: int, n_ranks: int) -> RankIntervals:
    """Return the intervals of each rank, given their owners, numbered from `first` on."""
    rank = np.concatenate(who)
    bounds = np.searchsorted(np.sort(rank), np.arange(n_ranks + 1))
    return RankIntervals(first + np.argsort(rank, kind="stable"), bounds.astype(np.int64))
