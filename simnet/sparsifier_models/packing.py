"""Whole numbers of few bits in bytes, as they travel."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.sparsifier_models.selection import Indices

Bytes: TypeAlias = NDArray[np.uint8]


def packed_bytes(entries: float, bits: float) -> float:
    """Return the bytes of entries of `bits` bits each.

    Examples
    --------
    >>> packed_bytes(70, 2), packed_bytes(3, 12)
    (18.0, 5.0)
    """
    # Less what a product such as 4800.000000000001 is above the whole number that it stands for.
    return float(np.ceil(entries * bits / 8 * (1 - 1e-12)))


def pack_bits(codes: NDArray[np.uint8], bits: int) -> Bytes:
    """Pack codes below 2^bits into bytes, the first in the lowest bits; `bits` is 1, 2, 4 or 8.

    Examples
    --------
    >>> pack_bits(np.array([1, 2, 3, 0, 3], dtype=np.uint8), 2)
    array([57,  3], dtype=uint8)
    """
    each = 8 // bits
    padded = np.zeros(-(-codes.size // each) * each, dtype=np.uint8)
    padded[: codes.size] = codes
    shifted = padded.reshape(-1, each) << (bits * np.arange(each, dtype=np.uint8))
    packed: Bytes = np.bitwise_or.reduce(shifted, axis=1).astype(np.uint8)
    return packed


def unpack_bits(packed: Bytes, bits: int, count: int) -> NDArray[np.uint8]:
    """Return the first `count` codes that `pack_bits` packed.

    Examples
    --------
    >>> unpack_bits(np.array([57, 3], dtype=np.uint8), 2, 5)
    array([1, 2, 3, 0, 3], dtype=uint8)
    """
    shifts = bits * np.arange(8 // bits, dtype=np.uint8)
    codes = (packed[:, np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.ravel()[:count]


def pack_12(indices: Indices) -> Bytes:
    """Pack indices of 12 bits, two in three bytes; the last one is paired with zeros.

    Of i and j: the low eight bits of i; its high four with the low four of j above them; the high eight of j.

    Examples
    --------
    >>> [hex(one) for one in pack_12(np.array([0xABC, 0x123]))]
    ['0xbc', '0x3a', '0x12']
    """
    pairs = np.zeros((-(-indices.size // 2), 2), dtype=np.int64)
    pairs.reshape(-1)[: indices.size] = indices
    i, j = pairs.T
    return np.stack([i & 255, (i >> 8) | ((j & 15) << 4), j >> 4], axis=1).astype(np.uint8).ravel()


def unpack_12(packed: Bytes, count: int) -> Indices:
    """Return the first `count` indices that `pack_12` packed.

    Examples
    --------
    >>> unpack_12(pack_12(np.array([7, 4095, 256])), 3)
    array([   7, 4095,  256])
    """
    low, middle, high = packed.astype(np.int64).reshape(-1, 3).T
    pairs = np.stack([low | ((middle & 15) << 8), (middle >> 4) | (high << 4)], axis=1)
    return pairs.ravel()[:count]
