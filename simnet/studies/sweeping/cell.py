"""Cells of a sweep, each of which is a scenario under all its policies, and the table of all cells.

`run_cell` runs elsewhere, in another process or on another machine. It returns bytes and writes nothing, and they
depend on nothing but the scenario, the files that it names and the versions of what computes; `identity` is a hash of
just these. The bytes carry a hash of themselves, so that a file that was cut off or altered is known as such.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from simnet.base.errors import SimnetError
from simnet.base.file_io import FileSet, mark_incomplete, replace_files, write_files
from simnet.base.processes import Report
from simnet.report import cost_summary, learning, run_summary, wording
from simnet.report.paired import START_COLUMNS, start_ranges
from simnet.report.results import LOCK, RESULTS, picture_files, rounded_table, versions, write_frame
from simnet.scenario import Run, Scenario
from simnet.scenario.finding import Source
from simnet.scenario.runner import Outcome, Request, identity, request, run_here
from simnet.studies.assumptions import sample_warnings
from simnet.studies.job_totals import judgement, rivals, run_facts
from simnet.studies.sweeping.answer import GridAnswer, compared_policies, grid_answer
from simnet.studies.sweeping.grid import AxisColumn, GridAxis
from simnet.training.job.job import job_overlap
from simnet.training.job.record import PolicyResult

if TYPE_CHECKING:
    from simnet.studies.sweeping.work import Plan

FORMAT = "simnet sweep cell 16"
"""Format tag of cell files, changed whenever columns or their meaning change."""

MAX_BYTES = 64 * 2**20
"""Maximum size of a cell file [byte]."""

COLUMNS = (
    *("policy", "device", "barrier", "warning", "overlapped", "computing", "status", "wins", "tied", "iterations"),
    *("steady_from", "simulated_s", "simulated_prediction_low_s", "simulated_prediction_high_s"),
    *("chance_to_be_fastest", "evidence", "iteration_s", "compute_s", "select_s", "select_low_s", "select_high_s"),
    *("communicate_s", "wait_s", "total_bytes_sent_B", *run_summary.DENSITIES, "choice", "switch_count"),
    *("vs_best", "regret_s", *cost_summary.COLUMNS, *learning.COLUMNS, "message"),
)
"""Columns of the results of a sweep, after those of its parameters; where times of leaders depend on when workers
enter, `simnet.report.paired.START_COLUMNS` follow."""

# A machine's workers may be threads of one process, and simulations that take turns lose nothing by it.
_TURN = threading.Lock()


class Checked(NamedTuple):
    """Result of checking a cell: the hash of its scenario, and how many cells of this size fit into memory at once."""

    identity: str
    at_once: int


def check_cell(source: Source, folder: str, wanted: int, report: Report = lambda done: None) -> Checked:
    """Check a cell's scenario; return its hash and how many of `wanted` such cells fit into memory at once."""
    loaded = source.load()
    found = identity(loaded, FORMAT)
    if not (Path(folder) / f"{found}.json").exists():
        loaded.build()
    return Checked(found, loaded.at_once(wanted))


