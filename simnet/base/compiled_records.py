"""Records with named fields for native code, which finds all numbers and arrays of a record from one address.

A table is an array of numbers, or of records that are dataclasses of numbers. Functions written for lists of such
records compile unchanged (`simnet.base.native`); they take an address, so that calls are cheap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

State = TypeVar("State")

# Numbers that stand beside the addresses of tables, eight bytes each.
_NUMBERS = (float, int, bool)


class CompiledRecords:
    """A record for native code, at a memory `address`; `fields` maps each field's name to its annotation and dtype."""

    fields: ClassVar[Mapping[str, tuple[Any, np.dtype[Any] | None]]]
    address: int


def record_dtype(kind: type) -> np.dtype[Any]:
    """Return the numpy dtype of the dataclass `kind`; ValueError if a field name clashes with `numpy.record`."""
    fields = get_type_hints(kind, include_extras=True)
    for name in fields:
        if hasattr(np.record, name):
            raise ValueError(f"{kind.__name__}.{name} needs another name: numpy.record has a {name} of its own")
    return np.dtype([(name, _number_dtype(one)) for name, one in fields.items()], align=True)


def _number_dtype(hint: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(hint.__metadata__[0] if get_origin(hint) is Annotated else hint)
    return found


def _entry_dtype(hint: Any) -> np.dtype[Any] | None:
    """Return the element dtype of an array field, given the field's type hint; None for a field that is one number."""
    if hint in _NUMBERS:
        return None
    kind = get_args(hint)[0] if get_origin(hint) is list else float
    return record_dtype(kind) if dataclasses.is_dataclass(kind) else _number_dtype(kind)


def _number_view(place: int, kind: type) -> property:
    view = "reals" if kind is float else "whole"

    def get(self: Any) -> Any:
        value = getattr(self, view)[place]
        return value != 0 if kind is bool else value

    return property(get, lambda self, value: getattr(self, view).__setitem__(place, value))


def _table_view(name: str, place: int, dtype: np.dtype[Any]) -> property:
    def get(self: Any) -> Any:
        return self.tables[name]

    def put(self: Any, table: Any) -> None:
        if table.dtype != dtype or not table.flags.c_contiguous:
            raise TypeError(f"{name} must be contiguous and of {dtype}, got {table.dtype}")
        self.tables[name] = table
        self.whole[place] = table.__array_interface__["data"][0]

    return property(get, put)


@cache
def compiled_state(kind: type[State]) -> type[State]:
    """Return a subclass of the dataclass `kind` that native code can access; list fields become numpy arrays.

    `kind` has float, int, bool, and tables: `list` of one of these or of a dataclass of them, or a float64 array;
    Annotated numbers in tables have the annotated dtype.
    """
    hints = get_type_hints(kind, include_extras=True)
    fields = {name: (hint, _entry_dtype(hint)) for name, hint in hints.items()}
    members: dict[str, Any] = {"fields": fields}
    tables: dict[str, Any] = {}
    for place, (name, (hint, dtype)) in enumerate(fields.items()):
        if dtype is None:
            members[name] = _number_view(place, hint)
        else:
            members[name] = _table_view(name, place, dtype)
            # An array of records gives its rows the names of the fields, as objects have them.
            tables[name] = np.zeros(0, dtype).view(np.ndarray if dtype.names is None else np.recarray)

    def begin(self: Any) -> None:
        block = np.zeros(len(hints), dtype=np.int64)
        self.tables, self.address = {}, int(block.ctypes.data)
        self.whole, self.reals = block.data, block.view(np.float64).data
        kind.__init__(self, **tables)

    members["__init__"] = begin
    return type(f"Compiled{kind.__name__}", (CompiledRecords, kind), members)
