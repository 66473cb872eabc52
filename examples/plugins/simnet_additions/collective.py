"""A collective: an all-reduce in two rounds, in which every rank talks to every other."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from simnet.collectives.program import ChunkProgram, ChunkStep
from simnet.collectives.registry import collective
from simnet.schedule import Schedule


def two_shot(n_ranks: int) -> ChunkProgram:
    """All-reduce of P chunks: every rank reduces its chunk of all others, then sends it to them."""
    src, dst = np.nonzero(~np.eye(n_ranks, dtype=bool))
    return ChunkProgram(n_ranks, n_ranks, [ChunkStep(src, dst, dst, reduce=True), ChunkStep(src, dst, src)])


def two_shot_cost(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> np.ndarray:
    """Two-shot all-reduce: 2 alpha + 2 (N - 1) / N M beta; derived."""
    share = np.subtract(N, 1) / np.asarray(N)
    seconds: np.ndarray = 2 * np.where(share > 0, alpha, 0.0) + 2 * share * np.multiply(M, beta)
    return seconds


@collective("all_reduce", "two_shot", program=two_shot, cost=two_shot_cost)
def allreduce_two_shot(n_ranks: int, nbytes: float, *, gamma: float = 0.0) -> Schedule:
    """Two-shot all-reduce: reduce-scatter, then all-gather, each in one round of `nbytes` / P to every other rank."""
    return two_shot(n_ranks).of_vector(nbytes, gamma)
