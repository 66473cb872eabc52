"""Steps of PyTorch's DistributedDataParallel: every worker has the model, gradients are all-reduced in buckets.

References
----------
PyTorch 2.13.0, ``nn/parallel/distributed.py`` and its reducer. Sequences and sizes are those of recorded runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simnet.base.checks import check_positive
from simnet.cost_models.costs.layers import Layer
from simnet.training.parallel.graph import GraphBuilder, HeldMemory, StepGraph
from simnet.training.parallel.units import DTYPE_BYTES, CheckedOptions, check_layers

FIRST_BUCKET_MIB, BUCKET_MIB = 1.0, 25.0
"""Caps of the first bucket and of the others, unless one is given [MiB]."""

# Moments of Adam, in the dtype of the parameters.
_MOMENTS = 2


@dataclass(frozen=True, kw_only=True)
class DdpOptions(CheckedOptions):
    """Options of `ddp`.

    Only the last of the `microbatches` exchanges, the others run under ``no_sync``. A bucket closes at `bucket_cap_mb`
    [MiB]; by default at 25, the first at 1. With `static_graph` iteration 0 agrees by an all-reduce on the used
    parameters. `ready` names all tensors by the order of their gradients, by default from the last to the first. With
    `overlap` exchanges run during the backward pass. Raises ValueError if a value is out of range.
    """

    iteration: int = field(default=0, metadata={"least": 0})
    microbatches: int = 1
    bucket_cap_mb: float | None = None
    static_graph: bool = False
    dtype: str = "float32"
    ready: Sequence[str] | None = None
    overlap: bool = True


def ddp(layers: Iterable[Layer], workers: int, **options: Any) -> StepGraph:
    """Return a step of DistributedDataParallel with `DdpOptions`.

    Before buckets are rebuilt there is one of the whole model, without overlap. They are rebuilt at the begin of
    iteration 1 (2 with a static graph), in the order in which gradients became ready; two broadcasts agree on them.

    Raises ValueError if a value is out of range, or `ready` does not name each tensor once.

    Examples
    --------
    >>> from simnet.cost_models.costs.models import load_model
    >>> [call.in_bytes for call in ddp(load_model("resnet50").layers, 8, iteration=2).calls]
    [8196000, 31502336, 26255360, 26550272, 9724160]
    """
    found, given = check_layers(layers), DdpOptions(**options)
    iteration, dtype = given.iteration, given.dtype
    size = sum(layer.size for layer in found)
    rebuilt = 2 if given.static_graph else 1
    step = GraphBuilder(workers, iteration, overlap=given.overlap)
    if given.ready is not None:
        of = {layer.name: layer for layer in found}
        if sorted(given.ready) != sorted(of):
            raise ValueError("ready must name each tensor of the model once")
        found = [of[name] for name in reversed(given.ready)]
    sizes = buckets(found, given.bucket_cap_mb, dtype)
    sizes = sizes if iteration >= rebuilt else [size]
    for microbatch in range(given.microbatches):
        step.microbatch = microbatch
        if iteration == rebuilt and microbatch == 0:
            for words in (len(found) + 1, len(sizes)):
                step.wait(step.call("broadcast", "bucket", (words, words), "int32", "forward"))
        step.compute("model", "forward", size)
        if microbatch < given.microbatches - 1:
            step.compute("model", "backward", size)
            continue
        for number, one in enumerate(sizes):
            computed = step.compute("bucket", "backward", one)
            if given.static_graph and iteration == 0 and not number:
                step.call("all_reduce", "bucket", (len(found),) * 2, "int32", "backward", after=[computed])
            step.call("all_reduce", "bucket", (one, one), dtype, "backward", after=[computed])
    nbytes = size * DTYPE_BYTES[dtype]
    # Buckets are a second copy of the gradients, unless these are made views of them.
    return step.built(HeldMemory(nbytes, 2 * nbytes, _MOMENTS * nbytes))


def buckets(layers: Sequence[Layer], bucket_cap_mb: float | None = None, dtype: str = "float32") -> list[int]:
    """Return the entries of the rebuilt buckets, from the last tensor to the first.

    A bucket closes when it reaches the cap, so it may exceed the cap by a tensor. Raises ValueError if the cap is not >
    0.
    """
    if bucket_cap_mb is not None:
        check_positive(bucket_cap_mb, "bucket_cap_mb")
    first, later = (FIRST_BUCKET_MIB, BUCKET_MIB) if bucket_cap_mb is None else (bucket_cap_mb,) * 2
    sizes = [layer.size for layer in layers]
    return [sum(sizes[one]) for one in cut(sizes, DTYPE_BYTES[dtype], first * 2**20, later * 2**20)]


def cut(sizes: Sequence[int], entry: float, first: float, later: float) -> list[slice]:
    """Return which tensors each bucket has, in the order in which buckets leave, from `sizes` in entries.

    Gradients become ready from the last tensor to the first, each after an equal share of the backward pass. A bucket
    closes when it has reached its cap [byte], `first` or `later`, of entries of so many bytes; it may exceed it by a
    tensor.

    Examples
    --------
    >>> cut([4, 1, 2], 4.0, 4.0, 12.0)
    [slice(2, 3, None), slice(0, 2, None)]
    """
    found: list[slice] = []
    end, filled = len(sizes), 0
    for place in reversed(range(len(sizes))):
        filled += sizes[place]
        if filled * entry >= (later if found else first) or place == 0:
            found.append(slice(place, end))
            end, filled = place, 0
    return found
