"""Timing of a schedule: its messages, the work of ranks, and how each rank spent its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.base.errors import StalledError, Waits
from simnet.base.units import format_seconds
from simnet.network.program import Computed, Program

if TYPE_CHECKING:
    import pandas as pd
    import simpy

    from simnet.network.engine import Engine, Handle

# Ranks that a line of a message names.
_NAMED = 8


@dataclass(frozen=True)
class Messages:
    """All messages of a timed schedule, as columns of equal length in the order of the schedule.

    `sent` and `arrived` are seconds since `origin` [s] at full precision; `start` and `finish` are absolute. `part` is
    the number of the schedule when several are timed in a row.
    """

    round: Ranks
    src: Ranks
    dst: Ranks
    nbytes: Floats
    sent: Floats
    arrived: Floats
    phase: NDArray[np.str_]
    part: Ranks
    origin: float = 0.0

    @property
    def start(self) -> Floats:
        """Time at which each message was sent [s]."""
        return self.origin + self.sent

    @property
    def finish(self) -> Floats:
        """Time at which each message had arrived [s]."""
        return self.origin + self.arrived


@dataclass(frozen=True)
class BusyIntervals:
    """Table of intervals in which ranks are busy: rank, number of the schedule, start time and end time [s]."""

    rank: Ranks
    part: Ranks
    begun: Floats
    ended: Floats

    @classmethod
    def of(cls, rank: ArrayLike, part: ArrayLike, begun: Floats, ended: Floats) -> BusyIntervals:
        """Return a table of the given columns, broadcast to one shape, without empty intervals and those with NaN."""
        lasts = ended > begun
        ranks, parts = (np.broadcast_to(np.asarray(one), begun.shape)[lasts] for one in (rank, part))
        return cls(ranks, parts, begun[lasts], ended[lasts])

    def later(self, seconds: float) -> BusyIntervals:
        """Return a copy with all times shifted by `seconds`."""
        return BusyIntervals(self.rank, self.part, self.begun + seconds, self.ended + seconds)

    def and_of(self, other: BusyIntervals) -> BusyIntervals:
        """Return the intervals of this table, followed by those of `other`."""
        return BusyIntervals(
            *(np.concatenate(both) for both in zip(vars(self).values(), vars(other).values(), strict=True))
        )


def work_intervals(
    program: Program, numbers: ArrayLike, begun: Floats, ended: Floats
) -> tuple[BusyIntervals, BusyIntervals]:
    """Return when each rank computes before a round, and when the communication library then uses the rank's CPU.

    Parameters
    ----------
    program : Program
        The program.
    numbers : array_like of int, shape (n,)
        The rounds.
    begun, ended : ndarray, shape (n, P)
        Start and end of each rank's work [s], or of its kernels if there are compute streams; NaN for none.
    """
    at = np.asarray(numbers, dtype=np.int64)
    compute, software = (
        np.array([np.broadcast_to(each[one], begun.shape[1:]) for one in at.tolist()]).reshape(begun.shape)
        for each in ([one.compute for one in program.schedule.rounds], program.software_before())
    )
    if program.streams is None:
        through = behind = np.where(software > 0, begun + (compute - software), ended)
    else:
        through, behind = ended, np.where(np.isnan(ended), begun, ended)
        ended = behind + software
    rank, part = np.arange(program.hosts.size), program.part_of(at)[:, np.newaxis]
    return BusyIntervals.of(rank, part, begun, through), BusyIntervals.of(rank, part, behind, ended)


@dataclass(frozen=True)
class HostWork:
    """Intervals in which the collective library uses the CPUs of ranks.

    Parameters
    ----------
    before_rounds : BusyIntervals
        Before rounds, as in calibrated systems.
    for_messages : ndarray, shape (4, 2, number of messages)
        Start and end of asking, speaking, sending and taking in each message [s since the origin]; NaN for none.
        Messages taken in together are recorded at one of them.
    """

    before_rounds: BusyIntervals
    for_messages: Floats

    def of_ranks(self, messages: Messages) -> BusyIntervals:
        """Return all intervals of the library's CPU use, both before rounds and for messages, in one table."""
        by = np.stack([messages.src, messages.dst, messages.src, messages.dst])
        own = BusyIntervals.of(by, messages.part, self.for_messages[:, 0], self.for_messages[:, 1])
        return self.before_rounds.and_of(own)


MessageDetail: TypeAlias = tuple[Messages | None, BusyIntervals | None, HostWork | None]
"""Messages, work and library software of a timing, if kept."""


