"""Runs of a job under its policies: one after another or interleaved, alone or with other jobs on the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from simnet import sparsifier_models
from simnet.base.errors import InputError, SimnetError, StalledError
from simnet.base.plugins import name_authors, names_file
from simnet.base.rows import Separable
from simnet.base.shards import open_shards
from simnet.network import Network, Timing
from simnet.policies import Fixed, Policy
from simnet.traces.source import ShardedSource, cached_source
from simnet.training.job.checkpoint import Checkpoint
from simnet.training.job.exchange import TimingRequest, TimingRequests, TimingResult
from simnet.training.job.job import Job
from simnet.training.job.loop import ColocatedJob, JobLoop, Progress, RunOptions
from simnet.training.job.record import JobRecord, JobShare, PolicyResult

if TYPE_CHECKING:
    import simpy


@contextmanager
def workers_in_shards(job: Job, policies: Mapping[str, Policy], where: str | None) -> Iterator[Job]:
    """Spread the gradients of a job's workers over processes for the ``with`` block, and yield the changed job.

    If `where` is None, the job is not changed.
    """
    if where is None:
        yield job
        return
    option = f"--on {where}"
    if job.steps is not None:
        raise InputError("under job.sharding workers have no gradients that could be elsewhere", file=option)
    if not isinstance(job.source, Separable):
        raise InputError(
            "gradients of a model that is trained come of all workers at once; allowed: synthetic or recorded ones",
            file=option,
        )
    if job.strategy is not None:
        raise InputError("under job.strategy all workers are in one place", file=option)
    schemes = sparsifier_models.usable()
    able = ", ".join(sorted(name for name, scheme in schemes.items() if scheme.traits.separable))
    for name, policy in policies.items():
        for candidate in policy.candidates:
            if names_file(candidate.scheme) or not sparsifier_models.scheme(candidate.scheme).traits.separable:
                raise InputError(
                    f"policy {name!r} exchanges by {candidate.scheme}, which takes the gradients of all workers in one "
                    f"place; allowed: {able}",
                    file=option,
                )
    with open_shards(job.source, where) as shards:
        yield replace(job, source=ShardedSource(job.source, shards))


def run_policy(job: Job, name: str, policy: Policy, **options: Any) -> PolicyResult:
    """Run a job under one policy with the options of `RunOptions`. StalledError: an exchange never completes."""
    given = RunOptions(**options)
    (_, outcome) = next(_take_turns({name: _run_steps(job, name, policy, given)}))
    if isinstance(outcome, SimnetError):
        raise outcome
    return outcome


def run_in_step(
    job: Job,
    policies: Mapping[str, Policy],
    *,
    timeline: int = 0,
    progress: Callable[[str, int], None] | None = None,
    colocated: Mapping[str, ColocatedJob] | None = None,
    checkpoints: Mapping[str, Checkpoint] | None = None,
) -> Iterator[tuple[str, PolicyResult | SimnetError]]:
    """Run a job under several policies, interleaved to keep all at about the same iteration; yield results or errors.

    Policies at about the same iteration share gradients. `progress` is called with a policy and its iteration count.
    """
    if len(policies) > 1:
        # Those of all inner steps of an iteration, which policies go through one after the other.
        steps = 1 if job.strategy is None else job.strategy.steps
        job = replace(job, source=cached_source(job.source, max(8, 2 * steps)))
    running = {}
    for name, policy in policies.items():
        told: Progress = partial(progress, name) if progress else lambda done: None
        options = RunOptions(timeline, told, colocated, (checkpoints or {}).get(name))
        running[name] = _run_steps(job, name, policy, options)
    yield from _take_turns(running)


def _take_turns(
    running: dict[str, Generator[int, None, PolicyResult]],
) -> Iterator[tuple[str, PolicyResult | SimnetError]]:
    """Advance the run with the fewest finished iterations until all have ended; yield each result as its run ends."""
    done = dict.fromkeys(running, 0)
    while running:
        name = min(running, key=done.__getitem__)
        outcome: PolicyResult | SimnetError
        try:
            with name_authors():
                done[name] = next(running[name])
            continue
        except StopIteration as end:
            outcome = end.value
        except SimnetError as error:
            outcome = error
        del running[name]
        yield name, outcome


def _run_steps(job: Job, name: str, policy: Policy, given: RunOptions) -> Generator[int, None, PolicyResult]:
    """Run a job under one policy, and yield the number of finished iterations after each."""
    checkpoint, colocated = given.checkpoint, given.colocated
    record = JobRecord(name)
    kept = None if checkpoint is None else checkpoint.read()
    if checkpoint is not None and kept is not None and "ended" in kept:
        with checkpoint.understood():
            record.restore(kept["record"])
        given.progress(record.done)
        return record
    loop = JobLoop(job, policy, record, replace(given, checkpoint=None) if colocated else given)
    if colocated:
        _on_shared_clock(job, loop.run(), record, colocated)
    else:
        if checkpoint is not None and kept is not None:
            with checkpoint.understood():
                loop.restore(kept)
            given.progress(loop.number)
        # Its arrays are not needed any more.
        kept = None
        for _ in _answered(loop.run(), _time_alone):
            yield record.done
    if checkpoint is not None:
        checkpoint.write({"record": record.save(), "ended": True}, record.done, ended=True)
    return record


def _answered(
    requests: TimingRequests, answer: Callable[[TimingRequest], Generator[Any, Any, Timing]]
) -> Generator[Any, Any, None]:
    """Run a job; time the exchanges that it requests by the generator function `answer`, and yield what that yields."""
    result: TimingResult | None = None
    with suppress(StopIteration):
        while True:
            # A generator takes None at first.
            request = requests.send(result)  # type: ignore[arg-type]
            try:
                result = yield from answer(request)
            except StalledError as stalled:
                result = stalled


def _time_alone(request: TimingRequest) -> Generator[None, None, Timing]:
    """Return the timing of an exchange on a simulated clock of its own, after a yield for other runs to advance."""
    timing = _time_exchange(request)
    yield
    return timing


def _on_shared_clock(
    job: Job, requests: TimingRequests, record: JobRecord, colocated: Mapping[str, ColocatedJob]
) -> None:
    """Run co-located jobs on one simulated clock until the first job ends, and record each job's slowdown."""
    import simpy

    env = simpy.Environment()
    shared = job.stages[0][1].on(env)
    end = env.process(_job_process(shared, requests, record))
    jobs = [(job, record)]
    for label, one in colocated.items():
        own = JobRecord(record.policy, label)
        loop = JobLoop(one.job, Fixed(one.exchange), own, start=one.start, stream=("neighbour", label))
        env.process(_job_process(shared, loop.run(), own))
        jobs.append((one.job, own))
    env.run(until=end)
    interruptions = [one for _, own in jobs for one in own.interruptions]
    record.interruptions = sorted(interruptions, key=lambda one: one.stopped)
    record.job_shares = [_job_share(*one) for one in jobs]


