"""The page of what was validated, in Markdown, from the results of a run.

It is longer than 500 lines as the words of all sections stand here, in the order of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simnet.cost_models.calibration import measured
from simnet.cost_models.calibration.cost_model import DEFAULT_COVERAGE
from simnet.cost_models.evidence.intervals import BIN_NAMES, bin_of
from simnet.validate.evaluation import FROM_BASE, HALVES, PLACES, TITLES
from simnet.validate.jobs import report as jobs
from simnet.validate.links import AGAIN, winners
from simnet.validate.links import TITLES as LINK_TITLES
from simnet.validate.rivals import NEAREST, NEAREST_BY_BUS, NEIGHBOURS, RULE
from simnet.validate.shapednet.libraries import predictable
from simnet.validate.shapednet.links import COLUMNS
from validating import alike, chances, constants, coverage, held_out, likeness
from validating.learned import LEARNED

MODELS = {
    "ours": "ours",
    NEIGHBOURS: "log-log between neighbours",
    NEAREST: "nearest ranks",
    NEAREST_BY_BUS: "nearest by bus factor",
    RULE: "rule of the bus factor",
    **dict(zip(LEARNED, ("Gaussian process", "gradient boosting"), strict=True)),
    "line": "single line",
    "three_segments": "three segments",
    "five_anchors": "five anchors",
    "closed_form": "plain closed form",
}
"""Predictions that stand side by side."""

CONSTANTS = Path(__file__).parents[1] / "constants.csv"
"""What `benchmarks/constants.py` wrote."""

SPECIFIED = "specified"
"""The split of platforms that were predicted from their specification."""

LARGE = 16e6
"""From where sizes count as large [byte]."""

HUGE = 64e6
"""From where bandwidth alone decides [byte]."""

SMALL = 2**20
"""Below this, latency decides [byte]."""

WHAT = {
    "sizes": """\
Every fourth size of each curve is left out, and predicted by a calibration of the others: models and intervals come
from a cross-validation inside the rest. The smallest size is never left out.""",
    "ranks": """\
One number of ranks at a time is left out with all its sizes. Beside ours stand the nearest number of ranks, the same by
the ratio of bus factors, the straight line between neighbouring numbers in logarithms, and curves of plain models,
interpolated over the logarithm of the ranks. *Outside* is a doubling of the ranks, or a halving, beyond those that were
kept; farther is told apart.""",
    "collectives": """\
One collective at a time is left out. All-gather, reduce-scatter and all-to-all are predicted from all-reduce and
point-to-point alone, where all-reduce was measured. The *rule of the bus factor* stands beside it, by which an
all-gather takes half of the all-reduce of the same size, read off between sizes in logarithms; where there is none on
these ranks, of the nearest.""",
    "links": """\
Ranks on a network whose latencies and bandwidths are set; nothing of the collective is fitted. The prediction takes
the settings of the links, what TCP over Ethernet adds, and a time per message for software. The *plain closed form*
is alpha-beta with the framing of Ethernet.""",
    "links_unequal": """\
The same where links differ between hosts. The closed form has one latency and one rate: those of the two hosts that are
farthest apart, and of the slowest.""",
    "links_shared": """\
The same where a rank sends or receives several messages at once, over equal and unequal links.""",
    "links_fast": """\
The same over links faster than 100 Mbit/s, where the processors that all ranks share, and not the links, set the
time.""",
    "links_changing": "The same while links change, for each iteration.",
    "links_again": """\
Some of the settings above once more, while the machine did nothing else. What differs between the two measurements no
prediction can tell: ranks share two cores with each other and with the switch, and broadcasts and long gathers of gloo
take whole or half messages more or less by chance, as its threads send.""",
    SPECIFIED: """\
Nothing was measured: the prediction takes generation and number of devices and network cards from
`validate/platforms`. What it was compared with had no part in it, but latencies and efficiencies that hold for all
platforms of a library were chosen with such measurements in view: this is no blind test.""",
}
"""What is done in each split."""

INTRODUCTION = """\
# What was validated, on what, and with which error

<!-- Made by `python benchmarks/validation.py --markdown FILE`. Do not edit: run it again. -->

