"""Routes by formula: the same as by search, only on graphs that are what they say, and in time on large ones."""

import itertools
import json

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies import Routes, check_connected, dragonfly, fat_tree, multi_gpu_nodes, ring, star, torus, tree

LINK = {"latency": 1e-6, "bandwidth": 8.0}
GPUS = {"intra_latency": 2e-6, "intra_bandwidth": 3e11, "nic_latency": 6e-6, "nic_bandwidth": 2.5e10}


@pytest.fixture
def no_search(monkeypatch):
    def refuse(self, target):
        raise AssertionError(f"a search for routes to {target}")

    monkeypatch.setattr(Routes, "_distance_to", refuse)


def searched(graph):
    """The graph without what it says of its shape."""
    plain = graph.copy()
    del plain.graph["shape"]
    return plain


def every(routes):
    return [routes.route(*pair) for pair in itertools.product(range(routes.n_hosts), repeat=2)]


@st.composite
def regular(draw):
    """Any small graph of a family whose formula gives what a search gives."""
    match draw(st.sampled_from(["star", "ring", "tree", "fat_tree", "multi_gpu_nodes"])):
        case "star":
            return star(draw(st.integers(1, 20)), **LINK)
        case "ring":
            return ring(draw(st.integers(1, 20)), **LINK)
        case "tree":
            return tree(draw(st.integers(1, 40)), draw(st.integers(2, 6)), **LINK)
        case "fat_tree":
            return fat_tree(draw(st.sampled_from([2, 4, 6])), **LINK)
        case _:
            return multi_gpu_nodes(draw(st.integers(1, 5)), draw(st.integers(1, 5)), **GPUS)


@settings(max_examples=80, deadline=None)
@given(regular(), st.integers(0, 2**70), st.sampled_from(["hash", "single"]))
def test_formula_gives_the_routes_of_the_search(graph, seed, routing):
    assert every(Routes(graph, seed, routing)) == every(Routes(searched(graph), seed, routing))


@pytest.mark.parametrize("routing", ["hash", "single"])
def test_formula_gives_the_routes_of_the_search_on_a_fat_tree_of_1024_hosts(routing):
    graph = fat_tree(16, **LINK)
    formula, search = (Routes(one, seed=3, routing=routing) for one in (graph, searched(graph)))
    pairs = np.random.default_rng(0).integers(1024, size=(3000, 2)).tolist()
    assert [formula.route(*pair) for pair in pairs] == [search.route(*pair) for pair in pairs]


def test_single_takes_the_first_of_the_equal_ways():
    routes = Routes(fat_tree(6, **LINK), routing="single")
    for src, dst in itertools.permutations(range(54), 2):
        path = [routes.links[link][1] for link in routes.route(src, dst)]
        assert all(".0" in node[node.index(":") :] for node in path if str(node).startswith("agg"))
        assert all(node == "core:0.0" for node in path if str(node).startswith("core"))
    opposite = Routes(ring(6, **LINK), routing="single")
    assert [opposite.links[opposite.route(src, (src + 3) % 6)[0]] for src in (0, 4)] == [(0, 1), (4, 3)]
    with pytest.raises(ValueError, match="routing must be 'hash' or 'single', got 'random'"):
        Routes(ring(6, **LINK), routing="random")


ALL = {
    "star": lambda: star(6, **LINK),
    "ring": lambda: ring(6, **LINK),
    "tree": lambda: tree(9, 2, **LINK),
    "fat_tree": lambda: fat_tree(4, **LINK),
    "torus": lambda: torus((4, 3), **LINK),
    "dragonfly": lambda: dragonfly(2, **LINK),
    "cluster": lambda: multi_gpu_nodes(3, 2, **GPUS),
    "rails": lambda: multi_gpu_nodes(3, 2, **GPUS, rails=True),
}


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_no_regular_graph_is_searched(build, no_search):
    graph = build()
    every(Routes(graph))
    check_connected(graph)
    # Whatever else a link says, and however often it was written out and read.
    read = nx.node_link_graph(json.loads(json.dumps(nx.node_link_data(graph, edges="links"))), edges="links")
    for link in read.edges:
        read.edges[link].update(bandwidth=3.0, latency=0.5, weight=1)
    assert every(Routes(read, seed=5)) == every(Routes(graph, seed=5))


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
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


@pytest.mark.parametrize(
    "shape",
    [
        None,
        7,
        {},
        {"k": 6},
        {"k": 2},
        {"k": 0},
        {"k": -4},
        {"k": 4.0},
        {"k": "4"},
        {"k": [4]},
        {"k": 10**9},
        {"k": 4, "hosts": 16},
        {"hosts": 16},
    ],
)
def test_a_shape_that_is_not_that_of_the_graph_is_ignored(shape):
    graph = fat_tree(4, **LINK)
    expected = every(Routes(graph))
    graph.graph["shape"] = shape
    assert every(Routes(graph)) == expected


@pytest.mark.parametrize("name", ["tree", "torus", "dragonfly", "star", "nothing", ["fat_tree"], None])
def test_another_name_is_ignored(name):
    graph = fat_tree(4, **LINK)
    expected = every(Routes(graph))
    graph.graph["name"] = name
    assert every(Routes(graph)) == expected


