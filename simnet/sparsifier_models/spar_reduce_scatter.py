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

from collections.abc import Sequence
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


def merged(messages: Sequence[Entries], c: int) -> Entries:
    """Return the sum of sparse blocks of length `c`, added up from zero in the order given.

    Examples
    --------
    >>> one = Entries(np.array([0, 3]), np.array([1, 2], dtype=np.float32))
    >>> merged([one, Entries(np.array([3]), np.array([-2], dtype=np.float32))], 4)
    Entries(indices=array([0, 3]), values=array([1., 0.], dtype=float32))
    """
    total, touched = np.zeros(c, dtype=np.float32), np.zeros(c, dtype=np.bool_)
    for message in messages:
        add(total, message)
        touched[message.indices] = True
    union = np.flatnonzero(touched)
    if not np.isfinite(total[union]).all():
        raise ValueError("the sum over the workers overflows float32")
    return Entries(union, total[union])


class Outcome(NamedTuple):
    """A block after Spar-All-Gather.

    Parameters
    ----------
    final : Entries
        Sums over all workers of the entries finally selected, k_b at most.
    union : int
        Entries before the last cut: u.
    dropped : list of (range, Entries)
        What cuts before the last one dropped: the teams that all dropped it, and the equal share that each of them has.
    """

    final: Entries
    union: int
    dropped: list[tuple[range, Entries]]


def bruck_all_gather(teams: Sequence[Entries], k_b: int, c: int) -> Outcome:
    """B-SAG: add up the entries of all teams and keep the k_b largest sums, or all if there are no more.

    Each team would add in an order of its own, starting with its own entries, so that for d >= 3 results differed in
    the last bit. Here all have the order of team 0.
    """
    union = merged(teams, c)
    return Outcome(union.cut(k_b)[0], union.indices.size, [])


def recursive_all_gather(teams: Sequence[Entries], k_b: int, c: int) -> Outcome:
    """R-SAG: at distance d/2, d/4, ..., 1 partners add up what they have and keep the k_b largest sums.

    At distance D the teams t, t + D, t + 2D, ... hold the same sum. What is cut off it is kept in equal shares by these
    d/D. What the last step cuts off is selected nowhere, so everybody takes its own value back. d must be a power of
    two.

    Examples
    --------
    Teams 0 and 2 add up to 2 at 0 and 6 at 1, and keep the latter; the others add up to 2 at 0.

    >>> both = Entries(np.array([0, 1]), np.array([1, 3], dtype=np.float32))
    >>> alone = Entries(np.array([0]), np.array([1], dtype=np.float32))
    >>> result = recursive_all_gather([both, alone, both, alone], 1, 2)
    >>> result.final, result.dropped[0]
    (Entries(indices=array([1]), values=array([6.], dtype=float32)), (range(0, 4, 2), Entries(indices=array([0]), values=array([1.], dtype=float32))))
    """  # noqa: E501
    d, held = len(teams), list(teams)
    union, dropped = held[0].indices.size, []
    while len(held) > 1:
        D = len(held) // 2
        for t in range(D):
            total = merged([held[t], held[t + D]], c)
            union = total.indices.size
            held[t], rest = total.cut(k_b)
            if D > 1:
                dropped.append((range(t, d, D), Entries(rest.indices, rest.values * np.float32(D / d))))
        del held[D:]
    return Outcome(held[0], union, dropped)


class Adaptive(NamedTuple):
    """State of B-SAG's h; all of shape (T,), a block each.

    Parameters
    ----------
    h : ndarray of int64
        Entries that a worker sends of its own block, >= 1.
    step : ndarray of int64
        What is added to h next.
    flag : ndarray of bool
        Whether the last step was in the right direction and did not double.
    """

    h: Indices
    step: Indices
    flag: NDArray[np.bool_]


def started(T: int, entries: float, d: int, *, least_step: int) -> Adaptive:
    """Return the initial state: h = floor(c rho / d), and a hundredth of the missing entries as the step.

    `entries` is c rho for `T` blocks; `least_step` is 1, or 0 as in the reference implementation, where h stays if c
    rho - h < 100.

    Examples
    --------
    >>> started(2, 500.0, 2, least_step=1)
    Adaptive(h=array([250, 250]), step=array([2, 2]), flag=array([False, False]))
    """
    h = max(1, int(entries / d))
    step = max(least_step, int((entries - h) / 100))
    return Adaptive(np.full(T, h), np.full(T, step), np.zeros(T, dtype=np.bool_))


def adapted(state: Adaptive, u: Indices, k_b: int, d: int) -> Adaptive:
    """Return the state after an exchange in which the union of block b had ``u[b]`` entries before it was cut to k_b.

    Towards k_b the step doubles every other time; past it the step turns round, half as long.

    Examples
    --------
    >>> state = Adaptive(np.array([8, 8]), np.array([2, 2]), np.array([True, True]))
    >>> adapted(state, np.array([9, 11]), 10, 2)
    Adaptive(h=array([12,  7]), step=array([ 4, -1]), flag=array([False, False]))
    """
    h, step, flag = state
    right = (u > k_b) != (step > 0)
    # With k_b < d, which the reference implementation does not allow, even h = 1 may be too much, and steps further
    # down are idle.
    doubles = flag & ~((h == 1) & (step < 0))
    turned = np.where(np.abs(step) > 1, np.trunc(-step / 2).astype(np.int64), -step)
    step = np.where(right, np.where(doubles, 2 * step, step), turned)
    return Adaptive(np.maximum(h + step, max(1, k_b // d)), step, right & ~flag)
