"""SAGE: each worker scales its own threshold after a small random sample of its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from simnet.base.rng import stream
from simnet.base.rows import map_rows
from simnet.costs import hardthreshold
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange, State, checked_part
from simnet.sparsifier_models.carried_threshold import CarriedThreshold, CarriedThresholdOptions, bounded
from simnet.sparsifier_models.options import Positive
from simnet.sparsifier_models.selection import Indices, Values, above, count_above

MARGIN = 0.05


def sample_size(parameters: int) -> int:
    """Return the size of a sample: n / (1 + n e^2), Slovin's formula, with the margin of error e = 0.05.

    Examples
    --------
    >>> sample_size(11_173_962), sample_size(400), sample_size(1)
    (399, 200, 1)
    """
    return max(1, int(parameters / (1 + parameters * MARGIN * MARGIN)))


def scaling(alpha: float, examined: float, density: float) -> float:
    """Return the factor on a threshold: alpha beta gamma.

    `alpha` is the sampled mean magnitude over the previous one, `examined` the fraction of entries above the old
    threshold times alpha, `density` the target.

    Examples
    --------
    >>> scaling(2.0, 0.01, 0.01), scaling(1.0, 0.0, 0.01) < 0.96 < 1.04 < scaling(1.0, 0.11, 0.01)
    (2.0, True)
    """
    beta = 2.0 / (1.0 + math.exp(density - examined))
    gamma = 0.95 if examined < 0.1 * density else 1.05 if examined > 10 * density else 1.0
    return alpha * beta * gamma


@dataclass(frozen=True, kw_only=True)
class SAGEOptions(CarriedThresholdOptions):
    """Options of `SAGE`.

    Parameters
    ----------
    initial_threshold : float
        Threshold of the first iteration, > 0. If not given, see `start`.
    """

    initial_threshold: Positive | None = None


class SAGE(CarriedThreshold):
    """SAGE: thresholds that follow the mean magnitude of about 400 random entries, one threshold for each worker.

    A sample that is all zero says nothing: the mean of the iteration before then stays, and alpha is 1.

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
    separable = True
    paper = "Yoon et al., Journal of Supercomputing 2023, doi 10.1007/s11227-023-05120-7"
    costs = (hardthreshold,)
    option_type = SAGEOptions
    options: SAGEOptions

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: object) -> None:
        super().__init__(workers, parameters, density, **options)
        # Of the iteration before; without entries before the first one.
        self._mean = np.zeros(0)

    @property
    def _given_threshold(self) -> float | None:
        return self.options.initial_threshold

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        self._first = self._begins
        mean = np.array(list(self._each(self._sampled_mean, corrected)))
        if self._first:
            self._threshold = self._estimated(corrected) if self._estimates else self._first_threshold()
            self._threshold_density = self.density
        else:
            alpha = np.divide(mean, self._mean, out=np.ones(self.workers), where=(mean > 0) & (self._mean > 0))
            mean = np.where(mean > 0, mean, self._mean)
            factor = np.ones(self.workers)
            examined = map_rows(partial(count_above, strict=False), corrected, (self._threshold * alpha).tolist())
            for worker, count in enumerate(examined):
                factor[worker] = scaling(float(alpha[worker]), count / self.parameters, self.density)
            self._threshold = bounded(self._threshold * factor)
        self._mean = mean
        exchange = super()._communicate(corrected, gradients)
        exchange.stats["threshold"] = self._threshold.copy()
        return exchange

    def _sampled_mean(self, values: Values, worker: int) -> float:
        generator = stream(self.options.seed, "sage", self.iteration, worker)
        drawn = values[generator.integers(self.parameters, size=sample_size(self.parameters))]
        return float(np.abs(drawn).mean(dtype=np.float64))

    def _select(self, values: Values, worker: int) -> Indices:
        return above(values, float(self._threshold[worker]), strict=False)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        # What the old threshold would select is counted first.
        estimate = self._estimating_kernels() if self._estimates else ()
        found = estimate if self._first else (DeviceOp("count", self.parameters),)
        return (DeviceOp("gather", sample_size(self.parameters)), *found, DeviceOp("scan", self.parameters))

    def _own_state(self) -> State:
        return {**super()._own_state(), "mean": self._mean}

    def _restore_own(self, state: State) -> None:
        mean = checked_part(state, "mean", np.float64, np.shape(state["threshold"]), 0)
        super()._restore_own(state)
        self._mean = mean
