"""Search for the exchange with which a job is shortest, by simulation of the job under each candidate.

Every exchange runs as `simnet run` would have it: the logic of its scheme, computing, kernels, overlap, barrier, stack
and weather. If simulating all iterations of all exchanges would take too long, each exchange is simulated in a sample
of iterations, spread over the job (`simnet.training.job.sampling`). Exchanges that may still be the fastest are
simulated in more and more iterations, in the end in all. The budget is counted in messages and entries, so the same
problem has the same answer on every machine.

The `error` of a row is the sampling error. It is small compared with the uncertainty of links and devices. Every
exchange is simulated in iterations of the same numbers, under the same weather.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.errors import InputError, SimnetError
from simnet.base.plugins import refusal_text
from simnet.base.progress import track_progress
from simnet.policies import (
    Adaptive,
    Candidate,
    Fixed,
    Flexible,
    OneStepOracle,
    Policy,
    PolicyContext,
    closed_form,
    density_at,
    probe_pairs,
)
from simnet.policies.candidate import ClosedForm
from simnet.policies.moo import Moo
from simnet.scenario import Run, Scenario
from simnet.scenario.resolve import candidate
from simnet.studies.choosing import forecast
from simnet.studies.choosing.forecast import PAIRED, Gain, JobForecast, WholeJob
from simnet.training.job.job import Job, fit_to_network, job_overlap
from simnet.training.job.loop import ColocatedJob
from simnet.training.job.record import TRAIN
from simnet.training.job.running import run_policy
from simnet.training.job.sampling import IterationSampling, ProgressModel, RecordedExchanges, fit_iteration_time
from simnet.training.job.steady import steady_part

EFFORT, EFFORT_OF_ALL = 1.7, 10.0
"""Budgets of simulation in CPU seconds, for the usual candidates and for all schemes."""

# About what these take, where the event loop is compiled [s]: to time an iteration, and its messages by the square of
# the workers; to make an exchange, with a worker of it, and an entry of a worker, also where its gradients are drawn.
_ITERATION, _MESSAGE = 1.3e-3, 4e-7
_EXCHANGE, _WORKER, _ENTRY, _DRAWN = 5e-4, 6e-5, 1.5e-8, 4.5e-8
# Iterations of the first look and by how much slower than the best it drops a row; those of the first sample and of the
# second, the factor from there on, and the share of effort kept for policies.
_LOOK, _FAR, _FIRST, _SECOND, _MORE, _KEPT = 4, 5.0, 12, PAIRED, 3, 0.25
# Moments of a block at which links are looked up.
_LOOKS = 16
# Standard errors, and a share of the time, by which a row may be behind and yet be the fastest.
_SIGMAS, _CLOSE = 3.0, 0.02
# The same share while a scheme that follows the gradients has not been through the job, and may not have settled.
_UNSETTLED = 0.5
# Exchanges among which the best of each iteration is looked for, and how much slower than the best they may be.
_AMONG, _SLOWER = 4, 2.0


def candidates_of(loaded: Scenario, *, per_node: int = 1) -> list[Candidate]:
    """Return the exchanges to compare in a job: those of the scenario, then usual exchanges that it lacks."""
    own = {label: candidate(label, exchange) for label, exchange in loaded.config.exchanges.items()}
    known = set(map(forecast.same_exchange, own.values()))
    usual = [one for one in forecast.usual_exchanges(per_node) if forecast.same_exchange(one) not in known]
    return [*own.values(), *(replace(one, label=f"{one.label} (usual)") if one.label in own else one for one in usual)]


def decide_job(run: Run, among: Sequence[Candidate], *, effort: float = EFFORT, policies: bool = True) -> WholeJob:
    """Rank exchanges, and policies that switch between them, by job duration; simulate for about `effort` seconds."""
    job = replace(run.job, failures={}, patience=None)
    among = [fit_to_network(one, job) for one in among]
    trial = _JobTrial(job, run.colocated, effort)
    rows, refused, alike = _race_exchanges(trial, among, effort * (1 - _KEPT if policies else 1))
    if not rows:
        raise SimnetError("; ".join(f"{label}: {why}" for label, why in refused.items()))
    rows.sort(key=lambda row: row.seconds)
    aside = tuple(row for row in rows if row.unsettled)
    if len(aside) == len(rows):
        why = "; ".join(f"{one.label} has not settled: {one.unsettled}" for one in aside)
        raise InputError(f"no exchange is left; {why}")
    found = WholeJob(tuple(row for row in rows if not row.unsettled), refused, alike=alike, aside=aside)
    if not policies or run.colocated:
        return found
    own = {name: one for name, one in run.policies.items() if not isinstance(one, OneStepOracle)}
    return found if not own and _is_steady(job, found) else _with_policies(trial, found, own)


def _is_steady(job: Job, found: WholeJob) -> bool:
    """Return whether density and links are constant, so that one exchange is the fastest throughout the job."""
    met = (row.column(name) for row in found.rows for name in ("latency_s", "bandwidth_Bps"))
    return not job.has_ramps and all(one.min() == one.max() for one in met)


class _JobTrial:
    """Sampled simulations of a job under several exchanges, within a budget of simulation seconds."""

    def __init__(self, job: Job, colocated: Mapping[str, ColocatedJob], effort: float) -> None:
        self.job, self.left = job, effort
        self._colocated = colocated
        self._whole = math.isinf(effort)
        # Exchanges in buckets, and of the whole gradient.
        self._recordings: dict[bool, RecordedExchanges] = {}
        # Exchanges of fixed volume differ by whose turn it is, and by density.
        ramps = sum(ramp.iterations for ramp in job.density if ramp.start != ramp.end)
        self._densities = min(ramps, job.iterations)
        self._hosts = job.hosts.tolist()
        self._links = functools.cache(self._links_at)
        # Latency, bandwidth and time of iterations, by the exchange.
        self._seen: dict[str, list[Floats]] = {}

    def recordings(self, among: Sequence[Candidate]) -> RecordedExchanges | None:
        """Return the cache of recorded exchanges that all trials share; None if each iteration computes its own."""
        if self._whole:
            return None
        overlap = job_overlap(self.job, among)
        if (overlapped := overlap is not None) not in self._recordings:
            self._recordings[overlapped] = RecordedExchanges(replace(self.job, overlap=overlap), 1)
        return self._recordings[overlapped]

    def _links_at(self, moment: float) -> tuple[float, float]:
        """Return the largest latency and smallest bandwidth between neighbours in the ring at a time [s]."""
        latency, bandwidth = probe_pairs(self.job.network(0), self._hosts, moment)
        return float(latency.max()), float(bandwidth.min())

    def cost(self, one: Candidate, samples: int) -> float:
        """Return an estimate of the seconds that it takes to simulate `samples` iterations with an exchange."""
        workers, entries, recordings = self.job.source.workers, self.job.source.parameters, self.recordings([one])
        drawn, exchanges = recordings is None or recordings.follows_gradients(one), samples
        if recordings is not None:
            turns = workers if recordings.takes_turns(one) else 1
            window = _sampled_window(samples, self.job.iterations)
            exchanges = max((window if drawn else min(samples, turns + self._densities)) - recordings.made(one), 0)
        exchange = _EXCHANGE + workers * (_WORKER + (_DRAWN if drawn else _ENTRY) * entries)
        # Rings are what sends most messages.
        return samples * (_ITERATION + _MESSAGE * workers**2) + exchanges * exchange

    def settled(self, row: JobForecast) -> bool:
        """Return whether a forecast's iterations are free of start-up effects, such as residuals that still grow."""
        recordings = self.recordings([row.candidate])
        return row.complete or recordings is None or not recordings.follows_gradients(row.candidate)

    def _pace(self, policy: Policy, step: float) -> ProgressModel | None:
        """Return a job's expected progress over time under a policy, in time steps of `step` [s]; None if unknown."""
        # Networks that take turns by iterations are not known by moments.
        if len(self.job.stages) > 1 or isinstance(policy, Adaptive):
            return None
        seen = [one.label for one in policy.candidates if one.label in self._seen]
        models = {label: fit_iteration_time(*np.concatenate(self._seen[label], axis=1)) for label in seen}
        network, message = self.job.network(0), 4.0 * self.job.source.true_parameters
        density, device = self.job.density[-1].end, self.job.device
        policy.reset()

        def expected(moment: float) -> float:
            at = PolicyContext(0, max(moment, 0.0), network, self._hosts, message, density, device=device)
            return min(model(*self._links(moment)) for one in policy.shortlist(at) if (model := models[one.label]))

        known = len(seen) == len(policy.candidates) and all(models.values())
        return ProgressModel(step, expected) if known else None

    def run(
        self,
        named: Candidate,
        policy: Policy,
        samples: int,
        cost: float,
        fastest: float = math.inf,
        found: float = math.inf,
    ) -> JobForecast:
        """Forecast a job's duration [s] from sampled iterations; stop early if rival exchanges are clearly faster."""
        self.left -= cost
        # What a policy explores is exchanged beside the training, and not recorded.
        job, recordings = self.job, None if isinstance(policy, Moo) else self.recordings(policy.candidates)
        block = pace = None
        if math.isfinite(fastest):
            block = fastest / samples
            pace = self._pace(policy, block / _LOOKS)
        sampling = IterationSampling(
            self.job.iterations,
            samples,
            block=block,
            until=1.5 * fastest,
            give_up=_FAR * min(fastest, found),
            pace=pace,
        )
        if recordings is not None:
            recordings.window = _sampled_window(samples, job.iterations)
        whole = samples >= job.iterations
        if self._colocated and not whole:
            # Others go on meanwhile: their first iterations stand for all.
            job = replace(job, iterations=samples)
        result = run_policy(
            job,
            named.label,
            policy,
            colocated=self._colocated,
            sampling=None if whole or self._colocated else sampling,
            sparsifiers=recordings,
        )
        columns = result.iteration_rows.between()
        trains = columns["purpose"] == TRAIN
        rows, explored = {name: one[trains] for name, one in columns.items()}, columns["iteration_s"][~trains].sum()
        seen = np.array([rows[one] for one in ("latency_s", "bandwidth_Bps", "iteration_s")], dtype=np.float64)
        self._seen.setdefault(named.label, []).append(seen)
        if whole or self._colocated:
            count = len(seen[2])
            stands_for, seconds = np.full(count, self.job.iterations / count), seen[2] + explored / count
            expected = seconds * stands_for
        else:
            stands_for = np.array(sampling.stands_for)
            seconds, expected = np.array(sampling.lasts) / stands_for, np.array(sampling.expected)
        sample = rows | {"iteration_s": seconds, "stands_for": stands_for, "expected_s": expected}
        sent = float((rows["bytes_sent_B"] * stands_for).sum() / stands_for.sum())
        workers = self.job.source.workers
        unsettled = ""
        if whole:
            unsettled = steady_part(columns).unsettled
        elif recordings is not None and isinstance(policy, Fixed):
            unsettled = recordings.unsettled(named)
        return JobForecast(named, sample, self.job.iterations, sent / workers, unsettled)


