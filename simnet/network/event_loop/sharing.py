"""Max-min fair rates of flows on shared links, recomputed for as few flows as possible.

Flows may have weights; what is fair is their *level*, rate over weight. Without weights all are 1.

References
----------
D. Bertsekas, R. Gallager, "Data Networks", 2nd ed., section 6.5.2: max-min fairness and progressive filling.
"""

from __future__ import annotations

import math

from simnet.network.event_loop import codes
from simnet.network.event_loop.event_queue import clear_flow_end, set_flow_end
from simnet.network.event_loop.receive_queue import set_arrival_rate
from simnet.network.event_loop.records import State
from simnet.network.event_loop.timelines import update_link

# ruff: noqa: E741 - l is the row of a link.

# Relative tolerance within which rates count as equal when bottlenecks are checked.
_EQUAL = 1e-12

# Updates of the rate that a link carries, beside one for each of its flows, before it is summed afresh.
_UPDATES = 16


def take_flow(s: State) -> int:
    """Allocate a flow from the free list and return its row."""
    f = s.free_flow
    s.free_flow = s.flows[f].next
    s.n_free -= 1
    return f


def free_flow(s: State, f: int) -> None:
    """Return flow f to the list of free flows."""
    flow = s.flows[f]
    flow.state, flow.next = codes.FREE, s.free_flow
    s.free_flow = f
    s.n_free += 1


def release_flow(s: State, f: int) -> None:
    """Free the record of a flow that has arrived or failed: now, or when the last byte has left the sending host."""
    if s.flows[f].unsent > 0:
        s.flows[f].state = codes.DRAINED
    else:
        free_flow(s, f)


def free_all(s: State, first: int, count: int) -> None:
    """Return `count` consecutive flows to the list of free flows; the first of them will be allocated first."""
    for f in range(first + count - 1, first - 1, -1):
        s.flows[f].place, s.flows[f].is_new = -1, False
        free_flow(s, f)


def start_flow(s: State, f: int, now: float) -> None:
    """Start flow f, of a message or of background traffic, on the links of its route."""
    flow = s.flows[f]
    flow.state, flow.bottleneck, flow.place = codes.FLOWING, codes.NOTHING, -1
    flow.rate, flow.since = 0.0, now
    route = s.routes[flow.route]
    flow.first, flow.stop = route.first + flow.passed, route.stop - (1 if flow.port >= 0 else 0)
    if attach_flow(s, f, now) or flow.limit < math.inf:
        mark_new(s, f)
        return
    # Alone on all its links.
    bottleneck, rate = codes.NOTHING, math.inf
    for at in range(flow.first, flow.stop):
        l = s.route_links[at]
        if effective_capacity(s, l) < rate:
            bottleneck, rate = l, effective_capacity(s, l)
    for at in range(flow.first, flow.stop):
        s.links[s.route_links[at]].carried = rate
    set_rate(s, f, rate, bottleneck, now)


def attach_flow(s: State, f: int, now: float) -> bool:
    """Add flow f to its links; mark as dirty those where it may slow other flows; return whether it shares a link."""
    links, memberships, shares = s.links, s.memberships, False
    u = f * s.hops
    for at in range(s.flows[f].first, s.flows[f].stop):
        l = s.route_links[at]
        link = links[l]
        first = link.first_membership
        memberships[u].before, memberships[u].behind = -1, first
        if first >= 0:
            memberships[first].before = u
            shares = True
            if link.limited or link.incast_derating >= 0:
                mark_dirty(s, l)
        else:
            update_link(s, l, now)
            link.carried, link.updates = 0.0, 0
        link.first_membership = u
        link.users += 1
        u += 1
    return shares


def detach_flow(s: State, f: int) -> None:
    """Remove flow f from its links; mark those as dirty that limit other flows, since these flows may speed up."""
    flow, memberships = s.flows[f], s.memberships
    if flow.bottleneck >= 0:
        s.links[flow.bottleneck].limited -= 1
        flow.bottleneck = codes.NOTHING
    u = f * s.hops
    for at in range(flow.first, flow.stop):
        l = s.route_links[at]
        link = s.links[l]
        before, behind = memberships[u].before, memberships[u].behind
        if before >= 0:
            memberships[before].behind = behind
        else:
            link.first_membership = behind
        if behind >= 0:
            memberships[behind].before = before
        link.users -= 1
        link.carried -= flow.rate
        link.updates += 1
        if link.users and link.limited:
            mark_dirty(s, l)
        u += 1
    clear_flow_end(s, f)


def mark_dirty(s: State, l: int) -> None:
    """Mark link l as dirty, so that the next call of `settle_rates` recomputes rates on it."""
    link = s.links[l]
    if not link.is_dirty:
        link.is_dirty = True
        s.dirty[s.n_dirty] = l
        s.n_dirty += 1


def mark_new(s: State, f: int) -> None:
    """Mark flow f as new, so that the next call of `settle_rates` gives it a rate."""
    flow = s.flows[f]
    if not flow.is_new:
        flow.is_new = True
        s.new[s.n_new] = f
        s.n_new += 1


