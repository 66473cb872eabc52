"""The parameters of synthetic gradients that resemble a recorded trace, by the method of moments.

In the terms of `simnet.traces.synthetic`, gradients divided by their root mean square in the layer at the worker are g
= s y. Two workers v and w share s and a small part of the noise; so

- E|g_v g_w| = (E|y|)^2 gives the tail of a worker's own draws;
- (E|g|)^2 / E|g_v g_w| = (E s)^2 and E[g_v^2 g_w^2] = E s^4 give the spread of the scales: with a share d of dead
  entries and the spread sigma they are (1 - d) exp(-sigma^2) and exp(4 sigma^2) / (1 - d);
- E[g_v g_w] is what workers share;
- E[g_v^2 g_w^2] with v and w at two steps is exp(4 sigma^2 R) instead of exp(4 sigma^2), R the correlation of log s.

If gain or build-up of such gradients differ from the trace, its tails are of another kind, or entries are zero at most
workers. Then quantiles replace moments, and it is counted who has which entries among the largest
(`simnet.traces.refining`), how many workers share signs, and how long signs last (`simnet.traces.signs`). Fourth
moments rather than logarithms, as top-k depends on the large entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.progress import progress_stage, track_progress
from simnet.traces import refining, signs
from simnet.traces.comparing import DENSITIES, compare_with_synthetic
from simnet.traces.ordering import nearby_points
from simnet.traces.recorded import RecordedSource
from simnet.traces.source import Values
from simnet.traces.synthetic_parameters import (
    LARGEST_DEVIATION,
    LARGEST_SIZE,
    Between,
    LayerParameters,
    SyntheticParameters,
)

_HEAVIEST_TAIL = 100.0
_MOST_DEAD = 0.99
_MOST_SIZES = 64
# Workers whose gradients are further apart than these parameters can say are taken to be as far apart as that.
_FURTHEST_SIZE = math.log(LARGEST_SIZE)
# Moments will do if gain and build-up come as near as this.
_CLOSE = 0.04
# Densities at which a worker selects fewer entries say little.
_FEWEST = 3


def fit(source: RecordedSource) -> SyntheticParameters:
    """Return parameters with which synthetic gradients resemble recorded ones.

    All recorded gradients are in memory at once; of a large trace, fit a part: ``recorded(folder, scale=100)``.

    Raises
    ------
    ValueError
        If the source has one worker, so what workers share cannot be determined.

    Examples
    --------
    >>> from simnet.traces import recorded
    >>> parameters = fit(recorded("digits"))
    >>> [layer.name for layer in parameters.layers if layer.dead[-1] > 0.2]  # behind ReLUs that never fire
    ['fc1.weight', 'fc1.bias', 'fc2.weight']
    """
    if source.workers < 2:
        raise ValueError("fitting needs the gradients of at least two workers")
    info = source.info
    steps = np.array([point.step for point in info.points])
    with progress_stage(0.2):
        by_moments = _by_moments(source, steps)
        misses = _log_misses(source, by_moments)
    if np.abs(misses).max() <= _CLOSE:
        return by_moments
    with progress_stage(0.7):
        by_quantiles = _by_quantiles(source, by_moments)
    closer = np.square(_log_misses(source, by_quantiles)).sum() < np.square(misses).sum()
    return by_quantiles if closer else by_moments


def _by_moments(source: RecordedSource, steps: NDArray[np.int64]) -> SyntheticParameters:
    info = source.info
    gradients = np.stack([source.recorded(point) for point in range(len(steps))])
    factors, worker_spread = _worker_factors(gradients)
    gradients /= factors
    parts = np.split(gradients, np.cumsum([size for _, size in source.layers])[:-1], axis=2)
    scales = [_layer_scales(part) for part in parts]
    fixed, period = _fit_lasting(scales, [size for _, size in source.layers], steps)
    return SyntheticParameters(
        name=info.name,
        steps=info.steps,
        knots=_round_values(steps / max(info.steps - 1, 1)),
        worker_spread=_round_values(worker_spread),
        worker_sizes=_worker_sizes(factors[:, :, 0]),
        memory=_round_values([_step_correlation(gradients, steps)])[0],
        fixed=_round_values([fixed])[0],
        period=_round_values([period])[0],
        layers=tuple(
            LayerParameters(
                name=shape.name,
                matrix=len(shape.shape) > 1,
                rms=_round_values(np.sqrt(np.square(part, dtype=np.float64).mean(axis=(1, 2)))),
                dead=_round_values(found.dead),
                spread=_round_values(found.spread),
                tail=_round_values(_tail_parameter(ratio) for ratio in found.evenness),
                shared=_round_values(found.shared),
            )
            for shape, part, found in zip(source.shapes, parts, scales, strict=True)
        ),
    )


def _by_quantiles(source: RecordedSource, like: SyntheticParameters) -> SyntheticParameters:
    """Return parameters with quantiles of the magnitudes, and kinds of entries, instead of moments."""
    sizes = [size for _, size in source.layers]
    steps = np.array([point.step for point in source.info.points])
    gradients = [source.recorded(place) for place in range(len(steps))]
    points = [refining.step_statistics(one, sizes) for one in track_progress(gradients, 0.3)]
    clock = np.log1p(steps)
    orders = [refining.layer_order(points, place, clock) for place in track_progress(range(len(sizes)), 0.5)]
    # Which worker has how large a batch to learn from is chance at a step, so that sizes are those of the steps near.
    quantiles = (np.arange(_MOST_SIZES) + 0.5) / _MOST_SIZES
    pooled = [
        np.concatenate([points[one].sizes for one in nearby_points(clock, place)]) for place in range(len(points))
    ]
    worker_sizes = [np.quantile(sizes, quantiles, method="hazen") for sizes in pooled]
    agree = [
        [
            signs.sign_agreement(
                point.signs[place],
                order.kinds._replace(share=share),
                point.magnitudes[place],
                float(shared),
                float(point.against[place]),
                source.workers,
            )
            for point, share, shared in zip(points, order.shares, order.shared, strict=True)
        ]
        for place, order in enumerate(orders)
    ]
    found = signs.sign_products(np.stack([np.sign(one).astype(np.int8) for one in gradients]), sizes)
    lasting, memory, turns = signs.shared_loadings(found, steps)
    own = signs.own_loadings(found, steps)
    fixed, period = _lasting_kinds(refining.overlap_over_time(points, orders, sizes), steps)
    return like.model_copy(
        update={
            "between": knot_interpolation(steps, np.array([np.abs(one).mean(dtype=np.float64) for one in gradients])),
            "worker_sizes": tuple(_round_values(row) for row in worker_sizes),
            "memory": _round_values([memory])[0],
            "turns": turns,
            "fixed": _round_values([fixed])[0],
            "period": _round_values([period])[0],
            "layers": tuple(
                layer.model_copy(
                    update={
                        "dead": (0.0,) * len(points),
                        "spread": (0.0,) * len(points),
                        "tail": (0.0,) * len(points),
                        "shared": _round_values(order.shared),
                        "agree_bands": tuple(_round_values(row.round(4)) for row in agree[place]),
                        "against": _round_values(point.against[place].round(4) for point in points),
                        "lasting": tuple(_round_values(row.round(4)) for row in lasting[place])
                        if lasting[place].any()
                        else None,
                        "own_lasting": None
                        if own is None
                        else tuple(_round_values(row.round(4)) for row in own[place]),
                        "magnitudes": tuple(_round_values(point.magnitudes[place]) for point in points),
                        "kinds": tuple(zip(*(_round_values(one) for one in order.kinds[1:]), strict=True)),
                        "shares": tuple(_round_values(row) for row in order.shares),
                    }
                )
                for place, (layer, order) in enumerate(zip(like.layers, orders, strict=True))
            ),
        }
    )


def knot_interpolation(steps: NDArray[np.int64], levels: Floats) -> Between:
    """Return how tables go from step to step: the interpolation that predicts left-out steps better."""
    place = signs.step_places(steps)
    levels = np.maximum(levels, np.finfo(np.float32).tiny)
    missed = []
    for clock in (steps, np.log1p(steps)):
        squares = 0.0
        for left_out in range(1, place[-1]):
            out = place == left_out
            had = np.interp(clock[out], clock[~out], levels[~out])
            squares += float(np.square(np.log(had / levels[out])).sum())
        missed.append(squares)
    return "logarithmic" if missed[1] < missed[0] else "linear"


def _log_misses(source: RecordedSource, parameters: SyntheticParameters) -> Floats:
    """Return the logarithms of the ratios of gain and build-up to those of the trace."""
    densities = [one for one in DENSITIES if one * source.parameters >= _FEWEST] or [1.0]
    figures = compare_with_synthetic(source, parameters, densities)["densities"]
    ratios = [one[name]["ratio"] for one in figures for name in ("gain", "build_up")]
    return np.array([math.log(ratio) if ratio else math.inf for ratio in ratios])


class _LayerScales(NamedTuple):
    """Statistics of s and y in a layer's gradients, at each point."""

    # Shape (T,): Share of entries whose s is zero, and standard deviation of log s of the others.
    dead: Floats
    spread: Floats
    # Shape (T,): (E|y|)^2 / E y^2.
    evenness: Floats
    # Shape (T,): Correlation between workers.
    shared: Floats
    # Shape (T, T): E[s^2 s'^2] of the scales s and s' at two points.
    lasting: Floats


