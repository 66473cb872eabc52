"""A model of how a layer's entries rank by magnitude at each worker, independent of the magnitudes themselves.

The entries of a layer are of kinds, and a worker's entry of a kind is ranked by

v = scale * (|x| - shift),

with a standard normal x of each worker, of which workers share a part; where |x| is below the shift, v is small. The
scale is the size of the entries of a kind, the shift how much workers differ: entries with a positive shift are large
at a few workers and near zero at the others, as rows of an embedding whose words are rare; those with a negative one
are about equally large at all.

The entries beyond a threshold m, with q = P(v > m) of their kind, are the share E q of one worker's, E q^2 of two, and
E[1 - (1 - q)^P] of any of P. The number of workers that have an entry among their largest is binomial, and all such
statistics are linear in the shares of the kinds. So the shares are the non-negative ones whose statistics are nearest
to the counts, as in the nonparametric estimate of a mixing distribution (Laird, Journal of the American Statistical
Association 73, 1978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats

BEHIND = 1e-4
"""Slope of v in |x| below the shift, relative to that above."""

LARGEST_LOG = 60.0
"""Maximum absolute logarithm of a scale."""

SHARES: Floats = np.concatenate([np.geomspace(1e-4, 0.3, 13), [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]])
"""Shares of a layer's entries, at all workers together, at which it is counted who has them; ascending."""

# None of these is critical. On four drawn traces (tails heavy and heavier, regression, embedding) build-up is off by at
# most 3 %, and by at most 7 % with any one of them, or of those in `_fit_kind_shares`, halved or doubled, or a grid
# half as fine.

# Spreads of lognormal scales whose thresholds, at `SHARES`, are tried as the unit of v: from all entries alike to a
# tail over many decades.
_UNITS = (0.0, 0.4, 0.8, 1.2, 1.8, 2.6)
# From entries that differ by 1.5 % between workers to some that are large at one worker of two thousand.
_SHIFTS = (-40.0, -15.0, -6.0, -3.0, -1.5, -0.75, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
# Scales of each shift, evenly spaced in the logarithm from below the last threshold to above the first, and the shift
# from which on down there are twice as many, on a shorter stretch: a kind whose v hardly vary is a step.
_SCALES = 30
_NARROW = -2.0
# Correlations of workers that are tried, closer towards one, where workers become alike.
_SHARED = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93, 0.97, 0.99)
# A figure within this share of what was counted is as good as exact, so that those with the most entries do not decide
# alone.
_EXACT = 0.02
# What workers share is the largest that is nearly as good as the best, as signs bound it from above, and kinds can
# stand for what is not taken here. With 1.05 or 2 the same is found on drawn traces.
_AS_GOOD = 1.2
# Kinds are looked for at so many points together, and at all: fewer scatter, more hide what changes in training.
_PHASE = 4
# Shares at a point are those of so many points before and after, too: what scatters would not last.
_AROUND = 2
# Points of one phase, or near, do not differ by more than a factor of e in their step: training changes with the
# logarithm of the step, and the first steps are like no others.
_APART = 1.0
# Layers of fewer entries do not tell phases apart.
_TELLING = 100
# Smaller shares are those that the least squares leave of zero: not an entry of a layer of millions.
_LEAST = 1e-7
# Multiplicative updates, where the active set does not settle: they still descend then, but slowly.
_UPDATES = 3000


class EntryKinds(NamedTuple):
    """Classes (kinds) of a layer's entries, sorted by how often they are among a worker's largest magnitudes."""

    # Shape (K,): Share of the entries; they sum to one.
    share: Floats
    # Shape (K,): Of each kind.
    shift: Floats
    log_scale: Floats


def share_beyond(kinds: EntryKinds, values: Floats) -> Floats:
    """Return the modelled share of magnitudes above each of `values`: a row per kind of entries, a column per value."""
    from scipy.special import erfc

    return np.asarray(erfc(_magnitude_bounds(kinds.shift, kinds.log_scale, values) / math.sqrt(2)))


def overall_share_beyond(kinds: EntryKinds, values: Floats) -> Floats:
    """Return the fraction of all entries whose modelled magnitude exceeds each of `values`, shape (values,)."""
    return np.asarray(kinds.share @ share_beyond(kinds, values))


