"""All-reduce on two levels: inside groups (nodes, sites) and between one leader of each."""

from __future__ import annotations

import numpy as np

from simnet.base.checks import whole
from simnet.collectives.program import Program, Step
from simnet.collectives.programs.ring import allreduce_ring


def hierarchical(n_ranks: int, group_size: int) -> Program:
    """All-reduce: binomial reduction to the leaders, ring all-reduce between leaders, binomial broadcast.

    Groups are `group_size` consecutive ranks (the last may be smaller), leaders their first ranks, chunks as many as
    leaders.
    """
    P = whole(n_ranks, "n_ranks", 1)
    whole(group_size, "group_size", 1)
    rank = np.arange(P)
    leaders = rank[::group_size]
    L = len(leaders)
    local = rank % group_size
    inside = [(rank[local % (2 * d) == d], d) for d in (1 << bit for bit in range((group_size - 1).bit_length()))]
    steps = [Step(child, child - d, count=L, reduce=True, phase="reduce") for child, d in inside]
    steps += [step.between(leaders) for step in allreduce_ring(L).steps]
    steps += [Step(child - d, child, count=L, phase="broadcast") for child, d in reversed(inside)]
    return Program(P, L, steps)
