"""Exchange of an iteration: sparsifiers create the messages from gradients, and the network times the messages."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Adds, Floats, Values
from simnet.base.errors import StalledError
from simnet.base.rows import zeros_like
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile
from simnet.network import STACKS, Network, Stack, Timing
from simnet.network.program import Computing
from simnet.policies import Candidate
from simnet.schedule import Schedule
from simnet.sparsifier_models import Exchange, Sparsifier
from simnet.sparsifier_models.base import Stats
from simnet.traces.source import Training, begin_training
from simnet.training.job.checkpoint import State
from simnet.training.job.job import Bucket, Job, create_sparsifier, gradient_buckets, job_overlap
from simnet.training.job.local_costs import local_operations, scheme_hook
from simnet.training.job.record import DRAWN, Iteration
from simnet.training.job.spans import Span


class BucketExchange(NamedTuple):
    """Exchange of a gradient bucket: messages, kernels, and the time [s] from which each worker is `ready` for it."""

    schedule: Schedule
    kernels: Sequence[DeviceOp]
    ready: Floats
    dense: bool


def queue_buckets(
    buckets: Sequence[BucketExchange], device: DeviceProfile, stack: Stack
) -> tuple[list[tuple[Schedule, Floats]], Computing]:
    """Return the arguments with which `Network.time` times buckets: messages with start times, and workers' compute."""
    parts, select = [], []
    for one in buckets:
        selecting, between = device.work(one.kernels, one.schedule.n_ranks)
        parts.append((one.schedule.with_work(between), one.ready))
        select.append(selecting)
    side, slowdown = device.side_stream, collective_slowdown(device, stack)
    factors = [slowdown if one.dense else 1.0 for one in buckets]
    computing = Computing(np.stack(select), None if side is None else (side.compute, side.kernels), factors)
    return parts, computing


def collective_slowdown(device: DeviceProfile, stack: Stack) -> float:
    """Return the factor by which dense collectives slow a concurrent backward pass; 1 unless the stack is NCCL."""
    return device.beside_collectives.compute if device.beside_collectives and stack == STACKS["nccl"] else 1.0


def slows_backward(computing: Computing) -> bool:
    """Return whether kernels or collectives slow the backward pass that runs at the same time."""
    return computing.side_stream is not None or bool(np.any(np.asarray(computing.beside) != 1.0))


def exposed_after_backward(backward: float, select: ArrayLike, communicate: ArrayLike, buckets: int) -> Floats:
    """Return the seconds of communication after the backward pass, if equal buckets overlap the backward pass.

    A bucket's kernels take `select` seconds and delay the backward pass; its messages take `communicate` seconds.
    """
    select, communicate = np.asarray(select), np.asarray(communicate)
    # Either all are under way one after another from the first on, or the last bucket finds the others gone.
    first, last = backward / buckets + select + buckets * communicate, backward + buckets * select + communicate
    return np.asarray(np.maximum(first, last) - backward)


def total_communication(left: float, backward: float, select: float, buckets: int) -> float:
    """Return the communication time [s] of all (equal) buckets, given the `left` seconds after the backward pass."""
    # Either the last bucket finds the others gone, or all are under way one after another from the first on.
    return min(buckets * left, left + (backward + select) * (buckets - 1) / buckets)


TimingResult: TypeAlias = Timing | StalledError
"""Timing of an exchange, or the error of one that never completes."""


class TimingRequest(NamedTuple):
    """Request of a job for the time of an exchange: the network, and the arguments of `Network.time`."""

    network: Network
    parts: list[tuple[Schedule, Floats]]
    start: Floats
    options: dict[str, Any]

    def but(self, **options: Any) -> TimingRequest:
        """Return a copy of the request with other values for some options of `Network.time`."""
        return self._replace(options=self.options | options)


TimingRequests: TypeAlias = Generator[TimingRequest, TimingResult, None]
"""A running job as a generator: yields a timing request for each exchange, and receives the result."""


