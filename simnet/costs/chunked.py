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
    size, k : array_like of float
        s, the entries of a block, and k, those kept of it.
    bits : array_like of float
        b, bits of an entry: of its index in the block and of its value.
    contributed : array_like of float, optional
        Bytes of a worker, where blocks differ or tables are sent too.
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

    A pairwise all-to-all of the shares, each worker's sum of its own, and an all-gather of the sums, quantised again,
    with b `bits` an entry. `contributed` are the bytes of a worker's vector, where tables are sent too.
    """
    M, N, bits = checked(M=M, N=N, bits=bits)
    share = selected_entries("contributed", contributed, np.ceil(M / 4 * bits / 8)) / N
    return pairwise_alltoall(alpha, beta, share, N) + allgather(alpha, beta, share, N)


def int8_ring(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike, table_bytes: ArrayLike = 1024.0) -> Floats:
    """Ring of one byte an entry: 2 (N - 1) [alpha + (n / N + 2 t) beta]; derived from [14].

    Each round sends two chunks, each with a table of t bytes: 256 float32.
    """
    alpha, beta, M, N, table_bytes = checked(alpha=alpha, beta=beta, M=M, N=N, table_bytes=table_bytes)
    return 2 * (N - 1) * (alpha + (M / 4 / N + 2 * table_bytes) * beta)
