"""Collectives along a binomial or k-ary tree, of whole messages or of segments that are pipelined.

A tree is its edges (parent, child) and, for each, the round in which a broadcast crosses it. Segment s of a message
crosses every edge s rounds later than segment 0, so that segments follow each other through the tree. A reduction
runs the same edges backwards.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005.
S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, Table I (binomial, one segment).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Ranks
from simnet.base.errors import check_int
from simnet.collectives.program import ChunkProgram, ChunkStep
from simnet.collectives.registry import POWERS_OF_TWO, collective
from simnet.cost_models.costs.collectives import binomial_reduce, tree_allreduce
from simnet.cost_models.costs.collectives import broadcast as binomial_broadcast
from simnet.schedule import Schedule


class TreeEdges(NamedTuple):
    """Edges of a tree of ranks. `at` is the round (from 0) in which segment 0 crosses an edge."""

    src: Ranks
    dst: Ranks
    at: Ranks
    reduce: NDArray[np.bool_]


def broadcast(n_ranks: int, root: int = 0, *, arity: int | None = None, segments: int = 1) -> ChunkProgram:
    """Broadcast of `segments` chunks from `root` down a binomial (`arity` None) or k-ary tree.

    Parameters
    ----------
    n_ranks : int
        P.
    root : int
        Where the tree has its root.
    arity : int, optional
        Children of each rank; a binomial tree when omitted.
    segments : int
        Chunks that follow each other.
    """
    P = check_int(n_ranks, "n_ranks", 1)
    down, _ = _tree_edges(P, arity)
    steps = _in_pipeline(_from_root(down, root, P), segments)
    return ChunkProgram(P, segments, steps, "broadcast", _tree_name(arity, segments))


def reduce(n_ranks: int, root: int = 0, *, arity: int | None = None, segments: int = 1) -> ChunkProgram:
    """Reduction of `segments` chunks to `root` up a binomial (`arity` None) or k-ary tree.

    Parameters
    ----------
    n_ranks, root, arity, segments
        As of `broadcast`.
    """
    P = check_int(n_ranks, "n_ranks", 1)
    down, depth = _tree_edges(P, arity)
    up = _from_root(_reverse_edges(down, depth), root, P)
    return ChunkProgram(P, segments, _in_pipeline(up, segments), "reduce", _tree_name(arity, segments))


def all_reduce(n_ranks: int, *, arity: int | None = None, segments: int = 1) -> ChunkProgram:
    """All-reduce of `segments` chunks: rank 0 broadcasts each segment as soon as the segment is reduced.

    Parameters
    ----------
    n_ranks, arity, segments
        As of `broadcast`.
    """
    P = check_int(n_ranks, "n_ranks", 1)
    down, depth = _tree_edges(P, arity)
    up, down = _reverse_edges(down, depth), down._replace(at=down.at + depth)
    both = TreeEdges(*(np.concatenate(columns) for columns in zip(up, down, strict=True)))
    return ChunkProgram(P, segments, _in_pipeline(both, segments), "all_reduce", "tree")


def _tree_name(arity: int | None, segments: int) -> str:
    return "binomial" if arity is None and segments == 1 else "tree"


def _tree_edges(P: int, arity: int | None) -> tuple[TreeEdges, int]:
    """Return the parent-to-child edges of a tree rooted at rank 0, and the rounds to broadcast one segment."""
    child = np.arange(1, P)
    if arity is None:
        # Binomial: the parent of v is v without its lowest set bit; edges of the highest bit come first.
        lowest = child & -child
        parent, depth = child - lowest, (P - 1).bit_length()
        at = depth - 1 - np.log2(lowest).astype(np.int64)
    else:
        # k-ary: level by level, left to right; a parent sends to all its children in the round of its level.
        check_int(arity, "arity", 1)
        parent = (child - 1) // arity
        level_starts = [0]
        while level_starts[-1] < P:
            level_starts.append(arity * level_starts[-1] + 1)
        at, depth = np.searchsorted(level_starts, parent, side="right") - 1, len(level_starts) - 2
    return TreeEdges(parent, child, at, np.zeros(P - 1, np.bool_)), depth


def _reverse_edges(down: TreeEdges, depth: int) -> TreeEdges:
    return TreeEdges(down.dst, down.src, depth - 1 - down.at, np.ones_like(down.reduce))


def _from_root(edges: TreeEdges, root: int, P: int) -> TreeEdges:
    check_int(root, "root", 0, P - 1)
    return edges._replace(src=(edges.src + root) % P, dst=(edges.dst + root) % P)


def _in_pipeline(edges: TreeEdges, segments: int) -> list[ChunkStep]:
    """Return the steps of a pipeline: segment s crosses each edge s rounds after segment 0 does."""
    check_int(segments, "segments", 1)
    order = np.argsort(edges.at, kind="stable")
    src, dst, at, reduce = (column[order] for column in edges)
    steps = []
    for t in range(int(at[-1]) + segments if at.size else 0):
        now = slice(*np.searchsorted(at, [t - segments + 1, t + 1]).tolist())
        phase = "reduce" if reduce[now].all() else "reduce and broadcast" if reduce[now].any() else "broadcast"
        steps.append(ChunkStep(src[now], dst[now], first=t - at[now], reduce=reduce[now], phase=phase))
    return steps


@collective(
    "all_reduce",
    "tree",
    program=all_reduce,
    cost=tree_allreduce,
    exact=POWERS_OF_TWO,
    nccl="Tree",
    mpi=("nonoverlapping",),
)
def allreduce_tree(
    n_ranks: int, nbytes: float, *, arity: int | None = None, segments: int = 1, gamma: float = 0.0
) -> Schedule:
    """Tree all-reduce: reduction to rank 0, then broadcast.

    Parameters
    ----------
    n_ranks, nbytes, gamma
        As of `allreduce_ring`.
    arity : int, optional
        Children of a node, >= 1, of a tree filled level by level; a parent exchanges with all its children in one
        round. Binomial if not given: a parent exchanges with one child a round.
    segments : int
        Equal pieces the vector is cut into, >= 1, that follow each other one round apart. With 1, whole messages are
        stored and forwarded: for a binomial tree 2 ceil(log2 P) rounds of `nbytes`.

    Examples
    --------
    >>> allreduce_tree(8, 100)
    Schedule(8 ranks, 6 rounds, 14 messages)
    >>> allreduce_tree(8, 100, arity=2, segments=4)
    Schedule(8 ranks, 9 rounds, 56 messages)
    """
    return all_reduce(n_ranks, arity=arity, segments=segments).of_vector(nbytes, gamma)


@collective("broadcast", "binomial", mpi=("binomial",), program=broadcast, cost=binomial_broadcast, calibrated=True)
def broadcast_binomial(n_ranks: int, nbytes: float, root: int = 0) -> Schedule:
    """Binomial broadcast from `root` in ceil(log2 `n_ranks`) rounds; each rank forwards the whole message.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    nbytes : float
        Bytes of the message, >= 0.
    root : int
        Rank that has the message, in 0 .. P-1.

    Examples
    --------
    >>> broadcast_binomial(4, 10, root=1).bytes_sent()
    array([ 0., 20.,  0., 10.])
    """
    return broadcast(n_ranks, root).of_vector(nbytes)


@collective("broadcast", "tree", program=broadcast, cost=binomial_broadcast)
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

    Examples
    --------
    >>> broadcast_tree(4, 12, arity=1, segments=3)
    Schedule(4 ranks, 5 rounds, 9 messages)
    """
    return broadcast(n_ranks, root, arity=arity, segments=segments).of_vector(nbytes)


