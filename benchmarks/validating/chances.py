"""How often chances come true: measured pairs of exchanges, and what was said beforehand of which one is faster.

A pair are two exchanges that were measured on the same ranks of the same cluster, or links, or two exchanges of the
same job. Pairs have the *same size*, or the sizes of a *choice*: a dense all-reduce, and the all-gather of what AG-Topk
sends of that gradient at one of `DENSITIES`. They are two of the collectives that exchanges consist of, `EXCHANGED`,
unless a case says *any*. Neither time was seen by what predicts it, and nothing of the same set, or of the same setting
of a job, by the model of errors that the chance is from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.progress import track_progress
from simnet.base.rng import stream
from simnet.cost_models.evidence.chances import CONFIDENCE, SURE, ErrorPart, chances
from simnet.cost_models.evidence.intervals import NAMED, UNNAMED, ErrorModel
from simnet.report.drawing import COLOURS, plot, style
from simnet.report.summary import Plot
from validating import residuals

DENSITIES = (0.1, 0.01, 0.001)
"""Of the exchanges that a dense all-reduce is compared with."""

MOST = 300
"""Pairs of a set that count at most, evenly taken from all: otherwise the largest sets decided alone."""

EXCHANGED = ("all_reduce", "all_gather", "broadcast")
"""Collectives that the exchanges of `simnet choose` consist of."""

BINS = (0.5, 0.6, 0.7, 0.8, 0.9, SURE, 0.99, 1.0)
"""Where bins of chances begin and end."""

Sizes: TypeAlias = Literal["same size", "choice"]
"""Which sizes two exchanges of a pair have."""

_SHARES = ", ".join(f"{100 * one:g} %" for one in DENSITIES)
_WORDS = f"""
`simnet choose` says how likely each exchange is the fastest, from the errors that predictions had where they could be
held against measurements: `simnet.cost_models.evidence.chances` has how, `validating.residuals` from what. Here that
is held against pairs that were measured: two collectives on the same ranks of the same cluster, or links, or two
exchanges of the same job. Neither time was seen by what predicts it, and nothing of its *site* by the errors that the
chance and the interval are from: no cluster whose name begins with the same word, none of the measurements on known
links that it is of, nothing of the same setting of a job. Collectives are those that exchanges consist of (all-reduce,
all-gather, broadcast), unless *any two* count. *Sizes of a choice* are those of a dense all-reduce and of what AG-Topk
gathers in its place, at densities of {_SHARES}. At most {MOST} pairs of a set count, evenly taken.

The *Brier score* is the mean square of chance less outcome: 0 is right and certain, 0.25 knows nothing. *Sure* is a
chance of {100 * SURE:g} % and more, even as it is at least with {100 * CONFIDENCE:g} %, by Student's t over the sites
that it is from. Were chances exact, as many of these would be right as their mean chance says. Errors of a site are
alike: in brackets are 95 % intervals by a bootstrap over sites. They say how few sites there are, but nothing where all
of them were right. Jobs are those of settings that tell nothing of the interval of an iteration; their times are
medians over iterations.