def _sampled_window(samples: int, iterations: int) -> int:
    """Return how many different exchanges of a data-dependent scheme to compute; later iterations reuse them."""
    return min(max(samples, _FIRST), iterations)


def _race_exchanges(
    trial: _JobTrial, among: Sequence[Candidate], effort: float
) -> tuple[list[JobForecast], dict[str, str], dict[str, list[str]]]:
    """Simulate exchanges in rounds; return job forecasts, error texts by label, and labels of identical forecasts."""
    iterations = trial.job.iterations
    kept = trial.left - effort if math.isfinite(effort) else 0.0
    rows: dict[str, JobForecast] = {}
    refused: dict[str, str] = {}
    known = {one.label: one for one in among}

    def run(labels: Sequence[str], samples: int, share: float) -> None:
        fastest = min((row.seconds for row in rows.values()), default=math.inf)
        for label in track_progress(labels, share):
            one, found = known[label], min((row.seconds for row in rows.values()), default=math.inf)
            try:
                rows[label] = trial.run(one, Fixed(one), samples, trial.cost(one, samples), fastest, found)
            except (SimnetError, ValueError) as error:
                rows.pop(label, None)
                refused[label] = refusal_text(error).split("\n")[0]

    def cost(labels: Sequence[str], samples: int) -> float:
        return sum(trial.cost(known[label], samples) for label in labels)

    for one in among:
        try:
            trial.cost(one, 1)
        except ValueError as error:
            refused[one.label] = refusal_text(error)
            del known[one.label]
    if cost(list(known), iterations) <= effort:
        run(list(known), iterations, 1.0)
        alike = _drop_alike(rows)
        return list(rows.values()), refused, alike
    run(_promising_labels(trial.job, list(known.values())), _LOOK, 0.2)
    alike = _drop_alike(rows)
    shortest = min((row.seconds for row in rows.values()), default=0.0)
    run([label for label, row in rows.items() if row.seconds <= _FAR * shortest], _FIRST, 0.2)
    samples = _SECOND
    while rows:
        # What has not settled by now is no rival of the others.
        settled = [row for row in rows.values() if row.simulated < _SECOND or not row.unsettled] or [*rows.values()]
        best = min(settled, key=lambda row: row.seconds)
        behind = sorted((row for row in settled if _may_win(trial, row, best)), key=lambda row: row.seconds)
        open_ = [row.label for row in behind if not row.complete]
        if not open_ or len(behind) == 1:
            break
        left, least = trial.left - kept, 1.5 * best.simulated
        if cost(open_, iterations) <= left:
            samples = iterations
        # Fewer of them, then fewer points.
        while len(open_) > 2 and cost(open_, samples) > left:
            open_.pop()
        while samples > least and cost(open_, samples) > left:
            samples = int(samples / 1.25)
        if samples <= least:
            break
        run(open_, samples, 0.5)
        samples = min(samples * _MORE, iterations)
    # The others are no candidates, but people read their times, too.
    for row in sorted(rows.values(), key=lambda row: row.seconds):
        if row.simulated < min(_SECOND, iterations) and cost([row.label], _SECOND) <= trial.left - kept / 2:
            run([row.label], _SECOND, 0.1)
    return list(rows.values()), refused, alike


