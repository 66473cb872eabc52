"""How values travel in few bits: what is sent, and what everybody reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simnet.costs.encodings import VALUE_BITS, ValueCode, encoded_value_bytes, table_bytes
from simnet.sparsifier_models.lookup_quantisers import Coded, linear, statistical
from simnet.sparsifier_models.packing import Bytes, pack_bits, unpack_bits
from simnet.sparsifier_models.selection import Values

SIGMAS = 6.0
"""Standard deviations that the bins of the statistical quantiser span together, as in all released codes."""

HALVES = {"float16": "fp16", "bfloat16": "bf16"}
"""Formats of two bytes, as `rounded` calls them."""

LARGEST = {"fp16": 65504.0, "bf16": (2 - 2**-7) * 2.0**127}
"""Largest finite number of each format."""


def rounded(values: Values, form: str) -> Values:
    """Return the nearest numbers of a format, ties to even; overflow becomes the largest finite number.

    `form` is ``fp16``, IEEE binary16, or ``bf16``, the upper half of a float32.

    Examples
    --------
    >>> rounded(np.array([2049, 2051, 1e6, -1e-9], dtype=np.float32), "fp16")
    array([ 2048.,  2052., 65504.,    -0.], dtype=float32)
    >>> rounded(np.array([2049, 1e6], dtype=np.float32), "bf16")
    array([  2048., 999424.], dtype=float32)
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
    """Return what is read of values that were sent.

    ``float16`` and ``bfloat16`` round as `rounded`. ``8bit``, ``4bit`` and ``2bit`` are bins of
    `lookup_quantisers.statistical`, 6 sigma wide together; with ``_linear``, the levels of `linear`. ``1bit`` is the
    sign of each, and the mean of all magnitudes; a zero counts as positive.

    Examples
    --------
    >>> values = np.array([1, -2, 6], dtype=np.float32)
    >>> read_back(values, "1bit"), read_back(values, "2bit_linear")
    (array([ 3., -3.,  3.], dtype=float32), array([ 0.66666675, -2.        ,  6.        ], dtype=float32))
    """
    if code == "float32" or not values.size:
        return values
    if code in HALVES:
        return rounded(values, HALVES[code])
    if code == "1bit":
        return _signed(np.signbit(values), _mean_magnitude(values))
    return _finite(_coded(values, code).values()[0])


def reader(code: ValueCode | None) -> Callable[[Values], Values] | None:
    """Return `read_back` with a code; None if nothing is lost, as with float32.

    Examples
    --------
    >>> reader("bfloat16")(np.array([2049], dtype=np.float32)), reader(None)
    (array([2048.], dtype=float32), None)
    """
    return None if code in (None, "float32") else partial(read_back, code=code)


def encode_values(values: Values, code: ValueCode) -> Bytes:
    """Return values as they travel: the table, if codes need one, and then the codes, the first in the lowest bits.

    Examples
    --------
    >>> encode_values(np.array([1, -2, 6], dtype=np.float32), "1bit")
    array([ 0,  0, 64, 64,  2], dtype=uint8)
    """
    if code == "float32" or not values.size:
        return _bytes(values)
    if code == "float16":
        return _bytes(rounded(values, "fp16").astype(np.float16))
    if code == "bfloat16":
        return _bytes((rounded(values, "bf16").view(np.uint32) >> 16).astype(np.uint16))
    if code == "1bit":
        table, codes = _mean_magnitude(values), np.signbit(values).astype(np.uint8)
    else:
        coded = _coded(values, code)
        # Levels at equal distances are told by the second of them, as the first is 0.
        table = np.append(coded.offset, coded.table[0, 1:2] if code.endswith("linear") else coded.table[0])
        codes = coded.codes[0]
    return np.concatenate([_bytes(table), pack_bits(codes, VALUE_BITS[code])])


def decode_values(data: Bytes, k: int, code: ValueCode) -> Values:
    """Return the `k` values that `encode_values` encoded, as `read_back`. ValueError: a wrong number of bytes.

    Examples
    --------
    >>> decode_values(np.array([0, 0, 64, 64, 2], dtype=np.uint8), 3, "1bit")
    array([ 3., -3.,  3.], dtype=float32)
    """
    wanted = int(encoded_value_bytes(code, k))
    if data.size != wanted:
        raise ValueError(f"{k} values of {code} take {wanted} bytes, got {data.size}")
    if not k:
        return np.zeros(0, dtype=np.float32)
    if VALUE_BITS[code] > 8:
        kind = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[code]
        found = np.frombuffer(data.tobytes(), dtype=kind)
        if code == "bfloat16":
            return (found.astype(np.uint32) << 16).view(np.float32)
        return found.astype(np.float32)
    table = np.frombuffer(data[: table_bytes(code)].tobytes(), dtype=np.float32)
    codes = unpack_bits(data[table_bytes(code) :], VALUE_BITS[code], k)
    if code == "1bit":
        return _signed(codes != 0, table)
    levels = table[1:]
    if code.endswith("linear"):
        levels = levels * np.arange(1 << VALUE_BITS[code]).astype(np.float32)
    return _finite(Coded(codes[np.newaxis], table[:1], levels[np.newaxis]).values()[0])


def _coded(values: Values, code: ValueCode) -> Coded:
    rows, bins = values[np.newaxis], 1 << VALUE_BITS[code]
    # A table in single precision may exceed it where values are as large as it holds.
    with np.errstate(over="ignore", invalid="ignore"):
        return linear(rows, bins) if code.endswith("linear") else statistical(rows, bins, SIGMAS)


def _finite(values: Values) -> Values:
    """Return what is read, at most as large as a float32 can be."""
    limit = np.finfo(np.float32).max
    found: Values = np.clip(values, -limit, limit)
    return found


def _mean_magnitude(values: Values) -> Values:
    return np.array([np.abs(values).mean(dtype=np.float64)]).astype(np.float32)


def _signed(negative: NDArray[np.bool_], scale: Values) -> Values:
    found: Values = np.where(negative, -scale, scale)
    return found


def _bytes(array: NDArray[np.generic]) -> Bytes:
    return np.frombuffer(array.tobytes(), dtype=np.uint8)
