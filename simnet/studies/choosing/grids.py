"""Choices over grids: the fastest exchange in each cell, by simulation or by closed forms that agree with it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import InputError, SimnetError
from simnet.base.processes import Pool
from simnet.base.progress import track_progress
from simnet.base.units import determined, format_bandwidth, format_seconds
from simnet.policies import Candidate
from simnet.policies.moo import Moo
from simnet.report.paired import TIE
from simnet.report.run_setup import mixed_overlap
from simnet.report.summary import WIDTH, Column, Summary, Unit, percent, table_columns
from simnet.report.wording import lead_text, listed
from simnet.studies.assumptions import assumed_text
from simnet.studies.choosing import whole_job
from simnet.studies.choosing.answering import evidence_text
from simnet.studies.choosing.closed_forms import AGREE, QUANTITIES, ClosedForms, closed_forms
from simnet.studies.choosing.forecast import exchange_kind
from simnet.studies.choosing.policy import make, table_of_map
from simnet.studies.choosing.ranking import Ranking, load_job, rank
from simnet.studies.fastest_map import MapAxis, draw_fastest
from simnet.studies.sweeping import grid

_SHOWN: Mapping[str, tuple[str, Unit, Callable[[float], str]]] = {
    "latency": ("latency_s", "time", format_seconds),
    "bandwidth": ("bandwidth_Bps", "rate", format_bandwidth),
    "density": ("density", "percent", "{:.3g}".format),
    "workers": ("workers", "number", "{:.0f}".format),
}


class Axis(NamedTuple):
    """An axis of a map: its quantity and its values in SI units, ascending."""

    name: str
    values: Floats

    @property
    def key(self) -> str:
        """Column name."""
        return _SHOWN[self.name][0]

    @property
    def unit(self) -> Unit:
        """Unit of the column."""
        return _SHOWN[self.name][1]

    @property
    def drawn(self) -> MapAxis:
        """The axis as drawn in the figure."""
        return MapAxis(self.name, [_SHOWN[self.name][2](one) for one in self.values.tolist()])


@dataclass(frozen=True, eq=False)
class Map:
    """Fastest exchange over two quantities, from iteration times of shape (exchanges, y values, x values)."""

    among: Sequence[Candidate]
    x: Axis
    y: Axis
    seconds: Floats

    @property
    def which(self) -> NDArray[np.intp]:
        """Index of the fastest exchange in each cell, shape (y, x); ties go to the first."""
        return np.asarray(self.seconds.argmin(axis=0))

    @property
    def tied(self) -> NDArray[np.bool_]:
        """Mask of exchanges tied for fastest, within `simnet.report.paired.TIE`; shape (exchanges, y, x)."""
        close = self.seconds <= (1 + TIE) * self.seconds.min(axis=0)
        return np.asarray(close & (close.sum(axis=0) > 1))

    @property
    def names(self) -> NDArray[np.object_]:
        """Label of the fastest exchange in each cell, or of all tied ones; shape (len(y), len(x))."""
        labels, tied = np.array([one.label for one in self.among], dtype=object), self.tied
        found: NDArray[np.object_] = labels[self.which]
        for place in zip(*np.nonzero(tied.any(axis=0)), strict=True):
            found[place] = f"{listed(labels[tied[:, *place]].tolist())}, tied"
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per cell: both quantities, the fastest exchange, its time, and the margin of the next."""
        order = np.sort(self.seconds, axis=0)
        names = self.names
        return [
            {
                self.x.key: self.x.values[column].item(),
                self.y.key: self.y.values[row].item(),
                "exchange": str(names[row, column]),
                "iteration_s": float(order[0, row, column]),
                "margin": float(order[1, row, column] / order[0, row, column] - 1) if len(order) > 1 else None,
            }
            for row, column in np.ndindex(names.shape)
        ]

    def shares(self) -> dict[str, float]:
        """Return the share of cells in which each exchange, or set of tied ones, is fastest; largest first."""
        return {str(name): count / self.names.size for name, count in Counter(self.names.ravel()).most_common()}


SIMULATED = 64
"""Maximum cells of a grid that is simulated cell by cell."""

MOST_CELLS = 40_000
"""Maximum cells of a map."""

LOOKED_AT = 20
"""Number of map cells at which closed forms are compared with simulations."""

# Values of an axis of a map that is simulated, and exchanges that are simulated where closed forms are checked.
_COARSE, _RIVALS = 8, 3

Cell = tuple[str, ...]
"""Scenario overrides of a cell, in the notation of ``--set``."""


