"""The steps of a training, iteration by iteration: of a model, or as traces have one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from simnet.base.arrays import Floats
from simnet.costs.models import ModelProfile
from simnet.parallel.graph import StepGraph
from simnet.parallel.plan import LATER, PlannedStep, plan_step
from simnet.parallel.timing import schedules_of
from simnet.parallel.traced import TracedStep


class TrainingSteps(Protocol):
    """The steps of a training."""

    algorithms: Mapping[str, str]
    """By which algorithm operations go, where not by the usual one."""

    slowdown: float
    """How many times as long computing takes while collectives are under way beside it."""

    def graph(self, iteration: int) -> StepGraph:
        """Return what every worker does in an iteration; the same object where it is the same."""

    def seconds(self, iteration: int, computes: Floats) -> Floats:
        """Return what each node of it takes each worker [s], shape (nodes, P), given for how long workers compute."""


class ModelSteps:
    """The steps of a model, from the first iteration on.

    Parameters
    ----------
    profile, sharding, workers, options, seed
        As of `simnet.parallel.plan_step`. An iteration among the options is in the place of every one.
    algorithms : mapping of str to str
        As of `simnet.parallel.time_step`.
    slowdown : float
        As of `simnet.parallel.time_step`.
    backward : float, optional
        Share of the backward pass in computing; default: the model's.

    Raises
    ------
    ValueError
        As of `plan_step`, or if there is no such operation or algorithm.

    Examples
    --------
    >>> from simnet.costs.models import model
    >>> steps = ModelSteps(model("resnet18"), "ddp", 4, {})
    >>> [len(steps.graph(number).calls) for number in (0, 1, 2, 3)], steps.graph(3) is steps.graph(1000)
    ([1, 5, 3, 3], True)
    """

    def __init__(
        self,
        profile: ModelProfile,
        sharding: str,
        workers: int,
        options: Mapping[str, object],
        *,
        algorithms: Mapping[str, str] | None = None,
        slowdown: float = 1.0,
        backward: float | None = None,
        seed: int = 0,
    ) -> None:
        self.algorithms, self.slowdown = _check_algorithms(algorithms), slowdown
        self._asked = profile, sharding, workers
        self._options, self._seed = options, seed
        self._backward = profile.backward_fraction if backward is None else backward
        self._draws = options.get("experts") is not None and options.get("drop_tokens") is False
        self._known: dict[int, PlannedStep] = {}
        self._step(LATER)

    def _step(self, iteration: int) -> PlannedStep:
        number = iteration if self._draws else min(iteration, LATER)
        if number not in self._known:
            if self._draws:
                self._known.clear()
            self._known[number] = plan_step(*self._asked, {"iteration": number, **self._options}, self._seed)
        return self._known[number]

    def graph(self, iteration: int) -> StepGraph:
        """Return what every worker does in an iteration.

        Parameters
        ----------
        iteration : int
            Which, from 0.
        """
        return self._step(iteration).graph

    def seconds(self, iteration: int, computes: Floats) -> Floats:
        """Return what each node takes each worker [s]; shape (nodes, P).

        Parameters
        ----------
        iteration : int
            Which, from 0.
        computes : ndarray, shape (P,)
            For how long each would compute the passes of a microbatch through the whole model [s].
        """
        return self._step(iteration).seconds(computes, self._backward)


class TraceSteps:
    """A step as traces have it, again and again.

    Parameters
    ----------
    step : TracedStep
        The step.
    algorithms, slowdown
        As of `simnet.parallel.time_step`.

    Raises
    ------
    ValueError
        If there is no such operation or algorithm.
    """

    def __init__(self, step: TracedStep, algorithms: Mapping[str, str] | None = None, slowdown: float = 1.0) -> None:
        self.algorithms, self.slowdown = _check_algorithms(algorithms), slowdown
        self._step = step

    def graph(self, iteration: int) -> StepGraph:
        """Return what every rank does.

        Parameters
        ----------
        iteration : int
            No matter which.
        """
        return self._step.graph

    def seconds(self, iteration: int, computes: Floats) -> Floats:
        """Return what each node takes each rank [s]; shape (nodes, P).

        Parameters
        ----------
        iteration : int
            No matter which.
        computes : ndarray, shape (P,)
            How many times as long as in the trace each rank computes.
        """
        return np.asarray(self._step.seconds * computes)


def _check_algorithms(algorithms: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return algorithms that there are."""
    schedules_of(algorithms or {})
    return algorithms or {}
