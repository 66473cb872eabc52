"""The iterations of a job, and the clocks that time their exchanges: its own, or one that it shares with other jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from simnet.base.checks import whole
from simnet.base.errors import DivergedError, StalledError
from simnet.job.checkpoint import Checkpoint, State
from simnet.job.dialogue import Dialogue
from simnet.job.exchanging import Ask, Asks, Models, Outcome, Situation, Step
from simnet.job.job import Job
from simnet.job.record import (
    EXPLORE,
    TRAIN,
    Doing,
    Iteration,
    PolicyResult,
    Record,
    Share,
    Stop,
    Wait,
)
from simnet.network import Network, Timing
from simnet.policies import Candidate, Fixed, Policy, density_at, probe_pairs

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
    neighbours : mapping of str to Neighbour, optional
        Jobs that share the network, until they or the job are done.
    checkpoint : Checkpoint, optional
        Where what is done is kept, and from where it goes on if there is something. Beside other jobs only a job
        that is done is kept, as theirs are under way between its iterations.

    Raises
    ------
    StalledError
        If an exchange can never end for another reason than a death.
    ValueError
        If the job has neighbours, and either a network for each stretch of iterations, or a policy that tries several
        exchanges, of which only one can take place.
    """
    record = Record(name)
    kept = None if checkpoint is None else checkpoint.read()
    if checkpoint is not None and kept is not None and "shares" in kept:
        with checkpoint.understood():
            result = _kept(record, kept)
        if progress is not None:
            progress(record.done)
        return result
    stops: Sequence[Stop]
    shares: Sequence[Share] = ()
    if neighbours:
        if len(job.stages) > 1:
            raise ValueError("jobs that share a network need one that is a function of time, not of iterations")
        asks = _iterate(job, policy, record, timeline=timeline, progress=progress)
        stops, shares = _in_company(job, asks, record, neighbours)
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
        stops = record.stops
    if checkpoint is not None:
        last = {"record": record.save(), "stops": [one.save() for one in stops], "shares": list(shares)}
        checkpoint.write(last, record.done, ended=True)
    return record.result(stops, shares)


class _Begun(NamedTuple):
    """Where a job is between two iterations.

    Parameters
    ----------
    now : float
        Simulated time [s].
    number, attempts : int
        Iterations done, and attempts of exploration.
    crew : ndarray of int, shape (P',)
        The workers that are left.
    models : Models
        Sparsifiers and training.
    dialogue : Dialogue
        The policy.
    """

    now: float
    number: int
    attempts: int
    crew: NDArray[np.intp]
    models: Models
    dialogue: Dialogue


def _restored(job: Job, policy: Policy, record: Record, kept: State) -> _Begun:
    """Return where a job was when its checkpoint was written.

    Raises
    ------
    LookupError, TypeError, ValueError, ArithmeticError
        If it is not of this job.
    """
    now, crew = float(kept["now"]), np.asarray(kept["crew"], dtype=np.intp)
    number, attempts = (whole(kept[name], name, 0) for name in ("number", "attempts"))
    if number > job.iterations or not math.isfinite(now) or not crew.size:
        raise ValueError("there is no such time or iteration, or nobody is left")
    if not set(crew.tolist()) <= set(range(job.source.workers)) or (np.diff(crew) <= 0).any():
        raise ValueError("these are no workers")
    models, dialogue = Models(job, policy.candidates, crew.size), Dialogue(job, policy)
    models.restore(kept["models"])
    dialogue.restore(kept["dialogue"])
    record.restore(kept["record"])
    return _Begun(now, number, attempts, crew, models, dialogue)


