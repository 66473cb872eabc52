"""The iterations of a job, timed on a clock of its own or on one that it shares with co-located jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.checks import whole
from simnet.base.errors import DivergedError, StalledError
from simnet.base.plugins import blamed
from simnet.job.checkpoint import Checkpoint, State
from simnet.job.exchange import Situation, SparsifierSet, TimedExchange, TimingRequest, TimingRequests, TimingResult
from simnet.job.job import Job
from simnet.job.policy_log import PolicyLog
from simnet.job.record import (
    EXPLORE,
    TRAIN,
    BlockedWorker,
    Interruption,
    Iteration,
    IterationState,
    JobShare,
    PolicyResult,
    Record,
)
from simnet.network import Network, Timing
from simnet.policies import Candidate, Fixed, Policy, density_at, probe_pairs

Progress = Callable[[int], None]
"""Called with the number of iterations done."""


@dataclass(frozen=True)
class ColocatedJob:
    """A co-located job: it runs beside another one, on the same network, always with the same exchange.

    Parameters
    ----------
    job : Job
        The job. Its network is that of the other job.
    exchange : Candidate
        How it exchanges gradients.
    start : float
        When it begins [s].
    """

    job: Job
    exchange: Candidate
    start: float = 0.0


@blamed()
def run_policy(
    job: Job,
    name: str,
    policy: Policy,
    *,
    timeline: int = 0,
    progress: Progress | None = None,
    colocated: Mapping[str, ColocatedJob] | None = None,
    checkpoint: Checkpoint | None = None,
) -> PolicyResult:
    """Run a job under one policy.

    Parameters
    ----------
    job : Job
        The job; several policies may run on the same one and see the same gradients, compute times and weather.
    name : str
        Name of the policy in the results.
    policy : Policy
        Decides before each iteration. Beside other jobs it must not put more than one exchange on its shortlist.
    timeline : int
        Keep the messages and spans of this many first iterations.
    progress : callable, optional
        Called with the number of iterations done after each.
    colocated : mapping of str to ColocatedJob, optional
        Jobs that share the network, until they or the job are done.
    checkpoint : Checkpoint, optional
        Where progress is kept, and from where the job resumes if there is something. Beside co-located jobs only the
        end of a job is kept, as exchanges of theirs are under way between its iterations.

    Raises
    ------
    StalledError
        If an exchange can never end for another reason than a failure.
    ValueError
        If there are co-located jobs, and either a network for each stretch of iterations, or a job without a barrier,
        or a policy that tries several exchanges, of which only one can take place.
    """
    record = Record(name)
    kept = None if checkpoint is None else checkpoint.read()
    if checkpoint is not None and kept is not None and "job_shares" in kept:
        with checkpoint.understood():
            result = _kept(record, kept)
        if progress is not None:
            progress(record.done)
        return result
    interruptions: Sequence[Interruption]
    job_shares: Sequence[JobShare] = ()
    if colocated:
        if len(job.stages) > 1:
            raise ValueError("jobs that share a network need one that is a function of time, not of iterations")
        if not all(one.barrier for one in (job, *(other.job for other in colocated.values()))):
            raise ValueError("jobs that share a network need a barrier before each iteration")
        requests = _iterate(job, policy, record, timeline=timeline, progress=progress)
        interruptions, job_shares = _on_shared_clock(job, requests, record, colocated)
    else:
        begun = None
        if checkpoint is not None and kept is not None:
            with checkpoint.understood():
                begun = _restored(job, policy, record, kept)
        # Its arrays are not needed any more.
        kept = None
        _alone(
            _iterate(
                job, policy, record, True, timeline=timeline, progress=progress, checkpoint=checkpoint, begun=begun
            )
        )
        interruptions = record.interruptions
    if checkpoint is not None:
        last = {
            "record": record.save(),
            "interruptions": [one.save() for one in interruptions],
            "job_shares": list(job_shares),
        }
        checkpoint.write(last, record.done, ended=True)
    return record.result(interruptions, job_shares)


class _Begun(NamedTuple):
    """Where a job is between two iterations.

    Parameters
    ----------
    now : float
        Simulated time [s].
    lost : float
        What that lacks for rounding, which would add up over millions of iterations [s].
    number, attempts : int
        Iterations done, and attempts of exploration.
    active : ndarray of int, shape (P',)
        The workers that are left.
    begins : ndarray, shape (P',)
        How long after the first of them each begins the next iteration [s].
    models : SparsifierSet
        Sparsifiers and training.
    log : PolicyLog
        What the policy was asked, and observed.
    """

    now: float
    lost: float
    number: int
    attempts: int
    active: NDArray[np.intp]
    begins: Floats
    models: SparsifierSet
    log: PolicyLog


def _restored(job: Job, policy: Policy, record: Record, kept: State) -> _Begun:
    """Return where a job was when its checkpoint was written.

    Raises
    ------
    LookupError, TypeError, ValueError, ArithmeticError
        If it is not of this job.
    """
    now, lost, active = float(kept["now"]), float(kept["lost"]), np.asarray(kept["active"], dtype=np.intp)
    begins = np.asarray(kept["begins"], dtype=np.float64)
    number, attempts = (whole(kept[name], name, 0) for name in ("number", "attempts"))
    if number > job.iterations or not math.isfinite(now + lost) or not active.size:
        raise ValueError("there is no such time or iteration, or nobody is left")
    if not set(active.tolist()) <= set(range(job.source.workers)) or (np.diff(active) <= 0).any():
        raise ValueError("these are no workers")
    if begins.shape != active.shape or not np.isfinite(begins).all() or begins.min() != 0:
        raise ValueError("these are no times at which workers begin")
    models, log = SparsifierSet(job, policy.candidates, active.size), PolicyLog(job, policy)
    models.restore(kept["models"])
    log.restore(kept["log"])
    record.restore(kept["record"])
    return _Begun(now, lost, number, attempts, active, begins, models, log)


def _kept(record: Record, kept: State) -> PolicyResult:
    """Return the result of a job that was done when its checkpoint was written."""
    record.restore(kept["record"])
    return record.result(
        [Interruption.restored(one) for one in kept["interruptions"]], [JobShare(*one) for one in kept["job_shares"]]
    )


def _iterate(
    job: Job,
    policy: Policy,
    record: Record,
    may_try: bool = False,
    *,
    start: float = 0.0,
    stream: tuple[str, ...] = (),
    timeline: int = 0,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    begun: _Begun | None = None,
) -> TimingRequests:
    """Go through the iterations of a job until they are done or a failure ends it; yield a request for each exchange.

    Before an iteration there may be attempts of exploration: iterations that take their time, on copies of what the
    training has, and leave no trace in it. A job that has `begun` resumes from there.
    """
    everybody = np.arange(job.source.workers)
    hosts = everybody if job.placement is None else np.asarray(job.placement)
    if begun is None:
        models = SparsifierSet(job, policy.candidates)
        begun = _Begun(start, 0.0, 0, 0, everybody, job.begins(start), models, PolicyLog(job, policy))
    elif progress is not None:
        progress(begun.number)
    now, lost, number, attempts, active, begins, models, log = begun
    del begun
    while number < job.iterations:
        network, placement = job.network(number), hosts[active].tolist()
        latency, bandwidth = probe_pairs(network, placement, now)
        decision = log.decide(number, now, active)
        attempt, trains = decision.attempt, decision.attempt is None
        batch = min(number + (attempt or 0), job.iterations - 1)
        named: tuple[str | int, ...] = ("iteration", number) if trains else ("exploration", attempts)
        compute = job.compute.seconds(job.seed, batch, job.source.workers)[active]
        probing = np.zeros(active.size)
        if (probe := log.measures()) is not None:
            with _told(record, number):
                found = network.time(probe, begins, placement=placement, stream=(*stream, *named, "probe"), origin=now)
            probing = found.left - begins
        state = IterationState(active, begins, probing, compute, [])
        complete, behind = begins + probing + compute, compute
        while True:
            where = Situation(
                number,
                now,
                batch,
                density_at(job.density, number) if decision.density is None else decision.density,
                active,
                placement,
                complete,
                behind,
                messages=trains and number < timeline,
                stream=(*stream, *named),
            )
            if len(decision.shortlist) > 1 and not may_try:
                raise ValueError("beside other jobs a policy cannot try several exchanges, as only one takes place")
            with _told(record, number):
                step = yield from models.step(where, decision.shortlist) if trains else models.explore(where, decision)
            state = state._replace(compute=state.compute + step.slowed)
            state.selections.append((complete + step.slowed, step.select))
            if isinstance(step.result, Timing):
                break
            interruption, resumed, gone = _interrupted(job, record.job, number, state, step, step.result)
            record.interruptions.append(interruption)
            if interruption.resumed is None:
                return
            models, state, active = models.without(gone), state.without(gone), active[~gone]
            complete, behind = np.full(active.size, resumed), np.zeros(active.size)
            placement = hosts[active].tolist()
            decision = log.decide(number, interruption.resumed, active)._replace(attempt=attempt)
        if job.barrier:
            began, seconds, advance = now, step.lasts + job.update, step.lasts + job.update
            begins = np.zeros(active.size)
        else:
            ends = step.result.left + (step.result.origin - now) + job.update
            began, seconds = now + float(state.begins.mean()), float((ends - state.begins).mean())
            advance = float(ends.min())
            begins = ends - advance
        purpose = TRAIN if trains else EXPLORE
        if trains:
            models.apply(step.exchanges)
        record.add(
            Iteration(
                number, began, seconds, now, where.density, float(latency.max()), float(bandwidth.min()), purpose
            ),
            step.candidate.label,
            step.exchanges,
            step.result,
            state,
            job.update,
            device=job.device,
            barrier=job.barrier,
            keep=where.messages,
            score=models.training.score(number if trains else None),
        )
        log.observe(decision, step)
        before, advance = now, advance + lost
        now = before + advance
        lost = advance - (now - before)
        attempts += not trains
        number += trains
        # What is tried in exploration is a state of its own, which is not kept.
        if trains and checkpoint is not None and checkpoint.due():
            position = {
                "now": now,
                "lost": lost,
                "number": number,
                "attempts": attempts,
                "active": active,
                "begins": begins,
            }
            parts = {"models": models.save(), "log": log.save(), "record": record.save()}
            checkpoint.write(position | parts, number)
        if trains and progress is not None:
            progress(number)


@contextmanager
def _told(record: Record, number: int) -> Iterator[None]:
    """Have errors tell in whose iteration they happened."""
    try:
        yield
    except StalledError as stalled:
        why, *more = stalled.args
        raise StalledError(f"{record.whose}, iteration {number}: {why}", *more) from None
    except DivergedError as diverged:
        raise DivergedError(f"{record.whose}, iteration {number}: {diverged}") from None


def _interrupted(
    job: Job, name: str, iteration: int, state: IterationState, step: TimedExchange, stalled: StalledError
) -> tuple[Interruption, float, NDArray[np.bool_]]:
    """Return how failed workers interrupted an iteration, after how many seconds it resumes, and who is gone then."""
    active, begun = state.active.tolist(), step.begun
    failed = np.isin(np.arange(len(active)), list(stalled.failed))
    # A worker that fails while the others wait is found missing together with the first.
    failures = np.array([job.failures.get(worker, math.inf) - begun for worker in active])
    begin, seconds = state.selections[-1]
    # Nothing has stopped as long as a later bucket is still being computed or selected.
    stopped = max([step.lasts, *(begin + seconds)[~failed].tolist()])
    if failed.all():
        stopped = min(stopped, float(failures.max()))
    resumes = stopped if job.patience is None else stopped + job.patience
    gone = failed | (failures <= resumes)
    # Workers that wait for a failed one come first: the others wait for these.
    stuck = sorted(stalled.stuck, key=lambda one: stalled.failed.keys().isdisjoint(one.peers))
    interruption = Interruption(
        name,
        iteration,
        begun + stopped,
        {worker: job.failures[worker] for worker, is_gone in zip(active, gone.tolist(), strict=True) if is_gone},
        tuple(
            BlockedWorker(active[one.rank], one.round, one.phase, tuple(active[peer] for peer in one.peers))
            for one in stuck
        ),
        None if job.patience is None or gone.all() else begun + resumes,
        int((~gone).sum()),
    )
    return interruption, resumes, gone


def _alone(requests: TimingRequests) -> None:
    """Time every exchange of a job on a clock of its own."""
    request = _next_request(requests, None)
    while request is not None:
        result: TimingResult
        try:
            result = _time(request)
        except StalledError as stalled:
            result = stalled
        request = _next_request(requests, result)


def _on_shared_clock(
    job: Job, requests: TimingRequests, record: Record, colocated: Mapping[str, ColocatedJob]
) -> tuple[list[Interruption], list[JobShare]]:
    """Time the exchanges of several jobs on one clock, until those of the first job are done; return how they fared."""
    env = simpy.Environment()
    shared = job.stages[0][1].on(env)
    end = env.process(_process(shared, requests, record))
    jobs = [(job, record)]
    for label, one in colocated.items():
        own = Record(record.policy, label)
        itself = _iterate(one.job, Fixed(one.exchange), own, start=one.start, stream=("neighbour", label))
        env.process(_process(shared, itself, own))
        jobs.append((one.job, own))
    env.run(until=end)
    interruptions = sorted(
        (interruption for _, own in jobs for interruption in own.interruptions),
        key=lambda interruption: interruption.stopped,
    )
    return interruptions, [_job_share(*one) for one in jobs]


def _process(shared: Network, requests: TimingRequests, record: Record) -> Generator[simpy.Event, Timing, None]:
    """Run a job as a SimPy process."""
    request = _next_request(requests, None)
    while request is not None:
        result: TimingResult
        try:
            result = yield shared.run(request.parts, request.start, **request.options())
        except StalledError as stalled:
            result = stalled
        else:
            alone = _time(request._replace(failures={}, messages=False))
            record.held_up += result.lasts_from(request.origin) - alone.lasts_from(request.origin)
        request = _next_request(requests, result)


def _next_request(requests: TimingRequests, result: TimingResult | None) -> TimingRequest | None:
    """Send a job the result of its exchange, and return its next request; None if it is done."""
    try:
        return next(requests) if result is None else requests.send(result)
    except StopIteration:
        return None


def _time(request: TimingRequest) -> Timing:
    """Time an exchange on a clock of its own."""
    if request.failures:
        # Where all are done before they fail, failures are no matter, and every clock will do.
        with suppress(StalledError):
            timing = _time(request._replace(failures={}))
            if all(timing.left[rank] < failure - timing.origin for rank, failure in request.failures.items()):
                return timing
    return request.network.time(request.parts, request.start, **request.options())


def _job_share(job: Job, record: Record) -> JobShare:
    """Return how a job fared beside others."""
    durations, done = record.durations, record.done
    mean = math.fsum(durations) / done if done else math.nan
    alone = mean - record.held_up / done if done else math.nan
    slowdown = mean / alone if alone > 0 else 1.0 if done else math.nan
    return JobShare(record.job, job.source.workers, done, job.iterations, mean, alone, slowdown)
