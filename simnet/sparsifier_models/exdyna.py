"""Threshold schemes in which each worker searches only its own partition: ExDyna, MiCRO.

The partitions tile the gradient, so that no two workers select the same entry: nothing builds up, and a worker's scan
is P times shorter. In every iteration the workers move on to the next partition, and one threshold, scaled after the
number of entries selected in the iteration before, keeps the density near its target.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.cost_models.costs import exdyna
from simnet.cost_models.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.carried_threshold import CarriedThreshold, FirstThresholdOptions, bounded
from simnet.sparsifier_models.selection import Indices, Values, above


def start_factor(ratio: float, exchange: int) -> float:
    """Return the factor by which the threshold changes in the first exchanges after an estimate; not in the paper.

    While residuals build up, the k-th largest magnitude grows by at most a fraction 1 / t in exchange t. The threshold
    may grow by as much, which soon is less than the published step. `ratio` is the number of selected entries over k.
    With the published steps a threshold takes 200 ln f iterations to change by a factor f.
    """
    return math.exp(float(np.clip(math.log(ratio) / 8, -1 / exchange, 1 / exchange)))


# Of the reference implementation, below, in and above a band of the entries selected over k. In the band the threshold
# still rises, so that the density settles near the lower end.
_BAND, _FACTORS = (0.909, 1.1), (0.995, 1.00125, 1.005)


def threshold_factor(selected: int, k: int) -> float:
    """Return the factor by which the threshold changes after an exchange with `selected` entries in place of `k`."""
    return _FACTORS[int(np.searchsorted(_BAND, selected / k))]


class Partitioned(CarriedThreshold, disjoint=True, state=("inefficiency", "since_start"), history=("counts",)):
    """Base of threshold schemes in which each worker searches one partition; subclasses define the partitions.

    Scheme-specific statistics beside those of `UnionReduced`:

    =====================  ============================================================================
    ``partition_start``    (P,) where each partition starts
    ``partition_end``      (P,) where it ends; that entry is not in it
    ``rank_to_partition``  (P,) the partition that each worker searched
    ``acc_inefficiency``   sum of ``imbalance`` - 1 over all iterations so far
    =====================  ============================================================================
    """

    options: FirstThresholdOptions

    def _set_up(self) -> None:
        super()._set_up()
        self.since_start = 0
        # Of the iteration before; without entries before the first one.
        self.counts = np.zeros(0, dtype=np.int64)
        self.inefficiency = 0.0

    @abstractmethod
    def _partitions(self) -> Indices:
        """Return the start indices of the P partitions in this exchange, and the end of the last; shape (P + 1,)."""

    def advance(self, estimate: Callable[[], Floats]) -> None:
        """Set the next partitions and thresholds; thresholds adapt to how many entries the last exchange selected.

        `estimate` returns estimated thresholds, shape (P,), for workers whose threshold is not set yet.
        """
        self._edges = self._partitions()
        self._first = self._begins and self._estimates
        if self._begins:
            self.threshold = estimate() if self._first else self._first_threshold()
            self.since_start = 0
        else:
            selected = int(self.counts.sum())
            self.since_start += 1
            factor = threshold_factor(selected, self.k)
            if self._estimates and self.options.start == "estimated":
                factor *= start_factor(selected / self.k, self.since_start)
            self.threshold = bounded(self.threshold * factor)
        self.threshold_density = self.density

    def searched(self, worker: int) -> tuple[int, int, float]:
        """Return the start, the end and the threshold of the partition that a worker searches."""
        p = (self.iteration + worker) % self.workers
        return int(self._edges[p]), int(self._edges[p + 1]), float(self.threshold[worker])

    def record(self, selected: Indices) -> None:
        """Store the number of entries that each worker selected, shape (P,), for use in the next exchange."""
        # Cyclic rotation: p = (t + r) mod P.
        self.counts = np.zeros(self.workers, dtype=np.int64)
        self.counts[(self.iteration + np.arange(self.workers)) % self.workers] = selected

    @property
    def enough(self) -> float:
        """Minimum number of selected entries for a representative gradient sample: at least three per partition."""
        return max(super().enough, 3.0 * self.workers)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        self.advance(lambda: self._estimated(corrected))
        exchange = super()._communicate(corrected, gradients)
        self.record(exchange.selected)
        p = (self.iteration + np.arange(self.workers)) % self.workers
        self.inefficiency += self.workers * float(exchange.stats["k_max"]) / exchange.union - 1.0
        exchange.stats |= {
            "threshold": self.threshold.copy(),
            "partition_start": self._edges[:-1].astype(np.float64),
            "partition_end": self._edges[1:].astype(np.float64),
            "rank_to_partition": p.astype(np.float64),
            "acc_inefficiency": self.inefficiency,
        }
        return exchange

    def _select(self, values: Values, worker: int) -> Indices:
        """Return the indices in the worker's partition with magnitudes >= its threshold, but at least one index."""
        start, end, threshold = self.searched(worker)
        found = above(values[start:end], threshold, strict=False)
        if not found.size and start < end:
            found = np.array([self.iteration % (end - start)])
        return start + found

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        p = (self.iteration + np.arange(self.workers)) % self.workers
        estimate = self._estimating_kernels() if self._first else ()
        return (*estimate, DeviceOp("scan", np.diff(self._edges)[p]))


