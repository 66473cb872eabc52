"""Dragonfly: groups of fully meshed routers; long global links connect every pair of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from simnet.base.quantities import Bandwidth, Count, Seconds
from simnet.topologies.graphs import Graph, Node, affordable, cable, checked, empty, rate
from simnet.topologies.shapes import Cable, Choose, RouterHosts


@checked
def dragonfly(
    routers: Count,
    latency: Seconds,
    bandwidth: Bandwidth,
    *,
    groups: Count | None = None,
    hosts_per_router: Count | None = None,
    global_links: Count | None = None,
    global_latency: Seconds | None = None,
    global_bandwidth: Bandwidth | None = None,
) -> Graph:
    """Return a dragonfly of `groups` groups of `routers` routers, with hosts at each router.

    In the symbols of Kim et al.: each of g groups has a routers; each router has p hosts, a link to each other
    router of its group, and h global links to routers of other groups. Hosts are numbered router by router, group by
    group. Routes are the minimal ones of the paper: within the source's group to a router with a global link to the
    destination's group, over that link, and within that group to the destination's router; never through a third
    group. Among several global links between two groups a message takes one that leads to the fewest links; among
    equally good ones the choice is made per pair (see `Routes`).

    Global links are numbered 0 .. a h - 1 through a group's routers, h to each, and link q leads to the group that is
    q + 1 groups further on (the palm-tree arrangement). With fewer than a h + 1 groups the count starts again after
    g - 1 links, so that any two groups are joined by floor(a h / (g - 1)) links; those left over are not used.

    Parameters
    ----------
    routers : int
        Routers of a group, a >= 1.
    latency : float
        Of each link [s], >= 0.
    bandwidth : float
        Of each link in each direction [byte/s], > 0.
    groups : int, optional
        g, from 1 to a h + 1, which is the default and joins any two groups by one link.
    hosts_per_router : int, optional
        p >= 1; by default a / 2 for the balanced a = 2 p = 2 h.
    global_links : int, optional
        Of each router, h >= 1; by default a / 2.
    global_latency, global_bandwidth : float, optional
        Of each global link, where not the same as of the others.

    Returns
    -------
    networkx.DiGraph
        Links of kind ``"host"``, ``"local"`` and ``"global"``; router R of group G is ``"router:G.R"``. Global links
        that would run in parallel between two routers are one link of their summed bandwidth.

    Raises
    ------
    ValueError
        If a parameter is out of range, or a is odd and p or h is not given.

    References
    ----------
    J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008,
    sections 3 and 4.1. C. Camarero, E. Vallejo, R. Beivide, "Topological Characterization of Hamming and Dragonfly
    Networks and Its Implications on Routing", ACM TACO 11(4), 2014 (the palm-tree arrangement).

    Examples
    --------
    >>> from simnet.topologies import Routes
    >>> graph = dragonfly(4, latency=1e-6, bandwidth=1e9, global_latency=1e-5)
    >>> graph.graph["hosts"], graph.number_of_nodes() - graph.graph["hosts"], graph.number_of_edges()
    (72, 36, 324)
    >>> routes = Routes(graph)
    >>> [routes.links[link] for link in routes.route(0, 71)][1:-1]
    [('router:0.0', 'router:0.3'), ('router:0.3', 'router:8.0'), ('router:8.0', 'router:8.3')]
    """
    a = routers
    if a % 2 and (hosts_per_router is None or global_links is None):
        raise ValueError(f"hosts_per_router and global_links must be given where routers is odd, got {a} routers")
    p = a // 2 if hosts_per_router is None else hosts_per_router
    h = a // 2 if global_links is None else global_links
    g = a * h + 1 if groups is None else groups
    if g > a * h + 1:
        raise ValueError(f"groups must be at most {a * h + 1}, routers * global_links + 1, got {g}")
    far = latency if global_latency is None else global_latency
    wide = bandwidth if global_bandwidth is None else global_bandwidth
    affordable(g * a * (2 * p + a - 1 + h), f"a dragonfly of {g:,} groups of {a:,} routers")
    shape = DragonflyShape(g, a, p, h)
    facts = {"groups": g, "routers": a, "hosts_per_router": p, "global_links": h}
    graph = empty("dragonfly", g * a * p, shape=facts)
    for u, v, kind in shape.local_cables():
        cable(graph, u, v, latency, bandwidth, kind)
    for u, v, parallel in shape.global_cables():
        cable(graph, u, v, far, rate(wide * parallel, "global_bandwidth of parallel links"), "global")
    return graph


@dataclass(frozen=True)
class DragonflyShape(RouterHosts):
    """Cables and routes of a dragonfly, without latencies and bandwidths of links."""

    groups: int
    routers: int
    hosts_per_router: int
    global_links: int

    def local_cables(self) -> Iterator[Cable]:
        """Yield the cables between hosts and routers, and between the routers of each group."""
        for G in range(self.groups):
            for R in range(self.routers):
                first = (G * self.routers + R) * self.hosts_per_router
                for host in range(first, first + self.hosts_per_router):
                    yield host, f"router:{G}.{R}", "host"
                for other in range(R):
                    yield f"router:{G}.{other}", f"router:{G}.{R}", "local"

    def global_cables(self) -> Iterator[tuple[Node, Node, int]]:
        """Yield each pair of routers joined across groups, with the number of parallel links."""
        for G in range(self.groups):
            for H in range(G + 1, self.groups):
                for (R, S), parallel in self._joined[H - G].items():
                    yield f"router:{G}.{R}", f"router:{H}.{S}", parallel

    def cables(self) -> Iterator[Cable]:
        """Yield all cables: those inside groups, then those between groups."""
        yield from self.local_cables()
        yield from ((u, v, "global") for u, v, _ in self.global_cables())

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return the minimal route from host `src` to `dst`: at most one global link, and one local link per group."""
        G, R = divmod(src // self.hosts_per_router, self.routers)
        H, S = divmod(dst // self.hosts_per_router, self.routers)
        nodes: list[Node] = [f"router:{G}.{R}"]
        if G != H:
            joined = self._joined[(H - G) % self.groups]
            steps = {(out, into): (out != R) + (into != S) for out, into in joined}
            fewest = min(steps.values())
            best = [ends for ends, count in steps.items() if count == fewest]
            out, into = best[choose(nodes[0], len(best))]
            if out != R:
                nodes.append(f"router:{G}.{out}")
            nodes.append(f"router:{H}.{into}")
            R = into
        if R != S:
            nodes.append(f"router:{H}.{S}")
        return [*nodes, dst]

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return self.groups * self.routers * self.hosts_per_router

    def borders(self) -> list[Node]:
        """Return all routers, which are the border nodes: links from other sites end there."""
        return [f"router:{G}.{R}" for G in range(self.groups) for R in range(self.routers)]

    def outward(self, src: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to a border node: the host's router."""
        G, R = divmod(src // self.hosts_per_router, self.routers)
        return [f"router:{G}.{R}"]

    @cached_property
    def _joined(self) -> dict[int, Counter[tuple[int, int]]]:
        """Numbers of links from router R of group G to router S of group G + d: for each d, a counter by (R, S)."""
        g, h = self.groups, self.global_links
        joined: dict[int, Counter[tuple[int, int]]] = {d: Counter() for d in range(1, g)}
        for d, ends in joined.items():
            for first in range(0, self.routers * h // (g - 1) * (g - 1), g - 1):
                # Number d - 1 of its turn at one end, the link is number g - d - 1 at the other: back is g - d further.
                ends[(first + d - 1) // h, (first + g - d - 1) // h] += 1
        return joined
