"""Transport stacks: how many bytes messages occupy on links, and when a send completes.

A rank enters a round when its receives of the previous round have arrived and its sends have *completed*. When a send
completes differs between libraries, and decides how long an exchange takes on unequal, long or shared links:

================  =====================================================================================================
``left``          when it has left the host's own link, the first of its route, as in LogGP [1]_
``taken``         when the system has buffered it, as with a socket; above a `buffer`, when it has arrived
``acknowledged``  when a control message of the receiver confirms its arrival
``ready``         it leaves when a control message says that the receiver waits for it, as in gloo [2]_
``request``       it leaves on the answer to a request, the rendezvous of MPI [3]_
================  =====================================================================================================

Control messages are short messages themselves. Framing is the header of each segment, and acknowledgements, which
travel against the data. Switches store and forward whole frames.

References
----------
.. [1] A. Alexandrov, M. Ionescu, K. Schauser, C. Scheiman, "LogGP: Incorporating Long Messages into the LogP Model",
   SPAA 1995.
.. [2] ``NOTIFY_RECV_READY`` in ``gloo/transport/tcp/pair.h``, https://github.com/facebookincubator/gloo.
.. [3] W. Gropp, E. Lusk, "A high-performance MPI implementation on a shared-memory vector supercomputer", Parallel
   Computing 22, 1997.
.. [4] M. Allman, V. Paxson, E. Blanton, "TCP Congestion Control", RFC 5681: an acknowledgement of every second segment.
.. [5] D. Borman et al., "TCP Extensions for High Performance", RFC 7323: time stamps in every segment.
.. [6] ``NCCL_STEPS``, ``ALLREDUCE_SLICESTEPS`` and ``DEFAULT_BUFFSIZE`` in ``src/include/device.h``,
   ``src/include/collectives.h`` and ``src/init.cc``, https://github.com/NVIDIA/nccl.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np
from annotated_types import Le
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.errors import check_choice, check_int, make_dataclass
from simnet.base.quantities import Count, Seconds, Size, check_bounds, parameter_hints
from simnet.network.gloo import arrange_calls
from simnet.schedule import Round, Schedule

SendCompletion: TypeAlias = Literal["left", "taken", "acknowledged", "ready", "request"]
OwnLink: TypeAlias = Literal["shared", "queue"]
Programs: TypeAlias = Literal["textbook", "gloo"]
PerByte: TypeAlias = Annotated[Seconds, Le(1)]

SEGMENT = 1448
"""Payload of a full TCP segment in an Ethernet frame of 1,500 bytes, with time stamps [byte]."""

BESIDE = 90
"""Header bytes per segment: 52 of IP and TCP, 38 of Ethernet with its gap; also the length of an acknowledgement."""


@dataclass(frozen=True)
class Stack:
    """A model of how a communication library sends messages: protocols, CPU times and bytes on the wire.

    Parameters
    ----------
    send_completion : {"left", "taken", "acknowledged", "ready", "request"}
        When a send completes; see `simnet.network.stack`.
    own_link : {"shared", "queue"}
        Whether concurrent messages of a host share its own link, or leave one after another; then they also pass their
        receiver's link in order of arrival.
    eager_limit : float
        Messages up to this size are always ``taken`` [byte].
    buffer : float
        Bytes of a connection that the system takes before they arrive; a message above it holds its round.
    segment, beside : float
        Payload and header of a full segment [byte]; no framing if `segment` is 0.
    acknowledged : float
        Payload per acknowledgement of the receiver [byte]; none if 0.
    word : float
        Payload of a control message [byte].
    before, after : float
        Software time of a message at its sender and at its receiver [s]. A message that arrives before its rank enters
        the round is handled after the rank's sends. A control message costs its sender `before`, except confirmations
        of arrival, which the system sends; the word that a receiver is ready is handled `after` its arrival, beside all
        else, and receiving others is free.
    before_byte, after_byte : float
        The same per byte [s].
    rounds : int
        Rounds of one phase that a rank may have in progress in a ring: two or more in a row between the same ranks.
    posts_ahead : bool
        Whether a rank that only sends in a round enters it before its earlier sends of that phase complete.
    gathers_send_first : bool
        Whether a rank in a ring all-gather sends before it announces its receives; else the other way round.
    by_turns : bool
        Whether control messages of every other round take twice their software: with gloo's threads the order of
        control message and data is random, here they alternate.
    pieces : int
        Messages, of a round each, into which a ring step is cut.
    collectives : {"textbook", "gloo"}
        Whose program calls of a collective follow; see `simnet.network.gloo`.
    initial_window : float
        Bytes that a connection sends at first after long silence (`simnet.network.slow_start`); 0 if windows stay.
    measured : str
        Where software times come from, or "not measured".

    Raises
    ------
    ValueError
        If a property is invalid, or has no meaning with ``left``: software, a queue, rounds ahead.

    Examples
    --------
    >>> tcp = Stack("taken", "queue", segment=1448, beside=90, acknowledged=2896)
    >>> tcp.wire(Round([0], [1], [14480]), 2)
    array([15380.])
    """

    send_completion: SendCompletion = "left"
    own_link: OwnLink = "shared"
    eager_limit: Size = 0.0
    buffer: Size = math.inf
    segment: Size = 0.0
    beside: Size = 0.0
    acknowledged: Size = 0.0
    word: Size = 0.0
    before: Seconds = 0.0
    after: Seconds = 0.0
    before_byte: PerByte = 0.0
    after_byte: PerByte = 0.0
    rounds: Annotated[Count, Le(MOST_ROUNDS)] = 1
    pieces: Annotated[Count, Le(MOST_ROUNDS)] = 1
    posts_ahead: bool = False
    gathers_send_first: bool = False
    by_turns: bool = False
    collectives: Programs = "textbook"
    initial_window: Size = 0.0
    measured: str = "not measured"

    def __post_init__(self) -> None:
        check_choice(self.send_completion, "send_completion", get_args(SendCompletion))
        check_choice(self.own_link, "own_link", get_args(OwnLink))
        check_choice(self.collectives, "collectives", get_args(Programs))
        for name, quantity in _NUMBERS.items():
            value = getattr(self, name)
            if value != math.inf or name not in ("eager_limit", "buffer"):
                check_bounds(value, quantity, name)
        check_int(self.rounds, "rounds", 1, MOST_ROUNDS)
        check_int(self.pieces, "pieces", 1, MOST_ROUNDS)
        if self.send_completion == "left":
            for name in _WITH_LIBRARIES:
                if getattr(self, name) != getattr(Stack, name):
                    raise ValueError(f"{name} counts with another send_completion than left only")

    def with_software(self, message: float | None = None, byte: float | None = None) -> Stack:
        """Return the stack with new CPU times per message and byte [s], divided equally between sender and receiver.

        Examples
        --------
        >>> STACKS["tcp"].with_software(message=3e-4).after
        0.00015
        """
        changed: dict[str, Any] = {}
        for seconds, names in ((message, ("before", "after")), (byte, ("before_byte", "after_byte"))):
            if seconds is not None:
                changed |= dict.fromkeys(names, seconds / 2)
        return dataclasses.replace(self, **changed)

    @property
    def has_software(self) -> bool:
        """Whether the library takes CPU time to send or receive a message."""
        return any((self.before, self.after, self.before_byte, self.after_byte))

    @property
    def rendezvous_above(self) -> float:
        """Largest message whose send may complete before its receive is posted [byte].

        Examples
        --------
        >>> [STACKS[name].rendezvous_above for name in ("ideal", "gloo", "openmpi", "mpich")]
        [inf, 0.0, 65536, inf]
        """
        if self.send_completion in ("ready", "request"):
            return self.eager_limit
        return self.eager_limit or self.buffer

    def framed(self, nbytes: ArrayLike) -> Floats:
        """Return the bytes that messages of `nbytes` bytes occupy on the wire with headers, in the shape of `nbytes`.

        Examples
        --------
        >>> STACKS["tcp"].framed([0.0, 1448, 1449])
        array([  91., 1538., 1629.])
        """
        sizes = np.asarray(nbytes, dtype=np.float64)
        if not self.segment:
            return sizes
        payload = np.maximum(np.rint(sizes), 1)
        wire: Floats = payload + self.beside * np.ceil(payload / self.segment)
        return wire

    def wire(self, one: Round, n_ranks: int) -> Floats:
        """Return the bytes on links of each message of a round, headers and acknowledgements included; shape (m,).

        Acknowledgements take time where a host's link carries data in their direction. A rank's acknowledgements, sent
        or received, are split evenly among its messages in that direction; a message grows by the larger part.
        """
        wire = self.framed(one.nbytes)
        if not self.segment or not self.acknowledged:
            return wire
        segments = np.ceil(np.maximum(np.rint(one.nbytes), 1) / self.segment)
        answers = self.beside * np.floor(segments / max(1.0, self.acknowledged // self.segment))
        sends, receives = (np.maximum(np.bincount(ends, minlength=n_ranks), 1) for ends in (one.src, one.dst))
        up = np.bincount(one.dst, weights=answers, minlength=n_ranks) / sends
        down = np.bincount(one.src, weights=answers, minlength=n_ranks) / receives
        total: Floats = wire + np.minimum(np.maximum(up[one.src], down[one.dst]), wire)
        return total

    def arranged(self, schedule: Schedule) -> Schedule:
        """Return the schedule with the messages that gloo sends for collective calls; unchanged for other libraries."""
        return arrange_calls(schedule, self.pieces) if self.collectives == "gloo" else schedule

    def cut(self, schedule: Schedule) -> Schedule:
        """Return the schedule with each ring step split into equal rounds, as many as the stack's `pieces`."""
        if self.pieces == 1:
            return schedule
        parts: dict[int, list[Round]] = {}
        rounds: list[Round] = []
        places = []
        for one, rings in zip(schedule.rounds, of_rings(schedule), strict=True):
            places.append(len(rounds))
            if rings and id(one) not in parts:
                nbytes = one.nbytes * (1 / self.pieces)
                piece = Round(one.src, one.dst, nbytes, phase=one.phase)
                first = Round(one.src, one.dst, nbytes, one.compute, one.phase) if np.any(one.compute) else piece
                parts[id(one)] = [first, *[piece] * (self.pieces - 1)]
            rounds += parts[id(one)] if rings else [one]
        places.append(len(rounds))
        calls = [
            call._replace(first=places[call.first], rounds=places[call.first + call.rounds] - places[call.first])
            for call in schedule.calls
        ]
        return Schedule(schedule.n_ranks, rounds, calls)

    def sends_first(self, schedule: Schedule) -> list[bool]:
        """Return for each round whether ranks send before they announce their receives."""
        found = [False] * len(schedule.rounds)
        for call in schedule.calls if self.gathers_send_first else ():
            if (call.operation, call.algorithm) == ("all_gather", "ring"):
                found[call.first : call.first + call.rounds] = [True] * call.rounds
        return found

    def ahead(self, rounds: Sequence[Round]) -> list[int]:
        """Return how many earlier rounds may be incomplete when a rank enters each round; 0 outside of ring steps."""
        if self.rounds == 1:
            return [0] * len(rounds)
        return [
            self.rounds - 1 if number and len(one) and _continues_ring(rounds[number - 1], one) else 0
            for number, one in enumerate(rounds)
        ]


