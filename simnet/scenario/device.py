"""The device profile of a scenario's job, shipped or of a file."""

from __future__ import annotations

from pathlib import Path

from simnet.cost_models.costs.computing import known_chips
from simnet.cost_models.costs.devices import DEFAULT_DEVICE, GLOO_DEVICE, DeviceProfile, load_device
from simnet.scenario import network_parts, schema
from simnet.scenario.fields import is_file
from simnet.scenario.loader import Findings
from simnet.scenario.topology import calibrated_stack
from simnet.training.parallel.graph import describe_slowdown


def sending_stack(network: network_parts.Network, folder: Path) -> str | None:
    """Return the name of the transport stack, or of the one it is like; None if a file does not name it."""
    given = network.stack
    name = given.like if isinstance(given, network_parts.Stack) else given
    return name or calibrated_stack(network.topology, folder)


def default_device(stack: str | None) -> str:
    """Return the default device profile for a transport stack.

    Examples
    --------
    >>> default_device("gloo"), default_device("tcp")
    ('cpu-torch2.13', 'v100-torch2.6')
    """
    return GLOO_DEVICE if stack == "gloo" else DEFAULT_DEVICE


def stack_doubt(device: DeviceProfile, stack: str | None) -> str | None:
    """Return why a device and a transport stack do not belong together; None if they may.

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


def build_device(given: schema.Job, folder: Path, found: Findings) -> DeviceProfile | None:
    """Return the device profile of a job; None if it is wrong."""
    with found.at("job", "device"):
        name = given.device or DEFAULT_DEVICE
        return load_device(folder / name if is_file(name) else name)
    return None


def slowdown_of(device: DeviceProfile | None) -> float:
    """Return the slowdown of computing while collectives run, at least 1."""
    beside = None if device is None else device.beside_collectives
    return 1.0 if beside is None else max(beside.compute, 1.0)


def slowdown_told_of(device: DeviceProfile | None, slowdown: float) -> str:
    """Describe the slowdown of computing while collectives run, with its source."""
    beside = None if device is None else device.beside_collectives
    if beside is None or slowdown != slowdown_of(device):
        return describe_slowdown(slowdown)
    least = f"{beside.compute:.3g} times is taken as 1; " if beside.compute < 1 else ""
    times = "as long beside collectives as alone" if slowdown == 1 else describe_slowdown(slowdown)
    return f"{times} ({least}device profile: {beside.source})"
