"""How often measured times are inside their 90 % interval, kind by kind, each set by what was learnt from others.

A set is a site, a set of measurements on known links, or a setting of a job; see `validating.residuals`. Sets
count alike, since errors of a set are.
"""

from __future__ import annotations

import textwrap
from statistics import NormalDist
from typing import NamedTuple, get_args

import numpy as np
import pandas as pd
from measuring_jobs.settings import ALGORITHMS, EXCHANGES, SETTINGS, TELLING

from simnet import sparsifier_models
from simnet.cost_models.costs.devices import IntervalEnd
from simnet.cost_models.evidence.chances import Chances
from simnet.cost_models.evidence.intervals import (
    NAMED,
    SCORES,
    UNNAMED,
    ErrorModel,
    corrected,
    coverage_factors,
    error_models,
    factor_in_job,
)
from simnet.policies import Candidate
from simnet.studies.job_totals import JobTotal, Spent, judged, off_alike
from simnet.validate.jobs import report
from validating import residuals
from validating.chances import mean_over

FOUR = ("dense", "AG-Topk", "AR-Topk STAR", "Ok-Topk")
"""Exchanges of jobs among which one is chosen."""

LEAST, MOST = 0.85, 0.95
"""The share of a kind that intervals are meant to hold, where sets that tell of it are not few."""

OF_CLUSTERS = {
    "sizes": "Collective, other sizes measured",
    "ranks": "the same, ranks between those measured",
    "beyond": "the same, ranks beyond those measured",
    "collectives": "the same, other collectives measured",
    "specified": "the same, the platform specified alone",
}
"""Kinds of predictions of calibrated clusters, in words."""

_ENTRIES = 64
_WORDS = f"""
Intervals are those that commands show. Each set is judged by errors of the other ones: all that the same people
measured on clusters, a set of measurements on known links, a setting of a job; of parts of iterations half of the
settings tell, and the others are judged. Sets count alike, and in brackets are 95 % intervals by a bootstrap over them.
An interval is wider the fewer sets it is from, by the factor of a prediction interval for one more set,
`t sqrt(1 + 1/n) / z` by Student's t (`simnet.cost_models.evidence.intervals.factor_for_another`): 1.26 for seven sets,
1.05 for thirty. Meant are {100 * LEAST:g} to {100 * MOST:g} %. The rows of single stacks say how far that goes: of
mpich two sets tell, each of which is judged by the other and by other stacks, and of tcp one, by other stacks alone.
Those of Open MPI hold more, as the least half-width of an interval is 1 %. All jobs and links were measured on one
machine.

Waits of rounds of local steps (DiLoCo and its relatives) are in no set. Their intervals are those of exchanges on such
links, wider by the factor for the sets of these, and commands call them extrapolated.
"""


_FOUR = (
    "Which of four exchanges ({among}) a whole job is fastest with, in {settings} settings: Brier score, summed over "
    "the four, {brier:.3f}; {sure:.0%} were called sure, and of these {sure_right:.0%} were right."
)


class Coverage(NamedTuple):
    """How much of a kind was inside.

    Parameters
    ----------
    kind : str
        What was predicted, in words.
    sets, predictions : int
        How many; 0 predictions if only the sets are known.
    inside, low, high : float
        The share inside its interval, mean over sets, and the 95 % interval of it by a bootstrap over sets.
    """

    kind: str
    sets: int
    predictions: int
    inside: float
    low: float
    high: float


def coverage(kind: str, each: pd.Series[float], predictions: int) -> Coverage:
    """Return how much of a kind was inside, given the share of each set.

    Examples
    --------
    >>> coverage("x", pd.Series([0.8, 1.0]), 20)
    Coverage(kind='x', sets=2, predictions=20, inside=0.9, low=0.8, high=1.0)
    """
    return Coverage(kind, len(each), predictions, *mean_over("", each.to_numpy(), np.arange(len(each))).values())


def of_sites(kind: str) -> pd.Series[float]:
    """Return the share inside of each site of the shipped errors of a kind, by the errors of the others."""
    known, found, normal = error_models()[kind], [], NormalDist()
    for place, own in enumerate(known.quantiles):
        below, above = coverage_factors(kind, ErrorModel(known.shared, np.delete(known.quantiles, place, axis=0)))
        low, high = np.interp([-below, above], own, SCORES).tolist()
        found.append(normal.cdf(high) - normal.cdf(low))
    return pd.Series(found)


def of_links() -> pd.DataFrame:
    """Return `residuals.of_links` with ``inside``, each set by errors of the others."""
    links, found = residuals.of_links(), []
    for name in sorted(links["site"].unique()):
        rest = links[links["site"] != name]
        known = residuals.sides(rest)
        learnt = residuals.with_intervals(rest, known)
        for kind in (NAMED, UNNAMED):
            own = residuals.with_intervals(links[(links["site"] == name) & (links["kind"] == kind)], known)
            models = {kind: residuals.model(learnt[learnt["kind"] == kind])}
            ours, low, high = (own[one].to_numpy(dtype=float) for one in ("ours", "low", "high"))
            low, high = corrected(kind, ours, low, high, models)
            found.append(own.assign(inside=(low <= own["measured"]) & (own["measured"] <= high)))
    return pd.concat(found)


