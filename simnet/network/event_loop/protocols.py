"""Protocols of transport stacks: sends and receives of ranks that enter a round, and control messages.

A message that needs a control message of its receiver leaves when that is there (`simnet.network.stack`). A rank's
software work for messages takes place one after another. With stack ``ideal`` there is none of this.
"""

from __future__ import annotations

import math

from simnet.network.event_loop import codes
from simnet.network.event_loop.accounting import account_time
from simnet.network.event_loop.egress_queue import send_shared
from simnet.network.event_loop.event_queue import push_event
from simnet.network.event_loop.messages import create_message, depart_message, keep_in_order
from simnet.network.event_loop.records import RunRecord, State, TaskRecord  # fmt: skip
from simnet.network.event_loop.sharing import free_flow


def post_round(s: State, g: int, task: TaskRecord) -> None:
    """Post rank g's receives and sends of its current round. Some sends wait for a control message."""
    rank = s.ranks[g]
    i = rank.round_index
    sends_first = s.rounds[s.runs[rank.run].rounds + i].sends_first
    if s.send_completion == codes.READY and not sends_first:
        send_ready(s, g, task)
    for m in range(task.messages, task.messages + task.sends):
        if s.ranks[s.messages[m].dst].state == codes.FAILED:
            rank.missing += 1
            rank.unsent += 1
        elif not needs_control(s, m):
            send_message(s, g, m, i)
        else:
            rank.missing += 1
            rank.unsent += 1
            if s.send_completion == codes.ACKNOWLEDGED:
                send_message(s, g, m, i)
            elif s.send_completion == codes.REQUEST:
                send_control(s, g, m, i, codes.ASKS)
    # Early control messages: sends start in the order they were posted, others are answered in order of arrival.
    if s.send_completion == codes.READY:
        for m in range(task.messages, task.messages + task.sends):
            f = take_control(s, g, i, m)
            if f >= 0:
                handle_control(s, g, f)
    if s.send_completion == codes.READY and sends_first:
        send_ready(s, g, task)
    f = take_control(s, g, i, codes.NONE)
    while f >= 0:
        handle_control(s, g, f)
        f = take_control(s, g, i, codes.NONE)
    if rank.early_software > 0:
        occupy_rank(s, g, rank.early_software, first_early_message(s, task, i), i, codes.TAKING_IN)
        rank.early_software = 0.0


def first_early_message(s: State, task: TaskRecord, i: int) -> int:
    """Return the first incoming message of round i that has arrived or whose arrival is not recorded; -1 if none."""
    for at in range(task.incoming, task.incoming + task.receives):
        m = s.incoming[at]
        run = s.runs[s.ranks[s.messages[m].dst].run]
        if run.arrived < 0 or not math.isnan(s.arrived[run.arrived + number_of(s, run, m, i)]):
            return m
    return codes.NONE


def number_of(s: State, run: RunRecord, m: int, i: int) -> int:
    """Return the index of message m of round i among all messages of its schedule."""
    return s.rounds[run.rounds + i].offset + s.messages[m].number


def send_ready(s: State, g: int, task: TaskRecord) -> None:
    """Send a ready message from rank g to the sender of each incoming message that needs a control message."""
    for at in range(task.incoming, task.incoming + task.receives):
        m = s.incoming[at]
        if needs_control(s, m):
            send_control(s, g, m, s.ranks[g].round_index, codes.IS_READY)


def take_control(s: State, g: int, i: int, m: int) -> int:
    """Remove and return rank g's first stored control message for round i (about message m, if m >= 0); -1 if none."""
    rank = s.ranks[g]
    f, before = rank.controls, codes.NONE
    while f >= 0 and (s.flows[f].round_index != i or (m >= 0 and s.flows[f].message != m)):
        f, before = s.flows[f].next, f
    if f >= 0:
        if before >= 0:
            s.flows[before].next = s.flows[f].next
        else:
            rank.controls = s.flows[f].next
    return f


def needs_control(s: State, m: int) -> bool:
    """Return whether the send of message m needs a control message from the receiver to start or to complete."""
    return s.send_completion >= codes.ACKNOWLEDGED and s.messages[m].payload > s.eager_limit


def occupy_rank(s: State, g: int, seconds: float, m: int, i: int, what: int) -> float:
    """Reserve rank g's CPU, after its earlier work, to handle message m of round i; return when the work ends [s].

    `what` is `ASKING`, `SPEAKING`, `SENDING` or `TAKING_IN`.
    """
    rank = s.ranks[g]
    begin = max(rank.send_complete, s.now)
    if seconds <= 0:
        return begin
    rank.send_complete = begin + seconds
    run = s.runs[rank.run]
    if run.software >= 0:
        at = run.software + 2 * (4 * number_of(s, run, m, i) + what)
        s.software[at], s.software[at + 1] = begin, rank.send_complete
    return rank.send_complete


def software_of(s: State, m: int) -> tuple[float, float]:
    """Return the CPU time that message m takes in the communication library at its sender and its receiver [s]."""
    payload = s.messages[m].payload
    return s.before + s.before_byte * payload, s.after + s.after_byte * payload


