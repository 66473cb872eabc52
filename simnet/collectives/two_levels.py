"""All-reduce on two levels: inside groups of ranks (nodes, sites), and between one leader of each group."""

from __future__ import annotations

import numpy as np

from simnet.base.errors import check_int
from simnet.collectives import ring
from simnet.collectives.program import ChunkProgram, ChunkStep
from simnet.collectives.registry import POWERS_OF_TWO, collective
from simnet.cost_models.costs.collectives import hierarchical_allreduce
from simnet.schedule import Schedule


def two_levels(n_ranks: int, group_size: int) -> ChunkProgram:
    """All-reduce on two levels: binomial reduction to group leaders, ring all-reduce of leaders, binomial broadcast.

    Groups are `group_size` consecutive ranks (the last may be smaller). Leaders are their first ranks, one per chunk.
    """
    P = check_int(n_ranks, "n_ranks", 1)
    check_int(group_size, "group_size", 1)
    rank = np.arange(P)
    leaders = rank[::group_size]
    L = len(leaders)
    local = rank % group_size
    inside = [(rank[local % (2 * d) == d], d) for d in (1 << bit for bit in range((group_size - 1).bit_length()))]
    steps = [ChunkStep(child, child - d, count=L, reduce=True, phase="reduce") for child, d in inside]
    steps += [step.between(leaders) for step in ring.all_reduce(L).steps]
    steps += [ChunkStep(child - d, child, count=L, phase="broadcast") for child, d in reversed(inside)]
    return ChunkProgram(P, L, steps, "all_reduce", "hierarchical")


@collective(
    "all_reduce",
    "hierarchical",
    program=two_levels,
    cost=hierarchical_allreduce,
    exact=POWERS_OF_TWO,
    offered="on nodes",
)
def hierarchical(n_ranks: int, nbytes: float, *, group_size: int, gamma: float = 0.0) -> Schedule:
    """All-reduce on two levels: binomial reduction in groups, ring between their leaders, binomial broadcast.

    Parameters
    ----------
    n_ranks, nbytes, gamma
        As of `allreduce_ring`.
    group_size : int
        Consecutive ranks that form a group, >= 1; the last group may be smaller. The first rank leads.

    Examples
    --------
    >>> hierarchical(6, 90, group_size=2).bytes_sent()
    array([210.,  90., 210.,  90., 210.,  90.])
    """
    return two_levels(n_ranks, group_size).of_vector(nbytes, gamma)
