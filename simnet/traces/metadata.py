"""Descriptions in JSON files that may come from anywhere, read against a pydantic model."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from simnet.errors import InputError, nearest

_LARGEST_FILE = 16_000_000


class Description(BaseModel):
    """A description with these fields and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


D = TypeVar("D", bound=Description)


def read_description(kind: type[D], path: Path) -> D:
    """Return the description in a JSON file.

    Raises
    ------
    InputError
        If the file cannot be read or is too large, or a field is missing, unknown or wrong.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None
    if len(content) > _LARGEST_FILE:
        raise InputError(f"is no description: larger than {_LARGEST_FILE} bytes", file=str(path))
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise InputError(_message(kind, first["type"], first["msg"], first["loc"]), file=str(path), field=_field(first["loc"])) from None


def _message(kind: type[BaseModel], error: str, message: str, at: tuple[int | str, ...]) -> str:
    if error == "missing":
        return "is missing"
    if error == "extra_forbidden":
        return f"there is no such field: {nearest(str(at[-1]), kind.model_fields)}" if len(at) == 1 else "unknown field"
    return message


def _field(at: tuple[int | str, ...]) -> str | None:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in at).removeprefix(".") or None
