"""Mixtures of experts in a data-parallel step, as DeepSpeed has them: all-to-alls on the critical path, and gradients.

References
----------
DeepSpeed, ``moe/sharded_moe.py``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

import numpy as np

from simnet.base.checks import named, positive, whole
from simnet.base.rng import stream
from simnet.parallel.graph import COMPUTE, ComputePart, Groups, HeldMemory, StepGraph
from simnet.parallel.passes import StoppingCall, block_parts, insert_calls
from simnet.parallel.tensor import ATTENTION
from simnet.parallel.units import DTYPE_BYTES, PARAMETER_DTYPES, Units

# Moments of Adam, in the dtype of the parameters.
_MOMENTS = 2


def expert_capacity(tokens: int, experts: int, factor: float, choices: int, least: int) -> int:
    """Return how many tokens of a worker an expert takes: max(`least`, ceil(T / E x `factor` x k)).

    Parameters
    ----------
    tokens : int
        Tokens T of the worker.
    experts : int
        Experts E.
    factor : float
        Capacity over an even share.
    choices : int
        Experts k of each token.
    least : int
        The least capacity.

    Examples
    --------
    >>> expert_capacity(1000, 16, 1.25, 2, 4), expert_capacity(8, 16, 1.0, 1, 4)
    (157, 4)
    """
    return max(least, math.ceil(tokens / experts * factor * choices))


def expert_parallel(
    step: StepGraph,
    model: Units,
    ranks: int,
    *,
    blocks: Collection[str],
    experts: int,
    expert_size: int,
    tokens: int,
    width: int,
    choices: int = 1,
    capacity_factor: float = 1.0,
    min_capacity: int = 4,
    drop_tokens: bool = True,
    dtype: str = "bfloat16",
    reduce_dtype: str = "float32",
    attention: float = ATTENTION,
    overlap: bool = True,
    seed: int = 0,
) -> StepGraph:
    """Return a step in which perceptrons of some blocks are experts, which workers share.

    Each block dispatches tokens by an all-to-all and combines them by another, and as many backward. Buffers are sent
    whole, filled or not. Without dropping, an all-reduce first finds the fullest expert's tokens, which all buffers
    then have room for. Gradients of experts are all-reduced between workers that hold the same ones, once the last
    microbatch has been through them.

    Parameters
    ----------
    step : StepGraph
        What each worker does with all that is no expert.
    model : Units
        The same in units: says where blocks begin and end in a pass.
    ranks : int
        Consecutive workers that share the experts of a block, a divisor of the workers.
    blocks : collection of str
        Blocks that have experts.
    experts : int
        Experts E of a block, a multiple of `ranks`.
    expert_size : int
        Entries of an expert's tensors.
    tokens : int
        Tokens T of a worker in a microbatch.
    width : int
        Entries H of a token.
    choices : int
        Experts of each token, 1 or 2.
    capacity_factor, min_capacity
        As of `expert_capacity`.
    drop_tokens : bool
        Whether tokens beyond the capacity are dropped. Otherwise experts are drawn for tokens, each equally likely,
        from the random stream "experts" of `seed`, iteration, block and microbatch.
    dtype, reduce_dtype : str
        Of activations, and of experts with their gradients.
    attention : float
        Share of a block that attention computes; all-to-alls are around the rest.
    overlap : bool
        Whether gradients of experts are reduced beside computing.
    seed : int
        Seed of the job.

    Raises
    ------
    ValueError
        If a value is out of range, or there is no block of a name.

    Examples
    --------
    >>> from simnet.costs.models import model
    >>> from simnet.parallel import ddp, wrap_units
    >>> layers = model("gpt2").layers
    >>> step = expert_parallel(ddp(layers, 8, iteration=2), wrap_units(layers), 4, blocks=["h.1"], experts=8,
    ...     tokens=1024, expert_size=8 * 768**2, width=768)
    >>> [call.in_elements for call in step.calls if call.operation == "alltoall"] == [8 * 128 * 768] * 4
    True
    """
    for name, value in (("ranks", ranks), ("experts", experts), ("expert_size", expert_size)):
        whole(value, name, 1)
    for name, value in (("tokens", tokens), ("width", width), ("min_capacity", min_capacity)):
        whole(value, name, 1)
    positive(capacity_factor, "capacity_factor")
    for name, chosen in (("dtype", dtype), ("reduce_dtype", reduce_dtype)):
        named(chosen, name, PARAMETER_DTYPES)
    if choices not in (1, 2):
        raise ValueError(f"choices must be 1 or 2 experts of a token, got {choices}")
    for one in blocks:
        named(one, "blocks", [unit.name for unit in model.blocks])
    if step.workers % ranks or experts % ranks:
        raise ValueError(
            f"ranks must divide the {step.workers} workers and the {experts} experts of a block, got {ranks}"
        )
    microbatches = sorted({node.does.microbatch for node in step.nodes if isinstance(node.does, ComputePart)})
    iteration = next((call.iteration for call in step.calls), 0)
    entries = experts // ranks * expert_size
    queue = "expert_data" if overlap else COMPUTE
    forward: list[StoppingCall] = []
    backward: list[StoppingCall] = []
    for _, part in block_parts(model, attention):
        if part.block not in blocks:
            continue
        back = part.backward()
        for microbatch in microbatches:
            room = expert_capacity(tokens, experts, capacity_factor, choices, min_capacity)
            if not drop_tokens:
                draws = stream(seed, "experts", iteration, part.block, microbatch)
                room = largest_load(draws, step.workers, tokens * choices, experts)
                if step.workers > 1:
                    forward.append(
                        StoppingCall(
                            part.begin, "all_reduce", part.block, "world", step.workers, 1, 1, "int32", microbatch
                        )
                    )
            sent = experts * room * width
            for at, stops in ((part, forward), (back, backward)) if ranks > 1 else ():
                stops += [
                    StoppingCall(share, "alltoall", part.block, "expert", ranks, sent, sent, dtype, microbatch)
                    for share in (at.begin, at.end)
                ]
        if (alike := step.workers // ranks) > 1:
            last, sizes = microbatches[-1], (entries, entries)
            backward.append(
                StoppingCall(
                    back.end, "all_reduce", part.block, "expert_data", alike, *sizes, reduce_dtype, last, queue
                )
            )
    layout: dict[str, Groups] = {
        "expert": tuple(tuple(range(first, first + ranks)) for first in range(0, step.workers, ranks)),
        "expert_data": tuple(tuple(range(first, step.workers, ranks)) for first in range(ranks)),
    }
    made = insert_calls(step, forward, backward, layout)
    nbytes = entries * len(set(blocks)) * DTYPE_BYTES[reduce_dtype]
    held = HeldMemory(*(have + more * nbytes for have, more in zip(step.held, (1, 1, _MOMENTS), strict=True)))
    return dataclasses.replace(made, held=held)


def largest_load(draws: np.random.Generator, workers: int, tokens: int, experts: int) -> int:
    """Return the most tokens that any worker has for an expert, drawn each with the same chance.

    Parameters
    ----------
    draws : Generator
        Whose next numbers are taken.
    workers, tokens, experts : int
        Workers, tokens of each, and experts.
    """
    return int(draws.multinomial(tokens, np.full(experts, 1 / experts), size=workers).max())
