"""Predictions of measured collective times from the latency and bandwidth of links alone.

`simnet.validate.shapednet.libraries` predicts, with the software time from one setting. These kinds are separated:
links that differ between hosts; exchanges in which a rank sends or receives several messages at once; links above 100
Mbit/s, since ranks that share the processors of one machine are then no faster than these; links that change while it
runs, where each iteration is predicted; and settings of another table that were measured a second time. Intervals come
from errors of the other settings of the same table, in proportion to the share of software in a prediction. `simnet
validate` lists each of these kinds of settings as a split.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from simnet.cost_models.calibration.cost_model import DEFAULT_COVERAGE
from simnet.cost_models.evidence.intervals import conformal
from simnet.validate.shapednet.libraries import Case, cases, from_links
from simnet.validate.shapednet.links import COLUMNS, OfHosts

FAST = 12.5e6
"""Link rate up to which links, not shared processors, limit ranks on one machine [byte/s]."""

TITLES = {
    "links": "from links alone",
    "links_unequal": "unequal links",
    "links_shared": "several transfers per link",
    "links_fast": "above 100 Mbit/s",
    "links_changing": "links that change",
    "links_again": "measured a second time",
}
"""Titles of the parts of the split."""

CLOSED_FORM = "closed_form"
"""The baseline: alpha-beta with Ethernet framing, without software."""

AGAIN = "again"
"""Column with the name of the table whose settings a table measures again."""

MARGIN = 1.05
"""Minimum ratio of two times for a winner."""

LINKS_ALONE = 0.01
"""Uncertainty of the non-software part of a prediction relative to that of the software part; held-out errors are
scaled by it for intervals."""


def held_by_links(rows: pd.DataFrame) -> pd.DataFrame:
    """Return measured and predicted collective times [s], one row per setting, or per iteration if links change.

    Returns
    -------
    DataFrame
        Columns as of `simnet.validate.evaluation.Evaluation`, ``closed_form`` among them.
    """
    if not all(any(str(column).startswith(name) for column in rows) for name in COLUMNS):
        return pd.DataFrame()
    found = from_links(rows)
    if not len(found):
        return pd.DataFrame()
    if AGAIN in rows:
        split = np.full(len(found), "links_again")
    else:
        changing = "since_change" in found
        split = np.array([_setting_part(one, changing) for one in cases(found)])
    low, high = _setting_intervals(found, split)
    gathered = found["collective"].isin(["all_gather", "all_gatherv"])
    names = zip(found["collective"], found["ranks"], found["algorithm"], strict=True)
    return pd.DataFrame(
        {
            "split": split,
            "place": "",
            "system": [
                f"{tool} link_latency={_text_of(links.latency)} link_bandwidth={_text_of(links.bandwidth)}".strip()
                for tool, links in zip(found["tool"], found["links"], strict=True)
            ],
            "setting": [f"{collective}, {ranks:.0f} ranks, {algorithm}" for collective, ranks, algorithm in names],
            "size": np.where(gathered, found["size"] * found["ranks"], found["size"]),
            "measured": found["seconds"],
            "ours": found["ours"],
            "low": low,
            "high": high,
            CLOSED_FORM: found[CLOSED_FORM],
        }
    )


def _setting_part(one: Case, changing: bool) -> str:
    """Return the category of a measured setting, a key of `TITLES`; the hardest one to predict if several apply."""
    if changing:
        return "links_changing"
    if np.max(one.links.bandwidth) > FAST * (1 + 1e-9):
        return "links_fast"
    if any(len(set(ends.tolist())) < len(ends) for each in one.schedule().rounds for ends in (each.src, each.dst)):
        return "links_shared"
    return "links_unequal" if one.links.is_unequal else "links"


def _text_of(given: OfHosts) -> str:
    return "/".join(f"{one:g}" for one in (given if isinstance(given, tuple) else (given,)))


def _setting_intervals(found: pd.DataFrame, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of each prediction's interval [s], from errors of other settings in its category `parts`."""
    # A setting is a collective with its algorithm and ranks on its links, with all sizes; where links change, that of
    # one size. Software differs from run to run more than links do, so errors are compared relative to its share.
    keys = ["tool", "profile", "collective", "algorithm", "ranks"]
    keys += ["sizes", "run"] if "since_change" in found else ["links"]
    setting = found.groupby(keys, sort=False).ngroup().to_numpy()
    ours = found["ours"].to_numpy(dtype=float)
    unsure = LINKS_ALONE + np.abs(found["software"].to_numpy(dtype=float)) / ours
    log_errors = np.log(found["seconds"].to_numpy(dtype=float) / ours) / unsure
    low, high = ours.copy(), ours.copy()
    for part in np.unique(parts):
        for one in np.unique(setting[parts == part]):
            held = (parts == part) & (setting == one)
            below, above = conformal(log_errors[(parts == part) & (setting != one)], DEFAULT_COVERAGE)
            low[held] *= np.exp(-below * unsure[held])
            high[held] *= np.exp(above * unsure[held])
    return low, high


def winners(held: pd.DataFrame, best: bool = False) -> Mapping[str, int] | None:
    """Count correct predictions of the faster of AG-Topk and AR-Topk, where the two differ by more than `MARGIN`.

    Returns
    -------
    mapping or None
        Number of ``settings``, number predicted ``right``, and right by the ``closed_form``. None if the two were not
        measured.
    """
    parts = held["setting"].str.partition(",")
    table = held.assign(method=parts[0], rest=parts[2], ranks=parts[2].str.partition(",")[0])
    table = table[table["method"].isin(["ag_topk", "ar_topk"])]
    if table["method"].nunique() < 2:
        return None
    # The closed form does not say anything of every setting.
    pairs = table.pivot_table(
        index=["system", "ranks" if best else "rest", "size"],
        columns="method",
        values=["measured", "ours", CLOSED_FORM],
        aggfunc="min" if best else "median",
        dropna=False,
    )
    pairs = pairs[pairs[["measured", "ours"]].notna().all(axis=1)]
    if not len(pairs):
        return None
    ratio = {
        name: np.log(pairs[name]["ag_topk"] / pairs[name]["ar_topk"]) for name in ("measured", "ours", CLOSED_FORM)
    }
    counts = ratio["measured"].abs() > np.log(MARGIN)
    right = {name: counts & (np.sign(one) == np.sign(ratio["measured"])) for name, one in ratio.items()}
    return {
        "settings": int(counts.sum()),
        "right": int(right["ours"].sum()),
        CLOSED_FORM: int(right[CLOSED_FORM].sum()),
    }