def effective_capacity(s: State, l: int) -> float:
    """Return link l's capacity [byte/s] for its present number of flows; many senders at once reduce it (incast)."""
    link = s.links[l]
    if link.incast_derating < 0:
        return link.capacity
    return link.capacity * s.derating_factors[link.incast_derating + min(link.users, s.n_derating - 1)]


def set_rate(s: State, f: int, rate: float, bottleneck: int, now: float) -> None:
    """Set rate [byte/s] and bottleneck of flow f and reschedule its end; the caller updates `carried` of its links."""
    flow, links = s.flows[f], s.links
    if flow.bottleneck >= 0:
        links[flow.bottleneck].limited -= 1
    if bottleneck >= 0:
        links[bottleneck].limited += 1
    flow.bottleneck = bottleneck
    old = flow.rate
    if rate == old:
        return
    if flow.port >= 0:
        set_arrival_rate(s, f, rate)
    if old > 0:
        flow.remaining -= old * (now - flow.since)
    flow.rate, flow.since = rate, now
    if flow.remaining <= flow.residue:
        set_flow_end(s, f, now)
    elif rate > 0 and flow.remaining < math.inf:
        set_flow_end(s, f, now + flow.remaining / rate)
    else:
        clear_flow_end(s, f)


def settle_rates(s: State, now: float) -> None:
    """Update the rate of every flow whose max-min fair rate has changed.

    Rates are max-min fair if and only if no link is overloaded and each flow has a bottleneck: a full link on which no
    flow has a higher level, or a limit of its own. First the new flows, those with their bottleneck on a changed link,
    and all on an overloaded link are solved while others keep their rates. Then other flows on their links that are too
    fast, or have lost their bottleneck, join them, until everyone has a bottleneck. That is usually a handful of flows.
    """
    flows, links, allocations = s.flows, s.links, s.allocations
    s.stamp += 1
    s.n_chosen, s.n_touched = 0, 0
    for at in range(s.n_new):
        f = s.new[at]
        flows[f].is_new = False
        if flows[f].state == codes.FLOWING:
            choose_flow(s, f)
    s.n_new = 0
    noted = s.n_chosen
    for at in range(noted):
        note_chosen(s, s.chosen[at])
    for at in range(s.n_dirty):
        l = s.dirty[at]
        link = links[l]
        link.is_dirty = False
        if allocations[l].stamp == s.stamp and allocations[l].chosen == link.users:
            continue
        if carried_rate(s, l) > effective_capacity(s, l) * (1 + _EQUAL):
            choose_link_flows(s, l, codes.NOTHING)
        elif link.limited:
            choose_link_flows(s, l, l)
    s.n_dirty = 0
    solved = 0
    while solved != s.n_chosen:
        for at in range(noted, s.n_chosen):
            note_chosen(s, s.chosen[at])
        solved = noted = s.n_chosen
        solve_rates(s)
        for at in range(s.n_touched):
            l = s.touched[at]
            allocation = allocations[l]
            # Skip links without other flows that the link limits, or that may be above its level.
            if allocation.chosen < links[l].users and (allocation.limited or allocation.level < math.inf):
                check_link(s, l)
    for at in range(s.n_touched):
        link = links[s.touched[at]]
        link.carried = effective_capacity(s, s.touched[at]) - allocations[s.touched[at]].rest
        link.updates += 1
    for at in range(solved):
        f = s.chosen[at]
        set_rate(s, f, flows[f].new_rate, flows[f].new_bottleneck, now)


def choose_flow(s: State, f: int) -> None:
    """Add flow f to the chosen flows, whose rates are recomputed."""
    if s.flows[f].stamp != s.stamp:
        s.flows[f].stamp = s.stamp
        s.chosen[s.n_chosen] = f
        s.n_chosen += 1


def note_chosen(s: State, f: int) -> None:
    """Count flow f as chosen on each of its links, and subtract its rate from the total of flows not chosen there."""
    flow, allocations, route_links, stamp = s.flows[f], s.allocations, s.route_links, s.stamp
    for at in range(flow.first, flow.stop):
        l = route_links[at]
        allocation = allocations[l]
        if allocation.stamp != stamp:
            allocation.stamp, allocation.chosen, allocation.weight = stamp, 0, 0.0
            allocation.kept, allocation.limited = carried_rate(s, l), s.links[l].limited
            s.touched[s.n_touched] = l
            s.n_touched += 1
        allocation.chosen += 1
        allocation.weight += flow.weight
        allocation.kept -= flow.rate
        if flow.bottleneck == l:
            allocation.limited -= 1


def choose_link_flows(s: State, l: int, bottleneck: int) -> None:
    """Choose flows on link l for new rates: those limited by link `bottleneck`, or all flows if it is `NOTHING`."""
    u = s.links[l].first_membership
    while u >= 0:
        f = s.memberships[u].flow
        if bottleneck in (codes.NOTHING, s.flows[f].bottleneck):
            choose_flow(s, f)
        u = s.memberships[u].behind


