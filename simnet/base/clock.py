"""Simulated time, summed over millions of steps without accumulated rounding errors."""

from __future__ import annotations


def advance_time(now: float, by: float) -> tuple[float, float]:
    """Return `now` + `by`, and the rounding error of this sum [s], which the caller must add to the next `by`.

    Examples
    --------
    >>> now, lost = 1e9, 0.0
    >>> for _ in range(1_000_000):
    ...     now, lost = advance_time(now, 1e-7 + lost)
    >>> now - 1e9, round(sum([1e9, *[1e-7] * 1_000_000]) - 1e9, 2)
    (0.10000002384185791, 0.12)
    """
    later = now + by
    return later, by - (later - now)
