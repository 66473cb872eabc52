"""Rule for when to use native code: after a process has interpreted enough work for native code to save time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from simnet.base.native import NativeModule

Native: TypeAlias = "NativeModule"
"""Functions of modules as native code; what makes them is not loaded for its name alone."""


@cache
def native_copy(*modules: ModuleType, **replaced: str) -> Native | None:
    """Return the functions of modules as native code; None if numba is missing or disabled (``NUMBA_DISABLE_JIT``).

    Names of functions must be distinct. `replaced`: names of functions, and of those that take their places.
    """
    try:
        from simnet.base.native import NativeModule

        return NativeModule(modules, replaced)
    except (ImportError, OSError):
        return None


def native_is_kept(main: str, *modules: ModuleType, **replaced: str) -> bool:
    """Return whether native code of the function `main` of modules is stored, so that it loads without compiling."""
    found = native_copy(*modules, **replaced)
    return found is not None and found.is_kept(main)


class JitThreshold:
    """Decides when native code saves time: after a process has interpreted enough work, such as many messages.

    Code that is kept from an earlier process pays off from `loading` on, code that is still to be compiled from
    `compiling` on; `is_kept` says which it is.

    Examples
    --------
    >>> messages = JitThreshold(100, 1000, lambda: True)
    >>> [messages.is_enough_with(work) for work in (60, 30, 10, 1)]
    [False, False, True, True]
    >>> messages = JitThreshold(100, 1000, lambda: False)
    >>> messages.is_enough_with(500), messages.is_enough_with(1, ahead=500)
    (False, True)
    """

    def __init__(self, loading: float, compiling: float, is_kept: Callable[[], bool]) -> None:
        self.loading, self.compiling, self.is_kept, self.done = loading, compiling, is_kept, 0.0

    def is_enough_with(self, work: float, ahead: float = 0.0) -> bool:
        """Record `work`, such as a number of messages, and return whether native code saves time from now on.

        `ahead` is the work that the caller expects from now on; it is used in place of `work` if it is larger.
        """
        whole = self.done + max(work, ahead)
        self.done += work
        return whole >= self.loading and (whole >= self.compiling or self.is_kept())
