"""Topologies: shapes and counts against closed forms, routes against networkx, every refusal."""

import itertools
import math
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looping import each
from routing import GPUS, flow, nodes_of
from simnet import topologies
from simnet.topologies import (
    Routes,
    build,
    check_connected,
    dragonfly,
    fat_tree,
    flattened_butterfly,
    multi_gpu_nodes,
    ring,
    select_links,
    star,
    torus,
    tree,
    wan,
    wan_of_clusters,
)

LATENCY, BANDWIDTH = 1e-3, 1e9


@st.composite
def built(draw):
    """Any small topology of this package."""
    link = {"latency": draw(st.floats(0, 1)), "bandwidth": draw(st.floats(1, 1e12))}
    family = draw(st.sampled_from([*topologies.FAMILIES, "spines"]))
    match family:
        case "star" | "ring":
            return build(family, hosts=draw(st.integers(1, 17)), **link)
        case "tree":
            return tree(draw(st.integers(1, 17)), draw(st.integers(2, 5)), **link, taper=draw(st.floats(0.1, 4)))
        case "fat_tree":
            return fat_tree(draw(st.sampled_from([2, 4])), **link, oversubscription=draw(st.floats(1, 8)))
        case "torus":
            return torus(draw(st.sampled_from([(1,), (4,), (2, 3), (3, 3), (2, 1, 4), (2, 2, 2, 2)])), **link)
        case "dragonfly":
            return dragonfly(draw(st.sampled_from([2, 4])), **link, groups=draw(st.integers(1, 3)))
        case "flattened_butterfly":
            return flattened_butterfly(draw(st.sampled_from([(1,), (4,), (3, 2), (2, 1, 3)])), 2, **link)
        case "wan":
            return draw(wide_area())
        case "wan_of_clusters":
            kinds = st.sampled_from(
                [star(3, **link), tree(5, 2, **link), fat_tree(4, **link), multi_gpu_nodes(2, 2, **GPUS)]
            )
            clusters = draw(st.lists(kinds, min_size=1, max_size=3))
            return wan_of_clusters({f"S{i}": one for i, one in enumerate(clusters)}, **link, border_bandwidth=1e9)
        case "spines":
            spines = draw(st.integers(1, 3))
            return multi_gpu_nodes(draw(st.integers(1, 4)), draw(st.integers(1, 4)), **GPUS, rails=True, spines=spines)
        case _:
            return multi_gpu_nodes(draw(st.integers(1, 4)), draw(st.integers(1, 4)), **GPUS, rails=draw(st.booleans()))


@st.composite
def wide_area(draw):
    """A connected network of sites: a ring of links one way at least, others at random."""
    S = draw(st.integers(1, 5))
    matrices = [
        np.array(draw(st.lists(st.floats(low, high), min_size=S * S, max_size=S * S))).reshape(S, S)
        for low, high in ((0, 1), (1, 1e9))
    ]
    absent = np.array(draw(st.lists(st.booleans(), min_size=S * S, max_size=S * S)), dtype=bool).reshape(S, S)
    absent[np.arange(S), (np.arange(S) + 1) % S] = False
    workers = draw(st.lists(st.integers(1, 3), min_size=S, max_size=S))
    return wan(S, matrices[0], np.where(absent, 0, matrices[1]), workers)


@st.composite
def foreign(draw):
    """Any small graph that keeps the contract, connected or not, in any order of nodes and links."""
    hosts, switches = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    nodes = draw(st.permutations([*range(hosts), *(f"s{i}" for i in range(switches))]))
    pairs = list(itertools.permutations(nodes, 2))
    graph = nx.DiGraph(hosts_forward=draw(st.booleans()))
    graph.add_nodes_from(nodes)
    for u, v in draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []:
        graph.add_edge(u, v, latency=0.5, bandwidth=2.0)
        if draw(st.booleans()):
            graph[u][v]["weight"] = draw(st.sampled_from([1, 2, 3, 0.1, 0.2, 0.3]))
    return graph


def cost(graph, path):
    return sum(graph[u][v].get("weight", 1) for u, v in itertools.pairwise(path))


