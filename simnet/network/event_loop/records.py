"""What the event loop knows: a record for each thing, with named fields, and tables of them.

A thing is known by its row in the table of its kind, and -1 is none: ``s.flows[f].rate`` is the rate of the flow f. The
tables of a `State` are lists of the classes here, which Python goes through at its own pace, or arrays of the same
fields, for which the same functions are compiled (`simnet.base.compiled_records`), to the same results. It is long, as
all tables that are compiled together are described in one place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray

# What is due, and for whom: the rank, the flow, the link or the background flow of that row.
ENTER, WORK, WORKED, LEAVE, LET_GO, HAND_OVER, JOIN, DELIVER, LEFT, SERVE, CHANGE, TOGGLE, FAIL = range(13)

# What `advance` returns: nothing more is due; notices have come; nothing moves any more; room for messages under way or
# early arrivals, or more of the weather, is needed; a link went down or came up.
WAITING, NOTICES, STUCK, GROW, EXTEND, OUTAGE = range(6)

# What notices say: a run is done; it can never be; the message of a transfer has arrived.
DONE, STALLED, ARRIVED = range(3)

# What a rank does: nothing yet or any more, waits for its gate, computes, has entered its round, or has failed.
OUTSIDE, GATED, COMPUTING, IN_ROUND, FAILED = range(5)

# What a flow is: free, a message before or behind its flow, one whose connection is not through with the one before it,
# a flow, one that has vanished, one that has arrived or vanished while its host's own link is not through with it, one
# that waits for that link, or a word heard before its rank came to the round.
FREE, ON_ITS_WAY, HELD, FLOWING, VANISHED, GONE, QUEUED, HEARD = range(8)

# What a flow carries: the bytes of a message, or a word about it: that its receiver is ready, that its sender asks to
# send it, the answer to that, or that it has arrived.
DATA, IS_READY, ASKS, ANSWERS, HAS_ARRIVED = range(5)

# What software a rank does for a message: it asks to send it, speaks a word of the receiver, sends it, takes it in.
ASKING, SPEAKING, SENDING, TAKING_IN = range(4)

# When a send lets its rank go; see `simnet.network.stack`.
LEFT_HOST, TAKEN, ACKNOWLEDGED, READY, REQUEST = range(5)

# Who owns a flow if that is no run; the bottleneck of a flow if that is no link, or not known yet.
TRANSFER, BACKGROUND = -1, -2
NOTHING, ITSELF, UNSOLVED = -1, -2, -3

Row: TypeAlias = Annotated[int, np.int32]
"""A row, or a number of rows, in four bytes, for what there are many of. Functions read these and write none."""


@dataclass(slots=True)
class Due:
    """An entry of the agenda: when, in which order it was asked for, what is due, and for which row."""

    time: float = 0.0
    order: int = 0
    kind: int = 0
    row: int = -1


@dataclass(slots=True)
class Flow:
    """A message under way, or background traffic that is on.

    Bytes `remaining` at the time `since`, of which up to `residue` are rounding; the rate since then, its `weight` on
    shared links, the `limit` that it does not exceed, its `bottleneck`, and the `place` of its end among all. `unsent`
    bytes had to leave its host's own link at the time `counted`, and leave at the rate `pace` since, if that link may
    change meanwhile or the message go another way. On its connection, the flow `behind` waits for it, and it `waits`
    itself. It carries `what`, and `holds` its sender until it has arrived if the system has no room for it. `next` is
    the next free flow, or the one behind it in a queue. It shares the links of its route from the place `first` to the
    one before `stop`, without those that it has `passed`. `lasts` are the seconds that its host's own link is at it,
    where messages queue; infinity where that link changes meanwhile. It is in the queue of the link `port`, if of any:
    it `comes` there, or all of it has come and `remaining` are before its end.
    """

    # What `settle` looks at first.
    rate: float = 0.0
    stamp: int = 0
    bottleneck: int = NOTHING
    first: int = 0
    stop: int = 0
    weight: float = 1.0
    new_rate: float = 0.0
    new_bottleneck: int = NOTHING
    limit: float = 0.0
    remaining: float = 0.0
    since: float = 0.0
    residue: float = 0.0
    place: int = -1
    port: int = -1
    state: int = FREE
    route: int = -1
    owner: int = TRANSFER
    round_index: int = 0
    message: int = 0
    what: int = DATA
    behind: int = -1
    next: int = -1
    passed: int = 0
    unsent: float = 0.0
    counted: float = 0.0
    pace: float = 0.0
    delay: float = 0.0
    joined: float = 0.0
    whole: float = 0.0
    lasts: float = math.inf
    comes: bool = False
    waits: bool = False
    holds: bool = False
    is_new: bool = False


@dataclass(slots=True)
class End:
    """When a flow will end."""

    time: float = 0.0
    flow: int = -1


@dataclass(slots=True)
class Use:
    """The use of a link by a flow, in a list of all uses of that link."""

    before: int = -1
    behind: int = -1
    flow: int = -1


@dataclass(slots=True)
class Link:
    """A link: its capacity and until when that holds, and who uses it.

    `assigned` counts the messages under way on routes over it, for adaptive routing. Of what ranks send over it as
    their own link, `port_rank` is who did so last, `port_free` when the link is through with that, and `port_flow`
    stands for messages whose end the link's next change decides. Where they leave one after another, those from
    `port_first` to `port_last` wait, and `port_rest` bytes of the one before them are left at the link's next change.
    If it `queues`, messages to its host pass it in the order in which their bytes come: `n_coming` come at the rate
    `coming` altogether, and `backlog` bytes of what has come were left at the time `counted`. All has come of those
    from `first_passing` on.
    """

    capacity: float = 0.0
    until: float = math.inf
    users: int = 0
    first_use: int = -1
    assigned: int = 0
    crowd: int = -1
    bandwidths: int = -1
    latencies: int = -1
    port_free: float = 0.0
    port_rank: int = -1
    port_rest: float = 0.0
    port_flow: int = -1
    port_first: int = -1
    port_last: int = -1
    coming: float = 0.0
    backlog: float = 0.0
    counted: float = 0.0
    n_coming: int = 0
    first_passing: int = -1
    queues: bool = False
    is_dirty: bool = False


@dataclass(slots=True)
class Filling:
    """What `settle` notes of a link, at its call number `stamp`.

    Of the flows that are solved, `chosen` use it, which have the sum of weights `weight`; they stand from `members` on,
    and `unsolved` of them have no rate yet. The others leave `open` to them, have levels up to `top`, and some of them
    are `held` back by the link; so it was when `counted` flows were chosen. What is left is `rest`, and the `level` is
    that of those whom the link holds back, infinity if there are none.
    """

    stamp: int = 0
    chosen: int = 0
    weight: float = 0.0
    rest: float = 0.0
    unsolved: int = 0
    members: int = 0
    level: float = 0.0
    open: float = 0.0
    top: float = 0.0
    counted: int = 0
    held: bool = False


@dataclass(slots=True)
class Share:
    """An entry of the heap of `solve`: a level, and the link that offers it, or -1 - f for the limit of the flow f."""

    level: float = 0.0
    of: int = 0


@dataclass(slots=True)
class Timeline:
    """A quantity as a function of time: the segment that was in force last, and the one after the last known."""

    here: int = 0
    last: int = 0


@dataclass(slots=True)
class Route:
    """A route: its latency if that is constant, where its links stand, its sender's own link, and loss there, or -1."""

    latency: float = 0.0
    begin: Row = 0
    end: Row = 0
    own: Row = -1
    loss: Row = -1


