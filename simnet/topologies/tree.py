"""Tree: hosts below leaf switches, which are below switches of the next level, up to one root switch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from simnet.base.quantities import Bandwidth, Count, Seconds, Slowdown
from simnet.topologies.graphs import Graph, Node, affordable, cable, checked, empty, rate
from simnet.topologies.shapes import Cable, Choose, CountedHosts, RouterHosts


@checked
def tree(
    hosts: Count, arity: Annotated[int, Ge(2)], latency: Seconds, bandwidth: Bandwidth, taper: Slowdown = 1.0
) -> Graph:
    """Return a tree of switches with `arity` children each, and `hosts` hosts as its leaves.

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

    Examples
    --------
    >>> graph = tree(8, arity=2, latency=1e-6, bandwidth=1e9)
    >>> [sum(str(node).startswith(f"switch:{level}") for node in graph) for level in (1, 2, 3)]
    [4, 2, 1]
    """
    P = hosts
    affordable(4 * P, f"a tree of {P:,} hosts")
    graph = empty("tree", P, shape={"hosts": P, "arity": arity})
    for level, cables in enumerate(TreeShape(P, arity).levels(), 1):
        if level > 1:
            bandwidth = rate(bandwidth * taper, f"bandwidth times taper at level {level}")
        for a, b, kind in cables:
            cable(graph, a, b, latency, bandwidth, kind)
    return graph


@dataclass(frozen=True)
class TreeShape(CountedHosts, RouterHosts):
    """Cables and routes of a tree of switches, without latencies and bandwidths of links."""

    arity: int

    def levels(self) -> Iterator[Iterator[Cable]]:
        """Yield, for each level of switches from the lowest, the cables from its switches to the nodes below."""
        level, children = 1, self.hosts
        while level == 1 or children > 1:
            yield self._below(level, children)
            level, children = level + 1, -(-children // self.arity)

    def _below(self, level: int, children: int) -> Iterator[Cable]:
        for i in range(children):
            above = f"switch:{level}.{i // self.arity}"
            yield (i, above, "host") if level == 1 else (f"switch:{level - 1}.{i}", above, "fabric")

    def cables(self) -> Iterator[Cable]:
        """Yield the cable from each node but the root to its parent switch."""
        return (cable for level in self.levels() for cable in level)

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to `dst`: up to the lowest common switch, then down."""
        up, down = self.outward(src, choose), self.outward(dst, choose)
        level = next(level for level, (left, right) in enumerate(zip(up, down, strict=True)) if left == right)
        return [*up[: level + 1], *reversed(down[:level]), dst]

    def borders(self) -> list[Node]:
        """Return the root switch, which is the border node: links from other sites end there."""
        return self.outward(0, lambda at, ways: 0)[-1:]

    def outward(self, src: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to the border node: the switches above it, the root last."""
        nodes: list[Node] = []
        level, at, width = 1, src // self.arity, -(-self.hosts // self.arity)
        while width > 1:
            nodes.append(f"switch:{level}.{at}")
            level, at, width = level + 1, at // self.arity, -(-width // self.arity)
        return [*nodes, f"switch:{level}.{at}"]
