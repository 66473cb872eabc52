"""Spar-Reduce-Scatter (SRS): the T workers of a team reduce each block to the worker that owns it, sparsely.

Bags of blocks travel at distances that halve from round to round, so that L = ceil(log2 T) rounds do for any T. Sparse
sums grow when they are added up; here a worker keeps its blocks dense and cuts a block to k_b entries once, right
before it passes the block on (lazy sparsification), so that no message ever grows.

Blocks do not touch each other, so that each is reduced on its own.

References
----------
M. Zhao et al., "SparDL: Distributed Deep Learning Training with Efficient Sparse Communication", ICDE 2024, and its
reference implementation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.sparsifier_models.selection import Indices, Values, top_k


class Entries(NamedTuple):
    """Some of the entries of a block.

    Parameters
    ----------
    indices : ndarray of int64, shape (m,)
        Where they stand in the block, ascending.
    values : ndarray of float32, shape (m,)
    """

    indices: Indices
    values: Values

    def within(self, final: NDArray[np.bool_]) -> Entries:
        """Return those where `final`, of the length of the block, is true."""
        inside = final[self.indices]
        return Entries(self.indices[inside], self.values[inside])

    def cut(self, k: int) -> tuple[Entries, Entries]:
        """Return the `k` largest in magnitude, or all, and the rest."""
        largest = np.zeros(self.values.size, dtype=np.bool_)
        largest[top_k(self.values, k)] = True
        rest = ~largest
        return Entries(self.indices[largest], self.values[largest]), Entries(self.indices[rest], self.values[rest])


def srs_rounds(T: int) -> list[tuple[int, int]]:
    """Return the distance g_i and the blocks m_i in a bag, for each of the L = ceil(log2 T) rounds.

    In round i worker w sends blocks w + g_i, ..., w + g_i + m_i - 1 (mod T) to worker w + g_i. From then on it is
    responsible for blocks w, ..., w + g_i - 1 alone.

    Examples
    --------
    >>> srs_rounds(6), srs_rounds(1)
    ([(4, 2), (2, 2), (1, 1)], [])
    """
    g = [1 << i for i in reversed(range((T - 1).bit_length()))]
    return [(one, min(one, T - one)) for one in g]


def srs_route(T: int, b: int) -> list[tuple[int, int]]:
    """Return who passes block `b` on to whom, in order; every worker but its owner, worker `b`, does so once.

    Examples
    --------
    >>> srs_route(6, 0)
    [(2, 0), (1, 5), (4, 0), (3, 5), (5, 0)]
    """
    return [((b - g - x) % T, (b - x) % T) for g, m in srs_rounds(T) for x in range(m)]


class Reduced(NamedTuple):
    """What became of a block in a team.

    Parameters
    ----------
    sent : list of Entries
        What each worker passed on of it; of its owner, what it kept in the end.
    received : list of list of Entries
        What each worker got of it, in order.
    """

    sent: list[Entries]
    received: list[list[Entries]]


def spar_reduce_scatter(rows: Values, b: int, k_b: int, h: int) -> Reduced:
    """Reduce block `b`, given the `rows`, shape (T, c), of all workers of a team, which are not modified.

    Workers pass on `k_b` entries; the owner keeps `h`. ValueError: a sum overflows float32.

    Examples
    --------
    Of two workers, worker 0 passes its largest entry on to worker 1, which keeps the largest of what it then has.

    >>> spar_reduce_scatter(np.array([[1, 7], [5, -4]], dtype=np.float32), 1, 1, 1).sent[1]
    Entries(indices=array([0]), values=array([5.], dtype=float32))
    """
    T, c = rows.shape
    received: list[list[Entries]] = [[] for _ in range(T)]
    sent = [Entries(np.zeros(0, np.int64), np.zeros(0, np.float32))] * T
    held = np.empty(c, dtype=np.float32)
    for src, dst in [*srs_route(T, b), (b, b)]:
        np.copyto(held, rows[src])
        for message in received[src]:
            add(held, message)
        indices = top_k(held, h if src == b else k_b)
        sent[src] = Entries(indices, held[indices])
        if not np.isfinite(sent[src].values).all():
            raise ValueError("the sum over the workers overflows float32")
        if src != b:
            received[dst].append(sent[src])
    return Reduced(sent, received)


def add(block: Values, entries: Entries) -> None:
    """Add entries to a block, in place."""
    block[entries.indices] += entries.values