class MapSummary(Summary):
    """Summary of a decision map: the fastest exchange in each cell."""

    def text(self, width: int = WIDTH, *, wide: bool = False) -> str:
        """Return the answer for a console: the number of cells in which each exchange is fastest."""
        rows = [{"exchange": label, "share": share} for label, share in self.details["shares"].items()]
        columns = [Column("exchange", "fastest", "text"), Column("share", "of the map", "percent")]
        fields = {name: getattr(self, name) for name in ("answer", "evidence", "assumed", "next", "notes")}
        return Summary(columns=columns, rows=rows, **fields).text(width, wide=wide)


@dataclass(frozen=True)
class CellRequest:
    """Request shared by all cells: scenario, overrides, whether to simulate every iteration, and policies."""

    source: str | Path
    overrides: tuple[str, ...]
    exact: bool = False
    policies: tuple[str, ...] = ()

    def load(self, cell: Sequence[str], more: Sequence[str]) -> Any:
        """Return the scenario of a cell with further overrides."""
        return load_job(self.source, [*self.overrides, *cell, *more])


def grid_summary(asked: CellRequest, axes: Sequence[str], jobs: int | None = None) -> Summary:
    """Return a summary of the fastest exchange in each cell of a grid; axes are ``--grid`` texts."""
    groups = [grid.moving_together(text) for text in axes]
    flat = [one for group in groups for one in group]
    names = [one.name.rpartition(".")[2] for one in flat]
    together = [list(zip(*(one.values for one in group), strict=True)) for group in groups]
    count = math.prod(map(len, together))
    if len(groups) == 3 and sorted(names) == ["bandwidth", "density", "latency"]:
        densities = flat[names.index("density")]
        axes_ = {one.name: one.values for one in flat if one is not densities}
        return _map_summary(asked, axes_, jobs, _numbers("density", densities.values).tolist())
    two = len(groups) == len(names) == 2 and set(names) <= {*QUANTITIES}
    if two and (count > SIMULATED or set(names) == {"latency", "bandwidth"}):
        return _map_summary(asked, {one.name: one.values for one in flat}, jobs)
    if count > SIMULATED:
        raise InputError(f"has {count:,} cells, more than the {SIMULATED} that are simulated", file="--grid")
    values = [tuple(itertools.chain(*each)) for each in itertools.product(*together)]
    cells = [tuple(f"{axis.name}={one}" for axis, one in zip(flat, each, strict=True)) for each in values]
    grid.refuse_wrong_values(cells, lambda number: asked.load(cells[number], ()))
    rows = _simulated(asked, cells, jobs)
    return _table_summary(asked, dict(zip(names, zip(*values, strict=True), strict=True)), rows)


def axis_fields(text: str) -> list[str]:
    """Return the assignments ``field=value`` of an axis."""
    one = grid.axis(text)
    return [f"{one.name}={value}" for value in one.values]


def _simulated(asked: CellRequest, cells: Sequence[Cell], jobs: int | None) -> list[dict[str, Any]]:
    """Return the row of each cell."""
    rows: list[dict[str, Any]] = [{}] * len(cells)
    with Pool(jobs if jobs is not None and jobs > 1 else 0) as pool:
        done = pool.each(cell_row, [(asked, cell) for cell in cells], lambda number, share: None)
        for (number, outcome), _ in zip(done, track_progress(cells), strict=True):
            if outcome.kind in ("failed", "lost"):
                raise RuntimeError(outcome.content)
            rows[number] = outcome.content if outcome.kind == "done" else {"refused": str(outcome.content)}
    if all("refused" in one for one in rows):
        raise SimnetError(rows[0]["refused"])
    return rows


def cell_row(asked: CellRequest, cell: Cell, report: Callable[[float], None] = lambda done: None) -> dict[str, Any]:
    """Return the table row of a cell: fastest exchange, its time and probability, and the runner-up."""
    found = rank(partial(asked.load, cell), exact=asked.exact, policies=asked.policies, flips=False)
    best, chance = found.best, float(found.likely.fastest[0])
    low, high = (float(one[0]) / best.iterations for one in (found.likely.low, found.likely.high))
    known = determined(low, high)
    second = found.rows[1] if len(found.rows) > 1 else None
    return {
        "exchange": best.label,
        "mean_iteration_s": best.seconds / best.iterations,
        "iteration_low_s": low if known else None,
        "iteration_high_s": high if known else None,
        "chance_to_be_fastest": chance,
        "runner_up": None if second is None else second.label,
        "margin": None if second is None else found.over(second),
        "lead": "tied" if found.tied_with else None if second is None else lead_text(1 + found.over(second)),
        "tied_with": found.tied_with,
        "times_s": {row.label: row.seconds / row.iterations for row in found.rows},
        "evidence": evidence_text(found.evidence),
        "depends_on": mixed_overlap(found.assumed.overlap),
    }


