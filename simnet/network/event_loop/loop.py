"""From one instant at which something is due to the next."""

from __future__ import annotations

from simnet.network.event_loop.agenda import drop_first, next_due
from simnet.network.event_loop.messages import join, stop_all_background, toggle
from simnet.network.event_loop.ports import hand_over, serve
from simnet.network.event_loop.ranks import act, deliver, end_flow, left
from simnet.network.event_loop.records import (
    CHANGE,
    DELIVER,
    EXTEND,
    GROW,
    HAND_OVER,
    JOIN,
    LEFT,
    NOTICES,
    OUTAGE,
    SERVE,
    STUCK,
    TOGGLE,
    WAITING,
    State,
)  # fmt: skip
from simnet.network.event_loop.sharing import mark_dirty, settle
from simnet.network.event_loop.timelines import look_up

# ruff: noqa: E741 - l is the row of a link.


def change(s: State, l: int) -> bool:
    """Let the capacity of a link change; return whether it went down or came up, and somebody wants to know."""
    link = s.links[l]
    is_used = link.users > 0 or link.n_coming > 0 or link.first_passing >= 0
    if link.until > s.now or not (is_used or s.watching):
        return False
    before = link.capacity
    look_up(s, l, s.now)
    if link.users:
        mark_dirty(s, l)
    return s.watching and (before > 0) != (link.capacity > 0)


def changes(s: State) -> bool:
    """Let all links change that are due to; return as `change` does, for any of them."""
    outage = False
    while s.n_due and s.agenda[0].kind == CHANGE and s.agenda[0].time <= s.now:
        l = s.agenda[0].row
        drop_first(s)
        s.n_quiet -= 1
        if change(s, l):
            outage = True
    return outage


def advance(s: State, now: float, until: float) -> int:
    """Work off what is due by `now`, and what is due before `until`, unless somebody has to act before.

    Returns
    -------
    int
        `WAITING`, `NOTICES`, `STUCK`, `GROW`, `EXTEND` or `OUTAGE`.
    """
    while True:
        if s.n_early < 4 or s.n_free < s.most_sends:
            return GROW
        due = next_due(s)
        if due <= s.now:
            if s.n_due and s.agenda[0].time <= s.now:
                kind, row = s.agenda[0].kind, s.agenda[0].row
                if kind == CHANGE:
                    if changes(s):
                        return OUTAGE
                    continue
                drop_first(s)
                if kind == JOIN:
                    join(s, row)
                elif kind == DELIVER:
                    deliver(s, row)
                elif kind == LEFT:
                    left(s, row)
                elif kind == HAND_OVER:
                    hand_over(s, row)
                elif kind == SERVE:
                    serve(s, row)
                elif kind == TOGGLE:
                    s.n_quiet -= 1
                    if s.background_on:
                        toggle(s, row)
                else:
                    act(s, row, kind)
            else:
                end_flow(s, s.ends[0].flow)
            continue
        if s.background_on and not s.n_moving:
            stop_all_background(s)
        if s.n_dirty or s.n_new:
            settle(s, s.now)
            continue
        if s.n_notices:
            return NOTICES
        if (s.n_moving or s.n_queued) and not s.n_ends and s.n_due == s.n_quiet and s.now >= s.hope:
            return STUCK
        if not (due <= now or due < until):
            return WAITING
        if due + s.send_overhead >= s.horizon:
            return EXTEND
        s.now = due
