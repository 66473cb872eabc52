"""SIDCo: an all-gather of entries above a threshold, from distributions fitted to the magnitudes in stages.

Each stage fits the tail that the one before has left: exponential, generalised Pareto, or gamma and then Pareto.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from simnet.cost_models.costs import threshold_allgather
from simnet.cost_models.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.selection import Values, above, squared_norm
from simnet.sparsifier_models.thresholded import Thresholded, ThresholdSelection, in_double, moments

MOST_STAGES = 100
FIRST = 0.25
"""Target density of the first of several stages."""

CALLS, TOO_MANY, TOO_FEW = 5, 1.2, 0.8
"""Number of exchanges between adaptations of the stages, and the ratios of sent to target entries that trigger them."""


def exponential_quantile(mean: float, variance: float, delta: float) -> float:
    """Return the upper delta-quantile, -mean ln delta, of an exponential distribution."""
    return -mean * math.log(delta)


def generalised_pareto(mean: float, variance: float, delta: float) -> float:
    """Return the upper delta-quantile of the generalised Pareto distribution with a given mean and variance.

    With r = mean^2 / variance: alpha = mean (r + 1) / 2, kappa = (r - 1) / 2, alpha (1 - delta^kappa) / kappa. It is
    exponential for kappa = 0, and one point for variance 0.
    """
    if mean * mean >= 1e30 * variance:
        return mean if delta < 1 else 0.0
    ratio = mean * mean / variance
    alpha, kappa, log = 0.5 * mean * (ratio + 1), 0.5 * (ratio - 1), math.log(delta)
    return alpha * (-math.expm1(kappa * log) / kappa if kappa else -log)


def gamma(magnitude: Values, mean: float, delta: float, *, exact: bool) -> float:
    """Return the upper delta-quantile of a gamma distribution, fitted to means of magnitudes and of their logarithms.

    With s = ln mean - mean ln: shape = (3 - s + sqrt((s - 3)^2 + 24 s)) / (12 s), scale = mean / shape. Logs are of the
    magnitudes over their norm plus the spacing of double precision at 1, which zeros need. `exact` inverts the
    incomplete gamma function; else it is -scale (ln delta + ln Gamma(shape)).
    """
    norm = math.sqrt(squared_norm(magnitude))
    eps = float(np.finfo(np.float64).eps)
    logs = math.fsum(float(np.log(block / norm + eps).sum()) for block in in_double(magnitude)) / magnitude.size
    s = math.log(mean / norm) - logs
    if s < 1e-9:  # All magnitudes alike: the shape grows beyond all bounds, and the distribution shrinks to its mean.
        return mean if delta < 1 else 0.0
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    scale = mean / shape
    if not exact:
        return -scale * (math.log(delta) + math.lgamma(shape))
    # Importing SciPy takes longer than most exchanges.
    from scipy.special import gammainccinv

    return scale * float(gammainccinv(shape, delta))


def stage_targets(density: float, stages: int, ratio: float = FIRST) -> list[float]:
    """Return, for each fitting stage, which share of the previous stage's entries it keeps; the product is the density.

    The first of `stages` keeps the share `ratio`, the others equal shares; 0: as many stages as all keep about `ratio`.
    """
    if stages == 1 or density >= FIRST:
        return [density]
    left = density / FIRST
    if stages > 1:
        return [FIRST, *[left ** (1 / (stages - 1))] * (stages - 1)]
    loops = math.ceil(math.log(left) / math.log(ratio))
    return [FIRST, *[ratio] * (loops - 1), left / ratio ** (loops - 1)]


class SIDCoOptions(GatheredOptions):
    """Options of `SIDCo`.

    Parameters
    ----------
    distribution : {"exponential", "pareto", "gammapareto"}
        What is fitted: exponential, generalised Pareto, or gamma in the first stage and generalised Pareto thereafter.
    stages : int
        Number of stages M, 1 to 100; 0 for as many as dividing by `stage_ratio` takes; -1 to adapt M, from 1, to what
        was sent, each worker for itself.
    stage_ratio : float
        What a stage leaves with ``stages=0``, in (0, 0.95].
    groups : {"whole", "layers"}
        Whether one threshold is fitted to the whole gradient, or one to each of its layers.
    """

    distribution: Literal["exponential", "pareto", "gammapareto"] = "exponential"
    stages: Annotated[int, Ge(-1), Le(MOST_STAGES)] = -1
    stage_ratio: Annotated[float, Gt(0), Le(0.95)] = 0.25
    groups: Literal["whole", "layers"] = "whole"


class SIDCo(Thresholded, rounds_down=True, released_widths=(4, 4), costs=(threshold_allgather,)):
    """SIDCo: an all-gather of entries above a threshold, from distributions fitted to the magnitudes in stages.

    The first of several stages aims at a density of 0.25, the others share the rest evenly. Stages end early when fewer
    than two entries remain. With ``stages=-1`` a worker averages, over 5 exchanges, the ratio of sent to requested
    entries: above 1.2 it removes a stage, below 0.8 it adds one, within 1 .. ceil(ln c / ln 0.5). In the reference
    implementation all workers' tensors share one counter; here each group of each worker has its own.

    Without error feedback the gamma quantile is the approximation that the reference implementation has for that case.
    On the wire ``released`` float32 values and int32 indices are gathered one after the other. With groups,
    ``threshold`` is the lowest. Besides the statistics of `Thresholded` there is ``stages``, shape (P,): M, averaged
    over the groups; 0 if their number follows from the density.

    References
    ----------
    A. M. Abdelmoniem et al., "An Efficient Statistical-based Gradient Compression Technique for Distributed Training
    Systems", MLSys 2021, Algorithm 1.

    Examples
    --------
    >>> gradients = np.random.default_rng(0).laplace(size=(2, 100_000)).astype(np.float32)
    >>> SIDCo(workers=2, parameters=100_000, density=0.01).exchange(gradients).selected
    array([1009, 1041])
    """

    name = "sidco"
    paper = "Abdelmoniem et al., MLSys 2021, arXiv 2101.10761"
    options: SIDCoOptions

    def _set_up(self) -> None:
        sizes = [self.parameters]
        if self.options.groups == "layers":
            if not self.layers:
                raise ValueError("layers must be given: their sizes, in the order of the gradient")
            sizes = [size for _, size in self.layers]
        self._ends = np.cumsum(sizes).tolist()
        # M of each worker and group, what they sent over what they should have, summed, and the exchanges in the sum.
        self.stages = np.full((self.workers, len(sizes)), 1 if self._adapts else self.options.stages)
        self.ratios = np.zeros(self.stages.shape)
        self.calls = 0

    def _option_traits(self) -> dict[str, Any]:
        return {"state": ("stages", "ratios", "calls") if self._adapts else ()}

    @property
    def _adapts(self) -> bool:
        return self.options.stages == -1

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        used, self.ratios = self.stages, self.ratios.copy()
        exchange = super()._communicate(corrected, gradients)
        exchange.stats["stages"] = used.mean(axis=1)
        self.calls += 1
        if self.calls == CALLS:
            if self._adapts:
                sent, most = self.ratios / CALLS, math.ceil(math.log(self.density) / math.log(0.5))
                changed = used - (sent > TOO_MANY) + (sent < TOO_FEW)
                self.stages = np.maximum(np.minimum(changed, most), 1)
            self.ratios, self.calls = np.zeros(used.shape), 0
        return exchange

    def _find(self, values: Values, worker: int) -> ThresholdSelection:
        parts = []
        for group, (start, end) in enumerate(zip([0, *self._ends], self._ends, strict=False)):
            part = self._fit(values[start:end], int(self.stages[worker, group]))
            self.ratios[worker, group] += part.indices.size / (self.density * (end - start))
            parts.append(part._replace(indices=part.indices + start))
        return ThresholdSelection(
            np.concatenate([one.indices for one in parts]),
            min(one.threshold for one in parts),
            max(one.tries for one in parts),
            [kernel for one in parts for kernel in one.kernels],
        )

    def _fit(self, values: Values, stages: int) -> ThresholdSelection:
        tail = np.abs(values)
        mean, variance = moments(tail)
        if not mean:
            return ThresholdSelection(np.zeros(0, dtype=np.int64), 0.0, 1, [DeviceOp("norm", values.size)])
        first, *later = stage_targets(self.density, stages, self.options.stage_ratio)
        fit, passes = exponential_quantile if self.options.distribution == "exponential" else generalised_pareto, 1
        if self.options.distribution == "gammapareto":
            threshold, passes = gamma(tail, mean, first, exact=self.options.error_feedback), 2
        else:
            threshold = fit(mean, variance, first)
        kernels, tries = [DeviceOp("norm", values.size), DeviceOp("count", values.size, launches=passes)], 1
        for delta in later:
            kernels.append(DeviceOp("scan", tail.size))
            tail = tail[tail > np.float32(threshold)]
            if tail.size < 2:
                break
            mean, variance = moments(tail)
            low = float(tail.min())
            threshold = low + fit(mean - low, variance, delta)
            kernels.append(DeviceOp("count", tail.size))
            tries += 1
        return ThresholdSelection(above(values, threshold), threshold, tries, [*kernels, DeviceOp("scan", values.size)])
