"""Which collective is cheapest, and whether compression pays. Symbols and references: `simnet.cost_models.costs`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.cost_models.costs.arguments import Real
from simnet.cost_models.costs.sparsifiers import artopk_ring, artopk_tree, topk_allgather

SPARSE_COLLECTIVES = ("ART-ring", "ART-tree", "AG")
"""Candidates of the flexible exchange, in the order in which the released code compares them."""


class CheapestCollective(NamedTuple):
    """The cheapest of `SPARSE_COLLECTIVES`, cell by cell."""

    choice: NDArray[np.intp]
    """Position in `SPARSE_COLLECTIVES`."""
    label: NDArray[np.str_]
    """Its name."""
    seconds: Floats
    """Its cost."""


def best_collective(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> CheapestCollective:
    """Return the cheapest of `SPARSE_COLLECTIVES` by the three formulas; of equals the one that stands first.

    This arg-min is what the inequalities of [1] Eqn 5 amount to, and holds where they do not (N < 7).

    Examples
    --------
    >>> best_collective(1e-3, 0.8e-9, 46_758_048, [0.1, 0.01], 8).label.tolist()
    ['ART-ring', 'AG']
    """
    candidates = (artopk_ring, artopk_tree, topk_allgather)
    seconds = np.stack([np.asarray(cost(alpha, beta, M, c, N)) for cost in candidates])
    choice = seconds.argmin(axis=0)
    return CheapestCollective(choice, np.array(SPARSE_COLLECTIVES)[choice], seconds.min(axis=0))
