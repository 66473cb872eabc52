"""Messages in flight (overhead, then latency, then a flow of bytes), and background traffic."""

from __future__ import annotations

import math

from simnet.network.event_loop import codes
from simnet.network.event_loop.event_queue import push_event
from simnet.network.event_loop.receive_queue import join_receive_queue, update_backlog
from simnet.network.event_loop.records import State
from simnet.network.event_loop.sharing import detach_flow, free_flow, start_flow, take_flow
from simnet.network.event_loop.timelines import changes_at, latency_of, update_link, value_at
from simnet.network.sharing import SHORTEST

# ruff: noqa: E741 - l is the row of a link.

# Bytes of a flow that count as rounding error, relative to all its bytes; they do not wait for a failed link.
_RESIDUE = 1e-14


def create_message(s: State, owner: int, first: int, candidates: int, pick: int, nbytes: float, delay: float) -> int:
    """Create a message that has not left its host, choose its route, and return its row in the flows table.

    - s
    - `owner`: its run, or `TRANSFER`.
    - `first`, `candidates`: first candidate route, and their number.
    - `pick`: candidate number, modulo their count; ignored with adaptive routing.
    - `nbytes`, `delay`: bytes, and extra latency [s].
    """
    f = take_flow(s)
    r = first + pick % candidates
    if s.adaptive:
        r = least_loaded(s, first, candidates)
    flow = s.flows[f]
    if s.routes[r].loss >= 0:
        nbytes = nbytes / s.losses[s.routes[r].loss].payload
    flow.state, flow.owner, flow.route = codes.ON_ITS_WAY, owner, r
    flow.what, flow.behind, flow.waits, flow.holds, flow.passed = codes.DATA, codes.NONE, False, False, 0
    flow.remaining, flow.residue, flow.delay, flow.lasts = nbytes, _RESIDUE * nbytes, delay, math.inf
    flow.port, flow.comes = codes.NONE, False
    count_assigned(s, f, 1)
    return f


def depart_message(s: State, f: int, leaves: float) -> None:
    """Schedule the end of message f's latency and jitter, given that it leaves its host at `leaves` [s]."""
    flow = s.flows[f]
    route = s.routes[flow.route]
    latency = latency_of(s, flow.route, leaves)
    flow.limit = limit_of(s, flow.route, latency)
    if s.weighted:
        flow.weight = weight_of(s, latency)
    arrives = leaves + (latency + flow.delay)
    if s.frame > 0:
        arrives += forwarding_delay(s, f, leaves)
    if flow.remaining > 0 and route.end > route.begin:
        push_event(s, arrives, codes.JOIN, f)
    else:
        push_event(s, arrives + handling_time(s, f), codes.DELIVER, f)


def forwarding_delay(s: State, f: int, t: float) -> float:
    """Return the time [s] to store and forward one frame on each link of message f's route except the slowest."""
    route, total, most = s.routes[s.flows[f].route], 0.0, 0.0
    for at in range(route.begin, route.end):
        link = s.links[s.route_links[at]]
        capacity = link.capacity if link.bandwidths < 0 else value_at(s, link.bandwidths, t)
        if capacity > 0:
            total += 1 / capacity
            most = max(most, 1 / capacity)
    return (total - most) * min(s.flows[f].remaining, s.frame)


def limit_of(s: State, r: int, latency: float) -> float:
    """Return the maximum rate [byte/s] that packet loss permits on route r at this latency [s]; inf without loss."""
    if s.routes[r].loss < 0:
        return math.inf
    loss = s.losses[s.routes[r].loss]
    cost = loss.slope * (2 * latency) + loss.fixed
    return s.segment / cost if cost > 0 else math.inf


def weight_of(s: State, latency: float) -> float:
    """Return a flow's weight in bandwidth sharing, given the one-way latency of its route [s]."""
    return float(max(min(2 * latency, s.counted) + s.queueing, SHORTEST) ** -s.exponent)


def least_loaded(s: State, first: int, candidates: int) -> int:
    """Return the candidate route whose busiest link has the lowest load; of equal routes, the first."""
    best, least = first, math.inf
    for r in range(first, first + candidates):
        most = 0.0
        for at in range(s.routes[r].begin, s.routes[r].end):
            update_link(s, s.route_links[at], s.now)
            link = s.links[s.route_links[at]]
            most = max(most, (link.assigned + 1) / link.capacity) if link.capacity > 0 else math.inf
        if most < least:
            best, least = r, most
    return best


def count_assigned(s: State, f: int, change: int) -> None:
    """Add `change` to the messages assigned to each link of message f's route, for adaptive routing."""
    route = s.routes[s.flows[f].route]
    if s.adaptive and s.flows[f].what != codes.UNNOTICED:
        for at in range(route.begin, route.end):
            s.links[s.route_links[at]].assigned += change


