"""Compilation of Python functions by numba, and the numba type of `CompiledRecords`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import njit, typeof, types
from numba.core import cgutils
from numba.core.imputils import lower_builtin, lower_getattr_generic, lower_setattr_generic
from numba.core.options import DefaultOptions
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import models, register_model, typeof_impl
from numba.np import arrayobj
from numba.np.numpy_support import from_dtype

from simnet.base.compiled_records import CompiledRecords
from simnet.base.native import ObjectCode, target_machine

# References to arrays are not counted, where numba knows how: at every call that takes three quarters of the time.
# Nothing of Python's is made, as the code is called by its address.
_OPTIONS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} | (
    {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
)
_RETURNED = {types.float64: "d", types.int64: "q", types.boolean: "b", types.none: "n"}
_NUMBERS = {float: types.float64, int: types.int64, bool: types.boolean}


def compile_object(
    modules: Sequence[ModuleType], replaced: Sequence[tuple[str, str]], name: str, args: Sequence[Any]
) -> ObjectCode:
    """Compile the function `name` of some modules for the types of `args`, and return its object code."""
    function = _compiled_functions(tuple(modules), tuple(replaced))[name]
    signature = tuple(_widened(typeof(_specimen(one))) for one in args)
    function.compile(signature)
    made = function.overloads[signature]
    code: bytes = target_machine().emit_object(llvm.parse_assembly(function.inspect_llvm(signature)))
    return ObjectCode(made.fndesc.llvm_func_name, _returned(made.signature.return_type), code)


def _specimen(value: Any) -> Any:
    """Replace arrays by small writable ones of the same type; code compiled for these also takes read-only arrays."""
    if isinstance(value, np.ndarray):
        whole = np.empty((2,) * value.ndim, value.dtype)
        return whole if value.flags.c_contiguous else whole[..., ::2]
    if isinstance(value, tuple):
        return (type(value)._make if hasattr(value, "_make") else tuple)(map(_specimen, value))
    return value


def _returned(kind: Any) -> str:
    if isinstance(kind, types.BaseTuple):
        return f"({''.join(map(_returned, kind))})"
    return _RETURNED[types.unliteral(kind)]


def _widened(kind: Any) -> Any:
    """Return int64 in place of any integer type, so that a function is compiled only once for all integers."""
    return types.int64 if isinstance(types.unliteral(kind), types.Integer) else types.unliteral(kind)


@cache
def _compiled_functions(modules: Sequence[ModuleType], replaced: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
    """Return numba-compiled copies of all functions of some modules; compiled copies call other compiled copies."""
    names = {one.__name__ for one in modules}
    made: dict[str, Any] = {}
    # Functions find each other in the names of their module, so copies with other names find the compiled ones.
    for module in modules:
        made.update(vars(module))
    made.update({name: made[other] for name, other in replaced})
    for name, function in list(made.items()):
        if isinstance(function, FunctionType) and function.__module__ in names:
            copy = FunctionType(function.__code__, made, name, function.__defaults__)
            copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
            made[name] = _in_one_version(njit(**_OPTIONS)(copy))
    return made


def _in_one_version(function: Any) -> Any:
    """Make compiled callers of `function` pass all integers as int64, so that it is compiled only once; return it."""
    template: Callable[..., Any] = function.get_call_template

    def widened(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        return template(tuple(map(_widened, args)), kws)

    function.get_call_template = widened
    return function


class _Table(types.Array):  # type: ignore[misc]
    """The numba type of a table of records. Row numbers are never negative, so code for negative ones is left out."""


register_model(_Table)(models.ArrayModel)


def _entry(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    table, row = signature.args[:2]
    data = arrayobj.make_array(table)(context, builder, args[0]).data
    return builder.gep(data, [context.cast(builder, args[1], row, types.intp)], inbounds=True)


@lower_builtin(operator.getitem, _Table, types.Integer)  # type: ignore[untyped-decorator]
def _read_entry(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return arrayobj.load_item(context, builder, signature.args[0], _entry(context, builder, signature, args))


@lower_builtin(operator.setitem, _Table, types.Integer, types.Any)  # type: ignore[untyped-decorator]
def _write_entry(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    table, _, kind = signature.args
    value = context.cast(builder, args[2], kind, table.dtype)
    arrayobj.store_item(context, builder, table, value, _entry(context, builder, signature, args))
    return context.get_dummy_value()


class _RecordsType(types.Type):  # type: ignore[misc]
    """The numba type of `CompiledRecords`: the type of each field, and its position in the record."""

    def __init__(self, kind: type[CompiledRecords]) -> None:
        self.fields = {
            name: _NUMBERS[hint] if dtype is None else _Table(from_dtype(dtype), 1, "C")
            for name, (hint, dtype) in kind.fields.items()
        }
        self.places = {name: place for place, name in enumerate(kind.fields)}
        super().__init__(name=f"{kind.__name__}({kind.fields})")


@cache
def _records_type(kind: Any) -> _RecordsType:
    return _RecordsType(kind)


@typeof_impl.register(CompiledRecords)  # type: ignore[untyped-decorator]
def _typeof_records(value: CompiledRecords, _: Any) -> _RecordsType:
    kind: Any = type(value)
    return _records_type(kind)


register_model(_RecordsType)(models.OpaqueModel)


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = _RecordsType

    def generic_resolve(self, records: _RecordsType, name: str) -> Any:
        return records.fields.get(name)


def _field_address(context: Any, builder: Any, records: _RecordsType, value: Any, name: str, kind: Any) -> Any:
    """Return the address of a field of a record, in generated code."""
    slots = builder.bitcast(value, context.get_value_type(kind).as_pointer())
    return cgutils.gep_inbounds(builder, slots, records.places[name])


@lower_getattr_generic(_RecordsType)  # type: ignore[untyped-decorator]
def _read_field(context: Any, builder: Any, records: _RecordsType, value: Any, name: str) -> Any:
    kind = records.fields[name]
    if not isinstance(kind, types.Array):
        stored = types.int64 if kind == types.boolean else kind
        found = builder.load(_field_address(context, builder, records, value, name, stored))
        return found if stored is kind else builder.icmp_signed("!=", found, found.type(0))
    address = builder.load(_field_address(context, builder, records, value, name, types.intp))
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


@lower_setattr_generic(_RecordsType)  # type: ignore[untyped-decorator]
def _write_field(context: Any, builder: Any, signature: Any, given: Any, name: str) -> None:
    records, kind = signature.args
    value = given[1]
    if kind == types.boolean:
        kind, value = types.int64, builder.zext(value, context.get_value_type(types.int64))
    builder.store(value, _field_address(context, builder, records, given[0], name, kind))