def send_message(s: State, g: int, m: int, i: int) -> None:
    """Send message m of round i from rank g, whose CPU has finished the library's work for the send."""
    message, rank = s.messages[m], s.ranks[g]
    run = s.runs[rank.run]
    number = number_of(s, run, m, i)
    account_time(s, g)
    account_time(s, message.dst)
    rank.in_flight += 1
    s.ranks[message.dst].in_flight += 1
    if run.sent >= 0:
        s.sent[run.sent + number] = s.now
    delay = s.delays[run.delays + number] if run.delays >= 0 else 0.0
    pick = s.picks[run.picks + number] if run.picks >= 0 else 0
    f = create_message(s, rank.run, message.route, message.candidates, pick, message.n_bytes, delay)
    flow = s.flows[f]
    flow.round_index, flow.message, flow.what = i, m, codes.DATA
    keep_in_order(s, f, message.connection)
    if s.send_completion == codes.LEFT_HOST:
        run.pending += 1
        depart_message(s, f, s.now + s.send_overhead)
        send_shared(s, g, f)
        return
    if not needs_control(s, m):
        connection = s.connections[message.connection]
        connection.taken += message.payload
        if connection.taken > s.buffer:
            flow.holds = True
            rank.missing += 1
            rank.unsent += 1
    inject_at(s, f, occupy_rank(s, g, software_of(s, m)[0], m, i, codes.SENDING))


def send_control(s: State, g: int, m: int, i: int, what: int) -> None:
    """Send a control message of kind `what` about message m of round i from rank g to the other rank of message m."""
    message, rank = s.messages[m], s.ranks[g]
    route = message.back if message.dst == g else message.route
    f = create_message(s, rank.run, route, 1, 0, s.control_bytes, 0.0)
    flow = s.flows[f]
    flow.round_index, flow.message, flow.what = i, m, what
    if what == codes.HAS_ARRIVED:
        inject_at(s, f, s.now)
    else:
        seconds = s.before * s.rounds[s.runs[rank.run].rounds + i].control_factor
        inject_at(s, f, occupy_rank(s, g, seconds, m, i, codes.ASKING if what == codes.ASKS else codes.SPEAKING))


def inject_at(s: State, f: int, time: float) -> None:
    """Schedule the entry of message f into the network at `time` [s], when the CPU work for it ends."""
    s.runs[s.flows[f].owner].pending += 1
    push_event(s, time, codes.INJECT, f)


def receive_control(s: State, f: int) -> bool:
    """Handle control message f, or store it until its rank enters the round; return whether the message was handled.

    Early control messages wait for the rank.
    """
    flow = s.flows[f]
    message = s.messages[flow.message]
    g = message.dst if flow.what == codes.ASKS else message.src
    rank = s.ranks[g]
    if rank.state == codes.FAILED:
        free_flow(s, f)
        return False
    if has_entered(s, g, flow.round_index):
        handle_control(s, g, f)
        return True
    flow.state, flow.next = codes.EARLY_CONTROL, codes.NONE
    last = rank.controls
    if last < 0:
        rank.controls = f
        return False
    while s.flows[last].next >= 0:
        last = s.flows[last].next
    s.flows[last].next = f
    return False


def has_entered(s: State, g: int, i: int) -> bool:
    """Return whether rank g has entered round i."""
    rank = s.ranks[g]
    return rank.round_index > i or (rank.round_index == i and rank.state == codes.IN_ROUND)


def handle_control(s: State, g: int, f: int) -> None:
    """Handle control message f and free its flow: reply, send the message that it concerns, or complete a send."""
    flow = s.flows[f]
    m, i, what = flow.message, flow.round_index, flow.what
    free_flow(s, f)
    if what == codes.ASKS:
        send_control(s, g, m, i, codes.ANSWERS)
        return
    if what != codes.HAS_ARRIVED:
        send_message(s, g, m, i)
    count_down(s, g, i, 1)


def count_down(s: State, g: int, i: int, sent: int) -> None:
    """Decrement the number of messages that rank g waits for in round i; `sent` is 1 for a send, 0 for a receive."""
    rank = s.ranks[g]
    if rank.round_index == i:
        rank.missing -= 1
        rank.unsent -= sent
        return
    early = rank.early
    while s.early[early].round_index != i:
        early = s.early[early].next
    s.early[early].count += 1
    s.early[early].unsent -= sent
    if s.early[early].count == 0:
        take_early(s, g, i)


def take_early(s: State, g: int, i: int) -> int:
    """Remove rank g's record of early arrivals for round i; return how many messages arrived early."""
    rank = s.ranks[g]
    before, early = codes.NONE, rank.early
    while early >= 0 and s.early[early].round_index != i:
        before, early = early, s.early[early].next
    if early < 0:
        return 0
    if before >= 0:
        s.early[before].next = s.early[early].next
    else:
        rank.early = s.early[early].next
    s.early[early].next = s.free_early
    s.free_early = early
    s.n_early += 1
    rank.early_software += s.early[early].software
    return s.early[early].count


def early_entry(s: State, g: int, i: int) -> int:
    """Return the index of rank g's `EarlyArrival` for round i, which is created if it is missing."""
    early = s.ranks[g].early
    while early >= 0 and s.early[early].round_index != i:
        early = s.early[early].next
    if early < 0:
        early = s.free_early
        s.free_early = s.early[early].next
        s.n_early -= 1
        entry = s.early[early]
        entry.round_index, entry.count = i, 0
        entry.software, entry.next = 0.0, s.ranks[g].early
        s.ranks[g].early = early
    return early
