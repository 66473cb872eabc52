"""Files of policy tables: schema, validation of untrusted input, and look-up.

A table cuts the plane of latency and bandwidth into cells. The file is JSON: edges of the cells in SI units, choices,
and a matrix whose numbers say which choice, from 0, with a row per latency and a column per bandwidth.
"""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_right
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
from pydantic import ConfigDict, Field

from simnet import sparsifier_models
from simnet.base import plugins
from simnet.base.errors import InputError, is_number, suggest_names
from simnet.base.file_io import read_text
from simnet.base.yaml_loader import validation_refusal

MAX_BYTES = 8 * 2**20
"""Maximum size of a policy-table file [byte]."""

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=300)]


class _FilePart(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TableEntry(_FilePart):
    """Entry of a policy table: an exchange and its density, which is 1 for dense exchanges."""

    label: _Text
    scheme: _Text
    options: Annotated[dict[_Text, _Text | int | float | bool], Field(max_length=50)] = {}
    kind: Literal["dense", "half", "sparse"]
    density: Annotated[float, Field(gt=0, le=1)]

    @pydantic.field_validator("scheme")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if not plugins.names_file(name) and name not in sparsifier_models.names():
            raise ValueError(f"there is no scheme {name!r}; {suggest_names(name, sparsifier_models.names())}")
        return name


class MadeFor(_FilePart):
    """Job for which a policy table was made, and the method by which it was made."""

    title: _Text
    workers: Annotated[int, Field(ge=1)]
    parameters: Annotated[int, Field(ge=1)]
    device: _Text
    method: _Text
    densities: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1, max_length=1000)]
    weights: dict[_Text, float] | None = None
    seed: Annotated[int, Field(ge=0)] = 0


class CellEdges(_FilePart):
    """Ascending edges of the table's cells in latency and in bandwidth: one edge more than there are cells."""

    latency_s: Annotated[tuple[_Positive, ...], Field(min_length=2, max_length=10_000)]
    bandwidth_B_per_s: Annotated[tuple[_Positive, ...], Field(min_length=2, max_length=10_000)]  # noqa: N815

    @pydantic.field_validator("latency_s", "bandwidth_B_per_s")
    @classmethod
    def _ascend(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if any(later <= earlier for earlier, later in itertools.pairwise(values)):
            raise ValueError("must ascend")
        return values


class TableLookup(NamedTuple):
    """Result of a look-up in a policy table: its entry for a latency and a bandwidth."""

    entry: TableEntry
    """Choice of the table."""
    outside: str
    """Text on how the point lies outside the table, in which case the nearest cell is used; "" if inside."""


class PolicyTable(_FilePart):
    """Policy table as its file stores it: the exchange and the density by latency and bandwidth."""

    version: Literal[2] = 2
    made_for: MadeFor
    edges: CellEdges
    choices: Annotated[tuple[TableEntry, ...], Field(min_length=1, max_length=1000)]
    matrix: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...]

    @pydantic.model_validator(mode="after")
    def _fits(self) -> PolicyTable:
        rows, columns = len(self.edges.latency_s) - 1, len(self.edges.bandwidth_B_per_s) - 1
        if len(self.matrix) != rows or any(len(row) != columns for row in self.matrix):
            raise ValueError(f"matrix must have {rows} rows of {columns} numbers, one less than there are edges")
        most = max(max(row) for row in self.matrix)
        if most >= len(self.choices):
            raise ValueError(f"matrix has the number {most}, but there are {len(self.choices)} choices, from 0")
        return self

    def lookup(self, latency: float, bandwidth: float) -> TableLookup:
        """Return the table's choice for links with a latency [s] >= 0 and a bandwidth [byte/s] > 0.

        A point outside the table gets the choice of the nearest cell. Raises ValueError for invalid numbers.
        """
        said, place = [], []
        for name, value, edges, allowed in (
            ("latency", latency, self.edges.latency_s, "a number of seconds >= 0 and finite"),
            ("bandwidth", bandwidth, self.edges.bandwidth_B_per_s, "a number of byte/s > 0 and finite"),
        ):
            if not is_number(value) or not 0 <= value < math.inf or (value == 0 and name == "bandwidth"):
                raise ValueError(f"{name} must be {allowed}, got {value!r}")
            if value < edges[0]:
                said.append(f"{name} below the table")
            if value > edges[-1]:
                said.append(f"{name} above the table")
            # By the inner edges alone, so that what is outside falls into the nearest cell.
            place.append(bisect_right(edges[1:-1], value))
        return TableLookup(self.choices[self.matrix[place[0]][place[1]]], ", ".join(said))

    def text(self) -> str:
        """Return the table as JSON text with one line per field."""
        shown = self.model_dump(mode="json").items()
        return "{" + ",\n ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in shown) + "}\n"


def load_policy(path: str | Path) -> PolicyTable:
    """Read and validate a policy-table file."""
    name = str(path)
    text = read_text(Path(path), MAX_BYTES)
    try:
        loaded: Any = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no JSON: {error}", file=name) from None
    if not isinstance(loaded, dict) or "version" not in loaded:
        raise InputError("is no policy table: it has no version", file=name)
    if loaded["version"] != 2:
        found = ascii(loaded["version"])[:40]
        raise InputError(f"must be 2, the version that is read, got {found}", file=name, field="version")
    try:
        return PolicyTable.model_validate(loaded)
    except pydantic.ValidationError as error:
        raise validation_refusal(error, name) from None


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")
