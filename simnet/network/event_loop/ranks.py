"""Ranks that go through the rounds of a schedule: they wait, compute, send, receive, and fail."""

from __future__ import annotations

import math

from simnet.network.event_loop.agenda import copy_due, push, sink_due
from simnet.network.event_loop.arrivals import has_come, leave_queue
from simnet.network.event_loop.messages import assign, let_next
from simnet.network.event_loop.ports import go_on_sending, has_left
from simnet.network.event_loop.protocols import (
    early_entry,
    early_in,
    has_entered,
    hear,
    needs_word,
    number_of,
    occupy,
    one_less,
    post,
    software_after,
    speak,
)
from simnet.network.event_loop.records import (
    ACKNOWLEDGED,
    ARRIVED,
    ASKS,
    CHANGE,
    COMPUTING,
    DATA,
    DELIVER,
    DONE,
    ENTER,
    FAIL,
    FAILED,
    FLOWING,
    GATED,
    GONE,
    HAND_OVER,
    HAS_ARRIVED,
    HELD,
    IN_ROUND,
    JOIN,
    LEAVE,
    LEFT,
    LEFT_HOST,
    LET_GO,
    ON_ITS_WAY,
    OUTSIDE,
    QUEUED,
    SERVE,
    STALLED,
    TAKING_IN,
    TOGGLE,
    TRANSFER,
    VANISHED,
    WORK,
    WORKED,
    Round,
    State,
    Task,
)  # fmt: skip
from simnet.network.event_loop.sharing import detach, free_flow
from simnet.network.event_loop.states import account
from simnet.network.event_loop.streams import go_on, post_kernels, queue_kernels, selected_at, through_at


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
            while s.ranks[g].words >= 0:
                f = s.ranks[g].words
                s.ranks[g].words = s.flows[f].next
                free_flow(s, f)
        for f in range(s.n_flows):
            if s.flows[f].owner == e and s.flows[f].state == QUEUED:
                s.flows[f].state = VANISHED
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
    elif kind == ENTER:
        next_round(s, g)
    elif kind == LET_GO:
        s.ranks[g].leaves = False
        if is_done(s, g):
            next_round(s, g)
    elif kind == WORK:
        if s.ranks[g].stream >= 0:
            begin_part(s, g)
        work(s, g)
    elif kind == LEAVE:
        leave(s, g)
    else:
        account(s, g)
        if enter(s, g):
            next_round(s, g)
    look_after(s, e)


def next_round(s: State, g: int) -> None:
    """Take a rank out of its round and into the next one in which it has something to do."""
    account(s, g)
    rank = s.ranks[g]
    run = s.runs[rank.run]
    while True:
        if rank.missing:
            early = early_entry(s, g, rank.round_index)
            s.early[early].count, s.early[early].unsent = -rank.missing, rank.unsent
            rank.missing, rank.unsent = 0, 0
        rank.round_index += 1
        gates = s.rounds[run.rounds + rank.round_index].gates
        gate = s.gates[gates + rank.number] if gates >= 0 else s.now
        if rank.stream >= 0:
            gate = opens_at(s, g)
        if rank.round_index == run.n_rounds:
            # Who computes beside has nothing to wait for but its own work.
            rank.state = GATED if rank.stream < 0 else COMPUTING
            if gate > s.now:
                later(s, gate, LEAVE, g)
            else:
                leave(s, g)
            return
        task = task_of(s, g)
        if gate <= s.now and rank.stream >= 0:
            begin_part(s, g)
            unpack(s, g)
        if gate <= s.now and not task.sends and not task.receives and not has_work(s, g, task):
            if s.runs_ahead and not may_go_on(s, g):
                rank.state = IN_ROUND
                return
            continue
        rank.missing, rank.unsent = task.receives - early_in(s, g, rank.round_index), 0
        if gate > s.now:
            rank.state = GATED
            later(s, gate, WORK, g)
            return
        if has_work(s, g, task):
            work(s, g)
            return
        if s.n_free < s.most_sends:
            # There has to be room for what it sends; see `records.GROW`.
            rank.state = GATED
            later(s, s.now, WORKED, g)
            return
        if not enter(s, g):
            return


def task_of(s: State, g: int) -> Task:
    """Return what a rank has to do in its round."""
    rank = s.ranks[g]
    return s.tasks[s.rounds[s.runs[rank.run].rounds + rank.round_index].tasks + rank.number]


def round_of(s: State, g: int) -> Round:
    """Return the round that a rank is in."""
    rank = s.ranks[g]
    return s.rounds[s.runs[rank.run].rounds + rank.round_index]


def has_work(s: State, g: int, task: Task) -> bool:
    """Return whether a rank has something to do before it enters its round, for which it has to wait."""
    if s.ranks[g].stream < 0:
        return task.seconds > 0
    return task.software > 0 or (task.seconds > 0 and round_of(s, g).unpacks < 0)


