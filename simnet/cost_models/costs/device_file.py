"""Reads device profiles from YAML, with the fields of `DeviceProfile`."""

from __future__ import annotations

import json
from dataclasses import fields

from pydantic import TypeAdapter, ValidationError

from simnet.base.yaml_loader import load_yaml_mapping, validation_refusal
from simnet.cost_models.costs.devices import (
    CollectiveSlowdown,
    DeviceProfile,
    HostPrices,
    KernelMethod,
    SideStreamSlowdown,
)

_PROFILE = TypeAdapter(DeviceProfile)
_FIELDS = [
    one.name
    for kind in (DeviceProfile, KernelMethod, SideStreamSlowdown, CollectiveSlowdown, HostPrices)
    for one in fields(kind)
]


def read_profile(text: str, file: str) -> DeviceProfile:
    """Return the device profile in a YAML text; raise InputError, with `file`, for an invalid field."""
    read = load_yaml_mapping(text, file, "a device profile")
    methods = read.value.get("methods")
    for one in methods.values() if isinstance(methods, dict) else ():
        if isinstance(one, dict) and "seconds_per_entry" in one:
            one.setdefault("bytes_per_entry", 0.0)
    try:
        # As JSON lists stand for tuples, and nothing but a number for a number.
        return _PROFILE.validate_json(json.dumps(read.value))
    except ValidationError as error:
        raise validation_refusal(error, file, read, _FIELDS) from None
