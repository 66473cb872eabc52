"""Graphs that are made when somebody looks: the same as those that are made at once, whatever is looked at first."""

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import networkx as nx
import numpy as np
import pytest

from simnet.topologies import Routes, build, check_connected, select_links
from simnet.topologies.deferred import Deferred, add_link, add_node, deferred, nodes_and_links

LINK = {"latency": 1e-3, "bandwidth": 1e9}
NODES = {"intra_latency": 1e-6, "intra_bandwidth": 1e11, "nic_latency": 1e-5, "nic_bandwidth": 1e10}
FAMILIES = [
    ("star", {"hosts": 5, **LINK}),
    ("ring", {"hosts": 2, **LINK}),
    ("ring", {"hosts": 5, **LINK}),
    ("tree", {"hosts": 7, "arity": 2, **LINK, "taper": 0.5}),
    ("fat_tree", {"k": 4, **LINK, "oversubscription": 2}),
    ("torus", {"dims": (2, 3), **LINK}),
    ("dragonfly", {"routers": 4, **LINK, "groups": 3}),
    ("wan", {"sites": ["Oregon", "Tokyo", "Lagos"], "workers_per_site": 2, **LINK}),
    ("multi_gpu_nodes", {"nodes": 2, "gpus_per_node": 2, **NODES}),
]


def parts(graph):
    """Everything about a graph, in its order."""
    ways = [[(node, list(near.items())) for node, near in one.items()] for one in (graph.succ, graph.pred)]
    return graph.graph, list(graph.nodes(data=True)), *ways


@pytest.mark.parametrize(("family", "parameters"), FAMILIES)
def test_it_becomes_the_graph_that_networkx_makes_at_once(family, parameters, monkeypatch):
    def at_once(nodes, **facts):
        graph = nx.DiGraph(**facts)
        graph.add_nodes_from(nodes)
        return graph

    graph, sent = build(family, **parameters), Routes(build(family, **parameters), seed=3)
    kept = nodes_and_links(graph)
    selected = select_links(graph, "host:1")
    assert type(graph) is Deferred
    monkeypatch.setattr("simnet.topologies.graphs.deferred", at_once)
    made = build(family, **parameters)
    assert type(made) is nx.DiGraph
    assert kept == nodes_and_links(made) == (list(made), list(made.edges(data=True)))
    assert selected == select_links(made, "host:1")
    assert parts(graph) == parts(made)
    assert not {"_nodes", "_recorded"} & vars(graph).keys()
    assert type(graph) is nx.DiGraph
    assert nodes_and_links(graph) == kept
    pairs = np.indices((sent.n_hosts, sent.n_hosts)).reshape(2, -1)
    for other in (graph, made):
        routes = Routes(other, seed=3)
        assert (routes.links, routes.kinds) == (sent.links, sent.kinds)
        assert (routes.latency == sent.latency).all()
        assert (routes.bandwidth == sent.bandwidth).all()
        assert (routes.table(*pairs) == sent.table(*pairs)).all()


LOOKS = {
    "length": lambda graph: len(graph) == 4,
    "iteration": lambda graph: list(graph) == [0, 1, 2, "switch"],
    "membership": lambda graph: 2 in graph and 3 not in graph,
    "an item": lambda graph: list(graph["switch"]) == [0, 1, 2],
    "text": lambda graph: str(graph) == "DiGraph named 'star' with 4 nodes and 6 edges",
    "form": lambda graph: repr(graph).startswith("<networkx.classes.digraph.DiGraph object at "),
    "names": lambda graph: "successors" in dir(graph),
    "truth": bool,
    "an attribute": lambda graph: graph.number_of_edges() == 6,
    "no attribute": lambda graph: not hasattr(graph, "n_edges"),
    "an algorithm": lambda graph: nx.shortest_path(graph, 0, 2) == [0, "switch", 2],
    "a copy": lambda graph: parts(graph.copy()) == parts(graph),
    "a shallow copy": lambda graph: copy.copy(graph).succ == graph.succ,
    "a deep copy": lambda graph: parts(copy.deepcopy(graph)) == parts(graph),
    "a pickle": lambda graph: parts(pickle.loads(pickle.dumps(graph))) == parts(graph),
    "a subgraph": lambda graph: list(graph.subgraph([0, "switch"]).edges) == [(0, "switch"), ("switch", 0)],
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_any_look_makes_it(look):
    graph = build("star", hosts=3, **LINK)
    before = hash(graph), {graph: "here"}, graph.graph
    assert type(graph) is Deferred
    assert look(graph)
    assert type(graph) is nx.DiGraph
    assert (hash(graph), before[1][graph], graph.graph is before[2]) == (before[0], "here", True)
    assert parts(graph) == parts(nx.DiGraph(graph))


def test_it_is_a_graph_before_anything_is_looked_at():
    graph = build("star", hosts=3, **LINK)
    assert isinstance(graph, nx.DiGraph)
    assert isinstance(graph, nx.Graph)
    assert not isinstance(graph, nx.MultiGraph)
    assert graph.__class__ is nx.DiGraph
    assert graph.__class__(graph).number_of_edges() == 6


def test_what_is_changed_before_anything_is_looked_at_is_in_it():
    graph = build("star", hosts=2, **LINK)
    graph.graph["shape"] = {"hosts": 3}
    assert Routes(graph)._shape is None
    graph.graph["shape"] = {"hosts": 2}
    assert Routes(graph)._shape is not None
    graph.name = "mine"
    assert graph.graph == {"name": "mine", "hosts": 2, "shape": {"hosts": 2}}
    other = build("star", hosts=2, **LINK)
    other.remove_edge(0, "switch")
    with pytest.raises(ValueError, match="there is no route from host 0 to host 1"):
        check_connected(other)


def test_what_is_told_twice_is_there_once_with_all_attributes():
    graphs = deferred(range(2), name="pair"), nx.DiGraph(name="pair")
    graphs[1].add_nodes_from(range(2))
    for graph in graphs:
        add_link(graph, 1, "s", kind="host", weight=1.0)
        add_node(graph, "s", site="here")
        add_link(graph, 0, 1)
        add_link(graph, 1, "s", weight=2.0)
        add_link(graph, "r", 0)
    assert nodes_and_links(graphs[0]) == nodes_and_links(graphs[1])
    assert type(graphs[0]) is Deferred
    assert parts(graphs[0]) == parts(graphs[1])


def test_threads_that_look_at_once_see_all_of_one_graph():
    for _ in range(20):
        graph, ready = build("fat_tree", k=4, **LINK), Barrier(4)

        def look(node, graph=graph, ready=ready):
            ready.wait()
            graph.add_node(node)
            return graph.number_of_edges()

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(look, "abcd")) == [96] * 4
        assert {*"abcd"} <= set(graph)


def test_a_network_that_only_times_does_without_networkx():
    code = (
        "import sys\n"
        "from simnet import collectives, topologies\n"
        "from simnet.network import Network\n"
        "for family, size in ('star', {'hosts': 4}), ('ring', {'hosts': 4}), ('fat_tree', {'k': 4}):\n"
        "    graph = topologies.build(family, **size, latency=1e-3, bandwidth=1e9)\n"
        "    for stack in 'ideal', 'tcp':\n"
        "        Network(graph, stack=stack).time(collectives.allreduce_ring(4, 1e6)).finish\n"
        "assert 'networkx' not in sys.modules, 'a graph is made that nobody looks at'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
