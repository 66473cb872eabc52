"""Logs of measured jobs: reading, validation and aggregation over ranks."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from simnet.base.errors import InputError, check_choice
from simnet.cluster.hooks import COLUMNS
from simnet.scenario import Scenario

PARTS = tuple(one for one in COLUMNS if one.endswith("_s") and one != "began_s")


# Columns by earlier names, which logs of people have.
_EARLIER = {"communicate_s": "messages_s", "wait_s": "exposed_s"}


def read_job_logs(folder: Path) -> pd.DataFrame:
    """Return the logs of a job as a table, a row per rank and iteration.

    Returns
    -------
    DataFrame
        The columns of `simnet.cluster.hooks.COLUMNS`, ``rank``, and ``policy``: the name of the folder; of the exchange
        where there is one folder alone.
    """
    folders = sorted({path.parent for path in folder.glob("**/rank_*.csv")})
    if not folders:
        raise InputError("has no rank_<r>.csv, the log of a job with simnet.cluster.hooks", file=str(folder))
    found = []
    for one in folders:
        paths = sorted(one.glob("rank_*.csv"), key=lambda path: int(path.stem.removeprefix("rank_")))
        rows = pd.concat([_read_log(path) for path in paths], ignore_index=True)
        rows["policy"] = rows["exchange"] if one == folder else one.name
        found.append(rows)
    return pd.concat(found, ignore_index=True)


def _read_log(path: Path) -> pd.DataFrame:
    try:
        rows = pd.read_csv(path, dtype={"exchange": str})
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None
    if not {*_EARLIER.values()} & set(rows):
        rows = rows.rename(columns=_EARLIER)
    for name in COLUMNS:
        if name not in rows:
            raise InputError("is missing", file=str(path), field=name)
        if name != "exchange":
            numbers = pd.to_numeric(rows[name], errors="coerce")
            if (wrong := ~(numbers >= 0)).any():
                line = 2 + int(wrong.to_numpy().argmax())
                got = rows[name].iloc[line - 2]
                raise InputError(f"must be a number >= 0, got {got}", file=str(path), line=line, field=name)
            rows[name] = numbers
    return rows.assign(rank=int(path.stem.removeprefix("rank_")))


def over_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per policy and iteration: means over ranks, and the minimum of message times over ranks.

    The last rank to enter an exchange waits for no other, so its message time, the minimum, has no waiting.
    """
    keys = ["policy", "iteration"]
    first = rows.groupby(keys, sort=False)[["exchange", "began_s"]].first()
    means = rows.groupby(keys, sort=False)[list(PARTS)].mean()
    least = rows.groupby(keys, sort=False)["messages_s"].min().rename("messages_least_s")
    return pd.concat([first, means, least], axis=1).reset_index()


def policies_of(measured: pd.DataFrame, loaded: Scenario) -> list[str]:
    """Return the measured policies in order of appearance; InputError if the scenario lacks a policy."""
    found = [str(one) for one in measured["policy"].unique()]
    known = loaded.config.policies
    for policy in found:
        check_choice(policy, "policy", known, file=loaded.name)
    return found
