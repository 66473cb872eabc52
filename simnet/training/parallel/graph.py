"""Task graph of a training step: compute and collectives, their dependencies, times and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import check_int
from simnet.collectives.registry import Operation
from simnet.training.parallel.units import DTYPE_BYTES, PassShares

Phase: TypeAlias = Literal["forward", "backward", "clip", "step"]

GroupName: TypeAlias = str
"""Name of a process-group kind: ``"world"``, ``"shard"``, ``"replicate"``, or a key of a graph's layout."""

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Workers of each process group."""

COMPUTE = "compute"
"""Name of the compute queue."""


class CollectiveCall(NamedTuple):
    """Collective call by each rank of a group. `microbatch` is None for calls after all microbatches.

    `unit` names the data: a unit, ``"bucket"`` of gradients, or ``"model"``.
    """

    operation: Operation
    unit: str
    group: GroupName
    ranks: int
    in_elements: int
    out_elements: int
    dtype: str
    phase: Phase
    iteration: int
    microbatch: int | None
    root: int = 0

    @property
    def in_bytes(self) -> int:
        """Input size per rank [byte]."""
        return self.in_elements * DTYPE_BYTES[self.dtype]

    @property
    def out_bytes(self) -> int:
        """Output size per rank [byte]."""
        return self.out_elements * DTYPE_BYTES[self.dtype]


class ComputePart(NamedTuple):
    """Part of a microbatch's forward or backward pass: the compute for `elements` parameters of a sharding `unit`."""

    unit: str
    phase: Phase
    microbatch: int
    elements: int


class StepNode(NamedTuple):
    """Node of a step graph: what it does, its queue, the nodes it comes after, and its workers (None for all)."""

    does: ComputePart | CollectiveCall
    queue: str
    after: tuple[int, ...]
    workers: tuple[int, ...] | None = None


class StepBuffer(NamedTuple):
    """Temporary buffer of a worker [byte], live from the start of one node to the end of another."""

    what: Literal["parameters", "gradients"]
    nbytes: int
    first: int
    last: int


class HeldMemory(NamedTuple):
    """Persistent memory of a worker [byte] for parameters, gradients, and optimiser state."""

    parameters: int
    gradients: int
    optimizer: int


@dataclass(frozen=True)
class StepGraph:
    """Task graph of a training step: nodes in issue order, memory, and process groups."""

    nodes: tuple[StepNode, ...]
    workers: int
    replicas: int
    held: HeldMemory
    buffers: tuple[StepBuffer, ...] = ()
    layout: Mapping[str, Groups] = field(default_factory=dict)

    @property
    def calls(self) -> list[CollectiveCall]:
        """Collective calls in issue order."""
        return [node.does for node in self.nodes if isinstance(node.does, CollectiveCall)]

    @cached_property
    def iteration(self) -> int:
        """Iteration of the training run that this step simulates, read from its first collective; 0 if it has none."""
        return next((call.iteration for call in self.calls), 0)

    @cached_property
    def parts(self) -> dict[int, tuple[ComputePart, int, int]]:
        """Compute nodes by number: the part of a pass, and the elements of the pass before the part and in all."""
        done: dict[object, int] = defaultdict(int)
        found = []
        for number, node in enumerate(self.nodes):
            if isinstance(node.does, ComputePart):
                key = node.does.phase, node.does.microbatch, node.workers
                found.append((number, node.does, done[key], key))
                done[key] += node.does.elements
        return {number: (part, before, done[key]) for number, part, before, key in found}

    def groups(self, name: GroupName) -> list[list[int]]:
        """Return the process groups of the kind `name`, such as tensor-parallel groups, each as a list of workers."""
        return [list(members) for members in self.layout[name]]

    def does(self) -> NDArray[np.bool_]:
        """Return a mask of the workers that run each node; shape (nodes, P)."""
        found = np.ones((len(self.nodes), self.workers), dtype=np.bool_)
        for number, node in enumerate(self.nodes):
            if node.workers is not None:
                found[number] = np.isin(np.arange(self.workers), node.workers)
        return found

    def groups_of(self, node: StepNode) -> list[list[int]]:
        """Return the process groups that run a collective node, each as a list of workers."""
        assert isinstance(node.does, CollectiveCall)
        found = self.groups(node.does.group)
        return found if node.workers is None else [one for one in found if set(one) <= set(node.workers)]


