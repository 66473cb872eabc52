"""A sweep on the console and as figures: times over one parameter, winners over two.

Where a model is trained there are two times, that of an iteration and that until a target accuracy is reached. Seeds
are repetitions, not a parameter: means over them are drawn, and as a band the range; and policies are compared seed by
seed, see `simnet.report.paired`, so that the figures show where some are tied. There is no mean time to the target
where some repetitions do not reach it: that of the others would be too short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axis import Axis, XAxis
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.table import Table
from rich.text import Text

from simnet.base.units import format_bandwidth, format_bytes, format_seconds, format_within
from simnet.cost_models.evidence.chances import SURE
from simnet.report import learning, paired, run_setup, wording
from simnet.report.drawing import BITS, BYTES, COLOURS, HOURS, SECONDS, Plot, plot, scale, style, unit
from simnet.report.paired import START_COLUMNS
from simnet.report.sentences import percent
from simnet.report.tables import empty_table
from simnet.studies.codes import computing_told
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
    first = over_seeds[over_seeds[f"{seconds.removesuffix('_s')}_tied_values"]]
    several = first[first.groupby(by)["policy"].transform("size") > 1]
    return set(several[[*by, "policy"]].itertuples(index=False, name=None))


def is_seed(column: Column) -> bool:
    """Whether a parameter is the seed."""
    return column.name.rpartition(".")[2] == "seed"


SPARE = (
    *(("mean time to select",), ("vs best, geometric mean",), ("mean accuracy",), ("mean iteration",)),
    *(("tied as first",), ("tied over seeds",), ("vs best, worst",)),
)
"""Columns of `sweep_table` that a narrow terminal does without, first to last."""


def sweep_table(table: pd.DataFrame, title: str, bound: str | None = None, columns: Sequence[Column] = ()) -> Table:
    """Return, for each policy, the cells in which it was the fastest, alone or tied, and its times.

    Where a model was trained also in how many cells it was the first to the target, alone or tied, in how many it did,
    its mean time to it if it did so in all, and its mean accuracy at the end.
    """
    over_seeds = compared(table, columns, "iteration_s", bound)
    headings = [
        "policy",
        "fastest",
        "tied",
        "of cells",
        "vs best,\ngeometric mean",
        "vs best,\nworst",
        "mean\niteration",
        "mean\nsimulated time",
        "mean time\nto select",
    ]
    if over_seeds is not None:
        headings[3:3] = ["fastest\nover seeds", "tied\nover seeds"]
    trained = bool(table["accuracy"].notna().any())
    if trained:
        headings[1:1] = [
            "first to\ntarget",
            "tied as\nfirst",
            "reached\ntarget",
            "mean time\nto target",
            "mean\naccuracy",
        ]
    firsts = table["first_to_target"].astype("boolean").fillna(value=False)
    several = firsts.groupby(table["cell"]).transform("sum") > 1
    table = table.assign(first=firsts & ~several, tied_as_first=firsts & several)
    named = table[table["policy"] != ""]
    selecting = ", ".join(sorted(set(named["device"]) - {""}))
    if selecting:
        title = f"{title}; device {selecting}; {run_setup.barrier_title(named['barrier'].dropna())}"
    shown = empty_table(title, headings, ["policy"])
    for name, group in sorted(named.groupby("policy", sort=True), key=lambda one: (-int(one[1]["wins"].sum()), one[0])):
        ratios = group["vs_best"].dropna().to_numpy(dtype=np.float64)
        seconds = group["iteration_s"].dropna()
        ends = ["simulated_s", "simulated_prediction_low_s", "simulated_prediction_high_s"]
        whole = group.loc[group["simulated_s"].notna(), ends].astype(float).mean(skipna=False)
        shown.add_row(
            Text(str(name)),
            *(_learning_group(group) if trained else ()),
            str(int(group["wins"].sum())),
            str(int(group["tied"].sum())),
            *(() if over_seeds is None else _over_seeds(over_seeds, str(name))),
            str(len(group)),
            percent(float(np.exp(np.log(ratios).mean())) - 1, "+") if ratios.size and ratios.min() > 0 else "-",
            percent(float(ratios.max()) - 1, "+") if ratios.size else "-",
            format_seconds(float(seconds.mean())) if len(seconds) else "-",
            format_within(*whole.fillna(whole.iloc[0])) if len(seconds) else "-",
            format_within(*group[["select_s", "select_low_s", "select_high_s"]].mean()) if len(seconds) else "-",
        )
    return shown


def headline(table: pd.DataFrame) -> str:
    """Say in how many cells which policy is first to the target, or fastest.

    Examples
    --------
    >>> cells = pd.DataFrame({"cell": [0, 0, 1, 1], "policy": ["GRC", "local"] * 2, "wins": [True] + [False] * 3,
    ...     "tied": [False, False, True, True], "accuracy": None})
    >>> headline(cells)
    'Fastest: GRC in 1 of 2 cells; GRC and local, tied, in 1.'
    """
    count = table["cell"].nunique()
    fastest = table[table["wins"] | table["tied"]]
    said = [_first_of("Fastest", fastest, count)] if table.loc[table["policy"] != "", "policy"].nunique() > 1 else []
    if table["accuracy"].notna().any():
        goals = table["target_accuracy"].dropna().unique()
        goal = f"{100 * goals[0]:.3g} % accuracy" if len(goals) == 1 else "the target accuracy"
        reached = table["first_to_target"].astype("boolean").fillna(value=False)
        said.insert(0, _first_of(f"First to {goal}", table[reached], count))
    if "chance_to_be_fastest" in table and len(said):
        chances = table[table["wins"] & table["chance_to_be_fastest"].notna()]["chance_to_be_fastest"]
        if unsure := int((chances < SURE).sum()):
            below = f"less than {100 * SURE:.0f} % likely"
            said.append(f"In {unsure} of {count} cells the first place is within the error: {below}.")
    return " ".join(said)


def _first_of(what: str, winners: pd.DataFrame, count: int) -> str:
    """Say in how many cells which policies are first, or tied."""
    first = Counter(tuple(group) for _, group in winners.groupby("cell")["policy"])
    told = [f"{wording.listed(names)}{', tied,' * (len(names) > 1)} in {cells}" for names, cells in first.most_common()]
    if none := count - first.total():
        told.append(f"nobody in {none}")
    head, *rest = told
    return f"{what}: {'; '.join([f'{head} of {count} cell' + 's' * (count > 1), *rest])}."


def notes(table: pd.DataFrame) -> list[str]:
    """Return the notes below the table: warnings, assumptions, and sources of times."""
    warnings = [f"Warning: {one}" for one in dict.fromkeys(table["warning"]) if one]
    during = list(dict.fromkeys(table["policy"][table["overlapped"].fillna(value=False).astype(bool)]))
    overlap = "Overlap: none; exchanges begin after the backward pass."
    if during:
        overlap = f"Overlap: {wording.listed(during)} during the backward pass, in buckets; others after it."
    ignored = [] if table["accuracy"].notna().any() else [learning.IGNORED]
    apart = []
    if START_COLUMNS[0] in table:
        cells = table.loc[table[START_COLUMNS[0]].notna(), "cell"].nunique()
        leaders = f"leaders of {cells} cell{'s' * (cells != 1)} take {' to '.join(START_COLUMNS)} of sweep.csv"
        apart = [f"If workers enter a little apart, {leaders}; where these overlap, they are tied."]
    known = wording.listed([*dict.fromkeys(table.loc[table["simulated_s"].notna(), "evidence"])])
    intervals = [f"Intervals of simulated times, means over the cells: {known}; sweep.csv has those of cells."]
    return [*warnings, *apart, *(intervals if known else []), *ignored, *computing_told(table["computing"]), overlap]


def _over_seeds(over_seeds: pd.DataFrame, policy: str) -> tuple[str, str]:
    """Return how often a policy was alone as the fastest over seeds, and how often tied."""
    by = list(over_seeds.columns[: list(over_seeds.columns).index("policy")])
    first = over_seeds[over_seeds["iteration_tied"]]
    where = [tuple(row) for row in first[by].to_numpy(dtype=object)]
    several = [where.count(one) > 1 for one, name in zip(where, first["policy"], strict=True) if name == policy]
    return str(several.count(False)), str(several.count(True))


def _learning_group(group: pd.DataFrame) -> tuple[str, ...]:
    times, accuracies = group["time_to_target_s"].dropna(), group["accuracy"].dropna()
    return (
        str(int(group["first"].sum())),
        str(int(group["tied_as_first"].sum())),
        str(len(times)),
        format_seconds(float(times.mean())) if len(times) == len(group) else "-",
        f"{100 * accuracies.mean():.1f} %" if len(accuracies) else "-",
    )


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
        axis.set_ticks(list(named), [_value_text(name, values[one]) for one in named])
        axis.set_label_text(_plain_name(name))
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
    axis.set_label_text(f"{_plain_name(name)} [{found}]")
    assert isinstance(axis, XAxis)
    return factor


def _plain_name(name: str) -> str:
    """Return a parameter without the ending for its unit."""
    before, _, ending = name.rpartition("_")
    return before if ending in _UNITS and before else name


def _value_text(name: str, value: float) -> str:
    write = _FORMATS.get(name.rpartition("_")[2])
    return f"{value:.3g}" if write is None and value < 1000 else f"{value:g}" if write is None else write(value)
