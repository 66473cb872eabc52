"""Flows at max-min fair shares of the links on their routes, found anew for as few flows as possible: see `settle`.

Flows have weights, and what is fair is their *levels*, the rates over the weights. Unless shares are `weighted`, all
weights are 1.

References
----------
D. Bertsekas, R. Gallager, "Data Networks", 2nd ed., section 6.5.2: max-min fairness and progressive filling.
"""

from __future__ import annotations

import math

from simnet.network.event_loop.agenda import ends_at, never_ends
from simnet.network.event_loop.arrivals import comes_at
from simnet.network.event_loop.records import FLOWING, FREE, ITSELF, NOTHING, UNSOLVED, State
from simnet.network.event_loop.timelines import look_up

# ruff: noqa: E741 - l is the row of a link.

# Rates this near to each other, relatively, count as equal when it is checked who holds whom back.
_EQUAL = 1e-12
# Links of a route with which, and a limit, a heap of shares has three levels at most.
_FEW = 20


def take_flow(s: State) -> int:
    """Return a free flow."""
    f = s.free_flow
    s.free_flow = s.flows[f].next
    s.n_free -= 1
    return f


def free_flow(s: State, f: int) -> None:
    """Give a flow back."""
    flow = s.flows[f]
    flow.state, flow.next = FREE, s.free_flow
    s.free_flow = f
    s.n_free += 1


def free_all(s: State, first: int, count: int) -> None:
    """Give flows back whose rows follow each other; the first will be taken first."""
    for f in range(first + count - 1, first - 1, -1):
        s.flows[f].place, s.flows[f].is_new = -1, False
        free_flow(s, f)


def start_flow(s: State, f: int, now: float) -> None:
    """Let the bytes of a message, or background traffic, flow."""
    flow = s.flows[f]
    flow.state, flow.bottleneck, flow.place = FLOWING, NOTHING, -1
    flow.rate, flow.since = 0.0, now
    route = s.routes[flow.route]
    flow.first, flow.stop = route.begin + flow.passed, route.end - (1 if flow.port >= 0 else 0)
    if attach(s, f, now) or flow.limit < math.inf:
        enqueue(s, f)
        return
    # Alone on all its links.
    bottleneck, rate = NOTHING, math.inf
    for at in range(flow.first, flow.stop):
        l = s.route_links[at]
        if effective_capacity(s, l) < rate:
            bottleneck, rate = l, effective_capacity(s, l)
    set_rate(s, f, rate, bottleneck, now)


def attach(s: State, f: int, now: float) -> bool:
    """Let a flow use its links; return whether it shares any with others, which are noted to have changed."""
    links, uses, shares = s.links, s.uses, False
    u = f * s.hops
    for at in range(s.flows[f].first, s.flows[f].stop):
        l = s.route_links[at]
        link = links[l]
        first = link.first_use
        uses[u].before, uses[u].behind = -1, first
        if first >= 0:
            uses[first].before = u
            shares = True
            mark_dirty(s, l)
        else:
            look_up(s, l, now)
        link.first_use = u
        link.users += 1
        u += 1
    return shares


def detach(s: State, f: int) -> None:
    """Take a flow off its links; `settle` gives what it leaves to the others."""
    uses = s.uses
    u = f * s.hops
    for at in range(s.flows[f].first, s.flows[f].stop):
        l = s.route_links[at]
        link = s.links[l]
        before, behind = uses[u].before, uses[u].behind
        if before >= 0:
            uses[before].behind = behind
        else:
            link.first_use = behind
        if behind >= 0:
            uses[behind].before = before
        link.users -= 1
        if link.users:
            mark_dirty(s, l)
        u += 1
    never_ends(s, f)


def mark_dirty(s: State, l: int) -> None:
    """Note that something about a link in use has changed."""
    link = s.links[l]
    if not link.is_dirty:
        link.is_dirty = True
        s.dirty[s.n_dirty] = l
        s.n_dirty += 1


