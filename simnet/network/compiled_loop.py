"""Access to the compiled event loop."""

from __future__ import annotations

from functools import cache
from types import ModuleType


def compiled_copy(*modules: ModuleType) -> ModuleType | None:
    """Return the compiled functions of modules; None if numba is missing or disabled."""
    try:
        from simnet.base.compiling import compiled_module
    except (ImportError, OSError):
        return None
    return compiled_module(*modules)


@cache
def compiled_loop() -> ModuleType | None:
    """Return the compiled event loop; None if numba is missing or disabled."""
    from simnet.network import event_loop

    return compiled_copy(*event_loop.MODULES)


def loop_is_loaded() -> bool:
    """Return whether this process has loaded the compiled event loop."""
    return compiled_loop.cache_info().currsize > 0 and compiled_loop() is not None