[How far to trust it](../trust.md) has the figures in short. This page has all of them, from a run over {sets} sets of
measurements: {rows:,} rows, {curves:,} curves. {shipped} of the sets come with simnet. Figures of the README are from a
run over 44 sets; 16 of them are not shipped, as they have no licence or are not of GPUs.

Times that follow from links are those of `simnet run`, with the [transport stack](../stacks.md) of the library. Times
that follow from measured curves are those of `simnet time` on a calibrated cluster.

An error is the absolute difference of predicted and measured time over the measured one. *Median* and *p90* are over
all predictions of a row; sets with more measurements count more. A prediction never saw the measurement that it is
compared with. The *noise floor* of a set is the median difference of repetitions from their own median: what a
model cannot be expected to get below.
"""

_SUMMARY = """\
## Summary

| What is predicted | Aim | Ours: median / p90 | Plain model: median / p90 | From |
|---|---|---|---|---|
{}

*Curve by curve* are medians over curves of the median and the p90 of each: so figures of simple models are often
given, and no long curve counts more than a short one. With every second size left out, sizes are factors of four apart.

The plain model is the straight line between neighbouring sizes in logarithms for sizes, that between neighbouring
numbers for ranks, the rule of the bus factor for collectives, and alpha-beta with framing for links; its figures are
over what it says anything of.

*Were intervals exact*: how many sets would then be within the aim in the mean, as few measurements of a set, and those
of a curve, lie inside by chance together.
"""


def frame(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return all predictions of `simnet.validate.evaluation`, with ``set``, ``nccl``, ``nodes`` and ``inside``."""
    parts = []
    for name, entry in results["sets"].items():
        for held, split in ((entry.get("held"), None), (entry.get("specified"), SPECIFIED)):
            if not held or not held["split"]:
                continue
            part = pd.DataFrame(held)
            part["set"], part["nccl"] = name, bool(entry.get("nccl"))
            if split is not None:
                part["split"] = split
            parts.append(part)
    if not parts:
        return pd.DataFrame(
            columns=["split", "place", "setting", "size", "set", "nccl", "nodes", "inside", "collective", *MODELS]
        )
    table = pd.concat(parts, ignore_index=True).reindex(
        columns=[*dict.fromkeys([name for part in parts for name in part]), *(m for m in MODELS if m not in parts[0])]
    )
    table = table.loc[:, ~table.columns.duplicated()]
    numbers = ["size", "measured", "low", "high", *(name for name in MODELS if name in table)]
    table[numbers] = table[numbers].astype(float)
    table["nodes"] = table["setting"].str.extract(r" on (\d+) node", expand=False).astype(float)
    table["collective"] = table["setting"].str.partition(",")[0]
    table["inside"] = (table["low"] <= table["measured"]) & (table["measured"] <= table["high"])
    return table


def errors(part: pd.DataFrame, model: str) -> np.ndarray:
    """Return the absolute relative errors of a model, where it says something."""
    off = (part[model] / part["measured"] - 1).abs().to_numpy(dtype=float)
    return off[np.isfinite(off)]


def page(
    results: Mapping[str, Any],
    figures: Mapping[str, str],
    judged: Mapping[str, pd.DataFrame] | None = None,
    inside: Sequence[held_out.Coverage] = (),
) -> str:
    """Return the page.

    Parameters
    ----------
    results : mapping
        What `validating.running` wrote.
    figures : mapping of str to str
        Paths of figures by the heading below which they stand.
    judged : mapping of str to DataFrame, optional
        Pairs of which one is faster, as `validating.chances.everything` gives them.
    inside : sequence of Coverage
        How many times are inside their interval, as `validating.held_out.everything` gives it.
    """
    table = frame(results)
    known = {name: one for name, one in results["sets"].items() if "figures" in one}
    text = INTRODUCTION.format(
        sets=len(known),
        rows=sum(one["figures"]["rows"] for one in known.values()),
        curves=sum(one["figures"]["curves"] for one in known.values()),
        shipped=sum(one["shipped"] for one in known.values()),
    )
    parts = [text, _SUMMARY.format("\n".join(summary(results, judged))), alike.section(table, MODELS)]
    for split in (*(name for name in TITLES if name in WHAT), SPECIFIED):
        part = table[table["split"] == split]
        if len(part):
            parts.append(_split(split, part, results, figures.get(split)))
    parts += [held_out.section(inside)] if inside else []
    parts += [chances.section(judged, figures.get("chances"))] if judged else []
    parts += [constants.section(table, CONSTANTS)] if CONSTANTS.is_file() else []
    parts += [likeness.section(likeness.EVERY_STEP, likeness.TABLE)] if likeness.TABLE.is_file() else []
    parts += [jobs.job_section(), _worst(table), _on_what(known), _left_out(results), _made(results)]
    return "\n".join(part.strip() + "\n" for part in parts if part)


