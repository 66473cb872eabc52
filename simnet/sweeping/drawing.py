"""A sweep on the console and as a figure: of one parameter the policies' times, of two who wins where.

Seeds are repetitions, not a parameter: means over them are drawn, and as a band the range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axis import Axis, XAxis
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from simnet.report.drawing import BITS, COLOURS, HOURS, SECONDS, Plot, plot, scale, style, unit
from simnet.report.summary import percent
from simnet.sweeping.grid import Column
from simnet.units import format_bandwidth, format_bytes, format_seconds

_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("byte", 1.0))
_UNITS = {"Bps": BITS, "s": HOURS, "B": _BYTES}
_FORMATS: dict[str, Callable[[float], str]] = {"Bps": format_bandwidth, "s": format_seconds, "B": format_bytes}
_LINES = ("-", (0, (4, 2)), (0, (1, 1.5)))
# With more values than this, not every one is named, or has its time written in.
_NAMED = 14


def draw(table: pd.DataFrame, columns: Sequence[Column], title: str, *, zipped: bool = False) -> Plot | None:
    """Draw a sweep of one or two numeric parameters; None if it has others, or if nothing was done.

    Parameters
    ----------
    table : DataFrame
        The table of the sweep.
    columns : sequence of Column
        Its parameters.
    title : str
        Heading.
    zipped : bool
        Whether the parameters change side by side, so that one tells the others.
    """
    moving = [one for one in columns if not is_seed(one) and len(set(one.values)) > 1]
    done = table[table["status"] == "done"]
    if not len(done) or not 1 <= len(moving) <= 2 or not all(one.numeric for one in moving):
        return None
    with style():
        if len(moving) == 1 or zipped:
            figure = _lines(done, moving[0].name, title)
        else:
            figure = _map(done, moving[0].name, moving[1].name, title)
    return plot("sweep", title, "", figure)


def is_seed(column: Column) -> bool:
    """Whether a parameter is the seed."""
    return column.name.rpartition(".")[2] == "seed"


def sweep_table(table: pd.DataFrame, title: str) -> Table:
    """Return, for each policy, how many cells it won, and its time over that of the winner."""
    shown = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    headings = ("policy", "won", "of cells", "vs best,\ngeometric mean", "vs best,\nworst", "mean\niteration")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    named = table[table["policy"] != ""]
    for name, group in sorted(named.groupby("policy", sort=True), key=lambda one: (-int(one[1]["wins"].sum()), one[0])):
        ratios = group["vs_best"].dropna().to_numpy(dtype=np.float64)
        seconds = group["iteration_s"].dropna()
        shown.add_row(
            Text(str(name)),
            str(int(group["wins"].sum())),
            str(len(group)),
            percent(float(np.exp(np.log(ratios).mean())) - 1, "+") if ratios.size and ratios.min() > 0 else "-",
            percent(float(ratios.max()) - 1, "+") if ratios.size else "-",
            format_seconds(float(seconds.mean())) if len(seconds) else "-",
        )
    return shown


def _lines(done: pd.DataFrame, parameter: str, title: str) -> Figure:
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    name, factor = unit(float(done["iteration_s"].max()), SECONDS)
    grouped = done.groupby(["policy", parameter])["iteration_s"].agg(["mean", "min", "max"]) / factor
    x_factor = _label(axes.xaxis, parameter, done[parameter])
    for number, policy in enumerate(dict.fromkeys(done["policy"])):
        one = grouped.loc[policy].sort_index()
        x = one.index.to_numpy(dtype=np.float64) / x_factor
        colour, line = COLOURS[number % len(COLOURS)], _LINES[number // len(COLOURS) % len(_LINES)]
        axes.plot(x, one["mean"], color=colour, linestyle=line, marker="o", markersize=3.5, label=policy)
        if (one["max"] > one["min"]).any():
            axes.fill_between(x, one["min"], one["max"], color=colour, alpha=0.15, linewidth=0)
    scale(axes.yaxis, grouped["mean"].to_numpy())
    scale(axes.xaxis, done[parameter].to_numpy(dtype=np.float64) / x_factor)
    axes.set_ylabel(f"time of an iteration [{name}]")
    axes.set_title(title)
    figure.legend(loc="outside lower left", ncols=4)
    return figure


def _map(done: pd.DataFrame, down: str, across: str, title: str) -> Figure:
    seconds = done.groupby([down, across, "policy"])["iteration_s"].mean()
    wins = done.groupby([down, across, "policy"])["wins"].sum()
    # Seeds may disagree: the policy that won most often, and among equals the one that is faster on average.
    ranked = pd.DataFrame({"wins": -wins, "seconds": seconds}).reset_index()
    ranked = ranked[ranked["wins"] < 0].sort_values(["wins", "seconds", "policy"], kind="stable")
    best = ranked.groupby([down, across]).first()
    rows, places = sorted(done[down].unique()), sorted(done[across].unique())
    winners = [name for name in dict.fromkeys(done["policy"]) if (best["policy"] == name).any()]
    codes = np.full((len(rows), len(places)), np.nan)
    figure = Figure(figsize=(3.2 + 0.5 * min(len(places), 16), 2.6 + 0.35 * min(len(rows), 16)), layout="constrained")
    axes = figure.subplots()
    few = max(len(rows), len(places)) <= _NAMED
    for y, x, policy, duration in best.reset_index()[[down, across, "policy", "seconds"]].itertuples(index=False):
        row, place = rows.index(y), places.index(x)
        codes[row, place] = winners.index(policy)
        if few:
            axes.text(place, row, format_seconds(duration), ha="center", va="center", fontsize=6.5, color="white")
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(winners))]
    axes.pcolormesh(
        np.arange(len(places) + 1) - 0.5, np.arange(len(rows) + 1) - 0.5, codes, cmap=ListedColormap(colours),
        vmin=-0.5, vmax=len(winners) - 0.5, edgecolor="white", linewidth=0.5,
    )  # fmt: skip
    for axis, name, values in ((axes.xaxis, across, places), (axes.yaxis, down, rows)):
        named = range(0, len(values), 1 + (len(values) - 1) // _NAMED)
        axis.set_ticks(list(named), [_written(name, values[one]) for one in named])
        axis.set_label_text(_plain(name))
    axes.grid(visible=False)
    axes.tick_params(axis="x", rotation=45)
    axes.set_title(title)
    handles = [Patch(color=colours[number], label=name) for number, name in enumerate(winners)]
    said = "fastest policy" + (", and its time of an iteration" if few else "")
    figure.legend(handles=handles, loc="outside lower left", ncols=3, title=said, alignment="left")
    return figure


def _label(axis: Axis, name: str, values: pd.Series) -> float:
    """Name an axis after its parameter; return the value of its unit."""
    units = _UNITS.get(name.rpartition("_")[2])
    if units is None:
        axis.set_label_text(name)
        return 1.0
    found, factor = unit(float(values.max()), units)
    axis.set_label_text(f"{_plain(name)} [{found}]")
    assert isinstance(axis, XAxis)
    return factor


def _plain(name: str) -> str:
    """Return a parameter without the ending for its unit."""
    before, _, ending = name.rpartition("_")
    return before if ending in _UNITS and before else name


def _written(name: str, value: float) -> str:
    write = _FORMATS.get(name.rpartition("_")[2])
    return f"{value:.3g}" if write is None and value < 1000 else f"{value:g}" if write is None else write(value)
