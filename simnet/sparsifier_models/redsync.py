"""RedSync: a threshold between mean and maximum of the magnitudes, found by bisection, over all-gather."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simnet.costs import threshold_allgather
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.options import Positive
from simnet.sparsifier_models.selection import Values, above, count_above, top_k
from simnet.sparsifier_models.thresholded import Found, Thresholded, moments

TRIM = 0.2


@dataclass(frozen=True, kw_only=True)
class RedSyncOptions(GatheredOptions):
    """Options of `RedSync`.

    Parameters
    ----------
    trimmed : bool
        Whether the k largest are taken, after a threshold has trimmed the gradient (trimmed top-k); else all above the
        threshold that bisection finds.
    interval : float
        Width of the interval, > 0, within mean to maximum, at which bisection gives up.
    """

    trimmed: bool = False
    interval: Positive = 0.2


class RedSync(Thresholded):
    """RedSync: bisection of the threshold until it keeps more than k and less than 2k entries, or trimmed top-k.

    The threshold is mean + q (max - mean) of the magnitudes. Bisection of q in [0, 1] ends when k < nnz < 2k, or with
    the last threshold tried when the interval is no longer than ``interval``. Only below k/2 is the threshold lowered:
    a search that comes between k/2 and k moves away from k again. With the ``interval`` of the reference
    implementation, 0.2, three thresholds are tried, and the last may keep any number of entries. Trimmed top-k lowers q
    from 0.8 in steps of 0.2 until at least k entries are above, and takes the k largest of these; if even the mean
    leaves fewer, of all.

    On the wire ``released`` float32 values and int32 indices are gathered one after the other, as in the reference
    implementation of SIDCo, which contains this scheme.

    References
    ----------
    J. Fang et al., "RedSync: Reducing Synchronization Bandwidth for Distributed Deep Learning Training System", JPDC
    133, 2019, Algorithms 2 and 3.

    Examples
    --------
    Mean 3 and maximum 9: with q = 1/2 the threshold is 6, which 7, 8 and 9 exceed, more than k = 2 and less than 2k.

    >>> gradients = np.array([[0, 1, -8, 9, 0, 0, 1, 1, 3, 7]], dtype=np.float32)
    >>> RedSync(workers=1, parameters=10, density=0.2).exchange(gradients).selected
    array([3])
    >>> RedSync(workers=1, parameters=10, density=0.2, trimmed=True).exchange(gradients).selected
    array([2])
    """

    name = "redsync"
    separable = True
    paper = "Fang et al., JPDC 2019, arXiv 1808.04357"
    costs = (threshold_allgather,)
    option_type = RedSyncOptions
    options: RedSyncOptions
    rounds_down = True
    released_widths = (4, 4)

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: object) -> None:
        super().__init__(workers, parameters, density, **options)
        self.ascending = not self.options.trimmed

    def _find(self, values: Values, worker: int) -> Found:
        magnitude = np.abs(values)
        mean, _ = moments(magnitude)
        spread = float(magnitude.max()) - mean
        if self.options.trimmed:
            return self._trimmed(values, magnitude, mean, spread)
        tries, low, high, threshold = 0, 0.0, 1.0, mean
        while high - low > self.options.interval:
            q = (low + high) / 2
            threshold = mean + q * spread
            count = count_above(magnitude, threshold)
            tries += 1
            if self.k < count < 2 * self.k:
                break
            if count < self.k / 2:
                high = q
            else:
                low = q
        # Mean, maximum, the counts, and the pass that picks the entries out.
        kernels = [DeviceOp("count", self.parameters, launches=2 + tries), DeviceOp("scan", self.parameters)]
        return Found(above(values, threshold), threshold, tries, kernels)

    def _trimmed(self, values: Values, magnitude: Values, mean: float, spread: float) -> Found:
        kept, tries = np.arange(values.size), 0
        while tries < round(1 / TRIM):
            tries += 1
            threshold = mean + (1 - TRIM * tries) * spread
            if count_above(magnitude, threshold) >= self.k:
                kept = above(values, threshold)
                break
        indices = kept[top_k(values[kept], self.k)]
        counts = DeviceOp("count", self.parameters, launches=1 + tries)
        kernels = [counts, DeviceOp("scan", self.parameters), DeviceOp("topk", kept.size)]
        return Found(indices, float(magnitude[indices].min()), tries, kernels)
