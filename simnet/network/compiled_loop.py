"""Access to the event loop as native code."""

from __future__ import annotations

from functools import cache

from simnet.base.jit_threshold import Native, native_copy, native_is_kept


@cache
def compiled_loop() -> Native | None:
    """Return the event loop as native code; None if numba is missing or disabled."""
    from simnet.network import event_loop

    return native_copy(*event_loop.MODULES)


def loop_is_kept() -> bool:
    """Return whether the compiled event loop is stored, so that it loads without being compiled."""
    from simnet.network import event_loop

    return native_is_kept("advance", *event_loop.MODULES)


def loop_is_loaded() -> bool:
    """Return whether this process uses the compiled event loop."""
    return compiled_loop.cache_info().currsize > 0 and compiled_loop() is not None
