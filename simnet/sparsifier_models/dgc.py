"""Deep gradient compression: an all-gather of entries above a threshold, which is found from a sample.

The top-k of one entry in a hundred estimates the threshold of all; counting what is above tells how far it is off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from simnet.base.arrays import Adds
from simnet.base.quantities import Count, Density
from simnet.base.rng import stream
from simnet.cost_models.costs import threshold_allgather
from simnet.cost_models.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.gathered import GatheredOptions, GatheredPart
from simnet.sparsifier_models.options import Beta
from simnet.sparsifier_models.selection import Values, above, entries_kept, kth_magnitude, top_k
from simnet.sparsifier_models.thresholded import Thresholded, ThresholdSelection

SAMPLED = 0.01
"""Fraction of the entries in a sample."""


class Variant(NamedTuple):
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


VARIANTS = {
    "original": Variant(strided=True, lower=0.8, upper=1.3, adaptations=10, exact=True, truncated=True),
    "grace": Variant(strided=False, lower=0.7, upper=1.3, adaptations=10, exact=False),
    "adtopk": Variant(strided=False, lower=0.7, upper=1.3, adaptations=2, exact=False),
    "sidco": Variant(strided=False, lower=0.0, upper=4 / 3, adaptations=1, exact=True),
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
        self.ascending = not VARIANTS[self.options.variant].exact
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
        k, variant = self.k, VARIANTS[self.options.variant]
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
        """Return sampled values, the rank among them of the first threshold, and how many values kernels sample."""
        n, generator = values.size, stream(self.options.seed, "dgc", self.iteration, worker)
        scale = self.options.scale
        whole = max(1, round(n * scale))
        if VARIANTS[self.options.variant].strided:
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
