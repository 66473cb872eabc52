"""A comparison of schemes as a table for the console and as one figure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from rich.table import Table
from rich.text import Text

from simnet.base.arrays import Floats
from simnet.base.units import format_within
from simnet.report import learning, wording
from simnet.report.columns import headings, write_cells
from simnet.report.cost_summary import MEMORY_COLUMNS
from simnet.report.drawing import BYTES, COLOURS, HOURS, PHASE_COLOURS, SECONDS, Plot, canvas, plot, scale, unit
from simnet.report.paired import fastest, start_ranges
from simnet.report.seeds import to_target, versus
from simnet.report.tables import empty_table

COLUMNS = (
    *("exchange", "workers", "settled_after", "unsettled", "steady_from", "iteration_s"),
    *("iteration_prediction_low_s", "iteration_prediction_high_s", "chance_of_fastest_iteration", "evidence"),
    *("select_s", "select_low_s", "select_high_s", "communicate_and_wait_s", "bytes_sent_per_worker_B"),
    *("selected", "density", "actual_density", "build_up", "density_ratio", "imbalance", "global_error"),
    *MEMORY_COLUMNS,
)
"""Columns of a comparison, means over iterations; where a model was trained, those of `learning.COLUMNS` follow."""


_LEARNT = ("accuracy", "iterations_to_target", "time_to_target_s", "statistical_efficiency", "parallel_efficiency")

SPARE = (
    *(("imbalance",), ("a worker holds",), ("parallel eff.",), ("statistical eff.",), ("select",)),
    *(("iterations to target",), ("build-up",), ("paired interval",), ("communicate",), ("accuracy",)),
    *(("sent by a worker",), ("actual density",), ("settled after",)),
)
"""Columns of `comparison_table` that a narrow terminal does without, first to last."""


def comparison_table(rows: pd.DataFrame, title: str) -> Table:
    """Return the comparison as a table, by number of workers and then by time, with what has not settled last.

    What a scheme has is left out where there is none, as of sharded steps.
    """
    several = "iteration_more_s" in rows
    shown = [
        *("communicate_and_wait_s", "bytes_sent_per_worker_B"),
        *(("actual_density", "build_up", "imbalance") if _has_selection(rows) else ()),
        "memory_B",
        *(_LEARNT if "time_to_target_s" in rows else ()),
    ]
    versus_best = ["vs best", "paired\ninterval"] if several else []
    first = ["workers", "exchange", "settled\nafter", "iteration", *versus_best, "select"]
    table = empty_table(title, [*first, *headings(shown, broken=True)], ["exchange"])
    for workers, group in rows.groupby("workers"):
        if table.row_count:
            table.add_section()
        group = group.assign(aside=group["unsettled"] != "")
        ordered = group.sort_values(["aside", "iteration_s", "exchange"], kind="stable")
        least, tied = float(ordered["iteration_s"].iloc[0]), several and int(ordered["iteration_tied"].sum()) > 1
        for one in ordered.to_dict(orient="records"):
            ends = (one["iteration_prediction_low_s"], one["iteration_prediction_high_s"])
            cells = (
                str(workers),
                str(one["exchange"]),
                "not settled" if one["unsettled"] else str(one["settled_after"]),
                format_within(one["iteration_s"], *ends),
                *(_versus_fastest(one, least, tied) if several else ()),
                format_within(one["select_s"], one["select_low_s"], one["select_high_s"]),
                *write_cells(one, shown),
            )
            table.add_row(*map(Text, cells))
    return table


def headline(rows: pd.DataFrame, seeds: int = 1) -> str:
    """Say with each number of workers who is first to the target, where a model is trained, and who is the fastest.

    What has not settled is not among the fastest.
    """
    said = []
    for workers, group in rows.groupby("workers"):
        one = [*_first_to_target(group, seeds), *_fastest_rows(group, seeds)]
        said += [f"With {workers} workers: {one[0]}", *one[1:]] if one and rows["workers"].nunique() > 1 else one
    return " ".join(said)


def _first_to_target(group: pd.DataFrame, seeds: int) -> list[str]:
    if "time_to_target_s" not in group:
        return []
    named = group.astype(object).where(group.notna(), None)
    each: dict[str, Any] = dict(zip(named["exchange"], named.to_dict(orient="records"), strict=True))
    if seeds > 1:
        return [to_target(each, seeds)]
    said = learning.learning_headline(each)
    return [said, learning.ONE_SEED] if said else []


def _fastest_rows(group: pd.DataFrame, seeds: int) -> list[str]:
    if "unsettled" in group:
        group = group[group["unsettled"] == ""]
    seconds: dict[str, float] = dict(zip(group["exchange"], group["iteration_s"], strict=True))
    if len(seconds) < 2:
        return []
    ranges = start_ranges(dict(zip(group["exchange"], group.to_dict(orient="records"), strict=True)))
    winners = fastest(seconds, ranges)
    if seeds > 1:
        winners = group[group["iteration_tied"]].sort_values("iteration_rank")["exchange"].tolist()
    mean = " an iteration" + " on average" * (seeds > 1)
    reasons: dict[str, str] = {}
    if "starts_not_sampled" in group:
        reasons = dict(group[["exchange", "starts_not_sampled"]].dropna().itertuples(index=False, name=None))
    chances = dict(zip(group["exchange"], group["chance_of_fastest_iteration"].fillna(0.0), strict=True))
    alone = f"is fastest{wording.within_error(winners[0], chances)}"
    said = wording.standing(seconds, winners, alone, "are tied as fastest", mean)
    return [said, *wording.entering_apart(ranges, winners, reasons)]


def _has_selection(rows: pd.DataFrame) -> bool:
    """Return whether anything is selected: steps of sharded models send whole tensors."""
    return bool(rows["actual_density"].notna().any())


def _versus_fastest(one: Mapping[Hashable, Any], least: float, tied: bool) -> tuple[str, str]:
    """Return how much more than the fastest an exchange took, and the paired interval of that."""
    more, within = versus(one, least, "iteration", "+")
    ending = ", tied" if tied and one["iteration_tied"] else ""
    return ("best" + ending, "-") if one["iteration_rank"] == 1 else (more + ending, within)


def draw(rows: pd.DataFrame, title: str) -> Plot:
    """Draw time split into select and communicate, volume, density and build-up, a row per exchange.

    Where a model was trained and somebody reached the target accuracy, also the time to it. With several seeds whiskers
    are paired intervals of the differences from the fastest with as many workers.
    """
    counts = sorted(rows["workers"].unique())
    order = rows[rows["workers"] == counts[-1]].sort_values("iteration_s", ascending=False, kind="stable")
    labels = list(dict.fromkeys([*order["exchange"], *rows["exchange"]]))
    aside = set(rows.loc[rows["unsettled"] != "", "exchange"])
    thickness = 0.8 / len(counts)
    panels = _panels(rows)
    options = {"sharey": True, "width_ratios": (2.2, *[1] * len(panels))}
    height = 1.6 + (0.16 + 0.13 * len(counts)) * len(labels)
    with canvas(3.0 + 2.5 * len(panels), height, 1, 1 + len(panels), **options) as (figure, (times, *others)):
        name, factor = unit(float((rows["select_s"] + rows["communicate_and_wait_s"]).max()), SECONDS)
        for number, count in enumerate(counts):
            group = rows[rows["workers"] == count]
            y = np.array([float(labels.index(one)) for one in group["exchange"]])
            y += ((len(counts) - 1) / 2 - number) * thickness
            _times(times, group, y, factor, height=0.9 * thickness)
            look = {"color": COLOURS[number % len(COLOURS)], "linestyle": "", "marker": "o", "markersize": 4}
            for axes, (_, values, _) in zip(others, panels, strict=True):
                axes.plot(values[group.index], y, label=f"P = {count}", **look)
        times.set_yticks(range(len(labels)), [f"{one} (not settled)" if one in aside else one for one in labels])
        times.set_ylim(-0.6, len(labels) - 0.4)
        times.set_title(f"time of an exchange [{name}]")
        for axes, (heading, values, lines) in zip(others, panels, strict=True):
            for line in lines:
                axes.axvline(line, color="#333333", linewidth=0.8, linestyle=(0, (3, 2)))
            axes.set_title(heading)
            scale(axes.xaxis, values.dropna().to_numpy())
        handles = [Patch(color=PHASE_COLOURS[phase], label=phase) for phase in ("select", "communicate")]
        figure.legend(handles=[*handles, *others[0].get_legend_handles_labels()[0]], loc="outside lower left", ncols=8)
        figure.suptitle(title, x=0.01, ha="left")
    return plot("compare", title, "", figure)


# Title, values, and where dashed lines are.
_Panel: TypeAlias = tuple[str, pd.Series, Collection[float]]


def _panels(rows: pd.DataFrame) -> list[_Panel]:
    """Return what stands beside the times."""

    def quantity(title: str, column: str, units: Sequence[tuple[str, float]]) -> _Panel:
        name, factor = unit(float(rows[column].max()), units)
        return f"{title} [{name}]", rows[column] / factor, ()

    found = [quantity("sent by a worker", "bytes_sent_per_worker_B", BYTES)]
    if _has_selection(rows):
        found.append(("actual density [%]", 100 * rows["actual_density"], 100 * rows["density"].unique()))
        found.append(("build-up (union / k)", rows["build_up"], (1,)))
    if "time_to_target_s" in rows and bool(rows["time_to_target_s"].notna().any()):
        found.append(quantity("time to target", "time_to_target_s", HOURS))
    return found


def _times(axes: Axes, group: pd.DataFrame, y: Floats, factor: float, height: float) -> None:
    select, communicate = (group[one].to_numpy() / factor for one in ("select_s", "communicate_and_wait_s"))
    axes.barh(y, select, color=PHASE_COLOURS["select"], height=height, linewidth=0)
    axes.barh(y, communicate, left=select, color=PHASE_COLOURS["communicate"], height=height, linewidth=0)
    if "iteration_more_s" in group:
        low, mean, high = (group[f"iteration_{end}_s"] for end in ("more_low", "more", "more_high"))
        error = np.nan_to_num(np.array([mean - low, high - mean]) / factor, posinf=0.0)
        axes.errorbar(select + communicate, y, xerr=error, fmt="none", ecolor="#333333", elinewidth=0.9)
    for at, end in zip(y, select + communicate, strict=True):
        axes.annotate(
            f"P = {group['workers'].iloc[0]}", (end, at), (2, 0), textcoords="offset points", fontsize=6, va="center",
            color="#555555", annotation_clip=False,
        )  # fmt: skip
