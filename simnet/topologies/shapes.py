"""Shapes: what a regular topology is before its links have latencies and bandwidths, and its routes by formula.

A family of this package leaves the numbers that settle its shape in ``graph.graph["shape"]``, as plain data, so that a
graph that was written to a file and read again still has them. From them follow all links, by which `Routes`
recognises the graph as what it says it is, and the route between two hosts, without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from simnet.topologies.graphs import Node

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
    """A regular topology."""

    @property
    def hosts_forward(self) -> bool:
        """Whether routes pass through hosts."""

    def cables(self) -> Iterable[Cable]:
        """Return every cable once."""

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return the nodes after host `src` on the way to another host `dst`, which is the last of them.

        Parameters
        ----------
        src, dst : int
            Hosts.
        choose : callable
            Takes one of several equal ways.
        """


class SiteShape(Shape, Protocol):
    """A regular topology that can be a site of a larger network, to which its borders have links."""

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""

    def borders(self) -> list[Node]:
        """Return the nodes from which links lead outside."""

    def outward(self, src: int, choose: Choose) -> list[Node]:
        """Return the nodes after host `src` on the shortest way out: the last is a border, unless `src` is one."""

    def inward(self, dst: int, choose: Choose) -> list[Node]:
        """Return the nodes of the shortest way in: from a border, which `OUTSIDE` chooses, to host `dst`."""


@dataclass(frozen=True)
class CountedHosts:
    """A shape that is settled by its number of hosts, or by that and more."""

    hosts: int

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return self.hosts


class ForwardingHosts:
    """A shape without switches, whose hosts all pass on messages and have links outside."""

    hosts_forward: ClassVar[bool] = True

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        raise NotImplementedError

    def borders(self) -> list[Node]:
        """Return all hosts."""
        return list(range(self.n_hosts))

    def outward(self, src: int, choose: Choose) -> list[Node]:
        """Return nothing: each host has a link of its own."""
        return []

    def inward(self, dst: int, choose: Choose) -> list[Node]:
        """Return `dst`, which has a link of its own."""
        return [dst]


P = TypeVar("P")


def every_answer(find: Callable[[Callable[[Any, int], int]], P]) -> Iterator[P]:
    """Yield what `find` returns for every way of answering its choices, in lexicographic order of the answers.

    Parameters
    ----------
    find : callable
        Takes what answers 0 .. n-1 to a node and a number of ways n, such as `Choose`, and asks it one by one.

    Examples
    --------
    >>> list(every(lambda choose: (choose("a", 2), choose("b", 2))))
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
