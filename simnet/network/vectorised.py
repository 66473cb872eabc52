"""The vectorised clock: rounds of messages that meet on no link, all ranks at once.

Where no two messages are on a link at the same time, each has its route to itself, and when a rank is done with a round
is a maximum over sums (max-plus algebra): when the rank entered it, and when its messages, sent and received, arrived.

Whether messages meet is found out on the way. Every link remembers until when it has been in use; a message that finds
one in use ends the attempt. Up to there the times are exact, because nothing that happens later can change them: so a
schedule that gets through has been timed exactly, and for one that does not, sharing has to be solved
(`simnet.network.simpy_clock`). If all ranks enter a round at once, with nothing under way, only that round has to be:
the attempt can go on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.network.execution import Split
from simnet.network.jitter import Delays
from simnet.network.links import Courses, Links
from simnet.network.memory import kernel_is_loaded
from simnet.network.weathered import BEYOND, CROSSED, cross_weather
from simnet.schedule import Round, Schedule

# Compiled loops take a quarter of a second to load; numpy needs about as long for so many messages.
_MANY = 100_000
# Pieces of all links to look at together, pieces of its own route, and seconds, beyond which a message that waits is
# left to the other clock.
_CHANGES, _PATIENCE, _LONGEST = 1 << 25, 1 << 20, 1e7

# Messages whose jitter is looked at together.
_AT_ONCE = 1 << 16


class Paths(NamedTuple):
    """The ways of messages from one set of ranks to another.

    Parameters
    ----------
    latency, bandwidth : ndarray of float64, shape (m,)
        Latency of each route, and bandwidth at its narrowest; 0 and infinite inside a host.
    links : ndarray of int64, shape (m, L)
        Links of each route, -1 after the last.
    exclusive : bool
        Whether no link is on two of them.
    """

    latency: Floats
    bandwidth: Floats
    links: NDArray[np.int64]
    exclusive: bool


def paths(src: Ranks, dst: Ranks, links: Links) -> Paths:
    """Return the ways from hosts `src` to hosts `dst`, shape (m,), over constant links."""
    used = np.ascontiguousarray(links.routes.table(src, dst))
    latency, bandwidth = links.constant_latency_of(used), np.full(src.size, np.inf)
    for column in used.T:
        rows = column >= 0
        bandwidth[rows] = np.minimum(bandwidth[rows], links.constant_capacity[column[rows]])
    if not links.lossless:
        limits = links.limits_of(used)
        bandwidth = np.minimum(bandwidth, limits.rate(2 * latency, links.segment)) * limits.share
    taken = used[used >= 0]
    return Paths(latency, bandwidth, used, np.unique(taken).size == taken.size)


class Crossing(NamedTuple):
    """The messages of a round on their way through an idle network.

    Parameters
    ----------
    src, dst : ndarray of int64, shape (m,)
        Ranks.
    latency, seconds : ndarray of float64, shape (m,)
        Latency of the route, and how long the bytes take on all of it.
    links : ndarray of int64, shape (m, L)
        Links in use, -1 for none: of a message without bytes, or inside a host, for all.
    exclusive : bool
        Whether surely no link is in use by two of them.
    """

    src: Ranks
    dst: Ranks
    latency: Floats
    seconds: Floats
    links: NDArray[np.int64]
    exclusive: bool


def crossing(one: Round, ways: Paths) -> Crossing | None:
    """Return the messages of a round on their ways; None if a link on one has no bandwidth."""
    some = one.nbytes > 0
    used = ways.links
    if not some.all():
        used = used.copy()
        used[~some] = -1
    if (ways.bandwidth[some] <= 0).any():
        return None
    seconds = np.zeros(len(one))
    np.divide(one.nbytes, ways.bandwidth, out=seconds, where=some)
    return Crossing(one.src, one.dst, ways.latency, seconds, used, ways.exclusive)


class Passage(NamedTuple):
    """How a schedule went.

    Parameters
    ----------
    finish : ndarray, shape (P,)
        When each rank was done [s].
    start, arrive : ndarray, shape (number of messages,)
        When each message was sent and when it had arrived [s]; empty unless they were to be kept.
    computing : list of (ndarray, ndarray)
        From when to when each rank computed, shape (P,) both; empty likewise.
    """

    finish: Floats
    start: Floats
    arrive: Floats
    computing: list[tuple[Floats, Floats]]


def pass_through(
    parts: Sequence[tuple[Schedule, Floats]],
    hosts: Ranks,
    start: Floats,
    links: Links,
    overheads: tuple[float, float],
    delays: Delays,
    alone: Callable[[Round], tuple[Floats, Floats, Floats]],
    keep: bool = False,
) -> Passage | None:
    """Time schedules on constant links without background flows; None if messages meet that this cannot solve.

    Parameters
    ----------
    parts : sequence of (Schedule, ndarray of shape (P,))
        Schedules in order, and when each rank may enter each [s].
    hosts, start : ndarray, shape (P,)
        Host of each rank, and when it enters [s].
    links : Links
        With constant bandwidths and latencies.
    overheads : (float, float)
        Seconds per message before it leaves and after its last byte arrived.
    delays : Delays
        Extra latency of each message.
    alone : callable
        Times a round that all ranks enter at time 0, sharing included: when each rank is done, and when each message
        was sent and had arrived.
    keep : bool
        Whether to keep start and arrival of every message.
    """
    t = np.array(start, dtype=np.float64)
    busy = np.full(len(links.routes.links), -np.inf)
    n_messages = sum(schedule.n_messages for schedule, _ in parts)
    step, read = _step(n_messages), delays.reader()
    times = np.zeros((2, n_messages if keep else 0))
    computing: list[tuple[Floats, Floats]] = []
    known: dict[int, Crossing | None] = {}
    ways: dict[tuple[bytes, bytes], Paths] = {}
    solved: dict[int, tuple[Floats, Floats, Floats]] = {}
    offset = 0
    none = np.zeros(0)
    for schedule, ready in parts:
        np.maximum(t, ready, out=t)
        rounds, index = schedule.rounds, 0
        while index < len(rounds):
            one = rounds[index]
            index += 1
            if id(one) not in known:
                # Rounds that differ in bytes or compute alone go the same ways.
                pattern = one.src.tobytes(), one.dst.tobytes()
                if pattern not in ways:
                    ways[pattern] = paths(hosts[one.src], hosts[one.dst], links)
                known[id(one)] = crossing(one, ways[pattern])
            messages = known[id(one)]
            if messages is None:
                return None
            in_step = bool((t == t[0]).all())
            before = float(t[0])
            begun = entered = t
            if np.any(one.compute):
                entered = t + one.compute
                if keep:
                    computing.append((begun, entered))
            m, own = len(one), slice(offset, offset + len(one))
            sent, arrived = (times[0, own], times[1, own]) if keep else (none, none)
            done = np.empty_like(t)
            if step(messages, entered, busy, read(m), overheads, done, sent, arrived):
                t = done
            elif in_step and not delays:
                if id(one) not in solved:
                    solved[id(one)] = alone(one)
                finish, first, last = solved[id(one)]
                # Otherwise messages of the next round would meet those of this one.
                if (finish != finish[0]).any():
                    return None
                t = before + finish
                busy.fill(-np.inf)
                if keep:
                    np.add(first, before, out=sent)
                    np.add(last, before, out=arrived)
            else:
                return None
            offset += m
            # What repeats with all ranks in step, and nothing under way between, takes as long every time.
            if in_step and not delays and bool((t == t[0]).all()):
                lasts, again = float(t[0]) - before, 0
                while index < len(rounds) and rounds[index] is one:
                    again, index = again + 1, index + 1
                    if keep:
                        if entered is not begun:
                            computing.append((begun + again * lasts, entered + again * lasts))
                        behind = slice(offset, offset + m)
                        np.add(sent, again * lasts, out=times[0, behind])
                        np.add(arrived, again * lasts, out=times[1, behind])
                    offset += m
                t += again * lasts
    return Passage(t, times[0], times[1], computing)


def pass_through_weather(
    parts: Sequence[tuple[Schedule, Floats]],
    hosts: Ranks,
    start: Floats,
    links: Links,
    overheads: tuple[float, float],
    delays: Delays,
    keep: bool = False,
) -> Passage | None:
    """Time schedules on links whose weather changes; None if messages meet, or wait for longer than is looked at.

    Parameters as of `pass_through`. What is known of the weather is kept with `links`, from call to call.
    """
    n_messages = sum(schedule.n_messages for schedule, _ in parts)
    cross, waiting = _weather_step(n_messages), -1
    t, busy = np.array(start, dtype=np.float64), np.full(len(links.routes.links), -np.inf)
    entered, none, read = np.empty_like(t), np.zeros(0), delays.reader()
    times = np.zeros((2, n_messages if keep else 0))
    computing: list[tuple[Floats, Floats]] = []
    ways: dict[int, tuple[NDArray[np.int64], Floats]] = {}
    patterns: dict[tuple[bytes, bytes], tuple[NDArray[np.int64], Floats]] = {}
    begun = float(t.min())
    known = _Known.of(links, begun, float(t.max()))
    offset = 0
    for schedule, ready in parts:
        np.maximum(t, ready, out=t)
        for one, repeats in _in_a_row(schedule.rounds, keep, _AT_ONCE if delays else n_messages):
            if id(one) not in ways:
                pattern = one.src.tobytes(), one.dst.tobytes()
                if pattern not in patterns:
                    table = np.ascontiguousarray(links.routes.table(hosts[one.src], hosts[one.dst]))
                    patterns[pattern] = table, np.tile([np.inf, np.inf, 0.0, np.inf, np.inf, 1.0], (len(one), 1))
                ways[id(one)] = patterns[pattern]
            table, lasting = ways[id(one)]
            compute = np.zeros(t.size) + one.compute if np.any(one.compute) else none
            if keep and compute.size:
                computing.append((t.copy(), t + compute))
            own = slice(offset, offset + len(one) * repeats)
            offset = own.stop
            extra = read(len(one) * repeats)
            sent, arrived = (times[0, own], times[1, own]) if keep else (none, none)
            place = np.array([0, -1])
            while True:
                ended, when = cross(
                    one.src, one.dst, one.nbytes, table, compute, repeats, *known.arrays(), lasting, place, entered, t,
                    busy, extra, *overheads, sent, arrived,
                )  # fmt: skip
                if ended == CROSSED:
                    break
                if ended != BEYOND:
                    return None
                through = own.start + int(place[0]) * len(one) + int(place[1])
                pieces = known.pieces(table[place[1]])
                if through == waiting and pieces > _PATIENCE:
                    return None
                waiting = through
                cross = _weather_step(max(n_messages, pieces))
                likely = begun + 1.25 * (when - begun) * n_messages / max(1, through)
                more = known.on(links, float(entered.min()), when, likely)
                if more is None:
                    return None
                known = more
    return Passage(t, times[0], times[1], computing)


class _Known(NamedTuple):
    """The courses of bandwidth and latency that are looked at, and the piece of each link last looked at, of both."""

    bandwidth: Courses
    latency: Courses
    cursors: NDArray[np.int64]

    @classmethod
    def of(cls, links: Links, start: float, until: float, likely: float = 0.0) -> _Known:
        """Return what is known of all links from `start` until later than `until`, and `likely` is needed."""
        bandwidth, latency = (one.courses(start, until, likely) for one in (links.bandwidths, links.latencies))
        return cls(bandwidth, latency, np.stack([bandwidth.at(start), latency.at(start)]))

    def pieces(self, route: NDArray[np.int64]) -> int:
        """Return how many pieces of bandwidth are known on the links of a route, -1 after the last."""
        used = route[route >= 0]
        return int((self.bandwidth.last[used] - self.bandwidth.first[used]).sum())

    def arrays(self) -> tuple[Floats, Floats, Floats, Floats, NDArray[np.int64]]:
        """Return times and values of both, and the pieces last looked at."""
        return self.bandwidth.times, self.bandwidth.values, self.latency.times, self.latency.values, self.cursors

    def on(self, links: Links, start: float, until: float, likely: float) -> _Known | None:
        """Return what is known from `start` on when `until` is not; None if that is too much, or cannot be had."""
        if until - start > _LONGEST or self.bandwidth.times.size + self.latency.times.size > _CHANGES:
            return None
        more = self.of(links, start, until, likely)
        return more if until < more.bandwidth.until and until < more.latency.until else None


def _in_a_row(rounds: Sequence[Round], keep: bool, most: int) -> Iterator[tuple[Round, int]]:
    """Yield each round, and how often it comes in a row, `most` messages at a time; computing is kept one by one."""
    index = 0
    while index < len(rounds):
        one, end = rounds[index], index + 1
        while end < len(rounds) and rounds[end] is one and (end - index) * len(one) < most:
            if keep and np.any(one.compute):
                break
            end += 1
        yield one, end - index
        index = end


def _loops_for(n_messages: int) -> ModuleType | None:
    """Return the compiled loops if there are any, and loading them is worth it or the most of it is done."""
    return _loops() if n_messages >= _MANY or _loops.cache_info().currsize or kernel_is_loaded() else None


def _weather_step(effort: int) -> Callable[..., tuple[int, float]]:
    """Return the loop for so many messages, or pieces that a message waits through."""
    loops = _loops_for(effort)
    return cross_weather if loops is None else loops.cross_weather


def _step(n_messages: int) -> Callable[..., bool]:
    loops = _loops_for(n_messages)
    if loops is None:
        return _numpy_step

    def step(
        messages: Crossing, entered: Floats, busy: Floats, delays: Floats, overheads: Any, *filled: Floats
    ) -> bool:
        *columns, _ = messages
        return bool(loops.cross(*columns, entered, busy, delays, *overheads, *filled))

    return step


def _numpy_step(
    messages: Crossing,
    entered: Floats,
    busy: Floats,
    delays: Floats,
    overheads: tuple[float, float],
    done: Floats,
    sent: Floats,
    arrived: Floats,
) -> bool:
    """Carry the messages of a round; return whether each found all its links free. If not, nothing else is told."""
    np.copyto(done, entered)
    if not messages.src.size:
        return True
    if not messages.exclusive:
        return False
    leaves = entered[messages.src]
    joins = (leaves + overheads[0]) + (messages.latency + delays if delays.size else messages.latency)
    ends = joins + messages.seconds
    row, column = np.nonzero(messages.links >= 0)
    used = messages.links[row, column]
    if (joins[row] < busy[used]).any():
        return False
    busy[used] = ends[row]
    if overheads[1]:
        ends = ends + overheads[1]
    np.maximum.at(done, messages.src, ends)
    np.maximum.at(done, messages.dst, ends)
    if sent.size:
        np.copyto(sent, leaves)
        np.copyto(arrived, ends)
    return True


@cache
def _loops() -> ModuleType | None:
    """Return the compiled loops; None where numba is missing or switched off."""
    try:
        from simnet.network import loops
    except (ImportError, OSError):
        return None
    return loops


def split_of(schedule: Schedule, went: Passage, accounted: Floats) -> Split:
    """Return what each rank did from `accounted`, shape (P,), to its finish; of a passage whose times were kept."""
    P = schedule.n_ranks
    ranks = np.arange(P)
    columns = schedule.columns()
    begins, ends = [begin for begin, _ in went.computing], [end for _, end in went.computing]
    who = [ranks] * len(begins)
    computing = _covered(who, begins, ends, accounted, P) if who else np.zeros(P)
    own = [columns["src"], columns["dst"], *who]
    communicating = (
        _covered(own, [went.start, went.start, *begins], [went.arrive, went.arrive, *ends], accounted, P) - computing
    )
    wait = np.maximum(np.maximum(went.finish - accounted, 0.0) - communicating - computing, 0.0)
    return Split(communicating, computing, wait)


def _covered(
    who: Sequence[Ranks], first: Sequence[Floats], last: Sequence[Floats], accounted: Floats, n_ranks: int
) -> Floats:
    """Return for how long at least one of a rank's intervals lasts, from its time `accounted` on; shape (P,)."""
    rank = np.concatenate(who)
    begin = np.maximum(np.concatenate(first), accounted[rank])
    end = np.maximum(np.concatenate(last), begin)
    order = np.lexsort((begin, rank))
    rank, begin, end = rank[order], begin[order], end[order]
    bounds = np.searchsorted(rank, np.arange(n_ranks + 1))
    covered = np.zeros(n_ranks)
    for one in range(n_ranks):
        own = slice(bounds[one], bounds[one + 1])
        reached = np.maximum.accumulate(end[own])
        # What an interval adds begins where those before it have ended.
        fresh = np.maximum(begin[own][1:], reached[:-1])
        covered[one] = (end[own][:1] - begin[own][:1]).sum() + np.maximum(reached[1:] - fresh, 0.0).sum()
    return covered
