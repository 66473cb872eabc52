"""Collectives along a tree: binomial or k-ary, whole messages or segments in a pipeline.

A tree is its edges (parent, child) and, for each, the round in which a broadcast crosses it. Segment s of a message
crosses every edge s rounds later than segment 0, so that segments follow each other through the tree. A reduction
runs the same edges backwards.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Ranks
from simnet.base.checks import whole
from simnet.collectives.program import Program, Step


class Edges(NamedTuple):
    """Edges of a tree over ranks, each with the round (from 0) in which segment 0 crosses it."""

    src: Ranks
    dst: Ranks
    at: Ranks
    reduce: NDArray[np.bool_]


def broadcast_tree(n_ranks: int, root: int = 0, *, arity: int | None = None, segments: int = 1) -> Program:
    """Broadcast of `segments` chunks from `root` down a binomial (`arity` None) or k-ary tree."""
    P = whole(n_ranks, "n_ranks", 1)
    down, _ = _down(P, arity)
    return Program(P, segments, _pipeline(_rooted(down, root, P), segments))


def broadcast_binomial(n_ranks: int, root: int = 0) -> Program:
    """Broadcast of one chunk from `root` in ceil(log2 P) rounds, storing and forwarding the whole message."""
    return broadcast_tree(n_ranks, root)


def reduce_tree(n_ranks: int, root: int = 0, *, arity: int | None = None, segments: int = 1) -> Program:
    """Reduction of `segments` chunks to `root` up a binomial (`arity` None) or k-ary tree."""
    P = whole(n_ranks, "n_ranks", 1)
    down, depth = _down(P, arity)
    return Program(P, segments, _pipeline(_rooted(_up(down, depth), root, P), segments))


def reduce_binomial(n_ranks: int, root: int = 0) -> Program:
    """Reduction of one chunk to `root` in ceil(log2 P) rounds."""
    return reduce_tree(n_ranks, root)


def allreduce_tree(n_ranks: int, *, arity: int | None = None, segments: int = 1) -> Program:
    """All-reduce of `segments` chunks: reduction to rank 0, then broadcast; each segment turns round at the root."""
    P = whole(n_ranks, "n_ranks", 1)
    down, depth = _down(P, arity)
    up, down = _up(down, depth), down._replace(at=down.at + depth)
    both = Edges(*(np.concatenate(columns) for columns in zip(up, down, strict=True)))
    return Program(P, segments, _pipeline(both, segments))


def _down(P: int, arity: int | None) -> tuple[Edges, int]:
    """Edges from parent to child of a tree rooted at rank 0, and the rounds a broadcast of one segment takes."""
    child = np.arange(1, P)
    if arity is None:
        # Binomial: the parent of v is v without its lowest set bit; edges of the highest bit come first.
        lowest = child & -child
        parent, depth = child - lowest, (P - 1).bit_length()
        at = depth - 1 - np.log2(lowest).astype(np.int64)
    else:
        # k-ary: level by level, left to right; a parent sends to all its children in the round of its level.
        whole(arity, "arity", 1)
        parent = (child - 1) // arity
        level_starts = [0]
        while level_starts[-1] < P:
            level_starts.append(arity * level_starts[-1] + 1)
        at, depth = np.searchsorted(level_starts, parent, side="right") - 1, len(level_starts) - 2
    return Edges(parent, child, at, np.zeros(P - 1, np.bool_)), depth


def _up(down: Edges, depth: int) -> Edges:
    return Edges(down.dst, down.src, depth - 1 - down.at, np.ones_like(down.reduce))


def _rooted(edges: Edges, root: int, P: int) -> Edges:
    whole(root, "root", 0, P - 1)
    return edges._replace(src=(edges.src + root) % P, dst=(edges.dst + root) % P)


def _pipeline(edges: Edges, segments: int) -> list[Step]:
    """In round t, every edge that segment 0 crossed at most `segments` rounds ago carries segment t - at."""
    whole(segments, "segments", 1)
    order = np.argsort(edges.at, kind="stable")
    src, dst, at, reduce = (column[order] for column in edges)
    steps = []
    for t in range(int(at[-1]) + segments if at.size else 0):
        now = slice(*np.searchsorted(at, [t - segments + 1, t + 1]).tolist())
        phase = "reduce" if reduce[now].all() else "reduce and broadcast" if reduce[now].any() else "broadcast"
        steps.append(Step(src[now], dst[now], first=t - at[now], reduce=reduce[now], phase=phase))
    return steps
