"""EF21: each worker sends the largest entries of the difference between its gradient and its tracker."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.cost_models.costs import ef21, ring_allreduce
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.gathered import Gathered, GatheredOptions, GatheredPart
from simnet.sparsifier_models.options import Allreduce
from simnet.sparsifier_models.selection import Indices, Values, squared_norm, squared_norms, top_k
from simnet.sparsifier_models.tracking import Tracking, TrackingOptions
from simnet.sparsifier_models.wire import EVERY, Codes, all_reduced

# The least that says which of two messages this is.
_FLAG = 1.0


class EF21Options(TrackingOptions, GatheredOptions):
    """Options of `EF21`.

    Parameters
    ----------
    variant : {"ef21", "ef21plus"}
        EF21, or EF21+: a worker sends what it would of the gradient itself where that comes strictly nearer to it.
    compressor : {"topk", "blocks"}
        The largest entries, or the blocks of neighbours with the largest sums of squares.
    block : int
        Entries of a block, >= 1.
    collective : str
        How the dense gradient of the first exchange is reduced: an all-reduce of `simnet.collectives.registry`.
    """

    variant: Literal["ef21", "ef21plus"] = "ef21"
    compressor: Literal["topk", "blocks"] = "topk"
    block: Count = 10
    collective: Allreduce = "ring"


class EF21(
    Tracking,
    Gathered,
    is_restartable=False,
    codes=EVERY,
    released_widths=(4, 4),
    costs=(ef21, ring_allreduce),
    reads_gradients=False,
):
    """EF21: workers all-gather the compressed difference between their gradient and a tracker of their gradient.

    Every worker has a tracker g_i, and all have the mean g of these, which is the update: it is dense. A worker sends
    c_i = C(gradient - g_i), and g_i takes it in. The first exchange is dense: g_i begins as the gradient.

    With EF21+ a message may replace the worker's tracker instead of changing it; a byte says which. For this, every
    worker stores the trackers of all.

    The wire ``released`` counts values only, as the released code does; that is too little, as indices and flags must
    be sent, too. Without error feedback C(gradient) is sent, and the mean of these applied.

    References
    ----------
    P. Richtarik, I. Sokolov, I. Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
    Feedback", NeurIPS 2021; code IgorSokoloff/ef21_experiments_source_code, commit 805c9d7; with momentum,
    yiran529/ARC-TopK, ``synthetic_release``.

    Examples
    --------
    >>> model = EF21(workers=2, parameters=3, density=0.3)
    >>> model.exchange(np.array([[4, 2, 0], [0, 2, 2]], dtype=np.float32)).update
    array([2., 2., 1.], dtype=float32)

    The first worker sends that entry 0 is 4 less, the second that entry 2 is 6 more:

    >>> exchange = model.exchange(np.array([[0, 3, 0], [0, 2, 8]], dtype=np.float32))
    >>> exchange.update, model.tracked, exchange.schedule.bytes_sent()
    (array([0., 2., 4.], dtype=float32), array([[0., 2., 0.],
           [0., 2., 8.]], dtype=float32), array([8., 8.]))
    """

    name = "ef21"
    paper = "Richtarik et al., NeurIPS 2021, arXiv 2106.05203"
    options: EF21Options

    def _option_traits(self) -> dict[str, Any]:
        blocks = Codes(otherwise="blocks are told by their numbers")
        return super()._option_traits() | ({"codes": blocks} if self.options.compressor == "blocks" else {})

    @property
    def max_selected(self) -> int:
        """Largest number of entries a worker may select: all, as the first exchange is dense."""
        return self.parameters

    @property
    def unit(self) -> int:
        """Number of entries that are selected together: the size of a block, or 1."""
        return self.options.block if self.options.compressor == "blocks" else 1

    @property
    def k_of_model(self) -> int:
        """Number of entries selected of the whole model: k, or whole blocks with the compressor ``blocks``."""
        entries, unit = self.true_parameters, self.unit
        return min(entries, self._entries(-(-entries // unit)) * unit)

    def _select(self, values: Values, worker: int) -> Indices:
        if self.options.compressor == "topk":
            return top_k(values, self.k)
        block, blocks = self.options.block, -(-self.parameters // self.options.block)
        padded = np.zeros(blocks * block)
        padded[: values.size] = values
        # Roots, which a float32 holds whatever it holds of the gradients.
        norms: Values = np.sqrt(np.square(padded.reshape(blocks, block)).sum(axis=1)).astype(np.float32)
        chosen = top_k(norms, -(-self.k // block))
        entries = (chosen[:, np.newaxis] * block + np.arange(block)).ravel()
        return entries[entries < values.size]

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        n, block = self.parameters, self.options.block
        select: tuple[DeviceOp, ...] = (DeviceOp("topk", n),)
        if self.options.compressor == "blocks":
            select = (DeviceOp("norm", n), DeviceOp("topk", n / block))
        lacking = (DeviceOp("sum", n),) * self.traits.tracks
        if self._chooses:
            # The gradient itself is compressed, too, and what either leaves is measured.
            return (*select, *lacking, *select, DeviceOp("norm", n), DeviceOp("norm", n))
        return (*lacking, *select)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        dense = self.starts_dense
        self._follow(corrected)
        if dense:
            return self._densely(corrected)
        if not self.traits.tracks:
            return super()._communicate(corrected, gradients)
        plain, tracked = np.zeros(self.workers, dtype=np.bool_), self.tracked.copy()
        selected, sent, nbytes = (np.zeros(self.workers) for _ in range(3))
        distance, touched = np.zeros(self.workers), np.zeros(self.parameters, dtype=np.bool_)
        for worker, (row, tracker) in enumerate(zip(corrected, tracked, strict=True)):
            itself = row.copy() if self._chooses else None
            row -= tracker
            one = self._send(row, self._select(row, worker))
            distance[worker] = squared_norm(row)
            if itself is not None:
                other = self._send(itself, self._select(itself, worker))
                left = squared_norm(itself)
                if left < distance[worker]:
                    plain[worker], distance[worker], one = True, left, other
                    tracker[:] = 0
            tracker[one.indices] += one.values
            touched[one.indices] = True
            selected[worker], sent[worker] = one.indices.size, squared_norm(one.values)
            nbytes[worker] = one.nbytes + (_FLAG if itself is not None else 0.0)
        entries = selected.astype(np.int64)
        stats = {"distance": np.sqrt(distance)} | ({"plain": float(plain.sum())} if self._chooses else {})
        steps, union = self._steps(entries, nbytes), int(np.count_nonzero(touched))
        return self._make_exchange(self._track(tracked), steps, sent, selected=entries, union=union, stats=stats)

    def _densely(self, corrected: Values) -> Exchange:
        """Exchange the initial trackers by a dense all-reduce."""
        n, scale = self.parameters, self.options.scale
        value = float(self.options.value_bytes or 4)
        return self._make_exchange(
            self._track(corrected.copy()),
            [all_reduced(self.workers, value * scale * n, self.options.collective, "dense")],
            squared_norms(corrected),
            stats={"distance": np.zeros(self.workers)} | ({"plain": 0.0} if self._chooses else {}),
        )

    @property
    def _chooses(self) -> bool:
        return self.options.variant == "ef21plus"

    def _send(self, row: Values, indices: Indices) -> GatheredPart:
        """Move entries from a row to a message with one index per block, or without indices as in released code."""
        one, wire = super()._send(row, indices), self.wire
        if wire.released:
            return one._replace(nbytes=indices.size * wire.value_bytes)
        if self.options.compressor == "blocks":
            blocks = -(-indices.size // self.options.block)
            return one._replace(nbytes=indices.size * wire.value_bytes + blocks * wire.index_bytes)
        return one

    def _allgather(self, entries: NDArray[np.int64], nbytes: Floats) -> Schedule:
        return self.options.gather(nbytes).in_phase("entries")