def _continues_ring(before: Round, one: Round) -> bool:
    """Return whether a round has the ranks and `phase` label of the round before it, and begins without computing."""
    return one.phase == before.phase and not np.any(one.compute) and _same_ranks(before, one)


def _same_ranks(one: Round, other: Round) -> bool:
    return one is other or (np.array_equal(one.src, other.src) and np.array_equal(one.dst, other.dst))


def of_rings(schedule: Schedule) -> list[bool]:
    """Return whether each round is a step of a ring collective, by the call's algorithm or by who sends to whom."""
    found = in_rings(schedule.rounds)
    for call in schedule.calls:
        if call.algorithm == "ring":
            at = slice(call.first, call.first + call.rounds)
            found[at] = [bool(len(one)) for one in schedule.rounds[at]]
    return found


def in_rings(rounds: Sequence[Round]) -> list[bool]:
    """Return for each round whether a neighbouring round has the same pairs of ranks, as steps of a ring have."""
    same = [_same_ranks(one, other) for one, other in itertools.pairwise(rounds)]
    before, behind = [False, *same], [*same, False]
    return [bool(len(one)) and (before[at] or behind[at]) for at, one in enumerate(rounds)]


_NUMBERS = parameter_hints(
    Stack,
    (
        "eager_limit", "buffer", "segment", "beside", "acknowledged", "word",
        "before", "after", "before_byte", "after_byte",
    ),
)  # fmt: skip

