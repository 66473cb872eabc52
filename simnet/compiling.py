"""Compiled loops: numba, kept in its cache where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import config, njit

if config.DISABLE_JIT:
    raise ImportError("numba is set not to compile (NUMBA_DISABLE_JIT)")

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(*signatures: Any) -> Callable[[Function], Function]:
    """Compile a function for these types of arguments, or take it from the cache if it is there.

    Importing this module raises ImportError where numba is missing or told not to compile.
    """

    def compile_now(function: Function) -> Function:
        try:
            made: Function = njit(list(signatures), cache=True)(function)
        except (RuntimeError, OSError):  # There is no folder for the cache, or it cannot be written to.
            made = njit(list(signatures))(function)
        return made

    return compile_now
