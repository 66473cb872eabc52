"""How far to believe a prediction: conformal intervals.

What cross-validation saw of the errors of predictions of one kind (another size of a measured curve, another number of
ranks, another collective) bounds the error of the next: the measured time is inside the interval with the wanted
probability if it is as hard to predict as those. Each side has a quantile of its own, by size of the message, as short
messages scatter more.

References
----------
V. Vovk, A. Gammerman, G. Shafer, "Algorithmic Learning in a Random World", Springer 2005. J. Lei, M. G'Sell, A.
Rinaldo, R. J. Tibshirani, L. Wasserman, "Distribution-free predictive inference for regression", J. Amer. Stat. Assoc.
113, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from validate.calibration.crossval import Held
from validate.calibration.curves import Floats
from validate.calibration.predictor import Way

BINS = (0.0, 64 * 2.0**10, 2.0**20, 64 * 2.0**20)
"""Where bins of sizes begin [byte]: below 64 KiB, to 1 MiB, to 64 MiB, above."""

BIN_NAMES = ("< 64 KiB", "64 KiB-1 MiB", "1-64 MiB", "> 64 MiB")
"""What the bins are called."""

FEWEST = 20
"""Held-out predictions below which a bin takes all of them."""

UNKNOWN = math.log(3.0)
"""Half width, as a logarithm, where no held-out prediction tells: a factor of 3."""


def bin_of(sizes: Floats) -> np.ndarray:
    """Return the bin of each size [byte].

    Examples
    --------
    >>> bin_of(np.array([8.0, 65536.0, 1e6, 1e9])).tolist()
    [0, 1, 1, 3]
    """
    return np.asarray(np.searchsorted(BINS, sizes, side="right") - 1)


def widths(held: Sequence[Held], coverage: float) -> list[tuple[float, float]]:
    """Return for each bin how far the logarithm of the measured time may be below and above that of the prediction.

    Parameters
    ----------
    held : sequence of Held
        What cross-validation saw.
    coverage : float
        Share of measurements that an interval shall hold, in (0, 1).

    Returns
    -------
    list of (float, float)
        Below and above, each >= 0.

    Examples
    --------
    >>> widths([], 0.9)[0] == (UNKNOWN, UNKNOWN)
    True
    """
    if not held:
        return [(UNKNOWN, UNKNOWN)] * len(BINS)
    sizes = np.concatenate([one.sizes for one in held])
    off = -np.concatenate([one.off for one in held])
    found = []
    for number in range(len(BINS)):
        inside = off[bin_of(sizes) == number]
        found.append(_quantiles(inside if len(inside) >= FEWEST else off, coverage))
    return found


def widest(held: Sequence[Held], coverage: float) -> list[tuple[float, float]]:
    """Return for each bin the widest of the widths of single collectives.

    Errors of one collective are alike, so those of all together say little of the next: it may be the worst one.

    Examples
    --------
    >>> widest([], 0.9) == widths([], 0.9)
    True
    """
    groups = [
        [one for one in held if one.setting.collective == name] for name in {one.setting.collective for one in held}
    ]
    each = np.array([widths(group, coverage) for group in groups] or [widths([], coverage)])
    return [(float(below), float(above)) for below, above in each.max(axis=0)]


def intervals(held: Mapping[Way, Sequence[Held]], coverage: float) -> dict[Way, list[tuple[float, float]]]:
    """Return widths by what a prediction rests on: for other collectives the `widest`, else those of all together.

    Examples
    --------
    >>> sorted(intervals({"sizes": [], "ranks": [], "collectives": []}, 0.9))
    ['collectives', 'ranks', 'sizes']
    """
    return {way: (widest if way == "collectives" else widths)(one, coverage) for way, one in held.items()}


def covered(held: Sequence[Held], bins: Sequence[tuple[float, float]]) -> np.ndarray:
    """Return which held-out measurements are inside the intervals of given widths."""
    if not held:
        return np.zeros(0, dtype=bool)
    sizes = np.concatenate([one.sizes for one in held])
    off = -np.concatenate([one.off for one in held])
    below, above = np.array(bins).T
    which = bin_of(sizes)
    return np.asarray((-below[which] <= off) & (off <= above[which]))


def _quantiles(off: Floats, coverage: float) -> tuple[float, float]:
    """Return the conformal quantile of either side: of n errors that with number (n + 1) q, rounded up."""
    count = len(off)
    if count < 3:
        return UNKNOWN, UNKNOWN
    place = min(math.ceil((count + 1) * (1 + coverage) / 2), count) - 1
    return max(float(np.sort(-off)[place]), 0.0), max(float(np.sort(off)[place]), 0.0)
