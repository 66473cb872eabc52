"""Memory of a worker without activations: parameters, gradients, optimiser, scheme and messages.

It is that of the objects of the job after exchanges of its first gradients at the largest density.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import FLOAT_BYTES
from simnet.base.rng import stream
from simnet.policies import Candidate
from simnet.sparsifier_models import Sparsifier
from simnet.sparsifier_models.wire import under_way
from simnet.strategies import Strategy
from simnet.traces.source import Evaluable, ThinnedSource, begin_training, cached_source
from simnet.training.job.job import Job, create_sparsifier, job_buckets, job_overlap
from simnet.training.job.local_steps import StepSet, start_strategy

MOMENTS: Mapping[str, int] = {"adam": 2, "momentum": 1, "sgd": 0}
"""Number of float32 moments per parameter that each optimiser stores."""

# Limit on gradients [byte] held in one process when workers run in other processes.
_HERE = 2**30

# Entries of a bucket from twice which on the memory of its scheme is measured on a sample of them.
_MEASURED = 2**20

# Entries of gradients that are drawn where any will do; then they come again.
_DRAWN = 2**16


class WorkerMemory(NamedTuple):
    """Peak memory of a worker by part [byte], without activations and the allocator's overhead.

    `outer` are a strategy's global parameters, `in_flight` a strategy's undelivered messages or the peak buffers of
    sharded steps; `received` are messages that arrive together.
    """

    parameters: float
    gradients: float
    optimizer: float
    residual: float = 0.0
    state: float = 0.0
    masks: float = 0.0
    outer: float = 0.0
    in_flight: float = 0.0
    received: float = 0.0

    @property
    def peak(self) -> float:
        """Sum of all parts [byte]."""
        return float(sum(self))


def exchange_memory(job: Job, candidate: Candidate, exchanges: Sequence[Candidate] = ()) -> WorkerMemory:
    """Return the memory of a worker in exchanges by one candidate, in a job that also has the other `exchanges`."""
    if job.strategy is not None:
        return _under_strategy(job, candidate)
    if job.steps is not None:
        step = StepSet(job, [candidate]).first().memory()
        held = step.parameters, step.gradients, step.optimizer
        return WorkerMemory(*held, in_flight=step.peak - sum(held))
    workers, taken = job.source.workers, []
    gradients: NDArray[np.float32] | None = None
    for bucket in job_buckets(job, exchanges or [candidate]):
        part = job
        entries: slice | NDArray[np.int64] = bucket.entries
        if (every := (bucket.entries.stop - bucket.entries.start) // _MEASURED) > 1:
            # What a scheme holds of a sample stands for the whole, as in a job with `scale`.
            thinned = ThinnedSource(job.source, bucket.layers, every)
            part, entries = replace(job, source=thinned), thinned.entries
            bucket = bucket._replace(entries=slice(0, thinned.parameters), layers=slice(None))
        model = create_sparsifier(candidate, bucket, part)
        model.density = job.largest_density
        if has_fixed_size(model):
            rows = _any_rows(workers, model.parameters)
        else:
            if gradients is None:
                gradients = begin_training(job.source).gradients(0, np.arange(workers))
            rows = gradients[:, entries]
        taken.append(scheme_memory(model, rows))
    return combine_memory(FLOAT_BYTES * job.source.true_parameters, job.optimizer or "adam", taken)


def is_measurable(job: Job, *, elsewhere: bool) -> bool:
    """Return whether this process can measure a job's memory: gradients in other processes must not exceed 1 GiB."""
    return not elsewhere or FLOAT_BYTES * job.source.workers * job.source.parameters <= _HERE


def with_shared_gradients(job: Job) -> Job:
    """Return the job with its first gradients cached, so that several `exchange_memory` calls share them."""
    return replace(job, source=cached_source(job.source, 1))


def combine_memory(gradient: float, optimizer: str, schemes: Iterable[WorkerMemory]) -> WorkerMemory:
    """Return a worker's memory, summed over its schemes, with optimiser moments unless a scheme already stores them."""
    each = [WorkerMemory(0.0, 0.0, 0.0), *schemes]
    whole = WorkerMemory(*np.sum(each, axis=0).tolist())
    return whole._replace(
        parameters=gradient,
        gradients=gradient,
        optimizer=whole.optimizer or MOMENTS[optimizer] * gradient,
        received=max(one.received for one in each),
    )