def summary(results: Mapping[str, Any], judged: Mapping[str, pd.DataFrame] | None = None) -> list[str]:
    """Return the rows of the table of aims and what was reached, in Markdown."""
    table, judged = frame(results), judged or {}
    known = {name: one for name, one in results["sets"].items() if "figures" in one}
    many = table[table["nccl"] & (table["nodes"] > 1)]
    sizes, ranks = many[many["split"] == "sizes"], table[table["split"] == "ranks"]
    base = table[(table["split"] == "collectives") & table["collective"].isin(FROM_BASE)]
    links = table[table["split"] == "links"]
    specified = table[(table["split"] == SPECIFIED) & (table["size"] >= HUGE)]
    rows = [
        _aim("A size removed from the data, NCCL and RCCL on several nodes", "median 4 %, p90 15 %", sizes, NEIGHBOURS),
        _aim("of these from 16 MB", "median 2 %", sizes[sizes["size"] >= LARGE], NEIGHBOURS),
        _by_curve("the same, curve by curve", "median 4 %, p90 15 %", sizes, NEIGHBOURS),
        _by_curve(
            "every second size left out, curve by curve",
            "median 4 %, p90 15 %",
            many[many["split"] == HALVES],
            NEIGHBOURS,
        ),
        *_with_nccl("Other ranks, between those measured", "median 7 %", _placed(ranks, PLACES[0]), NEIGHBOURS, 0.07),
        *_with_nccl("Other ranks, one doubling outside", "median 20 %", _placed(ranks, PLACES[1]), NEIGHBOURS, 0.2),
        *_with_nccl("Collective from all-reduce, 64 MB and more", "median 10 %", base[base["size"] >= HUGE], RULE),
        *_with_nccl("Collective from all-reduce, below 1 MiB", "median 30 %", base[base["size"] < SMALL], RULE),
        _aim("From links alone, up to 100 Mbit/s", "median 2 %, p90 8 %", links, "closed_form"),
        _aim("of these gloo", "median 2 %, p90 10 %", links[links["set"].str.contains("gloo")], "closed_form"),
        *(
            _aim(what, "TCP within 5 %, gloo within 8 %", table[table["split"] == split], "closed_form")
            for split, what in (
                ("links_unequal", "From links that differ between hosts"),
                ("links_shared", "Several transfers per link"),
            )
        ),
        _aim(
            "Links that change, per iteration", "median 5 %", table[table["split"] == "links_changing"], "closed_form"
        ),
    ]
    if len(specified):
        off = np.abs(np.log(specified["ours"] / specified["measured"]))
        each = off.groupby([specified["set"], specified["system"]])
        right, count = int((each.median() <= math.log(2)).sum()), len(each)
        share = float(each.apply(lambda one: (one <= math.log(2)).mean()).mean())
        said = f"{right} of {count} systems within a factor of 2 in the median; "
        said += f"{share:.0%} of the sizes of a system, in their mean"
        what = "Platform from its specification, 64 MB and more"
        rows.append(f"| {what} | within a factor of 2 | {said} | | {_count(specified)} |")
        for name, (right, count) in ordered(specified).items():
            what = f"The faster of {name}, from the specification"
            rows.append(f"| {what} | in the right order | {right / count:.0%} | | {count} pairs |")
    rows += _coverage_rows(table)
    won = [one["figures"]["splits"][split]["winners"] for one in known.values() for split in ("links",)
           if one["figures"]["splits"].get(split, {}).get("winners")]  # fmt: skip
    if won:
        every = {name: sum(one.get(name, 0) for one in won) for name in ("right", "closed_form", "settings")}
        for what, counts in (
            ("The faster of AG-Topk and AR-Topk, margins above 5 %", every),
            ("the same, each with its fastest algorithm", winners(links, best=True)),
        ):
            if counts is not None:
                right, plain, count = (counts[name] for name in ("right", "closed_form", "settings"))
                rows.append(f"| {what} | 99 % | {right / count:.1%} | {plain / count:.1%} | {count} settings |")
    rows += [*_never_worse(table), *chances.summary(judged)]
    return [row for row in rows if row]


