"""A max-plus recurrence for the times at which ranks finish rounds, if no two messages use a link at once.

A rank finishes a round at a maximum over sums: when it entered, when its messages arrived, and when its sends left its
host's own link. A message arrives after the sender's overhead, the latency of its route at departure, its bytes at the
rate of the narrowest link, segment by segment of the timelines, and the receiver's overhead; its bytes follow those of
the previous message between the same ranks. It has left after the overhead and its bytes at the rate of the own link,
behind earlier sends over that link in the round.

The functions run interpreted and compiled by numba, to the same bits.
"""

from __future__ import annotations

from math import inf, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks

COMPLETED, MET, BEYOND, NEVER, IN_STEP = 0, 1, 2, 3, 4
"""Outcomes of `run_round`: completed; a link was in use; a timeline is unknown there; a message waits for ever on a
link without bandwidth; all ranks entered and left a round at once.
"""

# Messages that follow each other on a link may overlap by rounding: by so much of the time that they take.
_TOUCH = 1e-10


class RoundTraffic(NamedTuple):
    """The messages of a round and the links of their routes.

    - `src`, `dst` (m,): ranks.
    - `nbytes` (m,): bytes of each message.
    - `compute` (P,) or (0,): seconds each rank works before it enters.
    - `links` (m, L): links of each route, padded with -1; all -1 for an empty message over constant links.
    - `own` (m,): the sender's own link; -1 for none.
    - `single`: whether no rank sends two messages over one own link.
    - `exclusive`: whether there are many routes, over constant links, and none share a link.
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
    """Latency and transfer time of each message on its route, and the time span in which these values hold.

    - `latency`, `latency_since`, `latency_until`: latency, and when it holds [s].
    - `seconds`, `own`, `rate_since`, `rate_until`: seconds for the bytes at the narrowest and at the own link, and when
      these rates hold [s]. The ``_since`` and ``_until`` arrays are empty for constant links.
    """

    latency: Floats
    latency_since: Floats
    latency_until: Floats
    seconds: Floats
    own: Floats
    rate_since: Floats
    rate_until: Floats


class Cursors(NamedTuple):
    """Bandwidths or latencies of all links over time, with the index of each link's current segment.

    - `times`, `values` (n,): as in `Timelines`.
    - `segment` (number of links,): current segment of each link.
    """

    times: Floats
    values: Floats
    segment: NDArray[np.int64]


class LinkForecast(NamedTuple):
    """Timelines of the bandwidth [byte/s] and latency [s] of all links, as far as they are known."""

    bandwidth: Cursors
    latency: Cursors


class Progress(NamedTuple):
    """Arrays with the results and the current position of `run_round`, for a round and its repetitions.

    - `begun` (repeats * P,) or (0,): when each rank reached the round [s].
    - `entered` (repeats * P,), or (P,) without `begun`: when each rank entered it after its work [s].
    - `done` (P,): when each rank has finished [s].
    - `busy` (number of links,): until when each link is in use [s].
    - `pair` (number of links,): ranks of the last message with this own link: src * P + dst.
    - `pair_end` (number of links,): when the last byte of that message had passed [s].
    - `port_free` (number of links,): when it had left its host [s], where a rank sends several over one link.
    - `sent`, `arrived` (repeats * m,) or (0,): when each message was sent and arrived [s].
    - `place` (2,): current repetition and message; message -1 before any rank has entered.
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
    traffic: RoundTraffic,
    routes: RouteState,
    forecast: LinkForecast | None,
    progress: Progress,
    delays: Floats,
    overheads: tuple[float, float],
    repeats: int,
    steady: bool,
) -> tuple[int, float]:
    """Time a round and its repetitions; return an outcome code such as `COMPLETED`, and the time of this outcome [s].

    After `BEYOND`, whose time is the unknown one, call again with longer timelines to resume. With `MET` and `IN_STEP`
    the time is when all ranks reached the round, NaN if not at once.

    - `traffic`: the messages.
    - `routes`: their routes; updated.
    - `forecast`: timelines; None for constant links. Numba compiles both cases separately.
    - `progress`: updated.
    - `delays` (repeats * m,) or (0,): extra latency of each message [s].
    - `overheads`: seconds before a message leaves and after its last byte arrived.
    - `repeats`: occurrences of the round.
    - `steady`: whether the round takes equally long whenever all ranks enter at once.
    """
    done, place, work = progress.done, progress.place, traffic.compute
    together = steady and _all_equal(done)
    for turn in range(place[0], repeats):
        came = done[0]
        row = turn * len(done) if len(progress.begun) else 0
        if place[1] < 0:
            place[0], place[1] = turn, 0
            if len(progress.begun):
                np.positive(done, progress.begun[row : row + len(done)])
            if len(work):
                np.add(done, work, done)
            np.positive(done, progress.entered[row : row + len(done)])
        entered = progress.entered[row : row + len(done)]
        outcome, when = _carry_round(traffic, routes, forecast, progress, delays, overheads, entered)
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
    first = times[0]
    for one in times:  # noqa: SIM110
        if one != first:
            return False
    return True


