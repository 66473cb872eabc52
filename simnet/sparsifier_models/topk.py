"""Top-k over all-gather: every worker sends its own k entries of largest magnitude.

`Topk` takes them from the fused gradient, `LayerwiseTopk` (LWTopk) layer by layer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.costs import topk_allgather, topka
from simnet.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.gathered import Gathered, GatheredOptions
from simnet.sparsifier_models.samples import apportion
from simnet.sparsifier_models.selection import Indices, Values, top_k
from simnet.sparsifier_models.wire import Codes


class Topk(Gathered, fixed_volume=True, separable=True, overlaps=True, costs=(topk_allgather,)):
    """Top-k of the fused gradient, over all-gather (AG; elsewhere TopkA).

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
    # `simnet.hooks`, measured with several buckets.
    paper = "Tyagi and Swany, IEEE BigData 2023, arXiv 2312.02493"

    def _select(self, values: Values, worker: int) -> Indices:
        return top_k(values, self.k)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return (DeviceOp("topk", self.parameters),)


class LayerwiseTopkOptions(GatheredOptions):
    """Options of `LayerwiseTopk`; ``layers`` is not optional.

    Parameters
    ----------
    fused : bool
        Whether one all-gather carries the entries of all layers, as the cost model of the paper has it; else there is
        one all-gather per layer.
    """

    fused: bool = True


class LayerwiseTopk(Gathered, fixed_volume=True, separable=True, costs=(topk_allgather,)):
    """LWTopk: top-k of each layer, over all-gather.

    Every layer keeps the same density, at least one entry: the k of all layers may exceed that of the fused gradient.
    That a worker selects from all layers before it sends those of the first is assumed.

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

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: object) -> None:
        super().__init__(workers, parameters, density, **options)
        if not self.layers:
            raise ValueError("layers must be given: their sizes, in the order of the gradient")
        self._starts = np.cumsum([0, *(size for _, size in self.layers)]).tolist()

    @property
    def k_of_model(self) -> int:
        """Entries a worker is to select of all layers of the model."""
        return sum(self._kept_of_model())

    @property
    def k(self) -> int:
        """Entries a worker is to select of all layers."""
        return sum(self._kept)

    def _kept_of_model(self) -> list[int]:
        """Return the entries to select of each layer of the model."""
        return [self._entries(size) for size in self.true_sizes]

    @property
    def _kept(self) -> list[int]:
        """Entries to select of each layer at hand."""
        shares = [kept / self.options.scale for kept in self._kept_of_model()]
        return apportion(shares, [size for _, size in self.layers])

    def _select(self, values: Values, worker: int) -> Indices:
        chosen = [
            start + top_k(values[start : start + size], kept)
            for start, (_, size), kept in zip(self._starts, self.layers, self._kept, strict=False)
        ]
        return np.concatenate(chosen)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return tuple(DeviceOp("topk_layer", size) for _, size in self.layers)

    @property
    def codes(self) -> Codes:
        """Every code, where one message carries the entries of all layers."""
        return super().codes if self.options.fused else Codes(otherwise="without fused each layer has its own message")

    def _allgather(self, entries: NDArray[np.int64], nbytes: Floats) -> Schedule:
        if self.options.fused:
            return super()._allgather(entries, nbytes)
        by_layer = [np.full(self.workers, kept) for kept in self._kept]
        each = self.wire.entry_bytes
        return Schedule(self.workers).concat(*(super(LayerwiseTopk, self)._allgather(k, k * each) for k in by_layer))


class TopkA(Topk, separable=True, rounds_down=True, released_widths=(4, 4), costs=(topka,)):
    """TopkA: exact top-k of the fused gradient with k = max(1, floor(c n)), over all-gather.

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
