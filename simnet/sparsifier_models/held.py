"""What an exchange takes of a worker's memory: what its scheme holds between exchanges, and messages in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simnet.base.arrays import Floats
from simnet.costs.devices import DeviceOp
from simnet.schedule import Call, Schedule

if TYPE_CHECKING:
    from simnet.sparsifier_models.base import Sparsifier

# What a worker holds of a real number, however precise it is here.
_FLOAT = 4
# After these it has added up, or decoded, all that has come.
_RELEASES = frozenset({"scatter", "sum", "cast"})
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_NOT_HELD = frozenset({"scheme", "shape", "density", "iteration", "has_residual"})


def held_of(model: Sparsifier) -> dict[str, float]:
    """Return the bytes that a worker holds of each array of the state of a scheme, of the whole model.

    Of an array with a row per worker it is a row; all workers hold any other. An array as long as the gradient stands
    for one as long as that of the model, in single precision.
    """
    found: dict[str, float] = {}
    for name, array in model.save().items():
        if name in _NOT_HELD or not array.ndim:
            continue
        rows = len(array) if array.ndim > 1 and 0 < len(array) <= model.workers else 1
        width = min(array.itemsize, _FLOAT) if array.dtype.kind == "f" else array.itemsize
        scale = model.options.scale if array.shape[-1] >= model.parameters else 1.0
        found[name] = width * array.size / rows * scale
    return found


def under_way(schedule: Schedule, kernels: Sequence[DeviceOp], gradient: float) -> Floats:
    """Return the most bytes of messages that each worker holds at once, shape (P,).

    Received bytes stay until a kernel adds or decodes them; contributions to an all-gather, or to a reduction outside
    the gradient (of `gradient` bytes), count too. A reduction holds the messages of this round and of the one before.

    Examples
    --------
    >>> from simnet.collectives import allgather_ring, allreduce_ring
    >>> under_way(allgather_ring(4, 8.0), [DeviceOp("scatter", 1, before=3)], 100.0)
    array([32., 32., 32., 32.])
    >>> under_way(allreduce_ring(4, 100.0), [], 100.0)
    array([50., 50., 50., 50.])
    """
    workers = schedule.n_ranks
    released = {one.before for kernel in kernels for one in kernel.passes if one.method in _RELEASES}
    gathers = any(one.method == "gather" for one in kernels)
    call_of = {number: call for call in schedule.calls for number in range(call.first, call.first + call.rounds)}
    received: dict[int, Floats] = {}
    kept, most, last = np.zeros(workers), np.zeros(workers), np.zeros(workers)
    for number, one in enumerate(schedule.rounds):
        if number in released:
            kept[:] = 0.0
        call = call_of.get(number)
        if call is not None and call.first == number:
            kept += _given(call, workers, in_place=call.nbytes >= gradient * (1 - 1e-9) and not gathers)
            last = np.zeros(workers)
        if id(one) not in received:
            received[id(one)] = np.bincount(one.dst, weights=one.nbytes, minlength=workers).astype(np.float64)
        came = received[id(one)]
        if call is not None and call.operation in _REDUCTIONS:
            np.maximum(most, kept + last + came, out=most)
            last = came
        else:
            kept += came
            np.maximum(most, kept, out=most)
    return most


def _given(call: Call, workers: int, *, in_place: bool) -> Floats | float:
    """Return what each worker gives to a collective, in memory of its own."""
    if call.operation == "all_gather":
        return call.nbytes / workers if call.sizes is None else call.sizes
    return call.nbytes if call.operation in _REDUCTIONS and not in_place else 0.0
