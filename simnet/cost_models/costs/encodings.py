"""Bytes of encoded sparse messages. `simnet.cost_models.costs` explains the symbols.

Bytes follow from n and k alone, except those of differences, which depend on the gaps between the indices: the expected
value is for indices drawn independently, and `encoded_index_bounds` holds for any.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.costs.closed_form import Real, check_arguments

IndexCode: TypeAlias = Literal["auto", "int64", "int32", "int16", "packed12", "bitmap", "delta"]
"""How indices travel: see `encoded_index_bytes`."""

ValueCode: TypeAlias = Literal[
    "float32", "float16", "bfloat16", "8bit", "4bit", "2bit", "8bit_linear", "4bit_linear", "2bit_linear", "1bit"
]
"""How values travel: see `encoded_value_bytes`."""

INDEX_CODES: tuple[IndexCode, ...] = get_args(IndexCode)
VALUE_CODES: tuple[ValueCode, ...] = get_args(ValueCode)

SORT_METHOD = "sort"
"""The method of a device profile that puts indices that a selection leaves unsorted in order, with their values."""

_MADE_CODES = [code for code in (*INDEX_CODES, *VALUE_CODES) if code not in ("int32", "float32")]
CODE_METHODS = (SORT_METHOD, *(f"{does}_{code}" for code in _MADE_CODES for does in ("encode", "decode")))
"""Methods of a device profile by which codes are made and read; those of a bitmap go through all entries there are.

As int32 and float32 nothing is made: entries are copied as they are.
"""

VARYING_CODES: tuple[IndexCode, ...] = ("auto", "delta")
"""Index codes whose size depends on the index values."""

BLOCK_ENTRIES = {"int16": 1 << 16, "packed12": 1 << 12}
"""Entries of a block; indices are relative to the block's first entry."""

BLOCK_COUNT_BYTES = {"int16": 4, "packed12": 2}
"""Bytes of the count that each block starts with."""

COUNT_BYTES = 4
"""Bytes of the count that precedes the differences."""

TAG_BYTES = 1
"""Bytes of the tag that names the code ``auto`` chose."""

VALUE_BITS: dict[ValueCode, int] = {
    "float32": 32, "float16": 16, "bfloat16": 16, "8bit": 8, "4bit": 4, "2bit": 2, "8bit_linear": 8, "4bit_linear": 4,
    "2bit_linear": 2, "1bit": 1,
}  # fmt: skip
"""Bits of a value, or of the code that stands for it."""


def table_bytes(values: ValueCode) -> int:
    """Return the size [byte] of the decoding table in a message of encoded values; 0 if there is none.

    Bins have a shift and a mean each, linear levels their minimum and distance, signs a scale.
    """
    if VALUE_BITS[values] > 8:
        return 0
    if values == "1bit":
        return 4
    return 8 if values.endswith("linear") else 4 * (1 + (1 << VALUE_BITS[values]))


def encoded_value_bytes(values: ValueCode, k: Real) -> Floats:
    """Return the bytes of `k` encoded values and their decoding table; 0 for k = 0."""
    (k,) = check_arguments(k=k)
    found: Floats = np.where(k > 0, _round_up(k * VALUE_BITS[values] / 8) + table_bytes(values), 0.0)[()]
    return found


def encoded_index_bytes(indices: IndexCode, n: Real, k: Real, differences: Real | None = None) -> Floats:
    """Return the message size [byte] of `k` indices in the range 0 to `n` - 1 under the index encoding `indices`.

    =============  ==========================================================================================
    ``int64``      8 k
    ``int32``      4 k
    ``int16``      2 k within blocks of 65,536 entries, and a count of 4 bytes for each block
    ``packed12``   3 for each two within blocks of 4096 entries, and a count of 2 bytes for each block
    ``bitmap``     ceil(n / 8)
    ``delta``      differences of ascending indices, 7 bits in a byte (LEB128), after a count of 4 bytes
    ``auto``       the shortest of these, after a byte that says which
    =============  ==========================================================================================

    `differences` are the bytes of the differences; by default the expected ones of k of n drawn independently.

    Examples
    --------
    >>> [float(encoded_index_bytes(one, 100_000, 1000)) for one in ("int32", "int16", "packed12", "bitmap")]
    [4000.0, 2008.0, 1550.0, 12500.0]
    >>> [round(float(encoded_index_bytes(one, 100_000, 1000))) for one in ("delta", "auto")]
    [1283, 1284]
    """
    n, k = check_arguments(n=n, k=k)
    if indices == "auto":
        each = [encoded_index_bytes(one, n, k, differences) for one in INDEX_CODES if one != "auto"]
        shortest: Floats = np.minimum.reduce(each)
        return TAG_BYTES + shortest
    if indices == "delta":
        expected = _expected_differences(n, k)
        return COUNT_BYTES + (expected if differences is None else check_arguments(differences=differences)[0])
    if indices == "bitmap":
        return _round_up(n / 8) + 0 * k
    if indices in BLOCK_ENTRIES:
        counts = BLOCK_COUNT_BYTES[indices] * np.ceil(n / BLOCK_ENTRIES[indices])
        return counts + (2 * k if indices == "int16" else 3 * _round_up(k / 2))
    return (8 if indices == "int64" else 4) * k + 0 * n


def _expected_differences(n: Floats, k: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        skip = np.log1p(-np.where(n > 0, np.minimum(k / n, 1.0), 0.0))
        found: Floats = k * (1 + sum(np.exp(skip * ((1 << bits) - 1)) for bits in (7, 14, 21, 28)))
    return np.where(k > 0, found, 0.0)


def _round_up(entries: Floats) -> Floats:
    # Less what a product such as 4800.000000000001 is above the whole number that it stands for.
    found: Floats = np.ceil(entries * (1 - 1e-12))
    return found