def enqueue(s: State, f: int) -> None:
    """Have a flow solved at the next occasion."""
    flow = s.flows[f]
    if not flow.is_new:
        flow.is_new = True
        s.new[s.n_new] = f
        s.n_new += 1


def effective_capacity(s: State, l: int) -> float:
    """Return what a link carries when as many flows use it as do."""
    link = s.links[l]
    if link.crowd < 0:
        return link.capacity
    return link.capacity * s.crowd_factors[link.crowd + min(link.users, s.n_crowd - 1)]


def set_rate(s: State, f: int, rate: float, bottleneck: int, now: float) -> None:
    """Set the rate of a flow and what holds it back."""
    flow = s.flows[f]
    flow.bottleneck = bottleneck
    old = flow.rate
    if rate == old:
        return
    if flow.port >= 0:
        comes_at(s, f, rate)
    if old > 0:
        flow.remaining -= old * (now - flow.since)
    flow.rate, flow.since = rate, now
    if flow.remaining <= flow.residue:
        ends_at(s, f, now)
    elif rate > 0 and flow.remaining < math.inf:
        ends_at(s, f, now + flow.remaining / rate)
    else:
        never_ends(s, f)


def settle(s: State, now: float) -> None:
    """Set the rate of every flow whose max-min fair rate has changed.

    Rates are max-min fair if and only if no link carries more than it can and each flow has a bottleneck: a full link
    on which no flow has a higher level (or a limit of its own). So the flows to solve again are found by need. First
    those that are new, that had their bottleneck on a link that changed, or that use a link which is now too full. They
    are solved while all others keep their rates. Then it is checked on their links whether one of the others is faster
    than it may be, or has lost its bottleneck; if so, it is solved again with them. At the end everybody has a
    bottleneck. In most cases that takes a handful of flows, however many are connected through shared links.
    """
    flows, uses, links, fillings = s.flows, s.uses, s.links, s.fillings
    s.stamp += 1
    s.n_chosen, s.n_touched = 0, 0
    for at in range(s.n_new):
        f = s.new[at]
        flows[f].is_new = False
        if flows[f].state == FLOWING:
            choose(s, f)
    s.n_new = 0
    # Of one alone, nothing has to be noted.
    noted = s.n_chosen if s.n_chosen > 1 else 0
    for at in range(noted):
        note(s, s.chosen[at])
    for at in range(s.n_dirty):
        l = s.dirty[at]
        link = links[l]
        link.is_dirty = False
        if fillings[l].stamp == s.stamp and fillings[l].chosen == link.users:
            continue
        carried = 0.0
        u = link.first_use
        while u >= 0:
            f = uses[u].flow
            carried += flows[f].rate
            if flows[f].bottleneck == l:
                choose(s, f)
            u = uses[u].behind
        if carried > effective_capacity(s, l) * (1 + _EQUAL):
            choose_all(s, l)
    s.n_dirty = 0
    solved = 0
    if s.n_chosen == 1 and solve_one(s, s.chosen[0]):
        solved = 1
    while solved != s.n_chosen:
        for at in range(noted, s.n_chosen):
            note(s, s.chosen[at])
        solved = noted = s.n_chosen
        solve(s)
        for at in range(s.n_touched):
            l = s.touched[at]
            filling = fillings[l]
            # Nobody else is on it, or can be held back by it or let go.
            if filling.chosen < links[l].users and (filling.held or filling.top > filling.level):
                check(s, l)
    for at in range(solved):
        f = s.chosen[at]
        set_rate(s, f, flows[f].new_rate, flows[f].new_bottleneck, now)


def choose(s: State, f: int) -> None:
    """Let a flow be among those that are solved again."""
    if s.flows[f].stamp != s.stamp:
        s.flows[f].stamp = s.stamp
        s.chosen[s.n_chosen] = f
        s.n_chosen += 1


