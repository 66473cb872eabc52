"""Ranks that go through the rounds of a schedule: ranks wait, compute, send, receive and fail."""

from __future__ import annotations

import math

from simnet.network.event_loop import codes
from simnet.network.event_loop.accounting import account_time
from simnet.network.event_loop.egress_queue import continue_sending, finish_departure
from simnet.network.event_loop.event_queue import drop_withdrawn, push_event
from simnet.network.event_loop.messages import count_assigned, handling_time, release_next
from simnet.network.event_loop.protocols import (
    count_down,
    early_entry,
    has_entered,
    needs_control,
    number_of,
    occupy_rank,
    post_round,
    receive_control,
    send_control,
    software_of,
    take_early,
)
from simnet.network.event_loop.receive_queue import finish_arrival, leave_receive_queue
from simnet.network.event_loop.records import RoundRecord, State, TaskRecord  # fmt: skip
from simnet.network.event_loop.sharing import detach_flow, free_flow, release_flow
from simnet.network.event_loop.streams import advance_stream, post_kernels, queue_kernels, selected_at, stream_done_at


def start_run(s: State, e: int) -> None:
    """Schedule when each rank of run e (a schedule in flight) enters its schedule."""
    for g in range(s.runs[e].ranks, s.runs[e].ranks + s.runs[e].n_ranks):
        resume_at(s, s.ranks[g].start, g)


def forget_run(s: State, e: int) -> None:
    """Remove the events, early arrivals and queued messages of run e (a schedule in flight), finished or not."""
    run = s.runs[e]
    if run.running != 0:
        for g in range(run.ranks, run.ranks + run.n_ranks):
            while s.ranks[g].early >= 0:
                take_early(s, g, s.early[s.ranks[g].early].round_index)
            while s.ranks[g].controls >= 0:
                f = s.ranks[g].controls
                s.ranks[g].controls = s.flows[f].next
                free_flow(s, f)
        for f in range(s.n_flows):
            if s.flows[f].owner == e and s.flows[f].state == codes.QUEUED:
                s.flows[f].state = codes.VANISHED
    run.running = 0
    withdraw_events(s, e)


def resume_at(s: State, time: float, g: int) -> None:
    """Schedule rank g to resume at `time` [s]. The rank's state says what it waits for."""
    s.runs[s.ranks[g].run].pending += 1
    push_event(s, time, codes.RESUME, g)


def resume_rank(s: State, g: int) -> None:
    """Let rank g continue after a wait for its start, a round's earliest entry time, computation or CPU work."""
    rank = s.ranks[g]
    run = s.runs[rank.run]
    run.pending -= 1
    if rank.state == codes.OUTSIDE:
        next_round(s, g)
    elif rank.state == codes.IN_ROUND:
        rank.leaves = False
        if is_round_done(s, g):
            next_round(s, g)
    elif rank.round_index == run.n_rounds:
        finish_rank(s, g)
    elif rank.state == codes.GATED:
        if rank.stream >= 0:
            begin_part(s, g)
        start_compute(s, g)
    else:
        account_time(s, g)
        if enter_round(s, g):
            next_round(s, g)
    check_stalled(s, rank.run)


def next_round(s: State, g: int) -> None:
    """Advance rank g to the next round in which it has work or messages, or to the end of the schedule."""
    account_time(s, g)
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
            # A rank with a stream waits only for its own work.
            rank.state = codes.GATED if rank.stream < 0 else codes.COMPUTING
            if gate > s.now:
                resume_at(s, gate, g)
            else:
                finish_rank(s, g)
            return
        task = task_of(s, g)
        if gate <= s.now and rank.stream >= 0:
            begin_part(s, g)
            unpack_part(s, g)
        if gate <= s.now and not task.sends and not task.receives and not has_work(s, g, task):
            if s.runs_ahead and not may_advance(s, g):
                rank.state = codes.IN_ROUND
                return
            continue
        rank.missing, rank.unsent = task.receives - take_early(s, g, rank.round_index), 0
        if gate > s.now:
            rank.state = codes.GATED
            resume_at(s, gate, g)
            return
        if has_work(s, g, task):
            start_compute(s, g)
            return
        if s.n_free < s.most_sends:
            # There has to be room for what it sends; see `codes.GROW`.
            rank.state = codes.COMPUTING
            resume_at(s, s.now, g)
            return
        if not enter_round(s, g):
            return