@dataclass(slots=True)
class Loss:
    """What packet loss does to messages on a route: see `simnet.network.transport.Limits`."""

    slope: float = 0.0
    fixed: float = 0.0
    payload: float = 1.0


@dataclass(slots=True)
class Background:
    """Background traffic: whether it is on (> 0), until when, its limit and weight, and its flow while that exists."""

    limit: float = 0.0
    weight: float = 1.0
    on: float = 0.0
    until: float = -math.inf
    route: int = -1
    flow: int = -1
    timeline: int = -1


@dataclass(slots=True)
class Run:
    """A schedule under way: where its ranks, rounds and columns by message stand, or -1.

    `running` counts the ranks that are not done, negative once it is stalled; `pending` what is still due for it. It
    `fails` if one of its ranks is to. From `software` on it is noted from when to when ranks do software for messages.
    """

    n_ranks: int = 0
    n_rounds: int = 0
    running: int = 0
    pending: int = 0
    ranks: int = -1
    rounds: int = -1
    delays: int = -1
    picks: int = -1
    sent: int = -1
    arrived: int = -1
    software: int = -1
    fails: bool = False


@dataclass(slots=True)
class Rank:
    """A rank of a run: its times, the round it is in, and what of that it waits for.

    Messages that have not arrived are `missing`, sends that wait for something, which are `unsent`, and own links that
    it waits for to let its messages go, of which so many are `leaving`. It stays until the time `let_go` at least, and
    `leaves` once that is on the agenda. Flows from `words` on are words for rounds to come. What it computes beside its
    rounds is on its `stream`, or -1.
    """

    start: float = 0.0
    since: float = 0.0
    finish: float = 0.0
    communicate: float = 0.0
    compute: float = 0.0
    wait: float = 0.0
    run: int = -1
    number: int = 0
    stream: int = -1
    round_index: int = -1
    state: int = OUTSIDE
    missing: int = 0
    leaving: int = 0
    unsent: int = 0
    let_go: float = -math.inf
    in_flight: int = 0
    early: int = -1
    words: int = -1
    early_software: float = 0.0
    leaves: bool = False


