"""A topology: hosts in a line."""

from __future__ import annotations

import networkx as nx

from simnet.base.quantities import Bandwidth, Count, Seconds


def line(hosts: Count, latency: Seconds, bandwidth: Bandwidth) -> nx.DiGraph[int]:
    """Return hosts in a line, each of which passes on what is not for it.

    Parameters
    ----------
    hosts : int
        Number of hosts P, >= 1.
    latency : float
        Of each link [s], >= 0.
    bandwidth : float
        Of each link in each direction [byte/s], > 0.
    """
    graph: nx.DiGraph[int] = nx.DiGraph(name="line", hosts=hosts, hosts_forward=True)
    graph.add_nodes_from(range(hosts))
    for host in range(hosts - 1):
        for src, dst in ((host, host + 1), (host + 1, host)):
            graph.add_edge(src, dst, latency=latency, bandwidth=bandwidth, kind="host")
    return graph