What was sure and wrong is mostly MPI in host memory on 32 nodes and more: single sizes at which a collective of Open
MPI took a third of the time of its neighbours, or three times as long.
"""
_OCTAVE = 0.5
_SIDE = ("measured", "ours", "low", "high", "kind")
_PAIRED = ["site", "set", "place", "at", "name", "collective", *_SIDE]
_AT = ["site", "set", "place", "at"]
_JUDGED = ["site", "chance", "first", "sure"]
_RESAMPLED = 4000


class Case(NamedTuple):
    """Pairs that are judged together.

    Parameters
    ----------
    title : str
        What they are.
    kinds : tuple of str
        Kinds of the two predictions.
    sizes : str
        Which sizes they have; "" for jobs.
    any : bool
        Whether all collectives count, and not only `EXCHANGED`.
    """

    title: str
    kinds: tuple[str, str]
    sizes: Sizes | Literal[""]
    any: bool = False


CLUSTERS = (
    Case("Both measured, sizes of a choice", ("sizes", "sizes"), "choice"),
    Case("Both measured, same size", ("sizes", "sizes"), "same size"),
    Case("One predicted from other collectives, sizes of a choice", ("collectives", "sizes"), "choice"),
    Case("One predicted from other collectives, same size", ("collectives", "sizes"), "same size"),
    Case("One predicted from other collectives, any two", ("collectives", "sizes"), "same size", any=True),
    Case("From the specification of a platform", ("specified", "specified"), "same size"),
    Case("Other ranks, between those measured", ("ranks", "ranks"), "same size"),
    Case("Other ranks, beyond those measured", ("beyond", "beyond"), "same size"),
)
"""Pairs on calibrated clusters."""

LINKS = (
    Case("From links, the stack named", (NAMED, NAMED), "choice"),
    Case("From links, the stack named, same size", (NAMED, NAMED), "same size"),
    Case("From links, no stack named", (UNNAMED, UNNAMED), "choice"),
    Case("From links, no stack named, same size", (UNNAMED, UNNAMED), "same size"),
)
"""Pairs on links that are known."""

JOBS = Case("Iterations of jobs", ("iteration", "iteration"), "")
"""Pairs of exchanges of a job."""


def pairs(rows: pd.DataFrame, case: Case) -> pd.DataFrame:
    """Return the pairs of a case, at most `MOST` of each set.

    Returns
    -------
    DataFrame
        Columns ``site``, ``set``, and ``measured``, ``ours``, ``low``, ``high`` and ``kind``, of either, with ``_a``
        and ``_b``.
    """
    if case in CLUSTERS and not case.any:
        rows = rows[rows["collective"].isin(EXCHANGED)]
    one, other = (rows[rows["kind"] == kind] for kind in case.kinds)
    alike = case.kinds[0] == case.kinds[1]
    if case.sizes == "choice":
        both = pd.concat(_choices(one, other, alike=alike), ignore_index=True)
    else:
        one, other = (each.assign(at=each["size"] if case.sizes else 0.0)[_PAIRED] for each in (one, other))
        both = one.merge(other, on=_AT, suffixes=("_a", "_b"))
        # A collective that was left out was so with all of its algorithms.
        both = both[both["name_a"] < both["name_b"] if alike else both["collective_a"] != both["collective_b"]]
    both = both[both["measured_a"] != both["measured_b"]]
    kept = [own.iloc[:: -(-len(own) // MOST)] for _, own in both.groupby("set", sort=True)]
    return pd.concat(kept, ignore_index=True) if kept else both


def _choices(one: pd.DataFrame, other: pd.DataFrame, *, alike: bool) -> Iterable[pd.DataFrame]:
    """Yield dense all-reduces and all-gathers of their selections, where such a size was measured."""
    for density in DENSITIES:
        for dense, sparse, swapped in ((one, other, False), (other, one, True))[: 1 if alike else 2]:
            reduce = dense[dense["collective"] == "all_reduce"]
            gather = sparse[sparse["collective"] == "all_gather"]
            sent = np.log2(2 * density * reduce["ranks"] * reduce["size"])
            reduce = reduce.assign(at=np.floor(sent + _OCTAVE))[_PAIRED]
            gather = gather.assign(at=np.floor(np.log2(gather["size"]) + _OCTAVE))[_PAIRED]
            sides = (gather, reduce) if swapped else (reduce, gather)
            yield sides[0].merge(sides[1], on=_AT, suffixes=("_a", "_b"))


def judged(both: pd.DataFrame, models: Mapping[str, ErrorModel]) -> pd.DataFrame:
    """Return what was said of pairs, and what came of it.

    Returns
    -------
    DataFrame
        Columns ``site``, ``chance`` that the first is faster, whether it is, ``first``, and whether one of them was
        called ``sure``.
    """
    found = []
    for row in both.to_dict("records"):
        seconds, low, high = (np.array([row[f"{name}_{side}"] for side in "ab"]) for name in ("ours", "low", "high"))
        said = chances(("a", "b"), [ErrorPart(seconds, low, high, (row["kind_a"], row["kind_b"]))], models)
        found.append((row["site"], said.fastest[0], row["measured_a"] < row["measured_b"], any(said.sure)))
    return pd.DataFrame(found, columns=_JUDGED)


def left_out(
    rows: pd.DataFrame, case: Case, models: Callable[[str], tuple[pd.DataFrame, Mapping[str, ErrorModel]]]
) -> pd.DataFrame:
    """Return the judged pairs of a case, each site by models of errors that have not seen it."""
    found = [pd.DataFrame(columns=_JUDGED)]
    if any(rows.loc[rows["kind"] == kind, "site"].nunique() < 2 for kind in case.kinds):
        return found[0]
    for name in track_progress(sorted(rows["site"].unique().tolist())):
        own, known = models(name)
        both = pairs(own, case)
        if len(both):
            found.append(judged(both, known))
    return pd.concat(found[1:] or found, ignore_index=True)


def on_clusters(clusters: pd.DataFrame, case: Case) -> pd.DataFrame:
    """Return the judged pairs of calibrated clusters, one site left out at a time."""

    def models(name: str) -> tuple[pd.DataFrame, Mapping[str, ErrorModel]]:
        rest = clusters[clusters["site"] != name]
        known = {kind: residuals.model(rest[rest["kind"] == kind]) for kind in set(case.kinds)}
        return clusters[clusters["site"] == name], known

    return left_out(clusters, case, models)


def on_links(links: pd.DataFrame, case: Case) -> pd.DataFrame:
    """Return the judged pairs of known links, one set left out at a time; see `validating.residuals.of_links`."""

    def models(name: str) -> tuple[pd.DataFrame, Mapping[str, ErrorModel]]:
        kind = case.kinds[0]
        rest = links[links["site"] != name]
        known = residuals.sides(rest)
        learnt = residuals.with_intervals(rest[rest["kind"] == kind], known)
        own = links[(links["site"] == name) & (links["kind"] == kind)]
        return residuals.with_intervals(own, known), {kind: residuals.model(learnt)}

    return left_out(links, case, models)


def on_jobs(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the judged pairs of jobs, leaving out one setting at a time, without those that widths come from."""
    whole = jobs[jobs["kind"] == "iteration"]

    def models(name: str) -> tuple[pd.DataFrame, Mapping[str, ErrorModel]]:
        return whole[whole["site"] == name], {"iteration": residuals.model(whole[whole["site"] != name])}

    return left_out(whole[~whole["telling"]], JOBS, models)


