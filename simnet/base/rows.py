"""Numbers of P workers, a row each, that live in shards: in other processes, on this machine or on others.

What is done to rows is sent to where they live, and only what comes of it is sent back. Worker w lives in shard w
modulo their number, so that shards take turns where results come in the order of the workers. `simnet.base.shards`
starts shards; `each` does the same to the rows of an array as to `Rows`.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float32]


class Answer(Protocol):
    """What a shard will have answered."""

    def result(self) -> Any:
        """Wait for it, and return it; SimnetError if the shard is lost."""


Ask: TypeAlias = Callable[..., Answer]
"""Has a shard do `Shard.answer`, of which it takes the arguments."""


@runtime_checkable
class Separable(Protocol):
    """What draws the gradients of some workers of a job as they are beside those of the others."""

    @property
    def workers(self) -> int:
        """P, of the job."""

    @property
    def parameters(self) -> int:
        """Entries n of a gradient."""

    def gradients_of(self, workers: Sequence[int], iteration: int, out: Values | None = None) -> Values:
        """Return the gradients of some workers, ascending, as float32 of shape (len(workers), n); in `out` if given."""


class _Row(NamedTuple):
    """Where a row lives: which rows, which worker, which entries."""

    number: int
    worker: int
    entries: slice


class Shard:
    """The rows of some workers, in the process where they live.

    Parameters
    ----------
    source : Separable
        Draws their gradients.
    first, shards : int
        The workers are `first`, `first` + `shards`, and so on.
    """

    def __init__(self, source: Separable, first: int, shards: int) -> None:
        self._source, self._shards = source, shards
        self._workers = range(first, source.workers, shards)
        self._kept: dict[int, Values] = {}

    def answer(self, dropped: Sequence[int], asked: str, *given: Any) -> Any:
        """Forget the rows `dropped`, by their numbers, and do what is `asked`: another method."""
        for number in dropped:
            del self._kept[number]
        return getattr(self, asked)(*given)

    def make(self, number: int, entries: int) -> None:
        """Make rows of zeros."""
        self._kept[number] = np.zeros((len(self._workers), entries), dtype=np.float32)

    def draw(self, number: int, iteration: int) -> None:
        """Draw the gradients of an iteration, into the rows of that number if there are some."""
        self._kept[number] = self._source.gradients_of(self._workers, iteration, self._kept.get(number))

    def call(self, work: Callable[..., Any], *given: Any) -> Any:
        """Return what `work` returns of what is given; a `_Row` stands for its entries."""
        return work(*(self._entries(one) if isinstance(one, _Row) else one for one in given))

    def _entries(self, row: _Row) -> Values:
        found: Values = self._kept[row.number][row.worker // self._shards, row.entries]
        return found


class Shards:
    """All shards of a job.

    Parameters
    ----------
    source : Separable
        What draws in them.
    asks : sequence of callable
        One for each shard.
    """

    def __init__(self, source: Separable, asks: Sequence[Ask]) -> None:
        self.workers, self.parameters = source.workers, source.parameters
        self.count = len(asks)
        self._asks = asks
        self._numbers = itertools.count()
        self._dropped: list[list[int]] = [[] for _ in asks]

    def ask(self, worker: int, asked: str, *given: Any) -> Answer:
        """Ask the shard of a worker for a method of `Shard`."""
        shard = worker % self.count
        dropped, self._dropped[shard] = self._dropped[shard], []
        return self._asks[shard](dropped, asked, *given)

    def zeros(self, entries: int) -> Rows:
        """Return rows of zeros, of all workers."""
        return self._new(entries, "make", entries)

    def gradients(self, iteration: int) -> Rows:
        """Return the gradients of an iteration, of all workers."""
        return self._new(self.parameters, "draw", iteration)

    def redraw(self, rows: Rows, iteration: int) -> None:
        """Put the gradients of an iteration into rows of all workers, whole ones."""
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
    """Rows that live in shards; used as an array of float32 of shape (P, n) is, as far as exchanges need it.

    Parameters
    ----------
    shards : Shards
        Where they live.
    number : int
        Which they are.
    workers : sequence of int
        Whose they are, by their numbers in the job, in order.
    entries : slice
        Which entries of what lives there.
    base : Rows, optional
        Rows of which these are a part.

    Attributes
    ----------
    flags : namespace
        As of an array: ``writeable``, whether they may change. It is for those to heed who send work that changes them.
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
        """Yield the rows, as copies."""
        return self.each(np.copy)

    def __getitem__(self, part: Any) -> Any:
        """Return the row of a worker, as a copy; or a part of these: ``[:, a:b]``, or as an array of workers says."""
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
        """Return rows of zeros, of the same workers, and as long."""
        made = self.shards.zeros(self.shape[1])
        return made if len(self) == self.shards.workers else made[np.asarray(self._workers)]

    def copy(self, order: str = "C") -> Rows:
        """Return the same numbers as rows of their own."""
        made = self.zeros()
        deque(made.each(np.copyto, self), maxlen=0)
        return made

    def at(self, place: int, work: Callable[..., Any]) -> Any:
        """Return what `work` returns of the row of one worker."""
        worker = self._workers[place]
        return self.shards.ask(worker, "call", work, _Row(self.number, worker, self._entries)).result()

    def each(self, work: Callable[..., Any], *others: Rows | Iterable[Any]) -> Iterator[Any]:
        """Yield what `work` returns of each row, in order, as `map` does; every shard is at work on a row of its own.

        Parameters
        ----------
        work : callable
            A function of a module, or what else can be sent by pickle. It may change the rows.
        others : Rows or iterable
            What else it is called with for each row.
        """
        given = zip(*(one._places() if isinstance(one, Rows) else one for one in (self, *others)), strict=False)
        asked: deque[Answer] = deque()

        def ask(rows: int) -> None:
            for row, *beside in itertools.islice(given, rows):
                asked.append(self.shards.ask(row.worker, "call", work, row, *beside))

        ask(self.shards.count)
        while asked:
            result = asked.popleft().result()
            ask(1)
            yield result

    def _places(self) -> Iterator[_Row]:
        return (_Row(self.number, worker, self._entries) for worker in self._workers)


def each(work: Callable[..., Any], rows: Values | Rows, *others: Any) -> Iterator[Any]:
    """Yield what `work` returns of each row, as `map` does, wherever they live.

    Parameters
    ----------
    work : callable
        As of `Rows.each`.
    rows : ndarray or Rows
        The rows.
    *others : Rows or iterable
        What else it is called with for each row.

    Examples
    --------
    >>> list(each(np.max, np.array([[1, 2], [4, 3]], dtype=np.float32)))
    [np.float32(2.0), np.float32(4.0)]
    """
    return rows.each(work, *others) if isinstance(rows, Rows) else map(work, rows, *others)


def zeros_like(rows: Any) -> Any:
    """Return zeros in the shape of rows, and where they live."""
    return rows.zeros() if isinstance(rows, Rows) else np.zeros_like(rows)


def one(work: Callable[..., Any], rows: Values | Rows, place: int) -> Any:
    """Return what `work` returns of one row, wherever it lives.

    Parameters
    ----------
    work : callable
        As of `Rows.each`.
    rows : ndarray or Rows
        The rows.
    place : int
        Which of them.

    Examples
    --------
    >>> one(np.max, np.array([[1, 2], [4, 3]], dtype=np.float32), 1)
    np.float32(4.0)
    """
    return rows.at(place, work) if isinstance(rows, Rows) else work(rows[place])