def note(s: State, f: int) -> None:
    """Note on the links of a flow that it is chosen."""
    flow, fillings, route_links, stamp = s.flows[f], s.fillings, s.route_links, s.stamp
    for at in range(flow.first, flow.stop):
        l = route_links[at]
        filling = fillings[l]
        if filling.stamp != stamp:
            filling.stamp, filling.chosen, filling.weight, filling.counted = stamp, 0, 0.0, 0
            s.touched[s.n_touched] = l
            s.n_touched += 1
        filling.chosen += 1
        filling.weight += flow.weight


def choose_all(s: State, l: int) -> None:
    """Let all flows on a link be among those that are solved again."""
    u = s.links[l].first_use
    while u >= 0:
        choose(s, s.uses[u].flow)
        u = s.uses[u].behind


def check(s: State, l: int) -> None:
    """Choose those others on a link whom the rates just found hold back, or let go."""
    flows, uses, link, filling = s.flows, s.uses, s.links[l], s.fillings[l]
    full = filling.rest <= _EQUAL * effective_capacity(s, l)
    top = 0.0
    u = link.first_use
    while u >= 0:
        flow = flows[uses[u].flow]
        if flow.stamp == s.stamp:
            top = max(top, flow.new_rate / flow.weight)
        u = uses[u].behind
    u = link.first_use
    while u >= 0:
        flow = flows[uses[u].flow]
        if flow.stamp != s.stamp and (
            flow.rate > filling.level * flow.weight * (1 + _EQUAL)
            or (flow.bottleneck == l and (not full or top * flow.weight > flow.rate * (1 + _EQUAL)))
        ):
            choose(s, uses[u].flow)
        u = uses[u].behind


def look_at(s: State, l: int) -> int:
    """Note what those on a link who keep their rates leave of it, their highest level, and whether it holds them.

    Return how many use it who do not.
    """
    flows, uses, filling, stamp = s.flows, s.uses, s.fillings[l], s.stamp
    rest, top, held, n_chosen = effective_capacity(s, l), 0.0, False, 0
    u = s.links[l].first_use
    while u >= 0:
        flow = flows[uses[u].flow]
        if flow.stamp != stamp:
            rest -= flow.rate
            top = max(top, flow.rate / flow.weight)
            held = held or flow.bottleneck == l
        else:
            n_chosen += 1
        u = uses[u].behind
    filling.open, filling.top, filling.held = rest, top, held
    return n_chosen


