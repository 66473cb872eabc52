"""Grids of jobs: the fastest exchange in each cell, by simulation or by closed forms that agree with it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import InputError, SimnetError
from simnet.base.processes import Pool
from simnet.base.progress import track_progress
from simnet.cost_models.evidence.conditions import Evidence
from simnet.policies import Candidate
from simnet.policies.moo import Moo
from simnet.report.paired import TIE
from simnet.report.run_setup import mixed_overlap
from simnet.report.summary import Column, Plot, Row, Summary, percent, table_columns
from simnet.report.wording import lead_text, listed
from simnet.scenario.finding import Source
from simnet.studies import job_totals
from simnet.studies.assumptions import FORMATS, assumed_text, setting
from simnet.studies.choosing import policy, whole_job
from simnet.studies.choosing.answering import ranking_summary
from simnet.studies.choosing.closed_forms import AGREE, QUANTITIES, ClosedForms, closed_forms, override_of
from simnet.studies.choosing.ranking import ChooseRequest, Ranking, rank
from simnet.studies.fastest import (
    GridTimes,
    axis_heads,
    draw_fastest,
    grid_plot,
    lost_cells_text,
    value_text,
    where_fastest,
)
from simnet.studies.sweeping import grid


@dataclass(frozen=True, eq=False)
class Map:
    """Map of the fastest exchange over two quantities, from iteration times, shape (exchanges, y values, x values).

    `values` has the ascending values of both in SI units by quantity, x first.
    """

    among: Sequence[Candidate]
    values: Mapping[str, Floats]
    seconds: Floats

    @cached_property
    def names(self) -> NDArray[np.object_]:
        """Label of the fastest exchange, or labels of tied ones, at each pair of values; shape (y values, x values)."""
        labels = np.array([one.label for one in self.among], dtype=object)
        found: NDArray[np.object_] = labels[self.seconds.argmin(axis=0)]
        close = self.seconds <= (1 + TIE) * self.seconds.min(axis=0)
        for place in zip(*np.nonzero(close.sum(axis=0) > 1), strict=True):
            found[place] = f"{listed(labels[close[:, *place]].tolist())}, tied"
        return found

    @property
    def axes(self) -> list[grid.AxisColumn]:
        """Both quantities as columns of a table, x first."""
        units = {"latency": "_s", "bandwidth": "_Bps"}
        return [grid.AxisColumn(name + units.get(name, ""), own.tolist()) for name, own in self.values.items()]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per cell: both quantities, the fastest exchange, its time, and its lead over the next."""
        order, (x, y) = np.sort(self.seconds, axis=0), self.axes
        return [
            {
                x.name: x.values[column],
                y.name: y.values[row],
                "exchange": str(self.names[row, column]),
                "iteration_s": float(order[0, row, column]),
                "margin": float(order[1, row, column] / order[0, row, column] - 1) if len(order) > 1 else None,
            }
            for row, column in np.ndindex(self.names.shape)
        ]

    def shares(self) -> dict[str, float]:
        """Return the share of cells in which each exchange, or set of tied exchanges, is fastest, largest first."""
        return {str(name): count / self.names.size for name, count in Counter(self.names.ravel()).most_common()}


SIMULATED = 64
"""Maximum cells of a grid that is simulated cell by cell."""

MOST_CELLS = 40_000
"""Maximum cells of a map."""

LOOKED_AT = 20
"""Maximum number of map cells at which closed forms are compared with simulations."""

# Exchanges whose times a figure has.
_DRAWN = 8
# Values of an axis of a map that is simulated, and exchanges that are simulated where closed forms are checked.
_COARSE, _RIVALS = 8, 3

_OF_FASTEST = ("exchange", "mean_iteration_s", "iteration_low_s", "iteration_high_s", "chance_to_be_fastest")

Cell = tuple[str, ...]
"""Scenario overrides of a cell, in the notation of ``--set``."""


class MapSummary(Summary):
    """Summary of a decision map, which shows the fastest exchange at each combination of two quantities."""

    def shown(self) -> tuple[Sequence[Column], Sequence[Row]]:
        """Return a table of the share of cells in which each exchange is fastest."""
        rows = [{"exchange": label, "share": share} for label, share in self.details["shares"].items()]
        return [Column("exchange", "fastest", "text"), Column("share", "of the map", "percent")], rows


