"""How workers train and begin an iteration, in words."""

from __future__ import annotations

from collections.abc import Iterable

from simnet.base.units import format_seconds


def describe_barrier(barrier: bool) -> str:
    """Return in a sentence how workers begin an iteration.

    Examples
    --------
    >>> describe_barrier(True)
    "Workers begin each iteration together (job.barrier: true); processes of PyTorch's DDP do not."
    """
    if barrier:
        return "Workers begin each iteration together (job.barrier: true); processes of PyTorch's DDP do not."
    return "Workers begin an iteration each when done with the one before (job.barrier: false)."


def describe_strategy(name: str, steps: int, deadline_s: float | None = None) -> str:
    """Return the line that says by which training strategy workers trained, and what an iteration is.

    Examples
    --------
    >>> describe_strategy("diloco", 100)
    'Workers train by diloco: an iteration is 100 inner steps, with the exchanges that end in it.'
    """
    many = "an inner step" if steps == 1 else f"{steps:,} inner steps"
    waits = "" if deadline_s is None else f" They wait {format_seconds(deadline_s)} after the first, not for all."
    return f"Workers train by {name}: an iteration is {many}, with the exchanges that end in it.{waits}"


def barrier_note(barrier: bool) -> str:
    """Return, in a few words, how workers are taken to begin where one exchange after another is weighed by itself.

    Examples
    --------
    >>> barrier_note(False)
    'workers taken to begin together, other than job.barrier: false'
    """
    return "workers begin together" if barrier else "workers taken to begin together, other than job.barrier: false"


def barrier_title(barriers: Iterable[bool]) -> str:
    """Return the same for a title, of jobs which may differ.

    Examples
    --------
    >>> barrier_title([True, True]), barrier_title([False, True])
    ('barrier true', 'barrier false, true')
    """
    return f"barrier {', '.join(str(one).lower() for one in sorted(set(barriers)))}"