def cheapest(graph, src, dst):
    """Least cost of a path that passes through no host but those that forward; None without one (networkx)."""
    closed = [] if graph.graph.get("hosts_forward") else [node for node in graph if isinstance(node, int)]
    open_graph = nx.restricted_view(graph, [node for node in closed if node not in (src, dst)], [])
    try:
        return nx.shortest_path_length(open_graph, src, dst, weight=lambda u, v, link: link.get("weight", 1))
    except nx.NetworkXNoPath:
        return None


def hops(routes, src, dst):
    return len(routes.route(src, dst))


# --- what every topology keeps ---------------------------------------------------------------------------------------


@given(built())
def test_every_builder_keeps_the_contract(graph):
    P = graph.graph["hosts"]
    assert isinstance(graph.graph["name"], str)
    assert list(graph)[:P] == list(range(P))
    assert all(isinstance(node, str) for node in list(graph)[P:])
    for u, v, link in graph.edges(data=True):
        assert link["latency"] >= 0
        assert 0 < link["bandwidth"] < math.inf
        assert type(link["latency"]) is type(link["bandwidth"]) is float
        at_host = (
            ("host", "intra", "dim") if not any(isinstance(v, str) and v[:4] == "rail" for v in (u, v)) else ("nic",)
        )
        assert link["kind"].startswith(at_host) == (isinstance(u, int) or isinstance(v, int))
        assert link["kind"] == "wan" or graph[v][u] == link
    check_connected(graph)


@given(built(), st.integers(0, 2**70))
def test_routes_of_every_builder_are_shortest_simple_and_avoid_hosts(graph, seed):
    routes = Routes(graph, seed)
    assert routes.links == tuple(graph.edges)
    assert [routes.index[link] for link in routes.links] == list(range(len(routes.links)))
    for src, dst in itertools.product(range(routes.n_hosts), repeat=2):
        path = nodes_of(routes, src, dst)
        assert len(set(path)) == len(path)
        if not graph.graph.get("hosts_forward"):
            assert not any(isinstance(node, int) for node in path[1:-1])
        # The shortest route of a large dragonfly may lead through a third group; its own never does.
        assert cost(graph, path) == pytest.approx(cheapest(graph, src, dst), rel=1e-12)
        links = [graph[u][v] for u, v in itertools.pairwise(path)]
        assert routes.path_latency(src, dst) == pytest.approx(sum(link["latency"] for link in links), rel=1e-12)
        assert routes.bottleneck(src, dst) == min((link["bandwidth"] for link in links), default=math.inf)


@settings(max_examples=200)
@given(foreign(), st.integers(0, 3))
def test_routes_of_any_graph_are_least_cost_or_refused(graph, seed):
    routes = Routes(graph, seed)
    gaps = []
    for src, dst in itertools.permutations(range(routes.n_hosts), 2):
        least = cheapest(graph, src, dst)
        if least is None:
            gaps.append((src, dst))
            with pytest.raises(ValueError, match=f"no route from host {src} to host {dst}"):
                routes.route(src, dst)
        else:
            path = nodes_of(routes, src, dst)
            assert cost(graph, path) == pytest.approx(least, rel=1e-12)
            assert len(set(path)) == len(path)
            assert graph.graph["hosts_forward"] or not any(isinstance(node, int) for node in path[1:-1])
    assert (routes.gap() in gaps) if gaps else routes.gap() is None
    if gaps:
        with pytest.raises(ValueError, match=r"there is no route from host \d to host \d"):
            check_connected(graph)
    else:
        check_connected(graph)


# --- the families ----------------------------------------------------------------------------------------------------


@each("P", range(1, 18))
def test_star_has_two_links_per_host_and_pays_alpha_once(P):
    graph = star(P, LATENCY, BANDWIDTH)
    assert graph.number_of_edges() == 2 * P
    routes = Routes(graph)
    for src, dst in itertools.permutations(range(P), 2):
        assert routes.path_latency(src, dst) == LATENCY
        assert routes.bottleneck(src, dst) == BANDWIDTH
        assert hops(routes, src, dst) == 2


