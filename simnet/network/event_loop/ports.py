"""The host's own link, the first of a route: when it is through with what a rank sends, and the rank may go on.

A message has left its host when its bytes have passed the own link at the link's full bandwidth, one after another of
those that the rank sends over it in a round. What waits behind slower or busier links waits in the network.
"""

from __future__ import annotations

import math

from simnet.network.event_loop.agenda import push
from simnet.network.event_loop.records import LEFT, State
from simnet.network.event_loop.timelines import look_up

# ruff: noqa: E741 - l is the row of a link.


def send_off(s: State, g: int, f: int) -> None:
    """Note when a message that a rank sends now has left its host, or that the rank has to wait for that."""
    rank, flow = s.ranks[g], s.flows[f]
    begin = s.now + s.send_overhead
    rank.let_go = max(rank.let_go, begin)
    route = s.routes[flow.route]
    if route.begin == route.end or flow.remaining <= 0:
        return
    l = s.route_links[route.begin]
    link = s.links[l]
    if link.port_rank == g:
        if link.port_flow >= 0:
            s.flows[link.port_flow].unsent += flow.remaining
            return
        begin = max(begin, link.port_free)
    link.port_rank, link.port_flow = g, -1
    look_up(s, l, s.now)
    end = begin + flow.remaining / min(link.capacity, flow.limit) if link.capacity > 0 else math.inf
    if end <= link.until:
        link.port_free = end
        rank.let_go = max(rank.let_go, end)
        return
    flow.unsent = flow.remaining - max(0.0, link.until - begin) * min(link.capacity, flow.limit)
    link.port_flow = f
    rank.missing += 1
    s.runs[rank.run].pending += 1
    push(s, max(begin, link.until), LEFT, f)


def go_on_sending(s: State, f: int) -> bool:
    """Have a changed link carry on with what has not left yet; return whether it is known when that has."""
    flow = s.flows[f]
    l = s.route_links[s.routes[flow.route].begin]
    link, g = s.links[l], s.messages[flow.message].src
    look_up(s, l, s.now)
    end = s.now + flow.unsent / min(link.capacity, flow.limit) if link.capacity > 0 else math.inf
    if end <= link.until:
        s.ranks[g].let_go = max(s.ranks[g].let_go, end)
        flow.unsent, link.port_free = 0.0, end
        if link.port_flow == f:
            link.port_flow = -1
        return True
    flow.unsent -= (link.until - s.now) * min(link.capacity, flow.limit)
    push(s, link.until, LEFT, f)
    return False
