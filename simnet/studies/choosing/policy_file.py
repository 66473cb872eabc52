"""The file of a policy table, checked like one from a stranger, and what is looked up in it.

A table of links, version 1, cuts the plane of latency and bandwidth into cells; one of a calibrated cluster, version 2,
that of density and parameters for each of some numbers of workers. The file is JSON: edges of the cells in SI units,
choices, and a matrix whose numbers say which choice, from 0. It has a row per latency and a column per bandwidth, or a
row per number of workers and density, the densities of the first number first, and a column per number of parameters.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from simnet import sparsifier_models
from simnet.base import plugins
from simnet.base.arrays import Floats
from simnet.base.checks import is_number
from simnet.base.errors import InputError, suggest_names
from simnet.base.reading import read_text
from simnet.policies import moo
from simnet.studies.choosing.shares import largest_first

AXES: MappingProxyType[int, tuple[str, ...]] = MappingProxyType(
    {1: ("latency", "bandwidth"), 2: ("workers", "density", "parameters")}
)
"""The axes of a table, by the version of its file."""

MAX_BYTES = 8 * 2**20
"""The largest file that is read."""

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Text = Annotated[str, Field(max_length=300)]


class _Part(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Entry(_Part):
    """A choice of a table.

    Parameters
    ----------
    label : str
        Its name for people.
    scheme, options : str, dict
        Of the sparsifier.
    kind : {"dense", "half", "sparse"}
        What is sent.
    density : float
        Fraction that is kept; 1 of the whole gradient. Where density is an axis of the table, it is the one that the
        table was asked for, and the one looked up takes its place.
    """

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


class Gain(_Part):
    """The mean compression gain of an exchange at a density, over iterations from the first to before the second."""

    exchange: _Text
    density: Annotated[float, Field(gt=0, le=1)]
    gain: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    iterations: tuple[int, int]


class Gains(_Part):
    """On what gains were measured, and what they are."""

    source: _Text
    workers: Annotated[int, Field(ge=1)]
    entries: Annotated[int, Field(ge=1)]
    of: Annotated[tuple[Gain, ...], Field(max_length=10_000)]


class Loss(_Part):
    """By how much the table is slower than the exact choice, at random points inside its cells.

    Parameters
    ----------
    points : int
        How many.
    mean, worst : float
        As a fraction of the fastest at the density that the table has there.
    latency_s, bandwidth_B_per_s, workers, density, parameters : float
        Where it is worst, along the axes of the table.
    same_exchange, same_density : float
        In which share of the points the exact choice is the same.
    """

    points: Annotated[int, Field(ge=1)]
    mean: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    worst: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    latency_s: _Positive | None = None
    bandwidth_B_per_s: _Positive | None = None  # noqa: N815
    workers: Annotated[int, Field(ge=1)] | None = None
    density: _Positive | None = None
    parameters: _Positive | None = None
    same_exchange: _Share
    same_density: _Share


class MadeFor(_Part):
    """What a table was made for."""

    title: _Text
    workers: Annotated[int, Field(ge=1)]
    parameters: Annotated[int, Field(ge=1)]
    gpus_per_node: Annotated[int, Field(ge=1)] = 1
    device: _Text
    method: _Text
    densities: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1, max_length=1000)]
    weights: moo.ObjectiveWeights | None = None
    seed: Annotated[int, Field(ge=0)] = 0


class Edges(_Part):
    """Where cells begin and end, ascending, one more than there are cells; of workers the numbers themselves."""

    latency_s: Annotated[tuple[_Positive, ...], Field(min_length=2, max_length=10_000)] | None = None
    bandwidth_B_per_s: Annotated[tuple[_Positive, ...], Field(min_length=2, max_length=10_000)] | None = None  # noqa: N815
    workers: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1, max_length=10_000)] | None = None
    density: Annotated[tuple[_Positive, ...], Field(min_length=2, max_length=10_000)] | None = None
    parameters: Annotated[tuple[_Positive, ...], Field(min_length=2, max_length=10_000)] | None = None

    @pydantic.field_validator("latency_s", "bandwidth_B_per_s", "workers", "density", "parameters")
    @classmethod
    def _ascend(cls, values: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if values is not None and any(later <= earlier for earlier, later in itertools.pairwise(values)):
            raise ValueError("must ascend")
        return values


class Measured(_Part):
    """How far a table of a calibrated cluster rests on sizes and numbers of ranks that were measured.

    Parameters
    ----------
    share : float
        Of the cells, those whose choice does.
    beyond : tuple of str
        What others rest on.
    """

    share: _Share
    beyond: Annotated[tuple[_Text, ...], Field(max_length=100)] = ()


class Found(NamedTuple):
    """What a table says of a state of the network."""

    entry: Entry
    """The choice."""
    outside: str
    """In which respect the state is outside the table, whose nearest cell was taken; "" if it is inside."""


class PolicyTable(_Part):
    """A policy table: what stands in its file, and what is looked up in it."""

    version: Literal[1, 2] = 1
    made_for: MadeFor
    edges: Edges
    choices: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=1000)]
    gains: Gains | None = None
    regret: Loss | None = None
    measured: Measured | None = None
    matrix: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...]

    @pydantic.model_validator(mode="after")
    def _fits(self) -> PolicyTable:
        given = self.edges.model_dump(exclude_none=True)
        wanted = [_field(name) for name in self.axes]
        if set(given) != set(wanted):
            found = ", ".join(given) or "none"
            raise ValueError(f"edges must be {', '.join(wanted)} of a table of version {self.version}, got {found}")
        rows, columns = math.prod(self.shape[:-1]), self.shape[-1]
        if len(self.matrix) != rows or any(len(row) != columns for row in self.matrix):
            what = "one less than there are edges" if self.version == 1 else "a row per number of workers and density"
            raise ValueError(f"matrix must have {rows} rows of {columns} numbers, {what}")
        most = max(max(row) for row in self.matrix)
        if most >= len(self.choices):
            raise ValueError(f"matrix has the number {most}, but there are {len(self.choices)} choices, from 0")
        return self

    @property
    def axes(self) -> tuple[str, ...]:
        """What it is looked up by: latency and bandwidth, or workers, density and parameters."""
        return AXES[self.version]

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis."""
        return tuple(len(self.along(name)) - (name != "workers") for name in self.axes)

    @cached_property
    def _matrix(self) -> NDArray[np.intp]:
        return np.array(self.matrix, dtype=np.intp).reshape(self.shape)

    @property
    def latency(self) -> Floats:
        """Edges of the cells of a table of links [s]."""
        return self.along("latency")

    @property
    def bandwidth(self) -> Floats:
        """Edges of the cells of a table of links [byte/s]."""
        return self.along("bandwidth")

    def along(self, name: str) -> Floats:
        """Return the edges of cells along an axis in SI units, of workers the numbers themselves."""
        values = getattr(self.edges, _field(name)) if name in self.axes else None
        if values is None:
            raise ValueError(f"the table has no axis {name!r}; it goes by {', '.join(self.axes)}")
        return np.array(values, dtype=np.float64)

    def lookup(
        self,
        latency: float | None = None,
        bandwidth: float | None = None,
        *,
        workers: int | None = None,
        density: float | None = None,
        parameters: float | None = None,
    ) -> Found:
        """Return the choice for a state of the network, or for a job; outside the table that of the nearest cell."""
        every = {
            "latency": latency,
            "bandwidth": bandwidth,
            "workers": workers,
            "density": density,
            "parameters": parameters,
        }
        given = {name: value for name, value in every.items() if value is not None}
        if set(given) != set(self.axes):
            raise ValueError(f"the table goes by {', '.join(self.axes)}; given were {', '.join(given) or 'none'}")
        place, said = [], []
        for name in self.axes:
            value, (allowed, fits) = given[name], _ALLOWED[name]
            if not is_number(value) or not fits(value):
                raise ValueError(f"{name} must be {allowed}, got {value!r}")
            place.append(np.array([float(value)]))
            edges = self.along(name)
            if name == "workers" and value not in edges:
                said.append("workers not in the table")
            elif value < edges[0]:
                said.append(f"{name} below the table")
            elif value > edges[-1]:
                said.append(f"{name} above the table")
        entry = self.choices[int(self.which(*place)[0])]
        if density is not None and entry.kind == "sparse":
            entry = entry.model_copy(update={"density": float(density)})
        return Found(entry, ", ".join(said))

    def which(self, *state: Floats) -> NDArray[np.intp]:
        """Return the numbers of the choices for arrays of states, which broadcast: one for each of the `axes`."""
        places = []
        for name, values in zip(self.axes, state, strict=True):
            edges = self.along(name)
            # Of the inner edges alone, so that what is outside falls into the nearest cell; of two numbers of workers
            # the one that is nearer as a factor.
            inner = np.sqrt(edges[1:] * edges[:-1]) if name == "workers" else edges[1:-1]
            places.append(np.searchsorted(inner, values, side="right"))
        return np.asarray(self._matrix[tuple(places)], dtype=np.intp)

    def shares(self) -> dict[str, float]:
        """Return the share of the cells of each choice, by its name and density, the largest first."""
        density = "density" not in self.axes
        return largest_first(self._matrix, [_named(one) if density else one.label for one in self.choices])

    def text(self) -> str:
        """Return the file: a line per choice and per row of the matrix."""
        shown = self.model_dump(mode="json")
        for name in ("edges", "regret"):
            # Of the axes of other tables nothing is said.
            shown[name] = shown[name] and {key: one for key, one in shown[name].items() if one is not None}
        if self.measured is None:
            del shown["measured"]
        if self.made_for.weights is not None:
            shown["made_for"]["weights"] = self.made_for.weights._asdict()
        parts = []
        for name, value in shown.items():
            if name in ("choices", "matrix"):
                listed = ",\n".join(f"    {json.dumps(one)}" for one in value)
                text = f"[\n{listed}\n  ]"
            else:
                text = _lines(value)
            parts.append(f'  "{name}": {text}')
        return "{\n" + ",\n".join(parts) + "\n}\n"


