"""Training steps of models that are replicated or sharded: graphs of computing and collectives, and their time.

`ddp`, `fsdp2` (with HSDP) and `zero` return what every worker does in a step, in the order in which it is issued: from
tensors, workers and options to a `StepGraph`, whose `calls` are the collectives with group, elements and dtype.
`time_step` places it on a network, and returns when everything began and ended, and what memory that takes;
`repeat_step` times it again and again while links change. `tensor_parallel`, `expert_parallel` and `pipeline` put these
steps in larger ones, and `plan_step` returns one of all that by names; `read_traced_step` reads execution traces.

Examples
--------
>>> from simnet.cost_models.costs.models import load_model
>>> step = fsdp2(wrap_units(load_model("gpt2").layers), 8, replicas=2)
>>> step.calls[0]  # doctest: +NORMALIZE_WHITESPACE
CollectiveCall(operation='all_gather', unit='root', group='shard', ranks=4, in_elements=9846912,
    out_elements=39387648, dtype='float32', phase='forward', iteration=0, microbatch=0, root=0)
"""

from simnet.training.parallel.ddp import ddp
from simnet.training.parallel.experts import expert_capacity, expert_parallel
from simnet.training.parallel.fsdp2 import fsdp2
from simnet.training.parallel.graph import CollectiveCall, ComputePart, StepGraph
from simnet.training.parallel.listed import UNIT_NAME, ListedUnit, profile_of_units, unit_name
from simnet.training.parallel.pipeline import TiedWeights, pass_order, pipeline
from simnet.training.parallel.placing import PlacedStep, StepSeries, repeat_step, time_step
from simnet.training.parallel.plan import SHARDINGS, ModelParallelism, PlannedStep, plan_step, sharding_options
from simnet.training.parallel.quantised import SDP4Bit, ZeroPlusPlus
from simnet.training.parallel.tensor import split_tensors, tensor_parallel
from simnet.training.parallel.timing import StepMemory, StepTiming, describe_slowdown, seconds_of
from simnet.training.parallel.traced import TracedStep, read_traced_step
from simnet.training.parallel.training import TrainingSteps, model_steps
from simnet.training.parallel.units import Unit, Units, wrap_modules, wrap_units
from simnet.training.parallel.zero import zero
from simnet.training.parallel.zero3 import Stage3Limits

__all__ = [
    "SHARDINGS",
    "UNIT_NAME",
    "CollectiveCall",
    "ComputePart",
    "ListedUnit",
    "ModelParallelism",
    "PlacedStep",
    "PlannedStep",
    "SDP4Bit",
    "Stage3Limits",
    "StepGraph",
    "StepMemory",
    "StepSeries",
    "StepTiming",
    "TiedWeights",
    "TracedStep",
    "TrainingSteps",
    "Unit",
    "Units",
    "ZeroPlusPlus",
    "ddp",
    "describe_slowdown",
    "expert_capacity",
    "expert_parallel",
    "fsdp2",
    "model_steps",
    "pass_order",
    "pipeline",
    "plan_step",
    "profile_of_units",
    "read_traced_step",
    "repeat_step",
    "seconds_of",
    "sharding_options",
    "split_tensors",
    "tensor_parallel",
    "time_step",
    "unit_name",
    "wrap_modules",
    "wrap_units",
    "zero",
]
