"""Ranks that go through the rounds of a schedule: they wait, compute, send, receive, and fail."""

from __future__ import annotations

import math

from simnet.network.event_loop.agenda import copy_due, push, sink_due
from simnet.network.event_loop.messages import assign, depart, keep_in_order, let_next
from simnet.network.event_loop.ports import go_on_sending, send_off
from simnet.network.event_loop.records import (
    ARRIVED,
    CHANGE,
    COMPUTING,
    DELIVER,
    DONE,
    ENTER,
    FAIL,
    FAILED,
    FLOWING,
    GATED,
    GONE,
    HELD,
    IN_ROUND,
    JOIN,
    LEAVE,
    LEFT,
    LET_GO,
    ON_ITS_WAY,
    OUTSIDE,
    STALLED,
    TOGGLE,
    TRANSFER,
    VANISHED,
    WORK,
    WORKED,
    State,
    Task,
)  # fmt: skip
from simnet.network.event_loop.sharing import detach, free_flow


def start_run(s: State, e: int) -> None:
    """Let every rank of a run enter at its start."""
    for g in range(s.runs[e].ranks, s.runs[e].ranks + s.runs[e].n_ranks):
        later(s, s.ranks[g].start, ENTER, g)


def forget(s: State, e: int) -> None:
    """Forget a run that is over, whether it is done or not."""
    run = s.runs[e]
    if run.running != 0:
        for g in range(run.ranks, run.ranks + run.n_ranks):
            while s.ranks[g].early >= 0:
                early_in(s, g, s.early[s.ranks[g].early].round_index)
    run.running = 0
    withdraw(s, e)


def later(s: State, time: float, kind: int, g: int) -> None:
    """Put something that a rank will do on the agenda."""
    s.runs[s.ranks[g].run].pending += 1
    push(s, time, kind, g)


def act(s: State, g: int, kind: int) -> None:
    """Let a rank do what it has on the agenda."""
    e = s.ranks[g].run
    if kind != FAIL:
        s.runs[e].pending -= 1
    if kind == FAIL:
        fail(s, g)
    elif kind in (ENTER, LET_GO):
        next_round(s, g)
    elif kind == WORK:
        work(s, g)
    elif kind == LEAVE:
        leave(s, g)
    else:
        account(s, g)
        if enter(s, g):
            next_round(s, g)
    look_after(s, e)


def account(s: State, g: int) -> None:
    """Book the time since a rank's last event under what it has been doing."""
    rank = s.ranks[g]
    elapsed = s.now - rank.since
    if elapsed <= 0 or rank.state in (OUTSIDE, FAILED):
        return
    rank.since = s.now
    if rank.state == COMPUTING:
        rank.compute += elapsed
    elif rank.in_flight:
        rank.communicate += elapsed
    else:
        rank.wait += elapsed


def next_round(s: State, g: int) -> None:
    """Take a rank out of its round and into the next one in which it has something to do."""
    account(s, g)
    rank = s.ranks[g]
    run = s.runs[rank.run]
    while True:
        rank.round_index += 1
        gates = s.rounds[run.rounds + rank.round_index].gates
        gate = s.gates[gates + rank.number] if gates >= 0 else s.now
        if rank.round_index == run.n_rounds:
            rank.state = GATED
            if gate > s.now:
                later(s, gate, LEAVE, g)
            else:
                leave(s, g)
            return
        task = task_of(s, g)
        if gate <= s.now and not task.sends and not task.receives and not task.seconds:
            continue
        rank.missing = task.receives - early_in(s, g, rank.round_index)
        if gate > s.now:
            rank.state = GATED
            later(s, gate, WORK, g)
            return
        if task.seconds > 0:
            work(s, g)
            return
        if not enter(s, g):
            return


def task_of(s: State, g: int) -> Task:
    """Return what a rank has to do in its round."""
    rank = s.ranks[g]
    return s.tasks[s.rounds[s.runs[rank.run].rounds + rank.round_index].tasks + rank.number]


def work(s: State, g: int) -> None:
    """Let a rank compute before it enters its round."""
    account(s, g)
    s.ranks[g].state = COMPUTING
    later(s, s.now + task_of(s, g).seconds, WORKED, g)


