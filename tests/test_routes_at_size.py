"""Routes by formula: the same as by search, only on graphs that are what they say, and in time on large ones."""

import itertools
import json
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing import GPUS, LINK, OF_SEARCH, OF_THEIR_OWN, nodes_of, pairs_of, searched
from simnet.topologies import (
    Routes,
    check_connected,
    dragonfly,
    fat_tree,
    multi_gpu_nodes,
    ring,
    star,
    torus,
    tree,
    wan_of_clusters,
)


def every(routes):
    return [routes.route(*pair) for pair in pairs_of(routes)]


@st.composite
def regular(draw):
    """Any small graph of a family whose formula gives what a search gives."""
    match draw(st.sampled_from(["star", "ring", "tree", "fat_tree", "spines", "multi_gpu_nodes"])):
        case "star":
            return star(draw(st.integers(1, 20)), **LINK)
        case "ring":
            return ring(draw(st.integers(1, 20)), **LINK)
        case "tree":
            return tree(draw(st.integers(1, 40)), draw(st.integers(2, 6)), **LINK)
        case "fat_tree":
            return fat_tree(draw(st.sampled_from([2, 4, 6])), **LINK)
        case "spines":
            numbers = (draw(st.integers(1, n)) for n in (5, 4, 4))
            return multi_gpu_nodes(next(numbers), next(numbers), **GPUS, rails=True, spines=next(numbers))
        case _:
            return multi_gpu_nodes(draw(st.integers(1, 5)), draw(st.integers(1, 5)), **GPUS)


@settings(max_examples=80)
@given(regular(), st.integers(0, 2**70), st.sampled_from(["hash", "single"]))
def test_formula_gives_the_routes_of_the_search(graph, seed, routing):
    assert every(Routes(graph, seed, routing)) == every(Routes(searched(graph), seed, routing))


ALL = {
    **OF_SEARCH,
    **OF_THEIR_OWN,
    "clusters": lambda: wan_of_clusters(
        {"A": fat_tree(4, **LINK), "B": ring(3, **LINK), "C": multi_gpu_nodes(2, 2, **GPUS, rails=True)},
        latency=0.05,
        bandwidth=1e6,
        border_bandwidth=1e9,
    ),
}


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_no_regular_graph_is_searched(build, no_search):
    graph = build()
    every(Routes(graph))
    check_connected(graph)
    # Whatever else a link says, and however often it was written out and read.
    read = nx.node_link_graph(json.loads(json.dumps(nx.node_link_data(graph, edges="links"))), edges="links")
    for link in read.edges.values():
        link.update(bandwidth=3.0, latency=0.5, weight=link.get("weight", 1))
    assert every(Routes(read, seed=5)) == every(Routes(graph, seed=5))


@pytest.mark.parametrize("build", [ALL[name] for name in ALL if name != "clusters"])
def test_a_graph_that_was_changed_is_searched(build):
    shorter, longer, dearer, closed, none = (build() for _ in range(5))
    shorter.add_edge(0, 3, **LINK)
    assert not shorter.has_edge(0, 3) or Routes(shorter).route(0, 3) == (Routes(shorter).index[0, 3],)
    gone = longer.graph["hosts"] - 1
    longer.remove_edges_from(list(longer.in_edges(gone)))
    with pytest.raises(ValueError, match=f"no route from host 0 to host {gone}"):
        Routes(longer).route(0, gone)
    with pytest.raises(ValueError, match=f"no route from host 0 .*to host {gone}"):
        check_connected(longer)
    for link in dearer.edges:
        dearer.edges[link]["weight"] = 2.0
    closed.graph["hosts_forward"] = not closed.graph.get("hosts_forward", False)
    for changed, plain in ((dearer, searched(dearer)), (closed, searched(closed))):
        if changed is closed and not closed.graph["hosts_forward"]:
            with pytest.raises(ValueError, match="no route"):
                every(Routes(changed))
        else:
            assert every(Routes(changed)) == every(Routes(plain))
    none.remove_edges_from(list(none.edges))
    with pytest.raises(ValueError, match="no route"):
        Routes(none).route(0, 1)


