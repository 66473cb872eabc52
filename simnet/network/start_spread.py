"""How much the time of an exchange depends on when exactly its ranks enter: a small sample of jittered starts.

On a stack with software a word between libraries, or a message of another host, may come just before or just after a
message of megabytes, and then waits for all of it. So microseconds decide, and one timing is one draw of many: under
gloo an all-gather of 6 MB each on a fat-tree takes 359 ms at a latency of 1 us and 414 ms at 2 us. Real ranks leave the
call before an exchange as far apart as its last words travel, so each enters up to `SKEW` and the longest latency late.
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
from simnet.network.compute_stream import Computing
from simnet.network.network import Network
from simnet.schedule import Schedule

DRAWS = 15
"""Jittered entries that are timed, beside the one in which all ranks enter at once."""

SKEW = 5e-6
"""How far apart ranks enter on links without latency [s]: what a system call and a switch of threads take."""

MOST_MESSAGES = 10_000
"""Messages of an exchange that is sampled; more would take minutes."""

SAME = 1e-3
"""Relative difference of times below which they are taken for those of the same draw."""


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
    """Time an exchange with ranks that enter a little apart; None where that decides nothing, or it is too large.

    Parameters
    ----------
    network : Network
        The network.
    schedule : Schedule or sequence of (Schedule, ready)
        What is sent; with a sequence, one after another, as of `Network.time`.
    hosts : ndarray of int, shape (P,)
        The host of each rank.
    start : float
        The moment from which all else counts [s].
    ready : array_like, shape (P,)
        When each rank may enter, or begins to compute [s after the start].
    computing : Computing, optional
        What ranks compute beside, as of `Network.time`.
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
    """Return by how much a sum of exchanges may be less, and more, as ranks enter a little apart [s].

    Exchanges that take the same time, to `SAME`, are one draw that stands for all of them; others are draws of their
    own, of which less is left in the sum. Either way the sum may be as far off as a median is from ranks that enter at
    once.

    Parameters
    ----------
    seconds : ndarray, shape (N,)
        How long each lasted, with all ranks entering at once [s].
    labels : sequence of str, length N
        What was exchanged, as `spreads` names it.
    times : ndarray, shape (N,)
        How often each counts.
    spreads : mapping of str to StartSpread
        Those of the exchanges; of one that is not there nothing is known.

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
