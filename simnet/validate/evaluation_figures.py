"""Results of an evaluation: errors by split, model and bin of sizes, as JSON values, notes and a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from simnet.cost_models.calibration.cost_model import DEFAULT_COVERAGE
from simnet.cost_models.calibration.summary import error_quantiles, problem_lines
from simnet.cost_models.evidence.intervals import BIN_NAMES, bin_of
from simnet.report.drawing import COLOURS, Plot, plot, scale, style
from simnet.validate.links import CLOSED_FORM, winners
from simnet.validate.links import TITLES as LINK_TITLES
from simnet.validate.rivals import RIVALS

TITLES = {
    "sizes": "sizes left out",
    "halves": "every second size left out",
    "ranks": "ranks left out",
    "collectives": "collectives left out",
    **LINK_TITLES,
    "known": "inside what was fitted",
    "beyond": "extrapolations",
}
"""Titles of splits; the last two are for comparisons with a fabric file."""

PLAIN = ("line", "three_segments", "five_anchors")
"""Simple models of single curves, used as baselines."""

WORSE = 1.1
"""Factor by which a median or 90 % quantile may exceed the recorded one, since machines round differently."""

PLACES = ("inside", "one doubling outside", "further outside")
"""Position of a held-out number of ranks relative to the measured ones."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Held-out predictions and measurements of one dataset, with its size, systems and remarks."""

    # The dataset.
    name: str
    # One row per measurement left out: ``split``, ``place`` (of a number of ranks: one of `PLACES`), ``system``,
    # ``setting``, ``size`` [byte], ``measured``, ``ours``, ``low``, ``high`` and what each other model says [s]; NaN
    # where a model says nothing.
    held: pd.DataFrame
    # Median of the absolute relative difference of repetitions from their median; NaN without repetitions.
    spread: float
    # How many there are.
    systems: int
    curves: int
    rows: int
    # What is wrong in it or was left out of it, each with file and line.
    problems: tuple[str, ...] = ()
    # Share of measurements that the intervals shall hold.
    coverage: float = DEFAULT_COVERAGE

    def figures(self) -> dict[str, Any]:
        """Return errors by split, model and bin of sizes, and interval coverage, as JSON types."""
        found: dict[str, Any] = {}
        for split in TITLES:
            part = self.held[self.held["split"] == split]
            if len(part):
                found[split] = _split_figures(part)
        return {
            "dataset": self.name,
            "rows": self.rows,
            "systems": self.systems,
            "curves": self.curves,
            "problems": len(self.problems),
            "remarks": list(self.problems),
            "spread_of_repetitions": None if math.isnan(self.spread) else self.spread,
            "splits": found,
        }

    def notes(self) -> list[str]:
        """Return lines for people: size of the dataset, remarks on its logs, and winners predicted correctly."""
        spread = "" if math.isnan(self.spread) else f"; repetitions differ by {100 * self.spread:.1f} % in the median"
        lines = [f"{self.name}: {self.rows:,} rows, {self.systems} systems, {self.curves} curves{spread}."]
        lines += problem_lines(self.problems)
        for split, found in self.figures()["splits"].items():
            if won := found.get("winners"):
                lines.append(
                    f"{TITLES[split]}: the faster of AG-Topk and AR-Topk is as predicted in {won['right']} of "
                    f"{won['settings']}, where they differ by more than 5 %; by the closed form in {won[CLOSED_FORM]}."
                )
        return lines


def worse_figures(figures: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    """Return messages on splits with fewer predictions or larger errors than recorded."""
    said = []
    for split, before in recorded.items():
        one = figures["splits"].get(split)
        title = TITLES.get(split, split)
        if one is None:
            said.append(f"{figures['dataset']}, {title}: nothing was predicted")
            continue
        now = one["models"]["ours"]["all"]
        if now["count"] < before["count"]:
            said.append(f"{figures['dataset']}, {title}: {now['count']} predictions, recorded are {before['count']}")
        said += [
            f"{figures['dataset']}, {title}: {key} is {100 * now[key]:.2f} %, recorded is {100 * before[key]:.2f} %"
            for key in ("median", "p90")
            if now[key] > before[key] * WORSE + 1e-4
        ]
    return said


def recorded_figures(name: str, splits: Collection[str]) -> dict[str, Any]:
    """Return the recorded errors of our model on a shipped dataset, by split."""
    recorded = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
    return {key: one for key, one in recorded.get(name, {}).items() if key.partition("_")[0] in splits}


def draw_evaluation(evaluation: Evaluation) -> Plot:
    """Return a plot of predicted against measured times of held-out measurements, one panel per split."""
    held = evaluation.held
    present = [split for split in TITLES if (held["split"] == split).any()]
    with style():
        figure = Figure(figsize=(4.2 * max(len(present), 1), 4.2), layout="constrained")
        axes = figure.subplots(1, max(len(present), 1), squeeze=False)[0]
        for one, split in zip(axes, present, strict=False):
            part = held[held["split"] == split]
            for number, (collective, rows) in enumerate(part.groupby(part["setting"].str.partition(",")[0])):
                colour = COLOURS[number % len(COLOURS)]
                one.plot(rows["measured"], rows["ours"], ".", color=colour, label=str(collective), markersize=4)
            ends = [part[["measured", "ours"]].min().min(), part[["measured", "ours"]].max().max()]
            one.plot(ends, ends, "-", color="#333333", linewidth=0.8)
            one.set(title=TITLES[split], xlabel="measured (s)", ylabel="predicted (s)")
            for axis in (one.xaxis, one.yaxis):
                scale(axis, part[["measured", "ours"]].to_numpy(dtype=float).ravel())
            one.legend(loc="upper left")
    explanation = "Each dot is a measurement that the calibration had not seen; on the line, prediction is exact."
    return plot("predicted", f"Predicted against measured: {evaluation.name}", explanation, figure)


def _split_figures(part: pd.DataFrame) -> dict[str, Any]:
    """Return the errors of one split by model and bin of sizes, and the coverage of its intervals."""
    models: dict[str, Any] = {}
    bins = bin_of(part["size"].to_numpy(dtype=float))
    places = [one for one in PLACES if (part["place"] == one).any()]
    for model in ("ours", *RIVALS, *PLAIN, CLOSED_FORM):
        off = (part[model].astype(float) / part["measured"].astype(float) - 1).abs().to_numpy()
        if np.isnan(off).all():
            continue
        models[model] = {"all": _error_quantiles(off)}
        models[model] |= {name: _error_quantiles(off[bins == number]) for number, name in enumerate(BIN_NAMES)}
        models[model] |= {f"ranks {one}": _error_quantiles(off[(part["place"] == one).to_numpy()]) for one in places}
    inside = (part["low"] <= part["measured"]) & (part["measured"] <= part["high"])
    found: dict[str, Any] = {"models": models, "coverage": float(inside.mean())}
    won = winners(part)
    return found | ({"winners": won} if won else {})


def _error_quantiles(off: NDArray[Any]) -> dict[str, float] | None:
    known = off[~np.isnan(off)]
    return error_quantiles(known) if len(known) else None
