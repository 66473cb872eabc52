"""Compute time and samples of an iteration of a scenario's job."""

from __future__ import annotations

from dataclasses import replace

from simnet.cost_models.costs import models
from simnet.cost_models.costs.computing import PassTime, SampleCount, batch_samples, pass_time
from simnet.cost_models.costs.devices import DeviceProfile
from simnet.cost_models.costs.layers import Layer
from simnet.cost_models.costs.models import ModelProfile
from simnet.scenario import schema

# Options by which workers share a batch, or have several.
_WAYS = ("tensor_parallel", "pipeline", "microbatches")


def model_profile(given: schema.Job) -> ModelProfile | None:
    """Return the model of a job, with its tokens; None where only its size is known. ValueError: no such model."""
    if given.model is not None:
        profile = models.load_model(given.model)
        if given.tokens in (None, profile.tokens):
            return profile
        return replace(profile, sample="sequence", tokens=given.tokens, operations=0.0, times=())
    if given.parameters is None or given.tokens is None:
        return None
    name, layers = f"{given.parameters:,} parameters", (Layer("all", (given.parameters,)),)
    return ModelProfile(name, layers, (), "parameters", sample="sequence", tokens=given.tokens)


def model_computing(given: schema.Job, device: DeviceProfile) -> PassTime | None:
    """Return the compute time of the model on a device; None where only its size is known.

    Raises ValueError if there is no such model, or nothing says how long it computes there.
    """
    profile = model_profile(given)
    return None if profile is None else pass_time(profile, device, given.batch, given.precision)


def iteration_samples(given: schema.Job, workers: int, known: PassTime | None) -> SampleCount | None:
    """Return the samples of all workers in an iteration, or in an inner step; None if not known.

    It is not known where workers come and go, or share a batch.
    """
    if given.deaths or given.absences or given.churn or given.deadline:
        return None
    for one in given.shardings.values():
        if one.way is None or {one.options.get(name, 1) for name in _WAYS} != {1}:
            return None
    trained = given.gradients.train
    batch = given.batch if trained is None else trained.batch
    batch = batch or (0 if known is None else known.batch)
    return batch_samples(model_profile(given), workers * batch) if batch else None
