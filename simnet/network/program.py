"""Input of a clock: schedules in a row, placement and start of ranks, and random draws of messages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats, Ranks
from simnet.network.compute_stream import Computed, Streams
from simnet.network.jitter import Delays
from simnet.schedule import Schedule


@dataclass(frozen=True)
class Program:
    """Schedules in a row to be timed. Times count from `origin`, except the origin itself and failures.

    - `origin`: the moment from which times count [s].
    - `parts` (P,)): schedules in order, and when each rank may enter each [s].
    - `hosts`, `start`, `accounted` (P,): host of each rank, when it enters, and the start of its accounting [s].
    - `delays`: extra latency of each message.
    - `picks` (number of messages,): candidate route of each message; empty for the first.
    - `failures`: ranks that fail for good, and when [s].
    - `software` (P,), optional: seconds of library software in each rank's work.
    - `software_of_rounds`: returns its part before each round; with ``cut=True`` for cut rings.
    - `streams`: work on compute streams, which then opens the parts.
    - `computed`: computation known beforehand, which the gates represent.
    """

    origin: float
    parts: Sequence[tuple[Schedule, Floats]]
    hosts: Ranks
    start: Floats
    accounted: Floats
    delays: Delays
    picks: Ranks
    failures: Mapping[int, float]
    software: Floats | None = None
    software_of_rounds: Callable[..., Sequence[float | Floats]] | None = None
    streams: Streams | None = None
    computed: Computed | None = None

    @cached_property
    def schedule(self) -> Schedule:
        """All schedules as one."""
        first, *others = (schedule for schedule, _ in self.parts)
        return first.concat(*others) if others else first

    @cached_property
    def compute(self) -> Floats:
        """Seconds each rank computes in all rounds; shape (P,)."""
        return self.schedule.compute()

    def counted_from(self, origin: float, now: float) -> Program:
        """Return the same with times from another origin [s] and no entry before `now`."""
        later = self.origin - origin
        start = np.maximum(self.start + later, now)
        return replace(
            self,
            origin=origin,
            computed=None if self.computed is None else self.computed.later(later),
            parts=[(schedule, ready + later) for schedule, ready in self.parts],
            start=start,
            accounted=np.maximum(self.accounted + later, start),
        )

    def columns(self) -> dict[str, Any]:
        """Return all messages as `Schedule.columns`, with ``part``, the number of the schedule."""
        counts = [schedule.n_messages for schedule, _ in self.parts]
        return {**self.schedule.columns(), "part": np.repeat(np.arange(len(counts)), counts)}

    def bounds(self) -> list[tuple[int, int]]:
        """Return first and past-the-end round of each part."""
        ends = list(itertools.accumulate(len(schedule.rounds) for schedule, _ in self.parts))
        return list(zip([0, *ends], ends, strict=False))

    def part_of(self, rounds: Ranks) -> Ranks:
        """Return the part of each of the rounds."""
        ends = np.cumsum([len(schedule.rounds) for schedule, _ in self.parts])
        return np.searchsorted(ends, rounds, side="right")

    def software_before(self) -> Sequence[float | Floats]:
        """Return the library software of ranks before each round [s]."""
        return [0.0] * len(self.schedule.rounds) if self.software_of_rounds is None else self.software_of_rounds()

    def begins(self) -> Ranks:
        """Return the first rounds of parts and calls, ascending; ranks enter them after finishing all earlier ones."""
        calls = [call.first for call in self.schedule.calls if call.rounds]
        parts = [first for first, last in self.bounds() if last > first]
        return np.unique(np.array(parts + calls, dtype=np.int64))

    def gates(self) -> dict[int, Floats]:
        """Return until when ranks wait before rounds [s], by round; the round after the last is the end."""
        gates: dict[int, Floats] = {}
        index = 0
        for schedule, ready in self.parts:
            # An empty schedule shares its gate with the next, or holds up the end.
            gates[index] = np.maximum(ready, gates.get(index, -np.inf))
            index += len(schedule.rounds)
        return gates


def parts_of(
    schedule: Schedule | Sequence[tuple[Schedule, ArrayLike]],
) -> Sequence[tuple[Schedule, ArrayLike]]:
    """Return schedules with their ready times; 0 for a single schedule."""
    parts = [(schedule, 0.0)] if isinstance(schedule, Schedule) else list(schedule)
    if not parts:
        raise ValueError("there is no schedule to time")
    return parts


def failures_of(deaths: Mapping[int, float], n_ranks: int) -> dict[int, float]:
    """Return the failure times [s] by rank, checked."""
    if not isinstance(deaths, Mapping):
        raise ValueError(f"deaths must be a mapping from ranks to seconds, got {deaths!r}")
    for rank, time in deaths.items():
        if not (isinstance(rank, int | np.integer) and 0 <= rank < n_ranks):
            raise ValueError(f"deaths must be those of ranks 0..{n_ranks - 1}, got {rank!r}")
        if not (isinstance(time, int | float | np.number) and 0 <= time < math.inf):
            raise ValueError(f"a rank must die at a finite time >= 0, got {time!r} for rank {rank}")
    return {int(rank): float(time) for rank, time in deaths.items()}


def moments_of(times: float | ArrayLike, n_ranks: int, name: str) -> Floats:
    """Return times [s] of all ranks, given one for all or one each; `name` is used in errors."""
    given = np.asarray(times, dtype=np.float64)
    if given.shape not in ((), (n_ranks,)):
        raise ValueError(f"{name} must be one time or {n_ranks}, one for each rank; got shape {given.shape}")
    # Of numbers with NaN both are NaN.
    if not (given.min() >= 0 and given.max() < math.inf):
        raise ValueError(f"{name} must be finite and >= 0, got {times!r}")
    return np.broadcast_to(given, n_ranks) if given.ndim == 0 else given
