"""The device profile of a scenario's job, shipped or of a file."""

from __future__ import annotations

from pathlib import Path

from simnet.costs.devices import DeviceProfile, load_device
from simnet.parallel import slowdown_told
from simnet.scenario import schema
from simnet.scenario.loader import Findings


def is_file(name: str) -> bool:
    """Whether a name in a scenario is that of a file, and not of something that comes with simnet."""
    return "/" in name or Path(name).suffix in (".yaml", ".yml", ".json")


def build_device(given: schema.Job, folder: Path, found: Findings) -> DeviceProfile | None:
    """Return the device profile of a job; None if it is no good.

    Parameters
    ----------
    given : Job
        The job.
    folder : Path
        Where file names in it start from.
    found : Findings
        Takes what is wrong with it.
    """
    with found.at("job", "device"):
        return load_device(folder / given.device if is_file(given.device) else given.device)
    return None


def slowdown_of(device: DeviceProfile | None) -> float:
    """Return how many times as long computing of sharded steps takes beside collectives, of which 1 is the least.

    Parameters
    ----------
    device : DeviceProfile or None
        What the job runs on, if that is known.
    """
    beside = None if device is None else device.beside_collectives
    return 1.0 if beside is None else max(beside.compute, 1.0)


def slowdown_told_of(device: DeviceProfile | None, slowdown: float) -> str:
    """Return in words how much slower computing is beside collectives, and the source where a device profile says so.

    Parameters
    ----------
    device : DeviceProfile or None
        What the job runs on, where its profile has a say.
    slowdown : float
        As of `simnet.parallel.time_step`.
    """
    beside = None if device is None else device.beside_collectives
    if beside is None or slowdown != slowdown_of(device):
        return slowdown_told(slowdown)
    least = f"{beside.compute:.3g} times is taken as 1; " if beside.compute < 1 else ""
    times = "as long beside collectives as alone" if slowdown == 1 else slowdown_told(slowdown)
    return f"{times} ({least}device profile: {beside.source})"
