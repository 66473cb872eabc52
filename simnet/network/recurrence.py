"""The max-plus recurrence: when ranks are done with rounds of messages that meet on no link.

When a rank is done with a round is a maximum over sums: when it entered the round, and when its messages, sent and
received, arrived. A message arrives after the sender's overhead, the latency of its route when it departs, its bytes at
the rate of the narrowest link from segment to segment of the links' timelines, and the receiver's overhead.

The functions run interpreted, on arrays or memory views, and compiled by numba, on arrays. Both give the same bits.
"""

from __future__ import annotations

from math import inf, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks

CROSSED, MET, BEYOND, NEVER, IN_STEP = 0, 1, 2, 3, 4
"""How `cross` ends: all messages are through; one found a link in use; one came to where a timeline is not known; one
waits for ever, on a link that has no bandwidth and does not change; all ranks entered and left a round at once."""


class Traffic(NamedTuple):
    """The messages of a round on their routes.

    Parameters
    ----------
    src, dst : ndarray of int64, shape (m,)
        Ranks.
    nbytes : ndarray of float64, shape (m,)
        Bytes of each message.
    compute : ndarray of float64, shape (P,)
        Seconds each rank works before it enters.
    links : ndarray of int64, shape (m, L)
        Links of each route, -1 after the last.
    exclusive : bool
        Whether there are many routes, over constant links, and no link is on two of them.
    """

    src: Ranks
    dst: Ranks
    nbytes: Floats
    compute: Floats
    links: NDArray[np.int64]
    exclusive: bool


class RouteState(NamedTuple):
    """What each route was like when last looked up; each field has shape (m,).

    Parameters
    ----------
    latency, latency_since, latency_until : ndarray of float64
        Seconds of latency, and from when until when it holds [s].
    rate, rate_since, rate_until : ndarray of float64
        Bytes per second of the narrowest link, and from when until when it holds [s].
    """

    latency: Floats
    latency_since: Floats
    latency_until: Floats
    rate: Floats
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


class Progress(NamedTuple):
    """How far a round is that comes several times in a row.

    Parameters
    ----------
    begun, entered : ndarray of float64, shape (repeats, P) or (1, P)
        When each rank came to the round, and entered it after its work [s]; filled, with one row the last time.
    done : ndarray of float64, shape (P,)
        When each rank is through [s], before and after.
    busy : ndarray of float64, shape (number of links,)
        Until when each link is in use [s]; changed.
    sent, arrived : ndarray of float64, shape (repeats * m,) or (0,)
        When each message was sent and had arrived [s]; filled.
    place : ndarray of int64, shape (2,)
        Which time the round is at, and at which message, -1 before any rank has entered; changed.
    """

    begun: Floats
    entered: Floats
    done: Floats
    busy: Floats
    sent: Floats
    arrived: Floats
    place: NDArray[np.int64]


