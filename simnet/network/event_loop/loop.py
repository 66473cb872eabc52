"""The main loop: processes events in order of time."""

from __future__ import annotations

from simnet.network.event_loop import codes
from simnet.network.event_loop.egress_queue import dequeue, inject
from simnet.network.event_loop.event_queue import has_only_quiet_events, next_event_time, pop_event
from simnet.network.event_loop.messages import start_message, stop_all_background, toggle_background
from simnet.network.event_loop.ranks import deliver_message, end_flow, fail_rank, own_link_event, resume_rank
from simnet.network.event_loop.records import State  # fmt: skip
from simnet.network.event_loop.sharing import mark_dirty, settle_rates
from simnet.network.event_loop.timelines import update_link

# ruff: noqa: E741 - l is the row of a link.


def change_link(s: State, l: int) -> bool:
    """Apply a due capacity change of link l; return whether it is an outage or recovery that the loop watches for."""
    link = s.links[l]
    before = link.capacity
    is_used = link.users > 0 or link.n_coming > 0 or link.first_passing >= 0
    if link.until <= s.now and (is_used or s.watching):
        update_link(s, l, s.now)
        if link.users:
            mark_dirty(s, l)
    return s.watching and (before > 0) != (link.capacity > 0)


def change_links(s: State) -> bool:
    """Apply all due capacity changes of links; return whether any is an outage or recovery the loop watches for."""
    outage = False
    while s.n_events and s.event_queue[0].kind == codes.CHANGE and s.event_queue[0].time <= s.now:
        l = s.event_queue[0].row
        pop_event(s)
        if change_link(s, l):
            outage = True
    return outage


def advance(s: State, now: float, until: float) -> int:
    """Process events up to `now`, and later events before `until`. Return a code that says why the loop stopped.

    Returns
    -------
    int
        `WAITING`, `NOTICES`, `STUCK`, `GROW`, `EXTEND` or `OUTAGE`.
    """
    while True:
        if s.n_early < 4 or s.n_free < s.most_sends:
            return codes.GROW
        due = next_event_time(s)
        if due <= s.now:
            if s.n_events and s.event_queue[0].time <= s.now:
                kind, row = s.event_queue[0].kind, s.event_queue[0].row
                if kind == codes.CHANGE:
                    if change_links(s):
                        return codes.OUTAGE
                    continue
                pop_event(s)
                if kind == codes.JOIN:
                    start_message(s, row)
                elif kind == codes.DELIVER:
                    deliver_message(s, row)
                elif kind == codes.LEFT:
                    own_link_event(s, row)
                elif kind == codes.INJECT:
                    inject(s, row)
                elif kind == codes.DEQUEUE:
                    dequeue(s, row)
                elif kind == codes.RESUME:
                    resume_rank(s, row)
                elif kind == codes.FAIL:
                    fail_rank(s, row)
                elif s.background_on:
                    toggle_background(s, row)
            else:
                end_flow(s, s.ends[0].row)
            continue
        if s.background_on and not s.n_moving:
            stop_all_background(s)
        if s.n_dirty or s.n_new:
            settle_rates(s, s.now)
            continue
        if s.n_notices:
            return codes.NOTICES
        if (s.n_moving or s.n_queued) and not s.n_ends and s.now >= s.hope and has_only_quiet_events(s):
            return codes.STUCK
        if not (due <= now or due < until):
            return codes.WAITING
        if due + s.send_overhead >= s.horizon:
            return codes.EXTEND
        s.now = due
