"""Schemes that send the k largest entries of each block of each tensor, perhaps transformed and quantised.

A worker's error buffer takes the gradient, or what inner steps made of the parameters, times a gain, and decays from
exchange to exchange. What a worker sends leaves its buffer, as the receivers will read it. Everybody gets the entries
of all by all-gather, and takes their mean: of an entry that some did not send, that of those that did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.costs import chunked_allgather
from simnet.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier
from simnet.sparsifier_models.chunking import Blocks, Positions, largest_of_each, mean_of_sent, places, tiles
from simnet.sparsifier_models.error_buffer import BufferOptions
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.lookup_quantisers import Coded, statistical
from simnet.sparsifier_models.options import Positive
from simnet.sparsifier_models.packing import packed_bytes
from simnet.sparsifier_models.selection import Values, squared_norm
from simnet.sparsifier_models.steps import Step

Bins = Annotated[int, Ge(2), Le(256)]
"""The type of an option that is a number of bins of a quantiser."""


@dataclass(frozen=True, kw_only=True)
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
    """What a worker sends of a tensor.

    Parameters
    ----------
    indices : ndarray of unsigned int, shape (number of blocks, k)
        Positions in each block, ascending; as narrow as these allow.
    values : ndarray of float32, shape (number of blocks, k)
        As receivers read them.
    coded : Coded, optional
        The codes of a quantiser, and their table; one row.
    """

    indices: Positions
    values: Values
    coded: Coded | None


class Chunked(Sparsifier):
    """Common part: a scheme of this kind says how tensors are cut, what is transformed, and how many bits travel.

    Tensors are those of ``layers``: matrices if their rows and columns are given, else vectors; without layers the
    gradient is one vector.

    What the mean over contributors makes of an entry that few sent exceeds what the workers lost of it, so that mass is
    not conserved: ``lost`` is the norm of P times the update less what all sent. With ``mean_over="workers"``, and no
    transform, it is conserved.

    All tensors are selected from before the first message, which is assumed.

    Statistics of its own: ``contributed``, shape (P,), bytes that a worker hands to the collectives.
    """

    fixed_volume = True
    # A sample has no rows, and of each short tensor at least an entry.
    scales = False
    costs = (chunked_allgather,)
    option_type = ChunkedOptions
    options: ChunkedOptions

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        super().__init__(workers, parameters, density, **options)
        shapes = self.shapes or ((self.parameters,),)
        self.tensors = [(place, self._blocks(shape)) for place, shape in places(shapes)]
        self.reads_gradients = self.weights[1] != 1.0

    @property
    def weights(self) -> tuple[float, float]:
        """Decay and gain."""
        return self.options.decay, self.options.gain

    @property
    def conserves(self) -> bool:
        """Whether the mean is that over all workers, of entries."""
        return self.options.mean_over == "workers" and not self.transforms

    def _blocks(self, shape: tuple[int, ...]) -> Blocks:
        """Return how a tensor is cut."""
        return tiles(shape, self.options.chunk)

    def _top(self, blocks: Blocks) -> int:
        """Return the entries to keep of each block."""
        if self.options.topk is None:
            return self._entries(blocks.size)
        return min(self.options.topk, blocks.size)

    def _k_at(self, scale: float) -> int:
        return max(1, round(scale * sum(blocks.number * self._top(blocks) for _, blocks in self.tensors)))

    def contribution(self, values: Values, blocks: Blocks) -> Contribution:
        """Return what a worker sends of a tensor.

        Parameters
        ----------
        values : ndarray of float32, shape (entries,)
            The worker's error buffer, the gradient in it.
        blocks : Blocks
            How the tensor is cut; one of `tensors`.
        """
        k, cut = self._top(blocks), blocks.cut(values)
        # Narrow, as those of all workers take more memory than anything else here.
        indices = np.empty((blocks.number, k), dtype=np.min_scalar_type(blocks.size))
        kept = np.empty(indices.shape, dtype=np.float32)
        for few in blocks.few():
            found = blocks.coefficients(cut[few]) if self.transforms else cut[few]
            largest = largest_of_each(found, k)
            indices[few], kept[few] = largest, np.take_along_axis(found, largest, axis=1)
        if self.options.bins is None:
            return Contribution(indices, kept, None)
        coded = statistical(kept.reshape(1, -1), self.options.bins, self.options.sigmas)
        return Contribution(indices, coded.values().reshape(kept.shape), coded)

    def _mean(self, indices: Sequence[Positions], values: Sequence[Values], blocks: Blocks) -> tuple[Values, int]:
        """Return the mean of what workers sent of a tensor, and how many entries any of them sent."""
        mean, union = np.empty((blocks.number, blocks.size), dtype=np.float32), 0
        contributors = self.options.mean_over == "contributors"
        for few in blocks.few():
            where, what = [one[few] for one in indices], [one[few] for one in values]
            found, touched = mean_of_sent(where, what, blocks.size, contributors)
            mean[few] = blocks.entries(found) if self.transforms else found
            union += touched
        return blocks.joined(mean), union

    def _factors(self, norms: Floats) -> Floats:
        """Return what the values of each worker count for, given their norms, shape (P,)."""
        return np.ones_like(norms)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        update, union = np.zeros(self.parameters, dtype=np.float32), 0
        sent, threshold = np.zeros(self.workers), np.full(self.workers, np.inf)
        for place, blocks in self.tensors:
            indices: list[Positions] = []
            values: list[Values] = []
            squares = np.zeros(self.workers)
            for worker, row in enumerate(corrected):
                one = self.contribution(row[place], blocks)
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
        schedule, kernels = self._in_order("chunked", self._steps)
        return Exchange(
            update=update,
            schedule=schedule,
            selected=np.full(self.workers, self.k),
            kernels=kernels,
            union=union,
            sent=sent,
            stats={"threshold": threshold, "contributed": np.full(self.workers, self.contributed)},
        )

    # Messages

    def _index_bits(self, blocks: Blocks) -> float:
        """Return the width of an index: as many bits as tell the entries of a block apart, or as released."""
        if self.options.index_bytes is not None:
            return 8 * self.options.index_bytes
        return 64.0 if self.wire.released else float((blocks.size - 1).bit_length())

    def _value_bits(self) -> float:
        """Return the width of a value: that of a float32, or of a code, which released codes send in a byte each."""
        if self.options.value_bytes is not None:
            return 8 * self.options.value_bytes
        if self.options.bins is None:
            return 32.0
        return 8.0 if self.wire.released else float((self.options.bins - 1).bit_length())

    def _table_bytes(self) -> float:
        """Return what comes with the codes of a tensor: their mean, and the table."""
        return 0.0 if self.options.bins is None else self.wire.scalar_bytes * (1 + self.options.bins)

    def _parts(self) -> Iterator[tuple[str, list[float]]]:
        """Yield what travels, and its bytes of each tensor; on the wire ``released`` each part on its own."""
        counts = [self.options.scale * blocks.number * self._top(blocks) for _, blocks in self.tensors]
        indices = [self._index_bits(blocks) for _, blocks in self.tensors]
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
        """Bytes that each worker hands to the collectives in an exchange."""
        return sum(sum(nbytes) for _, nbytes in self._parts())

    def _messages(self) -> Schedule:
        """Return one all-gather of all, or on the wire ``released`` one of each part of each tensor."""
        if not self.wire.released:
            return self._gathered("entries", self.contributed)
        names, sizes = zip(*self._parts(), strict=True)
        by_tensor = zip(*sizes, strict=True)
        return Schedule(self.workers).concat(
            *(self._gathered(*one) for nbytes in by_tensor for one in zip(names, nbytes, strict=True))
        )

    def _gathered(self, phase: str, nbytes: float) -> Schedule:
        return self.options.gather(np.full(self.workers, nbytes)).in_phase(phase)

    def _steps(self) -> Iterator[Step]:
        """Yield what workers do: transform, select and quantise; after the messages, take means and transform back."""
        n, k, tensors = self.parameters, self.k, len(self.tensors)
        # One pass for each axis.
        transform = [DeviceOp("cast", n / tensors, launches=2 * tensors)] * self.transforms
        yield from transform
        yield from (DeviceOp("topk_segments", blocks.size, segments=blocks.number) for _, blocks in self.tensors)
        yield DeviceOp("gather", k / tensors, launches=tensors)
        if self.options.bins is not None:
            yield from (DeviceOp(one, k / tensors, launches=tensors) for one in ("norm", "cast"))
        yield DeviceOp("scatter", k / tensors, launches=tensors)
        yield from transform
        yield from [DeviceOp("sum", n / tensors, launches=tensors)] * self.transforms
        yield self._messages()
        yield DeviceOp("scatter", k / tensors, launches=self.workers * tensors)
        yield from transform
