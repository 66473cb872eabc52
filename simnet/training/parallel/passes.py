"""Blocking collectives of tensor and expert parallelism, which interrupt the forward and backward pass.

`tensor_parallel` has those of Megatron: behind attention and perceptron of each block results are all-reduced, forward
and backward. Calls of a vocabulary that is split, of embedding and loss, are left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from simnet.base.errors import check_int
from simnet.base.quantities import Count, PositiveFactor, Share
from simnet.base.rng import stream
from simnet.collectives.registry import Operation
from simnet.cost_models.costs.models import Layer
from simnet.training.parallel.graph import (
    COMPUTE,
    CollectiveCall,
    ComputePart,
    GroupName,
    Groups,
    HeldMemory,
    StepBuffer,
    StepGraph,
    StepNode,
)
from simnet.training.parallel.pipeline import Order
from simnet.training.parallel.units import DTYPE_BYTES, CheckedOptions, ParameterDtype, Units


class StoppingCall(NamedTuple):
    """Blocking collective in a forward or backward pass, which stops compute after the share `at` of the pass."""

    at: float
    operation: Operation
    unit: str
    group: GroupName
    ranks: int
    in_elements: int
    out_elements: int
    dtype: str
    microbatch: int | None = None
    queue: str = COMPUTE


class BlockPart(NamedTuple):
    """Attention or MLP part of a transformer block. `begin` and `end` are shares of the forward pass."""

    block: str
    begin: float
    end: float

    def backward(self) -> BlockPart:
        """Return the same part with `begin` and `end` as shares of the backward pass."""
        return BlockPart(self.block, 1 - self.end, 1 - self.begin)


def block_parts(model: Units, attention: float) -> list[tuple[BlockPart, BlockPart]]:
    """Return the parts of each transformer block; `attention` is the share of attention in a block's compute."""
    found, done = [], model.before
    for block in model.blocks:
        begin, middle, end = done, done + attention * block.size, done + block.size
        shares = [one / model.size for one in (begin, middle, end)]
        found.append((BlockPart(block.name, *shares[:2]), BlockPart(block.name, *shares[1:])))
        done = end
    return found


def insert_calls(
    step: StepGraph, forward: Iterable[StoppingCall], backward: Iterable[StoppingCall], layout: Mapping[str, Groups]
) -> StepGraph:
    """Return a step with blocking collectives inserted in the forward and backward passes of its microbatches."""
    of: Mapping[str, Sequence[StoppingCall]] = {
        "forward": sorted(forward, key=lambda one: one.at),
        "backward": sorted(backward, key=lambda one: one.at),
    }
    nodes: list[StepNode] = []
    # The first and the last number of what has become of each node.
    became: list[tuple[int, int]] = []

    def call(one: StoppingCall, part: ComputePart, node: StepNode, behind: tuple[int, ...] = ()) -> None:
        does = CollectiveCall(*one[1:8], part.phase, step.iteration, part.microbatch)
        nodes.append(StepNode(does, one.queue, () if one.queue == COMPUTE else behind, node.workers))

    for number, node in enumerate(step.nodes):
        after = tuple(sorted({became[one][1] for one in node.after}))
        first = len(nodes)
        if number not in step.parts:
            nodes.append(node._replace(after=after))
            became.append((first, first))
            continue
        does, begin, total = step.parts[number]
        end = begin + does.elements
        here = [one for one in of[does.phase] if one.microbatch in (None, does.microbatch)]
        for one in here:
            if begin == 0 and round(one.at * total) == 0:
                call(one, does, node)
        first, reached = len(nodes), begin
        places = sorted({place for one in here if begin < (place := round(one.at * total)) <= end} | {end})
        for place in places:
            if place > reached or place == begin:
                nodes.append(StepNode(does._replace(elements=place - reached), COMPUTE, after, node.workers))
                after = ()
            last, reached = len(nodes) - 1, place
            for one in here:
                if round(one.at * total) == place and place > 0:
                    call(one, does, node, (last,))
        became.append((first, last))
    buffers = tuple(StepBuffer(one.what, one.nbytes, became[one.first][0], became[one.last][1]) for one in step.buffers)
    return dataclasses.replace(step, nodes=tuple(nodes), buffers=buffers, layout={**step.layout, **layout})


