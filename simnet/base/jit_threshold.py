"""Interpreted work of a process, up to the point where loading compiled loops pays off."""

from __future__ import annotations


class JitThreshold:
    """The amount of interpreted work, in any unit, from which loading compiled loops saves time.

    Examples
    --------
    >>> messages = JitThreshold(100)
    >>> [messages.is_enough_with(work) for work in (60, 30, 10, 1)]
    [False, False, True, True]
    >>> JitThreshold(100).is_enough_with(1, ahead=200)
    True
    """

    def __init__(self, enough: float) -> None:
        self.enough, self.done = enough, 0.0

    def is_enough_with(self, work: float, ahead: float = 0.0) -> bool:
        """Add `work` to the work done; return whether past work plus max(work, ahead) reaches the threshold."""
        begun = self.done
        self.done += work
        return begun + max(work, ahead) >= self.enough
