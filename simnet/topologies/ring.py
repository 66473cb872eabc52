"""Ring: every host wired to its two neighbours, without switches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simnet.base.quantities import Bandwidth, Count, Seconds
from simnet.topologies.graphs import Graph, Node, affordable, checked
from simnet.topologies.shapes import Cable, Choose, CountedHosts, ForwardingHosts, regular_graph


@checked
def ring(hosts: Count, latency: Seconds, bandwidth: Bandwidth) -> Graph:
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

    Examples
    --------
    >>> from simnet.topologies import Routes
    >>> routes = Routes(ring(5, latency=1e-3, bandwidth=1e9))
    >>> [routes.links[link] for link in routes.route(0, 3)]
    [(0, 4), (4, 3)]
    """
    affordable(2 * hosts, f"a ring of {hosts:,} hosts")
    return regular_graph("ring", RingShape, {"hosts": hosts}, latency, bandwidth)


@dataclass(frozen=True)
class RingShape(CountedHosts, ForwardingHosts):
    """Cables and routes of a ring of hosts, without latencies and bandwidths of links."""

    def cables(self) -> Iterator[Cable]:
        """Yield the cable from each host to the next."""
        P = self.hosts
        return ((host, (host + 1) % P, "host") for host in range(P if P > 2 else P - 1))

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to host `dst`, in the direction with fewer links."""
        P = self.hosts
        ahead = (dst - src) % P
        up = 2 * ahead <= P
        if 2 * ahead == P > 2:
            # Equal ways are in the order of the links: to the host before, then to the one after; at host 0 reversed.
            up = choose(src, 2) == (1 if src else 0)
        step = 1 if up else -1
        return [(src + step * i) % P for i in range(1, (ahead if up else P - ahead) + 1)]
