"""What workers do in an exchange, one step after another: kernels that each of them runs, and messages.

A kernel works on what the messages before it have brought, and the messages after it carry what it made. A worker runs
it as soon as it is done with the round before, whatever others do: see `simnet.schedule`.
"""

from __future__ import annotations

from typing import TypeAlias

from simnet.costs.devices import DeviceOp
from simnet.schedule import Schedule

Step: TypeAlias = DeviceOp | Schedule
"""A kernel, or messages."""


def in_order(workers: int, *steps: Step) -> tuple[Schedule, tuple[DeviceOp, ...]]:
    """Return the messages of an exchange, and its kernels, each with the round that a worker enters after it.

    `steps` are the schedules and kernels of an exchange, one after another.

    Examples
    --------
    >>> from simnet.collectives import allgather_ring
    >>> schedule, kernels = in_order(3, DeviceOp("topk", 90), allgather_ring(3, 8), DeviceOp("scatter", 3))
    >>> len(schedule.rounds), [(one.method, one.before) for one in kernels]
    (2, [('topk', 0), ('scatter', 2)])
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
