"""How much the time of an exchange depends on when exactly its ranks enter: a small sample of jittered starts.

On a stack with software a word between libraries, or a message of another host, may come just before or just after a
message of megabytes, and then waits for all of it. So microseconds decide, and one timing is one draw of many: under
gloo an all-gather of 6 MB each on a fat-tree takes 359 ms at a latency of 1 us and 414 ms at 2 us. Real ranks leave the
call before an exchange as far apart as its last words travel, so each enters up to `SKEW` and the longest latency late.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Ranks
from simnet.base.quantities import Seconds
from simnet.base.rng import stream
from simnet.network.component import Network
from simnet.schedule import Schedule

DRAWS = 15
"""Jittered entries that are timed, beside the one in which all ranks enter at once."""

SKEW = 5e-6
"""How far apart ranks enter on links without latency [s]: what a system call and a switch of threads take."""

MOST_MESSAGES = 10_000
"""Messages of a schedule that is sampled; more would take minutes."""


class StartSpread(NamedTuple):
    """Durations of an exchange whose ranks enter a little apart.

    Parameters
    ----------
    median, low, high : float
        Median, least and most [s], from when the last rank enters until the last one is done.
    at_once : float
        The same if no rank is late [s]: one of the draws.
    skew : float
        How late a rank enters at most [s].
    draws : int
        Timings.
    """

    median: float
    low: float
    high: float
    at_once: float
    skew: float
    draws: int


def has_start_spread(network: Network, schedule: Schedule) -> bool:
    """Return whether microseconds may decide the order in which messages go: where the stack has software."""
    return network.stack.has_software and schedule.n_messages > 0


def longest_latency(network: Network, schedule: Schedule, hosts: Ranks, start: Seconds = 0.0) -> float:
    """Return the longest latency from a rank to one that it sends to [s], as it is at `start` [s]."""
    pairs = {(src, dst) for one in schedule.rounds for src, dst in zip(hosts[one.src], hosts[one.dst], strict=True)}
    return max((network.path(int(src), int(dst), start)[0] for src, dst in pairs), default=0.0)


def start_spread(
    network: Network,
    schedule: Schedule,
    hosts: Ranks,
    start: Seconds = 0.0,
    *,
    ready: ArrayLike = 0.0,
    seed: int = 0,
    name: tuple[str | int, ...] = (),
    most: int = MOST_MESSAGES,
) -> StartSpread | None:
    """Time an exchange with ranks that enter a little apart; None where that decides nothing, or it is too large.

    Parameters
    ----------
    network : Network
        The network.
    schedule : Schedule
        What is sent.
    hosts : ndarray of int, shape (P,)
        The host of each rank.
    start : float
        The moment from which all else counts [s].
    ready : array_like, shape (P,)
        When each rank may enter [s after the start].
    seed : int
        Seed of the entries.
    name : tuple of str or int
        The random stream of what is drawn for messages, as of `Network.time`.
    most : int
        Messages of a schedule that is not too large.

    Examples
    --------
    >>> from simnet.collectives import allreduce_ring
    >>> from simnet.topologies import star
    >>> network = Network(star(4, latency=1e-3, bandwidth=1e9), stack="gloo")
    >>> found = start_spread(network, allreduce_ring(4, 4e6), np.arange(4))
    >>> found.low <= found.at_once <= found.high, found.draws, round(found.skew, 6)
    (True, 16, 0.001005)
    """
    if not has_start_spread(network, schedule) or schedule.n_messages > most:
        return None
    skew = SKEW + longest_latency(network, schedule, hosts, start)
    entries = np.tile(np.broadcast_to(np.asarray(ready, dtype=np.float64), schedule.n_ranks), (1 + DRAWS, 1))
    for number in range(1, 1 + DRAWS):
        entries[number] += stream(seed, "start times", number).uniform(0.0, skew, schedule.n_ranks)
    timings = [network.time(schedule, one, placement=hosts, stream=name, origin=start) for one in entries]
    took = np.array(
        [one.lasts_from(start + float(entered.max())) for one, entered in zip(timings, entries, strict=True)]
    )
    return StartSpread(float(np.median(took)), float(took.min()), float(took.max()), float(took[0]), skew, took.size)
