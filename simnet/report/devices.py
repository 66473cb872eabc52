"""Device profiles for people and programs: name, what the device is, and how the costs of its kernels are known."""

from __future__ import annotations

from collections import Counter

from typing_extensions import TypedDict

from simnet.costs.devices import DeviceProfile


class DeviceSummary(TypedDict):
    """The device of a run; `known` counts its kernels by how their costs are known."""

    name: str
    what: str
    known: dict[str, int]


def condensed(device: DeviceProfile) -> DeviceSummary:
    """Return what a summary holds of a device.

    Examples
    --------
    >>> from simnet.costs.devices import load_device
    >>> condensed(load_device("ideal"))
    {'name': 'ideal', 'what': 'no device; selecting costs nothing', 'known': {'measured': 1}}
    """
    known = Counter(method.known for method in device.methods.values())
    return {"name": device.name, "what": device.device, "known": dict(sorted(known.items()))}


def told(device: DeviceSummary) -> str:
    """Return a device in a few words.

    Examples
    --------
    >>> from simnet.costs.devices import load_device
    >>> told(condensed(load_device("v100-torch1.5")))
    'v100-torch1.5 (NVIDIA V100, PyTorch 1.5, ...; of its kernels 6 estimated, 2 measured, 4 scaled)'
    """
    known = ", ".join(f"{count} {how}" for how, count in device["known"].items())
    return f"{device['name']} ({device['what']}; of its kernels {known})"
