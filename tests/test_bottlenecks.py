"""Links left out of routes are those that nobody's share depends on."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sharing import max_min_shares
from simnet import topologies
from simnet.network import Network
from simnet.network.bottlenecks import find_bottlenecks
from simnet.schedule import Round, Schedule
from simnet.topologies.routes import as_table


def left_of(routes, capacity):
    """Return what is left of each route."""
    table = find_bottlenecks(as_table(routes), np.array(capacity))
    return [tuple(row[row >= 0].tolist()) for row in table]


@st.composite
def networks(draw):
    """Draw (routes, capacities): few links, so that many routes go on over the same one, in all orders."""
    links = draw(st.integers(1, 7))
    capacity = [draw(st.sampled_from([0.0, 1.0, 2.0, 3.0])) for _ in range(links)]
    # Stretches of a ring and of its reverse, as shortest paths are, and routes without any order.
    stretch = st.builds(
        lambda first, hops, step: tuple((first + step * hop) % links for hop in range(hops)),
        st.integers(0, links - 1),
        st.integers(1, links),
        st.sampled_from([1, -1]),
    )
    free = st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True).map(tuple)
    return draw(st.lists(st.one_of(stretch, stretch, free), min_size=1, max_size=8)), capacity


@given(networks(), st.data())
def test_flows_on_some_of_the_routes_share_what_is_left_as_they_share_everything(network, data):
    routes, capacity = network
    narrow = left_of(routes, capacity)
    for route, left in zip(routes, narrow, strict=True):
        assert left
        assert [link for link in route if link in left] == list(left)
    # Several flows may be on a route at once, or none.
    flows = data.draw(st.lists(st.integers(0, len(routes) - 1), min_size=1, max_size=12))
    carried = dict(enumerate(capacity))
    whole, few = (max_min_shares([one[flow] for flow in flows], carried) for one in (routes, narrow))
    assert few == pytest.approx(whole, rel=1e-12, abs=0.0)


@given(networks())
def test_links_in_a_row_that_all_cross_count_once(network):
    routes, capacity = network
    doubled = [tuple(one for link in route for one in (link, link + len(capacity))) for route in routes]
    assert sum(map(len, left_of(doubled, capacity * 2))) == sum(map(len, left_of(routes, capacity)))


def test_a_link_that_carries_less_than_its_neighbours_stays():
    assert left_of([(0, 1, 2)], [3.0, 1.0, 2.0]) == [(1,)]
    assert left_of([(0, 1), (2, 1)], [5.0, 5.0, 4.0]) == [(1,), (2, 1)]


@pytest.mark.parametrize("topology", ["fat-tree", "ring"])
@given(seed=st.integers(0, 2**32))
def test_an_exchange_alone_takes_as_long_as_one_beside_which_others_might_come(topology, seed):
    draws = np.random.default_rng(seed)
    graph = topologies.ring(16, 1e-5, 1e9) if topology == "ring" else topologies.fat_tree(4, 1e-5, 1e9)
    for _, _, link in graph.edges(data=True):
        link["bandwidth"] *= draws.choice([1.0, 1.0, 0.5])
    src, dst = draws.permutation(16), draws.permutation(16)
    assume((src != dst).any())
    src, dst = src[src != dst], dst[src != dst]
    rounds = [Round(src, dst, draws.integers(1, 4, src.size) * 1e4) for _ in range(6)]
    network = Network(graph, engine="fluid")
    alone = network.time(Schedule(16, rounds), messages=True)
    beside = network.env.run(until=network.run(Schedule(16, rounds), messages=True))
    assert alone.messages.arrived == pytest.approx(beside.messages.arrived, rel=1e-12)