@each("arity", [2, 3, 8])
@each("P", range(1, 18))
def test_tree_routes_climb_to_the_lowest_common_switch(P, arity):
    graph = tree(P, arity, LATENCY, BANDWIDTH)
    # Every node but the root has one link up.
    assert graph.number_of_edges() == 2 * (graph.number_of_nodes() - 1)
    assert max(graph.in_degree(node) for node in graph if isinstance(node, str)) <= arity + 1
    routes = Routes(graph)
    for src, dst in itertools.permutations(range(P), 2):
        levels = next(level for level in itertools.count(1) if src // arity**level == dst // arity**level)
        assert hops(routes, src, dst) == 2 * levels


@pytest.mark.parametrize("k", [2, 4, 6, 8, 16])
def test_fat_tree_counts(k):
    graph = fat_tree(k, LATENCY, BANDWIDTH)
    assert graph.graph["hosts"] == k**3 // 4
    assert graph.number_of_edges() == 3 * k**3 // 2
    by_role = Counter(node.split(":")[0] for node in graph if isinstance(node, str))
    assert by_role == {"edge": k * k // 2, "agg": k * k // 2, "core": (k // 2) ** 2}
    assert {graph.out_degree(node) for node in graph if isinstance(node, str)} == {k}
    assert len(select_links(graph, "host")) == k**3 // 2
    pods = [set(graph.predecessors(core)) for core in graph if str(core).startswith("core")]
    assert all(len({agg.split(".")[0] for agg in linked}) == k for linked in pods)


def test_multi_gpu_nodes_costs():
    graph = multi_gpu_nodes(3, 4, **GPUS)
    assert graph.graph["hosts"] == 12
    assert (len(select_links(graph, "intra")), len(select_links(graph, "nic"))) == (24, 6)
    routes = Routes(graph)
    for src, dst in itertools.permutations(range(12), 2):
        inside = src // 4 == dst // 4
        assert hops(routes, src, dst) == (2 if inside else 4)
        assert routes.path_latency(src, dst) == pytest.approx(2e-6 if inside else 8e-6, rel=1e-12)
        assert routes.bottleneck(src, dst) == (3e11 if inside else 2.5e10)
    # The GPUs of a node share its card.
    assert flow(graph, range(4), range(4, 12)) == 2.5e10


def test_wan_sites_hosts_and_costs():
    latency = np.array([[9, 0.1, 0.2], [0.3, 9, 0.4], [0.5, 0.6, 9]])
    bandwidth = np.array([[7, 1e6, 2e6], [3e6, 7, 4e6], [5e6, 6e9, 7]])
    graph = wan(["A", "B", "C"], latency, bandwidth, [2, 0, 3], local_latency=0.02, local_bandwidth=1e9)
    assert graph.graph["sites"] == ("A", "B", "C")
    assert [graph.nodes[host]["site"] for host in range(5)] == ["A", "A", "C", "C", "C"]
    assert graph.number_of_edges() == 2 * 5 + 6
    routes = Routes(graph)
    assert routes.path_latency(0, 1) == 0.02
    assert routes.bottleneck(0, 1) == 1e9
    assert nodes_of(routes, 0, 4) == [0, "site:A", "site:C", 4]
    assert routes.path_latency(0, 4) == pytest.approx(0.22)
    assert routes.path_latency(4, 0) == pytest.approx(0.52)
    assert (routes.bottleneck(0, 4), routes.bottleneck(4, 0)) == (2e6, 5e6)
    assert graph["site:C"]["site:B"]["sites"] == ("C", "B")


def test_wan_prefers_the_direct_link_then_fewest_then_least_latency():
    slow = np.full((4, 4), 0.01)
    slow[0, 3] = 5.0
    direct = Routes(wan(4, slow, 1e6, 1))
    assert nodes_of(direct, 0, 3) == [0, "site:0", "site:3", 3]

    rates = np.full((4, 4), 1e6)
    rates[0, 3] = 0
    slow[0, 2], slow[1, 3] = 0.04, 0.02
    for seed in range(8):
        detour = Routes(wan(4, slow, rates, 1), seed)
        assert nodes_of(detour, 0, 3) == [0, "site:0", "site:1", "site:3", 3]
        assert nodes_of(detour, 3, 0) == [3, "site:3", "site:0", 0]


# --- equal-cost paths ------------------------------------------------------------------------------------------------


def choices(routes, k):
    """Of each pair of hosts in different pods: which aggregation and which core switch its route takes."""
    per_pod = (k // 2) ** 2
    return {
        (src, dst): (path[2].split(".")[1], path[3].split(".")[1])
        for src, dst in itertools.permutations(range(routes.n_hosts), 2)
        if src // per_pod != dst // per_pod
        for path in [nodes_of(routes, src, dst)]
    }


def test_equal_paths_are_used_equally():
    taken = choices(Routes(fat_tree(8, LATENCY, BANDWIDTH)), 8)
    # 14,336 pairs over 4 x 4 paths; chi-squared with 15 degrees of freedom is below 38 in 999 of 1,000 fair draws.
    expected = len(taken) / 16
    counts = Counter(taken.values())
    assert len(counts) == 16
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 38
    # From one host, from one edge switch, and to one host: within five standard deviations of a quarter.
    for share in ([pair for pair in taken if pair[end] // group == 1] for end in (0, 1) for group in (1, 4, 16)):
        for hop in (0, 1):
            for count in Counter(taken[pair][hop] for pair in share).values():
                assert abs(count - len(share) / 4) < 5 * math.sqrt(len(share) * 3 / 16)
    # The way back is chosen by itself: one pair in 16 returns the way it came.
    same = sum(taken[src, dst] == taken[dst, src] for src, dst in taken if src < dst)
    assert abs(same - len(taken) / 32) < 5 * math.sqrt(len(taken) / 2 * 15 / 256)


# --- selectors -------------------------------------------------------------------------------------------------------


def test_selectors_partition_and_find_links():
    graph = wan(["Oregon", "Tokyo", "São Paulo"], 0.1, 1e6, 2)
    assert select_links(graph, "all") == list(graph.edges)
    assert sorted(map(str, select_links(graph, "wan") + select_links(graph, "host"))) == sorted(map(str, graph.edges))
    there, back = ("site:Oregon", "site:São Paulo"), ("site:São Paulo", "site:Oregon")
    assert select_links(graph, "Oregon->São Paulo") == [there]
    assert select_links(graph, " site:São Paulo -> Oregon ") == [back]
    assert select_links(graph, "Oregon <-> São Paulo") == [there, back]
    assert select_links(graph, "host:3->Tokyo") == [(3, "site:Tokyo")]
    assert set(select_links(graph, "host:3")) == {(3, "site:Tokyo"), ("site:Tokyo", 3)}
    touching = select_links(graph, "site:Tokyo")
    assert len(touching) == 2 * 2 + 2 * 2
    assert all("site:Tokyo" in link for link in touching)


ONE_WAY = wan(["Oregon", "Tokyo", "Paris"], 0.1, [[0, 1e6, 1e6], [0, 0, 1e6], [1e6, 1e6, 0]], 1)


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (
            "wam",
            r"'wam' names no links: did you mean 'wan'\? Allowed: all, a kind \(host, wan\), a node \(host:0,.*A<->B",
        ),
        ("site:Tokio", "did you mean 'site:Tokyo'"),
        ("Tokio->Oregon", "'Tokio' is neither a node nor a site: did you mean 'Tokyo'"),
        ("Oregon<->Toky", "'Toky' is neither a node nor a site: did you mean 'Tokyo'"),
        ("host:7", r"'host:7' names no links"),
        ("Oregon<->Tokyo", "no link from site:Tokyo to site:Oregon; from site:Tokyo links lead to host:1, site:Paris"),
        ("host:0->host:1", "no link from host:0 to host:1; from host:0 links lead to site:Oregon"),
        ("Oregon->", "'' is neither"),
        ("", "'' names no links"),
    ],
)
def test_selectors_that_name_nothing_are_refused(selector, message):
    with pytest.raises(ValueError, match=message):
        select_links(ONE_WAY, selector)


# --- the registry ----------------------------------------------------------------------------------------------------


LINE = """
from simnet import topologies
def line(hosts, **link):
    graph = topologies.ring(hosts, **link)
    graph.remove_edges_from([(0, hosts - 1), (hosts - 1, 0)])
    return graph
"""


def test_a_topology_from_outside_is_as_good_as_one_from_here(install):
    install("line_topology", LINE, "[simnet.topologies]\nline = line_topology:line\nstar = line_topology:line\n")
    assert "line" in topologies.names()
    graph = build("line", hosts=4, latency=LATENCY, bandwidth=BANDWIDTH)
    check_connected(graph)
    assert hops(Routes(graph), 0, 3) == 3
    with pytest.raises(ValueError, match=r"line needs hosts"):
        build("line", latency=LATENCY)
    # A name of this package stays with it.
    assert "switch" in build("star", hosts=4, latency=LATENCY, bandwidth=BANDWIDTH)


# --- refusals --------------------------------------------------------------------------------------------------------

LINKS = {"latency": LATENCY, "bandwidth": BANDWIDTH}
GOOD = {
    star: {"hosts": 4, **LINKS},
    ring: {"hosts": 4, **LINKS},
    tree: {"hosts": 4, "arity": 2, **LINKS, "taper": 1.0},
    fat_tree: {"k": 4, **LINKS, "oversubscription": 1.0},
    torus: {"dims": (2, 3), **LINKS},
    dragonfly: {
        **{"routers": 4, "groups": 3, "hosts_per_router": 1, "global_links": 1},
        **{**LINKS, "global_latency": LATENCY, "global_bandwidth": BANDWIDTH},
    },
    flattened_butterfly: {"dims": (2, 3), "hosts_per_router": 1, **LINKS},
    multi_gpu_nodes: {"nodes": 2, "gpus_per_node": 2, **GPUS},
    wan: {"sites": ["A", "B"], **LINKS, "workers_per_site": 2, "local_latency": 1e-4, "local_bandwidth": 1e9},
}


@pytest.mark.parametrize(
    ("builder", "change", "message"),
    [
        (star, {"bandwidth": "1 Gbit/s"}, "bandwidth must be a number, bytes per second > 0, got '1 Gbit/s'"),
        (star, {"hosts": 10**12}, r"a star of 1,000,000,000,000 hosts needs .* at most 1,000,000 are allowed"),
        (tree, {"arity": 1}, "arity must be a whole number >= 2, got 1"),
        (tree, {"hosts": 10**12}, "at most 1,000,000"),
        (tree, {"taper": 1e300}, "bandwidth times taper at level 2 must be finite"),
        (fat_tree, {"k": 5}, "k must be even, got 5; k = 4 has 16 hosts, k = 6 54"),
        (fat_tree, {"k": 10**6}, "at most 1,000,000"),
        (fat_tree, {"oversubscription": 0.5}, "oversubscription must be finite and >= 1, got 0.5"),
        (ring, {"hosts": 10**9}, "at most 1,000,000"),
        (flattened_butterfly, {"dims": (1000, 1)}, "a flattened butterfly of 1,000 x 1 routers needs"),
        (flattened_butterfly, {"dims": 4}, r"dims must list the routers along each dimension, .* got 4"),
        (multi_gpu_nodes, {"nodes": 10**9}, "at most 1,000,000"),
        (wan, {"sites": 0}, "sites, where not a list of names, must be a whole number >= 1, got 0"),
        (wan, {"sites": 10**9}, "at most 1,000,000"),
        (wan, {"sites": "Oregon"}, "sites, .* must be a whole number >= 1, got 'Oregon'"),
        (wan, {"sites": []}, "sites must hold at least one name"),
        (wan, {"sites": ["A", "A"]}, "sites names 'A' twice"),
        (wan, {"sites": ["A", 2]}, r"sites\[1\] must be a name .* got 2"),
        (wan, {"sites": ["A", "B->C"]}, r"sites\[1\] must be a name without '->'"),
        (wan, {"sites": ["A", " B"]}, "blanks"),
        (wan, {"sites": ["", "B"]}, r"sites\[0\]"),
        (wan, {"latency": np.zeros((2, 3))}, r"latency must be .* matrix of 2 by 2, .* got shape \(2, 3\)"),
        (wan, {"bandwidth": [1e6, 1e6]}, r"bandwidth must be .* matrix of 2 by 2, .* got shape \(2,\)"),
        (wan, {"bandwidth": [[0, 1e6], [1e6]]}, "bandwidth must be a number or a matrix of 2 by 2 numbers"),
        (wan, {"bandwidth": [[0, "1e6"], [1e6, 0]]}, "bandwidth must be a number or a matrix of 2 by 2 numbers"),
        (wan, {"bandwidth": [[0, None], [1e6, 0]]}, "bandwidth must be a number or a matrix of 2 by 2 numbers"),
        (wan, {"bandwidth": [[0, -5], [1e6, 0]]}, "bandwidth from A to B must be .* or 0 for no link, got -5"),
        (wan, {"bandwidth": [[0, math.nan], [1, 0]]}, "bandwidth from A to B must be .* or 0 for no link, got nan"),
        (wan, {"latency": [[0, 1], [-2, 0]]}, "latency from B to A must be finite and >= 0 seconds, got -2"),
        (wan, {"workers_per_site": [1]}, "workers_per_site must have one entry for each of the 2 sites, got 1"),
        (wan, {"workers_per_site": [1, -1]}, r"workers_per_site\[1\] must be a whole number >= 0, got -1"),
        (wan, {"workers_per_site": [0, 0]}, "workers_per_site must give at least one site a worker"),
        (wan, {"workers_per_site": 10**9}, "at most 1,000,000"),
    ],
)
def test_builders_say_what_is_allowed(builder, change, message):
    with pytest.raises(ValueError, match=message):
        builder(**{**GOOD[builder], **change})


def linked(*links, nodes=(), **facts):
    graph = nx.DiGraph(**facts)
    graph.add_nodes_from(nodes)
    for u, v, *change in links:
        graph.add_edge(u, v, **{"latency": 0.1, "bandwidth": 1.0, **(change[0] if change else {})})
    return graph


def without(attribute):
    graph = linked((0, "s"), ("s", 0))
    del graph["s"][0][attribute]
    return graph


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.Graph([(0, 1)]), r"must be a networkx.DiGraph, got Graph; .*to_directed\(\)"),
        (nx.MultiDiGraph([(0, 1)]), "must be a networkx.DiGraph, got MultiDiGraph"),
        ([(0, 1)], "must be a networkx.DiGraph, got list"),
        (linked(), "has no hosts"),
        (linked(("a", "b")), "has no hosts"),
        (linked((1, "s")), "numbered 0 .. P-1; the first of them is 1"),
        (linked((0, "s"), (3, "s")), "without gaps; 0 is followed by 3"),
        (linked((0, "s"), ("s", 1.5)), "link 's' -> 1.5: 1.5 is neither a host"),
        (linked((0, ("core", 1))), r"link 0 -> \('core', 1\): \('core', 1\) is neither"),
        (linked(nodes=[0, 2.5]), "node 2.5 is neither a host"),
        (linked((0, "s"), ("s", "s")), "link s -> s leads from a node to itself"),
        (linked((0, 0)), "link host:0 -> host:0 leads from a node to itself"),
        (without("latency"), "link s -> host:0 has no attribute 'latency'"),
        (without("bandwidth"), "link s -> host:0 has no attribute 'bandwidth'"),
        (linked((0, "s", {"bandwidth": 0})), "bandwidth of the link host:0 -> s must be finite and > 0"),
        (linked((0, "s", {"latency": "1 ms"})), "latency of the link host:0 -> s must be a number"),
        (linked((0, "s", {"weight": 0})), "weight of the link host:0 -> s must be finite and > 0"),
        (linked((0, "s", {"weight": 1e20}), ("s", 0)), "weights must lie within a factor of 1e9, got 1.0 and 1e\\+20"),
        (linked((0, "s"), hosts=3), r'graph.graph\["hosts"\] is 3, but the graph has 1 hosts'),
        (linked((0, 1), routes={(0, 1): [0, 1]}), r'graph.graph\["routes"\] must be a list of paths'),
        (linked((0, 1), routes=[[0, 1], [0]]), r'graph.graph\["routes"\]\[1\] must be the nodes from one host'),
        (linked((0, 1), routes=[[0, [1]]]), "must be the nodes from one host to another"),
        (linked((0, 1), (1, "s"), routes=[[0, 1, "s"]]), "must lead from one host to another, got host:0 and s"),
        (linked((0, 1), (1, 0), routes=[[0, 1, 0]]), "must lead from one host to another, got host:0 and host:0"),
        (linked((0, 1), routes=[[1, 0]]), r"\[0\]: there is no link host:1 -> host:0"),
        (linked((0, 1), (1, 0), routes=[[0, 1, 0, 1]]), r"\[0\] takes a link twice"),
        (linked((0, 1), routes=[[0, 1], [0, 1]]), r"\[1\] is the second from host:0 to host:1"),
    ],
)
def test_graphs_that_are_no_topology_are_refused(graph, message):
    for use in (Routes, check_connected):
        with pytest.raises(ValueError, match=message):
            use(graph)
