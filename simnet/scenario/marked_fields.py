"""Scenario fields that are also command-line flags and keyword arguments in Python, called marked fields.

`MARKED_FIELDS` is the table of them, `overrides_of` turns their values into what ``--set`` takes. It imports the
modules of scenarios only when it is called, so that help is printed at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

from simnet.base.file_io import read_shipped_rows


class MarkedField(NamedTuple):
    """A scenario field that is also a command-line flag: the flag's name, the field's key, and how values are written.

    Parameters
    ----------
    name, key : str
        Name of the flag, and key of the field that it sets; None where the key depends on the scenario.
    metavar, panel, help : str
        Placeholder for the value, group in the help, and help line.
    unit : str
        Unit of a value that is given as a bare number.
    """

    name: str
    key: str | None
    metavar: str
    panel: Literal["Workload", "Network"]
    help: str
    unit: str = ""


MARKED_FIELDS = tuple(
    MarkedField(**{**row, "key": row["key"] or None})  # type: ignore[arg-type]
    for row in read_shipped_rows("data/marked_fields.csv")
)
"""Marked fields in the order of ``--help``."""


class FieldsButSeed(TypedDict, total=False):
    """Values of the scenario fields that are also command-line flags, except the seed; None if not given."""

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
    """Values of the scenario fields that are also command-line flags, as text or in SI units; None if not given."""

    seed: int | None


def overrides_of(source: str | Path, fields: Mapping[str, object], overrides: Sequence[str] = ()) -> list[str]:
    """Return ``--set`` assignments for scenario `source` that do the same as the command-line flags in `fields`.

    Parameters
    ----------
    source : str or Path
        The scenario, as of `simnet.scenario.load`.
    fields : mapping of str to value
        By the names of `MARKED_FIELDS`: text with units, or numbers in SI units; None where not given. Names of files
        start at the working directory.
    overrides : sequence of str
        Assignments of ``--set`` that are applied first.

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
