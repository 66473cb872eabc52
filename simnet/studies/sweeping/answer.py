"""Summary of a sweep: where each policy is fastest, and the times in each cell of the grid."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from simnet.report import run_setup, seeds, wording
from simnet.report import summary as summaries
from simnet.report.paired import START_COLUMNS
from simnet.report.summary import Plot
from simnet.studies.assumptions import compute_time_lines, logic_text
from simnet.studies.fastest import GridTimes, grid_plot, lost_cells_text, times_by_cell, where_fastest
from simnet.studies.sweeping.grid import AxisColumn

if TYPE_CHECKING:
    from simnet.studies.sweeping.work import Plan


class Measure(NamedTuple):
    """Kind of time by which a sweep compares policies: names of its figure and columns, and texts that describe it."""

    figure: str
    seconds: str
    wins: str
    label: str
    each: str
    without: str


ITERATION = Measure("sweep", "iteration_s", "wins", "time of an iteration", " an iteration", "No cell has a result.")
"""Mean iteration time, known for all policies that completed."""

TARGET = Measure(
    "sweep-target",
    "time_to_target_s",
    "first_to_target",
    "time to target accuracy",
    " to the target",
    "No policy reaches the target.",
)
"""Time to the target accuracy, missing for policies that do not reach it."""


@dataclass(frozen=True, kw_only=True, repr=False)
class GridAnswer(summaries.Summary):
    """Answer of a sweep. `cells` has a row per cell and policy, as in sweep.csv.

    `bound` is the policy that is a lower bound and cannot be run, if there is one.
    """

    cells: pd.DataFrame
    bound: str | None = None


def grid_answer(table: pd.DataFrame, planned: Plan) -> GridAnswer:
    """Return the answer of a sweep, given its table with a row per cell and policy."""
    columns, bound = planned.columns, planned.base.bound
    # Means are taken over seeds.
    by = [one for one in columns if not one.is_seed or len(columns) == 1 or len(set(one.values)) == 1]
    measure = TARGET if table["time_to_target_s"].notna().any() else ITERATION
    cells = _cells_of(table, columns, [one.name for one in by], measure, bound)
    left = table[table["status"].isin(["refused", "failed"])]
    why = [
        f"cell {cell} ({planned.cells[cell]}){', ' * bool(policy)}{policy}: {status}: {message}"
        for cell, policy, status, message in left[["cell", "policy", "status", "message"]].to_numpy().tolist()
    ]
    overlap = _overlap(table, planned)
    mixed = run_setup.mixed_overlap(overlap)
    trained = table["accuracy"].notna().any()
    lost = lost_cells_text(left["cell"].nunique(), table["cell"].nunique(), why)
    return GridAnswer(
        answer=(where_fastest(cells, by, measure.each) or measure.without) + lost,
        **times_by_cell(cells, by, bound),
        evidence=_evidence(table),
        assumed=", ".join(filter(None, [logic_text(planned.base), "" if trained else "accuracy ignored"])),
        depends_on=mixed,
        details={
            "scenario": planned.base.name,
            "seed": planned.base.config.seed,
            "time": measure.label,
            "cells": json.loads(table.to_json(orient="records", double_precision=15)),
        },
        plots=_figures(table, planned, by),
        notes=[*why, *sweep_notes(table), *([] if mixed else [run_setup.describe_overlap(overlap)])],
        exit_code=1 if why else 0,
        cells=table,
        bound=bound,
    )


def _figures(table: pd.DataFrame, planned: Plan, by: Sequence[AxisColumn]) -> dict[str, Callable[[], Plot]]:
    """Return the figures by name: times over one numeric field, or the fastest policy over two fields."""
    moving = [one for one in by if not one.is_seed and len(set(one.values)) > 1]
    found: dict[str, Callable[[], Plot]] = {}
    if 1 <= len(moving) <= 2 and all(one.numeric for one in moving):
        for measure in (ITERATION, TARGET):
            cells = _cells_of(table, planned.columns, [one.name for one in moving], measure, planned.base.bound)
            if any(one.seconds for one in cells):
                title, bound = f"{planned.base.name}: {measure.label}", planned.base.bound
                found[measure.figure] = partial(grid_plot, title, cells, moving, bound, planned.zipped)
    return found


def compared_policies(
    table: pd.DataFrame, columns: Sequence[AxisColumn], seconds: str, bound: str | None = None
) -> pd.DataFrame | None:
    """Return a comparison of policies over seeds, for each combination of other axis values; None for a single seed."""
    own = [one.name for one in columns if one.is_seed and len(set(one.values)) > 1]
    named = table[table["policy"] != ""]
    if len(own) != 1 or named.empty:
        return None
    by = [one.name for one in columns if one.name not in own]
    times = named[seconds].where(named["status"] == "done").astype("float64")
    rows = named.assign(**{"seed": named[own[0]], seconds: times})
    # Cells that are given twice are one.
    return seeds.comparison(rows.drop_duplicates([*by, "seed", "policy"]), by, seconds, bound=bound)


def _cells_of(
    table: pd.DataFrame, columns: Sequence[AxisColumn], by: list[str], measure: Measure, bound: str | None
) -> list[GridTimes]:
    over_seeds = None if measure is TARGET else compared_policies(table, columns, measure.seconds, bound)
    if over_seeds is not None and not {*by} <= {*over_seeds}:
        # Seeds alone are cells of their own.
        over_seeds = None
    wins = table[measure.wins].astype("boolean").fillna(value=False).astype(bool)
    wins |= table["tied"] if measure is ITERATION else False
    found = []
    for key, group in table.assign(first=wins).groupby(by, sort=False):
        values = key if isinstance(key, tuple) else (key,)
        times = group[group["policy"] != ""].groupby("policy", sort=False)[measure.seconds]
        seconds = {
            str(name): float(one) for name, one in times.mean().where(times.count() == times.size()).dropna().items()
        }
        first = list(dict.fromkeys(group.loc[group["first"], "policy"]))
        if over_seeds is not None:
            here = over_seeds[(over_seeds[by] == pd.Series(values, index=by)).all(axis=1)]
            first = here.loc[here["iteration_tied"].astype(bool)].sort_values("iteration_rank")["policy"].tolist()
        elif len(first) > 1 and group["cell"].nunique() > 1:
            # Seeds disagree: who was first most often.
            first = group.loc[group["first"], "policy"].mode().tolist()
        first = sorted((name for name in first if name in seconds), key=lambda name: seconds[name])
        found.append(GridTimes(values, seconds, first, bound))
    return found


def _evidence(table: pd.DataFrame) -> str:
    """Return a text on whether a sweep's times are measured, extrapolated or assumed."""
    warnings = [f"Warning: {one}" for one in dict.fromkeys(table["warning"]) if one]
    known = wording.listed([one for one in dict.fromkeys(table.loc[table["simulated_s"].notna(), "evidence"]) if one])
    return " ".join([*warnings, *([f"{known}; intervals and chances are in sweep.csv"] if known else [])])


def sweep_notes(table: pd.DataFrame) -> list[str]:
    """Return text lines on the assumptions of a sweep, and on the sources of its times."""
    apart = []
    if START_COLUMNS[0] in table:
        cells = table.loc[table[START_COLUMNS[0]].notna(), "cell"].nunique()
        leaders = f"leaders of {cells} cell{'s' * (cells != 1)} take {' to '.join(START_COLUMNS)} of sweep.csv"
        apart = [f"If workers enter a little apart, {leaders}; where these overlap, they are tied."]
    return [*apart, *compute_time_lines(table["computing"])]


def _overlap(table: pd.DataFrame, planned: Plan) -> dict[str, Any]:
    """Return the policies that exchange during the backward pass, and those that exchange after it."""
    overlaps = table["overlapped"].fillna(value=False).astype(bool)
    during, after = ([*dict.fromkeys(table["policy"][one])] for one in (overlaps, ~overlaps))
    return {"during": during, "after": after, "default": planned.base.document.found(("job", "overlap")) is None}
