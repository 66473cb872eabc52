"""How long a schedule should take on a star of TCP hosts, from the settings of its links alone.

What is added to simnet's network is what TCP over Ethernet is known to add:

- **Framing.** A segment has 1,448 bytes of payload and 90 bytes beside it: 52 of IP and TCP with time stamps, 38 of
  Ethernet with preamble and gap.
- **Storing before forwarding.** The switch forwards a frame when it has all of it, so the last full frame of a message
  is serialised once more.
- **Acknowledgements.** One for every second segment, 90 bytes, in the other direction, where they take time if that
  link has data of its own. They travel alone even between two ranks that send to each other: data that could carry them
  has been handed to the link before.
- **Software.** A time per message, measured once on an idle link of another setting.
- **Rendezvous.** Where the stack sends nothing before the receiver has said that it is ready, as gloo does
  (``NOTIFY_RECV_READY`` in its ``transport/tcp/pair.h``), each round is preceded by these short messages, in the other
  direction.

Connections are taken to be warm: their windows have grown to what a message needs. Windows that still grow, losses, and
processors that are short are not in it; nor are sends that are done before they are delivered, by which a rank that
sends twice, and receives nothing between, is a latency earlier.

References
----------
M. Allman, V. Paxson, E. Blanton, "TCP Congestion Control", RFC 5681 (acknowledgements of every second segment). D.
Borman et al., "TCP Extensions for High Performance", RFC 7323 (time stamps). IEEE 802.3 (framing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import topologies
from simnet.network import Network
from simnet.schedule import Round, Schedule
from simnet.weather import Weather, steps

SEGMENT = 1448
"""Payload of a full segment [byte]."""

BESIDE = 90
"""What goes over the wire beside the payload of a segment [byte]; the length of an acknowledgement, too."""

# The header of a message of gloo, six words.
_READY = 48


class Change(NamedTuple):
    """From when on all links have this latency [s] and bandwidth [byte/s]; times in seconds from the first, at 0."""

    at: float
    latency: float
    bandwidth: float


def on_the_wire(nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bytes that messages take on a wire.

    Examples
    --------
    >>> on_the_wire(np.array([0.0, 1448, 1449]))
    array([  91., 1538., 1629.])
    """
    payload = np.maximum(np.rint(nbytes), 1)
    wire: NDArray[np.float64] = payload + BESIDE * np.ceil(payload / SEGMENT)
    return wire


def framed(schedule: Schedule) -> Schedule:
    """Return the schedule with the bytes that its messages keep a link busy for.

    Examples
    --------
    >>> framed(Schedule(2, [Round([0], [1], 14480)])).rounds[0].nbytes
    array([16918.])
    """
    changed = {id(one): _framed(one, schedule.n_ranks) for one in schedule.rounds}
    return Schedule(schedule.n_ranks, [changed[id(one)] for one in schedule.rounds])


def with_rendezvous(schedule: Schedule) -> Schedule:
    """Return the schedule with a round before each of its own in which receivers tell their senders to send.

    Examples
    --------
    >>> with_rendezvous(Schedule(2, [Round([0], [1], 500)])).columns()["src"]
    array([1, 0])
    """
    before = {id(one): Round(one.dst, one.src, _READY, one.compute) for one in schedule.rounds}
    after = {id(one): Round(one.src, one.dst, one.nbytes, 0.0, one.phase) for one in schedule.rounds}
    return Schedule(schedule.n_ranks, [each for one in schedule.rounds for each in (before[id(one)], after[id(one)])])


def _framed(one: Round, ranks: int) -> Round:
    wire = on_the_wire(one.nbytes)
    segments = np.ceil(np.maximum(np.rint(one.nbytes), 1) / SEGMENT)
    answers = BESIDE * np.floor(segments / 2)
    up = np.bincount(one.dst, weights=answers, minlength=ranks) / np.maximum(np.bincount(one.src, minlength=ranks), 1)
    down = np.bincount(one.src, weights=answers, minlength=ranks) / np.maximum(np.bincount(one.dst, minlength=ranks), 1)
    beside = np.minimum(np.maximum(up[one.src], down[one.dst]), wire)
    again = np.minimum(wire, SEGMENT + BESIDE)
    return Round(one.src, one.dst, wire + beside + again, one.compute, one.phase)


def predict(
    schedule: Schedule,
    links: Sequence[Change],
    overhead: float,
    starts: Sequence[float] = (0.0,),
    *,
    rendezvous: bool = False,
) -> NDArray[np.float64]:
    """Return how long a schedule takes, for each moment at which it may start.

    Parameters
    ----------
    schedule : Schedule
        What is sent.
    links : sequence of Change
        What the links are like, from when on; the first at 0. One for links that do not change.
    overhead : float
        Seconds per message that the software takes.
    starts : sequence of float
        Seconds, >= 0.
    rendezvous : bool
        Whether receivers say that they are ready before anything is sent to them.

    Examples
    --------
    >>> bare = Schedule(2, [Round([0], [1], 14480)])
    >>> predict(bare, [Change(0, 1e-3, 1e6)], overhead=0).round(6)
    array([0.017918])
    """
    times = [one.at for one in links]
    first = links[0]
    graph = topologies.star(schedule.n_ranks, latency=first.latency, bandwidth=first.bandwidth)
    weather = {}
    if len(links) > 1:
        half, rate = steps(times, [one.latency / 2 for one in links]), steps(times, [one.bandwidth for one in links])
        weather = {edge: Weather(latency=half, bandwidth=rate) for edge in graph.edges}
    network = Network(graph, weather=weather, receive_overhead=overhead)
    sent = framed(with_rendezvous(schedule) if rendezvous else schedule)
    return np.array([float(network.time(sent, start=start).finish) - start for start in starts])
