"""The number of repetitions of a call, and the statistics of its times.

A *repetition* is so many calls in a row that the clock and the moment of the start do not matter; it ends at the
slowest rank. Repetitions follow until their median is precise enough or the time is up.

References
----------
R. McGill, J. W. Tukey, W. A. Larsen, "Variations of box plots", The American Statistician 32, 1978: a median is within
1.57 interquartile ranges over the root of the number of values, with a probability of about 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WITHIN = 0.02
"""Relative half-width of a median's interval at which repetitions may stop."""

LEAST, MOST = 5, 200
"""Minimum and maximum number of repetitions."""

REPETITION = 0.05
"""Target time of a repetition of short calls [s]."""

# Calls of a repetition at most, and into how many repetitions the time of a point is divided.
_CALLS, _REPETITIONS = 2000, 20


def calls_in_a_row(seconds: float, share: float) -> int:
    """Return the number of calls per repetition, given the time of a call and the size's share of time [s]."""
    return max(1, min(_CALLS, round(min(REPETITION, share / _REPETITIONS) / seconds)))


def is_settled(seconds: Sequence[float]) -> bool:
    """Return whether the median repetition time is known within the relative half-width `WITHIN`."""
    if len(seconds) < LEAST:
        return False
    low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    return bool(1.57 * (high - low) / math.sqrt(len(seconds)) <= WITHIN * median)


@dataclass
class Budget:
    """The time budget of all curves [s], shared evenly among the `left` curves."""

    total: float
    left: int

    def end(self, elapsed: float) -> float:
        """Return the deadline of the next curve [s], given the elapsed time [s]."""
        return elapsed + max(0.0, self.total - elapsed) / max(1, self.left)


def spread_columns(seconds: Sequence[float]) -> dict[str, float]:
    """Return the table columns that summarise repetition times: median, quantiles, minimum and maximum [s]."""
    ends = {"_min": 0.0, "_p10": 0.1, "_p50": 0.5, "_p90": 0.9, "_max": 1.0, "": 0.5}
    return {f"seconds{name}": round_digits(float(np.quantile(seconds, at))) for name, at in ends.items()}


def round_digits(value: float) -> float:
    """Return a number rounded to six significant digits."""
    return float(f"{value:.6g}")
