"""Sparse all-reduces of SparCML: streams that are summed as they travel, and become dense where that is shorter.

A stream is a list of indices and values, or a dense vector. Indices that only one of two streams has stay in their sum
(fill-in), so that streams grow from sum to sum.

References
----------
C. Renggli, S. Ashkboos, M. Aghagolzadeh, D. Alistarh, T. Hoefler, "SparCML: High-Performance Sparse Communication for
Machine Learning", SC 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simnet.collectives import allgatherv_recursive_doubling
from simnet.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models.selection import Indices, Values
from simnet.sparsifier_models.split_reduce import Places
from simnet.sparsifier_models.steps import Step


@dataclass(frozen=True)
class Format:
    """What a stream takes on the wire.

    Parameters
    ----------
    entry, element : float
        Bytes of an index with its value, and of an element of a dense vector.
    header : float
        Bytes of the count that opens a stream.

    Examples
    --------
    >>> form = Format(entry=8, element=4, header=4)
    >>> form.is_dense(49, 100), form.is_dense(50, 100)
    (False, True)
    """

    entry: float
    element: float
    header: float

    def is_dense(self, entries: int, length: int) -> bool:
        """Whether that many entries take no less than a dense vector of that length."""
        return entries * self.entry >= length * self.element


@dataclass(frozen=True)
class Stream:
    """Indices, ascending, and their values; or a dense vector, without indices."""

    indices: Places | None
    values: Values

    def nbytes(self, form: Format) -> float:
        """Bytes on the wire."""
        return form.header + self.values.size * (form.element if self.indices is None else form.entry)

    def dense(self, length: int) -> Values:
        """Return the dense vector; the one of a dense stream itself."""
        if self.indices is None:
            return self.values
        vector = np.zeros(length, dtype=np.float32)
        vector[self.indices] = self.values
        return vector


def added(one: Stream, other: Stream, length: int, form: Format) -> Stream:
    """Return the sum of two streams: dense if one is, or if sparse it would take as many bytes; both may be modified.

    Examples
    --------
    >>> one, other = (Stream(np.array(indices), np.ones(2, dtype=np.float32)) for indices in ([0, 2], [2, 5]))
    >>> added(one, other, 9, Format(8, 4, 4))
    Stream(indices=array([0, 2, 5]), values=array([1., 2., 1.], dtype=float32))
    >>> added(one, other, 8, Format(8, 4, 4))
    Stream(indices=None, values=array([1., 0., 2., 0., 0., 1., 0., 0.], dtype=float32))
    """
    if one.indices is None or other.indices is None or form.is_dense(one.indices.size + other.indices.size, length):
        if one.indices is not None:
            one, other = other, one
        total = one.dense(length)
        if other.indices is None:
            total += other.values
        else:
            total[other.indices] += other.values
        return Stream(None, total)
    both = np.sort(np.concatenate([one.indices, other.indices]))
    indices = both[np.diff(both, prepend=-1) > 0]
    values = np.zeros(indices.size, dtype=np.float32)
    values[np.searchsorted(indices, one.indices)] = one.values
    values[np.searchsorted(indices, other.indices)] += other.values
    return Stream(indices, values)


def recursive_doubling(rows: Values, chosen: Sequence[Places], form: Format) -> tuple[Stream, tuple[Step, ...]]:
    """SSAR_Recursive_double: in log2 P rounds partners exchange all they have summed so far.

    If P is no power of two, the first workers pair up: before, the even one sends all to the odd one, and after, it
    gets the sum. `rows`, shape (P, n), are not modified; `chosen` has the ascending indices of each worker. Phases are
    ``fold``, ``doubling`` and ``unfold``; after each round its receivers add.

    Examples
    --------
    >>> rows = np.eye(4, 9, dtype=np.float32)
    >>> chosen = [np.array([worker]) for worker in range(4)]
    >>> total, steps = recursive_doubling(rows, chosen, Format(8, 4, 0))
    >>> total.indices, [one.entries.tolist() for one in steps if isinstance(one, DeviceOp)]
    (array([0, 1, 2, 3]), [[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    """
    P, n = rows.shape
    levels = P.bit_length() - 1
    Q, extra = 1 << levels, P - (1 << levels)
    worker_of = np.concatenate([np.arange(extra) * 2 + 1, np.arange(2 * extra, P)])
    fold, doubling = np.zeros(extra), np.zeros((levels, Q))
    # Entries and elements that each worker receives in each round.
    folded, doubled, unfolded = np.zeros(P), np.zeros((levels, P)), np.zeros(P)

    def own(worker: int) -> Stream:
        values = rows[worker, chosen[worker]]
        return Stream(None if values.size == n else chosen[worker], values)

    def summed(first: int, last: int) -> Stream:
        """Return what the places first .. last - 1 have summed, having exchanged among themselves."""
        if last - first == 1:
            worker = int(worker_of[first])
            if first >= extra:
                return own(worker)
            even = own(worker - 1)
            fold[first] = even.nbytes(form)
            folded[worker] = even.values.size
            return added(even, own(worker), n, form)
        middle = (first + last) // 2
        low, high = summed(first, middle), summed(middle, last)
        level = (middle - first).bit_length() - 1
        doubling[level, first:middle], doubling[level, middle:last] = low.nbytes(form), high.nbytes(form)
        doubled[level, worker_of[first:middle]] = high.values.size
        doubled[level, worker_of[middle:last]] = low.values.size
        return added(low, high, n, form)

    total = summed(0, Q)
    odd, place = worker_of[:extra], np.arange(Q)
    rounds = [(Round(odd - 1, odd, fold, phase="fold"), folded)] if extra else []
    for level, (nbytes, received) in enumerate(zip(doubling, doubled, strict=True)):
        rounds.append((Round(worker_of, worker_of[place ^ (1 << level)], nbytes, phase="doubling"), received))
    if extra:
        unfolded[odd - 1] = total.values.size
        rounds.append((Round(odd, odd - 1, total.nbytes(form), phase="unfold"), unfolded))
    return total, tuple(
        step for one, received in rounds for step in (Schedule(P, [one]), DeviceOp("scatter", received))
    )


def direct_split(entries: Indices, lengths: Indices, form: Format) -> Schedule:
    """Return the messages by which everyone sends each its split, all at once.

    ``entries[r, q]`` go from worker r to q; a message is dense where that is shorter than its split of ``lengths[q]``.

    Examples
    --------
    >>> direct_split(np.array([[9, 1], [5, 9]]), np.array([10, 10]), Format(8, 4, 4)).bytes_sent()
    array([12., 44.])
    """
    P = len(entries)
    if P == 1:
        return Schedule(P)
    src, dst = np.nonzero(~np.eye(P, dtype=np.bool_))
    nbytes = form.header + np.minimum(entries[src, dst] * form.entry, lengths[dst] * form.element)
    return Schedule(P, [Round(src, dst, nbytes, phase="split")])


def concatenated(pieces: NDArray[np.int64], form: Format) -> Schedule:
    """Return recursive doubling of streams of `pieces`, shape (P,), entries that share no index.

    Examples
    --------
    >>> concatenated(np.array([1, 2, 3, 4]), Format(8, 4, 4)).columns()["nbytes"]
    array([12., 20., 28., 36., 28., 28., 60., 60.])
    """
    gather = allgatherv_recursive_doubling(pieces * form.entry)
    rounds = [Round(one.src, one.dst, one.nbytes + form.header, phase="doubling") for one in gather.rounds]
    return Schedule(gather.n_ranks, rounds)
