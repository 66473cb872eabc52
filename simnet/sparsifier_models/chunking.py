"""Block layouts of tensors, cosine transforms of blocks, the largest entries per block, and means of such entries.

The chunk length c of a dimension s is the largest divisor of s that does not exceed the length asked for: nothing is
padded. A prime dimension above it has chunks of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.sparsifier_models.selection import Indices, Values

Positions: TypeAlias = NDArray[np.integer[Any]]
"""Indices of entries within blocks."""

# Entries of blocks that are sorted, or added up, at a time.
_ENTRIES = 4096


def largest_divisor(size: int, most: int) -> int:
    """Return the largest divisor of `size` that is at most `most`."""
    return next(one for one in range(min(size, most), 0, -1) if size % one == 0)


class Blocks(NamedTuple):
    """A tensor's partition into blocks of equal shape: the shape of the tensor and of a block."""

    # Rows and columns of the tensor; a vector is one row.
    shape: tuple[int, int]
    # Rows and columns of a block, divisors of those of the tensor.
    tile: tuple[int, int]

    @property
    def number(self) -> int:
        """Number of blocks in the tensor."""
        return prod(self.shape) // self.size

    @property
    def size(self) -> int:
        """Number of entries in a block."""
        return prod(self.tile)

    def cut(self, values: Values) -> Values:
        """Return the blocks of a row-major tensor as a copy, shape (number, size)."""
        (rows, columns), (height, width) = self.shape, self.tile
        tiled = values.reshape(rows // height, height, columns // width, width)
        return tiled.transpose(0, 2, 1, 3).reshape(self.number, self.size).copy()

    def joined(self, blocks: Values) -> Values:
        """Return the row-major tensor that consists of the given blocks; `cut` is the inverse function."""
        (rows, columns), (height, width) = self.shape, self.tile
        tiled = blocks.reshape(rows // height, columns // width, height, width)
        return tiled.transpose(0, 2, 1, 3).reshape(-1)

    def few(self) -> Iterator[slice]:
        """Yield slices of consecutive blocks, each small enough for the CPU cache."""
        step = max(1, _ENTRIES // self.size)
        for first in range(0, self.number, step):
            yield slice(first, min(first + step, self.number))

    def coefficients(self, blocks: Values) -> Floats:
        """Return the orthonormal cosine transform (DCT-II) of blocks, shape (blocks, size), along each axis."""
        return self._transformed(blocks, "dctn")

    def entries(self, coefficients: Values | Floats) -> Floats:
        """Return the entries of blocks from their DCT coefficients; the inverse of the method `coefficients`."""
        return self._transformed(coefficients, "idctn")

    def _transformed(self, values: Values | Floats, name: str) -> Floats:
        # Loaded where it is needed, as it takes longer to load than all schemes.
        from scipy import fft

        tiles = values.astype(np.float64).reshape(-1, *self.tile)
        return np.asarray(getattr(fft, name)(tiles, axes=(1, 2), norm="ortho").reshape(-1, self.size))


def tiles(shape: Sequence[int], most: int) -> Blocks:
    """Return a layout of blocks with at most `most` rows and columns of a matrix, or `most` entries of a vector."""
    rows, columns = shape if len(shape) == 2 else (1, shape[0])
    return Blocks((rows, columns), (largest_divisor(rows, most), largest_divisor(columns, most)))


def whole_rows(shape: Sequence[int], most: int) -> Blocks:
    """Return a tensor's blocks as in CCLoco's code: each row of a matrix, or at most `most` entries of a vector."""
    return Blocks((shape[0], shape[1]), (1, shape[1])) if len(shape) == 2 else tiles(shape, most)


def alike(place: slice, size: int) -> Iterator[tuple[slice, Blocks]]:
    """Cut a range into blocks of about `size` entries; yield a slice for each block length, longest blocks first."""
    entries, begin = place.stop - place.start, place.start
    number = max(1, round(entries / size))
    shorter, longer = entries // number, entries % number
    for count, length in ((longer, shorter + 1), (number - longer, shorter)):
        if count:
            yield slice(begin, begin + count * length), Blocks((1, count * length), (1, length))
            begin += count * length


def places(shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[slice, tuple[int, ...]]]:
    """Yield the slice of the flat gradient that each tensor occupies, and the tensor's shape."""
    sizes = [prod(shape) for shape in shapes]
    for end, size, shape in zip(accumulate(sizes), sizes, shapes, strict=True):
        yield slice(end - size, end), shape


def largest_of_each(blocks: Values | Floats, k: int) -> Indices:
    """Return ascending indices of each block's k largest magnitudes, shape (blocks, k); ties go to the lower index."""
    some, size = blocks.shape
    if k == size:
        return np.tile(np.arange(size), (some, 1))
    magnitudes = np.abs(blocks)
    kth = np.partition(magnitudes, size - k, axis=1)[:, size - k, np.newaxis]
    chosen = magnitudes > kth
    missing = k - np.count_nonzero(chosen, axis=1)
    tied = magnitudes == kth
    surplus = np.flatnonzero(np.count_nonzero(tied, axis=1) > missing)
    tied[surplus] &= np.cumsum(tied[surplus], axis=1) <= missing[surplus, np.newaxis]
    chosen |= tied
    return np.nonzero(chosen)[1].reshape(some, k)


def mean_of_sent(
    indices: Sequence[Positions], values: Sequence[Values], size: int, contributors: bool
) -> tuple[Values, int]:
    """Return each entry's mean over the workers that sent it, or over all, and the number of distinct entries sent.

    There is one array of indices and of values, shape (blocks, k), per worker. The mean has the shape (blocks, size);
    it is over the workers that sent an entry (`contributors`), or over all.
    """
    total = np.zeros((len(indices[0]), size))
    count = np.zeros(total.shape, dtype=np.int32)
    rows = np.arange(len(total))[:, np.newaxis]
    for where, what in zip(indices, values, strict=True):
        total[rows, where] += what
        count[rows, where] += 1
    total /= np.maximum(count, 1) if contributors else len(indices)
    mean: Values = total.astype(np.float32)
    return mean, int(np.count_nonzero(count))
