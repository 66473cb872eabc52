"""Progress of long computations: loops report it, and the command that runs them displays it.

Loops that may take seconds iterate over `track_progress`; a command listens with `report_progress`. A nested loop fills
its share of the enclosing step.
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
    tell: Callable[..., None]
    done: float = 0.0
    end: float = 1.0
    """Progress at the end of the current step."""


_listener: ContextVar[_Listener | None] = ContextVar("listener", default=None)


@contextmanager
def report_progress(tell: Callable[..., None]) -> Iterator[None]:
    """Pass the progress of the block to a function: the completed share, up to 1, and any description.

    Examples
    --------
    >>> shares = []
    >>> with report_progress(shares.append):
    ...     for outer in track_progress("ab"):
    ...         for inner in track_progress("cd", share=0.5):
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
def progress_stage(share: float) -> Iterator[None]:
    """Let the block's progress count as the fraction `share`, in (0, 1], of what remains of the enclosing step."""
    listener = _listener.get()
    if listener is None:
        yield
        return
    end = listener.end
    listener.end = end if share == 1 else listener.done + (end - listener.done) * share
    try:
        yield
        _finish_step(listener)
    finally:
        listener.end = end


def track_progress(items: Collection[T], share: float = 1.0) -> Iterator[T]:
    """Yield `items`, reporting equal progress after each: in all, a fraction `share` of the progress still missing."""
    listener = _listener.get()
    if listener is None or len(items) == 0:
        yield from items
        return
    with progress_stage(share):
        begun, end = listener.done, listener.end
        for number, item in enumerate(items, 1):
            # Without rounding at the end, which is that of the stage.
            listener.end = end if number == len(items) else begun + (end - begun) * number / len(items)
            yield item
            _finish_step(listener)


def report_share(share: float, done: str) -> None:
    """Report the completed share of the enclosing step, and a description, from code that has no loop to track."""
    listener = _listener.get()
    if listener is not None:
        listener.tell(listener.done + share * (listener.end - listener.done), done)


def _finish_step(listener: _Listener) -> None:
    if listener.end > listener.done:
        listener.done = listener.end
        listener.tell(listener.done)
