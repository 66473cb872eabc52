"""When the nodes of a training step began and ended, what waited for what, and what memory that took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats
from simnet.training.parallel.graph import COMPUTE, CollectiveCall, ComputePart, StepGraph
from simnet.training.parallel.listed import PassShares


def describe_slowdown(slowdown: float) -> str:
    """Return in words how much slower computing is next to collectives.

    Measured during an NCCL all-gather over NVLink of an A100: products of matrices take 1.76 times as long, attention
    1.83, elementwise kernels 2.5 (NVIDIA/nccl, issue 1428). For slower links 1.2 is an assumption: NCCL had 15 % of the
    multiprocessors of a GPU (issue 1432).

    Examples
    --------
    >>> describe_slowdown(1.5)
    '1.5 times as long beside collectives'
    >>> describe_slowdown(1.0)
    'as long beside collectives as alone (beside NCCL 1.76 to 2.5 times by kernel: NVIDIA/nccl, issue 1428)'
    """
    if slowdown != 1:
        return f"{slowdown:.3g} times as long beside collectives"
    return "as long beside collectives as alone (beside NCCL 1.76 to 2.5 times by kernel: NVIDIA/nccl, issue 1428)"


class StepMemory(NamedTuple):
    """Memory of a worker without activations [byte]: what it holds all the time, and peaks.

    `gathered` is the peak of gathered parameters, `reduced` that of gradients to be reduced, `peak` that of all
    together.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    reduced: int
    peak: int


@dataclass(frozen=True, repr=False)
class StepTiming:
    """When each node of a step began and ended at each worker [s since the start], shape (nodes, P).

    `alone` are the seconds that each worker would compute without collectives, shape (P,).
    """

    graph: StepGraph
    begun: Floats
    ended: Floats
    alone: Floats | None = None

    def __repr__(self) -> str:
        return f"StepTiming({len(self.graph.nodes)} nodes, {self.graph.workers} workers, {self.duration:g} s)"

    @property
    def duration(self) -> float:
        """Seconds until the last worker is done."""
        return float(self.ended.max(initial=0.0))

    @property
    def computing(self) -> Floats:
        """Seconds that each worker computes; shape (P,)."""
        return np.asarray(self.lasts[self._computes()].sum(axis=0))

    @property
    def slowed(self) -> Floats:
        """Seconds by which each worker computes longer because collectives are under way beside it; shape (P,)."""
        if self.alone is None:
            return np.zeros(self.graph.workers)
        return np.maximum(self.computing - self.alone, 0.0)

    @property
    def exposed(self) -> Floats:
        """Seconds that each worker neither computes nor is done; shape (P,)."""
        return np.asarray(self.ended.max(axis=0, initial=0.0) - self.computing)

    @property
    def communicating(self) -> Floats:
        """Seconds that each worker does not compute while a collective of its own is under way; shape (P,)."""
        order = np.argsort(self.begun, axis=0, kind="stable")
        begun, ended = (np.take_along_axis(one, order, axis=0) for one in (self.begun, self.ended))
        # Until when nothing was left out, before each node.
        until = np.vstack([np.zeros(self.graph.workers), np.maximum.accumulate(ended, axis=0)[:-1]])
        covered = np.maximum(ended - np.maximum(begun, until), 0.0).sum(axis=0)
        return np.asarray(np.maximum(covered - self.computing, 0.0))

    @property
    def lasts(self) -> Floats:
        """Seconds that each node takes at each worker; shape (nodes, P)."""
        return np.asarray(self.ended - self.begun)

    def waits(self) -> Floats:
        """Return the seconds that each worker's computing, or its end, waits for each node; shape (nodes, P).

        A wait counts for the last of the nodes that a part of a pass waited for. They add up to `exposed`.
        """
        found, does = np.zeros_like(self.ended), self.graph.does()
        for worker in range(self.graph.workers):
            free = 0.0
            for number, node in enumerate(self.graph.nodes):
                if node.queue != COMPUTE or not does[number, worker]:
                    continue
                gap = self.begun[number, worker] - free
                if isinstance(node.does, CollectiveCall):
                    found[number, worker] += self.ended[number, worker] - free
                elif gap > 0:
                    behind = (one for one in node.after if does[one, worker])
                    found[max(behind, key=lambda one: self.ended[one, worker]), worker] += gap
                free = self.ended[number, worker]
            end = int(np.argmax(self.ended[:, worker]))
            found[end, worker] += self.ended[end, worker] - free
        return found

    def memory(self) -> StepMemory:
        """Return what the worker needs that needs the most."""
        held = self.graph.held
        peaks = {
            what: max(self._peak(worker, what) for worker in range(self.graph.workers))
            for what in (("parameters",), ("gradients",), ("parameters", "gradients"))
        }
        return StepMemory(
            *held,
            gathered=peaks["parameters",],
            reduced=peaks["gradients",],
            peak=sum(held) + peaks["parameters", "gradients"],
        )

    def _peak(self, worker: int, what: Sequence[str]) -> int:
        buffers = [one for one in self.graph.buffers if one.what in what]
        # What ends at a moment makes room for what begins then.
        changes = sorted(
            change
            for one in buffers
            for change in (
                (self.begun[one.first, worker], one.nbytes),
                (self.ended[one.last, worker], -one.nbytes),
            )
        )
        return int(np.cumsum([0, *(nbytes for _, nbytes in changes)]).max())

    def _computes(self) -> NDArray[np.bool_]:
        return np.array([isinstance(node.does, ComputePart) for node in self.graph.nodes], dtype=bool)


def seconds_of(graph: StepGraph, forward: ArrayLike, backward: ArrayLike, work: PassShares | None = None) -> Floats:
    """Return the seconds of each node of computing, shape (nodes, P), from those of the passes of a microbatch.

    Parts take shares by `work`, or in proportion to their entries. Raises ValueError for negative times or another
    shape.
    """
    passes = {}
    for name, given in (("forward", forward), ("backward", backward)):
        values = np.asarray(given, dtype=np.float64)
        if values.shape not in ((), (graph.workers,)) or not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError(f"{name} must be seconds >= 0, one for all or one for each of the {graph.workers} workers")
        passes[name] = np.broadcast_to(values, graph.workers)
    whole: dict[object, int] = defaultdict(int)
    for node in graph.nodes:
        if isinstance(node.does, ComputePart):
            whole[node.does.phase, node.does.microbatch, node.workers] += node.does.elements
    found = np.zeros((len(graph.nodes), graph.workers))
    passed: dict[object, int] = defaultdict(int)
    for number, node in enumerate(graph.nodes):
        if isinstance(node.does, ComputePart):
            key = node.does.phase, node.does.microbatch, node.workers
            share = node.does.elements / whole[key]
            if work is not None:
                share = work.share(passed[key], node.does.elements, backward=node.does.phase == "backward")
                passed[key] += node.does.elements
            found[number] = share * passes[node.does.phase]
    return found
