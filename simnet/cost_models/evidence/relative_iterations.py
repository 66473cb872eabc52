"""Iterations of schemes over those of dense training to equal accuracy, measured on three small models.

``data/iterations_to_accuracy.csv`` has runs of a perceptron, a convolutional network and a transformer, each with and
without momentum: six settings. The ratio of a run is its iterations over those of dense with the same seed. A run that
did not reach the target counts as the largest ratio that was reached or as its whole length, whichever is more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, stdev
from typing import NamedTuple, TypeAlias

import numpy as np

from simnet.base.file_io import read_shipped_rows
from simnet.base.student_t import student_quantile
from simnet.cost_models.evidence.conditions import Level

Setting: TypeAlias = tuple[str, float]
"""A model and a momentum."""

Ratio: TypeAlias = tuple[float, bool]
"""Iterations of a run over those of dense, and whether it reached the target."""

WITHOUT_DENSITY = 0.0
"""Density of schemes that have none."""

_ROUNDING = 1e-9


class RelativeIterations(NamedTuple):
    """Ratio of a scheme's iterations to those of dense training at equal accuracy, with its 90 % interval.

    The interval is for a further small model. If runs missed the target, `high` is inf and the estimate a lower bound.
    """

    estimate: float
    low: float
    high: float
    level: Level = "extrapolated"

    def __str__(self) -> str:
        """Return the relative number of iterations and its interval as text.

        Examples
        --------
        >>> print(RelativeIterations(1.1, 1.0, 1.52), "|", RelativeIterations(2.6, 1.2, math.inf))
        1.1x (1.0-1.5) the iterations of dense | 2.6x or more the iterations of dense
        """
        ends = "or more" if math.isinf(self.high) else f"({self.low:.1f}-{self.high:.1f})"
        return f"{self.estimate:.1f}x {ends} the iterations of dense"


def accuracy_text(known: Mapping[str, object]) -> str:
    """Return text on how many iterations each scheme needs to reach the accuracy of dense training; empty if unknown.

    Examples
    --------
    >>> print(accuracy_text({"AG": RelativeIterations(1.1, 1.0, 1.52)}))
    to the same: AG 1.1x (1.0-1.5) the iterations of dense; extrapolated from small models.
    """
    said = ", ".join(f"{name} {one}" for name, one in known.items())
    return f"to the same: {said}; extrapolated from small models." if known else ""


def relative_iterations(
    scheme: str, density: float, momentum: float | None = None, without: str = ""
) -> RelativeIterations | None:
    """Return a scheme's iterations divided by those of dense training to the same accuracy; None if unknown.

    The estimate is the geometric mean over settings of the geometric means over seeds. The 90 % interval is one for a
    further setting: Student's t with the spread over settings. Between measured densities logarithms are interpolated
    in the logarithm of the density; outside them nothing is known.

    Parameters
    ----------
    scheme : str
        The scheme, and options that change its values, as ``artopk:selection=var``.
    density : float
        Fraction of the entries kept, in (0, 1]; without effect on schemes that send all.
    momentum : float, optional
        If 0 or 0.9, only runs with that momentum count; otherwise all.
    without : str
        Name of a model whose runs are left out.
    """
    measured = measured_ratios().get(scheme, {})
    points = {at: one for at in sorted(measured) if (one := _point(measured[at], momentum, without))}
    if WITHOUT_DENSITY in points:
        ends: Sequence[float] = points[WITHOUT_DENSITY]
    elif points and min(points) * (1 - _ROUNDING) <= density <= max(points) * (1 + _ROUNDING):
        columns = zip(*points.values(), strict=True)
        ends = [float(np.interp(math.log(density), np.log([*points]), column)) for column in columns]
    else:
        return None
    estimate, low, high = map(math.exp, ends)
    return RelativeIterations(estimate, low, high)


def mean_logarithms(settings: Mapping[Setting, Sequence[Ratio]]) -> list[float]:
    """Return, for each setting, the mean logarithm of its runs' iterations relative to dense training."""
    most = max((value for runs in settings.values() for value, reached in runs if reached), default=1.0)
    return [fmean(math.log(value if reached else max(value, most)) for value, reached in s) for s in settings.values()]


@cache
def measured_ratios() -> dict[str, dict[float, dict[Setting, list[Ratio]]]]:
    """Return measured iterations relative to dense training, by scheme, density, and setting (model and momentum)."""
    found: dict[str, dict[float, dict[Setting, list[Ratio]]]] = {}
    dense: dict[tuple[str, str, str], int] = {}
    for row in read_shipped_rows("data/iterations_to_accuracy.csv"):
        run, count = (row["model"], row["momentum"], row["seed"]), int(row["iterations"])
        # Dense comes first.
        ratio = count / dense.setdefault(run, count), row["reached"] == "True"
        by_density = found.setdefault(row["scheme"], {}).setdefault(float(row["density"] or WITHOUT_DENSITY), {})
        by_density.setdefault((row["model"], float(row["momentum"])), []).append(ratio)
    return found


def _point(
    settings: Mapping[Setting, Sequence[Ratio]], momentum: float | None, without: str
) -> tuple[float, float, float] | None:
    """Return the logarithms of the mean ratio over settings and of its interval's ends; None for under two settings."""
    others = {setting: runs for setting, runs in settings.items() if setting[0] != without}
    chosen = {setting: runs for setting, runs in others.items() if setting[1] == momentum} or others
    if len(chosen) < 2:
        return None
    means = mean_logarithms(chosen)
    half = student_quantile(len(means) - 1, 0.95) * stdev(means) * math.sqrt(1 + 1 / len(means))
    censored = any(not reached for runs in chosen.values() for _, reached in runs)
    return fmean(means), fmean(means) - half, math.inf if censored else fmean(means) + half
