"""Bytes in motion: flows over shared links, each at its max-min fair share, advanced from event to event.

Between two events every rate is constant, so the bytes a flow has left are a linear function of time and its finish is
one division away. Events are: a flow joins, a flow ends, a link's capacity changes. At an event only the flows that
share links, directly or through others, with what changed are solved again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush


def max_min_shares(
    routes: Sequence[Sequence[int]], capacity: Mapping[int, float], limits: Sequence[float] | None = None
) -> list[float]:
    """Return the max-min fair rate of each flow.

    No flow's rate can grow without shrinking that of a flow with an equal or smaller rate. Found by progressive
    filling: the link with the smallest share per unfixed flow is a bottleneck; its flows get that share, and what they
    take is withdrawn from the other links on their routes.

    Parameters
    ----------
    routes : sequence of sequences of int
        Links of each flow. A flow without links is bounded by its limit alone.
    capacity : mapping of int to float
        Bytes per second of each link that a route names, >= 0.
    limits : sequence of float, optional
        Bytes per second that each flow takes at most.

    Returns
    -------
    list of float
        Bytes per second of each flow; infinite for a flow with neither links nor limit.

    References
    ----------
    D. Bertsekas, R. Gallager, "Data Networks", 2nd ed., section 6.5.2.

    Examples
    --------
    >>> max_min_shares([(0,), (0, 1), (1,)], {0: 10.0, 1: 4.0})
    [8.0, 2.0, 2.0]
    """
    rates = [math.inf] * len(routes)
    users: dict[int, list[int]] = {}
    left: dict[int, float] = {}
    for flow, route in enumerate(routes):
        for link in route:
            users.setdefault(link, []).append(flow)
            left[link] = capacity[link]
    if limits is not None:
        # A limit is a link of the flow's own; negative numbers keep it apart from real links.
        routes = [(*route, -1 - flow) if limits[flow] < math.inf else route for flow, route in enumerate(routes)]
        for flow, limit in enumerate(limits):
            if limit < math.inf:
                users[-1 - flow], left[-1 - flow] = [flow], limit
    unfixed = {link: len(flows) for link, flows in users.items()}
    heap = [(left[link] / count, link) for link, count in unfixed.items()]
    heapify(heap)
    fixed = [False] * len(routes)
    while heap:
        share, bottleneck = heappop(heap)
        count = unfixed[bottleneck]
        if not count:
            continue
        current = max(left[bottleneck], 0.0) / count
        if current > share:
            heappush(heap, (current, bottleneck))
            continue
        for flow in users[bottleneck]:
            if fixed[flow]:
                continue
            fixed[flow], rates[flow] = True, current
            for link in routes[flow]:
                left[link] -= current
                unfixed[link] -= 1
    return rates


# What rounding leaves of a flow, relative to all its bytes, does not wait for a link to come back up.
_RESIDUE = 1e-14


class _Flow:
    __slots__ = ("limit", "rate", "remaining", "residue", "route", "since", "version")

    def __init__(self, route: Sequence[int], nbytes: float, limit: float, now: float) -> None:
        self.route = route
        self.remaining = nbytes
        self.residue = _RESIDUE * nbytes if nbytes < math.inf else 0.0
        self.limit = limit
        self.rate = 0.0
        self.since = now
        self.version = 0


class Fluid:
    """Flows in progress, at max-min fair shares of links whose capacity changes in steps.

    Parameters
    ----------
    capacity : callable
        ``capacity(link, t)`` returns the bytes per second of the link at time t and until when they hold (infinity
        when for ever).

    Examples
    --------
    >>> fluid = Fluid(lambda link, t: (10.0, math.inf))
    >>> fluid.add(0, (0,), nbytes=100.0, now=0.0)
    >>> fluid.add(1, (0,), nbytes=50.0, now=0.0)
    >>> fluid.settle(0.0)
    >>> fluid.next_event()
    10.0
    >>> fluid.advance(10.0)
    [1]
    >>> fluid.settle(10.0)
    >>> fluid.next_event()
    15.0
    """

    def __init__(self, capacity: Callable[[int, float], tuple[float, float]]) -> None:
        self._capacity_at = capacity
        self._flows: dict[int, _Flow] = {}
        self._users: dict[int, dict[int, None]] = {}
        self._capacity: dict[int, float] = {}
        self._until: dict[int, float] = {}
        self._finishes: list[tuple[float, int, int]] = []
        self._changes: list[tuple[float, int]] = []
        self._dirty: dict[int, None] = {}

    def add(self, flow: int, route: Sequence[int], nbytes: float, now: float, limit: float = math.inf) -> None:
        """Let a flow join; `settle` gives it its rate. `nbytes` may be infinite (background traffic)."""
        self._flows[flow] = _Flow(route, nbytes, limit, now)
        for link in route:
            users = self._users.get(link)
            if users is None:
                users = self._users[link] = {}
                self._look_up(link, now)
            users[flow] = None
            self._dirty[link] = None

    def remove(self, flow: int) -> None:
        """Take a flow out; `settle` gives what it leaves to the others."""
        for link in self._flows.pop(flow).route:
            users = self._users[link]
            del users[flow]
            if users:
                self._dirty[link] = None
            else:
                del self._users[link], self._capacity[link]
                self._until.pop(link, None)
                self._dirty.pop(link, None)

    def has(self, flow: int) -> bool:
        """Return whether the flow is in progress."""
        return flow in self._flows

    def advance(self, now: float) -> list[int]:
        """Apply the capacity changes due by `now`, remove the flows that end by then, and return these."""
        changes = self._changes
        while changes and changes[0][0] <= now:
            time, link = heappop(changes)
            if self._until.get(link) == time:
                self._look_up(link, now)
                self._dirty[link] = None
        ended: list[int] = []
        finishes = self._finishes
        while finishes and finishes[0][0] <= now:
            _, flow, version = heappop(finishes)
            state = self._flows.get(flow)
            if state is not None and state.version == version:
                ended.append(flow)
                self.remove(flow)
        return ended

    def settle(self, now: float) -> None:
        """Give every flow touched by what changed since the last call its new rate."""
        if not self._dirty:
            return
        alone, sharing = self._affected()
        for flow in alone:
            state = self._flows[flow]
            self._set_rate(flow, min((self._capacity[link] for link in state.route), default=math.inf), now)
        if sharing:
            states = [self._flows[flow] for flow in sharing]
            limits = [state.limit for state in states]
            rates = max_min_shares([state.route for state in states], self._capacity, limits)
            for flow, rate in zip(sharing, rates, strict=True):
                self._set_rate(flow, rate, now)
        self._dirty.clear()

    def next_finish(self) -> float:
        """Return when the next flow ends at the present rates; infinity when none makes progress."""
        finishes = self._finishes
        while finishes:
            state = self._flows.get(finishes[0][1])
            if state is not None and state.version == finishes[0][2]:
                return finishes[0][0]
            heappop(finishes)
        return math.inf

    def next_event(self) -> float:
        """Return when the next flow ends or the next capacity changes; infinity when never."""
        changes = self._changes
        while changes and self._until.get(changes[0][1]) != changes[0][0]:
            heappop(changes)
        return min(self.next_finish(), changes[0][0] if changes else math.inf)

    def blocked(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Yield each flow that makes no progress, with its route."""
        return ((flow, state.route) for flow, state in self._flows.items() if state.rate <= 0)

    def _look_up(self, link: int, now: float) -> None:
        self._capacity[link], until = self._capacity_at(link, now)
        if until < math.inf:
            self._until[link] = until
            heappush(self._changes, (until, link))
        else:
            self._until.pop(link, None)

    def _affected(self) -> tuple[list[int], list[int]]:
        """Return the flows to solve again: those alone on all their links, and those that share."""
        alone: list[int] = []
        sharing: list[int] = []
        seen: set[int] = set()
        links = list(self._dirty)
        reached = set(links)
        while links:
            for flow in self._users[links.pop()]:
                if flow in seen:
                    continue
                seen.add(flow)
                state = self._flows[flow]
                shares = state.limit < math.inf
                for link in state.route:
                    if len(self._users[link]) > 1:
                        shares = True
                    if link not in reached:
                        reached.add(link)
                        links.append(link)
                (sharing if shares else alone).append(flow)
        return alone, sharing

    def _set_rate(self, flow: int, rate: float, now: float) -> None:
        state = self._flows[flow]
        if rate == state.rate:
            return
        if state.rate > 0:
            state.remaining -= state.rate * (now - state.since)
        state.rate, state.since = rate, now
        state.version += 1
        if state.remaining <= state.residue:
            heappush(self._finishes, (now, flow, state.version))
        elif rate > 0 and state.remaining < math.inf:
            heappush(self._finishes, (now + state.remaining / rate, flow, state.version))
