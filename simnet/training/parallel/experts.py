"""Mixtures of experts in a data-parallel step, as DeepSpeed has them: all-to-alls on the critical path, and gradients.

References
----------
DeepSpeed, ``moe/sharded_moe.py``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from simnet.base.checks import check_choice, check_int, check_positive
from simnet.base.rng import stream
from simnet.training.parallel.graph import COMPUTE, ComputePart, Groups, HeldMemory, StepGraph
from simnet.training.parallel.passes import StoppingCall, block_parts, insert_calls
from simnet.training.parallel.tensor import ATTENTION
from simnet.training.parallel.units import DTYPE_BYTES, CheckedOptions, Units

# Moments of Adam, in the dtype of the parameters.
_MOMENTS = 2


def expert_capacity(tokens: int, experts: int, factor: float, choices: int, least: int) -> int:
    """Return the number of tokens of a worker that an expert takes: max(least, ceil(T / E x factor x choices)).

    Examples
    --------
    >>> expert_capacity(1000, 16, 1.25, 2, 4), expert_capacity(8, 16, 1.0, 1, 4)
    (157, 4)
    """
    return max(least, math.ceil(tokens / experts * factor * choices))


@dataclass(frozen=True, kw_only=True)
class ExpertOptions(CheckedOptions):
    """Options of `expert_parallel`.

    Each block of `blocks` has `experts` E of `expert_size` entries. A worker has `tokens` T of `width` H entries in a
    microbatch; each token has 1 or 2 `choices`. `capacity_factor` and `min_capacity` are those of `expert_capacity`.
    Without `drop_tokens` experts are drawn uniformly for tokens, from the random stream "experts" of seed, iteration,
    block and microbatch. `dtype` is that of activations, `reduce_dtype` that of experts and their gradients. Attention
    computes the share `attention` of a block; all-to-alls are around the rest. With `overlap` gradients of experts are
    reduced during computing. Raises ValueError if a value is out of range.
    """

    blocks: Collection[str]
    experts: int
    expert_size: int
    tokens: int
    width: int
    choices: int = 1
    capacity_factor: float = 1.0
    min_capacity: int = 4
    drop_tokens: bool = True
    dtype: str = "bfloat16"
    reduce_dtype: str = "float32"
    attention: float = ATTENTION
    overlap: bool = True
    seed: int = dataclasses.field(default=0, metadata={"least": 0})

    def __post_init__(self) -> None:
        check_positive(self.capacity_factor, "capacity_factor")
        super().__post_init__()
        if self.choices not in (1, 2):
            raise ValueError(f"choices must be 1 or 2 experts of a token, got {self.choices}")


def expert_parallel(step: StepGraph, model: Units, ranks: int, **options: Any) -> StepGraph:
    """Return a step in which perceptrons of some blocks are experts, which workers share, with `ExpertOptions`.

    Each block dispatches tokens by an all-to-all and combines them by another, and the same backward. Buffers are sent
    whole. Without dropping, an all-reduce first finds the number of tokens of the fullest expert, for which all buffers
    then have room. Gradients of experts are all-reduced between workers that hold the same ones, after the last
    microbatch.

    `step` is what each worker does with everything but experts, `model` the same in units; `ranks` consecutive workers
    share the experts of a block. Raises ValueError if a value is out of range or a block is unknown.

    Examples
    --------
    >>> from simnet.cost_models.costs.models import load_model
    >>> from simnet.training.parallel import ddp, wrap_units
    >>> layers = load_model("gpt2").layers
    >>> step = expert_parallel(ddp(layers, 8, iteration=2), wrap_units(layers), 4, blocks=["h.1"], experts=8,
    ...     tokens=1024, expert_size=8 * 768**2, width=768)
    >>> [call.in_elements for call in step.calls if call.operation == "alltoall"] == [8 * 128 * 768] * 4
    True
    """
    given = ExpertOptions(**options)
    experts, blocks, tokens = given.experts, given.blocks, given.tokens
    for one in blocks:
        check_choice(one, "blocks", [unit.name for unit in model.blocks])
    if step.workers % check_int(ranks, "ranks", 1) or experts % ranks:
        raise ValueError(
            f"ranks must divide the {step.workers} workers and the {experts} experts of a block, got {ranks}"
        )
    microbatches = sorted({node.does.microbatch for node in step.nodes if isinstance(node.does, ComputePart)})
    entries, alike = experts // ranks * given.expert_size, step.workers // ranks
    queue = "expert_data" if given.overlap else COMPUTE
    forward: list[StoppingCall] = []
    backward: list[StoppingCall] = []
    for part in (part for _, part in block_parts(model, given.attention) if part.block in blocks):
        name, back = part.block, part.backward()
        for microbatch in microbatches:
            room = expert_capacity(tokens, experts, given.capacity_factor, given.choices, given.min_capacity)
            if not given.drop_tokens:
                draws = stream(given.seed, "experts", step.iteration, name, microbatch)
                room = largest_load(draws, step.workers, tokens * given.choices, experts)
                word = "world", step.workers, 1, 1, "int32", microbatch
                forward += [StoppingCall(part.begin, "all_reduce", name, *word)] if step.workers > 1 else []
            sent = "expert", ranks, *(experts * room * given.width,) * 2, given.dtype, microbatch
            for at, stops in ((part, forward), (back, backward)) if ranks > 1 else ():
                stops += [StoppingCall(share, "alltoall", name, *sent) for share in (at.begin, at.end)]
        if alike > 1:
            shared = "expert_data", alike, entries, entries, given.reduce_dtype, microbatches[-1], queue
            backward.append(StoppingCall(back.end, "all_reduce", name, *shared))
    layout: dict[str, Groups] = {
        "expert": tuple(tuple(range(first, first + ranks)) for first in range(0, step.workers, ranks)),
        "expert_data": tuple(tuple(range(first, step.workers, ranks)) for first in range(ranks)),
    }
    made = insert_calls(step, forward, backward, layout)
    nbytes = entries * len(set(blocks)) * DTYPE_BYTES[given.reduce_dtype]
    held = HeldMemory(*(have + more * nbytes for have, more in zip(step.held, (1, 1, _MOMENTS), strict=True)))
    return dataclasses.replace(made, held=held)


def largest_load(draws: np.random.Generator, workers: int, tokens: int, experts: int) -> int:
    """Return the largest number of tokens that a worker sends to an expert, each token drawn uniformly."""
    return int(draws.multinomial(tokens, np.full(experts, 1 / experts), size=workers).max())