def scheme_memory(model: Sparsifier, rows: NDArray[np.float32]) -> WorkerMemory:
    """Run a scheme once on gradients `rows`, (P, n), or twice if its volume varies, and return the memory it uses."""
    received, whole = 0.0, FLOAT_BYTES * model.parameters * model.options.scale
    # A copy of the first gradients becomes the residual, if there is one, and the second are added to it in place.
    twice = not has_fixed_size(model)
    adds = twice and model.keeps
    first = rows.copy() if adds else rows
    for given in (first, rows) if twice else (first,):
        made = model.exchange(given, overwrite=adds)
        received = max(received, float(under_way(made.schedule, made.kernels, whole).max()))
    held, arrays = model.held_bytes(), model.save()
    residual = held.pop("residual", 0.0)
    moments = sum(held.pop(name, 0.0) for name in model.traits.moments)

    def is_mask(array: NDArray[np.generic]) -> bool:
        # A flag for each entry, in contrast to one for each worker.
        return array.dtype == np.bool_ and array.shape[-1] >= model.parameters

    masks = sum(held.pop(name) for name in list(held) if name in arrays and is_mask(arrays[name]))
    return WorkerMemory(0.0, 0.0, moments, residual, sum(held.values()), masks, received=received)


def has_fixed_size(model: Sparsifier) -> bool:
    """Return whether a scheme's messages and state have the same size for all gradients and exchanges."""
    return model.traits.fixed_volume and model.traits.is_restartable


def _any_rows(workers: int, parameters: int) -> NDArray[np.float32]:
    """Return random gradients that are cheap to make and equal for all workers, shape (P, n)."""
    some = stream(0, "memory").standard_normal(min(parameters, _DRAWN), dtype=np.float32)
    return np.broadcast_to(np.resize(some, parameters), (workers, parameters))


def candidates_memory(job: Job, candidates: Sequence[Candidate], known: dict[str, WorkerMemory]) -> WorkerMemory:
    """Return the memory of the candidate with the highest peak. `known` caches results by label."""
    for one in candidates:
        if one.label not in known:
            known[one.label] = exchange_memory(job, one)
    if any(job_overlap(job, [one]) != job_overlap(job, candidates) for one in candidates):
        return max((exchange_memory(job, one, candidates) for one in candidates), key=lambda found: found.peak)
    return max((known[one.label] for one in candidates), key=lambda found: found.peak)


def _under_strategy(job: Job, candidate: Candidate) -> WorkerMemory:
    """Return a worker's memory under the job's training strategy, as held by the arrays of a fresh strategy object."""
    own, source = job.strategy, job.source
    assert own is not None
    strategy = start_strategy(source, own, candidate, job.seed)
    held = strategy.held_bytes()
    parameters = held.pop("local")
    optimizer = sum(held.pop(name) for name in list(held) if name.startswith("inner."))
    outer = sum(held.pop(name) for name in list(held) if name == "master" or name.startswith("outer."))
    # What is added up over inner steps takes the place of a gradient.
    held.pop("sum", 0.0)
    gradients = source.gradients_at(strategy.local, 0) if isinstance(source, Evaluable) else source.gradients(0)
    for model in strategy.schemes:
        model.density = job.largest_density
    masks, received = _step_memory(strategy, gradients) if strategy.steps == 1 else (0.0, 0.0)
    # How much is sent hardly depends on which entries they are.
    taken = [scheme_memory(one, np.ascontiguousarray(gradients[:, : one.parameters])) for one in strategy.schemes]
    scheme = combine_memory(FLOAT_BYTES * source.true_parameters, "sgd", taken)
    return scheme._replace(
        parameters=parameters,
        optimizer=optimizer + scheme.optimizer,
        masks=scheme.masks + masks,
        outer=outer,
        in_flight=sum(held.values()),
        received=max(scheme.received, received),
    )


def _step_memory(strategy: Strategy, gradients: NDArray[np.float32]) -> tuple[float, float]:
    """Return two byte counts of an inner step: masks sent, and the largest receive buffer of unsparsified exchanges."""
    masks = received = 0.0
    for sync in strategy.step(gradients).syncs:
        if sync.what == "masks":
            masks += sync.payload
        elif sync.scheme is None:
            whole = FLOAT_BYTES * strategy.replicas.parameters * strategy.replicas.scale
            received = max(received, float(under_way(sync.schedule, sync.kernels, whole).max(initial=0.0)))
    return masks, received
