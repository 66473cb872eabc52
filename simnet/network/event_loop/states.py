"""What ranks spend their time with."""

from __future__ import annotations

from simnet.network.event_loop.records import COMPUTING, FAILED, OUTSIDE, State


def account(s: State, g: int) -> None:
    """Book the time since a rank's last event under what it has been doing."""
    rank = s.ranks[g]
    elapsed = s.now - rank.since
    if elapsed <= 0 or rank.state in (OUTSIDE, FAILED):
        return
    rank.since = s.now
    if rank.state == COMPUTING:
        rank.compute += elapsed
    elif rank.in_flight:
        rank.communicate += elapsed
    else:
        rank.wait += elapsed
