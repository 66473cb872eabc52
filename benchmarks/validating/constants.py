"""What constants that were chosen with the sets in view matter: halved, doubled, and chosen without the site."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from simnet.cost_models.calibration.cost_model import DEFAULT_COVERAGE
from simnet.cost_models.evidence.intervals import GROUPS, TYPICAL, Basis, bin_of
from simnet.validate.evaluation import BASE, FROM_BASE, PLACES, TITLES
from validating.residuals import site_of

NAMES = {
    "_POWER": "with which power of its typical error a model of a curve weighs less",
    "_SHARED": "sizes of a curve as which all others count",
    "_INSIDE": "a step inside a node over one between nodes",
    "_RIDGE": "ridge of the terms over ranks",
    "_NEAR": "distance of ranks at which a curve counts half",
    "_FASTEST_MESSAGE": "the shortest time of a message between nodes",
    "_MOST_BY_RULE": "the most share of the rule of the bus factor",
    "_BANDWIDTH": "size at which it is half of that",
    "_MISFIT": "misfit of the step model at which it is half of that",
}
"""Constants of `simnet.cost_models.calibration`, in words."""

WORDS = """\
## Constants chosen with these sets in view

Each was halved and doubled, and what is left out predicted anew; *without the site* is for each site the one of the
three values that is best on all other sites, by the mean logarithm of median and p90. Figures are means over sets of
their medians, and of their p90; ways to predict ranks are the usual ones here, not chosen by set, so that figures
differ from those above. Made by `python benchmarks/constants.py`, over {sets} sets of {sites} sites.
"""

WIDTHS = """
Typical half-widths of intervals, to which those of a system with few numbers of ranks or collectives are drawn, were
chosen so, too. *Without the site* all of them are scaled by the factor, of those from a quarter to four, with which the
intervals of the sets of all other sites come nearest to holding 90 %. In the mean of the sets intervals hold:
"""

NOT_ESTIMATED = """
Not estimated without the site, as each value takes all calibrations anew: typical latencies and bandwidths to which
the step model is drawn where curves do not tell them, what counts as clearly better in a cross-validation, and what
goes into predictions from a specification.
"""


WIDER = tuple(float(factor) for factor in 2.0 ** np.arange(-2, 2.25, 0.25))
"""By which typical widths are scaled."""


def section(table: pd.DataFrame, path: Path) -> str:
    """Return what the constants matter.

    Parameters
    ----------
    table : DataFrame
        All predictions, as `validating.page.frame` returns them.
    path : Path
        What `benchmarks/constants.py` wrote.
    """
    found = pd.read_csv(path, keep_default_na=False)
    text = WORDS.format(sets=found["set"].nunique(), sites=found["set"].map(site_of).nunique())
    head = ["Constant", "What is left out", "Sets", "As it is", "Halved", "Doubled", "Without the site"]
    rows = []
    for (split, name), part in found[found["constant"] != ""].groupby(["split", "constant"], sort=False):
        usual = found[(found["split"] == split) & (found["constant"] == "")]
        values = pd.concat([usual, part]).set_index(["set", "factor"])[["median", "p90"]]
        cells = [_pair(one.to_numpy()) for one in (values.xs(factor, level="factor") for factor in (1.0, 0.5, 2.0))]
        what = NAMES[str(name)]
        cells = [what, TITLES[str(split)], str(len(usual)), *cells, _pair(without(values).to_numpy())]
        rows.append(cells)
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([text, *lines, *_widths(table), NOT_ESTIMATED])


def without(values: pd.DataFrame) -> pd.DataFrame:
    """Return for each set the figures with the factor that is best on the sets of all other sites.

    Parameters
    ----------
    values : DataFrame
        ``median`` and ``p90``, by ``set`` and ``factor``.
    """
    logs = pd.Series(np.log(values.clip(lower=1e-4)).sum(axis=1)).unstack("factor")
    sites = logs.index.map(site_of)
    chosen = {one: logs[sites != one].mean().idxmin() if (sites != one).any() else 1.0 for one in sites}
    return pd.DataFrame({name: values.loc[(name, chosen[site_of(name)])] for name in logs.index}).T


def _widths(table: pd.DataFrame) -> list[str]:
    """Return the table of what intervals hold with typical widths as they are, and with those of the other sites."""
    lines = [WIDTHS, "| What is left out | Sets | As they are | Without the site | Factors |", "|---|---|---|---|---|"]
    for what, basis, part in (
        ("numbers of ranks, inside", "ranks", table[(table["split"] == "ranks") & (table["place"] == PLACES[0])]),
        ("numbers of ranks, outside", "beyond", table[(table["split"] == "ranks") & (table["place"] != PLACES[0])]),
        ("collectives", "collectives", table[table["split"] == "collectives"]),
    ):
        if part["set"].map(site_of).nunique() > 1:
            each = _inside(part.copy(), basis).groupby(part["set"]).mean()
            sites = each.index.map(site_of)
            chosen = pd.Series({one: (each[sites != one].mean() - DEFAULT_COVERAGE).abs().idxmin() for one in sites})
            held = np.mean([each.loc[name, chosen[site_of(name)]] for name in each.index])
            said = f"{chosen.min():.2g} to {chosen.max():.2g}"
            lines.append(f"| {what} | {len(each)} | {each[1.0].mean():.1%} | {held:.1%} | {said} |")
    return lines if len(lines) > 3 else []


def _inside(part: pd.DataFrame, basis: Basis) -> pd.DataFrame:
    """Return which measurements (rows) are inside their intervals with typical widths scaled by factors (columns)."""
    ranks = part["setting"].str.extract(r"(\d+) ranks", expand=False).astype(float)
    part["drawn"], part["wider"] = 0.0, 1.0
    for _, one in part.groupby(["set", "system"]):
        if basis == "collectives":
            names = set(one["collective"])
            base = names & set(BASE)
            for name, own in one.groupby("collective"):
                kept = base if name in FROM_BASE and "all_reduce" in base else names - {name}
                part.loc[own.index, "drawn"] = GROUPS / (GROUPS + len(kept))
            continue
        every = ranks[one.index].unique()
        for count, own in one.groupby(ranks[one.index]):
            kept = every[every != count]
            groups = max(len(kept) - 2, 0) if basis == "ranks" else min(len(kept) // 2, 1) * 2
            part.loc[own.index, "drawn"] = GROUPS / (GROUPS + groups)
            if basis == "beyond" and len(kept):
                doublings = np.abs(np.log2(count / kept)).min()
                part.loc[own.index, "wider"] = math.sqrt(max(doublings, 1.0))
    bins = bin_of(part["size"].to_numpy(dtype=float))
    typical = np.array(TYPICAL[basis])[bins] * part["drawn"] * part["wider"]
    found = {}
    for factor in WIDER:
        change = np.exp((factor - 1) * typical)
        low, high = np.minimum(part["low"] / change, part["ours"]), np.maximum(part["high"] * change, part["ours"])
        found[factor] = (low <= part["measured"]) & (part["measured"] <= high)
    return pd.DataFrame(found)


def _pair(figures: np.ndarray) -> str:
    median, p90 = 100 * figures.mean(axis=0)
    return f"{median:.1f} % / {p90:.0f} %"
