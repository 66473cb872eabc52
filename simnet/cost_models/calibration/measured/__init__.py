"""Measurements shipped with simnet, with source, hardware, date and licence.

`registry.toml` describes them; each is a tidy CSV in the format of `simnet.cost_models.calibration.readers.tidy`:
curves of GPU clusters that others published (``public``, with licences), measurements of simnet's own tools on shaped
networks, and single published numbers with citation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from types import MappingProxyType
from typing import Any

from simnet.base.errors import InputError, suggest_names
from simnet.cost_models.calibration.readers.tables import Measurements
from simnet.cost_models.calibration.readers.tidy import read_tidy


@dataclass(frozen=True, eq=False)
class Dataset:
    """A shipped data set: path of its table relative to the registry, and facts that hold for all rows."""

    name: str
    file: str
    title: str
    source: str
    hardware: str
    interconnect: str
    date: str
    licence: str
    citation: str
    notes: str
    collectives: Sequence[str]
    ranks: Sequence[int]
    rows: int
    facts: Mapping[str, Any]
    columns: Mapping[str, str]


@cache
def datasets() -> MappingProxyType[str, Dataset]:
    """Return the shipped data sets by name."""
    registry = tomllib.loads(
        files("simnet.cost_models.calibration.measured").joinpath("registry.toml").read_text(encoding="utf-8")
    )
    plain: dict[str, Any] = {"facts": {}, "columns": {}}
    return MappingProxyType({name: Dataset(**(plain | entry | {"name": name})) for name, entry in registry.items()})


def load_dataset(name: str) -> Measurements:
    """Return the measurements of a shipped data set."""
    if name not in datasets():
        raise InputError(f"there are no measurements {name!r}; {suggest_names(name, datasets())}")
    one = datasets()[name]
    with as_file(files("simnet.cost_models.calibration.measured").joinpath(one.file)) as path:
        read = read_tidy(path, facts=one.facts)
    return Measurements(read.rows.assign(source=name), read.problems, read.kind)


__all__ = ["Dataset", "datasets", "load_dataset"]
