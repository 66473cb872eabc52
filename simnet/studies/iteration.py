"""The iteration of a job, predicted part by part, with intervals.

The parts are those that a real job logs (`simnet.cluster.hooks.log`). With `T` the whole iteration of a worker,

    T = compute + select + exposed + update

where `exposed` is what the end of the backward pass waits for the exchange: messages that are under way (`messages`)
and what is done between them and after the last one (`merge`). Where buckets are exchanged beside the backward pass,
part of that is over before: `messages` counts from when a worker is ready for a bucket, as a call of the library
does, so that it has what the worker waits for others, and for their words that they are ready.

Workers that take turns on a device do so in `messages`: who has finished waits there for those whose turn comes
later. So `compute`, `select`, `merge` and `update` are those of one worker that has the device for itself.

An interval joins what is known of each part; `simnet.cost_models.evidence.iteration_errors` has what was measured. That
of computing and of what a worker does for the exchange is the wider of two: of its spread in the scenario, or of the
device's profile, and of what processes in jobs differed by from a process by itself. That of `messages` is the wider
of what calls of collectives on links of known latency and bandwidth were off by, and exchanges in jobs. Where links
stay as they are, it begins no lower than what the bytes of a worker take on its links.

What a worker computes, selects, merges and updates is taken to be off alike, as the cause is one, and so is what those
do whose turns it waits for: that adds up. Links are independent of it: the whole has the root of the sum of both
squares. Where links change, an iteration may begin earlier or later, by as much as those before it may be off, and its
interval holds what is predicted of these times, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from simnet.base import units
from simnet.base.errors import InputError
from simnet.base.units import finite
from simnet.cost_models.costs.devices import IntervalEnd
from simnet.cost_models.evidence.chances import Chances
from simnet.cost_models.evidence.conditions import NEVER_COMPARED, Evidence
from simnet.cost_models.evidence.intervals import NAMED, error_models, factor_for_another
from simnet.cost_models.evidence.iteration_errors import PartOfIteration, factor_in_job, off_of_calls, stacks
from simnet.network.stack import name_of
from simnet.report import run_setup
from simnet.report.drawing import COLOURS, SECONDS, Plot, plot, style
from simnet.report.drawing import unit as units_of
from simnet.report.learning import IGNORED
from simnet.report.paired import fastest
from simnet.report.tables import ReprHtml, empty_table
from simnet.report.wording import standing, within_error
from simnet.scenario import Run, Scenario
from simnet.studies import assumptions
from simnet.studies.choosing.output import share
from simnet.studies.codes import computing_told, costs_told
from simnet.studies.job_totals import JobTotal, computing_factors, evidence_of_job, judged, messages_of, total_of
from simnet.studies.options import of_gradients
from simnet.studies.samples import sample_warnings, warning_lines
from simnet.training.job.job import Job
from simnet.training.job.record import TRAIN, PolicyResult
from simnet.training.job.running import run_policy
from simnet.training.job.steady import SteadyPart, common_start, steady_part

PARTS = ("compute", "select", "messages", "merge", "exposed", "update", "total")
"""What is predicted, in the order of a log's columns, which are called ``compute_s`` and so on."""

COVERAGE = 0.9
"""Share of iterations that intervals are meant to hold."""

_CHANCES = (
    "Fastest with: the chance that the job takes the least time, by what such predictions were off by. Regret: by "
    "which share the job is expected to take longer than with the fastest."
)
_OF_ROUNDS = (
    "What goes on beside inner steps is in messages, and only what workers wait for in exposed; intervals take inner "
    "steps to vary each for itself."
)
_OWN: tuple[PartOfIteration, ...] = ("compute", "select", "merge", "update")
_ENDS = ("", "low", "high")
_SIGMAS = 1.645  # of a normal distribution on each side of 90 %


