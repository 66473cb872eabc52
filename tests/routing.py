"""Topologies, their routes and flows as tests look at them."""

import itertools

import networkx as nx

from simnet.topologies import dragonfly, fat_tree, flattened_butterfly, multi_gpu_nodes, ring, star, torus, tree

LINK = {"latency": 1e-6, "bandwidth": 8.0}
GPUS = {"intra_latency": 2e-6, "intra_bandwidth": 3e11, "nic_latency": 6e-6, "nic_bandwidth": 2.5e10}

OF_SEARCH = {
    "star": lambda: star(6, **LINK),
    "ring": lambda: ring(6, **LINK),
    "tree": lambda: tree(9, 2, **LINK),
    "fat_tree": lambda: fat_tree(4, **LINK),
    "flattened": lambda: flattened_butterfly((3, 2, 2), 2, **LINK),
    "cluster": lambda: multi_gpu_nodes(3, 2, **GPUS),
    "spines": lambda: multi_gpu_nodes(3, 2, **GPUS, rails=True, spines=3),
}
"""Families whose routes are those that a search finds."""

OF_THEIR_OWN = {
    "torus": lambda: torus((4, 3), **LINK),
    "dragonfly": lambda: dragonfly(2, **LINK),
    "rails": lambda: multi_gpu_nodes(3, 2, **GPUS, rails=True),
}
"""Families with routes of their own."""


def searched(graph):
    """The graph without what it says of its shape."""
    plain = graph.copy()
    del plain.graph["shape"]
    return plain


def pairs_of(routes):
    return list(itertools.product(range(routes.n_hosts), repeat=2))


def flow(graph, senders, receivers):
    """What the senders together can send to the receivers [byte/s]: a maximum flow."""
    extended = nx.DiGraph()
    extended.add_edges_from((u, v, {"capacity": link["bandwidth"]}) for u, v, link in graph.edges(data=True))
    extended.add_edges_from(("source", host) for host in senders)
    extended.add_edges_from((host, "sink") for host in receivers)
    return nx.maximum_flow_value(extended, "source", "sink")


def nodes_of(routes, src, dst):
    """The nodes of a route, which is checked to be one: contiguous and from src to dst."""
    links = [routes.links[link] for link in routes.route(src, dst)]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(links))
    path = [src, *(v for _, v in links)]
    assert path[-1] == dst
    return path
