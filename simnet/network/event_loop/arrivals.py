"""The link of the receiver's host, the last of a route, where messages of several hosts meet in a queue.

Where messages leave a host one after another, what the link of a receiver does not carry yet waits in the buffer before
it, and leaves that in the order in which it has come, byte by byte. So a message is there once all is carried that had
come before its last byte: the backlog at that moment, its own bytes among it. It comes over its host's own link and
those in between, which messages share, and never waits for others there because of the queue.

A queue is counted by its backlog alone: it grows by the rates at which messages come, and shrinks by the bandwidth of
the link. Links that background traffic uses, or that collapse where many send at once (incast), are shared, and so are
those of hosts with several links, which pass on what is meant for others.
"""

from __future__ import annotations

import math

from simnet.network.event_loop.agenda import ends_at, never_ends
from simnet.network.event_loop.records import BACKGROUND, DATA, State

# ruff: noqa: E741 - l is the row of a link.


def come(s: State, f: int) -> None:
    """Let the bytes of a message come to the queue of its receiver's link, if that has one; count none of them yet.

    One that meets others on its host's own link, which leave it one after another, has that behind it: those before it
    are held back in between.
    """
    flow = s.flows[f]
    route = s.routes[flow.route]
    l = s.route_links[route.end - 1]
    if route.own < 0 or l == route.own:
        return
    if flow.lasts < math.inf and meets_on_own_link(s, route.own):
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


def meets_on_own_link(s: State, own: int) -> bool:
    """Return whether messages flow on their host's own link, and nothing but words beside them."""
    u, meets = s.links[own].first_use, False
    while u >= 0:
        flow = s.flows[s.uses[u].flow]
        if flow.owner == BACKGROUND or s.routes[flow.route].own != own:
            return False
        meets = meets or flow.what == DATA
        u = s.uses[u].behind
    return meets


def count(s: State, l: int) -> None:
    """Bring the backlog of a queue up to now."""
    link = s.links[l]
    link.backlog = max(0.0, link.backlog + (link.coming - link.capacity) * (s.now - link.counted))
    link.counted = s.now


def comes_at(s: State, f: int, rate: float) -> None:
    """Let a message come to the queue of its receiver's link at another rate."""
    flow = s.flows[f]
    count(s, flow.port)
    s.links[flow.port].coming += rate - flow.rate


def has_come(s: State, f: int) -> bool:
    """Take note that all of a message has come to a queue; return whether it has to pass the link yet."""
    flow = s.flows[f]
    l = flow.port
    count(s, l)
    no_more(s, f)
    link = s.links[l]
    if link.backlog <= flow.residue:
        flow.port = -1
        return False
    flow.remaining, flow.since, flow.rate = link.backlog, s.now, link.capacity
    # It shares no link any more.
    flow.stop = flow.first
    flow.next, link.first_passing = link.first_passing, f
    pass_on(s, f)
    return True


def no_more(s: State, f: int) -> None:
    """Let no more bytes of a message come to a queue whose backlog is counted."""
    flow = s.flows[f]
    link = s.links[flow.port]
    flow.comes = False
    link.n_coming -= 1
    # Rates that are added and taken away leave rounding.
    link.coming = link.coming - flow.rate if link.n_coming else 0.0


def pass_on(s: State, f: int) -> None:
    """Note when what is before the end of a message will have passed the link."""
    flow = s.flows[f]
    if flow.rate > 0:
        ends_at(s, f, flow.since + flow.remaining / flow.rate)
    else:
        never_ends(s, f)


def leave_queue(s: State, f: int) -> None:
    """Take a message out of the queue that it is in: it has passed the link, or vanishes; its bytes stay."""
    flow = s.flows[f]
    if flow.comes:
        count(s, flow.port)
        no_more(s, f)
    else:
        link = s.links[flow.port]
        if link.first_passing == f:
            link.first_passing = flow.next
        else:
            before = link.first_passing
            while s.flows[before].next != f:
                before = s.flows[before].next
            s.flows[before].next = flow.next
    flow.port = -1


def pass_otherwise(s: State, l: int) -> None:
    """Let what is in a queue pass the link at the bandwidth that this has now; the backlog is counted."""
    f = s.links[l].first_passing
    while f >= 0:
        flow = s.flows[f]
        flow.remaining -= flow.rate * (s.now - flow.since)
        flow.rate, flow.since = s.links[l].capacity, s.now
        pass_on(s, f)
        f = flow.next
