"""What a job takes of a worker's device beside activations: parameters, gradients, optimiser, scheme and messages.

State is that of the objects that a job exchanges with, after exchanges of its first gradients at its largest density;
messages are those of the same exchanges. Where sizes alone decide what is sent, other gradients do as well. Where a job
runs on a sample, both count for the whole model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.rng import stream
from simnet.job.job import Job, create_sparsifier, job_buckets, job_overlap
from simnet.job.local_steps import start_strategy
from simnet.job.steps import StepSet
from simnet.policies import Candidate
from simnet.sparsifier_models import Sparsifier
from simnet.sparsifier_models.held import under_way
from simnet.strategies import Strategy
from simnet.traces.source import Evaluable, begun, shared

MOMENTS: Mapping[str, int] = {"adam": 2, "momentum": 1, "sgd": 0}
"""How many moments optimisers remember of each parameter, in single precision."""

_FLOAT = 4.0

_HERE = 2**30
"""Bytes of gradients up to which they are had in one place, where workers live elsewhere."""

# Entries of gradients that are drawn where any will do; then they come again.
_DRAWN = 2**16


class WorkerMemory(NamedTuple):
    """The most that a worker holds at once [byte]; activations, and what an allocator adds, are left out.

    Parameters
    ----------
    parameters, gradients : float
        Of the model, in single precision.
    optimizer : float
        What the optimiser remembers.
    residual : float
        What the scheme has kept back.
    state : float
        What else it holds from one exchange to the next.
    masks : float
        Which entries take part, an entry a byte.
    outer : float
        Under a strategy the global parameters, and what their optimiser remembers.
    in_flight : float
        Under a strategy, what has been taken and has not arrived; in sharded steps the most that is gathered and waits
        to be reduced at a time.
    received : float
        The most of messages that is there at once; see `simnet.sparsifier_models.held.under_way`.
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
        """All together."""
        return float(sum(self))


class MemoryUse(NamedTuple):
    """What the scheme of an exchange takes [byte]; as of `WorkerMemory`, with the moments of an optimiser in it."""

    residual: float
    state: float
    masks: float
    moments: float
    received: float


def exchange_memory(job: Job, candidate: Candidate, exchanges: Sequence[Candidate] = ()) -> WorkerMemory:
    """Return what a worker of a job holds that exchanges in one way.

    Parameters
    ----------
    job : Job
        The job.
    candidate : Candidate
        The exchange.
    exchanges : sequence of Candidate
        Those with which it takes turns, itself included; it alone when omitted.

    Raises
    ------
    ValueError
        If its options do not fit the job.
    """
    if job.strategy is not None:
        return _under_strategy(job, candidate)
    if job.steps is not None:
        step = StepSet(job, [candidate]).first().memory()
        held = step.parameters, step.gradients, step.optimizer
        return WorkerMemory(*held, in_flight=step.peak - sum(held))
    density = max(max(ramp.start, ramp.end) for ramp in job.density)
    workers, taken = job.source.workers, []
    gradients: NDArray[np.float32] | None = None
    for bucket in job_buckets(job, exchanges or [candidate]):
        model = create_sparsifier(candidate, bucket, job)
        model.density = density
        if _has_fixed_size(model):
            rows = _any_rows(workers, model.parameters)
        else:
            if gradients is None:
                gradients = begun(job.source).gradients(0, np.arange(workers))
            rows = gradients[:, bucket.entries]
        taken.append(scheme_memory(model, rows))
    return combine_memory(_FLOAT * job.source.true_parameters, job.optimizer or "adam", taken)


def is_measurable(job: Job, *, elsewhere: bool) -> bool:
    """Return whether what a worker of a job holds can be measured where the command runs.

    Parameters
    ----------
    job : Job
        The job.
    elsewhere : bool
        Whether its workers live on other machines, so that gradients of all may be too much for this one.
    """
    return not elsewhere or _FLOAT * job.source.workers * job.source.parameters <= _HERE


def with_shared_gradients(job: Job) -> Job:
    """Return a job for whose exchanges `exchange_memory` makes the gradients once.

    Parameters
    ----------
    job : Job
        The job.
    """
    return replace(job, source=shared(job.source, 1))


def combine_memory(gradient: float, optimizer: str, taken: Iterable[MemoryUse]) -> WorkerMemory:
    """Return what a worker holds, given what its schemes take, one after another.

    Parameters
    ----------
    gradient : float
        Bytes of the gradient, and of the parameters.
    optimizer : str
        One of `MOMENTS`, unless a scheme has moments of its own.
    taken : iterable of MemoryUse
        What the scheme of each part of the gradient takes.
    """
    each = list(taken)
    residual, state, masks, moments, _ = np.sum(each, axis=0).tolist() if each else [0.0] * 5
    received = max((one.received for one in each), default=0.0)
    return WorkerMemory(
        gradient, gradient, moments or MOMENTS[optimizer] * gradient, residual, state, masks, received=received
    )


