"""Statistics of a trace, and comparison of synthetic gradients with the trace to which they were fitted.

All selections are exact top-k of fresh gradients over all layers, without residual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Values
from simnet.base.progress import track_progress
from simnet.traces.metadata import SyntheticParameters
from simnet.traces.recorded import RecordedSource
from simnet.traces.synthetic import SyntheticSource, synthetic

Support: TypeAlias = NDArray[np.bool_]


def top_k_support(gradients: Values, density: float) -> Support:
    """Return a mask, (P, n), of each worker's largest entries: a fraction `density` of them, at least one."""
    if not 0 < density <= 1:
        raise ValueError(f"density must be > 0 and <= 1, got {density}")
    n = gradients.shape[1]
    k = max(1, round(density * n))
    magnitudes = np.abs(gradients)
    # By the value, as which of equal entries a partition of indices leaves on top depends on the processor.
    least = np.partition(magnitudes, n - k, axis=1)[:, n - k, None]
    selected = magnitudes >= least
    for worker in np.flatnonzero(np.count_nonzero(selected, axis=1) > k):
        equal = np.flatnonzero(magnitudes[worker] == least[worker])
        over = np.count_nonzero(selected[worker]) - k
        selected[worker, equal[len(equal) - over :]] = False
    return selected


def overlap(first: Values, second: Values, density: float) -> float:
    """Return the fraction of top-k indices that two gradients have in common, averaged over workers.

    Between iterations it measures the persistence of the selection; between workers, the agreement.
    """
    return support_overlap(top_k_support(first, density), top_k_support(second, density))


def support_overlap(one: Support, other: Support) -> float:
    """Return the fraction of each worker's selection in `one` that is also in `other`, averaged over workers."""
    return float(np.mean((one & other).sum(axis=1) / one.sum(axis=1)))


def worker_support_overlap(selected: Support) -> float:
    """Return the fraction of one worker's selected entries that another worker selects, averaged over all pairs."""
    P, k = len(selected), selected[0].sum()
    times = selected.sum(axis=0, dtype=np.int64)
    return float((times * (times - 1)).sum() / (P * (P - 1) * k))


def tail_index(gradients: Values, share: float) -> float:
    """Return Hill's estimate of the tail exponent of magnitudes, from the largest `share` of them; mean over workers.

    NaN if there is one entry, or the largest include zeros or are all equal.
    """
    n = gradients.shape[1]
    k = max(1, round(share * n))
    if n < 2:
        return math.nan
    largest = np.partition(np.abs(gradients), n - k - 1, axis=1)[:, n - k - 1 :].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = float(np.mean(k / np.log(largest[:, 1:] / largest[:, :1]).sum(axis=1)))
    return found if 0 < found < math.inf else math.nan


DENSITIES = (0.001, 0.01, 0.1)
"""Densities at which traces are described and compared by default."""

TAIL = 0.01
"""Share of the largest magnitudes from which the tail index is estimated."""

FIGURES = ("gain", "build_up", "overlap_workers", "threshold_over_rms", "overlap_time")
"""Statistics of top-k's selection at a step; the last compares the selection with that of the step before."""

FEW = 20
"""Minimum number of selected entries for a statistic to be reliable."""

_FEWEST_FOR_TAIL = 1000
_FEWEST_FOR_ERROR = 3


def describe_trace(source: RecordedSource, densities: Sequence[float] = DENSITIES) -> dict[str, Any]:
    """Return statistics of a trace, as plain values for JSON; at most two recorded steps are in memory at a time.

    ``tail_index`` is Hill's estimate from each worker's largest `TAIL`, mean over workers and steps. ``densities`` has
    means over steps of gain, build-up, overlap between workers, threshold, and overlap between recorded steps:
    consecutive ones (``overlap_next``), neighbouring ones (``overlap_time``), the first and last. ``layers`` has root
    mean square, share of the squared norm, share of zeros, and tail index of layers with 1,000 entries or more.

    Examples
    --------
    >>> from simnet.traces import recorded
    >>> found = describe_trace(recorded("digits"), [0.01])
    >>> found["workers"], found["points"], round(found["densities"][0]["build_up"], 1)
    (8, 12, 5.7)
    """
    info = source.info
    steps = [point.step for point in info.points]
    ends = np.cumsum([size for _, size in source.layers])[:-1]
    tails, layers = np.empty(len(steps)), np.empty((len(steps), len(source.layers), 3))
    table = np.full((len(densities), len(steps), len(FIGURES)), np.nan)
    first = gradients = source.recorded(0)
    chosen: list[Support | None] = [None] * len(densities)
    for place in track_progress(list(range(len(steps)))):
        gradients = source.recorded(place)
        tails[place] = tail_index(gradients, TAIL)
        layers[place] = [_of_layer(part) for part in np.split(gradients, ends, axis=1)]
        for which, density in enumerate(densities):
            table[which, place], chosen[which] = _selection_statistics(gradients, chosen[which], density)
    squares = layers[:, :, 0]
    share = squares / np.maximum(squares.sum(axis=1, keepdims=True), 1e-300)
    rms = np.sqrt(squares / [size * source.workers for _, size in source.layers])
    of_layers = _means(np.dstack([rms, share, layers[:, :, 1:]]), axis=0)
    following = np.append(False, np.diff(steps) == 1)
    return {
        "name": info.name,
        "workers": source.workers,
        "parameters": source.true_parameters,
        "entries": source.parameters,
        "iterations": info.steps,
        "points": len(steps),
        "steps": steps,
        "dtypes": source.dtypes(),
        "tail_index": _known(_means(tails, axis=0)),
        "tail_share": TAIL,
        "densities": [
            {
                "density": density,
                **dict(zip(FIGURES[:-1], map(_known, _means(rows[:, :-1], axis=0)), strict=True)),
                "overlap_next": _known(_means(rows[following, -1], axis=0)),
                "overlap_time": _known(_means(rows[:, -1], axis=0)),
                "overlap_first_last": overlap(first, gradients, density) if len(steps) > 1 else None,
            }
            for density, rows in zip(densities, table, strict=True)
        ],
        "layers": [
            {
                "name": shape.name,
                "shape": list(shape.shape),
                "entries": size,
                **dict(zip(("rms", "share", "zeros", "tail_index"), map(_known, row), strict=True)),
            }
            for shape, (_, size), row in zip(source.shapes, source.layers, of_layers, strict=True)
        ],
    }


