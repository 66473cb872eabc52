"""Nodes of several GPUs: a fast switch inside each node, and one network card per node or per GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from simnet.base.quantities import Bandwidth, Count, Seconds, WorkerLink
from simnet.topologies.graphs import Graph, Node, affordable, checked, rate
from simnet.topologies.shapes import OUTSIDE, Cable, Choose, regular_graph


@checked
def multi_gpu_nodes(
    nodes: Count,
    gpus_per_node: Count,
    *,
    intra_latency: Seconds,
    intra_bandwidth: Bandwidth,
    nic_latency: Annotated[Seconds, WorkerLink],
    nic_bandwidth: Annotated[Bandwidth, WorkerLink],
    rails: bool = False,
    spines: Annotated[int, Ge(0)] = 0,
    spine_latency: Seconds | None = None,
    spine_bandwidth: Bandwidth | None = None,
) -> Graph:
    """Return `nodes` nodes of `gpus_per_node` GPUs, joined by one ideal switch, or by a switch for each rail.

    The GPUs are the hosts, numbered node by node: GPU g of node n is host n * `gpus_per_node` + g. Between two GPUs of
    one node a message pays `intra_latency` and can have `intra_bandwidth`. Between nodes it pays `intra_latency` +
    `nic_latency` and can have the less of `intra_bandwidth` and `nic_bandwidth`; the GPUs of a node share its card,
    which stands for all cards of a node that has several.

    With `rails` each GPU has a card of its own, and the cards of the g-th GPUs of all nodes meet in the switch of rail
    g: the rail-only network of Wang et al. On its rail a message pays `nic_latency` alone. To another rail it first
    crosses its node's switch to the GPU there whose rail is the destination's, which passes it on (as NCCL's PXN does),
    and pays `intra_latency` + `nic_latency`.

    With `spines` besides, every rail's switch has a link to each of as many spine switches: the rail-optimised network,
    in which any card reaches any other. GPUs then pass nothing on: to another rail of another node a message goes
    over a spine, one of them per pair (see `Routes`), and pays `nic_latency` + 2 `spine_latency`.

    Parameters
    ----------
    nodes : int
        Number of nodes, >= 1.
    gpus_per_node : int
        GPUs of each, >= 1.
    intra_latency : float
        From GPU to GPU inside a node [s], >= 0; half of it on each GPU's link to the node's switch.
    intra_bandwidth : float
        Of each GPU's link in each direction [byte/s], > 0.
    nic_latency : float
        From card to card through the fabric [s], >= 0; half of it on each card's link.
    nic_bandwidth : float
        Of each card in each direction [byte/s], > 0.
    rails : bool
        Whether each GPU has its own card, on a rail.
    spines : int
        Spine switches that join the rails, >= 0; needs `rails` where there are any.
    spine_latency : float, optional
        Of each link between a rail's switch and a spine [s], >= 0; by default half of `nic_latency`, as of a card's.
    spine_bandwidth : float, optional
        Of each such link in each direction [byte/s], > 0; by default `nodes` * `nic_bandwidth` / `spines`, with which
        the spines carry what all cards can send.

    Returns
    -------
    networkx.DiGraph
        Links of kind ``"intra"`` between a GPU and its node's switch ``"node:n"``, and ``"nic"`` between that and
        ``"fabric"``; with `rails` between a GPU and the switch ``"rail:g"``, and without `spines`
        ``graph.graph["hosts_forward"]`` is then True. Links between a rail and a spine, ``"spine:s"``, are of kind
        ``"fabric"``.

    References
    ----------
    W. Wang, M. Ghobadi, K. Shakeri, Y. Zhang, N. Hasani, "Rail-only: A Low-Cost High-Performance Network for Training
    LLMs with Trillion Parameters", HOTI 2024, which starts from the rail-optimised network and takes the spines away.

    Examples
    --------
    >>> from simnet.topologies import Routes
    >>> graph = multi_gpu_nodes(
    ...     2, 8, intra_latency=2e-6, intra_bandwidth=3e11, nic_latency=6e-6, nic_bandwidth=2.5e10
    ... )
    >>> routes = Routes(graph)
    >>> routes.bottleneck(0, 7), routes.bottleneck(0, 8)
    (300000000000.0, 25000000000.0)
    """
    nic_half = nic_latency / 2
    if not isinstance(rails, bool):
        raise ValueError(f"rails must be true or false, got {rails!r}")
    if spines and not rails:
        raise ValueError(f"spines join rails: rails must be true where there are spines, got {spines} spines")
    if not spines and (spine_latency is not None or spine_bandwidth is not None):
        raise ValueError("spine_latency and spine_bandwidth need spines, of which there are 0")
    cards = gpus_per_node if rails else 1
    links = 2 * nodes * (gpus_per_node + cards) + 2 * gpus_per_node * spines
    affordable(links, f"a cluster of {nodes:,} nodes of {gpus_per_node:,} GPUs")
    others = {"nic": (nic_half, nic_bandwidth)}
    numbers: dict[str, Any] = {"nodes": nodes, "gpus_per_node": gpus_per_node, "rails": rails}
    if spines:
        numbers["spines"] = spines
        others["fabric"] = (
            nic_half if spine_latency is None else spine_latency,
            rate(nodes * nic_bandwidth / spines if spine_bandwidth is None else spine_bandwidth, "spine_bandwidth"),
        )
    return regular_graph("multi_gpu_nodes", MultiGpuShape, numbers, intra_latency / 2, intra_bandwidth, others)


@dataclass(frozen=True)
class MultiGpuShape:
    """Cables and routes of multi-GPU nodes, without latencies and bandwidths of links."""

    nodes: int
    gpus_per_node: int
    rails: bool
    spines: int = 0

    @property
    def hosts_forward(self) -> bool:
        """Whether GPUs forward messages between rails; they do only if there are no spine switches."""
        return self.rails and not self.spines

    def cables(self) -> Iterator[Cable]:
        """Yield all cables, node by node."""
        for n in range(self.nodes):
            for g in range(self.gpus_per_node):
                yield n * self.gpus_per_node + g, f"node:{n}", "intra"
            if not self.rails:
                yield f"node:{n}", "fabric", "nic"
                continue
            for g in range(self.gpus_per_node):
                yield n * self.gpus_per_node + g, f"rail:{g}", "nic"
        if self.rails:
            for g in range(self.gpus_per_node):
                for s in range(self.spines):
                    yield f"rail:{g}", f"spine:{s}", "fabric"

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return the route from GPU `src` to GPU `dst`, over the switches inside nodes and between nodes."""
        (n, g), (to_n, to_g) = divmod(src, self.gpus_per_node), divmod(dst, self.gpus_per_node)
        if n == to_n:
            return [f"node:{n}", dst]
        if not self.rails:
            return [f"node:{n}", "fabric", f"node:{to_n}", dst]
        if g == to_g:
            return [f"rail:{g}", dst]
        if self.spines:
            return [f"rail:{g}", f"spine:{choose(f'rail:{g}', self.spines)}", f"rail:{to_g}", dst]
        return [f"node:{n}", n * self.gpus_per_node + to_g, f"rail:{to_g}", dst]

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return self.nodes * self.gpus_per_node

    def borders(self) -> list[Node]:
        """Return the switches where links from other sites end: spine switches, else rail switches, else the fabric."""
        if not self.rails:
            return ["fabric"]
        if self.spines:
            return [f"spine:{s}" for s in range(self.spines)]
        return [f"rail:{g}" for g in range(self.gpus_per_node)]

    def outward(self, src: int, choose: Choose) -> list[Node]:
        """Return the route from GPU `src` to a border node, at which links from other sites end."""
        n, g = divmod(src, self.gpus_per_node)
        if not self.rails:
            return [f"node:{n}", "fabric"]
        return [f"rail:{g}", *([f"spine:{choose(f'rail:{g}', self.spines)}"] if self.spines else [])]

    def inward(self, dst: int, choose: Choose) -> list[Node]:
        """Return the route from a border node to GPU `dst`, by the rail of that GPU if there are rails."""
        n, g = divmod(dst, self.gpus_per_node)
        if not self.rails:
            return ["fabric", f"node:{n}", dst]
        return [*([f"spine:{choose(OUTSIDE, self.spines)}"] if self.spines else []), f"rail:{g}", dst]
