"""How indices travel in few bytes."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.costs.encodings import (
    BLOCK_COUNT_BYTES,
    BLOCK_ENTRIES,
    COUNT_BYTES,
    INDEX_CODES,
    TAG_BYTES,
    IndexCode,
    encoded_index_bytes,
)
from simnet.sparsifier_models.packing import Bytes, pack_12, unpack_12
from simnet.sparsifier_models.selection import Indices

Places: TypeAlias = NDArray[np.integer[Any]]

_WIDTHS: dict[str, type[np.integer[Any]]] = {"int64": np.int64, "int32": np.int32}
_COUNTS: dict[int, type[np.integer[Any]]] = {2: np.uint16, 4: np.uint32}


def difference_bytes(indices: Places, cuts: Indices, entries: float = 1.0) -> Floats:
    """Return the bytes of the index differences in each region, shape (regions,), as of ``delta``.

    `indices` ascend; `cuts` are the starts of regions and the end of the last; a first difference is to the start. Each
    index stands for `entries`.

    Examples
    --------
    >>> difference_bytes(np.array([1, 130, 131]), np.array([0, 131, 300]))
    array([3., 1.])
    """
    region = np.searchsorted(cuts, indices, side="right") - 1
    before = np.maximum(np.concatenate([[0], indices[:-1]]), cuts[region])
    lengths = _lengths(indices - before)
    found: Floats = entries * np.bincount(region, weights=lengths, minlength=len(cuts) - 1).astype(np.float64)
    return found


def encode_indices(indices: Indices, n: int, code: IndexCode) -> Bytes:
    """Return ascending, distinct indices below `n` as they travel.

    Examples
    --------
    >>> indices = np.array([3, 7, 200])
    >>> encode_indices(indices, 300, "delta"), encode_indices(indices, 300, "int16")
    (array([  3,   0,   0,   0,   3,   4, 193,   1], dtype=uint8), array([  3,   0,   0,   0,   3,   0,   7,   0, 200,   0], dtype=uint8))
    """  # noqa: E501
    if code == "auto":
        chosen = _shortest(indices, n)
        return np.concatenate([np.array([INDEX_CODES.index(chosen)], np.uint8), encode_indices(indices, n, chosen)])
    if code == "delta":
        return np.concatenate([_bytes(np.array([indices.size]), np.uint32), _varints(np.diff(indices, prepend=0))])
    if code == "bitmap":
        bits = np.zeros(n, dtype=np.bool_)
        bits[indices] = True
        return np.packbits(bits, bitorder="little")
    if code in BLOCK_ENTRIES:
        block, within = np.divmod(indices, BLOCK_ENTRIES[code])
        counts = np.bincount(block, minlength=-(-n // BLOCK_ENTRIES[code]))
        local = pack_12(within) if code == "packed12" else _bytes(within, np.uint16)
        return np.concatenate([_bytes(counts, _COUNTS[BLOCK_COUNT_BYTES[code]]), local])
    return _bytes(indices, _WIDTHS[code])


def decode_indices(data: Bytes, n: int, code: IndexCode, k: int | None = None) -> tuple[Indices, int]:
    """Return the indices that `encode_indices` encoded, and their bytes; `data` may be longer.

    `k` says how many there are, for ``int64`` and ``int32``; without it all bytes are indices.

    Examples
    --------
    >>> decode_indices(np.array([3, 0, 0, 0, 3, 4, 193, 1], dtype=np.uint8), 300, "delta")
    (array([  3,   7, 200]), 8)
    """
    if code == "auto":
        found, nbytes = decode_indices(data[TAG_BYTES:], n, INDEX_CODES[data[0]], k)
        return found, TAG_BYTES + nbytes
    if code == "delta":
        count = int(_read(data[:COUNT_BYTES], np.uint32)[0])
        differences, nbytes = _from_varints(data[COUNT_BYTES:], count)
        return np.cumsum(differences), COUNT_BYTES + nbytes
    if code == "bitmap":
        nbytes = -(-n // 8)
        return np.flatnonzero(np.unpackbits(data[:nbytes], count=n, bitorder="little")), nbytes
    if code in BLOCK_ENTRIES:
        blocks = -(-n // BLOCK_ENTRIES[code])
        start = blocks * BLOCK_COUNT_BYTES[code]
        counts = _read(data[:start], _COUNTS[BLOCK_COUNT_BYTES[code]])
        number = int(counts.sum())
        nbytes = 3 * -(-number // 2) if code == "packed12" else 2 * number
        local = data[start : start + nbytes]
        within = unpack_12(local, number) if code == "packed12" else _read(local, np.uint16)
        return np.repeat(np.arange(blocks) * BLOCK_ENTRIES[code], counts) + within, start + nbytes
    width = np.dtype(_WIDTHS[code]).itemsize
    nbytes = data.size if k is None else k * width
    return _read(data[:nbytes], _WIDTHS[code]), nbytes


def _shortest(indices: Indices, n: int) -> IndexCode:
    """Return the code that takes the fewest bytes; of those alike the first."""
    lengths = float(difference_bytes(indices, np.array([0, n]))[0])
    codes = [one for one in INDEX_CODES if one != "auto"]
    return min(codes, key=lambda one: float(encoded_index_bytes(one, n, indices.size, lengths)))


def _lengths(differences: Places) -> Indices:
    """Return the bytes of each difference: one for each seven bits, one at least."""
    lengths = np.ones(differences.size, dtype=np.int64)
    for bits in range(7, 63, 7):
        larger = differences >= (1 << bits)
        if not larger.any():
            break
        lengths += larger
    return lengths


def _varints(differences: Indices) -> Bytes:
    """Return the differences by LEB128: seven bits in a byte, the lowest first; all but the last with the high bit."""
    lengths = _lengths(differences)
    ends = np.cumsum(lengths)
    place = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
    parts = (np.repeat(differences, lengths) >> (7 * place)) & 127
    parts[place < np.repeat(lengths, lengths) - 1] |= 128
    return parts.astype(np.uint8)


def _from_varints(data: Bytes, count: int) -> tuple[Indices, int]:
    """Return the first so many numbers of `_varints`, and how many bytes they were."""
    ends = np.flatnonzero(data < 128)[:count] + 1
    nbytes = int(ends[-1]) if count else 0
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) if count else ends
    place = np.arange(nbytes) - np.repeat(starts, ends - starts)
    parts = (data[:nbytes].astype(np.int64) & 127) << (7 * place)
    return (np.add.reduceat(parts, starts) if count else parts), nbytes


def _bytes(numbers: Places, kind: type[np.integer[Any]]) -> Bytes:
    return np.frombuffer(numbers.astype(kind).tobytes(), dtype=np.uint8)


def _read(data: Bytes, kind: type[np.integer[Any]]) -> Indices:
    return np.frombuffer(data.tobytes(), dtype=kind).astype(np.int64)
