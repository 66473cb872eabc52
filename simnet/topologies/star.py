"""Star: every host on one ideal switch, the network that the alpha-beta cost model assumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from simnet.base.quantities import Bandwidth, Count, Seconds
from simnet.topologies.graphs import Graph, Node, affordable, checked
from simnet.topologies.shapes import Cable, Choose, ChooseAll, CountedHosts, Places, RouterHosts, regular_graph


@checked
def star(hosts: Count, latency: Seconds, bandwidth: Bandwidth) -> Graph:
    """Return `hosts` hosts on one ideal switch.

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

    Examples
    --------
    >>> from simnet.topologies import Routes
    >>> routes = Routes(star(4, latency=1e-3, bandwidth=1e9))
    >>> routes.path_latency(0, 3), routes.bottleneck(0, 3)
    (0.001, 1000000000.0)
    """
    affordable(2 * hosts, f"a star of {hosts:,} hosts")
    return regular_graph("star", StarShape, {"hosts": hosts}, latency / 2, bandwidth)


@dataclass(frozen=True)
class StarShape(CountedHosts, RouterHosts):
    """Cables and routes of a star, without latencies and bandwidths of links."""

    def cables(self) -> Iterator[Cable]:
        """Yield the cable from each host to the switch."""
        return ((host, "switch", "host") for host in range(self.hosts))

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to `dst`: the switch and `dst`."""
        return ["switch", dst]

    def paths(self, src: Places, dst: Places, choose: ChooseAll, place: Mapping[Node, int]) -> list[Places]:
        """Return the routes of many pairs of hosts: an array per hop, with the index of each pair's next node."""
        return [np.full_like(src, place["switch"]), dst]

    def borders(self) -> list[Node]:
        """Return the switch, which is the border node: links from other sites end there."""
        return ["switch"]

    def outward(self, src: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to the border node: the switch."""
        return ["switch"]
