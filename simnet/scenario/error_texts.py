"""What is wrong with a scenario, in words for people: the value found, what is allowed, the nearest right name."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simnet.base.errors import InputError, suggest_names
from simnet.base.yaml_loader import BOUNDS, shorten_value
from simnet.scenario.loader import Document
from simnet.scenario.parts import Kinds, Part, alternatives, field_names

_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping from names",
}
# Words of older scenarios, and what they are called now.
_RENAMED = {"clairvoyant": "oracle"}
# Marks of one part, or of several by name; whether that is a mapping from names.
_FORMS: dict[str | int, bool] = {"<one>": False, "<several>": True}


def problems(document: Document, error: ValidationError, root: type[BaseModel]) -> list[InputError]:
    """Return validation errors as errors with file, line, field, the value found and what is allowed."""
    found = error.errors(include_url=False)
    return [document.problem(_error_place(one["loc"]), _error_message(document, one, root)) for one in found]


def _error_place(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the place of an error without pydantic's mark for a key; a blank name is wrong where it is given."""
    if loc[-1:] != ("[key]",):
        return loc
    return loc[:-1] if str(loc[-2]).strip() else loc[:-2]


def _error_message(document: Document, one: ErrorDetails, root: type[BaseModel]) -> str:
    kind, context = one["type"], one.get("ctx", {})
    found = shorten_value(document.found(one["loc"], one.get("input")))
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        part = _part_at(root, one["loc"][:-1])
        name = str(one["loc"][-1])
        if part and _RENAMED.get(name) in part.names():
            return f"has a new name: {_RENAMED[name]}"
        return f"there is no such field; {suggest_names(name, part.names())}" if part else "is not allowed"
    if kind in BOUNDS:
        name, sign = BOUNDS[kind]
        return f"must be {sign} {context[name]:g}, got {found}"
    if kind == "literal_error":
        return (
            f"there is no such choice, got {found}; {_allowed_text(context['expected'], found)}{_or_mapping(root, one)}"
        )
    if kind in ("model_type", "model_attributes_type"):
        part = _part_at(root, one["loc"])
        fields = f" with {', '.join(field_names(part))}" if part else ""
        return f"must be a mapping{fields}, got {found}"
    if kind in ("too_short", "too_long"):
        return f"has {context['actual_length']} entries, needs at least {context.get('min_length', 0)}"
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}{_or_mapping(root, one)}, got {found}"
    return f"{one['msg']}, got {found}"


def _or_mapping(root: type[BaseModel], one: ErrorDetails) -> str:
    part = _part_at(root, one["loc"])
    return f", or a mapping with {', '.join(field_names(part))}" if part else ""


def _allowed_text(expected: str, found: str) -> str:
    names = [name.strip(" '") for name in expected.replace(" or ", ",").split(",")]
    return suggest_names(found.strip("'"), names)


def _part_at(root: type[BaseModel], loc: tuple[str | int, ...]) -> type[Part] | None:
    """Return the class of the mapping at `loc`."""
    parts: list[Any] = [root]
    for step in loc:
        if step in _FORMS:
            parts = [part for part in parts if (get_origin(part) is dict) == _FORMS[step]]
        if isinstance(step, str) and step.startswith("<"):
            continue
        found: list[Any] = []
        for part in parts:
            if isinstance(part, type) and issubclass(part, Kinds):
                part = part.with_registered([str(step)])
            if isinstance(part, type) and issubclass(part, Part):
                by_name = {field.alias or name: field.annotation for name, field in part.model_fields.items()}
                found += alternatives(by_name.get(str(step)))
            elif get_origin(part) in (list, dict):
                found += alternatives(get_args(part)[-1])
        parts = found
    return next((part for part in parts if isinstance(part, type) and issubclass(part, Part)), None)
