"""Which collective is cheapest, and whether compression pays. Symbols and references: `simnet.costs`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats
from simnet.costs.arguments import checked
from simnet.costs.sparsifiers import artopk_ring, artopk_tree, topk_allgather

SPARSE_COLLECTIVES = ("ART-ring", "ART-tree", "AG")
"""Candidates of the flexible exchange, in the order in which the released code compares them."""


class Best(NamedTuple):
    """The cheapest of `SPARSE_COLLECTIVES`, cell by cell."""

    choice: NDArray[np.intp]
    """Position in `SPARSE_COLLECTIVES`."""
    label: NDArray[np.str_]
    """Its name."""
    seconds: Floats
    """Its cost."""


def best_collective(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Best:
    """Cheapest of `SPARSE_COLLECTIVES` by the three formulas; of equals the one that stands first.

    This arg-min is what the inequalities of [1] Eqn 5 amount to, and holds where they do not (N < 7).

    Returns
    -------
    Best
        Choice, label and cost, each of the shape the arguments broadcast to.

    Examples
    --------
    >>> best_collective(1e-3, 0.8e-9, 46_758_048, [0.1, 0.01], 8).label.tolist()
    ['ART-ring', 'AG']
    """
    candidates = (artopk_ring, artopk_tree, topk_allgather)
    seconds = np.stack([np.asarray(cost(alpha, beta, M, c, N)) for cost in candidates])
    choice = seconds.argmin(axis=0)
    return Best(choice, np.array(SPARSE_COLLECTIVES)[choice], seconds.min(axis=0))


def ring_over_tree(M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
    """Largest alpha / beta [bytes] at which ART-ring beats ART-tree; [1] Eqn 5a, N >= 2 (infinite at N = 2).

    Examples
    --------
    >>> float(ring_over_tree(1.0, 1.0, 8)), float(ring_over_tree(1.0, 1.0, 2))
    (0.53125, inf)
    """
    M, c, N = checked(M=M, c=c, N=N, fewest=2)
    with np.errstate(divide="ignore"):
        return (np.log2(N) - (N - 1) / N) / (N - 1 - np.log2(N)) * M * c


def ring_over_allgather(M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
    """Largest alpha / beta [bytes] at which ART-ring beats AG; [1] Eqn 5b, N >= 2.

    Examples
    --------
    >>> round(float(ring_over_allgather(1.0, 1.0, 8)), 5)
    0.66071
    """
    M, c, N = checked(M=M, c=c, N=N, fewest=2)
    return (1 - 1 / N - np.log2(N) / (2 * (N - 1))) * M * c


def tree_over_allgather(M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
    """Largest alpha / beta [bytes] at which ART-tree beats AG, negative if it never does; [1] Eqn 5c, N >= 2.

    Examples
    --------
    >>> round(float(tree_over_allgather(1.0, 1.0, 8)), 5)
    0.83333
    """
    M, c, N = checked(M=M, c=c, N=N, fewest=2)
    return ((N - 1) / np.log2(N) - 1.5) * M * c


def step_time(compute: ArrayLike, sync: ArrayLike, io: ArrayLike = 0.0, compress_decompress: ArrayLike = 0.0) -> Floats:
    """Step without overlap: t_compute + t_sync + t_IO + t_comp-decomp [s]; [1] Eqn 1b (dense) and Eqn 3.

    Parameters
    ----------
    compute : array_like
        Computing [s].
    sync : array_like
        Communicating [s].
    io : array_like
        Reading data [s].
    compress_decompress : array_like
        Selecting, and putting together what comes [s].

    Examples
    --------
    >>> float(step_time(0.5, 1.0, compress_decompress=0.25))
    1.75
    """
    parts = checked(compute=compute, sync=sync, io=io, compress_decompress=compress_decompress)
    return parts[0] + parts[1] + parts[2] + parts[3]


def compression_pays(sync: ArrayLike, compress_decompress: ArrayLike, dense_sync: ArrayLike) -> NDArray[np.bool_]:
    """Whether t_sync(c) + t_comp-decomp(c) < t_sync of the dense gradient; [1] section 2-C1.

    Parameters
    ----------
    sync : array_like
        Communicating what was selected [s].
    compress_decompress : array_like
        Selecting, and putting together what comes [s].
    dense_sync : array_like
        Communicating the whole gradient [s].

    Examples
    --------
    >>> bool(compression_pays(0.035, 0.002, 0.080))
    True
    """
    sparse, extra, dense = checked(sync=sync, compress_decompress=compress_decompress, dense_sync=dense_sync)
    return sparse + extra < dense
