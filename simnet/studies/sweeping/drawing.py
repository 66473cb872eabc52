"""A sweep on the console and as figures: times over one parameter, winners over two.

Where a model is trained there are two times, that of an iteration and that until a target accuracy is reached. Seeds
are repetitions, not a parameter: means over them are drawn, and as a band the range; and policies are compared seed by
seed, see `simnet.report.paired`, so that the figures show where some are tied. There is no mean time to the target
where some repetitions do not reach it: that of the others would be too short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axis import Axis, XAxis
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simnet.base.units import format_bandwidth, format_bytes, format_seconds
from simnet.report import paired
from simnet.report.drawing import BITS, BYTES, COLOURS, HOURS, SECONDS, Plot, plot, scale, style, unit
from simnet.studies.sweeping.grid import Column

_UNITS = {"Bps": BITS, "s": HOURS, "B": BYTES}
_FORMATS: dict[str, Callable[[float], str]] = {"Bps": format_bandwidth, "s": format_seconds, "B": format_bytes}
_LINES = ("-", (0, (4, 2)), (0, (1, 1.5)))
# With more values than this, not every one is named, or has its time written in.
_NAMED = 14


class Measure(NamedTuple):
    """The time by which policies are compared.

    Parameters
    ----------
    figure : str
        Name of the figure's files.
    seconds, wins : str
        Columns of the table: the time [s], and whether it was the shortest.
    statuses : tuple of str
        Rows that count.
    label, winner, written : str
        What to call the time, the policy with the shortest, and the time of that one.
    units : sequence of (str, float)
        Units of the time, the largest first.
    """

    figure: str
    seconds: str
    wins: str
    statuses: tuple[str, ...]
    label: str
    winner: str
    written: str
    units: Sequence[tuple[str, float]]


ITERATION = Measure(
    "sweep", "iteration_s", "wins", ("done",), "time of an iteration", "fastest policy", "its time of an iteration",
    SECONDS,
)  # fmt: skip
"""Time of an iteration, as it has been for all that got to the end."""

TARGET = Measure(
    "sweep-target", "time_to_target_s", "first_to_target", ("done", "ended", "failed"), "time to target accuracy",
    "first to reach the target accuracy", "the time that it took", HOURS,
)  # fmt: skip
"""Time to the target accuracy, which those do not reach that fail on the way."""

MEASURES = (ITERATION, TARGET)
"""The figures that a sweep may have."""


def compared(
    table: pd.DataFrame, columns: Sequence[Column], seconds: str, bound: str | None = None
) -> pd.DataFrame | None:
    """Return how policies compare over seeds, for each value of the parameters; None without seeds."""
    seeds = [one.name for one in columns if is_seed(one) and len(set(one.values)) > 1]
    named = table[table["policy"] != ""]
    if len(seeds) != 1 or named.empty:
        return None
    by = [one.name for one in columns if one.name not in seeds]
    times = named[seconds].where(named["status"] == "done").astype("float64")
    rows = named.assign(**{"seed": named[seeds[0]], seconds: times})
    # Cells that are given twice are one.
    return paired.comparison(rows.drop_duplicates([*by, "seed", "policy"]), by, seconds, bound=bound)


def draw(
    table: pd.DataFrame,
    columns: Sequence[Column],
    title: str,
    *,
    zipped: bool = False,
    measure: Measure = ITERATION,
    bound: str | None = None,
) -> Plot | None:
    """Draw a sweep of one or two numeric parameters; None if it has others, or if nothing was done."""
    moving = [one for one in columns if not is_seed(one) and len(set(one.values)) > 1]
    counted = table[table["status"].isin(measure.statuses) & (table["policy"] != "")]
    if not 1 <= len(moving) <= 2 or not all(one.numeric for one in moving) or counted[measure.seconds].isna().all():
        return None
    wins = counted[measure.wins].astype("boolean").fillna(value=False).astype(bool)
    if measure is ITERATION:
        wins |= counted["tied"]
    counted = counted.assign(**{measure.wins: wins})
    by = [one.name for one in moving]
    over_seeds = None if measure is TARGET else compared(counted, columns, measure.seconds, bound)
    if over_seeds is not None:
        tied = _tied_values(over_seeds, by, measure.seconds)
    else:
        several = counted[wins].groupby([one.name for one in columns])["policy"].transform("size") > 1
        tied = set(counted[wins][several][[*by, "policy"]].itertuples(index=False, name=None))
    with style():
        if len(moving) == 1 or zipped:
            figure = _draw_lines(counted, moving[0].name, title, measure, tied)
        elif wins.any():
            figure = _draw_map(counted, moving[0].name, moving[1].name, title, measure, tied)
        else:
            return None
    return plot(measure.figure, title, "", figure)


def _tied_values(over_seeds: pd.DataFrame, by: list[str], seconds: str) -> set[tuple[Any, ...]]:
    """Return parameter values with a policy that is tied there as the fastest."""
    first = over_seeds[over_seeds[f"{seconds.removesuffix('_s')}_tied"]]
    several = first[first.groupby(by)["policy"].transform("size") > 1]
    return set(several[[*by, "policy"]].itertuples(index=False, name=None))


def is_seed(column: Column) -> bool:
    """Whether a parameter is the seed."""
    return column.name.rpartition(".")[2] == "seed"


def _draw_lines(
    counted: pd.DataFrame, parameter: str, title: str, measure: Measure, tied: set[tuple[Any, ...]]
) -> Figure:
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    name, factor = unit(float(counted[measure.seconds].max()), measure.units)
    groups = counted.groupby(["policy", parameter])[measure.seconds]
    grouped = groups.agg(["mean", "min", "max"]) / factor
    grouped[groups.count() < groups.size()] = np.nan
    x_factor = _name_axis(axes.xaxis, parameter, counted[parameter])
    for number, policy in enumerate(dict.fromkeys(counted["policy"])):
        one = grouped.loc[policy].sort_index()
        x = one.index.to_numpy(dtype=np.float64) / x_factor
        colour, line = COLOURS[number % len(COLOURS)], _LINES[number // len(COLOURS) % len(_LINES)]
        axes.plot(x, one["mean"], color=colour, linestyle=line, marker="o", markersize=3.5, label=policy)
        if (one["max"] > one["min"]).any():
            axes.fill_between(x, one["min"], one["max"], color=colour, alpha=0.15, linewidth=0)
        ringed = [(value, policy) in tied for value in one.index]
        axes.plot(x[ringed], one["mean"][ringed], "o", color=colour, markersize=9, markerfacecolor="none")
    scale(axes.yaxis, grouped["mean"].to_numpy())
    scale(axes.xaxis, counted[parameter].to_numpy(dtype=np.float64) / x_factor)
    axes.set_ylabel(f"{measure.label} [{name}]")
    axes.set_title(title)
    if tied:
        axes.plot([], [], "o", color="#333333", markersize=9, markerfacecolor="none", label="tied as fastest")
    figure.legend(loc="outside lower left", ncols=4)
    return figure


def _draw_map(
    counted: pd.DataFrame, down: str, across: str, title: str, measure: Measure, tied: set[tuple[Any, ...]]
) -> Figure:
    groups = counted.groupby([down, across, "policy"])
    reached, total = groups[measure.seconds].count(), groups[measure.seconds].size()
    seconds = groups[measure.seconds].mean().where(reached == total)
    # Seeds may disagree: the policy that won most often, and among equals the one that is faster on average.
    ranked = pd.DataFrame({"wins": -groups[measure.wins].sum(), "seconds": seconds, "reached": reached, "total": total})
    ranked = ranked.reset_index()
    ranked = ranked[ranked["wins"] < 0].sort_values(["wins", "seconds", "policy"], kind="stable")
    best = ranked.groupby([down, across]).first()
    rows, places = sorted(counted[down].unique()), sorted(counted[across].unique())
    winners = [name for name in dict.fromkeys(counted["policy"]) if (best["policy"] == name).any()]
    codes = np.full((len(rows), len(places)), np.nan)
    figure = Figure(figsize=(3.2 + 0.5 * min(len(places), 16), 2.6 + 0.35 * min(len(rows), 16)), layout="constrained")
    axes = figure.subplots()
    few = max(len(rows), len(places)) <= _NAMED
    shown = best.reset_index()[[down, across, "policy", "seconds", "reached", "total"]]
    for y, x, policy, duration, count, all_ in shown.itertuples(index=False):
        row, place = rows.index(y), places.index(x)
        codes[row, place] = winners.index(policy)
        if few:
            text = format_seconds(duration) if np.isfinite(duration) else f"{count} of {all_}"
            text += "\ntied" if (y, x, policy) in tied else ""
            axes.text(place, row, text, ha="center", va="center", fontsize=6.5, color="white")
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(winners))]
    axes.pcolormesh(
        np.arange(len(places) + 1) - 0.5, np.arange(len(rows) + 1) - 0.5, codes, cmap=ListedColormap(colours),
        vmin=-0.5, vmax=len(winners) - 0.5, edgecolor="white", linewidth=0.5,
    )  # fmt: skip
    for axis, name, values in ((axes.xaxis, across, places), (axes.yaxis, down, rows)):
        named = range(0, len(values), 1 + (len(values) - 1) // _NAMED)
        axis.set_ticks(list(named), [value_text(name, values[one]) for one in named])
        axis.set_label_text(plain_name(name))
    axes.grid(visible=False)
    axes.tick_params(axis="x", rotation=45)
    axes.set_title(title)
    handles = [Patch(color=colours[number], label=name) for number, name in enumerate(winners)]
    said = measure.winner + (f", and {measure.written}" if few else "")
    said += "; tied: with another, over seeds" if few and tied else ""
    figure.legend(handles=handles, loc="outside lower left", ncols=3, title=said, alignment="left")
    return figure


def _name_axis(axis: Axis, name: str, values: pd.Series) -> float:
    """Name an axis after its parameter; return the value of its unit."""
    units = _UNITS.get(name.rpartition("_")[2])
    if units is None:
        axis.set_label_text(name)
        return 1.0
    found, factor = unit(float(values.max()), units)
    axis.set_label_text(f"{plain_name(name)} [{found}]")
    assert isinstance(axis, XAxis)
    return factor


def plain_name(name: str) -> str:
    """Return a parameter without the ending for its unit."""
    before, _, ending = name.rpartition("_")
    return before if ending in _UNITS and before else name


def value_text(name: str, value: float) -> str:
    """Return a value of a parameter with its unit."""
    write = _FORMATS.get(name.rpartition("_")[2])
    return f"{value:.3g}" if write is None and value < 1000 else f"{value:g}" if write is None else write(value)