def _by_curve(what: str, aim: str, part: pd.DataFrame, plain: str) -> str:
    """Return a row of medians over curves, of the median and the 90 % quantile of each."""
    if not len(part):
        return f"| {what} | {aim} | not in this run | | |"
    said = []
    for name in ("ours", plain):
        off = (part[name] / part["measured"] - 1).abs().groupby([part[key] for key in ("set", "system", "setting")])
        said.append(f"{_percent(float(off.median().median()))} / {_percent(float(off.quantile(0.9).median()))}")
    curves = part.groupby(["set", "system", "setting"]).ngroups
    return f"| {what} | {aim} | {said[0]} | {said[1]} | {curves} curves |"


def _with_nccl(what: str, aim: str, part: pd.DataFrame, plain: str, most: float | None = None) -> list[str]:
    """Return a row of all libraries, and one of NCCL and RCCL alone."""
    nccl = _aim("of these NCCL and RCCL", aim, part[part["nccl"]], plain, most)
    return [_aim(what, aim, part, plain, most), nccl]


def _aim(what: str, aim: str, part: pd.DataFrame, plain: str, most: float | None = None) -> str:
    """Return a row of the summary; with `most`, also how many sets have a median that is no larger."""
    if not len(part):
        return f"| {what} | {aim} | not in this run | | |"
    said = _pair(errors(part, "ours"))
    if most is not None:
        medians = [_median(errors(one, "ours")) for _, one in part.groupby("set")]
        said += f"; {sum(one <= most for one in medians)} of {len(medians)} sets reach it"
    return f"| {what} | {aim} | {said} | {_pair(errors(part, plain))} | {_count(part)} |"


