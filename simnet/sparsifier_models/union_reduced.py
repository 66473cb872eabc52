"""Schemes that all-gather the selected indices, and all-reduce the values at the union of all selections.

Every worker receives U, the union of all selections, and contributes its own value at every entry of U, whichever
worker selected it. The all-reduce adds up the values, so their volume does not grow with the number of workers, and all
residuals are zero at the entries of U. But U itself grows with the number of workers, unless the selections are
disjoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simnet import collectives
from simnet.base.arrays import Floats
from simnet.cost_models.costs import deft, uniontopk
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.codes import reader
from simnet.sparsifier_models.gathered import Gathered, GatheredOptions
from simnet.sparsifier_models.options import Allgather, Allreduce
from simnet.sparsifier_models.samples import apportion
from simnet.sparsifier_models.selection import Indices, Values, squared_norm, take_mean, top_k
from simnet.sparsifier_models.wire import GATHERED_AND_REDUCED, Step, reduce_values


class UnionReducedOptions(GatheredOptions):
    """Options of schemes that all-gather indices and all-reduce values at their union.

    Parameters
    ----------
    allgather : str
        Algorithm of the all-gathers; rings here and below, as in NCCL, over which the released code runs.
    allreduce : str
        How the values are reduced.
    """

    allgather: Allgather = "ring"
    allreduce: Allreduce = "ring"


class UnionReduced(Gathered, rounds_down=True, codes=GATHERED_AND_REDUCED):
    """Base of schemes that reduce values at the union of selections. Subclasses define selection and its kernels.

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

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        return self._reduce(corrected, *self._gather(corrected))

    def _gather(self, corrected: Values) -> tuple[NDArray[np.int64], Floats, Floats, NDArray[np.bool_]]:
        """Return each worker's number of entries, smallest magnitude and index bytes, and a mask of the union."""
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
        """Return the exchange that averages all rows at the `union`, and set these entries of the rows to 0."""
        U = np.flatnonzero(union)
        update, sent = take_mean(corrected, U, read=reader(self.options.values))
        wire = self.wire
        unique = () if self.traits.disjoint else (DeviceOp("topk_layer", float(counts.sum())),)
        places = self._allgather(counts, nbytes), counts, float(counts.sum()), self.parameters, self.workers
        steps = [
            *self._selection_kernels(),
            *wire.coded(*places, ascending=self.ascending, values=False),
            *unique,
            *reduce_values(self.workers, U.size, wire, self.options.allreduce, "values"),
        ]
        bits = 8 * (float(nbytes.max()) + U.size * wire.value_bytes) if self.workers > 1 else 0.0
        stats = {"threshold": smallest, "k_max": float(counts.max()), "bits": bits}
        return self._make_exchange(update, steps, sent, selected=counts, union=U.size, stats=stats)

    def _allgather(self, entries: NDArray[np.int64], nbytes: Floats) -> Schedule:
        """Return the all-gather of indices, in which every worker's part is padded to the longest part."""
        gather = partial(self.options.gather_equal, self.workers)
        indices = gather(nbytes.max(), "indices")
        return gather(self.wire.count_bytes, "counts").concat(indices) if self.announces else indices


