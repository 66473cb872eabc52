"""Pareto fronts of points that are better the less they are, and which point of a front to take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats

# A front whose points are closer to the chord than this, in parts of its extent, is straight but for rounding.
_STRAIGHT = 1e-9


def pareto_front(points: ArrayLike) -> NDArray[np.intp]:
    """Return the rows of points, shape (D, m), that no other point beats; less is better.

    A point beats another if it is as good in every objective and better in one.

    Examples
    --------
    >>> pareto_front([[1, 4], [2, 2], [3, 3], [4, 1]])
    array([0, 1, 3])
    """
    given = np.asarray(points, dtype=np.float64)
    if given.shape[1] == 2:
        # Sorted by the first objective, the least of the second so far tells at once.
        level = np.unique(given[:, 0], return_inverse=True)[1].reshape(-1)
        least = np.full(len(given), np.inf)
        np.minimum.at(least, level, given[:, 1])
        before = np.append(np.inf, np.minimum.accumulate(least)[:-1])
        return np.flatnonzero((before[level] > given[:, 1]) & (least[level] >= given[:, 1]))
    beaten = [bool(((given <= one).all(axis=1) & (given < one).any(axis=1)).any()) for one in given]
    return np.flatnonzero(~np.array(beaten, dtype=bool))


def normalise_points(points: ArrayLike, units: Sequence[int]) -> Floats:
    """Return points, shape (D, m), scaled to start at 0 in each objective.

    Objectives with equal numbers in `units` are divided by the largest extent among them, so that a time that hardly
    varies counts little next to one that does. Constant objectives are 0.

    Examples
    --------
    >>> normalise_points([[5.0, 0.0, 3.0], [9.0, 0.1, 2.0], [7.0, 0.1, 1.0]], units=[0, 1, 1])
    array([[0.  , 0.  , 1.  ],
           [1.  , 0.05, 0.5 ],
           [0.5 , 0.05, 0.  ]])
    """
    given = np.asarray(points, dtype=np.float64)
    extent = np.ptp(given, axis=0)
    shared = np.array([max(extent[np.equal(units, unit)]) for unit in units])
    scaled: Floats = np.divide(given - given.min(axis=0), shared, out=np.zeros_like(given), where=shared > 0)
    return scaled


def knee_point(front: ArrayLike) -> int:
    """Return the knee of a normalised front, shape (F, m): the point farthest from the chord, on its better side.

    The chord joins the best point of the first objective and that with the smallest sum of the others; ties go to the
    best in the sum or the first objective, and then in one objective after the other. Without a point on that side it
    is the point of `weighted_point` with equal weights.

    Examples
    --------
    >>> knee_point([[0, 1], [0.1, 0.2], [0.5, 0.1], [1, 0]]), knee_point([[0, 1], [0.5, 0.5], [1, 0]])
    (1, 1)
    """
    given = np.asarray(front, dtype=np.float64)
    rest = given[:, 1:].sum(axis=1)
    # The last key is the first to sort by.
    order = [*given.T[::-1]]
    first, last = given[np.lexsort((*order, rest, given[:, 0]))[0]], given[np.lexsort((*order, rest))[0]]
    chord = last - first
    length = float(chord @ chord)
    along = (given - first) @ chord / length if length else np.zeros(len(given))
    off = given - first - np.outer(along, chord)
    distance = np.where(off.sum(axis=1) < 0, np.sqrt(np.square(off).sum(axis=1)), 0.0)
    if distance.max() > _STRAIGHT:
        return _first_least(-distance)
    return weighted_point(given, np.ones(given.shape[1]))


def weighted_point(front: ArrayLike, weights: ArrayLike) -> int:
    """Return the point of a normalised front, shape (F, m), with the least largest weighted loss.

    Of several it is the one with the least sum. Unlike the least weighted sum, this chooses any point for some weights.

    Examples
    --------
    >>> front = [[0, 1], [0.4, 0.3], [1, 0]]
    >>> weighted_point(front, [1, 1]), weighted_point(front, [9, 1]), weighted_point(front, [1, 9])
    (1, 0, 2)
    """
    losses = np.asarray(front, dtype=np.float64) * np.asarray(weights, dtype=np.float64)
    largest, total = losses.max(axis=1), losses.sum(axis=1)
    return _first_least(np.where(largest <= largest.min() + _STRAIGHT * max(1.0, largest.max()), total, math.inf))


def _first_least(values: Floats) -> int:
    """Return where the first value stands that is the least but for rounding."""
    least = float(values.min())
    return int(np.argmax(values <= least + _STRAIGHT * max(1.0, abs(least))))