def _promising_labels(job: Job, among: Sequence[Candidate]) -> list[str]:
    """Return the labels of exchanges, sorted by their closed-form times on the links at the start of the job."""
    latency, bandwidth = probe_pairs(job.network(0), job.hosts.tolist(), 0.0)
    message, density = 4.0 * job.source.true_parameters, density_at(job.density, job.iterations - 1)

    def seconds(one: Candidate) -> float:
        cost, alpha, beta = _form_of(one), float(latency.max()), 1 / max(float(bandwidth.min()), 1.0)
        return math.inf if cost is None else float(cost(alpha, beta, message, density, job.source.workers))

    return [one.label for one in sorted(among, key=seconds)]


def _form_of(one: Candidate) -> ClosedForm | None:
    """Return the closed form for the time of an exchange; None if there is no closed form."""
    try:
        return closed_form(one)
    except ValueError:
        return None


def _drop_alike(rows: dict[str, JobForecast]) -> dict[str, list[str]]:
    """Remove duplicate forecasts from `rows`; return, by label of each remaining forecast, labels of its duplicates."""
    seen: dict[tuple[bytes, float], str] = {}
    alike: dict[str, list[str]] = {}
    for label, row in list(rows.items()):
        first = seen.setdefault((row.column("iteration_s").tobytes(), row.sent), label)
        if first != label:
            alike.setdefault(first, []).append(label)
            del rows[label]
    return alike


