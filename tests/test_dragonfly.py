"""Dragonfly: shape against the closed forms of Kim et al., minimal routes against a search with one global link."""

import itertools
from collections import Counter

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing import LINK, nodes_of
from simnet.topologies import Routes, check_connected, dragonfly, select_links


@st.composite
def sizes(draw, most=60):
    a, p, h = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    largest = min(a * h + 1, max(1, most // (a * p)))
    return {"routers": a, "hosts_per_router": p, "global_links": h, "groups": draw(st.integers(1, largest))}


def kinds(graph, path):
    return [graph[u][v]["kind"] for u, v in itertools.pairwise(path)]


def with_one_global_link(graph):
    """Two copies of the graph without its global links, which lead from the one to the other: a walk takes one."""
    layered = nx.DiGraph()
    for u, v, link in graph.edges(data=True):
        if link["kind"] == "global":
            layered.add_edge((u, 0), (v, 1))
        else:
            layered.add_edges_from([((u, 0), (v, 0)), ((u, 1), (v, 1))])
    return layered


@settings(max_examples=80)
@given(sizes())
def test_counts_are_those_of_the_paper(given_sizes):
    a, p, h, g = (given_sizes[name] for name in ("routers", "hosts_per_router", "global_links", "groups"))
    graph = dragonfly(**given_sizes, **LINK)
    assert graph.graph["hosts"] == a * p * g
    assert sum(isinstance(node, str) for node in graph) == a * g
    by_kind = Counter(link["kind"] for _, _, link in graph.edges(data=True))
    assert by_kind["host"] == 2 * a * p * g
    assert by_kind["local"] == g * a * (a - 1)
    # Any two groups are joined by floor(a h / (g - 1)) links; those in parallel are one link of their bandwidth.
    between = Counter()
    for u, v, link in graph.edges(data=True):
        if link["kind"] == "global":
            between[u.split(".")[0], v.split(".")[0]] += link["bandwidth"] / LINK["bandwidth"]
            assert graph[v][u] == link
    groups = [f"router:{G}" for G in range(g)]
    assert between == dict.fromkeys(itertools.permutations(groups, 2), a * h // (g - 1) if g > 1 else 0)
    ports = Counter()
    for u, _, link in graph.edges(data=True):
        if link["kind"] == "global":
            ports[u] += link["bandwidth"] / LINK["bandwidth"]
    assert all(count <= h for count in ports.values())
    if g == a * h + 1:
        assert len(ports) == a * g or g == 1
        assert set(ports.values()) <= {h}
    check_connected(graph)


@given(sizes(most=40), st.integers(0, 3), st.sampled_from(["hash", "single"]))
def test_routes_are_minimal_among_those_with_at_most_one_global_link(given_sizes, seed, routing):
    graph = dragonfly(**given_sizes, **LINK)
    routes = Routes(graph, seed, routing)
    per_group = given_sizes["routers"] * given_sizes["hosts_per_router"]
    distance = dict(nx.all_pairs_shortest_path_length(with_one_global_link(graph)))
    for src, dst in itertools.permutations(range(routes.n_hosts), 2):
        path = nodes_of(routes, src, dst)
        inside = src // per_group == dst // per_group
        assert len(path) - 1 == distance[src, 0][dst, 0 if inside else 1]
        taken = kinds(graph, path)
        assert (taken[0], taken[-1]) == ("host", "host")
        assert taken.count("global") == (0 if inside else 1)
        assert set(taken[1:-1]) <= {"local", "global"}
        assert len(path) <= 6


def test_example_of_the_paper():
    # Figure 5: p = h = 2 and a = 4 make 9 groups and N = 72 terminals of routers with 7 ports.
    graph = dragonfly(4, **LINK)
    assert (graph.graph["hosts"], graph.out_degree("router:0.0")) == (72, 7)
    # Palm tree: the links of group 0 lead to groups 1, 2, ... in the order of its routers.
    leading = select_links(graph, "global")
    reached = [{v.split(".")[0] for u, v in leading if u == f"router:0.{R}"} for R in range(4)]
    assert reached == [{f"router:{2 * R + 1}", f"router:{2 * R + 2}"} for R in range(4)]


def test_way_back_is_the_way_there_where_two_groups_share_one_link():
    routes = Routes(dragonfly(4, **LINK))
    for src, dst in itertools.combinations(range(72), 2):
        assert nodes_of(routes, src, dst) == nodes_of(routes, dst, src)[::-1]


def test_pairs_spread_over_the_equal_links_between_two_groups():
    graph = dragonfly(8, **LINK, groups=3, hosts_per_router=8, global_links=2)
    routes = Routes(graph)
    taken = Counter(
        link
        for src, dst in itertools.product(range(64), range(64, 128))
        for link in itertools.pairwise(nodes_of(routes, src, dst))
        if graph.edges[link]["kind"] == "global"
    )
    joined = [link for link in select_links(graph, "global") if link[0].startswith("router:0.") and ":1." in link[1]]
    assert set(taken) == set(joined)
    assert max(taken.values()) < 2 * min(taken.values())
    # From the hosts of one router to one host, `single` takes one way after the host's own link.
    single = Routes(graph, routing="single")
    assert len({single.route(src, 70)[1:] for src in range(8)}) == 1
    assert len({routes.route(src, 120)[1:] for src in range(16, 24)}) > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"routers": 0}, "routers must be a whole number >= 1, got 0"),
        ({"routers": 3}, "hosts_per_router and global_links must be given where routers is odd, got 3"),
        ({"routers": 3, "global_links": 1}, "hosts_per_router and global_links must be given"),
        ({"groups": 10}, r"groups must be at most 9, routers \* global_links \+ 1, got 10"),
        ({"groups": 0}, "groups must be a whole number >= 1, got 0"),
        ({"hosts_per_router": 0}, "hosts_per_router must be a whole number >= 1"),
        ({"global_links": 1.5}, "global_links must be a whole number"),
        ({"global_latency": -1}, "global_latency must be finite and >= 0"),
        ({"global_bandwidth": 0}, "global_bandwidth must be finite and > 0"),
        ({"groups": 2, "global_bandwidth": 1e18}, "global_bandwidth of parallel links must be <= 1e\\+18"),
        ({"routers": 10**6}, "at most 1,000,000"),
        ({"latency": "1 us"}, "latency must be a number"),
        ({"bandwidth": None}, "bandwidth must be a number"),
    ],
)
def test_dragonfly_says_what_is_allowed(change, message):
    with pytest.raises(ValueError, match=message):
        dragonfly(**{"routers": 4, **LINK, **change})