def figures(rows: pd.DataFrame) -> dict[str, float]:
    """Return what comes of judged pairs.

    Returns
    -------
    dict
        ``pairs``, ``sites``, ``brier`` score (0 is right and certain, 0.25 knows nothing), ``right``, the share in
        which the likelier was the faster, ``sure``, the share called sure, ``sure_said``, their mean chance,
        and ``sure_right``, the share of them which was right, with a 95 % interval, ``_low`` and ``_high``: quantiles
        over sites drawn again.

    Examples
    --------
    >>> said = {"site": ["x", "y"], "chance": [0.97, 0.6], "first": [True, False], "sure": [True, False]}
    >>> found = figures(pd.DataFrame(said))
    >>> found["right"], found["sure_right"], round(found["brier"], 3)
    (0.5, 1.0, 0.18)
    """
    chance, first = rows["chance"].to_numpy(dtype=float), rows["first"].to_numpy(dtype=bool)
    likelier = np.maximum(chance, 1 - chance)
    right = (chance > 0.5) == first
    sure = rows["sure"].to_numpy(dtype=bool)
    sites = rows["site"].to_numpy()
    return {
        "pairs": len(rows),
        "sites": len(set(sites.tolist())),
        "brier": float(np.mean((chance - first) ** 2)),
        "right": float(right.mean()),
        "sure": float(sure.mean()),
        "sure_said": float(likelier[sure].mean()) if sure.any() else 1.0,
        **mean_over("sure_right", right[sure], sites[sure]),
    }


