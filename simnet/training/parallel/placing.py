"""A training step on a network: when its nodes begin and end, in order or by the network's event loop.

Every worker has a queue of what it computes; every process group has one for its collectives. A node begins when the
node before it on its queue and those that it waits for have ended. A collective begins when all ranks of its group have
come to it, and ends for all of them when the last one is through. Calls that never share a link are timed one by one.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats, Ranks
from simnet.base.checks import check_choice, check_int
from simnet.base.clock import advance_time
from simnet.base.progress import track_progress
from simnet.collectives import registry
from simnet.network import Network
from simnet.schedule import Schedule, merge_schedules
from simnet.training.parallel.events import EventRun
from simnet.training.parallel.graph import CollectiveCall, StepGraph
from simnet.training.parallel.timing import StepTiming, seconds_of

ALGORITHMS: Mapping[str, str] = {
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_reduce": "ring",
    "broadcast": "binomial",
    "reduce": "binomial",
    "alltoall": "pairwise",
}
"""By which algorithm each operation goes unless another is given."""


class PlacedStep:
    """A step on a network, timed repeatedly; on a constant network without random draws it is timed once.

    Worker p is on host ``placement[p]``, or on host p; `algorithms` override those of `ALGORITHMS` by operation.
    Computing takes `slowdown` times as long during a collective of the same worker, >= 1. Raises ValueError for a value
    out of range or an unknown operation or algorithm.
    """

    def __init__(
        self,
        graph: StepGraph,
        network: Network,
        algorithms: Mapping[str, str] | None = None,
        placement: ArrayLike | None = None,
        slowdown: float = 1.0,
    ) -> None:
        self.graph, self.network, self.slowdown = graph, network, slowdown
        self.hosts = np.arange(graph.workers) if placement is None else np.asarray(placement)
        if self.hosts.shape != (graph.workers,):
            raise ValueError(f"placement must name a host for each of the {graph.workers} workers")
        if not (np.isfinite(slowdown) and slowdown >= 1):
            raise ValueError(f"slowdown must be a number >= 1, got {slowdown}")
        schedule_of = schedules_of(algorithms or {})
        calls = {number: one.does for number, one in enumerate(graph.nodes) if isinstance(one.does, CollectiveCall)}
        self.schedules = {number: schedule_of(call) for number, call in calls.items()}
        self.does = graph.does()
        self.groups = [
            [_from_root(one, calls[number].root) for one in graph.groups_of(node)] if number in calls else []
            for number, node in enumerate(graph.nodes)
        ]
        self.apart = self._never_meet()
        network_draws = network.jitter is not None or network.routing in ("flow", "adaptive")
        # Whether it can take another time when it begins at another moment.
        self.changes = network_draws or not network.links.constant
        # Groups of one call side by side, as one schedule.
        self._joint: dict[tuple[int, int], Schedule] = {}
        self._known: tuple[Floats, StepTiming] | None = None

    def time(self, seconds: Floats, start: float = 0.0, iteration: int = 0) -> StepTiming:
        """Return when everything begins and ends, given `seconds_of` each node of computing, shape (nodes, P).

        Raises StalledError if a collective can never end.
        """
        if not self.changes:
            start, iteration = 0.0, 0
            if self._known is not None and np.array_equal(self._known[0], seconds):
                return self._known[1]
        name = ("step", iteration)
        if self.apart and self.slowdown == 1:
            begun, ended = self._in_order(seconds, start, name)
        else:
            begun, ended = EventRun(self, seconds, start, name).run()
        timing = StepTiming(self.graph, begun, ended, seconds.sum(axis=0) if self.slowdown > 1 else None)
        self._known = None if self.changes else (seconds, timing)
        return timing

    def nbytes(self) -> tuple[Floats, Floats]:
        """Return what each worker sends and receives in all calls [byte]; both of shape (P,)."""
        sent, received = np.zeros((2, self.graph.workers))
        each = {id(one): (one.bytes_sent(), one.bytes_received()) for one in self.schedules.values()}
        for number, schedule in self.schedules.items():
            for members in self.groups[number]:
                sent[members] += each[id(schedule)][0]
                received[members] += each[id(schedule)][1]
        return sent, received

    def _in_order(self, seconds: Floats, start: float, name: tuple[str | int, ...]) -> tuple[Floats, Floats]:
        begun, ended = np.zeros((2, *seconds.shape))
        free: dict[str, Floats] = defaultdict(lambda: np.zeros(self.graph.workers))
        for number, node in enumerate(self.graph.nodes):
            does = self.does[number]
            ready = np.max([free[node.queue], *(ended[one] for one in node.after)], axis=0)
            if number in self.schedules:
                first = [float(ready[members].max()) for members in self.groups[number]]
                last = self._call_ends(number, first, start, (*name, number))
                for members, begin, end in zip(self.groups[number], first, last, strict=True):
                    begun[number, members], ended[number, members] = begin, end
            else:
                begun[number, does] = ready[does]
                ended[number, does] = (ready + seconds[number])[does]
            free[node.queue][does] = ended[number, does]
        return begun, ended

    def _call_ends(self, number: int, begin: list[float], start: float, name: tuple[str | int, ...]) -> list[float]:
        """Return when a call ends for each of its groups, given when each begins [s since the start]."""
        groups, schedule = self.groups[number], self.schedules[number]
        # What software takes is known of a call, not of several side by side.
        if len(groups) == 1 or self.network.software is not None:
            return [
                first
                + self.network.time(
                    schedule, start + first, placement=self.hosts[members], stream=(*name, int(members[0]))
                ).duration
                for members, first in zip(groups, begin, strict=True)
            ]
        key = id(schedule), len(groups)
        if key not in self._joint:
            ranks = np.arange(len(groups) * schedule.n_ranks).reshape(len(groups), -1)
            self._joint[key] = merge_schedules([schedule] * len(groups), list(ranks), ranks.size)
        begins, hosts = np.repeat(begin, schedule.n_ranks), self.hosts[np.concatenate(groups)]
        timing = self.network.time(self._joint[key], start + begins, placement=hosts, stream=name)
        left = timing.left.reshape(len(groups), -1).max(axis=1) + (timing.origin - start)
        ends: list[float] = np.maximum(left, begin).tolist()
        return ends

    def _never_meet(self) -> bool:
        """Return whether no two calls can share a link: one queue and group, or routes without a common link."""
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


def _from_root(members: Sequence[int], root: int) -> Ranks:
    """Return the workers of a group from its root on."""
    return np.roll(members, -root)


def _schedule_pairs(schedule: Schedule) -> set[tuple[int, int]]:
    rounds = {id(one): one for one in schedule.rounds}.values()
    return {pair for one in rounds for pair in zip(one.src.tolist(), one.dst.tolist(), strict=True)}


@dataclass(frozen=True, repr=False)
class StepSeries:
    """Steps of a training in sequence: start, duration and exposed time of each [s], shape (N,), and the first step.

    The exposed time is the longest in which a worker neither computed nor was done.
    """

    began: Floats
    durations: Floats
    exposed: Floats
    first: StepTiming


def repeat_step(step: PlacedStep, seconds: Floats, steps: int, start: float = 0.0) -> StepSeries:
    """Time a step repeatedly; each begins when the last worker has finished the one before.

    `seconds` are those of each node of computing, shape (nodes, P); the number of `steps` is >= 1.

    Examples
    --------
    >>> from simnet.cost_models.costs.models import load_model
    >>> from simnet.network.weather import Weather, steps
    >>> from simnet.training.parallel import ddp
    >>> from simnet.topologies import star
    >>> graph = star(4, latency=10e-6, bandwidth=1e9)
    >>> slower = {link: Weather(bandwidth=steps([0, 1], [1e9, 2e8])) for link in graph.edges}
    >>> step = ddp(load_model("resnet18").layers, 4, iteration=2)
    >>> found = repeat_step(PlacedStep(step, Network(graph, slower)), seconds_of(step, 0.02, 0.04), 20)
    >>> np.round(np.percentile(found.durations, [10, 90]), 2).tolist()
    [0.11, 0.38]
    """
    check_int(steps, "steps", 1)
    first = step.time(seconds, start, 0)
    began, durations, exposed = np.zeros((3, steps))
    now, lost = start, 0.0
    for number in track_progress(range(steps)):
        one = step.time(seconds, now, number) if number else first
        began[number], durations[number], exposed[number] = now, one.duration, one.exposed.max()
        now, lost = advance_time(now, one.duration + lost)
    return StepSeries(began, durations, exposed, first)


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
    >>> from simnet.training.parallel import fsdp2, wrap_units
    >>> from simnet.cost_models.costs.models import load_model
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


def schedules_of(algorithms: Mapping[str, str]) -> Callable[[CollectiveCall], Schedule]:
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
