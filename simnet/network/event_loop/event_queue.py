"""The event queue: a four-ary heap of events, ordered by time, and a heap of flows, ordered by end time."""

from __future__ import annotations

import math

from simnet.network.event_loop import codes
from simnet.network.event_loop.records import Event, State

# Links come first at an instant, then failures: their order is by so much smaller.
_FIRST = 1 << 60


def push_event(s: State, time: float, kind: int, row: int) -> None:
    """Insert an event into the queue; events at equal times keep their order of insertion."""
    event_queue, place = s.event_queue, s.n_events
    s.n_events += 1
    s.n_pushed += 1
    order = s.n_pushed
    if kind == codes.CHANGE:
        order -= 2 * _FIRST
    elif kind == codes.FAIL:
        order -= _FIRST
    while place > 0:
        above = event_queue[(place - 1) >> 2]
        if above.time < time or (above.time == time and above.order < order):
            break
        copy_event(above, event_queue[place])
        place = (place - 1) >> 2
    entry = event_queue[place]
    entry.time, entry.order, entry.kind, entry.row = time, order, kind, row


def pop_event(s: State) -> None:
    """Remove the earliest event."""
    s.n_events -= 1
    sink_event(s, 0, s.event_queue[s.n_events])


def remove_event(s: State, kind: int, row: int) -> float:
    """Remove the event of this kind and row, and return its time."""
    place = 0
    while s.event_queue[place].kind != kind or s.event_queue[place].row != row:
        place += 1
    time = s.event_queue[place].time
    s.event_queue[place].kind = codes.WITHDRAWN
    drop_withdrawn(s)
    return time


def drop_withdrawn(s: State) -> None:
    """Remove all cancelled events, which have the kind `WITHDRAWN`, and restore the order of the heap."""
    event_queue, kept = s.event_queue, 0
    for place in range(s.n_events):
        if event_queue[place].kind != codes.WITHDRAWN:
            copy_event(event_queue[place], event_queue[kept])
            kept += 1
    s.n_events = kept
    # Behind the last there is room for one more, from where entries sink to their places.
    for place in range((kept - 2) // 4, -1, -1):
        copy_event(event_queue[place], event_queue[kept])
        sink_event(s, place, event_queue[kept])


def sink_event(s: State, place: int, entry: Event) -> None:
    """Move `entry` down the event heap from position `place` until no child precedes it."""
    event_queue, size = s.event_queue, s.n_events
    while True:
        below, first = place, entry
        for other in range(4 * place + 1, min(4 * place + 5, size)):
            if is_before(event_queue[other], first):
                below, first = other, event_queue[other]
        if below == place:
            break
        copy_event(first, event_queue[place])
        place = below
    copy_event(entry, event_queue[place])


def is_before(a: Event, b: Event) -> bool:
    """Return whether event `a` precedes event `b`: it has an earlier time or, at equal times, was inserted earlier."""
    if a.time == b.time:
        return a.order < b.order
    return a.time < b.time


def copy_event(a: Event, b: Event) -> None:
    """Copy all fields of the event `a` to the event `b`."""
    b.time, b.order, b.kind, b.row = a.time, a.order, a.kind, a.row


def has_only_quiet_events(s: State) -> bool:
    """Return whether no event in the queue moves a message: all change links or background traffic, or never occur."""
    for place in range(s.n_events):
        one = s.event_queue[place]
        if one.kind not in (codes.CHANGE, codes.TOGGLE) and (one.kind != codes.LEFT or one.time < math.inf):
            return False
    return True


def set_flow_end(s: State, f: int, time: float) -> None:
    """Set the time at which flow f ends, and update the heap of flow ends."""
    flows, heap = s.flows, s.ends
    here = flows[f].place
    if here < 0:
        here = s.n_ends
        s.n_ends += 1
    size = s.n_ends
    while here > 0:
        above = heap[(here - 1) >> 2]
        if above.key <= time:
            break
        heap[here].key, heap[here].row = above.key, above.row
        flows[above.row].place = here
        here = (here - 1) >> 2
    while True:
        below, least = here, time
        for other in range(4 * here + 1, min(4 * here + 5, size)):
            if heap[other].key < least:
                below, least = other, heap[other].key
        if below == here:
            break
        heap[here].key, heap[here].row = least, heap[below].row
        flows[heap[here].row].place = here
        here = below
    heap[here].key, heap[here].row = time, f
    flows[f].place = here


def clear_flow_end(s: State, f: int) -> None:
    """Remove the scheduled end of flow f, if it has one."""
    here = s.flows[f].place
    if here < 0:
        return
    s.flows[f].place = codes.NONE
    s.n_ends -= 1
    if here < s.n_ends:
        last = s.ends[s.n_ends]
        s.flows[last.row].place = here
        set_flow_end(s, last.row, last.key)


def next_event_time(s: State) -> float:
    """Return the time of the next event or flow end; infinity if there is none."""
    due = s.event_queue[0].time if s.n_events else math.inf
    if s.n_ends:
        due = min(due, s.ends[0].key)
    return due