class LargestCounts(NamedTuple):
    """Statistics of how many workers have the same entry among the largest magnitudes of a layer."""

    # Its entries, and P.
    size: int
    workers: int
    # Shape (J,): Numbers of workers, from 1, ascending.
    levels: NDArray[np.int64]
    # Shape (J, len(SHARES): Share of the entries that at least so many workers have among the largest of all
    # workers together, over that share; NaN at shares that include zeros.
    figures: Floats


def counted_levels(workers: int) -> NDArray[np.int64]:
    """Return the worker counts for which `LargestCounts` has statistics: 1 to 8, and up to three larger counts."""
    wanted = np.concatenate([np.arange(1, 9), np.round(np.geomspace(8, max(workers, 8), 4))]).astype(np.int64)
    return np.unique(wanted[wanted <= workers])


def count_largest(magnitudes: NDArray[np.float32]) -> LargestCounts:
    """Count how many workers have each entry among a layer's largest, given magnitudes of shape (P, size)."""
    P, size = magnitudes.shape
    pooled = np.sort(magnitudes, axis=None)[::-1]
    among = counted_levels(P)
    figures = np.full((len(among), len(SHARES)), np.nan)
    for place, share in enumerate(SHARES):
        last = max(round(share * P * size), 1)
        threshold = pooled[last - 1]
        if threshold <= 0:
            break
        times = np.bincount(np.count_nonzero(magnitudes >= threshold, axis=0), minlength=P + 1)
        at_least = np.cumsum(times[::-1])[::-1]
        figures[:, place] = at_least[among] * P / (np.arange(P + 1) @ times)
    return LargestCounts(size, P, among, figures)


class LayerOrder(NamedTuple):
    """Model of how a layer's entries rank by magnitude at each worker, with parameters for each recorded step."""

    # Shape (T,): Correlation of x between workers at each point.
    shared: Floats
    # With their shares at all points together, sorted by increasing v.
    kinds: EntryKinds
    # Shape (T, K): Shares at each point.
    shares: Floats


def fit_order(
    counts: Sequence[LargestCounts], most_shared: Floats, clock: Floats, least_shift: float = -math.inf
) -> LayerOrder:
    """Return the ranking model of a layer, fitted to counts of the workers that have each entry among their largest.

    `most_shared`, shape (T,), bounds the correlation, from the signs; `clock`, shape (T,), as in `nearby_points`.
    `least_shift` bounds the shifts from below: in a few steps, entries with a lower shift are never among the largest,
    and neither are most entries at the bound.
    """
    together = _mean_counts(counts)
    every = _predict_kinds(together.workers, 0.0, _UNITS[0])[0].shift
    some = np.flatnonzero(every >= least_shift)
    unit = min(_UNITS, key=lambda one: _fit_kind_shares(together, 0.0, one, some)[0])
    phases = _phase_points(clock) if counts[0].size >= _TELLING else [list(range(len(counts)))]
    means = [_mean_counts([counts[place] for place in phase]) for phase in phases]
    rhos = [
        _worker_correlation(mean, float(most_shared[phase].mean()), unit)
        for mean, phase in zip(means, phases, strict=True)
    ]
    both = list(zip(means, rhos, strict=True))
    unit = min(_UNITS, key=lambda one: sum(_fit_kind_shares(mean, rho, one, some)[0] for mean, rho in both))
    share = np.zeros(len(every))
    share[some] = np.mean([_fit_kind_shares(mean, rho, unit, some)[1] for mean, rho in both], axis=0)
    there = share > _LEAST
    grid, _ = _predict_kinds(together.workers, 0.0, unit)
    kept = np.flatnonzero(there)
    kept = kept[np.argsort(_log_mean_magnitudes(grid)[kept], kind="stable")]
    shared = np.repeat(rhos, [len(phase) for phase in phases])
    around = [_mean_counts([counts[one] for one in nearby_points(clock, place)]) for place in range(len(counts))]
    shares = np.array(
        [_fit_kind_shares(mean, rho, unit, kept)[1] for mean, rho in zip(around, shared.tolist(), strict=True)]
    )
    mean = shares.mean(axis=0)
    used = mean > 0
    kept, shares, mean = kept[used], shares[:, used], mean[used]
    return LayerOrder(shared, EntryKinds(mean, grid.shift[kept], grid.log_scale[kept]), shares)


