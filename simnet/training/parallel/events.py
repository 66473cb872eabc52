"""A step on the network's event loop: calls share links, and computing next to collectives is slower.

A part of a pass computes at full speed while no collective of its worker is under way, and at 1 / slowdown of it
otherwise: kernels of NCCL take multiprocessors and memory bandwidth. Collectives are not slowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.training.parallel.graph import CollectiveCall

if TYPE_CHECKING:
    import simpy

    from simnet.training.parallel.placing import PlacedStep

Workers = NDArray[np.intp]


class SlowedComputing:
    """The parts of passes that workers compute now, and their speed.

    Computing takes `slowdown` times as long during a collective, > 1. `done` is called with the number of a node and
    the workers that have finished it.
    """

    def __init__(
        self, env: simpy.Environment, workers: int, slowdown: float, done: Callable[[int, Workers], None]
    ) -> None:
        self._env, self._slowdown, self._done = env, slowdown, done
        self._node = np.full(workers, -1)
        # What is left at full speed, since when, how many collectives are under way, and which plan is the last.
        self._left, self._since = np.zeros((2, workers))
        self._beside, self._plan = np.zeros((2, workers), dtype=np.int64)

    def begin(self, number: int, workers: Workers, seconds: Floats) -> None:
        """Begin a part of a pass, which takes so many seconds at full speed."""
        self._node[workers], self._left[workers] = number, seconds
        self._since[workers] = self._env.now
        self._settle(workers)

    def beside(self, workers: Workers, change: int) -> None:
        """Count a collective of these workers that begins, 1, or has ended, -1."""
        before = self._beside[workers] > 0
        self._left[workers] -= (self._env.now - self._since[workers]) / np.where(before, self._slowdown, 1.0)
        self._since[workers] = self._env.now
        self._beside[workers] += change
        turned = before != (self._beside[workers] > 0)
        self._settle(workers[turned & (self._node[workers] >= 0)])

    def _settle(self, workers: Workers) -> None:
        """Plan the ends of what these compute, at the speed that they now have."""
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
    """One step on a clock of its own.

    `seconds`, shape (nodes, P), are the times of the parts of passes at full speed; the step begins at `start` [s];
    `name` prefixes the names of random streams.
    """

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
            self._computing = SlowedComputing(self._env, seconds.shape[1], step.slowdown, self._computed)

    def run(self) -> tuple[Floats, Floats]:
        """Return when each node begins and ends at each worker [s since the start]; both of shape (nodes, P)."""
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

    def _computed(self, number: int, workers: Workers) -> None:
        self.ended[number, workers] = self._env.now - self._start
        self._done.append((number, workers))
        self._go_on()

    def _call(self, number: int, call: CollectiveCall, members: Workers) -> None:
        self.begun[number, members] = self._ready[number, members].max()
        if self._computing is not None:
            self._computing.beside(members, 1)
        event = self._under_way(number, call, members)
        event.callbacks.append(partial(self._end, number, members))

    def _under_way(self, number: int, call: CollectiveCall, members: Workers) -> simpy.Event:
        """Return the event of a call's end; where calls cannot meet each is timed alone."""
        step, schedule = self._step, self._step.schedules[number]
        begin = self._start + self.begun[number, members[0]]
        placement = step.hosts[members]
        stream = (*self._name, number, int(members[0]))
        if not step.apart:
            return self._network.run(schedule, begin, placement=placement, stream=stream)
        key = id(schedule), placement.tobytes()
        if step.changes or key not in self._alone:
            self._alone[key] = step.network.time(schedule, begin, placement=placement, stream=stream).duration
        return self._env.timeout(self._alone[key])

    def _end(self, number: int, members: Workers, event: simpy.Event) -> None:
        if event.ok:
            if self._computing is not None:
                self._computing.beside(members, -1)
            self.ended[number, members] = self._env.now - self._start
            self._done.append((number, members))
            self._go_on()

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
    """Return for each node the nodes that wait for it and at which workers, and how many each waits for, (nodes, P)."""
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
