"""Max-min fair shares against their definition and a linear programme; flows in time against conservation of bytes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from sharing import Sharing
from simnet.flows import max_min_shares


@st.composite
def networks(draw):
    links = draw(st.integers(1, 6))
    capacity = {link: draw(st.sampled_from([0.0, 1.0, 2.5, 3.0, 7.0, 10.0])) for link in range(links)}
    route = st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True).map(tuple)
    routes = draw(st.lists(route, min_size=1, max_size=8))
    return routes, capacity


def by_linear_programmes(routes, capacity):
    """Max-min shares by lexicographic maximisation: raise the least rate, fix those that cannot rise, repeat."""
    fixed: dict[int, float] = {}
    n, links = len(routes), sorted(capacity)
    usage = np.array([[float(link in route) for route in routes] for link in links])
    room = np.array([capacity[link] for link in links])

    def highest(floor_of, target):
        # Variables: n rates and the level; rates of unfixed flows are at least the level.
        a_ub = [np.append(row, 0.0) for row in usage]
        b_ub = list(room)
        for flow in range(n):
            if flow not in fixed:
                row = np.zeros(n + 1)
                row[flow], row[n] = -1.0, 1.0 if floor_of is None else 0.0
                a_ub.append(row)
                b_ub.append(0.0 if floor_of is None else -floor_of)
        bounds = [(fixed[flow], fixed[flow]) if flow in fixed else (0, None) for flow in range(n)] + [(0, 1e6)]
        cost = np.zeros(n + 1)
        cost[n if target is None else target] = -1.0
        return -linprog(cost, a_ub, b_ub, bounds=bounds, method="highs").fun

    while len(fixed) < n:
        level = highest(None, None)
        stuck = [f for f in range(n) if f not in fixed and highest(level - 1e-12, f) <= level + 1e-7]
        fixed.update(dict.fromkeys(stuck, level))
    return [fixed[flow] for flow in range(n)]


@given(networks())
def test_shares_are_feasible_and_every_flow_has_a_bottleneck(network):
    routes, capacity = network
    rates = max_min_shares(routes, capacity)
    load = {link: math.fsum(r for r, route in zip(rates, routes, strict=True) if link in route) for link in capacity}
    assert all(load[link] <= capacity[link] * (1 + 1e-12) for link in capacity)
    for rate, route in zip(rates, routes, strict=True):
        # On some link of its own no capacity is left and nobody has more: it cannot grow without shrinking a smaller.
        assert any(
            load[link] >= capacity[link] * (1 - 1e-12)
            and all(other <= rate * (1 + 1e-12) for other, its in zip(rates, routes, strict=True) if link in its)
            for link in route
        )


@given(networks())
def test_shares_are_those_of_a_linear_programme(network):
    routes, capacity = network
    assert max_min_shares(routes, capacity) == pytest.approx(by_linear_programmes(routes, capacity), rel=1e-6, abs=1e-6)


@given(networks(), st.data())
def test_a_limit_is_a_link_of_the_flow_s_own(network, data):
    routes, capacity = network
    limits = data.draw(st.lists(st.sampled_from([0.5, 2.0, math.inf]), min_size=len(routes), max_size=len(routes)))
    with_links = [(*route, 100 + flow) for flow, route in enumerate(routes)]
    wider = capacity | {100 + flow: min(limit, 1e9) for flow, limit in enumerate(limits)}
    assert max_min_shares(routes, capacity, limits) == pytest.approx(max_min_shares(with_links, wider))


def test_equal_flows_get_equal_shares():
    assert max_min_shares([(0, 1)] * 7, {0: 21.0, 1: 100.0}) == [3.0] * 7


def test_flow_without_links_is_bounded_by_its_limit_alone():
    assert max_min_shares([(), ()], {}, [5.0, math.inf]) == [5.0, math.inf]


def naive_finishes(flows, capacity_at, changes):
    """Finish of each flow (join, route, bytes) by a plain loop that solves everything anew at every event."""
    left = [nbytes for _, _, nbytes in flows]
    finish = [math.inf] * len(flows)
    now = 0.0
    for _ in range(10_000):
        active = [i for i, (join, _, _) in enumerate(flows) if join <= now and finish[i] == math.inf]
        capacity = {link: capacity_at(link, now) for i in active for link in flows[i][1]}
        rates = max_min_shares([flows[i][1] for i in active], capacity)
        ends = [now + left[i] / rate if rate > 0 else math.inf for i, rate in zip(active, rates, strict=True)]
        later = [t for t in (*changes, *(join for join, _, _ in flows)) if t > now]
        until = min([*ends, *later], default=math.inf)
        if until == math.inf:
            return finish
        for i, rate, end in zip(active, rates, ends, strict=True):
            left[i] -= rate * (until - now)
            if end <= until:
                finish[i] = until
        now = until
    raise AssertionError("the reference did not end")


@given(st.data())
def test_flows_end_as_in_a_naive_simulation(data):
    links = data.draw(st.integers(1, 4))
    route = st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True).map(tuple)
    joins = st.sampled_from([0.0, 0.5, 1.0, 2.25])
    flows = data.draw(
        st.lists(st.tuples(joins, route, st.sampled_from([1.0, 3.0, 10.0, 17.5])), min_size=1, max_size=6)
    )
    flows.sort(key=lambda flow: flow[0])
    changes = [0.0, 0.75, 2.0, 5.0]
    levels = data.draw(
        st.lists(st.lists(st.sampled_from([0.0, 1.0, 4.0]), min_size=4, max_size=4), min_size=links, max_size=links)
    )
    for level in levels:
        level[-1] = level[-1] or 2.0  # the last level lasts for ever, and everything must end

    def at(link, time):
        return levels[link][max(i for i, change in enumerate(changes) if change <= time)]

    def capacity(link, time):
        return at(link, time), min((change for change in changes if change > time), default=math.inf)

    fluid = Sharing(capacity, links)
    finish = [math.inf] * len(flows)
    waiting = list(range(len(flows)))
    now = 0.0
    while waiting or fluid.next_event() < math.inf:
        now = min(fluid.next_event(), flows[waiting[0]][0] if waiting else math.inf)
        for flow in fluid.settle(now):
            finish[flow] = now
        while waiting and flows[waiting[0]][0] <= now:
            flow = waiting.pop(0)
            fluid.join(flow, flows[flow][1], flows[flow][2], math.inf, now)
        fluid.settle(now)
    assert finish == pytest.approx(naive_finishes(flows, at, changes[1:]), rel=1e-9)
