"""Shapes: what a regular topology is before its links have latencies and bandwidths, and its routes by formula.

A family of this package leaves the numbers that settle its shape in ``graph.graph["shape"]``, as plain data, so that a
graph that was written to a file and read again still has them. From them follow all links, by which `Routes`
recognises the graph as what it says it is, and the route between two hosts, without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topologies.graphs import Node

Cable: TypeAlias = tuple[Node, Node, str]
"""Two nodes joined by a link in each direction, and the ``kind`` of the links."""

Choose: TypeAlias = Callable[[Node, int], int]
"""Given a node and a number n of equally good ways on, says which of them: 0 .. n-1."""

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
        """Return the nodes after host `src` on the way to another host `dst`, which is the last of them."""
