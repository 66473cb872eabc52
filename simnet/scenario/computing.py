"""How long the workers of a scenario's job compute, and what they go through meanwhile."""

from __future__ import annotations

from dataclasses import replace

from simnet.costs import models
from simnet.costs.computing import Computing, Samples, computing, samples
from simnet.costs.devices import DeviceProfile
from simnet.costs.models import Layer, ModelProfile
from simnet.scenario import schema

# Options by which workers share a batch, or have several.
_WAYS = ("tensor_parallel", "pipeline", "microbatches")


def model_profile(given: schema.Job) -> ModelProfile | None:
    """Return the model of a job, with the tokens that it says; None where nothing is known but its size.

    Parameters
    ----------
    given : Job
        The job.

    Raises
    ------
    ValueError
        If there is no such model.
    """
    if given.model is not None:
        profile = models.model(given.model)
        if given.tokens in (None, profile.tokens):
            return profile
        return replace(profile, sample="sequence", tokens=given.tokens, operations=0.0, times=())
    if given.parameters is None or given.tokens is None:
        return None
    name, layers = f"{given.parameters:,} parameters", (Layer("all", (given.parameters,)),)
    return ModelProfile(name, layers, (), "parameters", sample="sequence", tokens=given.tokens)


def model_computing(given: schema.Job, device: DeviceProfile) -> Computing | None:
    """Return how long the model of a job computes on a device; None where only its size is known.

    Parameters
    ----------
    given : Job
        The job.
    device : DeviceProfile
        What it runs on.

    Raises
    ------
    ValueError
        If there is no such model, or nothing says how long it computes there.
    """
    profile = model_profile(given)
    return None if profile is None else computing(profile, device, given.batch, given.precision)


def iteration_samples(given: schema.Job, workers: int, known: Computing | None) -> Samples | None:
    """Return what all workers go through in an iteration, or in an inner step; None where that is not known.

    Parameters
    ----------
    given : Job
        The job; where workers come and go, or do not each have a batch of their own, nothing is said.
    workers : int
        How many there are.
    known : Computing or None
        What is known of its model on its device, if that is for how long they compute.
    """
    if given.deaths or given.absences or given.churn or given.deadline:
        return None
    for one in given.shardings.values():
        if one.way is None or {one.options.get(name, 1) for name in _WAYS} != {1}:
            return None
    trained = given.gradients.train
    batch = given.batch if trained is None else trained.batch
    batch = batch or (0 if known is None else known.batch)
    return samples(model_profile(given), workers * batch) if batch else None
