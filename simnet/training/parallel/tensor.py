"""Tensor parallelism as Megatron has it, around a data-parallel step: calls on the critical path inside every block.

Behind attention and behind the perceptron of every block the partial results are all-reduced, forward and backward.
With sequence parallelism each all-reduce is an all-gather before the part and a reduce-scatter behind it, of the same
bytes. Calls of a vocabulary that is split, of embedding and loss, are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from simnet.base.checks import check_choice, check_int
from simnet.cost_models.costs.layers import Layer
from simnet.training.parallel.graph import Groups, StepGraph
from simnet.training.parallel.passes import BlockPart, StoppingCall, block_parts, insert_calls
from simnet.training.parallel.units import PARAMETER_DTYPES, Units

ATTENTION = 1 / 3
"""Share of a block's entries that are attention's: 4 of the 12 squares of the width."""


def split_tensors(layers: Iterable[Layer], degree: int) -> list[Layer]:
    """Return the part of a model's tensors of one of `degree` tensor-parallel workers.

    Matrices are divided by their first dimension; tensors of one dimension stay. Raises ValueError if it is no multiple
    of the degree.

    Examples
    --------
    >>> split_tensors([Layer("fc.weight", (8, 3)), Layer("fc.bias", (8,))], 2)
    [Layer(name='fc.weight', shape=(4, 3)), Layer(name='fc.bias', shape=(8,))]
    """
    check_int(degree, "degree", 1)
    found = []
    for layer in layers:
        first, *others = layer.shape
        if others and first % degree:
            raise ValueError(f"tensor {layer.name!r} has {first:,} rows, which {degree} workers cannot divide evenly")
        found.append(Layer(layer.name, (first // degree, *others)) if others else layer)
    return found


def tensor_parallel(
    step: StepGraph,
    model: Units,
    degree: int,
    *,
    tokens: int,
    width: int,
    dtype: str = "bfloat16",
    sequence_parallel: bool = False,
    attention: float = ATTENTION,
) -> StepGraph:
    """Return a step in which each worker of a data-parallel step is T = `degree` tensor-parallel ones.

    They are consecutive: worker w becomes w T to w T + T - 1, each with peers of the same place. `step` is what each
    worker does with its part of the tensors, of `split_tensors`; `model` the same part in units. A microbatch has
    `tokens` b s of `width` h entries of `dtype`. With `sequence_parallel` all-reduces are all-gathers and reduce-
    scatters; T must divide the tokens. Attention computes the share `attention` of a block. Raises ValueError if a
    value is out of range.

    Examples
    --------
    >>> from simnet.cost_models.costs.models import load_model
    >>> from simnet.training.parallel import ddp, wrap_units
    >>> part = split_tensors([layer for layer in load_model("llama3-8b").layers], 8)
    >>> step = tensor_parallel(ddp(part, 2, iteration=2), wrap_units(part), 8, tokens=8192, width=4096)
    >>> step.workers, sum(call.group == "tensor" for call in step.calls), step.groups("world")[1]
    (16, 128, [1, 9])
    """
    check_int(degree, "degree", 1)
    check_int(tokens, "tokens", 1)
    check_int(width, "width", 1)
    check_choice(dtype, "dtype", PARAMETER_DTYPES)
    if sequence_parallel and tokens % degree:
        raise ValueError(f"tokens must be a multiple of the {degree} workers that share a sequence, got {tokens}")
    entries = tokens * width

    def around(part: BlockPart) -> list[StoppingCall]:
        """Return the calls of a part, which begins and ends at shares of its pass."""
        if degree == 1:
            return []

        def stop(at: float, operation: Literal["all_reduce", "all_gather", "reduce_scatter"]) -> StoppingCall:
            given = entries // degree if operation == "all_gather" else entries
            had = entries // degree if operation == "reduce_scatter" else entries
            return StoppingCall(at, operation, part.block, "tensor", degree, given, had, dtype)

        if not sequence_parallel:
            return [stop(part.end, "all_reduce")]
        return [stop(part.begin, "all_gather"), stop(part.end, "reduce_scatter")]

    parts = [part for block in block_parts(model, attention) for part in block]
    forward = [one for part in parts for one in around(part)]
    backward = [one for part in reversed(parts) for one in around(part.backward())]
    return insert_calls(_widen_workers(step, degree), forward, backward, {})


def _widen_workers(step: StepGraph, degree: int) -> StepGraph:
    """Return a step in which each worker is several consecutive ones, who do the same side by side."""

    def at(workers: Iterable[int], place: int) -> tuple[int, ...]:
        return tuple(worker * degree + place for worker in workers)

    names = {call.group for call in step.calls} | {"world", *step.layout}
    layout: dict[str, Groups] = {
        name: tuple(at(members, place) for members in step.groups(name) for place in range(degree)) for name in names
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
