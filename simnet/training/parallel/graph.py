"""A training step as a graph: what is computed and which collectives are called, in the order in which they are issued.

Every node waits for the node before it on its queue, and for those that it names. There is a queue for what is computed
and one for each process group. The graph knows nothing of time: `simnet.training.parallel.timing` places it on a
network.

Most graphs are of workers that all do the same. In a pipeline, workers of another stage have nodes of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.checks import check_int
from simnet.collectives.registry import Operation
from simnet.training.parallel.units import DTYPE_BYTES

Phase: TypeAlias = Literal["forward", "backward", "clip", "step"]

GroupName: TypeAlias = str
"""``"world"``, ``"shard"`` and ``"replicate"``, or a name of a graph's layout."""

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""The workers of each group."""

COMPUTE = "compute"
"""The queue of what is computed."""


class CollectiveCall(NamedTuple):
    """A collective as each rank of its group calls it.

    `operation` is spelt as in nccl-tests. `unit` is what it moves: a unit, ``"bucket"`` of gradients, or ``"model"``.
    The `ranks` of `group` (``"world"``, ``"shard"``, ``"replicate"`` or another name) each give `in_elements` and have
    `out_elements` afterwards, of a dtype of `simnet.training.parallel.units.DTYPE_BYTES`. `phase` is when it is called,
    ``"step"`` during the optimiser's step, in an iteration and a microbatch of it, from 0; None after all microbatches.
    `root` is the rank of a broadcast or reduction.
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
        """What a rank gives [byte]."""
        return self.in_elements * DTYPE_BYTES[self.dtype]

    @property
    def out_bytes(self) -> int:
        """What a rank has afterwards [byte]."""
        return self.out_elements * DTYPE_BYTES[self.dtype]


class ComputePart(NamedTuple):
    """A part of a pass: `elements` of the parameters of `unit`, in a phase of a microbatch."""

    unit: str
    phase: Phase
    microbatch: int
    elements: int


class StepNode(NamedTuple):
    """A node of a step: what it does.

    Its queue, the nodes that it waits for, and the workers that have it (None: all).
    """

    does: ComputePart | CollectiveCall
    queue: str
    after: tuple[int, ...]
    workers: tuple[int, ...] | None = None


class StepBuffer(NamedTuple):
    """Memory that a worker needs from the begin of a node until the end of another [byte]."""

    what: Literal["parameters", "gradients"]
    nbytes: int
    first: int
    last: int


class HeldMemory(NamedTuple):
    """What a worker holds all the time [byte]: parameters, gradients, and the state of the optimiser."""

    parameters: int
    gradients: int
    optimizer: int


@dataclass(frozen=True)
class StepGraph:
    """What all workers do in a step: nodes in the order of their issue, memory, and process groups.

    `replicas` divides the workers; `held` is what a worker holds all the time; `buffers` are held from one node to
    another; `layout` has the workers of groups by name, where they are not those of replicas and shards.
    """

    nodes: tuple[StepNode, ...]
    workers: int
    replicas: int
    held: HeldMemory
    buffers: tuple[StepBuffer, ...] = ()
    layout: Mapping[str, Groups] = field(default_factory=dict)

    @property
    def calls(self) -> list[CollectiveCall]:
        """The collectives, in order."""
        return [node.does for node in self.nodes if isinstance(node.does, CollectiveCall)]

    @cached_property
    def iteration(self) -> int:
        """The iteration that it is of, 0 without collectives."""
        return next((call.iteration for call in self.calls), 0)

    def groups(self, name: GroupName) -> list[list[int]]:
        """Return the workers of each group of a name.

        Examples
        --------
        >>> graph = StepGraph((), workers=6, replicas=3, held=HeldMemory(0, 0, 0))
        >>> graph.groups("shard"), graph.groups("replicate")
        ([[0, 1], [2, 3], [4, 5]], [[0, 2, 4], [1, 3, 5]])
        """
        if name in self.layout:
            return [list(members) for members in self.layout[name]]
        everyone, each = list(range(self.workers)), self.workers // self.replicas
        if name == "shard":
            return [everyone[first : first + each] for first in range(0, self.workers, each)]
        return [everyone] if name == "world" else [everyone[first::each] for first in range(each)]

    def does(self) -> NDArray[np.bool_]:
        """Return whether each worker does each node; shape (nodes, P)."""
        found = np.ones((len(self.nodes), self.workers), dtype=np.bool_)
        for number, node in enumerate(self.nodes):
            if node.workers is not None:
                found[number] = np.isin(np.arange(self.workers), node.workers)
        return found

    def groups_of(self, node: StepNode) -> list[list[int]]:
        """Return the groups of a call that a node makes, those of its workers."""
        assert isinstance(node.does, CollectiveCall)
        found = self.groups(node.does.group)
        return found if node.workers is None else [one for one in found if set(one) <= set(node.workers)]


@dataclass
class GraphBuilder:
    """Collects the nodes of a step in the order in which a worker's program issues them.

    What is computed waits for what `wait` has named since the part before it. Without `overlap` collectives are on the
    queue of computing. `layout` has further groups, of one size. Raises ValueError if a number is out of range.
    """

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
        check_int(self.iteration, "iteration", 0)
        check_int(self.replicas, "replicas", 1)
        if self.workers % self.replicas:
            raise ValueError(f"replicas must divide the {self.workers} workers, got {self.replicas}")

    def compute(self, unit: str, phase: Phase, elements: int) -> int:
        """Add a part of a pass, and return its number."""
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
        """Add a collective, and return its number; None between fewer than two ranks.

        `elements` are what a rank gives and has afterwards. Its queue is that of its group by default; it waits for the
        nodes `after`, of which None counts for none.
        """
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
        """Return how many ranks the groups of a name have."""
        if group in self.layout:
            return len(self.layout[group][0])
        each = self.workers // self.replicas
        return {"world": self.workers, "shard": each, "replicate": self.replicas}[group]

    def wait(self, *numbers: int | None) -> None:
        """Let what is computed next wait for nodes."""
        self._waits |= {number for number in numbers if number is not None}

    def computed(self) -> set[int]:
        """Return the nodes behind which what is computed is now: the part before, and what is waited for."""
        return self._waits | (set() if self._computed is None else {self._computed})

    def hold(self, what: Literal["parameters", "gradients"], nbytes: int, first: int | None, last: int | None) -> None:
        """Note memory that is needed from the begin of a node until the end of another."""
        if first is not None and last is not None and nbytes:
            self.buffers.append(StepBuffer(what, nbytes, first, last))

    def built(self, held: HeldMemory) -> StepGraph:
        """Return the graph, given what a worker holds all the time."""
        return StepGraph(tuple(self.nodes), self.workers, self.replicas, held, tuple(self.buffers), self.layout)
