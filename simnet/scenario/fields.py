"""Values of a scenario that are no quantities: names, files, numbers of iterations."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

MAX_ITERATIONS = 10_000_000
"""The longest job."""


def _file(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("must be the name of a file")
    return value


def _label(value: str) -> str:
    if not 0 < len(value) <= 40 or not value.isprintable() or value != value.strip():
        raise ValueError(f"must be a name of 1 to 40 characters, got {value[:45]!r}")
    return value


def _file_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9 ._+-]{0,39}", value) or value != value.strip():
        raise ValueError(f"must be 1 to 40 letters, digits, blanks or ._+-, got {value[:45]!r}")
    return value


def _iterations(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})? epochs?", value.strip()):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ITERATIONS:
        return value
    raise ValueError(
        f"must be a whole number from 1 to {MAX_ITERATIONS:,}, or epochs such as '2 epochs', got {value!r:.60}"
    )


Iterations: TypeAlias = Annotated[
    int | str,
    BeforeValidator(_iterations),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "examples": [300, "2 epochs"]}),
]
"""A number, or a text such as ``2 epochs``, which a resolved scenario does not have any more."""
Label: TypeAlias = Annotated[str, AfterValidator(_label)]
FileName: TypeAlias = Annotated[str, AfterValidator(_file_name)]
File: TypeAlias = Annotated[str, AfterValidator(_file)]
