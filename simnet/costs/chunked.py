"""Costs of the compressors of low-communication training. Symbols and references: `simnet.costs`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.costs.arguments import checked, selected_entries
from simnet.costs.collectives import allgather, pairwise_alltoall


def chunked_allgather(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    N: ArrayLike,
    size: ArrayLike = 4096,
    k: ArrayLike = 32,
    bits: ArrayLike = 44,
    contributed: ArrayLike | None = None,
) -> Floats:
    """All-gather of k entries of each block: log N alpha + (N - 1) ceil(n / s k b / 8) beta; derived from [12].

    Parameters
    ----------
    alpha, beta, M, N : array_like of float
        As of `simnet.costs`.
    size : array_like of float
        s, the entries of a block.
    k : array_like of float
        Entries kept of each block.
    bits : array_like of float
        b, bits of an entry: of its index, that tell those of a block apart, and of its value.
    contributed : array_like of float, optional
        Bytes of a worker, where blocks are not alike or tables travel along.

    Examples
    --------
    Two blocks of 64 x 64, 32 entries of each, 12 bits of index and 32 of value:

    >>> float(chunked_allgather(1.0, 0.5, 4 * 8192, 4))
    530.0
    """
    M, size, k, bits = checked(M=M, size=size, k=k, bits=bits)
    nbytes = selected_entries("contributed", contributed, np.ceil(M / 4 / size * k * bits / 8))
    return allgather(alpha, beta, nbytes, N)


def muloco(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    N: ArrayLike,
    bits: ArrayLike = 2,
    contributed: ArrayLike | None = None,
) -> Floats:
    """Reduce-scatter, all-gather of codes: (N - 1 + log N) alpha + 2 (N - 1) / N ceil(n b / 8) beta; derived from [13].

    A pairwise all-to-all of the shares, each worker's sum of its own, and an all-gather of the sums, quantised again.

    Parameters
    ----------
    alpha, beta, M, N : array_like of float
        As of `simnet.costs`.
    bits : array_like of float
        b, bits of an entry.
    contributed : array_like of float, optional
        Bytes of a worker's vector, where tables travel along.

    Examples
    --------
    >>> float(muloco(1.0, 0.5, 4096, 4))
    197.0
    """
    M, N, bits = checked(M=M, N=N, bits=bits)
    share = selected_entries("contributed", contributed, np.ceil(M / 4 * bits / 8)) / N
    return pairwise_alltoall(alpha, beta, share, N) + allgather(alpha, beta, share, N)


def int8_ring(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike, table_bytes: ArrayLike = 1024.0) -> Floats:
    """Ring of one byte an entry: 2 (N - 1) [alpha + (n / N + 2 t) beta]; derived from [14].

    Two chunks, each with a table of t bytes, are sent in each of its rounds.

    Parameters
    ----------
    alpha, beta, M, N : array_like of float
        As of `simnet.costs`.
    table_bytes : array_like of float
        t: 256 float32.

    Examples
    --------
    >>> float(int8_ring(1.0, 0.5, 4 * 2560, 2))
    3330.0
    """
    alpha, beta, M, N, table_bytes = checked(alpha=alpha, beta=beta, M=M, N=N, table_bytes=table_bytes)
    return 2 * (N - 1) * (alpha + (M / 4 / N + 2 * table_bytes) * beta)
