"""Names of the arrays that pass between modules, and what many of them ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ranks: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

Adds: TypeAlias = Callable[[NDArray[np.float32]], Floats | None]
"""What adds fresh gradients, in place, to rows: float32 of shape (P, n).

It may return the sums of squares of the rows that come of it, as `simnet.sparsifier_models.selection.squared_norms`
does."""


PERCENTS = (50, 90, 99)
"""The percentiles that are told of times."""


def percentiles(values: Floats) -> list[float]:
    """Return the `PERCENTS` of numbers, each the least within which so many of 100 are: one that occurred.

    Parameters
    ----------
    values : ndarray of float
        At least one.

    Examples
    --------
    >>> percentiles(np.array([1.0, 9.0, 2.0, 3.0]))
    [2.0, 9.0, 9.0]
    """
    return [float(one) for one in np.percentile(values, PERCENTS, method="inverted_cdf")]


def distinct(numbers: Ranks, below: int) -> tuple[Ranks, Ranks]:
    """Return which whole numbers there are, ascending, and the place of each of those given among them.

    Parameters
    ----------
    numbers : ndarray of int, shape (m,)
        At least 0.
    below : int
        A number above all of them: where it is not much above m, they need not be sorted.

    Examples
    --------
    >>> found, places = distinct(np.array([7, 2, 7]), 8)
    >>> found.tolist(), places.tolist()
    ([2, 7], [1, 0, 1])
    """
    if below > 16 * numbers.size:
        return np.unique(numbers, return_inverse=True)
    there = np.zeros(below, dtype=np.bool_)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


def last_squares(values: NDArray[np.float32], block: int) -> float:
    """Return the sum of squares of what comes after the last full block, added up in double precision.

    Examples
    --------
    >>> last_squares(np.array([5, 6, 2], dtype=np.float32), 2)
    4.0
    """
    rest = values[values.size - values.size % block :].astype(np.float64)
    return float(np.multiply(rest, rest, out=rest).sum())
