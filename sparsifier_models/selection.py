"""The kernels that schemes share: exact top-k, norms, and averages over sparse selections.

All of them are deterministic to the bit. No result depends on the number of threads or the processor, which the sums of
a BLAS do, or on the order in which a partition happens to leave its elements.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
Indices = NDArray[np.int64]

# Blocks this short stay in the cache while they are converted, squared and summed.
_BLOCK = 8192


def entries_kept(density: float, parameters: int) -> int:
    """Return k = ceil(c n) for the density c as it is written in decimal.

    In binary floating point 0.07 * 100 exceeds 7, and its ceiling would be 8.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, section 2-C1.

    Examples
    --------
    >>> entries_kept(0.07, 100), entries_kept(0.071, 100), entries_kept(1e-9, 100)
    (7, 8, 1)
    """
    return math.ceil(Fraction(repr(float(density))) * parameters)


def top_k(values: Values, k: int) -> Indices:
    """Return where the `k` entries of largest magnitude stand, in ascending order; of equal ones, the first.

    Parameters
    ----------
    values : ndarray of float32, shape (n,)
    k : int
        Entries to select, >= 0; all if `k` >= n.

    Returns
    -------
    ndarray of int64, shape (min(k, n),)

    Examples
    --------
    >>> top_k(np.array([3, -5, 1, 3, 4], dtype=np.float32), 3)
    array([0, 1, 4])
    """
    n = values.size
    if k >= n:
        return np.arange(n)
    if k <= 0:
        return np.zeros(0, dtype=np.int64)
    magnitude = np.abs(values)
    smallest = np.partition(magnitude, n - k)[n - k]
    found = np.flatnonzero(magnitude >= smallest)
    if found.size > k:
        tied = np.flatnonzero(magnitude[found] == smallest)
        found = np.delete(found, tied[k - found.size :])
    return found


def kth_magnitude(values: Values, k: int) -> float:
    """Return the `k`-th largest magnitude.

    Parameters
    ----------
    values : ndarray of float32, shape (n,)
    k : int
        In 1 .. n.

    Raises
    ------
    ValueError
        If `k` lies elsewhere.

    Examples
    --------
    >>> kth_magnitude(np.array([3, -5, 1, 3, 4], dtype=np.float32), 2)
    4.0
    """
    n = values.size
    if not 1 <= k <= n:
        raise ValueError(f"k must be in 1..{n}, got {k}")
    return float(np.partition(np.abs(values), n - k)[n - k])


def above(values: Values, threshold: float, *, strict: bool = True) -> Indices:
    """Return where magnitudes exceed the threshold, in ascending order.

    Parameters
    ----------
    values : ndarray of float32, shape (n,)
    threshold : float
        Compared in float32, as codes on a device do.
    strict : bool
        Whether an entry as large as the threshold stays out.

    Returns
    -------
    ndarray of int64

    Examples
    --------
    >>> values = np.array([3, -5, 1, 3, 4], dtype=np.float32)
    >>> above(values, 3), above(values, 3, strict=False)
    (array([1, 4]), array([0, 1, 3, 4]))
    """
    compare = np.greater if strict else np.greater_equal
    return np.flatnonzero(compare(np.abs(values), np.float32(threshold)))


def squared_norm(values: Values) -> float:
    """Return the sum of squares, added up in double precision; NaN or Inf if an entry is.

    Examples
    --------
    >>> squared_norm(np.full(4, 1e30, dtype=np.float32)) > 3.9e60
    True
    """
    total = 0.0
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK].astype(np.float64)
        total += float(np.multiply(block, block, out=block).sum())
    return total


def squared_norms(rows: Values) -> NDArray[np.float64]:
    """Return the sum of squares of each row, as `squared_norm`; shape (P,)."""
    return np.array([squared_norm(row) for row in rows], dtype=np.float64)


def take_mean(rows: Values, indices: Indices) -> tuple[Values, NDArray[np.float64]]:
    """Take the entries at common `indices` out of every row: their mean, as an all-reduce of values yields it.

    Parameters
    ----------
    rows : ndarray of float32, shape (P, n)
        Set to zero at `indices`.
    indices : ndarray of int64, shape (k,)
        Distinct.

    Returns
    -------
    mean : ndarray of float32, shape (n,)
        Sum over the rows, in order, over P; zero elsewhere.
    sent : ndarray of float64, shape (P,)
        Sum of squares taken from each row.

    Examples
    --------
    >>> rows = np.array([[1, 2, 3], [3, 4, 5]], dtype=np.float32)
    >>> take_mean(rows, np.array([0, 2]))[0], rows
    (array([2., 0., 4.], dtype=float32), array([[0., 2., 0.],
           [0., 4., 0.]], dtype=float32))
    """
    total = np.zeros(indices.size, dtype=np.float32)
    sent = np.zeros(len(rows))
    for worker, row in enumerate(rows):
        values = row[indices]
        total += values
        sent[worker] = squared_norm(values)
        row[indices] = 0
    mean = np.zeros(rows.shape[1], dtype=np.float32)
    mean[indices] = total / np.float32(len(rows))
    return mean, sent