def _table_summary(asked: CellRequest, values: Mapping[str, Sequence[str]], rows: Sequence[dict[str, Any]]) -> Summary:
    """Return the cells of a grid as a summary."""
    columns, shown = [], [dict[str, Any]() for _ in rows]
    for name, texts in values.items():
        unit, numbers = grid.numbers(texts)
        key = name if unit is None else f"{name}_{unit}"
        columns.append(
            Column(key, name, "text" if isinstance(numbers[0], str) else "percent" if name == "density" else None)
        )
        for row, value in zip(shown, numbers, strict=True):
            row[key] = value
    for row, found in zip(shown, rows, strict=True):
        row |= {name: one for name, one in found.items() if name not in ("evidence", "depends_on")}
    columns += table_columns("choose grid")
    refused = [f"{key}: {row['refused']}" for key, row in zip(map(str, shown), rows, strict=True) if "refused" in row]
    loaded = asked.load((), ())
    return Summary(
        answer=_where_text([one for one in shown if "exchange" in one], columns[0]),
        columns=columns,
        rows=shown,
        evidence=next((one["evidence"] for one in rows if "evidence" in one), ""),
        assumed=assumed_text(loaded, varied=values),
        depends_on=next((one["depends_on"] for one in rows if one.get("depends_on")), ""),
        notes=refused,
        next="choose without --grid says what each takes in one cell",
    )


def _where_text(rows: Sequence[Mapping[str, Any]], column: Column) -> str:
    """Return text on the number of cells in which each exchange is fastest."""
    first = list(dict.fromkeys(one["exchange"] for one in rows))
    if len(first) == 1:
        return f"{first[0]} is first in all {len(rows)} cells."
    parts = [f"{label} in {sum(one['exchange'] == label for one in rows)}" for label in first]
    return f"It depends: {listed(parts)} of {len(rows)} cells."


def _map_summary(
    asked: CellRequest, axes: Mapping[str, Sequence[str]], jobs: int | None, densities: Sequence[float] = ()
) -> Summary:
    """Return a map over two quantities by closed forms, or by simulating fewer cells if these disagree.

    With several `densities` the policy table also chooses among these.
    """
    found = rank(partial(asked.load, ()), exact=False, policies=asked.policies)
    forms = closed_forms(found.loaded, found.run, found.found)
    names = [name.rpartition(".")[2] for name in axes]
    values = {name: np.unique(_numbers(name, texts)) for name, texts in zip(names, axes.values(), strict=True)}
    x, y = names
    of_links = {x, y} == {"latency", "bandwidth"}
    if (count := math.prod(map(len, values.values()))) > MOST_CELLS:
        raise InputError(f"has {count:,} cells, at most {MOST_CELLS:,}", file="--grid")
    made, checked = (None, None) if forms is None else _checked_map(asked, forms, values)
    simulated = made is None
    if made is None:
        made = _simulated_map(asked, found, {name: _thinned(one) for name, one in values.items()}, jobs)
    if checked is None:
        note = f"No closed forms say what this job takes: {made.which.size} of {count:,} cells are simulated."
    elif simulated:
        note = f"Closed forms would cost {percent(checked.lost)}: {made.which.size} of {count:,} cells are simulated."
    else:
        note = (
            f"By closed forms; at {LOOKED_AT} cells that were simulated these cost {percent(checked.lost)} at most, "
            f"and times are {percent(checked.off)} off."
        )
    shares = made.shares()
    answer = f"{next(iter(shares))} is first in {percent(next(iter(shares.values())))} of the map"
    others = [f"{label} in {percent(share)}" for label, share in itertools.islice(shares.items(), 1, 4)]
    title = f"Fastest exchange: {found.loaded.name}"
    table = partial(_table_text, None if simulated else forms, made, found, densities)

    def write_table(path: Path) -> None:
        path.write_text(table(), encoding="utf-8")

    return MapSummary(
        answer=f"{answer}{', ' if others else ''}{listed(others)}. {note}",
        columns=[
            Column(made.x.key, x, made.x.unit), Column(made.y.key, y, made.y.unit),
            Column("exchange", "fastest", "text"), Column("iteration_s", "iteration"),
            Column("margin", "before the next", "percent"),
        ],
        rows=made.rows(),
        evidence=evidence_text(found.evidence),
        assumed=assumed_text(found.loaded, found.run, names),
        depends_on=mixed_overlap(found.assumed.overlap),
        details={"shares": shares, "simulated": simulated, "cells": int(made.which.size)},
        plots={"map": partial(draw_fastest, title, made.x.drawn, made.y.drawn, made.names)},
        next=f"--out map.html, .png, .svg or .csv{'; --out policy.json for run time' * of_links}",
        writers={".json": write_table} if of_links else {},
    )  # fmt: skip


