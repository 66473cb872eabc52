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
    """The steps of a model from the first iteration on; an `iteration` among the options stands for all.

    `profile`, `sharding`, `workers`, `options` and `seed` are those of `simnet.parallel.plan_step`, `algorithms` and
    `slowdown` those of `simnet.parallel.time_step`. `backward` is the share of the backward pass; the model's by
    default. Raises ValueError as `plan_step`, or for an unknown algorithm.

    Examples
    --------
    >>> from simnet.costs.models import load_model
    >>> steps = ModelSteps(load_model("resnet18"), "ddp", 4, {})
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
        """Return what every worker does in an iteration, from 0."""
        return self._step(iteration).graph

    def seconds(self, iteration: int, computes: Floats) -> Floats:
        """Return the seconds of each node, shape (nodes, P).

        `computes` are those of both passes of a microbatch through the whole model, shape (P,).
        """
        return self._step(iteration).seconds(computes, self._backward)


class TraceSteps:
    """A step of execution traces, repeated; raise ValueError for an unknown operation or algorithm."""

    def __init__(self, step: TracedStep, algorithms: Mapping[str, str] | None = None, slowdown: float = 1.0) -> None:
        self.algorithms, self.slowdown = _check_algorithms(algorithms), slowdown
        self._step = step

    def graph(self, iteration: int) -> StepGraph:
        """Return what every rank does, the same in all iterations."""
        return self._step.graph

    def seconds(self, iteration: int, computes: Floats) -> Floats:
        """Return the seconds of each node, shape (nodes, P).

        `computes` is a factor on those of the trace, shape (P,).
        """
        return np.asarray(self._step.seconds * computes)


def _check_algorithms(algorithms: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return algorithms that there are."""
    schedules_of(algorithms or {})
    return algorithms or {}
