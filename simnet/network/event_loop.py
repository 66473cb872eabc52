"""The inner loop of the network: ranks in their rounds, messages in their latency, flows at max-min fair shares.

Between two events every rate is constant, so a flow's end is one division away. Events are: a rank enters, or has
computed; a message has its latency behind it, or has arrived; a flow ends; a link changes; traffic of others comes or
goes; a rank dies. What is due at one instant is worked off as one batch; then rates are settled: see `settle`.

Everything stands in a memory of two parts, x for floats and n for whole numbers: lists, which Python goes through at
its own pace, or arrays, for which the same functions are compiled (`simnet.base.compiling`), to the same results. A
thing is known by where its record begins, and 0 is none; ``x[f + FLOW_RATE]`` is the rate of the flow f. Letters: f a
flow or message under way, u its use of a link, l a link, w a way from host to host, c the course of a quantity in time,
e a run (a schedule under way), g one of its ranks, m one of its messages. `simnet.network.engine` lays the memory out.

References
----------
D. Bertsekas, R. Gallager, "Data Networks", 2nd ed., section 6.5.2: max-min fairness and progressive filling.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

# ruff: noqa: E741 - l is a link.

# What is due: an entry of the agenda is a thing, and one of these. The flow, rank, link or traffic of others is what
# it concerns.
ENTER, WORK, WORKED, LEAVE, JOIN, DELIVER, CHANGE, TOGGLE, DIE = range(9)

# What `advance` returns: nothing more is due; notices have come; nothing moves any more; room for early arrivals, or
# more of the weather, is needed; a link went down or came up.
WAITING, NOTICES, STUCK, GROW, EXTEND, OUTAGE = range(6)

# What notices say: a run is done; it can never be; the message of a transfer has arrived.
DONE, STALLED, ARRIVED = range(3)

# What a rank does: nothing yet or any more, waits for its gate, computes, has entered its round, or is dead.
OUTSIDE, GATED, COMPUTING, IN_ROUND, DEAD = range(5)

# What a flow is: free, a message before or behind its flow, a flow, or a message that has vanished.
FREE, ON_ITS_WAY, FLOWING, VANISHED = range(4)

# Who owns a flow if that is no run; what holds a flow's rate back if that is no link.
TRANSFER, BACKGROUND = -1, -2
NOTHING, ITSELF = -1, -2

# Where things stand. What is in x comes first, then what is in n: no place is used in both, so that compiled, both are
# the same memory. The first places: times and overheads; sizes, lists and options.
_, NOW, HORIZON, HOPE, SEND_OVERHEAD, RECEIVE_OVERHEAD, SEGMENT = range(7)
(
    N_DUE, N_ASKED, N_QUIET, N_ENDS, N_MOVING, N_NEW, N_DIRTY, N_CHOSEN, N_TOUCHED, N_STAMP, N_NOTICES, N_EARLY,
    N_FLOWS, N_OTHERS, N_CROWD, DUE, ENDS, NEW, DIRTY, NOTICE, CHOSEN, FIXED, MEMBERS, TOUCHED, SHARES, SHARERS, FLOWS,
    FREE_FLOW, FREE_EARLY, OTHERS, OTHERS_ON, CHANGING, WATCHING, ADAPTIVE, HOPS, N_FIRST,
) = range(7, 43)  # fmt: skip
# Due: when, in which order it was asked for, what, and for whom.
DUE_TIME, DUE_ORDER, DUE_KIND, DUE_ITEM, DUE_SIZE = range(5)
# Flow: bytes left, since when at which rate, the rate it takes at most, when it ends; what it is, and of whom.
FLOW_REMAINING, FLOW_RESIDUE, FLOW_RATE, FLOW_SINCE, FLOW_LIMIT, FLOW_END, FLOW_NEW_RATE = range(7)
(
    FLOW_WAY, FLOW_CHOSEN, FLOW_NEW_NECK, FLOW_NECK, FLOW_STATE, FLOW_PLACE, FLOW_IS_NEW, FLOW_OWNER, FLOW_ROUND,
    FLOW_MESSAGE, FLOW_NEXT, FLOW_HOPS, FLOW_SIZE,
) = range(7, 20)  # fmt: skip
# Use of a link by a flow, behind the record of the flow: the uses of the link before it and behind it.
USE_BEFORE, USE_BEHIND, USE_FLOW, USE_SIZE = range(4)
# Link: what it carries, and until when; what `settle` notes of it; who uses it.
LINK_CAPACITY, LINK_UNTIL, LINK_LEVEL, LINK_REST = range(4)
(
    LINK_COUNT, LINK_INSIDE, LINK_MEMBERS, LINK_TOUCHED, LINK_DIRTY, LINK_USERS, LINK_FIRST, LINK_CROWD,
    LINK_ASSIGNED, LINK_BANDWIDTHS, LINK_LATENCIES, LINK_SIZE,
) = range(4, 16)  # fmt: skip
# Course: the piece that was in force last, and the one after the last that is known.
COURSE_HERE, COURSE_LAST, COURSE_SIZE = range(3)
# Way: latency, if that is constant; what loss does; its links, as many as there is room for. Fan: ways to choose from.
WAY_LATENCY, WAY_SLOPE, WAY_BASE, WAY_SHARE, WAY_LENGTH, WAY_LINKS = range(6)
FAN_COUNT, FAN_WAYS = range(2)
# Traffic of others.
OTHER_LIMIT, OTHER_ON, OTHER_DUE, OTHER_FAN, OTHER_FLOW, OTHER_COURSE, OTHER_SIZE = range(7)
# Run: how many ranks and rounds it has, and where; ranks that are not done; what is still due for it; its messages.
(
    RUN_RANKS, RUN_ROUNDS, RUN_RUNNING, RUN_PENDING, RUN_FIRST_RANK, RUN_FIRST_ROUND, RUN_DELAYS, RUN_PICKS, RUN_SENT,
    RUN_ARRIVED, RUN_SIZE,
) = range(11)  # fmt: skip
# Rank of a run: its times; the round it is at, and messages of that which are not there yet.
RANK_START, RANK_SINCE, RANK_FINISH, RANK_COMMUNICATE, RANK_COMPUTE, RANK_WAIT = range(6)
RANK_RUN, RANK_NUMBER, RANK_AT, RANK_STATE, RANK_LEFT, RANK_IN_FLIGHT, RANK_EARLY, RANK_SIZE = range(6, 14)
# Round of a run; plan of a round (equal rounds share one); what a rank has to do in a plan; message of a plan.
ROUND_PLAN, ROUND_GATES, ROUND_OFFSET, ROUND_SIZE = range(4)
PLAN_SECONDS, PLAN_SHARES, PLAN_SIZE = range(3)
SHARE_FIRST, SHARE_SENDS, SHARE_DEGREE, SHARE_SIZE = range(4)
MESSAGE_NBYTES, MESSAGE_SRC, MESSAGE_DST, MESSAGE_FAN, MESSAGE_NUMBER, MESSAGE_SIZE = range(6)
# Arrivals at a rank that has not come to the round yet.
EARLY_ROUND, EARLY_COUNT, EARLY_NEXT, EARLY_SIZE = range(4)
# Notice.
NOTICE_KIND, NOTICE_ITEM, NOTICE_SIZE = range(3)

T = TypeVar("T")

# What is due first at an instant has an order that is by so much smaller.
_FIRST = 1 << 60

# Rates this near to each other, relatively, count as equal when it is checked who holds whom back.
_EQUAL = 1e-12
# What rounding leaves of a flow, relative to all its bytes, does not wait for a link to come back up.
_RESIDUE = 1e-14


class Numbers(Protocol[T]):
    """A list, or an array, of numbers."""

    def __getitem__(self, at: int) -> T:
        """Return a number."""

    def __setitem__(self, at: int, value: T) -> None:
        """Replace a number."""


class Memory(NamedTuple):
    """All that the loop knows.

    Parameters
    ----------
    x, n : list or ndarray
        Floats and whole numbers.
    times, values : ndarray of float64
        Pieces of all courses: from when on there is which value.
    """

    x: Numbers[float]
    n: Numbers[int]
    times: NDArray[np.float64]
    values: NDArray[np.float64]


def push(s: Memory, time: float, kind: int, item: int) -> None:
    """Put something on the agenda: a heap of four below each, by time and, at one time, in the order of asking."""
    x, n = s.x, s.n
    base, place = n[DUE], n[N_DUE]
    n[N_DUE] += 1
    n[N_ASKED] += 1
    order = n[N_ASKED]
    if kind in (CHANGE, TOGGLE):
        n[N_QUIET] += 1
    # At one instant links come first, then deaths.
    if kind == CHANGE:
        order -= 2 * _FIRST
    elif kind == DIE:
        order -= _FIRST
    while place > 0:
        above = base + ((place - 1) >> 2) * DUE_SIZE
        if x[above + DUE_TIME] < time or (x[above + DUE_TIME] == time and n[above + DUE_ORDER] < order):
            break
        copy_due(s, above, base + place * DUE_SIZE)
        place = (place - 1) >> 2
    at = base + place * DUE_SIZE
    x[at + DUE_TIME] = time
    n[at + DUE_ORDER], n[at + DUE_KIND], n[at + DUE_ITEM] = order, kind, item


def drop_first(s: Memory) -> None:
    """Take what is due first off the agenda."""
    n = s.n
    n[N_DUE] -= 1
    sink_due(s, 0, n[DUE] + n[N_DUE] * DUE_SIZE)


def sink_due(s: Memory, place: int, entry: int) -> None:
    """Put an entry at a place of the agenda, or below it where it belongs."""
    n = s.n
    base, size = n[DUE], n[N_DUE]
    while True:
        first = 4 * place + 1
        if first >= size:
            break
        below = first
        for other in range(first + 1, min(first + 4, size)):
            if is_before(s, base + other * DUE_SIZE, base + below * DUE_SIZE):
                below = other
        if not is_before(s, base + below * DUE_SIZE, entry):
            break
        copy_due(s, base + below * DUE_SIZE, base + place * DUE_SIZE)
        place = below
    copy_due(s, entry, base + place * DUE_SIZE)


def withdraw(s: Memory, e: int) -> None:
    """Take off the agenda what will not happen: messages that vanished, and what ranks of a run cannot do any more."""
    n = s.n
    over = n[e + RUN_RUNNING] <= 0
    base, kept = n[DUE], 0
    for place in range(n[N_DUE]):
        at = base + place * DUE_SIZE
        kind, item = n[at + DUE_KIND], n[at + DUE_ITEM]
        if kind in (JOIN, DELIVER):
            if n[item + FLOW_STATE] == VANISHED:
                free_flow(s, item)
                continue
        elif kind not in (CHANGE, TOGGLE) and n[item + RANK_RUN] == e and (over or n[item + RANK_STATE] == DEAD):
            continue
        copy_due(s, at, base + kept * DUE_SIZE)
        kept += 1
    n[N_DUE] = kept
    # Behind the last there is room for one more, from where entries sink to their places.
    spare = base + kept * DUE_SIZE
    for place in range((kept + 2) // 4, -1, -1):
        if place < kept:
            copy_due(s, base + place * DUE_SIZE, spare)
            sink_due(s, place, spare)


def is_before(s: Memory, a: int, b: int) -> bool:
    """Return whether what stands at `a` on the agenda is due before what stands at `b`."""
    x, n = s.x, s.n
    if x[a + DUE_TIME] == x[b + DUE_TIME]:
        return n[a + DUE_ORDER] < n[b + DUE_ORDER]
    return x[a + DUE_TIME] < x[b + DUE_TIME]


def copy_due(s: Memory, a: int, b: int) -> None:
    """Copy what stands at `a` on the agenda to `b`."""
    x, n = s.x, s.n
    x[b + DUE_TIME] = x[a + DUE_TIME]
    n[b + DUE_ORDER], n[b + DUE_KIND], n[b + DUE_ITEM] = n[a + DUE_ORDER], n[a + DUE_KIND], n[a + DUE_ITEM]


def ends_at(s: Memory, f: int, time: float) -> None:
    """Note when a flow will end, in a heap of four below each."""
    x, n = s.x, s.n
    heap = n[ENDS]
    here = n[f + FLOW_PLACE]
    if here < 0:
        here = n[N_ENDS]
        n[N_ENDS] += 1
    x[f + FLOW_END] = time
    while here > 0:
        above = n[heap + ((here - 1) >> 2)]
        if x[above + FLOW_END] <= time:
            break
        n[heap + here], n[above + FLOW_PLACE] = above, here
        here = (here - 1) >> 2
    while True:
        first = 4 * here + 1
        if first >= n[N_ENDS]:
            break
        below = first
        for other in range(first + 1, min(first + 4, n[N_ENDS])):
            if x[n[heap + other] + FLOW_END] < x[n[heap + below] + FLOW_END]:
                below = other
        if time <= x[n[heap + below] + FLOW_END]:
            break
        n[heap + here] = n[heap + below]
        n[n[heap + here] + FLOW_PLACE] = here
        here = below
    n[heap + here], n[f + FLOW_PLACE] = f, here


def never_ends(s: Memory, f: int) -> None:
    """Take back when a flow will end, if that has been noted."""
    x, n = s.x, s.n
    here = n[f + FLOW_PLACE]
    if here < 0:
        return
    n[f + FLOW_PLACE] = -1
    n[N_ENDS] -= 1
    if here < n[N_ENDS]:
        last = n[n[ENDS] + n[N_ENDS]]
        n[last + FLOW_PLACE] = here
        ends_at(s, last, x[last + FLOW_END])


def value_at(s: Memory, c: int, t: float) -> float:
    """Return the value of a course at time t, and remember which piece that is."""
    times, n = s.times, s.n
    low, high = n[c + COURSE_HERE], n[c + COURSE_LAST]
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
    n[c + COURSE_HERE] = low
    return float(s.values[low])


def changes_at(s: Memory, c: int) -> float:
    """Return until when the value last asked for holds, as far as that is known."""
    return float(s.times[s.n[c + COURSE_HERE] + 1])


def look_up(s: Memory, l: int, now: float) -> None:
    """See to it that the capacity of a link is the one in force, and that its next change is on the agenda."""
    x, n = s.x, s.n
    if x[l + LINK_UNTIL] > now:
        return
    course = n[l + LINK_BANDWIDTHS]
    x[l + LINK_CAPACITY] = value_at(s, course, now)
    x[l + LINK_UNTIL] = changes_at(s, course)
    if x[l + LINK_UNTIL] < math.inf:
        push(s, x[l + LINK_UNTIL], CHANGE, l)


def look_up_all(s: Memory, first: int, count: int, now: float) -> None:
    """Look up all links, whose records stand in a row."""
    for l in range(first, first + count * LINK_SIZE, LINK_SIZE):
        look_up(s, l, now)


def latency_of(s: Memory, w: int, t: float) -> float:
    """Return the latency of a way at time t."""
    x, n = s.x, s.n
    if not n[CHANGING]:
        return x[w + WAY_LATENCY]
    total = 0.0
    for at in range(w + WAY_LINKS, w + WAY_LINKS + n[w + WAY_LENGTH]):
        l = n[at]
        total += value_at(s, n[l + LINK_LATENCIES], t)
    return total


def attach(s: Memory, f: int, now: float) -> bool:
    """Let a flow use its links; return whether it shares any with others."""
    n = s.n
    shares = False
    w, u = n[f + FLOW_WAY], f + FLOW_SIZE
    for at in range(w + WAY_LINKS, w + WAY_LINKS + n[w + WAY_LENGTH]):
        l = n[at]
        first = n[l + LINK_FIRST]
        n[u + USE_BEFORE], n[u + USE_BEHIND] = 0, first
        if first:
            n[first + USE_BEFORE] = u
            shares = True
        else:
            look_up(s, l, now)
        n[l + LINK_FIRST] = u
        n[l + LINK_USERS] += 1
        u += USE_SIZE
    return shares


def detach(s: Memory, f: int) -> None:
    """Take a flow off its links; `settle` gives what it leaves to the others."""
    n = s.n
    w, u = n[f + FLOW_WAY], f + FLOW_SIZE
    for at in range(w + WAY_LINKS, w + WAY_LINKS + n[w + WAY_LENGTH]):
        l = n[at]
        before, behind = n[u + USE_BEFORE], n[u + USE_BEHIND]
        if before:
            n[before + USE_BEHIND] = behind
        else:
            n[l + LINK_FIRST] = behind
        if behind:
            n[behind + USE_BEFORE] = before
        n[l + LINK_USERS] -= 1
        if n[l + LINK_USERS]:
            soil(s, l)
        u += USE_SIZE
    never_ends(s, f)


def soil(s: Memory, l: int) -> None:
    """Note that something about a link in use has changed."""
    n = s.n
    if not n[l + LINK_DIRTY]:
        n[l + LINK_DIRTY] = 1
        n[n[DIRTY] + n[N_DIRTY]] = l
        n[N_DIRTY] += 1


def room(s: Memory, l: int) -> float:
    """Return what a link carries when as many flows use it as do."""
    x, n = s.x, s.n
    if not n[l + LINK_CROWD]:
        return x[l + LINK_CAPACITY]
    return x[l + LINK_CAPACITY] * x[n[l + LINK_CROWD] + min(n[l + LINK_USERS], n[N_CROWD] - 1)]


def start_flow(s: Memory, f: int, now: float) -> None:
    """Let the bytes of a message, or traffic of others, flow."""
    x, n = s.x, s.n
    n[f + FLOW_STATE], n[f + FLOW_NECK], n[f + FLOW_PLACE] = FLOWING, NOTHING, -1
    x[f + FLOW_RATE], x[f + FLOW_SINCE] = 0.0, now
    w = n[f + FLOW_WAY]
    first, last = w + WAY_LINKS, w + WAY_LINKS + n[w + WAY_LENGTH]
    if attach(s, f, now) or x[f + FLOW_LIMIT] < math.inf:
        for at in range(first, last):
            soil(s, n[at])
        renew(s, f)
        return
    # Alone on all its links.
    neck, rate = NOTHING, math.inf
    for at in range(first, last):
        if room(s, n[at]) < rate:
            neck, rate = n[at], room(s, n[at])
    give(s, f, rate, neck, now)


def start_all(s: Memory, first: int, count: int, size: int, now: float) -> None:
    """Start flows whose records stand in a row, `size` apart, and leave their rates to `settle`."""
    for f in range(first, first + count * size, size):
        start_flow(s, f, now)
        renew(s, f)


def renew(s: Memory, f: int) -> None:
    """Have a flow solved at the next occasion."""
    n = s.n
    if not n[f + FLOW_IS_NEW]:
        n[f + FLOW_IS_NEW] = 1
        n[n[NEW] + n[N_NEW]] = f
        n[N_NEW] += 1


def free_all(s: Memory, first: int, count: int, size: int) -> None:
    """Give flows back whose records stand in a row, `size` apart; the first will be taken first."""
    for f in range(first + (count - 1) * size, first - 1, -size):
        s.n[f + FLOW_PLACE], s.n[f + FLOW_IS_NEW] = -1, 0
        free_flow(s, f)


def give(s: Memory, f: int, rate: float, neck: int, now: float) -> None:
    """Give a flow its rate and what holds it back."""
    x, n = s.x, s.n
    n[f + FLOW_NECK] = neck
    old = x[f + FLOW_RATE]
    if rate == old:
        return
    if old > 0:
        x[f + FLOW_REMAINING] -= old * (now - x[f + FLOW_SINCE])
    x[f + FLOW_RATE], x[f + FLOW_SINCE] = rate, now
    end = math.inf
    if x[f + FLOW_REMAINING] <= x[f + FLOW_RESIDUE]:
        end = now
    elif rate > 0 and x[f + FLOW_REMAINING] < math.inf:
        end = now + x[f + FLOW_REMAINING] / rate
    if end < math.inf:
        ends_at(s, f, end)
    else:
        never_ends(s, f)


def settle(s: Memory, now: float) -> None:
    """Give every flow whose max-min fair rate has changed its new one.

    Rates are max-min fair if and only if no link carries more than it can and each flow has a bottleneck: a full link
    on which no flow is faster (or a limit of its own). So the flows to solve again are found by need. First those that
    are new, that had their bottleneck on a link that changed, or that use a link which is now too full. They are solved
    while all others keep their rates. Then it is checked on their links whether one of the others is faster than it
    may be, or has lost its bottleneck; if so, it is solved again with them. At the end everybody has a bottleneck. In
    most cases that takes a handful of flows, however many are connected through shared links.
    """
    x, n = s.x, s.n
    n[N_STAMP] += 1
    n[N_CHOSEN], n[N_TOUCHED] = 0, 0
    for at in range(n[NEW], n[NEW] + n[N_NEW]):
        f = n[at]
        n[f + FLOW_IS_NEW] = 0
        if n[f + FLOW_STATE] == FLOWING:
            choose(s, f)
    n[N_NEW] = 0
    for at in range(n[DIRTY], n[DIRTY] + n[N_DIRTY]):
        l = n[at]
        n[l + LINK_DIRTY] = 0
        if n[l + LINK_TOUCHED] == n[N_STAMP] and n[l + LINK_INSIDE] == n[l + LINK_USERS]:
            continue
        carried = 0.0
        u = n[l + LINK_FIRST]
        while u:
            f = n[u + USE_FLOW]
            carried += x[f + FLOW_RATE]
            if n[f + FLOW_NECK] == l:
                choose(s, f)
            u = n[u + USE_BEHIND]
        if carried > room(s, l) * (1 + _EQUAL):
            choose_all(s, l)
    n[N_DIRTY] = 0
    solved = -1
    while solved != n[N_CHOSEN]:
        solved = n[N_CHOSEN]
        solve(s)
        for at in range(n[TOUCHED], n[TOUCHED] + n[N_TOUCHED]):
            if n[n[at] + LINK_INSIDE] < n[n[at] + LINK_USERS]:
                check(s, n[at])
    for at in range(n[CHOSEN], n[CHOSEN] + n[N_CHOSEN]):
        f = n[at]
        give(s, f, x[f + FLOW_NEW_RATE], n[f + FLOW_NEW_NECK], now)


def choose(s: Memory, f: int) -> None:
    """Let a flow be among those that are solved again."""
    n = s.n
    if n[f + FLOW_CHOSEN] == n[N_STAMP]:
        return
    n[f + FLOW_CHOSEN] = n[N_STAMP]
    n[n[CHOSEN] + n[N_CHOSEN]] = f
    n[N_CHOSEN] += 1
    w = n[f + FLOW_WAY]
    for at in range(w + WAY_LINKS, w + WAY_LINKS + n[w + WAY_LENGTH]):
        l = n[at]
        if n[l + LINK_TOUCHED] != n[N_STAMP]:
            n[l + LINK_TOUCHED], n[l + LINK_INSIDE] = n[N_STAMP], 0
            n[n[TOUCHED] + n[N_TOUCHED]] = l
            n[N_TOUCHED] += 1
        n[l + LINK_INSIDE] += 1


def choose_all(s: Memory, l: int) -> None:
    """Let all flows on a link be among those that are solved again."""
    u = s.n[l + LINK_FIRST]
    while u:
        choose(s, s.n[u + USE_FLOW])
        u = s.n[u + USE_BEHIND]


def check(s: Memory, l: int) -> None:
    """Choose those others on a link whom the rates just found hold back, or let go."""
    x, n = s.x, s.n
    full = x[l + LINK_REST] <= _EQUAL * room(s, l)
    top = 0.0
    u = n[l + LINK_FIRST]
    while u:
        if n[n[u + USE_FLOW] + FLOW_CHOSEN] == n[N_STAMP]:
            top = max(top, x[n[u + USE_FLOW] + FLOW_NEW_RATE])
        u = n[u + USE_BEHIND]
    u = n[l + LINK_FIRST]
    while u:
        f = n[u + USE_FLOW]
        if n[f + FLOW_CHOSEN] != n[N_STAMP]:
            rate = x[f + FLOW_RATE]
            if rate > x[l + LINK_LEVEL] * (1 + _EQUAL) or (
                n[f + FLOW_NECK] == l and (not full or top > rate * (1 + _EQUAL))
            ):
                choose(s, f)
        u = n[u + USE_BEHIND]


def solve(s: Memory) -> None:
    """Find the max-min fair rates of the flows chosen, while all others keep theirs: progressive filling.

    The link with the smallest share per flow without a rate is a bottleneck; its flows get that share, and what they
    take is withdrawn from the other links on their ways.
    """
    x, n = s.x, s.n
    shares, sharers, members = n[SHARES], n[SHARERS], n[MEMBERS]
    size = 0
    for at in range(n[CHOSEN], n[CHOSEN] + n[N_CHOSEN]):
        if x[n[at] + FLOW_LIMIT] < math.inf:
            # A limit is a link of the flow's own.
            x[shares + size], n[sharers + size] = x[n[at] + FLOW_LIMIT], n[CHOSEN] - at - 1
            size += 1
    for at in range(n[TOUCHED], n[TOUCHED] + n[N_TOUCHED]):
        l = n[at]
        rest = room(s, l)
        if n[l + LINK_INSIDE] < n[l + LINK_USERS]:
            u = n[l + LINK_FIRST]
            while u:
                if n[n[u + USE_FLOW] + FLOW_CHOSEN] != n[N_STAMP]:
                    rest -= x[n[u + USE_FLOW] + FLOW_RATE]
                u = n[u + USE_BEHIND]
        x[l + LINK_REST], x[l + LINK_LEVEL] = rest, math.inf
        n[l + LINK_COUNT], n[l + LINK_MEMBERS] = 0, members
        members += n[l + LINK_INSIDE]
        x[shares + size], n[sharers + size] = max(rest, 0.0) / n[l + LINK_INSIDE], l
        size += 1
    for at in range(n[CHOSEN], n[CHOSEN] + n[N_CHOSEN]):
        n[at + n[FIXED] - n[CHOSEN]] = 0
        w = n[n[at] + FLOW_WAY]
        for hop in range(w + WAY_LINKS, w + WAY_LINKS + n[w + WAY_LENGTH]):
            l = n[hop]
            n[n[l + LINK_MEMBERS] + n[l + LINK_COUNT]] = at - n[CHOSEN]
            n[l + LINK_COUNT] += 1
    for place in range((size - 2) // 4, -1, -1):
        sink(s, place, size, x[shares + place], n[sharers + place])
    left = n[N_CHOSEN]
    while left > 0:
        share, l = x[shares], n[sharers]
        if l < 0:
            if not n[n[FIXED] - l - 1]:
                fix(s, -l - 1, share, ITSELF)
                left -= 1
        elif n[l + LINK_COUNT]:
            current = max(x[l + LINK_REST], 0.0) / n[l + LINK_COUNT]
            if current > share:
                sink(s, 0, size, current, l)
                continue
            x[l + LINK_LEVEL] = current
            for at in range(n[l + LINK_MEMBERS], n[l + LINK_MEMBERS] + n[l + LINK_INSIDE]):
                if not n[n[FIXED] + n[at]]:
                    fix(s, n[at], current, l)
                    left -= 1
        size -= 1
        sink(s, 0, size, x[shares + size], n[sharers + size])


def fix(s: Memory, number: int, rate: float, neck: int) -> None:
    """Settle on the rate of one of the flows chosen, and withdraw it from its links."""
    x, n = s.x, s.n
    n[n[FIXED] + number] = 1
    f = n[n[CHOSEN] + number]
    x[f + FLOW_NEW_RATE], n[f + FLOW_NEW_NECK] = rate, neck
    w = n[f + FLOW_WAY]
    for at in range(w + WAY_LINKS, w + WAY_LINKS + n[w + WAY_LENGTH]):
        l = n[at]
        x[l + LINK_REST] -= rate
        n[l + LINK_COUNT] -= 1


def sink(s: Memory, place: int, size: int, rate: float, of: int) -> None:
    """Put a share at a place of the heap of shares, or below it where it belongs. Each has four below it."""
    x, n = s.x, s.n
    shares, sharers = n[SHARES], n[SHARERS]
    while True:
        first = 4 * place + 1
        if first >= size:
            break
        below, least = first, x[shares + first]
        for other in range(first + 1, min(first + 4, size)):
            if x[shares + other] < least:
                below, least = other, x[shares + other]
        if rate <= least:
            break
        x[shares + place], n[sharers + place] = least, n[sharers + below]
        place = below
    x[shares + place], n[sharers + place] = rate, of


def take_flow(s: Memory) -> int:
    """Return a free flow."""
    n = s.n
    f = n[FREE_FLOW]
    while n[f + FLOW_HOPS] < n[HOPS]:
        # It is from before there were ways so long.
        f = n[f + FLOW_NEXT]
    n[FREE_FLOW] = n[f + FLOW_NEXT]
    return f


def free_flow(s: Memory, f: int) -> None:
    """Give a flow back."""
    n = s.n
    n[f + FLOW_STATE] = FREE
    n[f + FLOW_NEXT] = n[FREE_FLOW]
    n[FREE_FLOW] = f


def depart(s: Memory, owner: int, fan: int, pick: int, nbytes: float, delay: float, now: float) -> int:
    """Let a message leave: overhead, latency and jitter first, then its bytes as a flow; return the flow.

    Of the ways in its fan it takes number `pick`; with adaptive routing, the one whose links have the fewest messages
    under way for their capacity.
    """
    x, n = s.x, s.n
    f = take_flow(s)
    w = n[fan + FAN_WAYS + pick % n[fan + FAN_COUNT]]
    if n[ADAPTIVE]:
        w = least_loaded(s, fan, now)
        assign(s, w, 1)
    leaves = now + x[SEND_OVERHEAD]
    latency = latency_of(s, w, leaves)
    arrives = leaves + (latency + delay)
    x[f + FLOW_LIMIT] = limit_of(s, w, latency)
    nbytes = nbytes / x[w + WAY_SHARE]
    n[f + FLOW_STATE], n[f + FLOW_OWNER], n[f + FLOW_WAY] = ON_ITS_WAY, owner, w
    x[f + FLOW_REMAINING], x[f + FLOW_RESIDUE] = nbytes, _RESIDUE * nbytes
    if nbytes > 0 and n[w + WAY_LENGTH]:
        push(s, arrives, JOIN, f)
    else:
        push(s, arrives + x[RECEIVE_OVERHEAD], DELIVER, f)
    return f


def limit_of(s: Memory, w: int, latency: float) -> float:
    """Return the rate that loss leaves to a message on a way that has this latency."""
    x = s.x
    cost = x[w + WAY_SLOPE] * (2 * latency) + x[w + WAY_BASE]
    return x[SEGMENT] / cost if cost > 0 else math.inf


def least_loaded(s: Memory, fan: int, now: float) -> int:
    """Return the first way of a fan whose most loaded link is the least loaded."""
    x, n = s.x, s.n
    best, least = n[fan + FAN_WAYS], math.inf
    for choice in range(fan + FAN_WAYS, fan + FAN_WAYS + n[fan + FAN_COUNT]):
        w, most = n[choice], 0.0
        for at in range(w + WAY_LINKS, w + WAY_LINKS + n[w + WAY_LENGTH]):
            l = n[at]
            look_up(s, l, now)
            if x[l + LINK_CAPACITY] > 0:
                most = max(most, (n[l + LINK_ASSIGNED] + 1) / x[l + LINK_CAPACITY])
            else:
                most = math.inf
        if most < least:
            best, least = w, most
    return best


def assign(s: Memory, w: int, change: int) -> None:
    """Count messages under way on the links of a way."""
    n = s.n
    for at in range(w + WAY_LINKS, w + WAY_LINKS + n[w + WAY_LENGTH]):
        n[n[at] + LINK_ASSIGNED] += change


def join(s: Memory, f: int, now: float) -> None:
    """Let the bytes of a message flow, that has its latency behind it."""
    n = s.n
    if n[N_OTHERS] and not n[OTHERS_ON]:
        n[OTHERS_ON] = 1
        for other in range(n[N_OTHERS]):
            turn(s, n[OTHERS] + other * OTHER_SIZE, now)
    n[N_MOVING] += 1
    start_flow(s, f, now)


def end_flow(s: Memory, f: int, now: float) -> None:
    """Take note that the last byte of a message is there."""
    x, n = s.x, s.n
    detach(s, f)
    n[N_MOVING] -= 1
    n[f + FLOW_STATE] = ON_ITS_WAY
    if x[RECEIVE_OVERHEAD] > 0:
        push(s, now + x[RECEIVE_OVERHEAD], DELIVER, f)
    else:
        deliver(s, f, now)


def deliver(s: Memory, f: int, now: float) -> None:
    """Take note that a message has arrived: its ranks may be done with their round."""
    n = s.n
    owner = n[f + FLOW_OWNER]
    if n[ADAPTIVE]:
        assign(s, n[f + FLOW_WAY], -1)
    if owner == TRANSFER:
        notify(s, ARRIVED, n[f + FLOW_MESSAGE])
    else:
        delivered(s, owner, n[f + FLOW_ROUND], n[f + FLOW_MESSAGE], now)
        look_after(s, owner)
    free_flow(s, f)


def notify(s: Memory, kind: int, item: int) -> None:
    """Leave a notice for who called `advance`."""
    n = s.n
    at = n[NOTICE] + n[N_NOTICES] * NOTICE_SIZE
    n[at + NOTICE_KIND], n[at + NOTICE_ITEM] = kind, item
    n[N_NOTICES] += 1


# Traffic of others takes part only while there is somebody to share with. Whether it is on is a function of time alone,
# so nothing is lost by leaving it out in between.


def stop_others(s: Memory) -> None:
    """Leave the traffic of others out."""
    n = s.n
    n[OTHERS_ON] = 0
    for other in range(n[N_OTHERS]):
        stop_other(s, n[OTHERS] + other * OTHER_SIZE)


def stop_other(s: Memory, other: int) -> None:
    """Take a flow of others off the network, if it is there."""
    n = s.n
    if n[other + OTHER_FLOW]:
        detach(s, n[other + OTHER_FLOW])
        free_flow(s, n[other + OTHER_FLOW])
        n[other + OTHER_FLOW] = 0


def turn(s: Memory, other: int, now: float) -> None:
    """Turn a flow of others on or off, as it is at this time."""
    x, n = s.x, s.n
    if x[other + OTHER_DUE] <= now:
        x[other + OTHER_ON] = value_at(s, n[other + OTHER_COURSE], now)
        x[other + OTHER_DUE] = changes_at(s, n[other + OTHER_COURSE])
        if x[other + OTHER_DUE] < math.inf:
            push(s, x[other + OTHER_DUE], TOGGLE, other)
    if x[other + OTHER_ON] <= 0:
        stop_other(s, other)
    elif not n[other + OTHER_FLOW]:
        f = take_flow(s)
        n[other + OTHER_FLOW] = f
        n[f + FLOW_OWNER], n[f + FLOW_WAY] = BACKGROUND, n[n[other + OTHER_FAN] + FAN_WAYS]
        x[f + FLOW_LIMIT], x[f + FLOW_REMAINING], x[f + FLOW_RESIDUE] = x[other + OTHER_LIMIT], math.inf, 0.0
        start_flow(s, f, now)


def start_run(s: Memory, e: int) -> None:
    """Let every rank of a run enter at its start."""
    for rank in range(s.n[e + RUN_RANKS]):
        g = s.n[e + RUN_FIRST_RANK] + rank * RANK_SIZE
        later(s, s.x[g + RANK_START], ENTER, g)


def later(s: Memory, time: float, kind: int, g: int) -> None:
    """Put something that a rank will do on the agenda."""
    s.n[s.n[g + RANK_RUN] + RUN_PENDING] += 1
    push(s, time, kind, g)


def account(s: Memory, g: int, now: float) -> None:
    """Book the time since a rank's last event under what it has been doing."""
    x, n = s.x, s.n
    elapsed = now - x[g + RANK_SINCE]
    state = n[g + RANK_STATE]
    if elapsed <= 0 or state in (OUTSIDE, DEAD):
        return
    x[g + RANK_SINCE] = now
    if state == COMPUTING:
        x[g + RANK_COMPUTE] += elapsed
    elif n[g + RANK_IN_FLIGHT]:
        x[g + RANK_COMMUNICATE] += elapsed
    else:
        x[g + RANK_WAIT] += elapsed


