"""A round of messages over links whose bandwidth and latency change, as a loop that numba can compile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

CROSSED, MET, BEYOND = 0, 1, 2
"""All messages are through; one found a link in use; one is not through at the end of what is known of the links."""


def cross_weather(
    src: Indices,
    dst: Indices,
    nbytes: Floats,
    links: Indices,
    bandwidth_at: Indices,
    bandwidth_times: Floats,
    bandwidths: Floats,
    latency_at: Indices,
    latency_times: Floats,
    latencies: Floats,
    cursors: Indices,
    horizon: float,
    entered: Floats,
    busy: Floats,
    delays: Floats,
    send_overhead: float,
    receive_overhead: float,
    done: Floats,
    sent: Floats,
    arrived: Floats,
) -> int:
    """Carry the messages of a round; return `CROSSED`, `MET` or `BEYOND`.

    Parameters
    ----------
    src, dst, nbytes : ndarray, shape (m,)
        Ranks, and bytes of each message.
    links : ndarray of int64, shape (m, L)
        Links of each route, -1 after the last.
    bandwidth_at, latency_at : ndarray of int64, shape (number of links + 1,)
        Where the pieces of a link begin in the arrays that follow.
    bandwidth_times, bandwidths, latency_times, latencies : ndarray of float64
        From when on a link has which bandwidth [byte/s] and latency [s].
    cursors : ndarray of int64, shape (2, number of links)
        Piece of bandwidth and of latency last looked at; changed.
    horizon : float
        Until when the pieces are known [s].
    entered, busy, done : ndarray of float64
        When each rank enters; until when each link is in use, changed; when each rank is through, filled.
    delays : ndarray of float64, shape (m,) or (0,)
        Extra latency of each message [s].
    send_overhead, receive_overhead : float
        Seconds before a message leaves and after its last byte arrived.
    sent, arrived : ndarray of float64, shape (m,) or (0,)
        Filled.
    """
    for rank in range(done.size):
        done[rank] = entered[rank]
    for message in range(src.size):
        leaves = entered[src[message]]
        departs = leaves + send_overhead
        wait = 0.0
        route = 0
        while route < links.shape[1] and links[message, route] >= 0:
            link = links[message, route]
            piece = cursors[1, link]
            while piece + 1 < latency_at[link + 1] and latency_times[piece + 1] <= departs:
                piece += 1
            while piece > latency_at[link] and latency_times[piece] > departs:
                piece -= 1
            cursors[1, link] = piece
            wait += latencies[piece]
            route += 1
        if delays.size:
            wait += delays[message]
        now = departs + wait
        if now >= horizon:
            return BEYOND
        left = nbytes[message]
        if left > 0 and route > 0:
            for place in range(route):
                if now < busy[links[message, place]]:
                    return MET
            while True:
                rate = np.inf
                until = horizon
                for place in range(route):
                    link = links[message, place]
                    piece = cursors[0, link]
                    while piece + 1 < bandwidth_at[link + 1] and bandwidth_times[piece + 1] <= now:
                        piece += 1
                    while piece > bandwidth_at[link] and bandwidth_times[piece] > now:
                        piece -= 1
                    cursors[0, link] = piece
                    rate = min(rate, bandwidths[piece])
                    if piece + 1 < bandwidth_at[link + 1]:
                        until = min(until, bandwidth_times[piece + 1])
                if rate > 0 and now + left / rate <= until:
                    now += left / rate
                    break
                if until >= horizon:
                    return BEYOND
                left -= rate * (until - now)
                now = until
            for place in range(route):
                busy[links[message, place]] = now
        if receive_overhead:
            now += receive_overhead
        done[src[message]] = max(done[src[message]], now)
        done[dst[message]] = max(done[dst[message]], now)
        if sent.size:
            sent[message] = leaves
            arrived[message] = now
    return CROSSED
