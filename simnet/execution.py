"""A schedule under way: each rank in the round it has reached, and what it does with its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from simnet.clock import Clock
from simnet.errors import StalledError
from simnet.schedule import Floats, Ranks, Round, Schedule


@dataclass(frozen=True)
class Messages:
    """Every message of a timed schedule, as columns of equal length, in the order of the schedule."""

    round: Ranks
    src: Ranks
    dst: Ranks
    nbytes: Floats
    start: Floats
    finish: Floats
    phase: NDArray[np.str_]


class Split(NamedTuple):
    """Seconds of each rank, shape (P,): with a message of its own in flight, computing, and neither."""

    communicate: Floats
    compute: Floats
    wait: Floats


@dataclass(frozen=True)
class Timing:
    """When a schedule was done, and what each rank did meanwhile.

    Parameters
    ----------
    start, finish : float
        When the first rank entered and the last one was done [s].
    rank_start, rank_finish : ndarray, shape (P,)
        The same for each rank.
    account : callable
        Returns the `split` when it is first asked for.
    messages : Messages or None
        Start and finish of every message, when asked for.
    """

    start: float
    finish: float
    rank_start: Floats
    rank_finish: Floats
    account: Callable[[], Split]
    messages: Messages | None = None

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
        return self.finish - self.start


class _Plan:
    """A `Round` in the form that ranks walk through: who sends which messages, and in how many each takes part."""

    def __init__(self, one: Round, n_ranks: int) -> None:
        self.phase = one.phase
        self.src: list[int] = one.src.tolist()
        self.dst: list[int] = one.dst.tolist()
        self.nbytes: list[float] = one.nbytes.tolist()
        self.degree: list[int] = (
            np.bincount(one.src, minlength=n_ranks) + np.bincount(one.dst, minlength=n_ranks)
        ).tolist()
        self.compute: list[float] = np.broadcast_to(np.asarray(one.compute, dtype=np.float64), n_ranks).tolist()
        self.sends: dict[int, list[int]] = {}
        for position, src in enumerate(self.src):
            self.sends.setdefault(src, []).append(position)


class _State(Enum):
    """What a rank does: nothing yet or any more, waits for its gate, computes, or has entered its round."""

    OUTSIDE = 0
    GATED = 1
    COMPUTING = 2
    IN_ROUND = 3


class Execution:
    """A schedule under way: each rank in the round it has reached, and the messages of each round still to come.

    Parameters
    ----------
    clock : Clock
        Calls ranks and carries messages.
    parts : sequence of (Schedule, ndarray of shape (P,))
        Schedules in order, and when each rank may enter each [s].
    hosts : list of int
        Host of each rank.
    start, accounted_from : ndarray, shape (P,)
        When each rank enters, and from when on its time is accounted [s].
    delays : ndarray, shape (number of messages,)
        Extra latency of each message [s]; empty for none.
    keep : bool
        Whether to keep start and finish of every message.

    Attributes
    ----------
    done : simpy.Event
        Succeeds with a `Timing`, or fails with `StalledError`.

    Raises
    ------
    ValueError
        If the schedules differ in their number of ranks.
    """

    def __init__(
        self,
        clock: Clock,
        parts: Sequence[tuple[Schedule, Floats]],
        hosts: list[int],
        start: Floats,
        accounted_from: Floats,
        delays: Floats,
        keep: bool,
    ) -> None:
        n_ranks = len(hosts)
        self._clock = clock
        self._hosts = hosts
        self._rounds: list[Round] = []
        self._gates: dict[int, list[float]] = {}
        for schedule, ready in parts:
            if schedule.n_ranks != n_ranks:
                raise ValueError(f"the schedules have {n_ranks} and {schedule.n_ranks} ranks")
            # An empty schedule shares its gate with the next, or holds up the end.
            index = len(self._rounds)
            self._gates[index] = np.maximum(ready, self._gates.get(index, 0.0)).tolist()
            self._rounds.extend(schedule.rounds)
        plans = {key: _Plan(one, n_ranks) for key, one in {id(one): one for one in self._rounds}.items()}
        self._plans = [plans[id(one)] for one in self._rounds]
        self._offsets: list[int] = np.cumsum([0, *(len(one) for one in self._rounds)]).tolist()
        self._delays: list[float] | None = delays.tolist() if delays.size else None
        self._left: dict[int, list[int]] = {}
        self._inside = [n_ranks] * len(self._rounds)
        self._running = n_ranks
        self._at = [-1] * n_ranks
        self._state = [_State.OUTSIDE] * n_ranks
        self._in_flight = [0] * n_ranks
        self._start = start
        self._finish = start.copy()
        self._since: list[float] = accounted_from.tolist()
        self._communicate, self._compute, self._wait = ([0.0] * n_ranks for _ in range(3))
        self._times = np.zeros((2, self._offsets[-1])) if keep else None
        self.done: simpy.Event = clock.env.event()

    def begin(self) -> None:
        """Let every rank enter at its start."""
        for rank, time in enumerate(self._start.tolist()):
            self._clock.at(time, self._next_round, rank)

    def delivered(self, key: tuple[int, int], now: float) -> None:
        """Book the arrival of message (round, position); its ranks may be done with their round."""
        index, position = key
        plan = self._plans[index]
        if self._times is not None:
            self._times[1, self._offsets[index] + position] = now
        left = self._undelivered(index)
        ends = plan.src[position], plan.dst[position]
        for rank in ends:
            self._account(rank, now)
            self._in_flight[rank] -= 1
            left[rank] -= 1
        for rank in ends:
            if not left[rank] and self._at[rank] == index and self._state[rank] is _State.IN_ROUND:
                self._next_round(rank, now)

    def stalled(self, blocked: Mapping[tuple[int, int], str], now: float) -> None:
        """Fail, naming each rank that is not done and what it waits for."""
        missing: dict[tuple[int, int], list[str]] = {}
        for (index, position), why in blocked.items():
            plan = self._plans[index]
            src, dst = plan.src[position], plan.dst[position]
            missing.setdefault((index, dst), []).append(f"from rank {src} ({why})")
            missing.setdefault((index, src), []).append(f"to rank {dst} ({why})")
        waiting = []
        for rank, index in enumerate(self._at):
            if index == len(self._plans):
                continue
            phase = f" ({self._plans[index].phase})" if self._plans[index].phase else ""
            count = self._undelivered(index)[rank]
            known = missing.get((index, rank))
            what = "; ".join(known) if known else "from ranks that wait themselves"
            waiting.append(f"rank {rank} waits in round {index}{phase} for {count} message(s): {what}")
        self.done.fail(StalledError(f"the exchange stopped for ever at {now:g} s:", waiting))

    def _next_round(self, rank: int, now: float) -> None:
        """Take a rank out of its round and into the next one in which it has something to do."""
        self._account(rank, now)
        index = self._at[rank]
        while True:
            if index >= 0:
                self._inside[index] -= 1
                if not self._inside[index]:
                    self._left.pop(index, None)
            index += 1
            gate = self._gates[index][rank] if index in self._gates else now
            if index == len(self._plans):
                self._at[rank] = index
                self._state[rank] = _State.GATED
                if gate > now:
                    self._clock.at(gate, self._leave_schedule, rank)
                else:
                    self._leave_schedule(rank, now)
                return
            plan = self._plans[index]
            if gate <= now and not plan.degree[rank] and not plan.compute[rank]:
                continue
            self._at[rank] = index
            if gate > now:
                self._state[rank] = _State.GATED
                self._clock.at(gate, self._work, rank)
                return
            if plan.compute[rank]:
                self._work(rank, now)
                return
            if not self._enter(rank, now):
                return

    def _work(self, rank: int, now: float) -> None:
        """Let a rank compute before it enters its round."""
        self._account(rank, now)
        self._state[rank] = _State.COMPUTING
        self._clock.at(now + self._plans[self._at[rank]].compute[rank], self._worked, rank)

    def _worked(self, rank: int, now: float) -> None:
        self._account(rank, now)
        if self._enter(rank, now):
            self._next_round(rank, now)

    def _enter(self, rank: int, now: float) -> bool:
        """Start a rank's messages of its round; return whether it is done with the round already."""
        self._state[rank] = _State.IN_ROUND
        index = self._at[rank]
        plan, routes = self._plans[index], self._clock.links.routes
        for position in plan.sends.get(rank, ()):
            dst = plan.dst[position]
            self._account(dst, now)
            self._in_flight[rank] += 1
            self._in_flight[dst] += 1
            message = self._offsets[index] + position
            if self._times is not None:
                self._times[0, message] = now
            delay = self._delays[message] if self._delays is not None else 0.0
            route = routes.route(self._hosts[rank], self._hosts[dst])
            self._clock.send(self, (index, position), route, plan.nbytes[position], delay, now)
        return not self._undelivered(index)[rank]

    def _leave_schedule(self, rank: int, now: float) -> None:
        self._account(rank, now)
        self._state[rank] = _State.OUTSIDE
        self._finish[rank] = now
        self._running -= 1
        if not self._running:
            self.done.succeed(self._timing())

    def _account(self, rank: int, now: float) -> None:
        """Book the time since a rank's last event under what it has been doing."""
        elapsed = now - self._since[rank]
        state = self._state[rank]
        if elapsed <= 0 or state is _State.OUTSIDE:
            return
        self._since[rank] = now
        if state is _State.COMPUTING:
            self._compute[rank] += elapsed
        elif self._in_flight[rank]:
            self._communicate[rank] += elapsed
        else:
            self._wait[rank] += elapsed

    def _undelivered(self, index: int) -> list[int]:
        """Return how many messages of a round each rank still waits for, its own sends included."""
        left = self._left.get(index)
        if left is None:
            left = self._left[index] = list(self._plans[index].degree)
        return left

    def _timing(self) -> Timing:
        messages = None
        if self._times is not None:
            columns = Schedule(len(self._at), self._rounds).columns()
            messages = Messages(**columns, start=self._times[0], finish=self._times[1])
        split = Split(np.array(self._communicate), np.array(self._compute), np.array(self._wait))
        return Timing(
            start=float(self._start.min()),
            finish=float(self._finish.max()),
            rank_start=self._start,
            rank_finish=self._finish,
            account=lambda split=split: split,  # type: ignore[misc]
            messages=messages,
        )
