"""Schemes that send the k largest entries of each block of each tensor, optionally transformed and quantised.

A worker adds the gradient, or the change of parameters by inner steps, times a gain to its error buffer, which decays
from exchange to exchange. What it sends is subtracted from the buffer, as the receivers will decode it. All workers
all-gather the entries and take their mean; that of an entry is over the workers that sent it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.cost_models.costs import chunked_allgather
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models import chunking
from simnet.sparsifier_models.base import Exchange, Sparsifier, Step
from simnet.sparsifier_models.chunking import Blocks, Positions
from simnet.sparsifier_models.codes import Coded, packed_bytes, statistical
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.options import BufferOptions, Decay, Positive
from simnet.sparsifier_models.samples import apportion
from simnet.sparsifier_models.selection import Values, squared_norm

Bins = Annotated[int, Ge(2), Le(256)]
"""Type of an option: the number of bins of a quantiser."""


class ChunkedOptions(BufferOptions, GatheredOptions):
    """Options of schemes that send the largest entries of each block.

    Parameters
    ----------
    chunk : int
        C: a dimension is cut by its largest divisor that is no larger, >= 1.
    topk : int, optional
        k: entries to keep of each block, >= 1; all, if a block has no more. Without it the density says how many;
        with it the density does not matter.
    bins : int, optional
        b, in 2 .. 256, of a statistical quantiser of the values of each tensor; without it they are sent as they are.
    sigmas : float
        R: standard deviations that the bins together span, > 0.
    mean_over : {"contributors", "workers"}
        Whether the sum of what was sent of an entry is divided by the workers that sent it, as in all released codes,
        or by P.
    """

    chunk: Count = 64
    topk: Count | None = 32
    bins: Bins | None = None
    sigmas: Positive = 6.0
    mean_over: Literal["contributors", "workers"] = "contributors"


class Contribution(NamedTuple):
    """Entries of a tensor that a worker sends: indices and values by block, and codes of the values if quantised."""

    # Shape (number of blocks, k): Positions in each block, ascending; as narrow as these allow.
    indices: Positions
    # Shape (number of blocks, k): As receivers read them.
    values: Values
    # The codes of a quantiser, and their table; one row.
    coded: Coded | None


class ChunkedTensor(NamedTuple):
    """A tensor of the model: its number of blocks, its block layout, and its slices of the gradient."""

    # Blocks of the tensor.
    number: float
    # How they are cut.
    whole: Blocks
    # Where in the gradient blocks of it lie: all of them, or of a sample some, about as large.
    parts: tuple[tuple[slice, Blocks], ...]


class Chunked(Sparsifier, fixed_volume=True, by_tensors=True, memory_factor=(0.7, 6.0), costs=(chunked_allgather,)):
    """Base of schemes that send the k largest entries of each block; subclasses set blocks, transform, code bits.

    Tensors are those of ``layers``: matrices if their rows and columns are given, else vectors; without layers the
    gradient is one vector.

    If the gradient is a sample (``scale``), messages and kernels are those of the model's tensors (``true_shapes``;
    without these, a tensor has ``scale`` times as many blocks as its layer). Entries are selected from runs of the
    sample that are about as long as a block, and a transform works on a run. The same share of all entries is kept as
    of the blocks; of short runs some keep nothing.

    With the mean over contributors, P times the update of an entry that few workers sent exceeds the sum that they
    sent. So mass is not conserved: ``lost`` is the norm of this difference. With ``mean_over="workers"``, and no
    transform, it is conserved.

    All tensors are selected from before the first message, which is assumed.

    Statistics of its own: ``contributed``, shape (P,), bytes that a worker hands to the collectives.
    """

    options: ChunkedOptions

    def _set_up(self) -> None:
        self.tensors = list(self._tensors())

    def _option_traits(self) -> dict[str, Any]:
        weights, to_mean = (self.options.decay, self.options.gain), self.options.mean_over == "workers"
        return {
            "weights": weights,
            "reads_gradients": weights[1] != 1.0,
            "conserves": to_mean and not self.traits.transforms,
        }

    def _tensors(self) -> Iterator[ChunkedTensor]:
        """Yield each model tensor: its blocks, and the slices of the (maybe sampled) gradient that stand for it."""
        found = list(chunking.places(self.shapes or ((self.parameters,),)))
        if not self.true_shapes:
            for place, shape in found:
                blocks = self._blocks(shape)
                yield ChunkedTensor(self.options.scale * blocks.number, blocks, ((place, blocks),))
            return
        for (place, shape), true in zip(found, self.true_shapes, strict=True):
            whole = self._blocks(true)
            same = math.prod(shape) == math.prod(true)
            yield ChunkedTensor(
                whole.number, whole, ((place, whole),) if same else tuple(chunking.alike(place, whole.size))
            )

    def _blocks(self, shape: tuple[int, ...]) -> Blocks:
        """Return the block layout of a tensor of a given shape."""
        return chunking.tiles(shape, self.options.chunk)

    def _top(self, blocks: Blocks) -> int:
        """Return the number of entries to send per block."""
        if self.options.topk is None:
            return self._entries(blocks.size)
        return min(self.options.topk, blocks.size)

    @property
    def k(self) -> int:
        """Number of entries of this gradient that a worker selects."""
        return sum(how.number * kept for _, how, kept in self._parts_at_hand())

    @property
    def k_of_model(self) -> int:
        """Number of entries of the whole model that a worker selects."""
        return round(sum(one.number * self._top(one.whole) for one in self.tensors))

    def contribution(self, values: Values, blocks: Blocks, k: int) -> Contribution:
        """Return the k largest entries per block of a part of a worker's error buffer, quantised if `bins` is set."""
        cut = blocks.cut(values)
        # Narrow, as those of all workers take more memory than anything else here.
        indices = np.empty((blocks.number, k), dtype=np.min_scalar_type(blocks.size))
        kept = np.empty(indices.shape, dtype=np.float32)
        for few in blocks.few():
            found = blocks.coefficients(cut[few]) if self.traits.transforms else cut[few]
            largest = chunking.largest_of_each(found, k)
            indices[few], kept[few] = largest, np.take_along_axis(found, largest, axis=1)
        if self.options.bins is None:
            return Contribution(indices, kept, None)
        coded = statistical(kept.reshape(1, -1), self.options.bins, self.options.sigmas)
        return Contribution(indices, coded.values().reshape(kept.shape), coded)

    def _mean(self, indices: Sequence[Positions], values: Sequence[Values], blocks: Blocks) -> tuple[Values, int]:
        """Return the mean of all values sent for a tensor, shape (size,), and the number of distinct entries sent."""
        mean, union = np.empty((blocks.number, blocks.size), dtype=np.float32), 0
        contributors = self.options.mean_over == "contributors"
        for few in blocks.few():
            where, what = [one[few] for one in indices], [one[few] for one in values]
            found, touched = chunking.mean_of_sent(where, what, blocks.size, contributors)
            mean[few] = blocks.entries(found) if self.traits.transforms else found
            union += touched
        return blocks.joined(mean), union

    def _factors(self, norms: Floats) -> Floats:
        """Return the factor by which each worker's values are scaled, shape (P,), given the norms of these values."""
        return np.ones_like(norms)

    def _parts_at_hand(self) -> Iterator[tuple[slice, Blocks, int]]:
        """Yield each slice of the gradient, its layout in equal blocks, and the number of entries to send per block."""
        shares: list[float] = []
        parts: list[tuple[slice, Blocks]] = []
        for one in self.tensors:
            kept = one.number * self._top(one.whole) / self.options.scale
            size = one.parts[-1][0].stop - one.parts[0][0].start
            shares += [kept * how.number * how.size / size for _, how in one.parts]
            parts += one.parts
        each = apportion(shares, [how.size for _, how in parts], [how.number for _, how in parts])
        yield from ((place, how, kept) for (place, how), kept in zip(parts, each, strict=True))

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        update, union = np.zeros(self.parameters, dtype=np.float32), 0
        sent, threshold = np.zeros(self.workers), np.full(self.workers, np.inf)
        for place, blocks, k in self._parts_at_hand():
            if not k:
                continue
            indices: list[Positions] = []
            values: list[Values] = []
            squares = np.zeros(self.workers)
            for worker, row in enumerate(corrected):
                one = self.contribution(row[place], blocks, k)
                row[place] -= self._mean([one.indices], [one.values], blocks)[0]
                indices.append(one.indices)
                values.append(one.values)
                squares[worker] = squared_norm(one.values.ravel())
                threshold[worker] = min(threshold[worker], np.abs(one.values).min())
            for sent_values, factor in zip(values, self._factors(np.sqrt(squares)), strict=True):
                sent_values *= np.float32(factor)
            update[place], touched = self._mean(indices, values, blocks)
            union += touched
            sent += squares
        return self._make_exchange(
            update,
            self._steps(),
            sent,
            key="chunked",
            selected=np.full(self.workers, self.k),
            union=union,
            stats={"threshold": threshold, "contributed": np.full(self.workers, self.contributed)},
        )

    # Messages

    def _index_bits(self, blocks: Blocks) -> float:
        """Return the width of an index [bit]: as many bits as a block needs, or 64 as in the released code."""
        if self.options.index_bytes is not None:
            return 8 * self.options.index_bytes
        return 64.0 if self.wire.released else float((blocks.size - 1).bit_length())

    def _value_bits(self) -> float:
        """Return the width of a value in a message [bit]: 32, or that of a quantised value, perhaps padded to 8."""
        if self.options.value_bytes is not None:
            return 8 * self.options.value_bytes
        if self.options.bins is None:
            return 32.0
        return 8.0 if self.wire.released else float((self.options.bins - 1).bit_length())

    def _table_bytes(self) -> float:
        """Return the bytes of the values' mean and the lookup table, which receivers need to decode a tensor."""
        return 0.0 if self.options.bins is None else self.wire.scalar_bytes * (1 + self.options.bins)

    def _parts(self) -> Iterator[tuple[str, list[float]]]:
        """Yield the name and bytes by tensor of each message; released code sends indices and values separately."""
        counts = [one.number * self._top(one.whole) * self.selected_share for one in self.tensors]
        indices = [self._index_bits(one.whole) for one in self.tensors]
        table = self._table_bytes()
        if self.wire.released:
            yield "indices", [packed_bytes(*one) for one in zip(counts, indices, strict=True)]
            yield "values", [packed_bytes(count, self._value_bits()) for count in counts]
            if table:
                yield "tables", [table] * len(counts)
        else:
            widths = [bits + self._value_bits() for bits in indices]
            yield "entries", [table + packed_bytes(*one) for one in zip(counts, widths, strict=True)]

    @property
    def contributed(self) -> float:
        """Number of bytes that each worker contributes to the collectives of an exchange."""
        return sum(sum(nbytes) for _, nbytes in self._parts())

    def _messages(self) -> Schedule:
        """Return the all-gather of all entries; the released code has one for each tensor and message part."""
        if not self.wire.released:
            return self.options.gather_equal(self.workers, self.contributed, "entries")
        names, sizes = zip(*self._parts(), strict=True)
        each = (one for nbytes in zip(*sizes, strict=True) for one in zip(nbytes, names, strict=True))
        return Schedule(self.workers).concat(*(self.options.gather_equal(self.workers, *one) for one in each))

    def _steps(self) -> Iterator[Step]:
        """Yield kernels and messages: transform, selection, quantisation, all-gather, mean, inverse transform."""
        scale, tensors = self.options.scale, len(self.tensors)
        # Kernels are told of a sample: in the end they count `scale` times.
        n, k = self.parameters, self.k
        # One pass for each axis.
        transform = [DeviceOp("cast", n / tensors, launches=2 * tensors)] * self.traits.transforms
        yield from transform
        for one in self.tensors:
            number = max(1, round(one.number))
            yield DeviceOp("topk_segments", one.number * one.whole.size / (number * scale), segments=number)
        yield DeviceOp("gather", k / tensors, launches=tensors)
        if self.options.bins is not None:
            yield from (DeviceOp(one, k / tensors, launches=tensors) for one in ("norm", "cast"))
        yield DeviceOp("scatter", k / tensors, launches=tensors)
        yield from transform
        yield from [DeviceOp("sum", n / tensors, launches=tensors)] * self.traits.transforms
        yield self._messages()
        yield DeviceOp("scatter", k / tensors, launches=self.workers * tensors)
        yield from transform


