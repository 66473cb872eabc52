"""Statistics of recorded steps, to which magnitudes and ranking of synthetic entries are fitted.

The moments of `simnet.traces.fitting` describe tails like those of a lognormal mixture. For gradients with other tails,
two properties matter to top-k: how large a worker's entries are (tables of quantiles for each layer), and at which
workers they are large (shares of kinds, as in `simnet.traces.ordering`).

Workers differ, and top-k ranks within one worker. So a magnitude is replaced by the root mean square, over workers, of
the magnitudes with the same rank, each divided by the size of the worker's gradient. Then the gain of top-k is about
the workers' mean, one threshold selects as many entries at every worker, and the layers keep their shares. In the
tables of quantiles the few largest stay each worker's own, as a mean would hide the tail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Values
from simnet.traces import ordering
from simnet.traces.ordering import LargestCounts, LayerOrder

BEYOND: Floats = np.concatenate([np.linspace(1.0, 0.1, 37), np.geomspace(0.1, 1e-6, 31)[1:]])
"""Shares of larger entries for which magnitudes are tabulated: the smallest entry first."""

# So many largest magnitudes of a worker are left as they are, but no larger share.
_OWN, _OWN_SHARE = 30, 1 / 300

BANDS = (0.3, 0.6, 0.9, 0.98)
"""Shares of the smaller entries of a layer, between which signs are looked at apart."""

# Smaller layers do not tell whether large entries are against small ones, as the largest tenth of them is fewer than
# five entries of a worker. Nor do those whose small ones are this little alike. In the traces of gradients that come
# with simnet it is 0.90 to 0.94 in output layers, and at most 0.14 in any other, in the mean over the recorded steps.
_TELLING, _ALIKE = 50, 0.25

# Densities of the whole gradient at which thresholds, and overlaps over time, are looked at.
_DENSITIES = (0.001, 0.01, 0.1)


# Bins of what decides the kind of an entry, fine where the largest are, and correlations between two points.
_BINS = np.concatenate([np.linspace(0.0, 0.9, 28), 1 - np.geomspace(0.1, 1e-6, 36)[1:], [1.0]])
_CORRELATIONS = np.concatenate([np.linspace(0.0, 0.9, 10), [0.95, 0.98, 1.0]])


class StepStatistics(NamedTuple):
    """Statistics of a step's gradients: size by worker, sign agreement, magnitude quantiles, largest entries."""

    # Shape (P,): Mean magnitude of each worker, ascending, over that of all.
    sizes: Floats
    # Shape (L, 2, len(BANDS) + 1): Results of `sign_products_in_bands` of the L layers.
    signs: Floats
    # Shape (L,): Results of `large_entry_sign`.
    against: Floats
    # Shape (L, Q): Quantiles of the magnitude, ascending, at a worker of mean size, at `BEYOND`.
    magnitudes: Floats
    # Of each layer.
    counts: tuple[LargestCounts, ...]
    # Shape (L, D): Share of a layer's entries that top-k of the whole gradient selects, at D densities.
    local: Floats
    # Shape (P, n): The selection at each density, packed along the entries.
    largest: tuple[NDArray[np.uint8], ...]


