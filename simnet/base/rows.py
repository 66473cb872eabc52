"""Arrays with a row per worker, distributed over shards: processes on this or other machines that store the rows.

Work is sent to the rows, and only results come back. Worker w lives in shard w modulo their number. `map_rows` works on
arrays and on `Rows`; `simnet.base.shards` starts shards.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from simnet.base.arrays import Values

Ask: TypeAlias = Callable[..., Future[Any]]
"""Calls `Shard.answer` with its arguments; the result raises SimnetError if the shard is lost."""


@runtime_checkable
class Separable(Protocol):
    """A gradient source that can draw the gradients of any subset of the workers."""

    # Numbers of workers, P, and of entries of a gradient, n.
    workers: int
    parameters: int

    def gradients_of(self, workers: Sequence[int], iteration: int, out: Values | None = None) -> Values:
        """Return the gradients of `workers` (ascending) as float32 of shape (len(workers), n), in `out` if given."""


class _RowPlace(NamedTuple):
    """Reference to a row in a shard: the number of its array, the worker, and the range of entries."""

    number: int
    worker: int
    entries: slice


class Shard:
    """One process's part of distributed arrays: the rows of every `shards`-th worker, from worker `first` on."""

    def __init__(self, source: Separable, first: int, shards: int) -> None:
        self._source, self._shards = source, shards
        self._workers = range(first, source.workers, shards)
        self._kept: dict[int, Values] = {}

    def answer(self, dropped: Sequence[int], asked: str, *given: Any) -> Any:
        """Free the arrays numbered in `dropped`, then call the method `asked` and return its result."""
        for number in dropped:
            del self._kept[number]
        return getattr(self, asked)(*given)

    def make(self, number: int, entries: int) -> None:
        """Allocate array `number` with a row of `entries` zeros for each worker of the shard."""
        self._kept[number] = np.zeros((len(self._workers), entries), dtype=np.float32)

    def draw(self, number: int, iteration: int) -> None:
        """Draw the gradients of an iteration into array `number`, which is allocated if missing."""
        self._kept[number] = self._source.gradients_of(self._workers, iteration, self._kept.get(number))

    def call(self, work: Callable[..., Any], *given: Any) -> Any:
        """Return the result of `work`, with each `_RowPlace` argument replaced by the entries it refers to."""
        return work(*(self._entries(one) if isinstance(one, _RowPlace) else one for one in given))

    def _entries(self, row: _RowPlace) -> Values:
        found: Values = self._kept[row.number][row.worker // self._shards, row.entries]
        return found


class Shards:
    """All shards of a job: the numbers of workers and entries, and a function per shard to call the shard's methods."""

    def __init__(self, source: Separable, asks: Sequence[Ask]) -> None:
        self.workers, self.parameters = source.workers, source.parameters
        self.count = len(asks)
        self._asks = asks
        self._numbers = itertools.count()
        self._dropped: list[list[int]] = [[] for _ in asks]

    def ask(self, worker: int, asked: str, *given: Any) -> Future[Any]:
        """Call a method of the `Shard` that stores a worker; return a future of the result."""
        shard = worker % self.count
        dropped, self._dropped[shard] = self._dropped[shard], []
        return self._asks[shard](dropped, asked, *given)

    def zeros(self, entries: int) -> Rows:
        """Return zeros of shape (P, entries), distributed over the shards."""
        return self._new(entries, "make", entries)

    def gradients(self, iteration: int) -> Rows:
        """Return the gradients of an iteration, shape (P, n), each drawn in the shard that stores it."""
        return self._new(self.parameters, "draw", iteration)

    def redraw(self, rows: Rows, iteration: int) -> None:
        """Overwrite `rows`, which must cover all workers and all entries, with the gradients of an iteration."""
        self._everywhere("draw", rows.number, iteration)

    def _new(self, entries: int, asked: str, *given: Any) -> Rows:
        number = next(self._numbers)
        self._everywhere(asked, number, *given)
        rows = Rows(self, number, range(self.workers), slice(0, entries))
        # What lives elsewhere goes when nobody here has it any more, at the latest with the shards.
        weakref.finalize(rows, self._drop, number).atexit = False
        return rows

    def _everywhere(self, asked: str, *given: Any) -> None:
        for answer in [self.ask(shard, asked, *given) for shard in range(self.count)]:
            answer.result()

    def _drop(self, number: int) -> None:
        for dropped in self._dropped:
            dropped.append(number)


class Rows:
    """A float32 array with a row for each of P workers and n columns, whose rows are stored in several processes.

    The shards know them by a number. They have an ordered list of workers and a range of entries; `base` is None or, of
    a view, the rows viewed. Callers that send mutating work must respect ``flags.writeable``, as of an array.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self, shards: Shards, number: int, workers: Sequence[int], entries: slice, base: Rows | None = None
    ) -> None:
        self.shape = len(workers), entries.stop - entries.start
        self.number, self.base, self.shards = number, base, shards
        self.flags = SimpleNamespace(writeable=True)
        self._workers, self._entries = workers, entries

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Values]:
        """Yield a copy of each worker's row, shape (n,)."""
        return self.each(np.copy)

    def __getitem__(self, part: Any) -> Any:
        """Return a copy of one row for ``[i]``; `Rows` that share the stored data for ``[:, a:b]`` or ``[indices]``."""
        if isinstance(part, tuple):
            start, stop, step = part[1].indices(self.shape[1])
            if part[0] != slice(None) or step != 1:
                raise IndexError(f"parts of rows that live in shards are [:, a:b], got {part!r}")
            stretch = slice(self._entries.start + start, self._entries.start + stop)
            return Rows(self.shards, self.number, self._workers, stretch, self)
        if isinstance(part, np.ndarray):
            workers = np.asarray(self._workers)[part].tolist()
            return Rows(self.shards, self.number, workers, self._entries, self)
        return self.at(part, np.copy)

    def zeros(self) -> Rows:
        """Return distributed zeros of the same shape, in the same shards."""
        made = self.shards.zeros(self.shape[1])
        return made if len(self) == self.shards.workers else made[np.asarray(self._workers)]

    def copy(self, order: str = "C") -> Rows:
        """Return a copy of all rows, stored in the same shards."""
        made = self.zeros()
        deque(made.each(np.copyto, self), maxlen=0)
        return made

    def at(self, place: int, work: Callable[..., Any]) -> Any:
        """Return the result of `work` on the row with index `place`, computed in the shard that stores the row."""
        worker = self._workers[place]
        return self.shards.ask(worker, "call", work, _RowPlace(self.number, worker, self._entries)).result()

    def each(self, work: Callable[..., Any], *others: Rows | Iterable[Any]) -> Iterator[Any]:
        """Yield the result of `work` on each row, in order, with one row in progress per shard.

        `work` is picklable and may change the rows; `others` are further arguments per row.
        """
        given = zip(*(one._places() if isinstance(one, Rows) else one for one in (self, *others)), strict=False)
        asked: deque[Future[Any]] = deque()

        def ask(rows: int) -> None:
            for row, *beside in itertools.islice(given, rows):
                asked.append(self.shards.ask(row.worker, "call", work, row, *beside))

        ask(self.shards.count)
        while asked:
            result = asked.popleft().result()
            ask(1)
            yield result

    def _places(self) -> Iterator[_RowPlace]:
        return (_RowPlace(self.number, worker, self._entries) for worker in self._workers)


def map_rows(work: Callable[..., Any], rows: Values | Rows, *others: Any) -> Iterator[Any]:
    """Yield the result of `work` on each row, like `map`; rows in a shard are processed in their shard.

    Examples
    --------
    >>> list(map_rows(np.max, np.array([[1, 2], [4, 3]], dtype=np.float32)))
    [np.float32(2.0), np.float32(4.0)]
    """
    return rows.each(work, *others) if isinstance(rows, Rows) else map(work, rows, *others)


def zeros_like(rows: Any) -> Any:
    """Return zeros of the shape of `rows`: an array, or distributed rows in the same shards."""
    return rows.zeros() if isinstance(rows, Rows) else np.zeros_like(rows)


def apply_to_row(work: Callable[..., Any], rows: Values | Rows, place: int) -> Any:
    """Return the result of `work` on the row with index `place`, computed in the row's shard if it is in one.

    Examples
    --------
    >>> apply_to_row(np.max, np.array([[1, 2], [4, 3]], dtype=np.float32), 1)
    np.float32(4.0)
    """
    return rows.at(place, work) if isinstance(rows, Rows) else work(rows[place])