def solve(s: State) -> None:
    """Find the max-min fair rates of the flows chosen, while all others keep theirs: progressive filling.

    The link with the smallest share for a unit of the weights of its flows without a rate is a bottleneck; that is the
    level of these flows, and what they take is withdrawn from the other links on their routes.
    """
    flows, fillings, shares = s.flows, s.fillings, s.shares
    size, members = 0, 0
    for at in range(s.n_chosen):
        f = s.chosen[at]
        if flows[f].limit < math.inf:
            # A limit is a link of the flow's own.
            shares[size].level, shares[size].of = flows[f].limit / flows[f].weight, -1 - f
            size += 1
    for at in range(s.n_touched):
        l = s.touched[at]
        filling = fillings[l]
        # Within a call of `settle` more flows are chosen, and no others.
        if filling.counted != filling.chosen:
            filling.counted = filling.chosen
            if filling.chosen < s.links[l].users:
                look_at(s, l)
            else:
                filling.open = effective_capacity(s, l)
        filling.rest, filling.level = filling.open, math.inf
        filling.unsolved, filling.members = 0, members
        members += filling.chosen
        shares[size].level, shares[size].of = max(filling.open, 0.0) / filling.weight, l
        size += 1
    route_links, listed = s.route_links, s.members
    for at in range(s.n_chosen):
        f = s.chosen[at]
        flow = flows[f]
        flow.new_bottleneck = UNSOLVED
        for hop in range(flow.first, flow.stop):
            filling = fillings[route_links[hop]]
            listed[filling.members + filling.unsolved] = f
            filling.unsolved += 1
    for place in range((size - 2) // 4, -1, -1):
        sink(s, place, size, shares[place].level, shares[place].of)
    left = s.n_chosen
    while left > 0:
        level, l = shares[0].level, shares[0].of
        if l < 0:
            if flows[-1 - l].new_bottleneck == UNSOLVED:
                fix(s, -1 - l, flows[-1 - l].limit, ITSELF)
                left -= 1
        elif fillings[l].unsolved:
            filling = fillings[l]
            current = max(filling.rest, 0.0) / unsolved_weight(s, l)
            if current > level:
                sink(s, 0, size, current, l)
                continue
            filling.level = current
            for at in range(filling.members, filling.members + filling.chosen):
                f = listed[at]
                if flows[f].new_bottleneck == UNSOLVED:
                    fix(s, f, current * flows[f].weight, l)
                    left -= 1
        size -= 1
        sink(s, 0, size, shares[size].level, shares[size].of)


def solve_one(s: State, f: int) -> bool:
    """Solve for one flow alone, and check what that means for others, as `solve` and `check` do.

    Return whether that can be done so: its route is not long, and names no link twice.
    """
    links, fillings, shares, flow = s.links, s.fillings, s.shares, s.flows[f]
    size = 0
    if flow.stop - flow.first > _FEW:
        return False
    if flow.limit < math.inf:
        shares[0].level, shares[0].of = flow.limit / flow.weight, -1
        size = 1
    for at in range(flow.first, flow.stop):
        l = s.route_links[at]
        if links[l].users > 1:
            if look_at(s, l) > 1:
                return False
            rest = fillings[l].open
        else:
            rest = effective_capacity(s, l)
        shares[size].level, shares[size].of = max(rest, 0.0) / flow.weight, l
        size += 1
    # Of equal ones that which is first in a heap of three levels.
    best = 0
    for above in range(1, min(5, size)):
        one = above
        for below in range(4 * above + 1, min(4 * above + 5, size)):
            if shares[below].level < shares[one].level:
                one = below
        if shares[one].level < shares[best].level:
            best = one
    least, l = shares[best].level, shares[best].of
    flow.new_rate, flow.new_bottleneck = (flow.limit, ITSELF) if l < 0 else (least * flow.weight, l)
    for at in range(flow.first, flow.stop):
        l = s.route_links[at]
        filling = fillings[l]
        if links[l].users > 1:
            filling.level = least if l == flow.new_bottleneck else math.inf
            if filling.held or filling.top > filling.level:
                filling.rest = filling.open - flow.new_rate
                check(s, l)
    return True


def unsolved_weight(s: State, l: int) -> float:
    """Return the weights of the flows chosen on a link that have no rate yet, added up anew lest rounding adds up."""
    filling = s.fillings[l]
    if not s.weighted:
        return filling.unsolved
    total = 0.0
    for at in range(filling.members, filling.members + filling.chosen):
        flow = s.flows[s.members[at]]
        if flow.new_bottleneck == UNSOLVED:
            total += flow.weight
    return total


def fix(s: State, f: int, rate: float, bottleneck: int) -> None:
    """Settle on the rate of one of the flows chosen, and withdraw it from its links."""
    flow, fillings, route_links = s.flows[f], s.fillings, s.route_links
    flow.new_rate, flow.new_bottleneck = rate, bottleneck
    for at in range(flow.first, flow.stop):
        filling = fillings[route_links[at]]
        filling.rest -= rate
        filling.unsolved -= 1


def sink(s: State, place: int, size: int, level: float, of: int) -> None:
    """Put a share at a place of the heap of shares, or below it where it belongs. Each has four below it."""
    shares = s.shares
    while True:
        below, least = place, level
        for other in range(4 * place + 1, min(4 * place + 5, size)):
            if shares[other].level < least:
                below, least = other, shares[other].level
        if below == place:
            break
        shares[place].level, shares[place].of = least, shares[below].of
        place = below
    shares[place].level, shares[place].of = level, of
