"""Orders ranks in a ring so that the slowest pair of neighbours is fast, for uneven networks."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.network.network import Network

MOST_TRIED = 8
"""Largest number of ranks for which all orders are tried."""

_STARTS = 8


class RingOrder(NamedTuple):
    """A ring of ranks, and the time of its slowest pair of neighbours.

    Parameters
    ----------
    order : tuple of int
        The ranks, from 0 on; each sends to the next, the last to the first.
    slowest : float
        Time of the slowest neighbour pair [s].
    bound : float
        Lower bound of `slowest` over all rings [s].
    """

    order: tuple[int, ...]
    slowest: float
    bound: float


def pair_seconds(network: Network, hosts: list[int], nbytes: float, moment: float = 0.0) -> Floats:
    """Return the time [s] of a message of `nbytes` bytes from each host to each other, alone on the links; (P, P)."""
    found = np.zeros((len(hosts), len(hosts)))
    for (i, src), (j, dst) in itertools.permutations(enumerate(hosts), 2):
        latency, bandwidth = network.path(src, dst, moment)
        found[i, j] = latency + (nbytes / bandwidth if bandwidth else np.inf)
    return found


def ring_order(seconds: Floats) -> RingOrder:
    """Return the ring whose slowest pair of neighbours is fastest; of equal rings, the ring with the fewest such pairs.

    Up to `MOST_TRIED` ranks all orders are tried, ties decided by the sum. Beyond that, the given order and
    nearest-neighbour rings are improved by 3-opt moves at the slowest pair.

    Parameters
    ----------
    seconds : ndarray of float, shape (P, P)
        Time of a message from row to column [s]. The diagonal is ignored.

    Returns
    -------
    RingOrder
        `bound` is the smallest time at which each rank has a neighbour in both directions and all ranks are connected.

    Raises
    ------
    ValueError
        If it is not square, or empty.

    Examples
    --------
    Ranks 0 and 2 share a site, 1 and 3 another one.

    >>> far = np.array([[0, 9, 1, 9], [9, 0, 9, 1], [1, 9, 0, 9], [9, 1, 9, 0]], dtype=float)
    >>> ring_order(far)
    RingOrder(order=(0, 1, 3, 2), slowest=9.0, bound=9.0)
    """
    if seconds.ndim != 2 or seconds.shape[0] != seconds.shape[1] or not len(seconds):
        raise ValueError(f"seconds must be a square matrix, got shape {seconds.shape}")
    P = len(seconds)
    if P == 1:
        return RingOrder((0,), 0.0, 0.0)
    if P <= MOST_TRIED:
        every = np.array([(0, *rest) for rest in itertools.permutations(range(1, P))])
        best = every[_best_ring(seconds, every)]
        slowest = float(_pair_times(seconds, best).max())
        return RingOrder(tuple(best.tolist()), slowest, slowest)
    begun = np.array([_nearest_neighbours(seconds, first) for first in range(P)])
    ranked = sorted(range(P), key=lambda one: _ring_measure(seconds, begun[one]))
    # The order of rank numbers is a start, too, so that the result is never slower.
    tours = [np.arange(P), *(begun[one] for one in ranked[:_STARTS])]
    found = min((_improve_ring(seconds, one) for one in tours), key=lambda one: _ring_measure(seconds, one))
    at = int(np.argmin(found))
    order = np.roll(found, -at)
    return RingOrder(tuple(order.tolist()), float(_pair_times(seconds, order).max()), _ring_bound(seconds))


def _pair_times(seconds: Floats, tours: NDArray[np.int64]) -> Floats:
    """Return the time of each pair of neighbours in one ring or several, in ring order [s]; shape (..., P)."""
    found: Floats = seconds[tours, np.roll(tours, -1, axis=-1)]
    return found


def _ring_measure(seconds: Floats, tour: NDArray[np.int64]) -> tuple[float, int, float]:
    """Return the time of the slowest pair of neighbours [s], the number of such pairs, and the total time [s]."""
    taken = _pair_times(seconds, tour)
    return float(taken.max()), int((taken == taken.max()).sum()), float(taken.sum())


def _best_ring(seconds: Floats, tours: NDArray[np.int64]) -> int:
    """Return the index of the best ring: by its slowest pair, then by the number of such pairs, then by total time."""
    taken = _pair_times(seconds, tours)
    slowest = taken.max(axis=1)
    many = (taken == slowest[:, np.newaxis]).sum(axis=1)
    return int(np.lexsort((taken.sum(axis=1), many, slowest))[0])


def _nearest_neighbours(seconds: Floats, first: int) -> list[int]:
    """Return the ring that starts at `first` and always continues with the nearest remaining rank."""
    tour, left = [first], set(range(len(seconds))) - {first}
    while left:
        here = seconds[tour[-1]]
        tour.append(min(left, key=lambda one: (here[one], one)))
        left.remove(tour[-1])
    return tour


def _improve_ring(seconds: Floats, tour: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ring after 2-opt and 3-opt moves at its slowest pair, until no move improves it."""
    P = len(tour)
    while True:
        # The slowest pair is the one that closes the ring.
        tour = np.roll(tour, -1 - int(np.argmax(_pair_times(seconds, tour))))
        near = [tour]
        for i, j in itertools.combinations(range(1, P + 1), 2):
            a, b, c = tour[:i], tour[i:j], tour[j:]
            near += [np.concatenate(one) for one in ((b, a, c), (a[::-1], b, c), (b[::-1], a, c), (b, a[::-1], c))]
        best = near[_best_ring(seconds, np.array(near))]
        # Not the sum, whose last bits go by where the ring begins.
        if _ring_measure(seconds, best)[:2] >= _ring_measure(seconds, tour)[:2]:
            return tour
        tour = best


def _ring_bound(seconds: Floats) -> float:
    """Return a lower bound on the slowest pair of neighbours over all rings [s]."""
    # Takes longer to load than most commands to answer, and few of them order a ring.
    from networkx import DiGraph, from_numpy_array, is_strongly_connected

    others = np.where(np.eye(len(seconds), dtype=np.bool_), np.inf, seconds)
    values = np.unique(others)
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        near: DiGraph[int] = from_numpy_array(others <= values[middle], create_using=DiGraph)
        low, high = (low, middle) if is_strongly_connected(near) else (middle + 1, high)
    return float(values[low])