def keep_in_order(s: State, f: int, connection: int) -> None:
    """Let message f wait for the previous message of its connection if both are in flight on the same route."""
    flow, before = s.flows[f], s.connections[connection].last
    if flow.remaining <= 0:
        return
    s.connections[connection].last = f
    if before >= 0 and s.flows[before].route == flow.route:
        s.flows[before].behind, flow.waits = f, True


def release_next(s: State, f: int, connection: int) -> None:
    """Release the message that waits for message f on the same connection, because f has ended or vanished."""
    if s.connections[connection].last == f:
        s.connections[connection].last = codes.NONE
    behind = s.flows[f].behind
    if behind >= 0:
        s.flows[f].behind, s.flows[behind].waits = codes.NONE, False
        if s.flows[behind].state == codes.BLOCKED:
            start_message(s, behind)


def start_message(s: State, f: int) -> None:
    """Start the flow of message f after its latency; block f if an earlier message of its connection is in flight."""
    flow = s.flows[f]
    if flow.waits:
        flow.state = codes.BLOCKED
        return
    flow.joined, flow.whole = s.now, flow.remaining
    if flow.what != codes.DATA:
        wait = control_delay(s, f)
        if wait < math.inf:
            push_event(s, order_control(s, f, s.now + wait) + handling_time(s, f), codes.DELIVER, f)
            return
    # Background traffic takes part only while messages flow. Whether it is on is a function of time
    # alone, so nothing is lost by leaving it out in between.
    if s.n_background and not s.background_on:
        s.background_on = True
        for b in range(s.n_background):
            toggle_background(s, b)
    if s.in_order and flow.what == codes.DATA:
        update_link(s, s.route_links[s.routes[flow.route].end - 1], s.now)
        join_receive_queue(s, f)
    s.n_moving += 1
    start_flow(s, f, s.now)


def handling_time(s: State, f: int) -> float:
    """Return the receiver's overhead [s] between the arrival and the delivery of message f."""
    return s.receive_overhead + (s.after if s.flows[f].what == codes.IS_READY and not s.adaptive else 0.0)


def control_delay(s: State, f: int) -> float:
    """Return the transmission and queueing time of control message f [s]; infinity if a link of its route is down.

    It is the bytes over the rate of the slowest link, plus the wait, on links after the host's own, for earlier bytes.
    The message delays no other.
    """
    route, wait, slowest = s.routes[s.flows[f].route], 0.0, math.inf
    for at in range(route.begin, route.end):
        l = s.route_links[at]
        update_link(s, l, s.now)
        link = s.links[l]
        if link.capacity <= 0:
            return math.inf
        slowest = min(slowest, link.capacity)
        if l == route.own:
            continue
        if link.n_coming > 0 or link.first_passing >= 0:
            update_backlog(s, l)
            wait += link.backlog / link.capacity
        u = link.first_membership
        while u >= 0:
            other = s.flows[s.memberships[u].flow]
            if other.owner != codes.BACKGROUND:
                left = other.remaining - other.rate * (s.now - other.since)
                wait += max(0.0, arrived_bytes(s, s.memberships[u].flow) - (other.whole - left)) / link.capacity
            u = s.memberships[u].behind
    return wait + s.flows[f].remaining / slowest


def arrived_bytes(s: State, f: int) -> float:
    """Return an upper bound on the bytes of message f that have passed its host's own link since they began to flow."""
    flow = s.flows[f]
    own = s.routes[flow.route].own
    update_link(s, own, s.now)
    return min(flow.whole, s.links[own].capacity * (s.now - flow.joined))


def order_control(s: State, f: int, time: float) -> float:
    """Return when control message f arrives [s]: not before earlier ones of the same kind on its connection."""
    connection = s.connections[s.messages[s.flows[f].message].connection]
    if s.flows[f].what == codes.ASKS:
        connection.asked = max(connection.asked, time)
        return connection.asked
    connection.told = max(connection.told, time)
    return connection.told


def toggle_background(s: State, b: int) -> None:
    """Start or remove the flow of background traffic b, depending on whether the traffic is now on or off."""
    one = s.background[b]
    if one.until <= s.now:
        one.on = value_at(s, one.timeline, s.now)
        one.until = changes_at(s, one.timeline)
        if one.until < math.inf:
            push_event(s, one.until, codes.TOGGLE, b)
    if one.on <= 0:
        stop_background(s, b)
    elif one.flow < 0:
        one.flow = take_flow(s)
        flow = s.flows[one.flow]
        flow.owner, flow.route, flow.limit, flow.weight = codes.BACKGROUND, one.route, one.limit, one.weight
        flow.passed = 0
        flow.remaining, flow.residue, flow.port = math.inf, 0.0, codes.NONE
        start_flow(s, one.flow, s.now)


def stop_background(s: State, b: int) -> None:
    """Remove the flow of background traffic b, if there is one."""
    one = s.background[b]
    if one.flow >= 0:
        detach_flow(s, one.flow)
        free_flow(s, one.flow)
        one.flow = codes.NONE


def stop_all_background(s: State) -> None:
    """Remove the flows of all background traffic."""
    s.background_on = False
    for b in range(s.n_background):
        stop_background(s, b)
