"""The iterations of a job under one policy: it asks for the time of each exchange, and is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.checks import whole
from simnet.base.clock import advanced
from simnet.base.errors import DivergedError, SimnetError, StalledError
from simnet.job.checkpoint import Checkpoint, State
from simnet.job.elastic import WorkerPresence, parameters_sent
from simnet.job.exchange import IterationContext, SparsifierSet, TimedExchange, TimingRequests
from simnet.job.job import Job
from simnet.job.local_steps import StrategySet
from simnet.job.policy_log import PolicyLog
from simnet.job.record import (
    EXPLORE,
    TRAIN,
    BlockedWorker,
    Interruption,
    IterationState,
    IterationTimes,
    JobRecord,
)
from simnet.job.sampling import IterationSampling
from simnet.job.steps import StepSet
from simnet.network import Timing
from simnet.policies import Policy, density_at, probe_pairs
from simnet.strategies.averaging import NOBODY

Progress = Callable[[int], None]
"""Called with the number of iterations done."""


class LoopState(NamedTuple):
    """The state of a job between two iterations.

    `now` is the simulated time [s], `lost` its rounding error; `number` and `attempts` count iterations and attempts of
    exploration. The `active` workers, shape (P',), begin the next iteration `begins` seconds after the first one.
    Workers that return or were late are `busy` until a time, `computing` until one, both of shape (P,), 0 for others
    [s].
    """

    now: float
    lost: float
    number: int
    attempts: int
    active: NDArray[np.intp]
    begins: Floats
    models: SparsifierSet | StrategySet | StepSet
    log: PolicyLog
    busy: Floats
    computing: Floats


def restore_loop(job: Job, policy: Policy, record: JobRecord, kept: State, beside: Path | None = None) -> LoopState:
    """Return the state of a job at its checkpoint; long records have files beside the path `beside`.

    Raises LookupError, TypeError, ValueError or ArithmeticError if the checkpoint is not of this job.
    """
    now, lost, active = float(kept["now"]), float(kept["lost"]), np.asarray(kept["active"], dtype=np.intp)
    begins = np.asarray(kept["begins"], dtype=np.float64)
    number, attempts = (whole(kept[name], name, 0) for name in ("number", "attempts"))
    if number > job.iterations or not 0 <= now < math.inf or not math.isfinite(lost) or not active.size:
        raise ValueError("there is no such time or iteration, or nobody is left")
    if not set(active.tolist()) <= set(range(job.source.workers)) or (np.diff(active) <= 0).any():
        raise ValueError("these are no workers")
    if begins.shape != active.shape or not np.isfinite(begins).all() or begins.min() != 0:
        raise ValueError("these are no times at which workers begin")
    models, log = _create_models(job, policy, active.size), PolicyLog(job, policy, beside)
    models.restore(kept["models"])
    log.restore(kept["log"])
    record.restore(kept["record"])
    idle = np.zeros(job.source.workers)
    busy, computing = (
        np.asarray(kept[name] if job.elastic else idle, dtype=np.float64) for name in ("busy", "computing")
    )
    if any(one.shape != idle.shape or not np.isfinite(one).all() for one in (busy, computing)):
        raise ValueError("these are no times until which workers compute")
    return LoopState(now, lost, number, attempts, active, begins, models, log, busy, computing)


def run_iterations(
    job: Job,
    policy: Policy,
    record: JobRecord,
    may_try: bool = False,
    *,
    start: float = 0.0,
    stream: tuple[str, ...] = (),
    timeline: int = 0,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    begun: LoopState | None = None,
    sampling: IterationSampling | None = None,
    sparsifiers: SparsifierSet | None = None,
) -> TimingRequests:
    """Go through the iterations of a job until they are done or a failure ends it; yield a request for each exchange.

    Before an iteration there may be attempts of exploration: iterations that take their time, on copies of what the
    training has, and leave no trace in it.

    Parameters
    ----------
    job : Job
        The job.
    policy : Policy
        Decides before each iteration.
    record : JobRecord
        Takes the rows.
    may_try : bool
        Whether the policy may put several exchanges on its shortlist.
    start : float
        When the first iteration begins [s].
    stream : tuple of str
        What names of random streams begin with.
    timeline : int
        Keep the messages and spans of this many first iterations.
    progress : callable, optional
        Called with the number of iterations done after each.
    checkpoint : Checkpoint, optional
        Takes the state now and then.
    begun : LoopState, optional
        From where the job resumes.
    sampling : IterationSampling, optional
        Which iterations it goes through; default: all.
    sparsifiers : SparsifierSet, optional
        What makes the exchanges; default: new ones of the policy's candidates.
    """
    everybody = np.arange(job.source.workers)
    hosts = everybody if job.placement is None else np.asarray(job.placement)
    if begun is None:
        models = _create_models(job, policy) if sparsifiers is None else sparsifiers
        log = PolicyLog(job, policy, None if checkpoint is None else checkpoint.path)
        idle, busy = np.zeros((2, everybody.size))
        begun = LoopState(start, 0.0, 0, 0, everybody, job.begins(start), models, log, busy, idle)
    elif progress is not None:
        progress(begun.number)
    now, lost, number, attempts, active, begins, models, log, busy, computing = begun
    del begun
    elastic = WorkerPresence(job) if job.elastic else None
    while number < job.iterations:
        if elastic is not None:
            assert isinstance(models, StrategySet)
            with _locate_errors(record, number):
                named_so: tuple[str | int, ...] = (*stream, "joining", number)
                now, active = _gather_crew(job, number, elastic, now, active, busy, computing, models, named_so)
            begins = np.zeros(active.size)
        network, placement = job.network(number), hosts[active].tolist()
        latency, bandwidth = probe_pairs(network, placement, now)
        probing, probes = np.zeros(active.size), None
        if (probe := log.measures(number, now, active)) is not None:
            with _locate_errors(record, number):
                probes = network.time(
                    probe,
                    begins,
                    placement=placement,
                    messages=True,
                    stream=(*stream, "iteration", number, "probe"),
                    origin=now,
                )
            probing = probes.left - begins
            assert probes.messages is not None
            ends = np.zeros(int(probes.messages.round.max()) + 1)
            np.maximum.at(ends, probes.messages.round, probes.messages.arrived - begins.max())
            log.measured(number, now, active, ends.tolist())
        decision = log.decide(number, now, active)
        attempt, trains = decision.attempt, decision.attempt is None
        batch = number + (attempt or 0)
        named: tuple[str | int, ...] = ("iteration", number) if trains else ("exploration", attempts)
        compute = job.computes(batch, active)
        kept = trains and number < timeline
        state = IterationState(active, begins, probing, compute, [], probes)
        complete, behind = begins + probing + compute, compute
        late, failures, again, waits = NOBODY, None, False, 0.0
        if elastic is not None:
            failures = elastic.leaves(active, now)
            if job.deadline is not None and (missed := complete > complete.min() + job.deadline).any():
                late, done, waits = active[missed], now + complete[missed], job.deadline
                state, active = state.without(missed), active[~missed]
                named_so = (*stream, "late", number)
                source = int(active[0])
                computing[late] = done
                with _locate_errors(record, number):
                    for worker, moment in zip(late.tolist(), done.tolist(), strict=True):
                        busy[worker] = moment + parameters_sent(job, number, moment, source, worker, named_so)
                complete, behind, placement = complete[~missed], behind[~missed], hosts[active].tolist()
        while True:
            where = IterationContext(
                number,
                now,
                batch,
                density_at(job.density, number) if decision.density is None else decision.density,
                active,
                placement,
                complete,
                behind,
                messages=kept,
                stream=(*stream, *named),
                late=late,
                waits=waits,
                failures=failures,
            )
            if len(decision.shortlist) > 1 and not may_try:
                raise ValueError("beside other jobs a policy cannot try several exchanges, as only one takes place")
            with _locate_errors(record, number):
                step = yield from models.step(where, decision.shortlist) if trains else models.explore(where, decision)
            state = state._replace(compute=state.compute + step.slowed)
            entered = complete + step.slowed
            if where.waits:
                state.selections.append((entered, np.zeros(active.size)))
                entered = entered + step.held
            state.selections.append((entered, step.select))
            if isinstance(step.result, Timing):
                break
            stopping = job.failures if failures is None else failures
            interruption, resumed, gone = _describe_interruption(
                job, stopping, record.job, number, state, step, step.result
            )
            if elastic is not None and job.patience is not None and interruption.resumed is None:
                # All have left without notice, and some may come back.
                interruption = interruption._replace(resumed=interruption.stopped + job.patience)
                again = True
            record.interruptions.append(interruption)
            if interruption.resumed is None:
                return
            models = models.without(gone)
            if isinstance(models, StrategySet) and elastic is not None:
                models.forget(active[gone])
            if again:
                now, active = interruption.resumed, NOBODY
                break
            state, active = state.without(gone), active[~gone]
            complete, behind, waits = np.full(active.size, resumed), np.zeros(active.size), 0.0
            placement = hosts[active].tolist()
            decision = log.decide(number, interruption.resumed, active)._replace(attempt=attempt)
        if again:
            continue
        assert isinstance(step.result, Timing)
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
            IterationTimes(
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
            spans=step.spans,
        )
        log.observe(decision, step, state)
        # Its update may be as large as a worker's gradient.
        del step
        advance += lost
        now, lost = advanced(now, advance)
        attempts += not trains
        number += trains
        if sampling is not None:
            number, now, lost = *sampling.after(now - advance, advance), 0.0
        # What is tried in exploration is a state of its own, which is not kept.
        if trains and checkpoint is not None and checkpoint.due():
            position = {
                "now": now,
                "lost": lost,
                "number": number,
                "attempts": attempts,
                "active": active,
                "begins": begins,
                **({} if elastic is None else {"busy": busy.copy(), "computing": computing.copy()}),
            }
            parts = {"models": models.save(), "log": log.save(), "record": record.save()}
            checkpoint.write(position | parts, number)
        if trains and progress is not None:
            progress(number)


def _create_models(job: Job, policy: Policy, workers: int | None = None) -> SparsifierSet | StrategySet | StepSet:
    """Return what exchanges in a job under a policy, between so many workers; all when omitted."""
    if job.strategy is not None:
        return StrategySet(job, policy.candidates)
    if job.steps is not None:
        return StepSet(job, policy.candidates)
    return SparsifierSet(job, policy.candidates, workers)


@contextmanager
def _locate_errors(record: JobRecord, number: int) -> Iterator[None]:
    """Have errors tell in whose iteration they happened."""
    try:
        yield
    except StalledError as stalled:
        why, *more = stalled.args
        raise StalledError(f"{record.whose}, iteration {number}: {why}", *more) from None
    except DivergedError as diverged:
        raise DivergedError(f"{record.whose}, iteration {number}: {diverged}") from None


def _gather_crew(
    job: Job,
    number: int,
    elastic: WorkerPresence,
    now: float,
    there: NDArray[np.intp],
    busy: Floats,
    computing: Floats,
    models: StrategySet,
    stream: tuple[str | int, ...],
) -> tuple[float, NDArray[np.intp]]:
    """Return the start of an iteration and its workers: those that are present and have the parameters.

    A worker that returns or was late gets them from the first worker of the last iteration; if none of these is
    present, the parameters are those it has. If nobody is present, the iteration begins when somebody is.
    """
    everybody = np.arange(job.source.workers)
    while True:
        here = elastic.present(everybody, now)
        leaving = ~here & (np.isin(everybody, there) | (busy > 0) | (computing > 0))
        models.forget(everybody[leaving])
        busy[~here] = computing[~here] = 0.0
        staying = np.intersect1d(there, everybody[here])
        for worker in np.setdiff1d(everybody[here & (busy == 0)], there).tolist():
            back = max(elastic.returned(worker, now), computing[worker])
            busy[worker] = back
            if staying.size:
                busy[worker] += parameters_sent(job, number, back, int(staying[0]), worker, stream)
        if not staying.size:
            # Nobody is there whom others could wait for.
            busy[here & ~np.isin(everybody, there)] = 0.0
        until = np.maximum(busy, computing)
        if (free := here & (until <= now)).any():
            break
        now = min([elastic.returns(everybody, now), *until[until > now].tolist()])
        if now == math.inf:
            raise SimnetError("all workers are away, and none of them comes back")
    crew = everybody[free]
    joining = np.setdiff1d(crew, there)
    if joining.size:
        models.rejoin(joining, staying if staying.size else joining)
    busy[crew] = computing[crew] = 0.0
    return now, crew


def _describe_interruption(
    job: Job,
    failures: Mapping[int, float],
    name: str,
    iteration: int,
    state: IterationState,
    step: TimedExchange,
    stalled: StalledError,
) -> tuple[Interruption, float, NDArray[np.bool_]]:
    """Return how failed workers interrupted an iteration, after how many seconds it resumes, and who is gone then."""
    active, begun = state.active.tolist(), step.begun
    failed = np.isin(np.arange(len(active)), list(stalled.failed))
    # A worker that fails while the others wait is found missing together with the first.
    stops = np.array([failures.get(worker, math.inf) - begun for worker in active])
    begin, seconds = state.selections[-1]
    # Nothing has stopped as long as a later bucket is still being computed or selected.
    stopped = max([step.lasts, *(begin + seconds)[~failed].tolist()])
    if failed.all():
        stopped = min(stopped, float(stops.max()))
    resumes = stopped if job.patience is None else stopped + job.patience
    gone = failed | (stops <= resumes)
    # Workers that wait for a failed one come first: the others wait for these.
    stuck = sorted(stalled.stuck, key=lambda one: stalled.failed.keys().isdisjoint(one.peers))
    interruption = Interruption(
        name,
        iteration,
        begun + stopped,
        {worker: failures[worker] for worker, is_gone in zip(active, gone.tolist(), strict=True) if is_gone},
        tuple(
            BlockedWorker(active[one.rank], one.round, one.phase, tuple(active[peer] for peer in one.peers))
            for one in stuck
        ),
        None if job.patience is None or gone.all() else begun + resumes,
        int((~gone).sum()),
    )
    return interruption, resumes, gone
