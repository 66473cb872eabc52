"""Max-min fair shares of flows that all start at once: the solver of the event loop, asked directly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.network.tables import Store
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
    store.loop.settle(store.state, 0.0)
    rates[flowing] = store.flows.read("rate", 0, flowing.size)
    return [float(rate) for rate in rates]


def shared(
    table: NDArray[np.int64], bandwidth: NDArray[np.float64], limits: NDArray[np.float64], *, compiled: bool
) -> Store:
    """Return a state in which flows have just started, and wait for `settle` to set their rates.

    Parameters
    ----------
    table : ndarray of int, shape (m, L)
        Links of each flow, at least one, -1 after the last.
    bandwidth : ndarray of float, shape (number of links,)
        Bytes per second of each link.
    limits : ndarray of float, shape (m,)
        Bytes per second that each flow takes at most.
    compiled : bool
        Whether to use the compiled event loop, if there is one.
    """
    count = len(table)
    store = Store(compiled, len(bandwidth), table.shape[1])
    store.links.write(0, len(bandwidth), capacity=bandwidth)
    store.make_room(flows=count)
    store.flows.write(0, count, route=store.add_routes(table) + np.arange(count), limit=limits, remaining=math.inf)
    store.loop.start_all(store.state, 0, count, 0.0)
    return store