def grid_summary(asked: ChooseRequest, axes: Sequence[str], jobs: int | None = None) -> Summary:
    """Return a summary of the fastest exchange in each cell of a grid with the axes of ``--grid`` texts."""
    groups = [grid.moving_together(text) for text in axes]
    flat = [one for group in groups for one in group]
    names = [one.name.rpartition(".")[2] for one in flat]
    count, alone = math.prod(len(group[0].values) for group in groups), len(groups) == len(names)
    links = {"latency", "bandwidth"}
    three = alone and sorted(names) == ["bandwidth", "density", "latency"]
    two = alone and len(names) == 2 and not {*names} - {*QUANTITIES} and (count > SIMULATED or {*names} == links)
    if three or two:
        numbers = {name: _numbers(name, one.values) for name, one in zip(names, flat, strict=True)}
        densities = numbers.pop("density").tolist() if three else ()
        return _map_summary(asked, {name: np.unique(one) for name, one in numbers.items()}, jobs, densities)
    if count > SIMULATED:
        raise InputError(f"has {count:,} cells, more than the {SIMULATED} that are simulated", file="--grid")
    cells = grid.grid_cells(Source(asked.source, asked.overrides), asked.load(), groups)
    grid.refuse_wrong_values([one.values for one in cells], lambda number: asked.load(cells[number].overrides))
    rows = _simulated(asked, [one.overrides for one in cells], jobs)
    short = [one._replace(name=name) for one, name in zip(flat, names, strict=True)]
    return _table_summary(asked, grid.axis_columns(short, cells, ()), rows)


def axis_fields(text: str) -> list[str]:
    """Return the assignments ``field=value`` that the text of a grid axis stands for."""
    one = grid.axis(text)
    return [f"{one.name}={value}" for value in one.values]


def _simulated(asked: ChooseRequest, cells: Sequence[Cell], jobs: int | None) -> list[dict[str, Any]]:
    """Return the table row of each cell, from a ranking of its job."""
    rows: list[dict[str, Any]] = [{}] * len(cells)
    with Pool(jobs if jobs and jobs > 1 else 0) as pool:
        done = pool.each(cell_row, [(asked, cell) for cell in cells], lambda number, share: None)
        for (number, outcome), _ in zip(done, track_progress(cells), strict=True):
            if outcome.kind in ("failed", "lost"):
                raise RuntimeError(outcome.content)
            rows[number] = outcome.content if outcome.kind == "done" else {"refused": str(outcome.content)}
    if all("refused" in one for one in rows):
        raise SimnetError(rows[0]["refused"])
    return rows


def cell_row(asked: ChooseRequest, cell: Cell, report: Callable[[float], None] = lambda done: None) -> dict[str, Any]:
    """Return the table row of a grid cell: its fastest exchange, time and probability, and the runner-up."""
    found = rank(asked, cell, flips=False)
    shown = ranking_summary(found)
    second = next(iter(shown.rows[1 : len(found.rows)]), {})
    over = second.get("over_the_fastest")
    return {name: shown.rows[0][name] for name in _OF_FASTEST} | {
        "runner_up": second.get("exchange"),
        "margin": over,
        "lead": "tied" if found.tied_with else None if over is None else lead_text(1 + over),
        "tied_with": found.tied_with,
        "times_s": {row.label: row.seconds / row.iterations for row in found.rows},
        "evidence": found.evidence,
        "depends_on": mixed_overlap(found.overlap),
    }


def _table_summary(asked: ChooseRequest, by: Sequence[grid.AxisColumn], rows: Sequence[Row]) -> Summary:
    """Return the summary of a grid as a table with a row per cell."""
    shown, cells, refused = [], [], []
    for number, found in enumerate(rows):
        values = tuple(one.values[number] for one in by)
        kept = {name: one for name, one in found.items() if name not in ("evidence", "depends_on")}
        shown.append(dict(zip([one.name for one in by], values, strict=True)) | kept)
        if "refused" in found:
            refused.append(f"{', '.join(map(value_text, values, by))}: {found['refused']}")
        first = [] if "refused" in found else [found["exchange"], *found["tied_with"]]
        cells.append(GridTimes(values, found.get("times_s", {}), first))
    return Summary(
        answer=where_fastest(cells, by) + lost_cells_text(len(refused), len(rows), refused),
        columns=[*axis_heads(by), *table_columns("choose grid")],
        rows=shown,
        evidence=joint_evidence([one["evidence"] for one in rows if "evidence" in one]),
        assumed=assumed_text(asked.load(), varied=[one.heading for one in by]),
        depends_on=next((one["depends_on"] for one in rows if one.get("depends_on")), ""),
        plots=_grid_plots(f"{asked.load().name}: time of an iteration", cells, by),
        notes=refused,
        exit_code=1 if refused else 0,
        next="choose without --grid says what each takes in one cell",
    )


