"""A schedule under way: who waits for it, and how it went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.base.errors import StalledError, Waits
from simnet.network.computing import Computed
from simnet.network.engine import Engine, Handle
from simnet.network.event_loop.records import FAILED, IN_ROUND
from simnet.network.program import Program

# Ranks that a line of a message names.
_NAMED = 8


@dataclass(frozen=True)
class Messages:
    """Every message of a timed schedule, as columns of equal length, in the order of the schedule.

    `sent` and `arrived` are in seconds since `origin` [s], with all their digits; `start` and `finish` are the same in
    absolute time. `part` says of which schedule each is, where several were timed in a row.
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
        """When each message was sent [s]."""
        return self.origin + self.sent

    @property
    def finish(self) -> Floats:
        """When each message had arrived [s]."""
        return self.origin + self.arrived


@dataclass(frozen=True)
class Work:
    """From when to when ranks computed before rounds, as columns of equal length, in seconds since the origin.

    Software of the library that communicates comes behind, and is not part of it.
    """

    rank: Ranks
    begun: Floats
    ended: Floats

    @classmethod
    def of(cls, intervals: Sequence[tuple[Floats, Floats]], program: Program) -> Work:
        """Return intervals of all ranks that are not empty, given begins and ends of shape (n * P,) each."""
        begun, ended = (np.concatenate([np.zeros(0), *(one[end] for one in intervals)]) for end in (0, 1))
        rank = np.arange(begun.size) % program.hosts.size
        if program.streams is None:
            ended = ended - (ended - begun) * software_share(program)[rank]
        lasts = ended > begun
        return cls(rank[lasts], begun[lasts], ended[lasts])


class Split(NamedTuple):
    """Seconds of each rank, shape (P,): with a message of its own in flight, computing, and neither."""

    communicate: Floats
    compute: Floats
    wait: Floats


@dataclass(frozen=True)
class Timing:
    """When a schedule was done, and what each rank did meanwhile.

    What a difference is taken of counts from the origin: `duration`, `entered`, `left`, `lasts_from`. Absolute times
    round to what doubles can tell at that time, which is 0.1 us at 1e9 s.

    Parameters
    ----------
    origin : float
        The moment from which `entered` and `left` count [s].
    entered, left : ndarray, shape (P,)
        When each rank entered, and when it was done [s].
    account : callable
        Returns the `split` when it is first asked for.
    messages : Messages or None
        When every message was sent and had arrived, when asked for.
    work : Work or None
        When ranks computed, when messages are asked for.
    computed : Computed or None
        What they computed beside the exchange, when that is given.
    """

    origin: float
    entered: Floats
    left: Floats
    account: Callable[[], Split]
    messages: Messages | None = None
    work: Work | None = None
    computed: Computed | None = None

    @property
    def start(self) -> float:
        """When the first rank entered [s]."""
        return self.origin + float(self.entered.min())

    @property
    def finish(self) -> float:
        """When the last rank was done [s]."""
        return self.origin + float(self.left.max())

    @property
    def rank_start(self) -> Floats:
        """When each rank entered [s]; shape (P,)."""
        return self.origin + self.entered

    @property
    def rank_finish(self) -> Floats:
        """When each rank was done [s]; shape (P,)."""
        return self.origin + self.left

    @cached_property
    def split(self) -> Split:
        """What each rank did between its start and its finish; the three add up to the time between both."""
        return self.account()

    @property
    def rank_communicate(self) -> Floats:
        """Seconds of each rank with a message of its own in flight; shape (P,)."""
        return self.split.communicate

    @property
    def rank_compute(self) -> Floats:
        """Seconds that each rank computes, the `compute` of its rounds; shape (P,)."""
        return self.split.compute

    @property
    def rank_wait(self) -> Floats:
        """Seconds that each rank does neither; shape (P,)."""
        return self.split.wait

    @property
    def duration(self) -> float:
        """Seconds from start to finish."""
        return float(self.left.max()) - float(self.entered.min())

    def lasts_from(self, moment: float) -> float:
        """Return the seconds from a moment [s] until the last rank was done."""
        return float(self.left.max()) + (self.origin - moment)


def software_share(program: Program) -> Floats:
    """Return how much of what each rank computes is software of the library that communicates; shape (P,)."""
    none = np.zeros(program.hosts.size)
    if program.software is None:
        return none
    return np.divide(program.software, program.compute, out=none, where=program.compute > 0)


def with_software(split: Split, program: Program) -> Split:
    """Return what ranks did, with software of the library that communicates as part of communicating.

    Where a part of a program is not accounted, software has its share of what is.
    """
    moved = split.compute * software_share(program)
    return Split(split.communicate + moved, split.compute - moved, split.wait)


