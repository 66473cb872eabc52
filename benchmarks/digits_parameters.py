"""The parameters of `digits`, by the method of moments: `python benchmarks/digits_parameters.py` writes synthetic.json.

`simnet.traces.fit` takes quantiles, which come as near for this trace and nearer for others. In the terms of
`simnet.traces.synthetic`, gradients divided by their root mean square in the layer at the worker are g = s y. Workers v
and w share s and a small part of the noise; so

- E|g_v g_w| = (E|y|)^2 gives the tail of a worker's own draws;
- (E|g|)^2 / E|g_v g_w| = (E s)^2 and E[g_v^2 g_w^2] = E s^4 give the spread of the scales: with a share d of dead
  entries and the spread sigma they are (1 - d) exp(-sigma^2) and exp(4 sigma^2) / (1 - d);
- E[g_v g_w] is what workers share;
- E[g_v^2 g_w^2] with v and w at two steps is exp(4 sigma^2 R) instead of exp(4 sigma^2), R the correlation of log s.

Fourth moments rather than logarithms, as top-k depends on the large entries.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Values
from simnet.traces import recorded
from simnet.traces.fitting import arc_correlation, round_values
from simnet.traces.metadata import LARGEST_DEVIATION, LARGEST_SIZE, SHIPPED, LayerParameters, SyntheticParameters
from simnet.traces.recorded import RecordedSource
from simnet.traces.signs import LONGEST_MEMORY

_HEAVIEST_TAIL = 100.0
_MOST_DEAD = 0.99
# Workers whose gradients are further apart than these parameters can say are taken to be as far apart as that.
_FURTHEST_SIZE = math.log(LARGEST_SIZE)


def fit_by_moments(source: RecordedSource) -> SyntheticParameters:
    """Return parameters whose gradients have the moments of recorded ones, given at least two workers."""
    info = source.info
    steps = np.array([point.step for point in info.points])
    gradients = np.stack([source.recorded(point) for point in range(len(steps))])
    factors, worker_spread = _worker_factors(gradients)
    gradients /= factors
    parts = np.split(gradients, np.cumsum([size for _, size in source.layers])[:-1], axis=2)
    scales = [_layer_scales(part) for part in parts]
    fixed, period = _fit_lasting(scales, [size for _, size in source.layers], steps)
    return SyntheticParameters(
        name=info.name,
        steps=info.steps,
        knots=round_values(steps / max(info.steps - 1, 1)),
        worker_spread=round_values(worker_spread),
        memory=round_values([_step_correlation(gradients, steps)])[0],
        fixed=round_values([fixed])[0],
        period=round_values([period])[0],
        layers=tuple(
            LayerParameters(
                name=shape.name,
                matrix=len(shape.shape) > 1,
                rms=round_values(np.sqrt(np.square(part, dtype=np.float64).mean(axis=(1, 2)))),
                dead=round_values(found.dead),
                spread=round_values(found.spread),
                tail=round_values(_tail_parameter(ratio) for ratio in found.evenness),
                shared=round_values(found.shared),
            )
            for shape, part, found in zip(source.shapes, parts, scales, strict=True)
        ),
    )


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
    return min(max(lagged / at_once, 0.0), LONGEST_MEMORY) if at_once > 0 else 0.0


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
        changing = arc_correlation((clock[second] - clock[first]) / period)
        # Least squares of correlation = fixed + (1 - fixed) changing.
        rest = 1 - changing
        fixed = float(np.clip(rest @ (correlation - changing) / max(float(rest @ rest), 1e-12), 0.0, 1.0))
        error = float(np.square(correlation - fixed - (1 - fixed) * changing).sum())
        best = min(best, (error, fixed, float(period)))
    return best[1], best[2]


def _smooth_table(table: Floats) -> Floats:
    """Return the mean of each point and its neighbours, as single points are noisy."""
    padded = np.pad(table, 1, mode="edge")
    return np.asarray((padded[:-2] + padded[1:-1] + padded[2:]) / 3)


if __name__ == "__main__":
    fit_by_moments(recorded("digits")).save(SHIPPED / "digits" / "synthetic.json")