def opens_at(s: State, g: int) -> float:
    """Return when a rank that computes beside may enter its round, or be done: until then it asks for nothing else."""
    rank = s.ranks[g]
    last = rank.round_index == s.runs[rank.run].n_rounds
    part = -1 if last else round_of(s, g).opens
    if part < 0 and not last:
        return s.now
    go_on(s, rank.stream, s.now, math.inf, -1)
    s.streams[rank.stream].beside = 1.0
    return through_at(s, rank.stream) if last else selected_at(s, rank.stream, part)


def begin_part(s: State, g: int) -> None:
    """Let messages of a part be under way beside what a rank computes, if its round opens one."""
    part = round_of(s, g).opens
    if part >= 0:
        stream = s.streams[s.ranks[g].stream]
        stream.beside = s.portions[stream.portions + part].beside


def unpack(s: State, g: int) -> None:
    """Let a rank's kernels queue that unpack a part, if its round is for that; it goes on meanwhile."""
    rank, part = s.ranks[g], round_of(s, g).unpacks
    if part >= 0:
        go_on(s, rank.stream, s.now, math.inf, -1)
        s.streams[rank.stream].beside = 1.0
        if task_of(s, g).seconds > 0:
            post_kernels(s, rank.stream, part, task_of(s, g).seconds)


def work(s: State, g: int) -> None:
    """Let a rank compute before it enters its round; where it computes beside, that queues, but for software."""
    account(s, g)
    rank, one = s.ranks[g], round_of(s, g)
    rank.state = COMPUTING
    seconds, end = task_of(s, g).seconds, s.now
    if one.worked >= 0:
        s.worked[one.worked + rank.number] = s.now
    if rank.stream < 0:
        end += seconds
    else:
        if one.unpacks >= 0:
            unpack(s, g)
        elif seconds > 0:
            go_on(s, rank.stream, s.now, math.inf, -1)
            end = queue_kernels(s, rank.stream, seconds)
            if one.worked >= 0:
                s.worked[one.worked + rank.number] = s.streams[rank.stream].began
                s.worked[one.worked + s.runs[rank.run].n_ranks + rank.number] = end
        end += task_of(s, g).software
    later(s, end, WORKED, g)


def enter(s: State, g: int) -> bool:
    """Start a rank's messages of its round; return whether it is done with the round already.

    It never is with one that sends to a rank that has failed.
    """
    rank, task = s.ranks[g], task_of(s, g)
    rank.state = IN_ROUND
    post(s, g, task)
    return is_done(s, g)


def is_done(s: State, g: int) -> bool:
    """Return whether a rank may go on; if only what it does for its messages holds it, have it go on in time."""
    rank = s.ranks[g]
    if rank.let_go == math.inf or rank.leaves:
        return False
    if not may_go_on(s, g) if s.runs_ahead else rank.missing > 0:
        return False
    if rank.let_go > s.now:
        rank.leaves = True
        later(s, rank.let_go, LET_GO, g)
        return False
    return True


def may_go_on(s: State, g: int) -> bool:
    """Return whether no more rounds are open behind a rank than may be when it enters the next one."""
    rank, run = s.ranks[g], s.runs[s.ranks[g].run]
    following = rank.round_index + 1
    coming = s.rounds[run.rounds + following]
    # Who only sends need not wait for the sends before.
    only_sends = s.posts_ahead and coming.continues and s.tasks[coming.tasks + rank.number].receives == 0
    oldest = rank.round_index if rank.missing > (rank.unsent if only_sends else 0) else following
    early = rank.early
    while early >= 0:
        entry = s.early[early]
        if -entry.count > (entry.unsent if only_sends else 0):
            oldest = min(oldest, entry.round_index)
        early = entry.next
    return following - oldest <= coming.ahead


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
    """Take note that the last byte of a message is there, or at the end of a queue that it has to pass yet."""
    flow = s.flows[f]
    detach(s, f)
    if flow.port >= 0 and not flow.comes:
        leave_queue(s, f)
    else:
        if flow.owner != TRANSFER and flow.what == DATA:
            let_next(s, f, s.messages[flow.message].connection)
        if flow.port >= 0 and has_come(s, f):
            return
    s.n_moving -= 1
    flow.state = ON_ITS_WAY
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
    elif flow.what != DATA:
        e, message = flow.owner, s.messages[flow.message]
        g = message.dst if flow.what == ASKS else message.src
        s.runs[e].pending -= 1
        if hear(s, f) and s.ranks[g].state == IN_ROUND and is_done(s, g):
            next_round(s, g)
        look_after(s, e)
        return
    else:
        receive(s, f)
        look_after(s, flow.owner)
    if flow.unsent > 0:
        flow.state = GONE
    else:
        free_flow(s, f)


def left(s: State, f: int) -> None:
    """Take note that the link of a message's host has changed, or has let the message go."""
    flow = s.flows[f]
    e, g = flow.owner, s.messages[flow.message].src
    s.ranks[g].leaving -= 1
    if go_on_sending(s, f):
        s.ranks[g].missing -= 1
        if is_done(s, g):
            next_round(s, g)
    look_after(s, e)


