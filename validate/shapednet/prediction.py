"""How long a schedule should take on a star of TCP hosts, from the settings of its links alone.

What is added to the settings is what TCP over Ethernet is known to add:

- **Framing.** A segment has 1,448 bytes of payload and 90 bytes beside it: 52 of IP and TCP with time stamps, 38 of
  Ethernet with preamble and gap.
- **Storing before forwarding.** The switch forwards a frame when it has all of it, so a frame of a message is
  serialised again.
- **Acknowledgements.** 90 bytes in the other direction, where they take time if that link has data of its own. They
  travel alone even between two ranks that send to each other: data that could carry them has been handed to the link
  before. There is one for every second segment, or, where the network device cuts segments and puts them together
  again, one for 64 KiB.
- **Software.** A time per message, and perhaps one per byte, measured once on an idle link of another setting.
- **What a send waits for.** See `validate.shapednet.clock`: nothing, or words of the receiver, as gloo's
  ``NOTIFY_RECV_READY`` (``transport/tcp/pair.h``), or the rendezvous of MPI for messages above its eager limit.

Connections are taken to be warm: their windows have grown to what a message needs. Windows that still grow, losses, and
processors that are short are not in it.

References
----------
M. Allman, V. Paxson, E. Blanton, "TCP Congestion Control", RFC 5681 (acknowledgements of every second segment). D.
Borman et al., "TCP Extensions for High Performance", RFC 7323 (time stamps). IEEE 802.3 (framing).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simnet.schedule import Round, Schedule
from validate.shapednet.clock import BESIDE, SEGMENT, Change, Stack, rank_finish

__all__ = ["BESIDE", "SEGMENT", "Change", "Stack", "framed", "on_the_wire", "predict", "sent"]


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


def sent(schedule: Schedule, acknowledged: int = 2 * SEGMENT) -> list[NDArray[np.float64]]:
    """Return, for each round, the bytes for which its messages keep a link busy: framed, and with acknowledgements.

    Parameters
    ----------
    schedule : Schedule
        What is sent.
    acknowledged : int
        Bytes for which there is one acknowledgement.

    Examples
    --------
    >>> each, one = sent(Schedule(2, [Round([0, 1], [1, 0], 14480), Round([0], [1], 14480)]))
    >>> each, one
    (array([15830., 15830.]), array([15380.]))
    """
    known = {id(one): _sent(one, schedule.n_ranks, acknowledged) for one in schedule.rounds}
    return [known[id(one)] for one in schedule.rounds]


def framed(schedule: Schedule) -> Schedule:
    """Return the schedule with the bytes that its messages take up a link, the frame that is serialised again included.

    On simnet's network it takes as long as `predict` says wherever no rank sends twice without receiving between.

    Examples
    --------
    >>> framed(Schedule(2, [Round([0], [1], 14480)])).rounds[0].nbytes
    array([16918.])
    """
    frame = SEGMENT + BESIDE
    changed = {
        id(one): Round(one.src, one.dst, busy + np.minimum(on_the_wire(one.nbytes), frame), one.compute, one.phase)
        for one, busy in zip(schedule.rounds, sent(schedule), strict=True)
    }
    return Schedule(schedule.n_ranks, [changed[id(one)] for one in schedule.rounds])


def _sent(one: Round, ranks: int, acknowledged: int) -> NDArray[np.float64]:
    wire = on_the_wire(one.nbytes)
    segments = np.ceil(np.maximum(np.rint(one.nbytes), 1) / SEGMENT)
    answers = BESIDE * np.floor(segments / max(1, acknowledged // SEGMENT))
    up = np.bincount(one.dst, weights=answers, minlength=ranks) / np.maximum(np.bincount(one.src, minlength=ranks), 1)
    down = np.bincount(one.src, weights=answers, minlength=ranks) / np.maximum(np.bincount(one.dst, minlength=ranks), 1)
    total: NDArray[np.float64] = wire + np.minimum(np.maximum(up[one.src], down[one.dst]), wire)
    return total


def predict(
    schedule: Schedule, links: Sequence[Change], stack: Stack, starts: Sequence[float] = (0.0,)
) -> NDArray[np.float64]:
    """Return how long a schedule takes, for each moment at which it may start.

    Parameters
    ----------
    schedule : Schedule
        What is sent.
    links : sequence of Change
        What the links are like, from when on; the first at 0. One for links that do not change.
    stack : Stack
        How it is sent.
    starts : sequence of float
        Seconds, >= 0.

    Examples
    --------
    >>> bare = Schedule(2, [Round([0], [1], 14480)])
    >>> predict(bare, [Change(0, 1e-3, 1e6)], Stack()).round(6)
    array([0.017918])
    """
    wire = sent(schedule, stack.acknowledged)
    ranks = schedule.n_ranks
    finish = [rank_finish(schedule, wire, links, stack, [start] * ranks).max() for start in starts]
    took: NDArray[np.float64] = np.array(finish) - np.asarray(starts)
    return took
