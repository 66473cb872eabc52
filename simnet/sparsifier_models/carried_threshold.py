"""Thresholds that are carried from exchange to exchange, and where they start: ExDyna, MiCRO, SAGE, hard threshold.

Published codes start at 1 / (2 sqrt(k)), which suits gradients of one magnitude. Of others it selects up to all, for
hundreds of iterations where the threshold is scaled by half a per cent in each, and for ever where it stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.base.rows import map_rows
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.base import State, checked_part
from simnet.sparsifier_models.selection import Values, kth_magnitude
from simnet.sparsifier_models.union_reduced import UnionReduced, UnionReducedOptions

SAMPLED = 256
"""Entries that a sample is to have above the threshold: its count is off by 6 %."""


def bounded(threshold: Floats) -> Floats:
    """Return thresholds within the range of float32, so that scaling can bring them back.

    Examples
    --------
    >>> bounded(np.array([0, 0.5, np.inf]))
    array([1.40129846e-45, 5.00000000e-01, 3.40282347e+38])
    """
    limits = np.finfo(np.float32)
    return np.clip(threshold, float(limits.smallest_subnormal), float(limits.max))


def checked_thresholds(value: NDArray[np.generic], workers: int) -> Floats:
    """Return the thresholds of a saved state, one per worker or none; ValueError if they are not, or not > 0.

    Examples
    --------
    >>> checked_thresholds(np.array([1, 0]), 2)
    Traceback (most recent call last):
    ValueError: threshold must be finite and > 0, got [1.0, 0.0]
    """
    threshold = np.array(value, dtype=np.float64)
    if threshold.shape not in ((0,), (workers,)):
        raise ValueError(f"threshold must be of shape (0,) or ({workers},), got {threshold.shape}")
    if not (np.isfinite(threshold) & (threshold > 0)).all():
        raise ValueError(f"threshold must be finite and > 0, got {threshold.tolist()!r:.200}")
    return threshold


def sampled_places(parameters: int, density: float, seed: int, iteration: int, worker: int) -> NDArray[np.int64] | None:
    """Return the places of a worker's sample, `SAMPLED` / density entries with replacement; None for all entries.

    Examples
    --------
    >>> sampled_places(100_000, 0.01, 0, 0, 0).size, sampled_places(10_000, 0.01, 0, 0, 0)
    (25600, None)
    """
    size = math.ceil(SAMPLED / density)
    return None if size >= parameters else stream(seed, "start", iteration, worker).integers(parameters, size=size)


def estimated_threshold(values: Values, worker: int, *, k: int, density: float, seed: int, iteration: int) -> float:
    """Return the magnitude that about `k` of a worker's `values`, shape (n,), reach: the exact one of a sample.

    Examples
    --------
    >>> estimated_threshold(np.arange(100, dtype=np.float32), 0, k=10, density=0.1, seed=0, iteration=0)
    90.0
    """
    places = sampled_places(values.size, density, seed, iteration, worker)
    return kth_magnitude(values, k) if places is None else kth_magnitude(values[places], SAMPLED)


@dataclass(frozen=True, kw_only=True)
class CarriedThresholdOptions(UnionReducedOptions):
    """Options of schemes whose thresholds are carried from exchange to exchange.

    Parameters
    ----------
    start : {"estimated", "published", "exact"}
        First threshold, unless one is given: what k entries of the worker's own gradient reach by a sample of it;
        1 / (2 sqrt(k)), as published; or the k-th largest magnitude, as in earlier versions of the code of MiCRO. A
        change of density starts again, but from 1 / (2 sqrt(k)).
    """

    start: Literal["estimated", "published", "exact"] = "estimated"


class CarriedThreshold(UnionReduced):
    """Common part: a scheme of this kind says what becomes of its thresholds from one exchange to the next."""

    option_type = CarriedThresholdOptions
    options: CarriedThresholdOptions
    searches_threshold = True
    ascending = True

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: object) -> None:
        super().__init__(workers, parameters, density, **options)
        # Of the exchange before, without entries before the first one; and the density that they are for.
        self._threshold, self._threshold_density = np.zeros(0), 0.0

    @property
    def _given_threshold(self) -> float | None:
        """The first threshold that an option gives."""
        raise NotImplementedError

    @property
    def _estimates(self) -> bool:
        """Whether the first threshold follows the gradients."""
        return self.options.start != "published" and self._given_threshold is None

    @property
    def _begins(self) -> bool:
        """Whether the exchange begins a threshold: the first one, and, of those that are estimated, of a density."""
        return not self._threshold.size or (self._estimates and self._threshold_density != self.density)

    @property
    def _formula_threshold(self) -> float:
        """Return 1 / (2 sqrt(k)), of the k of the whole model: Sahu et al., arXiv 2108.00951."""
        return 1.0 / (2.0 * math.sqrt(self.k_of_model))

    def _first_threshold(self) -> Floats:
        """Return the threshold that is given, or 1 / (2 sqrt(k)), of each worker."""
        return bounded(np.full(self.workers, self._given_threshold or self._formula_threshold))

    def _estimated(self, corrected: Values) -> Floats:
        """Return each worker's own estimate; of a gradient of zeros, as without it."""
        if self.options.start == "exact":
            found = list(map_rows(partial(kth_magnitude, k=self.k), corrected))
        else:
            settings: dict[str, Any] = {
                "k": self.k,
                "density": self.density,
                "seed": self.options.seed,
                "iteration": self.iteration,
            }
            found = list(map_rows(partial(estimated_threshold, **settings), corrected, range(self.workers)))
        otherwise = self._threshold if self._threshold.size else self._first_threshold()
        return bounded(np.where(np.array(found) > 0, found, otherwise))

    def _estimating_kernels(self) -> tuple[DeviceOp, ...]:
        """Return what a worker runs to estimate; a sample has as many entries as one of the whole model."""
        size = SAMPLED / self.density / self.options.scale
        if self.options.start == "exact" or size >= self.parameters:
            return (DeviceOp("topk", self.parameters),)
        return DeviceOp("gather", size), DeviceOp("topk", size)

    def _own_state(self) -> State:
        return {"threshold": self._threshold, "threshold_density": np.array(self._threshold_density)}

    def _restore_own(self, state: State) -> None:
        threshold = checked_thresholds(state["threshold"], self.workers)
        density = checked_part(state, "threshold_density", np.float64, (), 0, 1)
        self._threshold, self._threshold_density = threshold, float(density)
