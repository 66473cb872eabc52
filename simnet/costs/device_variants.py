"""Device profiles made of others: shared by workers that take turns, or with every kernel at an end of its interval."""

from __future__ import annotations

from dataclasses import replace

from simnet.costs.devices import STREAMED, DeviceProfile, End, Method


def in_turns(profile: DeviceProfile, workers: int) -> DeviceProfile:
    """Return a profile as it is for each of several workers that take turns on the device.

    Examples
    --------
    >>> from simnet.costs.devices import load_device
    >>> profile = load_device("cpu")
    >>> in_turns(profile, 2).method("topk").launch / profile.method("topk").launch
    2.0
    """
    slower = {
        name: replace(one, launch=workers * one.launch, seconds_per_entry=workers * one.seconds_per_entry)
        for name, one in profile.methods.items()
    }
    return replace(profile, memory_bandwidth=profile.memory_bandwidth / workers, methods=slower)


def at_end(profile: DeviceProfile, end: End) -> DeviceProfile:
    """Return a profile in which every kernel takes what an end of its interval says.

    Examples
    --------
    >>> from simnet.costs.devices import DeviceOp
    >>> profile = DeviceProfile("toy", "none", "made up", 1e9, {"scan": Method(0, 4, "made up", low=0.5, high=3)})
    >>> [float(one.seconds([DeviceOp("scan", 10**9)], 1)[0]) for one in (profile, at_end(profile, "low"))]
    [4.0, 2.0]
    """
    names = (*profile.methods, *(STREAMED if "norm" in profile.methods else ()))
    return replace(profile, methods={name: _times(profile.method(name), end) for name in names})


def _times(method: Method, end: End) -> Method:
    factor = float(getattr(method, end))
    return replace(
        method,
        launch=factor * method.launch,
        bytes_per_entry=factor * method.bytes_per_entry,
        seconds_per_entry=factor * method.seconds_per_entry,
    )
