"""Graphs that are made when somebody looks: the same as those that are made at once, whatever is looked at first."""

import subprocess
import sys

import networkx as nx
import numpy as np
import pytest

from simnet.topologies import Routes, build, check_connected, select_links
from simnet.topologies.deferred import Deferred, nodes_and_links

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
