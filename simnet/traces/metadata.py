"""Pydantic models of the JSON files that describe traces; the files are untrusted."""

from __future__ import annotations

import os
from collections import Counter
from math import prod
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from simnet.base.reading import read_text
from simnet.base.yaml_loader import validation_refusal

SHIPPED = Path(__file__).parents[1] / "data" / "traces"
"""Folder of the shipped traces, each in a subfolder of its name."""

MAX_BYTES = 8_000_000
"""Maximum size of a description [byte]."""


DESCRIPTION = "trace.json"
"""Name of the description file of a trace."""

_Whole = Annotated[int, Field(ge=0, le=2**40)]
_Positive = Annotated[int, Field(ge=1, le=2**40)]


class Description(BaseModel):
    """Base class of JSON descriptions: immutable, and unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RecordedLayer(Description):
    """A recorded parameter tensor: name, shape as recorded, and full shape `of` if only some entries are recorded."""

    name: Annotated[str, Field(min_length=1)]
    shape: tuple[_Positive, ...]
    of: tuple[_Positive, ...] | None = None

    @model_validator(mode="after")
    def _part(self) -> RecordedLayer:
        if self.of is not None and (len(self.shape) != 1 or self.shape[0] > prod(self.of)):
            raise ValueError(f"{list(self.shape)} is no part of {list(self.of)}: one axis, no more entries")
        return self


class RecordedPoint(Description):
    """A recorded step: its number, the mean loss over workers, and the accuracy before the step."""

    step: _Whole
    loss: float | None = None
    accuracy: float | None = None


class Recording(Description):
    """Settings of the recorder that took a trace, and its overhead."""

    # Steps from one sample to the next, and consecutive steps of a sample.
    every: _Positive
    consecutive: _Positive
    # Share of the entries of each layer, and seed of their choice.
    fraction: Annotated[float, Field(gt=0, le=1)]
    seed: _Whole
    # Samples left out because a value was not finite.
    skipped: _Whole
    # Time of the recorder, and of the whole run up to the last sample [s].
    own_seconds: Annotated[float, Field(ge=0)]
    run_seconds: Annotated[float, Field(ge=0)]


class TraceInfo(Description):
    """The content of `trace.json`: the training run, its layers, and the recorded steps."""

    # Of this format.
    version: Literal[1]
    # Description of the run, and the licence of the trace.
    name: str
    model: str = ""
    data: str = ""
    how: str = ""
    license: str = ""
    date: str = ""
    # Versions.
    software: Annotated[dict[str, str], Field(default_factory=dict)]
    # Seed of the run.
    seed: int | None = None
    # P, and length of the run.
    workers: _Positive
    steps: _Positive
    # In the order of the gradient.
    layers: Annotated[tuple[RecordedLayer, ...], Field(min_length=1)]
    # The recorded steps, ascending.
    points: Annotated[tuple[RecordedPoint, ...], Field(min_length=1)]
    # If true, each worker has a file of its own at each step.
    per_worker: bool = False
    # How `simnet.traces.record` took it.
    recording: Recording | None = None

    @field_validator("layers")
    @classmethod
    def _distinct(cls, layers: tuple[RecordedLayer, ...]) -> tuple[RecordedLayer, ...]:
        if again := [name for name, count in Counter(layer.name for layer in layers).items() if count > 1]:
            raise ValueError(f"two layers are called {again[0]!r}")
        return layers

    @field_validator("points")
    @classmethod
    def _ascending(cls, points: tuple[RecordedPoint, ...]) -> tuple[RecordedPoint, ...]:
        steps = [point.step for point in points]
        if sorted(set(steps)) != steps:
            raise ValueError(f"steps must ascend, got {', '.join(map(str, steps))}")
        return points


D = TypeVar("D", bound=Description)


def read_description(kind: type[D], path: Path) -> D:
    """Return the description in a JSON file, validated by the model class `kind`."""
    return parse_description(kind, read_text(path, MAX_BYTES), str(path))


def parse_description(kind: type[D], content: str | bytes, file: str) -> D:
    """Return the description in a JSON text; InputError, with `file`, for missing, unknown or invalid fields."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise validation_refusal(error, file, names=kind.model_fields) from None


def is_name(given: str | os.PathLike[str]) -> bool:
    """Return whether `given` is the name of a trace: a string without folder and file extension."""
    return isinstance(given, str) and given == Path(given).stem
