"""The iteration of a job, predicted part by part, with intervals.

The parts are those that a real job logs (`simnet.hooks.log`). With `T` the whole iteration of a worker,

    T = compute + select + wait + update

where `wait` is what the end of the backward pass waits for the exchange: messages that are under way (`communicate`)
and what is done between them and after the last one (`merge`). Where buckets are exchanged beside the backward pass,
part of that is over before: `communicate` counts from when a worker is ready for a bucket, as a call of the library
does, so that it has what the worker waits for others, and for their words that they are ready.

Workers that take turns on a device do so in `communicate`: who has finished waits there for those whose turn comes
later. So `compute`, `select`, `merge` and `update` are those of one worker that has the device for itself.

An interval joins what is known of each part. That of the device is from its profile, that of computing from its spread
in the scenario, that of the links from what predictions of collectives on links of known latency and bandwidth were off
by (`ERRORS`). They are taken to be independent: the whole has the root of the sum of their squares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
import pandas as pd

from simnet.base import units
from simnet.base.errors import InputError
from simnet.costs.devices import End
from simnet.job import Job, run_policy
from simnet.job.record import TRAIN
from simnet.report.stacks import name_of
from simnet.scenario import Run, Scenario

PARTS = ("compute", "select", "communicate", "merge", "wait", "update", "total")
"""What is predicted, in the order of a log's columns, which are called ``compute_s`` and so on."""

COVERAGE = 0.9
"""Share of iterations that intervals are meant to hold."""

NEAR = (0.5e-3, 3e-3, 20e-3)
"""Where bins of mean latency begin [s]: below the first, and from each on."""

ERRORS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"gloo": (0.88, 0.26, 0.062, 0.007), "mpich": (0.63, 0.089, 0.011, 0.011)}
)
"""By which share 90 % of the shipped collectives differ at most from what is predicted; by stack, in bins of `NEAR`.

Of all that was measured up to 100 Mbit/s, at 2 to 8 ranks on two processors, predicted by the stack as it is named. For
20 ms and more, where none of MPICH was measured, those of shorter links stand. Other stacks have the larger of both.
"""

_ENDS = ("", "low", "high")
_SIGMAS = 1.645  # of a normal distribution on each side of 90 %


@dataclass(frozen=True)
class JobPrediction:
    """What the iterations of a job are predicted to take.

    Parameters
    ----------
    scenario, stack, device : str
        Names of the scenario, its transport stack and its device profile.
    workers : int
        How many.
    iterations : DataFrame
        A row per policy and iteration: ``policy``, ``iteration``, ``exchange``, ``began_s``, and for each of `PARTS`
        the mean over workers, as ``total_s``, and its interval, as ``total_low_s`` and ``total_high_s``.
    """

    scenario: str
    stack: str
    device: str
    workers: int
    iterations: pd.DataFrame

    def medians(self) -> pd.DataFrame:
        """Return the medians over iterations, a row per policy in the order of the scenario."""
        numbers = [f"{name}_{end}{'_' if end else ''}s" for name in PARTS for end in _ENDS]
        return self.iterations.groupby("policy", sort=False)[numbers].median()

    def figures(self) -> dict[str, Any]:
        """Return the prediction for JSON: medians over iterations, in seconds."""
        medians = self.medians()
        policies = {
            policy: {
                name: {end or "seconds": row[f"{name}_{end}{'_' if end else ''}s"] for end in _ENDS} for name in PARTS
            }
            for policy, row in medians.to_dict("index").items()
        }
        head = {"scenario": self.scenario, "workers": self.workers, "stack": self.stack, "device": self.device}
        return {**head, "coverage": COVERAGE, "policies": policies}

    def rows(self) -> list[list[str]]:
        """Return the rows of a table for people."""
        found = []
        for policy, row in self.medians().to_dict("index").items():
            low, high = (units.format_seconds(row[f"total_{end}_s"]) for end in ("low", "high"))
            found.append([str(policy), *(units.format_seconds(row[f"{name}_s"]) for name in PARTS), f"{low} to {high}"])
        return found

    def sentences(self) -> list[str]:
        """Return what is to be said beside the table."""
        return [
            "Medians over iterations, means over workers. A whole iteration is compute, select, wait and update; wait "
            "has what communicate and merge take after the backward pass.",
            f"Intervals are meant to hold {100 * COVERAGE:.0f} % of iterations. Stack: {self.stack}; device: "
            f"{self.device}.",
        ]


