"""Prediction of the iteration times of a job, by part and with intervals.

The parts are those that a real job logs (`simnet.cluster.hooks.log`). With `T` the whole iteration of a worker,

    T = compute + select + exposed + update

where `exposed` is the wait for the exchange at the end of the backward pass: for messages (`messages`) and for kernels
between them and after the last one (`merge`). `messages` counts from when a worker is ready to exchange a bucket, and
includes the turns of other workers on a shared device.

Intervals are those of `simnet.cost_models.evidence.intervals`, or of the scenario where these are wider. Errors of
computing, selecting, merging and updating are taken as fully correlated, so they add up; errors of links are
independent of them. Where links change, an iteration may begin earlier or later, and its interval covers the
predictions for those times, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import pandas as pd

from simnet.base import units
from simnet.base.arrays import Columns
from simnet.base.errors import InputError
from simnet.base.units import finite
from simnet.cost_models.costs.devices import IntervalEnd
from simnet.cost_models.evidence import intervals
from simnet.cost_models.evidence.chances import Chances
from simnet.cost_models.evidence.conditions import Evidence
from simnet.cost_models.evidence.intervals import PartOfIteration, factor_in_job, measured_stacks
from simnet.network.stack import name_of
from simnet.report import answers
from simnet.report.paired import fastest
from simnet.report.run_setup import mixed_overlap
from simnet.report.summary import Summary, interval_text, percent, table_columns
from simnet.report.wording import listed
from simnet.scenario import Run, Scenario
from simnet.studies import job_totals, utilisation
from simnet.studies.job_totals import JobTotal, evidence_of_job, messages_of, total_of
from simnet.studies.options import refuse_sharding
from simnet.studies.runs import setup_of
from simnet.training.job.job import Job
from simnet.training.job.local_steps import RecordedRounds
from simnet.training.job.record import TRAIN, PolicyResult
from simnet.training.job.running import run_policy
from simnet.training.job.steady import SteadyPart, common_start, steady_part

PARTS = ("compute", "select", "messages", "merge", "exposed", "update", "total")
"""Predicted parts of an iteration, in the order of columns ``compute_s`` and so on."""

COVERAGE = 0.9
"""Nominal coverage of the intervals over iterations."""

_OF_ROUNDS = (
    "What goes on beside inner steps is in messages, and only what workers wait for in exposed; intervals take inner "
    "steps to vary each for itself."
)
_OWN: tuple[PartOfIteration, ...] = ("compute", "select", "merge", "update")
_ENDS = ("", "low", "high")
_SIGMAS = 1.645  # of a normal distribution on each side of 90 %


@dataclass(frozen=True, eq=False)
class JobPrediction:
    """Predicted iteration times of a job under each policy.

    `iterations` has a row per policy and iteration, with the worker mean of each of `PARTS`, as ``total_s``, and its
    interval, as ``total_low_s`` and ``total_high_s``; `met` has the simulated iterations.
    """

    scenario: Scenario
    run: Run
    iterations: pd.DataFrame
    steady: Mapping[str, SteadyPart]
    totals: Mapping[str, JobTotal]
    met: Mapping[str, Columns]

    @cached_property
    def evidence(self) -> Evidence:
        """Whether the predicted times are measured, extrapolated or assumed, and why."""
        return evidence_of_job(self.run.job, self.met.values())

    @property
    def stack(self) -> str:
        """Name of the network's transport stack."""
        return name_of(self.run.job.network(0).stack)

    def medians(self) -> pd.DataFrame:
        """Return the median times of the parts of a steady iteration, a row per policy in scenario order."""
        numbers = [f"{name}_{end}{'_' if end else ''}s" for name in PARTS for end in _ENDS]
        steady = self.iterations[self.iterations["iteration"] >= common_start(self.steady.values())]
        return steady.groupby("policy", sort=False)[numbers].median()

    @property
    def unsettled(self) -> dict[str, str]:
        """Reasons why policies never reach a steady state, by policy; empty if all do."""
        return {policy: one.unsettled for policy, one in self.steady.items() if one.unsettled}

    @property
    def ranked(self) -> list[JobTotal]:
        """Total job times of the policies that reach a steady state, in scenario order."""
        return [total for policy, total in self.totals.items() if policy not in self.unsettled]

    @property
    def tied(self) -> list[str]:
        """Policies under which the job is shortest or tied with the shortest, among those that reach a steady state."""
        equal = fastest({one.name: one.seconds for one in self.ranked})
        computes = job_totals.computing_factors(self.scenario)
        return [*equal[:1], *(job_totals.tied_jobs(self.ranked, self.likely, computes, equal) if equal else ())]

    @cached_property
    def likely(self) -> Chances:
        """Probability that the job is shortest under each policy of `ranked`, and intervals of job times."""
        return job_totals.judged(self.ranked, job_totals.computing_factors(self.scenario))


