"""Closed forms for the compute utilisation of training, and for the bandwidth that a target utilisation needs.

The model is that of a page by an author of streaming DiLoCo (A. Douillard, ``diloco/index.html``), which explains the
tables of compute utilisation in arXiv 2501.18512. A step computes for a time T, a part of it the backward pass. What is
exchanged, every H / F steps a fragment of n / F values, leaves in buckets, one after the other through one link, each
when the backward pass has made its entries. A bucket is an all-reduce round a ring. Workers wait for the last one
`delay` steps after that step. The utilisation is the share of computing in the time of H steps, once every round takes
as long as the one before. `read_training` takes these numbers from a scenario.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.units import finite, format_bytes, format_seconds
from simnet.cost_models.costs.collectives import ring_allreduce
from simnet.cost_models.evidence.conditions import NEVER_COMPARED
from simnet.policies import Candidate, probe_pairs
from simnet.report.summary import Summary, interval_text, percent, table_columns
from simnet.report.wording import lead_text
from simnet.scenario import Scenario
from simnet.schedule import Schedule
from simnet.studies.assumptions import assumed_text
from simnet.training.job.job import Job, create_sparsifier, gradient_buckets, job_overlap
from simnet.training.job.local_steps import start_strategy

STRATEGIES = ("localsgd", "diloco", "streaming", "delayed", "eager")
"""Strategies with closed forms: those that exchange all n values, or fragments of them."""

SCHEMES = ("dense", "fp16")
"""Schemes with closed forms: those that exchange all values by one all-reduce."""

OFF = 1.1
"""Factor by which compute time and links may be off, either way, unless another is given."""

TARGETS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Utilisations of the published tables."""

# Bandwidths below and above those of all links [byte/s].
_RATES = 1e-99, 1e99

Buckets: TypeAlias = tuple[tuple[float, float], ...]
"""Buckets of an exchange in send order: the size as a share, and the share of the backward pass before readiness."""


class Within(NamedTuple):
    """Value, such as a required bandwidth, and the ends of its interval; infinite if no value reaches the target."""

    value: float
    low: float
    high: float


def equal_buckets(count: int) -> Buckets:
    """Return equal buckets as pairs: share of the gradient, and share of the backward pass when the bucket is ready."""
    return tuple((1 / count, (number + 1) / count) for number in range(count))


@dataclass(frozen=True)
class TrainingPlan:
    """Training with periodic exchanges of n parameters between P workers, as the input of closed forms.

    A step computes for `compute` [s], of which the backward pass is the share `backward`. Every `period` steps H there
    are `fragments` exchanges F, each of n / F values of `bits` bits, which must arrive within `delay` steps (None: H).
    """

    workers: int
    parameters: float
    compute: float
    period: int = 1
    fragments: int = 1
    delay: int | None = 0
    bits: float = 32.0
    latency: float = 0.0
    backward: float = 2 / 3
    buckets: Buckets = ((1.0, 1.0),)


def bucket_times(training: TrainingPlan, bandwidth: float) -> Floats:
    """Return the time [s] for transferring each gradient bucket."""
    shares = np.array([share for share, _ in training.buckets])
    nbytes = training.bits / 8 * training.parameters / training.fragments * shares
    return np.asarray(ring_allreduce(training.latency, 1 / bandwidth, nbytes, training.workers))


def stall(training: TrainingPlan, bandwidth: float) -> float:
    """Return the time [s] for which workers wait for an exchange."""
    takes, compute = bucket_times(training, bandwidth), training.compute
    # From when a bucket is released on, it and those after it keep the link busy.
    to_come = training.backward * compute * (1 - np.array([ready for _, ready in training.buckets]))
    late = float((np.cumsum(takes[::-1])[::-1] - to_come).max())
    # The link sends one exchange after the other, so that none can take longer than it is to the next.
    behind = float(takes.sum()) - compute * training.period / training.fragments
    return max(0.0, late - (training.period if training.delay is None else training.delay) * compute, behind)


def utilisation(training: TrainingPlan, bandwidth: float) -> float:
    """Return the share of the training time in which workers compute.

    Examples
    --------
    >>> round(utilisation(TrainingPlan(2, 10**9, 0.1, period=100, bits=16), 10e9 / 8), 3)
    0.862
    """
    computing = training.compute * training.period
    return computing / (computing + training.fragments * stall(training, bandwidth))


def bandwidth_for(training: TrainingPlan, target: float) -> float:
    """Return the lowest bandwidth [byte/s] that reaches the utilisation `target`; infinite if latency prevents it."""
    if utilisation(training, math.inf) < target:
        return math.inf
    low, high = _RATES
    while high > low * (1 + 1e-13):
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = (low, middle) if utilisation(training, middle) >= target else (middle, high)
    return high