def synthetic_twin(source: RecordedSource, parameters: SyntheticParameters, seed: int = 0) -> SyntheticSource:
    """Return a synthetic source with the same layers, shapes, workers and iterations as a trace."""
    layers = [
        (name, (1, size) if len(shape.shape) > 1 else (size,))
        for shape, (name, size) in zip(source.shapes, source.layers, strict=True)
    ]
    return synthetic(layers, source.workers, like=parameters, iterations=source.info.steps, seed=seed)


def compare_with_synthetic(
    source: RecordedSource,
    parameters: SyntheticParameters,
    densities: Sequence[float] = DENSITIES,
    *,
    workers: int = 8,
    seed: int = 0,
) -> dict[str, Any]:
    """Return statistics of a trace, of synthetic gradients with given parameters, and the ratios between the two.

    Build-up is that of `workers`, or of all if there are fewer. ``densities`` has the entries that a worker selects
    and, for each statistic, real, synthetic and their ratio, means over the recorded steps, with the relative standard
    ``error`` of the ratio over the steps; ``threshold_drift`` is the last threshold over the first.
    """
    other = synthetic_twin(source, parameters, seed)
    P, n = min(workers, source.workers), source.parameters
    steps = [point.step for point in source.info.points]
    table = np.full((len(densities), 2, len(steps), len(FIGURES)), np.nan)
    chosen: list[list[Support | None]] = [[None, None] for _ in densities]
    for place, step in track_progress(list(enumerate(steps))):
        for side, gradients in enumerate((source.recorded(place), other.gradients(step))):
            for which, density in enumerate(densities):
                figures, chosen[which][side] = _selection_statistics(gradients, chosen[which][side], density, P)
                table[which, side, place] = figures
    thresholds = table[..., FIGURES.index("threshold_over_rms")]
    with np.errstate(divide="ignore", invalid="ignore"):
        drifts = thresholds[:, :, -1:] / thresholds[:, :, :1]
        logs = np.log(table[:, 1] / table[:, 0])
        means = np.dstack([_means(table, axis=2), drifts])
        ratios = means[:, 1] / means[:, 0]
    # The scatter over the steps, of a mean and of two of them.
    some = np.ma.masked_invalid(logs)
    count = some.count(axis=1)
    scatter = np.where(count >= _FEWEST_FOR_ERROR, some.std(axis=1, ddof=1).filled(np.nan), np.nan)
    drift = math.sqrt(2) * scatter[:, FIGURES.index("threshold_over_rms"), None]
    errors = np.hstack([scatter / np.sqrt(np.maximum(count, 1)), drift])
    both = np.stack([means[:, 0], means[:, 1], ratios, errors], axis=2)
    kinds = ("real", "synthetic", "ratio", "error")
    return {
        "name": source.info.name,
        "workers": P,
        "steps": steps,
        "densities": [
            {
                "density": density,
                "selected": max(1, round(density * n)),
                **{
                    name: dict(zip(kinds, map(_known, row), strict=True))
                    for name, row in zip((*FIGURES, "threshold_drift"), rows, strict=True)
                },
            }
            for density, rows in zip(densities, both, strict=True)
        ],
    }


def _selection_statistics(
    gradients: Values, before: Support | None, density: float, workers: int | None = None
) -> tuple[list[float], Support]:
    """Return statistics of a step's top-k selection, as in `FIGURES`, and its mask; `before` is the previous mask."""
    chosen = top_k_support(gradients, density)
    P, k = len(chosen), int(chosen[0].sum())
    magnitudes = np.abs(gradients[chosen]).reshape(P, k)
    kept, total = (np.square(one, dtype=np.float64).sum(axis=1) for one in (magnitudes, gradients))
    found = [
        float(np.mean(np.divide(kept, total, out=np.ones_like(total), where=total > 0))),
        float(chosen[:workers].any(axis=0).sum() / k),
        worker_support_overlap(chosen) if P > 1 else math.nan,
        float(magnitudes.min(axis=1).mean(dtype=np.float64)),
        math.nan if before is None else support_overlap(before, chosen),
    ]
    return found, chosen


def _of_layer(part: Values) -> tuple[float, float, float]:
    """Return the sum of squares, the fraction of zeros and the tail index of a layer's gradients, (P, size)."""
    squares = float(np.square(part, dtype=np.float64).sum())
    return squares, float((part == 0).mean()), tail_index(part, TAIL) if part.shape[1] >= _FEWEST_FOR_TAIL else math.nan


def _means(table: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Return the mean over an axis, without NaN and infinite values; NaN if no value is finite."""
    return np.asarray(np.ma.filled(np.ma.masked_invalid(table).mean(axis=axis), np.nan))


def _known(value: NDArray[np.float64] | float) -> float | None:
    return float(value) if np.isfinite(value) else None
