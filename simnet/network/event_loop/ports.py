"""The host's own link, the first of a route: when it is through with what is sent, and when that leaves at all.

A message has left its host when its bytes have passed the own link at the link's full bandwidth. What waits behind
slower or busier links waits in the network. Where messages share the own link, all leave at once, and a rank goes on
when the link is through with all that it sends in a round. Where they leave one after another, each waits for those
handed over before.
"""

from __future__ import annotations

import math

from simnet.network.event_loop.agenda import push
from simnet.network.event_loop.messages import depart
from simnet.network.event_loop.records import GONE, LEFT, QUEUED, SERVE, VANISHED, State
from simnet.network.event_loop.sharing import free_flow
from simnet.network.event_loop.timelines import look_up

# ruff: noqa: E741 - l is the row of a link.


def send_off(s: State, g: int, f: int) -> None:
    """Note when a message that a rank sends now has left its host, or that the rank has to wait for that."""
    rank, flow = s.ranks[g], s.flows[f]
    begin = s.now + s.send_overhead
    rank.let_go = max(rank.let_go, begin)
    route = s.routes[flow.route]
    if route.own < 0 or flow.remaining <= 0:
        return
    l = route.own
    link = s.links[l]
    if link.port_rank == g:
        if link.port_flow >= 0:
            last = link.port_flow
            while s.flows[last].next >= 0:
                last = s.flows[last].next
            s.flows[last].next, flow.next, flow.unsent = f, -1, flow.remaining
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
    link.port_flow, flow.next = f, -1
    rank.missing += 1
    s.runs[rank.run].pending += 1
    push(s, max(begin, link.until), LEFT, f)


def go_on_sending(s: State, f: int) -> bool:
    """Have a changed link carry on with a message and those behind it; return whether it is known when all leave."""
    l = s.routes[s.flows[f].route].own
    link, g, begin = s.links[l], s.messages[s.flows[f].message].src, s.now
    look_up(s, l, s.now)
    while True:
        flow = s.flows[f]
        end = begin + flow.unsent / min(link.capacity, flow.limit) if link.capacity > 0 else math.inf
        if end > link.until:
            flow.unsent -= (link.until - begin) * min(link.capacity, flow.limit)
            push(s, link.until, LEFT, f)
            return False
        behind = has_left(s, f)
        if link.port_flow == f:
            link.port_flow = behind
        if behind < 0:
            s.ranks[g].let_go = max(s.ranks[g].let_go, end)
            link.port_free = end
            return True
        f, begin = behind, end


def has_left(s: State, f: int) -> int:
    """Take note that a message has left its host, and return the one behind it; -1 if there is none."""
    flow = s.flows[f]
    behind = flow.next
    flow.unsent = 0.0
    if flow.state == GONE:
        free_flow(s, f)
    return behind


def hand_over(s: State, f: int) -> None:
    """Let a message leave its host now, or behind those that were handed over before."""
    flow = s.flows[f]
    begin = s.now + s.send_overhead
    route = s.routes[flow.route]
    if not s.queues or route.own < 0 or flow.remaining <= 0:
        depart(s, f, begin)
        return
    l = route.own
    link = s.links[l]
    look_up(s, l, s.now)
    if link.port_first < 0 and link.port_rest <= 0:
        begin = max(begin, link.port_free)
        end = begin + flow.remaining / link.capacity if link.capacity > 0 else math.inf
        # What the weather decides later is decided then, and whether a message vanishes or goes around before it
        # leaves.
        known = begin < s.horizon and not s.watching and not (flow.owner >= 0 and s.runs[flow.owner].fails)
        if begin < link.until and end <= link.until and (begin <= s.now or known):
            link.port_free = end
            if end < math.inf:
                flow.lasts = flow.remaining / link.capacity
            depart(s, f, begin)
            return
        if begin < math.inf:
            push(s, begin, SERVE, l)
    flow.since = s.now + s.send_overhead
    queue_up(s, f, l)


def queue_up(s: State, f: int, l: int) -> None:
    """Let a message wait for its host's own link, behind those that do already."""
    flow, link = s.flows[f], s.links[l]
    flow.state, flow.next = QUEUED, -1
    if link.port_first < 0:
        link.port_first = f
    else:
        s.flows[link.port_last].next = f
    link.port_last = f
    s.n_queued += 1


def serve(s: State, l: int) -> None:
    """Have a host's own link go on with what has been handed over."""
    link = s.links[l]
    if s.now < link.port_free:
        # Asked for by one that has gone another way.
        return
    if link.port_rest <= 0:
        while link.port_first >= 0 and s.flows[link.port_first].state == VANISHED:
            f = link.port_first
            link.port_first = s.flows[f].next
            s.n_queued -= 1
            free_flow(s, f)
        f = link.port_first
        if f < 0:
            return
        if s.flows[f].since > s.now:
            push(s, s.flows[f].since, SERVE, l)
            return
        link.port_first = s.flows[f].next
        s.n_queued -= 1
        link.port_rest = s.flows[f].remaining
        look_up(s, l, s.now)
        if link.capacity > 0 and s.now + link.port_rest / link.capacity <= link.until:
            s.flows[f].lasts = link.port_rest / link.capacity
        depart(s, f, s.now)
    look_up(s, l, s.now)
    end = s.now + link.port_rest / link.capacity if link.capacity > 0 else math.inf
    if end <= link.until:
        link.port_free, link.port_rest = end, 0.0
        if link.port_first >= 0 and end < math.inf:
            push(s, end, SERVE, l)
        return
    link.port_rest -= (link.until - s.now) * link.capacity
    link.port_free = link.until
    push(s, link.until, SERVE, l)
