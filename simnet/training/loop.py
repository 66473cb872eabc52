"""The iterations of a job, and the clocks that time their exchanges: its own, or one that it shares with other jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import simpy
from numpy.typing import NDArray

from simnet.errors import StalledError
from simnet.network import Network, Timing
from simnet.policies import Candidate, Fixed, Moment, Policy, probe_pairs
from simnet.training.exchanging import Ask, Asks, Models, Outcome, Situation, Step
from simnet.training.job import Job, density_at
from simnet.training.record import MAIN, Doing, Iteration, PolicyResult, Record, Share, Stop, Wait

Progress = Callable[[int], None]
"""Called with the number of iterations done."""


@dataclass(frozen=True)
class Neighbour:
    """A job that runs beside another one, on the same network, always with the same exchange.

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


def run_policy(
    job: Job,
    name: str,
    policy: Policy,
    *,
    timeline: int = 0,
    progress: Progress | None = None,
    neighbours: Mapping[str, Neighbour] | None = None,
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
    neighbours : mapping of str to Neighbour, optional
        Jobs that share the network, until they or the job are done.

    Raises
    ------
    StalledError
        If an exchange can never end for another reason than a death.
    ValueError
        If the job has neighbours, and either a network for each stretch of iterations, or a policy that tries several
        exchanges, of which only one can take place.
    """
    record = Record(name)
    asks = _iterate(job, policy, record, may_try=not neighbours, timeline=timeline, progress=progress)
    if not neighbours:
        _alone(asks)
        return record.result(record.stops)
    if len(job.stages) > 1:
        raise ValueError("jobs that share a network need one that is a function of time, not of one job's iterations")
    return _in_company(job, asks, record, neighbours)


def _iterate(
    job: Job,
    policy: Policy,
    record: Record,
    *,
    start: float = 0.0,
    stream: tuple[str, ...] = (),
    may_try: bool = False,
    timeline: int = 0,
    progress: Progress | None = None,
) -> Asks:
    """Go through the iterations of a job until they are done or a death ends it; ask for the time of each exchange."""
    crew = np.arange(job.source.workers)
    hosts = crew if job.placement is None else np.asarray(job.placement)
    models = Models(job, policy.candidates)
    policy.start()
    now = start
    for number in range(job.iterations):
        network, density = job.network(number), density_at(job.density, number)
        latency, bandwidth = probe_pairs(network, hosts[crew].tolist(), now)
        compute = job.compute.seconds(job.seed, number, job.source.workers)[crew]
        doing, begun, complete, behind = Doing(crew, compute, []), now, now + compute, compute
        while True:
            placement = hosts[crew].tolist()
            moment = Moment(number, begun, network, placement, 4.0 * job.source.true_parameters, density)
            where = Situation(
                number,
                density,
                crew,
                placement,
                complete,
                behind,
                messages=number < timeline,
                stream=(*stream, "iteration", number),
            )
            shortlist = policy.shortlist(moment)
            if len(shortlist) > 1 and not may_try:
                raise ValueError("beside other jobs a policy cannot try several exchanges, as only one takes place")
            try:
                step = yield from models.step(where, shortlist)
            except StalledError as stalled:
                whose = record.policy if record.job == MAIN else f"{record.job}, beside {record.policy}"
                message, *more = stalled.args
                raise StalledError(f"{whose}, iteration {number}: {message}", *more) from None
            doing.selections.append((complete, step.select))
            if isinstance(step.outcome, Timing):
                break
            stop, gone = _stopped(job, record.job, number, doing, step, step.outcome)
            record.stops.append(stop)
            if stop.resumed is None:
                return
            models, doing, crew = models.without(gone), doing.without(gone), crew[~gone]
            begun, complete, behind = stop.resumed, np.full(crew.size, stop.resumed), np.zeros(crew.size)
        finish = step.outcome.finish + job.update
        record.add(
            Iteration(number, now, finish, density, float(latency.max()), float(bandwidth.min())),
            step.candidate.label,
            step.exchanges,
            step.outcome,
            doing,
            job.update,
            keep=number < timeline,
        )
        now = finish
        if progress is not None:
            progress(number + 1)


def _stopped(
    job: Job, name: str, iteration: int, doing: Doing, step: Step, stalled: StalledError
) -> tuple[Stop, NDArray[np.bool_]]:
    """Return how an iteration stopped for its dead, and which of its workers are gone when it goes on."""
    crew = doing.crew.tolist()
    dead = np.isin(np.arange(len(crew)), list(stalled.died))
    begin, seconds = doing.selections[-1]
    # Nothing has stopped as long as a later bucket is still being computed or selected.
    stopped = max([step.end, *(begin + seconds)[~dead].tolist()])
    if dead.all():
        stopped = min(stopped, max(stalled.died.values()))
    resumed = None if job.patience is None else stopped + job.patience
    # Who dies while the others wait is found missing together with the first.
    deaths = np.array([job.deaths.get(worker, math.inf) for worker in crew])
    gone = dead | (deaths <= (stopped if resumed is None else resumed))
    if gone.all():
        resumed = None
    # Whoever waits for the dead themselves comes first: the others wait for these.
    stuck = sorted(stalled.stuck, key=lambda one: stalled.died.keys().isdisjoint(one.peers))
    stop = Stop(
        name,
        iteration,
        stopped,
        {worker: job.deaths[worker] for worker, is_gone in zip(crew, gone.tolist(), strict=True) if is_gone},
        tuple(Wait(crew[one.rank], one.round, one.phase, tuple(crew[peer] for peer in one.peers)) for one in stuck),
        resumed,
        int((~gone).sum()),
    )
    return stop, gone


def _alone(asks: Asks) -> None:
    """Time every exchange of a job on a clock of its own."""
    ask = _told(asks, None)
    while ask is not None:
        outcome: Outcome
        try:
            outcome = _time(ask)
        except StalledError as stalled:
            outcome = stalled
        ask = _told(asks, outcome)


def _in_company(job: Job, asks: Asks, record: Record, neighbours: Mapping[str, Neighbour]) -> PolicyResult:
    """Time the exchanges of several jobs on one clock, until those of the first job are done."""
    env = simpy.Environment()
    shared = job.stages[0][1].on(env)
    end = env.process(_live(shared, asks, record))
    jobs = [(job, record)]
    for label, one in neighbours.items():
        own = Record(record.policy, label)
        itself = _iterate(one.job, Fixed(one.exchange), own, start=one.start, stream=("neighbour", label))
        env.process(_live(shared, itself, own))
        jobs.append((one.job, own))
    env.run(until=end)
    stops = sorted((stop for _, own in jobs for stop in own.stops), key=lambda stop: stop.stopped)
    return record.result(stops, [_share(*one) for one in jobs])


def _live(shared: Network, asks: Asks, record: Record) -> Generator[simpy.Event, Timing, None]:
    """Be the SimPy process of a job."""
    ask = _told(asks, None)
    while ask is not None:
        outcome: Outcome
        try:
            outcome = yield shared.run(ask.parts, ask.start, **ask.options())
        except StalledError as stalled:
            outcome = stalled
        else:
            record.held_up += outcome.finish - _time(ask._replace(deaths={}, messages=False)).finish
        ask = _told(asks, outcome)


def _told(asks: Asks, outcome: Outcome | None) -> Ask | None:
    """Tell a job what became of its exchange, and return what it asks for next; None if it is done."""
    try:
        return next(asks) if outcome is None else asks.send(outcome)
    except StopIteration:
        return None


def _time(ask: Ask) -> Timing:
    """Time an exchange on a clock of its own."""
    if ask.deaths:
        # Where all are done before they die, deaths are no matter, and every clock will do.
        with suppress(StalledError):
            timing = _time(ask._replace(deaths={}))
            if all(timing.rank_finish[rank] < death for rank, death in ask.deaths.items()):
                return timing
    return ask.network.time(ask.parts, ask.start, **ask.options())


def _share(job: Job, record: Record) -> Share:
    """Return how a job fared beside others."""
    durations = record.durations
    mean = math.fsum(durations) / len(durations) if durations else math.nan
    alone = mean - record.held_up / len(durations) if durations else math.nan
    slowdown = mean / alone if alone > 0 else 1.0 if durations else math.nan
    return Share(record.job, job.source.workers, len(durations), job.iterations, mean, alone, slowdown)
