"""Collectives on a ring: every rank sends only to its right neighbour, one chunk in each round.

References
----------
P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.errors import check_int
from simnet.collectives.program import ChunkProgram, ChunkStep, gathered
from simnet.collectives.registry import collective
from simnet.cost_models.costs.collectives import ring_allgather, ring_allreduce, ring_reduce_scatter
from simnet.schedule import Schedule


def all_gather(n_ranks: int) -> ChunkProgram:
    """All-gather of one chunk per rank in `n_ranks` - 1 rounds; rank r contributes chunk r."""
    P = check_int(n_ranks, "n_ranks", 1)
    rank = np.arange(P)
    # In round s rank r passes on chunk r - s, which its left neighbour sent it the round before.
    step = ChunkStep(rank, (rank + 1) % P, first=rank, times=P - 1, stride=-1, phase="all-gather")
    return ChunkProgram(P, P, [step], "all_gather", "ring")


def reduce_scatter(n_ranks: int) -> ChunkProgram:
    """Reduce-scatter of one chunk per rank in `n_ranks` - 1 rounds; rank r ends with chunk r."""
    P = check_int(n_ranks, "n_ranks", 1)
    rank = np.arange(P)
    # In round s rank r passes on what it has of chunk r - 1 - s; chunk r has then come full circle to rank r.
    step = ChunkStep(rank, (rank + 1) % P, first=rank - 1, reduce=True, times=P - 1, stride=-1, phase="reduce-scatter")
    return ChunkProgram(P, P, [step], "reduce_scatter", "ring")


def all_reduce(n_ranks: int) -> ChunkProgram:
    """All-reduce in 2 (`n_ranks` - 1) rounds: reduce-scatter, then all-gather, of one chunk per rank."""
    steps = [*reduce_scatter(n_ranks).steps, *all_gather(n_ranks).steps]
    return ChunkProgram(n_ranks, n_ranks, steps, "all_reduce", "ring")


@collective("all_reduce", "ring", program=all_reduce, cost=ring_allreduce, nccl="Ring", mpi=("ring",), calibrated=True)
def allreduce_ring(n_ranks: int, nbytes: float, *, gamma: float = 0.0) -> Schedule:
    """Ring all-reduce: reduce-scatter, then all-gather, in 2 (`n_ranks` - 1) rounds of `nbytes` / `n_ranks`.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    nbytes : float
        Bytes of the vector reduced, >= 0.
    gamma : float
        Seconds per byte reduced, >= 0.

    Returns
    -------
    Schedule
        Every rank sends 2 (P - 1) / P `nbytes`. Equal rounds are one object: the size grows with P, not its square.

    Examples
    --------
    >>> allreduce_ring(4, 1000)
    Schedule(4 ranks, 6 rounds, 24 messages)
    >>> allreduce_ring(4, 1000).bytes_sent()
    array([1500., 1500., 1500., 1500.])
    """
    return all_reduce(n_ranks).of_vector(nbytes, gamma)


@collective(
    "reduce_scatter",
    "ring",
    program=reduce_scatter,
    cost=ring_reduce_scatter,
    nccl="Ring",
    mpi=("ring",),
    calibrated=True,
)
def reduce_scatter_ring(n_ranks: int, nbytes: float, *, gamma: float = 0.0) -> Schedule:
    """Ring reduce-scatter in `n_ranks` - 1 rounds of `nbytes` / `n_ranks`; rank r ends with piece r.

    Parameters
    ----------
    n_ranks, nbytes, gamma
        As of `allreduce_ring`.

    Examples
    --------
    >>> reduce_scatter_ring(4, 100).bytes_received()
    array([75., 75., 75., 75.])
    """
    return reduce_scatter(n_ranks).of_vector(nbytes, gamma)


def allgatherv_ring(sizes: ArrayLike, *, padded: bool = False) -> Schedule:
    """Ring all-gather of contributions of unequal size.

    Parameters
    ----------
    sizes : array_like of float, shape (P,)
        Bytes each rank contributes, >= 0.
    padded : bool
        Whether everyone pads its contribution to the largest.

    Raises
    ------
    ValueError
        If `sizes` is not one-dimensional, empty, negative or not finite.

    Examples
    --------
    >>> allgatherv_ring([10, 0, 30]).bytes_received()
    array([30., 40., 10.])
    >>> allgatherv_ring([10, 0, 30], padded=True).bytes_received()
    array([60., 60., 60.])
    """
    return gathered(all_gather, sizes, padded)


@collective(
    "all_gather",
    "ring",
    program=all_gather,
    varying=allgatherv_ring,
    cost=ring_allgather,
    nccl="Ring",
    mpi=("ring",),
    calibrated=True,
    offered="on nodes",
)
def allgather_ring(n_ranks: int, nbytes: float) -> Schedule:
    """Ring all-gather in `n_ranks` - 1 rounds of `nbytes` bytes.

    Examples
    --------
    >>> allgather_ring(4, 10).bytes_received()
    array([30., 30., 30., 30.])
    """
    return all_gather(n_ranks).of_each(nbytes)
