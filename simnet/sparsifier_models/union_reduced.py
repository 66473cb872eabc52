"""Schemes in which the indices that the workers select are gathered, and values at their union are reduced.

Every worker gets to know U, the union of all selections, and contributes its own value at every entry of U, whichever
worker selected it. Values add up in the network, so that they are sent once however many workers there are, and every
worker starts afresh from zero at all of U. What builds up with the number of workers is the size of U, unless the
selections are disjoint.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.costs import uniontopk
from simnet.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.codes import reader
from simnet.sparsifier_models.gathered import Gathered, GatheredOptions
from simnet.sparsifier_models.options import Allgather, Allreduce
from simnet.sparsifier_models.selection import Indices, Values, take_mean, top_k
from simnet.sparsifier_models.steps import reduce_values
from simnet.sparsifier_models.wire import GATHERED_AND_REDUCED, Codes


class UnionReducedOptions(GatheredOptions):
    """Options of schemes that gather indices and reduce values at their union.

    Parameters
    ----------
    allgather : str
        Algorithm of the all-gathers; rings here and below, as in NCCL, over which the released code runs.
    allreduce : str
        How the values are reduced.
    """

    allgather: Allgather = "ring"
    allreduce: Allreduce = "ring"


class UnionReduced(Gathered, rounds_down=True):
    """Common part: a scheme of this kind says which entries a worker selects, and which kernels that takes.

    The indices travel padded to k_max, the most that a worker selected. Scheme-specific statistics:

    =========  ==========================================================================================
    ``k_max``  the most entries that a worker selected
    ``bits``   bits that a worker contributes to the all-gather of indices, padded, and to the all-reduce
               of values, as the reference implementation reports them: 64 k_max + 32 |U| at its widths
    =========  ==========================================================================================

    Attributes
    ----------
    announces : bool
        Whether the workers gather their numbers of entries before the indices.
    """

    options: UnionReducedOptions
    announces: ClassVar[bool] = True

    @property
    def codes(self) -> Codes:
        """Every code of indices, and values that can be added up."""
        return GATHERED_AND_REDUCED

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        return self._reduce(corrected, *self._gather(corrected))

    def _gather(self, corrected: Values) -> tuple[NDArray[np.int64], Floats, Floats, NDArray[np.bool_]]:
        """Let every worker select.

        Returns the count, smallest magnitude (inf if none) and index bytes of each worker, shape (P,), and the union
        (n,).
        """
        counts = np.zeros(self.workers, dtype=np.int64)
        smallest, nbytes = np.zeros(self.workers), np.zeros(self.workers)
        union = np.zeros(self.parameters, dtype=np.bool_)
        for worker, (indices, least) in enumerate(self._each(self._chosen, corrected)):
            counts[worker] = indices.size
            smallest[worker] = least
            nbytes[worker] = self.wire.indices(indices, (0, self.parameters))[0]
            union[indices] = True
        return counts, smallest, nbytes, union

    def _chosen(self, row: Values, worker: int) -> tuple[Indices, np.float32]:
        indices = self._select(row, worker)
        return indices, np.abs(row[indices]).min(initial=np.inf)

    def _reduce(
        self, corrected: Values, counts: NDArray[np.int64], smallest: Floats, nbytes: Floats, union: NDArray[np.bool_]
    ) -> Exchange:
        """Reduce the values at the `union`, which no worker keeps."""
        U = np.flatnonzero(union)
        update, sent = take_mean(corrected, U, read=reader(self.options.values))
        wire, k_max = self.wire, int(counts.max())
        unique = () if self.traits.disjoint else (DeviceOp("topk_layer", float(counts.sum())),)
        return self._make_exchange(
            update,
            [
                *self._selection_kernels(),
                *wire.encoding_kernels(counts, self.parameters, ascending=self.ascending, values=False),
                self._allgather(counts, nbytes),
                *wire.decoding_kernels(float(counts.sum()), self.parameters, self.workers, values=False),
                *unique,
                *reduce_values(self.workers, U.size, wire, self.options.allreduce, "values"),
            ],
            sent,
            selected=counts,
            union=U.size,
            stats={
                "threshold": smallest,
                "k_max": float(k_max),
                "bits": 8 * (float(nbytes.max()) + U.size * wire.value_bytes) if self.workers > 1 else 0.0,
            },
        )

    def _allgather(self, entries: NDArray[np.int64], nbytes: Floats) -> Schedule:
        """Return the messages by which all workers get the indices of each, padded to the most bytes."""
        gather, wire = self.options.gather, self.wire
        indices = gather(np.full(self.workers, nbytes.max())).in_phase("indices")
        if not self.announces:
            return indices
        return gather(np.full(self.workers, wire.count_bytes)).in_phase("counts").concat(indices)


class UnionTopk(UnionReduced, separable=True, costs=(uniontopk,)):
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
    paper = "Yoon and Oh, CCGrid 2024, arXiv 2402.13781 (its baseline Top-k)"
    announces = False

    def _select(self, values: Values, worker: int) -> Indices:
        return top_k(values, self.k)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return (DeviceOp("topk", self.parameters),)
