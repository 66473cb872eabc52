"""Total times of jobs with intervals, probabilities of being fastest, and ranges for uneven starts of workers.

A job is its computing and, for each of its exchanges, messages and kernels. The error of each of these is the same in
all iterations, as it has one cause, and the same in all jobs that include it: two policies that use an exchange share
its error, so only the errors that they do not share decide between them. All jobs share the error of computing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simnet import sparsifier_models
from simnet.base.arrays import Columns, Floats, significant
from simnet.base.units import determined, finite
from simnet.cost_models.evidence.chances import Chances, ErrorPart, chances, in_job
from simnet.cost_models.evidence.conditions import NEVER_COMPARED, Evidence, evidence_of
from simnet.cost_models.evidence.intervals import GIVEN, factor_in_job, interval, kind_of_stack
from simnet.network.stack import name_of
from simnet.network.start_spread import MOST_MESSAGES, StartSpread, offsets_of_sum, start_spread
from simnet.policies import Candidate
from simnet.report.columns import Fields
from simnet.report.paired import NEAR, NO_RANGES, StartRanges
from simnet.report.run_setup import CallErrors, relative_interval, software_of
from simnet.report.run_summary import RunFacts
from simnet.report.wording import TIED
from simnet.scenario import Run, Scenario
from simnet.strategies import options as strategy_options
from simnet.strategies import strategy
from simnet.training.job.job import Job, job_buckets
from simnet.training.job.local_steps import start_strategy
from simnet.training.job.loop import first_exchange
from simnet.training.job.record import PolicyResult
from simnet.training.job.steady import steady_part

if TYPE_CHECKING:
    import pandas as pd

_ENTRIES = 64


class Spent(NamedTuple):
    """Seconds that a job spends in an exchange, as a mean over workers, and the number of messages per worker."""

    communicate: float
    select: float
    select_low: float
    select_high: float
    messages: float


_NOTHING = Spent(0.0, 0.0, 0.0, 0.0, 0.0)


def call_errors(job: Job, among: Iterable[Candidate]) -> dict[str, CallErrors]:
    """Return, by label, the relative error interval of each exchange's time on a calibrated cluster.

    Exchanges with calls that the cluster's cost model does not know are left out, and so are training strategies.
    """
    software = software_of(job.network(0))
    if software is None or job.strategy is not None:
        return {}
    found = {}
    for one in among:
        asked = first_exchange(job, one)
        hosts = np.asarray(asked.options["placement"])
        known = [call for schedule, _ in asked.parts for call in software.known(schedule, hosts)]
        if (errors := relative_interval(known)) is not None:
            found[one.label] = errors
    return found


class JobTotal(NamedTuple):
    """Time of a job [s]: compute time, and time spent in exchanges, by scheme and options.

    `name` seeds the random stream of sampling errors; `left_open` is their relative standard error. `calls` has the
    errors of collective calls by exchange, on a calibrated cluster.
    """

    name: str
    compute: float
    exchanges: Mapping[str, Spent]
    stack: str
    left_open: float = 0.0
    calls: Mapping[str, CallErrors] = {}

    def messages_within(self, exchange: str) -> tuple[str, float, float]:
        """Return the prediction-error model's name, and the 90 % interval of communication time in an exchange [s]."""
        one = self.exchanges.get(exchange, _NOTHING)
        if exchange in self.calls:
            kind, low, high = self.calls[exchange]
            return kind, low * one.communicate, high * one.communicate
        low, high = map(float, interval(self.stack, np.array(one.messages), np.array(one.communicate)))
        return kind_of_stack(self.stack), low, high

    @property
    def seconds(self) -> float:
        """Sum of compute and exchange times [s]."""
        return self.compute + math.fsum(one.communicate + one.select for one in self.exchanges.values())


