"""Report on the shipped measured jobs and their predictions: the section on jobs of docs/validation.md."""

from __future__ import annotations

import io
import textwrap
import tomllib
from collections.abc import Hashable
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import pandas as pd

from simnet.scenario import load
from simnet.studies.iteration import predict_job
from simnet.validate.jobs.comparing import MARGIN, SKIPPED, pairs_in_order

_SHIPPED = files("simnet.cost_models.calibration.measured") / "jobs"
_WRITTEN = {"seen": "from which the model was made", "unseen": "predicted with the model as it is"}
_HEAD = (
    "| Setting | Workers | Latency, Mbit/s | Model | Density | Buckets | Median error | Largest | Fastest | Predicted |"
)


def read_shipped(name: str) -> pd.DataFrame:
    """Return a shipped table of jobs: ``measured``, ``predicted``, ``first`` or ``settings``."""
    return pd.read_csv(io.StringIO(_SHIPPED.joinpath(f"{name}.csv").read_text(encoding="utf-8")))


def settings_where(column: str) -> set[str]:
    """Return the settings that a flag of ``settings.csv`` marks: ``seen``, ``telling`` or ``changes``."""
    rows = read_shipped("settings")
    return set(rows.loc[rows[column], "setting"])


def shipped_jobs() -> pd.DataFrame:
    """Return the shipped jobs, a row per setting, policy and iteration; predicted columns end in ``_ours``."""
    keys = ["setting", "policy", "iteration"]
    both = read_shipped("measured").merge(read_shipped("predicted"), on=keys, suffixes=("", "_ours"))
    return both[both["iteration"] >= SKIPPED]


def typical(both: pd.DataFrame) -> pd.DataFrame:
    """Return medians over iterations of jobs with one exchange, a row per setting and exchange (means if links change).

    If links change, means are used, since the median iterations of two jobs may have met different links.
    """
    fixed = both[both["policy"] != "flexible"].groupby(["setting", "policy"], sort=False)
    rows = fixed.median(numeric_only=True).reset_index()
    changing = rows["setting"].isin(settings_where("changes"))
    rows[changing] = fixed.mean(numeric_only=True).reset_index()[changing]
    for name in ("total", "messages"):
        rows[f"{name}_error"] = rows[f"{name}_s_ours"] / rows[f"{name}_s"] - 1
    rows["before_error"] = rows["before_s"] / rows["total_s"] - 1
    return rows


def job_figures(both: pd.DataFrame) -> dict[str, Any]:
    """Return statistics of the shipped jobs: errors, order, interval coverage, and flexible policies."""
    rows = typical(both)
    winners = judged = 0
    pairs = ordered = 0
    for _, own in rows.groupby("setting", sort=False):
        measured, ours = own["total_s"].to_numpy(), own["total_s_ours"].to_numpy()
        if len(own) > 1 and np.partition(measured, 1)[1] > (1 + MARGIN) * measured.min():
            judged += 1
            winners += int(ours.argmin() == measured.argmin())
        differ, right = pairs_in_order(measured.tolist(), ours.tolist())
        pairs, ordered = pairs + differ, ordered + right
    fixed = both[both["policy"] != "flexible"]
    inside = (fixed["total_s"] >= fixed["total_low_s"]) & (fixed["total_s"] <= fixed["total_high_s"])
    judges = ~fixed["setting"].isin(settings_where("telling"))
    found: dict[str, Any] = {"jobs": len(rows), "settings": int(rows["setting"].nunique())}
    for name in ("total", "messages"):
        found[name] = _spread_of(rows[f"{name}_error"])
    seen = rows["setting"].isin(settings_where("seen"))
    for name, own in (("seen", rows[seen]), ("unseen", rows[~seen])):
        if len(own):
            found[name] = {"jobs": len(own)} | _spread_of(own["before_error"])
    flexible = both[both["policy"] == "flexible"]
    if len(flexible):
        off = float(flexible["total_s_ours"].sum() / flexible["total_s"].sum() - 1)
        same = float((flexible["exchange"] == flexible["exchange_ours"]).mean())
        found["flexible"] = {"same": same, "total": off, "iterations": len(flexible)}
    found |= {"inside": float(inside.mean()), "inside_other": float(inside[judges].mean())}
    return found | {"judged": judged, "right": winners, "pairs": pairs, "in_order": ordered}


def _spread_of(errors: pd.Series[float]) -> dict[str, float]:
    off = errors.abs().to_numpy()
    return {"median": float(np.median(off)), "p90": float(np.quantile(off, 0.9))}