@dataclass(frozen=True, eq=False, repr=False)
class JobPrediction(ReprHtml):
    """What the iterations of a job are predicted to take.

    Parameters
    ----------
    scenario, stack, device : str
        Names of the scenario, its transport stack and its device profile.
    workers : int
        How many.
    barrier : bool
        Whether they begin an iteration together.
    strategy, steps : str, int
        By which training strategy they train, if there is one, and inner steps of an iteration.
    notes : tuple of str
        How costs of codes are known, and where the time of computing is from.
    steady : mapping of str to SteadyPart
        The steady part of the run under each policy; one that has none has no rank.
    totals : mapping of str to JobTotal
        What the job takes in all under each policy.
    computes : (float, float)
        By which factors computing may be off; see `simnet.studies.job_totals.computing_factors`.
    evidence : Evidence
        How well times are known.
    iterations : DataFrame
        A row per policy and iteration: ``policy``, ``iteration``, ``exchange``, ``began_s``, and for each of `PARTS`
        the mean over workers, as ``total_s``, and its interval, as ``total_low_s`` and ``total_high_s``.
    """

    scenario: str
    stack: str
    device: str
    workers: int
    barrier: bool
    iterations: pd.DataFrame
    strategy: str = ""
    steps: int = 1
    notes: tuple[str, ...] = ()
    steady: Mapping[str, SteadyPart] = field(default_factory=dict)
    totals: Mapping[str, JobTotal] = field(default_factory=dict)
    computes: tuple[float, float] = (1.0, 1.0)
    evidence: Evidence = NEVER_COMPARED

    def __repr__(self) -> str:
        count, iterations = (self.iterations[name].nunique() for name in ("policy", "iteration"))
        return f"JobPrediction({self.scenario}, {count} polic{'y' if count == 1 else 'ies'}, {iterations} iterations)"

    def to_pandas(self) -> pd.DataFrame:
        """Return the iterations, with parts and intervals."""
        return self.iterations.copy()

    def plot(self) -> Plot:
        """Return the figure: an iteration of each policy with its interval, medians over iterations."""
        medians = self.medians()[::-1]
        name, factor = units_of(float(medians["total_high_s"].max()), SECONDS)
        with style():
            figure = Figure(figsize=(7.5, 1.3 + 0.3 * len(medians)), layout="constrained")
            axes = figure.subplots()
            total, low, high = (medians[f"total_{end}s"].to_numpy() / factor for end in ("", "low_", "high_"))
            axes.errorbar(total, medians.index, xerr=[total - low, high - total], fmt="o", color=COLOURS[0])
            axes.set(xlim=(0, None), xlabel=f"an iteration [{name}]")
            axes.set_title(self.scenario, loc="left")
        return plot("predict", self.scenario, "", figure)

    def table(self) -> Table:
        """Return a row per policy, medians over iterations."""
        found = empty_table(f"an iteration of {self.scenario}", self.headings(), ["policy"])
        for row in self.rows():
            found.add_row(*map(Text, row))
        return found

    def medians(self) -> pd.DataFrame:
        """Return the medians over the steady iterations, a row per policy in the order of the scenario."""
        numbers = [f"{name}_{end}{'_' if end else ''}s" for name in PARTS for end in _ENDS]
        steady = self.iterations[self.iterations["iteration"] >= common_start(self.steady.values())]
        return steady.groupby("policy", sort=False)[numbers].median()

    def figures(self) -> dict[str, Any]:
        """Return the prediction for JSON: medians over the steady iterations, in seconds."""
        policies: dict[str, dict[str, Any]] = {
            str(policy): {
                "median_iteration" if name == "total" else name: {
                    "seconds": row[f"{name}_s"],
                    **units.interval_figures(row[f"{name}_low_s"], row[f"{name}_high_s"]),
                }
                for name in PARTS
            }
            for policy, row in self.medians().to_dict("index").items()
        }
        likely = self.likely()
        said = zip(likely.fastest.tolist(), likely.regret.tolist(), likely.sure, strict=True)
        for policy, (chance, regret, sure) in zip(self.ranked, said, strict=True):
            policies[policy] |= {"chance_to_be_fastest": chance, "regret_of_job": finite(regret), "sure": sure}
        for policy, low, high in zip(self.ranked, likely.low.tolist(), likely.high.tolist(), strict=True):
            seconds = self.totals[policy].seconds
            policies[policy]["job"] = {"seconds": seconds, **units.interval_figures(low, high)}
        for policy, why in self.unsettled.items():
            policies[policy]["unsettled"] = why
        first = self.fastest
        head = {"scenario": self.scenario, "workers": self.workers, "stack": self.stack, "device": self.device}
        trained = {"strategy": {"name": self.strategy, "steps": self.steps}} if self.strategy else {}
        said_too = {"notes": list(self.notes)} if self.notes else {}
        steady = {"steady_from": common_start(self.steady.values())}
        won = {"fastest": first[0] if first else None, "tied_with": first[1:]}
        won |= self.evidence.figures()
        told = {**head, "barrier": self.barrier, **trained, "coverage": COVERAGE, **steady, **won, **said_too}
        return {**told, "policies": policies}

    @property
    def unsettled(self) -> dict[str, str]:
        """Why policies have no rank that have not settled."""
        return {policy: one.unsettled for policy, one in self.steady.items() if one.unsettled}

    @property
    def ranked(self) -> list[str]:
        """The policies that have settled, in the order of the scenario."""
        return [str(one) for one in self.iterations["policy"].unique() if one not in self.unsettled]

    @property
    def fastest(self) -> list[str]:
        """The policy with which the job takes the least time and those tied with it, of those that have settled."""
        return fastest({policy: self.totals[policy].seconds for policy in self.ranked}) if self.ranked else []

    def likely(self) -> Chances:
        """Return how likely the job takes the least time with each policy that has settled, and intervals of that."""
        return judged([self.totals[policy] for policy in self.ranked], self.computes)

    def headings(self) -> tuple[str, ...]:
        """Return the headings of `rows`."""
        chances = ("whole job", "fastest with", "regret") if self.several else ("whole job",)
        return ("policy", *PARTS, "interval of the total", *chances)

    @property
    def several(self) -> bool:
        """Whether there is more than one policy."""
        return self.iterations["policy"].nunique() > 1

    def rows(self) -> list[list[str]]:
        """Return the rows of a table for people."""
        found = {}
        for policy, row in self.medians().to_dict("index").items():
            interval = units.format_interval(row["total_low_s"], row["total_high_s"])
            found[str(policy)] = [str(policy), *(units.format_seconds(row[f"{name}_s"]) for name in PARTS), interval]
        likely = self.likely()
        for place, policy in enumerate(self.ranked):
            ends = float(likely.low[place]), float(likely.high[place])
            found[policy].append(units.format_within(self.totals[policy].seconds, *ends))
            if self.several:
                found[policy] += [share(float(likely.fastest[place])), share(float(likely.regret[place]))]
        for policy in self.unsettled:
            found[policy].append(units.format_seconds(self.totals[policy].seconds))
            found[policy] += ["not settled", "-"] if self.several else []
        return list(found.values())

    def headline(self) -> str:
        """Return the answer in a line: with whom the job takes the least time, or how long it takes."""
        count = self.iterations["iteration"].nunique()
        each = f" for {count:,} iteration{'' if count == 1 else 's'}"
        seconds = {policy: self.totals[policy].seconds for policy in self.ranked}
        if self.several and seconds:
            chances = dict(zip(self.ranked, self.likely().fastest.tolist(), strict=True))
            alone = f"is fastest{within_error(self.fastest[0], chances)}"
            said = standing(seconds, self.fastest, alone, "are tied as fastest", each)
        else:
            lines = [
                f"{policy} takes {units.format_seconds(one.seconds)}{each}." for policy, one in self.totals.items()
            ]
            said = "No policy has settled." if self.several else lines[0]
        aside = (f"{name} has not settled, and has no rank: {why}." for name, why in self.unsettled.items())
        return " ".join([said, *aside, *([IGNORED] if self.several else [])])

    def sentences(self) -> list[str]:
        """Return what is to be said beside the table."""
        known, start = stacks(), common_start(self.steady.values())
        over = f"iterations from {start} on, where the run is steady" if start else "iterations"
        wider = "" if self.stack in known else f", of which the wider stands for {self.stack}, which was not measured"
        return [
            f"Medians over {over}, means over workers. A whole iteration is compute, select, exposed and update; "
            "exposed has what messages and merge take after the backward pass.",
            f"Intervals of parts are meant to hold {100 * COVERAGE:.0f} % of single iterations, that of the whole job "
            f"its time. Stack: {self.stack}; device: {self.device}.",
            self.evidence.sentence(),
            f"Their widths, also on {self.device}, are those of jobs of DDP over gloo on two processors, up to "
            f"100 Mbit/s, and of collectives of {' and '.join(known)} there{wider}.",
            *self.notes,
            run_setup.describe_barrier(self.barrier),
            *([f"{run_setup.describe_strategy(self.strategy, self.steps)} {_OF_ROUNDS}"] if self.strategy else []),
            *([_CHANCES] if self.several else []),
        ]


