"""Runs over several seeds: their joint summary, tables by seed and by policy, and answer text.

Means over seeds have intervals, and policies are compared seed by seed; see `simnet.report.paired`. Of a run with
several seeds the folder holds:

=====================  ==================================================================================
seeds/SEED/            what a run with that seed alone leaves, but for figures and report
seeds.csv, .parquet    a row per seed and policy
paired.csv, .parquet   a row per policy: means with intervals, and how much more it took than the fastest
summary.json           the same, with who won, who is tied with it, network, seeds, versions, hash
scenario.lock.yaml     the scenario with its own seed, every default and override written out
figures/               differences seed by seed, as PNG and SVG
report.html            all of it on one page
=====================  ==================================================================================
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simnet.base.arrays import Floats
from simnet.base.file_io import write_files
from simnet.report import learning, paired, wording
from simnet.report.columns import Fields
from simnet.report.results import LOCK, picture_files, rounded_table, write_frame
from simnet.report.run_summary import RunSummary, plain, policy_columns, winner_among
from simnet.report.summary import Row, interval_text, percent

_NO_FLOATS = ("seed", "policy", "iterations", "total_bytes_sent_B", "unsettled", "choice", "switch_count")

_LEARNT = ("target_accuracy", "accuracy", "time_to_target_s")

MORE = ("more", "more_low", "more_high")
"""Name parts of difference columns: mean, and ends of the interval."""


_RUN = (
    *("starts_not_sampled", "evidence", "because", "stack", "barrier", "device", "computing", "compute_time"),
    *("assumed", "iterations_to_accuracy", "overlap", "warnings", "calibration", "sharing"),
)


# Difference from the first with its interval, rank, tie, and numbers of seeds as the fastest and of seeds compared, of
# policies that take no part.
_APART: tuple[Any, ...] = (math.nan, math.nan, math.nan, None, False, None, 0)
_COMPARED = (
    *("s", "low_s", "high_s", "more_s", "more_low_s", "more_high_s"),
    *("rank", "tied", "least_with", "compared"),
)


def comparison(rows: pd.DataFrame, by: Sequence[str], column: str, *, bound: str | None = None) -> pd.DataFrame:
    """Compare policies' means of `column` over seeds, for each combination of values in `by`; `bound` gets no rank.

    The comparison uses the seeds with the largest number of values in the group, and the settled policies that have a
    value with all of these seeds.

    For a column ``iteration_s`` there are ``iteration_s`` (mean) with ``_low`` and ``_high``, ``iteration_more_s``
    (mean difference from the first) with the same, ``iteration_rank`` (from 1; missing for policies not compared),
    ``iteration_tied`` (the first policy and those tied with it), and the numbers of seeds ``iteration_least_with`` and
    ``iteration_compared``.

    Examples
    --------
    >>> rows = pd.DataFrame({"seed": [1, 1, 2, 2, 3, 3], "policy": ["a", "b"] * 3,
    ...     "iteration_s": [2.0, 2.5, 3.0, 3.5, 5.0, 5.5]})
    >>> found = comparison(rows, [], "iteration_s").set_index("policy")
    >>> found[["iteration_more_s", "iteration_tied"]].to_numpy().tolist()
    [[0.0, True], [0.5, False]]
    """
    stem = column.removesuffix("_s")
    found: list[dict[str, Any]] = []
    for key, group in rows.groupby(list(by), sort=False) if by else [((), rows)]:
        names = list(dict.fromkeys(group["policy"]))
        values = group.pivot(index="seed", columns="policy", values=column)[names].astype(np.float64)
        counts = values.notna().sum(axis=1)
        compared = values[counts == counts.max()]
        aside = {bound, *(group.loc[group["unsettled"] != "", "policy"] if "unsettled" in group else ())}
        rivals = {name: one.to_numpy() for name, one in compared.items() if one.notna().all() and name not in aside}
        starts: dict[str, Floats] = {}
        if paired.START_COLUMNS[0] in group:
            each = group.set_index(["policy", "seed"])
            off = each[list(paired.START_COLUMNS)].sub(each[column], axis=0).astype(np.float64).fillna(0.0)
            starts = {name: off.loc[name].loc[compared.index].to_numpy().T for name in rivals}
        won = paired.contest(rivals, starts) if rivals else None
        for name in names:
            there, cells = values[name].dropna(), _APART
            if won is not None and name in rivals:
                there, more = compared[name], won.differences.get(name, paired.Estimate(0.0, 0.0, 0.0))
                tied = name in (won.policy, *won.tied_with)
                cells = (*more, won.order.index(name) + 1, tied, won.fastest_in[name], len(compared))
            cells = (*paired.estimate(there), *cells)
            own = {f"{stem}_{end}": value for end, value in zip(_COMPARED, cells, strict=True)}
            found.append(dict(zip(by, key, strict=True)) | {"policy": name} | own)
    table = pd.DataFrame(found)
    return table.astype({f"{stem}_{name}": "Int64" for name in ("rank", "least_with")})


def by_seed(summaries: Mapping[int, RunSummary]) -> pd.DataFrame:
    """Return a row per seed and policy, given summaries by seed; policies that ended early have NaN times."""
    found = []
    for seed, summary in summaries.items():
        for name, one in summary["policies"].items():
            row = {"seed": seed, "policy": name, **policy_columns(one), "unsettled": one["unsettled"] or ""}
            row |= {f"total_{phase}_s": seconds for phase, seconds in one["breakdown_s"].items()}
            row |= {key: one["learning"][key] for key in _LEARNT} if "learning" in one else {}
            row |= {key: one[key] for key in paired.START_COLUMNS if key in one}
            found.append(row | {"simulated_s": math.nan if one["ended"] else one["simulated_s"]})
    table = pd.DataFrame(found)
    return table.astype({name: "float64" for name in table if name not in _NO_FLOATS})


def policies_over_seeds(table: pd.DataFrame, bound: str | None = None) -> pd.DataFrame:
    """Return a row per policy: mean times over seeds, ranks (none for policy `bound`), and means of other columns."""
    found = comparison(table, [], "simulated_s", bound=bound)
    if "time_to_target_s" in table:
        found = found.merge(times_to_target(table, bound), on="policy")
    each = [table[table["policy"] == name] for name in found["policy"]]
    found["unsettled_with"] = [int((one["unsettled"] != "").sum()) for one in each]
    found["unsettled"] = [next(filter(None, one["unsettled"]), "") for one in each]
    for name in [one for one in table if one not in ("seed", "policy", "choice", *found)]:
        estimates = [paired.estimate(one[name].dropna()) for one in each]
        found[name] = [one.mean for one in estimates]
        if name in ("regret_s", "accuracy"):
            stem, end = name.removesuffix("_s"), "_s" if name.endswith("_s") else ""
            found[f"{stem}_low{end}"] = [one.low for one in estimates]
            found[f"{stem}_high{end}"] = [one.high for one in estimates]
    return found


def times_to_target(table: pd.DataFrame, bound: str | None = None) -> pd.DataFrame:
    """Compare times to the target accuracy among policies that reach it with all seeds; add how many seeds reach it."""
    groups = table.groupby("policy")["time_to_target_s"]
    # The mean of those seeds that reached it would be too short.
    times = table.drop(columns=list(paired.START_COLUMNS), errors="ignore").assign(
        time_to_target_s=table["time_to_target_s"].where(groups.transform("count") == groups.transform("size"))
    )
    found = comparison(times, [], "time_to_target_s", bound=bound)
    return found.merge(groups.count().rename("reached_with").reset_index(), on="policy")


def summarize_seeds(
    summaries: Mapping[int, RunSummary], sha256: str = "", missing: Sequence[str] = ()
) -> tuple[Fields, pd.DataFrame, pd.DataFrame]:
    """Return the joint summary of several seeds, the table by seed and policy, and the table by policy.

    Keys shared with the summary of one seed mean the same. `tied_with` of the winner are the policies whose paired
    interval includes 0, or whose mean chance to be the fastest is at least `wording.TIED`.
    """
    first = next(iter(summaries.values()))
    bound = next((one["bound"] for one in summaries.values() if one["bound"] is not None), None)
    table = by_seed(summaries)
    each = policies_over_seeds(table, bound)
    rows = each.astype(object).where(each.notna(), None).to_dict("records")
    made: Fields = {
        "scenario": {"name": first["scenario"]["name"], "sha256": sha256},
        "seeds": list(summaries),
        "interval": {"level": paired.LEVEL, "method": paired.METHOD},
        "run": {key: first[key] for key in _RUN if key in first},
        "versions": first["versions"],
        "bound": bound,
        "winner": _seed_winner(each, "simulated"),
        "missing": list(missing),
        "policies": {row.pop("policy"): plain(row) for row in rows},
    }
    if "time_to_target_rank" in each:
        made["first_to_target"] = _seed_winner(each, "time_to_target")
    return made, table, each


def _seed_winner(each: pd.DataFrame, stem: str) -> Fields | None:
    ranked = each[each[f"{stem}_rank"].notna()].sort_values(f"{stem}_rank").set_index("policy")
    more, seconds = (dict(zip(ranked.index, ranked[f"{stem}{end}"].tolist(), strict=True)) for end in ("_more_s", "_s"))
    near = ranked["chance_to_be_fastest"] >= wording.TIED if stem == "simulated" else False
    return winner_among(list(ranked.index), {*ranked.index[ranked[f"{stem}_tied"] | near]}, more.__getitem__, seconds)


def write_seeds(
    folder: Path, summaries: Mapping[int, RunSummary], lock: str, missing: Sequence[str] = (), *, report: bool = True
) -> tuple[Fields, pd.DataFrame]:
    """Write the files of a run over several seeds into an empty folder; return its summary and its table by seed."""
    summary, table, each = summarize_seeds(summaries, hashlib.sha256(lock.encode()).hexdigest(), missing)
    files = {LOCK: lock.encode()}
    write_frame(folder, "seeds", rounded_table(table))
    write_frame(folder, "paired", rounded_table(each))
    if report:
        # Imported here, as drawing takes half a second to load.
        from simnet.report import answers, figures, html

        plots = figures.seed_comparison(summary, table)
        page = html.page("seeds", summary, answers.seeds_answer(summary), plots, scenario=lock)
        files |= picture_files(plots) | {"report.html": page.encode()}
    files["summary.json"] = json.dumps(summary, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
    write_files(folder, files)
    return summary, table


def sentence_over_seeds(summary: Fields) -> str:
    """Return the answer over seeds: which policy first reaches the target accuracy, the fastest, and ties."""
    count, each = len(summary["seeds"]), summary["policies"]
    before = f"Incomplete, without {', '.join(summary['missing'])}: " if summary["missing"] else ""
    if any("reached_with" in one for one in each.values()):
        trained = {name: one for name, one in each.items() if name != summary["bound"] and "reached_with" in one}
        before += f"{_target_text(trained, count)} "
    unsettled = [
        f"{name} is not settled with {one['unsettled_with']} of {count} seeds: {one['unsettled']}."
        for name, one in each.items()
        if one["unsettled"]
    ]
    if summary["winner"] is None:
        short = "has settled" if unsettled else "got to its end"
        return " ".join([f"{before}Over {count} seeds no policy that can be run {short}.", *unsettled])
    return " ".join([before + _outcome_text(summary), *unsettled])


def _target_text(each: Mapping[str, Mapping[str, Any]], count: int) -> str:
    """Say which policy is first to reach the target accuracy, and which policies reach it with only some seeds."""
    if all(one["accuracy"] is None for one in each.values()):
        return learning.NOT_EVALUATED
    target = next((one["target_accuracy"] for one in each.values() if one["target_accuracy"] is not None), None)
    ranked = sorted((one["time_to_target_rank"], name) for name, one in each.items() if one["time_to_target_rank"])
    winners = [name for rank, name in ranked if rank == 1 or each[name]["time_to_target_tied"]]
    seconds = {name: each[name]["time_to_target_s"] for _, name in ranked}
    missed = [f"{name} {one['reached_with']} of {count}" for name, one in each.items() if one["reached_with"] < count]
    rest = f" Seeds that reach it: {', '.join(missed)}." if missed else ""
    mean = f" on average, with {count} of {count} seeds"
    return learning.target_sentence(target, seconds, winners, mean, " with all seeds") + rest


def _outcome_text(summary: Fields) -> str:
    each, winners = summary["policies"], [summary["winner"]["policy"], *summary["winner"]["tied_with"]]
    first = each[winners[0]]
    compared, count = first["simulated_compared"], len(summary["seeds"])
    ends = first["simulated_prediction_low_s"], first["simulated_prediction_high_s"]
    took = f"{winners[0]}: {interval_text(first['simulated_s'], *ends)} on average"
    over = f"over {count} seeds" + (f", of which all got to their ends with {compared}" if compared < count else "")
    if len(winners) == 1:
        took += f" {over}, the least with {first['simulated_least_with']}"
    other = next((one for one in winners[1:]), summary["winner"]["runner_up"])
    if other is not None:
        mean, within = versus(each[other], first["simulated_s"], "simulated")
        took += f"; {other} {mean} more ({within})"
    return f"{wording.alternatives_text(winners)}: tied {over}. {took}." if len(winners) > 1 else f"{took}."


def versus(one: Mapping[Any, Any], best: float | None, stem: str, sign: str = "") -> tuple[str, str]:
    """Return by how many per cent a policy is slower than the fastest over seeds, and the interval of this, as text."""
    mean, low, high = (math.nan if one[f"{stem}_{end}_s"] is None else one[f"{stem}_{end}_s"] for end in MORE)
    if not best or not math.isfinite(mean):
        return "-", "-"
    more, bounded = percent(mean / best, sign), math.isfinite(low) and math.isfinite(high)
    least, most = percent(low / best, sign), percent(high / best, sign)
    if bounded and least == most:
        return more, f"{least} with every seed"
    return more, f"{least} to {most}" if bounded else "-"


def ranking_over_seeds(each: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return policy names sorted by mean time over seeds, then by name; policies without a time come last.

    If a model was trained, policies are sorted by the time to the target first.
    """

    def place(name: str) -> tuple[Any, ...]:
        one = each[name]
        reached, target, mean = -one.get("reached_with", 0), one.get("time_to_target_s"), one["simulated_s"]
        soonest = (reached, target is None, target or 0.0) if "reached_with" in one else ()
        return *soonest, mean is None, mean or 0.0, name

    return sorted(each, key=place)