COLUMNS = table_columns("step job")
"""Columns of `job_summary`: iteration parts (medians over steady iterations of worker means), and the job."""


def exchange_summary(
    scenario: Scenario, policies: Sequence[str] | None, goals: Sequence[float], off: float | None
) -> Summary:
    """Return a summary of iteration times, and of the bandwidth needed for each compute utilisation in `goals`.

    A single policy under a training strategy is answered by its closed form, if any, see `simnet.studies.utilisation`;
    `off` is the factor by which compute and links may be off, by default 1.1. InputError: `goals` or `off` without one.
    """
    own, linked, why = scenario.config.job.strategy, None, ""
    if own is not None or goals:
        run = scenario.build()
        for policy in run.policies.values():
            found = utilisation.read_training(run.job, policy.candidates)
            linked, why = (linked or found, why) if isinstance(found, utilisation.LinkedTraining) else (linked, found)
        if linked is not None and own is not None and len(run.policies) == 1:
            return utilisation.utilisation_summary(scenario, run.job, linked, goals, off or utilisation.OFF)
        if linked is None and goals:
            raise InputError(f"is for dense exchanges over links that do not change, not for {why}", file="--goal")
    if off is not None and (linked is None or not goals):
        said = f"which {why} have not" if why else "under a strategy or with a --goal"
        raise InputError(f"is for closed forms, {said}; the intervals here follow errors", file="--link-uncertainty")
    answer = job_summary(predict_job(scenario, policies))
    if linked is None or not goals:
        return answer
    rows = [utilisation.goal_row(linked, goal, off or utilisation.OFF, periodic=own is not None) for goal in goals]
    said = "\n".join([answer.answer, *(f"With a dense exchange {utilisation.goal_sentence(one)}" for one in rows)])
    return replace(answer, answer=said, details={**answer.details, "goals": rows})


def job_summary(found: JobPrediction) -> Summary:
    """Return a summary of iteration and job times under each policy, the fastest first."""
    rows, job = _policy_rows(found), found.run.job
    several = len(rows) > 1
    head = {"scenario": found.scenario.name, "workers": job.source.workers, "stack": found.stack}
    trained = {"strategy": {"name": job.strategy.name, "steps": job.strategy.steps}} if job.strategy else {}
    details = {**head, "device": job.device.name, "barrier": job.barrier, **trained, "coverage": COVERAGE}
    details |= {"steady_from": common_start(found.steady.values())}
    tied = found.tied
    details |= {"fastest": next(iter(tied), None), "tied_with": tied[1:], **found.evidence.figures()}
    unsure = [one.heading for one in COLUMNS if one.heading in ("fastest", "regret") and not several]
    setup = {name: one for name, one in setup_of(found.scenario, found.run, met=found.met).items() if one is not None}
    return Summary(
        answer=_job_answer(found, rows),
        columns=[one for one in COLUMNS if one.heading not in unsure],
        rows=rows,
        evidence=answers.evidence(setup | found.evidence.figures()),
        assumed=setup["assumed"],
        depends_on=mixed_overlap(setup.get("overlap")),
        next="simnet choose   ranks the usual exchanges beside these" if several and job.strategy is None else "",
        details=details,
        notes=[*_job_notes(found), *answers.ran_on(setup)],
    )


