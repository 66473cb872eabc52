"""How many measurements lie inside their intervals, set by set, and how many sets could be as they should.

Of a set with few measurements, chance alone decides whether between 85 and 95 % of them lie inside, even if each lies
inside an exact interval with 90 %. Measurements of a curve lie inside or outside together, so that a set tells as much
as fewer that were independent (L. Kish's design effect): ``m`` of a curve as much as ``m / (1 + (m - 1) rho)``. The
correlation ``rho`` is that of all sets, with the share of each set as its mean, so that it is rather too small.

References
----------
L. Kish, "Survey Sampling", Wiley 1965, section 5.4.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import binom

from simnet.cost_models.calibration.cost_model import DEFAULT_COVERAGE

LEAST, MOST = 0.85, 0.95
"""The share of measurements inside that a set should have."""

_CURVE = ["set", "system", "setting"]


def correlation(table: pd.DataFrame) -> float:
    """Return how alike measurements of a curve are in whether they lie ``inside``; 0 to 1.

    Examples
    --------
    >>> rows = {"set": ["a"] * 4, "system": [""] * 4, "setting": ["x", "x", "y", "y"]}
    >>> correlation(pd.DataFrame(rows | {"inside": [True, True, False, False]}))
    1.0
    """
    share = table.groupby("set")["inside"].transform("mean")
    off = (table["inside"] - share).groupby([table[name] for name in _CURVE])
    total, count = off.sum(), off.size()
    together = float((total**2 - off.agg(lambda one: (one**2).sum())).sum())
    alone = float((share * (1 - share) * (table.groupby(_CURVE)["inside"].transform("size") - 1)).sum())
    return float(np.clip(together / alone, 0.0, 1.0)) if alone > 0 and (count > 1).any() else 0.0


def exact(table: pd.DataFrame) -> float:
    """Return how many sets would be as they should in the mean, were all intervals exact.

    Parameters
    ----------
    table : DataFrame
        Predictions of one split, with ``set``, ``system``, ``setting`` and ``inside``.
    """
    rho, found = correlation(table), 0.0
    for _, own in table.groupby("set"):
        sizes = own.groupby(_CURVE[1:]).size().to_numpy(dtype=float)
        alone = max(round(float((sizes / (1 + (sizes - 1) * rho)).sum())), 1)
        inside = np.arange(alone + 1) / alone
        found += float(
            binom.pmf(np.arange(alone + 1), alone, DEFAULT_COVERAGE)[(inside >= LEAST) & (inside <= MOST)].sum()
        )
    return found


def said(table: pd.DataFrame) -> str:
    """Return what is said of a split: what lies inside of all sets, and how many sets are as they should be."""
    each = table.groupby("set")["inside"].mean()
    good, low = int(each.between(LEAST, MOST).sum()), int((each < LEAST).sum())
    sets = f"of {len(each)} sets {good} within the aim, {low} below; were intervals exact, {exact(table):.0f} within"
    return f"{table['inside'].mean():.1%} pooled; {sets}"
