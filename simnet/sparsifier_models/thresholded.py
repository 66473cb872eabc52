"""Schemes that estimate a threshold and all-gather all entries above it.

Nothing is sorted: a few passes over the gradient take the place of a top-k. In return the number of entries that a
worker sends is not k, but whatever its threshold lets through. Deep gradient compression estimates the threshold by the
top-k of one entry in a hundred; counting what is above tells how far it is off.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Adds, Floats
from simnet.base.quantities import Count, Density
from simnet.base.rng import stream
from simnet.cost_models.costs import gaussiank, threshold_allgather
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.gathered import Gathered, GatheredOptions, GatheredPart
from simnet.sparsifier_models.options import Beta, Positive
from simnet.sparsifier_models.selection import Indices, Values, above, count_above, entries_kept, kth_magnitude, top_k

# Blocks this short stay in the cache while they are converted and summed.
_BLOCK = 8192


class ThresholdSelection(NamedTuple):
    """Result of a worker's threshold search: selected indices, threshold, number of tries, and kernels."""

    # The entries it sends, ascending.
    indices: Indices
    # Magnitude by which they were selected.
    threshold: float
    # Thresholds it tried.
    tries: int
    # What it ran.
    kernels: Sequence[DeviceOp]


def in_double(values: Values) -> Iterator[NDArray[np.float64]]:
    """Yield consecutive blocks of the values in double precision."""
    return (values[start : start + _BLOCK].astype(np.float64) for start in range(0, values.size, _BLOCK))


def moments(values: Values) -> tuple[float, float]:
    """Return the mean and unbiased variance in double precision (variance 0 for one value). ValueError: no values."""
    n = values.size
    if not n:
        raise ValueError("there is no value to average")
    mean = math.fsum(float(block.sum()) for block in in_double(values)) / n
    spread = math.fsum(float(np.square(block - mean).sum()) for block in in_double(values))
    return mean, spread / (n - 1) if n > 1 else 0.0


def side_by_side(runs: Sequence[Sequence[DeviceOp]]) -> tuple[DeviceOp, ...]:
    """Merge the kernels of all workers; a merged kernel states the number of entries of each worker, shape (P,)."""
    launched: dict[tuple[str, int], NDArray[Any]] = {}
    for worker, kernels in enumerate(runs):
        count: dict[str, int] = {}
        for one in kernels:
            for _ in range(one.launches):
                number = count[one.method] = count.get(one.method, 0) + 1
                launched.setdefault((one.method, number), np.zeros(len(runs)))[worker] = one.entries
    return tuple(DeviceOp(method, entries) for (method, _), entries in launched.items())


class Thresholded(Gathered, searches_threshold=True):
    """Base of threshold schemes that all-gather entries; subclasses define the search for the threshold.

    ``threshold`` is the one that each worker used. Besides the statistics of `Exchange` there is ``tries``, shape (P,),
    the thresholds that each worker tried.
    """

    sends_gain = False
    ascending = True

    @abstractmethod
    def _find(self, values: Values, worker: int) -> ThresholdSelection:
        """Return the result of a worker's threshold search in its `values`, shape (n,)."""

    def _select(self, values: Values, worker: int) -> Indices:
        return self._find(values, worker).indices

    def _take(self, row: Values, worker: int) -> GatheredPart:
        found = self._find(row, worker)
        sent = self._send(row, found.indices)
        return sent._replace(threshold=found.threshold, tries=found.tries, kernels=found.kernels)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return side_by_side([kernels for _, kernels in self._searches])

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        exchange = super()._communicate(corrected, gradients)
        exchange.stats["tries"] = np.array([tries for tries, _ in self._searches], dtype=np.float64)
        return exchange


class Rule(NamedTuple):
    """Rule by which an implementation of Gaussian-k corrects its threshold.

    With fewer than `low` k entries above it, the threshold is divided by `down`; with more than `high` k it is
    multiplied by `up`; at most `steps` times. Only with `turns` may it change direction. With `magnitudes`, mean and
    deviation are those of the magnitudes.
    """

    low: Fraction
    high: Fraction | None
    down: float
    up: float
    steps: int
    turns: bool = False
    magnitudes: bool = False

    def bounds(self, k: int) -> tuple[int, float]:
        """Return the least and largest number of selected entries at which the threshold needs no correction."""
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