class TimedExchange(NamedTuple):
    """Exchange by one candidate (scheme and options), with its times.

    `exchanges` has one exchange per bucket. `select` and `slowed` are each worker's kernel seconds and backward-pass
    slowdown, shape (P',); `held` is the wait for late workers [s]. `begun` is the start of the iteration [s]. `spans`
    complete the timeline where messages do not show what workers do.
    """

    candidate: Candidate
    exchanges: list[Exchange]
    select: Floats
    slowed: Floats
    result: TimingResult
    begun: float
    spans: Sequence[Span] = ()
    held: Floats | float = 0.0

    @property
    def finish_order(self) -> tuple[bool, float]:
        """Sort key of exchange attempts: attempts that complete come before attempts that stall, then by duration."""
        return isinstance(self.result, StalledError), self.lasts

    @property
    def lasts(self) -> float:
        """Seconds from the start of the iteration until the last worker finishes or all workers stall."""
        if isinstance(self.result, Timing):
            return self.result.lasts_from(self.begun)
        assert self.result.elapsed is not None
        return self.result.elapsed + (self.result.origin - self.begun)


ExchangeProcess: TypeAlias = Generator[TimingRequest, TimingResult, TimedExchange]


def keep_fastest(
    attempts: Iterable[ExchangeProcess],
) -> Generator[TimingRequest, TimingResult, tuple[int, TimedExchange]]:
    """Run alternative exchanges in turn, and return the index and the result of the fastest exchange."""
    best: tuple[int, TimedExchange] | None = None
    for number, attempt in enumerate(attempts):
        step = yield from attempt
        if best is None or step.finish_order < best[1].finish_order:
            best = number, step
    assert best is not None, "a policy returned an empty shortlist"
    return best


class ExchangeSet:
    """Base class of objects that create and time a job's exchanges: by schemes, by a strategy, or in sharded steps."""

    training: Training

    def step(self, where: Iteration, shortlist: Sequence[Candidate]) -> ExchangeProcess:
        """Run and time an iteration's exchange with each candidate of the shortlist, and return the fastest one."""
        raise NotImplementedError

    def clear_residuals(self) -> None:
        """Set the error-feedback residuals, if any, to zero."""

    def without(self, gone: NDArray[np.bool_]) -> ExchangeSet:
        """Return the exchanges without the workers in the mask `gone`, in the state before the last exchange."""
        raise ValueError("a job of sharded steps does not go on without some of its workers")

    def apply(self, exchanges: Sequence[Exchange]) -> None:
        """Apply the update of a complete exchange. Some subclasses apply updates earlier and do nothing here."""

    def save(self) -> State:
        """Return the state that later iterations depend on, as a checkpoint stores it."""
        return {}

    def restore(self, state: State) -> None:
        """Restore a state returned by `save`; raise KeyError or ValueError for a state of another job."""