def task_of(s: State, g: int) -> TaskRecord:
    """Return the task of a rank in its current round."""
    rank = s.ranks[g]
    return s.tasks[s.rounds[s.runs[rank.run].rounds + rank.round_index].tasks + rank.number]


def round_of(s: State, g: int) -> RoundRecord:
    """Return the current round of a rank."""
    rank = s.ranks[g]
    return s.rounds[s.runs[rank.run].rounds + rank.round_index]


def has_work(s: State, g: int, task: TaskRecord) -> bool:
    """Return whether rank g must compute or do CPU work on messages before it enters its next round."""
    if s.ranks[g].stream < 0:
        return task.seconds > 0
    return task.software > 0 or (task.seconds > 0 and round_of(s, g).unpacks < 0)


def opens_at(s: State, g: int) -> float:
    """Return when rank g's compute stream allows it to enter its current round, or to end the schedule [s]."""
    rank = s.ranks[g]
    last = rank.round_index == s.runs[rank.run].n_rounds
    part = codes.NONE if last else round_of(s, g).opens
    if part < 0 and not last:
        return s.now
    advance_stream(s, rank.stream, s.now, math.inf, codes.NONE)
    s.streams[rank.stream].beside = 1.0
    return stream_done_at(s, rank.stream) if last else selected_at(s, rank.stream, part)


def begin_part(s: State, g: int) -> None:
    """If rank g's round is the first to send a gradient part, apply that part's slowdown to its backward pass."""
    part = round_of(s, g).opens
    if part >= 0:
        stream = s.streams[s.ranks[g].stream]
        stream.beside = s.compute_slices[stream.compute_slices + part].beside


def unpack_part(s: State, g: int) -> None:
    """If rank g's round unpacks a part of the exchange, queue the unpacking kernels; the rank does not wait."""
    rank, part = s.ranks[g], round_of(s, g).unpacks
    if part >= 0:
        advance_stream(s, rank.stream, s.now, math.inf, codes.NONE)
        s.streams[rank.stream].beside = 1.0
        if task_of(s, g).seconds > 0:
            post_kernels(s, rank.stream, part, task_of(s, g).seconds)


def start_compute(s: State, g: int) -> None:
    """Start rank g's work before its round, on its compute stream if there is one, and schedule the end."""
    account_time(s, g)
    rank, one = s.ranks[g], round_of(s, g)
    rank.state = codes.COMPUTING
    seconds, end = task_of(s, g).seconds, s.now
    if one.worked >= 0:
        s.worked[one.worked + rank.number] = s.now
    if rank.stream < 0:
        end += seconds
    else:
        if one.unpacks >= 0:
            unpack_part(s, g)
        elif seconds > 0:
            advance_stream(s, rank.stream, s.now, math.inf, codes.NONE)
            end = queue_kernels(s, rank.stream, seconds)
            if one.worked >= 0:
                s.worked[one.worked + rank.number] = s.streams[rank.stream].began
                s.worked[one.worked + s.runs[rank.run].n_ranks + rank.number] = end
        end += task_of(s, g).software
    resume_at(s, end, g)


def enter_round(s: State, g: int) -> bool:
    """Post rank g's messages of its current round; return whether the round is already complete."""
    rank, task = s.ranks[g], task_of(s, g)
    rank.state = codes.IN_ROUND
    post_round(s, g, task)
    return is_round_done(s, g)


def is_round_done(s: State, g: int) -> bool:
    """Return whether rank g may leave its round now. If only CPU work of the library is left, schedule its end."""
    rank = s.ranks[g]
    if rank.leaves:
        return False
    if not may_advance(s, g) if s.runs_ahead else rank.missing > 0:
        return False
    if rank.send_complete > s.now:
        rank.leaves = True
        resume_at(s, rank.send_complete, g)
        return False
    return True


