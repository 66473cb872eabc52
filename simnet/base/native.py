"""Python functions as native code: numba compiles each once, and later processes load the object code without numba.

A function is compiled for the kinds of its arguments: float, int, bool, None, arrays, tuples of these, and records
(`simnet.base.compiled_records`). It returns a number, or a tuple of numbers. Its object code is kept beside its source,
where it serves all users, or in the cache of the user where that folder cannot be written to, or in
``NUMBA_CACHE_DIR``. The first compilation of a process, which takes seconds, is reported in one line.

By numba's convention native code returns a status. It takes the address of its result, that of an error, and its
arguments, of which arrays and tuples come in their parts.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from simnet.base.file_io import open_atomic

_FORMAT = b"simnet native 1\n"
_SOURCES = ("native.py", "compiling.py", "compiled_records.py")
_COMPILES = "compiles its loops, which takes some seconds; `python -m simnet.compile` does so beforehand, once"
_TYPES = {"d": ctypes.c_double, "q": ctypes.c_int64, "b": ctypes.c_bool, "n": ctypes.c_void_p, "s": ctypes.c_void_p}
# What numba returns of a function that has done without an error, with a result or with None.
_DONE = (0, -2)
_log = logging.getLogger("simnet")
_told: set[str] = set()
_compiled: list[str] = []
_folders: set[Path] = set()
# Versions of a function that are kept beside each other, as of several versions of Python or of processors.
_VERSIONS = 8
# Code stays where it is as long as its engine is kept.
_engines: list[Any] = []


class ObjectCode(NamedTuple):
    """A compiled function: the name of its symbol, the types it returns (a letter each), and the object code."""

    symbol: str
    returns: str
    code: bytes


class NativeModule:
    """The functions of `modules` as native code, each loaded or compiled when it is first called.

    The functions call each other by name, and must not create arrays. `replaced` has names of functions, and those of
    functions that take their places.
    """

    def __init__(self, modules: Sequence[ModuleType], replaced: Mapping[str, str]) -> None:
        self._modules, self._replaced = modules, replaced
        text = [_function_code(one) for one in modules]
        self._key = hashlib.sha256("\n".join([_environment(), str(dict(replaced)), *text]).encode()).hexdigest()[:20]

    def __getattr__(self, name: str) -> NativeFunction:
        if not any(isinstance(vars(one).get(name), FunctionType) for one in self._modules):
            raise AttributeError(f"there is no function {name!r} to compile")
        found = NativeFunction(self, name)
        setattr(self, name, found)
        return found

    def is_kept(self, name: str) -> bool:
        """Return whether compiled code of the function `name` is stored on disk."""
        return any(any(one.glob(f"{name}-*-{self._key}.o")) for one in self._places(name))

    def _places(self, name: str) -> list[Path]:
        """Return the folders that may store a function's object code, in order of preference."""
        if given := os.environ.get("NUMBA_CACHE_DIR"):
            return [Path(given)]
        source = next(
            (file for one in self._modules if name in vars(one) and (file := getattr(one, "__file__", None))), ""
        )
        own = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return [*([Path(source).parent / "__pycache__"] if source else []), Path(own) / "simnet"]

    def code_for(self, name: str, kinds: str, args: Sequence[Any]) -> ObjectCode:
        """Return the object code of a function for arguments of the types `kinds`: stored code, or newly compiled."""
        file = f"{name}-{hashlib.sha256(kinds.encode()).hexdigest()[:12]}-{self._key}.o"
        for place in self._places(name):
            if (found := _read_code(place / file)) is not None:
                _folders.add(place)
                return found
        from simnet.base.compiling import compile_object

        _report_once(_COMPILES)
        found = compile_object(tuple(self._modules), tuple(self._replaced.items()), name, args)
        _compiled.append(name)
        why = ""
        for place in self._places(name):
            try:
                _keep_code(found, place, file)
            except OSError as error:
                why = f"{place}: {error.strerror or error}"
            else:
                _folders.add(place)
                return found
        _report_once(
            f"cannot keep what it compiles ({why}), so that every process does so again; "
            "set NUMBA_CACHE_DIR to a folder of yours that can be written to"
        )
        return found


