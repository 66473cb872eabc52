"""A run over several seeds: what the summaries of the seeds come to together, for people and for other programs.

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simnet.base.spreadsheets import guard_table
from simnet.base.units import format_bytes, format_seconds, format_within
from simnet.base.writing import write_files
from simnet.report import learning, paired, wording
from simnet.report.columns import Fields
from simnet.report.results import LOCK, parquet, picture_files
from simnet.report.run_summary import PHASES, RunSummary, Winner, plain, significant, winner_among
from simnet.report.sentences import percent

HEADINGS = (
    *("policy", "mean time", "vs best", "paired interval", "fastest with"),
    *("bytes sent", "regret"),
)
"""Of the table over seeds; see `rows`."""

LEARNING_HEADINGS = (
    *("policy", "time to target", "vs soonest", "paired interval"),
    *("reached the target with", "accuracy"),
)
"""Of the table of trainings over seeds; see `learning_rows`. There is no mean time where a seed did not reach it."""

_NO_FLOATS = ("seed", "policy", "iterations", "total_bytes_sent_B", "unsettled", "choice", "switch_count")

_JUDGED = {
    "simulated_prediction_low_s": "low_s",
    "simulated_prediction_high_s": "high_s",
    "chance_to_be_fastest": "chance_to_be_fastest",
}

_LEARNT = ("target_accuracy", "accuracy", "time_to_target_s")

MORE = ("more", "more_low", "more_high")
"""Of columns of differences: their mean and their interval."""


_RUN = (
    *("starts_not_sampled", "evidence", "because", "stack", "barrier", "device", "computing", "compute_time"),
    *("overlap", "warnings", "calibration", "sharing"),
)


def by_seed(summaries: Mapping[int, RunSummary]) -> pd.DataFrame:
    """Return a row per seed and policy of summaries; times of policies that ended early are missing."""
    found = []
    for seed, summary in summaries.items():
        for name, one in summary["policies"].items():
            learnt, judged = one.get("learning"), dict(one.get("judgement", {}))
            found.append(
                {
                    "seed": seed,
                    "policy": name,
                    "iterations": one["iterations"],
                    "simulated_s": math.nan if one["ended"] else one["simulated_s"],
                    "total_bytes_sent_B": one["total_bytes_sent_B"],
                    **{f"total_{phase}_s": one["breakdown_s"][phase] for phase in PHASES},
                    "regret_s": one["regret"]["seconds"] if one["regret"] else math.nan,
                    **({} if learnt is None else {k: learnt[k] for k in _LEARNT}),
                    "unsettled": one["unsettled"] or "",
                    "choice": next(iter(one["choices"]), ""),
                    "switch_count": one["switch_count"],
                    **{column: judged.get(key) for column, key in _JUDGED.items()},
                    **{name: one[name] for name in paired.START_COLUMNS if name in one},  # type: ignore[literal-required]
                }
            )
    table = pd.DataFrame(found)
    return table.astype({name: "float64" for name in table if name not in _NO_FLOATS})


def policies(table: pd.DataFrame, bound: str | None = None) -> pd.DataFrame:
    """Return a row per policy: its times over seeds, compared, and means of the rest."""
    found = paired.comparison(table, [], "simulated_s", bound=bound)
    if "time_to_target_s" in table:
        found = found.merge(times_to_target(table, [], bound=bound), on="policy")
    found["unsettled_with"] = [int((one != "").sum()) for one in _seed_column(table, "unsettled", found)]
    found["unsettled"] = [next((why for why in one if why), "") for one in _seed_column(table, "unsettled", found)]
    others = [name for name in table.columns if name not in ("seed", "policy", "choice", *found.columns)]
    for name in others:
        estimates = [
            paired.estimate(one.dropna()) if one.notna().any() else None for one in _seed_column(table, name, found)
        ]
        found[name] = [math.nan if one is None else one.mean for one in estimates]
        if name in ("regret_s", "accuracy"):
            stem, end = name.removesuffix("_s"), "_s" if name.endswith("_s") else ""
            found[f"{stem}_low{end}"] = [math.nan if one is None else one.low for one in estimates]
            found[f"{stem}_high{end}"] = [math.nan if one is None else one.high for one in estimates]
    return found


def times_to_target(
    table: pd.DataFrame, by: Sequence[str], *, policy: str = "policy", bound: str | None = None
) -> pd.DataFrame:
    """Return `paired.comparison` of the times to a target of those that reach it with every seed, and with how many."""
    groups = table.groupby([*by, policy])["time_to_target_s"]
    # The mean of those seeds that reached it would be too short.
    times = table.drop(columns=list(paired.START_COLUMNS), errors="ignore").assign(
        time_to_target_s=table["time_to_target_s"].where(groups.transform("count") == groups.transform("size"))
    )
    found = paired.comparison(times, by, "time_to_target_s", policy=policy, bound=bound)
    return found.merge(groups.count().rename("reached_with").reset_index(), on=[*by, policy])


def _seed_column(table: pd.DataFrame, column: str, found: pd.DataFrame) -> list[pd.Series]:
    return [table.loc[table["policy"] == name, column] for name in found["policy"]]


def summarize(
    summaries: Mapping[int, RunSummary], sha256: str = "", missing: Sequence[str] = ()
) -> tuple[Fields, pd.DataFrame, pd.DataFrame]:
    """Return what the summaries of seeds come to together, and the tables by seed and by policy.

    The keys that a run with one seed has, too, mean the same. `tied_with` of the winner are those whose paired interval
    includes 0. `policies` have the columns of ``paired.csv``, and means over seeds of the rest.
    """
    first = next(iter(summaries.values()))
    bound = next((one["bound"] for one in summaries.values() if one["bound"] is not None), None)
    table = by_seed(summaries)
    each = policies(table, bound)
    made: Fields = {
        "scenario": {"name": first["scenario"]["name"], "sha256": sha256},
        "seeds": list(summaries),
        "interval": {"level": paired.LEVEL, "method": paired.METHOD},
        "run": {key: first[key] for key in _RUN if key in first},  # type: ignore[literal-required]
        "versions": first["versions"],
        "bound": bound,
        "winner": _seed_winner(each, "simulated"),
        "missing": list(missing),
        "policies": {
            name: {str(key): plain(value) for key, value in one.items() if key != "policy"}
            for name, one in zip(each["policy"], each.to_dict(orient="records"), strict=True)
        },
    }
    if "time_to_target_rank" in each:
        made["first_to_target"] = _seed_winner(each, "time_to_target")
    return made, table, each


def _seed_winner(each: pd.DataFrame, stem: str) -> Winner | None:
    ranked = each[each[f"{stem}_rank"].notna()].sort_values(f"{stem}_rank").set_index("policy")
    more, seconds = (dict(zip(ranked.index, ranked[f"{stem}{end}"].tolist(), strict=True)) for end in ("_more_s", "_s"))
    return winner_among(list(ranked.index), set(ranked.index[ranked[f"{stem}_tied"]]), more.__getitem__, seconds)


def write(
    folder: Path, summaries: Mapping[int, RunSummary], lock: str, missing: Sequence[str] = (), *, report: bool = True
) -> Fields:
    """Write what several seeds come to together into an empty folder, and return the summary."""
    summary, table, each = summarize(summaries, hashlib.sha256(lock.encode()).hexdigest(), missing)
    files = {LOCK: lock.encode()}
    for name, frame in (("seeds", table), ("paired", each)):
        rounded = frame.apply(lambda one: pd.Series(significant(one)) if one.dtype == np.float64 else one)
        files[f"{name}.csv"] = guard_table(rounded).to_csv(index=False, lineterminator="\n").encode()
        files[f"{name}.parquet"] = parquet(rounded)
    if report:
        # Imported here, as drawing takes half a second to load.
        from simnet.report.figures import seed_comparison
        from simnet.report.html import seeds_report

        plots = seed_comparison(summary, table)
        files |= picture_files(plots) | {"report.html": seeds_report(summary, plots, lock).encode()}
    files["summary.json"] = json.dumps(summary, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
    write_files(folder, files)
    return summary


def sentence(summary: Fields) -> str:
    """Say over which seeds who was the fastest, and who is tied with it; first who reaches the target, if trained."""
    seeds, each = summary["seeds"], summary["policies"]
    said = f"Over {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}) "
    if summary["missing"]:
        said = f"Incomplete, without {', '.join(summary['missing'])}: {said[0].lower()}{said[1:]}"
    if summary["winner"] is None:
        short = "has settled" if (unsettled := _unsettled_lines(summary)) else "got to its end"
        return f"{said}no policy that can be run {short}.{unsettled}"
    compared = each[summary["winner"]["policy"]]["simulated_compared"]
    few = f" (compared over the {compared} in which all got to their ends)" if compared < len(seeds) else ""
    said += _outcome_text(summary["winner"], each) + few + "." + _unsettled_lines(summary)
    winners = [summary["winner"]["policy"], *summary["winner"]["tied_with"]]
    apart = wording.entering_apart(paired.start_ranges(each), winners, summary["run"].get("starts_not_sampled"))
    said = " ".join([said, *apart])
    if any("reached_with" in one for one in each.values()):
        trained = {name: one for name, one in each.items() if name != summary["bound"] and "reached_with" in one}
        return f"{to_target(trained, len(seeds))} {said}"
    return f"{said} {learning.IGNORED}"


def _unsettled_lines(summary: Fields) -> str:
    """Say of policies that did not settle with how many seeds, and why with the first of them."""
    count, said = len(summary["seeds"]), ""
    for name, one in summary["policies"].items():
        if one["unsettled"]:
            said += f" {name} has not settled with {one['unsettled_with']} of {count} seeds, and has no rank: "
            said += f"{one['unsettled']}."
    return said


def to_target(each: Mapping[str, Mapping[str, Any]], count: int) -> str:
    """Say who reaches the target first in the mean over seeds, and with how many of them who reaches it."""
    target = next((one["target_accuracy"] for one in each.values() if one["target_accuracy"] is not None), None)
    goal = "the target accuracy" if target is None else f"{100 * target:.3g} % accuracy"
    ranked = sorted((one["time_to_target_rank"], name) for name, one in each.items() if one["time_to_target_rank"])
    missed = [f"{name} {one['reached_with']} of {count}" for name, one in each.items() if one["reached_with"] < count]
    rest = f" Seeds that reach it: {', '.join(missed)}." if missed else ""
    if all(one["accuracy"] is None for one in each.values()):
        return learning.NOT_EVALUATED
    if not ranked:
        return f"No policy reaches {goal} with all seeds.{rest}"
    winners = [name for rank, name in ranked if rank == 1 or each[name]["time_to_target_tied"]]
    seconds = {name: each[name]["time_to_target_s"] for _, name in ranked}
    mean = f" on average, with {count} of {count} seeds"
    alone, tied = f"reaches {goal} first", f"are tied as first to reach {goal}"
    return wording.standing(seconds, winners, alone, tied, mean) + rest


def _outcome_text(winner: Winner, each: Mapping[str, Mapping[str, Any]]) -> str:
    name = winner["policy"]
    seconds = format_seconds(each[name]["simulated_s"])
    if winner["tied_with"]:
        tied = wording.listed([name, *winner["tied_with"]])
        said = f"{tied} are tied as fastest: {name} took {seconds} on average"
    else:
        often = f"{each[name]['simulated_least_with']} of {each[name]['simulated_compared']}"
        chances = {one: row["chance_to_be_fastest"] for one, row in each.items() if row["chance_to_be_fastest"]}
        near = wording.within_error(name, chances)
        said = f"{name} was fastest{near}: {seconds} on average, the least with {often} seeds"
    other = winner["runner_up"]
    if other is not None:
        mean, within = versus(each[other], each[name]["simulated_s"], "simulated")
        said += f"; {other}, the {'next' if winner['tied_with'] else 'runner-up'}, took {mean} more ({within})"
    return said


def versus(one: Mapping[Any, Any], best: float | None, stem: str, sign: str = "") -> tuple[str, str]:
    """Return how much more than the fastest a policy took, in per cent of the mean of that one, and its interval."""
    mean, low, high = (math.nan if one[f"{stem}_{end}_s"] is None else one[f"{stem}_{end}_s"] for end in MORE)
    if not best or not math.isfinite(mean):
        return "-", "-"
    more, bounded = percent(mean / best, sign), math.isfinite(low) and math.isfinite(high)
    least, most = percent(low / best, sign), percent(high / best, sign)
    if bounded and least == most:
        return more, "the same with all seeds"
    return more, f"{least} to {most}" if bounded else "-"


def ranking(each: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the policies, the fastest on average first; among equals by name, and those without a time last."""
    return sorted(each, key=lambda name: (each[name]["simulated_s"] is None, each[name]["simulated_s"] or 0.0, name))