def period_for(training: TrainingPlan, target: float, bandwidth: float) -> int:
    """Return the smallest number of steps between exchanges that reaches a utilisation at a bandwidth."""
    periods = range(training.fragments, sys.maxsize)
    # Longer periods reach more, so that those which reach the target come last.
    reached = lambda period: utilisation(replace(training, period=period), bandwidth) >= target  # noqa: E731
    return periods[bisect_left(periods, True, key=reached)]


def interval_by_error(
    found: Callable[[TrainingPlan, float], float], training: TrainingPlan, bandwidth: float = math.inf, off: float = 1.0
) -> Within:
    """Return `found(training, bandwidth)`, and its interval if step time and bandwidth err by the factor `off`."""
    value, *ends = (found(replace(training, compute=by * training.compute), by * bandwidth) for by in (1, 1 / off, off))
    return Within(value, min(ends), max(ends))


class LinkedTraining(NamedTuple):
    """Training plan, with the effective bandwidth of a ring exchange and the bandwidth of a worker's link [byte/s]."""

    training: TrainingPlan
    bandwidth: float
    link: float


def read_training(job: Job, candidates: Sequence[Candidate]) -> LinkedTraining | str:
    """Return a job's training plan for a dense exchange, or the reason why closed forms do not apply.

    Latency and bandwidth are fitted to the exchange's time on the job's network, at full and half size.
    """
    own, (candidate, *others) = job.strategy, candidates
    compute, network, slowest = job.compute, job.network(0), float(link_rates(job).min())
    for holds, why in (
        (job.source.workers > 1, "one worker"),
        (not others and candidate.scheme in SCHEMES, "exchanges that are not dense"),
        (own is None or own.name in STRATEGIES, "" if own is None else f"the strategy {own.name}"),
        (len(job.stages) == 1 and network.links.constant and network.jitter is None, "links that change"),
        (not (compute.spread or compute.slow or compute.straggle), "workers that compute unlike"),
        (not (job.elastic or job.failures or job.deadline), "workers that come and go"),
        (probe_pairs(network, job.hosts.tolist(), 0.0)[1].min() > 0.999 * slowest, "links slower than a worker's own"),
    ):
        if not holds:
            return why
    whole = replace(job, overlap=None)
    (piece,) = gradient_buckets(job.source, None)
    model = create_sparsifier(candidate, piece, whole)
    zeros = np.zeros((job.source.workers, job.source.parameters), dtype=np.float32)
    schedule = model.exchange(zeros).schedule
    hops, bits = 2 * (job.source.workers - 1), 8 * model.wire.value_bytes / job.source.scale
    nbytes = job.source.true_parameters
    training = TrainingPlan(job.source.workers, nbytes, compute.mean + job.update, bits=bits, latency=0.0)
    training = _with_rounds(training, job, candidate)
    # What goes on beside computing leaves no connection silent.
    silence = 0.0 if training.delay != 0 else compute.mean * training.period / training.fragments

    def seconds(sent: Schedule) -> float:
        return network.time(sent, placement=job.placement, silence=silence).duration

    takes = seconds(schedule)
    starts = max(2 * seconds(schedule.scaled(0.5)) - takes, 0.0)
    bandwidth = hops / job.source.workers * bits / 8 * nbytes / (takes - starts)
    return LinkedTraining(replace(training, latency=starts / hops), bandwidth, slowest)


def link_rates(job: Job) -> Floats:
    """Return the total bandwidth [byte/s] of each worker's links at the start, infinite without links; shape (P,)."""
    routes = job.network(0).links.routes
    leaving: dict[Any, float] = {}
    for (source, _), bandwidth in zip(routes.links, routes.bandwidth, strict=True):
        leaving[source] = leaving.get(source, 0.0) + bandwidth
    return np.array([leaving.get(host, math.inf) for host in job.hosts.tolist()])


