"""Base of threshold schemes that carry thresholds between exchanges (ExDyna, MiCRO, SAGE, hard threshold).

Published codes start at 1 / (2 sqrt(k)), which suits gradients of one magnitude. For others it may select all entries:
for hundreds of iterations if the threshold changes by half a per cent in each, and for ever if it is constant.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.base.rows import map_rows
from simnet.cost_models.costs import hardthreshold, threshold_allgather
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.gathered import Gathered
from simnet.sparsifier_models.options import Positive
from simnet.sparsifier_models.selection import Indices, Values, above, count_above, kth_magnitude
from simnet.sparsifier_models.union_reduced import UnionReduced, UnionReducedOptions
from simnet.sparsifier_models.wire import EVERY, Wire

SAMPLED = 256
"""Target number of sampled entries above the threshold, for a standard error of 6 %."""


def bounded(threshold: Floats) -> Floats:
    """Return thresholds clipped to positive, finite float32 values, so that scaling can still change them."""
    limits = np.finfo(np.float32)
    return np.clip(threshold, float(limits.smallest_subnormal), float(limits.max))


def sampled_places(parameters: int, density: float, seed: int, iteration: int, worker: int) -> NDArray[np.int64] | None:
    """Return random indices at which to sample a worker's gradient; None if the gradient is too small to sample."""
    size = math.ceil(SAMPLED / density)
    return None if size >= parameters else stream(seed, "start", iteration, worker).integers(parameters, size=size)


def estimated_threshold(values: Values, worker: int, *, k: int, density: float, seed: int, iteration: int) -> float:
    """Return an estimate of the k-th largest magnitude of `values`, shape (n,), from a sample; exact if n is small."""
    places = sampled_places(values.size, density, seed, iteration, worker)
    return kth_magnitude(values, k) if places is None else kth_magnitude(values[places], SAMPLED)


class CarriedThresholdOptions(UnionReducedOptions):
    """Options of schemes that carry each worker's threshold between exchanges.

    Parameters
    ----------
    start : {"estimated", "published", "exact"}
        First threshold, unless one is given: the k-th largest magnitude of the worker's gradient, estimated from a
        sample; 1 / (2 sqrt(k)), as published; or the exact k-th largest magnitude, as in earlier versions of the code
        of MiCRO. After a change of density only ``published`` keeps its threshold.
    """

    start: Literal["estimated", "published", "exact"] = "estimated"


class CarriedThreshold(UnionReduced, searches_threshold=True, state=("threshold_density",), history=("threshold",)):
    """Base of threshold schemes that carry each worker's threshold from one exchange to the next."""

    options: CarriedThresholdOptions
    ascending = True
    threshold_option: ClassVar[str] = "initial_threshold"

    def _set_up(self) -> None:
        # Of the exchange before, without entries before the first one; and the density that they are for.
        self.threshold, self.threshold_density = np.zeros(0), 0.0

    @property
    def _given_threshold(self) -> float | None:
        """Threshold that an option sets; None if it is not set."""
        found: float | None = getattr(self.options, self.threshold_option)
        return found

    def _select(self, values: Values, worker: int) -> Indices:
        return above(values, float(self.threshold[worker]), strict=False)

    @property
    def _estimates(self) -> bool:
        """Whether the first threshold is estimated from the gradients."""
        return self.options.start != "published" and self._given_threshold is None

    @property
    def _begins(self) -> bool:
        """Whether this exchange sets thresholds anew: at the start, or if they were estimated for another density."""
        return not self.threshold.size or (self._estimates and self.threshold_density != self.density)

    def _first_threshold(self) -> Floats:
        """Return each worker's first threshold: the option's value, or else 1 / (2 sqrt(k)) (Sahu et al.)."""
        return bounded(np.full(self.workers, self._given_threshold or 1.0 / (2.0 * math.sqrt(self.k_of_model))))

    def _estimated(self, corrected: Values) -> Floats:
        """Return each worker's exact or estimated threshold; where it is 0, the last one or, at first, the default."""
        if self.options.start == "exact":
            found = list(map_rows(partial(kth_magnitude, k=self.k), corrected))
        else:
            estimate = partial(
                estimated_threshold, k=self.k, density=self.density, seed=self.options.seed, iteration=self.iteration
            )
            found = list(map_rows(estimate, corrected, range(self.workers)))
        otherwise = self.threshold if self.threshold.size else self._first_threshold()
        return bounded(np.where(np.array(found) > 0, found, otherwise))

    def _estimating_kernels(self) -> tuple[DeviceOp, ...]:
        """Return the kernels of a worker's threshold estimate, on a sample or on all entries."""
        size = SAMPLED / self.density / self.options.scale
        if self.options.start == "exact" or size >= self.parameters:
            return (DeviceOp("topk", self.parameters),)
        return DeviceOp("gather", size), DeviceOp("topk", size)