def _grid_plots(title: str, cells: Sequence[GridTimes], by: Sequence[grid.AxisColumn]) -> dict[str, Callable[[], Plot]]:
    """Return the figure of a grid over one or two numeric fields, with only the best exchanges."""
    if len(by) > 2 or not all(one.numeric and len(set(one.values)) > 1 for one in by):
        return {}
    lags = [(took / min(one.seconds.values()), name) for one in cells for name, took in one.seconds.items()]
    best = list(dict.fromkeys(name for _, name in sorted(lags)))[:_DRAWN]
    kept = [one._replace(seconds={name: one.seconds[name] for name in best if name in one.seconds}) for one in cells]
    return {"grid": partial(grid_plot, title, kept, by)}


def joint_evidence(cells: Sequence[Evidence]) -> str:
    """Return a text on how many cells of a grid have measured, extrapolated or assumed times, and why.

    Examples
    --------
    >>> joint_evidence([Evidence("measured"), Evidence("extrapolated", "here 1 us"), Evidence("measured")])
    'measured in 2 of 3 cells, extrapolated in 1: here 1 us.'
    >>> joint_evidence([Evidence("measured")] * 2)
    'measured: links and numbers of workers like these were measured.'
    """
    if len(set(cells)) < 2:
        return "".join(one.line() for one in cells[:1])
    texts = [f"{level} in {count}" for level, count in Counter(one.level for one in cells).most_common()]
    texts[0] += f" of {len(cells)} cells"
    return f"{', '.join(texts)}: {next(one for one in cells if one.because).line().partition(': ')[2]}"


def _map_summary(
    asked: ChooseRequest, values: Mapping[str, Floats], jobs: int | None, densities: Sequence[float] = ()
) -> Summary:
    """Return the summary of a decision map: by closed forms or, if simulations disagree, by simulated cells."""
    found = rank(replace(asked, exact=False))
    forms = closed_forms(found.loaded, found.run, found.found)
    if (count := math.prod(map(len, values.values()))) > MOST_CELLS:
        raise InputError(f"has {count:,} cells, at most {MOST_CELLS:,}", file="--grid")
    made = None if forms is None else map_of(forms, values)
    note = "No closed forms say what this job takes"
    if made is not None:
        lost, off, known = _form_errors(asked, made)
        note = (
            f"Closed forms fill the map. At {min(LOOKED_AT, made.names.size)} simulated cells their choice loses "
            f"{percent(lost)} at most, and their times differ by {percent(off)}."
        )
        if lost > AGREE:
            made, note = None, f"Closed forms would cost {percent(lost)}"
    simulated = made is None
    if made is None:
        made, known = _simulated_map(asked, found, values, jobs)
        note += f": {made.names.size} of {count:,} cells are simulated."
    (label, share), *others = made.shares().items()
    rest = listed([f"{one} in {percent(part)}" for one, part in others[:3]])
    texts = {one.heading: [*map(one.text, one.values)] for one in made.axes}
    of_links = {*values} == {"latency", "bandwidth"}
    table = partial(_table_text, None if simulated else forms, made, found, densities)
    return MapSummary(
        answer=f"{label} is first in {percent(share)} of the map{', ' * bool(rest)}{rest}. {note}",
        columns=[
            *axis_heads(made.axes),
            Column("exchange", "fastest", "text"), Column("iteration_s", "iteration"),
            Column("margin", "before the next", "percent"),
        ],
        rows=made.rows(),
        evidence=joint_evidence(known),
        assumed=assumed_text(found.loaded, found.run, values),
        depends_on=mixed_overlap(found.overlap),
        details={"shares": made.shares(), "simulated": simulated, "cells": int(made.names.size)},
        plots={"map": partial(draw_fastest, _title(found, values), texts, made.names)},
        next=f"--out map.html, .png, .svg or .csv{'; --out policy.json for run time' * of_links}",
        next_saved="",
        writers={".json": lambda path: path.write_text(table(), encoding="utf-8")} if of_links else {},
    )  # fmt: skip


