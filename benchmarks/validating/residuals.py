"""Errors of predicted times on left-out measurements: the table of `simnet.cost_models.evidence.chances`.

An error is compared in half-widths of the 90 % interval that the prediction carries. Of calibrated clusters that is the
interval of the calibration; of iterations of jobs that of `simnet step`. Of times that follow from links the
half-width is learnt here, ``a m / T + b`` for ``m`` messages of a worker in ``T`` seconds: by quantile regression of
the errors of the shipped measurements up to 100 Mbit/s, on either side, for each stack, and for none (`ideal`), where
``a`` is 0, since nothing is known of a message's software.

Then a kind of prediction has quantiles of such errors at each *site* that was measured, and the correlation of those of
two choices at the same place of a site. A site is all clusters of the same people, by the first word of the names of
their sets, a set of measurements on known links, or a setting of a job. Within a site, collectives of sets count alike,
however many measurements they have.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd
from measuring_jobs.errors import FASTEST, bound, weighted_quantile
from measuring_jobs.settings import TELLING

from simnet.base.arrays import Floats
from simnet.cost_models.calibration.measured import load_dataset
from simnet.cost_models.evidence.intervals import COLUMNS, NAMED, SCORES, UNNAMED, ErrorModel, factor_in_job
from simnet.network import STACKS
from simnet.network.stack import IDEAL, Stack
from simnet.validate.evaluation import FROM_BASE
from simnet.validate.jobs import report
from simnet.validate.shapednet.libraries import Case, bare_stack, cases, library, predictable

SETS = (
    "shaped_openmpi",
    "shaped_sparse",
    "shaped_mpich",
    "shaped_gloo",
    "shaped_gloo_ranks",
    "shaped_gloo_again",
    "shaped_unequal",
)
"""Shipped measurements that follow from links."""

MEASURED_STACKS = ("gloo", "mpich", "openmpi", "tcp")
"""Stacks that they were measured with."""

BASES = ("sizes", "ranks", "beyond", "collectives", "specified")
"""Kinds of predictions of a calibrated cluster."""

JOBS = ("iteration", "select")
"""Kinds of predictions that jobs tell the errors of."""

LEAST = 0.01
"""The least half-width, as a logarithm."""

FEWEST = 20
"""Pairs of a set below which it tells no correlation."""

_OUTSIDE = 0.05
_MOST_SHARED = 0.95
_DIGITS = 3
_NORMAL = NormalDist()


class Sides(NamedTuple):
    """The half-width of an interval below and above a time: seconds a message, and a share, of either side."""

    below: tuple[float, float]
    above: tuple[float, float]


def site_of(name: str) -> str:
    """Return the site of a set, the first word of its name: sets of the same people."""
    return name.partition("_")[0]


def of_clusters(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of calibrated clusters.

    Returns
    -------
    DataFrame
        Columns ``kind``, ``site``, ``set``, ``cluster`` (what counts alike within a site), ``place`` (where choices are
        compared), ``name`` of the choice, ``collective``, ``ranks``, ``size`` [byte], ``measured``, ``ours``, ``low``,
        ``high`` [s].
    """
    own = frame[frame["split"].isin(BASES) & ~frame["set"].str.startswith("shaped")]
    own = own[own["ours"].notna()]
    beyond = (own["split"] == "ranks") & (own["place"] != "inside")
    ranks = own["setting"].str.extract(r", (\d+) rank", expand=False).astype(int)
    where = own["setting"].str.extract(r", (\d+ rank.*)", expand=False)
    return pd.DataFrame(
        {
            "kind": np.where(beyond, "beyond", own["split"]),
            "site": own["set"].map(site_of),
            "set": own["set"],
            "cluster": own["set"] + " " + own["collective"],
            "place": own["system"] + " " + where,
            "name": own["setting"],
            "ranks": ranks,
            **{name: own[name] for name in ("collective", "size", "measured", "ours", "low", "high")},
        }
    ).reset_index(drop=True)


def of_links() -> pd.DataFrame:
    """Return the errors of times that follow from links, of each stack and of `ideal`; intervals are not known yet.

    Returns
    -------
    DataFrame
        As `of_clusters`, with ``stack``, the kind ``named`` beside `ideal`, and ``messages`` of a worker.
    """
    return pd.DataFrame([one for name in SETS for one in _links(name)])