def predict_job(scenario: Scenario, policies: Sequence[str] | None = None) -> JobPrediction:
    """Predict the iterations of a job under each of its policies."""
    config = scenario.config
    if config.other_jobs:
        raise InputError("must be left out: the iterations of a job alone are predicted", field="other_jobs")
    for name in ("deaths", "absences", "churn", "deadline"):
        if getattr(config.job, name):
            said = "must be left out: the iterations of a job in which all workers take part are predicted"
            raise InputError(said, field=f"job.{name}")
    of_gradients(scenario, "the iterations of a job that exchanges in each are predicted", ["sharding"])
    if policies is None:
        policies = [name for name, one in config.policies.items() if one.oracle is None]
    run = scenario.only(policies).build()
    found, steady, totals, met = [], {}, {}, []
    for policy in policies:
        share = config.job.workers_per_device
        parts, result = _iteration_parts(run, policy, share)
        among = run.policies[policy].candidates
        steady[policy] = steady_part(result.iterations)
        totals[policy] = total_of(policy, result.iterations, run.job, messages_of(run, among), among)
        met.append(result.iterations[["latency_s", "bandwidth_Bps"]])
        varies, wider = _computes_within(scenario, spread_of(run.job)), 1.0
        if run.job.strategy is not None and run.job.strategy.steps > 1:
            # No such round was measured: what calls were off by is all that is known, and that of few sets.
            wider = factor_for_another(len(error_models()[NAMED].quantiles))
        own = _with_intervals(parts, varies, stack_name(run.job), share, wider)
        changes = parts[["latency_s", "bandwidth_Bps"]].nunique().max() > 1
        found.append((_with_other_times(own) if changes else own).assign(policy=policy))
    rows = pd.concat(found, ignore_index=True)
    job = run.job
    exchanges = {one.label: one for policy in policies for one in run.policies[policy].candidates}
    notes = costs_told(job.device, exchanges.values(), job.source.workers)
    notes += [*computing_told([scenario.computing]), *assumptions.notes(scenario, run)]
    warnings = sample_warnings(job, [run.policies[policy] for policy in policies])
    notes += [f"Warning: {one}" for one in warning_lines(warnings)]
    head = scenario.name, stack_name(job), job.device.name, job.source.workers, job.barrier, rows
    trained = ("", 1) if job.strategy is None else (job.strategy.name, job.strategy.steps)
    evidence = evidence_of_job(job, pd.concat(met))
    return JobPrediction(*head, *trained, tuple(notes), steady, totals, computing_factors(scenario), evidence)


