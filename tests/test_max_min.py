"""Max-min fair shares held to their definition and, flow by flow in time, to a full solution.

Weighted ones, too: there the levels, rates over weights, are what is max-min fair.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharing import Sharing, max_min_shares

TIGHT = 1e-11
"""Relative difference that rounding may make to a rate; a wrong share is off by far more."""


def uses(route, link):
    return sum(one == link for one in route)


def assert_max_min(routes, capacity, limits, rates, weights=None):
    """Assert that rates are feasible, and that each flow is at its limit or has a bottleneck.

    A bottleneck is a link without room on which no flow has more for its weight. A feasible allocation is max-min fair
    if and only if every flow has one: it cannot grow without shrinking another on that link, which has no more for its
    weight than it has.
    """
    weights = weights or [1.0] * len(routes)
    flows = list(zip(routes, rates, strict=True))
    load = {link: math.fsum(uses(route, link) * rate for route, rate in flows) for link in capacity}
    most = dict.fromkeys(capacity, 0.0)
    for route, rate, weight in zip(routes, rates, weights, strict=True):
        for link in route:
            most[link] = max(most[link], rate / weight)
    for link, taken in load.items():
        assert 0 <= taken <= capacity[link] * (1 + TIGHT), f"link {link} carries more than it can"
    for flow, (route, rate, limit, weight) in enumerate(zip(routes, rates, limits, weights, strict=True)):
        assert 0 <= rate <= limit * (1 + TIGHT), f"flow {flow} is above its limit"
        assert rate >= limit * (1 - TIGHT) or any(
            load[link] >= capacity[link] * (1 - TIGHT) and most[link] <= rate / weight * (1 + TIGHT) for link in route
        ), f"flow {flow} has no bottleneck"


SMALL = st.one_of(st.just(0.0), st.integers(1, 20).map(float))
WIDE = st.one_of(SMALL, st.floats(1e-3, 1e12))


FEW = st.sampled_from([0.25, 1.0, 2.0, 3.0])


@st.composite
def networks(draw):
    """Draw (routes, capacity, limits, weights or None); a route may name a link twice, or none."""
    links = draw(st.integers(1, 6))
    capacity = {link: draw(WIDE) for link in range(links)}
    routes = draw(st.lists(st.lists(st.integers(0, links - 1), max_size=links).map(tuple), min_size=1, max_size=10))
    limits = [draw(st.just(math.inf) | WIDE if route else WIDE) for route in routes]
    return routes, capacity, limits, [draw(FEW | st.floats(1e-6, 1e6)) for _ in routes] if draw(st.booleans()) else None


def close(rates):
    return pytest.approx(rates, rel=TIGHT, abs=0.0)


@settings(max_examples=300)
@given(networks())
def test_shares_are_feasible_and_no_flow_can_grow_without_shrinking_one_of_a_lower_level(network):
    routes, capacity, limits, weights = network
    assert_max_min(routes, capacity, limits, max_min_shares(*network), weights)


@pytest.mark.parametrize("seed", range(4))
def test_flows_end_when_their_bytes_are_through_in_whatever_order_that_is(seed):
    # Each alone on a link of 1 byte/s, and of more or less from 3 s on; one of them leaves.
    draws = np.random.default_rng(seed)
    nbytes, later = 0.25 * draws.permutation(np.arange(1, 25)), draws.choice([0.25, 1.0, 4.0], 24)
    sharing = Sharing(lambda link, t: (1.0, 3.0) if t < 3 else (later[link], math.inf), 24, 1)
    for flow in range(24):
        sharing.join(flow, (flow,), nbytes[flow], math.inf, 0.0)
    sharing.leave(5, 0.0)
    sharing.settle(0.0)
    ended = {}
    while (now := sharing.next_event()) < math.inf:
        ended |= dict.fromkeys(sharing.settle(now), now)
    expected = np.where(nbytes <= 3, nbytes, 3 + (nbytes - 3) / later)
    assert ended == {flow: expected[flow] for flow in range(24) if flow != 5}


CHANGES = (0.0, 1.0, 1.75, 4.0, 7.0)


@st.composite
def histories(draw):
    """Draw (capacities of each link in each stretch of time, what happens at which time)."""
    # Short routes over several links, so that flows which share none are bound to each other through those between.
    links = draw(st.integers(2, 6))
    level = st.sampled_from([0.0, 1.0, 2.5, 3.0, 4.0, 10.0])
    # Often one link changes alone: of flows that nothing else has touched, it moves those that it has to.
    stays = st.lists(st.booleans(), min_size=len(CHANGES), max_size=len(CHANGES))
    levels = [draw(st.lists(level, min_size=len(CHANGES), max_size=len(CHANGES))) for _ in range(links)]
    for own in levels:
        for at, same in enumerate(draw(stays)[1:], 1):
            own[at] = own[at - 1] if same else own[at]
    route = st.lists(st.integers(0, links - 1), min_size=1, max_size=2, unique=True).map(tuple)
    nbytes = st.sampled_from([1.0, 3.0, 17.5, math.inf, math.inf])
    limit = st.sampled_from([math.inf, math.inf, 0.5, 2.0])
    weight = FEW if draw(st.booleans()) else st.just(1.0)
    join = st.tuples(st.just("join"), route, nbytes, limit, weight)
    happening = st.one_of(join, join, st.tuples(st.just("leave"), st.integers(0, 20)))
    moments = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.5])
    return levels, sorted(
        draw(st.lists(st.tuples(moments, happening), min_size=5, max_size=20)), key=lambda one: one[0]
    )


@settings(max_examples=100)
@given(histories())
def test_after_any_joins_leaves_and_changes_of_capacity_rates_are_those_of_a_full_solution(history):
    levels, happenings = history

    def capacity(link, t):
        own = levels[link]
        now = own[max(i for i, change in enumerate(CHANGES) if change <= t)]
        return now, next(
            (change for change, one in zip(CHANGES, own, strict=True) if change > t and one != now), math.inf
        )

    sharing = Sharing(capacity, len(levels), weighted=True)
    present: dict[int, tuple[tuple[int, ...], float, float]] = {}
    joined = 0

    def settle(now):
        for flow in sharing.settle(now):
            del present[flow]
        # What ends as it is rated, for all its bytes had gone, is due at once.
        while sharing.next_event() <= now:
            for flow in sharing.settle(now):
                del present[flow]
        routes, limits, weights = ([one[place] for one in present.values()] for place in range(3))
        at = {link: capacity(link, now)[0] for link in range(len(levels))}
        expected = max_min_shares(routes, at, limits, weights)
        assert [sharing.rate(flow) for flow in present] == close(expected)

    def until(end):
        while (now := sharing.next_event()) < end:
            settle(now)

    for place, (now, (what, *details)) in enumerate(happenings):
        until(now)
        # What is due at this moment goes first; what happens at one moment is then settled as a batch.
        if not place or happenings[place - 1][0] < now:
            settle(now)
        if what == "join":
            route, nbytes, limit, weight = details
            sharing.join(joined, route, nbytes, limit, now, weight)
            present[joined] = route, limit, weight
            joined += 1
        elif present:
            flow = list(present)[details[0] % len(present)]
            sharing.leave(flow, now)
            del present[flow]
        if place == len(happenings) - 1 or happenings[place + 1][0] > now:
            settle(now)
    until(math.inf)


def test_a_flow_whose_bottleneck_stays_full_gets_its_share_of_what_another_gains():
    # At 1 s the second flow leaves as much of link 0 as the third can take, which would then be faster than the first.
    before, after = [9.0, 3.9, 1.0], [9.0, 0.1, 100.0]
    sharing = Sharing(lambda link, t: (after[link], math.inf) if t >= 1 or not link else (before[link], 1.0), 3)
    for flow, route in enumerate([(0,), (0, 1), (0, 2)]):
        sharing.join(flow, route, math.inf, math.inf, 0.0)
    for now, expected in ((0.0, [4.1, 3.9, 1.0]), (1.0, [4.45, 0.1, 4.45])):
        sharing.settle(now)
        assert [sharing.rate(flow) for flow in range(3)] == close(expected)
