"""TopkDSA: a sparse all-reduce of top-k entries, which switches to dense vectors where these are smaller.

Every worker selects its k entries of largest magnitude. They are summed region by region or stream by stream, nothing
of the sum is left out, and everybody gets all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simnet.collectives import allgatherv_recursive_doubling, alltoall_pairwise
from simnet.cost_models.costs import sparcml_bounds, topkdsa, topkdsa_bounds
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models import split_reduce
from simnet.sparsifier_models.base import Exchange, Step
from simnet.sparsifier_models.selection import Indices, Values, squared_norm, top_k
from simnet.sparsifier_models.split_reduce import DroppedShare, Places, SplitOptions, SplitReduce
from simnet.sparsifier_models.wire import Codes

NEGLIGIBLE = 1e-8
"""Largest magnitude of sums that the released SSAR_Split_allgather drops."""


class TopkDSAOptions(SplitOptions):
    """Options of `TopkDSA`.

    Parameters
    ----------
    algorithm : {"split", "recursive_doubling", "split_allgather", "dense_allgather"}
        The sparse all-reduce. ``split``: over equal regions, as released with Ok-Topk. Others as in SparCML:
        SSAR_Recursive_double, SSAR_Split_allgather and DSAR_Split_allgather.
    """

    algorithm: Literal["split", "recursive_doubling", "split_allgather", "dense_allgather"] = "split"


class TopkDSA(SplitReduce, costs=(topkdsa, topkdsa_bounds, sparcml_bounds)):
    """TopkDSA, or TopkSA: a sparse all-reduce of top-k entries that turns dense where that takes fewer bytes.

    The algorithm ``split`` gathers sparse regions if the sum has fewer than n / 3 non-zero entries, else dense ones (by
    the rules of bert from nnz >= n // 3 on, by the others from 2 nnz >= 2 n // 3 on). Algorithms of SparCML send a
    stream dense if that takes no more bytes; the sum arrives sparse in ``split_allgather``, dense in
    ``dense_allgather``, and either way in ``recursive_doubling``. On the wire ``released`` a count of four bytes opens
    a stream. Splits are summed in the order of the rotation, whatever their order of arrival.

    A worker sums its region when all splits have arrived; in recursive doubling it sums after each round.

    With ``compat="released"`` the algorithm ``split`` neither sends nor keeps the k-th entry of each worker, and
    ``split_allgather`` drops sums of up to 1e-8.

    Calls are phases of the schedule: ``split sizes`` (all-to-all) and ``sizes`` (all-gather), on the wire ``released``
    only, ``split``, and one of ``entries``, ``values`` and ``indices`` (released, rules of bert), or ``dense``; those
    of SparCML are ``split``, ``fold``, ``doubling``, ``unfold`` and ``dense``.

    Further statistics, besides those of `Exchange`: ``global_nnz``, entries of the sum other than zero, and ``dense``,
    1 if the sum arrived as a dense vector, else 0.

    References
    ----------
    C. Renggli et al., "SparCML: High-Performance Sparse Communication for Machine Learning", SC 2019; S. Li, T.
    Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022, whose reference implementation
    has ``split``.

    Examples
    --------
    >>> gradients = np.zeros((2, 12), dtype=np.float32)
    >>> gradients[:, [3, 8, 9]] = [[5, 2, 1], [4, 3, 1]]
    >>> exchange = TopkDSA(workers=2, parameters=12, density=0.17).exchange(gradients)
    >>> exchange.update[[3, 8, 9]], exchange.stats["dense"]
    (array([4.5, 2.5, 0. ], dtype=float32), 0.0)
    >>> [(one.phase, one.nbytes.tolist()) for one in exchange.schedule.rounds]
    [('split', [8.0, 8.0]), ('entries', [8.0, 8.0])]
    """

    name = "topkdsa"
    paper = "Renggli et al., SC 2019, arXiv 1802.08021; Li and Hoefler, PPoPP 2022"
    options: TopkDSAOptions

    def _option_traits(self) -> dict[str, Any]:
        loses = self.options.compat == "released" and self.options.algorithm in ("split", "split_allgather")
        codes = Codes(otherwise="a stream turns dense by the width of an entry, for which codes have no rule")
        found = {"conserves": not loses, **({} if self.options.algorithm == "split" else {"codes": codes})}
        return super()._option_traits() | found

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        P, n, algorithm = self.workers, self.parameters, self.options.algorithm
        loses_one = self.options.compat == "released" and algorithm == "split"
        threshold, sent = np.zeros(P), np.zeros(P)
        touched = np.zeros(n, dtype=np.bool_)
        chosen: list[Places] = []
        for worker, row in enumerate(corrected):
            largest = top_k(row, self.k)
            magnitude = np.abs(row[largest])
            threshold[worker] = magnitude.min()
            own = largest
            if loses_one:
                own = largest[magnitude > magnitude.min()]
                row[largest[magnitude == magnitude.min()]] = 0
            sent[worker] = squared_norm(row[own])
            touched[own] = True
            chosen.append(split_reduce.compact(own))

        rests: list[DroppedShare] = []
        if algorithm == "recursive_doubling":
            stream, steps = recursive_doubling(corrected, chosen, self._form)
            total, dense = stream.dense(n), stream.indices is None
        else:
            total, steps, dense, rests = self._split_and_gather(corrected, chosen)
        for row, indices in zip(corrected, chosen, strict=True):
            row[indices] = 0
        for one in rests:
            one.into(corrected)

        nnz = int(np.count_nonzero(total))
        total /= np.float32(P)
        selected = np.array([own.size for own in chosen], dtype=np.int64)
        return self._make_exchange(
            total,
            [DeviceOp("topk", n), *steps, DeviceOp("scatter", float(n if dense else nnz))],
            sent,
            selected=selected,
            union=int(np.count_nonzero(touched)),
            stats={"threshold": threshold, "global_nnz": float(nnz), "dense": float(dense)},
        )

    def _split_and_gather(
        self, rows: Values, chosen: list[Places]
    ) -> tuple[Values, tuple[Step, ...], bool, list[DroppedShare]]:
        """Return the sum of selected entries, the steps that compute it, whether it is dense, and encoding errors."""
        P, n, wire, form = self.workers, self.parameters, self.wire, self._form
        cuts = split_reduce.equal_cuts(n, P)
        lengths = np.diff(cuts)
        rests, _ = self._read_split(rows, chosen, cuts)
        total, entries = split_reduce.split_and_reduce(rows, chosen, cuts)
        if self.options.algorithm == "split_allgather" and self.options.compat == "released":
            total[np.abs(total) <= NEGLIGIBLE] = 0
        pieces = split_reduce.by_region(np.flatnonzero(total), cuts)
        split: list[Step] = [direct_split(entries, lengths, form)]
        gathered: list[Step] = [self.options.gather(lengths * self.dense_bytes).in_phase("dense")]
        dense = self.options.algorithm == "dense_allgather"
        if self.options.algorithm == "split_allgather":
            gathered = [join_streams(pieces, form)]
        elif not dense:
            split = self._split(entries, self._encoded_split(chosen, cuts))
            dense = self._turns_dense(int(pieces.sum()))
            if not dense:
                indices = np.flatnonzero(total)
                rests += self._read_pieces(total, indices, pieces, np.arange(P))
                messages = self._pieces(pieces, self._encoded_pieces(indices, pieces, cuts))
                gathered = [*wire.coded(messages, pieces, float(pieces.sum()), n / P, P)]
            if wire.released:
                split.insert(0, alltoall_pairwise(P, wire.count_bytes).in_phase("split sizes"))
                gathered.insert(0, self._sizes())
        return total, (*split_reduce.around_split(n, entries, *split), *gathered), dense, rests

    def _turns_dense(self, nnz: int) -> bool:
        """Return whether regions are gathered as dense vectors if the sum has `nnz` nonzero entries."""
        n = self.parameters
        return nnz >= n // 3 if self.options.rules == "bert" else 2 * nnz >= 2 * n // 3

    @property
    def _form(self) -> Format:
        return Format(self.wire.entry_bytes, self.dense_bytes, 4.0 if self.wire.released else 0.0)


@dataclass(frozen=True)
class Format:
    """Byte sizes of the entries and the header of a sparse or dense vector on the wire.

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
        """Return whether `entries` sparse entries take at least the bytes of a dense vector of this length."""
        return entries * self.entry >= length * self.element


@dataclass(frozen=True)
class SparseStream:
    """A vector as ascending indices and values, or as all of its values if `indices` is None."""

    indices: Places | None
    values: Values

    def nbytes(self, form: Format) -> float:
        """Return the number of bytes on the wire."""
        return form.header + self.values.size * (form.element if self.indices is None else form.entry)

    def dense(self, length: int) -> Values:
        """Return the vector as a dense array of this length, without a copy if the stream is dense."""
        if self.indices is None:
            return self.values
        vector = np.zeros(length, dtype=np.float32)
        vector[self.indices] = self.values
        return vector


def added(one: SparseStream, other: SparseStream, length: int, form: Format) -> SparseStream:
    """Return the sum of two streams, which are overwritten; the sum is dense where that takes no more bytes."""
    if one.indices is None or other.indices is None or form.is_dense(one.indices.size + other.indices.size, length):
        if one.indices is not None:
            one, other = other, one
        total = one.dense(length)
        if other.indices is None:
            total += other.values
        else:
            total[other.indices] += other.values
        return SparseStream(None, total)
    both = np.sort(np.concatenate([one.indices, other.indices]))
    indices = both[np.diff(both, prepend=-1) > 0]
    values = np.zeros(indices.size, dtype=np.float32)
    values[np.searchsorted(indices, one.indices)] = one.values
    values[np.searchsorted(indices, other.indices)] += other.values
    return SparseStream(indices, values)


def recursive_doubling(rows: Values, chosen: Sequence[Places], form: Format) -> tuple[SparseStream, tuple[Step, ...]]:
    """Return the sum of workers' selections, and its steps by SSAR_Recursive_double: pairs exchange partial sums.

    If P is no power of two, the first workers pair up: before, the even one sends all to the odd one, and after, it
    gets the sum. `rows`, shape (P, n), are not modified; `chosen` has the ascending indices of each worker. Phases are
    ``fold``, ``doubling`` and ``unfold``; after each round its receivers add.
    """
    P, n = rows.shape
    levels = P.bit_length() - 1
    Q, extra = 1 << levels, P - (1 << levels)
    worker_of = np.concatenate([np.arange(extra) * 2 + 1, np.arange(2 * extra, P)])
    fold, doubling = np.zeros(extra), np.zeros((levels, Q))
    # Entries and elements that each worker receives in each round.
    folded, doubled, unfolded = np.zeros(P), np.zeros((levels, P)), np.zeros(P)

    def own(worker: int) -> SparseStream:
        values = rows[worker, chosen[worker]]
        return SparseStream(None if values.size == n else chosen[worker], values)

    def summed(first: int, last: int) -> SparseStream:
        """Return the sum over workers at positions first .. last - 1 of the doubling order; record their messages."""
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
    """Return the round in which each worker sends each other worker the entries in the region that the receiver owns.

    ``entries[r, q]`` go from worker r to q; a message is dense if that is shorter than its sparse form; region q has
    ``lengths[q]`` entries.
    """
    P = len(entries)
    if P == 1:
        return Schedule(P)
    src, dst = np.nonzero(~np.eye(P, dtype=np.bool_))
    nbytes = form.header + np.minimum(entries[src, dst] * form.entry, lengths[dst] * form.element)
    return Schedule(P, [Round(src, dst, nbytes, phase="split")])


def join_streams(pieces: NDArray[np.int64], form: Format) -> Schedule:
    """Return the messages by which recursive doubling gathers disjoint streams of `pieces` entries, shape (P,)."""
    gather = allgatherv_recursive_doubling(pieces * form.entry)
    rounds = [Round(one.src, one.dst, one.nbytes + form.header, phase="doubling") for one in gather.rounds]
    return Schedule(gather.n_ranks, rounds)
