"""How long a training step takes on a network whose computing and collectives Chakra execution traces tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simnet.base.errors import InputError
from simnet.interchange.kinds import trace_prefix
from simnet.network.stack import name_of
from simnet.parallel import traced
from simnet.parallel.series import repeated
from simnet.parallel.timing import PlacedStep
from simnet.studies import options
from simnet.studies.step import TimedSteps
from simnet.studies.timing import Place


@dataclass(frozen=True)
class TracedSteps(TimedSteps):
    """Training steps of a trace.

    Parameters
    ----------
    series, stack
        As of `TimedSteps`.
    trace : str
        Where the traces are.
    """

    trace: str

    def figures(self) -> dict[str, object]:
        """Return what ``simnet step --json`` prints."""
        return {"trace": self.trace} | super().figures()

    def sentences(self) -> list[str]:
        """Return how long the step takes, and what is assumed."""
        return [
            f"{self.trace}, {self.timing.graph.workers:,} ranks: {self.takes()}",
            f"Assumed: what is no collective and no message takes what the traces say, on each rank one after another; "
            f"messages go by the stack {self.stack}. How far such steps are off was not measured.",
        ]


def timed_trace(
    trace: str, place: Callable[[int], Place], *, algorithms: Sequence[str] = (), steps: int = 1
) -> TracedSteps:
    """Return the step of traces on a network, as options say it.

    Parameters
    ----------
    trace : str
        A folder of traces of one run, or their path without ``.RANK.et``.
    place : callable
        Returns the network for so many ranks; asked when the traces are right.
    algorithms, steps
        As of `simnet.studies.step.timed`.

    Raises
    ------
    InputError
        If the traces are none of a step, an algorithm is not allowed, or there are fewer hosts than ranks.
    """
    step = traced(trace_prefix(trace))
    ranks = step.graph.workers
    found = place(ranks)
    if len(found.placement) < ranks:
        raise InputError(f"has {ranks:,} ranks, the network places for {len(found.placement):,}", file=trace)
    try:
        chosen = options.fields(algorithms, "--algorithm")
        placed = PlacedStep(step.graph, found.network, chosen, found.placement[:ranks])
        series = repeated(placed, step.seconds, steps)
    except ValueError as error:
        raise InputError(str(error), file="--algorithm") from None
    return TracedSteps(series, name_of(found.network.stack), trace)
