"""Schedules of messages in rounds, stored as numpy arrays.

A schedule says who sends how many bytes to whom, and in which order. It knows nothing of time: any clock (closed form,
max-plus, event loop) can time it on any network, and it can be replayed on a real cluster.

A rank *enters* a round when every message that it receives in the previous round has arrived, and every send has
completed, as the transport stack defines it (`simnet.network.stack`): by default when the message has left the host's
own link. Ranks do not wait for each other beyond that: there is no barrier between rounds, and a rank without messages
in a round passes through it at once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.base.errors import check_int
from simnet.base.quantities import MOST_BYTES, MOST_SECONDS

__all__ = ["Round", "Schedule"]

T = TypeVar("T", bound=np.generic)


class Round:
    """Messages that may start at the same time, and the compute time of ranks before them.

    Parameters
    ----------
    src, dst : array_like of int, shape (m,)
        Sending and receiving rank of each message. A rank does not send to itself.
    nbytes : array_like of float, shape (m,) or scalar
        Bytes of each message, >= 0. A message of zero bytes still pays the latency.
    compute : float or array_like of float, shape (n_ranks,)
        Seconds a rank works before it enters the round: the same for every rank, or one value per rank.
    phase : str
        What the round belongs to, e.g. ``"reduce-scatter"``; for reports.

    Raises
    ------
    ValueError
        If the lengths differ, a byte count or compute time is negative or not finite, or a rank sends to itself.

    Examples
    --------
    >>> Round([0, 1], [1, 0], [10, 20]).nbytes
    array([10., 20.])
    """

    __slots__ = ("compute", "dst", "nbytes", "phase", "src")

    def __init__(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        nbytes: ArrayLike,
        compute: float | ArrayLike = 0.0,
        phase: str = "",
    ) -> None:
        self.src: Ranks = _integer_array(src, "src")
        self.dst: Ranks = _integer_array(dst, "dst")
        if self.dst.shape != self.src.shape:
            raise ValueError(f"src and dst differ in length: {self.src.size} and {self.dst.size}")
        sizes = np.asarray(nbytes, dtype=np.float64)
        if sizes.ndim == 0:
            sizes = np.full(self.src.shape, float(sizes))
        self.nbytes: Floats = _float_array(sizes, "nbytes")
        if self.nbytes.shape != self.src.shape:
            raise ValueError(f"src and nbytes differ in length: {self.src.size} and {self.nbytes.size}")
        work = np.asarray(compute, dtype=np.float64)
        self.compute: float | Floats = float(work) if work.ndim == 0 else _float_array(work, "compute")
        self.phase = phase
        _refuse_first(self.src < 0, self.src, "src must be >= 0")
        _refuse_first(self.dst < 0, self.dst, "dst must be >= 0")
        _refuse_outside(self.nbytes, "nbytes", MOST_BYTES)
        _refuse_outside(work, "compute", MOST_SECONDS, " s")
        if (self.src == self.dst).any():
            message = int(np.argmax(self.src == self.dst))
            raise ValueError(f"rank {self.src[message]} sends to itself in message {message}")

    def __len__(self) -> int:
        return int(self.src.size)

    def __repr__(self) -> str:
        return f"Round({len(self)} messages, {self.nbytes.sum():g} bytes, phase={self.phase!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Round):
            return NotImplemented
        columns = ("src", "dst", "nbytes", "compute")
        same = (np.array_equal(np.asarray(getattr(self, one)), np.asarray(getattr(other, one))) for one in columns)
        return self.phase == other.phase and all(same)

    __hash__ = None  # type: ignore[assignment]


class Call(NamedTuple):
    """A call of a collective: operation, algorithm and sizes, and which rounds of the schedule send its messages.

    Parameters
    ----------
    first, rounds : int
        Its first round, from 0, and how many there are.
    operation, algorithm : str
        What it achieves, as nccl-tests spells it, and how, as `simnet.collectives.registry` has them.
    nbytes : float
        Its total size as nccl-tests counts it: the vector of an all-reduce, the whole of an all-gather [byte].
    sizes : ndarray of float, optional
        What its chunks have where they are not equal [byte]: the contributions to an all-gather.
    """

    first: int
    rounds: int
    operation: str
    algorithm: str
    nbytes: float
    sizes: Floats | None = None


class Columns(TypedDict):
    """Messages of a schedule as columns of equal length: round, source, destination, bytes and phase."""

    round: Ranks
    src: Ranks
    dst: Ranks
    nbytes: Floats
    phase: NDArray[np.str_]


class Schedule:
    """Rounds of messages between `n_ranks` ranks.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1. Ranks are 0 .. P-1.
    rounds : iterable of Round
        In order. The same `Round` object may stand several times; a ring of many ranks then costs the memory of one.
    calls : iterable of Call
        Which rounds belong to calls of collectives, in order; all others are messages from rank to rank. What is sent
        does not depend on it, but the order in which a stack posts the messages of a round may. Schedules that differ
        in it alone are equal.

    Raises
    ------
    ValueError
        If `n_ranks` < 1, a round names a rank outside 0 .. P-1, or a per-rank compute has not P entries.

    Examples
    --------
    >>> schedule = Schedule(2, [Round([0], [1], [8]), Round([1], [0], [4])])
    >>> schedule.bytes_sent(), schedule.n_messages
    (array([8., 4.]), 2)
    """

    __slots__ = ("_sums", "calls", "n_ranks", "rounds")

    def __init__(self, n_ranks: int, rounds: Iterable[Round] = (), calls: Iterable[Call] = ()) -> None:
        self.n_ranks = check_int(n_ranks, "n_ranks", 1)
        self.rounds: tuple[Round, ...] = tuple(rounds)
        self.calls: tuple[Call, ...] = tuple(calls)
        # Bytes that each rank sends, and receives, once asked for: of a schedule that recurs they are every time.
        self._sums: dict[str, Floats] = {}
        for one, _ in count_rounds(self.rounds):
            largest = max(one.src.max(initial=0), one.dst.max(initial=0))
            if largest >= n_ranks:
                raise ValueError(f"a round names rank {largest}, but there are {n_ranks} ranks")
            if isinstance(one.compute, np.ndarray) and one.compute.shape != (n_ranks,):
                raise ValueError(f"compute has {one.compute.size} entries, but there are {n_ranks} ranks")

    def __repr__(self) -> str:
        return f"Schedule({self.n_ranks} ranks, {len(self.rounds)} rounds, {self.n_messages} messages)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.n_ranks == other.n_ranks and self.rounds == other.rounds

    __hash__ = None  # type: ignore[assignment]

    @property
    def n_messages(self) -> int:
        """Number of messages."""
        return sum(len(one) for one in self.rounds)

    @property
    def nbytes(self) -> float:
        """Total bytes of all messages."""
        return float(self.bytes_sent().sum())

    def bytes_sent(self) -> Floats:
        """Bytes each rank sends; shape (P,), float64."""
        return self._sum_by("src")

    def bytes_received(self) -> Floats:
        """Bytes each rank receives; shape (P,), float64."""
        return self._sum_by("dst")

    def compute(self) -> Floats:
        """Return each rank's total compute time over all rounds [s]; shape (P,), float64."""
        total = np.zeros(self.n_ranks)
        for one, times in count_rounds(self.rounds):
            total += times * np.asarray(one.compute)
        return total

    def _sum_by(self, end: str) -> Floats:
        if end not in self._sums:
            total = self._sums[end] = np.zeros(self.n_ranks)
            for one, times in count_rounds(self.rounds):
                total += times * np.bincount(getattr(one, end), weights=one.nbytes, minlength=self.n_ranks)
        return self._sums[end].copy()

    def concat(self, *others: Schedule) -> Schedule:
        """Return this schedule followed by the `others`, in order.

        Raises
        ------
        ValueError
            If the numbers of ranks differ.

        Examples
        --------
        >>> there, back = Schedule(2, [Round([0], [1], 8)]), Schedule(2, [Round([1], [0], 4)])
        >>> there.concat(back, there)
        Schedule(2 ranks, 3 rounds, 3 messages)
        """
        for other in others:
            if other.n_ranks != self.n_ranks:
                raise ValueError(f"cannot join schedules of {self.n_ranks} and {other.n_ranks} ranks")
        parts = (self, *others)
        before = itertools.accumulate((len(one.rounds) for one in parts), initial=0)
        calls = [
            call._replace(first=call.first + offset)
            for schedule, offset in zip(parts, before, strict=False)
            for call in schedule.calls
        ]
        return Schedule(self.n_ranks, [one for schedule in parts for one in schedule.rounds], calls)

    def scaled(self, factor: float) -> Schedule:
        """Return the schedule with message sizes multiplied by `factor` and unchanged compute times.

        Raises
        ------
        ValueError
            If `factor` is negative or not finite.
        """
        if not 0 <= factor < np.inf:
            raise ValueError(f"factor must be >= 0 and finite, got {factor!r}")
        calls = [
            call._replace(nbytes=call.nbytes * factor, sizes=None if call.sizes is None else call.sizes * factor)
            for call in self.calls
        ]
        return Schedule(
            self.n_ranks,
            _map_rounds(self.rounds, lambda one: Round(one.src, one.dst, one.nbytes * factor, one.compute, one.phase)),
            calls,
        )

    def with_work(self, seconds: Mapping[int, ArrayLike]) -> Schedule:
        """Return the schedule with extra compute time [s] before some of its rounds, or after the last round.

        Parameters
        ----------
        seconds : mapping of int to float or array_like of float, shape (n_ranks,)
            Seconds that ranks work before they enter a round, by its number, from 0. The key ``len(rounds)`` has the
            seconds after the last round, for which a round without messages is added.

        Raises
        ------
        ValueError
            If there is no such round, or `Round` refuses the seconds.

        Examples
        --------
        >>> there = Schedule(2, [Round([0], [1], 8)]).with_work({0: [0.5, 0], 1: 2.0})
        >>> [one.compute for one in there.rounds]
        [array([0.5, 0. ]), 2.0]
        """
        last = len(self.rounds)
        if seconds and not 0 <= min(seconds) <= max(seconds) <= last:
            raise ValueError(f"work must stand before rounds 0..{last}, got {sorted(seconds)!r:.200}")
        work = {number: one for number, one in seconds.items() if np.any(one)}
        if not work:
            return self
        rounds = [*self.rounds, *([Round([], [], [])] if last in work else [])]
        for number, more in work.items():
            one = rounds[number]
            rounds[number] = Round(one.src, one.dst, one.nbytes, np.add(one.compute, more), one.phase)
        return Schedule(self.n_ranks, rounds, self.calls)

    def without_work(self) -> Schedule:
        """Return the schedule without compute time: only its messages remain.

        Examples
        --------
        >>> Schedule(2, [Round([0], [1], 8, compute=0.5)]).without_work().compute()
        array([0., 0.])
        """
        rounds = _map_rounds(self.rounds, lambda one: Round(one.src, one.dst, one.nbytes, 0.0, one.phase))
        return Schedule(self.n_ranks, rounds, self.calls)

    def in_phase(self, phase: str) -> Schedule:
        """Return the schedule with every round labelled `phase`, such as ``indices``, for reports.

        Examples
        --------
        >>> Schedule(2, [Round([0], [1], 8)]).in_phase("indices").rounds
        (Round(1 messages, 8 bytes, phase='indices'),)
        """
        rounds = _map_rounds(self.rounds, lambda one: Round(one.src, one.dst, one.nbytes, one.compute, phase))
        return Schedule(self.n_ranks, rounds, self.calls)

    def embed(self, ranks: Sequence[int] | Ranks, n_ranks: int) -> Schedule:
        """Return the schedule between ranks of a larger set of `n_ranks` ranks: ``ranks[r]`` takes the place of rank r.

        Parameters
        ----------
        ranks : sequence of int, length P
            Distinct ranks of the larger schedule.
        n_ranks : int
            Ranks of the larger schedule. Those not in `ranks` have no messages and no compute.

        Raises
        ------
        ValueError
            If `ranks` has not P distinct entries in 0 .. n_ranks-1.
        """
        places = _integer_array(ranks, "ranks")
        if places.shape != (self.n_ranks,) or np.unique(places).size != self.n_ranks:
            raise ValueError(f"ranks must be {self.n_ranks} distinct ranks, got {places.tolist()!r:.200}")
        _refuse_first((places < 0) | (places >= n_ranks), places, f"ranks must lie in 0..{n_ranks - 1}")

        def moved(one: Round) -> Round:
            work = one.compute
            if isinstance(work, np.ndarray) or (work and n_ranks > self.n_ranks):
                work = np.zeros(n_ranks)
                work[places] = one.compute
            return Round(places[one.src], places[one.dst], one.nbytes, work, one.phase)

        return Schedule(n_ranks, _map_rounds(self.rounds, moved), self.calls)

    def columns(self) -> Columns:
        """Return all messages as columns ``round, src, dst, nbytes, phase`` of equal length."""
        counts = [len(one) for one in self.rounds]
        return {
            "round": np.repeat(np.arange(len(self.rounds), dtype=np.int64), counts),
            "src": _join_columns([one.src for one in self.rounds], np.zeros(0, np.int64)),
            "dst": _join_columns([one.dst for one in self.rounds], np.zeros(0, np.int64)),
            "nbytes": _join_columns([one.nbytes for one in self.rounds], np.zeros(0, np.float64)),
            "phase": np.repeat(np.array([one.phase for one in self.rounds], dtype=np.str_), counts),
        }

    def to_goal(self, path: str | Path) -> None:
        """Write the schedule as GOAL text, which ``txt2bin`` of LogGOPSim reads.

        See `simnet.interchange.goal.write_goal`.
        """
        from simnet.interchange.goal import write_goal

        write_goal(self, path)


