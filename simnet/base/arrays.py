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