class HardThresholdOptions(CarriedThresholdOptions):
    """Options of `HardThreshold`.

    Parameters
    ----------
    form : {"fused", "original"}
        ``fused``: indices are gathered and values reduced at their union, as in the codes released with ExDyna, MiCRO
        and DEFT. ``original``: values and positions are gathered, as in the code of Sahu et al.; a worker keeps
        entries that only others selected, and ``allreduce`` is not used.
    threshold : float
        The threshold, > 0. If not given, see `start`.
    """

    form: Literal["fused", "original"] = "fused"
    threshold: Positive | None = None


class HardThreshold(CarriedThreshold, separable=True, costs=(hardthreshold, threshold_allgather)):
    """Hard threshold: each worker sends its entries of magnitude >= the threshold.

    The threshold is constant: the published 1 / (2 sqrt(k)), or one that k entries of the first gradients reach. With
    error feedback, more entries reach it in later iterations.

    In the form ``original`` and on the wire ``released``, the workers gather the number of their entries and where
    those of each layer start and end, 8 bytes each, then float32 values and int32 positions, both padded to the most.
    On the wire ``paper`` each sends its values and positions.

    References
    ----------
    A. Sahu et al., "Rethinking gradient sparsification as total error minimization", NeurIPS 2021, arXiv 2108.00951,
    and its reference implementation; fused as released with ExDyna (Yoon and Oh, CCGrid 2024).

    Examples
    --------
    >>> gradients = np.array([[4, 3, 1, 0], [0, 2, 1, -8]], dtype=np.float32)
    >>> for form in ("fused", "original"):
    ...     model = HardThreshold(workers=2, parameters=4, density=0.5, threshold=3, form=form)
    ...     print(model.exchange(gradients).update, model.residual[1])
    [ 2.   2.5  0.  -4. ] [0. 0. 1. 0.]
    [ 2.   1.5  0.  -4. ] [0. 2. 1. 0.]
    """

    name = "hardthreshold"
    paper = "Sahu et al., NeurIPS 2021, arXiv 2108.00951"
    options: HardThresholdOptions
    threshold_option = "threshold"

    def _option_traits(self) -> dict[str, Any]:
        return {} if self.options.form == "fused" else {"codes": EVERY}

    @property
    def wire(self) -> Wire:
        """Byte sizes of entries on the wire; the released code sends int32 indices and int64 counts."""
        wire = super().wire
        if self.options.form == "fused" or self.options.index_bytes is not None or not wire.released:
            return wire
        return replace(wire, index_bytes=wire.index_bytes / 2)

    @property
    def enough(self) -> float:
        """Minimum number of selected entries for a representative gradient sample; 0 if the threshold is fixed."""
        return super().enough if self._estimates else 0.0

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        self._first = self._begins and self._estimates
        if not self._estimates:
            self.threshold = self._first_threshold()
        elif self._first:
            self.threshold = self._estimated(corrected)
        self.threshold_density = self.density
        if self.options.form == "fused":
            exchange = super()._communicate(corrected, gradients)
        else:
            exchange = Gathered._communicate(self, corrected, gradients)
            k_max = float(exchange.selected.max())
            exchange.stats["k_max"] = k_max
            if self.options.indices is None and self.options.values is None:
                exchange.stats["bits"] = 8 * k_max * self.wire.entry_bytes if self.workers > 1 else 0.0
        exchange.stats["threshold"] = self.threshold.copy()
        return exchange

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        tensors = 1 if self.options.form == "fused" else max(1, len(self.layers))
        estimate = self._estimating_kernels() if self._first else ()
        return (*estimate, DeviceOp("scan", self.parameters / tensors, launches=tensors))

    def _allgather(self, entries: NDArray[np.int64], nbytes: Floats) -> Schedule:
        if self.options.form == "fused":
            return super()._allgather(entries, nbytes)
        if not (wire := self.wire).released:
            return self.options.gather(nbytes).in_phase("entries")
        L, k_max = max(1, len(self.layers)), int(entries.max())
        phases = {"counts": 1, "starts": L, "ends": L}
        sizes = {name: number * wire.count_bytes for name, number in phases.items()}
        sizes |= {"values": k_max * wire.value_bytes, "indices": k_max * wire.index_bytes}
        gathers = (self.options.gather_equal(self.workers, size, name) for name, size in sizes.items())
        return Schedule(self.workers).concat(*gathers)