class GaussianK(Thresholded, separable=True, rounds_down=True, released_widths=(4, 4), costs=(gaussiank,)):
    """Gaussian-k: an all-gather of entries above a threshold from a fitted normal distribution, corrected towards k.

    Mean and deviation are in double precision. A count from each worker is gathered first; on the wire ``released``
    int32 indices and float32 values follow one after the other. If the estimate is not positive, multiplying it cannot
    correct it: a gradient whose entries all have the same negative value is sent completely, one of zeros not at all.

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
    paper = "Shi et al., 2019, arXiv 1911.08772"
    options: GaussianKOptions

    def _find(self, values: Values, worker: int) -> ThresholdSelection:
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
        return ThresholdSelection(above(values, threshold), threshold, tries, kernels)

    def _allgather(self, entries: NDArray[np.int64], nbytes: Floats) -> Schedule:
        gather, counts, wire = self.options.gather, entries.astype(np.float64), self.wire
        sizes = gather(np.full(self.workers, wire.count_bytes)).in_phase("sizes")
        if not wire.released:
            return sizes.concat(gather(nbytes).in_phase("entries"))
        return sizes.concat(
            gather(counts * wire.index_bytes).in_phase("indices"), gather(counts * wire.value_bytes).in_phase("values")
        )


TRIM = 0.2


class RedSyncOptions(GatheredOptions):
    """Options of `RedSync`.

    Parameters
    ----------
    trimmed : bool
        Whether the k largest are taken, after a threshold has trimmed the gradient (trimmed top-k); else all above the
        threshold that bisection finds.
    interval : float
        Bisection ends when its interval is narrower than this share, > 0, of the distance from mean to maximum.
    """

    trimmed: bool = False
    interval: Positive = 0.2


class RedSync(Thresholded, separable=True, rounds_down=True, released_widths=(4, 4), costs=(threshold_allgather,)):
    """RedSync: an all-gather of k to 2k entries above a threshold found by bisection, or of k entries (trimmed top-k).

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
    paper = "Fang et al., JPDC 2019, arXiv 1808.04357"
    options: RedSyncOptions

    def _set_up(self) -> None:
        self.ascending = not self.options.trimmed

    def _find(self, values: Values, worker: int) -> ThresholdSelection:
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
        return ThresholdSelection(above(values, threshold), threshold, tries, kernels)

    def _trimmed(self, values: Values, magnitude: Values, mean: float, spread: float) -> ThresholdSelection:
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
        return ThresholdSelection(indices, float(magnitude[indices].min()), tries, kernels)


SAMPLED = 0.01
"""Fraction of the entries in a sample."""


class DGCVariant(NamedTuple):
    """Rules by which an implementation of DGC samples and adapts the threshold.

    With more than `upper` k entries above it, it is multiplied by `upper`, or the k largest of them are taken
    (`exact`); with less than `lower` k it is multiplied by `lower`; at most `adaptations` times.
    """

    strided: bool
    lower: float
    upper: float
    adaptations: int
    exact: bool
    truncated: bool = False


DGC_VARIANTS = {
    "original": DGCVariant(strided=True, lower=0.8, upper=1.3, adaptations=10, exact=True, truncated=True),
    "grace": DGCVariant(strided=False, lower=0.7, upper=1.3, adaptations=10, exact=False),
    "adtopk": DGCVariant(strided=False, lower=0.7, upper=1.3, adaptations=2, exact=False),
    "sidco": DGCVariant(strided=False, lower=0.0, upper=4 / 3, adaptations=1, exact=True),
}


