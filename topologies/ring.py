"""Ring: every host wired to its two neighbours, without switches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.checks import affordable, rate, seconds, whole
from topologies.graphs import Node, cable, empty

if TYPE_CHECKING:
    import networkx as nx


def ring(hosts: int, latency: float, bandwidth: float) -> nx.DiGraph[Node]:
    """Return `hosts` hosts in a ring, with a link in both directions between neighbours.

    A message to a host that is not a neighbour passes through the hosts between, the shorter way round; which way a
    message goes to the host right opposite is chosen per pair (see `Routes`).

    Parameters
    ----------
    hosts : int
        Number of hosts P, >= 1. Two hosts have one link in each direction, one host has none.
    latency : float
        Of each link [s], >= 0.
    bandwidth : float
        Of each link [byte/s], > 0.

    Returns
    -------
    networkx.DiGraph
        2 P links of kind ``"host"`` (for P > 2), and ``graph.graph["hosts_forward"]`` True.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> from topologies import Routes
    >>> routes = Routes(ring(5, latency=1e-3, bandwidth=1e9))
    >>> [routes.links[link] for link in routes.route(0, 3)]
    [(0, 4), (4, 3)]
    """
    P = whole(hosts, "hosts", 1)
    latency, bandwidth = seconds(latency, "latency"), rate(bandwidth, "bandwidth")
    affordable(2 * P, f"a ring of {P:,} hosts")
    graph = empty("ring", P, hosts_forward=True)
    for host in range(P if P > 2 else P - 1):
        cable(graph, host, (host + 1) % P, latency, bandwidth, "host")
    return graph