def _job_process(shared: Network, requests: TimingRequests, record: JobRecord) -> Generator[simpy.Event, Timing, None]:
    """Run a job as a SimPy process, which times its exchanges on the shared network."""

    def answer(request: TimingRequest) -> Generator[simpy.Event, Timing, Timing]:
        timing = yield shared.run(request.parts, request.start, **request.options)
        alone, origin = _time_exchange(request.but(deaths={}, messages=False)), request.options["origin"]
        record.held_up += timing.lasts_from(origin) - alone.lasts_from(origin)
        return timing

    return _answered(requests, answer)


def _time_exchange(request: TimingRequest) -> Timing:
    """Return the timing of an exchange on a separate simulated clock."""
    if deaths := request.options["deaths"]:
        # Where all are done before they fail, failures are no matter, and every clock will do.
        with suppress(StalledError):
            timing = _time_exchange(request.but(deaths={}))
            if all(timing.left[rank] < death - timing.origin for rank, death in deaths.items()):
                return timing
    return request.network.time(request.parts, request.start, **request.options)


def _job_share(job: Job, record: JobRecord) -> JobShare:
    """Return how much co-located jobs have slowed a job."""
    durations, done = record.durations, record.done
    mean = math.fsum(durations) / done if done else math.nan
    alone = mean - record.held_up / done if done else math.nan
    slowdown = mean / alone if alone > 0 else 1.0 if done else math.nan
    return JobShare(record.job, job.source.workers, done, job.iterations, mean, alone, slowdown)
