"""Transport stacks: how messages become bytes on links, and when a send lets its rank go.

A rank enters a round when what it receives in the round before has arrived, and what it sends has been *let go*. When
that is differs between libraries, and decides how long an exchange takes on links that are unequal, long or shared:

================  =====================================================================================================
``left``          the message has left the host's own link, the first of its route, as in LogGP [1]_
``taken``         the system has taken it, which sends on its own, as that of a socket; beyond a `buffer`, when it has
                  arrived
``acknowledged``  a word of the receiver says that it has arrived
``ready``         it leaves upon a word of the receiver that it waits for the message, as in gloo [2]_
``request``       it leaves upon the answer to a request, the rendezvous of MPI [3]_
================  =====================================================================================================

Words are short messages themselves. Framing is what each segment has beside its payload, and acknowledgements of
received bytes, which travel against the data. A frame is forwarded by each switch once it is there as a whole.

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
from simnet.base.checks import named, whole, with_properties
from simnet.base.quantities import Count, Seconds, Size, bounded, parameter_hints
from simnet.schedule import Round, Schedule

LetGo: TypeAlias = Literal["left", "taken", "acknowledged", "ready", "request"]
OwnLink: TypeAlias = Literal["shared", "queue"]
PerByte: TypeAlias = Annotated[Seconds, Le(1)]

SEGMENT = 1448
"""Payload of a full TCP segment in an Ethernet frame of 1,500 bytes, with time stamps [byte]."""

BESIDE = 90
"""What goes over the wire beside the payload of a segment [byte]: 52 of IP and TCP, 38 of Ethernet with its gap.

The length of an acknowledgement, too."""


@dataclass(frozen=True)
class Stack:
    """How a library sends messages.

    Parameters
    ----------
    lets_go : {"left", "taken", "acknowledged", "ready", "request"}
        When a send lets its rank go on; see `simnet.network.stack`.
    own_link : {"shared", "queue"}
        Whether messages that a host sends at the same time share its own link, or leave one after another. Those that
        leave one after another pass their receiver's link in the order in which their bytes come.
    eager_limit : float
        Messages of at most so many bytes are ``taken`` in any case.
    buffer : float
        Bytes of a connection, from rank to rank, that the system takes and that have not arrived; a message that takes
        them above it holds its round until it has arrived.
    segment, beside : float
        Payload of a full segment, and what goes over the wire beside it [byte]; no framing where `segment` is 0.
    acknowledged : float
        Bytes of payload for which the receiver sends one acknowledgement; none where it is 0.
    word : float
        Payload of a word between libraries [byte].
    before, after : float
        Software of a message at its sender before it leaves, and at its receiver after it has arrived [s]; that of a
        message that comes before its rank enters the round is done then, after what the rank sends. A word costs its
        speaker `before`, but for that of an arrival, which the system sends; hearing it costs nothing.
    before_byte, after_byte : float
        The same for each byte [s]. Where a message leaves upon a word that the receiver is ready, all software comes
        after it has arrived.
    rounds : int
        Rounds of one phase that a rank has under way at once in a ring: two rounds or more in a row between the same
        ranks. Those of one call, or of one schedule, are done before it enters the next.
    posts_ahead : bool
        Whether a rank that only sends in a round enters it before its sends of the rounds before it in that phase are
        let go.
    gathers_send_first : bool
        Whether a rank that enters a round of an all-gather sends before it says that it is ready to receive: its word
        then waits behind a message whose receiver's word has come before, on the host's own link. In other rounds it
        is the other way around.
    by_turns : bool
        Whether words of every other round of a call take twice their software. Which of a word and a message leaves
        its host first is chance with the threads of gloo; here it is one, then the other.
    pieces : int
        Into how many messages, of a round each, a step of a ring is cut.
    measured : str
        Where software comes from: what it was measured on, or "not measured".

    Raises
    ------
    ValueError
        If a property is none of those allowed, or has no meaning with ``left``: software, a queue, rounds ahead.

    Examples
    --------
    >>> tcp = Stack("taken", "queue", segment=1448, beside=90, acknowledged=2896)
    >>> tcp.wire(Round([0], [1], [14480]), 2)
    array([15380.])
    """

    lets_go: LetGo = "left"
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
    measured: str = "not measured"

    def __post_init__(self) -> None:
        named(self.lets_go, "lets_go", get_args(LetGo))
        named(self.own_link, "own_link", get_args(OwnLink))
        for name, quantity in _NUMBERS.items():
            value = getattr(self, name)
            if value != math.inf or name not in ("eager_limit", "buffer"):
                bounded(value, quantity, name)
        whole(self.rounds, "rounds", 1, MOST_ROUNDS)
        whole(self.pieces, "pieces", 1, MOST_ROUNDS)
        if self.lets_go == "left":
            for name in _WITH_LIBRARIES:
                if getattr(self, name) != getattr(Stack, name):
                    raise ValueError(f"{name} counts with another lets_go than left only")

    def with_software(self, message: float | None = None, byte: float | None = None) -> Stack:
        """Return the stack with so many seconds of software for a message, and for a byte, half of them at each end.

        Parameters
        ----------
        message, byte : float, optional
            Seconds; what it has already when omitted.

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
        """Whether messages take a rank any time."""
        return any((self.before, self.after, self.before_byte, self.after_byte))

    def framed(self, nbytes: ArrayLike) -> Floats:
        """Return the bytes that messages take on a wire, of the shape of `nbytes`.

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
        """Return the bytes for which messages of a round keep a link busy, shape (m,): framed, with acknowledgements.

        Acknowledgements take time where their direction of a host's link has data of its own. They travel alone: data
        that could carry them has been handed to the link before. Those that a rank sends in a round are split evenly
        among its messages, those that it gets among those that it receives; a message is longer by the larger part.
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

    def cut(self, schedule: Schedule) -> Schedule:
        """Return a schedule whose rings go in `pieces`, each a round.

        What a rank computes before a round it computes before the first piece.
        """
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
        """Return for each round whether ranks send before they say that they are ready to receive."""
        found = [False] * len(schedule.rounds)
        for call in schedule.calls if self.gathers_send_first else ():
            if call.operation == "all_gather":
                found[call.first : call.first + call.rounds] = [True] * call.rounds
        return found

    def ahead(self, rounds: Sequence[Round]) -> list[int]:
        """Return for each round how many before it a rank that enters it may have under way.

        None before one that a rank computes for: that is upon what the rounds before have brought.
        """
        if self.rounds == 1:
            return [0] * len(rounds)
        rings = in_rings(rounds)
        return [
            self.rounds - 1 if number and ring and rings[number - 1] and _continues(rounds[number - 1], one) else 0
            for number, (one, ring) in enumerate(zip(rounds, rings, strict=True))
        ]


