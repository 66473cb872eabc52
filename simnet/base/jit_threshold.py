"""Work that is done in the interpreter, until loading compiled loops takes less time than it saves."""

from __future__ import annotations


class JitThreshold:
    """What a process has had done in the interpreter that compiled loops could have done.

    Parameters
    ----------
    enough : float
        Work, in any unit, from which on loading the loops takes less time than it saves.

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
        """Return whether there is enough with so much more to do now, or ahead; that of now counts as done."""
        begun = self.done
        self.done += work
        return begun + max(work, ahead) >= self.enough