def _may_win(trial: _JobTrial, row: JobForecast, best: JobForecast) -> bool:
    """Return whether an exchange may still prove faster than `best`, given the sampling errors of both forecasts."""
    if row.seconds > _FAR * best.seconds:
        return False
    share = _CLOSE if trial.settled(row) and trial.settled(best) else _UNSETTLED
    return row.seconds - best.seconds <= max(_SIGMAS * forecast.error_between(row, best), share * best.seconds)


def _with_policies(trial: _JobTrial, found: WholeJob, given: Mapping[str, Policy]) -> WholeJob:
    """Return the ranking with policies that switch exchanges as links change, and the time that switching saves."""
    # A training has one hook: it does not switch between exchanges that overlap the backward pass and others.
    overlap = job_overlap(trial.job, [found.best.candidate])
    alike = [row for row in found.rows if job_overlap(trial.job, [row.candidate]) == overlap]
    near = [row for row in alike if row.seconds <= _SLOWER * found.best.seconds]
    # One that is slow over the job may be the fastest while links are fast.
    first = forecast.leading_iterations(near)
    near[1:] = sorted(near[1:], key=lambda row: -first[row.label])
    among = [row.candidate for row in near[:_AMONG]]
    policies = dict(given)
    known, usual = [one for one in among if _form_of(one) is not None], not policies
    if usual and len(known) > 1:
        policies = {"flexible": Flexible(known)}
    iterations = samples = trial.job.iterations
    # The fixed exchange and each policy go through the job with one exchange an iteration.
    while samples > _SECOND:
        timed = (1 + len(policies)) * max(trial.cost(one, samples) for one in among)
        if timed + sum(trial.cost(one, samples) for one in among) <= trial.left:
            break
        samples = max(int(samples / 1.25), _SECOND)
    best = found.best

    def run(named: Candidate, policy: Policy) -> JobForecast:
        return trial.run(named, policy, samples, 0.0, best.seconds)

    fixed = best if best.complete and samples == iterations else run(best.candidate, Fixed(best.candidate))
    per_stretch = None
    if len(among) > 1:
        per_stretch = Gain(run(Candidate("best of each iteration", ""), OneStepOracle(among)), fixed)
    flexible = []
    for name, policy in track_progress(list(policies.items())):
        # Decisions that are taken every so many iterations are not those of a sample.
        if getattr(policy, "decide_every", None) == 1 or samples == iterations:
            flexible.append(Gain(run(Candidate(name, ""), policy), fixed))
    return replace(found, per_stretch=per_stretch, flexible=tuple(flexible), usual=usual)
