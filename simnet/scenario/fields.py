"""Field types of a scenario for names and files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator


def is_file(name: str) -> bool:
    """Return whether a name in a scenario is a file path, rather than the name of shipped data."""
    return "/" in name or Path(name).suffix in (".yaml", ".yml", ".json", ".npz")


def _check_file(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("must be the name of a file")
    return value


def _check_label(value: str) -> str:
    if not 0 < len(value) <= 80 or not value.isprintable() or value != value.strip():
        raise ValueError(f"must be a name of 1 to 80 characters, got {value[:45]!r}")
    return value


def _file_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9 ._+-]{0,39}", value) or value != value.strip():
        raise ValueError(f"must be 1 to 40 letters, digits, blanks or ._+-, got {value[:45]!r}")
    return value


Label: TypeAlias = Annotated[str, AfterValidator(_check_label)]
FileName: TypeAlias = Annotated[str, AfterValidator(_file_name)]
File: TypeAlias = Annotated[str, AfterValidator(_check_file)]
