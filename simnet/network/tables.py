"""Growing tables of the event loop's state, with a row for each record: links, routes, flows and others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.errors import SimnetError
from simnet.network import event_loop
from simnet.network.compiled_loop import compiled_loop
from simnet.network.event_loop.records import State

# Rows are known by numbers of four bytes where there are many of them; see `records.Row`.
_MOST_ROWS = (1 << 31) - 1


def empty_state(compiled: bool) -> State:
    """Return an empty state of the event loop: with Python lists, or with arrays for the compiled loop."""
    if not compiled:
        return State()
    from simnet.base.compiled_records import compiled_state

    made: State = compiled_state(State)()
    return made


class Table:
    """A growing table of records of one kind, whose rows are allocated and freed in ranges.

    - `state`: the event loop's state; `take` may replace the table's rows in it.
    - `name`: name of the table in the state.
    - `kind`: type of a row: a dataclass, float or int.
    """

    def __init__(self, state: State, name: str, kind: type) -> None:
        self._state, self._name, self._kind = state, name, kind
        self._free: dict[int, int] = {}
        self.size = 0
        self._rows: Any = getattr(state, name)
        if not isinstance(self._rows, list):
            one: Any = kind()
            # Columns of a plain array are at hand faster.
            self._rows = self._rows.view(np.ndarray)
            blank = np.array(one if self._rows.dtype.names is None else dataclasses.astuple(one), self._rows.dtype)
            # As bytes without names, rows are copied ten times as fast.
            self._bytes = np.dtype((np.void, blank.itemsize))
            self._blank = blank.view(self._bytes)

    def take(self, count: int) -> int:
        """Allocate `count` consecutive rows with default values; return the first row."""
        if not count:
            return 0
        for at, length in self._free.items():
            if length >= count:
                del self._free[at]
                if length > count:
                    self._free[at + count] = length - count
                break
        else:
            at, size = self.size, self.size + count
            if size > _MOST_ROWS and self._kind is not float:
                what = self._name.replace("_", " ")
                raise SimnetError(f"an exchange needs {size:,} {what} at once, at most {_MOST_ROWS:,} fit")
            self.size = size
            if not isinstance(self._rows, list) and self.size > len(self._rows):
                wider = np.empty(max(self.size, 2 * at), self._rows.dtype)
                wider[:at].view(self._bytes)[:] = self._rows[:at].view(self._bytes)
                self._rows = wider
                setattr(self._state, self._name, wider.view(type(getattr(self._state, self._name))))
        if isinstance(self._rows, list):
            self._rows[at : at + count] = [self._kind() for _ in range(count)]
        else:
            self._rows[at : at + count].view(self._bytes)[:] = self._blank
        return at

    def give_back(self, at: int, count: int) -> None:
        """Free `count` rows from row `at` on, and merge adjacent free ranges."""
        if not count:
            return
        self._free[at] = count
        merged: dict[int, int] = {}
        last = -1
        for begin in sorted(self._free):
            if last >= 0 and last + merged[last] == begin:
                merged[last] += self._free[begin]
            else:
                last = begin
                merged[begin] = self._free[begin]
        self._free = merged

    def reach(self, size: int) -> None:
        """Grow the table to at least `size` rows."""
        if size > self.size:
            self.take(size + size // 2 - self.size)

    def write(self, at: int, count: int, **columns: ArrayLike) -> None:
        """Write fields of `count` rows from row `at` on; each field is an array, or a scalar for all rows."""
        for field, values in columns.items():
            if not isinstance(self._rows, list):
                self._rows[field][at : at + count] = values
            else:
                given = np.asarray(values)
                column = given.tolist() if given.ndim else [given.item()] * count
                for row, value in zip(self._rows[at : at + count], column, strict=True):
                    setattr(row, field, value)

    def read(self, field: str, at: int = 0, count: int | None = None) -> NDArray[Any]:
        """Return a copy of a field in `count` rows from row `at` on, by default in all rows."""
        rows = self._rows[at : self.size if count is None else at + count]
        return np.array([getattr(row, field) for row in rows] if isinstance(rows, list) else rows[field])

    def put(self, numbers: NDArray[Any], take: Callable[[Table, int], int] | None = None) -> int:
        """Store `numbers` in new rows, allocated by `take` if given; return the first row; -1 for empty `numbers`."""
        if not numbers.size:
            return -1
        at = self.take(numbers.size) if take is None else take(self, numbers.size)
        self.set(at, numbers)
        return at

    def set(self, at: int, numbers: NDArray[Any]) -> None:
        """Overwrite the rows from row `at` on with `numbers`."""
        self._rows[at : at + numbers.size] = numbers.tolist() if isinstance(self._rows, list) else numbers

    def numbers(self, at: int, count: int) -> NDArray[Any]:
        """Return a copy of `count` rows from row `at` on, for a table whose rows are plain numbers."""
        return np.array(self._rows[at : at + count])


class Store:
    """The state of an event loop, with its tables of links, routes, flows and others.

    - `compiled`: if true, use the compiled event loop if available.
    - `n_links`: number of links.
    - `hops`: links of the longest route known so far.

    Attributes
    ----------
    state : State
    loop : module
        The functions of `simnet.network.event_loop`, interpreted or compiled.
    n_links : int
        Number of links, the first rows of `links`.
    tables : dict of str to Table
        All tables of the state.
    """

    def __init__(self, compiled: bool, n_links: int, hops: int = 0) -> None:
        loops = compiled_loop() if compiled else None
        self.loop: Any = event_loop.interpreted if loops is None else loops
        self.state = empty_state(loops is not None)
        self.n_links = n_links
        self.tables = {
            name: Table(self.state, name, get_args(hint)[0])
            for name, hint in get_type_hints(State).items()
            if getattr(hint, "__origin__", None) is list
        }
        self.flows, self.memberships, self.links, self.routes = map(
            self.tables.__getitem__, ("flows", "memberships", "links", "routes")
        )
        self._room = self._n_ranks = 0
        self.state.hops = hops
        self.links.take(n_links)
        self.tables["allocations"].take(n_links)

    def make_room(self, *, flows: int = 0, hops: int = 0, ranks: int = 0) -> None:
        """Reserve rows for more flows and ranks; a flow has a row for each link of its route, `hops` at most."""
        self._room += flows
        self._n_ranks += ranks
        if hops > self.state.hops:
            self._widen(hops)
        missing = self._room - self.flows.size
        if missing > 0:
            count = max(missing, self.flows.size // 2)
            first = self.flows.take(count)
            self._add_memberships(self.flows.size, self.state.hops)
            self.state.n_flows = self.flows.size
            self.loop.free_all(self.state, first, count)
        n_flows, n_links, n_ranks = self.flows.size, self.n_links, self._n_ranks
        sizes = {"event_queue": 2 * n_flows + n_links + 2 * n_ranks, "notices": n_flows + n_ranks}
        sizes |= dict.fromkeys(("ends", "new", "chosen"), n_flows) | dict.fromkeys(("dirty", "touched"), n_links)
        sizes["shares"] = n_flows + n_links
        for name, size in sizes.items():
            self.tables[name].reach(1 + size)

    def give_room(self, *, flows: int = 0, ranks: int = 0) -> None:
        """Release the reserved rows of `flows` flows and `ranks` ranks."""
        self._room -= flows
        self._n_ranks -= ranks

    def _widen(self, hops: int) -> None:
        """Rearrange the table of flows on links so that every flow has `hops` consecutive rows, one for each link."""
        had, count = max(self.state.hops, 1), self.flows.size

        def moved(u: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.where(u < 0, -1, u // had * hops + u % had)

        old = {field: moved(self.memberships.read(field)) for field in ("before", "behind")}
        rows = moved(np.arange(self.memberships.size))
        self.links.write(0, self.n_links, first_membership=moved(self.links.read("first_membership")))
        self._add_memberships(count, hops)
        for field, values in old.items():
            wide = np.full(count * hops, -1)
            wide[rows] = values
            self.memberships.write(0, count * hops, **{field: wide})

    def _add_memberships(self, flows: int, hops: int) -> None:
        """Extend the table of flows on links to `flows` times `hops` rows, one for each link of each flow."""
        self.state.hops = hops
        self.memberships.take(flows * hops - self.memberships.size)
        self.memberships.write(0, flows * hops, flow=np.repeat(np.arange(flows), hops))

    def add_routes(self, table: NDArray[np.int64]) -> int:
        """Append routes, given a table with a row of links per route, padded with -1; return the first new route."""
        wide = np.full((len(table), max(self.state.hops, 1)), -1)
        wide[:, : table.shape[1]] = table
        begin = self.tables["route_links"].put(wide.ravel()) + wide.shape[1] * np.arange(len(table))
        first, end = self.routes.take(len(table)), begin + (table >= 0).sum(axis=1)
        self.routes.write(first, len(table), begin=begin, end=end, first=begin, stop=end)
        return first

    def route_of(self, r: int) -> list[int]:
        """Return the links of route r, in order."""
        route = self.state.routes[r]
        return [int(link) for link in self.state.route_links[route.begin : route.end]]

    def change_route(self, r: int, links: Sequence[int]) -> None:
        """Overwrite the links of route r in place."""
        begin = self.state.routes[r].begin
        self.tables["route_links"].set(begin, np.array(links))
        self.routes.write(r, 1, end=begin + len(links), stop=begin + len(links))
