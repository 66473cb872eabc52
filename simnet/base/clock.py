"""Time that is added up over millions of steps, without what rounding would make of it."""

from __future__ import annotations


def advanced(now: float, by: float) -> tuple[float, float]:
    """Return a later moment, and what that lacks for rounding [s]: to be added to the next advance.

    Parameters
    ----------
    now : float
        The moment [s].
    by : float
        By how much later, with what was lacking before [s].

    Examples
    --------
    >>> now, lost = 1e9, 0.0
    >>> for _ in range(1_000_000):
    ...     now, lost = advanced(now, 1e-7 + lost)
    >>> now - 1e9, round(sum([1e9, *[1e-7] * 1_000_000]) - 1e9, 2)
    (0.10000002384185791, 0.12)
    """
    later = now + by
    return later, by - (later - now)