@collective(
    "reduce", "binomial", mpi=("binomial",), program=reduce, cost=binomial_reduce, exact=POWERS_OF_TWO, calibrated=True
)
def reduce_binomial(n_ranks: int, nbytes: float, root: int = 0, *, gamma: float = 0.0) -> Schedule:
    """Binomial reduction to `root` in ceil(log2 `n_ranks`) rounds; the mirror image of `broadcast_binomial`.

    Parameters
    ----------
    n_ranks, nbytes, gamma
        As of `allreduce_ring`.
    root : int
        Rank that ends with the result, in 0 .. P-1.

    Examples
    --------
    >>> reduce_binomial(4, 10, root=1).bytes_received()
    array([ 0., 20.,  0., 10.])
    """
    return reduce(n_ranks, root).of_vector(nbytes, gamma)


@collective("reduce", "tree", program=reduce, cost=binomial_reduce, exact=POWERS_OF_TWO)
def reduce_tree(
    n_ranks: int, nbytes: float, root: int = 0, *, arity: int | None = None, segments: int = 1, gamma: float = 0.0
) -> Schedule:
    """Reduction to `root` up a binomial or k-ary tree, whole or in segments.

    Parameters
    ----------
    n_ranks, nbytes, root, gamma
        As of `reduce_binomial`.
    arity, segments
        As of `allreduce_tree`.

    Examples
    --------
    >>> reduce_tree(7, 10, arity=2)
    Schedule(7 ranks, 2 rounds, 6 messages)
    """
    return reduce(n_ranks, root, arity=arity, segments=segments).of_vector(nbytes, gamma)
