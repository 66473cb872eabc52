"""Costs of exchanges that reduce values at the union of what is selected. Symbols and references: `simnet.costs`."""

from __future__ import annotations

from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.costs.arguments import checked, selected_entries
from simnet.costs.collectives import (
    broadcast,
    ring_allgather,
    ring_allreduce,
)
from simnet.costs.sparsifiers import VALUE, fill_in


def exdyna(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    c: ArrayLike,
    N: ArrayLike,
    longest: ArrayLike | None = None,
    union: ArrayLike | None = None,
    index_bytes: ArrayLike = 8.0,
) -> Floats:
    """ExDyna, MiCRO on rings: (N - 1) (4 alpha + [8 + 8 kmax + 8 |U| / N] beta); derived from the code of [7].

    All-gathers of the counts and of the indices, padded to the longest, then an all-reduce of the values there.

    Parameters
    ----------
    longest : array_like of float, optional
        kmax, the most entries that a worker selected; k / N, balanced partitions, if not given.
    union : array_like of float, optional
        |U|, entries selected by all workers together; c M / 4 if not given.
    index_bytes : array_like of float
        Bytes of an index, and of a count.
    """
    alpha, beta, M, c, N, width = checked(alpha=alpha, beta=beta, M=M, c=c, N=N, index_bytes=index_bytes)
    padded = selected_entries("longest", longest, c * M / VALUE / N)
    everywhere = selected_entries("union", union, c * M / VALUE)
    counts, indices = (ring_allgather(alpha, beta, nbytes, N) for nbytes in (width, width * padded))
    return counts + indices + ring_allreduce(alpha, beta, VALUE * everywhere, N)


def hardthreshold(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    c: ArrayLike,
    N: ArrayLike,
    longest: ArrayLike | None = None,
    union: ArrayLike | None = None,
    index_bytes: ArrayLike = 8.0,
) -> Floats:
    """Hard threshold, SAGE, on rings: (N - 1) (4 alpha + [8 + 8 kmax + 8 |U| / N] beta); derived from the code of [7].

    Arguments as of `exdyna`, but every worker selects from the whole gradient: `longest` is c M / 4 if not given, and
    `union` the `fill_in` of independent selections.
    """
    M, c, N = checked(M=M, c=c, N=N)
    k = c * M / VALUE
    padded = selected_entries("longest", longest, k)
    return exdyna(alpha, beta, M, c, N, padded, _union_of_own(M, k, N, union), index_bytes)


def uniontopk(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    c: ArrayLike,
    N: ArrayLike,
    union: ArrayLike | None = None,
    index_bytes: ArrayLike = 8.0,
) -> Floats:
    """Top-k, values at the union, on rings: (N - 1) (3 alpha + [8 k + 8 |U| / N] beta); derived from the code of [7].

    An all-gather of each worker's k indices, without counts, then an all-reduce of all values at their union. `union`
    is |U|, k to N k; the `fill_in` of independent selections if not given. `index_bytes` as of `exdyna`.
    """
    alpha, beta, M, c, N, width = checked(alpha=alpha, beta=beta, M=M, c=c, N=N, index_bytes=index_bytes)
    k = c * M / VALUE
    values = ring_allreduce(alpha, beta, VALUE * _union_of_own(M, k, N, union), N)
    return ring_allgather(alpha, beta, width * k, N) + values


def cltk(
    alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, c: ArrayLike, N: ArrayLike, index_bytes: ArrayLike = 8.0
) -> Floats:
    """CLT-k: log N (alpha + 8 k beta) + 2 (N - 1) (alpha + 4 k / N beta); derived from [8] and the code of [7].

    A broadcast of one worker's indices, then a ring all-reduce of the values at them: AR-Topk with `index_bytes` of 4.
    """
    alpha, beta, M, c, N, width = checked(alpha=alpha, beta=beta, M=M, c=c, N=N, index_bytes=index_bytes)
    k = c * M / VALUE
    return broadcast(alpha, beta, width * k, N) + ring_allreduce(alpha, beta, VALUE * k, N)


def deft(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    c: ArrayLike,
    N: ArrayLike,
    layers: ArrayLike,
    longest: ArrayLike | None = None,
    union: ArrayLike | None = None,
    index_bytes: ArrayLike = 8.0,
) -> Floats:
    """DEFT: log N (alpha + 4 (N + L) beta) + (N - 1) (4 alpha + [8 + 8 kmax + 8 |U| / N] beta); derived, code of [7].

    Two broadcasts, the second right behind the first, tell the bins of the L layers, counted after long ones are cut;
    then as `exdyna`.
    """
    layers, N = checked(layers=layers, N=N)
    bins = broadcast(alpha, beta, 4 * (N + layers), N)
    return bins + exdyna(alpha, beta, M, c, N, longest, union, index_bytes)


def _union_of_own(M: Floats, k: Floats, N: Floats, union: ArrayLike | None) -> Floats:
    return fill_in(M / VALUE, k, N) if union is None else selected_entries("union", union, k)