def load_policy(path: str | Path) -> PolicyTable:
    """Read a table."""
    name = str(path)
    text = read_text(Path(path), MAX_BYTES)
    try:
        loaded: Any = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no JSON: {error}", file=name) from None
    if not isinstance(loaded, dict) or "version" not in loaded:
        raise InputError("is no policy table: it has no version", file=name)
    if loaded["version"] not in list(AXES) or not is_number(loaded["version"]):
        found = ascii(loaded["version"])[:40]
        raise InputError(f"must be 1 or 2, the versions that are read, got {found}", file=name, field="version")
    try:
        return PolicyTable.model_validate(loaded)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"there is no such field; {suggest_names(str(first['loc'][-1]), _siblings(first['loc']))}"
        raise InputError(message, file=name, field=where[:200] or None) from None


_ALLOWED: MappingProxyType[str, tuple[str, Callable[[float], bool]]] = MappingProxyType(
    {
        "latency": ("a number of seconds >= 0 and finite", lambda value: 0 <= value < math.inf),
        "bandwidth": ("a number of byte/s > 0 and finite", lambda value: 0 < value < math.inf),
        "workers": ("a whole number >= 1", lambda value: 1 <= value < math.inf and value == int(value)),
        "density": ("a number > 0 and at most 1", lambda value: 0 < value <= 1),
        "parameters": ("a number > 0 and finite", lambda value: 0 < value < math.inf),
    }
)


