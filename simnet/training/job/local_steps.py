"""A job under a training strategy: inner steps, and the exchanges that they begin.

An iteration has the inner steps from one wait of the workers to the next; their compute times add up. An exchange
begins after the inner step that gives its data, and workers compute the remaining steps meanwhile. An exchange that may
take a whole iteration begins with the next one. A policy chooses scheme and density of each iteration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.cost_models.costs.devices import DeviceOp
from simnet.network import Timing
from simnet.policies import Candidate, density_at
from simnet.schedule import Schedule
from simnet.sparsifier_models import Exchange
from simnet.sparsifier_models.base import Stats
from simnet.strategies import Averaging, Replicas, Strategy, Sync, averages_by_scheme, create, strategy
from simnet.traces.source import Evaluable, GradientSource, Score, WithoutLearning, tensor_options
from simnet.training.job.checkpoint import State
from simnet.training.job.exchange import (
    ExchangeProcess,
    TimedExchange,
    check_feedback,
    finish_order,
    hook_kernels,
    time_exchanges,
)
from simnet.training.job.iteration import Iteration
from simnet.training.job.job import Job
from simnet.training.job.streams import BucketExchange


def start_strategy(
    source: GradientSource,
    name: str,
    options: Mapping[str, Any],
    candidate: Candidate,
    *,
    seed: int = 0,
    bucket: float | None = None,
) -> Strategy:
    """Return a strategy at the start of training: at the first weights of a model, or at zero.

    `options` are those of the strategy without `averaging`, which is the scheme of the candidate; `bucket` is that of
    `simnet.strategies.Averaging`. Raises ValueError for an unknown strategy, option, scheme or value.
    """
    initial = np.zeros(source.parameters, dtype=np.float32)
    if isinstance(source, Evaluable):
        initial = source.initial()
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
    """Return the exchanges that begin in an iteration, from 0, if all iterations use one candidate.

    All workers take part. The iterations before are computed.
    """
    assert job.strategy is not None
    own, found = job.strategy, list[Sync]()
    made = start_strategy(job.source, own.name, own.options, candidate, seed=job.seed, bucket=own.bucket)
    for number in range((iteration + 1) * own.steps):
        for model in made.schemes:
            model.density = density_at(job.density, number // own.steps)
        syncs = made.step(_step_gradients(job.source, made, number)).syncs
        found += syncs if number >= iteration * own.steps else []
    return found


def _step_gradients(source: GradientSource, strategy: Strategy, number: int) -> NDArray[np.float32]:
    """Return the gradients of an inner step, at the parameters of each worker where there is a model."""
    return source.gradients_at(strategy.local, number) if isinstance(source, Evaluable) else source.gradients(number)


class StrategySet:
    """The training strategy of a job with all exchanges of its candidates.

    Raises ValueError if the strategy or a scheme refuses an option, or cannot switch between the candidates.
    """

    def __init__(self, job: Job, candidates: Sequence[Candidate]) -> None:
        assert job.strategy is not None
        own = job.strategy
        self._job, self._numbers = job, {one.label: number for number, one in enumerate(candidates)}
        self._strategy = start_strategy(
            job.source, own.name, own.options, candidates[0], seed=job.seed, bucket=own.bucket
        )
        check_switching(own.name, own.options, len(candidates))
        for one in candidates[1:]:
            self._strategy.offer(Averaging(one.scheme, options=one.options, bucket=own.bucket))
        ways = self._strategy.ways
        check_feedback({one.label: way[0].options.error_feedback for one, way in zip(candidates, ways, strict=False)})
        afresh = [model.name for way in ways for model in way if not model.traits.is_restartable]
        if afresh and (job.elastic or job.failures):
            why = "its first exchanges are of another kind, and would come again whenever others take part"
            raise ValueError(f"{afresh[0]} is for workers that all stay: {why}")
        if self._strategy.delays and (job.elastic or job.failures):
            raise ValueError(f"{own.name}: what has a whole iteration to arrive needs all workers that sent it")
        if job.deadline is not None and not self._strategy.takes_late:
            raise ValueError(f"{own.name}: no worker may come too late, so that there is no deadline")
        # Exchanges that begin with the next iteration, and the state from which its last inner step makes them again.
        self._late: list[Sync] = []
        self._before: State | None = None
        # Where an exchange that is interrupted is made again from.
        self._round: State | None = None
        # The training, from which attempts of exploration begin.
        self._trained: State | None = None
        self.training = (
            _ScoredTraining(job.source, self._strategy) if isinstance(job.source, Evaluable) else WithoutLearning()
        )

    def step(self, where: Iteration, shortlist: Sequence[Candidate]) -> ExchangeProcess:
        """Make the inner steps of an iteration and time the exchanges that end in it; keep the fastest candidate.

        Each candidate starts from the same state. Raises StalledError if an exchange can never end, and ValueError if
        one must arrive in the middle of an iteration.
        """
        if self._trained is not None:
            self._strategy.restore(self._trained)
            self._trained = None
        before = None
        if len(shortlist) > 1 or where.failures:
            before = self._round = self._strategy.save()
        best: TimedExchange | None = None
        after: list[dict[str, Any]] = []
        for place, candidate in enumerate(shortlist):
            if place:
                assert before is not None
                self._strategy.restore(before)
            step = yield from self._stepped(where, candidate)
            if len(shortlist) > 1:
                after.append(dict(self._strategy.save()))
            if best is None or finish_order(step) < finish_order(best):
                best, fastest = step, place
        assert best is not None, "a policy returned an empty shortlist"
        if after:
            # What the others adapt by themselves, such as thresholds, is as if they had been alone, too.
            state = after[fastest]
            for one, tried in zip(shortlist, after, strict=True):
                own = self._strategy.prefixes(self._numbers[one.label])
                state = {name: array for name, array in state.items() if not name.startswith(own)}
                state |= {name: array for name, array in tried.items() if name.startswith(own)}
            self._strategy.restore(state)
        return best

    def _stepped(self, where: Iteration, candidate: Candidate) -> ExchangeProcess:
        """Make the inner steps of an iteration with one exchange."""
        self._strategy.switch(self._numbers[candidate.label])
        steps, workers = self._strategy.steps, len(where.placement)
        begun, self._late, self._before = [(one, 0) for one in self._late], [], None
        for done in range(1, steps + 1):
            for sync in self._inner(where, where.batch * steps + done - 1, last=done == steps):
                if done + sync.delay == steps:
                    begun.append((sync, done))
                elif done == steps == sync.delay:
                    self._late.append(sync)
                else:
                    raise ValueError(
                        f"{self._strategy.name}: what begins after inner step {done} of {steps} must arrive with the "
                        f"last of them, or begin there and arrive {steps} later, not {sync.delay} later"
                    )
        if not self._late:
            self._before = None
        left = self._left(where)
        sent = [
            BucketExchange(sync.schedule, self._kernels(sync), _ready_times(where, left[done]), dense=_is_dense(sync))
            for sync, done in begun
        ]
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
        """Return what workers run beside an exchange; of gradients also what a hook of DDP does, which it is told."""
        made = sync.exchange
        if sync.what != "gradients" or sync.scheme is None or made is None:
            return sync.kernels
        made.kernels += hook_kernels(self._job.device, sync.scheme, made)
        return made.kernels

    def _inner(self, where: Iteration | None, number: int, *, last: bool) -> Sequence[Sync]:
        """Make an inner step, and return the exchanges that begin after it; by all if it is not said where."""
        strategy = self._strategy
        for model in strategy.schemes:
            model.density = model.density if where is None else where.density
        if last and strategy.delays:
            self._before = strategy.save()
        at = _step_gradients(self._job.source, strategy, number)
        if where is None or len(where.active) == len(at):
            return strategy.step(at).syncs
        crew = np.sort(np.concatenate([where.active, where.late]))
        return strategy.step(at[crew], crew, where.late).syncs

    def _left(self, where: Iteration) -> Floats:
        """Return what each worker has to compute after so many inner steps [s]; shape (steps + 1, P)."""
        each = self._job.inner_computes(where.batch, where.active)
        done = np.concatenate([np.zeros((1, each.shape[1])), np.cumsum(each, axis=0)])
        left: Floats = where.behind - np.minimum(done, where.behind)
        left[-1] = 0.0
        return left

    def explore(self, where: Iteration) -> ExchangeProcess:
        """Make the inner steps of an iteration as an attempt of exploration, which leaves the training unchanged."""
        if self._trained is None:
            self._trained = self._strategy.save()
        elif where.decision.attempt == 0:
            self._strategy.restore(self._trained)
        if where.failures:
            self._round = self._trained
        (candidate,) = where.decision.shortlist
        if where.decision.attempt == 0 and where.decision.fresh:
            for model in self._strategy.schemes:
                model.residual = np.zeros_like(model.residual)
        return (yield from self._stepped(where, candidate))

    def without(self, gone: NDArray[np.bool_]) -> StrategySet:
        """Return the same in the state before the exchange that was interrupted; those that are left make it again."""
        assert self._round is not None
        self._strategy.restore(self._round)
        self._trained = None
        return self

    def rejoin(self, joining: NDArray[np.intp], present: NDArray[np.intp]) -> None:
        """Let returning workers continue from the state of the present ones; see `Strategy.rejoin`."""
        self._strategy.rejoin(joining, present)

    def forget(self, leaving: NDArray[np.intp]) -> None:
        """Reset the inner optimisers of workers that leave."""
        self._strategy.forget(leaving)

    def apply(self, exchanges: Sequence[Exchange]) -> None:
        """Do nothing: the strategy has applied what was exchanged."""

    def save(self) -> State:
        """Return all that the iterations to come depend on."""
        late = self._before is not None
        return {"strategy": self._before if late else self._strategy.save(), "late": late}

    def restore(self, state: State) -> None:
        """Resume from what `save` returned; raise KeyError or ValueError if it is of another strategy."""
        self._strategy.restore(state["strategy"])
        if state["late"]:
            # The last inner step makes again what is under way.
            self._late = list(self._inner(None, self._strategy.iteration, last=True))


def check_switching(name: str, options: Mapping[str, Any], exchanges: int) -> None:
    """Raise ValueError if a policy has several exchanges and the strategy cannot switch between them.

    It cannot if it exchanges data of its own, or if exchanges arrive an iteration after the choice.
    """
    own, why = strategy(name), ""
    if not averages_by_scheme(own, options):
        why = "what is exchanged is its own"
    elif own.delays:
        why = "what it chose would be sent over the links of the iteration after, of which it knows nothing"
    if exchanges > 1 and why:
        raise ValueError(f"{name}: a policy keeps to one exchange, as {why}")


class _ScoredTraining(WithoutLearning):
    """How good the global parameters of a strategy are."""

    def __init__(self, source: Evaluable, strategy: Strategy) -> None:
        self._source, self._strategy = source, strategy

    def score(self, iteration: int | None) -> Score:
        """Return loss and accuracy after an iteration; NaN if none is due then."""
        if iteration is None or (iteration + 1) % self._source.evaluate:
            return Score(math.nan, math.nan)
        return self._source.score(self._strategy.global_parameters)


def _ready_times(where: Iteration, left: Floats) -> Floats:
    """Return when each worker enters an exchange after which it has so much to compute: nobody knows who is late."""
    computed: Floats = where.complete - left
    return np.maximum(computed, computed.min() + where.waits) if where.late.size else computed


def _is_dense(sync: Sync) -> bool:
    """Return whether all that there is is sent."""
    made = sync.exchange
    return made is None or int(np.min(made.selected)) >= made.update.size


def _unscored_exchange(schedule: Schedule, norm: float = math.nan) -> Exchange:
    """Return what is known of messages that no scheme made; norms of what was given and sent are not."""
    workers = schedule.n_ranks
    norms = np.full(workers, norm)
    stats: Stats = {
        "bytes_sent": schedule.bytes_sent(),
        "bytes_received": schedule.bytes_received(),
        **dict.fromkeys(("sent_norm", "given_norm", "residual_norm"), norms),
    }
    selected = np.zeros(workers, dtype=np.int64)
    return Exchange(np.zeros(0, dtype=np.float32), schedule, selected, (), 0, np.zeros(workers), stats)
