"""Rounds of messages over links whose bandwidth and latency change, as a loop that numba can compile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

CROSSED, MET, BEYOND, NEVER = 0, 1, 2, 3
"""All messages are through; one found a link in use; one is not through where the known course of a link ends; one
waits for ever, on a link that has no bandwidth and does not change."""


def cross_weather(
    src: Indices,
    dst: Indices,
    nbytes: Floats,
    links: Indices,
    compute: Floats,
    repeats: int,
    bandwidth_times: Floats,
    bandwidths: Floats,
    latency_times: Floats,
    latencies: Floats,
    cursors: Indices,
    lasting: Floats,
    place: Indices,
    entered: Floats,
    done: Floats,
    busy: Floats,
    delays: Floats,
    send_overhead: float,
    receive_overhead: float,
    sent: Floats,
    arrived: Floats,
) -> tuple[int, float]:
    """Carry the messages of a round, several times in a row; return how it ended, and at what time of which message.

    What ended with `BEYOND` goes on from where it was when called again, with more of the courses of the links.

    Parameters
    ----------
    src, dst, nbytes : ndarray, shape (m,)
        Ranks, and bytes of each message.
    links : ndarray of int64, shape (m, L)
        Links of each route, -1 after the last.
    compute : ndarray of float64, shape (P,) or (0,)
        Seconds each rank works before it enters.
    repeats : int
        How often the round comes.
    bandwidth_times, bandwidths, latency_times, latencies : ndarray of float64
        From when on a link has which bandwidth [byte/s] and latency [s], as in `simnet.network.links.Courses`.
    cursors : ndarray of int64, shape (2, number of links)
        Piece of bandwidth and of latency last looked at; changed.
    lasting : ndarray of float64, shape (m, 6)
        Of each route, from when until when it had its latency, which, and the same of its narrowest bandwidth, as last
        looked up; changed. Rows ``(inf, inf, 0, inf, inf, 1)`` for nothing.
    place : ndarray of int64, shape (2,)
        Which time the round is at, and at which message, -1 before any rank has entered; changed.
    entered, done, busy : ndarray of float64
        When each rank entered, filled; when each rank is through, before and after; until when each link is in use,
        changed.
    delays : ndarray of float64, shape (repeats * m,) or (0,)
        Extra latency of each message [s].
    send_overhead, receive_overhead : float
        Seconds before a message leaves and after its last byte arrived.
    sent, arrived : ndarray of float64, shape (repeats * m,) or (0,)
        Filled.
    """
    m, longest = links.shape
    for turn in range(place[0], repeats):
        begin = place[1]
        if begin < 0:
            begin = 0
            if compute.size:
                for rank in range(done.size):
                    done[rank] += compute[rank]
            for rank in range(done.size):
                entered[rank] = done[rank]
        for message in range(begin, m):
            own = turn * m + message
            leaves = entered[src[message]]
            departs = leaves + send_overhead
            if not lasting[message, 0] <= departs < lasting[message, 1]:
                wait, since, until = 0.0, -np.inf, np.inf
                for column in range(longest):
                    link = links[message, column]
                    if link < 0:
                        break
                    piece = cursors[1, link]
                    while latency_times[piece + 1] <= departs:
                        piece += 1
                    while latency_times[piece] > departs:
                        piece -= 1
                    cursors[1, link] = piece
                    if latencies[piece] < 0:
                        place[0], place[1] = turn, message
                        return BEYOND, departs
                    wait += latencies[piece]
                    since, until = max(since, latency_times[piece]), min(until, latency_times[piece + 1])
                lasting[message, 0], lasting[message, 1], lasting[message, 2] = since, until, wait
            wait = lasting[message, 2]
            if delays.size:
                wait += delays[own]
            now = departs + wait
            left = nbytes[message]
            if left > 0:
                for column in range(longest):
                    link = links[message, column]
                    if link < 0:
                        break
                    if now < busy[link]:
                        return MET, now
                takes = left / lasting[message, 5]
                if links[message, 0] < 0:
                    takes = 0.0
                elif not (lasting[message, 3] <= now and now + takes <= lasting[message, 4]):
                    for column in range(longest):
                        link = links[message, column]
                        if link < 0:
                            break
                        piece = cursors[0, link]
                        while bandwidth_times[piece + 1] <= now:
                            piece += 1
                        while bandwidth_times[piece] > now:
                            piece -= 1
                        cursors[0, link] = piece
                        route = column + 1
                    # Most routes have two links: their pieces stay in variables.
                    one, two = links[message, 0], links[message, route - 1]
                    p, q = cursors[0, one], cursors[0, two]
                    while True:
                        until = min(bandwidth_times[p + 1], bandwidth_times[q + 1])
                        rate = min(bandwidths[p], bandwidths[q])
                        for column in range(1, route - 1):
                            piece = cursors[0, links[message, column]]
                            until = min(until, bandwidth_times[piece + 1])
                            rate = min(rate, bandwidths[piece])
                        if rate > 0:
                            takes = left / rate
                            if now + takes <= until:
                                break
                        elif rate < 0:
                            place[0], place[1] = turn, message
                            return BEYOND, now
                        elif until == np.inf:
                            return NEVER, now
                        left -= rate * (until - now)
                        now = until
                        while bandwidth_times[p + 1] <= now:
                            p += 1
                        while bandwidth_times[q + 1] <= now:
                            q += 1
                        for column in range(1, route - 1):
                            link = links[message, column]
                            while bandwidth_times[cursors[0, link] + 1] <= now:
                                cursors[0, link] += 1
                    cursors[0, one], cursors[0, two] = p, q
                    since = max(bandwidth_times[p], bandwidth_times[q])
                    for column in range(1, route - 1):
                        since = max(since, bandwidth_times[cursors[0, links[message, column]]])
                    lasting[message, 3], lasting[message, 4], lasting[message, 5] = since, until, rate
                now += takes
                for column in range(longest):
                    link = links[message, column]
                    if link < 0:
                        break
                    busy[link] = now
            if receive_overhead:
                now += receive_overhead
            done[src[message]] = max(done[src[message]], now)
            done[dst[message]] = max(done[dst[message]], now)
            if sent.size:
                sent[own], arrived[own] = leaves, now
        place[1] = -1
    return CROSSED, 0.0