def judged(totals: Sequence[JobTotal], computes: tuple[float, float] = (1.0, 1.0)) -> Chances:
    """Return each job's time interval [s] and chance of being fastest; factors `computes` bound compute times."""
    parts = []
    for name in sorted({one for total in totals for one in total.exchanges}):
        each = [total.exchanges.get(name, _NOTHING) for total in totals]
        sending = np.array([one.communicate for one in each])
        kinds, *ends = zip(*(total.messages_within(name) for total in totals), strict=True)
        low, high = np.array(ends)
        # Exchanges of jobs differ from calls that follow each other.
        low = np.minimum(low, sending * factor_in_job("low", "messages"))
        high = np.maximum(high, sending * factor_in_job("high", "messages"))
        parts.append(ErrorPart(sending, low, high, kinds, name=name, source=0))
        select, low, high = np.array([one[1:4] for one in each]).T
        parts.append(in_job(ErrorPart(select, low, high, ["select"] * len(each), name=name, source=1)))
    computing = np.array([total.compute for total in totals])
    low, high = (computing * factor for factor in computes)
    parts.append(ErrorPart(computing, low, high, [GIVEN] * len(totals), name="computing", source=2))
    found = chances([one.name for one in totals], parts, left_open=np.array([one.left_open for one in totals]))
    seconds = [one.seconds for one in totals]
    # Nobody loses more than the slowest that there is.
    worst = max(seconds) / min(seconds) - 1 if min(seconds, default=0.0) > 0 else 0.0
    return found._replace(regret=np.minimum(found.regret, worst))


def interval_ends(likely: Chances, place: int, parts: float = 1.0) -> tuple[float | None, float | None]:
    """Return both ends of the prediction interval of job `place`'s time, each over `parts` [s]; None if not known."""
    low, high = float(likely.low[place]) / parts, float(likely.high[place]) / parts
    return (low, high) if determined(low, high) else (None, None)


def tied_jobs(
    totals: Sequence[JobTotal], likely: Chances, computes: tuple[float, float] = (1.0, 1.0), equal: Collection[str] = ()
) -> list[str]:
    """Return the names of the jobs that are tied with the fastest job, in the order of `totals`.

    These are `equal` in time, or faster than it with a probability >= `TIED`; errors common to both do not count.
    """
    best = min(totals, key=lambda one: one.seconds)
    return [
        one.name
        for one, chance in zip(totals, likely.fastest.tolist(), strict=True)
        # One that is slower than another with the same errors can never win.
        if one is not best
        and (one.name in equal or (chance > 0 and float(judged([best, one], computes).fastest[1]) >= TIED))
    ]


def computing_factors(scenario: Scenario) -> tuple[float, float]:
    """Return bounds of actual / predicted compute time, from the estimate's interval and errors in measured jobs."""
    known = scenario.compute_time
    low, high = (1.0, 1.0) if known is None else (known.low / known.seconds, known.high / known.seconds)
    return min(low, factor_in_job("low", "compute")), max(high, factor_in_job("high", "compute"))


def total_of(
    name: str,
    iterations: Columns,
    job: Job,
    counts: Mapping[str, float],
    among: Collection[Candidate],
    left_open: float = 0.0,
    calls: Mapping[str, CallErrors] | None = None,
) -> JobTotal:
    """Return a job's total time under a policy, including its trial exchanges, scaled up from sampled iterations.

    `calls` are the `call_errors` of the exchanges `among` which it chooses, by default looked up.
    """
    low, high = ("select_low_s", "select_high_s") if "select_low_s" in iterations else ("select_s", "select_s")
    names = ("iteration_s", "compute_s", "select_s", low, high)
    seconds, compute, *select = (np.asarray(iterations[one], dtype=np.float64) for one in names)
    choices, times = np.asarray(iterations["choice"]), _stands_for(iterations)
    messages = np.array([counts[one] for one in choices])
    parts = np.array([np.maximum(seconds - compute - select[0], 0.0), *select, messages]) * times
    alike = {one.label: off_alike(one) for one in among}
    exchanges = np.array([alike[one] for one in choices], dtype=object)
    spent = {one: Spent(*map(math.fsum, parts[:, exchanges == one])) for one in sorted({*exchanges})}
    known = call_errors(job, among) if calls is None else calls
    errors = {alike[label]: one for label, one in known.items() if label in alike}
    return JobTotal(name, math.fsum(compute * times), spent, name_of(job.network(0).stack), left_open, errors)


