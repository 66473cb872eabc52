"""Max-min fair shares held to their definition, to linear programmes and, flow by flow in time, to a full solution.

Weighted ones, too: there the levels, rates over weights, are what is max-min fair.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from sharing import Sharing, max_min_shares

TIGHT = 1e-11
"""Relative difference that rounding may make to a rate; a wrong share is off by far more."""


def uses(route, link):
    return sum(one == link for one in route)


def loads(routes, rates, capacity):
    """Return what all flows together take of each link."""
    return {
        link: math.fsum(uses(route, link) * rate for route, rate in zip(routes, rates, strict=True) if link in route)
        for link in capacity
    }


def assert_max_min(routes, capacity, limits, rates, weights=None):
    """Assert that rates are feasible, and that each flow is at its limit or has a bottleneck.

    A bottleneck is a link without room on which no flow has more for its weight. A feasible allocation is max-min fair
    if and only if every flow has one: it cannot grow without shrinking another on that link, which has no more for its
    weight than it has.
    """
    weights = weights or [1.0] * len(routes)
    load = loads(routes, rates, capacity)
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


def by_linear_programmes(routes, capacity, limits, weights=None):
    """Return max-min rates found by linear programmes alone, one after another.

    Each maximises the least level t of the flows that are not fixed yet. Those whose constraint "my level is t or more"
    has a shadow price are at t in every optimum (complementary slackness), and are fixed there. The prices, weighted,
    add up to 1, so each programme fixes a flow at least.
    """
    n = len(routes)
    weight = np.ones(n) if weights is None else np.array(weights)
    links = sorted(capacity)
    usage = np.array([[uses(route, link) for route in routes] for link in links], dtype=float).reshape(len(links), n)
    room = [capacity[link] for link in links]
    fixed: dict[int, float] = {}
    while len(fixed) < n:
        free = [flow for flow in range(n) if flow not in fixed]
        floors = np.zeros((len(free), n + 1))
        floors[np.arange(len(free)), free] = -1.0
        floors[:, n] = weight[free]
        found = linprog(
            c=np.append(np.zeros(n), -1.0),
            A_ub=np.vstack([np.column_stack([usage, np.zeros(len(links))]), floors]),
            b_ub=np.concatenate([room, np.zeros(len(free))]),
            bounds=[(fixed[f], fixed[f]) if f in fixed else (0, min(limits[f], 1e6)) for f in range(n)] + [(0, None)],
            method="highs",
        )
        assert found.success, found.message
        prices = -found.ineqlin.marginals[len(links) :]
        fixed.update(
            (flow, found.x[n] * weight[flow]) for flow, price in zip(free, prices, strict=True) if price > 1e-6
        )
    return [fixed[flow] for flow in range(n)]


SMALL = st.one_of(st.just(0.0), st.integers(1, 20).map(float))
WIDE = st.one_of(SMALL, st.floats(1e-3, 1e12))


@st.composite
def networks(draw, capacities=WIDE, flows=10, empty=False):
    """Draw (routes, capacity, limits); a flow without links has a limit."""
    links = draw(st.integers(1, 6))
    capacity = {link: draw(capacities) for link in range(links)}
    route = st.lists(st.integers(0, links - 1), min_size=0 if empty else 1, max_size=links, unique=True).map(tuple)
    routes = draw(st.lists(route, min_size=1, max_size=flows))
    limit = st.one_of(st.just(math.inf), capacities)
    limits = [draw(limit if route else capacities) for route in routes]
    return routes, capacity, limits


@st.composite
def weighted(draw, weights, **options):
    """Draw (routes, capacity, limits, weights)."""
    routes, capacity, limits = draw(networks(**options))
    return routes, capacity, limits, [draw(weights) for _ in routes]


FEW = st.sampled_from([0.25, 1.0, 2.0, 3.0])


def close(rates):
    return pytest.approx(rates, rel=TIGHT, abs=0.0)


@settings(max_examples=150)
@given(networks(empty=True))
def test_shares_are_feasible_and_no_flow_can_grow_without_shrinking_a_smaller_one(network):
    routes, capacity, limits = network
    assert_max_min(routes, capacity, limits, max_min_shares(routes, capacity, limits))


@settings(max_examples=150)
@given(weighted(FEW | st.floats(1e-6, 1e6), empty=True))
def test_weighted_shares_are_feasible_and_no_flow_can_grow_without_shrinking_one_of_a_lower_level(network):
    routes, capacity, limits, weights = network
    assert_max_min(routes, capacity, limits, max_min_shares(*network), weights)


@settings(max_examples=120)
@given(weighted(FEW, capacities=SMALL, flows=8, empty=True))
def test_weighted_shares_are_those_of_linear_programmes(network):
    expected = by_linear_programmes(*network)
    assert max_min_shares(*network) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=120)
@given(networks(capacities=SMALL, flows=8, empty=True))
def test_shares_are_those_of_linear_programmes(network):
    expected = by_linear_programmes(*network)
    assert max_min_shares(*network) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(networks(capacities=SMALL, flows=6), st.data())
def test_a_link_that_a_route_names_twice_counts_twice(network, data):
    routes, capacity, limits = network
    routes = [route + tuple(data.draw(st.lists(st.sampled_from(route), max_size=2))) for route in routes]
    rates = max_min_shares(routes, capacity, limits)
    assert_max_min(routes, capacity, limits, rates)
    assert rates == pytest.approx(by_linear_programmes(routes, capacity, limits), rel=1e-9, abs=1e-9)


@given(networks(empty=True), st.randoms(use_true_random=False))
def test_neither_the_order_of_flows_nor_of_links_on_a_route_nor_their_numbers_matter(network, chance):
    routes, capacity, limits = network
    order = chance.sample(range(len(routes)), len(routes))
    numbers = dict(zip(capacity, chance.sample(range(1000), len(capacity)), strict=True))
    renamed = [tuple(numbers[link] for link in chance.sample(routes[flow], len(routes[flow]))) for flow in order]
    rates = max_min_shares(routes, capacity, limits)
    again = max_min_shares(
        renamed, {numbers[link]: value for link, value in capacity.items()}, [limits[flow] for flow in order]
    )
    assert again == close([rates[flow] for flow in order])


@given(networks(), st.data())
def test_more_capacity_never_makes_the_sorted_rates_less(network, data):
    # A single flow may well get less; the sorted rates are the greatest feasible ones, compared from the least on.
    routes, capacity, limits = network
    link = data.draw(st.sampled_from(sorted(capacity)))
    more = capacity | {link: capacity[link] * 2 + 1}
    before, after = (sorted(max_min_shares(routes, one, limits)) for one in (capacity, more))
    for old, new in zip(before, after, strict=True):
        if new != close(old):
            assert new > old
            break


@given(st.integers(1, 12), st.data())
def test_on_a_ring_of_equal_links_everyone_gets_a_share_of_as_many_as_pass(links, data):
    hops = data.draw(st.integers(1, links))
    routes = [tuple((first + hop) % links for hop in range(hops)) for first in range(links)]
    assert max_min_shares(routes, dict.fromkeys(range(links), 12.0)) == close([12.0 / hops] * links)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_on_a_parking_lot_the_long_flow_gets_the_least_share(crowds):
    # A long flow over all links, and a crowd of short ones on each: the long one is held up where the crowd is largest.
    links = list(range(len(crowds)))
    routes = [tuple(links), *((link,) for link in links for _ in range(crowds[link]))]
    long = 1.0 / (1 + max(crowds))
    short = [(1.0 - long) / incast_derating for incast_derating in crowds for _ in range(incast_derating)]
    assert max_min_shares(routes, dict.fromkeys(links, 1.0)) == close([long, *short])


def test_a_link_that_is_down_stops_its_flows_and_leaves_the_rest_to_others():
    routes = [(0, 1), (1,), (1, 2), (2,)]
    assert max_min_shares(routes, {0: 0.0, 1: 6.0, 2: 4.0}) == close([0.0, 4.0, 2.0, 2.0])
    assert max_min_shares(routes, dict.fromkeys(range(3), 0.0)) == [0.0] * 4


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
