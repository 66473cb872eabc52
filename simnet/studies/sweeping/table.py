"""Table and files of a sweep, with a row per cell and policy in grid order.

Equal sweeps leave equal bytes, whatever was interrupted on the way, and in whatever order the cells came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simnet.base.atomic_replace import FileSet, replace_files
from simnet.base.spreadsheets import guard_table
from simnet.base.writing import mark_incomplete, write_files
from simnet.report.paired import START_COLUMNS
from simnet.report.results import LOCK, RESULTS, parquet, versions
from simnet.report.run_summary import significant
from simnet.scenario import Scenario
from simnet.scenario.identity import Request, request
from simnet.studies.sweeping.answer import GridAnswer, compared_policies, grid_answer
from simnet.studies.sweeping.cell import COLUMNS
from simnet.studies.sweeping.grid import AxisColumn, GridAxis, GridCell

if TYPE_CHECKING:
    from simnet.studies.sweeping.work import Plan

_TEXTS = ("policy", "device", "evidence", "computing", "warning", "status", "choice", "message")
_WHOLE = ("iterations", "steady_from", "total_bytes_sent_B", "inner_steps", "switch_count", "iterations_to_target")

FILES = FileSet("sweep", RESULTS, "sweep.json")
"""Files of a sweep, without cell files and the scenario's input files."""


def request_of(loaded: Scenario, axes: Sequence[GridAxis]) -> Request:
    """Return the request of a sweep, identified by parameter names without values, so that a grid may grow."""
    return request(loaded, "run", "grid", *sorted(axis.name for axis in axes))


def without_result(status: str, message: str) -> list[dict[str, Any]]:
    """Return the rows of a cell without results."""
    return [
        {**dict.fromkeys(COLUMNS), "policy": "", "status": status, "wins": False, "tied": False, "message": message}
    ]


def rows_of(
    cells: Sequence[GridCell], columns: Sequence[AxisColumn], results: Mapping[int, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the table rows of all cells with results, in grid order."""
    return [
        {"cell": cell.number, **{column.name: column.values[cell.number] for column in columns}, **row}
        for cell in cells
        for row in results.get(cell.number, ())
    ]


def sweep_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[AxisColumn]) -> pd.DataFrame:
    """Return rows as a data frame; missing values are empty texts or NaN."""
    starts = [name for name in START_COLUMNS if any(name in row for row in rows)]
    table = pd.DataFrame(list(rows), columns=["cell", *(column.name for column in columns), *COLUMNS, *starts])
    for name in COLUMNS:
        if name in _TEXTS:
            table[name] = table[name].fillna("").astype(str)
        elif name in _WHOLE:
            table[name] = pd.array([row[name] for row in rows], dtype="Int64")
        elif name in ("wins", "tied"):
            table[name] = table[name].astype(bool)
        elif name in ("first_to_target", "barrier", "overlapped"):
            table[name] = pd.array([row[name] for row in rows], dtype="boolean")
        else:
            table[name] = table[name].astype("float64")
    return table


def write_sweep(
    folder: Path, planned: Plan, results: Mapping[int, Sequence[Mapping[str, Any]]], *, incomplete: str = ""
) -> GridAnswer:
    """Write a sweep's files except its cells, replacing earlier ones, and return the answer."""
    loaded, axes, cells, columns = planned.base, planned.axes, planned.cells, planned.columns
    rows = rows_of(cells, columns, results)
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
    written = {LOCK: lock}
    for name, path in loaded.inputs().items():
        written[name] = path.read_bytes()
    for name, draw in answer.plots.items():
        plot = draw()
        written |= {f"figures/{name}.{kind}": getattr(plot, kind) for kind in ("png", "svg")}
    over_seeds = compared_policies(table, columns, "iteration_s", loaded.bound)
    if over_seeds is not None:
        numbers = over_seeds.select_dtypes("float64")
        rounded = over_seeds.assign(**{str(name): significant(one) for name, one in numbers.items()})
        written["paired.csv"] = guard_table(rounded).to_csv(index=False, lineterminator="\n").encode()
    written["sweep.csv"] = guard_table(table).to_csv(index=False, lineterminator="\n").encode()
    written["sweep.parquet"] = parquet(table)
    written["sweep.json"] = json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"
    with replace_files(folder, FILES) as stage:
        mark_incomplete(stage, incomplete)
        write_files(stage, written)
    return answer
