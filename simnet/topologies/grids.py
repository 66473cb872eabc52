"""Grids of any number of dimensions: tori of hosts, and flattened butterflies of routers with hosts at each.

In a torus neighbours are joined, with wrap-around links. In a flattened butterfly routers in one line are fully
connected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from simnet.base.errors import check_int
from simnet.base.quantities import Bandwidth, Count, Seconds
from simnet.topologies.deferred import add_node
from simnet.topologies.graphs import Graph, Node, affordable, checked
from simnet.topologies.shapes import Cable, Choose, ForwardingHosts, RouterHosts, regular_graph


@checked
def torus(dims: Annotated[Sequence[Count], MinLen(1)], latency: Seconds, bandwidth: Bandwidth) -> Graph:
    """Return the torus of ``dims[0]`` * ``dims[1]`` * ... hosts, with a link in both directions between neighbours.

    Hosts are numbered like the entries of an array of this shape, in row-major order; each has two neighbours in every
    dimension. A message corrects its coordinates in the order of the dimensions, in each the shorter way round, or
    upwards if both are equally long, and passes through the hosts between.

    Parameters
    ----------
    dims : sequence of int
        Hosts along each dimension, >= 1 each, such as ``(8, 8, 16)``. Along a dimension of two hosts these have one
        link in each direction, not two; along a dimension of one there are none.
    latency : float
        Of each link [s], >= 0.
    bandwidth : float
        Of each link [byte/s], > 0.

    Returns
    -------
    networkx.DiGraph
        2 P links for each dimension of more than two hosts, P for one of two, of the kinds ``"dim0"``, ``"dim1"``, ...
        Hosts carry their coordinates, ``at``, and ``graph.graph["hosts_forward"]`` is True.

    References
    ----------
    W. J. Dally, B. Towles, "Principles and Practices of Interconnection Networks", 2004, sections 5.1 and 8.4.1.

    Examples
    --------
    >>> from simnet.topologies import Routes
    >>> graph = torus((2, 5), latency=1e-6, bandwidth=1e9)
    >>> graph.graph["hosts"], graph.number_of_edges(), graph.nodes[7]["at"]
    (10, 30, (1, 2))
    >>> routes = Routes(graph)
    >>> [routes.links[link] for link in routes.route(0, 8)]
    [(0, 5), (5, 9), (9, 8)]
    """
    sizes = _grid_sizes(dims, "hosts")
    P = math.prod(sizes)
    # A dimension of one host has no links but costs a coordinate.
    affordable(2 * P * len(sizes), f"a torus of {' x '.join(f'{size:,}' for size in sizes)} hosts")
    graph = regular_graph("torus", TorusShape, {"dims": list(sizes)}, latency, bandwidth)
    for host, at in enumerate(np.ndindex(sizes)):
        add_node(graph, host, at=at)
    return graph


@dataclass(frozen=True)
class TorusShape(ForwardingHosts):
    """Cables and routes of a torus of hosts, without latencies and bandwidths of links."""

    dims: Sequence[int]

    def _strides(self) -> list[tuple[int, int]]:
        """Return the size of each dimension, and the difference of host numbers between neighbours along it."""
        return [(size, math.prod(self.dims[d + 1 :])) for d, size in enumerate(self.dims)]

    def cables(self) -> Iterator[Cable]:
        """Yield the cable from each host to the next along each dimension."""
        for host in range(math.prod(self.dims)):
            for d, (size, stride) in enumerate(self._strides()):
                at = host // stride % size
                if size > 2 or at + 1 < size:
                    yield host, host + ((at + 1) % size - at) * stride, f"dim{d}"

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to `dst`: one dimension after the other, each in the shorter direction."""
        nodes: list[Node] = []
        here = src
        for size, stride in self._strides():
            at, ahead = src // stride % size, (dst // stride - src // stride) % size
            step, count = (1, ahead) if 2 * ahead <= size else (-1, size - ahead)
            for _ in range(count):
                after = (at + step) % size
                here, at = here + (after - at) * stride, after
                nodes.append(here)
        return nodes

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return math.prod(self.dims)


@checked
def flattened_butterfly(
    dims: Annotated[Sequence[Count], MinLen(1)], hosts_per_router: Count, latency: Seconds, bandwidth: Bandwidth
) -> Graph:
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
    sizes = _grid_sizes(dims, "routers")
    routers = math.prod(sizes)
    named = f"a flattened butterfly of {' x '.join(f'{size:,}' for size in sizes)} routers"
    affordable(routers * (2 * hosts_per_router + sum(size - 1 for size in sizes) + len(sizes)), named)
    numbers = {"dims": list(sizes), "hosts_per_router": hosts_per_router}
    return regular_graph("flattened_butterfly", FlattenedButterflyShape, numbers, latency, bandwidth)


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


def _grid_sizes(dims: Sequence[int], what: str) -> tuple[int, ...]:
    """Return the sizes `dims` of a grid of `what`, such as routers; ValueError unless `dims` is a list of counts."""
    if not isinstance(dims, list | tuple | np.ndarray) or not len(dims):
        raise ValueError(f"dims must list the {what} along each dimension, such as (4, 4), got {dims!r}")
    return tuple(check_int(size, f"dims[{d}]", 1) for d, size in enumerate(dims))