def _layer_scales(part: Values) -> _LayerScales:
    mean = np.square(part, dtype=np.float64).mean(axis=2, keepdims=True)
    unit = part / np.sqrt(np.where(mean > 0, mean, 1.0))
    magnitude = np.abs(unit)
    lasting = _between_workers(np.square(unit))
    shared = np.clip(_smooth_table(_between_workers(unit).diagonal()), 0.0, 1.0)
    # These are by how much a correlation of two Gaussians raises E|x_v x_w| and E[x_v^2 x_w^2].
    first_excess, fourth_excess = np.sqrt(1 - shared**2) + shared * np.arcsin(shared), 1 + 2 * shared**2
    # No draws are more even than a Gaussian's, and no scales than all equal.
    evenness = np.clip(_smooth_table(_between_workers(magnitude).diagonal()) / first_excess, 1e-12, 2 / math.pi)
    second = np.clip(_smooth_table(magnitude.mean(axis=(1, 2))) ** 2 / evenness, 1e-12, 1.0)
    fourth = np.maximum(_smooth_table(lasting.diagonal()) / fourth_excess, 1.0)
    spread = np.sqrt(np.maximum(np.log(second * fourth), 0.0) / 3)
    dead = np.clip(1 - second * np.exp(spread**2), 0.0, _MOST_DEAD)
    # Without dead entries one moment is enough, and the fourth is that of the large ones.
    spread = np.where(dead > 0, spread, np.sqrt(np.log(fourth) / 4))
    return _LayerScales(dead, spread, evenness, shared, lasting)


