"""Schemes that estimate a threshold and send every entry above it, over all-gather.

Nothing is sorted: a few passes over the gradient take the place of a top-k. In return the number of entries that a
worker sends is not k, but whatever its threshold lets through.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.gathered import Gathered, Sent
from simnet.sparsifier_models.selection import Indices, Values

# Blocks this short stay in the cache while they are converted and summed.
_BLOCK = 8192


class Found(NamedTuple):
    """What a worker found.

    Parameters
    ----------
    indices : ndarray of int64
        The entries it sends, ascending.
    threshold : float
        Magnitude by which they were selected.
    tries : int
        Thresholds it tried.
    kernels : sequence of DeviceOp
        What it ran.
    """

    indices: Indices
    threshold: float
    tries: int
    kernels: Sequence[DeviceOp]


def in_double(values: Values) -> Iterator[NDArray[np.float64]]:
    """Yield the values block by block in double precision.

    Examples
    --------
    >>> [block.sum() for block in in_double(np.ones(10000, dtype=np.float32))]
    [np.float64(8192.0), np.float64(1808.0)]
    """
    return (values[start : start + _BLOCK].astype(np.float64) for start in range(0, values.size, _BLOCK))


def moments(values: Values) -> tuple[float, float]:
    """Return mean and unbiased variance in double precision; of a single value it is 0. ValueError: no value.

    Examples
    --------
    >>> moments(np.array([1, 2, 3, 6], dtype=np.float32))
    (3.0, 4.666666666666667)
    """
    n = values.size
    if not n:
        raise ValueError("there is no value to average")
    mean = math.fsum(float(block.sum()) for block in in_double(values)) / n
    spread = math.fsum(float(np.square(block - mean).sum()) for block in in_double(values))
    return mean, spread / (n - 1) if n > 1 else 0.0


def side_by_side(runs: Sequence[Sequence[DeviceOp]]) -> tuple[DeviceOp, ...]:
    """Return the kernels that P workers run each on its own as kernels of all of them, with entries per worker.

    Examples
    --------
    >>> runs = [DeviceOp("scan", 10, launches=2)], [DeviceOp("scan", 10), DeviceOp("topk", 3)]
    >>> for one in side_by_side(runs):
    ...     print(one.method, one.entries)
    scan [10. 10.]
    scan [10.  0.]
    topk [0. 3.]
    """
    launched: dict[tuple[str, int], NDArray[Any]] = {}
    for worker, kernels in enumerate(runs):
        count: dict[str, int] = {}
        for one in kernels:
            for _ in range(one.launches):
                number = count[one.method] = count.get(one.method, 0) + 1
                launched.setdefault((one.method, number), np.zeros(len(runs)))[worker] = one.entries
    return tuple(DeviceOp(method, entries) for (method, _), entries in launched.items())


class Thresholded(Gathered):
    """Common part: a scheme of this kind says how a worker finds its threshold, and the entries by it.

    ``threshold`` is the one that each worker used. Besides the statistics of `Exchange` there is ``tries``, shape (P,),
    the thresholds that each worker tried.
    """

    searches_threshold = True
    sends_gain = False
    ascending = True

    @abstractmethod
    def _find(self, values: Values, worker: int) -> Found:
        """Return what a worker finds in its `values`, shape (n,)."""

    def _select(self, values: Values, worker: int) -> Indices:
        return self._find(values, worker).indices

    def _taken(self, corrected: Values) -> Iterator[Sent]:
        for found, sent in self._each(self._take_found, corrected):
            # The indices of all workers together could take more memory than the gradients.
            self._runs.append(found)
            yield sent

    def _take_found(self, row: Values, worker: int) -> tuple[Found, Sent]:
        found = self._find(row, worker)
        sent = self._send(row, found.indices)
        return found._replace(indices=np.zeros(0, dtype=np.int64)), sent

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return side_by_side([one.kernels for one in self._runs])

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        self._runs: list[Found] = []
        exchange = super()._communicate(corrected, gradients)
        exchange.stats["threshold"] = np.array([one.threshold for one in self._runs], dtype=np.float64)
        exchange.stats["tries"] = np.array([one.tries for one in self._runs], dtype=np.float64)
        return exchange
