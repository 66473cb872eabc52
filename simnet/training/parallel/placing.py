"""Timing of a training step on a network: start and end of each compute or collective node.

A node begins when the node before it on its queue and those that it waits for have ended, a collective when all ranks
of its group have come to it. Calls that never share a link are timed one by one.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import check_choice
from simnet.collectives import registry
from simnet.network import Network
from simnet.schedule import Schedule
from simnet.training.parallel.graph import CollectiveCall, StepGraph, StepTiming

if TYPE_CHECKING:
    import simpy

ALGORITHMS: Mapping[str, str] = {
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_reduce": "ring",
    "broadcast": "binomial",
    "reduce": "binomial",
    "alltoall": "pairwise",
}
"""Default algorithm of each collective operation."""


@dataclass(eq=False)
class PlacedStep:
    """Step graph on a network, for repeated timing. Its time is cached if the network does not vary.

    `slowdown` >= 1 is the factor on compute time during a collective of the same worker. `off` has factors on the
    times of calls, by node; where calls share links, those below 1 count as 1.
    """

    graph: StepGraph
    network: Network
    algorithms: Mapping[str, str] | None = None
    placement: ArrayLike | None = None
    slowdown: float = 1.0
    off: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph, network = self.graph, self.network
        self.hosts = np.arange(graph.workers) if self.placement is None else np.asarray(self.placement)
        schedule_of = schedules_of(self.algorithms or {})
        calls = {number: one.does for number, one in enumerate(graph.nodes) if isinstance(one.does, CollectiveCall)}
        self.schedules = {number: schedule_of(call) for number, call in calls.items()}
        self.does = graph.does()
        self.groups = [
            [np.roll(one, -calls[number].root) for one in graph.groups_of(node)] if number in calls else []
            for number, node in enumerate(graph.nodes)
        ]
        self.apart = self._never_meet()
        network_draws = network.jitter is not None or network.routing in ("flow", "adaptive")
        # Whether it can take another time when it begins at another moment.
        self.changes = network_draws or not network.links.constant
        self._known: tuple[Floats, StepTiming] | None = None

    def time(self, seconds: Floats, start: float = 0.0, iteration: int = 0) -> StepTiming:
        """Return the start and end time of every node, given the compute `seconds` of each node, (nodes, P)."""
        if not self.changes:
            start, iteration = 0.0, 0
            if self._known is not None and np.array_equal(self._known[0], seconds):
                return self._known[1]
        begun, ended = EventRun(self, seconds, start, ("step", iteration)).run()
        timing = StepTiming(self.graph, begun, ended, seconds.sum(axis=0) if self.slowdown > 1 else None)
        self._known = None if self.changes else (seconds, timing)
        return timing

    def nbytes(self) -> tuple[Floats, Floats]:
        """Return the bytes that each worker sends and receives in all calls; both of shape (P,)."""
        found = np.zeros((2, self.graph.workers))
        each = {id(one): np.stack([one.bytes_sent(), one.bytes_received()]) for one in self.schedules.values()}
        for number, schedule in self.schedules.items():
            for members in self.groups[number]:
                found[:, members] += each[id(schedule)]
        return found[0], found[1]

    def _never_meet(self) -> bool:
        """Return whether calls of different queues or process groups use disjoint routes, and so never share a link."""
        network, found = self.network, defaultdict[tuple[str, bytes], set[tuple[int, int]]](set)
        pairs = {id(one): _schedule_pairs(one) for one in self.schedules.values()}
        for number, schedule in self.schedules.items():
            for members in self.groups[number]:
                at, key = self.hosts[members], (self.graph.nodes[number].queue, np.sort(members).tobytes())
                found[key] |= {(int(at[a]), int(at[b])) for a, b in pairs[id(schedule)]}
        if len(found) < 2:
            return True
        if network.routing not in ("hash", "single") or network.links.flows or network.on_outage == "reroute":
            return False
        used: set[int] = set()
        for ends in found.values():
            own = {link for a, b in ends if a != b for link in network.routes.route(a, b)}
            if not used.isdisjoint(own):
                return False
            used |= own
        return True


def _schedule_pairs(schedule: Schedule) -> set[tuple[int, int]]:
    rounds = {id(one): one for one in schedule.rounds}.values()
    return {pair for one in rounds for pair in zip(one.src.tolist(), one.dst.tolist(), strict=True)}


def schedules_of(algorithms: Mapping[str, str]) -> Callable[[CollectiveCall], Schedule]:
    """Return a function from a collective call to its messages; `algorithms` overrides defaults by operation."""
    for operation in algorithms:
        check_choice(operation, "operation", list(ALGORITHMS))
    chosen = {
        operation: registry.collective_by_algorithm(operation, algorithm)  # type: ignore[arg-type]
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


Workers = NDArray[np.intp]


class SlowedComputing:
    """Compute in progress on each worker, which runs `slowdown` times slower while the worker is in a collective."""

    def __init__(
        self, env: simpy.Environment, workers: int, slowdown: float, done: Callable[[int, Workers], None]
    ) -> None:
        self._env, self._slowdown, self._done = env, slowdown, done
        self._node = np.full(workers, -1)
        # What is left at full speed, since when, how many collectives are under way, and which plan is the last.
        self._left, self._since = np.zeros((2, workers))
        self._beside, self._plan = np.zeros((2, workers), dtype=np.int64)

    def begin(self, number: int, workers: Workers, seconds: Floats) -> None:
        """Start the compute of graph node `number` on some workers; `seconds` is its duration at full speed."""
        self._node[workers], self._left[workers] = number, seconds
        self._since[workers] = self._env.now
        self._settle(workers)

    def beside(self, workers: Workers, change: int) -> None:
        """Add `change` to the number of collectives that workers take part in, and adapt their compute speed."""
        before = self._beside[workers] > 0
        self._left[workers] -= (self._env.now - self._since[workers]) / np.where(before, self._slowdown, 1.0)
        self._since[workers] = self._env.now
        self._beside[workers] += change
        turned = before != (self._beside[workers] > 0)
        self._settle(workers[turned & (self._node[workers] >= 0)])

    def _settle(self, workers: Workers) -> None:
        """Reschedule the end of the current compute of some workers, given the workers' present speed."""
        self._plan[workers] += 1
        left = np.maximum(self._left[workers], 0.0) * np.where(self._beside[workers] > 0, self._slowdown, 1.0)
        for seconds in np.unique(left):
            alike = workers[left == seconds]
            event = self._env.timeout(float(seconds))
            event.callbacks.append(partial(self._end, alike, self._plan[alike].copy()))

    def _end(self, workers: Workers, plan: NDArray[np.int64], _: simpy.Event) -> None:
        through = workers[self._plan[workers] == plan]
        numbers = self._node[through]
        self._node[through] = -1
        for number in np.unique(numbers).tolist():
            self._done(number, through[numbers == number])


