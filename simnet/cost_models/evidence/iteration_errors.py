"""Errors of predicted calls and compute times in training jobs, for intervals of iterations.

`errors.csv` has bounds that each hold 95 % of what was measured; `python benchmarks/measured_jobs.py FOLDER errors`
makes it. Rows of ``links`` say how far a call takes less (``low``) or longer (``high``): seconds a message and a share
of the call, by stack and by the workers that take turns on a processor. Rows of ``part`` are factors by which
computing, selecting, merging and updating differ in a job from a process by itself.
"""

from __future__ import annotations

import io
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.costs.devices import IntervalEnd

if TYPE_CHECKING:
    import pandas as pd

PartOfIteration: TypeAlias = Literal["compute", "select", "messages", "merge", "update"]
"""What was measured of iterations in jobs, by the columns of their logs."""

COLUMNS = ("kind", "name", "workers_per_device", "end", "message_s", "share", "most")
"""Of the table: ``message_s`` [s] and ``share`` of links, up to the factor ``most``, which is all that parts have."""


@cache
def iteration_errors() -> pd.DataFrame:
    """Return the shipped table of error bounds, with `COLUMNS`."""
    import pandas as pd

    path = files("simnet.cost_models.calibration.measured") / "jobs" / "errors.csv"
    return pd.read_csv(io.StringIO(path.read_text(encoding="utf-8")))


def measured_stacks() -> list[str]:
    """Return the transport stacks whose calls were measured in jobs."""
    rows = iteration_errors()
    return sorted(rows.loc[rows["kind"] == "links", "name"].unique())


def off_of_calls(end: IntervalEnd, stack: str, workers_per_device: int, messages: Floats, seconds: Floats) -> Floats:
    """Return the error bound of calls [s], below (``low``) or above (``high``) their predicted time.

    `workers_per_device` take turns on a processor; `messages` are those of a worker in all calls, which take `seconds`.
    """
    rows = iteration_errors()[(iteration_errors()["kind"] == "links") & (iteration_errors()["end"] == end)]
    known = rows["name"] == stack
    found = []
    for _, own in rows[known if known.any() else rows["name"].notna()].groupby("name"):
        at, *bounds = (own[name].to_numpy() for name in ("workers_per_device", "message_s", "share", "most"))
        message, share, most = (float(np.interp(workers_per_device, at, one)) for one in bounds)
        found.append(np.minimum(message * messages + share * seconds, abs(most - 1) * seconds))
    off: Floats = np.max(found, axis=0)
    return off


def factor_in_job(end: IntervalEnd, part: PartOfIteration) -> float:
    """Return the error factor of a part of an iteration in a job, against a process alone; 1 if unknown."""
    rows = iteration_errors()
    own = rows[(rows["kind"] == "part") & (rows["name"] == part) & (rows["end"] == end)]["most"]
    return float(own.iloc[0]) if len(own) else 1.0