@dataclass(slots=True)
class Round:
    """A round of a run: the tasks of its ranks, gates that they wait for or -1, and the number of its first message.

    Ranks enter it with up to `ahead` rounds before it open; if it `sends_first`, their words, of `words` times their
    software, come after what they send. It `continues` the phase of the one before. From `worked` on it is noted when
    ranks begin to compute and, with a stream, end. It `opens` a part, or is the work that `unpacks` one. -1 is none.
    """

    tasks: int = -1
    gates: int = -1
    worked: int = -1
    offset: int = 0
    opens: int = -1
    unpacks: int = -1
    ahead: int = 0
    continues: bool = False
    sends_first: bool = False
    words: int = 1


@dataclass(slots=True)
class Task:
    """What a rank does in a round: computes, sends messages that stand in a row, receives those of a row of `incoming`.

    Equal rounds share their tasks and messages. Of a rank with a stream, `seconds` queue there, and `software` of the
    library comes behind; of others it is in the seconds.
    """

    seconds: float = 0.0
    software: float = 0.0
    messages: Row = -1
    sends: Row = 0
    incoming: Row = -1
    receives: Row = 0


@dataclass(slots=True)
class Stream:
    """The compute stream of a rank: slices of the backward pass, and kernels that queue; up to the time `reached`.

    A slice `runs`, with so much `left`, or the next begins, of so many `parts`, whose `portions` stand in a row.
    Kernels are `queued` and `served` in seconds, all together; the first of the queue has been served `since`, if the
    stream `serves`, and that before it `began`. Of parts, so many have been `selected`, and of those of which something
    was `posted` to unpack them, so many `unpacked`. Slices and kernels run `aside` from each other, slower by two
    factors while both do, or in turn; slices are also slower by the factor `beside` of the part whose messages are
    under way. All slices and the kernels behind them were `computed` at that time. Slices ran for `sliced` seconds;
    kernels for `busy` seconds since then, of which so many are `booked`.
    """

    reached: float = 0.0
    left: float = 0.0
    queued: float = 0.0
    served: float = 0.0
    since: float = 0.0
    began: float = 0.0
    computed: float = math.inf
    sliced: float = 0.0
    busy: float = 0.0
    booked: float = 0.0
    beside: float = 1.0
    slower_slices: float = 1.0
    slower_kernels: float = 1.0
    portions: int = -1
    parts: int = 0
    slices: int = 0
    selected: int = 0
    unpacked: int = 0
    posted: int = 0
    runs: bool = False
    serves: bool = False
    aside: bool = False


@dataclass(slots=True)
class Portion:
    """What a rank computes for a part: seconds of its slice, and of the kernels behind that, which `select`.

    Where in the queue of kernels selection ends, and what unpacks the part; infinity while it is not there. Slices are
    slower by `beside` while its messages are under way. Then the times at which all three began and ended.
    """

    seconds: float = 0.0
    select: float = 0.0
    selects_to: float = math.inf
    unpacks_to: float = math.inf
    beside: float = 1.0
    slice_begun: float = math.nan
    slice_ended: float = math.nan
    select_begun: float = math.nan
    select_ended: float = math.nan
    unpack_begun: float = math.nan
    unpack_ended: float = math.nan


