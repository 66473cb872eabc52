"""ARC-Top-K: all workers send the same rows of each matrix, chosen by an all-reduced sketch of the matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge

from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.base.rng import stream
from simnet.cost_models.costs import arctopk
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.chunking import places
from simnet.sparsifier_models.options import Allreduce
from simnet.sparsifier_models.powersgd import Matrix
from simnet.sparsifier_models.samples import apportion
from simnet.sparsifier_models.selection import Indices, Values, squared_norm, squared_norms, top_k
from simnet.sparsifier_models.tracking import Tracking, TrackingOptions
from simnet.sparsifier_models.wire import Step, all_reduced


class ARCTopkOptions(TrackingOptions):
    """Options of `ARCTopk`; ``momentum``, ``eta`` and ``start`` have the same meaning as in EF21.

    Parameters
    ----------
    feedback : {"ef14", "ef21"}
        What is done about rows that are not sent: kept and added to the next gradient, or tracked. Nothing without
        ``error_feedback``, as by default in the released code.
    rank : int
        Columns r of the sketch of a matrix, >= 1.
    warm_up : int
        Dense exchanges before the first compressed one, >= 0; 2 in the released code.
    rounding : {"floor", "ceil"}
        Whether a matrix of so many rows keeps density * rows of them rounded down, as the released hook does, or up, as
        its script for synthetic gradients; one at least.
    collective : str
        How sketches and rows are reduced: an all-reduce of `simnet.collectives.registry`.
    """

    feedback: Literal["ef14", "ef21"] = "ef14"
    rank: Count = 4
    warm_up: Annotated[int, Ge(0)] = 2
    rounding: Literal["floor", "ceil"] = "floor"
    collective: Allreduce = "ring"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feedback == "ef14" and self.momentum != "none":
            raise ValueError(f"momentum {self.momentum!r} needs feedback 'ef21', got 'ef14'")


class Whole(NamedTuple):
    """Numbers of rows and columns of a tensor in the full model, not in a gradient sample; a vector has 1 column."""

    rows: float
    columns: int


class ARCTopk(Tracking, is_restartable=False, by_tensors=True, reads_gradients=False, costs=(arctopk,)):
    """ARC-Top-K: all workers select the same rows of a tensor by shared sketches, so they need not send indices.

    All workers multiply a matrix A by the same random V of r columns, an all-reduce makes the mean of these sketches
    S = A V, and the rows of S with the largest sum of squares are those to send. One all-reduce carries the rows of all
    tensors. Of a vector the sketch is the vector itself: it costs 1 + density times what it costs dense.

    Tensors are the ``layers``. The released code cuts a convolution with t x t kernels into rows of 2 t^2 entries: give
    its layer as such a matrix. Here it is a matrix with a row for each output otherwise.

    With ``feedback="ef21"`` the first exchange after the warm-up is dense, and the update is the mean of the trackers.
    It is added up anew each time, where the released code adds the rows to what it has: they differ by rounding. Wires
    ``paper`` and ``released`` are the same.

    If the gradient is a sample (``scale``), sketches have the sizes that the model's tensors (``true_shapes``) have;
    without these, a matrix is taken to have ``scale`` times as many rows. The sampled entries of a tensor are cut into
    as many rows as the tensor has, at most one row per entry, and the same share of all rows is sent as of the model.

    References
    ----------
    ARC-Top-K, 2025; code yiran529/ARC-TopK, commit 0ef1995, ``group_topk_hook_no_reshape.py``.

    Examples
    --------
    Row 1 is the largest of the mean. The sketch has 3 entries, and the row two:

    >>> model = ARCTopk(workers=2, parameters=6, density=0.4, layers=[("w", (3, 2))], rank=1, warm_up=0)
    >>> exchange = model.exchange(np.array([[9, 0, 3, 4, 1, 0], [-9, 0, 5, 2, 0, 1]], dtype=np.float32))
    >>> exchange.update, exchange.schedule.bytes_sent()
    (array([0., 0., 4., 3., 0., 0.], dtype=float32), array([20., 20.]))
    """

    name = "arctopk"
    paper = "ARC-Top-K, 2025, arXiv 2510.26709"
    options: ARCTopkOptions

    def _set_up(self) -> None:
        super()._set_up()
        self._set_traits(fixed_volume=not self.options.warm_up and not self.traits.tracks)
        self.matrices = []
        shapes = self.shapes or ((self.parameters,),)
        for (place, _), true in zip(places(shapes), self.true_shapes or shapes, strict=True):
            size = place.stop - place.start
            columns = -(-size // min(true[0], size))
            self.matrices.append(Matrix(place, -(-size // columns), columns, self.options.rank))
        known = [(true[0], true[1] if len(true) == 2 else 1) for true in self.true_shapes]
        scale = self.options.scale
        self.wholes = [Whole(*one) for one in known] or [Whole(scale * one.rows, one.columns) for one in self.matrices]

    def _following(self) -> TrackingOptions | None:
        return super()._following() if self.options.feedback == "ef21" else None

    def _entries(self, size: int) -> int:
        return max(1, math.floor(self.density * size)) if self.options.rounding == "floor" else super()._entries(size)

    @property
    def dense(self) -> bool:
        """Whether the next exchange sends all entries, because of the warm-up or to initialise gradient trackers."""
        return self.iteration < self.options.warm_up or self.starts_dense

    @property
    def k(self) -> int:
        """Number of entries of the simulated gradient that a compressed exchange sends, in whole rows."""
        rows = zip(self.matrices, self._kept_rows, strict=True)
        return min(self.parameters, sum(kept * one.columns for one, kept in rows))

    @property
    def _kept_rows(self) -> list[int]:
        """Number of rows of this gradient to send, by tensor."""
        shares = [self._kept_of(one) * one.columns / self.options.scale for one in self.wholes]
        rows, columns = zip(*((one.rows, one.columns) for one in self.matrices), strict=True)
        return apportion(shares, rows, columns)

    @property
    def max_selected(self) -> int:
        """Largest number of entries a worker may select: all of the gradient, because some exchanges are dense."""
        return self.parameters

    @property
    def k_of_model(self) -> int:
        """Number of entries of the full model that a worker sends in a compressed exchange, as whole rows."""
        return sum(self._kept_of(one) * one.columns for one in self.wholes)

    def _kept_of(self, whole: Whole) -> int:
        """Return the number of rows to send of a model tensor, given the tensor's full size."""
        return self._entries(max(1, round(whole.rows)))

    def projection(self, index: int, columns: int) -> Floats:
        """Return a standard normal random matrix of `rank` rows for tensor `index`; it is equal on all workers."""
        draws = stream(self.options.seed, "arctopk", self.iteration, index)
        return draws.standard_normal((self.options.rank, columns))

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        P, n, dense = np.float32(self.workers), self.parameters, self.dense
        warming = self.iteration < self.options.warm_up
        if not warming:
            self._follow(corrected)
        stats: dict[str, float | Floats] = {}
        if dense:
            sent, union = squared_norms(corrected), n
            if warming:
                update = np.add.reduce(corrected, axis=0) / P
                corrected[:] = 0
            else:
                update = self._track(corrected.copy())
        else:
            if self.traits.tracks:
                corrected -= self.tracked
            rows = zip(self.matrices, self._kept_rows, strict=True)
            indices = np.concatenate([self._rows(which, *one, corrected) for which, one in enumerate(rows)])
            sent, union = np.zeros(self.workers), indices.size
            total = np.zeros(union, dtype=np.float32)
            tracked = self.tracked.copy()
            for worker, row in enumerate(corrected):
                values = row[indices]
                sent[worker] = squared_norm(values)
                total += values
                row[indices] = 0
                if self.traits.tracks:
                    tracked[worker, indices] += values
            if self.traits.tracks:
                update = self._track(tracked)
            else:
                update = np.zeros(n, dtype=np.float32)
                update[indices] = total / P
        if self.traits.tracks and not warming:
            stats["distance"] = np.sqrt(squared_norms(corrected)) if not dense else np.zeros(self.workers)
        return self._make_exchange(
            update, self._steps(dense, union), sent, key=(dense, union), union=union, stats=stats
        )

    def _rows(self, which: int, one: Matrix, k: int, corrected: Values) -> Indices:
        """Return the flat indices of the k rows with the largest norms in the workers' mean sketch of a matrix."""
        size = one.place.stop - one.place.start
        if one.columns == 1:
            sketch = corrected[:, one.place].sum(axis=0, dtype=np.float64)[np.newaxis]
        else:
            projection = self.projection(which, one.columns)
            sketch = np.zeros((len(projection), one.rows))
            for row in corrected:
                sketch += one.times(row[one.place], projection)
        # Roots of the scores, which a float32 holds whatever it holds of the gradients.
        norms: Values = np.sqrt(np.square(sketch / self.workers).sum(axis=0)).astype(np.float32)
        kept = top_k(norms, k)
        entries = (kept[:, np.newaxis] * one.columns + np.arange(one.columns)).ravel()
        return np.asarray(one.place.start + entries[entries < size])

    def _steps(self, dense: bool, k: int) -> Iterator[Step]:
        """Yield kernels and messages: for each tensor its sketch and selection, then packing and the all-reduce."""
        value, scale, n = float(self.options.value_bytes or 4), self.options.scale, self.parameters
        if dense:
            entries = sum(one.rows * one.columns for one in self.wholes) if self.true_shapes else scale * n
            yield self._reduced("dense", value * entries)
            return
        yield from [DeviceOp("sum", n)] * self.traits.tracks
        for one in self.wholes:
            matrix = one.columns > 1
            sketch = one.rows * (self.options.rank if matrix else 1)
            if matrix:
                yield DeviceOp("norm", one.rows * one.columns / scale)
            yield self._reduced("sketch", value * sketch)
            yield from (DeviceOp("norm", sketch / scale), DeviceOp("topk_layer", one.rows / scale))
        yield DeviceOp("gather", k)
        yield self._reduced("rows", value * scale * k)
        yield DeviceOp("scatter", k, launches=2)
        yield from [DeviceOp("sum", n)] * self.traits.tracks

    def _reduced(self, phase: str, nbytes: float) -> Schedule:
        return all_reduced(self.workers, nbytes, self.options.collective, phase)
