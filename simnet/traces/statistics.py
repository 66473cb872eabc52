"""Statistics of gradients of shape (P, n), to compare sources.

All are about the selection of exact top-k from fresh gradients, without residual: k = c n entries for the density c.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.traces.source import Values

Support: TypeAlias = NDArray[np.bool_]


def top_k_support(gradients: Values, density: float) -> Support:
    """Return top-k's selection at each worker; shape (P, n), of equal magnitudes the first; at least one entry."""
    if not 0 < density <= 1:
        raise ValueError(f"density must be > 0 and <= 1, got {density}")
    n = gradients.shape[1]
    k = max(1, round(density * n))
    magnitudes = np.abs(gradients)
    # By the value, as which of equal entries a partition of indices leaves on top depends on the processor.
    least = np.partition(magnitudes, n - k, axis=1)[:, n - k, None]
    selected = magnitudes >= least
    for worker in np.flatnonzero(np.count_nonzero(selected, axis=1) > k):
        equal = np.flatnonzero(magnitudes[worker] == least[worker])
        over = np.count_nonzero(selected[worker]) - k
        selected[worker, equal[len(equal) - over :]] = False
    return selected


def overlap(first: Values, second: Values, density: float) -> float:
    """Return the share of k that two selections have in common, mean over workers.

    Between iterations it measures how lasting the selection is; between workers, how alike.
    """
    return support_overlap(top_k_support(first, density), top_k_support(second, density))


def support_overlap(one: Support, other: Support) -> float:
    """Return the share of each worker's selection that another support selects too, mean over workers."""
    return float(np.mean((one & other).sum(axis=1) / one.sum(axis=1)))


def worker_support_overlap(selected: Support) -> float:
    """Return the share of a worker's selection that another one selects too, mean over all pairs."""
    P, k = len(selected), selected[0].sum()
    times = selected.sum(axis=0, dtype=np.int64)
    return float((times * (times - 1)).sum() / (P * (P - 1) * k))


def tail_index(gradients: Values, share: float) -> float:
    """Return Hill's estimate of the tail exponent of the largest `share` of magnitudes, mean over workers.

    NaN if there is one entry, or the largest include zeros or are all equal.
    """
    n = gradients.shape[1]
    k = max(1, round(share * n))
    if n < 2:
        return math.nan
    largest = np.partition(np.abs(gradients), n - k - 1, axis=1)[:, n - k - 1 :].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = float(np.mean(k / np.log(largest[:, 1:] / largest[:, :1]).sum(axis=1)))
    return found if 0 < found < math.inf else math.nan