def block_layout(parameters: int, workers: int, blocks: int = 1024) -> tuple[int, int]:
    """Return the number and size of a gradient's blocks; the last worker also gets entries that fill no block.

    Sizes are multiples of 32. A gradient too short for that, which the reference implementation does not support, has
    blocks of ``parameters // blocks`` entries, at least one.
    """
    blocks = max(blocks, workers)
    size = parameters // blocks
    if size >= 32:
        return blocks, size - size % 32
    size = max(size, 1)
    return parameters // size, size


def allocate(
    part: NDArray[np.int64],
    counts: NDArray[np.int64],
    *,
    moved: int,
    minimum: float,
) -> NDArray[np.int64]:
    """Return the number of blocks per partition, after overloaded ones each gave a block to an underloaded neighbour.

    Parameters
    ----------
    part : ndarray of int64, shape (P,)
        Blocks of each partition.
    counts : ndarray of int64, shape (P,)
        Entries selected in each in the iteration before.
    moved : int
        Entries that are taken to move with a block.
    minimum : float
        Blocks that a partition keeps at least.

    References
    ----------
    D. Yoon, S. Oh, "Preserving Near-Optimal Gradient Sparsification Cost for Scalable Distributed Deep Learning",
    CCGrid 2024, and the reference implementation.
    """
    blocks, k = part.tolist(), counts.tolist()
    # Of the reference implementation: a block moves if one of a pair exceeds, and the other is below, so many averages.
    give_above, take_below = 1.05, 0.95238
    average = sum(k) // len(k)
    # Fewer entries than workers, which is possible only if some partitions are empty.
    if not average:
        return part
    for i in range(len(k) - 1):
        a, b = k[i] / average, k[i + 1] / average
        if a > give_above and b < take_below:
            giver, taker = i, i + 1
        elif a < take_below and b > give_above:
            giver, taker = i + 1, i
        else:
            continue
        if blocks[giver] - 1 >= minimum:
            blocks[giver] -= 1
            blocks[taker] += 1
            k[giver] -= moved
            k[taker] += moved
    return np.array(blocks, dtype=np.int64)


class ExDynaOptions(FirstThresholdOptions):
    """Options of `ExDyna`.

    Parameters
    ----------
    blocks : int
        Blocks that the gradient is cut into, >= 1; see `block_layout`.
    """

    blocks: Count = 1024


