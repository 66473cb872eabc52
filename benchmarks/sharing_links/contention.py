"""Flows that meet in one link of a shaped network: how much of it each gets, or how long each takes.

Senders with round trips of their own send to one receiver, whose link is slower than theirs and has a buffer of known
size, which drops what comes when it is full. One process holds both ends of all connections, so that there is one
clock, and looks at them every few milliseconds: windows and losses are the system's matter.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.validate.shapednet.namespaces import Star, inside

FASTER = 8
"""How much faster the links of senders are than the one they share."""

_PORT = 29700
_LOOK = 2e-3
_CHUNK = bytes(1 << 18)
# Seconds between the end of the last transfer of a round and the start of the next ones.
_PAUSE = 0.2
# Bytes that a connection carries before it is silent.
_USED = 8 << 20
_PATIENCE = 60.0


@dataclass(frozen=True)
class Bottleneck:
    """A link that flows meet in, and what flows they are.

    Parameters
    ----------
    congestion : str
        Congestion control of all flows, as Linux names it: reno, cubic, bbr.
    bandwidth : float
        Rate of the link, Ethernet framing included [byte/s]; the links of senders are `FASTER` times as fast.
    buffer : int
        What waits before the link at most [byte].
    round_trips : tuple of float
        Latency there and back of each flow, without waiting [s].
    """

    congestion: str
    bandwidth: float
    buffer: int
    round_trips: tuple[float, ...]


def rates(net: Star, link: Bottleneck, starts: Sequence[float], ends: Sequence[float]) -> Floats:
    """Return the goodput of flows that never end [byte/s], shape (windows, flows)."""
    with _connections(net, link) as pairs:
        counts = np.zeros(len(pairs))
        marks, told, origin = list(ends), [], time.perf_counter()
        while marks:
            now = time.perf_counter() - origin
            for which, (sender, receiver) in enumerate(pairs):
                if now >= starts[which]:
                    _write(sender)
                counts[which] += _read(receiver)
            if now >= marks[0]:
                told.append((now, counts.copy()))
                marks.pop(0)
            time.sleep(_LOOK)
    return np.array([(late - early) / (end - begin) for (begin, early), (end, late) in pairwise(told)])


def durations(net: Star, link: Bottleneck, nbytes: Sequence[int], rounds: int) -> Floats:
    """Return how long each of transfers takes that start together, over and over [s], shape (rounds, flows)."""
    taken = np.zeros((rounds, len(nbytes)))
    with _connections(net, link) as pairs:
        for row in range(rounds):
            time.sleep(_PAUSE)
            left, missing = list(nbytes), list(nbytes)
            origin = time.perf_counter()
            while any(missing):
                for which, (sender, receiver) in enumerate(pairs):
                    if left[which]:
                        left[which] -= _write(sender, left[which])
                    if missing[which]:
                        missing[which] -= _read(receiver)
                        if not missing[which]:
                            taken[row, which] = time.perf_counter() - origin
                time.sleep(_LOOK / 8)
                if time.perf_counter() > origin + _PATIENCE:
                    raise InputError(f"transfers were not done after {_PATIENCE:.0f} s", file="shaped network")
    return taken


def durations_after_silence(net: Star, link: Bottleneck, nbytes: int, silences: Sequence[float]) -> Floats:
    """Return how long a transfer takes after each silence of its connection [s], which was used until then."""
    for namespace in net.namespaces:
        with inside(namespace):
            Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle").write_text("1", encoding="ascii")
    taken = []
    with _connections(net, link) as ((sender, receiver),):
        for silence in silences:
            for count, pause in ((_USED, silence), (nbytes, 0.0)):
                left, missing, origin = count, count, time.perf_counter()
                while missing:
                    left -= _write(sender, left) if left else 0
                    missing -= _read(receiver)
                    time.sleep(_LOOK / 8)
                last = time.perf_counter() - origin
                time.sleep(pause)
            taken.append(last)
    return np.array(taken)


@contextmanager
def _connections(net: Star, link: Bottleneck) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Set the links, and join each sender to the receiver; yield both ends of each connection."""
    net.set(0.0, link.bandwidth, 0, link.buffer)
    for host, round_trip in enumerate(link.round_trips, 1):
        net.set(round_trip, FASTER * link.bandwidth, host)
    pairs = []
    with ExitStack() as stack:
        with inside(net.namespaces[0]):
            server = stack.enter_context(socket.create_server((net.addresses[0], _PORT)))
        for host in range(1, 1 + len(link.round_trips)):
            with inside(net.namespaces[host]):
                sender = stack.enter_context(socket.socket())
                try:
                    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, link.congestion.encode())
                except FileNotFoundError:
                    raise InputError(
                        f"this system has no congestion control {link.congestion!r}", file="shaped network"
                    ) from None
                sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sender.settimeout(_PATIENCE)
                sender.connect((net.addresses[0], _PORT))
            receiver = stack.enter_context(server.accept()[0])
            for one in (sender, receiver):
                one.setblocking(False)
            pairs.append((sender, receiver))
        yield pairs


def _write(sender: socket.socket, most: int = len(_CHUNK)) -> int:
    """Hand over what the system takes, and return how many bytes that was."""
    try:
        return sender.send(_CHUNK[:most] if most < len(_CHUNK) else _CHUNK)
    except BlockingIOError:
        return 0


def _read(receiver: socket.socket) -> int:
    """Read what has arrived, and return how many bytes that was."""
    try:
        return len(receiver.recv(1 << 20))
    except BlockingIOError:
        return 0
