"""A device: what the kernels of a sparsifier cost on it."""

from __future__ import annotations

from simnet.cost_models.costs.devices import DeviceProfile, KernelMethod


def npu() -> DeviceProfile:
    """Return the profile of an accelerator whose memory streams 2 TB/s."""
    methods = {
        "topk": KernelMethod(launch=50e-6, bytes_per_entry=32, source="made up"),
        "*": KernelMethod(launch=5e-6, bytes_per_entry=8, source="made up"),
    }
    return DeviceProfile("npu", "an accelerator that nobody has built", "made up", 2e12, methods)