def _continues(before: Round, one: Round) -> bool:
    """Return whether a round is one more of the phase of the round before, with nothing to compute between them."""
    return one.phase == before.phase and not np.any(one.compute)


def of_rings(schedule: Schedule) -> list[bool]:
    """Return for each round whether it is one of a ring; among two ranks the call of one may have a single round."""
    found = in_rings(schedule.rounds)
    for call in schedule.calls:
        if call.algorithm == "ring":
            at = slice(call.first, call.first + call.rounds)
            found[at] = [bool(len(one)) for one in schedule.rounds[at]]
    return found


def in_rings(rounds: Sequence[Round]) -> list[bool]:
    """Return for each round whether one beside it has messages between the same ranks."""
    same = [
        one is other or (np.array_equal(one.src, other.src) and np.array_equal(one.dst, other.dst))
        for one, other in itertools.pairwise(rounds)
    ]
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
"""The most rounds that can be under way at once, and pieces of a step."""

IDEAL = Stack(measured="has no software")
"""Messages as alpha-beta and LogGP have them, and closed forms mean them."""

_TCP = Stack("taken", "queue", segment=SEGMENT, beside=BESIDE, acknowledged=2 * SEGMENT, word=48)

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
            lets_go="ready",
            rounds=2,
            pieces=2,
            posts_ahead=True,
            gathers_send_first=True,
            by_turns=True,
            measured=_ON + "shaped_gloo",
        ).with_software(125e-6, 0.33e-9),
        "openmpi": dataclasses.replace(
            _OFFLOADED, lets_go="request", eager_limit=64 * 1024, measured=_ON + "shaped_openmpi"
        ).with_software(178e-6, 0.53e-9),
        "mpich": dataclasses.replace(_OFFLOADED, measured=_ON + "shaped_mpich").with_software(200e-6, 0.91e-9),
        # Protocol Simple over sockets [6]_: a connection has credit for 8 slots of 512 KiB; of a step's two slices, of
        # two slots each, one is sent on while the other comes. Protocol LL has a flag of 4 bytes beside each 4, LL128
        # one of 8 beside each 120.
        "nccl": dataclasses.replace(_OFFLOADED, buffer=8 * 512 * 1024, rounds=2, pieces=2),
    }
)
"""Stacks by name."""


def stack_of(given: str | Stack | Mapping[str, object]) -> Stack:
    """Return a stack, given its name, or its properties, or itself.

    Raises
    ------
    ValueError
        If there is no such stack or property.

    Examples
    --------
    >>> stack_of("gloo").lets_go, stack_of({"lets_go": "taken"}).own_link
    ('ready', 'shared')
    """
    if isinstance(given, Stack):
        return given
    if isinstance(given, Mapping):
        return with_properties(Stack, given, "a stack")
    named(given, "stack", STACKS)
    return STACKS[given]


def name_of(stack: Stack) -> str:
    """Return the name of a stack, ``custom`` if it has none."""
    return next((name for name, one in STACKS.items() if one == stack), "custom")
