"""The max-plus recurrence: when ranks are done with rounds of messages that meet on no link.

When a rank is done with a round is a maximum over sums: when it entered the round, when the messages that it receives
arrived, and when those that it sends had left its host's own link. A message arrives after the sender's overhead, the
latency of its route when it departs, its bytes at the rate of the narrowest link from segment to segment of the links'
timelines, and the receiver's overhead; its bytes come behind those of the message before it between the same ranks. It
has left after the overhead and its bytes at the rate of the own link, behind
what the rank sends over that link before it in the round.

The functions run interpreted, on arrays or memory views, and compiled by numba, on arrays. Both give the same bits.
"""

from __future__ import annotations

from math import inf, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks

COMPLETED, MET, BEYOND, NEVER, IN_STEP = 0, 1, 2, 3, 4
"""How `run_round` ends: all messages are through; one found a link in use; one came to where a timeline is not known;
one waits for ever, on a link that has no bandwidth and does not change; all ranks entered and left a round at once."""

# Messages that follow each other on a link may overlap by rounding: by so much of the time that they take.
_TOUCH = 1e-10


class Traffic(NamedTuple):
    """The messages of a round on their routes.

    Parameters
    ----------
    src, dst : ndarray of int64, shape (m,)
        Ranks.
    nbytes : ndarray of float64, shape (m,)
        Bytes of each message.
    compute : ndarray of float64, shape (P,) or (0,)
        Seconds each rank works before it enters.
    links : ndarray of int64, shape (m, L)
        Links of each route, -1 after the last; over constant links of a message without bytes, -1 all over.
    own : ndarray of int64, shape (m,)
        The link of it that is the sender's own; -1 where there is none.
    single : bool
        Whether nobody sends two of them over one link of its own.
    exclusive : bool
        Whether there are many routes, over constant links, and no link is on two of them.
    """

    src: Ranks
    dst: Ranks
    nbytes: Floats
    compute: Floats
    links: NDArray[np.int64]
    own: Ranks
    single: bool
    exclusive: bool


class RouteState(NamedTuple):
    """What the route of each message was like when last looked up; each field has shape (m,).

    Parameters
    ----------
    latency, latency_since, latency_until : ndarray of float64
        Seconds of latency, and from when until when it holds [s].
    seconds, own, rate_since, rate_until : ndarray of float64
        Seconds that the bytes take at the rate of the narrowest link, positive if there are any bytes and links, those
        at the rate of the sender's own, and from when until when these rates hold [s]. All from and until are empty
        where links never change.
    """

    latency: Floats
    latency_since: Floats
    latency_until: Floats
    seconds: Floats
    own: Floats
    rate_since: Floats
    rate_until: Floats


class Cursors(NamedTuple):
    """The timelines of one quantity of all links, and where in them each link was last looked up.

    Parameters
    ----------
    times, values : ndarray of float64, shape (n,)
        As of `Timelines`.
    segment : ndarray of int64, shape (number of links,)
        The segment that each link was last found in.
    """

    times: Floats
    values: Floats
    segment: NDArray[np.int64]


class Forecast(NamedTuple):
    """Bandwidth [byte/s] and latency [s] of all links, as far as they are known."""

    bandwidth: Cursors
    latency: Cursors


class Progress(NamedTuple):
    """How far a round is that comes several times in a row.

    Parameters
    ----------
    begun : ndarray of float64, shape (repeats * P,) or (0,)
        When each rank came to the round [s]; filled.
    entered : ndarray of float64, shape (repeats * P,), or (P,) without `begun`
        When each rank entered it after its work [s]; filled, every time or the last.
    done : ndarray of float64, shape (P,)
        When each rank is through [s], before and after.
    busy : ndarray of float64, shape (number of links,)
        Until when each link is in use [s]; changed.
    pair : ndarray of int64, shape (number of links,)
        Between which ranks went the last message that had each link as its sender's own: src * P + dst; changed.
    pair_end : ndarray of float64, shape (number of links,)
        When the last byte of that message was through [s]; changed.
    port_free : ndarray of float64, shape (number of links,)
        When it had left its host [s], where a rank sends several over one link; changed.
    sent, arrived : ndarray of float64, shape (repeats * m,) or (0,)
        When each message was sent and had arrived [s]; filled.
    place : ndarray of int64, shape (2,)
        Which time the round is at, and at which message, -1 before any rank has entered; changed.
    """

    begun: Floats
    entered: Floats
    done: Floats
    busy: Floats
    pair: NDArray[np.int64]
    pair_end: Floats
    port_free: Floats
    sent: Floats
    arrived: Floats
    place: NDArray[np.int64]


