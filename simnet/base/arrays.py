"""Array types shared by modules, and small array functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ranks: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

Adds: TypeAlias = Callable[[NDArray[np.float32]], None]
"""Adds fresh gradients in place to rows, float32 of shape (P, n)."""


PERCENTS = (50, 90, 99)
"""Percentiles reported of times."""


def percentiles(values: Floats) -> list[float]:
    """Return the percentiles `PERCENTS` of a non-empty sample, each an observed value.

    Examples
    --------
    >>> percentiles(np.array([1.0, 9.0, 2.0, 3.0]))
    [2.0, 9.0, 9.0]
    """
    return [float(one) for one in np.percentile(values, PERCENTS, method="inverted_cdf")]


def unique_places(numbers: Ranks, below: int) -> tuple[Ranks, Ranks]:
    """Return the distinct values of `numbers` (>= 0), ascending, and for each number its index in them, shape (m,).

    `below` exceeds all of them; if it is not much above m, no sorting is needed.

    Examples
    --------
    >>> found, places = unique_places(np.array([7, 2, 7]), 8)
    >>> found.tolist(), places.tolist()
    ([2, 7], [1, 0, 1])
    """
    if below > 16 * numbers.size:
        return np.unique(numbers, return_inverse=True)
    there = np.zeros(below, dtype=np.bool_)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]
