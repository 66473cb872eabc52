"""Untrusted JSON descriptions, validated by pydantic models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from simnet.base.reading import read_text
from simnet.base.yaml_loader import validation_refusal

SHIPPED = Path(__file__).parents[1] / "data" / "traces"
"""Folder of the shipped traces, each in a subfolder of its name."""

MAX_BYTES = 8_000_000
"""Maximum size of a description [byte]."""


class Description(BaseModel):
    """Base class of JSON descriptions: immutable, with unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


D = TypeVar("D", bound=Description)


def read_description(kind: type[D], path: Path) -> D:
    """Return the description in a JSON file, validated as `kind`."""
    return parse_description(kind, read_text(path, MAX_BYTES), str(path))


def parse_description(kind: type[D], content: str | bytes, file: str) -> D:
    """Return the description in a JSON text; InputError for a missing, unknown or invalid field of `file`."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise validation_refusal(error, file, names=kind.model_fields) from None


def is_name(given: str | os.PathLike[str]) -> bool:
    """Return whether a trace is given by its name: a string without folder and file extension."""
    return isinstance(given, str) and given == Path(given).stem
