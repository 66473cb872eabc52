"""Top-k by all-gather: every worker sends its own k entries of largest magnitude.

`Topk` takes them from the fused gradient, `LayerwiseTopk` (LWTopk) layer by layer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.cost_models.costs import ring_allreduce, topk_allgather, topka, tree_allreduce
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.codes import reader
from simnet.sparsifier_models.gathered import Gathered, GatheredOptions
from simnet.sparsifier_models.options import Allreduce
from simnet.sparsifier_models.samples import apportion
from simnet.sparsifier_models.selection import Indices, Values, above, count_above, take_mean, top_k
from simnet.sparsifier_models.wire import ADDED_UP, Codes, reduce_values


class Topk(Gathered, fixed_volume=True, separable=True, overlaps=True, costs=(topk_allgather,)):
    """Top-k: workers all-gather their k largest entries of the whole gradient.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE
    BigData 2023, section 3-D.

    Examples
    --------
    >>> model = Topk(workers=2, parameters=4, density=0.5)
    >>> exchange = model.exchange(np.array([[4, 3, 1, 0], [0, 5, 1, -8]], dtype=np.float32))
    >>> exchange.update, exchange.stats["build_up"]
    (array([ 2.,  4.,  0., -4.], dtype=float32), 1.5)
    >>> model.residual
    array([[0., 0., 1., 0.],
           [0., 0., 1., 0.]], dtype=float32)
    >>> exchange.schedule.bytes_sent()
    array([16., 16.])
    """

    name = "topk"
    # `simnet.cluster.hooks`, measured with several buckets.
    paper = "Tyagi and Swany, IEEE BigData 2023, arXiv 2312.02493"

    def _select(self, values: Values, worker: int) -> Indices:
        return top_k(values, self.k)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return (DeviceOp("topk", self.parameters),)


class LayerwiseTopkOptions(GatheredOptions):
    """Options of `LayerwiseTopk`; it needs the option ``layers``.

    Parameters
    ----------
    fused : bool
        Whether one all-gather carries the entries of all layers, as the cost model of the paper has it; else there is
        one all-gather per layer.
    """

    fused: bool = True


class LayerwiseTopk(Gathered, fixed_volume=True, separable=True, costs=(topk_allgather,)):
    """LWTopk: workers all-gather the largest entries of each layer.

    Every layer keeps the same density, at least one entry: the k of all layers may exceed that of the fused gradient.
    It is assumed that a worker selects from all layers before it sends the first.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, section 2-C3.

    Examples
    --------
    >>> model = LayerwiseTopk(workers=1, parameters=4, density=0.5, layers=(2, 2))
    >>> model.exchange(np.array([[4, 3, 1, 0]], dtype=np.float32)).update
    array([4., 0., 1., 0.], dtype=float32)
    """

    name = "lwtopk"
    paper = "Tyagi and Swany, IEEE BigData 2023, arXiv 2312.02493"
    options: LayerwiseTopkOptions

    def _option_traits(self) -> dict[str, Any]:
        each = Codes(otherwise="without fused each layer has its own message")
        return {} if self.options.fused else {"codes": each}

    def _set_up(self) -> None:
        if not self.layers:
            raise ValueError("layers must be given: their sizes, in the order of the gradient")
        self._starts = np.cumsum([0, *(size for _, size in self.layers)]).tolist()

    @property
    def k_of_model(self) -> int:
        """Number of entries that a worker selects in all layers of the whole model."""
        return sum(self._entries(size) for size in self.true_sizes)

    @property
    def k(self) -> int:
        """Number of entries that a worker selects in all layers of this gradient."""
        return sum(self._kept)

    @property
    def _kept(self) -> list[int]:
        """Number of entries to select in each layer of this gradient."""
        shares = [self._entries(size) / self.options.scale for size in self.true_sizes]
        return apportion(shares, [size for _, size in self.layers])

    def _select(self, values: Values, worker: int) -> Indices:
        chosen = [
            start + top_k(values[start : start + size], kept)
            for start, (_, size), kept in zip(self._starts, self.layers, self._kept, strict=False)
        ]
        return np.concatenate(chosen)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return tuple(DeviceOp("topk_layer", size) for _, size in self.layers)

    def _allgather(self, entries: NDArray[np.int64], nbytes: Floats) -> Schedule:
        if self.options.fused:
            return super()._allgather(entries, nbytes)
        by_layer = [np.full(self.workers, kept) for kept in self._kept]
        each = self.wire.entry_bytes
        return Schedule(self.workers).concat(*(super(LayerwiseTopk, self)._allgather(k, k * each) for k in by_layer))


class TopkA(Topk, separable=True, rounds_down=True, released_widths=(4, 4), costs=(topka,)):
    """TopkA: workers all-gather their exact top-k of the whole gradient, with k = max(1, floor(density n)).

    What `simnet.sparsifier_models.topk.Topk` does, in the reference implementation of Ok-Topk: on the wire ``released``
    float32 values and uint32 indices are gathered one after the other, and nothing else travels.

    References
    ----------
    S. Li, T. Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022 (baseline TopkA);
    C. Renggli et al., "SparCML: High-Performance Sparse Communication for Machine Learning", SC 2019.

    Examples
    --------
    >>> import numpy as np
    >>> model = TopkA(workers=2, parameters=5, density=0.5, wire="released")
    >>> exchange = model.exchange(np.array([[4, 3, 1, 0, 0], [0, 5, 1, -8, 0]], dtype=np.float32))
    >>> model.k, exchange.update
    (2, array([ 2.,  4.,  0., -4.,  0.], dtype=float32))
    >>> exchange.schedule.rounds
    (Round(2 messages, 16 bytes, phase='values'), Round(2 messages, 16 bytes, phase='indices'))
    """

    name = "topka"
    paper = "Li and Hoefler, PPoPP 2022, arXiv 2201.07598"
    sends_gain = False


ROUNDS = 25


def bracket(magnitude: Values, k: int) -> tuple[float, float]:
    """Bisect; return the largest threshold tried that keeps more than k entries, and the smallest that keeps at most k.

    Bisection in `ROUNDS` rounds between mean and maximum of the magnitudes. The lower one is 0 if every threshold tried
    keeps at most k entries; the upper one is infinite if every one keeps more.
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
    """MSTopk: workers all-gather about their k largest entries, above a threshold from 25 rounds of bisection.

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


class RandomkOptions(GatheredOptions):
    """Options of `Randomk`.

    Parameters
    ----------
    shared : bool
        Whether all workers draw the same entries; else each draws its own, and values and indices are all-gathered.
    collective : str
        How values at shared entries are reduced: an all-reduce of `simnet.collectives.registry`.
    """

    shared: bool = True
    collective: Allreduce = "ring"


class Randomk(Gathered, fixed_volume=True, separable=True, costs=(ring_allreduce, tree_allreduce, topk_allgather)):
    """Random-k: an all-reduce of the same k random entries of all workers, or an all-gather of each worker's own.

    It is assumed that a worker packs its values before its first message and applies the update after the last one. The
    draws depend only on the seed and the iteration. Values are not scaled up by n/k, as the entries not sent stay in
    the residual.

    References
    ----------
    S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.

    Examples
    --------
    >>> exchange = Randomk(workers=2, parameters=100, density=0.1).exchange(np.ones((2, 100), dtype=np.float32))
    >>> float(exchange.update.sum()), exchange.schedule.bytes_sent()
    (10.0, array([40., 40.]))
    """

    name = "randomk"
    paper = "Stich et al., NeurIPS 2018, arXiv 1809.07599"
    options: RandomkOptions
    ascending = True

    def _option_traits(self) -> dict[str, Any]:
        # No index travels.
        shared = Codes((), ADDED_UP, "workers draw the same entries and add values up on the way")
        return {"codes": shared} if self.options.shared else {}

    def _draw(self, *worker: int) -> Indices:
        generator = stream(self.options.seed, "randomk", self.iteration, *worker)
        return np.sort(generator.choice(self.parameters, self.k, replace=False, shuffle=False))

    def _select(self, values: Values, worker: int) -> Indices:
        return self._draw(worker)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return ()

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        if not self.options.shared:
            return super()._communicate(corrected, gradients)
        indices = self._draw()
        update, sent = take_mean(corrected, indices, read=reader(self.options.values))
        steps = reduce_values(self.workers, indices.size, self.wire, self.options.collective)
        return self._make_exchange(update, steps, sent, union=indices.size)