def stack_name(job: Job) -> str:
    """Return the name of the transport stack of a job."""
    return name_of(job.network(0).stack)


def spread_of(job: Job) -> float:
    """Return the spread of a worker's compute time in an iteration, as that of `simnet.training.job.job.Compute`.

    A sum of inner steps that are each for itself log-normal is taken to be log-normal, too, of their mean and variance.
    """
    steps, spread = 1 if job.strategy is None else job.strategy.steps, job.compute.spread
    return spread if steps == 1 else math.sqrt(math.log1p(math.expm1(spread**2) / steps))


def _iteration_parts(run: Run, policy: str, share: int) -> tuple[pd.DataFrame, PolicyResult]:
    """Return the parts of each iteration of a policy, means over workers, what intervals go by, and what is steady."""
    job, beside = run.job, run.job.overlap is not None or run.job.strategy is not None
    result = run_policy(job, policy, run.policies[policy], timeline=job.iterations if beside else 0)
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
    counts = messages_of(run, run.policies[policy].candidates)
    messages = rows["choice"].map(counts)
    links = {name: rows[name] for name in ("latency_s", "bandwidth_Bps")}
    least = _least_on_links(job, result.workers[result.workers["purpose"] == TRAIN])
    found = found.assign(messages=messages, least_s=least, **links, **kernels).reset_index()
    return found, result


