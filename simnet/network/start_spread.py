"""Spread of an exchange's duration over random start times of its ranks, which differ by microseconds.

On a stack with software, a control message or a message of another host may come just before or after a message of
megabytes, and then waits for all of it. So microseconds matter, and one timing is one draw of many: with gloo an
all-gather of 6 MB each on a fat-tree takes 359 ms at a latency of 1 us and 414 ms at 2 us. Real ranks leave the
previous call as far apart as its last messages travel, so each enters up to `SKEW` and the longest latency late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats, Ranks
from simnet.base.quantities import Seconds
from simnet.base.rng import stream
from simnet.network.network import Network
from simnet.network.program import Computing
from simnet.schedule import Schedule

DRAWS = 15
"""Number of jittered entries, in addition to the simultaneous one."""

SKEW = 5e-6
"""Spread of entries on links without latency [s]: about a system call and a thread switch."""

MOST_MESSAGES = 10_000
"""Largest exchange that is sampled; more would take minutes."""

SAME = 1e-3
"""Relative difference of times below which they count as the same draw."""


class StartSpread(NamedTuple):
    """Distribution of an exchange's duration when its ranks enter at slightly different times.

    Parameters
    ----------
    median, low, high : float
        Median, minimum and maximum [s], from the last entry to the last completion.
    at_once : float
        Duration with simultaneous entry [s], one of the draws.
    skew : float
        Maximum delay of a rank's entry [s].
    draws : int
        Number of timings.
    """

    median: float
    low: float
    high: float
    at_once: float
    skew: float
    draws: int


def has_start_spread(network: Network, schedule: Schedule) -> bool:
    """Return whether slightly different entry times can reorder messages: only if the library takes CPU time."""
    return network.stack.has_software and schedule.n_messages > 0


def longest_latency(network: Network, schedule: Schedule, hosts: Ranks, start: Seconds = 0.0) -> float:
    """Return the longest latency [s] at time `start` [s] between ranks that exchange messages."""
    pairs = {(src, dst) for one in schedule.rounds for src, dst in zip(hosts[one.src], hosts[one.dst], strict=True)}
    return max((network.path(int(src), int(dst), start)[0] for src, dst in pairs), default=0.0)


def start_spread(
    network: Network,
    schedule: Schedule | Sequence[tuple[Schedule, Floats]],
    hosts: Ranks,
    start: Seconds = 0.0,
    *,
    ready: ArrayLike = 0.0,
    computing: Computing | None = None,
    seed: int = 0,
    name: tuple[str | int, ...] = (),
    most: int = MOST_MESSAGES,
) -> StartSpread | None:
    """Return how an exchange's duration varies with random entry times; None if it cannot, or has over `most` messages.

    Parameters
    ----------
    network : Network
        The network.
    schedule : Schedule or sequence of (Schedule, ready)
        As for `Network.time`.
    hosts : ndarray of int, shape (P,)
        The host of each rank.
    start : float
        The time from which all other times count [s].
    ready : array_like, shape (P,)
        When each rank may enter, or begins to compute [s after the start].
    computing : Computing, optional
        As for `Network.time`.
    seed : int
        Seed of the entries.
    name : tuple of str or int
        Random stream of the messages, as for `Network.time`.
    most : int
        Maximum number of messages.

    Examples
    --------
    >>> from simnet.collectives import allreduce_ring
    >>> from simnet.topologies import star
    >>> network = Network(star(4, latency=1e-3, bandwidth=1e9), stack="gloo")
    >>> found = start_spread(network, allreduce_ring(4, 4e6), np.arange(4))
    >>> found.low <= found.at_once <= found.high, found.draws, round(found.skew, 6)
    (True, 16, 0.001005)
    """
    parts = [(schedule, np.zeros(schedule.n_ranks))] if isinstance(schedule, Schedule) else schedule
    sends = [one for one, _ in parts if has_start_spread(network, one)]
    if not sends or sum(one.n_messages for one in sends) > most:
        return None
    n_ranks = sends[0].n_ranks
    skew = SKEW + max(longest_latency(network, one, hosts, start) for one in sends)
    begins = np.broadcast_to(np.asarray(ready, dtype=np.float64), n_ranks)
    enters = np.maximum(begins, parts[-1][1])
    took = np.empty(1 + DRAWS)
    for number in range(took.size):
        late = stream(seed, "start times", number).uniform(0.0, skew, n_ranks) if number else np.zeros(n_ranks)
        timing = network.time(
            [(one, at + late) for one, at in parts],
            begins + late,
            placement=hosts,
            stream=name,
            origin=start,
            computing=computing,
        )
        took[number] = timing.lasts_from(start + float((enters + late).max()))
    return StartSpread(float(np.median(took)), float(took.min()), float(took.max()), float(took[0]), skew, took.size)


def offsets_of_sum(
    seconds: Floats, labels: Sequence[str], times: Floats, spreads: Mapping[str, StartSpread]
) -> tuple[float, float]:
    """Return by how much [s] the total time of several exchanges can fall and rise if ranks enter microseconds apart.

    Exchanges of equal time, to `SAME`, count as one draw; others are independent, so that their spread averages out.
    The median may shift the sum either way.

    Parameters
    ----------
    seconds : ndarray, shape (N,)
        Duration of each with simultaneous entry [s].
    labels : sequence of str, length N
        Its key in `spreads`.
    times : ndarray, shape (N,)
        How often each counts.
    spreads : mapping of str to StartSpread
        Known spreads.

    Examples
    --------
    >>> one = {"ring": StartSpread(1.1, 1.0, 1.3, 1.0, 5e-6, 16)}
    >>> [round(end, 3) for end in offsets_of_sum(np.ones(9), ["ring"] * 9, np.ones(9), one)]
    [0.0, 2.7]
    >>> [round(end, 3) for end in offsets_of_sum(np.arange(1.0, 10.0), ["ring"] * 9, np.ones(9), one)]
    [0.0, 1.5]
    """
    each, bins = np.asarray(labels), np.rint(np.log(np.maximum(seconds, 1e-300)) / SAME)
    known: list[tuple[StartSpread, float]] = []
    for label, one in spreads.items():
        of = each == label
        draws = np.unique(bins[of], return_inverse=True)[1]
        known += [(one, count) for count in np.bincount(draws, weights=times[of]).tolist()]
    shift = math.fsum(count * (one.median - one.at_once) for one, count in known)
    less = math.hypot(*(count * (one.median - one.low) for one, count in known))
    more = math.hypot(*(count * (one.high - one.median) for one, count in known))
    return min(shift - less, 0.0), max(shift + more, 0.0)
