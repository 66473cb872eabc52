"""What a grid of scenarios came to, as a `Summary`: where which policy is the fastest, and the times of each cell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from simnet.report import summary as summaries
from simnet.report import wording
from simnet.report.drawing import Plot
from simnet.report.paired import START_COLUMNS
from simnet.studies.codes import computing_told
from simnet.studies.sweeping import drawing
from simnet.studies.sweeping.grid import Column
from simnet.studies.sweeping.work import Plan


@dataclass(frozen=True, kw_only=True, repr=False)
class GridAnswer(summaries.Summary):
    """The answer of a grid; `cells` has a row per cell and policy: what sweep.csv holds."""

    cells: pd.DataFrame


class _Cell(NamedTuple):
    """A cell: the values of its axes, the seconds of each policy, who is first, alone or tied, and the bound."""

    values: tuple[Any, ...]
    seconds: dict[str, float]
    first: list[str]
    bound: str | None

    @property
    def next(self) -> tuple[str, float] | None:
        """The first policy that is not among the fastest, and how many times as long it takes."""
        later = [(time, name) for name, time in self.seconds.items() if name not in (*self.first, self.bound)]
        return (min(later)[1], min(later)[0] / self.seconds[self.first[0]]) if later and self.first else None


def grid_answer(table: pd.DataFrame, planned: Plan) -> GridAnswer:
    """Return the answer of a grid, given its rows; see `simnet.studies.sweeping.table`."""
    columns, bound = planned.columns, planned.base.bound
    by = [one for one in columns if not _is_repetition(one, columns)]
    measure = drawing.TARGET if table["time_to_target_s"].notna().any() else drawing.ITERATION
    cells = _cells_of(table, columns, [one.name for one in by], measure, bound)
    names = list(dict.fromkeys(name for name in table["policy"] if name))
    means = {name: [one.seconds[name] for one in cells if name in one.seconds] for name in names}
    order = sorted(names, key=lambda name: (name == bound, sum(means[name]) / max(len(means[name]), 1)))
    shown = {name: f"({name})" if name == bound else name for name in order}
    left = table[table["status"].isin(["refused", "failed"])]
    why = [
        f"cell {cell} ({planned.cells[cell]}){', ' * bool(policy)}{policy}: {status}: {message}"
        for cell, policy, status, message in left[["cell", "policy", "status", "message"]].to_numpy().tolist()
    ]
    answer = _where_who_wins(cells, by, bound, measure)
    if why:
        several = left["cell"].nunique()
        answer += f" {several} of {table['cell'].nunique()} cells without result: {why[0]}"
    return GridAnswer(
        answer=answer,
        columns=[
            *(summaries.Column(one.name, *_heading(one)) for one in by),
            *(summaries.Column(f"{name}_s", shown[name], "time", place) for place, name in enumerate(order)),
        ],
        rows=[
            dict(zip([one.name for one in by], cell.values, strict=True))
            | {f"{name}_s": cell.seconds.get(name) for name in order}
            for cell in cells
        ],
        evidence=_evidence(table, cells),
        assumed="" if table["accuracy"].notna().any() else "accuracy ignored.",
        details={
            "scenario": planned.base.name,
            "seed": planned.base.config.seed,
            "time": measure.label,
            "cells": json.loads(table.to_json(orient="records", double_precision=15)),
        },
        plots={
            one.figure: lambda one=one: _draw(table, planned, one)  # type: ignore[misc]
            for one in drawing.MEASURES
            if one is drawing.ITERATION or measure is one
        },
        notes=[*why, *notes(table)],
        exit_code=1 if why else 0,
        cells=table,
    )


def _draw(table: pd.DataFrame, planned: Plan, measure: drawing.Measure) -> Plot:
    from simnet.base.errors import SimnetError

    base = planned.base
    found = drawing.draw(table, planned.columns, base.name, zipped=planned.zipped, measure=measure, bound=base.bound)
    if found is None:
        raise SimnetError(f"no figure of the {measure.label}: it takes one or two fields that are numbers, and times")
    return found


def _is_repetition(column: Column, columns: Sequence[Column]) -> bool:
    """Return whether a parameter is a seed over which means are taken."""
    return drawing.is_seed(column) and len(columns) > 1 and len(set(column.values)) > 1


def _heading(column: Column) -> tuple[str, summaries.Unit | None]:
    heading = drawing.plain_name(column.name).rpartition(".")[2].replace("_", " ")
    return heading, None if column.numeric else "text"


def _cells_of(
    table: pd.DataFrame, columns: Sequence[Column], by: list[str], measure: drawing.Measure, bound: str | None
) -> list[_Cell]:
    over_seeds = None if measure is drawing.TARGET else drawing.compared(table, columns, measure.seconds, bound)
    if over_seeds is not None and not {*by} <= {*over_seeds}:
        # Seeds alone are cells of their own.
        over_seeds = None
    wins = table[measure.wins].astype("boolean").fillna(value=False).astype(bool)
    wins |= table["tied"] if measure is drawing.ITERATION else False
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
        elif len(first) > 1 and not _is_tie(group):
            # Seeds disagree: who was first most often.
            first = group.loc[group["first"], "policy"].mode().tolist()
        first = sorted((name for name in first if name in seconds), key=lambda name: seconds[name])
        found.append(_Cell(values, seconds, first, bound))
    return found


def _is_tie(group: pd.DataFrame) -> bool:
    return bool(group["cell"].nunique() == 1)


def _where_who_wins(cells: Sequence[_Cell], by: Sequence[Column], bound: str | None, measure: drawing.Measure) -> str:
    """Say where which policy is the fastest, or between what the times of a single one are."""
    done = [one for one in cells if any(name != bound for name in one.seconds)]
    rivals = {name for one in done for name in one.seconds if name != bound}
    each = " to the target" if measure is drawing.TARGET else " an iteration"
    if not done:
        return "No policy reaches the target." if measure is drawing.TARGET else "No cell has a result."
    if len(rivals) == 1:
        (name,) = rivals
        ends = [end(done, key=lambda one: one.seconds[name]) for end in (min, max)]
        told = [f"{wording.seconds_text(one.seconds[name])} at {_values_text(one.values, by)}" for one in ends]
        return f"{name}: {' to '.join(dict.fromkeys(told))}{each}."
    won = [one for one in done if one.first]
    if not won:
        return f"No policy has settled in any of {len(done)} cells."
    always = set.intersection(*(set(one.first) for one in won))
    if all(set(one.first) == always for one in won) or len(won) == 1:
        where = f"in all {len(done)} cells" if len(won) == len(done) else f"in {len(won)} of {len(done)} cells"
        tied = ": tied" if len(won[0].first) > 1 else ""
        took = [one.seconds[won[0].first[0]] for one in won]
        between = " to ".join(dict.fromkeys((wording.seconds_text(min(took)), wording.seconds_text(max(took)))))
        return f"{wording.either(won[0].first)}{tied} {where}, {between}{each}{_lead(won)}."
    groups: dict[tuple[str, ...], list[_Cell]] = {}
    for one in won:
        groups.setdefault(tuple(name for name in one.first if name not in always) or tuple(one.first), []).append(one)
    separating = next((at for at in range(len(by)) if _separates(list(groups.values()), at)), None)
    parts = []
    for names, members in groups.items():
        where = f"in {len(members)} of {len(done)} cells"
        if separating is not None:
            where = f"at {_range_text([one.values[separating] for one in members], by[separating])}"
        parts.append(f"{wording.either(names)} {where}{_lead(members)}")
    more = f" {wording.listed(sorted(always))}: tied with the first in all." if always else ""
    return f"It depends: {', '.join(parts)}.{more}"


def _separates(groups: Sequence[Sequence[_Cell]], at: int) -> bool:
    """Return whether the values of an axis tell which group a cell is in."""
    each = [{one.values[at] for one in group} for group in groups]
    return len(set.union(*each)) == sum(map(len, each))


def _lead(cells: Sequence[_Cell]) -> str:
    """Return how far the next is behind, in brackets."""
    later = [one.next for one in cells if one.next is not None]
    if not later:
        return ""
    texts = [
        wording.to_best(later[0][0], (), ratio, 1.0) for _, ratio in (min(later, key=_ratio), max(later, key=_ratio))
    ]
    names = dict.fromkeys(name for name, _ in later)
    return f" ({next(iter(names)) if len(names) == 1 else 'the next'} {' to '.join(dict.fromkeys(texts))})"


def _ratio(later: tuple[str, float]) -> float:
    return later[1]


def _values_text(values: Sequence[Any], by: Sequence[Column]) -> str:
    return ", ".join(_value_text(value, one) for value, one in zip(values, by, strict=True))


def _value_text(value: Any, column: Column) -> str:
    text = str(value) if isinstance(value, str) else drawing.value_text(column.name, value)
    unit = column.name.rpartition("_")[2]
    return text if column.numeric and unit in ("Bps", "s", "B") else f"{_heading(column)[0]} {text}"


def _range_text(values: Sequence[Any], column: Column) -> str:
    """Return values of an axis, as a range where they follow each other."""
    known = list(dict.fromkeys(column.values))
    places = sorted({known.index(one) for one in values})
    if len(places) > 2 and places == list(range(places[0], places[-1] + 1)):
        return f"{_value_text(known[places[0]], column)} to {_value_text(known[places[-1]], column)}"
    return " and ".join(_value_text(known[one], column) for one in places)


def _evidence(table: pd.DataFrame, cells: Sequence[_Cell]) -> str:
    """Say how well the times are known, and in how many cells the first place is within the error."""
    warnings = [f"Warning: {one}" for one in dict.fromkeys(table["warning"]) if one]
    known = wording.listed([one for one in dict.fromkeys(table.loc[table["simulated_s"].notna(), "evidence"]) if one])
    near = table[(table["chance_to_be_fastest"].fillna(0.0) >= wording.TIED) & ~(table["wins"] | table["tied"])]
    within = f"in {near['cell'].nunique()} of {table['cell'].nunique()} cells another is within the error"
    said = [f"{known}; intervals and chances are in sweep.csv"] if known else []
    return " ".join([*warnings, "; ".join([*said, *([within] if len(near) else [])])]).strip()


def notes(table: pd.DataFrame) -> list[str]:
    """Return assumptions, and sources of times, a line each."""
    during = list(dict.fromkeys(table["policy"][table["overlapped"].fillna(value=False).astype(bool)]))
    overlap = "Overlap: none; exchanges begin after the backward pass."
    if during:
        overlap = f"Overlap: {wording.listed(during)} during the backward pass, in buckets; others after it."
    apart = []
    if START_COLUMNS[0] in table:
        cells = table.loc[table[START_COLUMNS[0]].notna(), "cell"].nunique()
        leaders = f"leaders of {cells} cell{'s' * (cells != 1)} take {' to '.join(START_COLUMNS)} of sweep.csv"
        apart = [f"If workers enter a little apart, {leaders}; where these overlap, they are tied."]
    return [*apart, *computing_told(table["computing"]), overlap]