def _kept(record: Record, kept: State) -> PolicyResult:
    """Return the result of a job that was done when its checkpoint was written."""
    record.restore(kept["record"])
    return record.result([Stop.restored(one) for one in kept["stops"]], [Share(*one) for one in kept["shares"]])


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
) -> Asks:
    """Go through the iterations of a job until they are done or a death ends it; ask for the time of each exchange.

    Before an iteration there may be attempts of exploration: iterations that take their time, on copies of what the
    training has, and leave no trace in it. One that has `begun` goes on from there.
    """
    everybody = np.arange(job.source.workers)
    hosts = everybody if job.placement is None else np.asarray(job.placement)
    if begun is None:
        begun = _Begun(start, 0, 0, everybody, Models(job, policy.candidates), Dialogue(job, policy))
    elif progress is not None:
        progress(begun.number)
    now, number, attempts, crew, models, dialogue = begun
    del begun
    while number < job.iterations:
        network, placement = job.network(number), hosts[crew].tolist()
        latency, bandwidth = probe_pairs(network, placement, now)
        decision = dialogue.ask(number, now, crew)
        attempt, trains = decision.attempt, decision.attempt is None
        batch = min(number + (attempt or 0), job.iterations - 1)
        named: tuple[str | int, ...] = ("iteration", number) if trains else ("exploration", attempts)
        compute = job.compute.seconds(job.seed, batch, job.source.workers)[crew]
        doing, complete, behind = Doing(crew, compute, []), now + compute, compute
        while True:
            where = Situation(
                number,
                batch,
                density_at(job.density, number) if decision.density is None else decision.density,
                crew,
                placement,
                complete,
                behind,
                messages=trains and number < timeline,
                stream=(*stream, *named),
            )
            if len(decision.shortlist) > 1 and not may_try:
                raise ValueError("beside other jobs a policy cannot try several exchanges, as only one takes place")
            try:
                step = yield from models.step(where, decision.shortlist) if trains else models.explore(where, decision)
            except StalledError as stalled:
                why, *more = stalled.args
                raise StalledError(f"{record.whose}, iteration {number}: {why}", *more) from None
            except DivergedError as diverged:
                raise DivergedError(f"{record.whose}, iteration {number}: {diverged}") from None
            doing.selections.append((complete, step.select))
            if isinstance(step.outcome, Timing):
                break
            stop, gone = _stopped(job, record.job, number, doing, step, step.outcome)
            record.stops.append(stop)
            if stop.resumed is None:
                return
            models, doing, crew = models.without(gone), doing.without(gone), crew[~gone]
            complete, behind = np.full(crew.size, stop.resumed), np.zeros(crew.size)
            placement = hosts[crew].tolist()
            decision = dialogue.ask(number, stop.resumed, crew)._replace(attempt=attempt)
        finish = step.outcome.finish + job.update
        purpose = TRAIN if trains else EXPLORE
        if trains:
            models.apply(step.exchanges)
        record.add(
            Iteration(number, now, finish, where.density, float(latency.max()), float(bandwidth.min()), purpose),
            step.candidate.label,
            step.exchanges,
            step.outcome,
            doing,
            job.update,
            keep=where.messages,
            score=models.training.score(number if trains else None),
        )
        dialogue.tell(decision, step)
        now = finish
        attempts += not trains
        number += trains
        # What is tried in exploration is a state of its own, which is not kept.
        if trains and checkpoint is not None and checkpoint.due():
            position = {"now": now, "number": number, "attempts": attempts, "crew": crew}
            parts = {"models": models.save(), "dialogue": dialogue.save(), "record": record.save()}
            checkpoint.write(position | parts, number)
        if trains and progress is not None:
            progress(number)


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


def _in_company(
    job: Job, asks: Asks, record: Record, neighbours: Mapping[str, Neighbour]
) -> tuple[list[Stop], list[Share]]:
    """Time the exchanges of several jobs on one clock, until those of the first job are done; return how they fared."""
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
    return stops, [_share(*one) for one in jobs]


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
    durations, done = record.durations, record.done
    mean = math.fsum(durations) / done if done else math.nan
    alone = mean - record.held_up / done if done else math.nan
    slowdown = mean / alone if alone > 0 else 1.0 if done else math.nan
    return Share(record.job, job.source.workers, done, job.iterations, mean, alone, slowdown)