def may_advance(s: State, g: int) -> bool:
    """Return whether rank g may enter its next round, given how many of its earlier rounds are incomplete."""
    rank, run = s.ranks[g], s.runs[s.ranks[g].run]
    following = rank.round_index + 1
    coming = s.rounds[run.rounds + following]
    # A rank that only sends need not wait for earlier sends.
    only_sends = s.posts_ahead and coming.continues and s.tasks[coming.tasks + rank.number].receives == 0
    oldest = rank.round_index if rank.missing > (rank.unsent if only_sends else 0) else following
    early = rank.early
    while early >= 0:
        entry = s.early[early]
        if -entry.count > (entry.unsent if only_sends else 0):
            oldest = min(oldest, entry.round_index)
        early = entry.next
    return following - oldest <= coming.ahead


def finish_rank(s: State, g: int) -> None:
    """Record that rank g has finished its schedule; post a notice if it is the last rank to do so."""
    account_time(s, g)
    rank = s.ranks[g]
    rank.state, rank.finish = codes.OUTSIDE, s.now
    run = s.runs[rank.run]
    run.running -= 1
    if not run.running:
        push_notice(s, codes.DONE, rank.run)


def end_flow(s: State, f: int) -> None:
    """End the flow of message f; deliver the message unless some of its bytes wait in a receive queue."""
    flow = s.flows[f]
    detach_flow(s, f)
    if flow.port >= 0 and not flow.comes:
        leave_receive_queue(s, f)
    else:
        if flow.owner != codes.TRANSFER and flow.what == codes.DATA:
            release_next(s, f, s.messages[flow.message].connection)
        if flow.port >= 0 and finish_arrival(s, f):
            return
    s.n_moving -= 1
    flow.state = codes.ON_ITS_WAY
    wait = handling_time(s, f)
    if wait > 0:
        push_event(s, s.now + wait, codes.DELIVER, f)
    else:
        deliver_message(s, f)


def deliver_message(s: State, f: int) -> None:
    """Deliver message f to its receiver, whose round may then be complete, and free the flow."""
    flow = s.flows[f]
    count_assigned(s, f, -1)
    if s.adaptive and flow.what == codes.IS_READY and s.after > 0:
        # It loads its links no more while its rank has not noticed it.
        flow.what = codes.UNNOTICED
        push_event(s, s.now + s.after, codes.DELIVER, f)
        return
    if flow.owner == codes.TRANSFER:
        push_notice(s, codes.ARRIVED, flow.message)
    elif flow.what != codes.DATA:
        e, message = flow.owner, s.messages[flow.message]
        g = message.dst if flow.what == codes.ASKS else message.src
        s.runs[e].pending -= 1
        if receive_control(s, f) and s.ranks[g].state == codes.IN_ROUND and is_round_done(s, g):
            next_round(s, g)
        check_stalled(s, e)
        return
    else:
        receive_message(s, f)
        check_stalled(s, flow.owner)
    release_flow(s, f)


def own_link_event(s: State, f: int) -> None:
    """Process the departure of message f, or a capacity change of its host's own link."""
    flow = s.flows[f]
    e, g = flow.owner, s.messages[flow.message].src
    s.ranks[g].leaving -= 1
    if continue_sending(s, f):
        s.ranks[g].missing -= 1
        if is_round_done(s, g):
            next_round(s, g)
    check_stalled(s, e)


def receive_message(s: State, f: int) -> None:
    """Record the arrival of data message f; sender and receiver leave their rounds if these are complete now."""
    flow = s.flows[f]
    i, message, run = flow.round_index, s.messages[flow.message], s.runs[flow.owner]
    if run.arrived >= 0:
        s.arrived[run.arrived + number_of(s, run, flow.message, i)] = s.now
    run.pending -= 1
    for g in (message.src, message.dst):
        account_time(s, g)
        s.ranks[g].in_flight -= 1
    sender, software = s.ranks[message.src], 0.0
    if s.send_completion != codes.LEFT_HOST:
        software = software_of(s, flow.message)[1]
        if not needs_control(s, flow.message):
            s.connections[message.connection].taken -= message.payload
        elif s.send_completion == codes.ACKNOWLEDGED:
            send_control(s, message.dst, flow.message, i, codes.HAS_ARRIVED)
    if flow.holds:
        count_down(s, message.src, i, 1)
    if flow.holds and sender.state == codes.IN_ROUND and is_round_done(s, message.src):
        next_round(s, message.src)
    g = message.dst
    rank = s.ranks[g]
    if rank.round_index < i:
        entry = s.early[early_entry(s, g, i)]
        entry.count += 1
        entry.software += software
        return
    count_down(s, g, i, 0)
    if not has_entered(s, g, i):
        rank.early_software += software
        return
    occupy_rank(s, g, software, flow.message, i, codes.TAKING_IN)
    if rank.state == codes.IN_ROUND and is_round_done(s, g):
        next_round(s, g)