def rows(summary: Fields) -> list[tuple[str, ...]]:
    """Return the cells of the table over seeds, the fastest policy first."""
    return [_policy_row(summary, name) for name in ranking(summary["policies"])]


def learning_rows(summary: Fields) -> list[tuple[str, ...]]:
    """Return the cells of the table of how the trainings went, the first to the target first; empty without one."""

    def within(one: Mapping[str, Any], stem: str, end: str, write: Callable[[float], str]) -> str:
        mean, low, high = (one[f"{stem}{part}{end}"] for part in ("", "_low", "_high"))
        if mean is None:
            return "-"
        return write(mean) if low is None or high is None else f"{write(mean)} ({write(low)} to {write(high)})"

    def order(name: str) -> tuple[float, float, int]:
        time, reached = each[name]["time_to_target_s"], each[name]["reached_with"]
        return -reached, math.inf if time is None else time, trained.index(name)

    each = summary["policies"]
    trained = [name for name in ranking(summary["policies"]) if "reached_with" in each[name]]
    return [
        (
            name,
            within(each[name], "time_to_target", "_s", format_seconds),
            *_versus_best(each, name, "time_to_target", summary["bound"]),
            f"{each[name]['reached_with']} of {len(summary['seeds'])}",
            within(each[name], "accuracy", "", lambda share: f"{100 * share:.1f} %"),
        )
        for name in sorted(trained, key=order)
    ]


def _policy_row(summary: Fields, name: str) -> tuple[str, ...]:
    each, one = summary["policies"], summary["policies"][name]
    regret = one["regret_s"]
    return (
        name,
        "-" if one["simulated_s"] is None else _interval_text(one),
        *_versus_best(each, name, "simulated", summary["bound"]),
        "-" if one["simulated_least_with"] is None else f"{one['simulated_least_with']} of {one['simulated_compared']}",
        format_bytes(one["total_bytes_sent_B"]),
        "-" if regret is None or name == summary["bound"] else format_seconds(regret),
    )


def _interval_text(one: Mapping[str, Any]) -> str:
    """Return the mean time of a policy with its prediction interval, which has the error of the model."""
    low, high = one["simulated_prediction_low_s"], one["simulated_prediction_high_s"]
    seconds = float(one["simulated_s"])
    return format_seconds(seconds) if low is None else format_within(seconds, low, math.nan if high is None else high)


def _versus_best(each: Mapping[str, Mapping[str, Any]], name: str, stem: str, bound: str | None) -> tuple[str, str]:
    """Return the cells of how much more a policy took than the first, and of the paired interval of that."""
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
