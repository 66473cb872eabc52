"""Nodes of several GPUs: a fast switch inside each node, one shared network card out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.checks import affordable, rate, seconds, whole
from topologies.graphs import Node, cable, empty

if TYPE_CHECKING:
    import networkx as nx


def multi_gpu_nodes(
    nodes: int,
    gpus_per_node: int,
    *,
    intra_latency: float,
    intra_bandwidth: float,
    nic_latency: float,
    nic_bandwidth: float,
) -> nx.DiGraph[Node]:
    """Return `nodes` nodes of `gpus_per_node` GPUs on one ideal fabric switch.

    The GPUs are the hosts, numbered node by node: GPU g of node n is host n * `gpus_per_node` + g. Between two GPUs of
    one node a message pays `intra_latency` and can have `intra_bandwidth`. Between nodes it pays `intra_latency` +
    `nic_latency` and can have the less of `intra_bandwidth` and `nic_bandwidth`; the GPUs of a node share its card,
    which stands for all cards of a node that has several.

    Parameters
    ----------
    nodes, gpus_per_node : int
        Both >= 1.
    intra_latency : float
        From GPU to GPU inside a node [s], >= 0; half of it on each GPU's link to the node's switch.
    intra_bandwidth : float
        Of each GPU's link in each direction [byte/s], > 0.
    nic_latency : float
        From card to card through the fabric [s], >= 0; half of it on each card's link.
    nic_bandwidth : float
        Of each node's card in each direction [byte/s], > 0.

    Returns
    -------
    networkx.DiGraph
        Links of kind ``"intra"`` between a GPU and its node's switch ``"node:n"``, and ``"nic"`` between that and
        ``"fabric"``.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> from topologies import Routes
    >>> graph = multi_gpu_nodes(
    ...     2, 8, intra_latency=2e-6, intra_bandwidth=3e11, nic_latency=6e-6, nic_bandwidth=2.5e10
    ... )
    >>> routes = Routes(graph)
    >>> routes.bottleneck(0, 7), routes.bottleneck(0, 8)
    (300000000000.0, 25000000000.0)
    """
    nodes, gpus_per_node = whole(nodes, "nodes", 1), whole(gpus_per_node, "gpus_per_node", 1)
    intra_half, intra_bandwidth = seconds(intra_latency, "intra_latency") / 2, rate(intra_bandwidth, "intra_bandwidth")
    nic_half, nic_bandwidth = seconds(nic_latency, "nic_latency") / 2, rate(nic_bandwidth, "nic_bandwidth")
    affordable(2 * nodes * (gpus_per_node + 1), f"a cluster of {nodes:,} nodes of {gpus_per_node:,} GPUs")
    graph = empty("multi_gpu_nodes", nodes * gpus_per_node)
    for n in range(nodes):
        for g in range(gpus_per_node):
            cable(graph, n * gpus_per_node + g, f"node:{n}", intra_half, intra_bandwidth, "intra")
        cable(graph, f"node:{n}", "fabric", nic_half, nic_bandwidth, "nic")
    return graph
