"""The receive queue of the link into a host, which is the last link of a route; messages of several hosts meet there.

Where hosts send one message after another, bytes that the receiver's link cannot carry yet wait in a FIFO buffer before
it. A message arrives once all bytes that came before its last byte are carried. Only the backlog is tracked: it grows
by the arrival rates and shrinks by the link's bandwidth. Links with background traffic or incast, and those of hosts
with several links, are shared instead.
"""

from __future__ import annotations

import math

from simnet.network.event_loop.codes import BACKGROUND, DATA, NONE
from simnet.network.event_loop.event_queue import clear_flow_end, set_flow_end
from simnet.network.event_loop.records import State

# ruff: noqa: E741 - l is the row of a link.


def join_receive_queue(s: State, f: int) -> None:
    """Add message f to the receive queue of the link into its receiver, if that link has a queue.

    Its host sends in order, so a message that waited for others on the host's own link has already passed that link.
    """
    flow = s.flows[f]
    route = s.routes[flow.route]
    l = s.route_links[route.end - 1]
    if route.own < 0 or l == route.own:
        return
    if flow.lasts < math.inf and shares_own_link(s, route.own):
        flow.passed = 1
        while s.route_links[route.begin + flow.passed - 1] != route.own:
            flow.passed += 1
        flow.limit = min(flow.limit, flow.whole / flow.lasts)
    link = s.links[l]
    if link.queues:
        if link.n_coming == 0 and link.first_passing < 0:
            link.backlog, link.coming, link.counted = 0.0, 0.0, s.now
        flow.port, flow.comes = l, True
        link.n_coming += 1


def shares_own_link(s: State, own: int) -> bool:
    """Return whether the host's own link `own` carries data messages and no flows of other hosts."""
    u, meets = s.links[own].first_membership, False
    while u >= 0:
        flow = s.flows[s.memberships[u].flow]
        if flow.owner == BACKGROUND or s.routes[flow.route].own != own:
            return False
        meets = meets or flow.what == DATA
        u = s.memberships[u].behind
    return meets


def update_backlog(s: State, l: int) -> None:
    """Update the backlog of link l's receive queue [byte] to the current time."""
    link = s.links[l]
    link.backlog = max(0.0, link.backlog + (link.coming - link.capacity) * (s.now - link.counted))
    link.counted = s.now


def set_arrival_rate(s: State, f: int, rate: float) -> None:
    """Change the rate [byte/s] at which message f enters its receive queue."""
    flow = s.flows[f]
    update_backlog(s, flow.port)
    s.links[flow.port].coming += rate - flow.rate


def finish_arrival(s: State, f: int) -> bool:
    """Record that all bytes of message f entered its receive queue; return whether some must still pass the link."""
    flow = s.flows[f]
    l = flow.port
    update_backlog(s, l)
    stop_arriving(s, f)
    link = s.links[l]
    if link.backlog <= flow.residue:
        flow.port = NONE
        return False
    flow.remaining, flow.since, flow.rate = link.backlog, s.now, link.capacity
    # It shares no link any more.
    flow.stop = flow.first
    flow.next, link.first_passing = link.first_passing, f
    schedule_passing(s, f)
    return True


def stop_arriving(s: State, f: int) -> None:
    """Remove message f from the messages that enter its receive queue, whose backlog must be up to date."""
    flow = s.flows[f]
    link = s.links[flow.port]
    flow.comes = False
    link.n_coming -= 1
    # Rates that are added and taken away leave rounding.
    link.coming = link.coming - flow.rate if link.n_coming else 0.0


def schedule_passing(s: State, f: int) -> None:
    """Schedule when the link into the receiver has carried all bytes up to the last byte of message f."""
    flow = s.flows[f]
    if flow.rate > 0:
        set_flow_end(s, f, flow.since + flow.remaining / flow.rate)
    else:
        clear_flow_end(s, f)


def leave_receive_queue(s: State, f: int) -> None:
    """Remove message f, which has passed or vanished, from its receive queue; its bytes stay in the backlog."""
    flow = s.flows[f]
    if flow.comes:
        update_backlog(s, flow.port)
        stop_arriving(s, f)
    else:
        link = s.links[flow.port]
        if link.first_passing == f:
            link.first_passing = flow.next
        else:
            before = link.first_passing
            while s.flows[before].next != f:
                before = s.flows[before].next
            s.flows[before].next = flow.next
    flow.port = NONE


def change_passing_rate(s: State, l: int) -> None:
    """Apply a new capacity of link l to messages fully in its receive queue; its backlog must be up to date."""
    f = s.links[l].first_passing
    while f >= 0:
        flow = s.flows[f]
        flow.remaining -= flow.rate * (s.now - flow.since)
        flow.rate, flow.since = s.links[l].capacity, s.now
        schedule_passing(s, f)
        f = flow.next
