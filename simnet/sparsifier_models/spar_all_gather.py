"""Spar-All-Gather (SAG): the d teams add up what each has reduced of a block, and keep k_b entries of it.

In B-SAG the teams all-gather h entries each by Bruck's algorithm, for any d. Few of them coincide at first, so that h
may lie between k_b / d and k_b; it is adapted so that their union comes close to k_b. In R-SAG, for d a power of two,
teams at distance d/2, d/4, ..., 1 exchange all their k_b entries and cut the sum to k_b at once.

References
----------
M. Zhao et al., "SparDL: Distributed Deep Learning Training with Efficient Sparse Communication", ICDE 2024, and its
reference implementation, which has B-SAG alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.sparsifier_models.selection import Indices
from simnet.sparsifier_models.spar_reduce_scatter import Entries, add


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