def _links(name: str) -> Iterator[dict[str, object]]:
    for one in cases(predictable(load_dataset(name).rows)):
        links = one.links.of_hosts(one.ranks)
        if max(bandwidth for _, bandwidth in links) > FASTEST:
            continue
        stack = one.tool.removeprefix("replay-")
        gathers = one.collective in ("all_gather", "all_gatherv")
        row = {
            "stack": stack,
            **dict.fromkeys(("site", "set", "cluster"), name),
            "place": f"{one.tool} {one.profile} {one.links} {one.ranks}",
            "name": f"{one.collective} {one.algorithm}",
            "collective": one.collective,
            "ranks": one.ranks,
            "size": float(np.mean(one.sizes)) * (one.ranks if gathers else 1),
            "measured": one.seconds,
            "messages": one.schedule(library(one.tool).piece).n_messages / one.ranks,
        }
        yield row | {"kind": NAMED, "ours": one.takes(_stack(one, stack))}
        yield row | {"kind": UNNAMED, "ours": one.takes(IDEAL)}


def _stack(one: Case, name: str) -> Stack:
    """Return the name of the stack; Open MPI was measured with every message below its eager limit."""
    found = STACKS[name] if name == one.tool else bare_stack(name)
    return dataclasses.replace(found, eager_limit=math.inf) if name == "openmpi" else found


def of_jobs() -> pd.DataFrame:
    """Return the errors of iterations of the shipped jobs, and of selecting in them, medians over iterations.

    Returns
    -------
    DataFrame
        As `of_clusters`, with ``telling``, whether a setting tells how wide the intervals of iterations are.
    """
    both = report.shipped_jobs()
    fixed = both[both["policy"] != "flexible"]
    rows = fixed.groupby(["setting", "policy"], sort=False).median(numeric_only=True).reset_index()
    where = dict.fromkeys(("site", "set", "cluster", "place"), rows["setting"])
    named = {"name": rows["policy"], "collective": rows["policy"], "telling": rows["setting"].isin(TELLING)}
    ours = rows["select_s_ours"]
    select = {"measured": rows["select_s"], "ours": ours}
    select |= {end: ours * factor_in_job(end, "select") for end in ("low", "high")}
    whole = {"measured": rows["total_s"], "ours": rows["total_s_ours"]}
    whole |= {end: rows[f"total_{end}_s"] for end in ("low", "high")}
    parts = {"iteration": whole, "select": select}
    return pd.concat([pd.DataFrame({"kind": kind, **where, **named, **part}) for kind, part in parts.items()])


def sides(links: pd.DataFrame) -> dict[str, Sides]:
    """Return the half-widths of the stacks of `of_links`, and of `ideal`."""
    found = {}
    groups: dict[str, pd.DataFrame] = {UNNAMED: links[links["kind"] == UNNAMED]}
    groups |= {str(name): own for name, own in links[links["kind"] == NAMED].groupby("stack")}
    for name, own in groups.items():
        seconds, messages = own["ours"].to_numpy(dtype=float), own["messages"].to_numpy(dtype=float)
        errors = np.log(own["measured"].to_numpy(dtype=float) / seconds)
        weights = _weights(own["set"])
        low, high = (np.maximum(sign * errors, 0.0) for sign in (-1, 1))
        if name == UNNAMED:
            # Hardly anything is faster than without software: what is not outside below may be above.
            below = max(weighted_quantile(low, weights, 1 - _OUTSIDE), LEAST)
            faster = float(weights[low > below].sum() / weights.sum())
            above = max(weighted_quantile(high, weights, 1 - 2 * _OUTSIDE + faster), LEAST)
            found[name] = Sides((0.0, below), (0.0, above))
            continue
        both = [bound(messages, seconds, off * seconds, weights, 1 - _OUTSIDE) for off in (low, high)]
        found[name] = Sides(*((message, max(share, LEAST)) for message, share in both))
    return found


def with_intervals(links: pd.DataFrame, known: Mapping[str, Sides]) -> pd.DataFrame:
    """Return errors of links with intervals; stacks that are not known have the widest of those that are."""
    widths = np.zeros((2, len(links)))
    names = np.where(links["kind"] == UNNAMED, UNNAMED, links["stack"])
    each = (links["messages"] / links["ours"]).to_numpy(dtype=float)
    for name in np.unique(names).tolist():
        at = names == name
        own = [known[name]] if name in known else [one for stack, one in known.items() if stack != UNNAMED]
        widths[:, at] = np.max([[message * each[at] + share for message, share in one] for one in own], axis=0)
    ours = links["ours"].to_numpy(dtype=float)
    return links.assign(low=ours * np.exp(-widths[0]), high=ours * np.exp(widths[1]))


