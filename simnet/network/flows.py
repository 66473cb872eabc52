"""Max-min fair shares of links, as flows have them that all start at once: the kernel's solver, asked directly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.network import event_loop as k
from simnet.network.memory import Store
from topologies.routes import as_table

# From so many flows on the compiled solver is worth loading.
_MANY = 2_000


def max_min_shares(
    routes: Sequence[Sequence[int]] | NDArray[np.int64],
    capacity: Mapping[int, float] | ArrayLike,
    limits: ArrayLike | None = None,
) -> list[float]:
    """Return the max-min fair rate of each flow.

    No flow's rate can grow without shrinking that of a flow with an equal or smaller rate.

    Parameters
    ----------
    routes : sequence of sequences of int, or ndarray of shape (m, L)
        Links of each flow; in an array, -1 after the last. A flow without links is bounded by its limit alone.
    capacity : mapping of int to float, or array_like
        Bytes per second of each link that a route names, >= 0.
    limits : array_like of float, shape (m,), optional
        Bytes per second that each flow takes at most.

    Returns
    -------
    list of float
        Bytes per second of each flow; infinite for a flow with neither links nor limit.

    References
    ----------
    D. Bertsekas, R. Gallager, "Data Networks", 2nd ed., section 6.5.2.

    Examples
    --------
    >>> max_min_shares([(0,), (0, 1), (1,)], {0: 10.0, 1: 4.0})
    [8.0, 2.0, 2.0]
    """
    table = routes if isinstance(routes, np.ndarray) else as_table(routes)
    if isinstance(capacity, Mapping):
        # Links may have any numbers; here they stand in a row.
        links, numbers = np.unique(table[table >= 0], return_inverse=True)
        table = table.copy()
        table[table >= 0] = numbers
        bandwidth = np.array([capacity[link] for link in links.tolist()], dtype=np.float64)
    else:
        bandwidth = np.asarray(capacity, dtype=np.float64)
    most = np.full(len(table), math.inf) if limits is None else np.asarray(limits, dtype=np.float64)
    rates = most.copy()
    flowing = np.flatnonzero(table[:, 0] >= 0) if table.size else np.zeros(0, dtype=np.int64)
    store = shared(table[flowing], bandwidth, most[flowing], compiled=len(flowing) >= _MANY)
    store.kernel.settle(store.memory, 0.0)
    flows = store.flows[: flowing.size]
    rates[flowing] = store.read("x", flows[0] + k.FLOW_RATE, len(flows), store.flow_size()) if flows else ()
    return [float(rate) for rate in rates]


def shared(
    table: NDArray[np.int64], bandwidth: NDArray[np.float64], limits: NDArray[np.float64], *, compiled: bool
) -> Store:
    """Return a memory in which flows have just started, and wait for `kernel.settle` to give them their rates.

    Parameters
    ----------
    table : ndarray of int, shape (m, L)
        Links of each flow, at least one, -1 after the last.
    bandwidth : ndarray of float, shape (number of links,)
        Bytes per second of each link.
    limits : ndarray of float, shape (m,)
        Bytes per second that each flow takes at most.
    compiled : bool
        Whether to use the compiled kernel, if there is one.
    """
    count = len(table)
    store = Store(compiled, len(bandwidth), table.shape[1])
    store.links("x", k.LINK_CAPACITY, bandwidth)
    store.make_room(flows=count)
    way = store.take(count * store.way_size())
    store.lay_ways(way, table)
    first, size = store.flows[0] if count else 0, store.flow_size()
    store.write("n", first + k.FLOW_WAY, count, way + store.way_size() * np.arange(count), size)
    store.write("x", first + k.FLOW_LIMIT, count, limits, size)
    store.write("x", first + k.FLOW_REMAINING, count, math.inf, size)
    store.kernel.start_all(store.memory, first, count, size, 0.0)
    return store
