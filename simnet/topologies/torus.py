"""Torus: hosts on a grid of any number of dimensions, with wrap-around links."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import MinLen

from simnet.base.quantities import Bandwidth, Count, Seconds
from simnet.topologies.checks import affordable, checked, grid_sizes
from simnet.topologies.deferred import add_node
from simnet.topologies.graphs import Node, cable, empty
from simnet.topologies.shapes import Cable, Choose, ForwardingHosts

if TYPE_CHECKING:
    import networkx as nx


@checked
def torus(dims: Annotated[Sequence[Count], MinLen(1)], latency: Seconds, bandwidth: Bandwidth) -> nx.DiGraph[Node]:
    """Return the torus of ``dims[0]`` * ``dims[1]`` * ... hosts, with a link in both directions between neighbours.

    Hosts are numbered like the entries of an array of this shape, the last coordinate first; each has two neighbours in
    every dimension. A message corrects its coordinates in the order of the dimensions, in each the shorter way round
    and to the host right opposite upwards, and passes through the hosts between.

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
    sizes = grid_sizes(dims, "hosts")
    P = math.prod(sizes)
    # A dimension of one host has no links but costs a coordinate.
    affordable(2 * P * len(sizes), f"a torus of {' x '.join(f'{size:,}' for size in sizes)} hosts")
    graph = empty("torus", P, hosts_forward=True, shape={"dims": list(sizes)})
    for host, at in enumerate(np.ndindex(sizes)):
        add_node(graph, host, at=at)
    for a, b, kind in TorusShape(sizes).cables():
        cable(graph, a, b, latency, bandwidth, kind)
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
