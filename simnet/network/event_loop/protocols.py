"""How a transport stack sends: what is posted when a rank enters a round, and the words that libraries exchange.

A message that has to wait for a word of its receiver leaves when that is there; see `simnet.network.stack`. What a rank
does for messages, its software, takes place one after another. A rank whose sends need only leave has no such library,
and is let go by its host's own link: `simnet.network.event_loop.ports`.
"""

from __future__ import annotations

import math

from simnet.network.event_loop.agenda import push
from simnet.network.event_loop.messages import address, depart, keep_in_order
from simnet.network.event_loop.ports import hand_over, send_off
from simnet.network.event_loop.records import (
    ACKNOWLEDGED,
    ANSWERS,
    ASKING,
    ASKS,
    DATA,
    FAILED,
    HAND_OVER,
    HAS_ARRIVED,
    HEARD,
    IN_ROUND,
    IS_READY,
    LEFT_HOST,
    READY,
    REQUEST,
    SENDING,
    SPEAKING,
    TAKING_IN,
    Run,
    State,
    Task,
)  # fmt: skip
from simnet.network.event_loop.sharing import free_flow
from simnet.network.event_loop.states import account


def post(s: State, g: int, task: Task) -> None:
    """Let a rank that enters a round announce what it waits for, and send what need not wait."""
    rank = s.ranks[g]
    i = rank.round_index
    sends_first = s.rounds[s.runs[rank.run].rounds + i].sends_first
    if s.lets_go == READY and not sends_first:
        say_ready(s, g, task)
    for m in range(task.messages, task.messages + task.sends):
        if s.ranks[s.messages[m].dst].state == FAILED:
            rank.missing += 1
            rank.unsent += 1
        elif not needs_word(s, m):
            send(s, g, m, i)
        else:
            rank.missing += 1
            rank.unsent += 1
            if s.lets_go == ACKNOWLEDGED:
                send(s, g, m, i)
            elif s.lets_go == REQUEST:
                speak(s, g, m, i, ASKS)
    # Words that came before the rank did: sends leave as they were posted, others are answered as they came.
    if s.lets_go == READY:
        for m in range(task.messages, task.messages + task.sends):
            f = take_word(s, g, i, m)
            if f >= 0:
                answer(s, g, f)
    if s.lets_go == READY and sends_first:
        say_ready(s, g, task)
    f = take_word(s, g, i, -1)
    while f >= 0:
        answer(s, g, f)
        f = take_word(s, g, i, -1)
    if rank.early_software > 0:
        occupy(s, g, rank.early_software, first_early(s, task, i), i, TAKING_IN)
        rank.early_software = 0.0


def first_early(s: State, task: Task, i: int) -> int:
    """Return the first message of round i that has arrived before its rank entered that, if arrivals are kept."""
    for at in range(task.incoming, task.incoming + task.receives):
        m = s.incoming[at]
        run = s.runs[s.ranks[s.messages[m].dst].run]
        if run.arrived < 0 or not math.isnan(s.arrived[run.arrived + number_of(s, run, m, i)]):
            return m
    return -1


def number_of(s: State, run: Run, m: int, i: int) -> int:
    """Return the number of a message of round i among all messages of a run."""
    return s.rounds[run.rounds + i].offset + s.messages[m].number


def say_ready(s: State, g: int, task: Task) -> None:
    """Tell those that a rank receives messages from in its round that it is ready."""
    for at in range(task.incoming, task.incoming + task.receives):
        m = s.incoming[at]
        if needs_word(s, m):
            speak(s, g, m, s.ranks[g].round_index, IS_READY)


def take_word(s: State, g: int, i: int, m: int) -> int:
    """Take the first word that waits for a rank in round i, about message m or, if that is -1, any; -1 if none does."""
    rank = s.ranks[g]
    f, before = rank.words, -1
    while f >= 0 and (s.flows[f].round_index != i or (m >= 0 and s.flows[f].message != m)):
        f, before = s.flows[f].next, f
    if f >= 0:
        if before >= 0:
            s.flows[before].next = s.flows[f].next
        else:
            rank.words = s.flows[f].next
    return f


def needs_word(s: State, m: int) -> bool:
    """Return whether a send waits for a word of the receiver before it lets its rank go."""
    return s.lets_go >= ACKNOWLEDGED and s.messages[m].payload > s.eager_limit


def occupy(s: State, g: int, seconds: float, m: int, i: int, what: int) -> float:
    """Have a rank work for a message, after what it has to do for others; return when it is done with that.

    Parameters
    ----------
    s : State
        It has the rank.
    g : int
        Which one.
    seconds : float
        How long it takes.
    m, i : int
        The message, and its round.
    what : int
        What it does: `ASKING`, `SPEAKING`, `SENDING` or `TAKING_IN`.
    """
    rank = s.ranks[g]
    begin = max(rank.let_go, s.now)
    if seconds <= 0:
        return begin
    rank.let_go = begin + seconds
    run = s.runs[rank.run]
    if run.software >= 0:
        at = run.software + 2 * (4 * number_of(s, run, m, i) + what)
        s.software[at], s.software[at + 1] = begin, rank.let_go
    return rank.let_go


