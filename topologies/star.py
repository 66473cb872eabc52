"""Star: every host on one ideal switch, the network that the alpha-beta cost model has in mind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.checks import affordable, rate, seconds, whole
from topologies.graphs import Node, cable, empty

if TYPE_CHECKING:
    import networkx as nx


def star(hosts: int, latency: float, bandwidth: float) -> nx.DiGraph[Node]:
    """Return `hosts` hosts on one switch.

    Each host link has half the latency, so that a message between any two hosts pays `latency` once (alpha) and, on an
    idle network, 1 / `bandwidth` per byte (beta).

    Parameters
    ----------
    hosts : int
        Number of hosts P, >= 1.
    latency : float
        From host to host [s], >= 0.
    bandwidth : float
        Of each link in each direction [byte/s], > 0.

    Returns
    -------
    networkx.DiGraph
        2 P links of kind ``"host"``; the switch is ``"switch"``.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> from topologies import Routes
    >>> routes = Routes(star(4, latency=1e-3, bandwidth=1e9))
    >>> routes.path_latency(0, 3), routes.bottleneck(0, 3)
    (0.001, 1000000000.0)
    """
    P = whole(hosts, "hosts", 1)
    half, bandwidth = seconds(latency, "latency") / 2, rate(bandwidth, "bandwidth")
    affordable(2 * P, f"a star of {P:,} hosts")
    graph = empty("star", P)
    for host in range(P):
        cable(graph, host, "switch", half, bandwidth, "host")
    return graph
