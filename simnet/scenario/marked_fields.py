"""Marked fields: scenario fields that are command-line flags and keyword arguments of every verb.

`MARKED_FIELDS` is the table of them, `overrides_of` turns their values into what ``--set`` takes. Nothing that a
scenario is made of is imported until then, so that help is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict


class MarkedField(NamedTuple):
    """A scenario field that is also a command-line flag: its name, its key, and its notation.

    Parameters
    ----------
    name, key : str
        Of the flag, and of the field that it sets; None where that depends on the scenario.
    metavar, panel, help : str
        What stands for a value, the group in help, and a line about it.
    unit : str
        Of a value that is a number.
    """

    name: str
    key: str | None
    metavar: str
    panel: Literal["Workload", "Network"]
    help: str
    unit: str = ""


MARKED_FIELDS = (
    MarkedField("workers", "workers", "N", "Workload", "Ranks that exchange gradients, one per GPU."),
    MarkedField(
        "model", "job.model", "NAME|SIZE|FILE", "Workload", "A known model, a size such as 7B, or a config.json."
    ),
    MarkedField(
        "gradients", "job.gradients", "KIND|TRACE", "Workload",
        "A recorded trace, train, or synthetic:like=digits.",
    ),
    MarkedField("density", "job.density", "1%", "Workload", "Fraction of the entries that a worker keeps."),
    MarkedField(
        "schemes", None, "A,B:OPTION=VALUE", "Workload", "These exchanges, or all, in place of those of the scenario."
    ),
    MarkedField(
        "strategy", "job.strategy", "NAME:OPTION=VALUE", "Workload",
        "How workers train between exchanges, as diloco:period=100.",
    ),
    MarkedField(
        "sharding", "job.sharding", "NAME:OPTION=VALUE", "Workload",
        "How the model is shared between workers, as fsdp2; in place of exchanges.",
    ),
    MarkedField(
        "compute", "job.compute.mean", "TIME", "Workload", "Forward and backward pass of an iteration.", "s"
    ),
    MarkedField(
        "network", None, "NAME|FILE", "Network",
        "A topology, as fat_tree:k=8; a platform, as dgx-h100; a file; or a scenario's.",
    ),
    MarkedField("bandwidth", None, "RATE", "Network", "Of a worker's link, or a node's, in one direction.", "B/s"),
    MarkedField("latency", None, "TIME", "Network", "Of a worker's link, or a node's, one way.", "s"),
    MarkedField("stack", "network.stack", "NAME", "Network", "How messages are sent, as gloo."),
    MarkedField("device", "job.device", "NAME|FILE", "Workload", "What computes and selects, as h100-torch2.6."),
    MarkedField(
        "memory", "job.device_memory", "SIZE|device", "Workload", "What a worker's device holds, as 80GB.", "B"
    ),
    MarkedField("seed", "seed", "N", "Workload", "Decides everything random."),
)  # fmt: skip
"""Marked fields in the order of ``--help``."""


class FieldsButSeed(TypedDict, total=False):
    """Values of all marked fields except the seed; None if not given."""

    workers: int | None
    model: str | int | Path | None
    gradients: str | Path | None
    density: float | str | None
    schemes: str | Sequence[str] | None
    strategy: str | None
    sharding: str | None
    compute: float | str | None
    network: str | Path | None
    bandwidth: float | str | None
    latency: float | str | None
    stack: str | None
    device: str | Path | None
    memory: float | str | None


class Fields(FieldsButSeed, total=False):
    """Values of marked fields: text as in a scenario, or numbers in SI units; None where not given."""

    seed: int | None


def overrides_of(source: str | Path, fields: Mapping[str, object], overrides: Sequence[str] = ()) -> list[str]:
    """Return the values of marked fields as ``--set`` assignments for a scenario.

    Parameters
    ----------
    source : str or Path
        The scenario, as of `simnet.scenario.load`.
    fields : mapping of str to value
        By the names of `MARKED_FIELDS`: text with units, or numbers in SI units; None where not given. Names of files
        start at the working directory.
    overrides : sequence of str
        What ``--set`` sets before.

    Raises
    ------
    InputError
        If there is no such field, or the scenario cannot have this value there.

    Examples
    --------
    >>> overrides_of("quickstart", {"density": "1%", "bandwidth": 1.25e8, "latency": None})
    ['job.density=1%', 'network.topology.star.bandwidth=125000000.0 B/s']
    """
    from simnet.scenario.scenario import read_with
    from simnet.scenario.settings import apply_fields

    return apply_fields(read_with(source, overrides), fields, overrides)
