"""Top-k with a reduction at the union: the k largest entries of each worker, as ExDyna is compared with."""

from __future__ import annotations

from simnet.costs import uniontopk
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.selection import Indices, Values, top_k
from simnet.sparsifier_models.union_reduced import UnionReduced


class UnionTopk(UnionReduced):
    """Local top-k of the fused gradient: indices by all-gather, values by an all-reduce at their union.

    The union has from k to P k entries (gradient build-up). All workers send k indices, so that neither counts nor
    padding travel.

    References
    ----------
    D. Yoon, S. Oh, "Preserving Near-Optimal Gradient Sparsification Cost for Scalable Distributed Deep Learning",
    CCGrid 2024: the baseline Top-k of its reference implementation.

    Examples
    --------
    The third entry, selected by nobody, stays; at the first, worker 1 contributes its 1 as well.

    >>> import numpy as np
    >>> model = UnionTopk(workers=2, parameters=4, density=0.25)
    >>> exchange = model.exchange(np.array([[4, 3, 2, 0], [1, 0, 2, -8]], dtype=np.float32))
    >>> exchange.update, exchange.stats["build_up"]
    (array([ 2.5,  0. ,  0. , -4. ], dtype=float32), 2.0)
    >>> model.residual
    array([[0., 3., 2., 0.],
           [0., 0., 2., 0.]], dtype=float32)
    """

    name = "uniontopk"
    separable = True
    paper = "Yoon and Oh, CCGrid 2024, arXiv 2402.13781 (its baseline Top-k)"
    costs = (uniontopk,)
    announces = False

    def _select(self, values: Values, worker: int) -> Indices:
        return top_k(values, self.k)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return (DeviceOp("topk", self.parameters),)
