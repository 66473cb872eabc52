"""The egress queue of a host's own link (the first link of a route), and the departure of messages.

A message has left its host when its bytes have passed the own link at full bandwidth; what waits behind slower links
waits in the network. With a shared own link all messages leave at once, and the rank continues when the link has sent
all of the round. With a queue each message waits for those injected before it. Bytes that have not left when a message
is rerouted leave over the own link of the new route.
"""

from __future__ import annotations

import math

from simnet.network.event_loop import codes
from simnet.network.event_loop.event_queue import push_event
from simnet.network.event_loop.messages import depart_message
from simnet.network.event_loop.records import State
from simnet.network.event_loop.sharing import free_flow
from simnet.network.event_loop.timelines import update_link

# ruff: noqa: E741 - l is the row of a link.


def send_shared(s: State, g: int, f: int) -> None:
    """Send message f on its host's own link, after the earlier messages of rank g."""
    rank, flow = s.ranks[g], s.flows[f]
    begin = s.now + s.send_overhead
    rank.send_complete = max(rank.send_complete, begin)
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
            s.flows[last].next, flow.next, flow.unsent, flow.counted = f, codes.NONE, flow.remaining, begin
            return
        begin = max(begin, link.port_free)
    link.port_rank, link.port_flow = g, codes.NONE
    update_link(s, l, s.now)
    flow.unsent, flow.next = flow.remaining, codes.NONE
    end = transmit_at(s, f, begin)
    if end <= link.until and end < math.inf and not s.watching:
        flow.unsent = 0.0
        link.port_free = end
        rank.send_complete = max(rank.send_complete, end)
        return
    link.port_flow = f
    rank.missing += 1
    schedule_departure(s, f, end)


def transmit_at(s: State, f: int, begin: float) -> float:
    """Start to send message f on its host's own link at `begin` [s]; return its end if the capacity is constant."""
    flow = s.flows[f]
    link = s.links[s.routes[flow.route].own]
    flow.counted, flow.pace = begin, min(link.capacity, flow.limit)
    return transmission_end(s, f)


def transmission_end(s: State, f: int) -> float:
    """Return when the last byte of message f leaves its host at the current rate [s]; infinity at rate 0."""
    flow = s.flows[f]
    return flow.counted + flow.unsent / flow.pace if flow.pace > 0 else math.inf


def schedule_departure(s: State, f: int, end: float) -> None:
    """Schedule the departure of message f at `end`, or the next change of its host's own link if that comes earlier."""
    flow = s.flows[f]
    link = s.links[s.routes[flow.route].own]
    time = end if end <= link.until else max(flow.counted, link.until)
    if time < math.inf:
        s.ranks[s.messages[flow.message].src].leaving += 1
    push_event(s, time, codes.LEFT, f)


def count_sent(s: State, f: int) -> None:
    """Update the number of unsent bytes of message f to the current time."""
    flow = s.flows[f]
    # A message that has not departed has bytes left, despite rounding.
    flow.unsent = max(flow.residue, flow.unsent - max(0.0, s.now - flow.counted) * flow.pace)


def continue_sending(s: State, f: int) -> bool:
    """Continue to send message f and those queued behind it; return whether the departure time of the last is known."""
    l = s.routes[s.flows[f].route].own
    link, g, end = s.links[l], s.messages[s.flows[f].message].src, transmission_end(s, f)
    update_link(s, l, s.now)
    if end > s.now:
        count_sent(s, f)
        end = transmit_at(s, f, s.now)
    while end < math.inf and end <= (s.now if s.watching else link.until):
        behind = finish_departure(s, f)
        if link.port_flow == f:
            link.port_flow = behind
        if behind < 0:
            s.ranks[g].send_complete = max(s.ranks[g].send_complete, end)
            if link.port_rank == g:
                link.port_free = end
            return True
        f, end = behind, transmit_at(s, behind, end)
    schedule_departure(s, f, end)
    return False


def finish_departure(s: State, f: int) -> int:
    """Record that all bytes of message f have left its host; return the next message on the same link, or -1."""
    flow = s.flows[f]
    behind = flow.next
    flow.unsent = 0.0
    if flow.state == codes.DRAINED:
        free_flow(s, f)
    return behind


def inject(s: State, f: int) -> None:
    """Send message f from its host now, or append it to the egress queue if the host's own link is busy."""
    flow = s.flows[f]
    begin = s.now + s.send_overhead
    route = s.routes[flow.route]
    if not s.queues or route.own < 0 or flow.remaining <= 0:
        depart_message(s, f, begin)
        return
    l = route.own
    link = s.links[l]
    update_link(s, l, s.now)
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
            depart_message(s, f, begin)
            return
        if begin < math.inf:
            push_event(s, begin, codes.DEQUEUE, l)
    flow.since = s.now + s.send_overhead
    join_egress_queue(s, f, l)


def join_egress_queue(s: State, f: int, l: int) -> None:
    """Append message f to the egress queue of link l."""
    flow, link = s.flows[f], s.links[l]
    flow.state, flow.next = codes.QUEUED, codes.NONE
    if link.port_first < 0:
        link.port_first = f
    else:
        s.flows[link.port_last].next = f
    link.port_last = f
    s.n_queued += 1


def dequeue(s: State, l: int) -> None:
    """Start the next message in the egress queue of link l if the link is free, and schedule the next `dequeue`."""
    link = s.links[l]
    if s.now < link.port_free:
        # Scheduled for a message that was rerouted since.
        return
    if link.port_rest <= 0:
        while link.port_first >= 0 and s.flows[link.port_first].state == codes.VANISHED:
            f = link.port_first
            link.port_first = s.flows[f].next
            s.n_queued -= 1
            free_flow(s, f)
        f = link.port_first
        if f < 0:
            return
        if s.flows[f].since > s.now:
            push_event(s, s.flows[f].since, codes.DEQUEUE, l)
            return
        link.port_first = s.flows[f].next
        s.n_queued -= 1
        link.port_rest = s.flows[f].remaining
        update_link(s, l, s.now)
        if link.capacity > 0 and s.now + link.port_rest / link.capacity <= link.until:
            s.flows[f].lasts = link.port_rest / link.capacity
        depart_message(s, f, s.now)
    update_link(s, l, s.now)
    end = s.now + link.port_rest / link.capacity if link.capacity > 0 else math.inf
    if end <= link.until:
        link.port_free, link.port_rest = end, 0.0
        if link.port_first >= 0 and end < math.inf:
            push_event(s, end, codes.DEQUEUE, l)
        return
    link.port_rest -= (link.until - s.now) * link.capacity
    link.port_free = link.until
    push_event(s, link.until, codes.DEQUEUE, l)
