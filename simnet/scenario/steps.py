"""Steps of a sharded job."""

from __future__ import annotations

from pathlib import Path

from simnet.cost_models.costs.models import ModelProfile, load_model
from simnet.interchange.kinds import trace_prefix
from simnet.scenario import schema
from simnet.scenario.loader import Findings
from simnet.scenario.sharding_parts import Sharding
from simnet.training.parallel import model_steps, profile_of_units, read_traced_step
from simnet.training.parallel.plan import TrainingSteps


def model_of(job: schema.Job) -> ModelProfile:
    """Return the model whose steps are sharded: a known one, or one of units. ValueError: there is no such model."""
    if job.model is not None:
        return load_model(job.model)
    return profile_of_units(next(iter(job.shardings.values())).told)


def build_steps(config: schema.Config, folder: Path, found: Findings) -> dict[str, TrainingSteps] | None:
    """Build the steps of each way of sharding; None without sharding, or on errors."""
    built: dict[str, TrainingSteps] = {}
    for label, one in config.job.shardings.items():
        with found.at(*config.job.sharding_at(label)):
            built[label] = _build_steps(config, one, folder)
    return built if built and len(built) == len(config.job.shardings) else None


def _build_steps(config: schema.Config, given: Sharding, folder: Path) -> TrainingSteps:
    if given.trace is not None:
        step = read_traced_step(trace_prefix(folder / given.trace))
        if step.graph.workers != config.workers:
            raise ValueError(
                f"the traces are of {step.graph.workers:,} ranks, and there are {config.workers:,} workers"
            )
        return TrainingSteps(lambda iteration: step, given.algorithms, given.slowdown or 1.0)
    assert given.way is not None
    step_of = model_steps(
        model_of(config.job), given.way, config.workers, given.options, backward=given.backward, seed=config.seed
    )
    return TrainingSteps(step_of, given.algorithms, given.slowdown or 1.0)
