"""Compiled loops: numba, with what it compiles kept where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from numba import config, njit, types
from numba.core.options import DefaultOptions

from simnet.base.compiled_cache import kept_code

if config.DISABLE_JIT:
    raise ImportError("numba is set not to compile (NUMBA_DISABLE_JIT)")

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(*signatures: Any, sources: Sequence[str] = (), **options: Any) -> Callable[[Function], Function]:
    """Compile a function for these types of arguments, or take it from the cache if it is there.

    Without types that is done when it is first called. Options are those of `numba.njit`, and `sources` the files of
    functions in other modules that it calls.

    Importing this module raises ImportError where numba is missing or told not to compile.
    """

    def compile_now(function: Function) -> Function:
        made = njit(**options)(function)
        made._cache = kept_code(function, sources)
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
    """Return a module with the functions of others, none of the same name, compiled when they are first called.

    They call each other compiled; the other modules stay as they are. They must not make arrays.
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
            made.__dict__[name] = _in_one_version(compiled(sources=sources, **UNCOUNTED)(copy))
    return made


def _in_one_version(function: Any) -> Any:
    """Let compiled functions call another with whole numbers of 64 bits, whatever they have.

    numba would compile it once more for every constant, and width, that it is called with.
    """
    template = function.get_call_template

    def widened(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        plain = map(types.unliteral, args)
        return template(tuple(types.int64 if isinstance(one, types.Integer) else one for one in plain), kws)

    function.get_call_template = widened
    return function
