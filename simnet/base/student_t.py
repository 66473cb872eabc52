"""Quantiles of Student's t distribution, without loading SciPy."""

from __future__ import annotations

import math
from functools import cache


@cache
def student_quantile(freedom: int, probability: float) -> float:
    """Return the quantile of Student's t distribution with `freedom` degrees of freedom, a whole number.

    Parameters
    ----------
    freedom
        Degrees of freedom, at least 1.
    probability
        From 0.5, whose quantile is 0, to below 1.

    References
    ----------
    M. Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.

    Examples
    --------
    >>> round(student_quantile(3, 0.95), 6), round(student_quantile(10, 0.975), 6)
    (2.353363, 2.228139)
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _share_within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _share_within(angle: float, freedom: int) -> float:
    """Return the probability that Student's t is within ``sqrt(freedom) * tan(angle)`` of 0."""
    odd, square = freedom % 2, math.cos(angle) ** 2
    term, total = math.cos(angle) ** odd, 0.0
    for power in range(odd, freedom, 2):
        total += term
        term *= square * (power + 1) / (power + 2)
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if odd else within
