"""Accounting of each rank's time: communicating, computing, or waiting."""

from __future__ import annotations

import math

from simnet.network.event_loop import codes
from simnet.network.event_loop.records import State
from simnet.network.event_loop.streams import advance_stream


def account_time(s: State, g: int) -> None:
    """Add the time since rank g's last event to its communicate, compute or wait total, by its state."""
    rank = s.ranks[g]
    elapsed = s.now - rank.since
    if elapsed <= 0 or rank.state in (codes.OUTSIDE, codes.FAILED):
        return
    if rank.stream >= 0:
        account_beside(s, g)
        return
    rank.since = s.now
    if rank.state == codes.COMPUTING:
        rank.compute += elapsed
    elif rank.in_flight:
        rank.communicate += elapsed
    else:
        rank.wait += elapsed


def account_beside(s: State, g: int) -> None:
    """Add the time since the last event of rank g, which has a compute stream; time in kernels counts as compute."""
    rank = s.ranks[g]
    stream = s.streams[rank.stream]
    advance_stream(s, rank.stream, s.now, math.inf, -1)
    elapsed = s.now - max(rank.since, stream.computed)
    busy, stream.booked = stream.busy - stream.booked, stream.busy
    rank.since = s.now
    if elapsed <= 0:
        return
    busy = elapsed if rank.state == codes.COMPUTING else min(busy, elapsed)
    rank.compute += busy
    if rank.in_flight:
        rank.communicate += elapsed - busy
    else:
        rank.wait += elapsed - busy