def enter(s: State, g: int) -> bool:
    """Start a rank's messages of its round; return whether it is done with the round already.

    It never is with one that sends to a rank that has failed.
    """
    rank, task = s.ranks[g], task_of(s, g)
    rank.state = IN_ROUND
    e = rank.run
    run = s.runs[e]
    offset = s.rounds[run.rounds + rank.round_index].offset
    for m in range(task.messages, task.messages + task.sends):
        message = s.messages[m]
        peer, number = s.ranks[message.dst], offset + message.number
        if peer.state == FAILED:
            rank.missing += 1
            continue
        account(s, message.dst)
        rank.in_flight += 1
        peer.in_flight += 1
        run.pending += 1
        if run.sent >= 0:
            s.sent[run.sent + number] = s.now
        delay = s.delays[run.delays + number] if run.delays >= 0 else 0.0
        pick = s.picks[run.picks + number] if run.picks >= 0 else 0
        f = depart(s, e, message.route, message.candidates, pick, message.n_bytes, delay)
        s.flows[f].round_index, s.flows[f].message = rank.round_index, m
        keep_in_order(s, f, message.connection)
        send_off(s, g, f)
    return is_done(s, g)


def is_done(s: State, g: int) -> bool:
    """Return whether a rank is done with its round; if only what it sends holds it, have it go on in time."""
    rank = s.ranks[g]
    if rank.missing or rank.let_go == math.inf:
        return False
    if rank.let_go > s.now:
        later(s, rank.let_go, LET_GO, g)
        return False
    return True


def leave(s: State, g: int) -> None:
    """Let a rank be done with the schedule."""
    account(s, g)
    rank = s.ranks[g]
    rank.state, rank.finish = OUTSIDE, s.now
    run = s.runs[rank.run]
    run.running -= 1
    if not run.running:
        notify(s, DONE, rank.run)


def end_flow(s: State, f: int) -> None:
    """Take note that the last byte of a message is there."""
    detach(s, f)
    s.n_moving -= 1
    flow = s.flows[f]
    flow.state = ON_ITS_WAY
    if flow.owner != TRANSFER:
        let_next(s, f, s.messages[flow.message].connection)
    if s.receive_overhead > 0:
        push(s, s.now + s.receive_overhead, DELIVER, f)
    else:
        deliver(s, f)


def deliver(s: State, f: int) -> None:
    """Take note that a message has arrived: its receiver may be done with its round."""
    flow = s.flows[f]
    if s.adaptive:
        assign(s, flow.route, -1)
    if flow.owner == TRANSFER:
        notify(s, ARRIVED, flow.message)
    else:
        receive(s, flow.owner, flow.round_index, flow.message)
        look_after(s, flow.owner)
    if flow.unsent > 0:
        flow.state = GONE
    else:
        free_flow(s, f)


def left(s: State, f: int) -> None:
    """Take note that the link of a message's host has changed, or has let the message go."""
    flow = s.flows[f]
    e, g = flow.owner, s.messages[flow.message].src
    if not go_on_sending(s, f):
        return
    s.runs[e].pending -= 1
    if flow.state == GONE:
        free_flow(s, f)
    s.ranks[g].missing -= 1
    if is_done(s, g):
        next_round(s, g)
    look_after(s, e)


def receive(s: State, e: int, i: int, m: int) -> None:
    """Book the arrival of a message of round i; its receiver may be done with the round."""
    run, message = s.runs[e], s.messages[m]
    if run.arrived >= 0:
        s.arrived[run.arrived + s.rounds[run.rounds + i].offset + message.number] = s.now
    run.pending -= 1
    for g in (message.src, message.dst):
        account(s, g)
        s.ranks[g].in_flight -= 1
    sender = s.ranks[message.src]
    if sender.let_go == math.inf:
        # It went around its host's own link, which is down for good.
        sender.let_go = s.now
        if sender.state == IN_ROUND and is_done(s, message.src):
            next_round(s, message.src)
    g = message.dst
    rank = s.ranks[g]
    if rank.round_index != i:
        arrive_early(s, g, i)
        return
    rank.missing -= 1
    if rank.state == IN_ROUND and is_done(s, g):
        next_round(s, g)


