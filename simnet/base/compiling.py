"""Compilation of loops by numba, with an on-disk cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from numba import config, njit, types
from numba.core.options import DefaultOptions

from simnet.base.compiled_cache import find_cache

if config.DISABLE_JIT:
    raise ImportError("numba is set not to compile (NUMBA_DISABLE_JIT)")

Function = TypeVar("Function", bound=Callable[..., Any])


def compile_function(*signatures: Any, sources: Sequence[str] = (), **options: Any) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function for these argument types, or loads it from the cache.

    Without types it is compiled on first call. `sources` are files of functions it calls, `options` those of
    `numba.njit`. Importing this module raises ImportError if numba is missing or disabled.
    """

    def compile_now(function: Function) -> Function:
        made = njit(**options)(function)
        made._cache = find_cache(function, sources)
        for one in signatures:
            made.compile(one)
        if signatures:
            made.disable_compile()
        loops: Function = made
        return loops

    return compile_now


# References to arrays are not counted, where numba knows how: at every call that takes three quarters of the time.
UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}


@cache
def compiled_module(*modules: ModuleType) -> ModuleType:
    """Return a module that has the compiled functions of all `modules`; names must be distinct.

    The functions call each other compiled and must not create arrays. They are compiled on first call.
    """
    names = {one.__name__ for one in modules}
    sources = [file for one in modules if (file := getattr(one, "__file__", None))]
    made = ModuleType(modules[-1].__name__)
    # Functions find each other in the names of their module, so copies with other names find the compiled ones.
    for module in modules:
        made.__dict__.update(vars(module))
    for name, function in list(vars(made).items()):
        if isinstance(function, FunctionType) and function.__module__ in names:
            copy = FunctionType(function.__code__, made.__dict__, name, function.__defaults__)
            copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
            made.__dict__[name] = _in_one_version(compile_function(sources=sources, **UNCOUNTED)(copy))
    return made


def _in_one_version(function: Any) -> Any:
    """Compile one version of a function for all integer types: compiled callers pass integers as int64."""
    template = function.get_call_template

    def widened(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        plain = map(types.unliteral, args)
        return template(tuple(types.int64 if isinstance(one, types.Integer) else one for one in plain), kws)

    function.get_call_template = widened
    return function