def test_rails_costs():
    graph = multi_gpu_nodes(3, 4, **GPUS, rails=True)
    assert graph.number_of_edges() == 2 * 12 + 2 * 12
    assert sum(isinstance(node, str) for node in graph) == 3 + 4
    assert {set(graph[f"rail:{g}"]) == {g, 4 + g, 8 + g} for g in range(4)} == {True}
    routes = Routes(graph)
    shortest = dict(nx.all_pairs_shortest_path_length(graph))
    for src, dst in itertools.permutations(range(12), 2):
        same_node, same_rail = src // 4 == dst // 4, src % 4 == dst % 4
        path = [routes.links[link] for link in routes.route(src, dst)]
        assert all(before[1] == after[0] for before, after in itertools.pairwise(path))
        assert (path[0][0], path[-1][1]) == (src, dst)
        assert len(path) == shortest[src][dst] == (2 if same_node or same_rail else 4)
        expected = 2e-6 if same_node else 6e-6 if same_rail else 8e-6
        assert routes.path_latency(src, dst) == pytest.approx(expected, rel=1e-12)
        assert routes.bottleneck(src, dst) == (3e11 if same_node else 2.5e10)
        if not same_node:
            # The rail is the destination's.
            assert path[-1] == (f"rail:{dst % 4}", dst)
            assert same_rail or path[1] == (f"node:{src // 4}", src - src % 4 + dst % 4)


def test_rails_do_not_share_a_card():
    # Four flows between two nodes, each on its rail, have no link in common; without rails they share one card.
    with_rails, without = (Routes(multi_gpu_nodes(2, 4, **GPUS, rails=rails)) for rails in (True, False))
    for routes, shared in ((with_rails, 0), (without, 2)):
        flows = [set(routes.route(g, 4 + g)) for g in range(4)]
        assert len(set.intersection(*flows)) == shared
        assert sum(map(len, flows)) - len(set.union(*flows)) == 3 * shared


def test_rails_is_true_or_false():
    with pytest.raises(ValueError, match="rails must be true or false, got 1"):
        multi_gpu_nodes(2, 2, **GPUS, rails=1)


def padded(routes, pairs):
    found = [routes.route(*pair) for pair in pairs]
    longest = max([1, *map(len, found)])
    return [route + (-1,) * (longest - len(route)) for route in found]


@settings(max_examples=80, deadline=None)
@given(st.one_of(regular(), st.sampled_from([build() for build in ALL.values()])), st.integers(0, 2**70), st.data())
def test_table_holds_the_routes_of_its_pairs(graph, seed, data):
    routes = Routes(graph, seed, data.draw(st.sampled_from(["hash", "single"])))
    hosts = st.integers(0, routes.n_hosts - 1)
    pairs = data.draw(st.lists(st.tuples(hosts, hosts), max_size=40))
    src, dst = (np.array([pair[end] for pair in pairs], dtype=np.int64) for end in (0, 1))
    assert routes.table(src, dst).tolist() == [list(row) for row in padded(routes, pairs)]


def test_table_of_more_pairs_than_a_block():
    graph = fat_tree(8, **LINK)
    routes = Routes(graph, seed=9)
    src, dst = np.random.default_rng(1).integers(128, size=(2, 70_000))
    table = routes.table(src, dst)
    every_pair = {pair: routes.route(*pair) for pair in itertools.product(range(128), repeat=2)}
    expected = [every_pair[pair] for pair in zip(src.tolist(), dst.tolist(), strict=True)]
    assert [tuple(row[row >= 0].tolist()) for row in table] == expected


@pytest.mark.parametrize("build", [ALL["fat_tree"], ALL["torus"]])
def test_table_of_no_pairs_is_empty(build):
    assert Routes(build()).table([], []).shape == (0, 1)


@pytest.mark.parametrize("build", [ALL["fat_tree"], ALL["torus"]])
@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ([0, 16], [1, 1], "src must be a host, 0 .. 1[15], got 16"),
        ([0, 1], [1, -1], "dst must be"),
        ([0, 1], [1], "src and dst must be as many hosts each"),
        ([0.5], [1], "src and dst must be as many hosts each"),
        (0, 1, "src and dst must be as many hosts each"),
    ],
)
def test_table_is_between_hosts(build, src, dst, message):
    with pytest.raises(ValueError, match=message):
        Routes(build()).table(src, dst)


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
        path = [routes.links[link] for link in routes.route(src, dst)]
        assert len(path) <= longest
        assert all(before[1] == after[0] for before, after in itertools.pairwise(path))
        assert src == dst or (path[0][0], path[-1][1]) == (src, dst)


def test_as_many_links_as_the_shape_are_not_enough():
    graph = star(4, **LINK)
    graph.remove_edge("switch", 1)
    graph.add_edge(0, 1, **LINK)
    routes = Routes(graph)
    assert routes.route(0, 1) == (routes.index[0, 1],)
    with pytest.raises(ValueError, match="no route from host 2 to host 1"):
        routes.route(2, 1)
