"""Figures of predictions against measurements."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullFormatter, NullLocator

from simnet.report.drawing import COLOURS, plot, scale, style
from simnet.report.summary import Plot
from simnet.validate.evaluation import TITLES
from validating.page import MODELS, errors

MOST = 600
"""The most dots of a figure: evenly taken from all, in the order of the sets."""

EDGES = 2.0 ** np.arange(4, 37, 2)
"""Where bins of sizes begin and end [byte]."""


SIZES = {"1 KiB": 2.0**10, "32 KiB": 2.0**15, "1 MiB": 2.0**20, "32 MiB": 2.0**25, "1 GiB": 2.0**30, "32 GiB": 2.0**35}
"""Sizes that are named on an axis."""


def predicted(table: pd.DataFrame, split: str) -> Plot:
    """Return predicted against measured times of a split, and errors over the size."""
    part = table[(table["split"] == split) & table["ours"].notna()]
    title = TITLES.get(split, "platforms from their specification")
    step = max(1, -(-len(part) // MOST))
    with style():
        figure = Figure(figsize=(8.6, 4.1), layout="constrained")
        left, right = figure.subplots(1, 2)
        for number, (name, rows) in enumerate(part.iloc[::step].groupby("collective")):
            colour = COLOURS[number % len(COLOURS)]
            left.plot(rows["measured"], rows["ours"], ".", color=colour, label=str(name), markersize=3, alpha=0.6)
        ends = [part[["measured", "ours"]].min().min(), part[["measured", "ours"]].max().max()]
        left.plot(ends, ends, "-", color="#333333", linewidth=0.8)
        left.set(title="predicted against measured", xlabel="measured (s)", ylabel="predicted (s)")
        for axis in (left.xaxis, left.yaxis):
            scale(axis, part[["measured", "ours"]].to_numpy(dtype=float).ravel())
        left.legend(loc="upper left", fontsize=7)
        _over_size(right, part)
        right.set(title="median error, and dotted p90", xlabel="size", ylabel="error (%)")
        if right.get_legend_handles_labels()[0]:
            right.legend(loc="best", fontsize=7)
    words = "Each dot is a measurement that the prediction had not seen; on the line, it is exact."
    return plot(f"validation_{split}", f"Predicted against measured, {title}", words, figure)


def _over_size(axes, part: pd.DataFrame) -> None:  # type: ignore[no-untyped-def]
    """Draw the median and the 90 % quantile of errors by bins of sizes, for each model."""
    models = [name for name in MODELS if name in part and len(errors(part, name))]
    for number, model in enumerate(models):
        rows = []
        for low, high in itertools.pairwise(EDGES):
            off = errors(part[(part["size"] >= low) & (part["size"] < high)], model)
            if len(off) >= 5:
                rows.append((np.sqrt(low * high), 100 * np.median(off), 100 * np.quantile(off, 0.9)))
        if rows:
            size, middle, most = np.array(rows).T
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(size, middle, "-", color=colour, label=MODELS[model], linewidth=2.0 if model == "ours" else 1.0)
            axes.plot(size, most, ":", color=colour, linewidth=1.6 if model == "ours" else 0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(SIZES.values())))
    axes.xaxis.set_major_formatter(FixedFormatter(list(SIZES)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
