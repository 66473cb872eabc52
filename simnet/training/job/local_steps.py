"""Exchanges of jobs whose training strategy takes inner steps, and of jobs that train a sharded model.

An iteration has the inner steps from one wait of the workers to the next. An exchange begins after the inner step that
gives its data, and workers compute the remaining steps meanwhile, or a whole iteration if it has so long to arrive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Values
from simnet.cost_models.costs.devices import DeviceOp
from simnet.network import Timing
from simnet.network.timing import Split
from simnet.policies import Candidate, density_at
from simnet.schedule import Schedule
from simnet.sparsifier_models import Exchange
from simnet.strategies import SGD, Averaging, Replicas, Strategy, Sync, averages_by_scheme, create, strategy
from simnet.traces.source import Evaluable, GradientSource, Score, Training, tensor_options
from simnet.training.job.checkpoint import State
from simnet.training.job.exchange import (
    BucketExchange,
    ExchangeProcess,
    ExchangeSet,
    TimedExchange,
    check_feedback,
    keep_fastest,
    messages_alone,
    time_exchanges,
)
from simnet.training.job.job import Job, LocalSteps
from simnet.training.job.local_costs import local_operations
from simnet.training.job.record import Iteration
from simnet.training.job.spans import COMPUTE, NETWORK, Span, intersect_intervals, merge_intervals, subtract_intervals
from simnet.training.parallel.graph import CollectiveCall, StepTiming
from simnet.training.parallel.placing import PlacedStep


def start_strategy(source: GradientSource, own: LocalSteps, candidate: Candidate, seed: int = 0) -> Strategy:
    """Return a new training strategy at its initial parameters, whose replicas are averaged by a candidate's scheme."""
    name, options, bucket = own.name, own.options, own.bucket
    initial = source.initial() if isinstance(source, Evaluable) else np.zeros(source.parameters, dtype=np.float32)
    replicas = Replicas(source.workers, initial, scale=source.scale, seed=seed, **tensor_options(source))
    if averages_by_scheme(strategy(name), options):
        averaging = Averaging(candidate.scheme, options=candidate.options, bucket=bucket)
        return create(name, replicas, averaging=averaging, **options)
    if bucket is not None:
        raise ValueError(f"{name}: what it exchanges is its own, and goes tensor by tensor; it takes no bucket")
    if candidate.scheme != "dense":
        raise ValueError(f"{name}: what it exchanges is its own; it takes the scheme dense, got {candidate.scheme}")
    return create(name, replicas, **options)