def _carry_round(
    traffic: RoundTraffic,
    routes: RouteState,
    forecast: LinkForecast | None,
    progress: Progress,
    delays: Floats,
    overheads: tuple[float, float],
    entered: Floats,
) -> tuple[int, float]:
    """Time one repetition of a round, vectorised if its messages share no links; return an outcome code and time."""
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
    # No other message uses the own link, so the message leaves at once.
    np.maximum.at(progress.done, traffic.src, (leaves + overheads[0]) + routes.own)
    np.maximum.at(progress.done, traffic.dst, ends)
    if progress.sent.size:
        progress.sent[own], progress.arrived[own] = leaves, ends
    return COMPLETED, 0.0


def _one_by_one(
    traffic: RoundTraffic,
    routes: RouteState,
    forecast: LinkForecast | None,
    progress: Progress,
    delays: Floats,
    overheads: tuple[float, float],
    entered: Floats,
) -> tuple[int, float]:
    """Time the remaining messages of one repetition, one after another; return an outcome code and its time [s]."""
    src, dst, nbytes, links = traffic.src, traffic.dst, traffic.nbytes, traffic.links
    done, busy, sent, arrived, place = progress.done, progress.busy, progress.sent, progress.arrived, progress.place
    send_overhead, receive_overhead = overheads
    m = len(links)
    first = place[0] * m
    begin = place[1]
    # From 0 on: numba then knows that no index is negative, which is a third of the time.
    for message in range(m):
        if message < begin:
            continue
        place[1] = message
        leaves = entered[src[message]]
        departs = leaves + send_overhead
        if forecast is not None:
            known = routes.latency_since[message] <= departs < routes.latency_until[message]
            if not (known or _look_up_latency(message, departs, links, routes, forecast.latency)):
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
            if forecast is not None and not (routes.rate_since[message] <= now and ends <= routes.rate_until[message]):
                outcome, ends = _integrate_route(message, now, nbytes[message], links, port, routes, forecast.bandwidth)
                if outcome != COMPLETED:
                    return outcome, ends
                takes = ends - now
            if not traffic.single and progress.pair[port] // len(done) == src[message]:
                left = max(left, progress.port_free[port])
            outcome, left = _left_at(message, left, nbytes[message], port, routes, forecast)
            if outcome != COMPLETED:
                return outcome, left
            if not _occupy(busy, links[message], now, ends, _TOUCH * takes):
                return MET, now
            progress.pair[port], progress.pair_end[port] = pair, ends
            if not traffic.single:
                progress.port_free[port] = left
            now = ends
        now += receive_overhead
        done[src[message]] = max(done[src[message]], left)
        done[dst[message]] = max(done[dst[message]], now)
        if len(sent):
            sent[first + message], arrived[first + message] = leaves, now
    return COMPLETED, 0.0


def _left_at(
    message: int, begins: float, nbytes: float, port: int, routes: RouteState, forecast: LinkForecast | None
) -> tuple[int, float]:
    """Return an outcome code and its time [s]: for `COMPLETED`, when a message's last byte leaves its host."""
    left = begins + routes.own[message]
    if forecast is not None and not (routes.rate_since[message] <= begins and left <= routes.rate_until[message]):
        return _leave_link(port, begins, nbytes, forecast.bandwidth)
    return COMPLETED, left


def _occupy(busy: Floats, route: NDArray[np.int64], now: float, ends: float, touch: float) -> bool:
    """Mark a route's links as busy until `ends` [s]; stop and return False at one busy beyond `now` + `touch` [s]."""
    for link in route:
        if link < 0:
            break
        if busy[link] - now > touch:
            return False
        busy[link] = ends
    return True


def _segment_at(times: Floats, segment: int, t: float) -> int:
    """Return the index of the timeline segment at time `t` [s], searching from a nearby index."""
    while times[segment + 1] <= t:
        segment += 1
    while times[segment] > t:
        segment -= 1
    return segment


def _look_up_latency(message: int, t: float, links: NDArray[np.int64], routes: RouteState, latency: Cursors) -> bool:
    """Set the latency of a message's route to its value at `t` [s]; return False if the forecast ends before `t`."""
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


def _integrate_route(
    message: int,
    now: float,
    nbytes: float,
    links: NDArray[np.int64],
    port: int,
    routes: RouteState,
    bandwidth: Cursors,
) -> tuple[int, float]:
    """Return an outcome code and its time [s]: for `COMPLETED`, when a message has passed its route."""
    times, values, segments = bandwidth.times, bandwidth.values, bandwidth.segment
    left, hops = nbytes, 0
    for hop in range(links.shape[1]):
        link = links[message, hop]
        if link < 0:
            break
        segments[link] = _segment_at(times, segments[link], now)
        hops += 1
    while True:
        since, until, rate = -inf, inf, inf
        for hop in range(hops):
            segment = segments[links[message, hop]]
            since, until, rate = max(since, times[segment]), min(until, times[segment + 1]), min(rate, values[segment])
        if rate > 0:
            if now + left / rate <= until:
                break
        elif rate < 0:
            return BEYOND, now
        elif until == inf:
            return NEVER, now
        left -= rate * (until - now)
        now = until
        for hop in range(hops):
            link = links[message, hop]
            while times[segments[link] + 1] <= now:
                segments[link] += 1
    routes.own[message] = nbytes / values[segments[port]]
    routes.seconds[message], routes.rate_since[message], routes.rate_until[message] = nbytes / rate, since, until
    return COMPLETED, now + left / rate


def _leave_link(link: int, now: float, nbytes: float, bandwidth: Cursors) -> tuple[int, float]:
    """Return an outcome code and its time [s]: for `COMPLETED`, when `nbytes` bytes have passed a link."""
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