def next_round(s: Memory, g: int, now: float) -> None:
    """Take a rank out of its round and into the next one in which it has something to do."""
    x, n = s.x, s.n
    account(s, g, now)
    e, number = n[g + RANK_RUN], n[g + RANK_NUMBER]
    while True:
        n[g + RANK_AT] += 1
        at = n[e + RUN_FIRST_ROUND] + n[g + RANK_AT] * ROUND_SIZE
        gate = x[n[at + ROUND_GATES] + number] if n[at + ROUND_GATES] else now
        if n[g + RANK_AT] == n[e + RUN_ROUNDS]:
            n[g + RANK_STATE] = GATED
            if gate > now:
                later(s, gate, LEAVE, g)
            else:
                leave(s, g, now)
            return
        seconds = seconds_of(s, g, n[at + ROUND_PLAN])
        degree = n[n[n[at + ROUND_PLAN] + PLAN_SHARES] + number * SHARE_SIZE + SHARE_DEGREE]
        if gate <= now and not degree and not seconds:
            continue
        n[g + RANK_LEFT] = degree - early_at(s, g, n[g + RANK_AT])
        if gate > now:
            n[g + RANK_STATE] = GATED
            later(s, gate, WORK, g)
            return
        if seconds > 0:
            work(s, g, now)
            return
        if not enter(s, g, now):
            return


