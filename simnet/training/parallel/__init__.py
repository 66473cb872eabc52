"""Training steps of models that are replicated or sharded: graphs of computing and collectives, and their time."""

from simnet.training.parallel.graph import seconds_of
from simnet.training.parallel.passes import ModelParallelism, expert_parallel, split_tensors, tensor_parallel
from simnet.training.parallel.pipeline import pipeline
from simnet.training.parallel.placing import PlacedStep, time_step
from simnet.training.parallel.plan import model_steps, plan_step
from simnet.training.parallel.pytorch import ddp, fsdp2
from simnet.training.parallel.traced import read_traced_step
from simnet.training.parallel.units import profile_of_units, wrap_units
from simnet.training.parallel.zero import zero

__all__ = [
    "ModelParallelism",
    "PlacedStep",
    "ddp",
    "expert_parallel",
    "fsdp2",
    "model_steps",
    "pipeline",
    "plan_step",
    "profile_of_units",
    "read_traced_step",
    "seconds_of",
    "split_tensors",
    "tensor_parallel",
    "time_step",
    "wrap_units",
    "zero",
]
