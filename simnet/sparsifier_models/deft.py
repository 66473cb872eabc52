"""DEFT: every worker selects from layers of its own, more entries from layers of larger norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simnet import collectives
from simnet.costs import deft
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.samples import apportion
from simnet.sparsifier_models.selection import Indices, Values, squared_norm, top_k
from simnet.sparsifier_models.steps import Step
from simnet.sparsifier_models.union_reduced import UnionReduced

_INT32 = 4.0


def cut_layers(sizes: Sequence[int], workers: int) -> list[int]:
    """Cut layers longer than a P-th of the gradient into P near-equal pieces, the longer ones first.

    Examples
    --------
    >>> cut_layers([2, 8, 2], 3)
    [2, 3, 3, 2, 2]
    >>> cut_layers([2], 3)
    [1, 1]
    """
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
    """Assign k entries to layers in proportion to their norms, in descending order of these.

    Each layer gets from 1 to its size; they add up to about k. Of equal norms, the last layer comes first.

    Examples
    --------
    The second layer is to have all of 10 * 6 / 10 entries but has only 4; the third gets 6 * 3 / 4 of the rest.

    >>> assign_k([1.0, 6.0, 3.0], [9, 4, 9], 10)
    [2, 4, 4]
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
    """Pack layers into bins, the costliest first, each into the bin of least cost; a top-k costs size log2 k_l.

    Returns the layers of each bin, and the common ones, which are sent whole.

    Examples
    --------
    >>> pack([4, 4, 6, 3], [2, 4, 1, 1], 2)
    ([[2], [0, 3]], [1])
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
    """DEFT: layers are packed into bins, one for each worker, which selects the k_l largest of each layer in its bin.

    Worker t mod P packs the bins by the k_l of its own gradient and broadcasts them; the workers take them in turn and
    select by the k_l of theirs. Without ``layers`` the whole gradient is one, and is cut into P. The entries of common
    layers, which all workers send whole, are in the union but not in ``selected``. Of a sample (``scale``) k_l are
    those of the layers of the model, and as large a share of all pieces together is kept: of short ones, some nothing.

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

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: object) -> None:
        super().__init__(workers, parameters, density, **options)
        layers = [size for _, size in self.layers] or [self.parameters]
        true = self.true_sizes or [self.true_parameters]
        self._sizes = cut_layers(layers, self.workers)
        self._starts = np.cumsum([0, *self._sizes]).tolist()
        which = np.searchsorted(np.cumsum(layers), self._starts[:-1], side="right").tolist()
        pieces = zip(self._sizes, which, strict=True)
        self._true_sizes = [max(1, round(size * true[layer] / layers[layer])) for size, layer in pieces]

    @property
    def max_selected(self) -> int:
        """Entries that a worker may select: k, and one for each piece that would else get none."""
        return self.k + len(self._sizes)

    @property
    def enough(self) -> float:
        """Three entries for each worker, which selects those of its own layers."""
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