def seconds_of(s: Memory, g: int, plan: int) -> float:
    """Return how long a rank computes before it enters a round of this plan."""
    block = s.n[plan + PLAN_SECONDS]
    return s.x[block + s.n[g + RANK_NUMBER]] if block else 0.0


def work(s: Memory, g: int, now: float) -> None:
    """Let a rank compute before it enters its round."""
    n = s.n
    account(s, g, now)
    n[g + RANK_STATE] = COMPUTING
    plan = n[n[n[g + RANK_RUN] + RUN_FIRST_ROUND] + n[g + RANK_AT] * ROUND_SIZE + ROUND_PLAN]
    later(s, now + seconds_of(s, g, plan), WORKED, g)


def enter(s: Memory, g: int, now: float) -> bool:
    """Start a rank's messages of its round; return whether it is done with the round already."""
    x, n = s.x, s.n
    n[g + RANK_STATE] = IN_ROUND
    e = n[g + RANK_RUN]
    at = n[e + RUN_FIRST_ROUND] + n[g + RANK_AT] * ROUND_SIZE
    share = n[n[at + ROUND_PLAN] + PLAN_SHARES] + n[g + RANK_NUMBER] * SHARE_SIZE
    m = n[share + SHARE_FIRST]
    for _ in range(n[share + SHARE_SENDS]):
        dst, number = n[m + MESSAGE_DST], n[at + ROUND_OFFSET] + n[m + MESSAGE_NUMBER]
        if n[dst + RANK_STATE] != DEAD:
            account(s, dst, now)
            n[g + RANK_IN_FLIGHT] += 1
            n[dst + RANK_IN_FLIGHT] += 1
            n[e + RUN_PENDING] += 1
            if n[e + RUN_SENT]:
                x[n[e + RUN_SENT] + number] = now
            delay = x[n[e + RUN_DELAYS] + number] if n[e + RUN_DELAYS] else 0.0
            pick = n[n[e + RUN_PICKS] + number] if n[e + RUN_PICKS] else 0
            f = depart(s, e, n[m + MESSAGE_FAN], pick, x[m + MESSAGE_NBYTES], delay, now)
            n[f + FLOW_ROUND], n[f + FLOW_MESSAGE] = n[g + RANK_AT], m
        m += MESSAGE_SIZE
    return n[g + RANK_LEFT] == 0


