"""Compute time of workers in a scenario: device profile, model passes, and sharded steps."""

from __future__ import annotations

from dataclasses import replace

from simnet.cost_models.costs import hooks, models
from simnet.cost_models.costs.computing import PassTime, SampleCount, batch_samples, known_chips, pass_time
from simnet.cost_models.costs.devices import DEFAULT_DEVICE, GLOO_DEVICE, DeviceProfile, load_device, usable_devices
from simnet.cost_models.costs.models import Layer, ModelProfile
from simnet.interchange.kinds import trace_prefix
from simnet.network.stack import stack_of
from simnet.scenario import network_parts, schema
from simnet.scenario.job_parts import Sharding
from simnet.scenario.loader import Findings
from simnet.scenario.topology_parts import calibrated_stack
from simnet.training.parallel.graph import describe_slowdown
from simnet.training.parallel.plan import TrainingSteps, model_steps
from simnet.training.parallel.traced import read_traced_step
from simnet.training.parallel.units import profile_of_units

# Options by which workers share a batch, or have several.
_WAYS = ("tensor_parallel", "pipeline", "microbatches")


def sending_stack(network: network_parts.Network) -> str | None:
    """Return the name of the network's transport stack, or of the stack it derives from; None if unnamed."""
    given = network.stack
    name = given.like if isinstance(given, network_parts.Stack) else given
    return name or calibrated_stack(network.topology)


def default_device(stack: str | None, chip: str = "") -> str:
    """Return the name of the default device profile for a transport stack and, if one exists, for a chip.

    Examples
    --------
    >>> default_device("gloo"), default_device("tcp"), default_device(None, "H100 SXM")
    ('cpu-torch2.13', 'v100-torch2.6', 'h100-torch2.6')
    """
    known = [name for name, one in usable_devices().items() if one.chip == chip] if chip else []
    return GLOO_DEVICE if stack == "gloo" else known[-1] if known else DEFAULT_DEVICE


def stack_doubt(device: DeviceProfile, stack: str | None) -> str | None:
    """Return why a device and a transport stack do not fit together, such as a CPU and NCCL; None if they fit.

    Examples
    --------
    >>> stack_doubt(load_device("cpu"), "nccl")
    'Device cpu and stack nccl do not belong together: NCCL sends between GPUs, and this is a CPU.'
    """
    kind = known_chips()[device.chip].kind if device.chip in known_chips() else None
    why = {
        ("gpu", "gloo"): f"gloo sends from PyTorch's CPU tensors; its own device is {GLOO_DEVICE}",
        ("cpu", "nccl"): "NCCL sends between GPUs, and this is a CPU",
    }.get((kind or "", stack or ""))
    return why and f"Device {device.name} and stack {stack} do not belong together: {why}."


def default_implementation(stack: str | None) -> str:
    """Return the default implementation of schemes: PyTorch hooks for NCCL, RCCL and gloo, otherwise fused kernels."""
    return hooks.FRAMEWORK if stack in ("nccl", "rccl", "gloo") else hooks.FUSED


def build_device(given: schema.Job, found: Findings) -> DeviceProfile | None:
    """Return the device profile that a job names, set to the job's kernel implementation; None if there are errors."""
    name, how = given.device or DEFAULT_DEVICE, given.implementation
    device = found.attempt(("job", "device"), load_device, name)
    if device is None or how in (None, hooks.FUSED):
        return device
    with found.at("job", "implementation"):
        hooks.check_implementation(how)
    return replace(device, implementation=how)


def slowdown_of(device: DeviceProfile | None) -> float:
    """Return the factor, >= 1, by which computation slows on a device while a collective runs there."""
    beside = None if device is None else device.beside_collectives
    return 1.0 if beside is None else max(beside.compute, 1.0)


def describe_device_slowdown(device: DeviceProfile | None, slowdown: float) -> str:
    """Return text on how much collectives slow compute on a device, with the source of the figure."""
    beside = None if device is None else device.beside_collectives
    if beside is None or slowdown != slowdown_of(device):
        return describe_slowdown(slowdown)
    least = f"{beside.compute:.3g} times is taken as 1; " if beside.compute < 1 else ""
    times = "as long beside collectives as alone" if slowdown == 1 else describe_slowdown(slowdown)
    return f"{times} ({least}device profile: {beside.source})"


def model_profile(given: schema.Job) -> ModelProfile | None:
    """Return a job's model profile; None if only the model's size is given; ValueError for an unknown model."""
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
    """Return the compute time of the job's model on a device; None if only the model's size is known.

    Raises ValueError if there is no such model, or nothing says how long it computes there.
    """
    profile = model_profile(given)
    return None if profile is None else pass_time(profile, device, given.batch, given.precision)


def iteration_samples(given: schema.Job, workers: int, known: PassTime | None) -> SampleCount | None:
    """Return how many samples all workers process in an iteration or inner step; None if unknown.

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


def model_of(job: schema.Job) -> ModelProfile:
    """Return the profile of a sharded job's model, given by name or as listed units; ValueError if unknown."""
    if job.model is not None:
        return models.load_model(job.model)
    return profile_of_units(next(iter(job.shardings.values())).listed)


def build_steps(config: schema.Config, found: Findings) -> dict[str, TrainingSteps] | None:
    """Return the training steps of each sharding by label; None without sharding or on errors."""
    built: dict[str, TrainingSteps] = {}
    for label, one in config.job.shardings.items():
        with found.at(*config.job.sharding_at(label)):
            built[label] = _build_steps(config, one)
    return built if built and len(built) == len(config.job.shardings) else None


def _build_steps(config: schema.Config, given: Sharding) -> TrainingSteps:
    if given.trace is not None:
        stack = config.network.arguments().get("stack") or calibrated_stack(config.network.topology) or "ideal"
        step = read_traced_step(trace_prefix(given.trace), eager_limit=stack_of(stack).rendezvous_above)
        if step.graph.workers != config.workers:
            raise ValueError(
                f"the traces are of {step.graph.workers:,} ranks, and there are {config.workers:,} workers"
            )
        return TrainingSteps(lambda iteration: step, given.algorithms, given.slowdown or 1.0)
    assert given.way is not None
    step_of = model_steps(
        model_of(config.job), given.way, config.workers, given.options, backward=given.backward, seed=config.seed
    )
    return TrainingSteps(step_of, given.algorithms, given.slowdown or 1.0)
