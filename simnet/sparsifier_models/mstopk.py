"""MSTopk: approximate top-k by a search for the threshold, over all-gather.

A GPU counts the entries above a threshold much faster than it sorts, so the threshold is found by bisection.
"""

from __future__ import annotations

import math

import numpy as np

from simnet.base.rng import stream
from simnet.costs import topk_allgather
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.gathered import Gathered
from simnet.sparsifier_models.selection import Indices, Values, above, count_above

ROUNDS = 25


def bracket(magnitude: Values, k: int) -> tuple[float, float]:
    """Return the tightest thresholds found that keep more than k entries, and at most k.

    Bisection in `ROUNDS` rounds between mean and maximum of the magnitudes. The lower one is 0 if every threshold tried
    keeps at most k entries; the upper one is infinite if every one keeps more.

    Examples
    --------
    >>> low, high = bracket(np.arange(100, dtype=np.float32), 10)
    >>> low <= 89 < high <= 90
    True
    """
    low, high = 0.0, math.inf
    mean, maximum = float(magnitude.mean(dtype=np.float64)), float(magnitude.max())
    left, right = 0.0, 1.0
    for _ in range(ROUNDS):
        ratio = (left + right) / 2
        threshold = float(np.float32(mean + ratio * (maximum - mean)))
        if count_above(magnitude, threshold, strict=False) <= k:
            right, high = ratio, threshold
        else:
            left, low = ratio, threshold
    return low, high


class MSTopk(Gathered, fixed_volume=True, separable=True, costs=(topk_allgather,)):
    """MSTopk: threshold by 25 rounds of bisection on the fused gradient, over all-gather.

    All entries above the upper threshold are sent; the rest up to k is a contiguous run, at a random offset, of those
    in the band between both thresholds. With ``compat="released"`` the offset may be one too large, as in the released
    code, and then k - 1 entries are sent; and k = floor(c n) may be 0, when nothing is sent.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, section 2-C3; S. Shi et al., "Towards Scalable
    Distributed Training of Deep Learning on Public Cloud Clusters", MLSys 2021.

    Examples
    --------
    >>> exchange = MSTopk(workers=1, parameters=5, density=0.4).exchange(np.array([[1, -9, 2, 8, 0]], dtype=np.float32))
    >>> exchange.update
    array([ 0., -9.,  0.,  8.,  0.], dtype=float32)
    """

    name = "mstopk"
    paper = "Shi et al., MLSys 2021, arXiv 2010.10458"
    ascending = True

    def _entries(self, size: int) -> int:
        if self.options.compat == "released":
            return math.floor(self.density * size)
        return super()._entries(size)

    def _select(self, values: Values, worker: int) -> Indices:
        k = self.k
        if k >= self.parameters:
            return np.arange(self.parameters)
        low, high = bracket(np.abs(values), k)
        found = above(values, low, strict=False)
        enough = np.abs(values[found]) >= np.float32(high)
        sure, band = found[enough], found[~enough]
        missing = k - sure.size
        trap = self.options.compat == "released"
        generator = stream(self.options.seed, "mstopk", self.iteration, worker)
        offset = int(generator.integers(band.size - missing + 1 + trap))
        return np.sort(np.concatenate([sure, band[offset : offset + missing]]))

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        # Mean, maximum, the rounds, and the pass that picks the entries out.
        return DeviceOp("count", self.parameters, launches=ROUNDS + 2), DeviceOp("scan", self.parameters)