def _least_on_links(job: Job, workers: pd.DataFrame) -> pd.Series[float] | float:
    """Return what the bytes of a worker take at least, by iteration, in the mean [s]; 0 where links change."""
    links = job.network(0).links
    if len(job.stages) > 1 or not links.constant:
        return 0.0
    sources = [source for source, _ in links.routes.links]
    leaving = pd.Series(links.routes.bandwidth).groupby(sources).sum()
    hosts = range(job.source.workers) if job.placement is None else job.placement
    rates = workers["worker"].map(dict(enumerate(leaving[host] for host in hosts)))
    return (workers["bytes_sent_B"] / rates).groupby(workers["iteration"]).mean()


def _computes_within(scenario: Scenario, spread: float) -> dict[str, float]:
    """Return by which factors computing may differ: as it spreads, and as far as an estimate of it is known."""
    known = scenario.compute_time
    low, high = (1.0, 1.0) if known is None else (known.low / known.seconds, known.high / known.seconds)
    return {"low": low * math.exp(-_SIGMAS * spread), "high": high * math.exp(_SIGMAS * spread)}


def _with_intervals(
    parts: pd.DataFrame, varies: Mapping[str, float], stack: str, share: int, wider: float = 1.0
) -> pd.DataFrame:
    """Return parts with an interval for each, those of the whole from those of all, what messages are off by wider."""
    device = {name: parts[list(get_args(IntervalEnd))] for name in ("select", "merge")}
    found = parts.drop(columns=["messages", "least_s", "latency_s", "bandwidth_Bps", "low", "high"])
    turns = (share - 1) * sum(parts[f"{name}_s"] for name in _OWN)
    on_links = (parts["messages_s"] - turns).clip(lower=0.0).to_numpy()
    for sign, end in zip((-1, 1), get_args(IntervalEnd), strict=True):
        off: dict[str, Any] = {}
        for name in _OWN:
            known = device[name][end] if name in device else varies[end] if name == "compute" else 1.0
            off[name] = parts[f"{name}_s"] * np.maximum(sign * (known - 1), sign * (factor_in_job(end, name) - 1))
        own = sum(off.values())
        calls = wider * np.maximum(
            off_of_calls(end, stack, share, parts["messages"].to_numpy(), on_links),
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
    """Return iterations with intervals that hold what is predicted of all times at which each may begin.

    Those before it take as long as the ends of their intervals say, all of them; so it may meet links as they are
    before or after.
    """
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
