"""Training steps of models that are replicated or sharded: graphs of computing and collectives, and their time.

`ddp`, `fsdp2` (with HSDP) and `zero` return what every worker does in a step, in the order in which it is issued: from
tensors, workers and options to a `StepGraph`, whose `calls` are the collectives with group, elements and dtype.
`time_step` places it on a network, and returns when everything began and ended, and what memory that takes;
`time_steps` times it again and again while links change. `tensor_parallel`, `expert_parallel` and `pipeline` put these
steps in larger ones, and `planned` returns one of all that by names; `traced` reads a step from execution traces.

Examples
--------
>>> from simnet.costs.models import model
>>> step = fsdp2(units(model("gpt2").layers), 8, replicas=2)
>>> step.calls[0]  # doctest: +NORMALIZE_WHITESPACE
CollectiveCall(operation='all_gather', unit='root', group='shard', ranks=4, in_elements=9846912,
    out_elements=39387648, dtype='float32', phase='forward', iteration=0, microbatch=0, root=0)
"""

from simnet.parallel.ddp import ddp
from simnet.parallel.experts import capacity, expert_parallel
from simnet.parallel.fsdp2 import fsdp2
from simnet.parallel.graph import CollectiveCall, Compute, StepGraph
from simnet.parallel.listed import UNIT_NAME, ListedUnit, listed, unit_name
from simnet.parallel.pipeline import Tied, order_of, pipeline
from simnet.parallel.plan import SHARDINGS, Around, PlannedStep, options_of, planned
from simnet.parallel.quantised import SDP4Bit, ZeroPlusPlus
from simnet.parallel.series import RecurringStep, StepSeries, time_steps
from simnet.parallel.tensor import split, tensor_parallel
from simnet.parallel.timing import Memory, PlacedStep, StepTiming, seconds_of, slowdown_told, time_step
from simnet.parallel.traced import TracedStep, time_traced, traced
from simnet.parallel.training import ModelSteps, TraceSteps, TrainingSteps
from simnet.parallel.units import Unit, Units, modules, units
from simnet.parallel.zero import zero
from simnet.parallel.zero3 import Limits

__all__ = [
    "SHARDINGS",
    "UNIT_NAME",
    "Around",
    "CollectiveCall",
    "Compute",
    "Limits",
    "ListedUnit",
    "Memory",
    "ModelSteps",
    "PlacedStep",
    "PlannedStep",
    "RecurringStep",
    "SDP4Bit",
    "StepGraph",
    "StepSeries",
    "StepTiming",
    "Tied",
    "TraceSteps",
    "TracedStep",
    "TrainingSteps",
    "Unit",
    "Units",
    "ZeroPlusPlus",
    "capacity",
    "ddp",
    "expert_parallel",
    "fsdp2",
    "listed",
    "modules",
    "options_of",
    "order_of",
    "pipeline",
    "planned",
    "seconds_of",
    "slowdown_told",
    "split",
    "tensor_parallel",
    "time_step",
    "time_steps",
    "time_traced",
    "traced",
    "unit_name",
    "units",
    "zero",
]
