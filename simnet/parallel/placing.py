"""When the nodes of a step begin and end: in order where no two calls can meet, else by the network's event loop.

Calls that cannot share a link at any time are timed one after another, each alone, groups of one call together: that is
exact, and a small part of the work of following every message beside every other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
import simpy
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.network import Network
from simnet.parallel.graph import CollectiveCall, StepGraph
from simnet.schedule import Schedule, beside

Times: TypeAlias = tuple[Floats, Floats]
"""When each node begins and ends at each worker [s since the step's start], 0 where it does not do it."""

ScheduleOf: TypeAlias = Callable[[CollectiveCall], Schedule]


class Placing:
    """A step on a network, which is asked again and again when its nodes begin and end.

    Parameters
    ----------
    graph : StepGraph
        What every worker does.
    network : Network
        On which.
    hosts : ndarray of int, shape (P,)
        The host of each worker.
    schedule_of : callable
        Returns the messages of a call.
    """

    def __init__(self, graph: StepGraph, network: Network, hosts: Ranks, schedule_of: ScheduleOf) -> None:
        self.graph, self.network, self.hosts = graph, network, hosts
        self.schedules = {
            number: schedule_of(node.does)
            for number, node in enumerate(graph.nodes)
            if isinstance(node.does, CollectiveCall)
        }
        self.does = graph.does()
        self.groups = [
            [np.array(one) for one in graph.groups_of(node)] if isinstance(node.does, CollectiveCall) else []
            for node in graph.nodes
        ]
        self.apart = self._never_meet()
        # Groups of one call side by side, as one schedule.
        self._joint: dict[tuple[int, int], Schedule] = {}

    def times(self, seconds: Floats, start: float, name: tuple[str | int, ...]) -> Times:
        """Return when each node begins and ends.

        Parameters
        ----------
        seconds : ndarray, shape (nodes, P)
            What each part of a pass takes.
        start : float
            When the step begins [s].
        name : tuple of str or int
            What names of random streams begin with.

        Raises
        ------
        StalledError
            If a collective can never end.
        """
        return (self._in_order if self.apart else self._by_events)(seconds, start, name)

    def nbytes(self) -> tuple[Floats, Floats]:
        """Return what each worker sends and receives in all calls [byte]; both of shape (P,)."""
        sent, received = np.zeros((2, self.graph.workers))
        each = {id(one): (one.bytes_sent(), one.bytes_received()) for one in self.schedules.values()}
        for number, schedule in self.schedules.items():
            call = self.graph.nodes[number].does
            assert isinstance(call, CollectiveCall)
            for members in self.groups[number]:
                sent[_from_root(members, call.root)] += each[id(schedule)][0]
                received[_from_root(members, call.root)] += each[id(schedule)][1]
        return sent, received

    def _in_order(self, seconds: Floats, start: float, name: tuple[str | int, ...]) -> Times:
        begun, ended = np.zeros(seconds.shape), np.zeros(seconds.shape)
        free: dict[str, Floats] = defaultdict(lambda: np.zeros(self.graph.workers))
        for number, node in enumerate(self.graph.nodes):
            does = self.does[number]
            ready = np.max([free[node.queue], *(ended[one] for one in node.after)], axis=0)
            if isinstance(node.does, CollectiveCall):
                self._call(number, node.does, ready, begun, ended, start, (*name, number))
            else:
                begun[number, does] = ready[does]
                ended[number, does] = (ready + seconds[number])[does]
            free[node.queue][does] = ended[number, does]
        return begun, ended

    def _call(
        self,
        number: int,
        call: CollectiveCall,
        ready: Floats,
        begun: Floats,
        ended: Floats,
        start: float,
        name: tuple[str | int, ...],
    ) -> None:
        """Time the groups of a call."""
        groups = [_from_root(members, call.root) for members in self.groups[number]]
        begin = [float(ready[members].max()) for members in groups]
        schedule = self.schedules[number]
        # What software takes is known of a call, not of several side by side.
        if len(groups) > 1 and self.network.software is None:
            timing = self.network.time(
                self._side_by_side(schedule, len(groups)),
                start + np.repeat(begin, schedule.n_ranks),
                placement=self.hosts[np.concatenate(groups)],
                stream=name,
            )
            left = timing.left.reshape(len(groups), -1).max(axis=1) + (timing.origin - start)
            ends = np.maximum(left, begin).tolist()
        else:
            ends = [
                first
                + self.network.time(
                    schedule, start + first, placement=self.hosts[members], stream=(*name, int(members[0]))
                ).duration
                for members, first in zip(groups, begin, strict=True)
            ]
        for members, first, end in zip(groups, begin, ends, strict=True):
            begun[number, members], ended[number, members] = first, end

    def _side_by_side(self, schedule: Schedule, groups: int) -> Schedule:
        key = id(schedule), groups
        if key not in self._joint:
            ranks = np.arange(groups * schedule.n_ranks).reshape(groups, -1)
            self._joint[key] = beside([schedule] * groups, list(ranks), ranks.size)
        return self._joint[key]

    def _by_events(self, seconds: Floats, start: float, name: tuple[str | int, ...]) -> Times:
        env = simpy.Environment(initial_time=start)
        network = self.network.on(env)
        network.expect(sum(one.n_messages * len(self.groups[number]) for number, one in self.schedules.items()))
        begun, ended = np.zeros(seconds.shape), np.zeros(seconds.shape)
        ready = np.zeros(seconds.shape)
        behind, missing = self._waits()
        missing = missing.copy()
        # Members of each group that have not come.
        absent = [[one.size for one in groups] for groups in self.groups]
        group_of = np.zeros(seconds.shape, dtype=np.int64)
        for number, groups in enumerate(self.groups):
            for place, members in enumerate(groups):
                group_of[number, members] = place
        done: list[tuple[int, NDArray[np.intp]]] = []

        def come(number: int, workers: NDArray[np.intp]) -> None:
            node = self.graph.nodes[number]
            if not isinstance(node.does, CollectiveCall):
                begun[number, workers] = ready[number, workers]
                ended[number, workers] = ready[number, workers] + seconds[number, workers]
                done.append((number, workers))
                return
            for place, came in enumerate(np.bincount(group_of[number][workers]).tolist()):
                absent[number][place] -= came
                if came and not absent[number][place]:
                    begin(number, node.does, self.groups[number][place])

        def begin(number: int, call: CollectiveCall, members: NDArray[np.intp]) -> None:
            begun[number, members] = ready[number, members].max()
            event = network.run(
                self.schedules[number],
                start + begun[number, members[0]],
                placement=self.hosts[_from_root(members, call.root)],
                stream=(*name, number, int(members[0])),
            )
            event.callbacks.append(partial(end, number, members))

        def end(number: int, members: NDArray[np.intp], event: simpy.Event) -> None:
            if event.ok:
                ended[number, members] = env.now - start
                done.append((number, members))
                go_on()

        def go_on() -> None:
            while done:
                number, workers = done.pop()
                for later, who in behind[number]:
                    here = workers[who[workers]]
                    ready[later, here] = np.maximum(ready[later, here], ended[number, here])
                    missing[later, here] -= 1
                    if (ripe := here[missing[later, here] == 0]).size:
                        come(later, ripe)

        for number, ripe in enumerate(self.does & (missing == 0)):
            if ripe.any():
                come(number, np.flatnonzero(ripe))
        go_on()
        env.run()
        return begun, ended

    def _waits(self) -> tuple[list[list[tuple[int, NDArray[np.bool_]]]], NDArray[np.int64]]:
        """Return by node which others wait for it at which workers, and for how many each waits at each worker."""
        behind: list[list[tuple[int, NDArray[np.bool_]]]] = [[] for _ in self.graph.nodes]
        missing = np.zeros(self.does.shape, dtype=np.int64)
        last: dict[str, NDArray[np.int64]] = defaultdict(lambda: np.full(self.graph.workers, -1))
        for number, node in enumerate(self.graph.nodes):
            does, queued = self.does[number], last[node.queue]
            for one in {*node.after, *np.unique(queued[does & (queued >= 0)]).tolist()}:
                who = does & self.does[one] & ((queued == one) | (one in node.after))
                behind[one].append((number, who))
                missing[number] += who
            queued[does] = number
        return behind, missing

    def _never_meet(self) -> bool:
        """Return whether no two calls can share a link at any time.

        Calls of one queue follow each other in each group. So there is one queue and group, or no two of them have a
        link in common, of routes that stay as they are.
        """
        network = self.network
        found: dict[tuple[str, bytes], set[tuple[int, int]]] = defaultdict(set)
        pairs: dict[int, set[tuple[int, int]]] = {}
        for number, schedule in self.schedules.items():
            node, groups = self.graph.nodes[number], self.groups[number]
            assert isinstance(node.does, CollectiveCall)
            if id(schedule) not in pairs:
                pairs[id(schedule)] = _pairs(schedule)
            for members in groups:
                at = self.hosts[_from_root(members, node.does.root)]
                found[node.queue, members.tobytes()] |= {(int(at[a]), int(at[b])) for a, b in pairs[id(schedule)]}
        if len(found) < 2:
            return True
        links = network.links
        if network.routing not in ("hash", "single") or links.flows or network.on_outage == "reroute":
            return False
        used: set[int] = set()
        for ends in found.values():
            of = {link for a, b in ends if a != b for link in network.routes.route(a, b)}
            if not used.isdisjoint(of):
                return False
            used |= of
        return True


def _pairs(schedule: Schedule) -> set[tuple[int, int]]:
    rounds = {id(one): one for one in schedule.rounds}.values()
    return {pair for one in rounds for pair in zip(one.src.tolist(), one.dst.tolist(), strict=True)}


def _from_root(members: NDArray[np.intp], root: int) -> NDArray[np.intp]:
    return np.roll(members, -root) if root else members
