"""Records with named fields for compiled functions: a dataclass of numbers and tables behind one pointer.

A table is an array of numbers, or of records that are dataclasses of numbers. Functions written for lists of such
records compile unchanged; their single argument is an address, so that calls are cheap.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_getattr_generic, lower_setattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, models, register_model, unbox
from numba.np import arrayobj
from numba.np.numpy_support import from_dtype

State = TypeVar("State")

# Numbers that stand beside the addresses of tables, eight bytes each.
_NUMBERS = {float: types.float64, int: types.int64, bool: types.boolean}


def record_dtype(kind: type) -> np.dtype[Any]:
    """Return the numpy dtype of the dataclass `kind`; ValueError if a field name clashes with `numpy.record`."""
    fields = get_type_hints(kind, include_extras=True)
    for name in fields:
        if hasattr(np.record, name):
            raise ValueError(f"{kind.__name__}.{name} needs another name: numpy.record has a {name} of its own")
    return np.dtype([(name, _number_dtype(one)) for name, one in fields.items()], align=True)


def _number_dtype(hint: Any) -> np.dtype[Any]:
    """Return the dtype of a numeric field from its annotation."""
    found: np.dtype[Any] = np.dtype(hint.__metadata__[0] if get_origin(hint) is Annotated else hint)
    return found


def _entry_dtype(hint: Any) -> np.dtype[Any] | None:
    """Return the dtype of the entries of a table field; None if the annotation is of a number."""
    if hint in _NUMBERS:
        return None
    kind = get_args(hint)[0] if get_origin(hint) is list else float
    return record_dtype(kind) if dataclasses.is_dataclass(kind) else _number_dtype(kind)


class _StateType(types.Type):  # type: ignore[misc]
    """The numba type of a state: its fields, and a hash of the functions compiled for it."""

    def __init__(self, kind: type, code: str) -> None:
        hints = get_type_hints(kind, include_extras=True)
        self.fields = {
            name: _NUMBERS[hint] if dtype is None else types.Array(from_dtype(dtype), 1, "C")
            for name, hint, dtype in ((name, hint, _entry_dtype(hint)) for name, hint in hints.items())
        }
        self.places = {name: place for place, name in enumerate(hints)}
        # Types of equal names are equal, also in the cache on disk: there, other code makes another type.
        super().__init__(name=f"{kind.__name__}({code})")


register_model(_StateType)(models.OpaqueModel)


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = _StateType

    def generic_resolve(self, state: _StateType, name: str) -> Any:
        return state.fields.get(name)


def _field_address(context: Any, builder: Any, state: _StateType, value: Any, name: str, kind: Any) -> Any:
    """Return the address of a field."""
    slots = builder.bitcast(value, context.get_value_type(kind).as_pointer())
    return cgutils.gep_inbounds(builder, slots, state.places[name])


@lower_getattr_generic(_StateType)  # type: ignore[untyped-decorator]
def _read_field(context: Any, builder: Any, state: _StateType, value: Any, name: str) -> Any:
    kind = state.fields[name]
    if not isinstance(kind, types.Array):
        stored = types.int64 if kind == types.boolean else kind
        found = builder.load(_field_address(context, builder, state, value, name, stored))
        return found if stored is kind else builder.icmp_signed("!=", found, found.type(0))
    address = builder.load(_field_address(context, builder, state, value, name, types.intp))
    item = context.get_data_type(kind.dtype)
    size = context.get_constant(types.intp, context.get_abi_sizeof(item))
    # Nobody asks how long it is: its functions know by themselves how much of it is in use.
    table = arrayobj.make_array(kind)(context, builder)
    arrayobj.populate_array(
        table,
        data=builder.inttoptr(address, item.as_pointer()),
        shape=[context.get_constant(types.intp, 1 << 40)],
        strides=[size],
        itemsize=size,
        meminfo=None,
    )
    return table._getvalue()


@lower_setattr_generic(_StateType)  # type: ignore[untyped-decorator]
def _write_field(context: Any, builder: Any, signature: Any, given: Any, name: str) -> None:
    state, kind = signature.args
    value = given[1]
    if kind == types.boolean:
        kind, value = types.int64, builder.zext(value, context.get_value_type(types.int64))
    builder.store(value, _field_address(context, builder, state, given[0], name, kind))


@unbox(_StateType)  # type: ignore[untyped-decorator]
def _unbox_record(_: _StateType, given: Any, c: Any) -> Any:
    address = c.pyapi.object_getattr_string(given, "address")
    value = c.pyapi.long_as_voidptr(address)
    c.pyapi.decref(address)
    return NativeValue(value)


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


def _function_code(module: ModuleType) -> str:
    """Return the bytecode and constants of a loaded module's functions, for the cache key."""
    parts = []
    for name, one in sorted(vars(module).items()):
        if isinstance(one, FunctionType) and one.__module__ == module.__name__:
            code = one.__code__
            parts.append(f"{name} {code.co_code.hex()} {code.co_consts} {code.co_names} {code.co_varnames}")
        elif isinstance(one, int | float) or (dataclasses.is_dataclass(one) and isinstance(one, type)):
            parts.append(f"{name} {get_type_hints(one, include_extras=True) if isinstance(one, type) else one}")
    return "\n".join(parts)


@cache
def compiled_state(kind: type[State], modules: Sequence[ModuleType]) -> type[State]:
    """Return a class like a dataclass whose instances compiled functions accept, with arrays for tables.

    `kind` has float, int, bool, and tables: `list` of one of these or of a dataclass of them, or a float64 array;
    Annotated numbers in tables have the annotated dtype. A change in `modules`, which have the functions, invalidates
    the cache.
    """
    code = hashlib.sha256("\n".join(map(_function_code, modules)).encode()).hexdigest()[:16]
    hints = get_type_hints(kind, include_extras=True)
    members: dict[str, Any] = {"_numba_type_": _StateType(kind, code)}
    tables: dict[str, Any] = {}
    for place, (name, hint) in enumerate(hints.items()):
        dtype = _entry_dtype(hint)
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
    return type(f"Compiled{kind.__name__}", (kind,), members)