def merge_schedules(schedules: Sequence[Schedule], ranks: Sequence[NDArray[np.int64]], n_ranks: int) -> Schedule:
    """Return one schedule in which several schedules run side by side, round by round, on disjoint sets of ranks.

    The result has collective calls only if there is one schedule, as a `Call` does not record its ranks. The phase of
    a round is that of the first schedule with a round left.

    Parameters
    ----------
    schedules : sequence of Schedule
        One for each set of ranks.
    ranks : sequence of ndarray of int
        For each schedule, the rank in the result of each of its ranks.
    n_ranks : int
        Ranks of all.

    Examples
    --------
    >>> there = Schedule(2, [Round([0], [1], 8)])
    >>> merge_schedules([there, there], [np.array([0, 1]), np.array([3, 2])], 4).columns()["dst"]
    array([1, 2])
    """
    rounds: list[Round] = []
    known: dict[tuple[int, ...], Round] = {}
    for number in range(max(len(one.rounds) for one in schedules)):
        left = [(one, places) for one, places in zip(schedules, ranks, strict=True) if number < len(one.rounds)]
        there = [(one.rounds[number], places) for one, places in left]
        key = tuple(id(one) for one, _ in there)
        if key not in known:
            known[key] = _one_round(there, n_ranks)
        rounds.append(known[key])
    return Schedule(n_ranks, rounds, schedules[0].calls if len(schedules) == 1 else ())