def _field(axis: str) -> str:
    """Return the field of an axis, with its unit."""
    return {"latency": "latency_s", "bandwidth": "bandwidth_B_per_s"}.get(axis, axis)


def _siblings(where: tuple[int | str, ...]) -> list[str]:
    """Return the fields that there are beside one."""
    parts: dict[str, type[_Part]] = {
        "made_for": MadeFor,
        "edges": Edges,
        "choices": Entry,
        "gains": Gains,
        "of": Gain,
        "regret": Loss,
        "measured": Measured,
    }
    above = [one for one in where[:-1] if isinstance(one, str)]
    return list(parts.get(above[-1] if above else "", PolicyTable).model_fields)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _named(one: Entry) -> str:
    return f"{one.label} at {100 * one.density:.3g} %" if one.kind == "sparse" else one.label


def _lines(value: Any) -> str:
    """Return JSON: a line per field of what has fields, lists on one line unless of what has fields."""
    if not isinstance(value, dict):
        return json.dumps(value)
    parts = []
    for name, one in value.items():
        if isinstance(one, list) and one and isinstance(one[0], dict):
            listed = ",\n".join(f"      {json.dumps(each)}" for each in one)
            parts.append(f'    "{name}": [\n{listed}\n    ]')
        else:
            parts.append(f'    "{name}": {json.dumps(one)}')
    return "{\n" + ",\n".join(parts) + "\n  }"
