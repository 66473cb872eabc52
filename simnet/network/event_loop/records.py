"""The state of the event loop: a dataclass for each kind of record, and the tables of records.

Things are referred to by their row in a table, -1 for none: ``s.flows[f].rate`` is the rate of flow f. Tables are lists
of these classes when interpreted, and arrays of the same fields for the compiled functions
(`simnet.base.compiled_records`), with the same results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from simnet.network.event_loop import codes

T = TypeVar("T")

Row: TypeAlias = Annotated[int, np.int32]
"""A row or a count in four bytes, for large tables. The loop only reads these."""


def record(kind: type[T]) -> type[T]:
    """Turn a class into a dataclass with slots; fields without a default start at zero or false."""
    for name, hint in get_type_hints(kind).items():
        if name not in vars(kind):
            setattr(kind, name, hint())
    return dataclass(slots=True)(kind)


@record
class Event:
    """An entry of the event queue: its time, insertion order and kind, and the table row that it is about.

    As a notice for the caller of `advance`, only a kind of notice, and the run or the transfer's token.
    """

    time: float
    order: int
    kind: int
    row: int = codes.NONE


@record
class FlowRecord:
    """A message in flight, or background traffic that is on.

    `remaining` bytes at time `since` (up to `residue` are rounding), the `rate` since then, the sharing `weight`, the
    rate `limit`, the `bottleneck`, and the `place` of its end in the heap. `unsent` bytes had to leave over the own
    link at time `counted`, at rate `pace`, if that may still change. The flow `behind` waits for it on its connection;
    it `waits` itself. It carries `what`, and `holds` its sender until it arrives. `next` is the next free flow, or the
    next one in a queue. Its links are those of its route from `first` to before `stop`, after those `passed`. `lasts`
    is the time that its own link takes, if messages queue there. In the receive queue of link `port` it still `comes`
    in, or has arrived with `remaining` bytes queued up to its end.
    """

    rate: float
    stamp: int
    bottleneck: int = codes.NOTHING
    first: int
    stop: int
    weight: float = 1.0
    new_rate: float
    new_bottleneck: int = codes.NOTHING
    limit: float
    remaining: float
    since: float
    residue: float
    place: int = codes.NONE
    port: int = codes.NONE
    state: int = codes.FREE
    route: int = codes.NONE
    owner: int = codes.TRANSFER
    round_index: int
    message: int
    what: int = codes.DATA
    behind: int = codes.NONE
    next: int = codes.NONE
    passed: int
    unsent: float
    counted: float
    pace: float
    delay: float
    joined: float
    whole: float
    lasts: float = math.inf
    comes: bool
    waits: bool
    holds: bool
    is_new: bool


@record
class HeapEntry:
    """An entry of a heap: the key that orders the heap, and the table row that the key belongs to."""

    key: float
    row: int = codes.NONE


@record
class LinkMembership:
    """A node in the doubly linked list of flows on a link."""

    before: int = codes.NONE
    behind: int = codes.NONE
    flow: int = codes.NONE


@record
class Link:
    """A directed link: its capacity, the flows on it, its egress queue and its receive queue.

    `carried` is the total rate of its flows [byte/s], up to the rounding of `updates` changes; it limits `limited` of
    them. `assigned` counts messages in flight, for adaptive routing. As a host's own link: `port_rank` sent last,
    `port_free` is when that is done, `port_flow` heads the messages whose departure depends on the link's next change.
    With a queue, messages from `port_first` to `port_last` wait, and `port_rest` bytes of the current one are left at
    the next change. If it `queues` (receive queue), `n_coming` messages arrive at rate `coming`, `backlog` bytes were
    left at time `counted`, and those from `first_passing` on have arrived in full.
    """

    capacity: float
    until: float = math.inf
    users: int
    first_membership: int = codes.NONE
    carried: float
    updates: int
    limited: int
    assigned: int
    incast_derating: int = codes.NONE
    bandwidths: int = codes.NONE
    latencies: int = codes.NONE
    port_free: float
    port_rank: int = codes.NONE
    port_rest: float
    port_flow: int = codes.NONE
    port_first: int = codes.NONE
    port_last: int = codes.NONE
    coming: float
    backlog: float
    counted: float
    n_coming: int
    first_passing: int = codes.NONE
    queues: bool
    is_dirty: bool


@record
class LinkAllocation:
    """Working data of `settle_rates` for one link; valid only if `stamp` is the number of the current call.

    `chosen` flows of total `weight` are solved again, `unsolved` of them have no rate yet. The others have the rate
    `kept` in all, and the link limits `limited` of them. `rest` is left, and `level` is that of the flows the link
    limits, else infinity.
    """

    stamp: int
    chosen: int
    weight: float
    rest: float
    unsolved: int
    level: float
    kept: float
    limited: int


@record
class Timeline:
    """A bandwidth or latency over time: the index of its current segment, and that of the last known one plus 1."""

    here: int
    last: int


@record
class Route:
    """A route: latency, links (`begin` to `end`), those that can limit flows (`first` to `stop`), own link, loss."""

    latency: float
    begin: Row
    end: Row
    first: Row
    stop: Row
    own: Row = codes.NONE
    loss: Row = codes.NONE


@record
class LossRecord:
    """A route's rate limit by packet loss, segment size / (`slope` * RTT + `fixed`), and payload per byte sent."""

    slope: float
    fixed: float
    payload: float


