"""Steps of an exchange, in order: messages, and kernels that every worker runs between them.

A kernel works on what the messages before it have brought, and the messages after it carry what it made. A worker runs
it as soon as it is done with the round before, whatever others do: see `simnet.schedule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.collectives import registry
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Call, Schedule
from simnet.sparsifier_models.wire import Wire

Step: TypeAlias = DeviceOp | Schedule
"""A step of an exchange: a kernel, or a schedule of messages."""


def in_order(workers: int, *steps: Step) -> tuple[Schedule, tuple[DeviceOp, ...]]:
    """Return one schedule of all messages, and the kernels, each numbered by the round that it precedes.

    `steps` are the schedules and kernels of an exchange, one after another.
    """
    before = 0
    messages: list[Schedule] = []
    kernels: list[DeviceOp] = []
    for step in steps:
        if isinstance(step, DeviceOp):
            kernels.append(step._replace(before=before))
        else:
            messages.append(step)
            before += len(step.rounds)
    return Schedule(workers).concat(*messages), tuple(kernels)


def all_reduced(workers: int, nbytes: float, algorithm: str, phase: str = "") -> Schedule:
    """Return the messages of an all-reduce of `nbytes` bytes by the named algorithm."""
    found = registry.collective_by_algorithm("all_reduce", algorithm).schedule(workers, nbytes)
    return found.in_phase(phase) if phase else found


def reduce_values(workers: int, k: float, wire: Wire, collective: str, phase: str = "") -> list[Step]:
    """Return kernels and messages of an all-reduce of the k values that all workers send for the same indices."""
    return [
        DeviceOp("gather", k),
        *wire.value_kernels(k),
        all_reduced(workers, k * wire.value_bytes, collective, phase),
        *wire.reading_kernels(k),
        DeviceOp("scatter", k, launches=2),
    ]


def kernels_beside(
    parts: Sequence[tuple[tuple[DeviceOp, ...], NDArray[np.int64]]], workers: int, behind: int
) -> list[DeviceOp]:
    """Return the kernels of exchanges that run side by side, shifted by `behind` rounds; equal kernels are merged."""
    kinds = [[(one.method, one.launches, one.before, one.segments) for one in kernels] for kernels, _ in parts]
    alike = all(one == kinds[0] for one in kinds)
    joint = [[(kernel, owners)] for kernels, owners in parts for kernel in kernels]
    if alike:
        joint = [[(kernels[number], owners) for kernels, owners in parts] for number in range(len(kinds[0]))]
    return [one._replace(before=one.before + behind) for one in (_merged(own, workers) for own in joint)]


def _merged(own: Sequence[tuple[DeviceOp, NDArray[np.int64]]], workers: int) -> DeviceOp:
    """Merge equal kernels of side-by-side exchanges into one that has each worker's number of entries."""
    kernel, entries = own[0][0], np.zeros(workers)
    for one, owners in own:
        entries[owners] = one.entries
    passes = range(len(kernel.instead))
    instead = (_merged([(one.instead[number], owners) for one, owners in own], workers) for number in passes)
    return kernel._replace(entries=entries, instead=tuple(instead))


# After these it has added up, or decoded, all that has come.
_RELEASES = frozenset({"scatter", "sum", "cast"})
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce"})


def under_way(schedule: Schedule, kernels: Sequence[DeviceOp], gradient: float) -> Floats:
    """Return the peak bytes of message buffers at each worker during an exchange, shape (P,).

    Received bytes stay until a kernel adds or decodes them; contributions to an all-gather, or to a reduction outside
    the gradient (of `gradient` bytes), count too. A reduction holds the messages of this round and of the one before.
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
    """Return the bytes that each worker copies into the send buffer of a collective."""
    if call.operation == "all_gather":
        return call.nbytes / workers if call.sizes is None else call.sizes
    return call.nbytes if call.operation in _REDUCTIONS and not in_place else 0.0
