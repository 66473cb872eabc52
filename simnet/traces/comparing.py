"""Statistics of a trace, and how close synthetic gradients come to them.

All selections are exact top-k of fresh gradients over all layers, without residual, as in `simnet.traces.statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.progress import track_progress
from simnet.traces.recorded import RecordedSource
from simnet.traces.source import Values
from simnet.traces.statistics import (
    Support,
    overlap,
    support_overlap,
    tail_index,
    top_k_support,
    worker_support_overlap,
)
from simnet.traces.synthetic import SyntheticSource, synthetic
from simnet.traces.synthetic_parameters import SyntheticParameters

DENSITIES = (0.001, 0.01, 0.1)
"""Densities at which traces are described and compared by default."""

TAIL = 0.01
"""Share of the largest magnitudes from which the tail index is estimated."""

FEW = 20
"""With fewer selected entries than this a figure is mostly chance."""

_FEWEST_FOR_TAIL = 1000
_FEWEST_FOR_ERROR = 3
_CURVE = 25


def describe_trace(source: RecordedSource, densities: Sequence[float] = DENSITIES) -> dict[str, Any]:
    """Return statistics of a trace, as plain values for JSON; two recorded steps are in memory at a time.

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
    ends = np.cumsum([size for _, size in source.layers]).tolist()
    tails, per_layer = [], []
    rows: list[list[dict[str, float | None]]] = [[] for _ in densities]
    first = np.empty((0, 0), dtype=np.float32)
    last: list[Support] = [np.empty((0, 0), dtype=np.bool_)] * len(densities)
    between: list[list[tuple[int, float]]] = [[] for _ in densities]
    for place, step in track_progress(list(enumerate(steps))):
        gradients = source.recorded(place)
        first = gradients if place == 0 else first
        tails.append(_tail(gradients))
        per_layer.append([_of_layer(part) for part in np.split(gradients, ends[:-1], axis=1)])
        for which, density in enumerate(densities):
            chosen = top_k_support(gradients, density)
            rows[which].append(_selected(gradients, chosen))
            if place:
                between[which].append((step - steps[place - 1], support_overlap(last[which], chosen)))
            last[which] = chosen
    total = np.array([[one["squares"] for one in layers] for layers in per_layer], dtype=np.float64)
    share = total / np.maximum(total.sum(axis=1, keepdims=True), 1e-300)
    return {
        "name": info.name,
        "workers": source.workers,
        "parameters": source.true_parameters,
        "entries": source.parameters,
        "iterations": info.steps,
        "points": len(steps),
        "steps": steps,
        "dtypes": source.dtypes(),
        "tail_index": _mean(tails),
        "tail_share": TAIL,
        "densities": [
            {
                "density": density,
                **{name: _mean([one[name] for one in rows[which]]) for name in rows[which][0]},
                "overlap_next": _mean([value for lag, value in between[which] if lag == 1]),
                "overlap_time": _mean([value for _, value in between[which]]),
                "overlap_first_last": overlap(first, gradients, density) if len(steps) > 1 else None,
            }
            for which, density in enumerate(densities)
        ],
        "layers": [
            {
                "name": shape.name,
                "shape": list(shape.shape),
                "entries": size,
                "rms": _mean([math.sqrt(one[which]["squares"] / (size * source.workers)) for one in per_layer]),
                "share": float(share[:, which].mean()),
                "zeros": _mean([one[which]["zeros"] for one in per_layer]),
                "tail_index": _mean([one[which]["tail_index"] for one in per_layer]),
            }
            for which, (shape, (_, size)) in enumerate(zip(source.shapes, source.layers, strict=True))
        ],
    }


