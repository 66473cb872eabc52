"""The link of the receiver's host, the last of a route, where messages of several hosts meet.

Hosts whose messages leave one after another hand a message over at their link's full bandwidth, and what a busy link
further on does not carry yet waits in its buffer. So a message has its host's own link behind it when it meets others,
and it waits behind those that fill the receiver's link; who is held back elsewhere leaves room, which is seen when
rates are settled. Meanwhile its bytes come, and take the whole link when it is their turn. All share a link that others
use too, on their way or as background traffic, or that collapses where many send at once (incast).
"""

from __future__ import annotations

import math

from simnet.network.event_loop.records import BACKGROUND, DATA, NOTHING, QUEUED, VANISHED, State
from simnet.network.event_loop.sharing import free_flow, start_flow
from simnet.network.event_loop.timelines import look_up

# ruff: noqa: E741 - l is the row of a link.

# What is left of a link by rounding is no room.
_ROUNDING = 1e-9


def comes_in(s: State, f: int) -> bool:
    """Return whether the bytes of a message that is there now flow at once; else they wait until rates are settled."""
    flow = s.flows[f]
    route = s.routes[flow.route]
    if route.own < 0 or route.end - route.begin < 2:
        return True
    l = s.route_links[route.end - 1]
    link = s.links[l]
    if link.far_first < 0 and not link.users:
        meet_on_own_link(s, f)
        return True
    flow.state, flow.next = QUEUED, -1
    if link.far_first < 0:
        link.far_first = f
    else:
        s.flows[link.far_last].next = f
    link.far_last = f
    note(s, l)
    return False


def note(s: State, l: int) -> None:
    """Have it seen once rates are settled whether a link has room for those that wait at it."""
    link = s.links[l]
    if link.far_first >= 0 and not link.is_noted:
        link.is_noted, link.next_noted = True, s.noted
        s.noted = l


def note_last(s: State, f: int) -> None:
    """Have it seen once rates are settled whether the last link of a message that leaves it has room for others."""
    route = s.routes[s.flows[f].route]
    if route.end > route.begin:
        note(s, s.route_links[route.end - 1])


def let_in(s: State) -> None:
    """Let in those that have waited at links about which something has changed: rates are settled."""
    while s.noted >= 0:
        l = s.noted
        s.links[l].is_noted, s.noted = False, s.links[l].next_noted
        let_in_at(s, l)
    for at in range(s.n_touched):
        let_in_at(s, s.touched[at])


def let_in_at(s: State, l: int) -> None:
    """Let the bytes of those flow that wait at a link while there is room, up to the first whose rate has to be found.

    When that is settled, the link is looked at again.
    """
    link = s.links[l]
    while link.far_first >= 0 and not is_full(s, l):
        f = link.far_first
        link.far_first = s.flows[f].next
        if s.flows[f].state == VANISHED:
            free_flow(s, f)
            continue
        if s.flows[f].joined < s.now:
            pass_own_link(s, f)
        else:
            meet_on_own_link(s, f)
        s.n_moving += 1
        start_flow(s, f, s.now)
        if s.flows[f].bottleneck == NOTHING:
            return


def is_full(s: State, l: int) -> bool:
    """Return whether messages whose last link this is fill it, or have no rates yet, and nobody else uses it."""
    if not s.links[l].users or s.links[l].crowd >= 0 or not ends_meet(s, l, 1):
        return False
    look_up(s, l, s.now)
    total, u = 0.0, s.links[l].first_use
    while u >= 0:
        flow = s.flows[s.uses[u].flow]
        if flow.bottleneck == NOTHING:
            return True
        total += flow.rate
        u = s.uses[u].behind
    return total >= s.links[l].capacity * (1 - _ROUNDING)


def ends_meet(s: State, l: int, last: int) -> bool:
    """Return whether all that use a link are messages of which it is the first link, or with `last` 1 the last."""
    u = s.links[l].first_use
    while u >= 0:
        flow = s.flows[s.uses[u].flow]
        route = s.routes[flow.route]
        end = s.route_links[route.end - 1] if last else route.own
        if flow.owner == BACKGROUND or flow.what != DATA or end != l:
            return False
        u = s.uses[u].behind
    return True


def meet_on_own_link(s: State, f: int) -> None:
    """Let a message have its host's own link behind it if that has others that left before."""
    own = s.routes[s.flows[f].route].own
    if s.links[own].users and ends_meet(s, own, 0):
        pass_own_link(s, f)


def pass_own_link(s: State, f: int) -> None:
    """Let a message have its host's own link behind it: it takes as long as that takes to bring what has not come.

    Where the link changes while it is at the message, it counts as it is now; one that is down brings nothing, and the
    message waits for it.
    """
    flow = s.flows[f]
    own = s.routes[flow.route].own
    look_up(s, own, s.now)
    flow.passed, lasts = 0, flow.lasts
    if lasts == math.inf:
        if s.links[own].capacity <= 0:
            return
        lasts = flow.whole / s.links[own].capacity
    flow.passed = 1
    left = flow.joined + lasts - s.now
    flow.limit = min(flow.limit, flow.remaining / left if left > 0 else math.inf)