def run_cell(source: Source, expected: str, report: Report = lambda done: None) -> bytes:
    """Run the policies of a cell, and return the bytes of its results file."""
    with _TURN:
        loaded = source.load()
        if identity(loaded, FORMAT) != expected:
            raise SimnetError(
                "is not the same on the worker: the versions of simnet, numpy, SimPy or registered schemes differ, or "
                "files that the scenario names"
            )
        built = loaded.build()
        done = dict.fromkeys(built.policies, 0)

        def of_policy(name: str, count: int) -> None:
            done[name] = count
            report(sum(done.values()) / (len(done) * built.job.iterations))

        rows = cell_rows(loaded, built, dict(run_here(built, of_policy)))
        content = {
            "format": FORMAT,
            "identity": expected,
            "rows": rows,
            "scenario": loaded.lock(),
            "versions": versions(),
        }
        written = {"content": content, "sha256": _content_hash(content)}
        return json.dumps(written, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def _empty_row(**known: Any) -> dict[str, Any]:
    """Return a table row with the columns `COLUMNS`; those not in `known` are empty."""
    return {**dict.fromkeys(COLUMNS), "policy": "", "wins": False, "tied": False, "message": "", **known}


def cell_rows(loaded: Scenario, built: Run, outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """Return a table row per policy with the columns `COLUMNS`; missing values are None."""
    found = {name: outcomes[name] for name in built.policies}
    results = {name: one for name, one in found.items() if isinstance(one, PolicyResult)}
    judgements, evidence = judgement(loaded, built, rivals(built, results))
    job, summary = built.job, run_summary.RunSummary()
    if results:
        # Data parallelism has inner steps as well, one an iteration.
        steps = {"steps": 1 if job.strategy is None else job.strategy.steps}
        facts = run_facts(loaded, built, results, {"strategy": steps, "prices": loaded.prices}, judgements)
        summary = run_summary.summarize({name: result.iterations for name, result in results.items()}, facts)
    not_sampled = wording.entering_apart({}, [], summary.get("starts_not_sampled"))
    gradients = job.strategy is None and job.steps is None
    rows = []
    for name, policy in built.policies.items():
        row = _empty_row(
            policy=name,
            device=job.device.name,
            barrier=job.barrier,
            overlapped=gradients and job_overlap(job, policy.candidates) is not None,
            computing=loaded.computing,
            warning=" ".join([*built.warnings, *sample_warnings(job, [policy]), *not_sampled]),
            status="failed",
            message="" if name in results else str(found[name]).splitlines()[0],
        )
        if name in results:
            row |= _cell_row(summary, name) | run_summary.learning_columns(summary).get(name, {})
            row["evidence"] = evidence.level
        rows.append(row)
    return rows


def decoded(data: bytes, name: str) -> list[dict[str, Any]] | None:
    """Return the rows in a cell's results file; None if the file is incomplete or belongs to another cell."""
    if len(data) > MAX_BYTES:
        return None
    try:
        written = json.loads(data)
        content = written["content"]
        if written["sha256"] != _content_hash(content) or (content["format"], content["identity"]) != (FORMAT, name):
            return None
        found = content["rows"]
        return found if found and all(row.keys() - {*START_COLUMNS} == {*COLUMNS} for row in found) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _cell_row(summary: run_summary.RunSummary, name: str) -> dict[str, Any]:
    one, winner = summary["policies"][name], summary["winner"]
    best = summary["policies"][winner["policy"]]["simulated_s"] if winner is not None else 0.0
    means, spent = one["means"], one.get("spent")
    return {
        "status": "ended" if one["ended"] else "done" if run_summary.ranked(one) else "unsettled",
        "message": "" if one["unsettled"] is None else f"not settled: {one['unsettled']}",
        "wins": winner is not None and name == winner["policy"] and not winner["tied_with"],
        "tied": winner is not None and bool(winner["tied_with"]) and name in (winner["policy"], *winner["tied_with"]),
        **run_summary.policy_columns(one),
        "steady_from": 0 if one["ended"] else summary["steady_from"],
        **{column: means.get(column) for column in run_summary.MEANS},
        "vs_best": run_summary.plain(one["simulated_s"] / best) if best > 0 and run_summary.ranked(one) else None,
        **({} if spent is None else {column: spent[column] for column in cost_summary.COLUMNS}),
        "money": spent and spent["money"] and spent["money"]["together"],
        **{
            column: run_summary.plain(means["iteration_s"] * end / one["simulated_s"])
            for ends in start_ranges({name: one}).values()
            for column, end in zip(START_COLUMNS, ends, strict=True)
        },
    }


def _content_hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


_TEXTS = ("policy", "device", "evidence", "computing", "warning", "status", "choice", "message")
_WHOLE = ("iterations", "steady_from", "total_bytes_sent_B", "inner_steps", "switch_count", "iterations_to_target")
_KINDS = {
    **dict.fromkeys(_TEXTS, "str"),
    **dict.fromkeys(_WHOLE, "Int64"),
    **dict.fromkeys(("wins", "tied"), "bool"),
    **dict.fromkeys(("first_to_target", "barrier", "overlapped"), "boolean"),
}

FILES = FileSet("sweep", RESULTS, "sweep.json")
"""Files of a sweep, without cell files and the scenario's input files."""


def request_of(loaded: Scenario, axes: Sequence[GridAxis]) -> Request:
    """Return the hash that marks the folder of a sweep; axis values do not enter it, so that a grid can be extended."""
    return request(loaded, "run", "grid", *sorted(axis.name for axis in axes))


def without_result(status: str, message: str) -> list[dict[str, Any]]:
    """Return the table rows of a cell that has no results."""
    return [_empty_row(status=status, message=message)]


def sweep_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[AxisColumn]) -> pd.DataFrame:
    """Return rows as a data frame, in which missing values are empty texts or NaN."""
    starts = [name for name in START_COLUMNS if any(name in row for row in rows)]
    table = pd.DataFrame(list(rows), columns=["cell", *(column.name for column in columns), *COLUMNS, *starts])
    return table.fillna(dict.fromkeys(_TEXTS, "")).astype(dict.fromkeys(COLUMNS, "float64") | _KINDS)


def write_sweep(
    folder: Path, planned: Plan, results: Mapping[int, Sequence[Mapping[str, Any]]], *, incomplete: str = ""
) -> GridAnswer:
    """Write a sweep's files, except those of cells, in place of earlier files, and return the answer."""
    loaded, axes, cells, columns = planned.base, planned.axes, planned.cells, planned.columns
    rows = [
        {"cell": one.number, **{column.name: column.values[one.number] for column in columns}, **row}
        for one in cells
        for row in results.get(one.number, ())
    ]
    table = sweep_table(rows, columns)
    answer = grid_answer(table, planned)
    lock = request_of(loaded, axes).lock.encode()
    content = {
        "scenario": loaded.name,
        "scenario_sha256": hashlib.sha256(lock).hexdigest(),
        "seed": loaded.config.seed,
        "versions": versions(),
        "parameters": [
            {"name": axis.name, "column": column.name, "values": list(axis.values)}
            for axis, column in zip(axes, columns, strict=True)
        ],
        "zip": planned.zipped,
        "cells": len(cells),
        "missing": [cell.number for cell in cells if cell.number not in results],
        "rows": rows,
    }
    written = {LOCK: lock, **{name: path.read_bytes() for name, path in loaded.inputs().items()}}
    written |= picture_files(draw()._replace(name=name) for name, draw in answer.plots.items())
    over_seeds = compared_policies(table, columns, "iteration_s", loaded.bound)
    written["sweep.json"] = json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"
    with replace_files(folder, FILES) as stage:
        mark_incomplete(stage, incomplete)
        write_frame(stage, "sweep", table)
        if over_seeds is not None:
            write_frame(stage, "paired", rounded_table(over_seeds))
        write_files(stage, written)
    return answer
