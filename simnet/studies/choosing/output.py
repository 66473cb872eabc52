"""Chances in words."""

from __future__ import annotations

import math


def share(value: float) -> str:
    """Return a chance or a regret in per cent, or from 1000 % on as a factor; no chance is certain but 0 and 1.

    Examples
    --------
    >>> [share(one) for one in (0.0, 0.0004, 0.062, 0.973, 0.9996, 1.0, 163.2)]
    ['0 %', '0.04 %', '6.2 %', '97 %', '> 99.9 %', '100 %', '163x']
    """
    if math.isnan(value):
        return "not determined"
    if 10 <= value < math.inf:
        return f"{value:.3g}x"
    if 0.999 < value < 1:
        return "> 99.9 %"
    return f"{100 * value:.2g} %" if value < 0.99 else f"{100 * value:.3g} %"
