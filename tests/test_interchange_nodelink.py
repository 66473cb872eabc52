"""Node-link JSON: every topology there and back, files of networkx, and what is refused."""

import json

import networkx as nx
import pytest

from schedules import write_nodelink
from simnet.base.errors import InputError
from simnet.interchange.networkx_graphs import read_nodelink
from simnet.topologies import fat_tree, multi_gpu_nodes, ring, star, tree, wan
from simnet.topologies.graphs import check_graph

GRAPHS = [
    star(5, 1e-3, 1.1e9),
    ring(4, 0.1, 1e9 / 3),
    tree(9, 3, 1e-6, 1e9),
    fat_tree(4, 1e-6, 1.25e9),
    multi_gpu_nodes(2, 3, intra_latency=2e-6, intra_bandwidth=3e11, nic_latency=6e-6, nic_bandwidth=2.5e10),
    wan(["Zürich", "B"], [[0, 0.1], [0.2, 0]], [[0, 1e6], [2e6, 0]], 2),
]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.graph["name"])
def test_there_and_back(tmp_path, graph):
    write_nodelink(graph, tmp_path / "g.json")
    again = read_nodelink(tmp_path / "g.json")
    assert again.graph == graph.graph
    assert dict(again.nodes(data=True)) == dict(graph.nodes(data=True))
    assert list(again.edges(data=True)) == list(graph.edges(data=True))
    theirs = nx.node_link_graph(json.loads((tmp_path / "g.json").read_text(encoding="utf-8")), edges="edges")
    assert set(theirs.edges) == set(graph.edges)
    check_graph(theirs)


@pytest.mark.parametrize("name", ["edges", "links"])
def test_files_of_networkx(tmp_path, name):
    graph = nx.Graph()
    graph.add_edge(0, "s", latency=1e-3, bandwidth=10)
    graph.add_edge(1, "s", latency=2e-3, bandwidth=20)
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(graph, edges=name)))
    again = read_nodelink(tmp_path / "g.json")
    assert set(again.edges) == {(0, "s"), ("s", 0), (1, "s"), ("s", 1)}
    assert again.edges["s", 1] == {"latency": 2e-3, "bandwidth": 20}
    assert again.graph["hosts"] == 2


def link(**changes):
    return {"source": 0, "target": 1, "latency": 0, "bandwidth": 1} | changes


def graph(links, nodes=({"id": 0}, {"id": 1}), **more):
    return {"directed": True, "nodes": list(nodes), "edges": links} | more


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "g.json:1: is not JSON"),
        ("[]", "g.json: must be an object, got []"),
        ("[" * 100_000, "g.json: is nested too deep"),
        ("{}", "g.json: nodes: must be a list"),
        ('{"nodes": [], "egdes": []}', "g.json: edges: must be a list; did you mean 'egdes'?"),
        (graph([]) | {"nodes": [1]}, "g.json: nodes[0]: must be an object, got 1"),
        (graph([], nodes=[{"id": 1.5}]), "g.json: nodes[0].id: must be a host (a whole number) or a switch"),
        (graph([], nodes=[{"id": True}]), "g.json: nodes[0].id: must be a host"),
        (graph([], nodes=[{"id": 0}, {"id": 0}]), "g.json: nodes[1].id: host:0 stands twice"),
        (graph([], nodes=[{"id": "a"}]), "the topology has no hosts"),
        (graph([], nodes=[{"id": 0}, {"id": 2}]), "without gaps; 0 is followed by 2"),
        (graph([link(target=2)]), "g.json: edges[0].target: there is no node 2"),
        (graph([link(), link()]), "g.json: edges[1]: the link host:0 -> host:1 stands twice"),
        (graph([link(target=0)]), "leads from a node to itself"),
        (graph([link(bandwidth=0)]), "bandwidth of the link host:0 -> host:1 must be finite and > 0"),
        (graph([link(bandwidth=-1)]), "must be finite and > 0"),
        (graph([link(latency=-1)]), "latency of the link host:0 -> host:1 must be finite and >= 0"),
        (graph([link(latency="1 ms")]), "must be a number"),
        (graph([{"source": 0, "target": 1, "latency": 0}]), "has no attribute 'bandwidth'"),
        (graph([link(latency=float("nan"))]), "holds NaN, which is not JSON"),
        (graph([link(bandwidth=float("inf"))]), "holds Infinity, which is not JSON"),
        (graph([link()], multigraph=True), "g.json: multigraph: must be false"),
        (graph([link()], graph={"hosts": 3}), 'graph.graph["hosts"] is 3, but the graph has 2 hosts'),
        ('{"directed": true, "nodes": [{"id": ' + "1" * 5000 + '}], "edges": []}', "a number that is too long"),
    ],
)
def test_refusals(tmp_path, data, message):
    (tmp_path / "g.json").write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(InputError) as refused:
        read_nodelink(tmp_path / "g.json")
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path))
