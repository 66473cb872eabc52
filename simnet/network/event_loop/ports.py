"""The host's own link, the first of a route: when it is through with what is sent, and when that leaves at all.

A message has left its host when its bytes have passed the own link at the link's full bandwidth. What waits behind
slower or busier links waits in the network. Where messages share the own link, all leave at once, and a rank goes on
when the link is through with all that it sends in a round. What has not left yet when its message goes another way
leaves over the own link of that, behind what the rank sends there. Where messages leave one after another, each waits
for those handed over before.
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
            s.flows[last].next, flow.next, flow.unsent, flow.counted = f, -1, flow.remaining, begin
            return
        begin = max(begin, link.port_free)
    link.port_rank, link.port_flow = g, -1
    look_up(s, l, s.now)
    flow.unsent, flow.next = flow.remaining, -1
    end = carry(s, f, begin)
    if end <= link.until and not s.watching:
        flow.unsent = 0.0
        link.port_free = end
        rank.let_go = max(rank.let_go, end)
        return
    link.port_flow = f
    rank.missing += 1
    leaves_at(s, f, end)


def carry(s: State, f: int, begin: float) -> float:
    """Have the own link carry a message from a time on, and return when it has left if the link does not change."""
    flow = s.flows[f]
    link = s.links[s.routes[flow.route].own]
    flow.counted, flow.pace = begin, min(link.capacity, flow.limit)
    return end_of(s, f)


def end_of(s: State, f: int) -> float:
    """Return when a message that its host's own link carries has left, if the link does not change."""
    flow = s.flows[f]
    return flow.counted + flow.unsent / flow.pace if flow.pace > 0 else math.inf


def leaves_at(s: State, f: int, end: float) -> None:
    """Put on the agenda that a message has left, or that its host's own link has changed before."""
    flow = s.flows[f]
    link = s.links[s.routes[flow.route].own]
    time = end if end <= link.until else max(flow.counted, link.until)
    if time < math.inf:
        s.ranks[s.messages[flow.message].src].leaving += 1
    push(s, time, LEFT, f)


def count_sent(s: State, f: int) -> None:
    """Bring up to now what has not left of a message that its host's own link carries."""
    flow = s.flows[f]
    # One that is left to leave has something left.
    flow.unsent = max(flow.residue, flow.unsent - max(0.0, s.now - flow.counted) * flow.pace)


def go_on_sending(s: State, f: int) -> bool:
    """Have an own link carry on with a message and those behind it; return whether it is known when all leave.

    The link has changed, or the message has left. Where it may yet go another way, that is known when it has.
    """
    l = s.routes[s.flows[f].route].own
    link, g, end = s.links[l], s.messages[s.flows[f].message].src, end_of(s, f)
    look_up(s, l, s.now)
    if end > s.now:
        count_sent(s, f)
        end = carry(s, f, s.now)
    while end <= (s.now if s.watching else link.until):
        behind = has_left(s, f)
        if link.port_flow == f:
            link.port_flow = behind
        if behind < 0:
            s.ranks[g].let_go = max(s.ranks[g].let_go, end)
            if link.port_rank == g:
                link.port_free = end
            return True
        f, end = behind, carry(s, behind, end)
    leaves_at(s, f, end)
    return False


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
