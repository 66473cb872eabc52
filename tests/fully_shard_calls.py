"""Prints as JSON which collectives PyTorch's `fully_shard` calls: cases come as JSON, nothing is really sent."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMES = {"gather": "all_gather", "scatter": "reduce_scatter", "allreduce": "all_reduce", "all_reduce": "all_reduce"}


class Calls(TorchDispatchMode):
    """Notes operation, elements in and out, dtype and ranks of every collective."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[object]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(one is DTensor for one in types):
            return NotImplemented
        result = function(*args, **(kwargs or {}))
        name = str(function)
        operation = next((NAMES[one] for one in NAMES if one in name), None) if "c10d" in name else None
        if operation is not None:
            tensors = [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
            if "functional" in name:
                group, given, had = _resolve_process_group(args[-1]), tensors[0], result
            else:
                given, had = tensors[-1], tensors[0]
                group = next(one for one in map(unboxed, args) if one is not None)
            dtype = str(given.dtype).removeprefix("torch.")
            self.found.append([operation, given.numel(), had.numel(), dtype, group.size()])
        return result


def unboxed(one: Any) -> Any:
    try:
        return dist.ProcessGroup.unbox(one)
    except (RuntimeError, TypeError):
        return None


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.blocks = nn.ModuleList(Block(6, 10) for _ in range(4))
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def recorded(workers: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return tensors, and the calls of the second iteration, under options of `fsdp2`."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=workers)
    replicas = options.get("replicas", 1)
    shape = (replicas, workers // replicas) if replicas > 1 else (workers,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    dtypes = {
        name: getattr(torch, options[name]) for name in ("param_dtype", "reduce_dtype") if options.get(name) is not None
    }
    model = Model()
    wrapped = {"root": model, **{f"blocks.{number}": block for number, block in enumerate(model.blocks)}}
    freed = options.get("reshard_after_forward", True)
    for name, module in reversed(wrapped.items()):
        frees = (freed if name != "root" else None) if freed is True else freed and name in freed
        fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(**dtypes), reshard_after_forward=frees)
    order = list(wrapped.values())
    for ahead, modules, tell in (
        (options.get("forward_prefetch", 0), order, "set_modules_to_forward_prefetch"),
        (options.get("backward_prefetch", 0), [order[0], *order[:0:-1]], "set_modules_to_backward_prefetch"),
    ):
        for place, module in enumerate(modules[:-1]):
            if ahead:
                getattr(module, tell)(modules[place + 1 : place + 1 + ahead])
    microbatches = options.get("microbatches", 1)
    calls = Calls()
    for _ in range(2):
        calls.found = []
        with calls:
            if "passes" in options:
                as_stage(model, options["passes"])
            for number in range(0 if "passes" in options else microbatches):
                last = number == microbatches - 1
                model.set_requires_gradient_sync(last or options.get("gradient_sync") != "last")
                model.set_requires_all_reduce(last or options.get("all_reduce") != "last")
                model(torch.ones(4, 5)).sum().backward()
            if options.get("clip"):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    dist.destroy_process_group()
    return {
        "layers": [[name, list(one.shape)] for name, one in model.named_parameters()],
        "calls": [one for one in calls.found if one[-1] != 1],
    }


def as_stage(model: Any, passes: list[tuple[str, int]]) -> None:
    """Go through the passes of a pipeline's stage, as `torch.distributed.pipelining` does it with such a module."""
    outputs = {}
    for phase, number in passes:
        if phase == "forward":
            outputs[number] = model(torch.ones(4, 5)).sum()
            continue
        model.set_is_last_backward(False)
        model.set_reshard_after_backward(False)
        model.set_requires_gradient_sync(False)
        outputs.pop(number).backward()
    _PipelineStageBase.perform_reduce_grad(SimpleNamespace(submod=model), 1)


if __name__ == "__main__":
    print(json.dumps([recorded(*case) for case in json.loads(sys.argv[1])]))
