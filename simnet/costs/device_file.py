"""Reader of device profile files: YAML in which every field is checked; `simnet.costs.devices` describes the fields."""

from __future__ import annotations

import math
import reprlib
from dataclasses import MISSING, fields
from typing import Any, NoReturn, get_args

from simnet.base.checks import is_number
from simnet.base.errors import InputError, suggest_names
from simnet.base.quantities import Bandwidth, Seconds, Size, Slowdown, bounds_error, parameter_hints
from simnet.base.yaml_loader import field_path, load_yaml_mapping
from simnet.costs.devices import CollectiveSlowdown, DeviceProfile, KernelMethod, Provenance, SideStreamSlowdown

_STREAMS: dict[str, type] = {"side_stream": SideStreamSlowdown, "beside_collectives": CollectiveSlowdown}


def read_profile(text: str, file: str) -> DeviceProfile:
    """Return the profile that the YAML `text` of `file` describes; raise InputError for a wrong field."""
    given, lines = load_yaml_mapping(text, file, "a device profile")
    line_of = {field_path(loc): line for loc, line in lines.items()}

    def refuse(message: str, field: str) -> NoReturn:
        known = field.rstrip(".")
        while known not in line_of:
            known = known.rpartition(".")[0]
        raise InputError(message, file=file, line=line_of[known], field=field)

    def checked(kind: type, given: object, at: str) -> dict[str, Any]:
        """Return the checked fields of a profile or a method: texts and numbers >= 0."""
        types = parameter_hints(kind, [one.name for one in fields(kind)])
        needed = {one.name for one in fields(kind) if one.default is MISSING}
        if not isinstance(given, dict):
            refuse(f"must be a mapping with {', '.join(types)}", at)
        if kind is KernelMethod and "seconds_per_entry" in given:
            given = {"bytes_per_entry": 0.0} | given
        for name in (*given, *types):
            if name not in types:
                refuse(f"there is no such field: {suggest_names(str(name), types)}", f"{at}{name}")
            if name not in given and name in needed:
                refuse("is missing", f"{at}{name}")
        found = dict(given)
        for name, value in given.items():
            if types[name] is str:
                if not isinstance(value, str) or not value.strip():
                    refuse(f"must be a text, got {reprlib.repr(value)}", f"{at}{name}")
                found[name] = value.strip()
            elif types[name] is Provenance:
                if value not in get_args(Provenance):
                    refuse(
                        f"must be one of {', '.join(get_args(Provenance))}, got {reprlib.repr(value)}", f"{at}{name}"
                    )
            elif types[name] in (Bandwidth, Seconds, Size, Slowdown):
                if not is_number(value):
                    refuse(f"must be a number, got {reprlib.repr(value)}", f"{at}{name}")
                if not 0 <= value < math.inf:
                    refuse(f"must be finite and >= 0, got {value}", f"{at}{name}")
                if wrong := bounds_error(value, types[name]):
                    refuse(wrong, f"{at}{name}")
                found[name] = float(value)
        if "corrections" in found:
            found["corrections"] = pairs(found["corrections"], f"{at}corrections")
        if kind is KernelMethod and not found.get("low", 1.0) <= 1 <= found.get("high", 1.0):
            refuse("must have a low of at most 1 and a high of at least 1", at.removesuffix("."))
        return found

    def pairs(given: object, at: str) -> tuple[tuple[float, float], ...]:
        """Return pairs of entries and factors."""
        listed: list[Any] = given if isinstance(given, list) else [given]
        if not all(isinstance(one, list) and len(one) == 2 and all(map(is_number, one)) for one in listed):
            refuse(f"must be a list of pairs of entries and a factor, got {reprlib.repr(given)}", at)
        found = tuple((float(entries), float(factor)) for entries, factor in listed)
        lengths = [entries for entries, _ in found]
        if lengths != sorted(set(lengths)) or not all(0 < one <= 1e18 for pair in found for one in pair):
            refuse("must have entries that ascend, and be > 0 and at most 1e18", at)
        return found

    top = checked(DeviceProfile, given, "")
    if not isinstance(top["methods"], dict):
        refuse("must be a mapping of method names to their figures", "methods")
    methods = {
        name: KernelMethod(**checked(KernelMethod, one, f"methods.{name}.")) for name, one in top["methods"].items()
    }
    streams = {name: kind(**checked(kind, top[name], f"{name}.")) for name, kind in _STREAMS.items() if name in top}
    return DeviceProfile(**top | {"methods": methods} | streams)
