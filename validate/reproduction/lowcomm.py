"""Bandwidths for a compute utilisation in papers on training with little communication.

References
----------
A. Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a distributed free lunch", arXiv
2501.18512, Table 4; S. Kale et al., "Eager updates for overlapped communication and computation in DiLoCo", arXiv
2502.12996, Table 5; and the page ``diloco/index.html`` of arthurdouillard.github.io@4463c32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simnet.studies.utilisation import GRID, TARGETS, Training, bandwidth_for
from simnet.validate.published import read
from simnet.validate.reproduction.table import Missing, Row, reproduces

PAPER = "Streaming DiLoCo"

_PARAMETERS = {"1B": 10**9, "10B": 10**10, "100B": 10**11}
# Of three layers each, as the papers have it.
_FRAGMENTS = {"1B": 8, "10B": 16, "100B": 36}

_STEP = GRID[1] / GRID[0] - 1
_BEYOND = (
    "1B, Data-Parallel, 99 %",
    "10B, Data-Parallel, 99 %",
    "100B, Streaming DiLoCo, 99 %",
    "100B, Streaming DiLoCo w/ overlapped com., 50 %",
)


class Cell(NamedTuple):
    """A published bandwidth, and what the papers say of the training.

    Parameters
    ----------
    what : str
        Model, method and target.
    training : Training
        What is trained how.
    target : float
        The utilisation.
    published : float
        As printed [Gbit/s], to one decimal.
    page : float
        What a run of the page's model by others gave [Gbit/s].
    """

    what: str
    training: Training
    target: float
    published: float
    page: float


def cells() -> Iterator[Cell]:
    """Yield the bandwidths of Table 4."""
    for row in read("utilisation.csv").to_dict("records"):
        if "S4" not in str(row["source_table"]):
            continue
        training = _training(str(row["method"]), str(row["model"]), str(row["H"]), float(row["step_time_s"]))
        for target in TARGETS:
            column = f"gbit_s_cu{100 * target:.0f}"
            what = f"{row['model']}, {row['method']}, {100 * target:.0f} %"
            published, page = float(row[f"published_{column}"]), float(row[f"page_model_{column}_DERIVED"])
            yield Cell(what, training, target, published, page)


def on_grid(printed: float) -> float:
    """Return the bandwidth of the grid that is printed so, to one decimal [Gbit/s].

    Parameters
    ----------
    printed : float
        What is printed [Gbit/s].

    Examples
    --------
    >>> round(on_grid(86.8), 2)
    86.85
    """
    grid = 8e-9 * np.array(GRID)
    return float(grid[np.abs(np.log(grid / printed)).argmin()])


@reproduces("streaming-table-4", PAPER, "Table 4", "formula", 75)
def table_4() -> list[Row]:
    """Return bandwidth for a compute utilisation of 50 to 99 %.

    By the model on a page of an author, for two sites: `simnet utilisation --grid`. Published values lie, to their
    rounding, on 50 bandwidths of which each is 20.7 % above the one before; that is the tolerance, and the published
    column has the one meant. Step times are the printed ones, and those behind the table are probably a little longer,
    as most of ours are one step of the grid too high. Four values are further away, by two steps and in one case by
    four; they show up here without a tolerance. A run of the page's model by others is off by the same.
    """
    rows = []
    for cell in cells():
        ours = 8e-9 * bandwidth_for(cell.training, cell.target, grid=True)
        allowed = None if cell.what in _BEYOND else round(_STEP, 4)
        rows.append(Row(cell.what, on_grid(cell.published), ours, "Gbit/s", allowed))
    return rows


def _training(method: str, model: str, period: str, step: float) -> Training:
    """Return a training of the tables, of two sites with values of 16 bits or FP4."""
    bits = 4 if "FP4" in method else 16
    if method == "Data-Parallel":
        return Training(2, _PARAMETERS[model], step, "dataparallel", bits=bits)
    if method == "Vanilla DiLoCo":
        return Training(2, _PARAMETERS[model], step, "diloco", int(period), bits=bits)
    delay = 1 if "overlapped" in method else 0
    return Training(2, _PARAMETERS[model], step, "streaming", int(period), _FRAGMENTS[model], delay, bits)


REPRODUCTIONS = (table_4,)

MISSING = (
    Missing(
        PAPER,
        "Table 5 of the eager paper, rows that Table 4 has not",
        "from H 30 to H 100 bandwidths of 1B fall 12-fold, bytes 3.3-fold; those of 1-outer-step at H 100 are half of "
        "what bytes over time need",
    ),
)