def leave(s: Memory, g: int, now: float) -> None:
    """Let a rank be done with the schedule."""
    x, n = s.x, s.n
    account(s, g, now)
    n[g + RANK_STATE] = OUTSIDE
    x[g + RANK_FINISH] = now
    e = n[g + RANK_RUN]
    n[e + RUN_RUNNING] -= 1
    if not n[e + RUN_RUNNING]:
        notify(s, DONE, e)


def delivered(s: Memory, e: int, i: int, m: int, now: float) -> None:
    """Book the arrival of a message of round i; its ranks may be done with their round."""
    x, n = s.x, s.n
    if n[e + RUN_ARRIVED]:
        offset = n[n[e + RUN_FIRST_ROUND] + i * ROUND_SIZE + ROUND_OFFSET]
        x[n[e + RUN_ARRIVED] + offset + n[m + MESSAGE_NUMBER]] = now
    n[e + RUN_PENDING] -= 1
    for g in (n[m + MESSAGE_SRC], n[m + MESSAGE_DST]):
        account(s, g, now)
        n[g + RANK_IN_FLIGHT] -= 1
        if n[g + RANK_AT] == i:
            n[g + RANK_LEFT] -= 1
        else:
            arrive_early(s, g, i)
    for g in (n[m + MESSAGE_SRC], n[m + MESSAGE_DST]):
        if n[g + RANK_AT] == i and n[g + RANK_LEFT] == 0 and n[g + RANK_STATE] == IN_ROUND:
            next_round(s, g, now)