_WITH_LIBRARIES = (
    "own_link", "eager_limit", "buffer", "before", "after", "before_byte", "after_byte", "rounds", "posts_ahead",
    "gathers_send_first", "by_turns",
)  # fmt: skip

MOST_ROUNDS = 64
"""Maximum of rounds in progress, and of pieces of a step."""

IDEAL = Stack(measured="has no software")
"""Messages as in alpha-beta and LogGP, the meaning of closed forms."""

# Ten segments at first: RFC 6928.
_TCP = Stack(
    "taken", "queue", segment=SEGMENT, beside=BESIDE, acknowledged=2 * SEGMENT, word=48, initial_window=10 * SEGMENT
)

# Network devices that cut segments themselves have 64 KiB acknowledged at once.
_OFFLOADED = dataclasses.replace(_TCP, acknowledged=64 * 1024)


_ON = "one idle link of 0.1 ms between processes that share two cores: "

# Software is what `simnet.validate.shapednet.libraries.calibrated` finds in the shipped measurements, the median over
# algorithms; tests hold it to that.
STACKS: Mapping[str, Stack] = MappingProxyType(
    {
        "ideal": IDEAL,
        "tcp": dataclasses.replace(_TCP, measured=_ON + "shaped_unequal").with_software(124e-6, 0.0),
        "gloo": dataclasses.replace(
            _OFFLOADED,
            send_completion="ready",
            rounds=2,
            pieces=2,
            posts_ahead=True,
            gathers_send_first=True,
            by_turns=True,
            collectives="gloo",
            measured=_ON + "shaped_gloo",
        ).with_software(108e-6, 0.28e-9),
        "openmpi": dataclasses.replace(
            _OFFLOADED, send_completion="request", eager_limit=64 * 1024, measured=_ON + "shaped_openmpi"
        ).with_software(178e-6, 0.53e-9),
        "mpich": dataclasses.replace(_OFFLOADED, measured=_ON + "shaped_mpich").with_software(200e-6, 0.91e-9),
        # Protocol Simple over sockets [6]_: a connection has credit for 8 slots of 512 KiB; of a step's two slices, of
        # two slots each, one is sent on while the other comes. Protocol LL has a flag of 4 bytes beside each 4, LL128
        # one of 8 beside each 120.
        # Not all transports of NCCL are TCP.
        "nccl": dataclasses.replace(_OFFLOADED, buffer=8 * 512 * 1024, rounds=2, pieces=2, initial_window=0.0),
    }
)
"""Stacks by name."""


def stack_of(given: str | Stack | Mapping[str, object]) -> Stack:
    """Return a `Stack`, given its name, a mapping of properties, or a `Stack`.

    Raises
    ------
    ValueError
        If there is no such stack or property.

    Examples
    --------
    >>> stack_of("gloo").send_completion, stack_of({"send_completion": "taken"}).own_link
    ('ready', 'shared')
    """
    if isinstance(given, Stack):
        return given
    if isinstance(given, Mapping):
        return make_dataclass(Stack, given, "a stack")
    check_choice(given, "stack", STACKS)
    return STACKS[given]


def name_of(stack: Stack) -> str:
    """Return the name of a stack; ``custom`` if it has none.

    Examples
    --------
    >>> name_of(STACKS["gloo"]), name_of(Stack("taken"))
    ('gloo', 'custom')
    """
    return next((name for name, one in STACKS.items() if one == stack), "custom")