def rivals(run: Run, results: Mapping[str, PolicyResult]) -> dict[str, pd.DataFrame]:
    """Return the iterations of each policy that reaches a steady state, except an oracle that knows exchange times."""
    settled = {name: one.iterations for name, one in results.items() if name != run.bound}
    return {name: frame for name, frame in settled.items() if not steady_part(frame).unsettled}


def judgement(loaded: Scenario, run: Run, iterations: Mapping[str, pd.DataFrame]) -> tuple[dict[str, Fields], Evidence]:
    """Return the job-time interval of each policy, its chance of being fastest, whether it ties, and the evidence."""
    job = run.job
    if not iterations or job.steps is not None or run.colocated or job.failures:
        return {}, NEVER_COMPARED
    totals = []
    for name, frame in iterations.items():
        among = run.policies[name].candidates
        totals.append(total_of(name, frame, job, messages_of(run, among), among))
    computes, rows = computing_factors(loaded), dict[str, Fields]()
    found = judged(totals, computes)
    tied = tied_jobs(totals, found, computes)
    tied += [min(totals, key=lambda one: one.seconds).name] if tied else []
    for place, name in enumerate(iterations):
        low, high, regret, chance = (
            float(significant(one[place])) for one in (found.low, found.high, found.regret, found.fastest)
        )
        rows[name] = {
            "low_s": finite(low),
            "high_s": finite(high),
            "chance_to_be_fastest": chance,
            "regret_of_job": finite(regret),
            "tied": name in tied,
        }
    return rows, evidence_of_job(job, iterations.values())


def run_facts(
    loaded: Scenario,
    run: Run,
    results: Mapping[str, PolicyResult],
    setup: Fields,
    judgements: Mapping[str, Fields],
    **more: Any,
) -> RunFacts:
    """Return the facts that the summary of a run adds to its iterations; `more` are further fields of `RunFacts`."""
    trained = loaded.config.job.gradients.train
    return RunFacts(
        setup=setup,
        workers=run.job.source.workers,
        judgements=judgements,
        bound=run.bound,
        stops={name: one.interruptions for name, one in results.items()},
        shares={name: one.job_shares for name, one in results.items()},
        target=None if trained is None else trained.target,
        # The same one in each cell of a grid, be it that it failed.
        reference=next(iter(run.policies)),
        starts=partial(start_ranges_of, run, results),
        **more,
    )


def evidence_of_job(job: Job, iterations: Iterable[Columns]) -> Evidence:
    """Return whether a job's time is measured, extrapolated or assumed, given its stack, workers and links."""
    met = [np.array([one["latency_s"], one["bandwidth_Bps"]]) for one in iterations]
    links = np.concatenate(met, axis=1)
    latency, bandwidth = zip(links.min(axis=1).tolist(), links.max(axis=1).tolist(), strict=True)
    per_node = 1 if job.placement is None else int(np.bincount(list(job.placement)).max())
    rounds = "" if job.strategy is None or job.strategy.steps == 1 else job.strategy.name
    network = job.network(0)
    if (software := software_of(network)) is not None and not rounds:
        return Evidence("extrapolated", f"errors are those of calls on {software.file}; no job there was measured")
    return evidence_of(name_of(network.stack), latency, bandwidth, job.source.workers, per_node, rounds)


def off_alike(one: Candidate) -> str:
    """Return a text of an exchange's scheme and options. Exchanges with equal texts have the same prediction error."""
    scheme = sparsifier_models.scheme(one.scheme)
    usual = {option.name: option.default for option in fields(scheme.option_type)}
    given = ((name, value) for name, value in one.options.items() if name != "selection")
    return f"{scheme.name} {sorted((name, value) for name, value in given if value != usual.get(name))!r}"


def messages_of(run: Run, among: Sequence[Candidate]) -> dict[str, float]:
    """Return, by exchange label, the number of messages that a worker sends in an iteration."""
    if run.job.strategy is not None:
        return {one.label: messages(one, run.job) for one in among}
    each = len(job_buckets(run.job, among)) / run.job.source.workers
    return {one.label: each * run.messages[one.label] for one in among}


