"""What ranks spend their time with."""

from __future__ import annotations

import math

from simnet.network.event_loop.records import COMPUTING, FAILED, OUTSIDE, State
from simnet.network.event_loop.streams import go_on


def account(s: State, g: int) -> None:
    """Book the time since a rank's last event under what it has been doing."""
    rank = s.ranks[g]
    elapsed = s.now - rank.since
    if elapsed <= 0 or rank.state in (OUTSIDE, FAILED):
        return
    if rank.stream >= 0:
        account_beside(s, g)
        return
    rank.since = s.now
    if rank.state == COMPUTING:
        rank.compute += elapsed
    elif rank.in_flight:
        rank.communicate += elapsed
    else:
        rank.wait += elapsed


def account_beside(s: State, g: int) -> None:
    """Do the same for a rank that computes beside: from when it is through with that, kernels that run come first."""
    rank = s.ranks[g]
    stream = s.streams[rank.stream]
    go_on(s, rank.stream, s.now, math.inf, -1)
    elapsed = s.now - max(rank.since, stream.computed)
    busy, stream.booked = stream.busy - stream.booked, stream.busy
    rank.since = s.now
    if elapsed <= 0:
        return
    busy = elapsed if rank.state == COMPUTING else min(busy, elapsed)
    rank.compute += busy
    if rank.in_flight:
        rank.communicate += elapsed - busy
    else:
        rank.wait += elapsed - busy
