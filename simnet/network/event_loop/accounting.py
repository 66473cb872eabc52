"""Accounting of each rank's time: communicating, computing, or waiting."""

from __future__ import annotations

import math

from simnet.network.event_loop import codes
from simnet.network.event_loop.records import State
from simnet.network.event_loop.streams import advance_stream


def account_time(s: State, g: int) -> None:
    """Add the time since rank g's last event to the rank's communicating, computing or waiting time.

    With a compute stream, time in kernels is computing, and all time until the stream's work ends is left out.
    """
    rank = s.ranks[g]
    if s.now <= rank.since or rank.state in (codes.OUTSIDE, codes.FAILED):
        return
    begun, busy = rank.since, 0.0
    if rank.stream >= 0:
        stream = s.streams[rank.stream]
        advance_stream(s, rank.stream, s.now, math.inf, codes.NONE)
        begun = max(begun, stream.computed)
        busy, stream.booked = stream.busy - stream.booked, stream.busy
    rank.since = s.now
    elapsed = s.now - begun
    if elapsed <= 0:
        return
    busy = elapsed if rank.state == codes.COMPUTING else min(busy, elapsed)
    rank.compute += busy
    if rank.in_flight:
        rank.communicate += elapsed - busy
    else:
        rank.wait += elapsed - busy