class DeMoOptions(ChunkedOptions):
    """Options of `DeMo`. In the reference code ``gain`` is the learning rate, which cannot change the update's signs.

    Parameters
    ----------
    decay : float
        Of the error buffer; 0.999 in the released code, as ``chunk`` 64 and ``topk`` 32.
    """

    decay: Decay = 0.999


class DeMo(Chunked, transforms=True):
    """DeMo: workers send the largest cosine-transform components of a momentum. Optimisers use only signs of updates.

    The update is the mean of the coefficients, transformed back: what a released optimiser takes the sign of. A density
    counts coefficients. The released code sends indices of 8 bytes, though none exceeds 4095, and values as wide as
    parameters: ``value_bytes=2`` in bfloat16. The gradient must not be averaged before.

    Rounding errors of the transform and its inverse are lost, too.

    References
    ----------
    B. Peng, J. Quesnelle, D. P. Kingma, "DeMo: Decoupled Momentum Optimization", 2024; code bloc97/DeMo, commit
    0e48145.

    Examples
    --------
    >>> import numpy as np
    >>> model = DeMo(workers=1, parameters=4, chunk=4, topk=1, decay=0.5)
    >>> model.exchange(np.array([[1, 1, 1, 2]], dtype=np.float32)).update, model.residual
    (array([1.25, 1.25, 1.25, 1.25], dtype=float32), array([[-0.25, -0.25, -0.25,  0.75]], dtype=float32))
    """

    name = "demo"
    paper = "Peng et al., 2024, arXiv 2411.19870"
    options: DeMoOptions