def mean_over(name: str, values: NDArray[Any], sites: NDArray[Any]) -> dict[str, float]:
    """Return the mean of values, and its 95 % interval by a bootstrap over sites, as values of a site are alike."""
    if not len(values):
        return {name: 1.0, f"{name}_low": 0.0, f"{name}_high": 1.0}
    each = pd.DataFrame({"total": values.astype(float), "count": 1.0}).groupby(sites).sum().to_numpy()
    drawn = stream(0, "chances", "sites").multinomial(len(each), np.full(len(each), 1 / len(each)), _RESAMPLED) @ each
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return {name: float(values.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}


def reliability(rows: pd.DataFrame) -> list[tuple[float, float, int]]:
    """Return of each of `BINS` the mean chance of the likelier, the share in which it was the faster, and the pairs."""
    chance, first = rows["chance"].to_numpy(dtype=float), rows["first"].to_numpy(dtype=bool)
    likelier: Floats = np.maximum(chance, 1 - chance)
    right = (chance > 0.5) == first
    place = np.clip(np.searchsorted(BINS, likelier, side="right") - 1, 0, len(BINS) - 2)
    found = []
    for number in range(len(BINS) - 1):
        at = place == number
        count = int(at.sum())
        found.append((float(likelier[at].mean()), float(right[at].mean()), count) if count else (np.nan, np.nan, 0))
    return found


def everything(clusters: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the judged pairs of all cases that have some, by title."""
    found = {case.title: on_clusters(clusters, case) for case in track_progress(CLUSTERS)}
    links = residuals.of_links()
    found |= {case.title: on_links(links, case) for case in LINKS}
    found |= {JOBS.title: on_jobs(residuals.of_jobs())}
    return {title: own for title, own in found.items() if len(own)}


def drawn(by_title: Mapping[str, pd.DataFrame]) -> Plot:
    """Return the reliability diagram."""
    with style():
        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([50, 100], [50, 100], "-", color="#333333", linewidth=0.8)
        for number, (title, rows) in enumerate(by_title.items()):
            points = [(100 * said, 100 * came) for said, came, count in reliability(rows) if count >= 10]
            colour, line = COLOURS[number % len(COLOURS)], "-" if number < len(COLOURS) else "--"
            axes.plot(*np.array(points).T, line, marker=".", color=colour, label=title, linewidth=1.0)
        axes.set(xlabel="said: chance of the likelier (%)", ylabel="came true (%)")
        axes.legend(loc="lower right", fontsize=7)
    words = (
        "On the line, of what was given a chance of 80 % four in five came true; above it, more. Bins of 10 pairs on."
    )
    return plot("validation_chances", "How often chances come true", words, figure)


def summary(by_title: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the rows of the summary of the page, in Markdown."""
    rows = []
    for title, own in by_title.items():
        found = figures(own)
        sure = round(found["sure"] * found["pairs"])
        said = f"{_between(found, 'sure_right')} of {sure:,}; Brier score {found['brier']:.3f}"
        rows.append(
            f"| Sure of the faster of two: {title[0].lower()}{title[1:]} | 98 % right | {said} | | {_of(found)} |"
        )
    return rows


def section(by_title: Mapping[str, pd.DataFrame], figure: str | None = None) -> str:
    """Return the section of the page, in Markdown."""
    lines = ["## How often chances come true", "", _WORDS.strip(), ""]
    if figure:
        lines += [f"![Reliability diagram]({figure})", ""]
    lines += [
        "| Two exchanges | Pairs | Sites | Brier score | The likelier is the faster | Called sure | their mean chance "
        "| of these right |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for title, own in by_title.items():
        found = figures(own)
        shares = [f"{found[name]:.1%}" for name in ("right", "sure", "sure_said")]
        shares.append(_between(found, "sure_right"))
        row = f"{title} | {found['pairs']:,} | {found['sites']} | {found['brier']:.3f} | {' | '.join(shares)}"
        lines.append(f"| {row} |")
    heads = [f"{100 * low:g} to {100 * high:g} %" for low, high in pairwise(BINS)]
    lines += ["", "How often the likelier was the faster, by the chance that it was given, and of how many pairs:", ""]
    lines += [f"| Two exchanges | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for title, own in by_title.items():
        cells = [f"{came:.0%} of {count}" if count else "" for _, came, count in reliability(own)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _between(found: Mapping[str, float], name: str) -> str:
    """Return a share with its interval."""
    low, high = (f"{100 * found[f'{name}_{end}']:.3g}" for end in ("low", "high"))
    return f"{found[name]:.1%} ({low} to {high})"


def _of(found: Mapping[str, float]) -> str:
    return f"{found['pairs']:,} pairs of {found['sites']} site{'s' if found['sites'] > 1 else ''}"