def run_round(
    traffic: Traffic,
    routes: RouteState,
    forecast: Forecast | None,
    progress: Progress,
    delays: Floats,
    overheads: tuple[float, float],
    repeats: int,
    steady: bool,
) -> tuple[int, float]:
    """Carry the messages of a round, several times in a row; return how it ended, and a time [s].

    What ended with `BEYOND` resumes where it was when called again, with more of the timelines. The time is then the
    one that is not known. With `MET` and `IN_STEP` it is when all ranks came to the round, NaN if not at once.

    Parameters
    ----------
    traffic : Traffic
        The messages of the round.
    routes : RouteState
        What their routes were like when last looked up; changed.
    forecast : Forecast or None
        What links are going to be like; None where they never change. Numba compiles both cases apart.
    progress : Progress
        Changed.
    delays : ndarray of float64, shape (repeats * m,) or (0,)
        Extra latency of each message [s].
    overheads : (float, float)
        Seconds before a message leaves and after its last byte arrived.
    repeats : int
        How often the round comes.
    steady : bool
        Whether the round takes as long every time that all ranks enter at once.
    """
    done, place, work = np.asarray(progress.done), progress.place, np.asarray(traffic.compute)
    together = steady and _all_equal(done)
    for turn in range(place[0], repeats):
        came = done[0]
        row = turn * len(done) if len(progress.begun) else 0
        if place[1] < 0:
            place[0], place[1] = turn, 0
            if len(progress.begun):
                np.positive(done, np.asarray(progress.begun)[row : row + len(done)])
            if len(work):
                np.add(done, work, done)
            np.positive(done, np.asarray(progress.entered)[row : row + len(done)])
        entered = progress.entered[row : row + len(done)]
        outcome, when = _carry(traffic, routes, forecast, progress, delays, overheads, entered)
        if outcome == MET:
            return MET, came if together else nan
        if outcome != COMPLETED:
            return outcome, when
        place[0], place[1] = turn + 1, -1
        if steady:
            before, together = together, _all_equal(done)
            if before and together:
                return IN_STEP, came
    return COMPLETED, 0.0


def _all_equal(times: Floats) -> bool:
    """Return whether all times, shape (P,), are the same."""
    first = times[0]
    for one in times:  # noqa: SIM110
        if one != first:
            return False
    return True


def _carry(
    traffic: Traffic,
    routes: RouteState,
    forecast: Forecast | None,
    progress: Progress,
    delays: Floats,
    overheads: tuple[float, float],
    entered: Floats,
) -> tuple[int, float]:
    """Carry the messages of a round once, all at once by numpy where that is possible; see `_one_by_one`."""
    if not traffic.exclusive:
        return _one_by_one(traffic, routes, forecast, progress, delays, overheads, entered)
    m, turn = len(traffic.src), int(progress.place[0])
    own = slice(turn * m, (turn + 1) * m)
    leaves = entered[traffic.src]
    joins = (leaves + overheads[0]) + (routes.latency + delays[own] if delays.size else routes.latency)
    pairs = traffic.src * len(progress.done) + traffic.dst
    follows = (traffic.own >= 0) & (progress.pair[traffic.own] == pairs)
    joins = np.where(follows, np.maximum(joins, progress.pair_end[traffic.own]), joins)
    ends = joins + routes.seconds
    message, hop = (traffic.links >= 0).nonzero()
    used = traffic.links[message, hop]
    if (progress.busy[used] - joins[message] > _TOUCH * routes.seconds[message]).any():
        return MET, nan
    progress.busy[used] = ends[message]
    sends = traffic.own >= 0
    progress.pair[traffic.own[sends]], progress.pair_end[traffic.own[sends]] = pairs[sends], ends[sends]
    if overheads[1]:
        ends = ends + overheads[1]
    # Nobody else sends over the own link of a message, so it leaves at once.
    np.maximum.at(progress.done, traffic.src, (leaves + overheads[0]) + routes.own)
    np.maximum.at(progress.done, traffic.dst, ends)
    if progress.sent.size:
        progress.sent[own], progress.arrived[own] = leaves, ends
    return COMPLETED, 0.0


