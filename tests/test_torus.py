"""Torus: shape against closed forms and networkx, dimension-order routes against their definition."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing import LINK, nodes_of
from simnet.topologies import Routes, check_connected, select_links, torus

DIMS = st.lists(st.integers(1, 5), min_size=1, max_size=4).filter(lambda dims: math.prod(dims) <= 100)


def around(size, a, b):
    return min((a - b) % size, (b - a) % size)


@given(DIMS)
def test_links_join_neighbours_of_the_periodic_grid(dims):
    graph = torus(dims, **LINK)
    # networkx makes a loop along a dimension of one and names the nodes by their coordinates, the last dimension first.
    grid = nx.grid_graph(dim=list(dims), periodic=[size > 2 for size in dims]).to_directed()
    named = {node: (node[::-1] if isinstance(node, tuple) else (node,)) for node in grid}
    expected = {(named[u], named[v]) for u, v in grid.edges}
    at = nx.get_node_attributes(graph, "at")
    assert {(at[u], at[v]) for u, v in graph.edges} == expected
    assert [np.ravel_multi_index(at[host], dims) for host in graph] == list(range(math.prod(dims)))
    P = math.prod(dims)
    assert graph.number_of_edges() == P * sum(min(size - 1, 2) for size in dims)
    for d, size in enumerate(dims):
        if size > 1:
            assert len(select_links(graph, f"dim{d}")) == P * min(size - 1, 2)
    assert graph.number_of_nodes() == P
    check_connected(graph)


@given(DIMS)
def test_routes_correct_one_dimension_after_the_other_the_shorter_way_round(dims):
    graph = torus(dims, **LINK)
    routes = Routes(graph)
    distance = dict(nx.all_pairs_shortest_path_length(graph))
    for src, dst in itertools.product(range(routes.n_hosts), repeat=2):
        path = [graph.nodes[node]["at"] for node in nodes_of(routes, src, dst)]
        assert len(path) - 1 == distance[src][dst] == sum(map(around, dims, path[0], path[-1]))
        turned = [next(d for d in range(len(dims)) if a[d] != b[d]) for a, b in itertools.pairwise(path)]
        assert turned == sorted(turned)
        for a, b in itertools.pairwise(path):
            d = next(d for d in range(len(dims)) if a[d] != b[d])
            if 2 * around(dims[d], path[0][d], path[-1][d]) == dims[d]:
                assert (b[d] - a[d]) % dims[d] == 1


def test_neither_seed_nor_routing_matters():
    graph = torus((4, 3, 2), **LINK)
    first, *others = (Routes(graph, **options) for options in ({}, {"seed": 7}, {"routing": "single"}))
    for src, dst in itertools.product(range(24), repeat=2):
        assert {first.route(src, dst)} == {one.route(src, dst) for one in others}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": ()}, r"dims must list the hosts along each dimension, .*got \(\)"),
        ({"dims": 8}, "dims must list .* got 8"),
        ({"dims": "44"}, "dims must list .* got '44'"),
        ({"dims": (4, 0)}, r"dims\[1\] must be a whole number >= 1, got 0"),
        ({"dims": (4, 2.5)}, r"dims\[1\] must be a whole number >= 1, got 2.5"),
        ({"dims": (1000, 1000)}, "a torus of 1,000 x 1,000 hosts needs .* at most 1,000,000 are allowed"),
        ({"latency": -1}, "latency must be finite and >= 0"),
        ({"bandwidth": 0}, "bandwidth must be finite and > 0"),
    ],
)
def test_torus_says_what_is_allowed(change, message):
    with pytest.raises(ValueError, match=message):
        torus(**{"dims": (4, 4), **LINK, **change})


def test_numpy_sizes_are_sizes():
    assert nx.utils.graphs_equal(torus(np.array([3, 4]), **LINK), torus((3, 4), **LINK))