class ExDyna(Partitioned, separable=True, state=("blk_part",), costs=(exdyna,)):
    """ExDyna: each worker selects by a threshold in its own partition of the gradient; partitions rotate and adapt.

    Statistics beside those of `Partitioned`: ``blk_part`` and ``blk_pos``, (P,), blocks in each partition and before
    it; ``blocks_moved``, blocks that changed their partition before this exchange.

    Attributes
    ----------
    num_blk, sz_blk : int
        Number and size of the blocks.
    min_blk : float
        Blocks that a partition keeps at least: a quarter of the average.

    References
    ----------
    D. Yoon, S. Oh, "Preserving Near-Optimal Gradient Sparsification Cost for Scalable Distributed Deep Learning",
    CCGrid 2024, and the reference implementation, which scales the threshold before it selects.

    Examples
    --------
    Two workers, each with its half; in the next iteration they change places.

    >>> model = ExDyna(workers=2, parameters=4, density=0.5, initial_threshold=3)
    >>> exchange = model.exchange(np.array([[4, 3, 9, 0], [9, 0, 1, -8]], dtype=np.float32))
    >>> exchange.update, exchange.selected
    (array([ 6.5,  1.5,  0. , -4. ], dtype=float32), array([2, 1]))
    >>> model.residual
    array([[0., 0., 9., 0.],
           [0., 0., 1., 0.]], dtype=float32)
    >>> exchange.schedule.bytes_sent()
    array([24., 24.])
    """

    name = "exdyna"
    paper = "Yoon and Oh, CCGrid 2024, arXiv 2402.13781"
    options: ExDynaOptions

    def _set_up(self) -> None:
        super()._set_up()
        self.num_blk, self.sz_blk = block_layout(self.parameters, self.workers, self.options.blocks)
        self.min_blk = self.num_blk / (4 * self.workers)
        i = np.arange(self.workers)
        self.blk_part = self.num_blk // self.workers + (i < self.num_blk % self.workers)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        before = self.blk_part
        exchange = super()._communicate(corrected, gradients)
        blk_pos = np.cumsum(self.blk_part) - self.blk_part
        exchange.stats |= {"blk_part": self.blk_part.astype(np.float64), "blk_pos": blk_pos.astype(np.float64)}
        exchange.stats["blocks_moved"] = float(np.abs(self.blk_part - before).sum()) / 2
        return exchange

    def _partitions(self) -> Indices:
        if self.counts.size:
            K_prev = int(self.counts.sum())
            self.blk_part = allocate(
                self.blk_part,
                self.counts,
                moved=int(self.sz_blk * (K_prev / self.parameters)),
                minimum=self.min_blk,
            )
        edges = np.concatenate([[0], np.cumsum(self.blk_part)]) * self.sz_blk
        edges[-1] = self.parameters
        return edges


class MiCRO(Partitioned, separable=True, costs=(exdyna,)):
    """MiCRO: each worker selects by a threshold in one of P equal partitions, which rotate among workers.

    References
    ----------
    D. Yoon, S. Oh, "MiCRO: Near-Zero Cost Gradient Sparsification for Scaling and Accelerating Distributed DNN
    Training", HiPC 2023, arXiv 2310.00967, and the reference implementation.

    Examples
    --------
    Nothing in the second half is as large as the threshold; one entry of it is sent all the same.

    >>> model = MiCRO(workers=2, parameters=4, density=0.5, initial_threshold=3)
    >>> exchange = model.exchange(np.array([[4, 3, 9, 0], [9, 0, 1, -2]], dtype=np.float32))
    >>> exchange.update, exchange.selected
    (array([6.5, 1.5, 5. , 0. ], dtype=float32), array([2, 1]))
    """

    name = "micro"
    paper = "Yoon and Oh, HiPC 2023, arXiv 2310.00967"

    def _partitions(self) -> Indices:
        i = np.arange(self.workers + 1)
        quotient, remainder = divmod(self.parameters, self.workers)
        return quotient * i + np.minimum(i, remainder)