def job_section() -> str:
    """Return the section on jobs of docs/validation.md, in Markdown."""
    both = shipped_jobs()
    found, rows = job_figures(both), typical(both)
    about = tomllib.loads(_SHIPPED.joinpath("about.toml").read_text(encoding="utf-8"))
    flexible = found.get("flexible")
    lines = [
        "## Iterations of real jobs",
        "",
        *textwrap.wrap(
            f"{about['title']}: {found['jobs']} jobs in {found['settings']} settings. {about['notes'].strip()} "
            "`python benchmarks/measured_jobs.py FOLDER` makes the set anew, "
            "`simnet validate jobs --out jobs.md` this section.",
            120,
        ),
        "",
        "| What is predicted | Aim | Reached |",
        "|---|---|---|",
        f"| Whole iteration, per setting and exchange (median; on changing links mean) "
        f"| median 4 %, p90 12 % | {_time_pair(found['total'])} |",
        f"| Messages alone | median 3 % | {_time_pair(found['messages'])} |",
        *(
            f"| Whole iteration as written before measuring, {found[name]['jobs']} jobs {what} | median 4 %, p90 12 % "
            f"| {_time_pair(found[name])} |"
            for name, what in _WRITTEN.items()
            if name in found
        ),
        f"| The fastest exchange, where the best differ by more than 5 % | 95 % | {_count_right(found, 'right')} |",
        f"| Pairs of exchanges in the right order, margins above 5 % | | {_count_right(found, 'in_order', 'pairs')} |",
        f"| Iterations inside their 90 % interval | 85 to 95 % | {100 * found['inside']:.0f} % |",
        f"| in settings that tell nothing of the interval | 85 to 95 % | {100 * found['inside_other']:.0f} % |",
    ]
    if flexible:
        lines += [
            f"| Flexible policy on changing links: the same exchange | 90 % of iterations "
            f"| {100 * flexible['same']:.0f} % of {flexible['iterations']} |",
            f"| the same, total time | 8 % | {100 * flexible['total']:+.1f} % |",
        ]
    lines += ["", *_first_job(), "", _HEAD, "|---|---|---|---|---|---|---|---|---|---|"]
    settings = read_shipped("settings").set_index("setting").to_dict("index")
    lines += [_report_row(str(name), settings[name], own) for name, own in rows.groupby("setting", sort=False)]
    worst = rows.reindex(rows["total_error"].abs().sort_values(ascending=False).index).head(10)
    lines += [
        "",
        "The ten farthest off:",
        "",
        "| Setting | Exchange | Measured | Predicted | Error |",
        "|---|---|---|---|---|",
    ]
    for one in worst.to_dict("records"):
        lines.append(
            f"| `{one['setting']}` | {one['policy']} | {1e3 * one['total_s']:.1f} ms "
            f"| {1e3 * one['total_s_ours']:.1f} ms | {100 * one['total_error']:+.0f} % |"
        )
    return "\n".join(lines) + "\n"


def _first_job() -> list[str]:
    """Return the Markdown table of the job that was measured before simnet had hooks."""
    rows = read_shipped("first")
    with as_file(_SHIPPED.joinpath("first.yaml")) as path:
        ours = predict_job(load(path)).medians()["total_s"]
    lines = [
        "A job with a hook of its own, measured before (`first.csv`), predicted from `first.yaml` beside it:",
        "",
        "| Exchange | Measured | Predicted | Error |",
        "|---|---|---|---|",
    ]
    measured = rows.groupby("scheme")["total_s"].median().to_dict()
    for exchange, predicted in ours.to_dict().items():
        seconds, off = measured[exchange], 100 * (predicted / measured[exchange] - 1)
        lines.append(f"| {exchange} | {1e3 * seconds:.1f} ms | {1e3 * predicted:.1f} ms | {off:+.1f} % |")
    return lines


def _report_row(name: str, one: dict[Hashable, Any], own: pd.DataFrame) -> str:
    changing = ", then others" if one["changes"] else ""
    off = own["total_error"].abs()
    fastest, predicted = (own["policy"].iloc[int(own[column].argmin())] for column in ("total_s", "total_s_ours"))
    return (
        f"| `{name}` | {one['workers']} | {one['latency_ms']} ms, {one['rate_mbit_s']}{changing} | {one['model']} "
        f"| {100 * one['density']:g} % | {one['buckets']} | {100 * off.median():.1f} % | {100 * off.max():.0f} % "
        f"| {fastest} | {predicted} |"
    )


def _time_pair(one: dict[str, float]) -> str:
    return f"{100 * one['median']:.1f} % / {100 * one['p90']:.1f} %"


def _count_right(found: dict[str, Any], right: str, judged: str = "judged") -> str:
    return f"{found[right]} of {found[judged]}" + (
        f", {100 * found[right] / found[judged]:.0f} %" if found[judged] else ""
    )