def scheme_memory(model: Sparsifier, rows: NDArray[np.float32]) -> MemoryUse:
    """Return what a scheme takes after an exchange, or two where the first is of another kind or what is sent varies.

    Parameters
    ----------
    model : Sparsifier
        The scheme.
    rows : ndarray of float32, shape (P, n)
        What it exchanges.
    """
    received, whole = 0.0, _FLOAT * model.parameters * model.options.scale
    for _ in range(1 if _has_fixed_size(model) else 2):
        made = model.exchange(rows)
        received = max(received, float(under_way(made.schedule, made.kernels, whole).max()))
    held, arrays = model.held_bytes(), model.save()
    residual = held.pop("residual", 0.0)
    moments = sum(held.pop(name, 0.0) for name in model.moments)
    # A flag for each entry, in contrast to one for each worker.
    masks = sum(held.pop(name) for name in list(held) if name in arrays and _is_mask(arrays[name], model.parameters))
    return MemoryUse(residual, sum(held.values()), masks, moments, received)


def _has_fixed_size(model: Sparsifier) -> bool:
    """Return whether what an exchange sends, and leaves, is as much whatever the gradients, and whichever exchange."""
    return model.fixed_volume and model.restarts


def _any_rows(workers: int, parameters: int) -> NDArray[np.float32]:
    """Return gradients, one for all workers, that cost less to make than those of a job; shape (P, n)."""
    some = stream(0, "memory").standard_normal(min(parameters, _DRAWN), dtype=np.float32)
    return np.broadcast_to(np.resize(some, parameters), (workers, parameters))


def _is_mask(array: NDArray[np.generic], parameters: int) -> bool:
    return array.dtype == np.bool_ and array.shape[-1] >= parameters


def candidates_memory(job: Job, candidates: Sequence[Candidate], known: dict[str, WorkerMemory]) -> WorkerMemory:
    """Return what a worker holds that takes now this exchange and now that: of the one that takes the most.

    Parameters
    ----------
    job : Job
        The job.
    candidates : sequence of Candidate
        The exchanges.
    known : dict of str to WorkerMemory
        What is known of exchanges, by label; takes what is found.
    """
    for one in candidates:
        if one.label not in known:
            known[one.label] = exchange_memory(job, one)
    if any(job_overlap(job, [one]) != job_overlap(job, candidates) for one in candidates):
        return max((exchange_memory(job, one, candidates) for one in candidates), key=lambda found: found.peak)
    return max((known[one.label] for one in candidates), key=lambda found: found.peak)


def _under_strategy(job: Job, candidate: Candidate) -> WorkerMemory:
    """Return what a worker holds that trains by a strategy, whose optimisers are what they are."""
    own, source = job.strategy, job.source
    assert own is not None
    strategy = start_strategy(source, own.name, own.options, candidate, seed=job.seed, bucket=own.bucket)
    held = strategy.held_bytes()
    parts = {"parameters": 0.0, "optimizer": 0.0, "outer": 0.0, "in_flight": 0.0}
    for name, nbytes in held.items():
        parts[_memory_part(name)] += nbytes
    # What is added up over inner steps takes the place of a gradient.
    parts["in_flight"] -= held.get("sum", 0.0)
    density = max(max(ramp.start, ramp.end) for ramp in job.density)
    gradients = source.gradients_at(strategy.local, 0) if isinstance(source, Evaluable) else source.gradients(0)
    for model in strategy.schemes:
        model.density = density
    masks, received = _step_memory(strategy, gradients) if strategy.steps == 1 else (0.0, 0.0)
    # How much is sent hardly depends on which entries they are.
    taken = [scheme_memory(one, np.ascontiguousarray(gradients[:, : one.parameters])) for one in strategy.schemes]
    scheme = combine_memory(_FLOAT * source.true_parameters, "sgd", taken)
    return scheme._replace(
        parameters=parts["parameters"],
        optimizer=parts["optimizer"] + scheme.optimizer,
        masks=scheme.masks + masks,
        outer=parts["outer"],
        in_flight=parts["in_flight"],
        received=max(scheme.received, received),
    )


def _memory_part(name: str) -> str:
    """Return what an array of a strategy is part of."""
    if name == "local":
        return "parameters"
    if name.startswith("inner."):
        return "optimizer"
    return "outer" if name == "master" or name.startswith("outer.") else "in_flight"


def _step_memory(strategy: Strategy, gradients: NDArray[np.float32]) -> tuple[float, float]:
    """Return the bytes of masks of all tensors that come in an inner step, and the most of messages of no scheme."""
    masks = received = 0.0
    for sync in strategy.step(gradients).syncs:
        if sync.what == "masks":
            masks += sync.payload
        elif sync.scheme is None:
            whole = _FLOAT * strategy.replicas.parameters * strategy.replicas.scale
            received = max(received, float(under_way(sync.schedule, sync.kernels, whole).max(initial=0.0)))
    return masks, received
