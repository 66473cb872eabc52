"""Fits the compute-time distribution of a job (`simnet.training.job.job.Compute`) to logs of workers.

The logarithm of a worker's time is normal about the median of that worker. With some probability an iteration is a
straggler and takes a factor longer. Mean, spread, slow workers and stragglers are fitted to every other iteration and
checked against the iterations between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simnet.base.arrays import PERCENTS, Floats
from simnet.base.errors import InputError
from simnet.base.rng import stream
from simnet.base.yaml_loader import yaml_text
from simnet.cost_models.calibration.readers.csv_tables import csv_records
from simnet.cost_models.calibration.readers.lines import read_lines
from simnet.cost_models.calibration.readers.tables import parse_printed, parse_whole
from simnet.cost_models.evidence.intervals import median_half_width

LEAST_ITERATIONS = 20
"""Minimum number of iterations for a fit."""

_COLUMN, _ITERATION = "compute_s", "iteration"
# A worker is slow, or fast, if its median is off by more than this many half-notches of a box plot, and by this share.
_NOTCHES, _SHARE = 3.0, 0.02
_STEPS = 200
_DRAWN = 100_000


@dataclass(frozen=True)
class ComputeFit:
    """Compute-time distribution fitted to logs, in fields of scenarios' ``job.compute``, and the number of iterations.

    `measured` and `fitted` are `PERCENTS` percentiles of the iterations not fitted, every other one, and of draws [s].
    """

    mean: float
    spread: float
    slow: Mapping[int, float]
    straggle: float
    slowdown: float
    iterations: int
    workers: int
    measured: tuple[float, ...]
    fitted: tuple[float, ...]

    def fields(self) -> dict[str, Any]:
        """Return the fields of ``job.compute`` in a scenario."""
        slow = {str(worker): float(f"{factor:.4g}") for worker, factor in self.slow.items()}
        straggle = {"probability": float(f"{self.straggle:.3g}"), "slowdown": float(f"{self.slowdown:.4g}")}
        found: dict[str, Any] = {"mean": f"{self.mean:.6g} s", "spread": float(f"{self.spread:.4g}")}
        return found | ({"slow": slow} if slow else {}) | ({"straggle": straggle} if self.straggle else {})

    def text(self) -> str:
        """Return the YAML of ``job.compute``, with percentiles of the fit and of the measurements in a comment."""
        each = zip(PERCENTS, self.fitted, self.measured, strict=True)
        compared = ", ".join(f"p{at} {1e3 * one:.4g} ms (measured {1e3 * other:.4g} ms)" for at, one, other in each)
        sample = f"every other of {self.iterations} iterations of {self.workers} workers"
        fields = yaml_text({"job": {"compute": self.fields()}}, width=120)
        return f"# Fitted to {sample}; of those between: {compared}\n{fields}"


def read_compute_logs(folder: Path) -> Floats:
    """Return compute times [s], shape (iterations, workers), from the logs in a folder.

    The folder holds logs of `simnet.cluster.hooks`, ``rank_<r>.csv``, or similar files with the columns ``iteration``
    and ``compute_s``. Iterations that not all workers have are left out. Raises InputError for what is no such log.
    """
    try:
        paths = {int(path.stem.removeprefix("rank_")): path for path in folder.glob("rank_*.csv")}
    except ValueError:
        raise InputError("has files rank_*.csv whose names do not end with a number", file=str(folder)) from None
    if not paths or sorted(paths) != list(range(len(paths))):
        raise InputError(f"must have rank_0.csv, rank_1.csv, ..., found ranks {sorted(paths)!r:.100}", file=str(folder))
    columns = [dict(_compute_rows(paths[rank])) for rank in sorted(paths)]
    common = sorted(set.intersection(*(set(one) for one in columns)))
    return np.array([[one[number] for one in columns] for number in common]).reshape(len(common), len(columns))


def _compute_rows(path: Path) -> Iterator[tuple[int, float]]:
    """Yield iteration number and compute time [s] of each row of a log."""
    for line, row in csv_records(read_lines(path), (_ITERATION, _COLUMN), str(path))[2]:
        iteration, seconds = parse_whole(row[_ITERATION]), parse_printed(row[_COLUMN])
        if iteration is None or seconds is None:
            said = f"must be a whole number and seconds, got {row[_ITERATION]!r:.50} and {row[_COLUMN]!r:.50}"
            raise InputError(said, file=str(path), line=line)
        if seconds.value <= 0:
            raise InputError(f"{_COLUMN} must be > 0 and finite, got {seconds.value}", file=str(path), line=line)
        yield iteration, seconds.value


def fit_compute(seconds: Floats) -> ComputeFit:
    """Return the distribution fitted to compute times [s], shape (iterations, workers).

    Raises InputError for fewer than `LEAST_ITERATIONS` iterations.
    """
    iterations, workers = seconds.shape
    if iterations < LEAST_ITERATIONS:
        raise InputError(f"needs at least {LEAST_ITERATIONS} iterations, got {iterations}")
    logs, held = np.log(seconds[::2]), seconds[1::2]
    medians = np.median(logs, axis=0)
    notch = median_half_width(logs - medians, len(logs))
    base = float(np.median(medians))
    off = np.abs(medians - base) > max(_NOTCHES * notch, _SHARE)
    slow = {int(worker): math.exp(medians[worker] - base) for worker in np.flatnonzero(off)}
    rest = logs - np.where(off, medians, base)
    middle, spread, straggle, factor = _fit_stragglers(rest.ravel())
    mean, slowdown = math.exp(base + middle + spread**2 / 2), math.exp(factor)
    draws = stream(0, "computing")
    normal = draws.standard_normal(_DRAWN)
    drawn = mean * np.exp(spread * normal - spread**2 / 2)
    drawn *= np.where(draws.random(_DRAWN) < straggle, slowdown, 1.0)
    drawn *= np.array([slow.get(worker, 1.0) for worker in range(workers)])[draws.integers(0, workers, _DRAWN)]
    measured, fitted = (tuple(np.percentile(one, PERCENTS).tolist()) for one in (held, drawn))
    return ComputeFit(mean, spread, slow, straggle, slowdown, iterations, workers, measured, fitted)


def _fit_stragglers(rest: Floats) -> tuple[float, float, float, float]:
    """Fit one or two normals to log times; return mean, spread, share of stragglers (0: one normal), their delay."""
    middle, spread = float(rest.mean()), max(float(rest.std()), 1e-12)
    alone = _log_likelihood(_normal_density(rest, middle, spread))
    robust = max(1.4826 * float(np.median(np.abs(rest - np.median(rest)))), 1e-12)
    far = rest > np.median(rest) + 4 * robust
    if not far.any():
        return middle, spread, 0.0, 0.0
    share, centre, width = float(far.mean()), float(rest[~far].mean()), max(float(rest[~far].std()), 1e-12)
    factor = float(rest[far].mean()) - centre
    for _ in range(_STEPS):
        late = share * _normal_density(rest, centre + factor, width)
        weight = late / np.maximum(late + (1 - share) * _normal_density(rest, centre, width), 1e-300)
        share = float(weight.mean())
        if not 0 < share < 1:
            return middle, spread, 0.0, 0.0
        centre = float(np.average(rest, weights=1 - weight))
        factor = float(np.average(rest, weights=weight)) - centre
        squares = weight * (rest - centre - factor) ** 2 + (1 - weight) * (rest - centre) ** 2
        width = max(math.sqrt(float(squares.mean())), 1e-12)
    usual, late = (_normal_density(rest, one, width) for one in (centre, centre + factor))
    both = _log_likelihood((1 - share) * usual + share * late)
    if 2 * (both - alone) < 2 * math.log(rest.size):
        return middle, spread, 0.0, 0.0
    return centre, width, share, factor


def _normal_density(values: Floats, middle: float, spread: float) -> Floats:
    """Return the normal density times sqrt(2 pi)."""
    return np.asarray(np.exp(-0.5 * ((values - middle) / spread) ** 2) / spread)


def _log_likelihood(density: Floats) -> float:
    """Return the log-likelihood: the sum of the logarithms of densities."""
    return float(np.log(np.maximum(density, 1e-300)).sum())
