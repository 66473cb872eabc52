"""Collectives in which every rank, or one server, exchanges messages directly with every other rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.errors import check_int
from simnet.collectives.program import ChunkProgram, ChunkStep
from simnet.collectives.registry import collective
from simnet.cost_models.costs.collectives import pairwise_alltoall
from simnet.cost_models.costs.collectives import parameter_server as server_cost
from simnet.schedule import Schedule


def all_to_all(n_ranks: int) -> ChunkProgram:
    """Personalised exchange of all ranks in `n_ranks` - 1 rounds: each rank has a chunk for every other rank.

    In round s = 1 .. P - 1 rank r sends to r + s and receives from r - s.
    """
    P = check_int(n_ranks, "n_ranks", 1)
    rank = np.arange(P)
    steps = []
    for s in range(1, P):
        to = (rank + s) % P
        steps.append(ChunkStep(rank, to, first=rank * P + to, phase="all-to-all"))
    return ChunkProgram(P, P * P, steps, "alltoall", "pairwise")


def through_server(n_ranks: int, server: int = 0) -> ChunkProgram:
    """All-reduce of one chunk in 2 rounds: all ranks send to the server, and the server sends the result to all.

    The messages of a round share the server's link, which is what makes them follow each other.
    """
    P = check_int(n_ranks, "n_ranks", 1)
    check_int(server, "server", 0, P - 1)
    workers = np.delete(np.arange(P), server)
    home = np.full_like(workers, server)
    return ChunkProgram(
        P, 1, [ChunkStep(workers, home, reduce=True, phase="push"), ChunkStep(home, workers, phase="pull")]
    )


@collective("all_reduce", "parameter_server", program=through_server, cost=server_cost, offered="never")
def parameter_server(n_ranks: int, nbytes: float, *, server: int = 0, gamma: float = 0.0) -> Schedule:
    """All-reduce by a server, which is one of the ranks: all others send to the server, and it sends the sum back.

    Parameters
    ----------
    n_ranks, nbytes, gamma
        As of `allreduce_ring`.
    server : int
        Rank of the server, in 0 .. P-1.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, Table I: 2 alpha + 2 (P - 1) M beta, as the
    messages of a round share the server's link.

    Examples
    --------
    >>> parameter_server(3, 10).bytes_sent()
    array([20., 10., 10.])
    """
    return through_server(n_ranks, server).of_vector(nbytes, gamma)


def alltoallv_pairwise(sizes: ArrayLike) -> Schedule:
    """Pairwise all-to-all of unequal messages: in round s rank r sends to rank r + s, modulo the number of ranks.

    Parameters
    ----------
    sizes : array_like of float, shape (P, P)
        ``sizes[i, j]`` are the bytes from rank i to rank j, >= 0. The diagonal does not travel.

    Raises
    ------
    ValueError
        If `sizes` is not square, empty, negative or not finite.

    Examples
    --------
    >>> alltoallv_pairwise([[9, 1, 2], [3, 9, 4], [5, 6, 9]]).bytes_sent()
    array([ 3.,  7., 11.])
    """
    matrix = np.asarray(sizes, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"sizes must be a square matrix, got shape {matrix.shape}")
    return all_to_all(len(matrix)).schedule(matrix.ravel())


@collective(
    "alltoall",
    "pairwise",
    program=all_to_all,
    varying=alltoallv_pairwise,
    cost=pairwise_alltoall,
    mpi=("pairwise",),
    calibrated=True,
)
def alltoall_pairwise(n_ranks: int, nbytes: float) -> Schedule:
    """Pairwise all-to-all: in round s rank r sends to rank r + s, modulo the number of ranks.

    Examples
    --------
    >>> alltoall_pairwise(4, 10).bytes_sent()
    array([30., 30., 30., 30.])
    """
    return all_to_all(n_ranks).of_each(nbytes)