@dataclass
class GraphBuilder:
    """Builder of a step graph, which adds nodes in the order in which a worker's program issues them."""

    workers: int
    iteration: int = 0
    replicas: int = 1
    overlap: bool = True
    layout: Mapping[str, Groups] = field(default_factory=dict)
    microbatch: int | None = None
    nodes: list[StepNode] = field(default_factory=list)
    buffers: list[StepBuffer] = field(default_factory=list)
    _waits: set[int] = field(default_factory=set)
    _computed: int | None = None

    def __post_init__(self) -> None:
        check_int(self.workers, "workers", 1)
        if self.workers % self.replicas:
            raise ValueError(f"replicas must divide the {self.workers} workers, got {self.replicas}")
        everyone, each = tuple(range(self.workers)), self.workers // self.replicas
        shards = tuple(everyone[first : first + each] for first in range(0, self.workers, each))
        own = {"world": (everyone,), "shard": shards, "replicate": tuple(zip(*shards, strict=True))}
        self.layout = {**own, **self.layout}

    def compute(self, unit: str, phase: Phase, elements: int) -> int:
        """Add the compute for some parameters of a unit in a pass, and return the number of the new node."""
        assert self.microbatch is not None
        after, self._waits = tuple(sorted(self._waits)), set()
        self.nodes.append(StepNode(ComputePart(unit, phase, self.microbatch, elements), COMPUTE, after))
        self._computed = len(self.nodes) - 1
        return self._computed

    def call(
        self,
        operation: Operation,
        unit: str,
        elements: tuple[int, int],
        dtype: str,
        phase: Phase,
        *,
        group: GroupName = "world",
        queue: str | None = None,
        after: Iterable[int | None] = (),
        root: int = 0,
    ) -> int | None:
        """Add a collective call and return its node number; None for a group of one rank or for no elements."""
        ranks = self.ranks(group)
        if ranks < 2 or not elements[0]:
            return None
        one = CollectiveCall(
            operation, unit, group, ranks, *elements, dtype, phase, self.iteration, self.microbatch, root
        )
        waits = {number for number in after if number is not None}
        at = (queue or group) if self.overlap else COMPUTE
        self.nodes.append(StepNode(one, at, tuple(sorted(waits))))
        return len(self.nodes) - 1

    def ranks(self, group: GroupName) -> int:
        """Return the number of ranks in each process group called `group`."""
        return len(self.layout[group][0])

    def wait(self, *numbers: int | None) -> None:
        """Make the next compute node wait for the given nodes."""
        self._waits |= {number for number in numbers if number is not None}

    def computed(self) -> set[int]:
        """Return the nodes that the next compute node depends on: the last compute node, and nodes passed to `wait`."""
        return self._waits | (set() if self._computed is None else {self._computed})

    def hold(self, what: Literal["parameters", "gradients"], nbytes: int, first: int | None, last: int | None) -> None:
        """Record a temporary buffer that is live from the start of node `first` to the end of node `last`."""
        if first is not None and last is not None and nbytes:
            self.buffers.append(StepBuffer(what, nbytes, first, last))

    def built(self, held: HeldMemory) -> StepGraph:
        """Return the finished step graph; `held` is the persistent memory of a worker."""
        return StepGraph(tuple(self.nodes), self.workers, self.replicas, held, tuple(self.buffers), self.layout)


def describe_slowdown(slowdown: float) -> str:
    """Return a text that says how much compute slows while collectives run."""
    if slowdown != 1:
        return f"{slowdown:.3g} times as long beside collectives"
    return "as long beside collectives as alone (beside NCCL 1.76 to 2.5 times by kernel: NVIDIA/nccl, issue 1428)"


class StepMemory(NamedTuple):
    """Memory of a worker without activations [byte]: persistent parts, peaks of temporary buffers, and total peak."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    reduced: int
    peak: int


@dataclass(frozen=True, repr=False)
class StepTiming:
    """Start and end time of each node on each worker [s since the start of the step]; shape (nodes, P)."""

    graph: StepGraph
    begun: Floats
    ended: Floats
    alone: Floats | None = None

    def __repr__(self) -> str:
        return f"StepTiming({len(self.graph.nodes)} nodes, {self.graph.workers} workers, {self.duration:g} s)"

    @property
    def duration(self) -> float:
        """Seconds until the last worker finishes."""
        return float(self.ended.max(initial=0.0))

    @property
    def computing(self) -> Floats:
        """Compute seconds of each worker; shape (P,)."""
        computes = np.array([isinstance(node.does, ComputePart) for node in self.graph.nodes], dtype=bool)
        return np.asarray(self.lasts[computes].sum(axis=0))

    @property
    def slowed(self) -> Floats:
        """Extra compute seconds of each worker due to concurrent collectives; shape (P,)."""
        if self.alone is None:
            return np.zeros(self.graph.workers)
        return np.maximum(self.computing - self.alone, 0.0)

    @property
    def exposed(self) -> Floats:
        """Seconds of the step in which each worker does not compute; shape (P,)."""
        return np.asarray(self.ended.max(axis=0, initial=0.0) - self.computing)

    @property
    def communicating(self) -> Floats:
        """Seconds in which each worker has a collective in flight and does not compute; shape (P,)."""
        order = np.argsort(self.begun, axis=0, kind="stable")
        begun, ended = (np.take_along_axis(one, order, axis=0) for one in (self.begun, self.ended))
        # Until when nothing was left out, before each node.
        until = np.vstack([np.zeros(self.graph.workers), np.maximum.accumulate(ended, axis=0)[:-1]])
        covered = np.maximum(ended - np.maximum(begun, until), 0.0).sum(axis=0)
        return np.asarray(np.maximum(covered - self.computing, 0.0))

    @property
    def lasts(self) -> Floats:
        """Duration of each node on each worker [s]; shape (nodes, P)."""
        return np.asarray(self.ended - self.begun)

    def waits(self) -> Floats:
        """Return the seconds for which each node blocks each worker's compute, (nodes, P); columns sum to `exposed`."""
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
        """Return the memory of a worker by part [byte], each part as the largest value over the workers."""
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
            for change in ((self.begun[one.first, worker], one.nbytes), (self.ended[one.last, worker], -one.nbytes))
        )
        return int(np.cumsum([0, *(nbytes for _, nbytes in changes)]).max())


def seconds_of(graph: StepGraph, forward: ArrayLike, backward: ArrayLike, work: PassShares | None = None) -> Floats:
    """Return each node's compute seconds, (nodes, P), given the seconds of a microbatch's forward and backward pass."""
    passes = {}
    for name, given in (("forward", forward), ("backward", backward)):
        passes[name] = np.broadcast_to(np.asarray(given, dtype=np.float64), graph.workers)
    found = np.zeros((len(graph.nodes), graph.workers))
    for number, (does, passed, whole) in graph.parts.items():
        share = does.elements / whole
        if work is not None:
            share = work.share(passed, does.elements, backward=does.phase == "backward")
        found[number] = share * passes[does.phase]
    return found