def ordered(part: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return how often the faster of two is the predicted one, and of how many, where they differ by more than 5 %.

    Compared are all-reduce with all-gather, and ring with tree, of the same set, system, ranks, nodes and size.
    """
    table = part.assign(
        algorithm=part["setting"].str.extract(r", (?:\w+_)?(ring|tree)\b", expand=False).fillna(""),
        rest=part["setting"].str.replace(r"^\w+|, (?:\w+_)?(?:ring|tree)\b", "", regex=True),
    )
    pairs = {
        "all-reduce and all-gather": ("collective", "all_reduce", "all_gather", ["algorithm"]),
        "ring and tree": ("algorithm", "ring", "tree", ["collective"]),
    }
    found = {}
    for name, (column, one, other, same) in pairs.items():
        keys = ["set", "system", "rest", "size", *same]
        both = table[table[column] == one].merge(table[table[column] == other], on=keys, suffixes=("_a", "_b"))
        apart = np.log(both["measured_a"] / both["measured_b"])
        told = np.log(both["ours_a"] / both["ours_b"])
        clear = apart.abs() > math.log(1.05)
        if clear.any():
            found[name] = (int((np.sign(apart[clear]) == np.sign(told[clear])).sum()), int(clear.sum()))
    return found


def _coverage_rows(table: pd.DataFrame) -> list[str]:
    rows = []
    for split, part in table.groupby("split", sort=False):
        if split in ("sizes", "ranks", "collectives", *LINK_TITLES):
            what = f"Inside the {DEFAULT_COVERAGE:.0%} interval, {TITLES[split]}"
            rows.append(f"| {what} | 85 to 95 % | {coverage.said(part)} | | {_count(part)} |")
    return rows


def _never_worse(table: pd.DataFrame) -> list[str]:
    """Return in which sets simpler models of sizes have a smaller median."""
    part, rows = table[table["split"] == "sizes"], []
    for plain in (NEIGHBOURS, "three_segments") if len(part) else ():
        medians = {
            name: (_median(errors(one, "ours")), _median(errors(one, plain))) for name, one in part.groupby("set")
        }
        worse = [name for name, (ours, other) in medians.items() if ours > other]
        said = f"worse in {', '.join(f'`{name}`' for name in worse)}" if worse else "never"
        what = f"Median of a set worse than that of {MODELS[plain]}, sizes left out"
        rows.append(f"| {what} | never | {said} | | {len(medians)} sets |")
    return rows


def _split(split: str, part: pd.DataFrame, results: Mapping[str, Any], figure: str | None) -> str:
    """Return what is said of a split: its bins, its sets."""
    title = TITLES.get(split, "platforms from their specification")
    lines = [f"## {title[0].upper()}{title[1:]}", "", WHAT[split], ""]
    if figure:
        lines += [f"![Predicted against measured, {title}]({figure})", ""]
    if split == "links_again":
        lines += _twice(part["set"].unique())
    models = [name for name in MODELS if name in part and len(errors(part, name))]
    groups: list[tuple[str, pd.DataFrame]] = [("all", part)]
    bins = bin_of(part["size"].to_numpy(dtype=float))
    groups += [(name, part[bins == number]) for number, name in enumerate(BIN_NAMES)]
    groups += [(f"ranks {place}", _placed(part, place)) for place in dict.fromkeys(part["place"]) if place]
    if split in ("collectives", SPECIFIED):
        groups += [(f"`{name}`", one) for name, one in part.groupby("collective")]
    if split == "sizes":
        many = part[part["nccl"] & (part["nodes"] > 1)]
        groups += [("NCCL, RCCL over several nodes", many), ("of these from 16 MB", many[many["size"] >= LARGE])]
        groups += [("MPI and gloo", part[~part["nccl"]])]
    lines += _table(["median / p90", "predictions", *(MODELS[name] for name in models), "inside interval"],
                    _rows(groups, models))  # fmt: skip
    lines += ["", "By set:", ""]
    by_set = [(f"`{name}`", one) for name, one in part.groupby("set")]
    noise = {
        f"`{name}`": one["figures"].get("spread_of_repetitions")
        for name, one in results["sets"].items()
        if "figures" in one
    }
    lines += _table(
        ["median / p90", "predictions", *(MODELS[name] for name in models), "inside interval", "noise floor"],
        ([*row, _share(noise.get(row[0]))] for row in _rows(by_set, models)),
    )
    return "\n".join(lines) + "\n"


def repeated(first: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """Return settings that were measured twice: the repeatability of such times.

    Returns
    -------
    DataFrame
        Columns ``collective``, ``ranks``, ``link_latency`` [s], ``link_bandwidth`` [byte/s], ``size`` [byte],
        ``seconds`` and ``seconds_again``, the medians, and ``apart``, the difference over the second one.
    """
    keys = ["collective", "algorithm", "ranks", *COLUMNS, "size"]
    once, twice = (predictable(rows)[[*keys, "seconds"]] for rows in (first, again))
    both = once.merge(twice, on=keys, suffixes=("", "_again"))
    return both.assign(apart=abs(both["seconds"] / both["seconds_again"] - 1))


def _twice(names: Iterable[str]) -> list[str]:
    """Return how far apart two measurements of the same settings are, by latency."""
    rows = []
    for name in names:
        again = measured.load_dataset(name).rows
        both = repeated(measured.load_dataset(again[AGAIN].iloc[0]).rows, again)
        groups = [("all", both), *((f"{1e3 * at:g} ms", one) for at, one in both.groupby("link_latency"))]
        rows += [[f"`{name}`", what, str(len(one)), _pair(one["apart"].to_numpy())] for what, one in groups]
    return [*_table(["set", "latency", "settings", "first against second measurement, median / p90"], rows), ""]


def _rows(groups: Iterable[tuple[str, pd.DataFrame]], models: Sequence[str]) -> Iterable[list[str]]:
    for name, one in groups:
        if len(one):
            shown = [_pair(errors(one, model)) for model in models]
            yield [name, f"{len(errors(one, 'ours')):,}", *shown, f"{one['inside'].mean():.0%}"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]


def _worst(table: pd.DataFrame) -> str:
    """Return the sets with the largest medians of each split, and which settings are the worst."""
    lines = ["## Where it is worst", ""]
    lines += ["Settings with at least five predictions and the largest median of the absolute error.", ""]
    rows = []
    for split, part in table[table["split"] != HALVES].groupby("split", sort=False):
        medians = part.groupby(["set", "setting"]).apply(_typical, include_groups=False).dropna()
        for (name, setting), value in medians.sort_values(ascending=False).head(4).items():
            rows.append([TITLES.get(split, "from specification"), f"`{name}`", setting, _percent(value)])
    return "\n".join([*lines, *_table(["Left out", "Set", "Setting", "Median error"], rows)]) + "\n"


def _typical(part: pd.DataFrame) -> float:
    off = errors(part, "ours")
    return float(np.median(off)) if len(off) >= 5 else math.nan


def _on_what(known: Mapping[str, Any]) -> str:
    """Return the table of sets: hardware, source, licence."""
    rows = []
    for name, one in sorted(known.items(), key=lambda item: (not item[1]["shipped"], item[0])):
        figures = one["figures"]
        shown = [one[key] for key in ("hardware", "interconnect", "tool", "origin", "licence")]
        count = f"{figures['rows']:,} / {figures['curves']:,}"
        noise = _share(figures.get("spread_of_repetitions"))
        rows.append([f"`{name}`", *(_cell(text) for text in shown), count, noise])
    head = [
        "Set",
        "Hardware",
        "Interconnect",
        "Tool and library",
        "Source",
        "Licence of the source",
        "Rows / curves",
        "Noise floor",
    ]
    return "\n".join(["## On what", "", *_table(head, rows)]) + "\n"


def _left_out(results: Mapping[str, Any]) -> str:
    """Return which sets were not used, and why."""
    why = dict(results.get("left_out", {}))
    why |= {name: one["error"] for name, one in results["sets"].items() if "error" in one}
    why |= {f"{name}, against its specification": one["specified_error"]
            for name, one in results["sets"].items() if "specified_error" in one}  # fmt: skip
    if not why:
        return ""
    lines = ["Not used in this run:", ""]
    return "\n".join([*lines, *(f"- `{name}`: {_cell(said)}" for name, said in sorted(why.items()))]) + "\n"


def _made(results: Mapping[str, Any]) -> str:
    machine = results.get("machine", {})
    said = ", ".join(f"{name} {value}" for name, value in machine.items())
    seconds = sum(one.get("seconds", 0.0) for one in results["sets"].values())
    return f"Made with {said}; {seconds:,.0f} processor seconds.\n"


def _placed(part: pd.DataFrame, place: str) -> pd.DataFrame:
    return part[part["place"] == place]


def _count(part: pd.DataFrame) -> str:
    sets = part["set"].nunique()
    return f"{len(errors(part, 'ours')):,} predictions of {sets} set{'s' if sets > 1 else ''}"


def _pair(off: np.ndarray) -> str:
    return f"{_percent(float(np.median(off)))} / {_percent(float(np.quantile(off, 0.9)))}" if len(off) else ""


def _median(off: np.ndarray) -> float:
    return float(np.median(off)) if len(off) else math.inf


def _share(value: float | None) -> str:
    return "" if value is None else _percent(value)


def _percent(value: float) -> str:
    percent = 100 * value
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %" if percent < 1000 else "over 1,000 %"


_ESCAPES: Mapping[str, str] = {"|": "/", "<": "(", ">": ")", "`": "'", "\n": " "}


def _cell(text: str) -> str:
    """Return a text as it stands in a table: short, and without what Markdown would take for its own."""
    plain = "".join(_ESCAPES.get(one, one) for one in text).replace('\\"', '"')
    return plain if len(plain) <= 160 else plain[:157].rsplit(" ", 1)[0] + " ..."