@record
class BackgroundRecord:
    """An on-off source of background traffic: its state, next change, rate limit, weight, and current flow."""

    limit: float
    weight: float = 1.0
    on: float
    until: float = -math.inf
    route: int = codes.NONE
    flow: int = codes.NONE
    timeline: int = codes.NONE


@record
class RunRecord:
    """A schedule in flight: numbers of ranks and rounds, and its first rows in tables such as `delays` (-1: none).

    `running` counts unfinished ranks, negative once stalled; `pending` counts its events. It `fails` if a rank will.
    `software` is where software times are kept.
    """

    n_ranks: int
    n_rounds: int
    running: int
    pending: int
    ranks: int = codes.NONE
    rounds: int = codes.NONE
    delays: int = codes.NONE
    picks: int = codes.NONE
    sent: int = codes.NONE
    arrived: int = codes.NONE
    software: int = codes.NONE
    fails: bool


@record
class Rank:
    """The state of a rank in a schedule in flight: its times, its current round, and the messages that it waits for.

    `missing` counts messages that have not arrived, sends that wait (`unsent` of them), and own links that are busy
    (`leaving` of them). It stays in its round until `send_complete` at least; `leaves` is true once the end of its
    round is scheduled. Early control messages start at `controls`. Work beside its rounds is on `stream`, or -1.
    """

    start: float
    since: float
    finish: float
    communicate: float
    compute: float
    wait: float
    run: int = codes.NONE
    number: int
    stream: int = codes.NONE
    round_index: int = -1
    state: int = codes.OUTSIDE
    missing: int
    leaving: int
    unsent: int
    send_complete: float = -math.inf
    in_flight: int
    early: int = codes.NONE
    controls: int = codes.NONE
    early_software: float
    leaves: bool


@record
class RoundRecord:
    """A round of a schedule in flight: its first rows in other tables, and the number of its first message.

    Ranks enter it with up to `ahead` earlier rounds open. If it `sends_first`, control messages come after sends.
    Control messages take `control_factor` times their software time. It `continues` the previous phase. Compute times
    are stored at `worked`. It `opens` or `unpacks` a part of the gradient; -1: none.
    """

    tasks: int = codes.NONE
    gates: int = codes.NONE
    worked: int = codes.NONE
    offset: int
    opens: int = codes.NONE
    unpacks: int = codes.NONE
    ahead: int
    continues: bool
    sends_first: bool
    control_factor: int = 1


@record
class TaskRecord:
    """The task of a rank in a round: seconds of work, messages to send, and messages to receive.

    Equal rounds share tasks. With a compute stream, `software` comes after `seconds` of work; else it is part of them.
    """

    seconds: float
    software: float
    messages: Row = codes.NONE
    sends: Row
    incoming: Row = codes.NONE
    receives: Row


@record
class StreamRecord:
    """The state of a rank's compute stream, simulated up to the time `reached`.

    If `runs`, a slice has `left` seconds to go, else the next of `parts` starts; their `compute_slices` are
    consecutive. `queued` and `served` are total kernel seconds. If `serves`, the first kernel group in the queue runs
    since the time `since`; the group before it began at `began`. Numbers of parts: `selected`, `posted` to unpack,
    `unpacked`. If `aside`, slices and kernels run at once, longer by the factors `slower_slices` and `slower_kernels`,
    else in turn; a slice is also longer by `beside` while messages of its part are in flight. The stream had computed
    all at `computed`. Slices ran for `sliced` seconds, kernels for `busy` after that, of which `booked` are recorded.
    """

    reached: float
    left: float
    queued: float
    served: float
    since: float
    began: float
    computed: float = math.inf
    sliced: float
    busy: float
    booked: float
    beside: float = 1.0
    slower_slices: float = 1.0
    slower_kernels: float = 1.0
    compute_slices: int = codes.NONE
    parts: int
    slices: int
    selected: int
    unpacked: int
    posted: int
    runs: bool
    serves: bool
    aside: bool


