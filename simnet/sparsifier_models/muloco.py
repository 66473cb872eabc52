"""MuLoCo: pseudo-gradients compressed with error feedback, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from simnet import collectives
from simnet.cost_models.costs import chunked_allgather, muloco
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier, Step
from simnet.sparsifier_models.chunked import Bins
from simnet.sparsifier_models.chunking import places
from simnet.sparsifier_models.codes import Coded, linear, packed_bytes, statistical
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.options import BufferOptions, Decay, Positive
from simnet.sparsifier_models.samples import apportion
from simnet.sparsifier_models.selection import Values, squared_norm, top_k


class MuLoCoOptions(BufferOptions, GatheredOptions):
    """Options of `MuLoCo`. Released code applies the outer learning rate twice: as option ``gain`` and in the update.

    Parameters
    ----------
    decay : float
        Of the error buffer; 0.95 in the released code, as 256 ``bins`` and 6 ``sigmas``.
    compressor : {"statistical", "row_wise_statistical", "linear", "row_wise_linear", "topk"}
        Bins about the mean, or levels from the smallest value to the largest, for each tensor or each of its rows; or
        the largest entries of each tensor, as many as the density says, one at least.
    bins : int
        b, in 2 .. 256.
    sigmas : float
        R: standard deviations that bins about the mean together span, > 0.
    requantised : bool
        Whether the mean is quantised once more, as a reduce-scatter and an all-gather of codes would do; not with
        ``topk``.
    """

    decay: Decay = 0.95
    compressor: Literal["statistical", "row_wise_statistical", "linear", "row_wise_linear", "topk"] = "statistical"
    bins: Bins = 256
    sigmas: Positive = 6.0
    requantised: bool = True


class WholeTensor(NamedTuple):
    """Numbers of entries, rows and axes of a tensor in the full model, not in a gradient sample."""

    entries: float
    rows: float
    axes: int

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> WholeTensor:
        """Return the numbers of entries, rows and axes of a tensor with the given shape."""
        return cls(math.prod(shape), shape[0] if len(shape) == 2 else 1.0, len(shape))


class MuLoCo(
    Sparsifier,
    fixed_volume=True,
    by_tensors=True,
    rounds_down=True,
    memory_factor=(0.7, 6.0),
    costs=(muloco, chunked_allgather),
):
    """MuLoCo: workers send quantised or sparse pseudo-gradients of several inner steps of the optimiser Muon.

    The update is the mean before the outer step, of SGD with momentum. Quantisers send all entries at any density.

    The paper's collective is an all-to-all of shares, summed where they arrive, and an all-gather: the wire ``paper``.
    Its released code only simulates it and gathers all from all, tensor by tensor: codes, packed in 1, 2, 4 or 8 bits,
    and float32 numbers beside them (``topk``: indices of 8 bytes), the wire ``released``. With ``compat="released"``
    the gain does not count without error feedback.

    If the gradient is a sample (``scale`` s), messages are those of the model's tensors (``true_shapes``); without
    these, a matrix is taken to have sqrt(s) times as many rows. The sample of a tensor is quantised as one row.

    Statistics of its own: ``contributed``, shape (P,), bytes of a worker's compressed vector and of what describes
    it.

    References
    ----------
    B. Therien et al., "MuLoCo: Muon is a Practical Inner Optimizer for DiLoCo", 2025; code facebookresearch/MuLoCo,
    commit 475bbf4, ``quantized_outer_sgd.py``.

    Examples
    --------
    >>> model = MuLoCo(workers=1, parameters=4, compressor="linear", bins=2)
    >>> model.exchange(np.array([[1, 0.2, 0.9, 0]], dtype=np.float32)).update, model.residual.round(3)
    (array([1., 0., 1., 0.], dtype=float32), array([[ 0. ,  0.2, -0.1,  0. ]], dtype=float32))
    """

    name = "muloco"
    paper = "Therien et al., 2025, arXiv 2505.23725"
    options: MuLoCoOptions

    def _set_up(self) -> None:
        scale, shapes = self.options.scale, self.shapes or ((self.parameters,),)
        self.tensors = list(places(shapes))
        self.wholes = [WholeTensor.of(shape) for shape in self.true_shapes] or [
            whole._replace(entries=scale * whole.entries, rows=math.sqrt(scale) * whole.rows if whole.rows > 1 else 1.0)
            for whole in map(WholeTensor.of, shapes)
        ]

    def _option_traits(self) -> dict[str, Any]:
        counts = self.options.error_feedback or self.options.compat == "paper"
        weights = self.options.decay, self.options.gain if counts else 1.0
        conserves = self._selects or not self.options.requantised
        return {"weights": weights, "reads_gradients": weights[1] != 1.0, "conserves": conserves}

    @property
    def _selects(self) -> bool:
        return self.options.compressor == "topk"

    @property
    def k_of_model(self) -> int:
        """Number of entries of the whole model that a worker selects: all if the compressor quantises."""
        return sum(map(self._selected, self.wholes)) if self._selects else self.true_parameters

    @property
    def k(self) -> int:
        """Number of entries of this gradient that a worker selects: all if the compressor quantises."""
        return sum(self._kept) if self._selects else self.parameters

    @property
    def _kept(self) -> list[int]:
        """Number of entries to select of each tensor of this gradient."""
        shares = [self._selected(one) / self.options.scale for one in self.wholes]
        return apportion(shares, [place.stop - place.start for place, _ in self.tensors])

    def coded(self, values: Values, shape: tuple[int, ...]) -> Coded:
        """Return the codes of a row-major tensor. The compressor decides whether each row is quantised separately."""
        bins = self.options.bins
        rows = values.reshape(self._rows(shape), -1)
        if self.options.compressor in ("linear", "row_wise_linear"):
            return linear(rows, bins)
        return statistical(rows, bins, self.options.sigmas)

    def _rows(self, shape: tuple[int, ...]) -> int:
        return shape[0] if len(shape) == 2 and self.options.compressor.startswith("row_wise") else 1

    def _sent(self, values: Values, shape: tuple[int, ...], k: int) -> Values:
        """Return a tensor as receivers decode it: dequantised, or with all but its k largest entries zero."""
        if not self._selects:
            return self.coded(values, shape).values().ravel()
        sent = np.zeros_like(values)
        kept = top_k(values, k)
        sent[kept] = values[kept]
        return sent

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        update, touched = np.zeros(self.parameters, dtype=np.float32), np.zeros(self.parameters, dtype=np.bool_)
        sent = np.zeros(self.workers)
        for (place, shape), k in zip(self.tensors, self._kept, strict=True):
            total = np.zeros(place.stop - place.start)
            for worker, row in enumerate(corrected):
                own = self._sent(row[place], shape, k)
                row[place] -= own
                total += own
                touched[place] |= own != 0
                sent[worker] += squared_norm(own)
            mean: Values = (total / self.workers).astype(np.float32)
            update[place] = mean if self.traits.conserves else self._sent(mean, shape, k)
        return self._make_exchange(
            update,
            self._steps(),
            sent,
            key="muloco",
            selected=np.full(self.workers, self.k),
            union=int(np.count_nonzero(touched)) if self._selects else self.parameters,
            stats={"contributed": np.full(self.workers, self.contributed)},
        )

    # Messages

    @property
    def contributed(self) -> float:
        """Number of bytes of a worker's compressed pseudo-gradient, with metadata."""
        return sum(sum(self._bytes(one)) for one in self.wholes)

    def _selected(self, whole: WholeTensor) -> int:
        """Return the number of entries to select of a full tensor."""
        return self._entries(max(1, round(whole.entries)))

    def _bytes(self, whole: WholeTensor) -> tuple[float, float]:
        """Return the bytes of a tensor's values, and of its metadata: scales, tables, indices and headers."""
        entries, bins = whole.entries, self.options.bins
        number, released = self.wire.scalar_bytes, self.wire.released
        # A released code sends the lengths of the axes, how many there are, and two numbers more.
        header = (3 + whole.axes) if released else 0
        if self._selects:
            count = self._selected(whole) * self.selected_share
            if not released:
                index = self.options.index_bytes or math.ceil(math.log2(max(2, entries))) / 8
                return packed_bytes(count, 8 * (index + (self.options.value_bytes or 4))), 0.0
            index = self.options.index_bytes or 8
            return (self.options.value_bytes or 4) * count, index * (header + count)
        bits = (bins - 1).bit_length()
        if released:
            # Whole codes of one byte stand in as many equal parts.
            bits = 1 << (bits - 1).bit_length()
        by_rows, is_linear = (one in self.options.compressor for one in ("row_wise", "linear"))
        rows = whole.rows if by_rows else 1.0
        # A released linear code has the largest value beside the smallest and the width, and a flag for tensors; one
        # of the two numbers is the one mean of a tensor.
        each = (3 if released else 2) if is_linear else 1 + bins
        if released and not by_rows:
            header += 1 if is_linear else -1
        value = 8 * self.options.value_bytes if self.options.value_bytes is not None else bits
        return packed_bytes(entries, value), number * (header + rows * each)

    def _messages(self) -> Schedule:
        P = self.workers
        if self.wire.released:
            both = (zip(self._bytes(one), ("values", "metadata"), strict=True) for one in self.wholes)
            return Schedule(P).concat(*(self.options.gather_equal(P, *one) for pair in both for one in pair))
        if self._selects:
            return self.options.gather_equal(P, self.contributed, "entries")
        share = self.contributed / P
        shares = collectives.alltoall_pairwise(P, share).in_phase("shares")
        return shares.concat(self.options.gather_equal(P, share, "sums"))

    def _steps(self) -> Iterator[Step]:
        """Yield kernels and messages: compression, exchange, mean, and compression of the mean."""
        n, P, tensors = self.parameters, self.workers, len(self.tensors)
        if self._selects:
            yield from (DeviceOp("topk_layer", one.entries / self.options.scale) for one in self.wholes)
            k = self.k / tensors
            yield from (DeviceOp(one, k, launches=tensors) for one in ("gather", "scatter"))
            yield self._messages()
            yield DeviceOp("scatter", k, launches=P * tensors)
            return
        quantise = [DeviceOp(one, n / tensors, launches=tensors) for one in ("norm", "cast", "sum")]
        yield from quantise
        messages = self._messages()
        if self.wire.released:
            yield messages
            yield DeviceOp("sum", n / tensors, launches=P * tensors)
            yield from quantise[:2] * self.options.requantised
            return
        shares = [one for one in messages.rounds if one.phase == "shares"]
        yield Schedule(P, shares)
        yield DeviceOp("sum", n / P, launches=P)
        yield from (DeviceOp("norm", n / P), DeviceOp("cast", n / P))
        yield Schedule(P, messages.rounds[len(shares) :])
        yield DeviceOp("cast", n)
