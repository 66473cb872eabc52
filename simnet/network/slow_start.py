"""Slow start: extra latency of messages on TCP connections that were silent.

Linux halves the window of a silent connection in each retransmission time-out, down to the initial window [1]_, [2]_.
Then it doubles it in each round trip. A sender whose window w is shorter than what the path holds waits in each round
trip for RTT - w / rate.

References
----------
.. [1] M. Allman, V. Paxson, E. Blanton, "TCP Congestion Control", RFC 5681, sections 3.1 and 4.1.
.. [2] ``tcp_cwnd_restart`` in ``net/ipv4/tcp_output.c`` of Linux; ``tcp_slow_start_after_idle`` is on by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.schedule import Round

LEAST_TIMEOUT = 0.2
"""What a retransmission time-out has beside a round trip, at least [s]."""

HALVINGS = 10
"""Time-outs of silence after which a window is taken to be the initial one."""


def slow_start_delays(
    rounds: Sequence[Round],
    hosts: Ranks,
    path: Callable[[int, int], tuple[float, float]],
    initial_window: float,
    silence: float,
) -> Floats:
    """Return the extra latency by slow start of each message of all rounds [s], shape (messages,).

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
        How long all connections were silent [s]. Connections silent for less than `HALVINGS` time-outs keep their
        window: how large that was is not known.

    Examples
    --------
    1 MB at 11.8 MB/s and a round trip of 80 ms: seven windows are sent before the path is full.

    >>> rounds = [Round([0], [1], [1e6]), Round([0], [1], [1e6])]
    >>> slow_start_delays(rounds, np.arange(2), lambda src, dst: (0.04, 11.8e6), 14480, silence=10.0).round(3)
    array([0.403, 0.   ])
    """
    windows: dict[tuple[int, int], float] = {}
    known: dict[tuple[int, int], tuple[float, float]] = {}
    found = []
    for one in rounds:
        ends = zip(hosts[one.src].tolist(), hosts[one.dst].tolist(), strict=True)
        pairs = zip(one.src.tolist(), one.dst.tolist(), ends, one.nbytes.tolist(), strict=True)
        for src, dst, (host, other), nbytes in pairs:
            if (host, other) not in known:
                (there, rate), (back, _) = path(host, other), path(other, host)
                known[host, other] = there + back, rate
            round_trip, rate = known[host, other]
            delay = 0.0
            if host != other and silence >= HALVINGS * (LEAST_TIMEOUT + round_trip):
                window, left = windows.get((src, dst), initial_window), nbytes
                while left > window and window < round_trip * rate:
                    delay += round_trip - window / rate
                    left -= window
                    window *= 2
                # What is acknowledged widens the window, too.
                windows[src, dst] = window + max(0.0, min(left, window))
            found.append(delay)
    return np.array(found, dtype=np.float64)
