"""What is due next: a heap of things by time, and a heap of flows by their end. Each entry has four below it."""

from __future__ import annotations

import math

from simnet.network.event_loop.records import CHANGE, FAIL, LEFT, TOGGLE, Due, State

# Links come first at an instant, then failures: their order is by so much smaller.
_FIRST = 1 << 60


def push(s: State, time: float, kind: int, row: int) -> None:
    """Put something on the agenda, by time and, at one time, in the order of asking."""
    agenda, place = s.agenda, s.n_due
    s.n_due += 1
    s.n_asked += 1
    order = s.n_asked
    if kind in (CHANGE, TOGGLE) or (kind == LEFT and time == math.inf):
        s.n_quiet += 1
    if kind == CHANGE:
        order -= 2 * _FIRST
    elif kind == FAIL:
        order -= _FIRST
    while place > 0:
        above = agenda[(place - 1) >> 2]
        if above.time < time or (above.time == time and above.order < order):
            break
        copy_due(above, agenda[place])
        place = (place - 1) >> 2
    entry = agenda[place]
    entry.time, entry.order, entry.kind, entry.row = time, order, kind, row


def drop_first(s: State) -> None:
    """Take what is due first off the agenda."""
    s.n_due -= 1
    sink_due(s, 0, s.agenda[s.n_due])


def take_off(s: State, kind: int, row: int) -> float:
    """Take something off the agenda, and return when it was due."""
    agenda, place = s.agenda, 0
    while agenda[place].kind != kind or agenda[place].row != row:
        place += 1
    time = agenda[place].time
    if kind in (CHANGE, TOGGLE) or (kind == LEFT and time == math.inf):
        s.n_quiet -= 1
    s.n_due -= 1
    last = agenda[s.n_due]
    while place > 0 and is_before(last, agenda[(place - 1) >> 2]):
        copy_due(agenda[(place - 1) >> 2], agenda[place])
        place = (place - 1) >> 2
    if place < s.n_due:
        sink_due(s, place, last)
    return time


def sink_due(s: State, place: int, entry: Due) -> None:
    """Put an entry at a place of the agenda, or below it where it belongs."""
    agenda, size = s.agenda, s.n_due
    while True:
        first = 4 * place + 1
        if first >= size:
            break
        below = first
        for other in range(first + 1, min(first + 4, size)):
            if is_before(agenda[other], agenda[below]):
                below = other
        if not is_before(agenda[below], entry):
            break
        copy_due(agenda[below], agenda[place])
        place = below
    copy_due(entry, agenda[place])


def is_before(a: Due, b: Due) -> bool:
    """Return whether `a` is due before `b`."""
    if a.time == b.time:
        return a.order < b.order
    return a.time < b.time


def copy_due(a: Due, b: Due) -> None:
    """Copy the entry `a` to `b`."""
    b.time, b.order, b.kind, b.row = a.time, a.order, a.kind, a.row


def ends_at(s: State, f: int, time: float) -> None:
    """Note when a flow will end."""
    flows, heap = s.flows, s.ends
    here = flows[f].place
    if here < 0:
        here = s.n_ends
        s.n_ends += 1
    size = s.n_ends
    while here > 0:
        above = heap[(here - 1) >> 2]
        if above.time <= time:
            break
        heap[here].time, heap[here].flow = above.time, above.flow
        flows[above.flow].place = here
        here = (here - 1) >> 2
    while True:
        below, least = here, time
        for other in range(4 * here + 1, min(4 * here + 5, size)):
            if heap[other].time < least:
                below, least = other, heap[other].time
        if below == here:
            break
        heap[here].time, heap[here].flow = least, heap[below].flow
        flows[heap[here].flow].place = here
        here = below
    heap[here].time, heap[here].flow = time, f
    flows[f].place = here


def never_ends(s: State, f: int) -> None:
    """Take back when a flow will end, if that has been noted."""
    here = s.flows[f].place
    if here < 0:
        return
    s.flows[f].place = -1
    s.n_ends -= 1
    if here < s.n_ends:
        last = s.ends[s.n_ends]
        s.flows[last.flow].place = here
        ends_at(s, last.flow, last.time)


def next_due(s: State) -> float:
    """Return when the next thing is due; infinity if nothing is."""
    due = s.agenda[0].time if s.n_due else math.inf
    if s.n_ends:
        due = min(due, s.ends[0].time)
    return due
