"""Flattened butterfly: routers on a grid, fully connected along each dimension, with hosts at each router."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import MinLen

from simnet.base.quantities import Bandwidth, Count, Seconds
from simnet.topologies.checks import affordable, checked, grid_sizes
from simnet.topologies.graphs import Node, cable, empty
from simnet.topologies.shapes import Cable, Choose, RouterHosts

if TYPE_CHECKING:
    import networkx as nx


@checked
def flattened_butterfly(
    dims: Annotated[Sequence[Count], MinLen(1)], hosts_per_router: Count, latency: Seconds, bandwidth: Bandwidth
) -> nx.DiGraph[Node]:
    """Return the flattened butterfly of ``dims[0]`` * ``dims[1]`` * ... routers with `hosts_per_router` hosts each.

    Two routers are joined where they differ in one coordinate alone. The k-ary n-flat of Kim et al. has n - 1
    dimensions of k routers, and k hosts at each. Hosts are numbered router by router, the last coordinate first. Routes
    are minimal: one link for each coordinate that differs. Among the orders of coordinates the choice is made per pair
    (see `Routes`).

    Parameters
    ----------
    dims : sequence of int
        Routers along each dimension, >= 1 each.
    hosts_per_router : int
        >= 1.
    latency : float
        Of each link [s], >= 0.
    bandwidth : float
        Of each link in each direction [byte/s], > 0.

    Returns
    -------
    networkx.DiGraph
        Links of kind ``"host"``, and ``"dim0"``, ``"dim1"``, ... between routers, such as ``"router:0.2"``.

    References
    ----------
    J. Kim, W. J. Dally, D. Abts, "Flattened Butterfly: A Cost-Efficient Topology for High-Radix Networks", ISCA 2007,
    section 2.

    Examples
    --------
    The 4-ary 3-flat:

    >>> from simnet.topologies import Routes
    >>> graph = flattened_butterfly((4, 4), 4, latency=1e-6, bandwidth=1e9)
    >>> graph.graph["hosts"], graph.number_of_edges()
    (64, 224)
    >>> routes = Routes(graph, routing="single")
    >>> [routes.links[link] for link in routes.route(0, 63)][1:-1]
    [('router:0.0', 'router:3.0'), ('router:3.0', 'router:3.3')]
    """
    sizes = grid_sizes(dims, "routers")
    routers = math.prod(sizes)
    named = f"a flattened butterfly of {' x '.join(f'{size:,}' for size in sizes)} routers"
    affordable(routers * (2 * hosts_per_router + sum(size - 1 for size in sizes) + len(sizes)), named)
    shape = FlattenedButterflyShape(sizes, hosts_per_router)
    facts = {"dims": list(sizes), "hosts_per_router": hosts_per_router}
    graph = empty("flattened_butterfly", shape.n_hosts, shape=facts)
    for a, b, kind in shape.cables():
        cable(graph, a, b, latency, bandwidth, kind)
    return graph


@dataclass(frozen=True)
class FlattenedButterflyShape(RouterHosts):
    """Cables and routes of a flattened butterfly, without latencies and bandwidths of links."""

    dims: Sequence[int]
    hosts_per_router: int

    def _at(self, host: int) -> list[int]:
        """Return the coordinates of a host's router."""
        return [int(one) for one in np.unravel_index(host // self.hosts_per_router, self.dims)]

    def cables(self) -> Iterator[Cable]:
        """Yield the cables of hosts, then those along each dimension."""
        for host in range(self.n_hosts):
            yield host, _router(self._at(host)), "host"
        for d, size in enumerate(self.dims):
            for line in np.ndindex(*(1 if e == d else other for e, other in enumerate(self.dims))):
                for a, b in combinations(range(size), 2):
                    yield _router([*line[:d], a, *line[d + 1 :]]), _router([*line[:d], b, *line[d + 1 :]]), f"dim{d}"

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return a shortest route from host `src` to `dst`; `choose` picks the grid dimension of the next hop."""
        at, to = self._at(src), self._at(dst)
        nodes: list[Node] = [_router(at)]
        while differing := [d for d in range(len(to)) if at[d] != to[d]]:
            d = differing[choose(nodes[-1], len(differing)) if len(differing) > 1 else 0]
            at[d] = to[d]
            nodes.append(_router(at))
        return [*nodes, dst]

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return math.prod(self.dims) * self.hosts_per_router

    def borders(self) -> list[Node]:
        """Return all routers, which are the border nodes: links from other sites end there."""
        return [_router(at) for at in np.ndindex(*self.dims)]

    def outward(self, src: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to a border node: the host's router."""
        return [_router(self._at(src))]


def _router(at: Sequence[int]) -> str:
    return f"router:{'.'.join(map(str, at))}"
