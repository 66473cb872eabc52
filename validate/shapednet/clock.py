"""A clock of ranks that talk over TCP through a star of links, where sends are done before they are delivered.

The clocks of `simnet.network` let a rank proceed when what it sent is delivered. A library on TCP proceeds when the
system has taken its bytes: a root that sends to three children hands all three messages over at once, a latency apart
from none of them. Where no rank sends twice without receiving between, both are the same, to rounding.

A message waits its turn on the uplink of its sender, in the order of handing over or piece by piece, and a word between
libraries waits behind the messages that were handed over before. It goes in pieces; each is passed on when its first
frame is there, waits its turn on the downlink of its receiver, and is there with its last byte. So two messages to one
receiver share its downlink piece by piece. A rank enters a round when it has handed over, and received, all messages of
the round before; or, of a library that has two rounds under way, as gloo's rings of halves, of the round before that.
Links may change while messages are under way.

Four ways to send a message are told apart, by what a send waits for:

============  =================================================================================================
eager         nothing
acknowledged  a word of the receiver that the message has arrived
ready         before it leaves, a word of the receiver that it waits for it, as gloo's
request       before it leaves, an answer to a request: the rendezvous of MPI, two latencies
============  =================================================================================================

References
----------
W. Gropp, E. Lusk, "A high-performance MPI implementation on a shared-memory vector supercomputer", Parallel Computing
22, 1997 (eager and rendezvous). A. Alexandrov et al., "LogGP", SPAA 1995 (overhead, and time per byte).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.schedule import Schedule

SEGMENT = 1448
"""Payload of a full segment [byte]."""

BESIDE = 90
"""What goes over the wire beside the payload of a segment [byte]; the length of an acknowledgement, too."""

Sends: TypeAlias = Literal["eager", "acknowledged", "ready", "request"]
"""What a send waits for."""

# The header of a message of gloo, six words; what stands for any short message between libraries.
_WORD = 48
_PIECES = 16


class Change(NamedTuple):
    """From when on all links have this latency [s] and bandwidth [byte/s]; times in seconds from the first, at 0."""

    at: float
    latency: float
    bandwidth: float


class Stack(NamedTuple):
    """How a library sends over TCP.

    Parameters
    ----------
    sends : str
        One of `Sends`.
    limit : float
        Messages of at most so many bytes are eager in any case.
    overhead : float
        Seconds of software for a message, half of them before it leaves and half after it has arrived; all after it
        has arrived where it leaves upon a word that the receiver is ready.
    copying : float
        Seconds of software for a byte, likewise.
    acknowledged : int
        Bytes for which TCP sends one acknowledgement: two segments; 64 KiB where the network device cuts segments and
        puts them together again, as nearly all do.
    together : bool
        Whether messages that a rank has handed over share its uplink piece by piece, as when TCP paces what it sends
        (BBR); else they leave in the order of handing over, as when the windows of TCP are open.
    depth : int
        How many rounds of one phase a rank has under way at once.
    """

    sends: Sends = "eager"
    limit: float = 0.0
    overhead: float = 0.0
    copying: float = 0.0
    acknowledged: int = 2 * SEGMENT
    together: bool = False
    depth: int = 1


def rank_finish(
    schedule: Schedule,
    wire: Sequence[NDArray[np.float64]],
    links: Sequence[Change],
    stack: Stack,
    starts: Sequence[float],
) -> NDArray[np.float64]:
    """Return when each rank is done, shape (P,) [s].

    Parameters
    ----------
    schedule : Schedule
        What is sent.
    wire : sequence of arrays
        For each round, the bytes for which its messages keep a link busy.
    links : sequence of Change
        What the links are like, from when on.
    stack : Stack
        How it is sent.
    starts : sequence of float, shape (P,)
        When each rank starts [s], not before the first change.

    Examples
    --------
    >>> from simnet.schedule import Round
    >>> star = Schedule(3, [Round([0], [1], 1), Round([0], [2], 1)])
    >>> rank_finish(star, [np.array([1e3])] * 2, [Change(0, 1.0, 1e6)], Stack(), [0.0] * 3).round(4)
    array([0.   , 1.002, 1.003])
    """
    run = _Run(schedule, wire, links, stack, starts)
    run.to_the_end()
    return np.array(run.now)


class _Message(NamedTuple):
    src: int
    dst: int
    round: int
    nbytes: float
    wire: float


class _Run:
    """The state of a run: what ranks wait for, when links are free, and what happens when."""

    def __init__(
        self,
        schedule: Schedule,
        wire: Sequence[NDArray[np.float64]],
        links: Sequence[Change],
        stack: Stack,
        starts: Sequence[float],
    ) -> None:
        ranks, rounds = schedule.n_ranks, schedule.rounds
        self.links, self.stack, self.rounds = links, stack, rounds
        self.messages = [
            _Message(int(src), int(dst), number, float(nbytes), float(busy))
            for number, (one, sizes) in enumerate(zip(rounds, wire, strict=True))
            for src, dst, nbytes, busy in zip(one.src, one.dst, one.nbytes, sizes, strict=True)
        ]
        self.sent: list[list[list[int]]] = [[[] for _ in rounds] for _ in range(ranks)]
        self.awaited: list[list[list[int]]] = [[[] for _ in rounds] for _ in range(ranks)]
        for number, message in enumerate(self.messages):
            self.sent[message.src][message.round].append(number)
            self.awaited[message.dst][message.round].append(number)
        self.now = [float(start) for start in starts]
        self.at = [-1] * ranks
        self.done = [0] * ranks
        self.open = [[0] * len(rounds) for _ in range(ranks)]
        self.ahead = [
            0 if not number or one.phase != rounds[number - 1].phase else stack.depth - 1
            for number, one in enumerate(rounds)
        ]
        self.early: set[tuple[str, int]] = set()
        self.free = {"up": [-math.inf] * ranks, "down": [-math.inf] * ranks}
        self.queues: list[deque[list[tuple[str, int, float]]]] = [deque() for _ in range(ranks)]
        self.serving = [False] * ranks
        self.pieces: dict[tuple[str, int], int] = {}
        self.events: list[tuple[float, int, str, str, int, float, float]] = []
        self.count = 0

    def to_the_end(self) -> None:
        """Let everything happen, in order of time."""
        for rank in range(len(self.now)):
            self._go_on(rank)
        while self.events:
            moment, _, event, what, message, size, last = heapq.heappop(self.events)
            if event == "hand over":
                self._uplink(moment, what, message)
            elif event == "serve":
                self._serve(moment, message)
            elif event == "downlink":
                self._downlink(moment, what, message, size, last)
            else:
                self._arrived(moment, what, message)

    def _push(self, moment: float, event: str, what: str, message: int, size: float = 0.0, last: float = 0.0) -> None:
        self.count += 1
        heapq.heappush(self.events, (moment, self.count, event, what, message, size, last))

    def _ends(self, what: str, message: int) -> tuple[int, int]:
        """Return from where to where a message, or a word about it, goes."""
        one = self.messages[message]
        return (one.src, one.dst) if what in ("data", "request") else (one.dst, one.src)

    def _waits(self, message: int) -> bool:
        """Return whether the send of a message has to wait for anything."""
        return self.stack.sends != "eager" and self.messages[message].nbytes > self.stack.limit

    def _busy(self, rank: int, seconds: float) -> float:
        self.now[rank] += seconds
        return self.now[rank]

    def _leaving(self, message: int) -> float:
        """Return the software of a message before it leaves; none where a thread of its own waits for the word."""
        return 0.0 if self._waits(message) and self.stack.sends == "ready" else self._software(message) / 2

    def _arriving(self, message: int) -> float:
        return self._software(message) - self._leaving(message)

    def _software(self, message: int) -> float:
        return self.stack.overhead + self.stack.copying * self.messages[message].nbytes

    def _go_on(self, rank: int) -> None:
        """Enter round after round, as far as nothing has to be waited for."""
        while True:
            while self.done[rank] <= self.at[rank] and self.open[rank][self.done[rank]] == 0:
                self.done[rank] += 1
            following = self.at[rank] + 1
            if following == len(self.rounds) or following - self.done[rank] > self.ahead[following]:
                return
            self.at[rank] = following
            self._enter(rank, following)

    def _enter(self, rank: int, number: int) -> None:
        work = self.rounds[number].compute
        self._busy(rank, float(work if isinstance(work, float) else work[rank]))
        coming, going = self.awaited[rank][number], self.sent[rank][number]
        self.open[rank][number] = len(coming)
        for message in coming:
            if self._waits(message) and self.stack.sends == "ready":
                self._push(self._busy(rank, self.stack.overhead / 2), "hand over", "ready", message)
            elif ("request", message) in self.early:
                self._push(self._busy(rank, self.stack.overhead / 2), "hand over", "answer", message)
        for message in going:
            if not self._waits(message) or self.stack.sends == "acknowledged" or ("ready", message) in self.early:
                self._push(self._busy(rank, self._leaving(message)), "hand over", "data", message)
                self.open[rank][number] += self._waits(message) and self.stack.sends == "acknowledged"
            else:
                if self.stack.sends == "request":
                    self._push(self._busy(rank, self.stack.overhead / 2), "hand over", "request", message)
                self.open[rank][number] += 1
        for message in coming:
            if ("data", message) in self.early:
                self._busy(rank, self._arriving(message))
                self.open[rank][number] -= 1

    def _arrived(self, moment: float, what: str, message: int) -> None:
        rank = self._ends(what, message)[1]
        if what == "data" and self._waits(message) and self.stack.sends == "acknowledged":
            self._push(moment, "hand over", "received", message)
        number = self.messages[message].round
        if self.at[rank] < number:
            self.early.add((what, message))
            return
        if what == "ready":
            self._push(moment, "hand over", "data", message)
        self.now[rank] = max(self.now[rank], moment)
        if what == "request":
            self._push(self._busy(rank, self.stack.overhead / 2), "hand over", "answer", message)
            return
        if what == "answer":
            self._push(self._busy(rank, self._leaving(message)), "hand over", "data", message)
        elif what == "data":
            self._busy(rank, self._arriving(message))
        self.open[rank][number] -= 1
        self._go_on(rank)

    def _uplink(self, moment: float, what: str, message: int) -> None:
        """Put a message, or a word about it, at the end of the queue of its sender."""
        host, _ = self._ends(what, message)
        size = self.messages[message].wire if what == "data" else float(_WORD + BESIDE)
        piece = max(2.0 * (SEGMENT + BESIDE), size / _PIECES)
        count = max(1, math.ceil(size / piece))
        self.pieces[what, message] = count
        parts = [(what, message, min(piece, size - index * piece)) for index in range(count)]
        if self.stack.together:
            self.queues[host].append(parts)
            if not self.serving[host]:
                self._serve(moment, host)
            return
        begin = max(moment, self.free["up"][host])
        for part in parts:
            begin = self._leave(begin, *part)
        self.free["up"][host] = begin

    def _serve(self, moment: float, host: int) -> None:
        """Let a piece of the message whose turn it is leave; the next of that message comes after those of others."""
        self.serving[host] = bool(self.queues[host])
        if self.serving[host]:
            parts = self.queues[host].popleft()
            end = self._leave(moment, *parts.pop(0))
            if parts:
                self.queues[host].append(parts)
            self._push(end, "serve", "", host)

    def _leave(self, begin: float, what: str, message: int, part: float) -> float:
        """Serialise a piece on the uplink, and return when that is done."""
        end = self._after(begin, part)
        half = self._half(end)
        first = self._after(begin, min(part, SEGMENT + BESIDE)) + half
        self._push(first, "downlink", what, message, part, end + half)
        return end

    def _downlink(self, moment: float, what: str, message: int, size: float, last: float) -> None:
        _, host = self._ends(what, message)
        end = self._after(max(moment, self.free["down"][host]), size)
        self.free["down"][host] = end
        self.pieces[what, message] -= 1
        if self.pieces[what, message] == 0:
            there = max(end, last)
            self._push(there + self._half(there), "arrived", what, message)

    def _index(self, moment: float) -> int:
        index = 0
        while index + 1 < len(self.links) and self.links[index + 1].at <= moment:
            index += 1
        return index

    def _half(self, moment: float) -> float:
        return self.links[self._index(moment)].latency / 2

    def _after(self, begin: float, size: float) -> float:
        """Return when a link that starts with so many bytes is through with them."""
        index = self._index(begin)
        for at, nxt in zip(range(index, len(self.links)), self.links[index + 1 :], strict=False):
            room = (nxt.at - begin) * self.links[at].bandwidth
            if size <= room:
                break
            begin, size, index = nxt.at, size - room, at + 1
        return begin + size / self.links[index].bandwidth
