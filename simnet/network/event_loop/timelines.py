"""Look-up of time-varying bandwidths and latencies in the timelines of links."""

from __future__ import annotations

import math

from simnet.network.event_loop.codes import CHANGE
from simnet.network.event_loop.event_queue import push_event
from simnet.network.event_loop.receive_queue import change_passing_rate, update_backlog
from simnet.network.event_loop.records import State

# ruff: noqa: E741 - l is the row of a link.


def value_at(s: State, timeline: int, t: float) -> float:
    """Return the value of a timeline at time t [s], and make the segment at t its current one."""
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
    """Return the end of a timeline's current segment [s]."""
    return float(s.times[s.timelines[timeline].here + 1])


def update_link(s: State, l: int, now: float) -> None:
    """Update the capacity of link l to its value at `now` [s], and schedule the next change."""
    link = s.links[l]
    if link.until > now:
        return
    update_backlog(s, l)
    link.capacity = value_at(s, link.bandwidths, now)
    change_passing_rate(s, l)
    link.until = changes_at(s, link.bandwidths)
    if link.until < math.inf:
        push_event(s, link.until, CHANGE, l)


def latency_of(s: State, r: int, t: float) -> float:
    """Return the latency of route r at time t, in seconds."""
    route = s.routes[r]
    if not s.latency_changes:
        return route.latency
    total = 0.0
    for at in range(route.begin, route.end):
        total += value_at(s, s.links[s.route_links[at]].latencies, t)
    return total