def step_statistics(gradients: Values, sizes: Sequence[int]) -> StepStatistics:
    """Return the statistics of a recorded step, given gradients of shape (P, n) and the sizes of layers."""
    P, n = gradients.shape
    ends = np.cumsum(sizes)[:-1]
    signs = np.array([sign_products_in_bands(part) for part in np.split(gradients, ends, axis=1)])
    magnitudes = np.abs(gradients)
    means = np.maximum(magnitudes.mean(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    against = np.array([large_entry_sign(part) for part in np.split(gradients / means, ends, axis=1)])
    # Not the root mean square, which a few entries of a heavy tail decide.
    large = np.sort(magnitudes.mean(axis=1, dtype=np.float64))
    large = np.maximum(large, large[large > 0].min()) / large.mean() if large.any() else np.ones(P)
    order = np.argsort(-magnitudes, axis=1, kind="stable")
    top = order[:, : max(1, min(_OWN, round(_OWN_SHARE * n)))]
    # Squares without the few largest, as where tails are heavy those are most of the sum.
    squares = np.square(magnitudes, dtype=np.float64).sum(axis=1)
    rest = squares - np.square(np.take_along_axis(magnitudes, top, axis=1), dtype=np.float64).sum(axis=1)
    norms = np.sqrt(np.where(rest > 1e-6 * squares, rest, squares) / n)
    unit = np.where(norms > 0, norms, 1.0)
    shape, thresholds = np.zeros(n), np.zeros(len(_DENSITIES))
    ranks = [max(1, round(density * n)) - 1 for density in _DENSITIES]
    for worker, places in enumerate(order):
        in_order = magnitudes[worker, places].astype(np.float64)
        shape += np.square(in_order / unit[worker]) / P
        thresholds += in_order[ranks] / P
    shape = np.sqrt(shape)
    found = thresholds > 0
    # The mean threshold over workers is about that of the trace, whatever they are like each.
    factor = float(np.exp(np.median(np.log(thresholds[found] / shape[ranks][found])))) if found.any() else 1.0
    shape *= factor
    zero = magnitudes == 0
    largest = []
    for rank in ranks:
        chosen = np.zeros((P, n), dtype=np.bool_)
        np.put_along_axis(chosen, order[:, : rank + 1], True, axis=1)
        largest.append(chosen & ~zero)
    own = np.take_along_axis(magnitudes, top, axis=1) * (factor / unit)[:, None]
    for worker, places in enumerate(order):
        magnitudes[worker, places] = shape
    magnitudes[zero] = 0
    parts = np.split(magnitudes, ends, axis=1)
    counts = tuple(ordering.count_largest(part) for part in parts)
    np.put_along_axis(magnitudes, top, np.maximum(own, shape[top.shape[1] - 1]).astype(np.float32), axis=1)
    magnitudes[zero] = 0
    return StepStatistics(
        large,
        signs,
        against,
        np.array([_magnitude_quantiles(part) for part in parts]),
        counts,
        np.array([[part.mean() for part in np.split(chosen, ends, axis=1)] for chosen in largest]).T,
        tuple(np.packbits(chosen, axis=1) for chosen in largest),
    )


def layer_order(points: Sequence[StepStatistics], layer: int, clock: Floats) -> LayerOrder:
    """Fit how a layer's entries rank by magnitude to the recorded steps `points`; `clock` is log(1 + iteration)."""
    signs = np.array([point.signs[layer] for point in points])
    alike = (signs[:, 0] * signs[:, 1]).sum(axis=1) / np.maximum(signs[:, 1].sum(axis=1), 1.0)
    most = np.sin(math.pi / 2 * np.maximum(alike, 0.0))
    against = np.mean([point.against[layer] for point in points])
    # Any class is met sometime: in an output layer even the entries that are the smallest as a rule are large then.
    return ordering.fit_order([point.counts[layer] for point in points], most, clock, 0.0 if against < 0 else -math.inf)


class OverlapOverTime(NamedTuple):
    """Overlap of a worker's top-k selections at two steps: recorded, and predicted for correlated entry scales."""

    # Shape (R,): From 0 to 1.
    correlation: Floats
    # Shape (R, D, T, T): Common entries over the mean number of entries, at D densities.
    predicted: Floats
    # Shape (D, T, T): The same of the trace.
    recorded: Floats


def overlap_over_time(
    points: Sequence[StepStatistics], layers: Sequence[LayerOrder], sizes: Sequence[int]
) -> OverlapOverTime:
    """Return the recorded and the predicted overlaps of workers' selections at all pairs of steps."""
    from scipy.special import ndtri

    T, D = len(points), len(_DENSITIES)
    recorded = np.full((D, T, T), np.nan)
    for density in range(D):
        sets = [point.largest[density] for point in points]
        totals = [int(np.bitwise_count(one).sum(dtype=np.int64)) for one in sets]
        for first in range(T):
            for second in range(first + 1, T):
                common = int(np.bitwise_count(sets[first] & sets[second]).sum(dtype=np.int64))
                recorded[density, first, second] = common / max((totals[first] + totals[second]) / 2, 1)
    z = ndtri((_BINS[1:] + _BINS[:-1]) / 2)
    widths = np.diff(_BINS)
    kernels = [_joint_shares(z, widths, r) for r in _CORRELATIONS]
    predicted = np.zeros((len(kernels), D, T, T))
    selected = np.zeros((D, T))
    values = np.exp(np.linspace(-30.0, 30.0, 1500))
    for layer, size in enumerate(sizes):
        q = np.zeros((D, T, len(z)))
        for place, (point, share) in enumerate(zip(points, layers[layer].shares, strict=True)):
            kinds = layers[layer].kinds._replace(share=share)
            above = np.maximum(ordering.overall_share_beyond(kinds, values), 1e-300)
            at = np.exp(np.interp(-np.log(np.maximum(point.local[layer], 1e-300)), -np.log(above), np.log(values)))
            # The mean over the kinds that the entries of each bin have.
            edges = np.concatenate([[0.0], np.cumsum(kinds.share)])
            sums = np.concatenate(
                [np.zeros((1, D)), np.cumsum(kinds.share[:, None] * ordering.share_beyond(kinds, at), axis=0)]
            )
            for density in np.flatnonzero(point.local[layer] > 0).tolist():
                q[density, place] = np.diff(np.interp(_BINS, edges, sums[:, density])) / widths
        selected += size * (q @ widths)
        for which, kernel in enumerate(kernels):
            predicted[which] += size * (q @ kernel @ q.transpose(0, 2, 1))
    predicted /= np.maximum((selected[:, :, None] + selected[:, None, :]) / 2, 1e-12)
    return OverlapOverTime(_CORRELATIONS, predicted, recorded)


def _joint_shares(z: Floats, widths: Floats, correlation: float) -> Floats:
    """Return the joint distribution of two correlated normals in bins of midpoints `z` and probabilities `widths`."""
    if correlation > 0.999:
        return np.diag(widths)
    squares = correlation**2 * (z[:, None] ** 2 + z**2) - 2 * correlation * z[:, None] * z
    shares = np.exp(-squares / (2 * (1 - correlation**2))) * widths[:, None] * widths
    for _ in range(30):
        shares *= (widths / shares.sum(axis=1))[:, None]
        shares = (shares + shares.T) / 2
    return np.asarray(shares)


def _magnitude_quantiles(magnitudes: Values) -> Floats:
    """Return the quantiles of the magnitudes of all workers taken together."""
    return np.maximum.accumulate(np.quantile(magnitudes.ravel(), 1 - BEYOND).astype(np.float64))


def large_entry_sign(gradients: Values) -> float:
    """Return the correlation of the signs of large entries with the signs of small entries at other workers.

    The gradient of an output layer pushes every class that is not met slightly in one direction, and the class that is
    met far in the other. Gradients of one layer have shape (P, size), at workers of one size.
    """
    magnitudes = np.abs(gradients)
    if magnitudes.shape[1] < _TELLING:
        return 1.0
    small, large = np.quantile(magnitudes, [BANDS[1], BANDS[2]])
    signs = np.sign(gradients).astype(np.float64)
    here, there = magnitudes <= small, magnitudes > large
    pushes, pushed = (signs * here).sum(axis=0), (here & (signs != 0)).sum(axis=0)
    pairs = float((pushed * (pushed - 1)).sum())
    alike = float((pushes**2 - pushed).sum()) / max(pairs, 1.0)
    of_large = float((pushed * there.sum(axis=0)).sum())
    if alike < _ALIKE or not of_large:
        return 1.0
    opposed = float((pushes * (signs * there).sum(axis=0)).sum()) / of_large
    return float(np.clip(math.sin(math.pi / 2 * opposed) / math.sin(math.pi / 2 * alike), -1.0, 1.0))


def sign_products_in_bands(gradients: Values) -> Floats:
    """Return, for bands of entries by magnitude, the mean product of two workers' signs and the number of entries.

    Gradients of one layer have shape (P, size), the result (2, len(BANDS) + 1); products are zero in a band without
    entries.
    """
    P, size = gradients.shape
    order = np.argsort(np.abs(gradients).sum(axis=0, dtype=np.float64), kind="stable")
    ends = np.round(np.array([0.0, *BANDS, 1.0]) * size).astype(int)
    signs = np.sign(gradients[:, order])
    total, own = signs.sum(axis=0, dtype=np.float64), np.abs(signs).sum(axis=0, dtype=np.float64)
    products = np.concatenate([[0.0], np.cumsum(total**2 - own)])
    pairs = np.concatenate([[0.0], np.cumsum(own * (own - 1))])
    there = np.diff(pairs[ends])
    return np.array([np.diff(products[ends]) / np.where(there > 0, there, 1.0), there / (P * (P - 1))])