def _between_workers(values: NDArray[np.number[Any]]) -> Floats:
    """Return E[x_v x_w] over entries and pairs of distinct workers, between points; values have shape (T, P, n)."""
    _, P, n = values.shape
    total = values.sum(axis=1, dtype=np.float64)
    with_itself = np.einsum("twi,uwi->tu", values, values, dtype=np.float64)
    return np.asarray((total @ total.T - with_itself) / (n * P * (P - 1)))


def _worker_factors(gradients: Values) -> tuple[Values, Floats]:
    """Return the size of each worker's gradient over the typical one at each point, and its spread.

    Workers whose gradient is zero count as the smallest other one.
    """
    norms = np.sqrt(np.square(gradients, dtype=np.float64).mean(axis=2))
    there = norms > 0
    count = there.sum(axis=1, keepdims=True)
    logs = np.log(norms, where=there, out=np.zeros_like(norms))
    logs = np.where(there, logs - logs.sum(axis=1, keepdims=True) / np.maximum(count, 1), 0.0)
    variance = np.square(logs).sum(axis=1) / np.maximum(count[:, 0] - 1, 1)
    smallest = np.min(logs, axis=1, keepdims=True, where=there, initial=math.inf)
    logs = np.where(there | (count == 0), logs, smallest)
    factors = np.exp(np.clip(logs, -_FURTHEST_SIZE, _FURTHEST_SIZE)).astype(np.float32)
    return factors[:, :, None], np.minimum(np.sqrt(_smooth_table(variance)), LARGEST_DEVIATION)


def _worker_sizes(factors: Values) -> tuple[tuple[float, ...], ...]:
    """Return the factors of the workers at each point, ascending; of many workers some quantiles."""
    in_order = np.sort(factors, axis=1)
    many = in_order.shape[1]
    if many > _MOST_SIZES:
        in_order = in_order[:, ((np.arange(_MOST_SIZES) + 0.5) * many / _MOST_SIZES).astype(int)]
    return tuple(_round_values(row) for row in in_order)


def _tail_parameter(evenness: float) -> float:
    """Return b for which y = x + b x |x| of a standard normal x has this (E|y|)^2 / E y^2."""
    root = math.sqrt(2 / math.pi)
    low, high = 0.0, _HEAVIEST_TAIL
    for _ in range(60):
        b = (low + high) / 2
        too_even = (root + b) ** 2 / (1 + 4 * root * b + 3 * b**2) > evenness
        low, high = (b, high) if too_even else (low, b)
    return low


