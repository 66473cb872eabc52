"""Time of a training step whose computing and collectives are in Chakra execution traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simnet.base.errors import InputError
from simnet.interchange.kinds import trace_prefix
from simnet.network.stack import name_of
from simnet.parallel import PlacedStep, read_traced_step, repeat_step
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
        """Return the time of the step, and the assumptions."""
        return [
            f"{self.trace}, {self.timing.graph.workers:,} ranks: {self.takes()}",
            f"Assumed: what is no collective and no message takes what the traces say, on each rank one after another; "
            f"messages go by the stack {self.stack}. How far such steps are off was not measured.",
        ]


def timed_trace(
    trace: str, place: Callable[[int], Place], *, algorithms: Sequence[str] = (), steps: int = 1
) -> TracedSteps:
    """Time the step of traces on a network."""
    step = read_traced_step(trace_prefix(trace))
    ranks = step.graph.workers
    found = place(ranks)
    if len(found.placement) < ranks:
        raise InputError(f"has {ranks:,} ranks, the network places for {len(found.placement):,}", file=trace)
    try:
        chosen = options.fields(algorithms, "--algorithm")
        placed = PlacedStep(step.graph, found.network, chosen, found.placement[:ranks])
        series = repeat_step(placed, step.seconds(1.0), steps)
    except ValueError as error:
        raise InputError(str(error), file="--algorithm") from None
    return TracedSteps(series, name_of(found.network.stack), trace)