def _policy_rows(found: JobPrediction) -> list[dict[str, Any]]:
    """Return a table row per policy, fastest first, and last the policies that never reach a steady state."""
    likely = found.likely
    rows: dict[str, dict[str, Any]] = {}
    for name, parts in found.medians().to_dict("index").items():
        policy, total = str(name), found.totals[str(name)]
        rows[policy] = {
            "policy": policy,
            **{str(part): one for part, one in parts.items()},
            "simulated_s": total.seconds,
        }
        for part in PARTS:
            ends = units.interval_figures(parts[f"{part}_low_s"], parts[f"{part}_high_s"], "_s")
            rows[policy] |= {f"{part}_{end}": value for end, value in ends.items()}
        rows[policy] |= {"utilisation": total.compute / total.seconds, "unsettled": found.unsettled.get(policy)}
    for place, policy in enumerate(one.name for one in found.ranked):
        low, high = float(likely.low[place]), float(likely.high[place])
        chance, regret = float(likely.fastest[place]), finite(float(likely.regret[place]))
        rows[policy] |= units.interval_figures(low, high, "_s")
        if found.evidence.level != "measured" or found.stack not in measured_stacks():
            rows[policy] |= _widened_to_job(rows[policy], low, high)
        rows[policy] |= {"chance_to_be_fastest": chance, "regret_of_job": regret, "sure": likely.sure[place]}
    return sorted(rows.values(), key=lambda row: (row["policy"] in found.unsettled, row["simulated_s"]))


def _widened_to_job(row: Mapping[str, Any], low: float, high: float) -> dict[str, Any]:
    """Widen the interval of an iteration's time [s] to at least the relative width of the job time's interval."""
    # Under conditions where no iterations were measured, an iteration is off by at least what the mean of a job is.
    if row["total_low_s"] is None or not row["simulated_s"]:
        return {}
    if not units.determined(low, high):
        return {"total_low_s": None, "total_high_s": None, "total_interval": units.NOT_DETERMINED}
    share = row["total_s"] / row["simulated_s"]
    return {"total_low_s": min(row["total_low_s"], share * low), "total_high_s": max(row["total_high_s"], share * high)}