def row(summary: Fields, name: str) -> Row:
    """Return a policy's row of the table over seeds."""
    each, one, count = summary["policies"], summary["policies"][name], len(summary["seeds"])
    to_best, within = _versus_best(each, name, "simulated", summary["bound"])
    found = {
        **one,
        "policy": f"({name})" if name == summary["bound"] else name,
        "to_best": to_best,
        "paired": within,
        "fastest_with": _share_text(one["simulated_least_with"], one["simulated_compared"]),
        "regret_s": None if name == summary["bound"] else one["regret_s"],
    }
    if "reached_with" not in one:
        return found
    soonest, apart = _versus_best(each, name, "time_to_target", summary["bound"])
    return {**found, "soonest": soonest, "soonest_paired": apart, "reached": _share_text(one["reached_with"], count)}


def _share_text(part: int | None, whole: int) -> str | None:
    return None if part is None else f"{part} of {whole}"


def _versus_best(each: Mapping[str, Mapping[str, Any]], name: str, stem: str, bound: str | None) -> tuple[str, str]:
    """Return cells on how much slower a policy is than the best over seeds ("best" or in %), and on the interval."""
    one = each[name]
    if one[f"{stem}_rank"] is None:
        return "bound" if name == bound else "-", "-"
    best = next(other for other in each.values() if other[f"{stem}_rank"] == 1)
    alone = not any(other[f"{stem}_tied"] for other in each.values() if other is not best)
    tied = ", tied" if one[f"{stem}_tied"] and not alone else ""
    if one is best:
        return f"best{tied}", "-"
    mean, within = versus(one, best[f"{stem}_s"], stem, "+")
    return mean + tied, within
