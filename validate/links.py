"""How well measured collectives follow from the settings of their links alone, as a split of `simnet validate`.

See `validate.shapednet.libraries` for the prediction, and the one setting that it takes software from. Links above
100 Mbit/s are told apart, since ranks that share the processors of one machine are then no faster than these; so are
links that change while it runs, where each iteration is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from validate.shapednet.libraries import from_links

FAST = 12.5e6
"""Rate of a link [byte/s] up to which it is the links that set the time of ranks on one machine."""

TITLES = {
    "links": "from links alone",
    "links_fast": "above 100 Mbit/s",
    "links_changing": "links that change",
}
"""Parts of the split."""

CLOSED_FORM = "closed_form"
"""What stands beside ours: alpha-beta with the framing of Ethernet, without software."""

MARGIN = 1.05
"""The slower of two must take so many times as long before there is a winner."""

UNSURE = 0.02
"""Half the width of an interval, relative, beside half of what is software."""


def held_by_links(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what was predicted from links alone, one row per setting, or per iteration where links change.

    Parameters
    ----------
    rows : DataFrame
        As `simnet.calibration.readers` has them. Without ``link_latency`` and ``link_bandwidth``, nothing is predicted.

    Returns
    -------
    DataFrame
        Columns as of `validate.evaluation.Evaluation`, ``closed_form`` among them.
    """
    if not {"link_latency", "link_bandwidth"} <= set(rows):
        return pd.DataFrame()
    found = from_links(rows)
    fast = np.array([np.max(one.bandwidth) for one in found["links"]]) > FAST * (1 + 1e-9)
    split = np.where("since_change" in found, "links_changing", np.where(fast, "links_fast", "links"))
    unsure = UNSURE * found["ours"] + 0.5 * found["software"]
    gathered = found["collective"].isin(["all_gather", "all_gatherv"])
    names = zip(found["collective"], found["ranks"], found["algorithm"], strict=True)
    return pd.DataFrame(
        {
            "split": split,
            "place": "",
            "system": [
                f"{tool} link_latency={latency:g} link_bandwidth={bandwidth:g}".strip()
                for tool, latency, bandwidth in zip(
                    found["tool"], found["link_latency"], found["link_bandwidth"], strict=True
                )
            ],
            "setting": [f"{collective}, {ranks:.0f} ranks, {algorithm}" for collective, ranks, algorithm in names],
            "size": np.where(gathered, found["size"] * found["ranks"], found["size"]),
            "measured": found["seconds"],
            "ours": found["ours"],
            "low": found["ours"] - unsure,
            "high": found["ours"] + unsure,
            CLOSED_FORM: found[CLOSED_FORM],
        }
    )


def winners(held: pd.DataFrame, best: bool = False) -> Mapping[str, int] | None:
    """Count how often the faster of AG-Topk and AR-Topk is the predicted one, where they differ by more than `MARGIN`.

    Parameters
    ----------
    held : DataFrame
        As `held_by_links` gives it, of one part of the split.
    best : bool
        Compare each with the algorithm that is fastest for it, as measured and as predicted, in place of both with
        the same algorithm.

    Returns
    -------
    mapping or None
        ``settings``, and of these those that are ``right``, and ``closed_form``, by what stands beside. None where the
        two were not measured.

    Examples
    --------
    >>> one = {"system": "", "size": 8.0}
    >>> table = pd.DataFrame([
    ...     {**one, "setting": "ag_topk, 4 ranks, ring", "measured": 1.0, "ours": 1.1, "closed_form": 0.9},
    ...     {**one, "setting": "ar_topk, 4 ranks, ring", "measured": 2.0, "ours": 1.9, "closed_form": 0.8},
    ... ])
    >>> winners(table)
    {'settings': 1, 'right': 1, 'closed_form': 0}
    >>> other = {**one, "setting": "ar_topk, 4 ranks, tree", "measured": 0.5, "ours": 0.6, "closed_form": 0.4}
    >>> winners(pd.concat([table, pd.DataFrame([other])]), best=True)
    {'settings': 1, 'right': 1, 'closed_form': 1}
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
