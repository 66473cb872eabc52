"""The clock of a network: messages in their latency, flows in progress, ranks at work, and what is due next.

One SimPy event stands for the next thing due. When it fires, everything due at that instant is worked off as one batch;
then the flows that were touched get new rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

import simpy

from simnet.flows import Fluid
from simnet.links import Links


class Owner(Protocol):
    """Whoever sent a message and is told of its delivery, or that it will never come."""

    def delivered(self, key: tuple[int, int], now: float) -> None:
        """Take note that the message that was sent as `key` has arrived."""

    def stalled(self, blocked: Mapping[tuple[int, int], str], now: float) -> None:
        """Take note that these messages will never arrive, and why."""


class Clock:
    """What is due in a network, and the flows in progress.

    Parameters
    ----------
    links : Links
        What the flows share.
    env : simpy.Environment
        Whose time it keeps.
    send_overhead, receive_overhead : float
        Seconds per message before it leaves the sender and after its last byte arrived.
    """

    def __init__(
        self, links: Links, env: simpy.Environment, send_overhead: float = 0.0, receive_overhead: float = 0.0
    ) -> None:
        self.links = links
        self.env = env
        self._send_overhead = send_overhead
        self._receive_overhead = receive_overhead
        self._time = float(env.now)
        self._armed = math.inf
        self._agenda: list[tuple[float, int, Callable[[Any, float], None], Any]] = []
        self._count = 0
        self._fluid = Fluid(links.capacity)
        self._flows: dict[int, tuple[Owner, tuple[int, int]]] = {}
        self._background: dict[int, float] = {}
        self._toggles = 0
        self._hope = -math.inf

    def now(self) -> float:
        """Return the time [s]: that of the environment, or of the last batch if rounding put that behind."""
        return max(self._time, float(self.env.now))

    def at(self, time: float, call: Callable[[Any, float], None], argument: Any) -> None:
        """Call ``call(argument, time)`` at `time`; at the same time, in the order of asking."""
        self._count += 1
        heappush(self._agenda, (time, self._count, call, argument))

    def send(
        self, owner: Owner, key: tuple[int, int], route: tuple[int, ...], nbytes: float, delay: float, now: float
    ) -> None:
        """Let a message leave: overhead, latency and jitter first, then its bytes as a flow."""
        depart = now + self._send_overhead
        latency = 0.0
        for link in route:
            latency += self.links.latency(link, depart)
        arrive = depart + (latency + delay)
        if nbytes > 0 and route:
            self.at(arrive, self._join, (owner, key, route, nbytes))
        else:
            self.at(arrive + self._receive_overhead, self._deliver, (owner, key))

    def arm(self) -> None:
        """Make sure that SimPy wakes this clock in time for its next event."""
        time = min(self._agenda[0][0] if self._agenda else math.inf, self._fluid.next_event())
        if time < self._armed:
            self._armed = time
            # SimPy adds delays to its own now, which may miss `time` by a rounding; the value carries it exactly.
            event = self.env.timeout(max(0.0, time - self.env.now), value=time)
            assert event.callbacks is not None
            event.callbacks.append(self._wake)

    def _wake(self, event: simpy.Event) -> None:
        time = event.value
        if time != self._armed:
            return
        self._armed = math.inf
        self._time = time
        self._process(time)
        self._give_up(time)
        self.arm()

    def _process(self, now: float) -> None:
        """Work off everything due by `now`, as one batch, before flows are given new rates."""
        agenda, fluid = self._agenda, self._fluid
        while True:
            while agenda and agenda[0][0] <= now:
                _, _, call, argument = heappop(agenda)
                call(argument, now)
            for flow in fluid.advance(now):
                message = self._flows.pop(flow)
                if self._receive_overhead:
                    self.at(now + self._receive_overhead, self._deliver, message)
                else:
                    self._deliver(message, now)
            if agenda and agenda[0][0] <= now:
                continue
            if self._background and not self._flows:
                self._stop_background()
            fluid.settle(now)
            if fluid.next_event() > now:
                return

    def _join(self, argument: tuple[Owner, tuple[int, int], tuple[int, ...], float], now: float) -> None:
        owner, key, route, nbytes = argument
        if not self._flows:
            self._start_background(now)
        self._count += 1
        self._flows[self._count] = owner, key
        self._fluid.add(self._count, route, nbytes, now)

    def _deliver(self, message: tuple[Owner, tuple[int, int]], now: float) -> None:
        owner, key = message
        owner.delivered(key, now)

    # Background flows take part only while there is somebody to share with. Whether one is on is a function of time
    # alone, so nothing is lost by leaving it out in between. Their numbers are negative, apart from messages.

    def _start_background(self, now: float) -> None:
        if not self._background:
            for number in range(len(self.links.flows)):
                self._background[number] = now
                self._toggles += 1
                self._toggle((number, now), now)

    def _stop_background(self) -> None:
        for number in self._background:
            if self._fluid.has(-1 - number):
                self._fluid.remove(-1 - number)
        self._background.clear()

    def _toggle(self, argument: tuple[int, float], now: float) -> None:
        number, due = argument
        self._toggles -= 1
        if self._background.get(number) != due:
            return
        traffic = self.links.flows[number]
        on, present = traffic.on.at(now) > 0, self._fluid.has(-1 - number)
        if on and not present:
            route = self.links.routes.route(traffic.src, traffic.dst)
            self._fluid.add(-1 - number, route, math.inf, now, traffic.limit)
        elif present and not on:
            self._fluid.remove(-1 - number)
        change = traffic.on.next_change(now)
        self._background[number] = change
        if change < math.inf:
            self._toggles += 1
            self.at(change, self._toggle, (number, change))

    def _give_up(self, now: float) -> None:
        """Tell those whose messages can never arrive, once nothing else can happen."""
        if not self._flows or now < self._hope or self._fluid.next_finish() < math.inf:
            return
        if len(self._agenda) > self._toggles:
            return
        blocked = {flow: route for flow, route in self._fluid.blocked() if flow in self._flows}
        self._hope = min((self.links.opens(route, now) for route in blocked.values()), default=math.inf)
        if self._hope < math.inf:
            return
        self._hope = -math.inf
        owners: dict[int, Owner] = {}
        held: dict[int, dict[tuple[int, int], str]] = {}
        for flow, (owner, key) in self._flows.items():
            self._fluid.remove(flow)
            owners[id(owner)] = owner
            held.setdefault(id(owner), {})[key] = self._what_is_down(blocked.get(flow, ()), now)
        self._flows.clear()
        self._fluid.settle(now)
        for number, owner in owners.items():
            owner.stalled(held[number], now)

    def _what_is_down(self, route: Sequence[int], now: float) -> str:
        names = self.links.routes.links
        down = [f"{names[link][0]}->{names[link][1]}" for link in route if self.links.capacity(link, now)[0] <= 0]
        return f"no capacity on {', '.join(down)}" if down else "next to no capacity"
