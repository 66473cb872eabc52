"""When the nodes of a step begin and end: in order if no two calls can meet, else by the network's event loop.

Calls that can never share a link are timed one by one, the groups of one call together: exact and cheap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.network import Network
from simnet.parallel.events import EventRun, roll_to_root
from simnet.parallel.graph import CollectiveCall, StepGraph
from simnet.schedule import Schedule, beside

Times: TypeAlias = tuple[Floats, Floats]
"""When each node begins and ends at each worker [s since the step's start], 0 where it does not do it."""

ScheduleOf: TypeAlias = Callable[[CollectiveCall], Schedule]


class StepPlacement:
    """A step on a network, timed repeatedly.

    Worker p is on host ``hosts[p]``; `schedule_of` returns the messages of a call. Computing takes `slowdown` times as
    long during a collective of the same worker, >= 1.
    """

    def __init__(
        self, graph: StepGraph, network: Network, hosts: Ranks, schedule_of: ScheduleOf, slowdown: float = 1.0
    ) -> None:
        self.graph, self.network, self.hosts, self.slowdown = graph, network, hosts, slowdown
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
        """Return when each node begins and ends, for the `seconds` of the parts of passes, shape (nodes, P).

        `name` prefixes the names of random streams. Raises StalledError if a collective can never end.
        """
        if self.apart and self.slowdown == 1:
            return self._in_order(seconds, start, name)
        return EventRun(self, seconds, start, name).run()

    @property
    def changes(self) -> bool:
        """Whether a call can take another time when it begins at another moment."""
        network = self.network
        drawn = network.jitter is not None or network.routing in ("flow", "adaptive")
        return drawn or not network.links.constant

    def nbytes(self) -> tuple[Floats, Floats]:
        """Return what each worker sends and receives in all calls [byte]; both of shape (P,)."""
        sent, received = np.zeros((2, self.graph.workers))
        each = {id(one): (one.bytes_sent(), one.bytes_received()) for one in self.schedules.values()}
        for number, schedule in self.schedules.items():
            call = self.graph.nodes[number].does
            assert isinstance(call, CollectiveCall)
            for members in self.groups[number]:
                sent[roll_to_root(members, call.root)] += each[id(schedule)][0]
                received[roll_to_root(members, call.root)] += each[id(schedule)][1]
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
        groups = [roll_to_root(members, call.root) for members in self.groups[number]]
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

    def _never_meet(self) -> bool:
        """Return whether no two calls can share a link: one queue and group, or routes without a common link."""
        network = self.network
        found: dict[tuple[str, bytes], set[tuple[int, int]]] = defaultdict(set)
        pairs: dict[int, set[tuple[int, int]]] = {}
        for number, schedule in self.schedules.items():
            node, groups = self.graph.nodes[number], self.groups[number]
            assert isinstance(node.does, CollectiveCall)
            if id(schedule) not in pairs:
                pairs[id(schedule)] = _schedule_pairs(schedule)
            for members in groups:
                at = self.hosts[roll_to_root(members, node.does.root)]
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


def _schedule_pairs(schedule: Schedule) -> set[tuple[int, int]]:
    rounds = {id(one): one for one in schedule.rounds}.values()
    return {pair for one in rounds for pair in zip(one.src.tolist(), one.dst.tolist(), strict=True)}
