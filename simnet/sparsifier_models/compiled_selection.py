"""Compiled one-pass loops over the bit patterns of a gradient.

The bits of a float32 without its sign, read as an integer, are ordered as magnitudes are: zeros of either sign first,
then the numbers, infinity, and NaN last. The loops compare magnitudes as such integers.

`simnet.sparsifier_models.selection` calls these for long arrays. They take the bits of the gradient, an ndarray of
uint32 of shape (n,), bounds `low` and `high` that are magnitudes as integers, and last the arrays that they fill.
"""

from __future__ import annotations

from typing import Any

from numba import int64, types, uint32, uint64

from simnet.base.compiling import compile_function

MAGNITUDE = uint32(0x7FFFFFFF)


def _array_type(of: Any, *, readonly: bool = False) -> Any:
    return types.Array(of, 1, "C", readonly=readonly)


_BITS = _array_type(uint32, readonly=True)


@compile_function(types.void(_BITS, int64, _array_type(uint32)))
def sample(bits: Any, step: int, taken: Any) -> None:
    """Write one magnitude out of every `step` entries to `taken`, at quasi-random offsets."""
    for i in range(taken.size):
        # Multiples of the golden ratio, modulo 1, are spread evenly.
        fraction = uint64(uint32(uint32(i) * uint32(2654435769)))
        taken[i] = bits[i * step + int64(fraction * uint64(step) >> uint64(32))] & MAGNITUDE


@compile_function(int64(_BITS, uint32, uint32))
def count_between(bits: Any, low: int, high: int) -> int:
    """Return the number of magnitudes in [low, high]."""
    width = uint32(high - low)
    found = 0
    for i in range(bits.size):
        # Unsigned, what is below `low` is far above any width.
        found += uint32((bits[i] & MAGNITUDE) - low) <= width
    return found


@compile_function(types.UniTuple(int64, 2)(_BITS, uint32, uint32, _array_type(uint32)))
def band(bits: Any, low: int, high: int, inside: Any) -> tuple[int, int]:
    """Write the magnitudes in [low, high] to `inside`.

    Returns how many there are, -1 if `inside` is too short for them, and how many are above `high`.
    """
    found = above = 0
    for i in range(bits.size):
        magnitude = bits[i] & MAGNITUDE
        if magnitude > high:
            above += 1
        elif magnitude >= low:
            if found == inside.size:
                return -1, 0
            inside[found] = magnitude
            found += 1
    return found, above


@compile_function(int64(_BITS, uint32, uint32, int64, _array_type(int64)))
def select(bits: Any, low: int, high: int, ties: int, indices: Any) -> int:
    """Write the indices of magnitudes in (low, high], and of the first `ties` equal to `low`, to `indices`.

    Returns how many there are, -1 if `indices` is too short for them.
    """
    found, width = 0, uint32(high - low)
    for i in range(bits.size):
        beyond = uint32((bits[i] & MAGNITUDE) - low)
        if beyond <= width:
            if beyond == 0:
                if ties == 0:
                    continue
                ties -= 1
            if found == indices.size:
                return -1
            indices[found] = i
            found += 1
    return found