class NativeFunction:
    """A function of a `NativeModule`, with a compiled version for each combination of argument types."""

    def __init__(self, module: NativeModule, name: str) -> None:
        self._module, self._name = module, name
        self._versions: dict[str, Callable[[Sequence[Any]], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """Run the function, after compiling or loading it for the types of its arguments."""
        kinds: list[str] = []
        values: list[Any] = []
        for one in args:
            _take_apart(one, kinds, values)
        key = "".join(kinds)
        run = self._versions.get(key)
        if run is None:
            run = self._versions[key] = _loaded(self._name, kinds, self._module.code_for(self._name, key, args))
        return run(values)


def _take_apart(value: Any, kinds: list[str], values: list[Any]) -> None:
    """Append the type codes of an argument to `kinds`, and the numbers and addresses passed for it to `values`."""
    if isinstance(value, float | np.floating):
        kinds.append("d")
        values.append(value)
    elif isinstance(value, bool | np.bool_):
        kinds.append("b")
        values.append(bool(value))
    elif isinstance(value, int | np.integer):
        kinds.append("q")
        values.append(int(value))
    elif isinstance(value, tuple):
        kinds.append(f"({type(value).__qualname__}")
        for one in value:
            _take_apart(one, kinds, values)
        kinds.append(")")
    elif isinstance(value, np.ndarray):
        kinds.append(f"a{value.ndim}{value.dtype.str}{'C' * value.flags.c_contiguous}")
        address = value.__array_interface__["data"][0]
        values += (None, None, value.size, value.itemsize, address, *value.shape, *value.strides)
    elif value is None:
        kinds.append("n")
        values.append(None)
    else:
        kinds.append(f"s{type(value).__name__}")
        values.append(value.address)


def _types_of(kinds: Iterable[str]) -> list[Any]:
    """Return the ctypes types of the native parameters, given the type codes of the arguments."""
    found: list[Any] = []
    for one in kinds:
        if one[0] == "a":
            found += [_TYPES[part] for part in f"nnqqn{'qq' * int(one[1])}"]
        elif one[0] in _TYPES:
            found.append(_TYPES[one[0]])
    return found


def _loaded(name: str, kinds: Sequence[str], found: ObjectCode) -> Callable[[Sequence[Any]], Any]:
    """Return a Python function that calls the object code `found` with a list of argument values."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(found.code))
    engine.finalize_object()
    _engines.append(engine)
    pointers = [ctypes.c_void_p, ctypes.c_void_p]
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int32, *pointers, *_types_of(kinds))
    call, error = prototype(engine.get_function_address(found.symbol)), ctypes.byref(ctypes.c_void_p())
    fields = [(f"part{at}", _TYPES[kind]) for at, kind in enumerate(found.returns.strip("()"))]
    room = type("Result", (ctypes.Structure,), {"_fields_": fields})
    parts, alone = [field for field, _ in fields], found.returns[0] != "("

    def run(values: Sequence[Any]) -> Any:
        result = room()
        if call(ctypes.byref(result), error, *values) not in _DONE:
            raise ArithmeticError(f"{name} failed: it divides by zero, or takes what is not there")
        return result.part0 if alone else tuple(getattr(result, part) for part in parts)

    return run


@cache
def target_machine() -> Any:
    """Return the LLVM target for which functions are compiled: the processor of this machine."""
    # Since llvmlite 0.45 it does so by itself, and says so.
    with suppress(RuntimeError):
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    cpu, features = _processor()
    # As numba does: code that stays in this process needs no other addresses on x86.
    reloc = "static" if target.name.startswith("x86") else "default"
    return target.create_target_machine(cpu, features, opt=3, reloc=reloc, codemodel="jitdefault", jit=True)


def _processor() -> tuple[str, str]:
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _file_contents(module: Any, names: Sequence[str]) -> list[bytes]:
    """Return the contents of files in a module's folder, which may be in an archive, without importing anything."""
    return [module.loader.get_data(str(Path(module.origin).with_name(one))) for one in names]


@cache
def _environment() -> str:
    """Return, as text, all that compiled code depends on besides its functions: processor, versions, numba settings."""
    try:
        numba = find_spec("numba")
    except ValueError:
        numba = None
    if numba is None or numba.origin is None or os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise ImportError("numba is missing, or set not to compile (NUMBA_DISABLE_JIT)")
    own = [*_file_contents(find_spec(__name__), _SOURCES), *_file_contents(numba, ["_version.py"])]
    given = sorted(one for one in os.environ.items() if one[0].startswith("NUMBA_") and "CACHE" not in one[0])
    return repr((_processor(), sys.version, llvmlite.__version__, given, own))


def _function_code(module: ModuleType) -> str:
    """Return the bytecode and constants of a module's functions, and the fields of its record classes, as text."""
    parts = []
    for name, one in sorted(vars(module).items()):
        if isinstance(one, FunctionType) and one.__module__ == module.__name__:
            parts.append(f"{name} {one.__defaults__} {_code_text(one.__code__)}")
        elif isinstance(one, int | float | np.generic):
            parts.append(f"{name} {one}")
        elif isinstance(one, type) and (dataclasses.is_dataclass(one) or hasattr(one, "_fields")):
            parts.append(f"{name} {one.__qualname__} {vars(one).get('__annotations__')}")
    return "\n".join(parts)


def _code_text(code: CodeType) -> str:
    """Return bytecode, constants and names of a code object as text, nested functions included."""
    constants = [_code_text(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


def _read_code(path: Path) -> ObjectCode | None:
    """Return the object code in a file; None if the file is missing or damaged."""
    with suppress(OSError, ValueError, KeyError):
        start, _, rest = path.read_bytes().partition(b"\n")
        head, _, code = rest.partition(b"\n")
        known = json.loads(head)
        if start + b"\n" == _FORMAT and known["sha256"] == hashlib.sha256(code).hexdigest():
            return ObjectCode(known["symbol"], known["returns"], code)
    return None


def _keep_code(found: ObjectCode, place: Path, file: str) -> None:
    """Store object code in a folder atomically, and delete its oldest versions; OSError if it cannot be written."""
    place.mkdir(parents=True, exist_ok=True)
    head = {"symbol": found.symbol, "returns": found.returns, "sha256": hashlib.sha256(found.code).hexdigest()}
    with open_atomic(place / file, sync=False) as made:
        made.write(_FORMAT + json.dumps(head).encode() + b"\n" + found.code)
    alike = place.glob(f"{file.rpartition('-')[0]}-*.o")
    for old in sorted(alike, key=lambda one: one.stat().st_mtime)[:-_VERSIONS]:
        old.unlink(missing_ok=True)


def silence_compiling() -> None:
    """Suppress the one-time warning that functions are being compiled."""
    _told.add(_COMPILES)


def compiled_summary() -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the names of the functions that this process compiled, and the folders of object code it used."""
    return tuple(_compiled), tuple(sorted(_folders))


def _report_once(what: str) -> None:
    if what not in _told and multiprocessing.parent_process() is None:
        _told.add(what)
        _log.warning("simnet %s", what)