def of_iterations() -> pd.DataFrame:
    """Return iterations of settings without a say in interval widths, with whether each part is inside."""
    rows = report.shipped_jobs()
    rows = rows[(rows["policy"] != "flexible") & ~rows["setting"].isin(TELLING)]
    low, high = (rows["select_s_ours"] * factor_in_job(end, "select") for end in get_args(IntervalEnd))
    found = {"select": rows["select_s"].between(low, high)}
    for part in ("messages", "total"):
        found[part] = rows[f"{part}_s"].between(rows[f"{part}_low_s"], rows[f"{part}_high_s"])
    return rows[["setting", "policy"]].assign(**found)


class Whole(NamedTuple):
    """Jobs of a setting: what all iterations took, and what was said.

    Parameters
    ----------
    setting : str
        Its name.
    measured : list of float
        What each job took [s].
    said : Chances
        Intervals, and chances to be the fastest.
    """

    setting: str
    measured: list[float]
    said: Chances


def whole_jobs(among: tuple[str, ...] = tuple(EXCHANGES)) -> list[Whole]:
    """Return the jobs with one exchange and one bucket, judged as commands do; errors of links are of no job."""
    rows, found = report.shipped_jobs(), []
    least, most = (factor_in_job(end, "compute") for end in get_args(IntervalEnd))
    for one in SETTINGS:
        own = rows[(rows["setting"] == one.name) & rows["policy"].isin(among)]
        jobs = {str(name): job for name, job in own.groupby("policy", sort=False)}
        if one.bucket is not None or (len(jobs) < len(among) < len(EXCHANGES)):
            continue
        totals = [_total(name, job, one.ranks) for name, job in jobs.items()]
        found.append(
            Whole(one.name, [float(job["total_s"].sum()) for job in jobs.values()], judged(totals, (least, most)))
        )
    return found


def _total(name: str, job: pd.DataFrame, ranks: int) -> JobTotal:
    scheme = EXCHANGES[name]["scheme"]
    known = sparsifier_models.own_options(scheme)
    own = {key: one for key, one in {**EXCHANGES[name], **ALGORITHMS.get(scheme, {})}.items() if key in known}
    zeros = np.zeros((ranks, _ENTRIES), dtype=np.float32)
    sent = sparsifier_models.create(scheme, ranks, _ENTRIES, layers=(_ENTRIES,), **own).exchange(zeros)
    count = sent.schedule.n_messages / ranks * len(job)
    compute, update, select, total = (
        float(job[f"{part}_s_ours"].sum()) for part in ("compute", "update", "select", "total")
    )
    compute += update
    spent = Spent(total - compute - select, select, select, select, count)
    return JobTotal(name, compute, {off_alike(Candidate(name, scheme, own)): spent}, "gloo")


def everything(clusters: pd.DataFrame) -> list[Coverage]:
    """Return how much of each kind was inside."""
    kinds = clusters["kind"].tolist() if len(clusters) else []
    found = [coverage(words, of_sites(kind), kinds.count(kind)) for kind, words in OF_CLUSTERS.items()]
    links = of_links()
    groups = {"From links, the stack named": links[links["kind"] == NAMED]}
    groups |= {f"of these {stack}": own for stack, own in groups["From links, the stack named"].groupby("stack")}
    groups["From links, no stack named"] = links[links["kind"] == UNNAMED]
    found += [coverage(words, own.groupby("site")["inside"].mean(), len(own)) for words, own in groups.items()]
    rows = of_iterations()
    parts = (("select", "Kernels of an exchange"), ("messages", "Exchange"), ("total", "Iteration"))
    found += [coverage(f"{words} in a job", rows.groupby("setting")[part].mean(), len(rows)) for part, words in parts]
    whole = [one for one in whole_jobs() if one.setting not in TELLING]
    inside = [(one.said.low <= one.measured) & (one.measured <= one.said.high) for one in whole]
    each = pd.Series([one.mean() for one in inside])
    return [*found, coverage("Whole job", each, sum(map(len, inside)))]


def of_four() -> dict[str, float]:
    """Return how well predictions say which of `FOUR` is fastest in a job.

    Returns
    -------
    dict
        ``settings``, ``brier`` score (the sum over the four, 0 to 2), ``sure``, the share called sure, and
        ``sure_right``, the share of them which was right.
    """
    whole = whole_jobs(FOUR)
    first = np.array([np.arange(len(FOUR)) == np.argmin(one.measured) for one in whole])
    chance, sure = (np.array([getattr(one.said, name) for one in whole]) for name in ("fastest", "sure"))
    return {
        "settings": len(whole),
        "brier": float(((chance - first) ** 2).sum(axis=1).mean()),
        "sure": float(sure.any(axis=1).mean()),
        "sure_right": float(first[sure].mean()),
    }


def section(found: list[Coverage]) -> str:
    """Return the section of the page, in Markdown."""
    lines = ["## How often times are inside their intervals", "", _WORDS.strip(), ""]
    lines += ["| What is predicted | Sets | Predictions | Inside its 90 % interval |", "|---|---|---|---|"]
    for one in found:
        ends = f" ({100 * one.low:.3g} to {100 * one.high:.3g})" if one.sets > 2 else ""
        count = f"{one.predictions:,}" if one.predictions else ""
        lines.append(f"| {one.kind} | {one.sets} | {count} | {100 * one.inside:.1f} %{ends} |")
    lines.append("| Wait of a round of local steps | 0 | 0 | not measured |")
    four = of_four()
    lines += ["", *textwrap.wrap(_FOUR.format(among=", ".join(FOUR), **four), 120)]
    return "\n".join(lines) + "\n"