def synthetic_twin(source: RecordedSource, parameters: SyntheticParameters, seed: int = 0) -> SyntheticSource:
    """Return synthetic gradients with the layers, entries and workers of a trace."""
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
    """Return how close synthetic gradients come to the trace that they were fitted to.

    Build-up is that of `workers`, or of all if there are fewer. ``densities`` has the entries that a worker selects
    and, for each statistic, real, synthetic and their ratio, means over the recorded steps, with the relative standard
    ``error`` of the ratio over the steps; ``threshold_drift`` is the last threshold over the first. ``curve`` has the
    gain over the whole range of densities, ``thresholds`` the threshold at each step over the first.
    """
    other = synthetic_twin(source, parameters, seed)
    P = min(workers, source.workers)
    n = source.parameters
    curve = np.unique(np.round(np.geomspace(1, n, _CURVE)).astype(int)) / n
    gains = np.zeros((2, len(curve)))
    table: list[list[list[dict[str, float | None]]]] = [[[], []] for _ in densities]
    before: list[list[Support]] = []
    steps = [point.step for point in source.info.points]
    for place, step in track_progress(list(enumerate(steps))):
        both = [source.recorded(place), other.gradients(step)]
        selected = []
        for side, gradients in enumerate(both):
            gains[side] += _gains(gradients, curve) / len(steps)
            selected.append([top_k_support(gradients, density) for density in densities])
            for which, chosen in enumerate(selected[side]):
                row = _selected(gradients, chosen, P)
                row["overlap_time"] = support_overlap(before[side][which], chosen) if before else None
                table[which][side].append(row)
        before = selected
    found = []
    for which, density in enumerate(densities):
        real, made = ({name: _mean([one[name] for one in side]) for name in side[0]} for side in table[which])
        for values, rows in zip((real, made), table[which], strict=True):
            start, end = rows[0]["threshold"], rows[-1]["threshold"]
            values["threshold_drift"] = end / start if start and end is not None else None
        found.append(
            {
                "density": density,
                "selected": max(1, round(density * n)),
                **{
                    name: {
                        "real": real[name],
                        "synthetic": made[name],
                        "ratio": _ratio(made[name], real[name]),
                        "error": _error(table[which], name),
                    }
                    for name in real
                },
            }
        )
    return {
        "name": source.info.name,
        "workers": P,
        "steps": steps,
        "densities": found,
        "curve": {"density": curve.tolist(), "real": gains[0].tolist(), "synthetic": gains[1].tolist()},
        "thresholds": [
            {
                "density": density,
                "real": _relative([one["threshold"] for one in table[which][0]]),
                "synthetic": _relative([one["threshold"] for one in table[which][1]]),
            }
            for which, density in enumerate(densities)
        ],
    }


def _selected(gradients: Values, chosen: Support, workers: int | None = None) -> dict[str, float | None]:
    """Return statistics of what top-k selects, as those of `simnet.traces.statistics`."""
    P, k = len(chosen), int(chosen[0].sum())
    magnitudes = np.abs(gradients[chosen]).reshape(P, k)
    kept, total = (np.square(one, dtype=np.float64).sum(axis=1) for one in (magnitudes, gradients))
    return {
        "gain": float(np.mean(np.divide(kept, total, out=np.ones_like(total), where=total > 0))),
        "build_up": float(chosen[:workers].any(axis=0).sum() / k),
        "overlap_workers": worker_support_overlap(chosen) if P > 1 else None,
        "threshold": float(magnitudes.min(axis=1).mean(dtype=np.float64)),
    }


def _gains(gradients: Values, densities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of the squared norm that top-k keeps at all densities, mean over workers."""
    n = gradients.shape[1]
    counts = np.maximum(1, np.round(densities * n)).astype(int)
    found = np.zeros(len(densities))
    for row in gradients:
        kept = np.cumsum(np.sort(np.square(row, dtype=np.float64))[::-1])
        found += kept[counts - 1] / kept[-1] if kept[-1] > 0 else 1.0
    return found / len(gradients)


def _of_layer(part: Values) -> dict[str, Any]:
    return {
        "squares": float(np.square(part, dtype=np.float64).sum()),
        "zeros": float((part == 0).mean()),
        "tail_index": _tail(part) if part.shape[1] >= _FEWEST_FOR_TAIL else None,
    }


def _tail(gradients: Values) -> float | None:
    """Return Hill's estimate, None if the tail includes zeros or does not decay."""
    if gradients.shape[1] < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        found = tail_index(gradients, TAIL)
    return found if math.isfinite(found) and found > 0 else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _ratio(made: float | None, real: float | None) -> float | None:
    return made / real if made is not None and real else None


def _error(rows: Sequence[Sequence[dict[str, float | None]]], name: str) -> float | None:
    """Return the standard error of a ratio, from its scatter over the steps; None with fewer than three."""
    of_ends = name == "threshold_drift"
    pairs = zip(*([one.get("threshold" if of_ends else name) for one in side] for side in rows), strict=True)
    logs = [math.log(made / real) for real, made in pairs if real and made]
    if len(logs) < _FEWEST_FOR_ERROR:
        return None
    return float(np.std(logs, ddof=1)) * math.sqrt(2 if of_ends else 1 / len(logs))


def _relative(values: Sequence[float | None]) -> list[float | None]:
    return [value / values[0] if value is not None and values[0] else None for value in values]