class EventRun:
    """Discrete-event simulation of one step, given compute `seconds` of shape (nodes, P)."""

    def __init__(self, step: PlacedStep, seconds: Floats, start: float, name: tuple[str | int, ...]) -> None:
        self._step, self._seconds, self._start, self._name = step, seconds, start, name
        # It takes time to load, and many commands time no step.
        from simpy import Environment

        self._env = Environment(initial_time=start)
        self.begun, self.ended, self._ready = np.zeros((3, *seconds.shape))
        self._behind, missing = node_waits(step)
        self._missing = missing.copy()
        # Members of each group that have not come.
        self._absent = [[one.size for one in groups] for groups in step.groups]
        self._group_of = np.zeros(seconds.shape, dtype=np.int64)
        for number, groups in enumerate(step.groups):
            for place, members in enumerate(groups):
                self._group_of[number, members] = place
        self._done: list[tuple[int, Workers]] = []
        self._alone: dict[tuple[int, bytes], float] = {}
        self._computing: SlowedComputing | None = None
        if step.slowdown > 1:
            self._computing = SlowedComputing(self._env, seconds.shape[1], step.slowdown, self._ended_now)

    def run(self) -> tuple[Floats, Floats]:
        """Return the start and end time of each node on each worker [s since the step's start], (nodes, P) each."""
        step = self._step
        self._network = step.network.on(self._env)
        self._network.expect(sum(one.n_messages * len(step.groups[number]) for number, one in step.schedules.items()))
        for number, ripe in enumerate(step.does & (self._missing == 0)):
            if ripe.any():
                self._come(number, np.flatnonzero(ripe))
        self._go_on()
        self._env.run()
        return self.begun, self.ended

    def _come(self, number: int, workers: Workers) -> None:
        node = self._step.graph.nodes[number]
        if not isinstance(node.does, CollectiveCall):
            self.begun[number, workers] = self._ready[number, workers]
            if self._computing is not None:
                self._computing.begin(number, workers, self._seconds[number, workers])
                return
            self.ended[number, workers] = self._ready[number, workers] + self._seconds[number, workers]
            self._done.append((number, workers))
            return
        for place, came in enumerate(np.bincount(self._group_of[number][workers]).tolist()):
            self._absent[number][place] -= came
            if came and not self._absent[number][place]:
                self._call(number, node.does, self._step.groups[number][place])

    def _ended_now(self, number: int, workers: Workers) -> None:
        self.ended[number, workers] = self._env.now - self._start
        self._done.append((number, workers))
        self._go_on()

    def _call(self, number: int, call: CollectiveCall, members: Workers) -> None:
        self.begun[number, members] = self._ready[number, members].max()
        if self._computing is not None:
            self._computing.beside(members, 1)
        step, schedule = self._step, self._step.schedules[number]
        begin, placement = self._start + self.begun[number, members[0]], step.hosts[members]
        options: dict[str, Any] = {"placement": placement, "stream": (*self._name, number, int(members[0]))}
        if not step.apart:
            event = self._network.run(schedule, begin, **options)
            event.callbacks.append(partial(self._shared_end, number, members, begin))
            return
        key = id(schedule), placement.tobytes()
        if step.changes or key not in self._alone:
            self._alone[key] = step.network.time(schedule, begin, **options).duration
        takes = step.off.get(number, 1.0) * self._alone[key]
        if self._computing is None:
            self.ended[number, members] = self.begun[number, members] + takes
            self._done.append((number, members))
        else:
            self._env.timeout(takes).callbacks.append(partial(self._end, number, members))

    def _shared_end(self, number: int, members: Workers, begin: float, event: simpy.Event) -> None:
        more = (self._step.off.get(number, 1.0) - 1) * (self._env.now - begin)
        if event.ok and more > 0:
            event = self._env.timeout(more)
            event.callbacks.append(partial(self._end, number, members))
        else:
            self._end(number, members, event)

    def _end(self, number: int, members: Workers, event: simpy.Event) -> None:
        if event.ok:
            if self._computing is not None:
                self._computing.beside(members, -1)
            self._ended_now(number, members)

    def _go_on(self) -> None:
        while self._done:
            number, workers = self._done.pop()
            for later, who in self._behind[number]:
                here = workers[who[workers]]
                self._ready[later, here] = np.maximum(self._ready[later, here], self.ended[number, here])
                self._missing[later, here] -= 1
                if (ripe := here[self._missing[later, here] == 0]).size:
                    self._come(later, ripe)


def node_waits(step: PlacedStep) -> tuple[list[list[tuple[int, NDArray[np.bool_]]]], NDArray[np.int64]]:
    """Return the successors of each node, each with a worker mask, and the number of predecessors, (nodes, P)."""
    behind: list[list[tuple[int, NDArray[np.bool_]]]] = [[] for _ in step.graph.nodes]
    missing = np.zeros(step.does.shape, dtype=np.int64)
    last: dict[str, NDArray[np.int64]] = defaultdict(lambda: np.full(step.graph.workers, -1))
    for number, node in enumerate(step.graph.nodes):
        does, queued = step.does[number], last[node.queue]
        for one in {*node.after, *np.unique(queued[does & (queued >= 0)]).tolist()}:
            who = does & step.does[one] & ((queued == one) | (one in node.after))
            behind[one].append((number, who))
            missing[number] += who
        queued[does] = number
    return behind, missing