def nearby_points(clock: Floats, place: int) -> list[int]:
    """Return the indices of recorded steps near the one with index `place`, by index and by the logarithm of the step.

    `clock`, of shape (T,), is the logarithm of one more than the step.
    """
    some = range(max(place - _AROUND, 0), min(place + _AROUND + 1, len(clock)))
    return [one for one in some if abs(clock[one] - clock[place]) <= _APART]


def _phase_points(clock: Floats) -> list[list[int]]:
    """Return the indices of recorded steps, grouped into phases of training."""
    found: list[list[int]] = []
    for place, when in enumerate(clock):
        if not found or len(found[-1]) == _PHASE or when - clock[found[-1][0]] > _APART:
            found.append([])
        found[-1].append(place)
    return found


def _worker_correlation(counts: LargestCounts, most: float, unit: float) -> float:
    """Return the highest correlation between workers' magnitudes, up to `most`, at which `counts` are fitted well."""
    misses = {rho: _fit_kind_shares(counts, rho, unit)[0] for rho in _SHARED if rho <= most or not rho}
    close = _AS_GOOD * min(misses.values())
    return max(one for one, miss in misses.items() if miss <= close)


def _log_mean_magnitudes(kinds: EntryKinds) -> Floats:
    from scipy.special import erfc

    above = np.maximum(kinds.shift, 0.0)
    density = np.exp(-(above**2) / 2) / math.sqrt(2 * math.pi)
    mean = 2 * density - above * erfc(above / math.sqrt(2)) + np.maximum(-kinds.shift, 0.0)
    return np.asarray(kinds.log_scale + np.log(np.maximum(mean, 1e-300)))


def _mean_counts(counts: Sequence[LargestCounts]) -> LargestCounts:
    """Return one layer's `LargestCounts` averaged over recorded steps, in which NaN is left out."""
    figures = np.array([one.figures for one in counts])
    known = np.isfinite(figures)
    times = known.sum(axis=0)
    mean = np.where(known, figures, 0.0).sum(axis=0) / np.maximum(times, 1)
    first = counts[0]
    return LargestCounts(first.size * len(counts), first.workers, first.levels, np.where(times > 0, mean, np.nan))


def _fit_kind_shares(
    counts: LargestCounts, rho: float, unit: float, allowed: NDArray[np.intp] | None = None
) -> tuple[float, Floats]:
    """Fit the fraction of entries of each kind to `counts`; return the squared error and the fractions."""
    kinds, predicted = _predict_kinds(counts.workers, rho, unit)
    marginal = share_beyond(kinds, _share_thresholds(unit)).T / SHARES[:, None]
    if allowed is not None:
        predicted, marginal = predicted[..., allowed], marginal[:, allowed]
    target = counts.figures
    known = np.isfinite(target)
    expected = np.where(known, target, 0.0)
    # What is counted scatters about as its root, as if half an entry were there where none is expected. A thousandth of
    # what one worker has is not told apart.
    entries = counts.size * SHARES
    deviation = np.sqrt((_EXACT * expected) ** 2 + (expected + 0.5 / entries) / entries + 1e-6)
    rows = (predicted / deviation[..., None])[known]
    right = (expected / deviation)[known]
    # The share that one worker has is what thresholds rest on, and counts as if it were known twice as well.
    tight = 0.5 * np.sqrt(_EXACT**2 + 1 / (counts.workers * entries))
    whole = known.any(axis=0)
    # Shares add up to one: a thousandth off counts as much as a deviation, and is divided away.
    a = np.vstack([rows, (marginal / tight[:, None])[whole], np.full((1, marginal.shape[1]), 1e3)])
    b = np.concatenate([right, (1 / tight)[whole], [1e3]])
    share = _non_negative(a, b)
    miss = float(np.square(a @ share - b).sum())
    total = share.sum()
    return miss, share / total if total > 0 else np.full(len(share), 1 / len(share))


