"""Measurements shipped with simnet, with source, hardware, date and licence.

`registry.toml` describes them; each is a tidy CSV in the format of `simnet.cost_models.calibration.readers.csv_tables`:
curves of GPU clusters that others published (``public``, with licences), measurements of simnet's own tools on shaped
networks, and single published numbers with citation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import as_file, files
from types import SimpleNamespace
from typing import Any

from simnet.base.errors import InputError, suggest_names
from simnet.cost_models.calibration.readers.csv_tables import read_tidy
from simnet.cost_models.calibration.readers.tables import Measurements


@cache
def datasets() -> Mapping[str, SimpleNamespace]:
    """Return the shipped data sets by name: the entries of `registry.toml`, with facts that hold for all rows."""
    text = files("simnet.cost_models.calibration.measured").joinpath("registry.toml").read_text(encoding="utf-8")
    plain: dict[str, Any] = {"facts": {}, "columns": {}}
    return {name: SimpleNamespace(**plain | entry, name=name) for name, entry in tomllib.loads(text).items()}


def load_dataset(name: str) -> Measurements:
    """Return the measurements of a shipped data set."""
    if name not in datasets():
        raise InputError(f"there are no measurements {name!r}; {suggest_names(name, datasets())}")
    one = datasets()[name]
    with as_file(files("simnet.cost_models.calibration.measured").joinpath(one.file)) as path:
        read = read_tidy(path, facts=one.facts)
    return Measurements(read.rows.assign(source=name), read.problems, read.kind)


__all__ = ["datasets", "load_dataset"]
