"""Models of a single curve, from plain to rich.

=============== ==================================================================================================
line            latency plus size over bandwidth (Hockney's alpha-beta), one slope for all sizes
three_segments  three straight segments in log-log, joined where they fit best
five_anchors    straight lines in log-log between five of the measured sizes
piecewise       alpha-beta by stretches of sizes, with breakpoints found; libraries change protocol there
interpolated    the line, corrected at every measured size, with a monotone cubic between them
=============== ==================================================================================================

All are fitted to relative errors: to the logarithm of the time where that is possible. `line`, `three_segments` and
`five_anchors` are what others do; they stand beside the rest for comparison.

References
----------
R. W. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20, 1994.
F. N. Fritsch, R. E. Carlson, "Monotone piecewise cubic interpolation", SIAM J. Numer. Anal. 17, 1980.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator
from scipy.optimize import least_squares

from validate.calibration.curves import Floats

MAX_SEGMENTS = 6
"""The most stretches of a piecewise alpha-beta model."""

_MAX_HINGES = 40
_NOISE = 1e-5
_STEEPEST = 2.0


@dataclass(frozen=True)
class Shape:
    """Time as a function of size, in numbers that a file can hold.

    Parameters
    ----------
    segments : tuple of (float, float, float)
        From which size [byte], latency [s], seconds per byte; ascending, the first from 0.
    points : tuple of (float, float)
        Size [byte] and time [s], ascending; straight lines in log-log between them and beyond. In place of segments.
    corrections : tuple of (float, float)
        Size [byte], and the logarithm of the measured time over that of the segments or points, ascending. A monotone
        cubic over the logarithm of the size between them, constant beyond.

    Examples
    --------
    >>> Shape(segments=((0.0, 1e-3, 1e-9),)).at([0.0, 1e6])
    array([0.001, 0.002])
    """

    segments: tuple[tuple[float, float, float], ...] = ()
    points: tuple[tuple[float, float], ...] = ()
    corrections: tuple[tuple[float, float], ...] = ()

    def at(self, sizes: ArrayLike) -> Floats:
        """Return times [s] of sizes [byte]."""
        asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
        if self.segments:
            starts, latency, slope = np.array(self.segments).T
            place = np.clip(np.searchsorted(starts, asked, side="right") - 1, 0, None)
            seconds = latency[place] + slope[place] * asked
        else:
            seconds = _joined(np.array(self.points), asked)
        if not self.corrections:
            return np.asarray(seconds, dtype=np.float64)
        return np.asarray(seconds * np.exp(corrected(self.corrections, asked)), dtype=np.float64)


def corrected(corrections: tuple[tuple[float, float], ...], sizes: Floats) -> Floats:
    """Return the logarithm of the correction at sizes [byte], held constant beyond the first and last of them.

    Examples
    --------
    >>> corrected(((10.0, 0.1), (1000.0, 0.3)), np.array([1.0, 100.0, 1e6])).round(3).tolist()
    [0.1, 0.2, 0.3]
    """
    known, values = np.array(corrections).T
    if len(known) == 1:
        return np.full(len(sizes), values[0])
    logs = np.log(known)
    asked = np.clip(np.log(np.maximum(sizes, known[0])), logs[0], logs[-1])
    return np.asarray(PchipInterpolator(logs, values)(asked), dtype=np.float64)


def line(sizes: Floats, seconds: Floats) -> Shape:
    """Fit latency plus size over bandwidth to relative errors, with little weight on outliers.

    Examples
    --------
    >>> sizes = np.array([1e3, 1e4, 1e5, 1e6])
    >>> fitted = line(sizes, 1e-3 + 1e-9 * sizes).segments[0]
    >>> bool(np.allclose(fitted, (0.0, 1e-3, 1e-9), rtol=1e-3))
    True
    """
    if len(sizes) == 1:
        return Shape(segments=((0.0, 0.0, float(seconds[0] / sizes[0])),))
    start = np.log([seconds.min(), seconds[-1] / sizes[-1]])

    def off(logs: Floats) -> Floats:
        return np.asarray(np.log((np.exp(logs[0]) + np.exp(logs[1]) * sizes) / seconds))

    found = least_squares(off, start, loss="soft_l1", f_scale=0.1, bounds=(start - 20, start + 20)).x
    return Shape(segments=((0.0, float(np.exp(found[0])), float(np.exp(found[1]))),))


def three_segments(sizes: Floats, seconds: Floats) -> Shape:
    """Fit three segments, straight in log-log and joined, by least squares over all pairs of joints.

    Examples
    --------
    >>> sizes = 2.0 ** np.arange(10, 20)
    >>> fitted = three_segments(sizes, np.maximum(1e-5, 1e-9 * sizes))
    >>> len(fitted.points)
    4
    """
    count = len(sizes)
    if count < 5:
        return five_anchors(sizes, seconds)
    x, y = np.log(sizes), np.log(seconds)
    inner = np.unique(np.linspace(1, count - 2, min(count - 2, _MAX_HINGES)).round().astype(int))
    pairs = np.array(list(itertools.combinations(inner, 2)))
    joints = np.column_stack([np.full(len(pairs), x[0]), x[pairs], np.full(len(pairs), x[-1])])
    # Hats of height 1 at each joint, which fall to 0 at its neighbours.
    share = np.clip((x[None, :, None] - joints[:, None, :-1]) / np.diff(joints)[:, None, :], 0, 1)
    rising = np.concatenate([np.ones((*share.shape[:2], 1)), share], axis=2)
    basis = rising - np.concatenate([share, np.zeros((*share.shape[:2], 1))], axis=2)
    values = (np.linalg.pinv(basis) @ y[:, None])[..., 0]
    best = int(np.argmin((((basis @ values[..., None])[..., 0] - y) ** 2).sum(axis=1)))
    return Shape(points=tuple(zip(np.exp(joints[best]).tolist(), np.exp(values[best]).tolist(), strict=True)))


def five_anchors(sizes: Floats, seconds: Floats) -> Shape:
    """Interpolate between five of the measured sizes, evenly spread, the first and last among them.

    Examples
    --------
    >>> five_anchors(np.arange(1.0, 10.0), np.ones(9)).points
    ((1.0, 1.0), (3.0, 1.0), (5.0, 1.0), (7.0, 1.0), (9.0, 1.0))
    """
    chosen = np.unique(np.linspace(0, len(sizes) - 1, 5).round().astype(int))
    return Shape(points=tuple(zip(sizes[chosen].tolist(), seconds[chosen].tolist(), strict=True)))


def piecewise(sizes: Floats, seconds: Floats) -> Shape:
    """Fit alpha-beta by stretches of sizes; where they begin, and how many there are, is found.

    For every number of stretches the best breakpoints are found by dynamic programming over the measured sizes; the
    number itself by Bayes' information criterion. A stretch begins halfway, in the logarithm, between two sizes.

    References
    ----------
    R. Bellman, R. Roth, "Curve fitting by segmented straight lines", J. Amer. Stat. Assoc. 64, 1969.

    Examples
    --------
    >>> sizes = 2.0 ** np.arange(10, 20)
    >>> jump = np.where(sizes < 2**15, 1e-5 + 1e-9 * sizes, 5e-5 + 1e-10 * sizes)
    >>> [round(start) for start, *_ in piecewise(sizes, jump).segments]
    [0, 23170]
    """
    count = len(sizes)
    if count < 6:
        return line(sizes, seconds)
    stretches = {
        (first, end): _stretch(sizes[first:end], seconds[first:end])
        for first in range(count)
        for end in range(first + 2, count + 1)
    }
    costs: list[dict[int, tuple[float, tuple[int, ...]]]] = [{0: (0.0, ())}]
    for _ in range(MAX_SEGMENTS):
        reached = {}
        for end in range(2, count + 1):
            ways = [
                (cost + stretches[first, end][0], (*starts, first))
                for first, (cost, starts) in costs[-1].items()
                if (first, end) in stretches
            ]
            if ways:
                reached[end] = min(ways)
        costs.append(reached)
    numbers = [number for number in range(1, MAX_SEGMENTS + 1) if count in costs[number]]

    def criterion(number: int) -> float:
        return count * math.log(max(costs[number][count][0] / count, _NOISE)) + 3 * number * math.log(count)

    starts = costs[min(numbers, key=criterion)][count][1]
    ends = (*starts[1:], count)
    begins = [0.0] + [math.sqrt(sizes[start - 1] * sizes[start]) for start in starts[1:]]
    fitted = (stretches[first, end] for first, end in zip(starts, ends, strict=True))
    return Shape(segments=tuple((at, latency, slope) for at, (_, latency, slope) in zip(begins, fitted, strict=True)))


def interpolated(sizes: Floats, seconds: Floats) -> Shape:
    """Return the line, corrected so that it goes through every measured point.

    Examples
    --------
    >>> sizes, seconds = np.array([1e3, 1e5, 1e6]), np.array([1e-5, 3e-5, 9e-5])
    >>> bool(np.allclose(interpolated(sizes, seconds).at(sizes), seconds))
    True
    """
    base = line(sizes, seconds)
    logs = np.log(seconds / base.at(sizes))
    return Shape(base.segments, corrections=tuple(zip(sizes.tolist(), logs.tolist(), strict=True)))


FITS: MappingProxyType[str, Callable[[Floats, Floats], Shape]] = MappingProxyType(
    {
        "line": line,
        "three_segments": three_segments,
        "five_anchors": five_anchors,
        "piecewise": piecewise,
        "interpolated": interpolated,
    }
)
"""How each model is fitted to sizes [byte] and times [s], both ascending in size."""

OURS = ("line", "three_segments", "piecewise", "interpolated")
"""Models from which cross-validation chooses."""


def _stretch(sizes: Floats, seconds: Floats) -> tuple[float, float, float]:
    """Return the sum of squared relative errors of the best alpha-beta line, its latency and slope, both >= 0."""
    weight = 1 / seconds
    ones, slopes = weight, weight * sizes
    a, b, c = float(ones @ ones), float(ones @ slopes), float(slopes @ slopes)
    d, e = float(ones.sum()), float(slopes.sum())
    ways = [(d / a, 0.0), (0.0, e / c)]
    determinant = a * c - b * b
    if determinant > 1e-12 * a * c:
        both = ((c * d - b * e) / determinant, (a * e - b * d) / determinant)
        if min(both) >= 0:
            ways = [both]
    errors = [(float(((one * ones + two * slopes - 1) ** 2).sum()), one, two) for one, two in ways]
    return min(errors)


def _joined(points: Floats, asked: Floats) -> Floats:
    """Interpolate in log-log; the first and last straight line go on beyond the points, but time never falls there."""
    x, y = np.log(points).T
    if len(x) == 1:
        return np.full(len(asked), float(points[0, 1]))
    at = np.log(np.maximum(asked, 1e-9))
    place = np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2)
    slope = np.diff(y) / np.diff(x)
    ends = np.clip(slope[[0, -1]], 0.0, _STEEPEST)
    inside = y[place] + slope[place] * (np.clip(at, x[0], x[-1]) - x[place])
    beyond = ends[0] * np.minimum(at - x[0], 0.0) + ends[1] * np.maximum(at - x[-1], 0.0)
    return np.asarray(np.exp(inside + beyond), dtype=np.float64)
