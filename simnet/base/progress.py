"""How far a long computation is: told from the loops inside to whoever shows it, through all that is between.

Loops that may take seconds go over `tracked`. Nobody listens unless a command asks with `told`, and then a loop inside
another fills the share of the step that it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass
class _Listener:
    tell: Callable[[float], None]
    done: float = 0.0
    end: float = 1.0
    """What will be done at the end of the step that is under way."""


_listener: ContextVar[_Listener | None] = ContextVar("listener", default=None)


@contextmanager
def told(tell: Callable[[float], None]) -> Iterator[None]:
    """Have a function called with the share that is done, in [0, 1], ever more, while a block lasts.

    Examples
    --------
    >>> shares = []
    >>> with told(shares.append):
    ...     for outer in tracked("ab"):
    ...         for inner in tracked("cd", share=0.5):
    ...             pass
    >>> shares
    [0.125, 0.25, 0.5, 0.625, 0.75, 1.0]
    """
    token = _listener.set(_Listener(tell))
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def stage(share: float) -> Iterator[None]:
    """Let a block take a share of what is left of the step of the loop around it, in (0, 1]."""
    listener = _listener.get()
    if listener is None:
        yield
        return
    end = listener.end
    listener.end = end if share == 1 else listener.done + (end - listener.done) * share
    try:
        yield
        _reached(listener)
    finally:
        listener.end = end


def tracked(items: Collection[T], share: float = 1.0) -> Iterator[T]:
    """Go over items, and tell how many are done.

    Parameters
    ----------
    items : collection
        They should take about the same time.
    share : float
        As of `stage`.

    Yields
    ------
    object
        Each in turn.
    """
    listener = _listener.get()
    if listener is None or len(items) == 0:
        yield from items
        return
    with stage(share):
        begun, end = listener.done, listener.end
        for number, item in enumerate(items, 1):
            # Without rounding at the end, which is that of the stage.
            listener.end = end if number == len(items) else begun + (end - begun) * number / len(items)
            yield item
            _reached(listener)


def _reached(listener: _Listener) -> None:
    """Tell that the step that is under way is done."""
    if listener.end > listener.done:
        listener.done = listener.end
        listener.tell(listener.done)
