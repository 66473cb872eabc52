"""The device profile of a scenario's job, shipped or of a file."""

from __future__ import annotations

from pathlib import Path

from simnet.costs.devices import DeviceProfile, load_device
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
