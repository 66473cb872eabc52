"""Fat-tree: three levels of equal k-port switches, with full bisection bandwidth unless oversubscribed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le, MultipleOf

from simnet.base.quantities import Bandwidth, Seconds
from simnet.topologies.graphs import Graph, Node, affordable, checked, rate
from simnet.topologies.shapes import OUTSIDE, Cable, Choose, ChooseAll, Places, regular_graph


@checked
def fat_tree(
    k: Annotated[int, Ge(2), MultipleOf(2)],
    latency: Seconds,
    bandwidth: Bandwidth,
    oversubscription: Annotated[float, Ge(1), Le(1e6)] = 1.0,
) -> Graph:
    """Return the k-ary fat-tree of k**3 / 4 hosts.

    k pods, each with k/2 edge and k/2 aggregation switches, fully meshed; k/2 hosts at each edge switch; (k/2)**2 core
    switches, each with one link to every pod. Hosts are numbered edge switch by edge switch, pod by pod. Two hosts at
    one edge switch are 2 links apart, in one pod 4, in two pods 6, by (k/2)**2 paths.

    Parameters
    ----------
    k : int
        Ports of a switch, even and >= 2.
    latency : float
        Of each link [s], >= 0.
    bandwidth : float
        Of a host's link in each direction [byte/s], > 0.
    oversubscription : float
        What the hosts of an edge switch can send over what its uplinks can carry, >= 1. Links between switches
        have `bandwidth` / `oversubscription`: the narrowing is in the links rather than in fewer switches, so that any
        ratio is possible, the paths stay the same, and the bisection bandwidth is exactly k**3 / 8 * `bandwidth` /
        `oversubscription` (from one half of the pods to the other).

    Returns
    -------
    networkx.DiGraph
        3 k**3 / 2 links: k**3 / 2 of kind ``"host"``, the others ``"fabric"``. Switches are ``"edge:POD.I"``,
        ``"agg:POD.J"`` and ``"core:J.I"``; core switch J.I is linked to aggregation switch J of every pod.

    References
    ----------
    M. Al-Fares, A. Loukissas, A. Vahdat, "A Scalable, Commodity Data Center Network Architecture", SIGCOMM 2008.

    Examples
    --------
    >>> graph = fat_tree(4, latency=1e-6, bandwidth=1.25e9, oversubscription=2)
    >>> graph.graph["hosts"], graph.number_of_edges(), graph["edge:0.0"]["agg:0.1"]["bandwidth"]
    (16, 96, 625000000.0)
    """
    if k % 2:
        raise ValueError(
            f"k must be even, got {k}; k = {k - 1} has {(k - 1) ** 3 // 4} hosts, k = {k + 1} {(k + 1) ** 3 // 4}"
        )
    inner = rate(bandwidth / oversubscription, "bandwidth over oversubscription")
    affordable(3 * k**3 // 2, f"a fat-tree of k = {k:,}")
    return regular_graph("fat_tree", FatTreeShape, {"k": k}, latency, inner, {"host": (latency, bandwidth)})


@dataclass(frozen=True)
class FatTreeShape:
    """Cables and routes of a fat-tree, without latencies and bandwidths of links."""

    k: int
    hosts_forward: ClassVar[bool] = False

    def cables(self) -> Iterator[Cable]:
        """Yield all cables, pod by pod."""
        half = range(self.k // 2)
        host = 0
        for pod in range(self.k):
            for i in half:
                edge = f"edge:{pod}.{i}"
                for _ in half:
                    yield host, edge, "host"
                    host += 1
                for j in half:
                    yield edge, f"agg:{pod}.{j}", "fabric"
            for j in half:
                for i in half:
                    yield f"agg:{pod}.{j}", f"core:{j}.{i}", "fabric"

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to `dst`: up by switches that `choose` picks, then the only path down."""
        half = self.k // 2
        (pod, i), (to_pod, to_i) = divmod(src // half, half), divmod(dst // half, half)
        edge = f"edge:{pod}.{i}"
        if (pod, i) == (to_pod, to_i):
            return [edge, dst]
        j = choose(edge, half)
        agg = f"agg:{pod}.{j}"
        if pod == to_pod:
            return [edge, agg, f"edge:{to_pod}.{to_i}", dst]
        core = f"core:{j}.{choose(agg, half)}"
        return [edge, agg, core, f"agg:{to_pod}.{j}", f"edge:{to_pod}.{to_i}", dst]

    def paths(self, src: Places, dst: Places, choose: ChooseAll, place: Mapping[Node, int]) -> list[Places]:
        """Return the routes of many pairs of hosts: for each hop, an array of next nodes' indices, -1 for no node."""
        k, half = self.k, self.k // 2
        edges = np.array([[place[f"edge:{pod}.{i}"] for i in range(half)] for pod in range(k)])
        aggs = np.array([[place[f"agg:{pod}.{j}"] for j in range(half)] for pod in range(k)])
        cores = np.array([[place[f"core:{j}.{i}"] for i in range(half)] for j in range(half)])
        (pod, i), (to_pod, to_i) = divmod(src // half, half), divmod(dst // half, half)
        edge, to_edge = edges[pod, i], edges[to_pod, to_i]
        j = choose(edge, half)
        core = np.where(pod == to_pod, -1, cores[j, choose(aggs[pod, j], half)])
        up, down = np.where(edge == to_edge, -1, aggs[pod, j]), np.where(pod == to_pod, -1, aggs[to_pod, j])
        return [edge, up, core, down, np.where(edge == to_edge, -1, to_edge), dst]

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return self.k * (self.k // 2) ** 2

    def borders(self) -> list[Node]:
        """Return the core switches, which are the border nodes: links from other sites end there."""
        half = self.k // 2
        return [f"core:{j}.{i}" for j in range(half) for i in range(half)]

    def outward(self, src: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to a border node: up by switches that `choose` picks, to a core switch."""
        half = self.k // 2
        pod, i = divmod(src // half, half)
        edge = f"edge:{pod}.{i}"
        j = choose(edge, half)
        agg = f"agg:{pod}.{j}"
        return [edge, agg, f"core:{j}.{choose(agg, half)}"]

    def inward(self, dst: int, choose: Choose) -> list[Node]:
        """Return the route from a border node to host `dst`: a core switch that `choose` picks, then the path down."""
        half = self.k // 2
        pod, to_i = divmod(dst // half, half)
        j, i = divmod(choose(OUTSIDE, half * half), half)
        return [f"core:{j}.{i}", f"agg:{pod}.{j}", f"edge:{pod}.{to_i}", dst]
