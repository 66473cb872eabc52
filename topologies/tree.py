"""Tree: hosts under leaf switches, these under switches of the next level, up to one root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.checks import affordable, factor, rate, seconds, whole
from topologies.graphs import Node, cable, empty

if TYPE_CHECKING:
    import networkx as nx


def tree(hosts: int, arity: int, latency: float, bandwidth: float, taper: float = 1.0) -> nx.DiGraph[Node]:
    """Return `hosts` hosts as the leaves of a tree of switches with `arity` children each.

    All hosts stand at the same depth, in their order; where `hosts` is no power of `arity` the last switch of a level
    has fewer children. With one bandwidth everywhere the root is the bottleneck, as in a plain Ethernet tree.

    Parameters
    ----------
    hosts : int
        Number of hosts P, >= 1.
    arity : int
        Children of a switch, >= 2.
    latency : float
        Of each link [s], >= 0.
    bandwidth : float
        Of a host's link in each direction [byte/s], > 0.
    taper : float
        Bandwidth of a link over that of the links one level below it, > 0: 1 for the same everywhere, `arity` for a
        tree that is nowhere a bottleneck (each uplink carries what its children can send), less than 1 for one
        that narrows towards the root.

    Returns
    -------
    networkx.DiGraph
        Switch j of level i (level 1 above the hosts) is ``"switch:i.j"``. Links at hosts are of kind ``"host"``, the
        others ``"fabric"``.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> graph = tree(8, arity=2, latency=1e-6, bandwidth=1e9)
    >>> [sum(str(node).startswith(f"switch:{level}") for node in graph) for level in (1, 2, 3)]
    [4, 2, 1]
    """
    P, arity = whole(hosts, "hosts", 1), whole(arity, "arity", 2)
    latency, bandwidth, taper = seconds(latency, "latency"), rate(bandwidth, "bandwidth"), factor(taper, "taper")
    affordable(4 * P, f"a tree of {P:,} hosts")
    graph = empty("tree", P)
    children: list[Node] = list(range(P))
    level, kind = 1, "host"
    while level == 1 or len(children) > 1:
        above: list[Node] = [f"switch:{level}.{j}" for j in range(-(-len(children) // arity))]
        for i, child in enumerate(children):
            cable(graph, child, above[i // arity], latency, bandwidth, kind)
        children, level, kind = above, level + 1, "fabric"
        if len(children) > 1:
            bandwidth = rate(bandwidth * taper, f"bandwidth times taper at level {level}")
    return graph