class SparsifierSet(ExchangeSet):
    """Sparsifiers of a job, one per candidate and bucket. All candidates share one error-feedback residual."""

    def __init__(
        self,
        job: Job,
        candidates: Sequence[Candidate],
        workers: int | None = None,
        residuals: Sequence[NDArray[np.float32]] | None = None,
        training: Training | None = None,
    ) -> None:
        self._job = job
        self.training: Training = begin_training(job.source) if training is None else training
        self._candidates = candidates
        self._overlap = job_overlap(job, candidates)
        self._buckets = gradient_buckets(job.source, self._overlap)
        self._models = {
            candidate.label: [create_sparsifier(candidate, one, job, workers) for one in self._buckets]
            for candidate in candidates
        }
        self._in_force: list[Sparsifier] | None = None
        self._residuals = residuals
        # What schemes keep beside residuals, of each candidate and bucket, where workers may fail.
        self._beside: dict[str, list[dict[str, Any]]] = {}
        # What stays dense has nothing to feed back.
        first = next((number for number, one in enumerate(self._buckets) if not one.dense), 0)
        check_feedback({label: models[first].options.error_feedback for label, models in self._models.items()})

    def without(self, gone: NDArray[np.bool_]) -> SparsifierSet:
        """Return new sparsifiers without the workers in the mask `gone`, with the residuals before the exchange."""
        kept = None if self._residuals is None else [one[~gone] for one in self._residuals]
        left = SparsifierSet(self._job, self._candidates, int((~gone).sum()), kept, self.training)
        for label, models in left._models.items():
            for model, beside in zip(models, self._beside.get(label, []), strict=False):
                for name, kept_there in beside.items():
                    setattr(model, name, kept_there[~gone])
        return left

    def _save_auxiliary_state(self) -> None:
        """Save the auxiliary state of schemes, to be restored if failures interrupt the exchange."""
        if self._job.failures:
            self._beside = {
                label: [{name: getattr(model, name) for name in model.traits.auxiliary_state} for model in models]
                for label, models in self._models.items()
            }

    def step(self, where: Iteration, shortlist: Sequence[Candidate]) -> ExchangeProcess:
        """Exchange an iteration's gradients with each candidate of the shortlist, and return the fastest exchange."""
        gradients = [self._gradients(where, shortlist)]
        in_force = self._in_force
        self._save_auxiliary_state()
        if in_force is not None:
            switches = any(self._models[one.label] is not in_force for one in shortlist)
            self._residuals = [model.residual for model in in_force] if switches or self._job.failures else None

        def attempt(candidate: Candidate, last: bool) -> ExchangeProcess:
            models = self._models[candidate.label]
            if self._residuals is not None and models is not in_force:
                for model, residual in zip(models, self._residuals, strict=True):
                    model.residual = residual
            # Nobody holds the gradients any more while the last is timed.
            exchanges = self._exchanged(models, gradients.pop() if last else gradients[0], where, overwrite=last)
            return (yield from self._timed(candidate, exchanges, where))

        _, best = yield from keep_fastest(attempt(one, one is shortlist[-1]) for one in shortlist)
        self._in_force = self._models[best.candidate.label]
        if not self._job.failures:
            self._residuals = None
        return best

    def clear_residuals(self) -> None:
        """Set the residuals to zero before the next exchange."""
        models = self._in_force or next(iter(self._models.values()))
        self._residuals, self._in_force = [zeros_like(model.residual) for model in models], None

    def of(self, candidate: Candidate) -> Sequence[Sparsifier]:
        """Return the sparsifiers of a candidate, one per gradient bucket."""
        return self._models[candidate.label]

    def _gradients(self, where: Iteration, shortlist: Sequence[Candidate]) -> Values | Adds:
        """Return an iteration's gradients or, for one dense bucket, a function that adds the gradients to an array."""
        (models, *others) = (self._models[one.label] for one in shortlist)
        if not others and len(models) == 1 and models[0].keeps and not models[0].traits.reads_gradients:
            adds = self.training.adding(where.batch, where.active)
            if adds is not None:
                return adds
        spare = self._in_force[0].spare() if self._in_force is not None and len(self._in_force) == 1 else None
        return self.training.gradients(where.batch, where.active, spare)

    def save(self) -> State:
        """Return the state of sparsifiers and training, as a checkpoint stores it."""
        sparsifiers = {label: [model.save() for model in models] for label, models in self._models.items()}
        for label, states in sparsifiers.items():
            if self._models[label] is not self._in_force:
                # A sparsifier that comes into force takes over the residual of its predecessor.
                for state in states:
                    state.pop("residual", None)
                    state["has_residual"] = np.array(False)
        in_force = next((label for label, models in self._models.items() if models is self._in_force), None)
        own = {"in_force": in_force, "residuals": self._residuals if in_force is None else None}
        return {**own, "sparsifiers": sparsifiers, "training": self.training.save()}

    def restore(self, state: State) -> None:
        """Restore sparsifiers and training from a state returned by `save`."""
        for label, states in state["sparsifiers"].items():
            for model, one in zip(self._models[label], states, strict=True):
                model.restore(one)
        self._in_force, self._residuals = self._models.get(state["in_force"]), state["residuals"]
        if self._in_force is not None and self._job.failures:
            self._residuals = [model.residual for model in self._in_force]
        self._save_auxiliary_state()
        self.training.restore(state["training"])

    def apply(self, exchanges: Sequence[Exchange]) -> None:
        """Apply the update of a complete exchange to the trained model."""
        if len(exchanges) == 1:
            self.training.apply(exchanges[0].update)
            return
        update = np.empty(self._job.source.parameters, dtype=np.float32)
        for bucket, exchange in zip(self._buckets, exchanges, strict=True):
            update[bucket.entries] = exchange.update
        self.training.apply(update)

    def _exchanged(
        self, models: Sequence[Sparsifier], gradients: Values | Adds, where: Iteration, *, overwrite: bool = False
    ) -> list[Exchange]:
        """Return the untimed exchanges of all buckets, and advance the state of the sparsifiers."""
        exchanges = []
        for bucket, model in zip(self._buckets, models, strict=True):
            model.density, model.iteration = where.density, where.batch
            given = gradients if len(models) == 1 or callable(gradients) else gradients[:, bucket.entries]
            exchange = model.exchange(given, overwrite=overwrite)
            exchange.kernels = local_operations(self._job.device, model, exchange)
            exchanges.append(exchange)
        return exchanges

    def _timed(self, candidate: Candidate, exchanges: list[Exchange], where: Iteration) -> ExchangeProcess:
        job = self._job
        backward = self._overlap.backward if self._overlap is not None else 0.0
        sent = [
            BucketExchange(
                exchange.schedule,
                exchange.kernels,
                # The last bucket is ready with the backward pass.
                where.complete
                if bucket.ready == 1.0
                else where.complete - (1.0 - bucket.ready) * backward * where.behind,
                dense=_is_dense_exchange(exchange, bucket, job.source.scale),
            )
            for bucket, exchange in zip(self._buckets, exchanges, strict=True)
        ]
        hook = scheme_hook(job.device, candidate.scheme)
        if hook is not None and hook.overlap == "blocking":
            sent = [_one_after_another(sent, where.complete)]
        return (yield from time_exchanges(job, candidate, exchanges, sent, where))


