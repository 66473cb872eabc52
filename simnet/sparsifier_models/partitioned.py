"""Threshold schemes in which every worker searches a partition of its own: ExDyna, MiCRO.

The partitions tile the gradient, so that no two workers select the same entry: nothing builds up, and a worker's scan
is P times shorter. In every iteration the workers move on to the next partition, and one threshold, scaled after the
number of entries selected in the iteration before, keeps the density near its target.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simnet.base.arrays import Floats
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange, State, checked_part
from simnet.sparsifier_models.carried_threshold import (
    CarriedThreshold,
    CarriedThresholdOptions,
    bounded,
    checked_thresholds,
)
from simnet.sparsifier_models.options import Positive
from simnet.sparsifier_models.selection import Indices, Values, above


def start_factor(ratio: float, exchange: int) -> float:
    """Return a factor on the threshold in addition to the published one, t exchanges after an estimate.

    While residuals fill, the magnitude that k entries reach grows by at most 1 / t in exchange t. The threshold may
    follow by that, which soon is less than the published step. `ratio` is the selected entries over k.

    Examples
    --------
    >>> [round(start_factor(ratio, exchange), 3) for ratio, exchange in ((4.0, 1), (4.0, 10), (0.5, 1), (0.5, 1000))]
    [1.189, 1.105, 0.917, 0.999]
    """
    return math.exp(float(np.clip(math.log(ratio) / 8, -1 / exchange, 1 / exchange)))


@dataclass(frozen=True, kw_only=True)
class PartitionedOptions(CarriedThresholdOptions):
    """Options of schemes that search partitions with a threshold that is scaled online.

    Parameters
    ----------
    start : {"estimated", "published", "exact"}
        As of `CarriedThresholdOptions`; after an estimate the threshold also follows residuals that fill, by
        `start_factor`. From the published start it takes 200 ln f iterations to get where it belongs, if gradients are
        a factor f off.
    initial_threshold : float
        Threshold of the first iteration, > 0.
    raise_above, lower_below : float
        Ratios of the entries selected in the iteration before to k: above the first the threshold is raised, at or
        below the second it is lowered; between them lies the band. ``raise_above`` >= ``lower_below`` > 0.
    raise_factor, band_factor, lower_factor : float
        What the threshold is multiplied with above, in, and below the band; > 0. The one for the band exceeds 1 in the
        reference implementation, so that the density settles near the lower end of the band.
    """

    initial_threshold: Positive | None = None
    raise_above: Positive = 1.1
    lower_below: Positive = 0.909
    raise_factor: Positive = 1.005
    band_factor: Positive = 1.00125
    lower_factor: Positive = 0.995

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.raise_above < self.lower_below:
            raise ValueError(f"raise_above must be >= lower_below {self.lower_below}, got {self.raise_above}")

    def threshold_factor(self, selected: int, k: int) -> float:
        """Return the factor on the threshold if `selected` entries were selected instead of `k`.

        Examples
        --------
        >>> [PartitionedOptions().threshold_factor(selected, 100) for selected in (111, 110, 91, 90)]
        [1.005, 1.00125, 1.00125, 0.995]
        """
        x = selected / k
        if x > self.raise_above:
            return self.raise_factor
        return self.band_factor if x > self.lower_below else self.lower_factor


class Partitioned(CarriedThreshold):
    """Common part: a scheme of this kind says how the gradient is partitioned.

    Scheme-specific statistics beside those of `UnionReduced`:

    =====================  ============================================================================
    ``partition_start``    (P,) where each partition starts
    ``partition_end``      (P,) where it ends; that entry is not in it
    ``rank_to_partition``  (P,) the partition that each worker searched
    ``acc_inefficiency``   sum of ``imbalance`` - 1 over all iterations so far
    =====================  ============================================================================
    """

    option_type = PartitionedOptions
    options: PartitionedOptions
    disjoint = True

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: object) -> None:
        super().__init__(workers, parameters, density, **options)
        self._since_start = 0
        # Of the iteration before; without entries before the first one.
        self._counts = np.zeros(0, dtype=np.int64)
        self._inefficiency = 0.0

    @abstractmethod
    def _partitions(self) -> Indices:
        """Return where the partitions of this exchange start, and n after them; shape (P + 1,)."""

    @property
    def _given_threshold(self) -> float | None:
        return self.options.initial_threshold

    def advance(self, estimate: Callable[[], Floats]) -> None:
        """Cut the partitions of an exchange, and scale the thresholds by the counts of the previous one.

        `estimate` returns an estimate of each threshold, shape (P,), for those that start.
        """
        self._edges = self._partitions()
        self._first = self._begins and self._estimates
        if self._begins:
            self._threshold = estimate() if self._first else self._first_threshold()
            self._since_start = 0
        else:
            selected = int(self._counts.sum())
            self._since_start += 1
            factor = self.options.threshold_factor(selected, self.k)
            if self._estimates and self.options.start == "estimated":
                factor *= start_factor(selected / self.k, self._since_start)
            self._threshold = bounded(self._threshold * factor)
        self._threshold_density = self.density

    def searched(self, worker: int) -> tuple[int, int, float]:
        """Return where the partition starts that a worker searches, where it ends, and with which threshold."""
        p = (self.iteration + worker) % self.workers
        return int(self._edges[p]), int(self._edges[p + 1]), float(self._threshold[worker])

    def record(self, selected: Indices) -> None:
        """Take down how many entries each worker has selected, shape (P,), for the next exchange."""
        # Cyclic rotation: p = (t + r) mod P.
        self._counts = np.zeros(self.workers, dtype=np.int64)
        self._counts[(self.iteration + np.arange(self.workers)) % self.workers] = selected

    @property
    def enough(self) -> float:
        """Three entries per partition: then few are empty and have to send one all the same."""
        return max(super().enough, 3.0 * self.workers)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        self.advance(lambda: self._estimated(corrected))
        exchange = super()._communicate(corrected, gradients)
        self.record(exchange.selected)
        p = (self.iteration + np.arange(self.workers)) % self.workers
        self._inefficiency += self.workers * float(exchange.stats["k_max"]) / exchange.union - 1.0
        exchange.stats |= {
            "threshold": self._threshold.copy(),
            "partition_start": self._edges[:-1].astype(np.float64),
            "partition_end": self._edges[1:].astype(np.float64),
            "rank_to_partition": p.astype(np.float64),
            "acc_inefficiency": self._inefficiency,
        }
        return exchange

    def _select(self, values: Values, worker: int) -> Indices:
        """Return the entries of the worker's partition that are as large as the threshold; one if there are none."""
        start, end, threshold = self.searched(worker)
        found = above(values[start:end], threshold, strict=False)
        if not found.size and start < end:
            found = np.array([self.iteration % (end - start)])
        return start + found

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        p = (self.iteration + np.arange(self.workers)) % self.workers
        estimate = self._estimating_kernels() if self._first else ()
        return (*estimate, DeviceOp("scan", np.diff(self._edges)[p]))

    def _own_state(self) -> State:
        return {
            **super()._own_state(),
            "counts": self._counts,
            "inefficiency": np.array(self._inefficiency),
            "since_start": np.array(self._since_start),
        }

    def _restore_own(self, state: State) -> None:
        threshold = checked_thresholds(state["threshold"], self.workers)
        counts = checked_part(state, "counts", np.int64, threshold.shape, 0)
        if counts.size and not 0 < counts.sum() <= self.parameters:
            raise ValueError(f"counts must add up to 1..{self.parameters}, got {counts.tolist()!r:.200}")
        inefficiency = checked_part(state, "inefficiency", np.float64, (), 0)
        since_start = checked_part(state, "since_start", np.int64, (), 0)
        super()._restore_own(state)
        self._counts, self._inefficiency, self._since_start = counts, float(inefficiency), int(since_start)