class Run:
    """A schedule under way, as its caller sees it.

    Parameters
    ----------
    program : Program
        The schedule.
    done : simpy.Event
        Succeeds with a `Timing`, or fails with `StalledError`.
    messages : bool
        Whether the timing has start and finish of every message.
    """

    def __init__(self, program: Program, done: simpy.Event, messages: bool) -> None:
        self.done = done
        self._program, self._messages = program, messages

    @property
    def n_messages(self) -> int:
        """Number of messages."""
        return self._program.schedule.n_messages

    def enter(self, engine: Engine, now: float) -> int:
        """Let the ranks enter, not before now [s since the engine's origin]; return the number of the run there."""
        if self._program.origin != engine.origin or self._program.start.min() < now:
            self._program = self._program.counted_from(engine.origin, now)
        self._handle: Handle = engine.run(self._program, self._messages)
        return self._handle.run

    def leave(self, engine: Engine) -> Timing:
        """Leave the engine, and return how it went."""
        timing = self._timing(engine)
        engine.over(self._handle)
        return timing

    def fail(self, engine: Engine, error: StalledError) -> None:
        """Tell that it will never be done, and leave the engine."""
        self.done.fail(error)
        engine.over(self._handle)

    def _timing(self, engine: Engine) -> Timing:
        finish, communicate, compute, wait = (
            engine.of_ranks(self._handle, field) for field in ("finish", "communicate", "compute", "wait")
        )
        messages, work, computed = None, None, self._program.computed
        if self._program.streams is not None:
            computed = engine.computed(self._handle)
        if self._messages:
            sent, arrived = (engine.of_messages(self._handle, field) for field in ("sent", "arrived"))
            messages = Messages(**self._program.columns(), sent=sent, arrived=arrived, origin=engine.origin)
            works = [(number, one) for number, one in enumerate(self._program.schedule.rounds) if np.any(one.compute)]
            intervals = [engine.worked(self._handle, number, one.compute) for number, one in works]
            if self._program.streams is not None and computed is not None:
                intervals.append((computed.begun["unpack"].ravel(), computed.ended["unpack"].ravel()))
            work = Work.of(intervals, self._program)

        def account() -> Split:
            return with_software(Split(communicate, compute, wait), self._program)

        return Timing(engine.origin, self._program.start, finish, account, messages, work, computed)

    def stalled(self, engine: Engine, blocked: Mapping[tuple[int, int], str], now: float) -> StalledError:
        """Return the error that names each rank that is not done, and what it waits for.

        Parameters
        ----------
        engine : Engine
            In which it runs.
        blocked : mapping of (int, int) to str
            Messages that make no progress, by round and position in it, and why.
        now : float
            The time [s since the engine's origin].
        """
        rounds = self._program.schedule.rounds
        fields = "round_index", "state", "missing"
        at, state, left = (engine.of_ranks(self._handle, field).tolist() for field in fields)
        stopped = [rank for rank, what in enumerate(state) if what == FAILED]
        times = self._program.failures
        failed = {rank: times[rank] for rank in sorted(stopped, key=times.__getitem__)}
        missing = self._missing(engine, blocked, at, state, left, failed)
        waiting, stuck = [], []
        for rank, index in enumerate(at):
            if index == len(rounds) or rank in failed:
                continue
            phase, known = rounds[index].phase, missing.get(rank, [])
            more = f"; and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
            what = "; ".join(text for _, text in known[:_NAMED]) or "from ranks that wait themselves"
            waiting.append(
                f"rank {rank} waits in round {index}{f' ({phase})' if phase else ''} for {left[rank]} message(s): "
                f"{what}{more}"
            )
            stuck.append(Waits(rank, index, phase, tuple(dict.fromkeys(peer for peer, _ in known))))
        now = engine.busy_until(self._handle, now)
        if self._program.computed is not None:
            busy = np.delete(self._program.computed.done, stopped)
            now = max(now, float(busy.max(initial=now)))
        failures = " and ".join(f"rank {rank} died at {time:g} s" for rank, time in failed.items())
        after = f", after {failures}" if failures else ""
        message = f"the exchange stopped for ever at {engine.origin + now:g} s{after}{':' if waiting else ''}"
        return StalledError(message, waiting, now, failed, stuck, engine.origin)

    def _missing(
        self,
        engine: Engine,
        blocked: Mapping[tuple[int, int], str],
        at: list[int],
        state: list[int],
        left: list[int],
        failed: Mapping[int, float],
    ) -> dict[int, list[tuple[int, str]]]:
        """Return what each waiting rank waits for, failed ranks first: from or to whom, and in words.

        Where no rank failed, it is only what is `blocked`: that explains everything else. A message that a rank sends
        is among it if more is `left` than it receives.
        """
        found: dict[int, list[tuple[int, str]]] = {}
        unsent: dict[int, list[tuple[int, str]]] = {}

        def note(into: dict[int, list[tuple[int, str]]], rank: int, direction: str, peer: int, why: str) -> None:
            known = f", which died at {failed[peer]:g} s" if peer in failed else why
            into.setdefault(rank, []).append((peer, f"{direction} rank {peer}{known}"))

        rounds = self._program.schedule.rounds
        arrived = ~np.isnan(engine.of_messages(self._handle, "arrived")) if failed else None
        first = np.cumsum([0, *map(len, rounds)])
        for index in sorted({one for one in at if 0 <= one < len(rounds)}):
            for position, (src, dst) in enumerate(zip(rounds[index].src, rounds[index].dst, strict=True)):
                sent = at[src] > index or (at[src] == index and state[src] in (IN_ROUND, FAILED))
                why = blocked.get((index, position))
                if why is not None:
                    why = f" ({why})"
                elif arrived is not None and not arrived[first[index] + position]:
                    why = ""
                else:
                    continue
                if at[dst] == index:
                    note(found, int(dst), "from", int(src), why)
                if at[src] == index and sent:
                    note(unsent, int(src), "to", int(dst), why)
        for rank, known in unsent.items():
            if left[rank] > len(found.get(rank, ())):
                found.setdefault(rank, []).extend(known)
        for known in found.values():
            known.sort(key=lambda one: one[0] not in failed)
        return found