def time_exchanges(
    job: Job, candidate: Candidate, exchanges: list[Exchange], sent: Sequence[BucketExchange], where: Iteration
) -> ExchangeProcess:
    """Request the timing of an iteration's exchanges from the caller; return the exchanges with the resulting times.

    `sent` is in the order of readiness; the last bucket is ready when all compute is done.
    """
    network = job.network(where.number)
    parts, computing = queue_buckets(sent, job.device, network.stack)
    numbers = where.active.tolist()
    options = {
        "placement": where.placement,
        "messages": where.keeps_messages and sum(one.n_messages for one, _ in parts) <= DRAWN,
        "stream": where.stream,
        "deaths": {rank: where.failures[worker] for rank, worker in enumerate(numbers) if worker in where.failures},
        "origin": where.now,
        "computing": computing,
        # Connections are silent while workers compute, unless these measure the links.
        "silence": 0.0 if where.probes else max(0.0, float(np.min(parts[0][1]))),
    }
    result = yield TimingRequest(network, parts, where.complete - where.behind, options)
    if isinstance(result, StalledError):
        if not result.failed:
            raise result
        select, slowed = np.sum(computing.select, axis=0), np.zeros(len(numbers))
    else:
        assert result.computed is not None
        slowed = result.computed.slices - where.behind if slows_backward(computing) else np.zeros(len(numbers))
        select = result.computed.done - (where.complete + slowed) + (result.origin - where.now)
    return TimedExchange(candidate, exchanges, select, slowed, result, where.now)


def _is_dense_exchange(exchange: Exchange, bucket: Bucket, scale: float) -> bool:
    """Return whether all entries of a bucket are sent, with at least two bytes for each, as in a dense all-reduce."""
    entries: int = bucket.entries.stop - bucket.entries.start
    sent = float(np.mean(exchange.stats["bytes_sent"]))
    return bool(np.min(exchange.selected) >= entries) and sent >= 2.0 * scale * entries


def _one_after_another(sent: Sequence[BucketExchange], ready: Floats) -> BucketExchange:
    """Join the exchanges of all buckets into one that starts at `ready`, for DDP hooks that block the backward pass."""
    kernels: list[DeviceOp] = []
    rounds = 0
    for one in sent:
        kernels += [kernel._replace(before=kernel.before + rounds) for kernel in one.kernels]
        rounds += len(one.schedule.rounds)
    first, *rest = (one.schedule for one in sent)
    return BucketExchange(first.concat(*rest), kernels, ready, all(one.dense for one in sent))


def messages_alone(schedule: Schedule, sent: Floats, received: Floats, norm: float = math.nan) -> Exchange:
    """Return an exchange with messages but no selection; workers have bytes `sent` and `received`, and norms `norm`."""
    stats: Stats = {"bytes_sent": sent, "bytes_received": received}
    stats |= dict.fromkeys(("sent_norm", "given_norm", "residual_norm"), np.full(sent.size, norm))
    selected = np.zeros(sent.size, dtype=np.int64)
    return Exchange(np.zeros(0, dtype=np.float32), schedule, selected, (), 0, np.zeros(sent.size), stats)


def check_feedback(feedback: Mapping[str, bool]) -> None:
    """Raise ValueError if some exchanges have error feedback and others do not; `feedback` is by exchange label."""
    if len(set(feedback.values())) > 1:
        with_it = ", ".join(label for label, has in feedback.items() if has)
        without = ", ".join(label for label, has in feedback.items() if not has)
        raise ValueError(
            f"cannot switch between exchanges with error feedback ({with_it}) and without ({without}): the residual of "
            "the former would be lost"
        )