@dataclass(slots=True)
class Message:
    """A message of a round: bytes on the wire, ranks, candidate routes, which stand in a row, its number in the round.

    Its `payload` is what ranks see of it, `back` the first of the routes from its receiver to its sender.
    """

    n_bytes: float = 0.0
    payload: float = 0.0
    src: Row = -1
    dst: Row = -1
    route: Row = -1
    candidates: Row = 1
    number: Row = 0
    connection: Row = -1
    back: Row = -1


@dataclass(slots=True)
class Connection:
    """From rank to rank: the `last` flow that has not ended, and bytes `taken` by the system that have not arrived.

    Also when the last requests about its messages arrive, and the last other words about them, the other way [s].
    """

    last: int = -1
    taken: float = 0.0
    asked: float = -math.inf
    told: float = -math.inf


@dataclass(slots=True)
class Early:
    """Messages of a round that have arrived at a rank before it entered, and their `software`.

    Of a round that is open while the rank is in a later one, what is missing, as a negative count, and sends of that
    that are `unsent`. `next` is that in a list of the rank, or of free ones.
    """

    round_index: int = -1
    count: int = 0
    unsent: int = 0
    software: float = 0.0
    next: int = -1


@dataclass(slots=True)
class Notice:
    """What the caller of `advance` has to be told: what, and of which run, or of which token of a transfer."""

    kind: int = 0
    row: int = 0


@dataclass(slots=True)
class State:
    """All that the loop knows: times and options, how much of each list is in use, lists, and tables.

    `horizon` is until when the weather is known, `hope` until when a network in which nothing moves may still come to
    life. `stamp` numbers the calls of `settle`. `n_quiet` counts what is due without moving anything by itself; of
    `n_free` free flows, one event takes up to `most_sends`. Messages that wait for their hosts' own links are
    `n_queued`.
    """

    now: float = 0.0
    horizon: float = math.inf
    hope: float = -math.inf
    send_overhead: float = 0.0
    receive_overhead: float = 0.0
    segment: float = 0.0
    # Whether flows have weights: round trips, `counted` seconds at most, and `queueing`, to the power -`exponent`.
    weighted: bool = False
    exponent: float = 0.0
    counted: float = math.inf
    queueing: float = 0.0
    # The stack; `frame` and `word` are bytes on the wire.
    lets_go: int = LEFT_HOST
    queues: bool = False
    in_order: bool = False
    runs_ahead: bool = False
    posts_ahead: bool = False
    eager_limit: float = 0.0
    buffer: float = math.inf
    frame: float = 0.0
    word: float = 0.0
    before: float = 0.0
    after: float = 0.0
    before_byte: float = 0.0
    after_byte: float = 0.0
    adaptive: bool = False
    watching: bool = False
    latency_changes: bool = False
    background_on: bool = False
    hops: int = 0
    stamp: int = 0
    n_asked: int = 0
    n_quiet: int = 0
    n_moving: int = 0
    n_queued: int = 0
    n_early: int = 0
    n_flows: int = 0
    n_free: int = 0
    most_sends: int = 1
    n_background: int = 0
    n_crowd: int = 0
    free_flow: int = -1
    free_early: int = -1
    # How much of the lists below is in use.
    n_due: int = 0
    n_ends: int = 0
    n_new: int = 0
    n_dirty: int = 0
    n_chosen: int = 0
    n_touched: int = 0
    n_notices: int = 0
    # Two heaps: what is due, and flows by their end. Flows to solve, links that changed; `settle`'s flows and links.
    agenda: list[Due] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    dirty: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    # The network.
    flows: list[Flow] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    fillings: list[Filling] = field(default_factory=list)
    crowd_factors: list[float] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    route_links: list[Row] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)
    background: list[Background] = field(default_factory=list)
    # Schedules under way.
    runs: list[Run] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    gates: list[float] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    portions: list[Portion] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    incoming: list[Row] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    picks: list[int] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)
    software: list[float] = field(default_factory=list)
    early: list[Early] = field(default_factory=list)
    # Segments of all timelines: from when on there is which value.
    times: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