def predict_job(scenario: Scenario, policies: Sequence[str] | None = None) -> JobPrediction:
    """Predict the iterations of a job under each of its policies.

    Parameters
    ----------
    scenario : Scenario
        The job, and the network that it is on.
    policies : sequence of str, optional
        Only these; by default all but the one-step oracle, which no job can follow.

    Raises
    ------
    InputError
        If there is no such policy, or the scenario cannot be built; or it has other jobs or deaths, which a prediction
        part by part leaves out.
    """
    config = scenario.config
    for field, given in (("other_jobs", config.other_jobs), ("job.deaths", config.job.deaths)):
        if given:
            raise InputError("must be left out: the iterations of a job alone are predicted", field=field)
    if policies is None:
        policies = [name for name, one in config.policies.items() if one.clairvoyant is None]
    run = scenario.only(policies).build()
    found = []
    for policy in policies:
        parts = _parts(run, policy, config.job.workers_per_device)
        found.append(_with_intervals(parts, run.job.compute.spread, stack_name(run.job)).assign(policy=policy))
    rows = pd.concat(found, ignore_index=True)
    return JobPrediction(scenario.name, stack_name(run.job), run.job.device.name, run.job.source.workers, rows)


def stack_name(job: Job) -> str:
    """Return the name of the transport stack of a job."""
    return name_of(job.network(0).stack)


def _parts(run: Run, policy: str, share: int) -> pd.DataFrame:
    """Return the parts of each iteration under a policy, means over workers, and what its intervals go by."""
    job = run.job
    result = run_policy(job, policy, run.policies[policy], timeline=job.iterations if job.overlap is not None else 0)
    rows = result.iterations[result.iterations["purpose"] == TRAIN].set_index("iteration")
    workers = result.workers[result.workers["purpose"] == TRAIN].groupby("iteration").mean(numeric_only=True)
    update = job.update / share
    merge = workers["merge_s"] / share
    select = workers["select_s"] / share - merge
    compute = workers["compute_s"] / share - update
    total = rows["iteration_s"]
    wait = total - compute - select - update
    spans = result.spans[result.spans["what"] == "overlapped"]
    lasted = (spans["finish_s"] - spans["start_s"]).astype(float)
    overlapped = lasted.groupby(spans["iteration"]).sum() / job.source.workers
    # Beside the backward pass others have their turns, too, and what they take is in what a worker waits already.
    under_way = wait - merge + overlapped.reindex(total.index, fill_value=0.0) / share
    parts = (compute, select, under_way, merge, wait, pd.Series(update, index=total.index), total)
    found = pd.DataFrame({f"{name}_s": part for name, part in zip(PARTS, parts, strict=True)})
    found.insert(0, "exchange", rows["choice"])
    found.insert(1, "began_s", rows["start_s"])
    kernels = {name: (rows[f"select_{name}_s"] / rows["select_s"]).fillna(1.0) for name in get_args(End)}
    return found.assign(latency_s=rows["latency_s"], **kernels).reset_index()


def _with_intervals(parts: pd.DataFrame, spread: float, stack: str) -> pd.DataFrame:
    """Return parts with an interval for each, those of the whole from those of all."""
    known = np.array([ERRORS[stack]] if stack in ERRORS else list(ERRORS.values())).max(axis=0)
    factor = 1 + known[np.searchsorted(NEAR, parts["latency_s"].to_numpy(), side="right")]
    within = {
        "compute": (math.exp(-_SIGMAS * spread), math.exp(_SIGMAS * spread)),
        "communicate": (1 / factor, factor),
        **dict.fromkeys(("select", "merge"), (parts["low"], parts["high"])),
    }
    found = parts.drop(columns=["latency_s", "low", "high"])
    for end, which in enumerate(get_args(End)):
        off = {name: parts[f"{name}_s"] * (within[name][end] - 1) if name in within else 0.0 for name in PARTS}
        off["wait"] = np.hypot(off["communicate"], off["merge"])
        off["total"] = np.sqrt(sum(np.square(off[name]) for name in ("compute", "select", "wait", "update")))
        for name in PARTS:
            found[f"{name}_{which}_s"] = np.maximum(parts[f"{name}_s"] + (-1, 1)[end] * np.abs(off[name]), 0.0)
    return found
