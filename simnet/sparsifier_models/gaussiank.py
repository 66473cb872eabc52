"""Gaussian-k: a threshold from the quantile of a normal distribution of the gradient's mean and deviation.

Released codes take mean and deviation of the values, or of their magnitudes. Gradients have heavier tails than a normal
distribution, so the estimate misses k, and is corrected by counting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.costs import gaussiank
from simnet.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.selection import Values, above, count_above
from simnet.sparsifier_models.thresholded import Found, Thresholded, moments


class Rule(NamedTuple):
    """How the estimate is corrected.

    Below `low` k entries the threshold is divided by `down`, above `high` k it is multiplied by `up`, at most `steps`
    times, with `turns` in either direction, else in the one it first took. With `magnitudes` mean and deviation are
    those of the magnitudes.
    """

    low: Fraction
    high: Fraction | None
    down: float
    up: float
    steps: int
    turns: bool = False
    magnitudes: bool = False

    def bounds(self, k: int) -> tuple[int, float]:
        """Return the fewest and most entries that are not adapted, rounded down as in the reference implementation."""
        low = math.ceil(self.low * k) if self.turns else math.floor(self.low * k)
        return low, math.inf if self.high is None else math.floor(self.high * k)


RULES = {
    "vgg": Rule(Fraction(3, 4), Fraction(5, 4), 1.02, 1.02, 20),
    "lstm": Rule(Fraction(3, 4), None, 1.012, 1.0, 50),
    "bert": Rule(Fraction(5, 6), None, 1.012, 1.0, 20),
    # The released loops count five and three times, and select by the last threshold that they counted with.
    "original": Rule(Fraction(2, 3), Fraction(4, 3), 2.0, 1.5, 4, turns=True, magnitudes=True),
    "sidco": Rule(Fraction(2, 3), Fraction(4, 3), 2.0, 1.5, 2, turns=True, magnitudes=True),
}


@dataclass(frozen=True, kw_only=True)
class GaussianKOptions(GatheredOptions):
    """Options of `GaussianK`.

    Parameters
    ----------
    rules : {"vgg", "lstm", "bert", "original", "sidco"}
        How the estimate is made and corrected: as in the reference implementation of Ok-Topk for the model of this
        name; or from mean and deviation of the magnitudes, with at most four steps by halves as the scheme was first
        released, or at most two as in the reference implementation of SIDCo.
    """

    rules: Literal["vgg", "lstm", "bert", "original", "sidco"] = "vgg"


class GaussianK(Thresholded):
    """Gaussian-k: threshold mean + z sigma on the magnitudes, z = -Phi^-1(c / 2), corrected towards k; over all-gather.

    Mean and deviation are in double precision. A count from each worker is gathered first; on the wire ``released``
    int32 indices and float32 values follow one after the other. No threshold can be reached by factors where the
    estimate is not positive: a gradient of nothing but one negative value is sent whole, one of zeros not at all.

    References
    ----------
    S. Shi et al., "Understanding Top-k Sparsification in Distributed Deep Learning", arXiv 1911.08772, Algorithm 1;
    S. Li, T. Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022 (baseline Gaussiank).

    Examples
    --------
    >>> gradients = np.random.default_rng(0).standard_normal((2, 10000)).astype(np.float32)
    >>> exchange = GaussianK(workers=2, parameters=10000, density=0.01).exchange(gradients)
    >>> exchange.selected, exchange.stats["threshold"].round(2), exchange.stats["tries"]
    (array([100, 109]), array([2.58, 2.56]), array([1., 1.]))
    """

    name = "gaussiank"
    separable = True
    paper = "Shi et al., 2019, arXiv 1911.08772"
    costs = (gaussiank,)
    option_type = GaussianKOptions
    options: GaussianKOptions
    rounds_down = True
    released_widths = (4, 4)

    def _find(self, values: Values, worker: int) -> Found:
        rule, magnitude = RULES[self.options.rules], np.abs(values)
        low, high = rule.bounds(self.k)
        mean, variance = moments(magnitude if rule.magnitudes else values)
        threshold = mean - NormalDist().inv_cdf(self.density / 2) * math.sqrt(variance)
        tries, direction = 1, 0
        while tries <= rule.steps:
            count = count_above(magnitude, threshold)
            if count < low and direction <= 0:
                threshold, taken = threshold / rule.down, -1
            elif count > high and direction >= 0:
                threshold, taken = threshold * rule.up, 1
            else:
                break
            direction = 0 if rule.turns else taken
            tries += 1
        # Mean and deviation are a pass each; the last one picks the entries out.
        kernels = [DeviceOp("count", self.parameters, launches=1 + tries), DeviceOp("scan", self.parameters)]
        return Found(above(values, threshold), threshold, tries, kernels)

    def _allgather(self, entries: NDArray[np.int64], nbytes: Floats) -> Schedule:
        gather, counts, wire = self.options.gather, entries.astype(np.float64), self.wire
        sizes = gather(np.full(self.workers, wire.count_bytes)).in_phase("sizes")
        if not wire.released:
            return sizes.concat(gather(nbytes).in_phase("entries"))
        return sizes.concat(
            gather(counts * wire.index_bytes).in_phase("indices"), gather(counts * wire.value_bytes).in_phase("values")
        )
