"""When the nodes of a training step begin and end on a network, and what waits for what.

Every worker has a queue of what it computes; every process group has one for its collectives. A node begins when the
node before it on its queue and those that it waits for have ended. A collective begins when all ranks of its group have
come to it, and ends for all of them when the last one is through. Computing may be slower while one is under way.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats
from simnet.base.checks import check_choice
from simnet.collectives import registry
from simnet.network import Network
from simnet.parallel.graph import COMPUTE, CollectiveCall, ComputePart, StepGraph
from simnet.parallel.listed import PassShares
from simnet.parallel.placing import ScheduleOf, StepPlacement
from simnet.schedule import Schedule

ALGORITHMS: Mapping[str, str] = {
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_reduce": "ring",
    "broadcast": "binomial",
    "reduce": "binomial",
    "alltoall": "pairwise",
}
"""By which algorithm each operation goes unless another is given."""


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


def time_step(
    graph: StepGraph,
    network: Network,
    *,
    forward: ArrayLike,
    backward: ArrayLike,
    algorithms: Mapping[str, str] | None = None,
    placement: ArrayLike | None = None,
    slowdown: float = 1.0,
    start: float = 0.0,
    iteration: int = 0,
) -> StepTiming:
    """Place a training step on a network, and return when everything begins and ends.

    `forward` and `backward` are the seconds of the passes of a microbatch, of all or of each worker, shape (P,); parts
    take shares in proportion to their entries. `algorithms` overrides those of `ALGORITHMS` by operation. Worker p is
    on host ``placement[p]``, or on host p. Computing takes `slowdown` times as long during a collective of the same
    worker, >= 1. The step begins at `start` [s]; `iteration` names its random streams.

    Raises ValueError for a value out of range or an unknown operation or algorithm; StalledError if a collective can
    never end.

    Examples
    --------
    >>> from simnet.parallel import fsdp2, wrap_units
    >>> from simnet.costs.models import load_model
    >>> from simnet.topologies import star
    >>> step = fsdp2(wrap_units(load_model("gpt2").layers), 4)
    >>> network = Network(star(4, latency=10e-6, bandwidth=100e9 / 8))
    >>> timing = time_step(step, network, forward=0.1, backward=0.2)
    >>> round(timing.duration, 4), round(float(timing.exposed[0]), 4)
    (0.319, 0.019)
    >>> slower = time_step(step, network, forward=0.1, backward=0.2, slowdown=1.2)
    >>> round(slower.duration, 4), round(float(slower.slowed[0]), 4)
    (0.3294, 0.0104)
    """
    step = PlacedStep(graph, network, algorithms, placement, slowdown)
    return step.time(seconds_of(graph, forward, backward), start, iteration)


class PlacedStep:
    """A step on a network, timed repeatedly; arguments and errors are those of `time_step`."""

    def __init__(
        self,
        graph: StepGraph,
        network: Network,
        algorithms: Mapping[str, str] | None = None,
        placement: ArrayLike | None = None,
        slowdown: float = 1.0,
    ) -> None:
        hosts = np.arange(graph.workers) if placement is None else np.asarray(placement)
        if hosts.shape != (graph.workers,):
            raise ValueError(f"placement must name a host for each of the {graph.workers} workers")
        if not (np.isfinite(slowdown) and slowdown >= 1):
            raise ValueError(f"slowdown must be a number >= 1, got {slowdown}")
        self.graph, self.network = graph, network
        self._placing = StepPlacement(graph, network, hosts, schedules_of(algorithms or {}), slowdown)

    @property
    def changes(self) -> bool:
        """Whether it can take another time when it begins at another moment."""
        return self._placing.changes

    def time(self, seconds: Floats, start: float = 0.0, iteration: int = 0) -> StepTiming:
        """Return when everything begins and ends, given `seconds_of` each node of computing, shape (nodes, P).

        Raises StalledError if a collective can never end.
        """
        begun, ended = self._placing.times(seconds, start, ("step", iteration))
        alone = seconds.sum(axis=0) if self._placing.slowdown > 1 else None
        return StepTiming(self.graph, begun, ended, alone)

    def nbytes(self) -> tuple[Floats, Floats]:
        """Return what each worker sends and receives in the collectives of the step [byte]; both of shape (P,)."""
        return self._placing.nbytes()


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


def schedules_of(algorithms: Mapping[str, str]) -> ScheduleOf:
    """Return a function from a call to its schedule; `algorithms` override those of `ALGORITHMS`.

    Raises ValueError for an unknown operation or algorithm.
    """
    for operation in algorithms:
        check_choice(operation, "operation", list(ALGORITHMS))
    chosen = {
        operation: registry.find(operation, algorithm)  # type: ignore[arg-type]
        for operation, algorithm in {**ALGORITHMS, **algorithms}.items()
    }

    @functools.cache
    def made(operation: str, ranks: int, nbytes: float) -> Schedule:
        return chosen[operation].schedule(ranks, nbytes)

    def of(call: CollectiveCall) -> Schedule:
        # An all-to-all goes by what each rank has for each.
        parts = call.ranks if call.operation == "alltoall" else 1
        return made(call.operation, call.ranks, call.in_bytes / parts)

    return of
