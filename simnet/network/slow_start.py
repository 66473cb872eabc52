"""Slow start: the extra latency of messages on TCP connections that have been silent.

Linux halves the window of a silent connection in each retransmission time-out, down to the initial window [1]_, [2]_.
Then it doubles it in each round trip. A sender whose window w is shorter than what the path holds waits in each round
trip for RTT - w / rate. Before the silence a window is twice as long as the most bytes that the connection had in
flight, as it doubles while it is shorter [3]_. It is at most what path and buffer hold, as a longer one loses packets.

References
----------
.. [1] M. Allman, V. Paxson, E. Blanton, "TCP Congestion Control", RFC 5681, sections 3.1 and 4.1.
.. [2] ``tcp_cwnd_restart`` in ``net/ipv4/tcp_output.c`` of Linux; ``tcp_slow_start_after_idle`` is on by default.
.. [3] ``tcp_is_cwnd_limited`` in ``include/net/tcp.h`` of Linux; G. Fairhurst, A. Sathiaseelan, R. Secchi, "Updating
   TCP to Support Rate-Limited Traffic", RFC 7661.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.schedule import Round

LEAST_TIMEOUT = 0.2
"""What a retransmission time-out has beside a round trip, at least [s]."""

BUFFER = 2.0
"""Buffer of a path, relative to the bytes that the path itself holds."""


def window_after_silence(window: float, silence: float, round_trip: float, initial_window: float) -> float:
    """Return the TCP window [byte] of a connection after `silence` [s], given the window before the silence.

    Examples
    --------
    >>> [window_after_silence(1e6, silence, 0.04, 14480) for silence in (0.2, 0.5, 1.0, 10.0)]
    [1000000.0, 250000.0, 62500.0, 14480]
    """
    halvings = min(60, math.ceil(silence / (LEAST_TIMEOUT + round_trip)) - 1)
    return max(min(window, initial_window), window / 2.0**halvings) if halvings > 0 else window


def slow_start_delays(
    rounds: Sequence[Round],
    hosts: Ranks,
    path: Callable[[int, int], tuple[float, float]],
    initial_window: float,
    silence: float,
    ahead: Sequence[int] = (),
) -> Floats:
    """Return the extra latency that TCP slow start adds to each message of all rounds [s], shape (messages,).

    Parameters
    ----------
    rounds : sequence of Round
        Messages in the order in which connections carry them.
    hosts : ndarray of int, shape (P,)
        Host of each rank; ranks of a host need no connection.
    path : callable
        Latency [s] and goodput [byte/s] between two hosts.
    initial_window : float
        Bytes that a connection sends at first.
    silence : float
        How long all connections were silent [s].
    ahead : sequence of int
        How many earlier rounds may be in progress when a rank enters each round; none by default.

    Examples
    --------
    1 MB at 11.8 MB/s and a round trip of 80 ms: seven windows are sent before the path is full.

    >>> rounds = [Round([0], [1], [1e6]), Round([0], [1], [1e6])]
    >>> slow_start_delays(rounds, np.arange(2), lambda src, dst: (0.04, 11.8e6), 14480, silence=10.0).round(3)
    array([0.403, 0.   ])
    """
    carried: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
    count = 0
    for number, one in enumerate(rounds):
        for src, dst, nbytes in zip(one.src.tolist(), one.dst.tolist(), one.nbytes.tolist(), strict=True):
            carried.setdefault((src, dst), []).append((count, number, nbytes))
            count += 1
    found = np.zeros(count)
    for (src, dst), messages in carried.items():
        host, other = int(hosts[src]), int(hosts[dst])
        if host == other:
            continue
        (there, rate), (back, _) = path(host, other), path(other, host)
        bursts, trip = _bursts(messages, ahead), there + back
        used = min(2 * max(sum(nbytes for _, nbytes in one) for one in bursts), (1 + BUFFER) * (trip * rate))
        waits = _SlowStartWindow(
            trip, rate, window_after_silence(max(used, initial_window), silence, trip, initial_window)
        )
        for burst in bursts:
            for index, delay in zip((index for index, _ in burst), waits.send([n for _, n in burst]), strict=True):
                found[index] = delay
    return found


class _SlowStartWindow:
    """One TCP connection in slow start, whose congestion window delays messages until it has grown."""

    def __init__(self, round_trip: float, rate: float, window: float) -> None:
        self.round_trip, self.rate, self.window, self.holds = round_trip, rate, window, round_trip * rate

    def send(self, burst: Sequence[float]) -> list[float]:
        """Return how long each message of a burst waits for the window to grow [s], given the messages' bytes."""
        room, waited, found = self.window, 0.0, []
        for nbytes in burst:
            left = nbytes
            while left > room and self.window < self.holds:
                waited += self.round_trip - self.window / self.rate
                left -= room
                self.window *= 2
                room = self.window
            room = max(0.0, room - left)
            found.append(waited)
        # What is acknowledged widens the window, too.
        self.window += self.window - room
        return found


def _bursts(messages: Sequence[tuple[int, int, float]], ahead: Sequence[int]) -> list[list[tuple[int, float]]]:
    """Group a connection's messages that are in flight at the same time, as lists of (index, bytes)."""
    found: list[list[tuple[int, float]]] = []
    last = -2
    for index, number, nbytes in messages:
        if ahead and number == last + 1 and len(found[-1]) <= ahead[number]:
            found[-1].append((index, nbytes))
        else:
            found.append([(index, nbytes)])
        last = number
    return found
