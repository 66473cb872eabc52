"""Names of the arrays that pass between modules, and what many of them ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ranks: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

Adds: TypeAlias = Callable[[NDArray[np.float32]], None]
"""What adds fresh gradients, in place, to rows: float32 of shape (P, n)."""


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
