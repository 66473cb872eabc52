"""What is to run: schedules in a row, where and when ranks enter them, and what is drawn for messages."""

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
    """Schedules in a row that are to run.

    Times count from the origin, so that a short exchange late in a long job keeps its digits, but for the origin itself
    and failures.

    Parameters
    ----------
    origin : float
        The moment from which times count [s].
    parts : sequence of (Schedule, ndarray of shape (P,))
        Schedules in order, and when each rank may enter each [s].
    hosts, start, accounted : ndarray, shape (P,)
        Host of each rank, when it enters, and from when on its time is accounted [s].
    delays : Delays
        Extra latency of each message.
    picks : ndarray of int, shape (number of messages,)
        Number by which a message chooses between its candidate routes; empty for the first.
    failures : mapping of int to float
        Ranks that stop for good, and when [s]. Messages from and to a failed rank vanish; who needs it waits for ever.
    software : ndarray, shape (P,), optional
        Seconds of each rank that are among those it computes, and are software of the library that communicates.
    software_of_rounds : callable, optional
        Returns what of that comes before each round, where there is any; with ``cut=True`` when rings are cut.
    streams : Streams, optional
        What ranks compute beside the parts, and which of their kernels queue; then parts are not gated otherwise.
    computed : Computed, optional
        What they have computed beside the parts where that is known beforehand, and gates stand for it.
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
        """Seconds that each rank computes in all rounds; shape (P,)."""
        return self.schedule.compute()

    def counted_from(self, origin: float, now: float) -> Program:
        """Return the same with times that count from another origin [s], of which none enters before `now`."""
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
        """Return all messages as `Schedule.columns` does, with ``part``, the number of the schedule of each."""
        counts = [schedule.n_messages for schedule, _ in self.parts]
        return {**self.schedule.columns(), "part": np.repeat(np.arange(len(counts)), counts)}

    def bounds(self) -> list[tuple[int, int]]:
        """Return the first round of each part, and the one after its last."""
        ends = list(itertools.accumulate(len(schedule.rounds) for schedule, _ in self.parts))
        return list(zip([0, *ends], ends, strict=False))

    def part_of(self, rounds: Ranks) -> Ranks:
        """Return the part of each of the rounds."""
        ends = np.cumsum([len(schedule.rounds) for schedule, _ in self.parts])
        return np.searchsorted(ends, rounds, side="right")

    def software_before(self) -> Sequence[float | Floats]:
        """Return the software of the library that communicates that ranks do before each round [s]."""
        return [0.0] * len(self.schedule.rounds) if self.software_of_rounds is None else self.software_of_rounds()

    def begins(self) -> Ranks:
        """Return the first rounds of parts and calls, ascending: ranks enter them when done with all before."""
        calls = [call.first for call in self.schedule.calls if call.rounds]
        parts = [first for first, last in self.bounds() if last > first]
        return np.unique(np.array(parts + calls, dtype=np.int64))

    def gates(self) -> dict[int, Floats]:
        """Return before which rounds ranks wait, and until when [s]; the round after the last is the end."""
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
    """Return schedules with when ranks may enter each; a single one may be entered at any time."""
    parts = [(schedule, 0.0)] if isinstance(schedule, Schedule) else list(schedule)
    if not parts:
        raise ValueError("there is no schedule to time")
    return parts


def failures_of(deaths: Mapping[int, float], n_ranks: int) -> dict[int, float]:
    """Return when which ranks fail [s]."""
    if not isinstance(deaths, Mapping):
        raise ValueError(f"deaths must be a mapping from ranks to seconds, got {deaths!r}")
    for rank, time in deaths.items():
        if not (isinstance(rank, int | np.integer) and 0 <= rank < n_ranks):
            raise ValueError(f"deaths must be those of ranks 0..{n_ranks - 1}, got {rank!r}")
        if not (isinstance(time, int | float | np.number) and 0 <= time < math.inf):
            raise ValueError(f"a rank must die at a finite time >= 0, got {time!r} for rank {rank}")
    return {int(rank): float(time) for rank, time in deaths.items()}


def moments_of(times: float | ArrayLike, n_ranks: int, name: str) -> Floats:
    """Return times [s] of all ranks, given one for all or one each.

    Parameters
    ----------
    times : float or array_like
        Seconds.
    n_ranks : int
        P.
    name : str
        What the times are, for errors.
    """
    given = np.asarray(times, dtype=np.float64)
    if given.shape not in ((), (n_ranks,)):
        raise ValueError(f"{name} must be one time or {n_ranks}, one for each rank; got shape {given.shape}")
    # Of numbers with NaN both are NaN.
    if not (given.min() >= 0 and given.max() < math.inf):
        raise ValueError(f"{name} must be finite and >= 0, got {times!r}")
    return np.broadcast_to(given, n_ranks) if given.ndim == 0 else given
