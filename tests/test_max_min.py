"""Max-min fair shares held to their definition, to linear programmes and, flow by flow in time, to a full solution.

Weighted ones, too: there the levels, rates over weights, are what is max-min fair.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from sharing import Sharing, max_min_shares
from simnet import topologies

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


@given(networks(empty=True), st.floats(1e-3, 1e3))
def test_equal_weights_are_none(network, weight):
    assert max_min_shares(*network, [weight] * len(network[0])) == close(max_min_shares(*network))


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


@given(networks(empty=True), st.sampled_from([2.0**-20, 0.1, 3.0, 2.0**30]))
def test_rates_scale_with_capacities_and_limits(network, factor):
    routes, capacity, limits = network
    scaled = {link: factor * value for link, value in capacity.items()}
    rates = max_min_shares(routes, capacity, limits)
    again = max_min_shares(routes, scaled, [factor * limit for limit in limits])
    assert again == close([factor * rate for rate in rates])


@given(networks(empty=True))
def test_a_limit_is_a_link_of_the_flow_s_own(network):
    routes, capacity, limits = network
    own = {100 + flow: limit for flow, limit in enumerate(limits) if limit < math.inf}
    longer = [(*route, 100 + flow) if 100 + flow in own else route for flow, route in enumerate(routes)]
    assert max_min_shares(longer, capacity | own) == close(max_min_shares(routes, capacity, limits))


@given(networks(empty=True), st.sampled_from([1.0, 1.5, 1e6]))
def test_limits_at_or_above_what_flows_get_change_nothing(network, factor):
    routes, capacity, limits = network
    rates = max_min_shares(routes, capacity, limits)
    looser = [min(limit, factor * rate) for limit, rate in zip(limits, rates, strict=True)]
    assert max_min_shares(routes, capacity, looser) == close(rates)


@given(networks())
def test_no_limits_are_infinite_limits(network):
    routes, capacity, _ = network
    assert max_min_shares(routes, capacity) == max_min_shares(routes, capacity, [math.inf] * len(routes))


@given(networks(empty=True), networks(empty=True))
def test_networks_that_share_no_link_do_not_notice_each_other(one, other):
    apart = max_min_shares(*one) + max_min_shares(*other)
    routes = one[0] + [tuple(100 + link for link in route) for route in other[0]]
    capacity = one[1] | {100 + link: value for link, value in other[1].items()}
    assert max_min_shares(routes, capacity, one[2] + other[2]) == close(apart)


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


@given(networks(), st.data())
def test_equal_flows_get_equal_rates(network, data):
    routes, capacity, limits = network
    copies = data.draw(st.lists(st.integers(0, len(routes) - 1), min_size=1, max_size=6))
    routes, limits = routes + [routes[flow] for flow in copies], limits + [limits[flow] for flow in copies]
    rates = max_min_shares(routes, capacity, limits)
    assert rates[len(rates) - len(copies) :] == close([rates[flow] for flow in copies])


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


def test_flows_without_links_have_their_limits_and_no_flows_have_no_rates():
    assert max_min_shares([(), (0,), ()], {0: 2.0}, [5.0, math.inf, math.inf]) == [5.0, 2.0, math.inf]
    assert max_min_shares([], {}) == []


@pytest.mark.parametrize("seed", range(3))
def test_many_flows_on_a_fat_tree_have_bottlenecks(seed):
    draws = np.random.default_rng(seed)
    routes = topologies.Routes(topologies.fat_tree(8, latency=1e-6, bandwidth=1e9), seed=seed)
    ends = draws.integers(0, 128, (1500, 2))
    flows = [routes.route(int(src), int(dst)) for src, dst in ends[ends[:, 0] != ends[:, 1]]]
    capacity = dict(enumerate((draws.integers(1, 5, len(routes.links)) * 2.5e8).tolist()))
    limits = np.where(draws.random(len(flows)) < 0.2, draws.random(len(flows)) * 2e8, math.inf).tolist()
    assert_max_min(flows, capacity, limits, max_min_shares(flows, capacity, limits))


@pytest.mark.parametrize("hops", [1, 6, 13, 21])
def test_one_more_flow_gets_what_those_that_were_there_leave_of_its_narrowest_link(hops):
    # On each of its links is one that its own limit of 1 holds back. Weights are of no account where nobody shares.
    for seed, limit, weight in itertools.product(range(3), (math.inf, 2.5), (1.0, 0.25)):
        capacity = dict(enumerate(np.random.default_rng(seed).permutation(np.arange(4.0, 4.0 + hops)).tolist()))
        sharing = Sharing(lambda link, _, of=capacity: (of[link], math.inf), hops, hops, weighted=True)
        for link in capacity:
            sharing.join(link, (link,), math.inf, 1.0, 0.0)
        sharing.settle(0.0)
        sharing.join(hops, tuple(capacity), math.inf, limit, 1.0, weight)
        sharing.settle(1.0)
        assert [sharing.rate(flow) for flow in range(hops + 1)] == close([1.0] * hops + [min(3.0, limit)])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_flows_that_leave_in_any_order_leave_what_they_had_to_those_that_stay_and_to_those_that_come(order):
    sharing = Sharing(lambda link, _: (12.0, math.inf), 2, 2)
    present = []
    for turn in range(2):
        for flow in range(3):
            sharing.join(flow, (turn, 1 - turn), math.inf, math.inf, 0.0)
            present.append(flow)
            sharing.settle(0.0)
            assert {sharing.rate(one) for one in present} <= {12.0 / max(1, len(present))}
        for flow in order:
            sharing.leave(flow, 0.0)
            present.remove(flow)
            sharing.settle(0.0)
            assert {sharing.rate(one) for one in present} <= {12.0 / max(1, len(present))}


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


def test_random_flows_on_a_fat_tree_are_held_up_at_hosts_and_between_switches():
    # Otherwise the tests above would say little about links in the middle of a route.
    routes = topologies.Routes(topologies.fat_tree(4, latency=1e-6, bandwidth=1e9, oversubscription=2))
    draws = np.random.default_rng(0)
    flows = [routes.route(*map(int, draws.choice(16, 2, replace=False))) for _ in range(60)]
    capacity = dict(enumerate(routes.bandwidth.tolist()))
    load = loads(flows, max_min_shares(flows, capacity), capacity)
    full = [routes.links[link] for link in capacity if load[link] >= capacity[link] * (1 - TIGHT)]
    assert {any(isinstance(end, int) for end in link) for link in full} == {True, False}


def test_a_flow_whose_bottleneck_stays_full_gets_its_share_of_what_another_gains():
    # At 1 s the second flow leaves as much of link 0 as the third can take, which would then be faster than the first.
    before, after = [9.0, 3.9, 1.0], [9.0, 0.1, 100.0]
    sharing = Sharing(lambda link, t: (after[link], math.inf) if t >= 1 or not link else (before[link], 1.0), 3)
    for flow, route in enumerate([(0,), (0, 1), (0, 2)]):
        sharing.join(flow, route, math.inf, math.inf, 0.0)
    for now, expected in ((0.0, [4.1, 3.9, 1.0]), (1.0, [4.45, 0.1, 4.45])):
        sharing.settle(now)
        assert [sharing.rate(flow) for flow in range(3)] == close(expected)


@pytest.mark.parametrize(("limit", "expected"), [(0.1, [8.9, 0.1]), (1.0, [8.0, 1.0]), (100.0, [4.5, 4.5])])
def test_a_flow_gets_what_another_leaves_that_is_held_back_elsewhere(limit, expected):
    # At 1 s link 1 alone changes, on which the second flow is alone; the first has its bottleneck on link 0.
    sharing = Sharing(
        lambda link, t: (limit, math.inf) if link and t >= 1 else ([9.0, 3.9][link], 1.0 + 1e9 * (not link)), 2
    )
    for flow, route in enumerate([(0,), (0, 1)]):
        sharing.join(flow, route, math.inf, math.inf, 0.0)
    for now, rates in ((0.0, [5.1, 3.9]), (1.0, expected)):
        sharing.settle(now)
        assert [sharing.rate(flow) for flow in range(2)] == close(rates)


@pytest.mark.parametrize("unit", [1.0, 0.25, 4.0])
def test_weighted_flows_whose_bottleneck_stays_full_get_their_share_of_what_another_gains(unit):
    # At 1 s the second flow leaves 3.9 to the third: less than the first has, and more for its weight.
    before, after = [9.0, 2.9, 1.0], [9.0, 0.1, 100.0]
    sharing = Sharing(
        lambda link, t: (after[link], math.inf) if t >= 1 or not link else (before[link], 1.0), 3, weighted=True
    )
    for flow, (route, weight) in enumerate([((0,), 3.0), ((0, 1), 2.0), ((0, 2), 1.0)]):
        sharing.join(flow, route, math.inf, math.inf, 0.0, weight * unit)
    for now, expected in ((0.0, [5.1, 2.9, 1.0]), (1.0, [8.9 * 3 / 4, 0.1, 8.9 / 4])):
        sharing.settle(now)
        assert [sharing.rate(flow) for flow in range(3)] == close(expected)


@pytest.mark.parametrize("unit", [1.0, 0.25, 4.0])
def test_a_flow_that_joins_takes_from_one_that_is_as_fast_and_weighs_less(unit):
    # The first flow is held to 2 of 4 elsewhere; the second finds 2 left, and of weights 1 : 4 gets four fifths.
    sharing = Sharing(lambda link, t: ([4.0, 2.0][link], math.inf), 2, weighted=True)
    sharing.join(0, (0, 1), math.inf, math.inf, 0.0, unit)
    sharing.settle(0.0)
    assert sharing.rate(0) == 2.0
    sharing.join(1, (0,), math.inf, math.inf, 1.0, 4 * unit)
    sharing.settle(1.0)
    assert [sharing.rate(flow) for flow in range(2)] == close([0.8, 3.2])
