"""The memory that `simnet.network.event_loop` works on: taken, enlarged, and filled with links, ways and flows."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.network import event_loop as k

# Lists whose length goes with the number of flows, and how many places they take for each flow, link, and rank.
_LISTS = {
    k.DUE: (2 * k.DUE_SIZE, k.DUE_SIZE, 2 * k.DUE_SIZE),
    k.ENDS: (1, 0, 0),
    k.NEW: (1, 0, 0),
    k.DIRTY: (0, 1, 0),
    k.NOTICE: (k.NOTICE_SIZE, 0, k.NOTICE_SIZE),
    k.CHOSEN: (1, 0, 0),
    k.FIXED: (1, 0, 0),
    k.MEMBERS: (0, 0, 0),
    k.TOUCHED: (0, 1, 0),
    k.SHARES: (1, 1, 0),
    k.SHARERS: (1, 1, 0),
    k.FLOWS: (1, 0, 0),
}


@cache
def compiled_kernel() -> ModuleType | None:
    """Return the kernel compiled; None where numba is missing or switched off."""
    try:
        from simnet.base.compiling import compiled_module
    except (ImportError, OSError):
        return None
    return compiled_module(k)


def kernel_is_loaded() -> bool:
    """Return whether this process has the compiled kernel at hand."""
    return compiled_kernel.cache_info().currsize > 0 and compiled_kernel() is not None


class Store:
    """A memory in which there are links, ways over them, and flows.

    Parameters
    ----------
    compiled : bool
        Whether to use the compiled kernel, if there is one.
    n_links : int
        Number of links.
    hops : int
        Links of the longest way, so far as it is known.

    Attributes
    ----------
    memory : kernel.Memory
        Another one after any call that adds something.
    kernel : module
        `simnet.network.event_loop`, or the same compiled.
    n_links, first_link : int
        Number of links, and the record of the first; the others follow.
    hops : int
        Links of the longest way that there is room for.
    flows : list of int
        All flows, free ones included.
    """

    def __init__(self, compiled: bool, n_links: int, hops: int = 0) -> None:
        loops = compiled_kernel() if compiled else None
        self.kernel: Any = k if loops is None else loops
        self._arrays = loops is not None
        self._blocks = _Blocks(k.N_FIRST)
        self.memory = k.Memory(self._filled(0, 0.0), self._filled(0, 0), np.zeros(0), np.zeros(0))
        self._enlarge()
        self.memory.x[k.HORIZON], self.memory.x[k.HOPE] = math.inf, -math.inf
        self._lists = dict.fromkeys(_LISTS, 0)
        self.flows: list[int] = []
        self._batches: list[tuple[int, int, int]] = []
        self.hops = hops
        self._room = self._usable = 0
        self.n_links = n_links
        self._counts = {"flows": 0, "links": n_links, "ranks": 0}
        self.first_link = self.take(n_links * k.LINK_SIZE)
        self.links("x", k.LINK_UNTIL, math.inf)
        self.memory.n[k.HOPS] = hops

    def _filled(self, size: int, value: float) -> Any:
        return np.full(size, value) if self._arrays else [value] * size

    def _enlarge(self) -> None:
        """Make the memory as large as what is taken of it, and then some."""
        x, n = self._parts()
        had, size = len(x), self._blocks.size
        if size <= had:
            return
        size = max(size, 2 * had)
        if self._arrays:
            # Both parts are the same memory: no place is used in both.
            wide = np.zeros(size)
            wide[:had] = x
            wider = wide, wide.view(np.int64)
        else:
            wider = x + [0.0] * (size - had), n + [0] * (size - had)
        self.memory = self.memory._replace(x=wider[0], n=wider[1])

    def _parts(self) -> tuple[Any, Any]:
        """Return both parts of the memory: lists or arrays, which have more in common than their types tell."""
        return self.memory.x, self.memory.n

    def take(self, size: int) -> int:
        """Return a stretch of the memory that is all zero."""
        used = self._blocks.size
        at = self._blocks.take(size)
        self._enlarge()
        if at < used:
            x, n = self._parts()
            x[at : at + size], n[at : at + size] = self._filled(size, 0.0), self._filled(size, 0)
        return at

    def write(self, part: str, at: int, size: int, values: ArrayLike, stride: int = 1) -> None:
        """Write a column: `size` values, or the same for all, into every place `stride` from `at` on."""
        given = np.broadcast_to(np.asarray(values), size)
        getattr(self.memory, part)[at : at + size * stride : stride] = given if self._arrays else given.tolist()

    def read(self, part: str, at: int, size: int, stride: int = 1) -> NDArray[Any]:
        """Return a copy of a column."""
        return np.array(getattr(self.memory, part)[at : at + size * stride : stride])

    def block(self, part: str, values: NDArray[Any], take: Callable[[int], int] | None = None) -> int:
        """Return where a column has been put, in what `take` returns if that is given; 0 for an empty one."""
        if not values.size:
            return 0
        at = (take or self.take)(values.size)
        self.write(part, at, values.size, values)
        return at

    def make_room(self, *, flows: int = 0, hops: int = 0, ranks: int = 0) -> None:
        """See to it that so many flows more, over so many links, and ranks more have room at once."""
        self._room += flows
        self._counts["ranks"] += ranks
        if hops > self.hops:
            # Flows that there are have room for too few links.
            self.hops, self._usable = hops, 0
            self.memory.n[k.HOPS], self.memory.n[k.FREE_FLOW] = hops, 0
        missing = self._room - self._usable
        added = missing > 0
        if added:
            self._add_flows(max(missing, self._usable // 2))
        for name, weights in _LISTS.items():
            size = weights[0] + sum(map(operator.mul, weights, self._counts.values()))
            if name == k.MEMBERS:
                size = self._counts["flows"] * self.hops
            if size > self._lists[name]:
                self._lengthen(name, size + size // 2)
        if added:
            n = self.memory.n
            n[k.N_FLOWS] = len(self.flows)
            self.write("n", n[k.FLOWS], len(self.flows), np.array(self.flows, dtype=np.int64))

    def give_room(self, *, flows: int = 0, ranks: int = 0) -> None:
        """Take note that so many flows and ranks less have to have room."""
        self._room -= flows
        self._counts["ranks"] -= ranks

    def _add_flows(self, count: int) -> None:
        size = self.flow_size()
        begin = self.take(count * size)
        new = range(begin, begin + count * size, size)
        for hop in range(self.hops):
            self.write("n", begin + k.FLOW_SIZE + hop * k.USE_SIZE + k.USE_FLOW, count, np.array(new), size)
        self.write("n", begin + k.FLOW_HOPS, count, self.hops, size)
        self._usable += count
        self._counts["flows"] += count
        self.flows += new
        self._batches.append((begin, count, size))
        self.kernel.free_all(self.memory, begin, count, size)

    def _lengthen(self, name: int, size: int) -> None:
        at, old, had = self.take(size), int(self.memory.n[name]), self._lists[name]
        if had:
            for part in self._parts():
                part[at : at + had] = part[old : old + had]
            self.give_back(old, had)
        self.memory.n[name], self._lists[name] = at, size

    def free_all_flows(self) -> None:
        """Give all flows back."""
        self.memory.n[k.FREE_FLOW] = 0
        for batch in reversed(self._batches):
            self.kernel.free_all(self.memory, *batch)

    def give_back(self, at: int, size: int) -> None:
        """Take a stretch back."""
        self._blocks.give(at, size)

    def links(self, part: str, field: int, values: ArrayLike) -> None:
        """Write a field of all links."""
        self.write(part, self.first_link + field, self.n_links, values, k.LINK_SIZE)

    def flow_size(self) -> int:
        """Return how long the record of a flow is."""
        return k.FLOW_SIZE + self.hops * k.USE_SIZE

    def way_size(self) -> int:
        """Return how long the record of a way is."""
        return k.WAY_LINKS + self.hops

    def lay_ways(self, first: int, table: NDArray[np.int64]) -> None:
        """Write the records of ways from `first` on, given the links of each, shape (m, L), -1 after the last."""
        count, size = len(table), self.way_size()
        self.write("x", first + k.WAY_SHARE, count, 1.0, size)
        self.write("n", first + k.WAY_LENGTH, count, (table >= 0).sum(axis=1), size)
        for hop, column in enumerate(table.T):
            self.write("n", first + k.WAY_LINKS + hop, count, self.first_link + k.LINK_SIZE * column, size)


class _Blocks:
    """Which stretches of a memory are taken: allocation by first fit."""

    def __init__(self, first: int) -> None:
        self.size = first
        self._free: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Return where a free stretch begins, of at least one place."""
        size = max(size, 1)
        for at, length in self._free.items():
            if length >= size:
                del self._free[at]
                if length > size:
                    self._free[at + size] = length - size
                return at
        at, self.size = self.size, self.size + size
        return at

    def give(self, at: int, size: int) -> None:
        """Take a stretch back."""
        self._free[at] = max(size, 1)
        merged: dict[int, int] = {}
        last = -1
        for begin in sorted(self._free):
            if last >= 0 and last + merged[last] == begin:
                merged[last] += self._free[begin]
            else:
                last = begin
                merged[begin] = self._free[begin]
        self._free = merged