def _non_negative(a: Floats, b: Floats) -> Floats:
    """Return the vector x >= 0 that minimises the norm of `a` x - `b`."""
    # Its module takes longer to load than most commands to answer, and few of them fit anything.
    from scipy.optimize import nnls

    try:
        return np.asarray(nnls(a, b)[0])
    except RuntimeError:
        # Columns that are all but equal can keep the active set from settling. Multiplicative updates always descend.
        x = np.full(a.shape[1], 1 / a.shape[1])
        gram, right = a.T @ a, a.T @ b
        for _ in range(_UPDATES):
            x *= right / np.maximum(gram @ x, 1e-300)
        return x


@lru_cache(maxsize=16)
def _share_thresholds(unit: float) -> Floats:
    """Return the magnitudes that the fractions `SHARES` of entries exceed, if typical entry sizes are log-normal."""
    z, share = _normal_grid(81)
    kinds = EntryKinds(share, np.zeros_like(z), np.clip(unit * z, -LARGEST_LOG, LARGEST_LOG))
    values = np.exp(np.linspace(-12.0 - 6 * unit, 3.0 + 6 * unit, 2000))
    above = overall_share_beyond(kinds, values)
    return np.exp(np.interp(-np.log(SHARES), -np.log(np.maximum(above, 1e-300)), np.log(values)))


@lru_cache(maxsize=64)
def _predict_kinds(workers: int, rho: float, unit: float) -> tuple[EntryKinds, Floats]:
    """Return candidate kinds, and how often each number of workers exceeds a threshold, (counts, thresholds, kinds)."""
    from scipy.special import bdtrc, erfc

    thresholds = _share_thresholds(unit)
    highest, lowest = math.log(thresholds[0]), math.log(thresholds[-1])
    wide = np.concatenate([[lowest - 12.0], np.linspace(lowest - 1.5, highest + 2.0, _SCALES)])
    # The less workers differ, the closer must scales be.
    close = np.linspace(lowest - 0.5, highest + 0.5, 2 * _SCALES)
    grids = [(one, wide - math.log(max(-one, 1.0)) if one > _NARROW else close - math.log(-one)) for one in _SHIFTS]
    shift = np.concatenate([np.full(len(logs), one) for one, logs in grids])
    log_scale = np.concatenate([logs for _, logs in grids])
    kinds = EntryKinds(np.full(len(shift), 1 / len(shift)), shift, log_scale)
    bounds = _magnitude_bounds(shift, log_scale, thresholds)
    common, weights = _normal_grid(25 if rho > 0.6 else 13) if rho else (np.zeros(1), np.ones(1))
    own, moved = math.sqrt(2 * (1 - rho)), math.sqrt(rho) * common
    q = 0.5 * (erfc((bounds[..., None] - moved) / own) + erfc((bounds[..., None] + moved) / own))
    q = np.where(bounds[..., None] <= 0, 1.0, q)
    levels_of_q = np.concatenate([[0.0], np.geomspace(1e-9, 1e-2, 300), np.linspace(0.01, 1.0, 700)[1:]])
    cell = np.minimum(np.searchsorted(levels_of_q, q, side="right") - 1, len(levels_of_q) - 2)
    weight = (q - levels_of_q[cell]) / np.diff(levels_of_q)[cell]
    figures = np.empty((len(counted_levels(workers)), len(thresholds), len(shift)))
    for place, at_least in enumerate(counted_levels(workers)):
        table = bdtrc(at_least - 1, workers, levels_of_q)
        figures[place] = ((table[cell] + weight * np.diff(table)[cell]) @ weights).T
    return kinds, figures / SHARES[:, None]


def _magnitude_bounds(shift: Floats, log_scale: Floats, values: Floats) -> Floats:
    """Return, by kind of entry, how large a standard normal must be for the magnitude to reach each of `values`."""
    over = np.exp(np.minimum(np.log(values) - log_scale[:, None], 200.0))
    return np.maximum(np.minimum(over + shift[:, None], over / BEHIND), 0.0)


def _normal_grid(points: int) -> tuple[Floats, Floats]:
    """Return values and weights of an evenly spaced quadrature of the standard normal, for integrands with steps."""
    values = np.linspace(-5.0, 5.0, points)
    weights = np.exp(-(values**2) / 2)
    return values, weights / weights.sum()
