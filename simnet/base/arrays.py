"""Array types shared by modules, and small array functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import pandas as pd

Ranks: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Values: TypeAlias = NDArray[np.float32]

Columns: TypeAlias = "Mapping[str, NDArray[Any]] | pd.DataFrame"
"""Columns of a table by name, all of one length."""

Adds: TypeAlias = Callable[[NDArray[np.float32]], None]
"""Adds fresh gradients in place to rows, float32 of shape (P, n)."""


FLOAT_BYTES = 4.0
"""Bytes of a float32."""

PERCENTS = (50, 90, 99)
"""Percentiles reported of times."""


def percentiles(values: Floats) -> list[float]:
    """Return the 50th, 90th and 99th percentiles of a non-empty sample; each percentile is a value of the sample.

    Examples
    --------
    >>> percentiles(np.array([1.0, 9.0, 2.0, 3.0]))
    [2.0, 9.0, 9.0]
    """
    return [float(one) for one in np.percentile(values, PERCENTS, method="inverted_cdf")]


def check_float32(value: Any, shape: tuple[int, ...], name: str) -> None:
    """Raise ValueError, which calls it `name`, if a value is no float32 array of a shape.

    Examples
    --------
    >>> check_float32(np.zeros(3), (3,), "gradients")
    Traceback (most recent call last):
    ValueError: gradients must be an array of float32, got float64
    """
    found = getattr(value, "dtype", type(value).__name__)
    if found != np.float32:
        raise ValueError(f"{name} must be an array of float32, got {found}")
    if value.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {value.shape}")


_DIGITS = 12
# 10**22 is the largest power of ten that a float holds exactly.
_EXACT_POWER = 22


def significant(values: ArrayLike) -> NDArray[np.float64]:
    """Return values rounded to twelve significant digits; digits below 1e-22 are dropped.

    Examples
    --------
    >>> significant([0.1 + 0.2, 123456789012.87, 0.0]).tolist()
    [0.3, 123456789013.0, 0.0]
    """
    given = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(given) & (given != 0)
    magnitude = np.floor(np.log10(np.abs(np.where(finite, given, 1.0))))
    power = np.clip(_DIGITS - 1 - magnitude, -300, _EXACT_POWER)
    # Both divisions are by exact powers of ten, hence correctly rounded.
    small, large = 10.0 ** np.maximum(power, 0), 10.0 ** np.maximum(-power, 0)
    with np.errstate(invalid="ignore"):
        return np.where(finite, np.rint(given * small / large) / small * large, given)


def unique_places(numbers: Ranks, below: int) -> tuple[Ranks, Ranks]:
    """Return the distinct values of `numbers` (>= 0), ascending, and for each number the index of its value among them.

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
