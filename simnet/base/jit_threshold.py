"""Interpreted work of a process, up to the point where loading compiled loops pays off."""

from __future__ import annotations


class JitThreshold:
    """Interpreted work, in any unit, above which to load compiled loops takes less time than it saves.

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
        """Add `work` to what is done; return whether past work plus the larger of `work` and `ahead` is enough."""
        begun = self.done
        self.done += work
        return begun + max(work, ahead) >= self.enough
