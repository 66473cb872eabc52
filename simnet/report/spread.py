"""How the times of iterations and exchanges spread: their percentiles, and the share of iterations within each time.

A mean hides the tail that decides on slow links; a deadline is a percentile. The time of an exchange is what an
iteration takes beside computing: selecting, messages in flight, and waiting for others, mean over workers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from typing_extensions import TypedDict

from simnet.base.arrays import PERCENTS, Floats, percentiles
from simnet.base.units import format_seconds
from simnet.report.drawing import SECONDS, policy_looks, scale, short, style, unit

TITLE = "How iterations and exchanges spread"
TOLD = (
    "Share of the iterations that take no longer than a time, exploration included. Left: whole iterations. Right: "
    "what they take beside computing. Grey lines are the 50th, 90th and 99th percentile; where a curve is flat at the "
    "top, few iterations take long."
)

# A curve of more iterations than this goes through so many of their quantiles.
_POINTS = 250


class Percentiles(TypedDict):
    """The times within which half of the iterations, nine of ten and 99 of 100 are."""

    p50: float
    p90: float
    p99: float


class SpreadSummary(TypedDict):
    """Percentiles of the times of whole iterations, and of their exchanges."""

    iteration_s: Percentiles
    exchange_s: Percentiles


def exchange_seconds(iterations: pd.DataFrame) -> Floats:
    """Return the time of each iteration without computing [s], mean over workers."""
    parts = iterations[["select_s", "communicate_s", "wait_s"]].to_numpy(dtype=np.float64)
    return np.asarray(parts.sum(axis=1))


def spread_summary(iterations: pd.DataFrame, rounded: Callable[[float], float]) -> SpreadSummary | None:
    """Return the percentiles of the times of iterations; None where there are none.

    A percentile is the least of the times within which so many of 100 iterations are: one that occurred.

    Examples
    --------
    >>> frame = pd.DataFrame({"iteration_s": [1.0, 2.0, 3.0, 9.0], "select_s": 0.0, "communicate_s": 0.5,
    ...     "wait_s": 0.0})
    >>> spread_summary(frame, float)["iteration_s"]
    {'p50': 2.0, 'p90': 9.0, 'p99': 9.0}
    """
    if iterations.empty:
        return None

    def of(times: Floats) -> Percentiles:
        found = percentiles(times)
        return {"p50": rounded(found[0]), "p90": rounded(found[1]), "p99": rounded(found[2])}

    return {
        "iteration_s": of(iterations["iteration_s"].to_numpy(dtype=np.float64)),
        "exchange_s": of(exchange_seconds(iterations)),
    }


def describe_spread(one: Percentiles) -> str:
    """Return percentiles as a cell of a table.

    Examples
    --------
    >>> describe_spread({"p50": 0.012, "p90": 0.02, "p99": 1.5})
    '12 ms, 20 ms, 1.5 s'
    """
    return ", ".join(format_seconds(seconds) for seconds in (one["p50"], one["p90"], one["p99"]))


def draw_spread(iterations: pd.DataFrame, bound: str | None = None) -> Figure:
    """Draw the share of the iterations of each policy that take no longer than a time."""
    frames = {str(name): frame for name, frame in iterations.groupby("policy", sort=False)}
    looks = policy_looks(iterations["policy"], bound)
    with style():
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        sides: tuple[tuple[str, Callable[[pd.DataFrame], Floats]], ...] = (
            ("iteration", lambda frame: frame["iteration_s"].to_numpy(dtype=np.float64)),
            ("exchange", exchange_seconds),
        )
        for axis, (what, times) in zip(axes, sides, strict=True):
            for percent in PERCENTS:
                axis.axhline(percent, color="#C8CDD3", linewidth=0.7, zorder=1)
            sorted_times = {name: np.sort(times(frame)) for name, frame in frames.items()}
            every = np.concatenate([np.zeros(0), *sorted_times.values()])
            name_of_unit, factor = unit(float(every.max(initial=0.0)), SECONDS)
            for name, one in sorted_times.items():
                rank = np.unique(np.linspace(0, one.size - 1, min(one.size, _POINTS)).round().astype(np.intp))
                shares = 100.0 * (rank + 1) / one.size
                # From below the least time, so that the curve begins where it leaves 0.
                x, y = np.append(one[:1], one[rank]) / factor, np.append(0.0, shares)
                axis.step(x, y, where="post", label=short(name), **looks[name])
            axis.set_xlabel(f"time of an {what} [{name_of_unit}]")
            scale(axis.xaxis, every / factor)
        axes[0].set_ylabel("iterations [%]")
        if frames:
            axes[0].legend(fontsize="small")
    return figure
