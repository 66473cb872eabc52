"""Ranking of exchanges and policies by the duration of a job, with probabilities and sensitivity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from simnet.base.errors import InputError
from simnet.cost_models.evidence.chances import Chances
from simnet.cost_models.evidence.conditions import NEVER_COMPARED, Evidence
from simnet.policies import Candidate, Fixed
from simnet.report import cost_summary
from simnet.report.columns import Fields
from simnet.scenario import Run, Scenario, load
from simnet.studies import assumptions, job_totals
from simnet.studies.choosing import whole_job
from simnet.studies.choosing.closed_forms import Flip, Misjudged, first_place_flips
from simnet.studies.choosing.forecast import JobForecast, WholeJob, error_between, follows_gradients
from simnet.training.job.job import Job, Overlap, job_node_sizes
from simnet.training.job.memory import WorkerMemory, exchange_memory, with_shared_gradients


class Held(NamedTuple):
    """Memory that each candidate exchange needs per worker, and the worker device's memory [byte], None if unknown."""

    each: Mapping[str, WorkerMemory]
    limit: float | None
    assumed: str

    @property
    def ruled_out(self) -> dict[str, str]:
        """Texts on the memory needed by candidate exchanges that exceed the memory limit, by label."""
        if self.limit is None:
            return {}
        limit = self.limit
        return {label: cost_summary.memory_refusal(one, limit) for label, one in self.each.items() if one.peak > limit}

    def left(self, among: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates within the memory limit. InputError: all candidates exceed the limit."""
        refused = self.ruled_out
        found = [one for one in among if one.label not in refused]
        if among and not found:
            raise InputError(f"no exchange is left; {'; '.join(f'{one} {why}' for one, why in refused.items())}")
        return found

    def sentences(self) -> list[str]:
        """Return text lines on candidates that exceed the memory limit, and on assumptions about memory."""
        told = [f"{label} is ruled out: it {why}." for label, why in self.ruled_out.items()]
        return [*told, self.assumed] if self.each else []

    def figures(self) -> dict[str, Any]:
        """Return the memory of candidates as JSON fields. Names end in units."""
        limit = None if self.limit is None else round(self.limit)
        return {"limit_B": limit, "assumed": self.assumed, "ruled_out": self.ruled_out}

    def of(self, label: str) -> dict[str, Any]:
        """Return the JSON fields on a candidate's memory; empty if its memory is unknown."""
        return {"memory": cost_summary.memory_summary(self.each[label])} if label in self.each else {}


def held_on_job(job: Job, among: Sequence[Candidate]) -> Held:
    """Return a worker's memory under each candidate exchange of a job, without exchanges that the job cannot use."""
    each, kept = {}, with_shared_gradients(job)
    for one in among:
        try:
            each[one.label] = exchange_memory(kept, one)
        except ValueError:
            # Whoever tries the job with it says why.
            continue
    return Held(each, job.device_memory, cost_summary.memory_assumed(job))


SETTLES = 300
"""Iterations in which gradient-dependent schemes reach a steady state."""

OFF = 2.0
"""Factor by which latency and bandwidth may be off, either way, unless another is given."""

# Names of graphs whose hosts are devices of nodes; platforms and calibrated clusters have them, too.
_OF_NODES = ("multi_gpu_nodes", "wan_of_clusters", "nccl", "platform")
# Exchanges that are at most weighed with the effort of the usual ones.
_USUAL = 24
# Entries of a gradient that are drawn, and those that a bucket selects at least.
_ENTRIES, _SELECTED, _MOST_ENTRIES = 25_557, 10, 2**18
# From so many parameters on, whose buckets are hundreds, one iteration is simulated where links do not change.
_LARGE = 10**9


@dataclass(frozen=True)
class ChooseRequest:
    """Request of `simnet choose`: a scenario with overrides and policies, and how to rank its exchanges.

    With `exact` all iterations are simulated and alternative defaults tried; else a sample is. Link estimates may be
    off by the factor `link_uncertainty`, `OFF` if None.
    """

    source: str | Path
    overrides: Sequence[str]
    exact: bool = False
    policies: Sequence[str] = ()
    link_uncertainty: float | None = None

    def load(self, more: Sequence[str] = ()) -> Scenario:
        """Load the scenario of the request, with the overrides of the request and with `more`.

        It does without computing and overlap if nothing but the size of its model is known. With a batch, samples per
        second are wanted, which require a compute time.
        """
        overrides = [*self.overrides, *more]
        loaded = load(self.source, overrides)
        job = loaded.config.job
        if job.compute.mean is None and job.batch is None and job.parameters is not None and not job.shardings:
            return load(self.source, [*overrides, "job.compute.mean=0 s", "job.overlap=none"])
        return loaded


@dataclass(frozen=True)
class Ranking:
    """Exchanges and policies of a job, ranked by the job's duration, without those that never reach a steady state.

    `tied` are the labels tied with the fastest. `flips` are the values at which the fastest exchange changes,
    `misjudged` the cost of wrong link estimates; both are None without closed forms. `defaults` is what
    `simnet.studies.assumptions.default_effects` says where all iterations were simulated, else None; `asked_off`: a
    `link_uncertainty` was given.
    """

    loaded: Scenario
    run: Run
    found: WholeJob
    rows: tuple[JobForecast, ...]
    likely: Chances
    tied: frozenset[str]
    held: Held
    evidence: Evidence
    flips: tuple[Flip, ...] | None
    misjudged: Misjudged | None
    overlap: Fields | None
    defaults: Sequence[Fields] | None
    asked_off: bool = False

    @property
    def best(self) -> JobForecast:
        """Forecast of the job under its fastest exchange."""
        return self.rows[0]

    def over(self, row: JobForecast) -> float:
        """Return by what fraction the forecast time of an exchange exceeds the time of the fastest exchange."""
        return row.seconds / self.best.seconds - 1 if self.best.seconds > 0 else 0.0

    @property
    def tied_with(self) -> list[str]:
        """Labels of exchanges as fast as the fastest one, exactly or within the uncertainty of predictions."""
        tied = [row.label for row in self.rows if row.label in self.tied]
        return [*tied, *self.found.alike.get(self.best.label, ())]

    @property
    def dense(self) -> JobForecast | None:
        """Forecast of the job under its fastest dense exchange; None if it has no dense exchange."""
        return next((row for row in self.rows if row.kind != "sparse"), None)


def sampled_fields(loaded: Scenario) -> list[str]:
    """Return overrides that shrink a job so that it is ranked within a second or two.

    Synthetic gradients are scaled down until making them is cheap, but each bucket still selects some entries. On
    constant links the iterations are cut to what schemes need to reach a steady state, or to one for very large models.
    """
    config, fields = loaded.config, []
    job, drawn = config.job, config.job.gradients.synthetic is not None
    run = loaded.build()
    whole = run.job.source.true_parameters
    if drawn:
        buckets = min(len(run.job.source.layers) or 1, 4 * whole / Overlap().bucket + 2)
        least = _SELECTED * buckets / min(one.end for one in run.job.density)
        entries = run.job.source.parameters
        if entries < least or entries > max(_MOST_ENTRIES, least):
            fields.append(f"job.scale={max(round(whole / max(_ENTRIES, least)), 1)}")
    if config.network.weather or len(run.job.stages) > 1 or len(run.job.density) > 1 or job.strategy is not None:
        return fields
    if drawn and job.iterations < SETTLES and any(map(follows_gradients, run.candidates.values())):
        fields.append(f"job.iterations={SETTLES}")
    elif whole > _LARGE:
        fields.append("job.iterations=1")
    return fields


def ranked_candidates(loaded: Scenario, run: Run) -> list[Candidate]:
    """Return the exchanges that a ranking compares.

    The candidates are the exchanges of fixed policies that the scenario or the request names; otherwise the usual
    exchanges are added to the scenario's.
    """
    if "policies" in loaded.written() and run.policies and all(isinstance(one, Fixed) for one in run.policies.values()):
        return [one.candidates[0] for one in run.policies.values()]
    nodes = job_node_sizes(run.job) if run.job.network(0).graph.graph.get("name") in _OF_NODES else ()
    return whole_job.candidates_of(loaded, per_node=next(iter(nodes), 1))


def rank(asked: ChooseRequest, fields: Sequence[str] = (), *, flips: bool = True) -> Ranking:
    """Rank a scenario's exchanges and policies by job duration; `flips` adds inputs at which another one is fastest.

    With `flips` the values of links, density and workers are looked for at which another exchange becomes the fastest.
    """
    fields = [*fields, *([] if asked.exact else sampled_fields(asked.load(fields)))]

    def again(more: Sequence[str]) -> Scenario:
        return asked.load([*fields, *more])

    loaded = again([])
    loaded = loaded.only(list(asked.policies)) if asked.policies else loaded
    run = loaded.build()
    among = ranked_candidates(loaded, run)
    held = held_on_job(run.job, among)
    left = held.left(among)
    effort = math.inf if asked.exact else whole_job.EFFORT if len(left) <= _USUAL else whole_job.EFFORT_OF_ALL
    found = whole_job.decide_job(run, left, effort=effort)
    found = replace(found, starts=job_totals.job_start_ranges(run, {row.label: row.sample for row in found.rows}, left))
    own = [one.policy for one in found.flexible] if not found.usual else []
    rows = tuple(sorted([*found.rows, *own], key=lambda row: row.seconds))
    totals, computes = row_totals(rows, run.job, left), job_totals.computing_factors(loaded)
    likely = job_totals.judged(totals, computes)
    equal = found.tied_with if rows[0] is found.best else ()
    near = first_place_flips(again, loaded, run, found, asked.link_uncertainty or OFF) if flips else (None, None)
    return Ranking(
        loaded,
        run,
        found,
        rows,
        likely,
        frozenset(job_totals.tied_jobs(totals, likely, computes, equal)),
        held,
        NEVER_COMPARED if run.colocated else job_totals.evidence_of_job(run.job, [row.sample for row in found.rows]),
        *near,
        assumptions.overlap_of(run, left),
        assumptions.default_effects(again, loaded, run, left, found) if asked.exact else None,
        asked.link_uncertainty is not None,
    )


def row_totals(rows: Sequence[JobForecast], job: Job, among: Sequence[Candidate] = ()) -> list[job_totals.JobTotal]:
    """Return a job's total time by exchange or policy, and the sampling error of each lag behind the fastest one.

    `among` are the exchanges that policies choose from.
    """
    best = min(rows, key=lambda row: row.seconds)
    known = {one.label: one for one in (*among, *(row.candidate for row in rows if row.candidate.scheme))}
    used = {label: known[label] for row in rows for label in row.sample["choice"]}
    counts = {label: job_totals.messages(one, job) for label, one in used.items()}
    calls, totals = job_totals.call_errors(job, used.values()), []
    for row in rows:
        # Iterations of the same moments meet the same links: two jobs leave less open between them than each by itself.
        apart = 0.0 if row is best else error_between(row, best) / max(row.seconds, 1e-300)
        totals.append(job_totals.total_of(row.label, row.sample, job, counts, used.values(), min(apart, 1.0), calls))
    return totals
