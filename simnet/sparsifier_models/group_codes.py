"""Codes of a few bits with a scale for each group of entries: the element rules of ZeRO++, LoCo and SDP4Bit.

A group sends the codes of its entries and one float32, the inverse of what they were multiplied by.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.checks import check_int
from simnet.sparsifier_models.packing import Bytes
from simnet.sparsifier_models.selection import Values
from simnet.sparsifier_models.value_codes import LARGEST

SCALE_BYTES = 4
"""Bytes of what a group sends beside its codes."""

# DeepSpeed aims at groups of so many weights, whose codes are multiples of so many; twice as large ones are refused.
_WEIGHTS, _MULTIPLE = 8000, 8


class GroupCodes(NamedTuple):
    """Groups of entries as they travel.

    Parameters
    ----------
    codes : ndarray of int8, shape (groups, size)
    inverses : ndarray of float32, shape (groups,)
        What a code of each group is multiplied by.
    """

    codes: NDArray[np.int8]
    inverses: Values

    def values(self) -> Values:
        """Return what receivers make of it, float32 of shape (groups, size)."""
        found: Values = self.codes.astype(np.float32)
        found *= self.inverses[:, np.newaxis]
        return found


def nearest(groups: NDArray[np.floating], bits: int) -> GroupCodes:
    """Return the nearest codes, ties to even: the rule of DeepSpeed.

    The largest magnitude of a group stands for 8 of four bits, or 128 of eight. There is no code above 7, or 127, so a
    largest entry that is positive loses an eighth of itself, or a 128th. A group of zeros has the scale 1.

    Examples
    --------
    >>> found = nearest(np.array([[8, -8, 0.5, 1.5], [0, 0, 0, 0]], dtype=np.float16), 4)
    >>> found.codes.tolist(), found.inverses
    ([[7, -8, 0, 2], [0, 0, 0, 0]], array([1., 1.], dtype=float32))
    """
    half = 1 << (bits - 1)
    scales, products = _scaled(groups, half)
    np.rint(products, out=products)
    codes = np.clip(products, -half, half - 1, out=products).astype(np.int8)
    return GroupCodes(codes, np.float32(1) / scales)


def stochastic(groups: NDArray[np.floating], bits: int, uniforms: Values) -> GroupCodes:
    """Return codes that are unbiased: the rule of SDP4Bit.

    The largest magnitude of a group stands for 7 of four bits, or 127 of eight. An entry is rounded up if its uniform,
    in (0, 1], is below its fraction. A group of zeros has the scale 1.

    Examples
    --------
    >>> stochastic(np.array([[7, 2.5, -2.5]], dtype=np.float32), 4, np.full((1, 3), 0.4, dtype=np.float32)).codes
    array([[ 7,  3, -2]], dtype=int8)
    """
    most = (1 << (bits - 1)) - 1
    scales, products = _scaled(groups, most)
    low = np.floor(products)
    products -= low
    low += uniforms < products
    codes = np.clip(low, -most, most, out=low).astype(np.int8)
    return GroupCodes(codes, np.float32(1) / scales)


def _scaled(groups: NDArray[np.floating], most: int) -> tuple[Values, Values]:
    """Return what each group is multiplied by, so that its largest magnitude becomes so much, and the products."""
    largest = np.abs(groups).max(axis=1).astype(np.float32)
    scales = np.ones_like(largest)
    # Magnitudes below those of normal numbers would have an infinite scale.
    with np.errstate(over="ignore"):
        np.divide(np.float32(most), largest, out=scales, where=largest > 0)
    np.minimum(scales, np.finfo(np.float32).max, out=scales)
    return scales, np.multiply(groups, scales[:, np.newaxis], dtype=np.float32)


def nibbles(codes: NDArray[np.int8]) -> Bytes:
    """Return codes of four bits, in -8 .. 7 and even in number, two in a byte, the first in the high half.

    Examples
    --------
    >>> [hex(one) for one in nibbles(np.array([1, -1, 7, -8], dtype=np.int8))]
    ['0x1f', '0x78']
    """
    pairs = codes.reshape(-1, 2).view(np.uint8) & 15
    return (pairs[:, 0] << 4 | pairs[:, 1]).astype(np.uint8)


def from_nibbles(packed: Bytes) -> NDArray[np.int8]:
    """Return the codes that `nibbles` packed.

    Examples
    --------
    >>> from_nibbles(np.array([0x1F, 0x78], dtype=np.uint8))
    array([ 1, -1,  7, -8], dtype=int8)
    """
    pairs = np.stack([packed >> 4, packed & 15], axis=1).ravel().astype(np.int8)
    return pairs - ((pairs > 7) * 16).astype(np.int8)


def halves(values: Values) -> NDArray[np.float16]:
    """Return the nearest numbers of half precision; overflow becomes the largest.

    Examples
    --------
    >>> halves(np.array([2049, 1e6], dtype=np.float32)).tolist()
    [2048.0, 65504.0]
    """
    limit = LARGEST["fp16"]
    return np.clip(values, -limit, limit).astype(np.float16)


def weight_groups(entries: int) -> int:
    """Return the number of groups in which DeepSpeed quantises weights for an all-gather (qwZ).

    Groups have a multiple of 8 weights, near to 8000 where that divides them, below 16,000. ValueError: `entries` is
    not a multiple of 8, which DeepSpeed refuses.

    Examples
    --------
    >>> weight_groups(4824672), weight_groups(64)
    (1733, 1)
    """
    if check_int(entries, "entries", 1) % _MULTIPLE:
        raise ValueError(f"quantised weights of a worker must be a multiple of 8, got {entries:,}")
    groups = math.ceil(entries / _WEIGHTS)
    while entries % (_MULTIPLE * groups):
        groups += 1
    while entries % (2 * _MULTIPLE * groups) == 0 and entries / groups > _WEIGHTS:
        groups *= 2
    return groups


def quantised_weights(weights: Values) -> GroupCodes:
    """Return the weights of a worker as qwZ of ZeRO++ gathers them: half precision, in eight bits.

    Examples
    --------
    >>> quantised_weights(np.arange(-8, 8, dtype=np.float32)).codes[0, [0, 1, 8, 15]]
    array([-128, -112,    0,  112], dtype=int8)
    """
    return nearest(halves(weights).reshape(weight_groups(weights.size), -1), 8)