def arrive_early(s: State, g: int, i: int) -> None:
    """Count an arrival at a rank that has not come to round i yet."""
    early = s.ranks[g].early
    while early >= 0 and s.early[early].round_index != i:
        early = s.early[early].next
    if early < 0:
        early = s.free_early
        s.free_early = s.early[early].next
        s.n_early -= 1
        s.early[early].round_index, s.early[early].count, s.early[early].next = i, 0, s.ranks[g].early
        s.ranks[g].early = early
    s.early[early].count += 1


def early_in(s: State, g: int, i: int) -> int:
    """Return how many messages of round i have arrived at a rank before it, and forget them."""
    before, early = -1, s.ranks[g].early
    while early >= 0 and s.early[early].round_index != i:
        before, early = early, s.early[early].next
    if early < 0:
        return 0
    if before >= 0:
        s.early[before].next = s.early[early].next
    else:
        s.ranks[g].early = s.early[early].next
    s.early[early].next = s.free_early
    s.free_early = early
    s.n_early += 1
    return s.early[early].count


def fail(s: State, g: int) -> None:
    """Let a rank stop for good: messages under way from it and to it vanish."""
    rank = s.ranks[g]
    e = rank.run
    run = s.runs[e]
    if run.running <= 0 or (rank.state == OUTSIDE and rank.round_index == run.n_rounds):
        return
    account(s, g)
    waits_to_leave = rank.state == IN_ROUND and not rank.missing and s.now < rank.let_go < math.inf
    if rank.state in (GATED, COMPUTING) or rank.round_index < 0 or waits_to_leave:
        # What it has on the agenda will not happen.
        run.pending -= 1
    rank.state = FAILED
    for f in range(s.n_flows):
        flow = s.flows[f]
        if flow.owner != e or flow.state not in (ON_ITS_WAY, HELD, FLOWING):
            continue
        message = s.messages[flow.message]
        if g not in (message.src, message.dst):
            continue
        run.pending -= 1
        for end in (message.src, message.dst):
            account(s, end)
            s.ranks[end].in_flight -= 1
        if s.adaptive:
            assign(s, flow.route, -1)
        # All messages of a connection vanish with either of its ranks.
        s.connections[message.connection], flow.behind = -1, -1
        if flow.state == ON_ITS_WAY:
            flow.state = VANISHED
            continue
        if flow.state == FLOWING:
            detach(s, f)
            s.n_moving -= 1
        if flow.unsent > 0:
            flow.state = GONE
        else:
            free_flow(s, f)
    withdraw(s, e)


def withdraw(s: State, e: int) -> None:
    """Take off the agenda what will not happen: messages that vanished, and what ranks of a run cannot do any more."""
    over = s.runs[e].running <= 0
    agenda, kept = s.agenda, 0
    for place in range(s.n_due):
        kind, row = agenda[place].kind, agenda[place].row
        if kind in (JOIN, DELIVER):
            if s.flows[row].state == VANISHED:
                if s.flows[row].unsent > 0:
                    s.flows[row].state = GONE
                else:
                    free_flow(s, row)
                continue
        elif kind == LEFT:
            flow = s.flows[row]
            if flow.owner == e and (over or s.ranks[s.messages[flow.message].src].state == FAILED):
                flow.unsent = 0.0
                s.runs[e].pending -= 1
                s.links[s.route_links[s.routes[flow.route].begin]].port_flow = -1
                if flow.state == GONE:
                    free_flow(s, row)
                continue
        elif kind not in (CHANGE, TOGGLE) and s.ranks[row].run == e and (over or s.ranks[row].state == FAILED):
            continue
        copy_due(agenda[place], agenda[kept])
        kept += 1
    s.n_due = kept
    # Behind the last there is room for one more, from where entries sink to their places.
    for place in range((kept + 2) // 4, -1, -1):
        if place < kept:
            copy_due(agenda[place], agenda[kept])
            sink_due(s, place, agenda[kept])


def look_after(s: State, e: int) -> None:
    """Leave a notice of a run that can do nothing more by itself and is not done."""
    run = s.runs[e]
    if not run.pending and run.running > 0:
        run.running = -run.running
        notify(s, STALLED, e)


def notify(s: State, kind: int, row: int) -> None:
    """Leave a notice for the caller of `advance`."""
    s.notices[s.n_notices].kind, s.notices[s.n_notices].row = kind, row
    s.n_notices += 1
