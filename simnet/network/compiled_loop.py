"""Access to the compiled event loop."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def compiled_loop() -> ModuleType | None:
    """Return the compiled event loop; None if numba is missing or disabled."""
    try:
        from simnet.base.compiling import compiled_module
    except (ImportError, OSError):
        return None
    from simnet.network import event_loop

    return compiled_module(*event_loop.MODULES)


def load_kept_loop() -> bool:
    """Load the compiled event loop if numba has it cached; return whether it is loaded. Never compiles."""
    loop = compiled_loop()
    cache = getattr(getattr(loop, "advance", None), "_cache", None)
    index = getattr(getattr(cache, "_cache_file", None), "_index_path", None)
    if index is not None and Path(index).exists():
        return True
    compiled_loop.cache_clear()
    return False


def loop_is_loaded() -> bool:
    """Return whether this process has loaded the compiled event loop."""
    return compiled_loop.cache_info().currsize > 0 and compiled_loop() is not None
