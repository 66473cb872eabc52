"""Fits the parameters of synthetic gradients (`simnet.traces.synthetic`) to a recorded trace.

Magnitudes are quantiles; it is counted who has which entries among the largest (`simnet.traces.refining`), how many
workers share signs, and how long signs last (`simnet.traces.signs`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.progress import track_progress
from simnet.traces import refining, signs
from simnet.traces.metadata import Between, LayerParameters, SyntheticParameters
from simnet.traces.ordering import LayerOrder, nearby_points
from simnet.traces.recorded import RecordedSource

_MOST_SIZES = 64


def fit(source: RecordedSource) -> SyntheticParameters:
    """Return parameters with which synthetic gradients resemble the recorded gradients of a trace.

    All recorded gradients are in memory at once; of a large trace, fit a part: ``recorded(folder, scale=100)``.

    Raises
    ------
    ValueError
        If the source has one worker, so what workers share cannot be determined.

    Examples
    --------
    >>> from simnet.traces import recorded
    >>> parameters = fit(recorded("digits", scale=20))
    >>> [layer.name for layer in parameters.layers if layer.magnitudes[-1][9] == 0]  # behind ReLUs that never fire
    ['fc1.weight', 'fc1.bias', 'fc2.weight']
    """
    if source.workers < 2:
        raise ValueError("fitting needs the gradients of at least two workers")
    info, sizes = source.info, [size for _, size in source.layers]
    steps = np.array([point.step for point in info.points])
    gradients = [source.recorded(place) for place in range(len(steps))]
    points = [refining.step_statistics(one, sizes) for one in track_progress(gradients, 0.3)]
    clock = np.log1p(steps)
    orders = [refining.layer_order(points, place, clock) for place in track_progress(range(len(sizes)), 0.5)]
    # Which worker has how large a batch to learn from is chance at a step, so that sizes are those of the steps near.
    quantiles = (np.arange(_MOST_SIZES) + 0.5) / _MOST_SIZES
    pooled = [
        np.concatenate([points[one].sizes for one in nearby_points(clock, place)]) for place in range(len(points))
    ]
    found = signs.sign_products(np.stack([np.sign(one).astype(np.int8) for one in gradients]), sizes)
    lasting, memory, turns = signs.shared_loadings(found, steps)
    own = signs.own_loadings(found, steps)
    fixed, period = _lasting_kinds(refining.overlap_over_time(points, orders, sizes), steps)
    return SyntheticParameters(
        name=info.name,
        steps=info.steps,
        knots=round_values(steps / max(info.steps - 1, 1)),
        between=knot_interpolation(steps, np.array([np.abs(one).mean(dtype=np.float64) for one in gradients])),
        worker_spread=(0.0,) * len(steps),
        worker_sizes=tuple(round_values(np.quantile(one, quantiles, method="hazen")) for one in pooled),
        memory=round_values([memory])[0],
        turns=turns,
        fixed=round_values([fixed])[0],
        period=round_values([period])[0],
        layers=tuple(
            LayerParameters(
                name=shape.name,
                matrix=len(shape.shape) > 1,
                lasting=_rounded_rows(lasting[place]) if lasting[place].any() else None,
                own_lasting=None if own is None else _rounded_rows(own[place]),
                **_layer_tables(points, order, place, source.workers),
            )
            for place, (shape, order) in enumerate(zip(source.shapes, orders, strict=True))
        ),
    )


def _layer_tables(
    points: Sequence[refining.StepStatistics], order: LayerOrder, place: int, workers: int
) -> dict[str, Any]:
    """Fit a layer's magnitudes, ranking and signs; return the fields of `LayerParameters` that describe them."""
    agree = [
        signs.sign_agreement(
            point.signs[place],
            order.kinds._replace(share=share),
            point.magnitudes[place],
            float(shared),
            float(point.against[place]),
            workers,
        )
        for point, share, shared in zip(points, order.shares, order.shared, strict=True)
    ]
    return {
        **dict.fromkeys(("rms", "dead", "spread", "tail"), (0.0,) * len(points)),
        "shared": round_values(order.shared),
        "agree_bands": _rounded_rows(np.array(agree)),
        "against": round_values(point.against[place].round(4) for point in points),
        "magnitudes": tuple(round_values(point.magnitudes[place]) for point in points),
        "kinds": tuple(zip(*(round_values(one) for one in order.kinds[1:]), strict=True)),
        "shares": tuple(round_values(row) for row in order.shares),
    }


def knot_interpolation(steps: NDArray[np.int64], levels: Floats) -> Between:
    """Return the interpolation over steps, linear or logarithmic, that better predicts mean magnitudes `levels`."""
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


def _lasting_kinds(found: refining.OverlapOverTime, steps: NDArray[np.int64]) -> tuple[float, float]:
    """Fit the correlation of entry sizes over time: return its constant part and the period of the changing part."""
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
        changing = arc_correlation(lags / period)
        for fixed in np.linspace(0.0, 1.0, 21):
            place = np.interp(fixed + (1 - fixed) * changing, found.correlation, np.arange(len(found.correlation)))
            low = np.minimum(place.astype(int), len(found.correlation) - 2)
            weight = place - low
            expected = (1 - weight) * predicted[low, :, pairs].T + weight * predicted[low + 1, :, pairs].T
            error = float(np.square((expected - recorded) / typical).sum())
            best = min(best, (error, float(fixed), float(period)))
    return best[1], best[2]


def arc_correlation(lags: Floats) -> Floats:
    """Return the autocorrelation, at `lags` [periods], of a process that moves from one random normal to the next."""
    start = (np.arange(64)[:, None] + 0.5) / 64
    anchor = np.floor(start + lags)
    a, b = math.pi / 2 * start, math.pi / 2 * (start + lags - anchor)
    return np.asarray(np.select([anchor == 0, anchor == 1], [np.cos(a - b), np.sin(a) * np.cos(b)], 0.0).mean(axis=0))


def _rounded_rows(table: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(round_values(row.round(4)) for row in table)


def round_values(values: Iterable[float]) -> tuple[float, ...]:
    """Return numbers rounded to six significant digits."""
    return tuple(float(f"{value:.6g}") for value in values)
