"""Quantisers with a lookup table for each row or tensor. The table is sent along with the codes.

Statistics are taken in double precision; what travels is rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.sparsifier_models.selection import Values

# Entries that are in double precision at a time.
_ENTRIES = 4096


class Coded(NamedTuple):
    """Quantised rows: a code per entry, and an offset and a lookup table per row."""

    # Shape (rows, entries).
    codes: NDArray[np.uint8]
    # Shape (rows,): What is added to what the table has: the mean, or the smallest value.
    offset: Values
    # Shape (rows, bins): What each code stands for.
    table: Values

    def values(self) -> Values:
        """Return the dequantised values, float32 of shape (rows, entries)."""
        found = np.empty(self.codes.shape, dtype=np.float32)
        for rows, columns in _cache_pieces(self.codes.shape):
            piece = np.take_along_axis(self.table[rows], self.codes[rows, columns].astype(np.intp), axis=1)
            found[rows, columns] = piece + self.offset[rows, np.newaxis]
        return found


def statistical(values: Values, bins: int, sigmas: float) -> Coded:
    """Quantise rows about their means into `bins` of equal width; each code decodes to the mean of its bin.

    Bins are R sigma / b wide. Code b // 2 is that of the mean; the outer ones have all values beyond them. At four bins
    and R = 6 the edges are lopsided: -2.25, -0.75 and 0.75 sigma.
    """
    shift = values.mean(axis=1, dtype=np.float64)
    scale = _usable_widths(sigmas * _row_deviation(values, shift) / bins)
    return _encode_bins(values, shift, bins, lambda wide, rows: np.rint(wide / scale[rows, np.newaxis] + bins // 2))


def uncentred(values: Values, bins: int = 256, sigmas: float = 6.0) -> Coded:
    """Quantise rows about zero, as INTELLECT-1 does. Sigma is the root mean square, and halves round away from zero.

    Values beyond half of `sigmas` have the last bin.
    """
    zero = np.zeros(len(values))
    scale = _usable_widths(sigmas * _row_deviation(values, zero) / bins).astype(np.float32)

    def codes(wide: Floats, rows: slice) -> Values:
        # In single precision, where the released code rounds.
        ratio = wide.astype(np.float32) / scale[rows, np.newaxis]
        return np.asarray(np.trunc(ratio + np.copysign(np.float32(0.5), ratio)) + bins // 2)

    return _encode_bins(values, zero, bins, codes)


def linear(values: Values, bins: int) -> Coded:
    """Quantise rows to `bins` equidistant levels from the smallest to the largest value."""
    least = values.min(axis=1).astype(np.float64)
    scale: Floats = _usable_widths((values.max(axis=1) - least) / (bins - 1))
    codes = np.empty(values.shape, dtype=np.uint8)
    for rows, columns in _cache_pieces(values.shape):
        ratio = (values[rows, columns] - least[rows, np.newaxis]) / scale[rows, np.newaxis]
        codes[rows, columns] = np.clip(np.rint(ratio), 0, bins - 1)
    levels: Values = np.arange(bins).astype(np.float32)
    table: Values = np.multiply.outer(scale.astype(np.float32), levels)
    return Coded(codes, least.astype(np.float32), table)


def _cache_pieces(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Yield slices of rows and columns that cut an array into pieces small enough for the CPU cache in float64."""
    rows, columns = shape
    several, many = max(1, _ENTRIES // columns), _ENTRIES
    for row in range(0, rows, several):
        for column in range(0, columns, many):
            yield slice(row, row + several), slice(column, column + many)


def _row_deviation(values: Values, shift: Floats) -> Floats:
    """Return the standard deviation of each row about a given centre, with n - 1 degrees of freedom."""
    squares = np.zeros(len(values))
    for rows, columns in _cache_pieces(values.shape):
        squares[rows] += np.square(values[rows, columns] - shift[rows, np.newaxis]).sum(axis=1)
    return np.asarray(np.sqrt(squares / max(1, values.shape[1] - 1)))


def _usable_widths(scale: Floats) -> Floats:
    """Return the bin widths, with 1 in place of widths that are 0 or not finite."""
    return np.where((scale > 0) & np.isfinite(scale), scale, 1.0)


def _encode_bins(
    values: Values, shift: Floats, bins: int, codes_of: Callable[[Floats, slice], Values | Floats]
) -> Coded:
    """Return codes clipped to the bins, and a table of each bin's mean minus the row's shift; 0 for empty bins."""
    codes = np.empty(values.shape, dtype=np.uint8)
    counts, sums = np.zeros(len(values) * bins), np.zeros(len(values) * bins)
    for rows, columns in _cache_pieces(values.shape):
        wide = values[rows, columns] - shift[rows, np.newaxis]
        found = np.clip(codes_of(wide, rows), 0, bins - 1).astype(np.intp)
        codes[rows, columns] = found
        first = rows.start * bins
        cells = (found + bins * np.arange(len(found))[:, np.newaxis]).ravel()
        part = slice(first, first + len(found) * bins)
        counts[part] += np.bincount(cells, minlength=len(found) * bins)
        sums[part] += np.bincount(cells, weights=wide.ravel(), minlength=len(found) * bins)
    table = (sums / np.maximum(counts, 1)).reshape(-1, bins).astype(np.float32)
    return Coded(codes, shift.astype(np.float32), table)