def _one_round(there: Sequence[tuple[Round, NDArray[np.int64]]], n_ranks: int) -> Round:
    src = np.concatenate([places[one.src] for one, places in there])
    dst = np.concatenate([places[one.dst] for one, places in there])
    work: float | Floats = 0.0
    if any(np.any(one.compute) for one, _ in there):
        work = np.zeros(n_ranks)
        for one, places in there:
            work[places] = one.compute
    return Round(src, dst, np.concatenate([one.nbytes for one, _ in there]), work, there[0][0].phase)


def _map_rounds(rounds: Sequence[Round], change: Callable[[Round], Round]) -> list[Round]:
    """Apply `change` once to each distinct round object, and return the changed rounds in order."""
    changed = {id(one): change(one) for one, _ in count_rounds(rounds)}
    return [changed[id(one)] for one in rounds]


def count_rounds(rounds: Sequence[Round]) -> Iterator[tuple[Round, int]]:
    """Yield each distinct round object with the number of times it occurs."""
    objects = {id(one): one for one in rounds}
    return ((objects[key], count) for key, count in Counter(map(id, rounds)).items())


def _integer_array(values: ArrayLike, name: str) -> Ranks:
    given = np.asarray(values)
    with np.errstate(invalid="ignore"):
        column = _read_only_column(given.astype(np.int64), name)
    if given.dtype != np.int64:
        _refuse_first(column != given, given, f"{name} must hold whole numbers")
    return column


def _float_array(values: ArrayLike, name: str) -> Floats:
    return _read_only_column(np.array(values, dtype=np.float64), name)


def _refuse_outside(given: Floats, name: str, most: float, unit: str = "") -> None:
    """Raise ValueError if a value is not in 0 to `most`; the error shows the first such value."""
    if not ((given >= 0) & (given <= most)).all():
        _refuse_first(~(np.isfinite(given) & (given >= 0)), given, f"{name} must be finite and >= 0")
        _refuse_first(given > most, given, f"{name} must be <= {most:g}{unit}")


def _refuse_first(wrong: NDArray[np.bool_], given: NDArray[Any], requirement: str) -> None:
    """Raise ValueError if `wrong` is true anywhere; the error shows the first wrong value of `given`."""
    if wrong.any():
        index = int(np.argmax(wrong))
        number = f"number {index} " if given.ndim else ""
        raise ValueError(f"{requirement}, but {number}is {given.item(index)!r}")


def _read_only_column(column: NDArray[T], name: str) -> NDArray[T]:
    if column.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {column.shape}")
    column.flags.writeable = False
    return column


def _join_columns(columns: list[NDArray[T]], empty: NDArray[T]) -> NDArray[T]:
    return np.concatenate(columns) if columns else empty
