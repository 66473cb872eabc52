"""The iterations of a job under one policy, which request the time of each exchange."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.checks import check_int
from simnet.base.clock import advance_time
from simnet.base.errors import DivergedError, SimnetError, StalledError
from simnet.job.checkpoint import Checkpoint, State
from simnet.job.elastic import WorkerPresence, parameters_sent
from simnet.job.exchange import (
    IterationContext,
    SparsifierSet,
    TimedExchange,
    TimingRequest,
    TimingRequests,
    TimingResult,
)
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
from simnet.policies import Decision, Policy, density_at, probe_pairs
from simnet.strategies.averaging import NOBODY

Progress = Callable[[int], None]
"""Called with the number of iterations done."""


@dataclass
class LoopState:
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

    def save(self, elastic: bool) -> State:
        """Return what a checkpoint holds, the record excepted."""
        names = ("now", "lost", "number", "attempts", "active", "begins")
        state = {name: getattr(self, name) for name in names}
        late = {"busy": self.busy.copy(), "computing": self.computing.copy()} if elastic else {}
        return {**state, **late, "models": self.models.save(), "log": self.log.save()}


def restore_loop(job: Job, policy: Policy, record: JobRecord, kept: State, beside: Path | None = None) -> LoopState:
    """Return the state of a job at its checkpoint; long records have files next to the path `beside`.

    Raises LookupError, TypeError, ValueError or ArithmeticError if the checkpoint is not of this job.
    """
    now, lost, active = float(kept["now"]), float(kept["lost"]), np.asarray(kept["active"], dtype=np.intp)
    begins = np.asarray(kept["begins"], dtype=np.float64)
    number, attempts = (check_int(kept[name], name, 0) for name in ("number", "attempts"))
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
    """Run the iterations of a job until they are done or a failure ends it; yield a request for each exchange.

    Attempts of exploration come before an iteration: they take their time, on copies of the state of the training.
    `may_try` allows several exchanges on a shortlist. The first iteration begins at `start` [s]; `stream` prefixes the
    names of random streams. The first `timeline` iterations keep messages and spans. A job continues from `begun`,
    runs the iterations of `sampling` only, and makes its exchanges by `sparsifiers`, all by default.
    """
    if begun is None:
        everybody = np.arange(job.source.workers)
        models = _create_models(job, policy) if sparsifiers is None else sparsifiers
        log = PolicyLog(job, policy, None if checkpoint is None else checkpoint.path)
        idle, busy = np.zeros((2, everybody.size))
        begun = LoopState(start, 0.0, 0, 0, everybody, job.begins(start), models, log, busy, idle)
    elif progress is not None:
        progress(begun.number)
    loop = _JobLoop(job, record, begun, may_try, stream, timeline)
    state = loop.state
    del begun
    while state.number < job.iterations and not loop.ended:
        attempt = loop.begin()
        step = yield from loop.exchange(attempt)
        if step is None:
            continue
        advance = loop.book(attempt, step)
        # Its update may be as large as a worker's gradient.
        del step
        if sampling is not None:
            state.number, state.now, state.lost = *sampling.after(state.now - advance, advance), 0.0
        # Exploration has a state of its own, which is not kept.
        if attempt.trains and checkpoint is not None and checkpoint.due():
            checkpoint.write({**state.save(job.elastic), "record": record.save()}, state.number)
        if attempt.trains and progress is not None:
            progress(state.number)


@dataclass
class _Attempt:
    """An iteration, or an attempt of exploration, until its exchange is complete."""

    decision: Decision
    batch: int
    name: tuple[str | int, ...]
    keeps_messages: bool
    latency: float
    bandwidth: float
    times: IterationState
    complete: Floats
    behind: Floats
    late: NDArray[np.intp] = field(default_factory=NOBODY.copy)
    waits: float = 0.0
    failures: Mapping[int, float] | None = None

    @property
    def trains(self) -> bool:
        """Whether it is no exploration."""
        return self.decision.attempt is None

    def select(self, step: TimedExchange) -> None:
        """Note when workers selected, and by how much the kernels slowed their backward pass."""
        self.times = self.times._replace(compute=self.times.compute + step.slowed)
        entered = self.complete + step.slowed
        if self.waits:
            self.times.selections.append((entered, np.zeros(entered.size)))
            entered = entered + step.held
        self.times.selections.append((entered, step.select))


class _JobLoop:
    """The parts of an iteration: begin, exchange, book."""

    def __init__(
        self, job: Job, record: JobRecord, state: LoopState, may_try: bool, stream: tuple[str, ...], timeline: int
    ) -> None:
        self.job, self.record, self.state, self.ended = job, record, state, False
        self._may_try, self._stream, self._timeline = may_try, stream, timeline
        self._hosts = np.arange(job.source.workers) if job.placement is None else np.asarray(job.placement)
        self._presence = WorkerPresence(job) if job.elastic else None

    def begin(self) -> _Attempt:
        """Gather the workers, measure the links, ask the policy, and compute."""
        job, state = self.job, self.state
        if self._presence is not None:
            with self._errors_located():
                self._gather_crew(self._presence)
            state.begins = np.zeros(state.active.size)
        latency, bandwidth = probe_pairs(job.network(state.number), self._hosts[state.active].tolist(), state.now)
        probing, probes = self._measure_links()
        decision = state.log.decide(state.number, state.now, state.active)
        trains, batch = decision.attempt is None, state.number + (decision.attempt or 0)
        compute = job.computes(batch, state.active)
        attempt = _Attempt(
            decision,
            batch,
            ("iteration", state.number) if trains else ("exploration", state.attempts),
            trains and state.number < self._timeline,
            float(latency.max()),
            float(bandwidth.min()),
            IterationState(state.active, state.begins, probing, compute, [], probes),
            state.begins + probing + compute,
            compute,
        )
        if self._presence is not None:
            attempt.failures = self._presence.leaves(state.active, state.now)
            self._leave_out_late(attempt)
        return attempt

    def _measure_links(self) -> tuple[Floats, Timing | None]:
        """Return the seconds in which each worker measures the links, if the policy asks for it, and the messages."""
        state = self.state
        if (probe := state.log.measures(state.number, state.now, state.active)) is None:
            return np.zeros(state.active.size), None
        with self._errors_located():
            probes = self.job.network(state.number).time(
                probe,
                state.begins,
                placement=self._hosts[state.active].tolist(),
                messages=True,
                stream=(*self._stream, "iteration", state.number, "probe"),
                origin=state.now,
            )
        assert probes.messages is not None
        ends = np.zeros(int(probes.messages.round.max()) + 1)
        np.maximum.at(ends, probes.messages.round, probes.messages.arrived - state.begins.max())
        state.log.measured(state.number, state.now, state.active, ends.tolist())
        return probes.left - state.begins, probes

    def _leave_out_late(self, attempt: _Attempt) -> None:
        """Go on without the workers that miss the deadline; these get the parameters once they have computed."""
        job, state, complete = self.job, self.state, attempt.complete
        if job.deadline is None or not (missed := complete > complete.min() + job.deadline).any():
            return
        attempt.late, attempt.waits = state.active[missed], job.deadline
        done = state.now + complete[missed]
        state.active, state.computing[attempt.late] = state.active[~missed], done
        stream: tuple[str | int, ...] = (*self._stream, "late", state.number)
        source = int(state.active[0])
        with self._errors_located():
            for worker, moment in zip(attempt.late.tolist(), done.tolist(), strict=True):
                sent = parameters_sent(job, state.number, moment, source, worker, stream)
                state.busy[worker] = moment + sent
        attempt.times = attempt.times.without(missed)
        attempt.complete, attempt.behind = complete[~missed], attempt.behind[~missed]

    def exchange(self, attempt: _Attempt) -> Generator[TimingRequest, TimingResult, TimedExchange | None]:
        """Exchange until no failure interrupts; return None if nobody is left, or all have left for a while."""
        state = self.state
        while True:
            decision = attempt.decision
            context = IterationContext(
                state.number,
                state.now,
                attempt.batch,
                self._density(attempt),
                state.active,
                self._hosts[state.active].tolist(),
                attempt.complete,
                attempt.behind,
                messages=attempt.keeps_messages,
                stream=(*self._stream, *attempt.name),
                late=attempt.late,
                waits=attempt.waits,
                failures=attempt.failures,
            )
            if len(decision.shortlist) > 1 and not self._may_try:
                raise ValueError("beside other jobs a policy cannot try several exchanges, as only one takes place")
            with self._errors_located():
                if attempt.trains:
                    step = yield from state.models.step(context, decision.shortlist)
                else:
                    step = yield from state.models.explore(context, decision)
            attempt.select(step)
            if isinstance(step.result, Timing):
                return step
            if not self._resume(attempt, step, step.result):
                return None

    def _density(self, attempt: _Attempt) -> float:
        given = attempt.decision.density
        return density_at(self.job.density, self.state.number) if given is None else given

    def _resume(self, attempt: _Attempt, step: TimedExchange, stalled: StalledError) -> bool:
        """Record an interruption, and return whether the remaining workers repeat the exchange."""
        job, state = self.job, self.state
        failures = job.failures if attempt.failures is None else attempt.failures
        interruption, resumes, gone = _describe_interruption(
            job, failures, self.record.job, state.number, attempt.times, step, stalled
        )
        all_left = job.elastic and job.patience is not None and interruption.resumed is None
        if all_left:
            # All have left without notice, and some may come back.
            interruption = interruption._replace(resumed=interruption.stopped + (job.patience or 0.0))
        self.record.interruptions.append(interruption)
        if interruption.resumed is None:
            self.ended = True
            return False
        state.models = state.models.without(gone)
        if isinstance(state.models, StrategySet) and job.elastic:
            state.models.forget(state.active[gone])
        if all_left:
            state.now, state.active = interruption.resumed, NOBODY
            return False
        state.active, attempt.times = state.active[~gone], attempt.times.without(gone)
        attempt.complete, attempt.behind = np.full(state.active.size, resumes), np.zeros(state.active.size)
        attempt.waits = 0.0
        number = attempt.decision.attempt
        attempt.decision = state.log.decide(state.number, interruption.resumed, state.active)._replace(attempt=number)
        return True

    def book(self, attempt: _Attempt, step: TimedExchange) -> float:
        """Record an iteration, advance the clock, and return by how much, rounding errors before it included."""
        job, state, times = self.job, self.state, attempt.times
        assert isinstance(step.result, Timing)
        if job.barrier:
            began, seconds = state.now, step.lasts + job.update
            advance, begins = seconds, np.zeros(state.active.size)
        else:
            ends = step.result.left + (step.result.origin - state.now) + job.update
            began, seconds = state.now + float(times.begins.mean()), float((ends - times.begins).mean())
            advance = float(ends.min())
            begins = ends - advance
        state.begins = begins
        if attempt.trains:
            state.models.apply(step.exchanges)
        self.record.add(
            IterationTimes(
                state.number,
                began,
                seconds,
                state.now,
                self._density(attempt),
                attempt.latency,
                attempt.bandwidth,
                TRAIN if attempt.trains else EXPLORE,
            ),
            step.candidate.label,
            step.exchanges,
            step.result,
            times,
            job.update,
            device=job.device,
            barrier=job.barrier,
            keep=attempt.keeps_messages,
            score=state.models.training.score(state.number if attempt.trains else None),
            spans=step.spans,
        )
        state.log.observe(attempt.decision, step, times)
        advance += state.lost
        state.now, state.lost = advance_time(state.now, advance)
        state.attempts += not attempt.trains
        state.number += attempt.trains
        return advance

    def _gather_crew(self, presence: WorkerPresence) -> None:
        """Set the start of an iteration and its workers: those that are present and have the parameters.

        A worker that returns or was late gets them from the first worker of the last iteration; if none of these is
        present, the parameters are those it has. If nobody is present, the iteration begins when somebody is.
        """
        job, state, models = self.job, self.state, self.state.models
        assert isinstance(models, StrategySet)
        there, busy, computing = state.active, state.busy, state.computing
        everybody = np.arange(job.source.workers)
        stream: tuple[str | int, ...] = (*self._stream, "joining", state.number)
        while True:
            now = state.now
            here = presence.present(everybody, now)
            leaving = ~here & (np.isin(everybody, there) | (busy > 0) | (computing > 0))
            models.forget(everybody[leaving])
            busy[~here] = computing[~here] = 0.0
            staying = np.intersect1d(there, everybody[here])
            for worker in np.setdiff1d(everybody[here & (busy == 0)], there).tolist():
                back = max(presence.returned(worker, now), computing[worker])
                busy[worker] = back
                if staying.size:
                    busy[worker] += parameters_sent(job, state.number, back, int(staying[0]), worker, stream)
            if not staying.size:
                # Nobody is there whom others could wait for.
                busy[here & ~np.isin(everybody, there)] = 0.0
            until = np.maximum(busy, computing)
            if (free := here & (until <= now)).any():
                break
            state.now = min([presence.returns(everybody, now), *until[until > now].tolist()])
            if state.now == math.inf:
                raise SimnetError("all workers are away, and none of them comes back")
        state.active = everybody[free]
        joining = np.setdiff1d(state.active, there)
        if joining.size:
            models.rejoin(joining, staying if staying.size else joining)
        busy[state.active] = computing[state.active] = 0.0

    @contextmanager
    def _errors_located(self) -> Iterator[None]:
        """Name job and iteration in errors."""
        where = f"{self.record.whose}, iteration {self.state.number}"
        try:
            yield
        except StalledError as stalled:
            why, *more = stalled.args
            raise StalledError(f"{where}: {why}", *more) from None
        except DivergedError as diverged:
            raise DivergedError(f"{where}: {diverged}") from None


def _create_models(job: Job, policy: Policy, workers: int | None = None) -> SparsifierSet | StrategySet | StepSet:
    """Return what exchanges in a job under a policy, between so many workers; all when omitted."""
    if job.strategy is not None:
        return StrategySet(job, policy.candidates)
    if job.steps is not None:
        return StepSet(job, policy.candidates)
    return SparsifierSet(job, policy.candidates, workers)


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