def strategy_syncs(job: Job, candidate: Candidate, iteration: int) -> list[Sync]:
    """Return the exchanges that a strategy begins in an iteration, if it has always used the given candidate."""
    assert job.strategy is not None
    own, found = job.strategy, list[Sync]()
    made = start_strategy(job.source, own, candidate, job.seed)
    for number in range((iteration + 1) * own.steps):
        for model in made.schemes:
            model.density = density_at(job.density, number // own.steps)
        syncs = made.step(_step_gradients(job.source, made, number)).syncs
        found += syncs if number >= iteration * own.steps else []
    return found


def _step_gradients(source: GradientSource, strategy: Strategy, number: int) -> NDArray[np.float32]:
    """Return the workers' gradients of an inner step, at each worker's own parameters if a model is trained."""
    return source.gradients_at(strategy.local, number) if isinstance(source, Evaluable) else source.gradients(number)


class StrategySet(ExchangeSet):
    """Exchanges of a job under a training strategy, with one exchange scheme per candidate."""

    def __init__(self, job: Job, candidates: Sequence[Candidate]) -> None:
        assert job.strategy is not None
        own = job.strategy
        self._job, self._numbers = job, {one.label: number for number, one in enumerate(candidates)}
        self.strategy = start_strategy(job.source, own, candidates[0], job.seed)
        check_switching(own.name, own.options, len(candidates))
        for one in candidates[1:]:
            self.strategy.offer(Averaging(one.scheme, options=one.options, bucket=own.bucket))
        ways = self.strategy.ways
        check_feedback({one.label: way[0].options.error_feedback for one, way in zip(candidates, ways, strict=False)})
        afresh = [model.name for way in ways for model in way if not model.traits.is_restartable]
        if afresh and (job.elastic or job.failures):
            why = "its first exchanges are of another kind, and would come again whenever others take part"
            raise ValueError(f"{afresh[0]} is for workers that all stay: {why}")
        if self.strategy.delays and (job.elastic or job.failures):
            raise ValueError(f"{own.name}: what has a whole iteration to arrive needs all workers that sent it")
        if job.deadline is not None and not self.strategy.takes_late:
            raise ValueError(f"{own.name}: no worker may come too late, so that there is no deadline")
        # Exchanges that begin with the next iteration, and the state from which its last inner step makes them again.
        self._late: list[Sync] = []
        self._before: State | None = None
        # Where an exchange that is interrupted is made again from.
        self._round: State | None = None
        self.training = _ScoredTraining(job.source, self.strategy) if isinstance(job.source, Evaluable) else Training()

    def step(self, where: Iteration, shortlist: Sequence[Candidate]) -> ExchangeProcess:
        """Run an iteration's inner steps and time the exchanges that end in it; return the fastest exchange."""
        several, after = len(shortlist) > 1, list[dict[str, Any]]()
        before = self._round = self.strategy.save() if several or where.failures else None

        def attempt(place: int, candidate: Candidate) -> ExchangeProcess:
            if place and before is not None:
                self.strategy.restore(before)
            step = yield from self._stepped(where, candidate)
            if several:
                after.append(dict(self.strategy.save()))
            return step

        fastest, best = yield from keep_fastest(attempt(*one) for one in enumerate(shortlist))
        if after:
            # What the others adapt by themselves, such as thresholds, is as if they had been alone, too.
            state = after[fastest]
            for one, tried in zip(shortlist, after, strict=True):
                own = self.strategy.prefixes(self._numbers[one.label])
                state = {name: array for name, array in state.items() if not name.startswith(own)}
                state |= {name: array for name, array in tried.items() if name.startswith(own)}
            self.strategy.restore(state)
        return best

    def _stepped(self, where: Iteration, candidate: Candidate) -> ExchangeProcess:
        """Run an iteration's inner steps with one candidate, and time the exchanges that end in it."""
        self.strategy.switch(self._numbers[candidate.label])
        steps, workers = self.strategy.steps, len(where.placement)
        begun, self._late, self._before = [(one, 0) for one in self._late], [], None
        for done in range(1, steps + 1):
            for sync in self._inner(where, where.batch * steps + done - 1, last=done == steps):
                if done + sync.delay == steps:
                    begun.append((sync, done))
                elif done == steps == sync.delay:
                    self._late.append(sync)
                else:
                    raise ValueError(
                        f"{self.strategy.name}: what begins after inner step {done} of {steps} must arrive with the "
                        f"last of them, or begin there and arrive {steps} later, not {sync.delay} later"
                    )
        if not self._late:
            self._before = None
        left = self._left(where)
        sent = []
        for sync, done in begun:
            ready, made = where.complete - left[done], sync.exchange
            if where.late.size:
                # Nobody knows who is late.
                ready = np.maximum(ready, ready.min() + where.waits)
            dense = made is None or int(np.min(made.selected)) >= made.update.size
            sent.append(BucketExchange(sync.schedule, self._kernels(sync), ready, dense))
        if not sent or (sent[-1].ready < where.complete).any():
            # The iteration ends when all is computed.
            computed = np.maximum(where.complete, sent[-1].ready) if sent else where.complete
            sent.append(BucketExchange(Schedule(workers), (), computed, dense=False))
        exchanges = [sync.exchange or _unscored_exchange(sync.schedule) for sync, _ in begun]
        if not begun:
            exchanges.append(_unscored_exchange(Schedule(workers)))
        elif len(sent) > len(begun):
            exchanges.append(_unscored_exchange(Schedule(workers), norm=0.0))
        step = yield from time_exchanges(self._job, candidate, exchanges, sent, where)
        if not where.waits:
            return step
        held = sent[-1].ready - where.complete
        idle = held if isinstance(step.result, Timing) else np.zeros_like(held)
        return step._replace(select=step.select - idle, held=held)

    def _kernels(self, sync: Sync) -> Sequence[DeviceOp]:
        """Return an exchange's GPU kernels: for gradients, all local operations of the scheme; else those of `sync`."""
        made = sync.exchange
        if sync.what != "gradients" or sync.scheme is None or made is None:
            return sync.kernels
        made.kernels = local_operations(self._job.device, sync.scheme, made)
        return made.kernels

    def _inner(self, where: Iteration | None, number: int, *, last: bool) -> Sequence[Sync]:
        """Run inner step `number` on the workers of `where`, or on all if it is None; return the exchanges started."""
        strategy = self.strategy
        for model in strategy.schemes:
            model.density = model.density if where is None else where.density
        if last and strategy.delays:
            self._before = strategy.save()
        at = self._step_gradients(number)
        if where is None or len(where.active) == len(at):
            return strategy.step(at).syncs
        crew = np.sort(np.concatenate([where.active, where.late]))
        return strategy.step(at[crew], crew, where.late).syncs

    def _step_gradients(self, number: int) -> NDArray[np.float32]:
        return _step_gradients(self._job.source, self.strategy, number)

    def _left(self, where: Iteration) -> Floats:
        """Return how much compute time [s] each worker has left after each inner step, shape (steps + 1, P)."""
        each = self._job.inner_computes(where.batch, where.active)
        done = np.concatenate([np.zeros((1, each.shape[1])), np.cumsum(each, axis=0)])
        left: Floats = where.behind - np.minimum(done, where.behind)
        left[-1] = 0.0
        return left

    def clear_residuals(self) -> None:
        """Set the error-feedback residuals to zero."""
        for model in self.strategy.schemes:
            model.residual = np.zeros_like(model.residual)

    def without(self, gone: NDArray[np.bool_]) -> StrategySet:
        """Restore the state before the interrupted exchange, which the remaining workers repeat; return self."""
        assert self._round is not None
        self.strategy.restore(self._round)
        return self

    def save(self) -> State:
        """Return the strategy's state as a checkpoint stores it."""
        late = self._before is not None
        return {"strategy": self._before if late else self.strategy.save(), "late": late}

    def restore(self, state: State) -> None:
        """Restore the strategy from a state returned by `save`."""
        self._round = state["strategy"]
        self.strategy.restore(self._round)
        if state["late"]:
            # The last inner step makes again what is under way.
            self._late = list(self._inner(None, self.strategy.iteration, last=True))


class RecordedRounds(StrategySet):
    """Exchanges of a training strategy whose messages do not depend on gradients: each computed once, then reused.

    Inner steps without exchanges are skipped, so that nothing is trained.
    """

    def __init__(self, job: Job, candidates: Sequence[Candidate]) -> None:
        super().__init__(job, candidates)
        self.strategy.inner = SGD(1.0)
        self._made: dict[tuple[float, int], Sequence[Sync]] = {}

    @classmethod
    def of(cls, job: Job, candidates: Sequence[Candidate]) -> RecordedRounds | None:
        """Return exchanges to reuse in all rounds of a job; None if rounds may differ or candidates are several."""
        varies = isinstance(job.source, Evaluable) or job.elastic or job.failures or job.deadline
        if job.strategy is None or varies or len(candidates) != 1:
            return None
        strategy = (found := cls(job, candidates)).strategy
        fixed = strategy.begins_exchange() is not None and all(one.traits.fixed_volume for one in strategy.schemes)
        return found if fixed else None

    def _inner(self, where: Iteration | None, number: int, *, last: bool) -> Sequence[Sync]:
        """Return the exchanges that begin after an inner step."""
        assert where is not None
        strategy, turn = self.strategy, (where.density, number // self.strategy.steps % len(self.strategy.shares))
        strategy.iteration = number
        if not strategy.begins_exchange():
            return ()
        if turn in self._made:
            return self._made[turn]
        syncs = super()._inner(where, number, last=False)
        # Where workers take turns to select, messages follow whose turn it is.
        if not any(sync.exchange and "broadcaster" in sync.exchange.stats for sync in syncs):
            self._made[turn] = syncs
        return syncs

    def _step_gradients(self, number: int) -> NDArray[np.float32]:
        return super()._step_gradients(0)


def check_switching(name: str, options: Mapping[str, Any], exchanges: int) -> None:
    """Raise ValueError if a policy has several `exchanges` and the strategy cannot switch between exchanges."""
    own, why = strategy(name), ""
    if not averages_by_scheme(own, options):
        why = "what is exchanged is its own"
    elif own.delays:
        why = "what it chose would be sent over the links of the iteration after, of which it knows nothing"
    if exchanges > 1 and why:
        raise ValueError(f"{name}: a policy keeps to one exchange, as {why}")


class _ScoredTraining(Training):
    """Training whose loss and accuracy are evaluated at the strategy's global parameters."""

    def __init__(self, source: Evaluable, strategy: Strategy) -> None:
        self._source, self.strategy = source, strategy

    def score(self, iteration: int | None) -> Score:
        """Return the loss and accuracy after an iteration; both NaN if no evaluation is due or `iteration` is None."""
        if iteration is None or (iteration + 1) % self._source.evaluate:
            return Score(math.nan, math.nan)
        return self._source.score(self.strategy.global_parameters)


def _unscored_exchange(schedule: Schedule, norm: float = math.nan) -> Exchange:
    return messages_alone(schedule, schedule.bytes_sent(), schedule.bytes_received(), norm)


# Steps on networks that are kept: those of the first iterations, and of the stages of a network.
_MOST_PLACED = 16


class NoGradients:
    """Gradient source for sharded models: it has workers and a parameter count (1 if unknown), but no gradients."""

    parameters = 1
    layers: tuple[tuple[str, int], ...] = (("model", 1),)

    def __init__(self, workers: int, true_parameters: int) -> None:
        self.workers, self.true_parameters, self.scale = workers, true_parameters, float(true_parameters)

    def gradients(self, iteration: int, out: Values | None = None) -> NoReturn:
        """Raise ValueError: steps of sharded models have no gradients."""
        raise ValueError("a job of sharded steps makes no gradients")


class StepSet(ExchangeSet):
    """Exchanges of a job that trains a sharded model. ValueError: there is more than one candidate."""

    def __init__(self, job: Job, candidates: Sequence[Candidate]) -> None:
        if len(candidates) != 1:
            raise ValueError("in a job of sharded steps a policy keeps to one way of sharding")
        assert job.steps is not None
        (self._candidate,) = candidates
        self._job, self._steps = job, job.steps[self._candidate.label]
        self._placed: list[tuple[PlacedStep, Exchange]] = []
        self.training = Training()

    def step(self, where: Iteration, shortlist: Sequence[Candidate]) -> ExchangeProcess:
        """Time the sharded step of an iteration; raise StalledError if a collective never completes."""
        computes = self._job.computes(where.batch, where.active)
        exchange, step = self._timed(where.number, where.now, computes)
        left, computing, communicating = step.ended.max(axis=0, initial=0.0), step.computing, step.communicating
        waiting = np.maximum(left - computing - communicating, 0.0)
        result = Timing(
            where.now, np.zeros(left.size), left, lambda: Split(communicating, np.zeros(left.size), waiting)
        )
        spans = list(_step_spans(step, where.now)) if where.keeps_messages else []
        # What is under way beside computing is no request to the network of its own.
        yield from ()
        # A step has microbatches, and traces their own computing.
        where.set_compute(computing - step.slowed)
        return TimedExchange(self._candidate, [exchange], np.zeros(left.size), step.slowed, result, where.now, spans)

    def first(self) -> StepTiming:
        """Return the timing of a typical step: the job's last, begun at time 0, with mean compute on all workers."""
        job = self._job
        number = max(job.iterations - 1, 0)
        return self._timed(number, 0.0, np.full(job.source.workers, job.compute.mean))[1]

    def _timed(self, iteration: int, begun: float, computes: Floats) -> tuple[Exchange, StepTiming]:
        step, network = self._steps.step(iteration), self._job.network(iteration)
        known = (one for one in self._placed if one[0].graph is step.graph and one[0].network is network)
        if (found := next(known, None)) is None:
            placed = PlacedStep(step.graph, network, self._steps.algorithms, self._job.placement, self._steps.slowdown)
            found = placed, messages_alone(Schedule(step.graph.workers), *placed.nbytes())
            self._placed = [*self._placed[1 - _MOST_PLACED :], found]
        placed, exchange = found
        return exchange, placed.time(step.seconds(computes), begun, iteration)


def _step_spans(step: StepTiming, begun: float) -> Iterator[Span]:
    """Yield each worker's timeline in a step: compute, overlapped and exposed communication, and idle time."""
    computes = np.array([not isinstance(node.does, CollectiveCall) for node in step.graph.nodes], dtype=np.bool_)
    for worker in range(step.graph.workers):
        times = np.stack([step.begun[:, worker], step.ended[:, worker]], axis=1)
        own = sorted(map(tuple, times[computes].tolist()))
        calls = list(merge_intervals(sorted(map(tuple, times[~computes].tolist()))))
        busy = list(merge_intervals(sorted([*own, *calls])))
        whole = (0.0, float(times.max(initial=0.0)))
        pieces = [(COMPUTE, "compute", *one) for one in own]
        pieces += [(NETWORK, "overlapped", *one) for call in calls for one in intersect_intervals(call, own)]
        pieces += [(NETWORK, "communicate", *one) for call in calls for one in subtract_intervals(call, own)]
        pieces += [(COMPUTE, "wait", *one) for one in subtract_intervals(whole, busy)]
        for resource, what, first, last in pieces:
            if last > first:
                yield worker, resource, what, begun + first, begun + last
