"""The max-plus method: it computes the times of rounds whose messages share no link, without an event loop.

If no two messages are on a link at once, the time at which a rank finishes a round is a maximum over sums (max-plus
algebra): when it entered, when its messages arrived, and when its sends left its host. The clock goes round by round
without an event queue. Each link remembers until when it is busy; a message that finds a busy link ends the attempt, so
a completed schedule is exact. Otherwise sharing is solved by the event loop (`simnet.network.simpy_clock`), for a
single round if all ranks enter it at once with nothing in flight.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from math import inf
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.base.jit_threshold import JitThreshold, Native, native_copy, native_is_kept
from simnet.network import recurrence
from simnet.network.compiled_loop import loop_is_loaded
from simnet.network.jitter import Delays
from simnet.network.links import Links
from simnet.network.program import Program
from simnet.network.recurrence import BEYOND, COMPLETED, IN_STEP, MET, NEVER, Progress, RoundTraffic, RouteState
from simnet.network.timing import MessageDetail, Split, Timing, message_times, move_software, split_intervals
from simnet.network.weather_forecast import WeatherForecast
from simnet.schedule import Round, Schedule

# The interpreter needs as long for so many messages as native code takes to load, and to be compiled.
_MANY, _VERY_MANY = 15_000, 1_000_000
# Messages from which on numpy's overhead for a round is less than the interpreter's.
_WIDE = 8
# Messages that the interpreter carries in the time that numpy takes for a round, and how many of a round add one more.
_OF_ROUND, _AT_NUMPYS = 10, 50
# Turns of a round after which ranks in step are known to stay so: then the work is done.
_SOON = 2
# Rounds kept at a time: those of a loop come again at once, and fresh memory for thousands of others takes long.
_ROUNDS = 64
# Messages of all patterns of some links that are kept from call to call, at most.
_KEPT = 1 << 18
# Messages of a schedule whose times are kept in any case: 16 bytes each.
_FEW = 1 << 14
_NONE = np.zeros(0)
# Messages whose jitter is drawn together.
_AT_ONCE = 1 << 16


class MaxPlusResult(NamedTuple):
    """When ranks complete a program and, if requested, when messages and work start and end [s after its origin].

    - `finish` (P,): completion time of each rank [s].
    - `start`, `arrive` (number of messages,): when each message was sent and arrived [s]; empty unless kept.
    - `computing`: start and end of work, shape (n * P,) each; empty unless kept.
    """

    finish: Floats
    start: Floats
    arrive: Floats
    computing: list[tuple[Floats, Floats]]


class MaxPlus:
    """Computes the times of a program without an event loop, if no two messages use a link at the same time.

    - `links`: links and routes.
    - `overheads`: seconds per message before it leaves and after its last byte arrived.
    - `time_events`: times a program by the event loop, with its messages.
    """

    def __init__(self, links: Links, overheads: tuple[float, float], time_events: Callable[[Program], Timing]) -> None:
        self._links, self._overheads, self._time_events = links, overheads, time_events
        self._patterns: dict[tuple[bytes, bytes], _RoundPattern] = {}

    def time(self, program: Program, messages: bool) -> Timing | None:
        """Return a program's timing; None if messages share links or wait too long and so need the event loop."""
        # For few messages, keeping their times is cheaper than timing again when the split is requested.
        keeps = messages or program.schedule.n_messages <= _FEW
        went = self.completion_times(program, keeps)
        if went is None:
            return None

        def account() -> Split:
            kept = went if keeps else self.completion_times(program, keep=True)
            assert kept is not None
            return move_software(_split_times(program, kept), program)

        kept: MessageDetail = None, None, None
        if messages:
            numbers = [number for number, one in enumerate(program.schedule.rounds) if np.any(one.compute)]
            work = np.concatenate([np.zeros((2, 0)), *map(np.array, went.computing)], axis=1)
            begun, ended = work.reshape(2, -1, went.finish.size)
            unknown = np.full((4, 2, program.schedule.n_messages), np.nan)
            kept = message_times(program, (went.start, went.arrive), numbers, (begun, ended), unknown)
        return Timing(program.origin, program.start, went.finish, account, *kept, program.computed)

    def completion_times(self, program: Program, keep: bool) -> MaxPlusResult | None:
        """Return when ranks complete a program, plus message and work times if `keep`; None if messages share links."""
        links, n_messages, delays = self._links, program.schedule.n_messages, program.delays
        done, n_links = np.array(program.start, dtype=np.float64), len(links.routes.links)
        busy, pair, pair_end = np.full(n_links, -np.inf), np.full(n_links, -1), np.zeros(n_links)
        lasting = done, busy, pair, pair_end, np.zeros(n_links)
        read, steady, offset = delays.reader(), links.constant and not delays, 0
        outlook = WeatherForecast(links, program.origin, float(done.min()), float(done.max()), n_messages)
        times = np.zeros((2, n_messages if keep else 0))
        computing: list[tuple[Floats, Floats]] = []
        known: dict[int, _PreparedRound | None] = {}
        met: dict[int, tuple[Floats, Floats, Floats]] = {}
        for schedule, ready in program.parts:
            np.maximum(done, ready, out=done)
            for one, repeats in round_runs(schedule.rounds, _AT_ONCE if delays else n_messages):
                if id(one) not in known:
                    if len(known) == _ROUNDS:
                        known.clear()
                    known[id(one)] = self._prepare(one, program.hosts)
                laid = known[id(one)]
                if laid is None:
                    return None
                m, first = len(one), offset
                offset += m * repeats
                begun = np.empty(repeats * done.size if keep else 0)
                entered = np.empty(max(begun.size, done.size))
                sent, arrived = times[:, first:offset]
                progress = Progress(begun, entered, *lasting, sent, arrived, np.array([0, -1]))
                outcome, when = _run_repeats(
                    laid, progress, read(m * repeats), self._overheads, outlook, (first, repeats), steady
                )
                turn = int(progress.place[0])
                if outcome == MET and when == when:
                    if id(one) not in met:
                        met[id(one)] = self._time_together(program, one)
                    finish, departures, arrivals = met[id(one)]
                    # Otherwise messages of the next round would meet those of this one.
                    if (finish != finish[0]).any():
                        return None
                    done[:] = when + finish
                    busy.fill(-np.inf)
                    if keep:
                        np.add(departures, when, out=sent[turn * m : (turn + 1) * m])
                        np.add(arrivals, when, out=arrived[turn * m : (turn + 1) * m])
                    outcome, turn = IN_STEP, turn + 1
                if outcome == IN_STEP:
                    _extrapolate(progress, turn, repeats, done[0] - when, keep)
                elif outcome != COMPLETED:
                    return None
                if keep and laid.traffic.compute.size:
                    computing.append((begun, entered))
        return MaxPlusResult(done, times[0], times[1], computing)

    def _time_together(self, program: Program, one: Round) -> tuple[Floats, Floats, Floats]:
        """Return when ranks that enter a round at time 0 complete it, and when its messages are sent and arrive [s]."""
        zero, calm = np.zeros(program.hosts.size), Delays(None, np.random.default_rng, 0)
        parts = [(Schedule(zero.size, [one]), zero)]
        timing = self._time_events(replace(program, parts=parts, start=zero, accounted=zero, delays=calm))
        assert timing.messages is not None
        return timing.left, timing.messages.sent, timing.messages.arrived

    def _prepare(self, one: Round, hosts: Ranks) -> _PreparedRound | None:
        """Return a round with the routes of its messages; None if a message can never arrive."""
        links, m = self._links, len(one)
        table, port, single, exclusive, latency, rate, own, down = self._round_pattern(hosts[one.src], hosts[one.dst])
        if down.size:
            if one.nbytes[down].any():
                return None
            rate, own = np.where(rate > 0, rate, 1.0), np.where(own > 0, own, 1.0)
        seconds, leaving = one.nbytes / rate, one.nbytes / own
        compute = np.zeros(hosts.size) + one.compute if np.any(one.compute) else np.zeros(0)
        if links.constant and not one.nbytes.all():
            table, port = np.where(one.nbytes[:, None] > 0, table, -1), np.where(one.nbytes > 0, port, -1)
        traffic = RoundTraffic(one.src, one.dst, one.nbytes, compute, table, port, single, exclusive)
        if links.constant:
            # Latencies that never change are looked up once for all rounds of a pattern.
            return _PreparedRound(one, traffic, RouteState(latency, _NONE, _NONE, seconds, leaving, _NONE, _NONE))
        unknown = np.full(m, inf)
        # Each look-up writes into arrays of their own.
        state = np.stack([latency, unknown, unknown, seconds, leaving, unknown, unknown])
        return _PreparedRound(one, traffic, RouteState(*state))

    def _round_pattern(self, src: Ranks, dst: Ranks) -> _RoundPattern:
        links, patterns = self._links, self._patterns
        pattern = src.tobytes(), dst.tobytes()
        if pattern not in patterns:
            if sum(one.own.size for one in patterns.values()) > _KEPT:
                patterns.clear()
            table = np.ascontiguousarray(links.routes.table(src, dst))
            used, port = table[table >= 0], links.own_of(table)
            exclusive = links.constant and len(src) >= _WIDE and _no_two(used)
            single = _no_two(port[port >= 0])
            if links.constant:
                latency, rate, own = _constant_routes(table, port, links)
            else:
                # Looked up when the message is there; within a host it takes no link, and no time.
                latency = np.ones(len(src))
                rate = own = np.where((table >= 0).any(axis=1), 1.0, np.inf)
            down = np.flatnonzero(rate <= 0)
            patterns[pattern] = _RoundPattern(table, port, single, exclusive, latency, rate, own, down)
        return patterns[pattern]