def sample_stride(parameters: int, density: float) -> int:
    """Return the stride between sampled entries, a multiple of 8 plus 1.

    One entry in a hundred is sampled, and at least two for each entry in 1 / density.
    """
    enough = max(math.ceil(parameters * SAMPLED), math.ceil(2 / density))
    return 1 + max(parameters // enough - 1, 0) // 8 * 8


class DGCOptions(GatheredOptions):
    """Options of `DGC`.

    Parameters
    ----------
    variant : {"original", "grace", "adtopk", "sidco"}
        Whose reference implementation is followed. ``original``: a strided sample, at most 10 adaptations by 0.8, exact
        top-k above 1.3 k, and no more than the first k entries. ``grace``: a uniform sample, with replacement, and at
        most 10 adaptations by 0.7 or 1.3; ``adtopk``: at most 2 of these. ``sidco``: a uniform sample, and exact top-k
        above 4/3 k.
    momentum : float
        Factor m of the momentum correction, in [0, 1); 0 for none.
    masking : bool
        Whether the velocity of what is sent starts from zero again (momentum-factor masking).
    warm_up : sequence of float
        Densities of the first exchanges, such as 0.25, 0.063, 0.015, 0.004, before that of the model.
    warm_up_exchanges : int
        Exchanges at each of these, >= 1; an epoch in the paper.
    """

    variant: Literal["original", "grace", "adtopk", "sidco"] = "original"
    momentum: Beta = 0.0
    masking: bool = True
    warm_up: Sequence[Density] = ()
    warm_up_exchanges: Count = 1


class DGC(Thresholded, moments=("velocity",), costs=(threshold_allgather,)):
    """Deep gradient compression (DGC): an all-gather of entries above a sampled threshold, with momentum correction.

    With momentum correction a worker accumulates velocities u = m u + g in place of gradients g, and selects from
    v = v + u; the residual is v. Statistics then are those of velocities, which are conserved. Gradients are not:
    ``lost`` is what momentum has added to them.

    On a sample of the entries of a model (`scale` above 1) as many are drawn as from the whole of it, all at most.

    On the wire ``released`` float32 values and int64 indices are gathered one after the other. A sample of nothing but
    zeros gives a threshold of 0, which everything reaches: the exact top-k then puts it right, and variants without it
    send the whole gradient. After an exact top-k ``threshold`` is the smallest magnitude it took.

    References
    ----------
    Y. Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training", ICLR
    2018, section 3.

    Examples
    --------
    >>> gradients = np.random.default_rng(0).standard_t(3, (2, 100_000)).astype(np.float32)
    >>> DGC(workers=2, parameters=100_000, density=0.01).exchange(gradients).selected
    array([1000, 1000])

    Entry 0 is sent, and its velocity masked; that of entry 1 builds up.

    >>> model = DGC(workers=1, parameters=2, density=0.5, momentum=0.5)
    >>> for _ in range(2):
    ...     print(model.exchange(np.array([[4, 1]], dtype=np.float32)).update, model.residual)
    [4. 0.] [[0. 1.]]
    [4. 0.] [[0.  2.5]]
    """

    name = "dgc"
    paper = "Lin et al., ICLR 2018, arXiv 1712.01887"
    options: DGCOptions

    def _set_up(self) -> None:
        self.ascending = not DGC_VARIANTS[self.options.variant].exact
        self.velocity = np.zeros((self.workers, self.parameters if self.options.momentum else 0), dtype=np.float32)

    def _option_traits(self) -> dict[str, Any]:
        moves = bool(self.options.momentum)
        return {"reads_gradients": moves, "conserves": not moves, "state": ("velocity",) * moves}

    def exchange(self, gradients: Values | Adds, *, overwrite: bool = False) -> Exchange:
        """Exchange one gradient per worker; during the warm-up, the warm-up's density applies."""
        target, step = self.density, self.iteration // self.options.warm_up_exchanges
        if step < len(self.options.warm_up):
            self.density = self.options.warm_up[step]
        try:
            if not self.options.momentum:
                return super().exchange(gradients, overwrite=overwrite)
            fresh = self._given(gradients)
            total = self.residual.sum(axis=0, dtype=np.float64)
            velocity = np.multiply(self.velocity, np.float32(self.options.momentum))
            # What overflows here is refused there.
            with np.errstate(over="ignore", invalid="ignore"):
                velocity += fresh
            exchange = super().exchange(velocity)
        finally:
            self.density = target
        if self.options.error_feedback:
            for given, kept in zip(fresh, self.residual, strict=True):
                total += given
                total -= kept
            total -= self.workers * exchange.update.astype(np.float64)
            exchange.stats["lost"] = float(np.sqrt(np.square(total).sum()))
        return exchange

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        if self.options.momentum:
            # The velocities that `exchange` has made, no array of the caller's.
            self.velocity = gradients
        return super()._communicate(corrected, gradients)

    def _take(self, row: Values, worker: int) -> GatheredPart:
        sent = super()._take(row, worker)
        if self.options.momentum and self.options.masking:
            self.velocity[worker, sent.indices] = 0
        return sent

    def _find(self, values: Values, worker: int) -> ThresholdSelection:
        k, variant = self.k, DGC_VARIANTS[self.options.variant]
        samples, top, drawn = self._sample(values, worker)
        threshold = np.float32(kth_magnitude(samples, top))
        indices, tries = above(values, float(threshold), strict=False), 1
        kernels = [DeviceOp("gather", drawn), DeviceOp("topk", drawn)]
        while tries <= variant.adaptations and samples.size < values.size:
            if indices.size > variant.upper * k:
                if variant.exact:
                    kernels.append(DeviceOp("topk", indices.size))
                    indices = indices[top_k(values[indices], k)]
                    threshold = np.abs(values[indices]).min()
                    break
                threshold *= np.float32(variant.upper)
            elif indices.size < variant.lower * k:
                threshold *= np.float32(variant.lower)
            else:
                break
            indices = above(values, float(threshold), strict=False)
            tries += 1
        kernels.append(DeviceOp("scan", values.size, launches=tries))
        return ThresholdSelection(indices[:k] if variant.truncated else indices, float(threshold), tries, kernels)

    def _sample(self, values: Values, worker: int) -> tuple[Values, int, float]:
        """Return sampled values, how many should exceed the threshold, and the sample size to time kernels with."""
        n, generator = values.size, stream(self.options.seed, "dgc", self.iteration, worker)
        scale = self.options.scale
        whole = max(1, round(n * scale))
        if DGC_VARIANTS[self.options.variant].strided:
            count = whole // sample_stride(whole, self.density)
            stride = sample_stride(n, self.density) if scale == 1 else max(n // count, 1)
            samples = values[generator.integers(stride) :: stride]
            top = self.k if scale != 1 and stride == 1 else entries_kept(self.density, n // stride)
        else:
            count, top = max(1, int(whole * SAMPLED)), max(1, int(whole * self.density * SAMPLED))
            if scale != 1 and count >= n:
                samples, top = values, self.k
            else:
                samples = values[generator.integers(n, size=count)]
        return samples, top, samples.size if scale == 1 else count / scale