def message_times(
    program: Program, times: tuple[Floats, Floats], numbers: ArrayLike, work: tuple[Floats, Floats], software: Floats
) -> tuple[Messages, BusyIntervals, HostWork]:
    """Return tables of a program's messages, of the ranks' compute intervals, and of the library's use of their CPUs.

    `times` are when messages were sent and arrived [s], `numbers` and `work` are the rounds and the work's start and
    end, and `software` is the library's CPU time for the messages [s], as in `HostWork`.
    """
    sent, arrived = times
    own, before = work_intervals(program, numbers, *work)
    messages = Messages(**program.columns(), sent=sent, arrived=arrived, origin=program.origin)
    return messages, own, HostWork(before, software)


class Split(NamedTuple):
    """Seconds in which each rank communicates (has a message in flight), computes, and waits; shape (P,) each."""

    communicate: Floats
    compute: Floats
    wait: Floats


@dataclass(frozen=True, repr=False)
class Timing:
    """Completion times of a schedule, and how each rank spent its time.

    Differences are exact for `duration`, `entered`, `left` and `lasts_from`, which count from the origin. Absolute
    times are rounded to doubles, 0.1 us at 1e9 s.

    Parameters
    ----------
    origin : float
        The moment from which `entered` and `left` count [s].
    entered, left : ndarray, shape (P,)
        Start and completion time of each rank [s].
    account : callable
        Computes `split` on first use.
    messages : Messages or None
        Times of every message, if requested.
    work : BusyIntervals or None
        Work before rounds, if messages are requested.
    software : HostWork or None
        Library software, likewise.
    computed : Computed or None
        Computation next to the exchange, if given.

    Examples
    --------
    >>> from simnet import Network, Round, Schedule, topologies
    >>> Network(topologies.star(2, latency=1e-3, bandwidth=1e6)).time(Schedule(2, [Round([0], [1], [500])]), start=2.0)
    Timing(2 ranks, 1.5 ms from 2 s)
    """

    origin: float
    entered: Floats
    left: Floats
    account: Callable[[], Split]
    messages: Messages | None = None
    work: BusyIntervals | None = None
    software: HostWork | None = None
    computed: Computed | None = None

    def __repr__(self) -> str:
        ranks = "1 rank" if self.left.size == 1 else f"{self.left.size:,} ranks"
        begin = f" from {format_seconds(self.start)}" if self.start else ""
        kept = "" if self.messages is None else ", with messages"
        return f"Timing({ranks}, {format_seconds(self.duration)}{begin}{kept})"

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a row per rank: start, finish, and seconds communicating, computing and waiting."""
        import pandas as pd

        columns = {"start_s": self.rank_start, "finish_s": self.rank_finish}
        did = {"communicate_s": self.rank_communicate, "compute_s": self.rank_compute, "wait_s": self.rank_wait}
        return pd.DataFrame(columns | did).rename_axis("rank").reset_index()

    @property
    def start(self) -> float:
        """Time at which the first rank entered the schedule [s]."""
        return self.origin + float(self.entered.min())

    @property
    def finish(self) -> float:
        """Completion time of the last rank [s]."""
        return self.origin + float(self.left.max())

    @property
    def rank_start(self) -> Floats:
        """Time at which each rank entered the schedule [s]; shape (P,)."""
        return self.origin + self.entered

    @property
    def rank_finish(self) -> Floats:
        """Completion time of each rank [s]; shape (P,)."""
        return self.origin + self.left

    @cached_property
    def split(self) -> Split:
        """Seconds each rank communicates, computes and waits; the three add up to the rank's duration."""
        return self.account()

    @property
    def rank_communicate(self) -> Floats:
        """Seconds for which each rank has a message in flight and does not compute; shape (P,)."""
        return self.split.communicate

    @property
    def rank_compute(self) -> Floats:
        """Seconds for which each rank computes; shape (P,)."""
        return self.split.compute

    @property
    def rank_wait(self) -> Floats:
        """Seconds for which each rank neither communicates nor computes; shape (P,)."""
        return self.split.wait

    @property
    def duration(self) -> float:
        """Seconds from the entry of the first rank to the completion of the last."""
        return float(self.left.max()) - float(self.entered.min())

    def lasts_from(self, moment: float) -> float:
        """Return the seconds from `moment`, an absolute time [s], to the completion of the last rank."""
        return float(self.left.max()) + (self.origin - moment)


def move_software(split: Split, program: Program) -> Split:
    """Return `split` with the CPU time of the communication library moved from computing to communication."""
    if program.software is None:
        return split
    own = np.maximum(program.compute - program.software, 0.0)
    if program.computed is None:
        share = np.divide(own, program.compute, out=np.zeros(own.size), where=program.compute > 0)
        moved = split.compute * (1 - share)
    else:
        moved = np.maximum(split.compute - own, 0.0)
    return Split(split.communicate + moved, split.compute - moved, split.wait)