ATTENTION = 1 / 3
"""Share of attention in the entries of a block: 4 of its 12 matrices of width x width."""


@dataclass(frozen=True, kw_only=True)
class ModelParallelism(CheckedOptions):
    """Tensor, pipeline and expert parallelism of a sharded model; `docs/sharded.md` describes the options."""

    tokens: Count | None = None
    width: Count | None = None
    activations: ParameterDtype = "bfloat16"
    tensor_parallel: Count = 1
    sequence_parallel: bool = False
    pipeline: Count = 1
    order: Order = "1f1b"
    experts: Count | None = None
    expert_parallel: Count = 1
    expert_blocks: Collection[str] | None = None
    expert_tensors: Collection[str] = ("mlp",)
    choices: Count = 1
    capacity_factor: PositiveFactor = 1.0
    min_capacity: Count = 4
    drop_tokens: bool = True
    attention: Share = ATTENTION

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = [name for name in ("tensor_parallel", "pipeline") if getattr(self, name) > 1]
        asked += ["experts"] if self.experts is not None else []
        if asked and self.tokens is None:
            raise ValueError(f"{asked[0]} needs tokens, those of a microbatch")
        if self.experts is None and self.expert_parallel > 1:
            raise ValueError("expert_parallel needs experts, how many a block has")
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ValueError("sequence_parallel needs tensor_parallel, between how many workers")
        if self.choices not in (1, 2):
            raise ValueError(f"choices must be 1 or 2 experts of a token, got {self.choices}")

    @property
    def entries(self) -> int:
        """Activation entries of a microbatch: samples x tokens x hidden size."""
        return (self.tokens or 1) * (self.width or 1)