def _step_correlation(gradients: Values, steps: NDArray[np.int64]) -> float:
    """Return the correlation of what workers share between consecutive steps; 0 if there are none."""
    shared = _between_workers(gradients)
    size = np.sqrt(np.maximum(shared.diagonal(), 0.0))
    pairs = [point for point, (step, following) in enumerate(pairwise(steps)) if following == step + 1]
    at_once = sum(float(size[point] * size[point + 1]) for point in pairs)
    lagged = sum(float(shared[point, point + 1]) for point in pairs)
    return min(max(lagged / at_once, 0.0), signs.LONGEST_MEMORY) if at_once > 0 else 0.0


def _fit_lasting(scales: list[_LayerScales], sizes: list[int], steps: NDArray[np.int64]) -> tuple[float, float]:
    """Return the fixed share of log s and the period of the rest, by least squares over all pairs of points."""
    first, second = np.triu_indices(len(steps), 1)
    clock = np.log1p(steps)
    logs, squares = np.zeros(first.size), np.zeros(first.size)
    for one, size in zip(scales, sizes, strict=True):
        alive = np.sqrt(1 - one.dead)
        between = one.lasting[first, second] * alive[first] * alive[second]
        logs += size * np.log(np.maximum(between, 1.0)) / 4
        squares += size * one.spread[first] * one.spread[second]
    if not squares.any():
        return 1.0, 1.0
    correlation = np.minimum(logs / np.where(squares > 0, squares, math.inf), 1.0)
    best = (math.inf, 1.0, 1.0)
    for period in np.geomspace(0.1, 10 * max(float(clock[-1]), 1.0), 100):
        changing = _arc_correlation((clock[second] - clock[first]) / period)
        # Least squares of correlation = fixed + (1 - fixed) changing.
        rest = 1 - changing
        fixed = float(np.clip(rest @ (correlation - changing) / max(float(rest @ rest), 1e-12), 0.0, 1.0))
        error = float(np.square(correlation - fixed - (1 - fixed) * changing).sum())
        best = min(best, (error, fixed, float(period)))
    return best[1], best[2]


def _lasting_kinds(found: refining.OverlapOverTime, steps: NDArray[np.int64]) -> tuple[float, float]:
    """Return the fixed share of what decides the kinds, and the period of the rest, from overlap over time."""
    first, second = np.triu_indices(len(steps), 1)
    if not len(first):
        return 1.0, 1.0
    recorded = found.recorded[:, first, second]
    predicted = found.predicted[:, :, first, second]
    typical = np.maximum(recorded.mean(axis=1, keepdims=True), 1e-3)
    clock = np.log1p(steps)
    lags = clock[second] - clock[first]
    pairs = np.arange(len(first))
    best = (math.inf, 1.0, 1.0)
    for period in np.geomspace(0.1, 10 * max(float(clock[-1]), 1.0), 40):
        changing = _arc_correlation(lags / period)
        for fixed in np.linspace(0.0, 1.0, 21):
            place = np.interp(fixed + (1 - fixed) * changing, found.correlation, np.arange(len(found.correlation)))
            low = np.minimum(place.astype(int), len(found.correlation) - 2)
            weight = place - low
            expected = (1 - weight) * predicted[low, :, pairs].T + weight * predicted[low + 1, :, pairs].T
            error = float(np.square((expected - recorded) / typical).sum())
            best = min(best, (error, float(fixed), float(period)))
    return best[1], best[2]


def _arc_correlation(lags: Floats) -> Floats:
    """Return the mean correlation over lags, in periods, of a path on arcs from anchor to anchor."""
    start = (np.arange(64)[:, None] + 0.5) / 64
    anchor = np.floor(start + lags)
    a, b = math.pi / 2 * start, math.pi / 2 * (start + lags - anchor)
    return np.asarray(np.select([anchor == 0, anchor == 1], [np.cos(a - b), np.sin(a) * np.cos(b)], 0.0).mean(axis=0))


def _smooth_table(table: Floats) -> Floats:
    """Return the mean of each point and its neighbours, as single points are noisy."""
    padded = np.pad(table, 1, mode="edge")
    return np.asarray((padded[:-2] + padded[1:-1] + padded[2:]) / 3)


def _round_values(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)
