"""Device profiles for people and programs: name, what the device is, and how the costs of its kernels are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NotRequired

from typing_extensions import TypedDict

from simnet.costs.devices import DeviceOp, DeviceProfile


class DeviceSummary(TypedDict):
    """The device of a run; `known` counts its kernels by how their costs are known.

    `codes` says of each kernel that makes or reads codes of indices and values how its cost is known, or by which
    passes it is estimated.
    """

    name: str
    what: str
    known: dict[str, int]
    codes: NotRequired[dict[str, str]]


def device_summary(device: DeviceProfile, kernels: Iterable[DeviceOp] = ()) -> DeviceSummary:
    """Return what a summary holds of a device.

    Examples
    --------
    >>> from simnet.costs.devices import load_device
    >>> device_summary(load_device("ideal"))
    {'name': 'ideal', 'what': 'no device; selecting costs nothing', 'known': {'measured': 1}}
    """
    known = Counter(method.known for method in device.methods.values())
    found: DeviceSummary = {"name": device.name, "what": device.device, "known": dict(sorted(known.items()))}
    if codes := {one.method: _known(device, one) for one in kernels if one.instead}:
        found["codes"] = codes
    return found


def _known(device: DeviceProfile, kernel: DeviceOp) -> str:
    own = device.methods.get(kernel.method)
    return f"as {' and '.join(one.method for one in kernel.instead)}" if own is None else own.known


def describe_device(device: DeviceSummary) -> str:
    """Return a device in a few words.

    Examples
    --------
    >>> from simnet.costs.devices import load_device
    >>> describe_device(device_summary(load_device("v100-torch1.5")))
    'v100-torch1.5 (NVIDIA V100, PyTorch 1.5, ...; of its kernels 6 estimated, 2 measured, 4 scaled)'
    """
    known = ", ".join(f"{count} {how}" for how, count in device["known"].items())
    return f"{device['name']} ({device['what']}; of its kernels {known}){describe_codes(device)}"


def describe_codes(device: DeviceSummary) -> str:
    """Return how the costs of codes are known, to be put after the name of a device; an empty text without any.

    Examples
    --------
    >>> from simnet.costs.devices import load_device
    >>> delta = DeviceOp("encode_delta", 9, instead=(DeviceOp("norm", 9), DeviceOp("cast", 9)))
    >>> describe_codes(device_summary(load_device("cpu"), [delta]))
    '; codes: encode_delta as norm and cast'
    """
    codes = ", ".join(f"{name} {how}" for name, how in device.get("codes", {}).items())
    return f"; codes: {codes}" if codes else ""