@record
class ComputeSlice:
    """A slice of the backward pass, and the kernels that select and unpack the part of the gradient it computes.

    It has the places in the kernel queue where selection and unpacking end (infinity if not queued), the slowdown
    `beside` while its messages are in flight, and start and end of slice, selection and unpacking.
    """

    seconds: float
    select: float
    selects_to: float = math.inf
    unpacks_to: float = math.inf
    beside: float = 1.0
    slice_begun: float = math.nan
    slice_ended: float = math.nan
    select_begun: float = math.nan
    select_ended: float = math.nan
    unpack_begun: float = math.nan
    unpack_ended: float = math.nan


@record
class MessageRecord:
    """A message of a round: its bytes with and without headers, ranks, routes, and the route `back` for replies."""

    n_bytes: float
    payload: float
    src: Row = codes.NONE
    dst: Row = codes.NONE
    route: Row = codes.NONE
    candidates: Row = 1
    number: Row
    connection: Row = codes.NONE
    back: Row = codes.NONE


@record
class Connection:
    """A connection from one rank to another that keeps messages in order: the last one in flight, and buffered bytes.

    `asked` and `told` are the last arrivals of requests and of other control messages [s].
    """

    last: int = codes.NONE
    taken: float
    asked: float = -math.inf
    told: float = -math.inf


@record
class EarlyArrival:
    """Number of messages that arrived before their rank entered their round, and the CPU time to handle them.

    For an open earlier round the negative number of missing messages, of which `unsent` are sends. `next`: the next
    record.
    """

    round_index: int = -1
    count: int
    unsent: int
    software: float
    next: int = codes.NONE


@record
class State:
    """The complete state of the event loop: times, options, lists and their lengths, and tables of records.

    The weather is known until `horizon`; links may recover until `hope` if nothing moves. `stamp` numbers calls of
    `settle_rates`. One event takes up to `most_sends` of `n_free` flows. `n_queued` messages wait in egress queues.
    """

    now: float
    horizon: float = math.inf
    hope: float = -math.inf
    send_overhead: float
    receive_overhead: float
    segment: float
    # Whether flows have weights: round trips, `counted` seconds at most, and `queueing`, to the power -`exponent`.
    weighted: bool
    exponent: float
    counted: float = math.inf
    queueing: float
    # The stack; `frame` and `control_bytes` are bytes on the wire.
    send_completion: int = codes.LEFT_HOST
    queues: bool
    in_order: bool
    runs_ahead: bool
    posts_ahead: bool
    eager_limit: float
    buffer: float = math.inf
    frame: float
    control_bytes: float
    before: float
    after: float
    before_byte: float
    after_byte: float
    adaptive: bool
    watching: bool
    latency_changes: bool
    background_on: bool
    hops: int
    stamp: int
    n_pushed: int
    n_moving: int
    n_queued: int
    n_early: int
    n_flows: int
    n_free: int
    most_sends: int = 1
    n_background: int
    n_derating: int
    free_flow: int = codes.NONE
    free_early: int = codes.NONE
    # How much of the lists below is in use.
    n_events: int
    n_ends: int
    n_new: int
    n_dirty: int
    n_chosen: int
    n_touched: int
    n_notices: int
    # Heaps of what is due, and of flows by their end [s]. Flows to solve, links that changed; flows and links of
    # `settle_rates`, and its heap of links l, or -1 - f for the rate limit of flow f, by level.
    event_queue: list[Event] = field(default_factory=list)
    ends: list[HeapEntry] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    dirty: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    shares: list[HeapEntry] = field(default_factory=list)
    notices: list[Event] = field(default_factory=list)
    # The network.
    flows: list[FlowRecord] = field(default_factory=list)
    memberships: list[LinkMembership] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    allocations: list[LinkAllocation] = field(default_factory=list)
    derating_factors: list[float] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    losses: list[LossRecord] = field(default_factory=list)
    route_links: list[Row] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)
    background: list[BackgroundRecord] = field(default_factory=list)
    # Schedules under way.
    runs: list[RunRecord] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    gates: list[float] = field(default_factory=list)
    tasks: list[TaskRecord] = field(default_factory=list)
    streams: list[StreamRecord] = field(default_factory=list)
    compute_slices: list[ComputeSlice] = field(default_factory=list)
    messages: list[MessageRecord] = field(default_factory=list)
    incoming: list[Row] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    picks: list[int] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)
    software: list[float] = field(default_factory=list)
    early: list[EarlyArrival] = field(default_factory=list)
    # Segments of all timelines: from when on there is which value.
    times: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
