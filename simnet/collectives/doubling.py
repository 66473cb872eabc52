"""Collectives in about log2(number of ranks) rounds, whose messages double or halve from round to round.

Recursive doubling and halving pair ranks at distance 1, 2, 4, ... and need a power of two. For other P each of the
first P - 2^floor(log2 P) odd ranks hands its data to the even rank before it, sits out, and gets the result
at the end: one round more at either end.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005,
section 4.5: recursive doubling.
R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", TPDS 8,
1997.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Ranks
from simnet.base.errors import check_int
from simnet.collectives.program import ChunkProgram, ChunkStep, gathered, one_size
from simnet.collectives.registry import POWERS_OF_TWO, collective
from simnet.cost_models.costs import collectives as costs
from simnet.schedule import Call, Round, Schedule


def all_reduce(n_ranks: int) -> ChunkProgram:
    """All-reduce of one chunk: partners at rank distance 1, 2, 4, ... exchange and reduce the whole vector."""
    P = check_int(n_ranks, "n_ranks", 1)
    stay, leave = _fold_ranks(P)
    q = np.arange(len(stay))
    steps = [ChunkStep(leave, leave - 1, reduce=True, phase="fold")]
    steps += [ChunkStep(stay, stay[q ^ d], reduce=True, phase="recursive doubling") for d in _powers_below(len(stay))]
    steps += [ChunkStep(leave - 1, leave, phase="unfold")]
    return ChunkProgram(P, 1, steps, "all_reduce", "recursive_doubling")


def rabenseifner(n_ranks: int) -> ChunkProgram:
    """All-reduce by Rabenseifner's algorithm: reduce-scatter by recursive halving, all-gather by recursive doubling."""
    P = check_int(n_ranks, "n_ranks", 1)
    stay, leave = _fold_ranks(P)
    Q = len(stay)
    q = np.arange(Q)
    steps = [ChunkStep(leave, leave - 1, count=Q, reduce=True, phase="fold")]
    # At distance d the aligned 2 d chunks that q and its partner work on are halved: each sends the partner's half.
    for d in reversed([*_powers_below(Q)]):
        partner = q ^ d
        steps.append(ChunkStep(stay, stay[partner], partner // d * d, d, reduce=True, phase="reduce-scatter"))
    steps += [ChunkStep(stay, stay[q ^ d], q // d * d, d, phase="all-gather") for d in _powers_below(Q)]
    steps += [ChunkStep(leave - 1, leave, count=Q, phase="unfold")]
    return ChunkProgram(P, Q, steps, "all_reduce", "rabenseifner")


def all_gather(n_ranks: int) -> ChunkProgram:
    """All-gather of one chunk per rank: partners at rank distance 1, 2, 4, ... exchange all chunks they have."""
    P = check_int(n_ranks, "n_ranks", 1)
    stay, leave = _fold_ranks(P)
    q = np.arange(len(stay))
    # Neighbours fold into neighbours, so that what an aligned group of d ranks holds is one range of chunks.
    start = np.append(stay, P)
    steps = [ChunkStep(leave, leave - 1, first=leave, phase="fold")]
    for d in _powers_below(len(stay)):
        group = q // d * d
        steps.append(
            ChunkStep(stay, stay[q ^ d], start[group], start[group + d] - start[group], phase="recursive doubling")
        )
    # All but the chunk that the rank itself contributed.
    steps += [ChunkStep(leave - 1, leave, first=leave + 1, count=P - 1, phase="unfold")]
    return ChunkProgram(P, P, steps, "all_gather", "recursive_doubling")


def bruck(n_ranks: int) -> ChunkProgram:
    """Bruck's all-gather of one chunk per rank, in ceil(log2 `n_ranks`) rounds for any number of ranks."""
    P = check_int(n_ranks, "n_ranks", 1)
    rank = np.arange(P)
    # At distance d rank r has chunks r .. r + d - 1, of which rank r - d needs as many as it lacks.
    steps = [ChunkStep(rank, (rank - d) % P, rank, min(d, P - d), phase="Bruck") for d in _powers_below(P)]
    return ChunkProgram(P, P, steps, "all_gather", "bruck")


def shortest(n_ranks: int) -> ChunkProgram:
    """All-gather of one chunk per rank: recursive doubling if `n_ranks` is a power of two, else Bruck's algorithm."""
    P = check_int(n_ranks, "n_ranks", 1)
    return all_gather(P) if POWERS_OF_TWO.among(P) else bruck(P)


def halving(n_ranks: int) -> ChunkProgram:
    """Reduce-scatter of one chunk per rank: the rounds of recursive doubling in reverse, at distances ..., 4, 2, 1."""
    phases = {"fold": "unfold", "recursive doubling": "recursive halving", "unfold": "fold"}
    steps = reversed(all_gather(n_ranks).steps)
    back = [ChunkStep(s.dst, s.src, s.first, s.count, reduce=True, phase=phases[s.phase]) for s in steps]
    return ChunkProgram(n_ranks, n_ranks, back, "reduce_scatter", "recursive_halving")


def _fold_ranks(P: int) -> tuple[Ranks, Ranks]:
    """Return the ranks that run the exchange, a power of two of them, and the ranks r that rank r - 1 stands in for."""
    extra = P - (1 << (P.bit_length() - 1))
    leave = np.arange(1, 2 * extra, 2)
    return np.setdiff1d(np.arange(P), leave), leave


def _powers_below(n: int) -> Iterator[int]:
    return (1 << bit for bit in range((n - 1).bit_length()))


@collective(
    "all_reduce",
    "recursive_doubling",
    program=all_reduce,
    cost=costs.recursive_doubling_allreduce,
    exact=POWERS_OF_TWO,
    mpi=("recursive_doubling", "rd"),
    calibrated=True,
    offered="never",
)
def allreduce_recursive_doubling(n_ranks: int, nbytes: float, *, gamma: float = 0.0) -> Schedule:
    """Recursive-doubling all-reduce in about log2 `n_ranks` rounds; partners exchange the whole vector.

    Parameters
    ----------
    n_ranks, nbytes, gamma
        As of `allreduce_ring`.

    Examples
    --------
    >>> allreduce_recursive_doubling(8, 100).bytes_sent()
    array([300., 300., 300., 300., 300., 300., 300., 300.])
    """
    return all_reduce(n_ranks).of_vector(nbytes, gamma)


@collective(
    "all_reduce",
    "rabenseifner",
    program=rabenseifner,
    cost=costs.rabenseifner_allreduce,
    exact=POWERS_OF_TWO,
    mpi=("rabenseifner", "raben"),
    calibrated=True,
    offered="never",
)
def allreduce_rabenseifner(n_ranks: int, nbytes: float, *, gamma: float = 0.0) -> Schedule:
    """Rabenseifner's all-reduce: reduce-scatter by recursive halving, then all-gather by recursive doubling.

    Parameters
    ----------
    n_ranks, nbytes, gamma
        As of `allreduce_ring`.

    Examples
    --------
    >>> allreduce_rabenseifner(4, 100).columns()["nbytes"][::4]
    array([50., 25., 25., 50.])
    """
    return rabenseifner(n_ranks).of_vector(nbytes, gamma)


def allgatherv_auto(sizes: ArrayLike, *, padded: bool = False) -> Schedule:
    """All-gather of contributions of unequal size: recursive doubling for powers of two, else Bruck's algorithm.

    `sizes` and `padded` as of `allgatherv_ring`.

    Examples
    --------
    >>> allgatherv_auto([10, 0, 30]).bytes_sent() - allgatherv_bruck([10, 0, 30]).bytes_sent()
    array([0., 0., 0.])
    """
    return gathered(shortest, sizes, padded)


@collective("all_gather", "auto", program=shortest, varying=allgatherv_auto, cost=costs.allgather)
def allgather_auto(n_ranks: int, nbytes: float) -> Schedule:
    """All-gather in the fewest rounds: recursive doubling for powers of two, else Bruck's algorithm.

    Examples
    --------
    >>> [allgather_auto(P, 10).columns()["nbytes"][::P].tolist() for P in (6, 8)]
    [[10.0, 20.0, 20.0], [10.0, 20.0, 40.0]]
    """
    return shortest(n_ranks).of_each(nbytes)


def allgatherv_recursive_doubling(sizes: ArrayLike, *, padded: bool = False) -> Schedule:
    """Recursive-doubling all-gather of contributions of unequal size.

    `sizes` and `padded` as of `allgatherv_ring`.

    Examples
    --------
    >>> allgatherv_recursive_doubling([10, 0, 30, 5]).bytes_sent()
    array([20., 10., 65., 40.])
    """
    return gathered(all_gather, sizes, padded)


@collective(
    "all_gather",
    "recursive_doubling",
    program=all_gather,
    varying=allgatherv_recursive_doubling,
    cost=costs.recursive_doubling_allgather,
    exact=POWERS_OF_TWO,
    mpi=("recursive_doubling", "rd"),
    offered="never",
)
def allgather_recursive_doubling(n_ranks: int, nbytes: float) -> Schedule:
    """Recursive-doubling all-gather in about log2 `n_ranks` rounds; the payload doubles each round.

    Examples
    --------
    >>> allgather_recursive_doubling(8, 10).columns()["nbytes"][::8]
    array([10., 20., 40.])
    """
    return all_gather(n_ranks).of_each(nbytes)


def allgatherv_bruck(sizes: ArrayLike, *, padded: bool = False) -> Schedule:
    """Bruck's all-gather of contributions of unequal size.

    `sizes` and `padded` as of `allgatherv_ring`.

    Examples
    --------
    >>> allgatherv_bruck([10, 0, 30]).bytes_received()
    array([30., 40., 10.])
    """
    return gathered(bruck, sizes, padded)


@collective(
    "all_gather",
    "bruck",
    program=bruck,
    varying=allgatherv_bruck,
    cost=costs.bruck_allgather,
    nccl="PAT",
    mpi=("bruck",),
    calibrated=True,
    offered="never",
)
def allgather_bruck(n_ranks: int, nbytes: float) -> Schedule:
    """Bruck's all-gather in ceil(log2 `n_ranks`) rounds, for any number of ranks.

    Examples
    --------
    >>> allgather_bruck(6, 10).columns()["nbytes"][::6]
    array([10., 20., 20.])
    """
    return bruck(n_ranks).of_each(nbytes)


@collective(
    "reduce_scatter",
    "recursive_halving",
    program=halving,
    cost=costs.halving_reduce_scatter,
    exact=POWERS_OF_TWO,
    mpi=("recursive_halving",),
    calibrated=True,
)
def reduce_scatter_recursive_halving(n_ranks: int, nbytes: float, *, gamma: float = 0.0) -> Schedule:
    """Recursive-halving reduce-scatter in about log2 `n_ranks` rounds; the payload halves each round.

    Parameters
    ----------
    n_ranks, nbytes, gamma
        As of `allreduce_ring`.

    Examples
    --------
    >>> reduce_scatter_recursive_halving(8, 80).columns()["nbytes"][::8]
    array([40., 20., 10.])
    """
    return halving(n_ranks).of_vector(nbytes, gamma)


@collective("alltoall", "bruck", cost=costs.bruck_alltoall, mpi=("modified_bruck",), calibrated=True)
def alltoall_bruck(n_ranks: int, nbytes: float) -> Schedule:
    """Bruck's all-to-all: in round k, rank r sends to rank r + 2^k all blocks whose distance to the target has bit k.

    Examples
    --------
    >>> alltoall_bruck(6, 10).columns()["nbytes"][::6]
    array([30., 20., 20.])
    """
    rank, distance = np.arange(check_int(n_ranks, "n_ranks", 1)), np.arange(n_ranks)
    blocks = [(d, np.count_nonzero(distance & d)) for d in _powers_below(n_ranks)]
    rounds = [Round(rank, (rank + d) % n_ranks, many * one_size(nbytes), 0.0, "Bruck") for d, many in blocks]
    calls = [Call(0, len(rounds), "alltoall", "bruck", n_ranks * one_size(nbytes))] if rounds else []
    return Schedule(n_ranks, rounds, calls)