def arrive_early(s: Memory, g: int, i: int) -> None:
    """Count an arrival at a rank that has not come to round i yet."""
    n = s.n
    early = n[g + RANK_EARLY]
    while early and n[early + EARLY_ROUND] != i:
        early = n[early + EARLY_NEXT]
    if not early:
        early = n[FREE_EARLY]
        n[FREE_EARLY] = n[early + EARLY_NEXT]
        n[N_EARLY] -= 1
        n[early + EARLY_ROUND], n[early + EARLY_COUNT], n[early + EARLY_NEXT] = i, 0, n[g + RANK_EARLY]
        n[g + RANK_EARLY] = early
    n[early + EARLY_COUNT] += 1


def early_at(s: Memory, g: int, i: int) -> int:
    """Return how many messages of round i have arrived at a rank before it, and forget them."""
    n = s.n
    before, early = 0, n[g + RANK_EARLY]
    while early and n[early + EARLY_ROUND] != i:
        before, early = early, n[early + EARLY_NEXT]
    if not early:
        return 0
    if before:
        n[before + EARLY_NEXT] = n[early + EARLY_NEXT]
    else:
        n[g + RANK_EARLY] = n[early + EARLY_NEXT]
    n[early + EARLY_NEXT] = n[FREE_EARLY]
    n[FREE_EARLY] = early
    n[N_EARLY] += 1
    return n[early + EARLY_COUNT]