def split_tensors(layers: Iterable[Layer], degree: int) -> list[Layer]:
    """Return the tensors of one of `degree` tensor-parallel workers. Matrices are split by their first dimension."""
    check_int(degree, "degree", 1)
    found = []
    for layer in layers:
        first, *others = layer.shape
        if others and first % degree:
            raise ValueError(f"tensor {layer.name!r} has {first:,} rows, which {degree} workers cannot divide evenly")
        found.append(Layer(layer.name, (first // degree, *others)) if others else layer)
    return found


def tensor_parallel(step: StepGraph, model: Units, around: ModelParallelism) -> StepGraph:
    """Return a step in which consecutive tensor-parallel workers replace each data-parallel worker.

    `step` and `model` describe a worker's shards of the tensors. `sequence_parallel` replaces each all-reduce by an
    all-gather and a reduce-scatter.
    """
    degree, entries = around.tensor_parallel, around.entries
    if degree == 1:
        return step
    if around.sequence_parallel and (around.tokens or 0) % degree:
        raise ValueError(
            f"tokens must be a multiple of the {degree} workers that share a sequence, got {around.tokens}"
        )

    def calls_of(part: BlockPart) -> list[StoppingCall]:
        """Return the blocking collectives of one block part in a forward or backward pass."""

        def stop(at: float, operation: Literal["all_reduce", "all_gather", "reduce_scatter"]) -> StoppingCall:
            given = entries // degree if operation == "all_gather" else entries
            had = entries // degree if operation == "reduce_scatter" else entries
            return StoppingCall(at, operation, part.block, "tensor", degree, given, had, around.activations)

        if not around.sequence_parallel:
            return [stop(part.end, "all_reduce")]
        return [stop(part.begin, "all_gather"), stop(part.end, "reduce_scatter")]

    parts = [part for block in block_parts(model, around.attention) for part in block]
    forward = [one for part in parts for one in calls_of(part)]
    backward = [one for part in reversed(parts) for one in calls_of(part.backward())]
    return insert_calls(_widen_workers(step, degree), forward, backward, {})


def _widen_workers(step: StepGraph, degree: int) -> StepGraph:
    """Return a step in which `degree` consecutive workers take each worker's place, and all run that worker's nodes."""

    def at(workers: Iterable[int], place: int) -> tuple[int, ...]:
        return tuple(worker * degree + place for worker in workers)

    layout: dict[str, Groups] = {
        name: tuple(at(members, place) for members in step.groups(name) for place in range(degree))
        for name in step.layout
    }
    workers = step.workers * degree
    layout["tensor"] = tuple(tuple(range(first, first + degree)) for first in range(0, workers, degree))
    nodes = tuple(
        node
        if node.workers is None
        else node._replace(workers=tuple(worker * degree + place for worker in node.workers for place in range(degree)))
        for node in step.nodes
    )
    return dataclasses.replace(step, nodes=nodes, workers=workers, layout=layout)


# Moments of Adam, in the dtype of the parameters.
_MOMENTS = 2


def expert_capacity(tokens: int, experts: int, factor: float, choices: int, least: int) -> int:
    """Return how many of a worker's tokens an expert accepts: max(least, ceil(tokens / experts x factor x choices))."""
    return max(least, math.ceil(tokens / experts * factor * choices))


def expert_parallel(
    step: StepGraph,
    model: Units,
    around: ModelParallelism,
    blocks: Collection[str],
    expert_size: int,
    *,
    reduce_dtype: str = "float32",
    overlap: bool = True,
    seed: int = 0,
) -> StepGraph:
    """Return a step in which experts, spread over workers, replace the MLPs of some blocks.

    Each block dispatches tokens by an all-to-all and combines results by another, in both passes. Without token
    dropping, an all-reduce first finds the largest token count. Expert gradients are all-reduced after the last
    microbatch, with `overlap` during compute.
    """
    experts, ranks, tokens = around.experts or 1, around.expert_parallel, around.tokens or 1
    if step.workers % ranks or experts % ranks:
        raise ValueError(
            f"ranks must divide the {step.workers} workers and the {experts} experts of a block, got {ranks}"
        )
    microbatches = sorted({node.does.microbatch for node in step.nodes if isinstance(node.does, ComputePart)})
    entries, alike = experts // ranks * expert_size, step.workers // ranks
    queue = "expert_data" if overlap else COMPUTE
    forward: list[StoppingCall] = []
    backward: list[StoppingCall] = []
    for part in (part for _, part in block_parts(model, around.attention) if part.block in blocks):
        name, back = part.block, part.backward()
        for microbatch in microbatches:
            room = expert_capacity(tokens, experts, around.capacity_factor, around.choices, around.min_capacity)
            if not around.drop_tokens:
                draws = stream(seed, "experts", step.iteration, name, microbatch)
                # The most tokens that a worker sends to an expert.
                loads = draws.multinomial(tokens * around.choices, np.full(experts, 1 / experts), size=step.workers)
                room = int(loads.max())
                word = "world", step.workers, 1, 1, "int32", microbatch
                forward += [StoppingCall(part.begin, "all_reduce", name, *word)] if step.workers > 1 else []
            sent = "expert", ranks, *(experts * room * (around.width or 1),) * 2, around.activations, microbatch
            for at, stops in ((part, forward), (back, backward)) if ranks > 1 else ():
                stops += [StoppingCall(share, "alltoall", name, *sent) for share in (at.begin, at.end)]
        if alike > 1:
            shared = "expert_data", alike, entries, entries, reduce_dtype, microbatches[-1], queue
            backward.append(StoppingCall(back.end, "all_reduce", name, *shared))
    layout: dict[str, Groups] = {
        "expert": tuple(tuple(range(first, first + ranks)) for first in range(0, step.workers, ranks)),
        "expert_data": tuple(tuple(range(first, step.workers, ranks)) for first in range(ranks)),
    }
    made = insert_calls(step, forward, backward, layout)
    nbytes = entries * len(set(blocks)) * DTYPE_BYTES[reduce_dtype]
    held = HeldMemory(*(have + more * nbytes for have, more in zip(step.held, (1, 1, _MOMENTS), strict=True)))
    return dataclasses.replace(made, held=held)
