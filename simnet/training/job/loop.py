"""Simulation loop of a job under one policy. The loop requests the time of each exchange from its caller."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.clock import advance_time
from simnet.base.errors import DivergedError, SimnetError, StalledError
from simnet.network import Timing
from simnet.policies import Candidate, Decision, Fixed, Policy, density_at, probe_pairs
from simnet.strategies.replicas import NOBODY
from simnet.training.job import exchange
from simnet.training.job.checkpoint import Checkpoint, State
from simnet.training.job.job import Job, WorkerPresence, parameters_sent
from simnet.training.job.local_steps import StepSet, StrategySet
from simnet.training.job.policy_log import PolicyLog
from simnet.training.job.record import BlockedWorker, Interruption, Iteration, JobRecord
from simnet.training.job.sampling import IterationSampling

Progress = Callable[[int], None]
"""Callback with the number of finished iterations."""

_STATE = ("now", "lost", "number", "attempts", "active", "begins", "busy", "computing")


@dataclass(frozen=True)
class ColocatedJob:
    """Second job on the same network from `start` [s] on, with the same exchange in every iteration."""

    job: Job
    exchange: Candidate
    start: float = 0.0


@dataclass(frozen=True)
class RunOptions:
    """Options of the run of a job under one policy.

    The first `timeline` iterations record messages and spans. With `colocated` jobs only the final state is
    checkpointed. `sampling` simulates a subset of iterations.
    """

    timeline: int = 0
    progress: Progress = lambda done: None
    colocated: Mapping[str, ColocatedJob] | None = None
    checkpoint: Checkpoint | None = None
    sampling: IterationSampling | None = None
    sparsifiers: exchange.ExchangeSet | None = None


@dataclass(eq=False)
class JobLoop:
    """Simulation loop of a job under one policy, which starts at `start` [s], with its state between iterations.

    `now` is the simulated time [s], `lost` its rounding error.
    """

    job: Job
    policy: Policy
    record: JobRecord
    options: RunOptions = RunOptions()
    start: float = 0.0
    stream: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        job = self.job
        self._everybody = np.arange(job.source.workers)
        self._presence = WorkerPresence(job) if job.elastic else None
        self.now, self.lost, self.number, self.attempts, self.ended = self.start, 0.0, 0, 0, False
        self.active, self.begins = self._everybody, job.begins(self.start)
        # Until when workers that return are busy, and those that were late compute; 0 for others [s].
        self.busy, self.computing = np.zeros((2, job.source.workers))
        self.models: exchange.ExchangeSet = self.options.sparsifiers or self._create_models()
        # The state of the training while a policy explores.
        self._trained: State | None = None
        self.log = PolicyLog(job, self.policy, self.options.checkpoint is not None)

    def run(self) -> exchange.TimingRequests:
        """Run all iterations, or a sample of the iterations, until the last is done or failures end the job."""
        checkpoint, sampling = self.options.checkpoint, self.options.sampling
        while self.number < self.job.iterations and not self.ended:
            with self._errors_located():
                iteration = self._begin()
                step = yield from self._exchange(iteration)
            if step is None:
                continue
            advance = self._book(iteration, step)
            # Its update may be as large as a worker's gradient.
            del step
            if sampling is not None:
                self.number, self.now, self.lost = *sampling.after(self.now - advance, advance), 0.0
            # Exploration has a state of its own, which is not kept.
            if iteration.trains and checkpoint is not None and checkpoint.due():
                checkpoint.write(self.save(), self.number)
            if iteration.trains:
                self.options.progress(self.number)

    def save(self) -> State:
        """Return the loop's state as a checkpoint stores it."""
        state = {name: getattr(self, name) for name in _STATE}
        parts = {"models": self.models.save(), "log": self.log.save(), "record": self.record.save()}
        return state | parts

    def restore(self, kept: State) -> None:
        """Restore the loop from a state that `save` returned."""
        active = np.asarray(kept["active"], dtype=np.intp)
        if active.size < self.active.size:
            self.models = self._create_models(active.size)
        self.models.restore(kept["models"])
        self.log.restore(kept["log"])
        self.record.restore(kept["record"])
        for name in _STATE:
            setattr(self, name, kept[name])
        self.active = active

    def _create_models(self, workers: int | None = None) -> exchange.ExchangeSet:
        """Return an object that creates the job's exchanges: of a strategy, sharded steps, or gradient schemes."""
        if self.job.strategy is not None:
            return StrategySet(self.job, self.policy.candidates)
        if self.job.steps is not None:
            return StepSet(self.job, self.policy.candidates)
        return exchange.SparsifierSet(self.job, self.policy.candidates, workers)

    def _begin(self) -> Iteration:
        """Start an iteration: find its workers, probe links, let the policy decide, and draw compute times."""
        job = self.job
        if self._presence is not None:
            self._gather_workers(self._presence)
            self.begins = np.zeros(self.active.size)
        placement = job.hosts[self.active].tolist()
        latency, bandwidth = probe_pairs(job.network(self.number), placement, self.now)
        probing, probes = self._measure_links(placement)
        decision = self.log.decide(self.number, self.now, self.active)
        trains = decision.attempt is None
        iteration = Iteration(
            self.number,
            self.now,
            decision,
            self._density(decision),
            self.active,
            placement,
            self.begins,
            probing,
            job.computes(self.number + (decision.attempt or 0), self.active),
            float(latency.max()),
            float(bandwidth.min()),
            trains and self.number < self.options.timeline,
            (*self.stream, *(("iteration", self.number) if trains else ("exploration", self.attempts))),
            job.failures if self._presence is None else self._presence.leaves(self.active, self.now),
            probes,
        )
        self._leave_out_late(iteration)
        return iteration

    def _density(self, decision: Decision) -> float:
        return density_at(self.job.density, self.number) if decision.density is None else decision.density

    def _measure_links(self, placement: list[int]) -> tuple[Floats, Timing | None]:
        """Return each worker's seconds in a link probe, and the probe's timing; zeros and None without a probe."""
        if (probe := self.log.measures(self.number, self.now, self.active)) is None:
            return np.zeros(self.active.size), None
        stream: tuple[str | int, ...] = (*self.stream, "iteration", self.number, "probe")
        probes = self.job.network(self.number).time(
            probe, self.begins, placement=placement, messages=True, stream=stream, origin=self.now
        )
        assert probes.messages is not None
        ends = np.zeros(int(probes.messages.round.max()) + 1)
        np.maximum.at(ends, probes.messages.round, probes.messages.arrived - self.begins.max())
        self.log.measured(self.number, self.now, self.active, ends.tolist())
        return probes.left - self.begins, probes

    def _leave_out_late(self, iteration: Iteration) -> None:
        """Exclude workers that miss the deadline; each receives the parameters after it has computed."""
        deadline, complete = self.job.deadline, iteration.complete
        if deadline is None or not (missed := complete > complete.min() + deadline).any():
            return
        iteration.late, iteration.waits = self.active[missed], deadline
        done = self.now + complete[missed]
        self.active, self.computing[iteration.late] = self.active[~missed], done
        for worker, moment in zip(iteration.late.tolist(), done.tolist(), strict=True):
            self.busy[worker] = moment + self._sent_in(moment, int(self.active[0]), worker, "late")
        iteration.remove_workers(missed)

    def _sent_in(self, moment: float, source: int, worker: int, what: str) -> float:
        """Return the seconds that `source` takes to send the parameters to `worker` at time `moment`."""
        return parameters_sent(self.job, self.number, moment, source, worker, (*self.stream, what, self.number))

    def _exchange(
        self, iteration: Iteration
    ) -> Generator[exchange.TimingRequest, exchange.TimingResult, exchange.TimedExchange | None]:
        """Repeat an exchange until no failure interrupts it; return None if all workers have failed or are away."""
        while True:
            decision = iteration.decision
            if len(decision.shortlist) > 1 and self.options.colocated:
                raise ValueError("beside other jobs a policy cannot try several exchanges, as only one takes place")
            self._enter_state(decision)
            step = yield from self.models.step(iteration, decision.shortlist)
            iteration.add_selection(step.select, step.slowed, step.held)
            if isinstance(step.result, Timing):
                return step
            if not self._resume(iteration, step, step.result):
                return None

    def _enter_state(self, decision: Decision) -> None:
        """Save the training state before a policy tries exchanges; restore it before each try and after the last."""
        starts = decision.attempt == 0 or (decision.attempt is not None and self._trained is None)
        self._trained = self.models.save() if self._trained is None and starts else self._trained
        if self._trained is not None and (starts or decision.attempt is None):
            self.models.restore(self._trained)
        if decision.attempt is None:
            self._trained = None
        elif starts and decision.fresh:
            self.models.clear_residuals()

    def _resume(self, iteration: Iteration, step: exchange.TimedExchange, stalled: StalledError) -> bool:
        """Record an interruption, and return whether the remaining workers repeat the exchange."""
        job = self.job
        interruption, resumes, gone = _describe_interruption(job, self.record.job, iteration, step, stalled)
        all_left = job.elastic and job.patience is not None and interruption.resumed is None
        if all_left:
            # All have left without notice, and some may come back.
            interruption = interruption._replace(resumed=interruption.stopped + (job.patience or 0.0))
        self.record.interruptions.append(interruption)
        if interruption.resumed is None:
            self.ended = True
            return False
        if self._trained is not None:
            self.models.restore(self._trained)
            self._trained = None
        self.models = self.models.without(gone)
        if isinstance(self.models, StrategySet) and job.elastic:
            self.models.strategy.forget(self.active[gone])
        if all_left:
            self.now, self.active = interruption.resumed, NOBODY
            return False
        iteration.remove_workers(gone)
        self.active, self.begins = iteration.active, iteration.begins
        iteration.complete, iteration.behind = np.full(self.active.size, resumes), np.zeros(self.active.size)
        iteration.waits = 0.0
        decision = self.log.decide(self.number, interruption.resumed, self.active)
        iteration.decision = decision._replace(attempt=iteration.decision.attempt)
        iteration.density = self._density(decision)
        return True

    def _book(self, iteration: Iteration, step: exchange.TimedExchange) -> float:
        """Record an iteration, advance the clock, and return the seconds advanced."""
        job, timing = self.job, step.result
        assert isinstance(timing, Timing)
        if job.barrier:
            start, seconds = self.now, step.lasts + job.update
            advance, self.begins = seconds, np.zeros(self.active.size)
        else:
            ends = timing.left + (timing.origin - self.now) + job.update
            start, seconds = self.now + float(iteration.begins.mean()), float((ends - iteration.begins).mean())
            advance = float(ends.min())
            self.begins = ends - advance
        if iteration.trains:
            self.models.apply(step.exchanges)
        score = self.models.training.score(self.number if iteration.trains else None)
        self.record.add(job, iteration, step, start, seconds, score)
        self.log.observe(iteration, step)
        advance += self.lost
        self.now, self.lost = advance_time(self.now, advance)
        self.attempts += not iteration.trains
        self.number += iteration.trains
        return advance

    def _gather_workers(self, presence: WorkerPresence) -> None:
        """Set the start of an iteration and its workers: those that are present and have the current parameters."""
        models, everybody, there, busy, computing = self.models, self._everybody, self.active, self.busy, self.computing
        assert isinstance(models, StrategySet)
        while True:
            now = self.now
            here = presence.present(everybody, now)
            models.strategy.forget(everybody[~here & (np.isin(everybody, there) | (busy > 0) | (computing > 0))])
            busy[~here] = computing[~here] = 0.0
            staying = np.intersect1d(there, everybody[here])
            for worker in np.setdiff1d(everybody[here & (busy == 0)], there).tolist():
                back = max(presence.returned(worker, now), computing[worker])
                busy[worker] = back
                if staying.size:
                    busy[worker] += self._sent_in(back, int(staying[0]), worker, "joining")
            if not staying.size:
                # Nobody is there whom others could wait for.
                busy[here & ~np.isin(everybody, there)] = 0.0
            until = np.maximum(busy, computing)
            if (free := here & (until <= now)).any():
                break
            self.now = min([presence.returns(everybody, now), *until[until > now].tolist()])
            if self.now == math.inf:
                raise SimnetError("all workers are away, and none of them comes back")
        self.active = everybody[free]
        joining = np.setdiff1d(self.active, there)
        if joining.size:
            models.strategy.rejoin(joining, staying if staying.size else joining)
        busy[self.active] = computing[self.active] = 0.0

    @contextmanager
    def _errors_located(self) -> Iterator[None]:
        """Add the job's name and the iteration to errors that are raised inside the ``with`` block."""
        where = f"{self.record.whose}, iteration {self.number}"
        try:
            yield
        except StalledError as stalled:
            why, *more = stalled.args
            raise StalledError(f"{where}: {why}", *more) from None
        except DivergedError as diverged:
            raise DivergedError(f"{where}: {diverged}") from None


def _describe_interruption(
    job: Job, name: str, iteration: Iteration, step: exchange.TimedExchange, stalled: StalledError
) -> tuple[Interruption, float, NDArray[np.bool_]]:
    """Return the record of an interruption by failures, its duration [s], and the mask of lost workers."""
    active, begun, failures = iteration.active.tolist(), step.begun, iteration.failures
    failed = np.isin(np.arange(len(active)), list(stalled.failed))
    # A worker that fails while the others wait is found missing together with the first.
    stops = np.array([failures.get(worker, math.inf) - begun for worker in active])
    begin, seconds = iteration.selections[-1]
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
        iteration.number,
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


def first_exchange(job: Job, candidate: Candidate) -> exchange.TimingRequest:
    """Return the timing request for the first exchange of a job."""
    requests = JobLoop(job, Fixed(candidate), JobRecord(candidate.label)).run()
    one = next(requests)
    requests.close()
    return one
