"""Figures of timings: what each rank did, and times by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from simnet.network import Timing
from simnet.report.drawing import COLOURS, PHASE_COLOURS, SECONDS, Plot, plot, style, unit


def draw_ranks(timing: Timing, title: str) -> Plot:
    """Return the figure of what each rank did until it was done."""
    rows = timing.to_pandas()
    name, factor = unit(timing.duration, SECONDS)
    with style():
        figure = Figure(figsize=(7.5, 3.6), layout="constrained")
        axes = figure.subplots()
        low = np.zeros(len(rows))
        for phase in ("compute", "communicate", "wait"):
            did = rows[f"{phase}_s"].to_numpy() / factor
            axes.fill_between(
                np.append(rows["rank"], len(rows)) - 0.5, np.append(low, low[-1:]),
                np.append(low + did, (low + did)[-1:]), step="post", color=PHASE_COLOURS[phase], label=phase, lw=0,
            )  # fmt: skip
            low = low + did
        axes.set(xlabel="rank", ylabel=f"time [{name}]", ylim=(0, None), xlim=(-0.5, len(rows) - 0.5))
        axes.set_title(title, loc="left")
        axes.legend(loc="lower right")
    return plot("time", title, "What each rank did until it was done.", figure)


def draw_sizes(rows: Sequence[Mapping[str, Any]], title: str) -> Plot:
    """Return the figure of times by size, with their intervals."""
    found = pd.DataFrame([dict(one) for one in rows]).sort_values("size_B", kind="stable")
    name, factor = unit(float(found["time_s"].max()), SECONDS)
    with style():
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        axes = figure.subplots()
        x, y, low, high = (found[one].astype(float).to_numpy() for one in ("size_B", "time_s", "low_s", "high_s"))
        off = np.clip([y - low, high - y], 0.0, None) / factor
        axes.errorbar(x, y / factor, yerr=off, fmt="o-", color=COLOURS[0], markersize=4, elinewidth=1.0)
        if len(found) > 1:
            axes.set(xscale="log", yscale="log")
        axes.set(xlabel="size [byte]", ylabel=f"time [{name}]")
        axes.set_title(title, loc="left")
    return plot("sizes", title, "", figure)
