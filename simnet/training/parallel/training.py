"""The steps of a training, iteration by iteration: of a model, or as traces have one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from simnet.base.arrays import Floats
from simnet.cost_models.costs.models import ModelProfile
from simnet.training.parallel.graph import StepGraph
from simnet.training.parallel.placing import schedules_of
from simnet.training.parallel.plan import LATER, PlannedStep, plan_step


class TimedGraph(Protocol):
    """A step with the seconds of its computing: a `PlannedStep` or a `TracedStep`."""

    @property
    def graph(self) -> StepGraph:
        """What every worker does."""

    def seconds(self, computes: Floats) -> Floats:
        """Return the seconds of each node, shape (nodes, P), given how long workers compute, shape (P,)."""


@dataclass(frozen=True)
class TrainingSteps:
    """The steps of a training: `step` returns that of an iteration, the same object where it is the same.

    `algorithms` and `slowdown` are those of `simnet.training.parallel.time_step`. Raises ValueError for an unknown
    algorithm.
    """

    step: Callable[[int], TimedGraph]
    algorithms: Mapping[str, str] = field(default_factory=dict)
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        schedules_of(self.algorithms)


def model_steps(
    profile: ModelProfile,
    sharding: str,
    workers: int,
    options: Mapping[str, object],
    *,
    backward: float | None = None,
    seed: int = 0,
) -> Callable[[int], PlannedStep]:
    """Return a function from an iteration, from 0, to the step of a model; an `iteration` in `options` stands for all.

    Arguments are those of `simnet.training.parallel.plan_step`. `backward` is the share of the backward pass, the
    model's by default. Raises ValueError as `plan_step`.

    Examples
    --------
    >>> from simnet.cost_models.costs.models import load_model
    >>> step = model_steps(load_model("resnet18"), "ddp", 4, {})
    >>> [len(step(number).graph.calls) for number in (0, 1, 2, 3)], step(3) is step(1000)
    ([1, 5, 3, 3], True)
    """
    draws = options.get("experts") is not None and options.get("drop_tokens") is False
    known: dict[int, PlannedStep] = {}

    def step(iteration: int) -> PlannedStep:
        number = iteration if draws else min(iteration, LATER)
        if number not in known:
            if draws:
                known.clear()
            given = {"iteration": number, **options}
            known[number] = plan_step(profile, sharding, workers, given, seed, backward)
        return known[number]

    step(LATER)
    return step
