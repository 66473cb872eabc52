"""Costs of sparse exchanges by rows, of trackers, and of blocks. Symbols and references: `simnet.costs`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.costs.arguments import checked, selected_entries
from simnet.costs.collectives import allgather, ring_allreduce
from simnet.costs.sparsifiers import ENTRY, VALUE


def arctopk(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    c: ArrayLike,
    N: ArrayLike,
    rank: ArrayLike = 4,
    sketch: ArrayLike | None = None,
    kept: ArrayLike | None = None,
    tensors: ArrayLike = 1,
) -> Floats:
    """ARC-Top-K on rings: 2 (N - 1) [(t + 1) alpha + 4 (|S| + k) / N beta]; derived from the code of [15].

    An all-reduce of the sketch of each of t tensors, and one of the kept rows of all.

    Parameters
    ----------
    rank : array_like of float
        r.
    sketch : array_like of float, optional
        |S|, entries of all sketches: r rows of each matrix, and all entries of a vector; r sqrt(M / 4), that of one
        square matrix, if not given.
    kept : array_like of float, optional
        Entries in the rows kept; c M / 4 if not given.
    tensors : array_like of float
        t.
    """
    alpha, beta, M, c, N, rank, tensors = checked(alpha=alpha, beta=beta, M=M, c=c, N=N, rank=rank, tensors=tensors)
    sketches = selected_entries("sketch", sketch, rank * np.sqrt(M / VALUE))
    rows = selected_entries("kept", kept, c * M / VALUE)
    nbytes = VALUE * (sketches + rows)
    return ring_allreduce(alpha, beta, nbytes, N) + tensors * ring_allreduce(alpha, beta, 0.0, N)


def ef21(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    c: ArrayLike,
    N: ArrayLike,
    contributed: ArrayLike | None = None,
    flag_bytes: ArrayLike = 0.0,
) -> Floats:
    """EF21, all-gather of what is new: log N alpha + (N - 1) (8 k + flag) beta; derived from [16].

    The dense exchange before all others costs `ring_allreduce` once. `contributed` are the bytes of a worker's message
    without a flag, those of k values with indices if not given; `flag_bytes` tell the kind of a message, in EF21+: 1.
    """
    alpha, beta, M, c, N, flag_bytes = checked(alpha=alpha, beta=beta, M=M, c=c, N=N, flag_bytes=flag_bytes)
    nbytes = selected_entries("contributed", contributed, ENTRY * c * M / VALUE)
    return allgather(alpha, beta, nbytes + flag_bytes, N)


def omnireduce(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    N: ArrayLike,
    blocks: ArrayLike | None = None,
    union: ArrayLike | None = None,
    turns: ArrayLike | None = None,
    aggregators: ArrayLike | None = None,
    block_bytes: ArrayLike = 1028.0,
    slots: ArrayLike = 8,
) -> Floats:
    """OmniReduce: 2 t alpha + (z + u) (N - 1) / A b beta for even loads; derived from the code of [18].

    Blocks go to A aggregators, and sums come back, in t turns.

    Parameters
    ----------
    blocks, union : array_like of float, optional
        z, blocks that a worker sends, and u, blocks that come back; all M / 1024, of a dense gradient, if not given.
    turns : array_like of float, optional
        t; u over the slots if not given.
    aggregators : array_like of float, optional
        A; all workers, or as many as slots, if not given.
    block_bytes : array_like of float
        b, with the offset of the next block.
    slots : array_like of float
        Blocks on their way at the same time.
    """
    alpha, beta, M, N, block_bytes, slots = checked(
        alpha=alpha, beta=beta, M=M, N=N, block_bytes=block_bytes, slots=slots
    )
    every = np.ceil(M / 1024)
    z, u = selected_entries("blocks", blocks, every), selected_entries("union", union, every)
    t = selected_entries("turns", turns, np.ceil(u / slots))
    (A,) = checked(aggregators=np.minimum(N, slots) if aggregators is None else aggregators)
    return np.where(N > 1, 2 * t * alpha + (z + u) * (N - 1) / A * block_bytes * beta, 0.0) + 0.0