def _title(found: Ranking, values: Collection[str]) -> str:
    """Return the title of a map: the model, and the quantities that are constant in the map."""
    links = found.loaded.config.network.topology.choice[1].arguments().items()
    fixed = {one: FORMATS[one](value) for one, value in links if one in FORMATS and isinstance(value, float)}
    said = setting(found.loaded, found.run.job) | fixed
    return f"Fastest exchange\n{', '.join(f'{one} {text}' for one, text in said.items() if one not in values)}"


def _table_text(forms: ClosedForms | None, made: Map, found: Ranking, densities: Sequence[float]) -> str:
    """Return a map of fastest exchanges as a policy table in JSON; any `densities` are compared in each cell."""
    loaded, job = found.loaded, found.run.job
    if forms is None:
        if densities:
            raise InputError("is only for jobs whose times follow from closed forms", file="--grid density")
        return policy.table_of_map(made, loaded, job).text()
    weights = next((one.search.weights for one in found.run.policies.values() if isinstance(one, Moo)), None)
    links = made.values["latency"], made.values["bandwidth"]
    return policy.make(forms, loaded, job, *links, densities=densities, weights=weights).text()


def _numbers(name: str, texts: Sequence[str]) -> Floats:
    _, numbers = grid.numbers(texts)
    if isinstance(numbers[0], str):
        raise InputError(f"must be numbers with units, got {texts[0]!r}", file=f"--grid {name}")
    return np.array(numbers, dtype=np.float64)


def _spread(count: int, most: int) -> NDArray[np.intp]:
    """Return at most `most` evenly spaced indices below `count`, including the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.intp))


def map_of(forms: ClosedForms, values: Mapping[str, Floats]) -> Map:
    """Return the map of the fastest exchange over two quantities, computed by closed forms."""
    (x, along), (y, down) = values.items()
    where, shape = forms.point.at(x, along[np.newaxis, :]).at(y, down[:, np.newaxis]), (len(down), len(along))
    seconds = [np.broadcast_to(forms.model(one, where).seconds, shape) for one in forms.among]
    return Map(forms.among, values, np.stack(seconds))


def _form_errors(asked: ChooseRequest, made: Map) -> tuple[float, float, list[Evidence]]:
    """Simulate some cells; return the largest relative time loss and time error of closed forms, and the evidence."""
    (x, along), (y, down) = made.values.items()
    lost, off, known = 0.0, 0.0, []
    for place in track_progress(_spread(made.names.size, LOOKED_AT).tolist(), 0.5):
        row, column = np.unravel_index(place, made.names.shape)
        rivals = np.argsort(made.seconds[:, row, column])[:_RIVALS]
        run = asked.load([override_of(x, float(along[column])), override_of(y, float(down[row]))]).build()
        found = whole_job.decide_job(run, [made.among[one] for one in rivals], policies=False)
        took = {one.label: one.seconds / one.iterations for one in found.rows}
        took |= {label: took[one] for one, alike in found.alike.items() for label in alike}
        own = took.get(made.among[rivals[0]].label, math.inf)
        lost = max(lost, own / min(took.values()) - 1)
        off = max(off, abs(float(made.seconds[rivals[0], row, column]) / own - 1))
        known.append(job_totals.evidence_of_job(run.job, [row.sample for row in found.rows]))
        if lost > AGREE:
            break
    return lost, off, known


def _simulated_map(
    asked: ChooseRequest, found: Ranking, values: Mapping[str, Floats], jobs: int | None
) -> tuple[Map, list[Evidence]]:
    """Return a decision map of simulated cells, with fewer values per quantity, and evidence for its times."""
    values = {name: one[_spread(len(one), _COARSE)] for name, one in values.items()}
    (x, along), (y, down) = values.items()
    cells = [(override_of(y, b), override_of(x, a)) for b in down for a in along]
    rows = _simulated(replace(asked, exact=False), cells, jobs)
    among = [row.candidate for row in found.found.rows]
    seconds = np.array([[one.get("times_s", {}).get(each.label, math.inf) for one in rows] for each in among])
    made = Map(among, values, seconds.reshape(len(among), len(down), len(along)))
    return made, [one["evidence"] for one in rows if "evidence" in one]
