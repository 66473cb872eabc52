"""Prediction intervals: how far to believe a prediction, by conformal prediction.

What cross-validation saw of the errors of predictions of one kind (another size of a measured curve, another number of
ranks between those measured or beyond them, another collective) bounds the error of the next: the measured time is
inside the interval with the wanted probability if it is as hard to predict as those. Each side has a quantile of its
own, by size of the message, as short messages scatter more. Other clusters have no say here: by how much such intervals
were too narrow or too wide on these is `simnet.evidence.chances.corrected`, which takes the intervals from here.

References
----------
V. Vovk, A. Gammerman, G. Shafer, "Algorithmic Learning in a Random World", Springer 2005. J. Lei, M. G'Sell, A.
Rinaldo, R. J. Tibshirani, L. Wasserman, "Distribution-free predictive inference for regression", J. Amer. Stat. Assoc.
113, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from simnet.base.arrays import Floats
from simnet.calibration.crossval import HeldOut
from simnet.calibration.predictor import Basis

BINS = (0.0, 64 * 2.0**10, 2.0**20, 64 * 2.0**20)
"""Where bins of sizes begin [byte]: below 64 KiB, to 1 MiB, to 64 MiB, above."""

BIN_NAMES = ("< 64 KiB", "64 KiB-1 MiB", "1-64 MiB", "> 64 MiB")
"""What the bins are called."""

FEWEST = 20
"""Held-out predictions below which a bin takes all of them."""

UNKNOWN = math.log(3.0)
"""Half-width, as a logarithm, where no held-out prediction tells: a factor of 3."""

TYPICAL: MappingProxyType[Basis, tuple[float, ...]] = MappingProxyType(
    {
        "ranks": (0.35, 0.9, 0.8, 0.5),
        "beyond": (0.85, 1.3, 1.1, 0.8),
        "collectives": (1.1, 1.0, 0.8, 0.9),
    }
)
"""Half-widths by bin that hold 90 % of other ranks on two systems of three, of other collectives on three of four.

Quantiles over the public measurements of ``docs/validation.md`` that have several numbers of ranks, or several
collectives, of which fewer can be held out: Alps, Polaris, Sirius, MareNostrum 5, Leonardo, Snellius, H100 clusters and
others.
"""

GROUPS = 2.0
"""Numbers of ranks, or collectives, that typical widths count as beside those held out on the system itself."""


def bin_of(sizes: Floats) -> np.ndarray:
    """Return the bin of each size [byte].

    Examples
    --------
    >>> bin_of(np.array([8.0, 65536.0, 1e6, 1e9])).tolist()
    [0, 1, 1, 3]
    """
    return np.asarray(np.searchsorted(BINS, sizes, side="right") - 1)


def half_widths(held: Sequence[HeldOut], coverage: float) -> list[tuple[float, float]]:
    """Return the half-widths of each bin: how far a measured time may be below and above its prediction, as logarithms.

    Parameters
    ----------
    held : sequence of HeldOut
        What cross-validation saw.
    coverage : float
        Share of measurements that an interval shall hold, in (0, 1).

    Returns
    -------
    list of (float, float)
        Below and above, each >= 0; beyond the ranks that were measured, to be multiplied by `Predictor.widening`.
    """
    if not held:
        return [(UNKNOWN, UNKNOWN)] * len(BINS)
    sizes = np.concatenate([one.sizes for one in held])
    log_errors = -np.concatenate([one.log_errors / one.widening for one in held])
    found = []
    for number in range(len(BINS)):
        inside = log_errors[bin_of(sizes) == number]
        found.append(conformal(inside if len(inside) >= FEWEST else log_errors, coverage))
    return found


def widest(held: Sequence[HeldOut], coverage: float) -> list[tuple[float, float]]:
    """Return for each bin the widest of the half-widths of single collectives.

    Errors of one collective are alike, so those of all together say little of the next: it may be the worst one.
    """
    groups = [
        [one for one in held if one.setting.collective == name] for name in {one.setting.collective for one in held}
    ]
    each = np.array([half_widths(group, coverage) for group in groups] or [half_widths([], coverage)])
    return [(float(below), float(above)) for below, above in each.max(axis=0)]


def intervals(held: Mapping[Basis, Sequence[HeldOut]], coverage: float) -> dict[Basis, list[tuple[float, float]]]:
    """Return half-widths by basis: for other collectives the `widest`, else those of all together.

    Errors on one number of ranks, or of one collective, are alike, however many sizes there are: what can be held out
    on one system is few. So widths for these are drawn to those that are `TYPICAL` of other systems, the more so the
    fewer numbers of ranks or collectives were held out.

    Examples
    --------
    >>> found = intervals({"sizes": [], "ranks": [], "collectives": []}, 0.9)
    >>> found["sizes"][0] == (UNKNOWN, UNKNOWN), round(found["ranks"][0][0], 3)
    (True, 0.35)
    """
    found = {}
    for basis, one in held.items():
        own = (widest if basis == "collectives" else half_widths)(one, coverage)
        if basis in TYPICAL:
            groups = {each.setting.collective if basis == "collectives" else each.setting.ranks for each in one}
            share = len(groups) / (len(groups) + GROUPS)
            wide = math.log(1 - coverage) / math.log(0.1)
            own = [
                (share * below + (1 - share) * usual * wide, share * above + (1 - share) * usual * wide)
                for (below, above), usual in zip(own, TYPICAL[basis], strict=True)
            ]
        found[basis] = own
    return found


def conformal(log_errors: Floats, coverage: float) -> tuple[float, float]:
    """Return how far a measured time may be below and above its prediction, as logarithms >= 0: conformal quantiles.

    Of n errors that is the one with number (n + 1) q, rounded up, on either side. Of too few errors for that, the
    largest of each side is stretched as if errors had an exponential tail, of which the largest of n is about
    log(n + 1) times the mean.

    Parameters
    ----------
    log_errors : ndarray of float, shape (n,)
        Logarithms of measured over predicted times of what was held out.
    coverage : float
        Share of measurements that an interval shall hold, in (0, 1).

    Examples
    --------
    >>> [round(one, 2) for one in conformal(np.linspace(-1, 3, 401), 0.9)]
    [0.81, 2.81]
    """
    count = len(log_errors)
    if count < 3:
        return UNKNOWN, UNKNOWN
    outside = (1 - coverage) / 2
    stretched = max(-math.log(outside) / math.log(count + 1), 1.0)
    place = min(math.ceil((count + 1) * (1 - outside)), count) - 1
    return max(float(np.sort(-log_errors)[place]) * stretched, 0.0), max(
        float(np.sort(log_errors)[place]) * stretched, 0.0
    )
