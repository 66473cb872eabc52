"""Steps one after another on a network whose links change: how long each takes, and how long workers wait in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.checks import whole
from simnet.base.clock import advanced
from simnet.base.progress import tracked
from simnet.network import Network
from simnet.parallel.graph import StepGraph
from simnet.parallel.timing import PlacedStep, StepTiming, seconds_of


@dataclass(frozen=True, repr=False)
class StepSeries:
    """Steps of a training one after another.

    Parameters
    ----------
    began, durations : ndarray, shape (N,)
        When each step began, and how long it took until the last worker was done [s].
    exposed : ndarray, shape (N,)
        The most that a worker neither computed nor was done in each [s].
    first : StepTiming
        The first of them.
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
    """Time the same step again and again; each begins when the last worker is done with the one before.

    On a network on which nothing changes and nothing is drawn, one step stands for all.

    Parameters
    ----------
    graph, network, forward, backward, algorithms, placement, slowdown
        As of `simnet.parallel.time_step`.
    steps : int
        How many, >= 1.
    start : float
        When the first begins [s].

    Raises
    ------
    ValueError
        As of `time_step`, or if there are no steps.
    StalledError
        If a collective can never end.

    Examples
    --------
    >>> from simnet.costs.models import model
    >>> from simnet.network.weather import Weather, steps
    >>> from simnet.parallel import ddp
    >>> from simnet.topologies import star
    >>> graph = star(4, latency=10e-6, bandwidth=1e9)
    >>> slower = {link: Weather(bandwidth=steps([0, 1], [1e9, 2e8])) for link in graph.edges}
    >>> step = ddp(model("resnet18").layers, 4, iteration=2)
    >>> found = time_steps(step, Network(graph, slower), 20, forward=0.02, backward=0.04)
    >>> np.round(np.percentile(found.durations, [10, 90]), 2).tolist()
    [0.11, 0.38]
    """
    return repeat_step(
        PlacedStep(graph, network, algorithms, placement, slowdown), seconds_of(graph, forward, backward), steps, start
    )


def repeat_step(step: PlacedStep, seconds: Floats, steps: int, start: float = 0.0) -> StepSeries:
    """Time a step again and again, as `time_steps` does.

    Parameters
    ----------
    step : PlacedStep
        The step on its network.
    seconds : ndarray, shape (nodes, P)
        What each node of computing takes each worker [s].
    steps, start
        As of `time_steps`.

    Raises
    ------
    ValueError, StalledError
        As of `time_steps`.
    """
    whole(steps, "steps", 1)
    recurring = RecurringStep(step, start)
    first = recurring.time(seconds, start, 0)
    began, durations, exposed = np.zeros((3, steps))
    now, lost = start, 0.0
    for number in tracked(range(steps)):
        one = recurring.time(seconds, now, number) if number else first
        began[number], durations[number], exposed[number] = now, one.duration, one.exposed.max()
        now, lost = advanced(now, one.duration + lost)
    return StepSeries(began, durations, exposed, first)


class RecurringStep:
    """A step that comes again and again; where nothing changes on its network and nothing is drawn, it is timed once.

    Parameters
    ----------
    step : PlacedStep
        The step on its network.
    start : float
        From when on it is timed where it is timed once [s].
    """

    def __init__(self, step: PlacedStep, start: float = 0.0) -> None:
        self.step, self._start, self._changes = step, start, step.changes
        self._known: tuple[Floats, StepTiming] | None = None

    def time(self, seconds: Floats, start: float, iteration: int) -> StepTiming:
        """Return when everything begins and ends.

        Parameters
        ----------
        seconds, start, iteration
            As of `simnet.parallel.timing.PlacedStep.time`.

        Raises
        ------
        StalledError
            If a collective can never end.
        """
        if self._changes:
            return self.step.time(seconds, start, iteration)
        if self._known is None or not np.array_equal(self._known[0], seconds):
            self._known = seconds, self.step.time(seconds, self._start, 0)
        return self._known[1]