def test_rails_costs():
    graph = multi_gpu_nodes(3, 4, **GPUS, rails=True)
    assert graph.number_of_edges() == 2 * 12 + 2 * 12
    assert sum(isinstance(node, str) for node in graph) == 3 + 4
    assert {set(graph[f"rail:{g}"]) == {g, 4 + g, 8 + g} for g in range(4)} == {True}
    routes = Routes(graph)
    shortest = dict(nx.all_pairs_shortest_path_length(graph))
    for src, dst in itertools.permutations(range(12), 2):
        same_node, same_rail = src // 4 == dst // 4, src % 4 == dst % 4
        path = nodes_of(routes, src, dst)
        assert len(path) - 1 == shortest[src][dst] == (2 if same_node or same_rail else 4)
        expected = 2e-6 if same_node else 6e-6 if same_rail else 8e-6
        assert routes.path_latency(src, dst) == pytest.approx(expected, rel=1e-12)
        assert routes.bottleneck(src, dst) == (3e11 if same_node else 2.5e10)
        if not same_node:
            # The rail is the destination's.
            assert path[-2] == f"rail:{dst % 4}"
            assert same_rail or path[1:3] == [f"node:{src // 4}", src - src % 4 + dst % 4]


@settings(max_examples=80)
@given(st.one_of(regular(), st.sampled_from([build() for build in ALL.values()])), st.integers(0, 2**70), st.data())
def test_table_holds_the_routes_of_its_pairs(graph, seed, data):
    routes = Routes(graph, seed, data.draw(st.sampled_from(["hash", "single"])))
    hosts = st.integers(0, routes.n_hosts - 1)
    pairs = data.draw(st.lists(st.tuples(hosts, hosts), max_size=40))
    src, dst = (np.array([pair[end] for pair in pairs], dtype=np.int64) for end in (0, 1))
    found = [routes.route(*pair) for pair in pairs]
    longest = max([1, *map(len, found)])
    assert routes.table(src, dst).tolist() == [[*route, *[-1] * (longest - len(route))] for route in found]


LARGE = {
    "fat_tree": (lambda: fat_tree(32, **LINK), 8192, 6),
    "torus": (lambda: torus((16, 16, 32), **LINK), 8192, 32),
    "dragonfly": (lambda: dragonfly(12, **LINK), 5256, 5),
    "ring": (lambda: ring(16384, **LINK), 16384, 8192),
    "star": (lambda: star(16384, **LINK), 16384, 2),
    "rails": (lambda: multi_gpu_nodes(1024, 8, **GPUS, rails=True), 8192, 4),
}


@pytest.mark.parametrize(("build", "hosts", "longest"), LARGE.values(), ids=LARGE)
def test_large_graphs_have_routes(build, hosts, longest, no_search):
    graph = build()
    routes = Routes(graph)
    assert routes.n_hosts == hosts
    partners = [(host, (host + 1) % hosts) for host in range(hosts)]
    random = np.random.default_rng(0).integers(hosts, size=(200, 2)).tolist()
    for src, dst in [*partners, *random]:
        assert len(nodes_of(routes, src, dst)) - 1 <= longest


# --- equal routes, and routes around links ----------------------------------------------------------------------------


@st.composite
def meshes(draw):
    """Any small graph of hosts at switches, with whole weights, so that sums of them are exact."""
    hosts, switches = draw(st.integers(2, 4)), draw(st.integers(1, 6))
    nodes = [*range(hosts), *(f"s{i}" for i in range(switches))]
    graph = nx.DiGraph(hosts_forward=draw(st.booleans()))
    graph.add_nodes_from(nodes)
    for u, v in draw(st.lists(st.sampled_from(list(itertools.permutations(nodes, 2))), unique=True)):
        graph.add_edge(u, v, **LINK)
        if draw(st.booleans()):
            graph[u][v]["weight"] = draw(st.integers(1, 3))
    return graph


def shortest(graph, src, dst, without=()):
    """All paths of least weight over the links that are left, which pass through no host that does not forward."""
    hosts = range(len([node for node in graph if isinstance(node, int)]))
    closed = [] if graph.graph.get("hosts_forward") else [node for node in hosts if node not in (src, dst)]
    left = nx.restricted_view(graph, closed, list(without))

    def weight(u, v, link):
        return link.get("weight", 1)

    if not nx.has_path(left, src, dst):
        return set()
    return {tuple(itertools.pairwise(path)) for path in nx.all_shortest_paths(left, src, dst, weight=weight)}


