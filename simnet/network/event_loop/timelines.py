"""What links are like at a time: segments of timelines, looked up when they are needed."""

from __future__ import annotations

import math

from simnet.network.event_loop.agenda import push
from simnet.network.event_loop.arrivals import count, pass_otherwise
from simnet.network.event_loop.records import CHANGE, State

# ruff: noqa: E741 - l is the row of a link.


def value_at(s: State, timeline: int, t: float) -> float:
    """Return the value of a timeline at time t, and remember which segment that is."""
    times, one = s.times, s.timelines[timeline]
    low, high = one.here, one.last
    # Latencies are looked up at departure, an overhead ahead, and where messages are rerouted, at once.
    while times[low] > t:
        low -= 1
    if low + 1 < high and times[low + 1] <= t:
        while high - low > 1:
            middle = (low + high) >> 1
            if times[middle] <= t:
                low = middle
            else:
                high = middle
    one.here = low
    return float(s.values[low])


def changes_at(s: State, timeline: int) -> float:
    """Return until when the value last asked for holds, as far as that is known."""
    return float(s.times[s.timelines[timeline].here + 1])


def look_up(s: State, l: int, now: float) -> None:
    """See to it that the capacity of a link is the one in force, and that its next change is on the agenda."""
    link = s.links[l]
    if link.until > now:
        return
    is_queue = link.n_coming > 0 or link.first_passing >= 0
    if is_queue:
        count(s, l)
    link.capacity = value_at(s, link.bandwidths, now)
    if is_queue:
        pass_otherwise(s, l)
    link.until = changes_at(s, link.bandwidths)
    if link.until < math.inf:
        push(s, link.until, CHANGE, l)


def look_up_all(s: State, n_links: int, now: float) -> None:
    """Look up all links."""
    for l in range(n_links):
        look_up(s, l, now)


def latency_of(s: State, r: int, t: float) -> float:
    """Return the latency of a route at time t."""
    route = s.routes[r]
    if not s.latency_changes:
        return route.latency
    total = 0.0
    for at in range(route.begin, route.end):
        total += value_at(s, s.links[s.route_links[at]].latencies, t)
    return total
