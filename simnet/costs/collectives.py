"""Costs of dense collectives, textbook algorithms without pipelining. Symbols and references: `simnet.costs`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.costs.arguments import checked


def parameter_server(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Parameter server among the N workers: 2 alpha + 2 (N - 1) M beta; [1] Table I.

    Examples
    --------
    >>> float(parameter_server(1.0, 0.5, 10.0, 3))
    22.0
    """
    alpha, beta, M, N = checked(alpha=alpha, beta=beta, M=M, N=N)
    return np.where(N > 1, 2 * alpha, 0.0) + 2 * (N - 1) * M * beta


def ring_allreduce(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Ring all-reduce: 2 (N - 1) alpha + 2 (N - 1) / N M beta; [1] Table I.

    Examples
    --------
    >>> float(ring_allreduce(1.0, 0.5, 10.0, 5))
    16.0
    """
    alpha, beta, M, N = checked(alpha=alpha, beta=beta, M=M, N=N)
    return 2 * (N - 1) * alpha + 2 * (N - 1) / N * M * beta


def tree_allreduce(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Tree all-reduce, binomial and unpipelined: 2 alpha log N + 2 log(N) M beta; [1] Table I.

    Examples
    --------
    >>> float(tree_allreduce(1.0, 0.5, 10.0, 4))
    24.0
    """
    alpha, beta, M, N = checked(alpha=alpha, beta=beta, M=M, N=N)
    return 2 * np.log2(N) * (alpha + M * beta)


def recursive_doubling_allreduce(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """All-reduce by recursive doubling: log N (alpha + M beta); [2] section 4.5.

    Examples
    --------
    >>> float(recursive_doubling_allreduce(1.0, 0.5, 10.0, 4))
    12.0
    """
    alpha, beta, M, N = checked(alpha=alpha, beta=beta, M=M, N=N)
    return np.log2(N) * (alpha + M * beta)


def rabenseifner_allreduce(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """All-reduce by recursive halving and doubling: 2 alpha log N + 2 (N - 1) / N M beta; [2] section 4.5.

    Examples
    --------
    >>> float(rabenseifner_allreduce(1.0, 0.5, 10.0, 4))
    11.5
    """
    alpha, beta, M, N = checked(alpha=alpha, beta=beta, M=M, N=N)
    return 2 * np.log2(N) * alpha + 2 * (N - 1) / N * M * beta


def hierarchical_allreduce(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    N: ArrayLike,
    group: ArrayLike = 8,
    inner_alpha: ArrayLike | None = None,
    inner_beta: ArrayLike | None = None,
) -> Floats:
    """All-reduce on two levels: a tree in groups of g, a ring between their N / g leaders; derived from the messages.

    2 log(g) (alpha_i + M beta_i) + 2 (N / g - 1) (alpha + g / N M beta), with alpha_i and beta_i inside a group.

    Parameters
    ----------
    alpha, beta, M, N
        As everywhere.
    group : array_like of float
        g, workers of a group; it divides N. All N where it exceeds N.
    inner_alpha, inner_beta : array_like of float, optional
        Latency [s] and seconds per byte inside a group; those between groups if not given.

    Examples
    --------
    >>> float(hierarchical_allreduce(1.0, 0.5, 10.0, 8, group=2)), float(hierarchical_allreduce(1.0, 0.5, 10.0, 8, 1))
    (25.5, 22.75)
    """
    alpha, beta, M, N, group = checked(alpha=alpha, beta=beta, M=M, N=N, group=group)
    inner_alpha = alpha if inner_alpha is None else inner_alpha
    inner_beta = beta if inner_beta is None else inner_beta
    size = np.minimum(group, N)
    return 2 * broadcast(inner_alpha, inner_beta, M, size) + ring_allreduce(alpha, beta, M, N / size)


def broadcast(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Binomial broadcast, and binomial reduction: alpha log N + log(N) M beta; [1] Table I.

    Examples
    --------
    >>> float(broadcast(1.0, 0.5, 10.0, 4))
    12.0
    """
    alpha, beta, M, N = checked(alpha=alpha, beta=beta, M=M, N=N)
    return np.log2(N) * (alpha + M * beta)


def ring_reduce_scatter(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Ring reduce-scatter of a vector of M bytes: (N - 1) alpha + (N - 1) / N M beta; half of the ring all-reduce.

    Examples
    --------
    >>> float(ring_reduce_scatter(1.0, 0.5, 10.0, 5))
    8.0
    """
    return ring_allreduce(alpha, beta, M, N) / 2


def allgather(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """All-gather by recursive doubling of M bytes from each worker: alpha log N + (N - 1) M beta; [1] Table I.

    Examples
    --------
    >>> float(allgather(1.0, 0.5, 10.0, 4))
    17.0
    """
    alpha, beta, M, N = checked(alpha=alpha, beta=beta, M=M, N=N)
    return np.log2(N) * alpha + (N - 1) * M * beta


def ring_allgather(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Ring all-gather of M bytes from each worker: (N - 1) (alpha + M beta); [2] section 4.1.

    Examples
    --------
    >>> float(ring_allgather(1.0, 0.5, 10.0, 4))
    18.0
    """
    alpha, beta, M, N = checked(alpha=alpha, beta=beta, M=M, N=N)
    return (N - 1) * (alpha + M * beta)


def bruck_allgather(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Bruck's all-gather of M bytes from each worker: ceil(log N) alpha + (N - 1) M beta; [2] section 4.1.

    Examples
    --------
    >>> float(bruck_allgather(1.0, 0.5, 10.0, 5))
    23.0
    """
    alpha, beta, M, N = checked(alpha=alpha, beta=beta, M=M, N=N)
    return np.ceil(np.log2(N)) * alpha + (N - 1) * M * beta


def pairwise_alltoall(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Pairwise all-to-all of M bytes from each worker to each other: (N - 1) (alpha + M beta); [2] section 4.3.

    Examples
    --------
    >>> float(pairwise_alltoall(1.0, 0.5, 10.0, 4))
    18.0
    """
    return ring_allgather(alpha, beta, M, N)
