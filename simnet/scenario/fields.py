"""Types of scenario fields that hold names or files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, ValidationInfo

from simnet.base.plugins import absolute_name


def is_file(name: str) -> bool:
    """Return whether a name in a scenario is a file path rather than the name of shipped data."""
    return "/" in name or Path(name).suffix in (".yaml", ".yml", ".json", ".npz")


def folder_of(info: ValidationInfo) -> Path:
    """Return the folder that relative file names in a scenario start from."""
    return Path((info.context or {}).get("folder", ""))


def _absolute_file(value: str, info: ValidationInfo) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("must be the name of a file")
    return os.path.normpath((folder_of(info) / value).absolute())


def _absolute_if_file(value: str, info: ValidationInfo) -> str:
    path = _absolute_file(value, info)
    return path if is_file(value) and (Path(value).suffix or Path(path).exists()) else value


def _absolute_class(value: str, info: ValidationInfo) -> str:
    return absolute_name(value, folder_of(info).absolute()) if ".py" in value else value


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
File: TypeAlias = Annotated[str, AfterValidator(_absolute_file)]
NameOrFile: TypeAlias = Annotated[str, AfterValidator(_absolute_if_file)]
NameOrClass: TypeAlias = Annotated[str, AfterValidator(_absolute_class)]
