"""Shapes of regular topologies: their cables, without latencies and bandwidths, and formulas for their routes.

A builder of this package stores the numbers that determine the shape in ``graph.graph["shape"]``, as plain data that
survives writing to a file and reading. From these numbers follow all links, by which `Routes` checks that the graph has
this shape, and the route between two hosts, without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from simnet.topologies.graphs import Graph, Node, cable, empty

Cable: TypeAlias = tuple[Node, Node, str]
"""Two nodes joined by a link in each direction, and the ``kind`` of the links."""

Choose: TypeAlias = Callable[[Node, int], int]
"""Given a node and a number n of equally good ways on, says which of them: 0 .. n-1."""

OUTSIDE = "outside"
"""Stands for the node outside to which the borders of a shape are joined, where that node chooses between them."""

Places: TypeAlias = NDArray[np.int64]
"""Nodes by their place in the graph: hosts are their own, switches follow in the order of the graph."""

ChooseAll: TypeAlias = Callable[[Places, int], Places]
"""`Choose` for many pairs of hosts at once."""


class Shape(Protocol):
    """Cables and routes of a regular topology, without latencies and bandwidths of links."""

    @property
    def hosts_forward(self) -> bool:
        """Whether hosts forward messages of other hosts."""

    def cables(self) -> Iterable[Cable]:
        """Yield every cable once."""

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to another host `dst`: the nodes after `src` up to and including `dst`.

        Parameters
        ----------
        src, dst : int
            Hosts.
        choose : callable
            Takes one of several equal ways.
        """


class SiteShape(Shape, Protocol):
    """A regular topology that can be a site of a larger network; links to other sites end at its border nodes."""

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""

    def borders(self) -> list[Node]:
        """Return the border nodes, at which links from other sites of a larger network end."""

    def outward(self, src: int, choose: Choose) -> list[Node]:
        """Return the shortest route from host `src` to a border node, without `src`; empty for `src` at the border."""

    def inward(self, dst: int, choose: Choose) -> list[Node]:
        """Return the shortest route to host `dst` from a border node, at which links from other sites end."""


@dataclass(frozen=True)
class CountedHosts:
    """Base class of shapes with a field `hosts`, which is the number of hosts."""

    hosts: int

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return self.hosts


class ForwardingHosts(SiteShape, Protocol):
    """Base class of shapes without switches, whose hosts all forward messages and are border nodes of a site."""

    hosts_forward: ClassVar[bool] = True

    def borders(self) -> list[Node]:
        """Return all hosts: every host is a border node, at which links from other sites may end."""
        return list(range(self.n_hosts))

    def outward(self, src: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to a border node: an empty route, as the host is a border node."""
        return []

    def inward(self, dst: int, choose: Choose) -> list[Node]:
        """Return the route from a border node to host `dst`: only the host, which is a border node."""
        return [dst]


class RouterHosts(SiteShape, Protocol):
    """Base class of shapes with hosts below routers or switches; routes into a site reverse those out of it."""

    hosts_forward: ClassVar[bool] = False

    def inward(self, dst: int, choose: Choose) -> list[Node]:
        """Return the route from a border node to host `dst`: that from the host to the border node, reversed."""
        return [*reversed(self.outward(dst, choose)), dst]


def regular_graph(
    name: str,
    shape_of: Callable[..., SiteShape],
    numbers: Mapping[str, Any],
    latency: float,
    bandwidth: float,
    others: Mapping[str, tuple[float, float]] | None = None,
) -> Graph:
    """Return the graph of a regular topology; ``graph.graph["shape"]`` holds the topology's dimensions, `numbers`.

    Parameters
    ----------
    name : str
        The family.
    shape_of : callable
        Returns the shape, given its numbers as keyword arguments.
    numbers : mapping
        The numbers of the shape, as plain data.
    latency, bandwidth : float
        Of each link [s], [byte/s].
    others : mapping, optional
        Latency and bandwidth of links by kind, where they differ from these.
    """
    shape, others = shape_of(**numbers), others or {}
    forwarding = {"hosts_forward": True} if shape.hosts_forward else {}
    graph = empty(name, shape.n_hosts, shape=numbers, **forwarding)
    for a, b, kind in shape.cables():
        cable(graph, a, b, *others.get(kind, (latency, bandwidth)), kind)
    return graph


P = TypeVar("P")


def every_answer(find: Callable[[Callable[[Any, int], int]], P]) -> Iterator[P]:
    """Yield the results of function `find` for all possible sequences of the choices that it asks for.

    Parameters
    ----------
    find : callable
        Takes a function such as `Choose`, which returns a number in 0 .. n-1 for a node and a number of ways n.

    Examples
    --------
    >>> list(every_answer(lambda choose: (choose("a", 2), choose("b", 2))))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    answers: list[int] = []
    while True:
        asked: list[int] = []

        def choose(at: Any, ways: int, asked: list[int] = asked) -> int:
            asked.append(ways)
            if len(asked) > len(answers):
                answers.append(0)
            return answers[len(asked) - 1]

        yield find(choose)
        while asked and answers[-1] + 1 == asked[-1]:
            asked.pop()
            answers.pop()
        if not asked:
            return
        answers[-1] += 1
