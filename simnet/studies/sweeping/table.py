"""The table of a sweep, a row per cell and policy in the order of the grid, and the files that hold it.

Equal sweeps leave equal bytes, whatever was interrupted on the way, and in whatever order the cells came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simnet.base.writing import write_files
from simnet.report.results import parquet, versions
from simnet.report.summary import significant
from simnet.scenario import Scenario
from simnet.studies.sweeping import drawing
from simnet.studies.sweeping.cell import COLUMNS
from simnet.studies.sweeping.grid import Axis, Cell, Column

_TEXTS = ("policy", "device", "status", "choice", "message")
_WHOLE = ("iterations", "bytes_sent_B", "switches", "iterations_to_target")


def without_result(status: str, message: str) -> list[dict[str, Any]]:
    """Return what stands for the rows of a cell that has none.

    Examples
    --------
    >>> [(row["status"], row["message"]) for row in without_result("refused", "workers: must be >= 1, got 0")]
    [('refused', 'workers: must be >= 1, got 0')]
    """
    return [{**dict.fromkeys(COLUMNS), "policy": "", "status": status, "wins": False, "message": message}]


def rows_of(
    cells: Sequence[Cell], columns: Sequence[Column], results: Mapping[int, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the rows of all cells that have a result, in the order of the grid.

    Parameters
    ----------
    cells, columns, results
        As of `write`.
    """
    return [
        {"cell": cell.number, **{column.name: column.values[cell.number] for column in columns}, **row}
        for cell in cells
        for row in results.get(cell.number, ())
    ]


def as_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pd.DataFrame:
    """Return rows as a table; what is not there is blank in texts, and missing in numbers."""
    table = pd.DataFrame(list(rows), columns=["cell", *(column.name for column in columns), *COLUMNS])
    for name in COLUMNS:
        if name in _TEXTS:
            table[name] = table[name].fillna("").astype(str)
        elif name in _WHOLE:
            table[name] = pd.array([row[name] for row in rows], dtype="Int64")
        elif name == "wins":
            table[name] = table[name].astype(bool)
        elif name in ("first_to_target", "barrier"):
            table[name] = pd.array([row[name] for row in rows], dtype="boolean")
        else:
            table[name] = table[name].astype("float64")
    return table


def write(
    folder: Path,
    loaded: Scenario,
    axes: Sequence[Axis],
    cells: Sequence[Cell],
    columns: Sequence[Column],
    results: Mapping[int, Sequence[Mapping[str, Any]]],
    *,
    zipped: bool,
) -> pd.DataFrame:
    """Write all but the cells into the folder, and return the table.

    Parameters
    ----------
    folder : Path
        The folder, which exists.
    loaded : Scenario
        The scenario without the parameters.
    axes : sequence of Axis
        The parameters.
    cells : sequence of Cell
        The grid.
    columns : sequence of Column
        The parameters as columns of the table.
    results : mapping of int to rows
        By the number of the cell; cells that are not there are left out.
    zipped : bool
        Whether the parameters change side by side.
    """
    rows = rows_of(cells, columns, results)
    table = as_table(rows, columns)
    lock = loaded.lock().encode()
    content = {
        "scenario": loaded.name,
        "scenario_sha256": hashlib.sha256(lock).hexdigest(),
        "seed": loaded.config.seed,
        "versions": versions(),
        "parameters": [
            {"name": axis.name, "column": column.name, "values": list(axis.values)}
            for axis, column in zip(axes, columns, strict=True)
        ],
        "zip": zipped,
        "cells": len(cells),
        "missing": [cell.number for cell in cells if cell.number not in results],
        "rows": rows,
    }
    files = {"scenario.lock.yaml": lock}
    for name, path in loaded.inputs().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files[name] = path.read_bytes()
    drawn = drawing.with_gain(table, loaded.bound)
    for measure in drawing.MEASURES:
        plot = drawing.draw(drawn, columns, loaded.name, zipped=zipped, measure=measure, bound=loaded.bound)
        for kind in ("png", "svg"):
            name = f"figures/{measure.figure}.{kind}"
            if plot is None:
                (folder / name).unlink(missing_ok=True)
            else:
                files[name] = plot.png if kind == "png" else plot.svg
    over_seeds = drawing.compared(drawn, columns, "iteration_s", loaded.bound)
    per_gain = drawing.compared(drawn, columns, "time_per_gain_s", loaded.bound)
    if over_seeds is None or per_gain is None:
        (folder / "paired.csv").unlink(missing_ok=True)
    else:
        by = [*(column.name for column in columns if not drawing.is_seed(column)), "policy"]
        both = over_seeds.merge(per_gain, on=by)
        both = both.apply(lambda one: pd.Series(significant(one), one.index) if one.dtype == np.float64 else one)
        files["paired.csv"] = both.to_csv(index=False, lineterminator="\n").encode()
    files["sweep.csv"] = table.to_csv(index=False, lineterminator="\n").encode()
    files["sweep.parquet"] = parquet(table)
    files["sweep.json"] = json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"
    write_files(folder, files)
    return table