# Intervals of ranks whose union is taken together.
_AT_ONCE = 1 << 19

Intervals: TypeAlias = Sequence[tuple[NDArray[np.signedinteger], Floats, Floats]]
"""Tables of intervals: rank, start and end [s] of each."""


def split_intervals(work: Intervals, messages: Intervals, accounted: Floats, finish: Floats) -> Split:
    """Return each rank's seconds of communicating without computing, of computing, and of waiting, up to `finish`."""
    computing = _covered_seconds(work, accounted, finish)
    communicating = _covered_seconds([*work, *messages], accounted, finish) - computing
    wait = np.maximum(np.maximum(finish - accounted, 0.0) - communicating - computing, 0.0)
    return Split(communicating, computing, wait)


def _covered_seconds(tables: Intervals, accounted: Floats, finish: Floats) -> Floats:
    """Return for how many seconds between its `accounted` and `finish` times each rank is in one of its intervals."""
    total, n_intervals = np.zeros(finish.size), sum(rank.size for rank, *_ in tables)
    # A group of ranks at a time, so that temporary arrays take less memory than the intervals.
    for group in np.array_split(np.arange(finish.size), min(finish.size, 1 + n_intervals // _AT_ONCE)):
        found = [np.flatnonzero((rank >= group[0]) & (rank <= group[-1])) for rank, *_ in tables]
        rank, begin, end = (
            np.concatenate([one[own] for one, own in zip(column, found, strict=True)])
            for column in zip(*tables, strict=True)
        )
        begin = np.maximum(begin, accounted[rank])
        end = np.maximum(np.minimum(end, finish[rank]), begin)
        total[group] = _union_lengths(rank - group[0], begin, end, group.size)
    return total


def _union_lengths(rank: NDArray[np.signedinteger], begin: Floats, end: Floats, n_ranks: int) -> Floats:
    """Return the length of the union of each rank's intervals; shape (P,)."""
    order = np.lexsort((begin, rank))
    begin, end = begin[order], end[order]
    counts = np.bincount(rank, minlength=n_ranks)
    bounds, total = np.cumsum(counts) - counts, np.zeros(n_ranks)
    # Ranks with as many intervals go together.
    for count in np.unique(counts[counts > 0]).tolist():
        ranks = np.flatnonzero(counts == count)
        own = bounds[ranks, np.newaxis] + np.arange(count)
        reached = np.maximum.accumulate(end[own], axis=1)
        # An interval adds only time after the end of all earlier intervals.
        fresh = np.maximum(begin[own[:, 1:]], reached[:, :-1])
        added = np.maximum(reached[:, 1:] - fresh, 0.0)
        total[ranks] = (end[own[:, 0]] - begin[own[:, 0]]) + added.sum(axis=1)
    return total


class TimedRun:
    """A schedule in flight, with the SimPy event that is triggered when the schedule completes.

    Parameters
    ----------
    program : Program
        The schedule.
    done : simpy.Event
        Succeeds with a `Timing`, or fails with `StalledError`.
    messages : bool
        Whether to keep the times of every message.
    """

    def __init__(self, program: Program, done: simpy.Event, messages: bool) -> None:
        self.done = done
        self.program, self._messages = program, messages

    def enter(self, engine: Engine, now: float) -> int:
        """Start the schedule's ranks at time `now` [s] or later; return the run's row in the engine's table of runs."""
        if self.program.origin != engine.origin or self.program.start.min() < now:
            self.program = self.program.counted_from(engine.origin, now)
        self._handle: Handle = engine.run(self.program, self._messages)
        return self._handle.run

    def leave(self, engine: Engine) -> Timing:
        """Remove the schedule from the engine and return its timing."""
        timing = self._timing(engine)
        engine.release(self._handle)
        return timing

    def fail(self, engine: Engine, error: StalledError) -> None:
        """Remove the schedule from the engine, and let its SimPy event fail with `error`."""
        self.done.fail(error)
        engine.release(self._handle)

    def _timing(self, engine: Engine) -> Timing:
        finish, communicate, compute, wait = (
            engine.of_ranks(self._handle, field) for field in ("finish", "communicate", "compute", "wait")
        )
        messages, work, software, computed = None, None, None, self.program.computed
        if self.program.streams is not None:
            computed = engine.computed(self._handle)
        if self._messages:
            sent, arrived = (engine.of_messages(self._handle, field) for field in ("sent", "arrived"))
            works = [(number, one) for number, one in enumerate(self.program.schedule.rounds) if np.any(one.compute)]
            each = [engine.worked(self._handle, number, one.compute) for number, one in works]
            begun, ended = (np.array([one[end] for one in each]).reshape(-1, finish.size) for end in (0, 1))
            numbers = [number for number, _ in works]
            found = message_times(self.program, (sent, arrived), numbers, (begun, ended), engine.software(self._handle))
            messages, work, software = found
            if self.program.streams is not None and computed is not None:
                begun, ended = computed.begun["unpack"], computed.ended["unpack"]
                parts = np.arange(len(begun))[:, np.newaxis]
                work = work.and_of(BusyIntervals.of(np.arange(finish.size), parts, begun, ended))

        def account() -> Split:
            return move_software(Split(communicate, compute, wait), self.program)

        return Timing(engine.origin, self.program.start, finish, account, messages, work, software, computed)

    def stalled(self, engine: Engine, blocked: Mapping[tuple[int, int], str], now: float) -> StalledError:
        """Return the error that lists each unfinished rank and the messages that it waits for.

        `blocked` gives the reason for each message without progress, by round and position, `now` the time since the
        origin.
        """
        from simnet.network.event_loop.codes import FAILED, LEFT_HOST

        rounds = self.program.schedule.rounds
        at, state = (engine.of_ranks(self._handle, field).tolist() for field in ("round_index", "state"))
        left = engine.open_rounds(self._handle)
        stopped = [rank for rank, what in enumerate(state) if what == FAILED]
        times = self.program.failures
        failed = {rank: times[rank] for rank in sorted(stopped, key=times.__getitem__)}
        missing = self._missing(engine, blocked, left, failed)
        waiting, stuck = [], []
        for rank, index in enumerate(at):
            if index == len(rounds) or rank in failed:
                continue
            phase, known = rounds[index].phase, missing.get(rank, [])
            more = f"; and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
            what = "; ".join(text for _, text in known[:_NAMED]) or "from ranks that wait themselves"
            count, before = sum(left[rank].values()), sorted(left[rank].keys() - {index})
            if engine.state.send_completion == LEFT_HOST:
                # Several messages may wait for one link of their host, which counts once.
                count = max(count, len(known))
            of = f" of rounds {before[0]} to {index}" if before else ""
            missing_ones = f"{count} message{'s' * (count != 1)}{of}: {what}{more}"
            waiting.append(f"rank {rank} waits in round {index}{f' ({phase})' if phase else ''} for {missing_ones}")
            stuck.append(Waits(rank, index, phase, tuple(dict.fromkeys(peer for peer, _ in known))))
        now = engine.busy_until(self._handle, now)
        if self.program.computed is not None:
            busy = np.delete(self.program.computed.done, stopped)
            now = max(now, float(busy.max(initial=now)))
        failures = " and ".join(f"rank {rank} died at {time:g} s" for rank, time in failed.items())
        after = f", after {failures}" if failures else ""
        message = f"the exchange stopped for ever at {engine.origin + now:g} s{after}{':' if waiting else ''}"
        return StalledError(message, waiting, now, failed, stuck, engine.origin)

    def _missing(
        self,
        engine: Engine,
        blocked: Mapping[tuple[int, int], str],
        left: list[dict[int, int]],
        failed: Mapping[int, float],
    ) -> dict[int, list[tuple[int, str]]]:
        """Return each waiting rank's missing messages as (peer, description), those with failed peers first."""
        # Without failures that is only what is `blocked`, which explains everything else.
        found: dict[int, list[tuple[int, str]]] = {}
        unsent: dict[int, list[tuple[int, str]]] = {}

        def note(into: dict[int, list[tuple[int, str]]], rank: int, direction: str, peer: int, why: str) -> None:
            known = f", which died at {failed[peer]:g} s" if peer in failed else why
            into.setdefault(rank, []).append((peer, f"{direction} rank {peer}{known}"))

        rounds = self.program.schedule.rounds
        arrived = ~np.isnan(engine.of_messages(self._handle, "arrived")) if failed else None
        first = np.cumsum([0, *map(len, rounds)])
        for index in sorted({one for held in left for one in held if 0 <= one < len(rounds)}):
            for position, (src, dst) in enumerate(zip(rounds[index].src, rounds[index].dst, strict=True)):
                why = blocked.get((index, position))
                if why is not None:
                    why = f" ({why})"
                elif arrived is not None and not arrived[first[index] + position]:
                    why = ""
                else:
                    continue
                if index in left[dst]:
                    note(found, int(dst), "from", int(src), why)
                if index in left[src]:
                    note(unsent, int(src), "to", int(dst), why)
        for rank, known in unsent.items():
            if sum(left[rank].values()) > len(found.get(rank, ())):
                found.setdefault(rank, []).extend(known)
        for known in found.values():
            known.sort(key=lambda one: one[0] not in failed)
        return found
