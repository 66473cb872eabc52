"""The link of the receiver's host, the last of a route, where messages of several hosts meet.

Hosts whose messages leave one after another hand a message over at their link's full bandwidth, and what a busy link
further on does not carry yet waits in its buffer. So a message has its host's own link behind it when it meets others,
and it waits behind those that fill the receiver's link; who is held back elsewhere leaves room, which is seen when
rates are settled. Meanwhile its bytes come over its host's own link (`coming`), and take the whole link when it is
their turn; links in between carry them then, too, and not before. All share a link that others use too, on their way or
as background traffic, or that collapses where many send at once (incast).
"""

from __future__ import annotations

from simnet.network.event_loop.agenda import never_ends
from simnet.network.event_loop.coming import begin_to_come, count, plan, stop_coming
from simnet.network.event_loop.records import BACKGROUND, DATA, FLOWING, NOTHING, QUEUED, VANISHED, State
from simnet.network.event_loop.sharing import enqueue, free_flow, mark_dirty, start_flow
from simnet.network.event_loop.timelines import look_up

# ruff: noqa: E741 - l is the row of a link.

# What is left of a link by rounding is no room.
_ROUNDING = 1e-9


def comes_in(s: State, f: int) -> bool:
    """Return whether the bytes of a message that is there now flow at once; else they wait until rates are settled."""
    flow = s.flows[f]
    route = s.routes[flow.route]
    if route.own < 0 or s.route_links[route.end - 1] == route.own:
        return True
    l = s.route_links[route.end - 1]
    link = s.links[l]
    if link.far_first < 0 and not link.users:
        if meets_on_own_link(s, f):
            begin_to_come(s, f)
            pass_own_link(s, f)
        return True
    begin_to_come(s, f)
    wait_at(s, f, l)
    return False


def wait_at(s: State, f: int, l: int) -> None:
    """Let a message wait at the link of its receiver's host, behind those that do already."""
    flow, link = s.flows[f], s.links[l]
    flow.state, flow.next = QUEUED, -1
    if link.far_first < 0:
        link.far_first = f
    else:
        s.flows[link.far_last].next = f
    link.far_last = f
    note(s, l)


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
        if s.flows[f].joined < s.now or meets_on_own_link(s, f):
            pass_own_link(s, f)
        else:
            stop_coming(s, f)
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


def meets_on_own_link(s: State, f: int) -> bool:
    """Return whether a message meets others that left before it, and nobody else, on its host's own link."""
    own = s.routes[s.flows[f].route].own
    return s.links[own].users > 0 and ends_meet(s, own, 0)


def pass_own_link(s: State, f: int) -> None:
    """Let a message that is counted have its host's own link behind it, unless its route has no other."""
    flow = s.flows[f]
    route = s.routes[flow.route]
    if s.route_links[route.end - 1] == route.own:
        flow.passed, flow.limit = 0, flow.allowed
        stop_coming(s, f)
        return
    flow.passed = 1
    while s.route_links[route.begin + flow.passed - 1] != route.own:
        flow.passed += 1
    count(s, f)
    flow.dry = flow.come <= flow.whole - flow.remaining
    flow.limit = min(flow.allowed, flow.comes) if flow.dry else flow.allowed


def run_dry(s: State, f: int) -> None:
    """Let a message of which all that has come is carried flow no faster than it comes."""
    flow = s.flows[f]
    flow.remaining -= flow.rate * (s.now - flow.since)
    flow.since, flow.dry = s.now, True
    never_ends(s, f)
    hold_back(s, f)


def hold_back(s: State, f: int) -> None:
    """Let a message that has run dry flow no faster than it comes now."""
    flow = s.flows[f]
    flow.limit = min(flow.allowed, flow.comes)
    route = s.routes[flow.route]
    for at in range(route.begin + flow.passed, route.end):
        mark_dirty(s, s.route_links[at])
    enqueue(s, f)


def come_otherwise(s: State, l: int) -> None:
    """Let messages that come over a link do so at the rate that it has now."""
    f = s.links[l].first_coming
    while f >= 0:
        flow = s.flows[f]
        count(s, f)
        flow.comes = s.links[l].capacity
        if flow.dry:
            hold_back(s, f)
        elif flow.state == FLOWING:
            plan(s, f)
        f = flow.beside