def die(s: Memory, g: int, now: float) -> None:
    """Let a rank stop for good: messages under way from it and to it vanish."""
    n = s.n
    e = n[g + RANK_RUN]
    if n[e + RUN_RUNNING] <= 0 or (n[g + RANK_STATE] == OUTSIDE and n[g + RANK_AT] == n[e + RUN_ROUNDS]):
        return
    account(s, g, now)
    if n[g + RANK_STATE] == GATED or n[g + RANK_STATE] == COMPUTING or n[g + RANK_AT] < 0:
        # What it has on the agenda will not happen.
        n[e + RUN_PENDING] -= 1
    n[g + RANK_STATE] = DEAD
    for at in range(n[FLOWS], n[FLOWS] + n[N_FLOWS]):
        f = n[at]
        if n[f + FLOW_OWNER] != e or n[f + FLOW_STATE] == FREE:
            continue
        src, dst = n[n[f + FLOW_MESSAGE] + MESSAGE_SRC], n[n[f + FLOW_MESSAGE] + MESSAGE_DST]
        if src != g and dst != g:
            continue
        n[e + RUN_PENDING] -= 1
        for end in (src, dst):
            account(s, end, now)
            n[end + RANK_IN_FLIGHT] -= 1
        if n[ADAPTIVE]:
            assign(s, n[f + FLOW_WAY], -1)
        if n[f + FLOW_STATE] == FLOWING:
            detach(s, f)
            n[N_MOVING] -= 1
            free_flow(s, f)
        else:
            n[f + FLOW_STATE] = VANISHED
    withdraw(s, e)


