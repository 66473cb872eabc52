"""Every set alike: medians of sets beside those of rivals, whatever the number of measurements in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from simnet.validate.evaluation import PLACES, TITLES
from simnet.validate.rivals import RULES
from validating.learned import LEARNED

WORSE = 1.05
"""Above this, the ratio of two medians counts as worse."""

WORDS = """\
### Every set alike

Medians of sets, and of these the mean and, behind the stroke, the middle one: a set of a thousand measurements counts
as one of twenty. Compared are the measurements of which ours and all rules say something. The *five-line rules* are
log-log between neighbours for sizes; for ranks the same, the nearest number and that by the bus factor, of which the
best one of a set is picked with hindsight; and for collectives the rule of the bus factor. *Worse* is a median of ours
more than 5 % above. The learned models see the logarithms of size times bus factor, ranks and nodes, and the names
of collective, algorithm and protocol; nothing in them is chosen by set.
"""


def cases(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what is left out in turn, by what it is called: ranks by their place."""
    found = {}
    for split in RULES:
        part = table[table["split"] == split]
        places = PLACES if split == "ranks" else ("",)
        for place in places:
            one = part[part["place"] == place] if place else part
            if len(one):
                found[f"{TITLES[split]}, {place}" if place else TITLES[split]] = one
    return found


def medians(part: pd.DataFrame, models: Sequence[str]) -> pd.DataFrame:
    """Return the median of the absolute relative error of each set (rows) and model (columns).

    Parameters
    ----------
    part : DataFrame
        Predictions of one split.
    models : sequence of str
        Those that say nothing of any measurement are left out; of the others, measurements count of which all say
        something.
    """
    said = [one for one in models if one in part and part[one].notna().any()]
    off = part[said].div(part["measured"], axis=0).sub(1).abs()
    known = off.notna().all(axis=1)
    return off[known].groupby(part.loc[known, "set"]).median()


def section(table: pd.DataFrame, names: Mapping[str, str]) -> str:
    """Return the table of what is predicted, by model.

    Parameters
    ----------
    table : DataFrame
        All predictions, as `validating.page.frame` returns them.
    names : mapping of str to str
        What models are called.
    """
    head = ["What is left out", "Sets", "Ours", "Best five-line rule", *(names[one] for one in LEARNED)]
    head += ["Worse than the best rule in", "Worse than the better learned one in"]
    rows = []
    for what, part in cases(table).items():
        rules = RULES[str(part["split"].iloc[0])]
        found = medians(part, ["ours", *rules, *LEARNED])
        rules = tuple(one for one in rules if one in found)
        if not rules:
            continue
        best = found[list(rules)].min(axis=1)
        learned = [one for one in LEARNED if one in found]
        cells = [_middle(found["ours"]), _middle(best)]
        cells += [_middle(found[one]) if one in found else "" for one in LEARNED]
        cells.append(_worse(found["ours"], best))
        cells.append(_worse(found["ours"], found[learned].min(axis=1), named=False) if learned else "")
        rows.append([what, str(len(found)), *cells])
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([WORDS, *lines]) + "\n" if rows else ""


def _middle(one: pd.Series[float]) -> str:
    return f"{_percent(one.mean())} / {_percent(one.median())}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value < 0.0995 else f"{100 * value:.0f} %"


def _worse(ours: pd.Series[float], other: pd.Series[float], named: bool = True) -> str:
    """Return in how many sets, and which, ours is worse."""
    worse = ours[ours > WORSE * other + 1e-4].sort_index()
    said = [f"`{name}` ({_percent(value)}, {_percent(float(np.min(other[name])))})" for name, value in worse.items()]
    return f"{len(worse)}: {', '.join(said)}" if named and len(worse) else str(len(worse))