def _one_by_one(
    traffic: Traffic,
    routes: RouteState,
    forecast: Forecast | None,
    progress: Progress,
    delays: Floats,
    overheads: tuple[float, float],
    entered: Floats,
) -> tuple[int, float]:
    """Carry the messages of a round once, from the one at `place` on; parameters and result as of `run_round`.

    `entered`, shape (P,), has when each rank entered [s].
    """
    src, dst, nbytes, links = traffic.src, traffic.dst, traffic.nbytes, traffic.links
    done, busy, sent, arrived, place = progress.done, progress.busy, progress.sent, progress.arrived, progress.place
    send_overhead, receive_overhead = overheads
    m, longest = links.shape
    first = place[0] * m
    begin = place[1]
    # From 0 on: numba then knows that no index is negative, which is a third of the time.
    for message in range(m):
        if message < begin:
            continue
        leaves = entered[src[message]]
        departs = leaves + send_overhead
        if forecast is not None:
            known = routes.latency_since[message] <= departs < routes.latency_until[message]
            if not (known or _look_up_latency(message, departs, links, routes, forecast.latency)):
                place[1] = message
                return BEYOND, departs
        wait = routes.latency[message]
        if len(delays):
            wait += delays[first + message]
        now = departs + wait
        takes = routes.seconds[message]
        left = departs
        if takes > 0:
            port, pair = traffic.own[message], src[message] * len(done) + dst[message]
            if progress.pair[port] == pair:
                now = max(now, progress.pair_end[port])
            ends = now + takes
            if forecast is not None:
                known = routes.rate_since[message] <= now and ends <= routes.rate_until[message]
                if not known:
                    outcome, ends = _integrate(message, now, nbytes[message], links, port, routes, forecast.bandwidth)
                    if outcome != COMPLETED:
                        place[1] = message
                        return outcome, ends
                    takes = ends - now
            if not traffic.single and progress.pair[port] // len(done) == src[message]:
                left = max(left, progress.port_free[port])
            begins, left = left, left + routes.own[message]
            if forecast is not None and not (
                routes.rate_since[message] <= begins and left <= routes.rate_until[message]
            ):
                outcome, left = _leave(port, begins, nbytes[message], forecast.bandwidth)
                if outcome != COMPLETED:
                    place[1] = message
                    return outcome, left
            for hop in range(longest):
                link = links[message, hop]
                if link < 0:
                    break
                if busy[link] - now > _TOUCH * takes:
                    return MET, now
                busy[link] = ends
            progress.pair[port], progress.pair_end[port] = pair, ends
            if not traffic.single:
                progress.port_free[port] = left
            now = ends
        if receive_overhead:
            now += receive_overhead
        done[src[message]] = max(done[src[message]], left)
        done[dst[message]] = max(done[dst[message]], now)
        if len(sent):
            sent[first + message], arrived[first + message] = leaves, now
    return COMPLETED, 0.0


def _segment_at(times: Floats, segment: int, t: float) -> int:
    """Return the segment of a timeline that holds at time `t` [s], given one that is not far from it."""
    while times[segment + 1] <= t:
        segment += 1
    while times[segment] > t:
        segment -= 1
    return segment


def _look_up_latency(message: int, t: float, links: NDArray[np.int64], routes: RouteState, latency: Cursors) -> bool:
    """Look up the latency of a message's route at time `t` [s]; return whether it is known."""
    times, values, segments = latency.times, latency.values, latency.segment
    total, since, until = 0.0, -inf, inf
    for hop in range(links.shape[1]):
        link = links[message, hop]
        if link < 0:
            break
        segment = segments[link] = _segment_at(times, segments[link], t)
        if values[segment] < 0:
            return False
        total += values[segment]
        since, until = max(since, times[segment]), min(until, times[segment + 1])
    routes.latency[message], routes.latency_since[message], routes.latency_until[message] = total, since, until
    return True


def _integrate(
    message: int,
    now: float,
    nbytes: float,
    links: NDArray[np.int64],
    port: int,
    routes: RouteState,
    bandwidth: Cursors,
) -> tuple[int, float]:
    """Carry the bytes of a message over its route from time `now` [s], segment by segment.

    Returns how that ended, and when: `COMPLETED`, or `BEYOND` or `NEVER` and the time up to which it came.
    """
    times, values, segments = bandwidth.times, bandwidth.values, bandwidth.segment
    left, hops = nbytes, 0
    for hop in range(links.shape[1]):
        link = links[message, hop]
        if link < 0:
            break
        segments[link] = _segment_at(times, segments[link], now)
        hops += 1
    if hops == 0:
        return COMPLETED, now
    # Most routes have two links: their segments stay in variables.
    one, two = links[message, 0], links[message, hops - 1]
    p, q = segments[one], segments[two]
    while True:
        until, rate = min(times[p + 1], times[q + 1]), min(values[p], values[q])
        for hop in range(1, hops - 1):
            segment = segments[links[message, hop]]
            until, rate = min(until, times[segment + 1]), min(rate, values[segment])
        if rate > 0:
            if now + left / rate <= until:
                break
        elif rate < 0:
            return BEYOND, now
        elif until == inf:
            return NEVER, now
        left -= rate * (until - now)
        now = until
        while times[p + 1] <= now:
            p += 1
        while times[q + 1] <= now:
            q += 1
        for hop in range(1, hops - 1):
            link = links[message, hop]
            while times[segments[link] + 1] <= now:
                segments[link] += 1
    segments[one], segments[two] = p, q
    routes.own[message] = nbytes / values[segments[port]]
    since = max(times[p], times[q])
    for hop in range(1, hops - 1):
        since = max(since, times[segments[links[message, hop]]])
    routes.seconds[message], routes.rate_since[message], routes.rate_until[message] = nbytes / rate, since, until
    return COMPLETED, now + left / rate


def _leave(link: int, now: float, nbytes: float, bandwidth: Cursors) -> tuple[int, float]:
    """Let bytes pass a link from time `now` [s] on, segment by segment; return as `_integrate` does."""
    times, values = bandwidth.times, bandwidth.values
    segment = _segment_at(times, bandwidth.segment[link], now)
    while True:
        rate, until = values[segment], times[segment + 1]
        if rate > 0:
            if now + nbytes / rate <= until:
                return COMPLETED, now + nbytes / rate
        elif rate < 0:
            return BEYOND, now
        elif until == inf:
            return NEVER, now
        nbytes -= rate * (until - now)
        now = until
        segment += 1
