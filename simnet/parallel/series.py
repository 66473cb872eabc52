"""Steps one after another on a network whose links change: how long each takes, and how long workers wait in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.checks import check_int
from simnet.base.clock import advance_time
from simnet.base.progress import track_progress
from simnet.network import Network
from simnet.parallel.graph import StepGraph
from simnet.parallel.timing import PlacedStep, StepTiming, seconds_of


@dataclass(frozen=True, repr=False)
class StepSeries:
    """Steps of a training in sequence: start, duration and exposed time of each [s], shape (N,), and the first step.

    The exposed time is the longest in which a worker neither computed nor was done.
    """

    began: Floats
    durations: Floats
    exposed: Floats
    first: StepTiming


def time_steps(
    graph: StepGraph,
    network: Network,
    steps: int,
    *,
    forward: ArrayLike,
    backward: ArrayLike,
    algorithms: Mapping[str, str] | None = None,
    placement: ArrayLike | None = None,
    slowdown: float = 1.0,
    start: float = 0.0,
) -> StepSeries:
    """Time the same step repeatedly; each begins when the last worker has finished the one before.

    On a constant network without random draws, one step stands for all. Arguments are those of
    `simnet.parallel.time_step`, and the number of steps, >= 1.

    Examples
    --------
    >>> from simnet.costs.models import load_model
    >>> from simnet.network.weather import Weather, steps
    >>> from simnet.parallel import ddp
    >>> from simnet.topologies import star
    >>> graph = star(4, latency=10e-6, bandwidth=1e9)
    >>> slower = {link: Weather(bandwidth=steps([0, 1], [1e9, 2e8])) for link in graph.edges}
    >>> step = ddp(load_model("resnet18").layers, 4, iteration=2)
    >>> found = time_steps(step, Network(graph, slower), 20, forward=0.02, backward=0.04)
    >>> np.round(np.percentile(found.durations, [10, 90]), 2).tolist()
    [0.11, 0.38]
    """
    return repeat_step(
        PlacedStep(graph, network, algorithms, placement, slowdown), seconds_of(graph, forward, backward), steps, start
    )


def repeat_step(step: PlacedStep, seconds: Floats, steps: int, start: float = 0.0) -> StepSeries:
    """Time a step repeatedly, as `time_steps` does, given the seconds of each node of computing, shape (nodes, P)."""
    check_int(steps, "steps", 1)
    recurring = RecurringStep(step, start)
    first = recurring.time(seconds, start, 0)
    began, durations, exposed = np.zeros((3, steps))
    now, lost = start, 0.0
    for number in track_progress(range(steps)):
        one = recurring.time(seconds, now, number) if number else first
        began[number], durations[number], exposed[number] = now, one.duration, one.exposed.max()
        now, lost = advance_time(now, one.duration + lost)
    return StepSeries(began, durations, exposed, first)


class RecurringStep:
    """A step that is repeated; on a constant network without random draws it is timed once, from `start` on [s]."""

    def __init__(self, step: PlacedStep, start: float = 0.0) -> None:
        self.step, self._start, self._changes = step, start, step.changes
        self._known: tuple[Floats, StepTiming] | None = None

    def time(self, seconds: Floats, start: float, iteration: int) -> StepTiming:
        """Return when everything begins and ends; as `PlacedStep.time`."""
        if self._changes:
            return self.step.time(seconds, start, iteration)
        if self._known is None or not np.array_equal(self._known[0], seconds):
            self._known = seconds, self.step.time(seconds, self._start, 0)
        return self._known[1]