def errors(rows: pd.DataFrame) -> Floats:
    """Return how far measured times are from predicted ones, in half-widths of the interval on their side."""
    measured, ours, low, high = (rows[name].to_numpy(dtype=float) for name in ("measured", "ours", "low", "high"))
    off = np.log(measured / ours)
    half = np.where(off < 0, np.log(ours / low), np.log(high / ours))
    found: Floats = np.divide(off, half, out=np.zeros(len(off)), where=half > 0)
    return found


def quantiles(rows: pd.DataFrame) -> dict[str, Floats]:
    """Return the quantiles of errors of one kind at `SCORES`, by site; what has the same ``cluster`` counts as one."""
    found = {}
    for site, own in rows.groupby("site", sort=True):
        values = errors(own)
        order = np.argsort(values, kind="stable")
        weights = _weights(own["cluster"])[order]
        reached: Floats = (np.cumsum(weights) - weights / 2) / weights.sum()
        found[str(site)] = np.interp([_NORMAL.cdf(score) for score in SCORES.tolist()], reached, values[order])
    return found


def shared(rows: pd.DataFrame, found: Mapping[str, Floats]) -> float:
    """Return the correlation of the errors of two choices of the same size at the same place of a site.

    It is that of normal scores among the errors of the site. Sets with at least `FEWEST` pairs count alike; of jobs all
    together.
    """
    scores = np.zeros(len(rows))
    for site, own in found.items():
        at = (rows["site"] == site).to_numpy()
        scores[at] = np.interp(errors(rows[at]), own + np.arange(len(own)) * 1e-9, SCORES)
    if "size" in rows and rows["size"].notna().any():
        keys = ["set", "place", "size"]
        if (rows["kind"] == "collectives").all():
            # What is predicted from all-reduce is together what may be chosen among; others stand in for each other.
            keep = rows["collective"].isin(FROM_BASE).to_numpy()
            rows, scores = rows[keep], scores[keep]
    else:
        keys = ["set", "place"]
    table = rows[[*keys, "name"]].assign(score=scores)
    both = table.merge(table, on=keys, suffixes=("", "_other"))
    both = both[both["name"] < both["name_other"]]
    together = (both["score"] * both["score_other"]).groupby(both["set"])
    alone = ((both["score"] ** 2 + both["score_other"] ** 2) / 2).groupby(both["set"])
    if keys == ["set", "place"]:
        found_each = float(together.sum().sum() / alone.sum().sum())
    else:
        enough = together.size() >= FEWEST
        found_each = float((together.sum() / alone.sum())[enough].mean()) if enough.any() else 0.0
    return float(np.clip(found_each, 0.0, _MOST_SHARED))


def model(rows: pd.DataFrame) -> ErrorModel:
    """Return the model of the errors of one kind, as `of_clusters` has them, with intervals."""
    found = quantiles(rows)
    return ErrorModel(shared(rows, found), np.array(list(found.values())))


def table(clusters: pd.DataFrame) -> str:
    """Return the table, as CSV."""
    links, jobs = of_links(), of_jobs()
    known = sides(links)
    whole = pd.concat([clusters, with_intervals(links, known), jobs])
    rows: list[list[object]] = []
    for kind in (*(BASES if len(clusters) else ()), NAMED, UNNAMED, *JOBS):
        own = whole[whole["kind"] == kind]
        found = quantiles(own)
        rows += [[kind, site, shared(own, found), *[None] * 4, *each.tolist()] for site, each in found.items()]
    for stack in (*MEASURED_STACKS, UNNAMED):
        rows.append([stack, None, None, *known[stack].below, *known[stack].above, *[None] * len(SCORES)])
    columns = [*COLUMNS, *(f"{score:g}" for score in SCORES.tolist())]
    csv: str = pd.DataFrame(rows, columns=columns).to_csv(
        index=False, float_format=f"%.{_DIGITS}g", lineterminator="\n"
    )
    return csv


def _weights(groups: pd.Series[str]) -> Floats:
    """Return one over the size of the group of each row."""
    found: Floats = 1 / groups.groupby(groups).transform("size").to_numpy(dtype=float)
    return found