def named(routes, route):
    return tuple(routes.links[link] for link in route)


def hosts_of(data, routes):
    hosts = st.integers(0, routes.n_hosts - 1)
    return data.draw(hosts), data.draw(hosts)


@settings(max_examples=300)
@given(meshes(), st.integers(0, 3), st.data())
def test_candidates_of_any_graph_are_all_paths_of_least_weight(graph, seed, data):
    routes = Routes(graph, seed)
    src, dst = hosts_of(data, routes)
    expected = shortest(graph, src, dst)
    if not expected:
        with pytest.raises(ValueError, match="no route"):
            routes.candidates(src, dst)
        return
    found = routes.candidates(src, dst)
    assert {named(routes, one) for one in found} == expected
    assert len(found) == len(expected)
    assert routes.route(src, dst) in found
    # In the order of the links at each node where they part.
    positions = {node: list(graph[node]) for node in graph}
    order = [[positions[u].index(v) for u, v in named(routes, one)] for one in found]
    assert order == sorted(order)


@settings(max_examples=300)
@given(meshes(), st.integers(0, 3), st.data())
def test_around_is_a_path_of_least_weight_over_the_links_that_are_left(graph, seed, data):
    routes = Routes(graph, seed)
    src, dst = hosts_of(data, routes)
    down = data.draw(st.frozensets(st.sampled_from(range(len(routes.links))))) if routes.links else frozenset()
    if not shortest(graph, src, dst):
        with pytest.raises(ValueError, match="no route"):
            routes.around(src, dst, down)
        return
    found = routes.around(src, dst, down)
    expected = shortest(graph, src, dst, without=[routes.links[link] for link in down])
    assert (found is None) == (not expected)
    assert found is None or named(routes, found) in expected
    if down.isdisjoint(routes.route(src, dst)):
        assert found == routes.route(src, dst)


@given(regular(), st.integers(0, 2**70), st.sampled_from(["hash", "single"]), st.data())
def test_formula_gives_the_candidates_and_the_ways_around_of_the_search(graph, seed, routing, data):
    formula, search = (Routes(one, seed, routing) for one in (graph, searched(graph)))
    for _ in range(10):
        src, dst = hosts_of(data, formula)
        found = formula.candidates(src, dst)
        assert found == search.candidates(src, dst)
        assert {named(formula, one) for one in found} == shortest(graph, src, dst)
        if formula.links:
            down = data.draw(st.frozensets(st.sampled_from(range(len(formula.links))), max_size=6))
            assert formula.around(src, dst, down) == search.around(src, dst, down)


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_candidates_of_every_shape_need_no_search_and_hold_the_routes(build, no_search):
    graph = build()
    routes = Routes(graph, seed=3)
    for src, dst in pairs_of(routes):
        found = routes.candidates(src, dst)
        assert len(set(found)) == len(found)
        assert routes.route(src, dst) in found
        for one in found:
            path = named(routes, one)
            assert all(before[1] == after[0] for before, after in itertools.pairwise(path))
            assert not path or (path[0][0], path[-1][1]) == (src, dst)
            assert len(path) == len(routes.route(src, dst))
    assert routes.candidates(0, 0) == ((),)


def test_more_routes_than_are_listed_are_drawn():
    graph = wan_of_clusters(
        {name: fat_tree(10, **LINK) for name in "AB"}, latency=0.05, bandwidth=1e6, border_bandwidth=1e9
    )
    # 25 ways up times 25 ways down.
    for routing in ("hash", "single"):
        routes = Routes(graph, seed=1, routing=routing)
        found = routes.candidates(3, 400)
        assert len(found) == len(set(found)) == 256
        assert routes.route(3, 400) in found
        assert found == Routes(graph, seed=1, routing=routing).candidates(3, 400)
        # They spread: each of the 25 switches on the way up is among them some ten times.
        up = Counter(named(routes, one)[2][1] for one in found)
        assert len(up) == 25
        assert max(up.values()) < 25
    down = frozenset(routes.index[link] for link in routes.links if link[1] == "site:A" and link[0] != "A/core:2.3")
    assert ("A/core:2.3", "site:A") in named(routes, routes.around(3, 400, down))