MARGIN = 0.05


def sample_size(parameters: int) -> int:
    """Return the size of a sample from `parameters` entries by Slovin's formula with a margin of error of 0.05."""
    return max(1, int(parameters / (1 + parameters * MARGIN * MARGIN)))


def scaling(alpha: float, examined: float, density: float) -> float:
    """Return the factor (alpha beta gamma in the paper) by which the scheme SAGE multiplies its threshold.

    `alpha` is the sampled mean magnitude over the previous one, `examined` the fraction of entries above the old
    threshold times alpha, `density` the target.
    """
    beta = 2.0 / (1.0 + math.exp(density - examined))
    gamma = 0.95 if examined < 0.1 * density else 1.05 if examined > 10 * density else 1.0
    return alpha * beta * gamma


class FirstThresholdOptions(CarriedThresholdOptions):
    """Options of schemes whose threshold in the first iteration can be set.

    Parameters
    ----------
    initial_threshold : float
        Threshold of the first iteration, > 0. If not given, see `start`.
    """

    initial_threshold: Positive | None = None


class SAGE(CarriedThreshold, separable=True, history=("mean",), costs=(hardthreshold,)):
    """SAGE: each worker's threshold follows the mean magnitude of about 400 random entries.

    If all sampled entries are zero, the mean of the iteration before is used again, with alpha = 1.

    References
    ----------
    D. Yoon, M. Jeong, S. Oh, "SAGE: toward on-the-fly gradient compression ratio scaling", Journal of Supercomputing,
    2023, doi 10.1007/s11227-023-05120-7, and the reference implementation, fused as released with ExDyna.

    Examples
    --------
    The gradients double, and so does the threshold, but for beta.

    >>> model = SAGE(workers=1, parameters=1000, density=0.01, initial_threshold=3)
    >>> gradients = np.ones((1, 1000), dtype=np.float32)
    >>> gradients[0, :10] = 4
    >>> _ = model.exchange(gradients)
    >>> model.residual = np.zeros((1, 1000), dtype=np.float32)
    >>> 5.5 < float(model.exchange(2 * gradients).stats["threshold"][0]) < 6.5
    True
    """

    name = "sage"
    paper = "Yoon et al., Journal of Supercomputing 2023, doi 10.1007/s11227-023-05120-7"
    options: FirstThresholdOptions

    def _set_up(self) -> None:
        super()._set_up()
        # Of the iteration before; without entries before the first one.
        self.mean = np.zeros(0)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        self._first = self._begins
        mean = np.array(list(self._each(self._sampled_mean, corrected)))
        if self._first:
            self.threshold = self._estimated(corrected) if self._estimates else self._first_threshold()
            self.threshold_density = self.density
        else:
            alpha = np.divide(mean, self.mean, out=np.ones(self.workers), where=(mean > 0) & (self.mean > 0))
            mean = np.where(mean > 0, mean, self.mean)
            factor = np.ones(self.workers)
            examined = map_rows(partial(count_above, strict=False), corrected, (self.threshold * alpha).tolist())
            for worker, count in enumerate(examined):
                factor[worker] = scaling(float(alpha[worker]), count / self.parameters, self.density)
            self.threshold = bounded(self.threshold * factor)
        self.mean = mean
        exchange = super()._communicate(corrected, gradients)
        exchange.stats["threshold"] = self.threshold.copy()
        return exchange

    def _sampled_mean(self, values: Values, worker: int) -> float:
        generator = stream(self.options.seed, "sage", self.iteration, worker)
        drawn = values[generator.integers(self.parameters, size=sample_size(self.parameters))]
        return float(np.abs(drawn).mean(dtype=np.float64))

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        # What the old threshold would select is counted first.
        estimate = self._estimating_kernels() if self._estimates else ()
        found = estimate if self._first else (DeviceOp("count", self.parameters),)
        return (DeviceOp("gather", sample_size(self.parameters)), *found, DeviceOp("scan", self.parameters))
