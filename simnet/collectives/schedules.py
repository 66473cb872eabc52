"""The collectives as schedules: the programs of `simnet.collectives.programs` with bytes in place of chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.collectives import programs
from simnet.collectives.program import Program
from simnet.schedule import Schedule


def allreduce_ring(n_ranks: int, nbytes: float, *, gamma: float = 0.0) -> Schedule:
    """Ring all-reduce: reduce-scatter, then all-gather, in 2 (P - 1) rounds of `nbytes` / P.

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

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    References
    ----------
    P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009.

    Examples
    --------
    >>> allreduce_ring(4, 1000)
    Schedule(4 ranks, 6 rounds, 24 messages)
    >>> allreduce_ring(4, 1000).bytes_sent()
    array([1500., 1500., 1500., 1500.])
    """
    return _cut(programs.allreduce_ring(n_ranks), nbytes, gamma)


def allreduce_tree(
    n_ranks: int, nbytes: float, *, arity: int | None = None, segments: int = 1, gamma: float = 0.0
) -> Schedule:
    """Tree all-reduce: reduction to rank 0, then broadcast.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    nbytes : float
        Bytes of the vector reduced, >= 0.
    arity : int, optional
        Children of a node, >= 1, of a tree filled level by level; a parent exchanges with all its children in one
        round. Binomial if not given: a parent exchanges with one child a round.
    segments : int
        Equal pieces the vector is cut into, >= 1, that follow each other one round apart. With 1, whole messages are
        stored and forwarded: for a binomial tree 2 ceil(log2 P) rounds of `nbytes`.
    gamma : float
        Seconds per byte reduced, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, Table I (binomial, one segment).

    Examples
    --------
    >>> allreduce_tree(8, 100)
    Schedule(8 ranks, 6 rounds, 14 messages)
    >>> allreduce_tree(8, 100, arity=2, segments=4)
    Schedule(8 ranks, 9 rounds, 56 messages)
    """
    return _cut(programs.allreduce_tree(n_ranks, arity=arity, segments=segments), nbytes, gamma)


def allreduce_recursive_doubling(n_ranks: int, nbytes: float, *, gamma: float = 0.0) -> Schedule:
    """Recursive-doubling all-reduce: log2 P rounds in which partners exchange the whole vector.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1. If it is no power of two, there is one round more at either end.
    nbytes : float
        Bytes of the vector reduced, >= 0.
    gamma : float
        Seconds per byte reduced, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    References
    ----------
    R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19,
    2005, section 4.5.

    Examples
    --------
    >>> allreduce_recursive_doubling(8, 100).bytes_sent()
    array([300., 300., 300., 300., 300., 300., 300., 300.])
    """
    return _cut(programs.allreduce_recursive_doubling(n_ranks), nbytes, gamma)


def allreduce_rabenseifner(n_ranks: int, nbytes: float, *, gamma: float = 0.0) -> Schedule:
    """Rabenseifner's all-reduce: recursive-halving reduce-scatter, recursive-doubling all-gather; 2 log2 P rounds.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1. If it is no power of two, there is one round of the whole vector more at either end.
    nbytes : float
        Bytes of the vector reduced, >= 0.
    gamma : float
        Seconds per byte reduced, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    References
    ----------
    R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.

    Examples
    --------
    >>> allreduce_rabenseifner(4, 100).columns()["nbytes"][::4]
    array([50., 25., 25., 50.])
    """
    return _cut(programs.allreduce_rabenseifner(n_ranks), nbytes, gamma)


def parameter_server(n_ranks: int, nbytes: float, *, server: int = 0, gamma: float = 0.0) -> Schedule:
    """All-reduce by a server that is one of the ranks: round 1 everyone to the server, round 2 back.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1, the server among them.
    nbytes : float
        Bytes of the vector reduced, >= 0.
    server : int
        Rank of the server, in 0 .. P-1.
    gamma : float
        Seconds per byte reduced, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, Table I: 2 alpha + 2 (P - 1) M beta, as the
    messages of a round share the server's link.

    Examples
    --------
    >>> parameter_server(3, 10).bytes_sent()
    array([20., 10., 10.])
    """
    return _cut(programs.parameter_server(n_ranks, server), nbytes, gamma)


def hierarchical(n_ranks: int, nbytes: float, *, group_size: int, gamma: float = 0.0) -> Schedule:
    """All-reduce on two levels: binomial reduction in groups, ring between their leaders, binomial broadcast.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    nbytes : float
        Bytes of the vector reduced, >= 0.
    group_size : int
        Consecutive ranks that form a group, >= 1; the last group may be smaller. The first rank leads.
    gamma : float
        Seconds per byte reduced, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    Examples
    --------
    >>> hierarchical(6, 90, group_size=2).bytes_sent()
    array([210.,  90., 210.,  90., 210.,  90.])
    """
    return _cut(programs.hierarchical(n_ranks, group_size), nbytes, gamma)


def reduce_scatter_ring(n_ranks: int, nbytes: float, *, gamma: float = 0.0) -> Schedule:
    """Ring reduce-scatter in P - 1 rounds of `nbytes` / P; rank r ends with piece r.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    nbytes : float
        Bytes of the vector reduced (all P pieces), >= 0.
    gamma : float
        Seconds per byte reduced, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    Examples
    --------
    >>> reduce_scatter_ring(4, 100).bytes_received()
    array([75., 75., 75., 75.])
    """
    return _cut(programs.reduce_scatter_ring(n_ranks), nbytes, gamma)


def reduce_binomial(n_ranks: int, nbytes: float, root: int = 0, *, gamma: float = 0.0) -> Schedule:
    """Binomial reduction to `root` in ceil(log2 P) rounds of `nbytes`; mirror image of `broadcast_binomial`.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    nbytes : float
        Bytes of the vector reduced, >= 0.
    root : int
        Rank that ends with the result, in 0 .. P-1.
    gamma : float
        Seconds per byte reduced, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    Examples
    --------
    >>> reduce_binomial(4, 10, root=1).bytes_received()
    array([ 0., 20.,  0., 10.])
    """
    return _cut(programs.reduce_binomial(n_ranks, root), nbytes, gamma)


def reduce_tree(
    n_ranks: int,
    nbytes: float,
    root: int = 0,
    *,
    arity: int | None = None,
    segments: int = 1,
    gamma: float = 0.0,
) -> Schedule:
    """Reduction to `root` up a binomial or k-ary tree, whole or in segments.

    Parameters
    ----------
    n_ranks, nbytes, root, gamma
        As of `reduce_binomial`.
    arity, segments
        As of `allreduce_tree`.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    Examples
    --------
    >>> reduce_tree(7, 10, arity=2)
    Schedule(7 ranks, 2 rounds, 6 messages)
    """
    return _cut(programs.reduce_tree(n_ranks, root, arity=arity, segments=segments), nbytes, gamma)


def broadcast_binomial(n_ranks: int, nbytes: float, root: int = 0) -> Schedule:
    """Binomial broadcast from `root` in ceil(log2 P) rounds; the whole message is stored and forwarded.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    nbytes : float
        Bytes of the message, >= 0.
    root : int
        Rank that has the message, in 0 .. P-1.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, Table I (Broadcast).

    Examples
    --------
    >>> broadcast_binomial(4, 10, root=1).bytes_sent()
    array([ 0., 20.,  0., 10.])
    """
    return _cut(programs.broadcast_binomial(n_ranks, root), nbytes)


def broadcast_tree(
    n_ranks: int, nbytes: float, root: int = 0, *, arity: int | None = None, segments: int = 1
) -> Schedule:
    """Broadcast from `root` down a binomial or k-ary tree, whole or in segments.

    Parameters
    ----------
    n_ranks, nbytes, root
        As of `broadcast_binomial`.
    arity, segments
        As of `allreduce_tree`; `arity` 1 is a chain, so that many segments make it a pipeline.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    Examples
    --------
    >>> broadcast_tree(4, 12, arity=1, segments=3)
    Schedule(4 ranks, 5 rounds, 9 messages)
    """
    return _cut(programs.broadcast_tree(n_ranks, root, arity=arity, segments=segments), nbytes)


def allgather_ring(n_ranks: int, nbytes: float) -> Schedule:
    """Ring all-gather in P - 1 rounds.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    nbytes : float
        Bytes each rank contributes, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    Examples
    --------
    >>> allgather_ring(4, 10).bytes_received()
    array([30., 30., 30., 30.])
    """
    return programs.allgather_ring(n_ranks).schedule(_one(nbytes))


def allgather_recursive_doubling(n_ranks: int, nbytes: float) -> Schedule:
    """Recursive-doubling all-gather: log2 P rounds, the payload doubles.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1. If it is no power of two, there is one round more at either end.
    nbytes : float
        Bytes each rank contributes, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, Table I (Allgather, for powers of two).

    Examples
    --------
    >>> allgather_recursive_doubling(8, 10).columns()["nbytes"][::8]
    array([10., 20., 40.])
    """
    return programs.allgather_recursive_doubling(n_ranks).schedule(_one(nbytes))


def allgather_bruck(n_ranks: int, nbytes: float) -> Schedule:
    """Bruck's all-gather: ceil(log2 P) rounds for every P, every rank sends (P - 1) `nbytes`.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    nbytes : float
        Bytes each rank contributes, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    References
    ----------
    J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems",
    TPDS 8, 1997.

    Examples
    --------
    >>> allgather_bruck(6, 10).columns()["nbytes"][::6]
    array([10., 20., 20.])
    """
    return programs.allgather_bruck(n_ranks).schedule(_one(nbytes))


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
    return programs.allgather_ring(len(contributed := _contributed(sizes, padded))).schedule(contributed)


def allgatherv_recursive_doubling(sizes: ArrayLike, *, padded: bool = False) -> Schedule:
    """Recursive-doubling all-gather of contributions of unequal size.

    Parameters
    ----------
    sizes, padded
        As of `allgatherv_ring`.

    Raises
    ------
    ValueError
        If `sizes` is not one-dimensional, empty, negative or not finite.

    Examples
    --------
    >>> allgatherv_recursive_doubling([10, 0, 30, 5]).bytes_sent()
    array([20., 10., 65., 40.])
    """
    return programs.allgather_recursive_doubling(len(contributed := _contributed(sizes, padded))).schedule(contributed)


def allgatherv_bruck(sizes: ArrayLike, *, padded: bool = False) -> Schedule:
    """Bruck's all-gather of contributions of unequal size.

    Parameters
    ----------
    sizes, padded
        As of `allgatherv_ring`.

    Raises
    ------
    ValueError
        If `sizes` is not one-dimensional, empty, negative or not finite.

    Examples
    --------
    >>> allgatherv_bruck([10, 0, 30]).bytes_received()
    array([30., 40., 10.])
    """
    return programs.allgather_bruck(len(contributed := _contributed(sizes, padded))).schedule(contributed)


def alltoall_pairwise(n_ranks: int, nbytes: float) -> Schedule:
    """Pairwise all-to-all: in round s = 1 .. P - 1 rank r sends to rank r + s.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    nbytes : float
        Bytes from each rank to each other, >= 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    Examples
    --------
    >>> alltoall_pairwise(4, 10).bytes_sent()
    array([30., 30., 30., 30.])
    """
    return programs.alltoall_pairwise(n_ranks).schedule(_one(nbytes))


def alltoallv_pairwise(sizes: ArrayLike) -> Schedule:
    """Pairwise all-to-all of unequal sizes.

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
    return programs.alltoall_pairwise(len(matrix)).schedule(matrix.ravel())


def _cut(program: Program, nbytes: float, gamma: float = 0.0) -> Schedule:
    """Schedule of a vector cut into equal chunks."""
    return program.schedule(_one(nbytes) / program.n_chunks, gamma=gamma)


def _one(nbytes: float) -> float:
    if np.ndim(nbytes):
        raise ValueError(
            f"nbytes must be one number, got shape {np.shape(nbytes)}; for unequal sizes see the v variants"
        )
    return float(nbytes)


def _contributed(sizes: ArrayLike, padded: bool) -> Floats:
    given = np.asarray(sizes, dtype=np.float64)
    if given.ndim != 1 or not given.size:
        raise ValueError(f"sizes must be one number for each rank, got shape {given.shape}")
    return np.full_like(given, given.max()) if padded else given
