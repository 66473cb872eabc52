"""Calls of collectives in traces of jobs: common parts of their readers, and calls of several ranks as one.

A collective ends on all ranks at nearly the same time, but its kernel on one rank also waits for the others. The last
rank did not wait: the shortest time of a call over ranks is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import pandas as pd

from simnet.cost_models.calibration.readers.tables import RowCollector

CALL_COLUMNS = {"group": False, "sequence": True, "rank": True}
"""Columns beyond those of every table, and whether they hold numbers: the group of ranks that did a call, which call of
the group it was, and whose time this is."""

WAITING_REMARK = (
    "times are those of single ranks, which wait for others inside; traces of all ranks tell the shortest of each"
)
"""What readers of traces report."""


def finish_trace(out: RowCollector) -> Mapping[str, bool]:
    """Report the meaning of times of single ranks, if any were read, and return the columns of calls."""
    if out.rows:
        out.report(None, WAITING_REMARK, dropped=False)
    return CALL_COLUMNS


def merge_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows in which the same call of several ranks stands once, with the shortest time of all ranks.

    Rows that do not say which call they are stay. Calls are of one job if their traces are in one folder and say the
    same number of nodes; the n-th call of a number on a rank matches the n-th of the others.
    """
    if not set(CALL_COLUMNS) <= set(rows) or rows["rank"].nunique() < 2:
        return rows
    known = rows["sequence"].notna() & rows["rank"].notna()
    keys = ["tool", "collective", "ranks", "nodes", "nbytes", "group", "sequence", "job"]
    calls = rows[known].assign(job=[str(PurePath(source).parent) for source in rows.loc[known, "source"]])
    calls["nth"] = calls.groupby([*keys, "rank"], dropna=False).cumcount()
    keys.append("nth")
    calls = calls.sort_values("seconds", kind="stable")
    grouped = calls.groupby(keys, dropna=False)
    shortest = calls[~calls.duplicated(keys)]
    shared = grouped["rank"].transform("nunique").reindex(shortest.index) > 1
    shortest = shortest[rows.columns].assign(statistic=shortest["statistic"].where(~shared, "min"))
    return pd.concat([rows[~known], shortest]).sort_index(kind="stable")