def cross(
    traffic: Traffic,
    routes: RouteState,
    bandwidth: Cursors,
    latency: Cursors,
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
    bandwidth, latency : Cursors
        Bandwidth [byte/s] and latency [s] of all links; not looked at where `routes` holds for ever.
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
    together = steady and all_equal(done)
    for turn in range(place[0], repeats):
        row = turn if len(progress.begun) > 1 else 0
        begun, entered = np.asarray(progress.begun)[row], np.asarray(progress.entered)[row]
        if place[1] < 0:
            place[0], place[1] = turn, 0
            np.positive(done, begun)
            np.add(done, work, done)
            np.positive(done, entered)
        outcome, when = carry(traffic, routes, bandwidth, latency, progress, delays, overheads, row)
        if outcome == MET:
            return MET, begun[0] if together else nan
        if outcome != CROSSED:
            return outcome, when
        place[0], place[1] = turn + 1, -1
        if steady:
            before, together = together, all_equal(done)
            if before and together:
                return IN_STEP, begun[0]
    return CROSSED, 0.0


def all_equal(times: Floats) -> bool:
    """Return whether all times, shape (P,), are the same."""
    first = times[0]
    for one in times:  # noqa: SIM110
        if one != first:
            return False
    return True


def carry(
    traffic: Traffic,
    routes: RouteState,
    bandwidth: Cursors,
    latency: Cursors,
    progress: Progress,
    delays: Floats,
    overheads: tuple[float, float],
    row: int,
) -> tuple[int, float]:
    """Carry the messages of a round once, all at once by numpy where that is possible; see `one_by_one`."""
    if not traffic.exclusive:
        return one_by_one(traffic, routes, bandwidth, latency, progress, delays, overheads, row)
    own = slice(progress.place[0] * len(traffic.src), (progress.place[0] + 1) * len(traffic.src))
    leaves = progress.entered[row, traffic.src]
    joins = (leaves + overheads[0]) + (routes.latency + delays[own] if delays.size else routes.latency)
    ends = joins + traffic.nbytes / routes.rate
    message, hop = np.nonzero((traffic.links >= 0) & (traffic.nbytes > 0)[:, None])
    used = traffic.links[message, hop]
    if (joins[message] < progress.busy[used]).any():
        return MET, nan
    progress.busy[used] = ends[message]
    if overheads[1]:
        ends = ends + overheads[1]
    np.maximum.at(progress.done, traffic.src, ends)
    np.maximum.at(progress.done, traffic.dst, ends)
    if progress.sent.size:
        progress.sent[own], progress.arrived[own] = leaves, ends
    return CROSSED, 0.0


def one_by_one(
    traffic: Traffic,
    routes: RouteState,
    bandwidth: Cursors,
    latency: Cursors,
    progress: Progress,
    delays: Floats,
    overheads: tuple[float, float],
    row: int,
) -> tuple[int, float]:
    """Carry the messages of a round once, from the one at `place` on; parameters and result as of `cross`.

    `row` is that of `progress.entered` which holds.
    """
    src, dst, nbytes, links = traffic.src, traffic.dst, traffic.nbytes, traffic.links
    done, busy, sent, arrived, place = progress.done, progress.busy, progress.sent, progress.arrived, progress.place
    send_overhead, receive_overhead = overheads
    m, longest = links.shape
    for message in range(place[1], m):
        place[1], number = message, place[0] * m + message
        leaves = progress.entered[row, src[message]]
        departs = leaves + send_overhead
        if not routes.latency_since[message] <= departs < routes.latency_until[message]:
            wait, least, since, until = look_up(message, departs, links, latency)
            if least < 0:
                return BEYOND, departs
            routes.latency[message], routes.latency_since[message], routes.latency_until[message] = wait, since, until
        wait = routes.latency[message]
        if len(delays):
            wait += delays[number]
        now = departs + wait
        if nbytes[message] > 0:
            for hop in range(longest):
                link = links[message, hop]
                if link < 0:
                    break
                if now < busy[link]:
                    return MET, now
            ends = now + nbytes[message] / routes.rate[message]
            if not (routes.rate_since[message] <= now and ends <= routes.rate_until[message]):
                outcome, ends = integrate(message, now, nbytes[message], links, routes, bandwidth)
                if outcome != CROSSED:
                    return outcome, ends
            now = ends
            for hop in range(longest):
                link = links[message, hop]
                if link < 0:
                    break
                busy[link] = now
        if receive_overhead:
            now += receive_overhead
        done[src[message]] = max(done[src[message]], now)
        done[dst[message]] = max(done[dst[message]], now)
        if len(sent):
            sent[number], arrived[number] = leaves, now
    return CROSSED, 0.0


def look_up(message: int, t: float, links: NDArray[np.int64], cursors: Cursors) -> tuple[float, float, float, float]:
    """Look up the links of a message's route at time `t` [s], searching from where each was last found.

    Returns the sum of their values and the least, -1 if one is not known, and from when until when both hold.
    """
    times, values, segments = cursors.times, cursors.values, cursors.segment
    total, least, since, until = 0.0, inf, -inf, inf
    for hop in range(links.shape[1]):
        link = links[message, hop]
        if link < 0:
            break
        segment = segments[link]
        while times[segment + 1] <= t:
            segment += 1
        while times[segment] > t:
            segment -= 1
        segments[link] = segment
        value, begin, end = values[segment], times[segment], times[segment + 1]
        total += value
        # Comparisons, because the interpreter takes three times as long to call min and max.
        if value < least:
            least = value
        if begin > since:
            since = begin
        if end < until:
            until = end
    return total, least, since, until


def integrate(
    message: int, now: float, left: float, links: NDArray[np.int64], routes: RouteState, bandwidth: Cursors
) -> tuple[int, float]:
    """Carry `left` bytes of a message over its route from time `now` [s], segment by segment.

    Returns how that ended, and when: `CROSSED`, or `BEYOND` or `NEVER` and the time up to which it came.
    """
    while True:
        _, rate, since, until = look_up(message, now, links, bandwidth)
        if rate > 0:
            ends = now + left / rate
            if ends <= until:
                routes.rate[message], routes.rate_since[message], routes.rate_until[message] = rate, since, until
                return CROSSED, ends
        elif rate < 0:
            return BEYOND, now
        elif until == inf:
            return NEVER, now
        left -= rate * (until - now)
        now = until