def carried_rate(s: State, l: int) -> float:
    """Return the total rate of the flows on link l [byte/s]: a running sum, recomputed at times to limit rounding."""
    link = s.links[l]
    if link.updates > _UPDATES + link.users:
        link.carried, link.updates = 0.0, 0
        u = link.first_membership
        while u >= 0:
            link.carried += s.flows[s.memberships[u].flow].rate
            u = s.memberships[u].behind
    return link.carried


def check_link(s: State, l: int) -> None:
    """Choose more flows on link l to recompute: those whose present rates are no longer max-min fair there."""
    flows, memberships, link, allocation = s.flows, s.memberships, s.links[l], s.allocations[l]
    full = allocation.rest <= _EQUAL * effective_capacity(s, l)
    top = 0.0
    u = link.first_membership if full and allocation.limited else -1
    while u >= 0:
        flow = flows[memberships[u].flow]
        if flow.stamp == s.stamp:
            top = max(top, flow.new_rate / flow.weight)
        u = memberships[u].behind
    u = link.first_membership
    while u >= 0:
        flow = flows[memberships[u].flow]
        if flow.stamp != s.stamp and (
            flow.rate > allocation.level * flow.weight * (1 + _EQUAL)
            or (flow.bottleneck == l and (not full or top * flow.weight > flow.rate * (1 + _EQUAL)))
        ):
            choose_flow(s, memberships[u].flow)
        u = memberships[u].behind


def solve_rates(s: State) -> None:
    """Compute max-min fair rates of the flows in `s.chosen` by progressive filling. Other flows keep their rates.

    The link with the smallest share per unit of weight is the bottleneck of its unsolved flows; their rates are then
    taken off the other links of their routes.
    """
    flows, memberships, allocations, shares, size = s.flows, s.memberships, s.allocations, s.shares, 0
    for at in range(s.n_chosen):
        f = s.chosen[at]
        flows[f].new_bottleneck = codes.UNSOLVED
        if flows[f].limit < math.inf:
            # A limit is a link of the flow's own.
            shares[size].key, shares[size].row = flows[f].limit / flows[f].weight, -1 - f
            size += 1
    for at in range(s.n_touched):
        l = s.touched[at]
        allocation = allocations[l]
        capacity = effective_capacity(s, l)
        allocation.rest = capacity - allocation.kept if allocation.chosen < s.links[l].users else capacity
        allocation.level, allocation.unsolved = math.inf, allocation.chosen
        shares[size].key, shares[size].row = max(allocation.rest, 0.0) / allocation.weight, l
        size += 1
    for place in range((size - 2) // 4, -1, -1):
        sink_share(s, place, size, shares[place].key, shares[place].row)
    left = s.n_chosen
    while left > 0:
        level, l = shares[0].key, shares[0].row
        if l < 0:
            if flows[-1 - l].new_bottleneck == codes.UNSOLVED:
                fix_rate(s, -1 - l, flows[-1 - l].limit, codes.ITSELF)
                left -= 1
        elif allocations[l].unsolved:
            allocation = allocations[l]
            current = max(allocation.rest, 0.0) / unsolved_weight(s, l)
            if current > level:
                sink_share(s, 0, size, current, l)
                continue
            allocation.level = current
            u = s.links[l].first_membership
            while allocation.unsolved:
                f = memberships[u].flow
                if is_unsolved(s, f):
                    fix_rate(s, f, current * flows[f].weight, l)
                    left -= 1
                u = memberships[u].behind
        size -= 1
        sink_share(s, 0, size, shares[size].key, shares[size].row)


def is_unsolved(s: State, f: int) -> bool:
    """Return whether flow f is chosen and has no new rate yet."""
    return s.flows[f].stamp == s.stamp and s.flows[f].new_bottleneck == codes.UNSOLVED


def unsolved_weight(s: State, l: int) -> float:
    """Return the total weight of the flows on link l that have no new rate yet."""
    if not s.weighted:
        return s.allocations[l].unsolved
    total, u = 0.0, s.links[l].first_membership
    while u >= 0:
        f = s.memberships[u].flow
        if is_unsolved(s, f):
            total += s.flows[f].weight
        u = s.memberships[u].behind
    return total


def fix_rate(s: State, f: int, rate: float, bottleneck: int) -> None:
    """Set the new rate of chosen flow f, and subtract it from the free capacity of its links."""
    flow, allocations, route_links = s.flows[f], s.allocations, s.route_links
    flow.new_rate, flow.new_bottleneck = rate, bottleneck
    for at in range(flow.first, flow.stop):
        allocation = allocations[route_links[at]]
        allocation.rest -= rate
        allocation.unsolved -= 1


def sink_share(s: State, place: int, size: int, level: float, of: int) -> None:
    """Insert link `of`, whose fair share is `level`, at `place` in the heap of links, and move it down."""
    shares = s.shares
    while True:
        below, least = place, level
        for other in range(4 * place + 1, min(4 * place + 5, size)):
            if shares[other].key < least:
                below, least = other, shares[other].key
        if below == place:
            break
        shares[place].key, shares[place].row = least, shares[below].row
        place = below
    shares[place].key, shares[place].row = level, of