def forget(s: Memory, e: int) -> None:
    """Forget a run that is over, whether it is done or not."""
    n = s.n
    if n[e + RUN_RUNNING] != 0:
        for rank in range(n[e + RUN_RANKS]):
            g = n[e + RUN_FIRST_RANK] + rank * RANK_SIZE
            while n[g + RANK_EARLY]:
                early_at(s, g, n[n[g + RANK_EARLY] + EARLY_ROUND])
    n[e + RUN_RUNNING] = 0
    withdraw(s, e)


def act(s: Memory, g: int, kind: int, now: float) -> None:
    """Let a rank do what it has on the agenda."""
    n = s.n
    e = n[g + RANK_RUN]
    if kind != DIE:
        n[e + RUN_PENDING] -= 1
    if kind == DIE:
        die(s, g, now)
    elif kind == ENTER:
        next_round(s, g, now)
    elif kind == WORK:
        work(s, g, now)
    elif kind == LEAVE:
        leave(s, g, now)
    else:
        account(s, g, now)
        if enter(s, g, now):
            next_round(s, g, now)
    look_after(s, e)


def look_after(s: Memory, e: int) -> None:
    """Give notice of a run that can do nothing more by itself and is not done."""
    n = s.n
    if not n[e + RUN_PENDING] and n[e + RUN_RUNNING] > 0:
        n[e + RUN_RUNNING] = -n[e + RUN_RUNNING]
        notify(s, STALLED, e)