Code = Literal["sparseloco", "ccloco", "templar"]
"""Released implementation that a scheme follows."""

_LARGEST_BLOCK = 4096
# Templar's constant against a division by a norm of zero.
_LEAST_NORM = 1e-8


class SparseLoCoOptions(ChunkedOptions):
    """Options of `SparseLoCo`. In the reference implementations ``gain`` is the outer learning rate.

    Parameters
    ----------
    code : {"sparseloco", "ccloco", "templar"}
        The released code to follow.
    decay : float
        Of the error buffer: 0.95 in the codes of SparseLoCo and Templar, 0.999 in that of CCLoco.
    topk : int, optional
        Entries to keep of a block of C x C (``sparseloco``; other blocks keep as large a share, at least one entry), or
        of any block: CCLoco keeps 32, Templar 64. If None, the density decides.
    bins : int, optional
        As of `ChunkedOptions`: 4, and None in the code of CCLoco.
    dct : bool
        Whether blocks are transformed as in DeMo; for ``ccloco`` only.
    """

    code: Code = "sparseloco"
    decay: Decay = 0.95
    topk: Count | None = 128
    bins: Bins | None = 4
    dct: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dct and self.code != "ccloco":
            raise ValueError(f"dct is an option of the code ccloco, not of {self.code}")


