"""Report on the measured jobs that simnet ships, and on their predictions."""

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
from simnet.validate.published import read_sections

_SHIPPED = files("simnet.cost_models.calibration.measured") / "jobs"


def read_shipped(name: str) -> pd.DataFrame:
    """Return a shipped CSV table: ``measured`` or ``predicted`` times, ``settings``, or times of the ``first`` job."""
    return pd.read_csv(io.StringIO(_SHIPPED.joinpath(f"{name}.csv").read_text(encoding="utf-8")))


def settings_where(column: str) -> set[str]:
    """Return the names of the measured settings for which a Boolean column of the settings table is true."""
    rows = read_shipped("settings")
    return set(rows.loc[rows[column], "setting"])


def shipped_jobs() -> pd.DataFrame:
    """Return a row per setting, policy and iteration of the shipped jobs; predicted columns end in ``_ours``."""
    keys = ["setting", "policy", "iteration"]
    both = read_shipped("measured").merge(read_shipped("predicted"), on=keys, suffixes=("", "_ours"))
    return both[both["iteration"] >= SKIPPED]


def median_iterations(both: pd.DataFrame) -> pd.DataFrame:
    """Return iteration times [s] by setting and policy, for jobs with a fixed exchange: medians; means if links change.

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
    """Return the accuracy of the predictions of shipped jobs: time errors, interval coverage, ranking of policies."""
    rows = median_iterations(both)
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
        found[name] = {"jobs": len(own)} | _spread_of(own["before_error"])
    flexible = both[both["policy"] == "flexible"]
    off = float(flexible["total_s_ours"].sum() / flexible["total_s"].sum() - 1)
    same = float((flexible["exchange"] == flexible["exchange_ours"]).mean())
    found["flexible"] = {"same": same, "total": off, "iterations": len(flexible)}
    found |= {"inside": float(inside.mean()), "inside_other": float(inside[judges].mean())}
    return found | {"judged": judged, "right": winners, "pairs": pairs, "in_order": ordered}


def _spread_of(errors: pd.Series[float]) -> dict[str, float]:
    off = errors.abs().to_numpy()
    return {"median": float(np.median(off)), "p90": float(np.quantile(off, 0.9))}


def job_section() -> str:
    """Return the Markdown section on predictions of training jobs."""
    both = shipped_jobs()
    found, rows = job_figures(both), median_iterations(both)
    about = tomllib.loads(_SHIPPED.joinpath("about.toml").read_text(encoding="utf-8"))
    head = (
        f"{about['title']}: {found['jobs']} jobs in {found['settings']} settings. {about['notes'].strip()} "
        "`python benchmarks/measured_jobs.py FOLDER` makes the set anew, "
        "`simnet validate jobs --out jobs.md` this section."
    )
    found |= {"right_share": found["right"] / found["judged"], "in_order_share": found["in_order"] / found["pairs"]}
    settings = read_shipped("settings").set_index("setting").to_dict("index")
    each = [_report_row(str(name), settings[name], own) for name, own in rows.groupby("setting", sort=False)]
    worst = rows.reindex(rows["total_error"].abs().sort_values(ascending=False).index).head(10)
    farthest = [
        f"| `{one['setting']}` | {one['policy']} | {1e3 * one['total_s']:.1f} ms "
        f"| {1e3 * one['total_s_ours']:.1f} ms | {100 * one['total_error']:+.0f} % |"
        for one in worst.to_dict("records")
    ]
    lines = ["## Iterations of real jobs", "", *textwrap.wrap(head, 120)]
    tables = {"figures": _first_job(), "settings": each, "farthest": farthest}
    for name, text in read_sections("jobs.md").items():
        lines += [text.format(**found).rstrip("\n").replace("%", " %"), *tables[name]]
    return "\n".join(lines) + "\n"


def _first_job() -> list[str]:
    """Return Markdown table rows on the first measured job, which did not use the hooks of simnet."""
    measured = read_shipped("first").groupby("scheme")["total_s"].median().to_dict()
    with as_file(_SHIPPED.joinpath("first.yaml")) as path:
        ours = predict_job(load(path)).medians()["total_s"]
    lines = []
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