class UnionTopk(UnionReduced, separable=True, costs=(uniontopk,)):
    """Local top-k of the whole gradient: an all-gather of indices, and an all-reduce of values at their union.

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


_INT32 = 4.0


def cut_layers(sizes: Sequence[int], workers: int) -> list[int]:
    """Return sizes of pieces: a layer longer than sum(sizes) / workers is cut evenly, any other is one piece."""
    longest, pieces = sum(sizes) / workers, []
    for size in sizes:
        if size > longest:
            quotient, remainder = divmod(size, workers)
            # A layer shorter than P has fewer pieces.
            pieces += [one for i in range(workers) if (one := quotient + (i < remainder))]
        else:
            pieces.append(size)
    return pieces


def assign_k(norms: Sequence[float], sizes: Sequence[int], k: int) -> list[int]:
    """Return the number of entries to select in each layer, in proportion to its norm.

    Each layer gets from 1 to its size; they add up to about k. Of equal norms, the last layer comes first.
    """
    k_l, k_rem = [0] * len(norms), k
    norm_rem = float(np.cumsum(norms)[-1])
    for layer in np.argsort(norms, kind="stable")[::-1].tolist():
        share = int(k_rem * (norms[layer] / norm_rem)) if norm_rem > 0 else 0
        k_l[layer] = min(max(share, 1), sizes[layer])
        k_rem -= k_l[layer]
        norm_rem -= norms[layer]
    return k_l


def pack(sizes: Sequence[int], k_l: Sequence[int], bins: int) -> tuple[list[list[int]], list[int]]:
    """Pack layers into bins, costliest first, each into the least loaded bin; a layer costs size * log2(its `k_l`).

    Returns the layers of each bin, and the common ones, which are sent whole.
    """
    cost = [size * math.log2(k) if k > 1 else float(size) for size, k in zip(sizes, k_l, strict=True)]
    packed: list[list[int]] = [[] for _ in range(bins)]
    load, common = [0.0] * bins, []
    for layer in sorted(range(len(sizes)), key=lambda one: -cost[one]):
        if k_l[layer] == sizes[layer]:
            common.append(layer)
            continue
        lightest = load.index(min(load))
        packed[lightest].append(layer)
        load[lightest] += cost[layer]
    return packed, common


class DEFT(UnionReduced, disjoint=True, costs=(deft,)):
    """DEFT: layers are packed into one bin per worker; a worker selects the largest entries of each layer in its bin.

    In exchange t worker t mod P packs the layers into bins by the k_l of its own gradient and broadcasts the bins. Bins
    rotate among the workers, and each selects by the k_l of its own gradient. Without ``layers`` the gradient is one
    layer, cut into P pieces. Entries of common layers, which all workers send completely, are in the union but not in
    ``selected``. If the gradient is a sample (``scale``), k_l is that of the model's layer, scaled down with its
    entries, so that some short pieces keep nothing.

    References
    ----------
    D. Yoon, S. Oh, "DEFT: Exploiting Gradient Norm Difference between Model Layers for Scalable Gradient
    Sparsification", ICPP 2023, arXiv 2307.03500, and the reference implementation.

    Examples
    --------
    Of 3 entries, layer 0 gets 2 at worker 0, which takes bin 0, and layer 1 gets 2 at worker 1.

    >>> model = DEFT(workers=2, parameters=8, density=0.375, layers=(4, 4))
    >>> gradients = np.array([[4, 6, 5, 1, 2, 3, 0, 0], [0, 0, 1, 1, 5, 6, 8, 0]], dtype=np.float32)
    >>> exchange = model.exchange(gradients)
    >>> exchange.update, exchange.selected
    (array([0. , 3. , 3. , 0. , 0. , 4.5, 4. , 0. ], dtype=float32), array([2, 2]))
    """

    name = "deft"
    paper = "Yoon and Oh, ICPP 2023, arXiv 2307.03500"

    def _set_up(self) -> None:
        layers = [size for _, size in self.layers] or [self.parameters]
        true = self.true_sizes or [self.true_parameters]
        self._sizes = cut_layers(layers, self.workers)
        self._starts = np.cumsum([0, *self._sizes]).tolist()
        which = np.searchsorted(np.cumsum(layers), self._starts[:-1], side="right").tolist()
        pieces = zip(self._sizes, which, strict=True)
        self._true_sizes = [max(1, round(size * true[layer] / layers[layer])) for size, layer in pieces]

    @property
    def max_selected(self) -> int:
        """Largest number of entries a worker may select: k, plus one for each piece of a layer."""
        return self.k + len(self._sizes)

    @property
    def enough(self) -> float:
        """Minimum number of selected entries for a representative gradient sample: three per worker."""
        return 3.0 * self.workers

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        root = self.iteration % self.workers
        scale, k = self.options.scale, self.k_of_model
        of_model = [assign_k(self._norms(row), self._true_sizes, k) for row in corrected]
        self._k_l = [apportion([one / scale for one in k_l], self._sizes) for k_l in of_model]
        self._bins, common = pack(self._true_sizes, of_model[root], self.workers)
        counts, smallest, nbytes, union = self._gather(corrected)
        for layer in common:
            start = self._starts[layer]
            union[start : start + self._k_l[root][layer]] = True
        return self._reduce(corrected, counts, smallest, nbytes, union)

    def _norms(self, values: Values) -> list[float]:
        pieces = zip(self._starts, self._sizes, strict=False)
        squares = np.array([squared_norm(values[start : start + size]) for start, size in pieces])
        squares *= np.array(self._true_sizes) / (self.options.scale * np.array(self._sizes))
        # With the 24 bits of a float32 they add up and subtract exactly, and the last layer gets all that is left.
        mantissa, exponent = np.frexp(np.sqrt(squares))
        norms: list[float] = np.ldexp(np.rint(mantissa * 2**24), exponent - 24).tolist()
        return norms

    def _select(self, values: Values, worker: int) -> Indices:
        chosen = [np.zeros(0, dtype=np.int64)]
        for layer in self._bins[(self.iteration + worker) % self.workers]:
            start, end = self._starts[layer : layer + 2]
            chosen.append(start + top_k(values[start:end], self._k_l[worker][layer]))
        return np.concatenate(chosen)

    def _selection_kernels(self) -> tuple[Step, ...]:
        P, L = self.workers, len(self._sizes)
        root = self.iteration % P
        turn = [self._bins[(self.iteration + worker) % self.workers] for worker in range(self.workers)]
        # One kernel for the first layers of all bins, one for the second ones, and so on.
        entries = np.zeros((max(map(len, turn), default=0), self.workers))
        for worker, layers in enumerate(turn):
            entries[: len(layers), worker] = [self._sizes[layer] for layer in layers]
        return (
            DeviceOp("norm", self.parameters / L, launches=L),
            collectives.broadcast_binomial(P, _INT32 * P, root).in_phase("bins"),
            collectives.broadcast_binomial(P, _INT32 * L, root).in_phase("layers"),
            *(DeviceOp("topk_layer", sizes) for sizes in entries),
        )
