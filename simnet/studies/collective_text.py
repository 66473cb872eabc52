"""Collectives as text: ``all_reduce``, ``all_reduce:tree,arity=4``, ``hierarchical:group_size=4``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, get_args

from simnet.base.errors import InputError, suggest_names
from simnet.collectives import registry
from simnet.scenario.choice_text import read_choice
from simnet.schedule import Schedule

OPERATIONS: tuple[str, ...] = (*get_args(registry.Operation), "sendrecv")
"""Collective operations, in the spelling of nccl-tests."""

MAX_WORKERS = (16_384, 4_096)
"""Maximum ranks of a collective, and of an all-to-all."""


class CollectiveAsked(NamedTuple):
    """A requested collective: operation, algorithm and options.

    `algorithm` is None if left open; `library` says that the text is an nccl-tests name, so that a library may choose
    the algorithm.
    """

    operation: str
    algorithm: str | None
    options: dict[str, Any]
    library: bool

    def __str__(self) -> str:
        named = [f"{name}={value}" for name, value in self.options.items()]
        return ", ".join([f"{self.operation} {self.algorithm or ''}".strip(), *named])

    @property
    def share(self) -> str:
        """Direction of a rank's P-th of the vector, as text before "each rank"; empty if ranks hold all of it."""
        return {"all_gather": "from", "reduce_scatter": "to", "alltoall": "between"}.get(self.operation, "")

    def found(self) -> registry.Collective:
        """Return the collective to simulate, by default a ring or the first known one; InputError if none is."""
        known = registry.every()
        own = [one for one in known if one.operation == self.operation]
        if not own:
            raise InputError(f"no schedule of {self.operation} is known, but by a calibrated cluster or a platform")
        if self.algorithm is None:
            return next((one for one in own if one.algorithm == "ring"), own[0])
        try:
            return registry.collective_by_algorithm(self.operation, self.algorithm)  # type: ignore[arg-type]
        except ValueError as error:
            raise InputError(str(error)) from None

    def schedule(self, workers: int, nbytes: float) -> Schedule:
        """Return the schedule for a vector of `nbytes`; raise InputError for invalid sizes or options."""
        found = self.found()
        most = MAX_WORKERS[found.operation == "alltoall"]
        if workers > most:
            raise InputError(f"must be at most {most:,} for {found.name}, got {workers:,}", file="--workers")
        for name, value in self.options.items():
            if name not in found.options:
                allowed = suggest_names(name, found.options) if found.options else "it has none"
                raise InputError(f"{found.name} has no option {name!r}; {allowed}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f"{found.name}: {name} must be a number, got {value!r}")
        for needed in found.needs:
            if needed not in self.options:
                raise InputError(f"{found.name} needs {needed}, as {found.algorithm}:{needed}=4")
        try:
            return found.schedule_of_vector(workers, nbytes, **self.options)
        except ValueError as error:
            raise InputError(f"{found.name}: {error}") from None


def collective_asked(text: str) -> CollectiveAsked | None:
    """Return the collective that a text names; None if it names none.

    The text is an operation, optionally with an algorithm, a collective's name in simnet's registry, or an all-reduce
    algorithm; options follow a colon.

    Examples
    --------
    >>> print(collective_asked("all_gather:bruck"), collective_asked("allreduce_tree:arity=4"), sep="; ")
    all_gather bruck; all_reduce tree, arity=4
    >>> collective_asked("hierarchical:group_size=4").schedule(8, 4e6).n_ranks
    8
    >>> collective_asked("ring.goal")
    """
    try:
        name, options = read_choice(text)
    except ValueError as error:
        raise InputError(f"{text}: {error}") from None
    operation, _, algorithm = (part.strip() for part in name.partition(":"))
    if operation in OPERATIONS:
        return CollectiveAsked(operation, algorithm or None, options, library=True)
    for one in registry.every():
        if name in (one.name, one.algorithm) and (name == one.name or one.operation == "all_reduce"):
            return CollectiveAsked(one.operation, one.algorithm, options, library=False)
    return None


def collective_names() -> list[str]:
    """Return the names of operations and of all collectives."""
    return [*OPERATIONS, *(one.name for one in registry.every())]
