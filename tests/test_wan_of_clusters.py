"""A WAN of clusters: what it is made of, its routes by formula and by search, what scenarios make of it."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import routing
from routing import GPUS, LINK, OF_THEIR_OWN, nodes_of, pairs_of, searched
from schedules import write_nodelink
from simnet.interchange.networkx_graphs import read_nodelink
from simnet.topologies import (
    Routes,
    build,
    check_connected,
    fat_tree,
    multi_gpu_nodes,
    ring,
    select_links,
    star,
    tree,
    wan,
    wan_of_clusters,
)

ROUTED = star(2, **LINK)
ROUTED.graph["routes"] = [[0, "switch", 1]]
WIDE = {"latency": 0.05, "bandwidth": 1e6, "border_bandwidth": 1e9, "border_latency": 1e-5}

OF_SEARCH = {**routing.OF_SEARCH, "low_tree": lambda: tree(2, 3, **LINK)}
FORWARDING = {"ring", "torus", "rails"}


@st.composite
def sites(draw, kinds):
    kinds = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=4))
    if FORWARDING & set(kinds):
        kinds = [kind for kind in kinds if kind != "spines"]
    return {f"S{i}": {**OF_SEARCH, **OF_THEIR_OWN}[kind]() for i, kind in enumerate(kinds)}


@st.composite
def joined(draw, S):
    """Matrices of a WAN in which a ring one way at least joins all sites, with ties between paths."""
    latency = np.array(draw(st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.03]), min_size=S * S, max_size=S * S)))
    there = np.array(draw(st.lists(st.booleans(), min_size=S * S, max_size=S * S)), dtype=bool).reshape(S, S)
    there[np.arange(S), (np.arange(S) + 1) % S] = True
    return {"latency": latency.reshape(S, S), "bandwidth": np.where(there, 1e6, 0.0)}


@given(sites(OF_SEARCH), st.integers(0, 2**40), st.sampled_from(["hash", "single"]), st.data())
def test_formula_gives_the_routes_of_the_search(clusters, seed, routing, data):
    graph = wan_of_clusters(clusters, **{**WIDE, **data.draw(joined(len(clusters)))})
    formula, search = (Routes(one, seed, routing) for one in (graph, searched(graph)))
    for src, dst in data.draw(st.lists(st.sampled_from(pairs_of(formula)), max_size=60)):
        assert formula.route(src, dst) == search.route(src, dst)
        assert formula.candidates(src, dst) == search.candidates(src, dst)


@pytest.mark.parametrize("name", [*OF_SEARCH, *OF_THEIR_OWN])
def test_sites_keep_their_routes_and_are_left_by_the_shortest_way(name, no_search, tmp_path):
    cluster = {**OF_SEARCH, **OF_THEIR_OWN}[name]()
    here = cluster.graph["hosts"]
    graph = wan_of_clusters({"A": star(2, **LINK), "B": cluster}, **WIDE)
    check_connected(graph)
    write_nodelink(graph, tmp_path / "graph.json")
    read = read_nodelink(tmp_path / "graph.json")
    alone = Routes(cluster, routing="single")
    routes, again = (Routes(one, routing="single") for one in (graph, read))
    assert routes.n_hosts == 2 + here

    def renamed(node):
        return f"B/{node}" if isinstance(node, str) else node + 2

    for src, dst in itertools.product(range(here), repeat=2):
        expected = [tuple(map(renamed, alone.links[link])) for link in alone.route(src, dst)]
        assert [routes.links[link] for link in routes.route(src + 2, dst + 2)] == expected
    from_border = nx.single_source_shortest_path_length(graph, "site:B")
    for host in range(2, routes.n_hosts):
        for src, dst in ((0, host), (host, 1)):
            found = [routes.links[link] for link in routes.route(src, dst)]
            assert all(before[1] == after[0] for before, after in itertools.pairwise(found))
            assert (found[0][0], found[-1][1]) == (src, dst)
            at = found.index(("site:A", "site:B") if src == 0 else ("site:B", "site:A"))
            inside = len(found) - at - 1 if src == 0 else at
            assert inside == from_border[host]
            assert again.route(src, dst) == routes.route(src, dst)
            assert routes.bottleneck(src, dst) <= 1e6


def test_one_star_for_a_site_is_the_wan():
    # A star whose links have half the local latency, behind a border that costs nothing, is a site of `wan`.
    names = ["A", "B", "C"]
    matrices = {"latency": [[0, 0.01, 0.05], [0.02, 0, 0.01], [0.03, 0.03, 0]], "bandwidth": 1e6 * (1 - np.eye(3))}
    matrices["bandwidth"][0, 2] = 0
    plain = Routes(wan(names, **matrices, workers_per_site=2, local_latency=1e-4, local_bandwidth=1e9))
    stars = {name: star(2, 1e-4, 1e9) for name in names}
    clusters = Routes(wan_of_clusters(stars, **matrices, border_bandwidth=1e12))
    for pair in pairs_of(plain):
        assert clusters.path_latency(*pair) == pytest.approx(plain.path_latency(*pair), rel=1e-12)
        assert clusters.bottleneck(*pair) == plain.bottleneck(*pair)


def test_selectors_keep_working():
    graph = wan_of_clusters({"Oregon": fat_tree(4, **LINK), "Tokyo": star(3, **LINK)}, **WIDE)
    assert select_links(graph, "Oregon -> Tokyo") == [("site:Oregon", "site:Tokyo")]
    assert len(select_links(graph, "Oregon <-> Tokyo")) == len(select_links(graph, "wan")) == 2
    assert len(select_links(graph, "host")) == 2 * (16 + 3)
    assert len(select_links(graph, "border")) == 2 * (4 + 1)
    assert len(select_links(graph, "fabric")) == 64
    assert set(select_links(graph, "site:Tokyo")) == {
        *select_links(graph, "site:Tokyo<->Tokyo/switch"),
        *select_links(graph, "wan"),
    }
    assert select_links(graph, "host:18->Tokyo/switch") == [(18, "Tokyo/switch")]
    assert [graph.nodes[host]["site"] for host in (0, 15, 16, 18)] == ["Oregon", "Oregon", "Tokyo", "Tokyo"]
    assert graph.graph["sites"] == ("Oregon", "Tokyo")
    assert graph.edges["site:Oregon", "site:Tokyo"]["sites"] == ("Oregon", "Tokyo")
    assert build("wan_of_clusters", sites={"A": star(2, **LINK)}, **WIDE).number_of_nodes() == 4


def test_paths_between_sites_over_fewest_links_then_least_latency():
    # A to D: over B with less latency, over C, or directly where there is a link.
    bandwidth = np.zeros((4, 4))
    for a, b in ((0, 1), (1, 3), (0, 2), (2, 3)):
        bandwidth[a, b] = bandwidth[b, a] = 1e6
    latency = np.full((4, 4), 0.02)
    latency[0, 1] = 0.01
    stars = {name: star(2, **LINK) for name in "ABCD"}

    def sites_on_the_way(**change):
        routes = Routes(
            wan_of_clusters(stars, **{**WIDE, "latency": latency, "bandwidth": bandwidth, **change}), seed=1
        )
        ways = [[routes.links[link][1] for link in one] for one in routes.candidates(0, 6)]
        return [[node[-1] for node in way if str(node).startswith("site:")] for way in ways]

    assert sites_on_the_way() == [["A", "B", "D"]]
    assert sites_on_the_way(latency=0.02) == [["A", "B", "D"], ["A", "C", "D"]]
    direct = bandwidth.copy()
    direct[0, 3] = 1.0
    latency[0, 3] = 10.0
    assert sites_on_the_way(bandwidth=direct) == [["A", "D"]]


def test_borders_of_any_topology_by_name():
    line = nx.DiGraph()
    for u, v in ((0, "a"), ("a", "b"), ("b", 1)):
        for link in ((u, v), (v, u)):
            line.add_edge(*link, **LINK)
    with pytest.raises(ValueError, match="site L is none of this package's topologies as built, so borders must name"):
        wan_of_clusters({"L": line}, **WIDE)
    graph = wan_of_clusters({"L": line, "S": star(2, **LINK)}, **WIDE, borders={"L": ["b"]})
    routes = Routes(graph)
    assert [routes.links[link][1] for link in routes.route(0, 2)][:3] == ["L/a", "L/b", "site:L"]
    assert "hosts" not in line.graph
    changed = fat_tree(4, **LINK)
    changed.remove_edges_from([("edge:0.0", "agg:0.0"), ("agg:0.0", "edge:0.0")])
    with pytest.raises(ValueError, match="site F is none of"):
        wan_of_clusters({"F": changed}, **WIDE)
    check_connected(wan_of_clusters({"F": changed}, **WIDE, borders={"F": ["core:0.0", "core:1.1", "core:0.0"]}))


def test_a_graph_that_was_changed_is_searched():
    def fresh():
        return wan_of_clusters({"A": fat_tree(4, **LINK), "B": star(2, **LINK)}, **WIDE)

    shorter, one_way, dearer = fresh(), fresh(), fresh()
    shorter.add_edge(0, 16, **LINK)
    assert Routes(shorter).route(0, 16) == (Routes(shorter).index[0, 16],)
    one_way.remove_edge("site:A", "site:B")
    with pytest.raises(ValueError, match=r"no route from host 0 \(site A\) to host 16 \(site B\)"):
        check_connected(one_way)
    dearer.edges["A/core:0.0", "site:A"]["weight"] *= 4
    routes = Routes(dearer)
    for src in range(16):
        assert ("A/core:0.0", "site:A") not in [routes.links[link] for link in routes.route(src, 16)]


@pytest.mark.parametrize(
    ("clusters", "change", "message"),
    [
        ([star(2, **LINK)], {}, "sites must be a mapping from names to topologies"),
        ({}, {}, "sites must hold at least one name"),
        ({"A/B": star(2, **LINK)}, {}, "sites must be named without '/'"),
        ({"A->B": star(2, **LINK)}, {}, "without '->'"),
        ({"A": nx.Graph([(0, 1)])}, {}, "site A: a topology must be a networkx.DiGraph, got Graph"),
        ({"A": star(2, **LINK)}, {"borders": {"B": ["switch"]}}, "there is no site 'B'.*Allowed: A"),
        ({"A": star(2, **LINK)}, {"borders": {"A": ["swich"]}}, "no node of site A 'swich': did you mean 'switch'"),
        ({"A": star(2, **LINK)}, {"borders": {"A": []}}, "borders of site A must name at least one node"),
        ({"A": star(2, **LINK)}, {"border_bandwidth": 0}, "border_bandwidth must be"),
        ({"A": star(2, **LINK)}, {"border_latency": -1}, "border_latency must be"),
        ({"A": star(2, **LINK)}, {"latency": np.zeros((2, 2))}, r"latency must be .* 1 by 1, .* got shape \(2, 2\)"),
        ({"A": star(1, **LINK), "B": star(1, **LINK)}, {"bandwidth": -1.0}, "bandwidth from A to B must be"),
        (
            {"A": ring(3, **LINK), "B": multi_gpu_nodes(2, 2, **GPUS, rails=True, spines=1)},
            {},
            "hosts of site A pass on the traffic of others and those of site B do not",
        ),
        ({"A": ROUTED}, {"borders": {"A": ["switch"]}}, "site A gives the routes of its hosts one by one"),
    ],
)
def test_refusals(clusters, change, message):
    with pytest.raises(ValueError, match=message):
        wan_of_clusters(clusters, **{**WIDE, **change})


def test_eight_clusters_of_1024_hosts_have_routes(no_search):
    cluster = fat_tree(16, **LINK)
    graph = wan_of_clusters({f"S{i}": cluster for i in range(8)}, **WIDE)
    routes = Routes(graph)
    for src, dst in np.random.default_rng(0).integers(8192, size=(300, 2)).tolist():
        links = len(nodes_of(routes, src, dst)) - 1
        assert links == (9 if src // 1024 != dst // 1024 else links) <= 9
