"""How often each choice occurs: over the cells of a map or a table, or the moments of a scenario."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def largest_first(which: NDArray[np.intp], labels: Sequence[str]) -> dict[str, float]:
    """Return the share of each label among the places of `which`, the largest first, of equals in their order.

    Examples
    --------
    >>> largest_first(np.array([[1, 1], [0, 1]]), ["AG", "ART", "dense"])
    {'ART': 0.75, 'AG': 0.25, 'dense': 0.0}
    """
    shares = np.bincount(which.ravel(), minlength=len(labels)) / which.size
    return {labels[one]: float(shares[one]) for one in np.argsort(-shares, kind="stable").tolist()}