def _with_rounds(training: TrainingPlan, job: Job, candidate: Candidate) -> TrainingPlan:
    """Return the training plan with the period and the gradient buckets of the job's exchanges."""
    own = job.strategy
    if own is None:
        overlap, entries = job_overlap(job, [candidate]), job.source.parameters
        if overlap is None:
            return training
        pieces = gradient_buckets(job.source, overlap)
        buckets = tuple(((one.entries.stop - one.entries.start) / entries, one.ready) for one in pieces)
        return replace(training, backward=overlap.backward, buckets=buckets)
    made = start_strategy(job.source, own, candidate, job.seed)
    fragments = len(getattr(made, "fragments", (1,)))
    return replace(
        training,
        period=made.period,  # type: ignore[attr-defined]
        fragments=fragments,
        delay=None if made.delays else getattr(made, "delay", 0),
        # What leaves after an inner step leaves at once.
        buckets=tuple((fragments / len(made.schemes), 1.0) for _ in range(len(made.schemes) // fragments)),
    )


_ENDS_OF_RATE = ("bandwidth_Bps", "bandwidth_low_Bps", "bandwidth_high_Bps")
_ENDS_OF_PERIOD = ("steps_between_exchanges", "steps_between_exchanges_low", "steps_between_exchanges_high")
COLUMNS = table_columns("step goals")
"""Columns of utilisation goals: the required link bandwidth, or the inner steps per exchange at the present one."""


def utilisation_summary(
    scenario: Scenario, job: Job, linked: LinkedTraining, goals: Sequence[float], off: float
) -> Summary:
    """Return a summary of the share of time in which workers compute, and of what utilisation `goals` require.

    `off` is the factor by which compute time and bandwidth may be off, either way.
    """
    training, own = linked.training, job.strategy
    reached = interval_by_error(utilisation, training, linked.bandwidth, off)
    took = interval_by_error(lambda one, rate: one.compute / utilisation(one, rate), training, linked.bandwidth, off)
    rows = [goal_row(linked, goal, off, periodic=own is not None) for goal in goals or TARGETS]
    by = f" if computing and links are {lead_text(off)} off"
    said = interval_text(*reached, unit="percent", each=" utilisation", by=by)
    said = f"{said}; {interval_text(*took, each=' a step')}."
    asked = {} if own is None else own.options
    details = {
        "workers": training.workers,
        "parameters": training.parameters,
        "passes_s": training.compute,
        "strategy": None if own is None else own.name,
        "steps_between_exchanges": asked.get("period"),
        "fragments": asked.get("fragments"),
        "delay": asked.get("delay"),
        "bits": training.bits,
        "latency_s": training.latency,
        "backward": training.backward,
        "buckets": len(training.buckets),
        "bandwidth_Bps": linked.link,
        **dict(zip(("utilisation", "utilisation_low", "utilisation_high"), reached, strict=True)),
        **dict(zip(("step_s", "low_s", "high_s"), took, strict=True)),
        "off": off - 1,
        **({} if scenario.compute_time is None else {"compute_time": scenario.compute_time.figures()}),
        **NEVER_COMPARED.figures(),
    }  # fmt: skip
    return Summary(
        answer="\n".join([said, *map(goal_sentence, rows[: len(goals)])]),
        columns=COLUMNS if own is not None else COLUMNS[:2],
        rows=rows,
        evidence=NEVER_COMPARED.line(),
        assumed=assumed_text(scenario, varied=["density"]),
        details=details,
        notes=[*([f"Computing: {scenario.computing}."] if scenario.computing else []), *_exchange_notes(linked)],
    )


def goal_sentence(row: Mapping[str, Any]) -> str:
    """Return a sentence on the bandwidth and period that a utilisation goal requires."""
    rate, goal = [row[name] for name in _ENDS_OF_RATE], percent(row["utilisation"])
    needs, joined = f"{goal} needs {interval_text(*rate, unit='rate')}", "or"
    if rate[0] is None:
        needs, joined = f"{goal} is beyond all bandwidths, as latency forbids it", "but needs"
    period = [row[name] for name in _ENDS_OF_PERIOD if name in row]
    if not period:
        return f"{needs}."
    return f"{needs}, {joined} a period of {interval_text(*period, unit='number', each=' steps')}."


def goal_row(linked: LinkedTraining, goal: float, off: float, *, periodic: bool) -> dict[str, Any]:
    """Return the row of a utilisation goal with the columns `COLUMNS`; `periodic` adds the exchange period."""
    training, scale = linked.training, linked.link / linked.bandwidth
    rate = interval_by_error(lambda one, _: scale * bandwidth_for(one, goal), training, off=off)
    row = {"utilisation": goal, **dict(zip(_ENDS_OF_RATE, map(finite, rate), strict=True))}
    if periodic:
        period = interval_by_error(lambda one, rate: period_for(one, goal, rate), training, linked.bandwidth, off)
        row |= dict(zip(_ENDS_OF_PERIOD, period, strict=True))
    return row


def _exchange_notes(linked: LinkedTraining) -> list[str]:
    training = linked.training
    nbytes = format_bytes(training.bits / 8 * training.parameters / training.fragments)
    takes = format_seconds(float(bucket_times(training, linked.bandwidth).sum()))
    pieces = f" in {len(training.buckets)} pieces" if len(training.buckets) > 1 else ""
    return [f"An exchange of {nbytes}{pieces} takes {takes}, after its last step or beside the backward pass."]