def software_before(s: State, m: int) -> float:
    """Return the seconds that a message takes at its sender; none where a word lets it leave by itself."""
    if s.lets_go == READY and needs_word(s, m):
        return 0.0
    return s.before + s.before_byte * s.messages[m].payload


def software_after(s: State, m: int) -> float:
    """Return the seconds that a message takes at its receiver."""
    payload = s.messages[m].payload
    after = s.after + s.after_byte * payload
    if s.lets_go == READY and needs_word(s, m):
        after += s.before + s.before_byte * payload
    return after


def send(s: State, g: int, m: int, i: int) -> None:
    """Send a message of round i, once its software is done."""
    message, rank = s.messages[m], s.ranks[g]
    run = s.runs[rank.run]
    number = number_of(s, run, m, i)
    account(s, g)
    account(s, message.dst)
    rank.in_flight += 1
    s.ranks[message.dst].in_flight += 1
    if run.sent >= 0:
        s.sent[run.sent + number] = s.now
    delay = s.delays[run.delays + number] if run.delays >= 0 else 0.0
    pick = s.picks[run.picks + number] if run.picks >= 0 else 0
    f = address(s, rank.run, message.route, message.candidates, pick, message.n_bytes, delay)
    flow = s.flows[f]
    flow.round_index, flow.message, flow.what = i, m, DATA
    keep_in_order(s, f, message.connection)
    if s.lets_go == LEFT_HOST:
        run.pending += 1
        depart(s, f, s.now + s.send_overhead)
        send_off(s, g, f)
        return
    if not needs_word(s, m):
        connection = s.connections[message.connection]
        connection.taken += message.payload
        if connection.taken > s.buffer:
            flow.holds = True
            rank.missing += 1
            rank.unsent += 1
    leave_at(s, f, occupy(s, g, software_before(s, m), m, i, SENDING))


def speak(s: State, g: int, m: int, i: int, what: int) -> None:
    """Send a word about a message of round i: to its receiver, or from it to its sender."""
    message, rank = s.messages[m], s.ranks[g]
    route = message.back if message.dst == g else message.route
    f = address(s, rank.run, route, 1, 0, s.word, 0.0)
    flow = s.flows[f]
    flow.round_index, flow.message, flow.what = i, m, what
    if what == HAS_ARRIVED:
        leave_at(s, f, s.now)
    else:
        seconds = s.before * s.rounds[s.runs[rank.run].rounds + i].words
        leave_at(s, f, occupy(s, g, seconds, m, i, ASKING if what == ASKS else SPEAKING))


def leave_at(s: State, f: int, time: float) -> None:
    """Hand a message over when its rank is done with it."""
    s.runs[s.flows[f].owner].pending += 1
    if time > s.now:
        push(s, time, HAND_OVER, f)
    else:
        hand_over(s, f)


def hear(s: State, f: int) -> bool:
    """Take note of a word that has arrived; return whether its rank had come to the round.

    A word that comes before waits for the rank.
    """
    flow = s.flows[f]
    message = s.messages[flow.message]
    g = message.dst if flow.what == ASKS else message.src
    rank = s.ranks[g]
    if rank.state == FAILED:
        free_flow(s, f)
        return False
    if has_entered(s, g, flow.round_index):
        answer(s, g, f)
        return True
    flow.state, flow.next = HEARD, -1
    last = rank.words
    if last < 0:
        rank.words = f
        return False
    while s.flows[last].next >= 0:
        last = s.flows[last].next
    s.flows[last].next = f
    return False


def has_entered(s: State, g: int, i: int) -> bool:
    """Return whether a rank has entered round i."""
    rank = s.ranks[g]
    return rank.round_index > i or (rank.round_index == i and rank.state == IN_ROUND)


def answer(s: State, g: int, f: int) -> None:
    """Do what a word is for, and free its flow."""
    flow = s.flows[f]
    m, i, what = flow.message, flow.round_index, flow.what
    free_flow(s, f)
    if what == ASKS:
        speak(s, g, m, i, ANSWERS)
        return
    if what != HAS_ARRIVED:
        send(s, g, m, i)
    one_less(s, g, i, 1)


def one_less(s: State, g: int, i: int, sent: int) -> None:
    """Count down what a rank waits for in round i, which may be open behind its own; `sent` is 1 for a send, or 0."""
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
        early_in(s, g, i)


def early_in(s: State, g: int, i: int) -> int:
    """Return how many messages of round i have arrived at a rank before it, and forget them."""
    rank = s.ranks[g]
    before, early = -1, rank.early
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
    """Return the entry of round i among those that a rank is not in, a new one if there is none."""
    early = s.ranks[g].early
    while early >= 0 and s.early[early].round_index != i:
        early = s.early[early].next
    if early < 0:
        early = s.free_early
        s.free_early = s.early[early].next
        s.n_early -= 1
        entry = s.early[early]
        entry.round_index, entry.count, entry.unsent = i, 0, 0
        entry.software, entry.next = 0.0, s.ranks[g].early
        s.ranks[g].early = early
    return early
