"""Encoding of indices and values into bytes, and decoding; quantisers with a lookup table for each row or tensor.

A table is sent along with the codes. Statistics are taken in double precision; what travels is rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.cost_models.costs import encodings
from simnet.cost_models.costs.encodings import IndexCode, ValueCode
from simnet.sparsifier_models.selection import Indices, Values

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
    """Quantise rows into equal bins that span `sigmas` standard deviations about the mean; codes decode to bin means.

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


Bytes: TypeAlias = NDArray[np.uint8]


class Encoding(NamedTuple):
    """Codes of the indices and the values of a message."""

    indices: IndexCode
    values: ValueCode

    @property
    def varies(self) -> bool:
        """Whether a message's number of bytes depends on the values of its indices, not only on their count."""
        return self.indices in encodings.VARYING_CODES


def packed_bytes(entries: float, bits: float) -> float:
    """Return the number of bytes of `entries` packed fields of `bits` bits each."""
    # Less what a product such as 4800.000000000001 is above the whole number that it stands for.
    return float(np.ceil(entries * bits / 8 * (1 - 1e-12)))


def pack_bits(codes: NDArray[np.uint8], bits: int) -> Bytes:
    """Return codes below 2^bits packed into bytes, the first code in the lowest bits; `bits` is 1, 2, 4 or 8."""
    each = 8 // bits
    padded = np.zeros(-(-codes.size // each) * each, dtype=np.uint8)
    padded[: codes.size] = codes
    shifted = padded.reshape(-1, each) << (bits * np.arange(each, dtype=np.uint8))
    return np.asarray(np.bitwise_or.reduce(shifted, axis=1).astype(np.uint8))


def unpack_bits(packed: Bytes, bits: int, count: int) -> NDArray[np.uint8]:
    """Return the first `count` codes packed by `pack_bits`."""
    shifts = bits * np.arange(8 // bits, dtype=np.uint8)
    codes = (packed[:, np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.ravel()[:count]


def pack_12(indices: Indices) -> Bytes:
    """Pack 12-bit indices, two in three bytes; an odd last index is paired with zero.

    Of i and j: the low eight bits of i; its high four with the low four of j above them; the high eight of j.
    """
    pairs = np.zeros((-(-indices.size // 2), 2), dtype=np.int64)
    pairs.reshape(-1)[: indices.size] = indices
    i, j = pairs.T
    return np.stack([i & 255, (i >> 8) | ((j & 15) << 4), j >> 4], axis=1).astype(np.uint8).ravel()


def unpack_12(packed: Bytes, count: int) -> Indices:
    """Return the first `count` 12-bit indices packed by `pack_12`."""
    low, middle, high = packed.astype(np.int64).reshape(-1, 3).T
    pairs = np.stack([low | ((middle & 15) << 8), (middle >> 4) | (high << 4)], axis=1)
    return pairs.ravel()[:count]


Places: TypeAlias = NDArray[np.integer[Any]]

_WIDTHS: dict[str, type[np.integer[Any]]] = {"int64": np.int64, "int32": np.int32}
_COUNTS: dict[int, type[np.integer[Any]]] = {2: np.uint16, 4: np.uint32}


def difference_bytes(indices: Places, cuts: Indices, entries: float = 1.0) -> Floats:
    """Return the bytes of indices coded as differences in each region, shape (regions,), without counts of indices.

    `indices` ascend; `cuts` are the starts of regions and the end of the last; a first difference is to the start. Each
    index stands for `entries`.
    """
    region = np.searchsorted(cuts, indices, side="right") - 1
    before = np.maximum(np.concatenate([[0], indices[:-1]]), cuts[region])
    lengths = _lengths(indices - before)
    return entries * np.bincount(region, weights=lengths, minlength=len(cuts) - 1).astype(np.float64)


def encode_indices(indices: Indices, n: int, code: IndexCode) -> Bytes:
    """Return the encoded bytes of ascending, distinct indices below `n`."""
    if code == "auto":
        chosen = _shortest(indices, n)
        return np.concatenate(
            [np.array([encodings.INDEX_CODES.index(chosen)], np.uint8), encode_indices(indices, n, chosen)]
        )
    if code == "delta":
        return np.concatenate([_bytes(np.array([indices.size]), np.uint32), _varints(np.diff(indices, prepend=0))])
    if code == "bitmap":
        bits = np.zeros(n, dtype=np.bool_)
        bits[indices] = True
        return np.packbits(bits, bitorder="little")
    if code in encodings.BLOCK_ENTRIES:
        block, within = np.divmod(indices, encodings.BLOCK_ENTRIES[code])
        counts = np.bincount(block, minlength=-(-n // encodings.BLOCK_ENTRIES[code]))
        local = pack_12(within) if code == "packed12" else _bytes(within, np.uint16)
        return np.concatenate([_bytes(counts, _COUNTS[encodings.BLOCK_COUNT_BYTES[code]]), local])
    return _bytes(indices, _WIDTHS[code])


def decode_indices(data: Bytes, n: int, code: IndexCode, k: int | None = None) -> tuple[Indices, int]:
    """Return the indices that `encode_indices` encoded, and the number of bytes read; `data` may be longer.

    `k` says how many there are, for ``int64`` and ``int32``; without it all bytes are indices.
    """
    if code == "auto":
        found, nbytes = decode_indices(data[encodings.TAG_BYTES :], n, encodings.INDEX_CODES[data[0]], k)
        return found, encodings.TAG_BYTES + nbytes
    if code == "delta":
        count = int(_read(data[: encodings.COUNT_BYTES], np.uint32)[0])
        differences, nbytes = _from_varints(data[encodings.COUNT_BYTES :], count)
        return np.cumsum(differences), encodings.COUNT_BYTES + nbytes
    if code == "bitmap":
        nbytes = -(-n // 8)
        return np.flatnonzero(np.unpackbits(data[:nbytes], count=n, bitorder="little")), nbytes
    if code in encodings.BLOCK_ENTRIES:
        blocks = -(-n // encodings.BLOCK_ENTRIES[code])
        start = blocks * encodings.BLOCK_COUNT_BYTES[code]
        counts = _read(data[:start], _COUNTS[encodings.BLOCK_COUNT_BYTES[code]])
        number = int(counts.sum())
        nbytes = 3 * -(-number // 2) if code == "packed12" else 2 * number
        local = data[start : start + nbytes]
        within = unpack_12(local, number) if code == "packed12" else _read(local, np.uint16)
        return np.repeat(np.arange(blocks) * encodings.BLOCK_ENTRIES[code], counts) + within, start + nbytes
    width = np.dtype(_WIDTHS[code]).itemsize
    nbytes = data.size if k is None else k * width
    return _read(data[:nbytes], _WIDTHS[code]), nbytes


def _shortest(indices: Indices, n: int) -> IndexCode:
    """Return the index code that needs the fewest bytes; ties go to the first code."""
    lengths = float(difference_bytes(indices, np.array([0, n]))[0])
    codes = [one for one in encodings.INDEX_CODES if one != "auto"]
    return min(codes, key=lambda one: float(encodings.encoded_index_bytes(one, n, indices.size, lengths)))


def _lengths(differences: Places) -> Indices:
    """Return the LEB128 length [byte] of each difference: one per seven bits, at least one."""
    lengths = np.ones(differences.size, dtype=np.int64)
    for bits in range(7, 63, 7):
        larger = differences >= (1 << bits)
        if not larger.any():
            break
        lengths += larger
    return lengths


def _varints(differences: Indices) -> Bytes:
    """Return the LEB128 bytes of the differences: seven bits per byte, lowest first."""
    lengths = _lengths(differences)
    ends = np.cumsum(lengths)
    place = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
    parts = (np.repeat(differences, lengths) >> (7 * place)) & 127
    parts[place < np.repeat(lengths, lengths) - 1] |= 128
    return parts.astype(np.uint8)


def _from_varints(data: Bytes, count: int) -> tuple[Indices, int]:
    """Return the first `count` numbers decoded from LEB128 bytes, and the number of bytes read."""
    ends = np.flatnonzero(data < 128)[:count] + 1
    nbytes = int(ends[-1]) if count else 0
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) if count else ends
    place = np.arange(nbytes) - np.repeat(starts, ends - starts)
    parts = (data[:nbytes].astype(np.int64) & 127) << (7 * place)
    return (np.add.reduceat(parts, starts) if count else parts), nbytes


def _bytes(array: NDArray[np.generic], kind: type[np.generic] | None = None) -> Bytes:
    """Return the raw bytes of an array, converted to `kind` if given."""
    return np.frombuffer((array if kind is None else array.astype(kind)).tobytes(), dtype=np.uint8)


def _read(data: Bytes, kind: type[np.integer[Any]]) -> Indices:
    return np.frombuffer(data.tobytes(), dtype=kind).astype(np.int64)


SIGMAS = 6.0
"""Total width of the statistical quantiser's bins, in standard deviations, as in all released code."""

HALVES = {"float16": "fp16", "bfloat16": "bf16"}
"""Name of each 2-byte code in `round_to_format`."""

LARGEST = {"fp16": 65504.0, "bf16": (2 - 2**-7) * 2.0**127}
"""Largest finite number of each format."""


def round_to_format(values: Values, form: str) -> Values:
    """Return values rounded to a 2-byte format, ties to even; overflow becomes the largest finite number.

    `form` is ``fp16``, IEEE binary16, or ``bf16``, the upper half of a float32.
    """
    fitting: Values = np.clip(values, -LARGEST[form], LARGEST[form])
    if form == "fp16":
        halves = fitting.astype(np.float16)
        return halves.astype(np.float32)
    bits = fitting.view(np.uint32)
    # Half a unit of the last place kept, less one where that place is even, and the rest is cut off.
    bits += ((bits >> 16) & 1) + np.uint32(0x7FFF)
    bits &= np.uint32(0xFFFF0000)
    return fitting


def read_back(values: Values, code: ValueCode) -> Values:
    """Return values as a receiver decodes them: encoded by `code` and decoded, float32.

    ``float16`` and ``bfloat16`` round as `round_to_format`. ``8bit``, ``4bit`` and ``2bit`` are bins of
    `statistical`, 6 sigma wide together; with ``_linear``, the levels of `linear`. ``1bit`` is the
    sign of each, and the mean of all magnitudes; a zero counts as positive.
    """
    if code == "float32" or not values.size:
        return values
    if code in HALVES:
        return round_to_format(values, HALVES[code])
    if code == "1bit":
        return _signed(np.signbit(values), _mean_magnitude(values))
    return _finite(_coded(values, code).values()[0])


def reader(code: ValueCode | None) -> Callable[[Values], Values] | None:
    """Return a function that maps values to what receivers decode from their code; None if the code is lossless."""
    return None if code in (None, "float32") else partial(read_back, code=code)


def encode_values(values: Values, code: ValueCode) -> Bytes:
    """Return the encoded bytes of values: the lookup table if the code has one, then the packed codes."""
    if code == "float32" or not values.size:
        return _bytes(values)
    if code == "float16":
        return _bytes(round_to_format(values, "fp16").astype(np.float16))
    if code == "bfloat16":
        return _bytes((round_to_format(values, "bf16").view(np.uint32) >> 16).astype(np.uint16))
    if code == "1bit":
        table, codes = _mean_magnitude(values), np.signbit(values).astype(np.uint8)
    else:
        coded = _coded(values, code)
        # Levels at equal distances are told by the second of them, as the first is 0.
        table = np.append(coded.offset, coded.table[0, 1:2] if code.endswith("linear") else coded.table[0])
        codes = coded.codes[0]
    return np.concatenate([_bytes(table), pack_bits(codes, encodings.VALUE_BITS[code])])


def decode_values(data: Bytes, k: int, code: ValueCode) -> Values:
    """Return the `k` values that `encode_values` encoded; raise ValueError for a wrong number of bytes."""
    wanted = int(encodings.encoded_value_bytes(code, k))
    if data.size != wanted:
        raise ValueError(f"{k} values of {code} take {wanted} bytes, got {data.size}")
    if not k:
        return np.zeros(0, dtype=np.float32)
    if encodings.VALUE_BITS[code] > 8:
        kind = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[code]
        found = np.frombuffer(data.tobytes(), dtype=kind)
        if code == "bfloat16":
            return (found.astype(np.uint32) << 16).view(np.float32)
        return found.astype(np.float32)
    table = np.frombuffer(data[: encodings.table_bytes(code)].tobytes(), dtype=np.float32)
    codes = unpack_bits(data[encodings.table_bytes(code) :], encodings.VALUE_BITS[code], k)
    if code == "1bit":
        return _signed(codes != 0, table)
    levels = table[1:]
    if code.endswith("linear"):
        levels = levels * np.arange(1 << encodings.VALUE_BITS[code]).astype(np.float32)
    return _finite(Coded(codes[np.newaxis], table[:1], levels[np.newaxis]).values()[0])


def _coded(values: Values, code: ValueCode) -> Coded:
    rows, bins = values[np.newaxis], 1 << encodings.VALUE_BITS[code]
    # A table in single precision may exceed it where values are as large as it holds.
    with np.errstate(over="ignore", invalid="ignore"):
        return linear(rows, bins) if code.endswith("linear") else statistical(rows, bins, SIGMAS)


def _finite(values: Values) -> Values:
    """Return decoded values clipped to the range of float32."""
    limit = np.finfo(np.float32).max
    return np.clip(values, -limit, limit)


def _mean_magnitude(values: Values) -> Values:
    return np.array([np.abs(values).mean(dtype=np.float64)]).astype(np.float32)


def _signed(negative: NDArray[np.bool_], scale: Values) -> Values:
    return np.where(negative, -scale, scale)