def _extrapolate(progress: Progress, turn: int, repeats: int, lasts: float, keep: bool) -> None:
    """Fill in a round's repetitions after number `turn`, each `lasts` seconds long and entered by all ranks at once."""
    # What repeats with all ranks in step, and nothing under way between, takes as long every time.
    later = np.arange(1, repeats - turn + 1) * lasts
    progress.done[:] += later[-1] if later.size else 0.0
    for column in (progress.sent, progress.arrived, progress.begun, progress.entered) if keep else ():
        rows = column.reshape(repeats, column.size // repeats)
        np.add.outer(later, rows[turn - 1], out=rows[turn:])


def _run_repeats(
    laid: _PreparedRound,
    progress: Progress,
    delays: Floats,
    overheads: tuple[float, float],
    outlook: WeatherForecast,
    place: tuple[int, int],
    steady: bool,
) -> tuple[int, float]:
    """Time all repetitions of a round, extending link timelines as needed; return an outcome code and its time [s]."""
    # `place` are the number of its first message, and how often it repeats. `NEVER`: a message would wait for too long.
    traffic, m, (first, repeats) = laid.traffic, len(laid.one), place
    turns = min(repeats, _SOON) if steady else repeats
    while True:
        effort = turns * (_OF_ROUND + m // _AT_NUMPYS if traffic.exclusive else m)
        loops = _loops_for(effort, 0 if traffic.exclusive or turns < repeats else outlook.effort)
        outcome, when = loops.run_round(
            traffic, laid.routes, outlook.forecast, progress, delays, overheads, turns, steady
        )
        if outcome == COMPLETED and turns < repeats:
            turns = repeats
            continue
        if outcome != BEYOND:
            return outcome, when
        turn, message = progress.place.tolist()
        n_ranks = progress.done.size
        now = float(progress.entered[turn * n_ranks if progress.begun.size else 0 :][:n_ranks].min())
        if not outlook.extend(first + turn * m + message, traffic.links[message], now, when):
            return NEVER, when


class _PreparedRound(NamedTuple):
    """A round and the routes of its messages; the reference to the round keeps its id from being reused."""

    one: Round
    traffic: RoundTraffic
    routes: RouteState


class _RoundPattern(NamedTuple):
    """Links, latencies [s] and rates [byte/s] of the routes in all rounds with the same senders and receivers."""

    # `down` lists messages with a link of no capacity on their route.

    links: NDArray[np.int64]
    own: Ranks
    single: bool
    exclusive: bool
    latency: Floats
    rate: Floats
    own_rate: Floats
    down: Ranks


def _constant_routes(table: NDArray[np.int64], port: Ranks, links: Links) -> tuple[Floats, Floats, Floats]:
    """Return each route's latency [s], lowest rate, and rate of the sender's own link [byte/s]; links are constant."""
    latency, rate = links.constant_latency_of(table), np.full(len(table), np.inf)
    own = np.where(port < 0, np.inf, links.constant_capacity[port])
    for column in table.T:
        rows = column >= 0
        rate[rows] = np.minimum(rate[rows], links.constant_capacity[column[rows]])
    if not links.lossless:
        limits = links.limits_of(table)
        most = limits.rate(2 * latency, links.segment)
        rate, own = np.minimum(rate, most) * limits.share, np.minimum(own, most) * limits.share
    return latency, rate, own


def _no_two(numbers: Ranks) -> bool:
    """Return whether all `numbers` (>= 0) are distinct."""
    return int(np.bincount(numbers).max(initial=0)) < 2


def round_runs(rounds: Sequence[Round], most: int = sys.maxsize) -> Iterator[tuple[Round, int]]:
    """Yield each round with the number of its successive occurrences, split into runs of about `most` messages."""
    for _, group in groupby(rounds, key=id):
        same = list(group)
        at_once = max(1, -(-most // max(1, len(same[0]))))
        for first in range(0, len(same), at_once):
            yield same[0], min(at_once, len(same) - first)


def _split_times(program: Program, went: MaxPlusResult) -> Split:
    """Return the seconds each rank communicates, computes and waits, from a result with message times."""
    P, accounted, rounds = program.hosts.size, program.accounted, program.schedule.rounds
    begun, ended = np.concatenate([np.zeros((2, 0)), *map(np.array, went.computing)], axis=1)
    # There may be a hundred million messages: ranks are in four bytes.
    src, dst = np.empty((2, went.start.size), dtype=np.int32)
    if rounds:
        np.concatenate([one.src for one in rounds], out=src, casting="same_kind")
        np.concatenate([one.dst for one in rounds], out=dst, casting="same_kind")
    messages = [(ranks, went.start, went.arrive) for ranks in (src, dst)]
    return split_intervals([(np.arange(begun.size) % P, begun, ended)], messages, accounted, went.finish)


# Numpy is quicker than the interpreter only.
_REPLACED = {"_carry_round": "_one_by_one"}


@cache
def _compiled_recurrence() -> Native | None:
    """Return the recurrence as native code; None if numba is missing or disabled."""
    return native_copy(recurrence, **_REPLACED)


# How many messages this process has carried without compiled loops, or what took as long.
_interpreted = JitThreshold(_MANY, _VERY_MANY, partial(native_is_kept, "run_round", recurrence, **_REPLACED))


def _loaded_loops() -> Native | None:
    """Return the compiled recurrence if this process already uses compiled code; otherwise None."""
    return _compiled_recurrence() if _compiled_recurrence.cache_info().currsize or loop_is_loaded() else None


def _loops_for(effort: int, ahead: int) -> Native | ModuleType:
    """Return the compiled recurrence if there is enough work (`effort` now, `ahead` later), else the interpreted."""
    loops = _loaded_loops()
    if loops is None and _interpreted.is_enough_with(effort, ahead):
        loops = _compiled_recurrence()
    return loops or recurrence