def _table_text(forms: ClosedForms | None, made: Map, found: Ranking, densities: Sequence[float]) -> str:
    """Return the JSON policy table of a map, with the objective weights of a `moo` policy in the scenario."""
    centres = {one.name: one.values for one in (made.x, made.y)}
    loaded, job = found.loaded, found.run.job
    if forms is None:
        if densities:
            raise InputError("is only for jobs whose times follow from closed forms", file="--grid density")
        return table_of_map(made, loaded, job).text()
    weights = next((one.search.weights for one in found.run.policies.values() if isinstance(one, Moo)), None)
    links = centres["latency"], centres["bandwidth"]
    return make(forms, loaded, job, *links, densities=densities, weights=weights).text()


def _numbers(name: str, texts: Sequence[str]) -> Floats:
    _, numbers = grid.numbers(texts)
    if isinstance(numbers[0], str):
        raise InputError(f"must be numbers with units, got {texts[0]!r}", file=f"--grid {name}")
    return np.array(numbers, dtype=np.float64)


def _thinned(values: Floats) -> Floats:
    """Return about `_COARSE` evenly spaced values, both ends included."""
    places = np.unique(np.linspace(0, len(values) - 1, min(_COARSE, len(values))).round().astype(int))
    return np.asarray(values[places])


def _fields(name: str, value: float) -> str:
    unit = {"latency": " s", "bandwidth": " B/s"}.get(name, "")
    return f"{name}={value:.0f}" if name == "workers" else f"{name}={float(value)!r}{unit}"


class Check(NamedTuple):
    """Error of closed forms at checked cells: extra time of their choice, and error of its time, as fractions."""

    lost: float
    off: float


def _checked_map(asked: CellRequest, forms: ClosedForms, values: Mapping[str, Floats]) -> tuple[Map | None, Check]:
    """Return the map by closed forms, and their largest errors at simulated cells; None in place of a wrong map."""
    (x, along), (y, down) = values.items()
    where, shape = forms.point.at(x, along[np.newaxis, :]).at(y, down[:, np.newaxis]), (len(down), len(along))
    seconds = np.stack([np.broadcast_to(forms.model(one, where).seconds, shape) for one in forms.among])
    made, lost, off = Map(forms.among, Axis(x, along), Axis(y, down), seconds), 0.0, 0.0
    cells = np.unique(np.linspace(0, made.which.size - 1, LOOKED_AT).round().astype(int))
    for place in track_progress(cells.tolist(), 0.5):
        row, column = np.unravel_index(place, made.which.shape)
        at = {x: along[column], y: down[row]}
        first, *others = np.argsort(made.seconds[:, row, column])[:_RIVALS]
        run = asked.load([_fields(name, float(value)) for name, value in at.items()], ()).build()
        rivals = [(made.among[one], exchange_kind(made.among[one])) for one in (first, *others)]
        found = whole_job.decide_job(run, rivals, policies=False)
        took = {one.label: one.seconds / one.iterations for one in found.rows}
        took |= {label: took[one] for one, alike in found.alike.items() for label in alike}
        own = took.get(made.among[first].label, math.inf)
        lost = max(lost, own / min(took.values()) - 1)
        off = max(off, abs(float(made.seconds[first, row, column]) / own - 1))
        if lost > AGREE:
            break
    return made if lost <= AGREE else None, Check(lost, off)


def _simulated_map(asked: CellRequest, found: Ranking, values: Mapping[str, Floats], jobs: int | None) -> Map:
    """Return a map with every cell simulated."""
    (x, along), (y, down) = values.items()
    cells = [(_fields(y, float(b)), _fields(x, float(a))) for b in down for a in along]
    rows = _simulated(replace(asked, exact=False), cells, jobs)
    among = [row.candidate for row in found.found.rows]
    seconds = np.array([[one.get("times_s", {}).get(each.label, math.inf) for one in rows] for each in among])
    return Map(among, Axis(x, along), Axis(y, down), seconds.reshape(len(among), len(down), len(along)))