class SparseLoCo(Chunked):
    """SparseLoCo: workers send the largest entries of pseudo-gradients of several inner steps, in a few bits each.

    The update is the aggregate before the outer step, of plain SGD. The wire ``released`` has a code of two bits in a
    byte, and its index in eight more.

    With ``code="ccloco"``, ``compat="released"`` and no transform, a chunk of a matrix is one full row, as the released
    code rearranges a tensor before it cuts chunks.

    With ``code="templar"`` what a worker sent of a tensor is scaled down to the median of the norms of all workers (the
    lower one of two) if its norm exceeds that. A worker keeps an even number of entries of each block, at least two; a
    block has at most 4096 entries, as an index has 12 bits. The files of Templar's store travel by an all-gather. Like
    the published factor, neither wire counts the overhead of the file format and the table of a tensor. The wire
    ``released`` has 12 bits for an index and a byte for a value; ``paper`` the bits that a block and the bins need: 112
    bytes for 64 x 64 values, 146 times fewer.

    References
    ----------
    A. Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", 2025; first commit of
    QErywan/RobustDiLoCo, 276fa59. CCLoco: tplr-ai/CCLoco, commit c01a785. Templar: one-covenant/templar, commit
    142666f; "Covenant-72B", 2026, arXiv 2603.08163.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[4, 1, 0, 2], [4, 0, 3, 0]], dtype=np.float32)
    >>> SparseLoCo(2, 4, chunk=4, topk=8, bins=None).exchange(rows).update
    array([4., 0., 3., 2.], dtype=float32)

    A worker of Templar that sends four times what the other sends counts as much:

    >>> rows = np.array([[1, 1, 0, 0], [0, 0, 4, 4]], dtype=np.float32)
    >>> SparseLoCo(2, 4, code="templar", chunk=4, topk=2, bins=None).exchange(rows).update
    array([1., 1., 1., 1.], dtype=float32)
    """

    name = "sparseloco"
    paper = "Sarfi et al., 2025, arXiv 2508.15706"
    options: SparseLoCoOptions

    def _set_up(self) -> None:
        super()._set_up()
        largest = max(one.whole.size for one in self.tensors)
        if self._clips and largest > _LARGEST_BLOCK:
            raise ValueError(
                f"chunk must leave blocks of at most {_LARGEST_BLOCK} entries, for indices of 12 bits; one has "
                f"{largest}"
            )

    @property
    def _clips(self) -> bool:
        return self.options.code == "templar"

    def _option_traits(self) -> dict[str, Any]:
        self._set_traits(transforms=self.options.dct)
        found = super()._option_traits()
        return found | {"conserves": found["conserves"] and not self._clips}

    def _blocks(self, shape: tuple[int, ...]) -> Blocks:
        options = self.options
        if options.code == "ccloco" and options.compat == "released" and not options.dct:
            return chunking.whole_rows(shape, options.chunk)
        return super()._blocks(shape)

    def _top(self, blocks: Blocks) -> int:
        found = super()._top(blocks)
        if self.options.code == "sparseloco" and self.options.topk is not None:
            found = max(1, round(blocks.size * self.options.topk / self.options.chunk**2))
        elif self._clips:
            found = max(2, found - found % 2)
        return min(found, blocks.size)

    def _factors(self, norms: Floats) -> Floats:
        if not self._clips:
            return super()._factors(norms)
        return np.asarray(np.minimum(1.0, np.sort(norms)[(norms.size - 1) // 2] / (norms + _LEAST_NORM)))

    def _index_bits(self, blocks: Blocks) -> float:
        released = self._clips and self.wire.released and self.options.index_bytes is None
        return 12.0 if released else super()._index_bits(blocks)

    def _table_bytes(self) -> float:
        return 0.0 if self._clips else super()._table_bytes()

    def _messages(self) -> Schedule:
        return self.options.gather_equal(self.workers, self.contributed, "file") if self._clips else super()._messages()