def messages(one: Candidate, job: Job) -> float:
    """Return how many messages a worker sends in an iteration, counted in an exchange of gradients that are zero."""
    workers = job.source.workers
    if job.strategy is not None:
        own = job.strategy
        strategy = start_strategy(job.source, own, one, job.seed)
        zeros = np.zeros((workers, job.source.parameters), dtype=np.float32)
        sent = 0
        for strategy.iteration in range(own.steps):
            if strategy.begins_exchange() is not False:
                sent += sum(sync.schedule.n_messages for sync in strategy.step(zeros).syncs)
        return sent / workers
    model = sparsifier_models.create(one.scheme, workers, _ENTRIES, layers=(_ENTRIES,), **one.options)
    found = model.exchange(np.zeros((workers, _ENTRIES), dtype=np.float32))
    return found.schedule.n_messages / workers * len(job_buckets(job, [one]))


def start_ranges_of(built: Run, results: Mapping[str, PolicyResult], names: Iterable[str]) -> StartRanges:
    """Return ranges of the named policies' times if workers start slightly apart."""
    frames = {name: results[name].iterations for name in names}
    exchanges = {one.label: one for name in frames for one in built.policies[name].candidates}
    return job_start_ranges(built, frames, exchanges.values())


def job_start_ranges(built: Run, frames: Mapping[str, Columns], exchanges: Iterable[Candidate]) -> StartRanges:
    """Return time ranges of the fastest policies if workers start slightly apart; empty if start times do not matter.

    Rows of `frames` may represent several iterations, as in `simnet.studies.choosing.forecast.JobForecast`.
    """
    job = built.job
    varies = job.compute.spread > 0 or job.compute.straggle > 0
    if varies or not job.network(0).stack.has_software:
        return NO_RANGES
    courses = {
        name: (np.asarray(one["iteration_s"], dtype=np.float64), one["choice"].tolist(), _stands_for(one))
        for name, one in frames.items()
    }
    constant = _constant_compute(job)
    exchanging = {name: float(((seconds - constant) * times).sum()) for name, (seconds, _, times) in courses.items()}
    leaders = [name for name, total in exchanging.items() if total <= (1 + NEAR) * min(exchanging.values())]
    if len(leaders) < 2:
        return NO_RANGES
    if built.colocated or job.steps is not None:
        why = "jobs share its network" if built.colocated else "its steps are sharded"
        return StartRanges({}, dict.fromkeys(leaders, why))
    labels = {label for name in leaders for label in courses[name][1]}
    spreads, large = dict[str, StartSpread](), set[str]()
    for one in exchanges:
        if one.label in labels:
            found = _exchange_spread(job, one)
            if isinstance(found, StartSpread):
                spreads[one.label] = found
            elif found > MOST_MESSAGES:
                large.add(one.label)
    why = f"an exchange has more than {MOST_MESSAGES:,} messages"
    not_sampled = {name: why for name in leaders if large.intersection(courses[name][1])}
    offsets = {name: offsets_of_sum(*courses[name], spreads) for name in leaders if name not in not_sampled}
    return StartRanges(offsets, not_sampled)


def _stands_for(columns: Columns) -> Floats:
    """Return the number of iterations that each row represents, 1 if iterations were not sampled."""
    if "stands_for" in columns:
        return np.asarray(columns["stands_for"], dtype=np.float64)
    return np.ones(len(columns["iteration_s"]))


def _constant_compute(job: Job) -> float:
    """Return the compute seconds of an iteration; 0 if messages may overlap compute, or the model is sharded."""
    own = None if job.strategy is None else strategy(job.strategy.name)
    delayed = own is not None and (own.delays or "delay" in strategy_options(own))
    if job.overlap is not None or job.steps is not None or delayed:
        return 0.0
    return float(job.computes(0, np.arange(job.source.workers)).max()) + job.update


def _exchange_spread(job: Job, candidate: Candidate) -> StartSpread | int:
    """Return how an exchange's time varies with small start offsets of workers or, if unknown, its message count."""
    one = first_exchange(job, candidate)
    found = start_spread(
        one.network,
        one.parts,
        np.asarray(one.options["placement"]),
        one.options["origin"],
        ready=one.start,
        computing=one.options["computing"],
        seed=job.seed,
        name=one.options["stream"],
    )
    return sum(schedule.n_messages for schedule, _ in one.parts) if found is None else found