def change(s: Memory, l: int, now: float) -> bool:
    """Let the capacity of a link change; return whether it went down or came up, and somebody wants to know."""
    x, n = s.x, s.n
    if x[l + LINK_UNTIL] > now or not (n[l + LINK_USERS] or n[WATCHING]):
        return False
    before = x[l + LINK_CAPACITY]
    look_up(s, l, now)
    if n[l + LINK_USERS]:
        soil(s, l)
    return n[WATCHING] > 0 and (before > 0) != (x[l + LINK_CAPACITY] > 0)


def changes(s: Memory) -> bool:
    """Let all links change that are due to; return as `change` does, for any of them."""
    x, n = s.x, s.n
    told = False
    while n[N_DUE] and n[n[DUE] + DUE_KIND] == CHANGE and x[n[DUE] + DUE_TIME] <= x[NOW]:
        l = n[n[DUE] + DUE_ITEM]
        drop_first(s)
        n[N_QUIET] -= 1
        if change(s, l, x[NOW]):
            told = True
    return told


def next_due(s: Memory) -> float:
    """Return when the next thing is due; infinity if nothing is."""
    x, n = s.x, s.n
    due = x[n[DUE] + DUE_TIME] if n[N_DUE] else math.inf
    if n[N_ENDS]:
        due = min(due, x[n[n[ENDS]] + FLOW_END])
    return due


def advance(s: Memory, now: float, until: float) -> int:
    """Work off what is due by `now`, and what is due before `until`, unless somebody has to act before.

    Returns
    -------
    int
        `WAITING`, `NOTICES`, `STUCK`, `GROW`, `EXTEND` or `OUTAGE`.
    """
    x, n = s.x, s.n
    while True:
        if n[N_EARLY] < 2:
            return GROW
        due = next_due(s)
        if due <= x[NOW]:
            first = n[DUE]
            if n[N_DUE] and x[first + DUE_TIME] <= x[NOW]:
                kind, item = n[first + DUE_KIND], n[first + DUE_ITEM]
                if kind == CHANGE:
                    if changes(s):
                        return OUTAGE
                    continue
                drop_first(s)
                if kind == JOIN:
                    join(s, item, x[NOW])
                elif kind == DELIVER:
                    deliver(s, item, x[NOW])
                elif kind == TOGGLE:
                    n[N_QUIET] -= 1
                    if n[OTHERS_ON]:
                        turn(s, item, x[NOW])
                else:
                    act(s, item, kind, x[NOW])
            else:
                end_flow(s, n[n[ENDS]], x[NOW])
            continue
        if n[OTHERS_ON] and not n[N_MOVING]:
            stop_others(s)
        if n[N_DIRTY] or n[N_NEW]:
            settle(s, x[NOW])
            continue
        if n[N_NOTICES]:
            return NOTICES
        if n[N_MOVING] and not n[N_ENDS] and n[N_DUE] == n[N_QUIET] and x[NOW] >= x[HOPE]:
            return STUCK
        if not (due <= now or due < until):
            return WAITING
        if due + x[SEND_OVERHEAD] >= x[HORIZON]:
            return EXTEND
        x[NOW] = due