def fail_rank(s: State, g: int) -> None:
    """Stop rank g permanently; messages in flight from and to the rank vanish."""
    rank = s.ranks[g]
    e = rank.run
    run = s.runs[e]
    if run.running <= 0 or (rank.state == codes.OUTSIDE and rank.round_index == run.n_rounds):
        return
    account_time(s, g)
    if rank.state in (codes.GATED, codes.COMPUTING) or rank.round_index < 0 or rank.leaves:
        # The rank's pending event is withdrawn below.
        run.pending -= 1
    rank.state = codes.FAILED
    for f in range(s.n_flows):
        flow = s.flows[f]
        if flow.owner != e or flow.state not in (codes.ON_ITS_WAY, codes.BLOCKED, codes.FLOWING, codes.QUEUED):
            continue
        message = s.messages[flow.message]
        if g not in (message.src, message.dst):
            continue
        run.pending -= 1
        if flow.what == codes.DATA:
            for end in (message.src, message.dst):
                account_time(s, end)
                s.ranks[end].in_flight -= 1
        count_assigned(s, f, -1)
        # All messages of a connection vanish with either of its ranks.
        s.connections[message.connection].last, flow.behind = codes.NONE, codes.NONE
        if flow.state in (codes.ON_ITS_WAY, codes.QUEUED):
            flow.state = codes.VANISHED
            continue
        if flow.state == codes.FLOWING:
            stop_message(s, f)
            s.n_moving -= 1
        release_flow(s, f)
    withdraw_events(s, e)
    check_stalled(s, e)


def stop_message(s: State, f: int) -> None:
    """Remove the flowing message f from its links and from its receive queue."""
    detach_flow(s, f)
    if s.flows[f].port >= 0:
        leave_receive_queue(s, f)


def withdraw_events(s: State, e: int) -> None:
    """Remove events of vanished messages, and in run e (a schedule in flight) those of failed or finished ranks."""
    over = s.runs[e].running <= 0
    for place in range(s.n_events):
        event = s.event_queue[place]
        kind, row = event.kind, event.row
        if kind in (codes.INJECT, codes.JOIN, codes.DELIVER):
            if s.flows[row].state == codes.VANISHED:
                event.kind = codes.WITHDRAWN
                release_flow(s, row)
        elif kind == codes.LEFT:
            flow = s.flows[row]
            if flow.owner == e and (over or s.ranks[s.messages[flow.message].src].state == codes.FAILED):
                event.kind = codes.WITHDRAWN
                s.links[s.routes[flow.route].own].port_flow = codes.NONE
                while row >= 0:
                    row = finish_departure(s, row)
        elif (
            kind in (codes.RESUME, codes.FAIL)
            and s.ranks[row].run == e
            and (over or s.ranks[row].state == codes.FAILED)
        ):
            event.kind = codes.WITHDRAWN
    drop_withdrawn(s)


def check_stalled(s: State, e: int) -> None:
    """Post a notice if run e (a schedule in flight) is unfinished and has no pending event."""
    run = s.runs[e]
    if run.pending or run.running <= 0:
        return
    for g in range(run.ranks, run.ranks + run.n_ranks):
        rank = s.ranks[g]
        if rank.state == codes.IN_ROUND and 0 < rank.leaving == rank.missing:
            # The rank continues when its sends have left.
            return
    run.running = -run.running
    push_notice(s, codes.STALLED, e)


def push_notice(s: State, kind: int, row: int) -> None:
    """Post a notice for the caller of `advance`."""
    s.notices[s.n_notices].kind, s.notices[s.n_notices].row = kind, row
    s.n_notices += 1
