"""Steps one after another on a network whose links change: how long each takes, and how long workers wait in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.checks import whole
from simnet.base.progress import tracked
from simnet.network import Network
from simnet.parallel.graph import StepGraph
from simnet.parallel.timing import StepTiming, placed, seconds_of


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
    start: float = 0.0,
) -> StepSeries:
    """Time the same step again and again; each begins when the last worker is done with the one before.

    On a network on which nothing changes and nothing is drawn, one step stands for all.

    Parameters
    ----------
    graph, network, forward, backward, algorithms, placement
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
    seconds = seconds_of(graph, forward, backward)
    return repeated(placed(graph, network, seconds, algorithms, placement), network, steps, start)


def repeated(at: Callable[[float, int], StepTiming], network: Network, steps: int, start: float = 0.0) -> StepSeries:
    """Time a step again and again, as `time_steps` does.

    Parameters
    ----------
    at : callable
        Times the step that begins at a time, given its number, as `simnet.parallel.timing.placed` returns it.
    network, steps, start
        As of `time_steps`.

    Raises
    ------
    ValueError, StalledError
        As of `time_steps`.
    """
    whole(steps, "steps", 1)
    first = at(start, 0)
    links, flows = network.links, network.routing in ("flow", "adaptive")
    if links.constant and network.jitter is None and not flows:
        durations = np.full(steps, first.duration)
        return StepSeries(start + np.arange(steps) * durations, durations, np.full(steps, first.exposed.max()), first)
    began, durations, exposed = np.full((3, steps), start)
    for number in tracked(range(steps)):
        one = first if number == 0 else at(float(began[number]), number)
        durations[number], exposed[number] = one.duration, one.exposed.max()
        began[number + 1 :] = began[number] + one.duration
    return StepSeries(began, durations, exposed, first)
