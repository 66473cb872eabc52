"""When the nodes of a training step begin and end on a network, and what waits for what.

Every worker has a queue of what it computes; every process group has one for its collectives. A node begins when the
node before it on its queue and those that it waits for have ended. A collective begins when all ranks of its group have
come to it, and ends for all of them when the last one is through.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import simpy
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats
from simnet.base.checks import named
from simnet.collectives import registry
from simnet.network import Network
from simnet.parallel.graph import COMPUTE, CollectiveCall, Compute, StepGraph
from simnet.schedule import Schedule

ALGORITHMS: Mapping[str, str] = {
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_reduce": "ring",
    "broadcast": "binomial",
    "reduce": "binomial",
}
"""By which algorithm each operation goes unless another is given."""


class Memory(NamedTuple):
    """What a worker needs [byte], activations apart.

    Parameters
    ----------
    parameters, gradients, optimizer : int
        What it holds all the time.
    gathered : int
        The most that parameters take which are gathered for a while.
    reduced : int
        The most that gradients take which wait to be reduced.
    peak : int
        The most of all together, at one time.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    reduced: int
    peak: int


@dataclass(frozen=True, repr=False)
class StepTiming:
    """When every worker did what.

    Parameters
    ----------
    graph : StepGraph
        What was done.
    begun, ended : ndarray, shape (nodes, P)
        When each node began and ended at each worker [s since the start].
    """

    graph: StepGraph
    begun: Floats
    ended: Floats

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
    def exposed(self) -> Floats:
        """Seconds that each worker neither computes nor is done; shape (P,)."""
        return np.asarray(self.ended.max(axis=0, initial=0.0) - self.computing)

    @property
    def lasts(self) -> Floats:
        """Seconds that each node takes at each worker; shape (nodes, P)."""
        return np.asarray(self.ended - self.begun)

    def waits(self) -> Floats:
        """Return the seconds that each worker's computing, or its end, waits for each node; shape (nodes, P).

        The wait before a part of a pass counts for what ended last of that which it waited for. A collective on the
        queue of computing counts itself. They add up to `exposed`.
        """
        found = np.zeros_like(self.ended)
        for worker in range(self.graph.workers):
            free = 0.0
            for number, node in enumerate(self.graph.nodes):
                if node.queue != COMPUTE:
                    continue
                gap = self.begun[number, worker] - free
                if isinstance(node.does, CollectiveCall):
                    found[number, worker] += self.ended[number, worker] - free
                elif gap > 0:
                    found[max(node.after, key=lambda one: self.ended[one, worker]), worker] += gap
                free = self.ended[number, worker]
            end = int(np.argmax(self.ended[:, worker]))
            found[end, worker] += self.ended[end, worker] - free
        return found

    def memory(self) -> Memory:
        """Return what the worker needs that needs the most."""
        held = self.graph.held
        peaks = {
            what: max(self._peak(worker, what) for worker in range(self.graph.workers))
            for what in (("parameters",), ("gradients",), ("parameters", "gradients"))
        }
        return Memory(
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
        return np.array([isinstance(node.does, Compute) for node in self.graph.nodes], dtype=bool)


def time_step(
    graph: StepGraph,
    network: Network,
    *,
    forward: ArrayLike,
    backward: ArrayLike,
    algorithms: Mapping[str, str] | None = None,
    placement: ArrayLike | None = None,
) -> StepTiming:
    """Place a training step on a network, and return when everything began and ended.

    Parts of a pass take the time of the pass in proportion to the entries of their tensors: every weight of a matrix
    takes as many operations per token.

    Parameters
    ----------
    graph : StepGraph
        What every worker does.
    network : Network
        On which; collectives that are under way at the same time share its links.
    forward, backward : float or array_like, shape (P,)
        Seconds of the passes of a microbatch, >= 0.
    algorithms : mapping of str to str, optional
        By which algorithm operations go, where not by that of `ALGORITHMS`.
    placement : array_like of int, shape (P,), optional
        The host of each worker; worker p is on host p when omitted.

    Raises
    ------
    ValueError
        If times are negative or of another shape, or there is no such operation or algorithm.
    StalledError
        If a collective can never end.

    Examples
    --------
    >>> from simnet.parallel import fsdp2, units
    >>> from simnet.costs.models import model
    >>> from simnet.topologies import star
    >>> step = fsdp2(units(model("gpt2").layers), 4)
    >>> network = Network(star(4, latency=10e-6, bandwidth=100e9 / 8))
    >>> timing = time_step(step, network, forward=0.1, backward=0.2)
    >>> round(timing.duration, 4), round(float(timing.exposed[0]), 4)
    (0.319, 0.019)
    """
    seconds = _seconds(graph, forward, backward)
    hosts = np.arange(graph.workers) if placement is None else np.asarray(placement)
    if hosts.shape != (graph.workers,):
        raise ValueError(f"placement must name a host for each of the {graph.workers} workers")
    schedule_of = _schedules(algorithms or {})
    env = simpy.Environment()
    own = network.on(env)
    # Where nothing else can be under way, a collective is timed alone.
    alone = len({(node.queue, node.does.group) for node in graph.nodes if isinstance(node.does, CollectiveCall)}) == 1
    alone = alone and all(len(graph.groups(call.group)) == 1 for call in graph.calls)
    if not alone:
        own.expect(sum(schedule_of(call).n_messages * (graph.workers // call.ranks) for call in graph.calls))
    shape = len(graph.nodes), graph.workers
    begun, ended = np.zeros(shape), np.zeros(shape)
    # The event of the end of each node at each worker; those of a collective share one.
    done: list[list[simpy.Event]] = []
    last: dict[str, int] = {}

    def compute(number: int, worker: int) -> Generator[simpy.Event, Any, None]:
        yield simpy.AllOf(env, waited_for(number, [worker]))
        begun[number, worker] = env.now
        yield env.timeout(float(seconds[number, worker]))
        ended[number, worker] = env.now

    def collective(number: int, call: CollectiveCall, members: list[int]) -> Generator[simpy.Event, Any, None]:
        yield simpy.AllOf(env, waited_for(number, members))
        begun[number, members] = env.now
        at = hosts[members[call.root :] + members[: call.root]]
        schedule, name = schedule_of(call), ("step", number, members[0])
        if alone:
            yield env.timeout(network.time(schedule, env.now, placement=at, stream=name).duration)
        else:
            yield own.run(schedule, placement=at, stream=name)
        ended[number, members] = env.now

    def waited_for(number: int, members: list[int]) -> list[simpy.Event]:
        return list({id(done[one][worker]): done[one][worker] for one in before[number] for worker in members}.values())

    before: list[list[int]] = []
    for number, node in enumerate(graph.nodes):
        queued = [last[node.queue]] if node.queue in last else []
        before.append([*node.after, *queued])
        last[node.queue] = number
        if isinstance(node.does, Compute):
            done.append([env.process(compute(number, worker)) for worker in range(graph.workers)])
            continue
        at: dict[int, simpy.Event] = {}
        for members in graph.groups(node.does.group):
            at |= dict.fromkeys(members, env.process(collective(number, node.does, members)))
        done.append([at[worker] for worker in range(graph.workers)])
    env.run()
    return StepTiming(graph, begun, ended)


def _seconds(graph: StepGraph, forward: ArrayLike, backward: ArrayLike) -> Floats:
    """Return what each node of computing takes each worker [s], shape (nodes, P)."""
    passes = {}
    for name, given in (("forward", forward), ("backward", backward)):
        values = np.asarray(given, dtype=np.float64)
        if values.shape not in ((), (graph.workers,)) or not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError(f"{name} must be seconds >= 0, one for all or one for each of the {graph.workers} workers")
        passes[name] = np.broadcast_to(values, graph.workers)
    whole: dict[tuple[str, int], int] = defaultdict(int)
    for node in graph.nodes:
        if isinstance(node.does, Compute):
            whole[node.does.phase, node.does.microbatch] += node.does.elements
    found = np.zeros((len(graph.nodes), graph.workers))
    for number, node in enumerate(graph.nodes):
        if isinstance(node.does, Compute):
            share = node.does.elements / whole[node.does.phase, node.does.microbatch]
            found[number] = share * passes[node.does.phase]
    return found


def _schedules(algorithms: Mapping[str, str]) -> Any:
    """Return a function that returns the schedule of a call."""
    for operation in algorithms:
        named(operation, "operation", list(ALGORITHMS))
    chosen = {
        operation: registry.find(operation, algorithm)  # type: ignore[arg-type]
        for operation, algorithm in {**ALGORITHMS, **algorithms}.items()
    }

    @functools.cache
    def made(operation: str, ranks: int, nbytes: int) -> Schedule:
        return chosen[operation].schedule(ranks, nbytes)

    return lambda call: made(call.operation, call.ranks, call.in_bytes)