def receive(s: State, f: int) -> None:
    """Book the arrival of a message; its receiver may be done with the round, and its sender if that waits for it."""
    flow = s.flows[f]
    i, message, run = flow.round_index, s.messages[flow.message], s.runs[flow.owner]
    if run.arrived >= 0:
        s.arrived[run.arrived + number_of(s, run, flow.message, i)] = s.now
    run.pending -= 1
    for g in (message.src, message.dst):
        account(s, g)
        s.ranks[g].in_flight -= 1
    sender, software = s.ranks[message.src], 0.0
    if s.lets_go != LEFT_HOST:
        software = software_after(s, flow.message)
        if not needs_word(s, flow.message):
            s.connections[message.connection].taken -= message.payload
        elif s.lets_go == ACKNOWLEDGED:
            speak(s, message.dst, flow.message, i, HAS_ARRIVED)
    if flow.holds:
        one_less(s, message.src, i, 1)
    if flow.holds and sender.state == IN_ROUND and is_done(s, message.src):
        next_round(s, message.src)
    g = message.dst
    rank = s.ranks[g]
    if rank.round_index < i:
        entry = s.early[early_entry(s, g, i)]
        entry.count += 1
        entry.software += software
        return
    one_less(s, g, i, 0)
    if not has_entered(s, g, i):
        rank.early_software += software
        return
    occupy(s, g, software, flow.message, i, TAKING_IN)
    if rank.state == IN_ROUND and is_done(s, g):
        next_round(s, g)


def fail(s: State, g: int) -> None:
    """Let a rank stop for good: messages under way from it and to it vanish."""
    rank = s.ranks[g]
    e = rank.run
    run = s.runs[e]
    if run.running <= 0 or (rank.state == OUTSIDE and rank.round_index == run.n_rounds):
        return
    account(s, g)
    if rank.state in (GATED, COMPUTING) or rank.round_index < 0 or rank.leaves:
        # What it has on the agenda will not happen.
        run.pending -= 1
    rank.state = FAILED
    for f in range(s.n_flows):
        flow = s.flows[f]
        if flow.owner != e or flow.state not in (ON_ITS_WAY, HELD, FLOWING, QUEUED):
            continue
        message = s.messages[flow.message]
        if g not in (message.src, message.dst):
            continue
        run.pending -= 1
        if flow.what == DATA:
            for end in (message.src, message.dst):
                account(s, end)
                s.ranks[end].in_flight -= 1
        if s.adaptive:
            assign(s, flow.route, -1)
        # All messages of a connection vanish with either of its ranks.
        s.connections[message.connection].last, flow.behind = -1, -1
        if flow.state in (ON_ITS_WAY, QUEUED):
            flow.state = VANISHED
            continue
        if flow.state == FLOWING:
            stop(s, f)
            s.n_moving -= 1
        if flow.unsent > 0:
            flow.state = GONE
        else:
            free_flow(s, f)
    withdraw(s, e)


def stop(s: State, f: int) -> None:
    """Take a message that flows off its links, and out of the queue that it is in."""
    detach(s, f)
    if s.flows[f].port >= 0:
        leave_queue(s, f)


def withdraw(s: State, e: int) -> None:
    """Take off the agenda what will not happen: messages that vanished, and what ranks of a run cannot do any more."""
    over = s.runs[e].running <= 0
    agenda, kept = s.agenda, 0
    for place in range(s.n_due):
        kind, row = agenda[place].kind, agenda[place].row
        if kind in (HAND_OVER, JOIN, DELIVER):
            if s.flows[row].state == VANISHED:
                if s.flows[row].unsent > 0:
                    s.flows[row].state = GONE
                else:
                    free_flow(s, row)
                continue
        elif kind == LEFT:
            flow = s.flows[row]
            if flow.owner == e and (over or s.ranks[s.messages[flow.message].src].state == FAILED):
                if agenda[place].time == math.inf:
                    s.n_quiet -= 1
                s.links[s.routes[flow.route].own].port_flow = -1
                while row >= 0:
                    row = has_left(s, row)
                continue
        elif kind not in (CHANGE, TOGGLE, SERVE) and s.ranks[row].run == e and (over or s.ranks[row].state == FAILED):
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
    if run.pending or run.running <= 0:
        return
    for g in range(run.ranks, run.ranks + run.n_ranks):
        rank = s.ranks[g]
        if rank.state == IN_ROUND and 0 < rank.leaving == rank.missing:
            # It goes on when what it sends has left.
            return
    run.running = -run.running
    notify(s, STALLED, e)


def notify(s: State, kind: int, row: int) -> None:
    """Leave a notice for the caller of `advance`."""
    s.notices[s.n_notices].kind, s.notices[s.n_notices].row = kind, row
    s.n_notices += 1