def _job_answer(found: JobPrediction, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a text on the fastest policy, with its iteration and job times."""
    aside = "".join(f" {name} has not settled, and has no rank: {why}." for name, why in found.unsettled.items())
    if not found.ranked:
        return f"No policy has settled.{aside}"
    best, count = rows[0], found.iterations["iteration"].nunique()
    own = found.run.job.strategy
    each = f"a round of {own.steps} steps" if own and own.steps > 1 else "an iteration"
    iteration = interval_text(best["total_s"], best["total_low_s"], best["total_high_s"], each=f" {each} in the median")
    job = interval_text(best["simulated_s"], best["low_s"], best["high_s"], each=f" for {count:,} of them")
    said = f"{iteration}, {percent(best['utilisation'])} utilisation; {job}.{aside}"
    if len(rows) == 1:
        return f"{best['policy']}: {said}"
    first = {best["policy"], *found.tied[1:]}
    chances = {row["policy"]: percent(row["chance_to_be_fastest"]) for row in rows if row["policy"] in first}
    if len(chances) == 1:
        return f"{best['policy']} is fastest of {len(rows)} tried ({chances[best['policy']]} sure): {said}"
    shares = listed([*chances.values()])
    return f"{' or '.join(chances)}: tied of {len(rows)} tried ({shares} to be fastest). {best['policy']}: {said}"


def _job_notes(found: JobPrediction) -> list[str]:
    """Return notes on a prediction of iteration times as text lines."""
    wider = "" if found.stack in measured_stacks() else f", the wider one for {found.stack}, which was not measured"
    return [
        "Parts are medians over steady iterations and means over workers: compute, select, exposed and update make an "
        "iteration; exposed has what messages and merge take after the backward pass.",
        f"Intervals hold {100 * COVERAGE:.0f} % of single iterations, that of the whole job its time; their widths are "
        f"of DDP over gloo on two processors, and of collectives of {listed(measured_stacks())}{wider}.",
        *([_OF_ROUNDS] if found.run.job.strategy else []),
    ]


def predict_job(scenario: Scenario, policies: Sequence[str] | None = None) -> JobPrediction:
    """Predict the iterations of a job under each of its policies."""
    config = scenario.config
    for name in ("deaths", "absences", "churn", "deadline", "other_jobs"):
        owner, field = (config, name) if name == "other_jobs" else (config.job, f"job.{name}")
        if getattr(owner, name):
            raise InputError("must be left out: predicted is a job alone, in which all workers take part", field=field)
    refuse_sharding(scenario, "the iterations of a job that exchanges in each are predicted")
    if policies is None:
        policies = [name for name, one in config.policies.items() if one.oracle is None]
    run = scenario.only(policies).build()
    found, steady, totals, met = [], {}, {}, dict[str, Columns]()
    for policy in policies:
        share = config.job.workers_per_device
        among = run.policies[policy].candidates
        counts = messages_of(run, among)
        parts, result = _iteration_parts(run, policy, share, counts)
        steady[policy] = steady_part(result.iterations)
        totals[policy] = total_of(policy, result.iterations, run.job, counts, among)
        met[policy] = result.iterations
        varies, wider = _computes_within(scenario, spread_of(run.job)), 1.0
        if run.job.strategy is not None and run.job.strategy.steps > 1:
            # No such round was measured: what calls were off by is all that is known, and that of few sets.
            wider = intervals.factor_for_another(len(intervals.error_models()[intervals.NAMED].quantiles))
        own = _with_intervals(parts, varies, name_of(run.job.network(0).stack), share, wider)
        changes = parts[["latency_s", "bandwidth_Bps"]].nunique().max() > 1
        found.append((_with_other_times(own) if changes else own).assign(policy=policy))
    return JobPrediction(scenario, run, pd.concat(found, ignore_index=True), steady, totals, met)


def spread_of(job: Job) -> float:
    """Return the standard deviation of the logarithm of a worker's compute time in an iteration.

    The sum of independent log-normal inner steps is approximated as log-normal with the same mean and variance.
    """
    steps, spread = 1 if job.strategy is None else job.strategy.steps, job.compute.spread
    return spread if steps == 1 else math.sqrt(math.log1p(math.expm1(spread**2) / steps))


def _iteration_parts(run: Run, policy: str, share: int, counts: dict[str, float]) -> tuple[pd.DataFrame, PolicyResult]:
    """Simulate a job under a policy; return a table of times [s], messages and links by iteration, and its result."""
    job, beside = run.job, run.job.overlap is not None or run.job.strategy is not None
    recorded = RecordedRounds.of(job, run.policies[policy].candidates)
    result = run_policy(
        job, policy, run.policies[policy], timeline=job.iterations if beside else 0, sparsifiers=recorded
    )
    rows = result.iterations[result.iterations["purpose"] == TRAIN].set_index("iteration")
    workers = result.workers[result.workers["purpose"] == TRAIN].groupby("iteration").mean(numeric_only=True)
    # An inner step ends with an update as well.
    update = job.update / share * (1 if job.strategy is None else job.strategy.steps)
    merge = workers["merge_in_select_s"] / share
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
    kernels = {name: (rows[f"select_{name}_s"] / rows["select_s"]).fillna(1.0) for name in get_args(IntervalEnd)}
    messages = rows["choice"].map(counts)
    links = {name: rows[name] for name in ("latency_s", "bandwidth_Bps")}
    least = _least_on_links(job, result.workers[result.workers["purpose"] == TRAIN])
    found = found.assign(messages=messages, least_s=least, **links, **kernels).reset_index()
    return found, result


def _least_on_links(job: Job, workers: pd.DataFrame) -> pd.Series[float] | float:
    """Return the mean seconds, by iteration, that a worker's bytes need at full link rate; 0 if links vary."""
    links = job.network(0).links
    if len(job.stages) > 1 or not links.constant:
        return 0.0
    rates = workers["worker"].map(dict(enumerate(utilisation.link_rates(job))))
    return (workers["bytes_sent_B"] / rates).groupby(workers["iteration"]).mean()


def _computes_within(scenario: Scenario, spread: float) -> dict[str, float]:
    """Return the factors by which a compute time may be lower and higher, from its spread and estimation error."""
    known = scenario.compute_time
    low, high = (1.0, 1.0) if known is None else (known.low / known.seconds, known.high / known.seconds)
    return {"low": low * math.exp(-_SIGMAS * spread), "high": high * math.exp(_SIGMAS * spread)}


def _with_intervals(
    parts: pd.DataFrame, varies: Mapping[str, float], stack: str, share: int, wider: float = 1.0
) -> pd.DataFrame:
    """Add intervals to iteration times of a job with `share` workers per device; `wider` scales message-time errors."""
    found = parts.drop(columns=["messages", "least_s", "latency_s", "bandwidth_Bps", "low", "high"])
    turns = (share - 1) * sum(parts[f"{name}_s"] for name in _OWN)
    on_links = (parts["messages_s"] - turns).clip(lower=0.0).to_numpy()
    for sign, end in zip((-1, 1), get_args(IntervalEnd), strict=True):
        known = {"compute": varies[end], "select": parts[end], "merge": parts[end], "update": 1.0}
        off: dict[str, Any] = {
            name: parts[f"{name}_s"] * np.maximum(sign * (known[name] - 1), sign * (factor_in_job(end, name) - 1))
            for name in _OWN
        }
        own = sum(off.values())
        calls = wider * np.maximum(
            intervals.off_of_calls(end, stack, share, parts["messages"].to_numpy(), on_links),
            sign * (factor_in_job(end, "messages") - 1) * parts["messages_s"],
        )
        if end == "low":
            calls = np.minimum(calls, (parts["messages_s"] - parts["least_s"]).clip(lower=0.0))
        off["messages"] = np.hypot(calls, (share - 1) * own)
        off["exposed"] = np.hypot(calls, (share - 1) * own + off["merge"])
        off["total"] = np.hypot(calls, share * own)
        for part in PARTS:
            found[f"{part}_{end}_s"] = np.maximum(parts[f"{part}_s"] + sign * off[part], 0.0)
    return found


def _with_other_times(found: pd.DataFrame) -> pd.DataFrame:
    """Widen each iteration's time intervals: iterations may start earlier or later, when link speeds differ."""
    # Earlier iterations may all take the low, or all the high, end of their intervals, so that an iteration may start
    # on the links of an earlier or later time.
    began, total = (found[name].to_numpy() for name in ("began_s", "total_s"))
    earliest, latest = (began[0] + np.cumsum(found[f"total_{end}_s"]) for end in get_args(IntervalEnd))
    first = np.searchsorted(began + total, np.append(began[0], earliest[:-1]), side="right")
    last = np.searchsorted(began, np.append(began[0], latest[:-1]), side="right")
    own = np.arange(len(began))
    ranges = list(zip(np.minimum(first, own).tolist(), np.maximum(last, own + 1).tolist(), strict=True))
    wider = found.copy()
    for name in ("messages", "exposed", "total"):
        for end, outermost in zip(get_args(IntervalEnd), (np.min, np.max), strict=True):
            column = f"{name}_{end}_s"
            values = found[column].to_numpy()
            wider[column] = [float(outermost(values[one:other])) for one, other in ranges]
    return wider
