"""Compiled loops that count and select magnitudes of a gradient in one pass over its bit patterns.

The bits of a float32 without its sign, read as an integer, are ordered as magnitudes are: zeros of either sign first,
then the numbers, infinity, and NaN last. The loops compare magnitudes as such integers.

`simnet.sparsifier_models.selection` calls these for long arrays. They take the bits of the gradient, an ndarray of
uint32 of shape (n,), bounds `low` and `high` that are magnitudes as integers, and last the arrays that they fill.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MAGNITUDE = np.uint32(0x7FFFFFFF)


def sample(bits: Any, step: int, taken: Any) -> None:
    """Write one magnitude out of every `step`, at quasi-random offsets, to `taken`."""
    for i in range(taken.size):
        # Multiples of the golden ratio, modulo 1, are spread evenly.
        fraction = np.uint64(np.uint32(np.uint32(i) * np.uint32(2654435769)))
        taken[i] = bits[i * step + np.int64(fraction * np.uint64(step) >> np.uint64(32))] & MAGNITUDE


def count_between(bits: Any, low: int, high: int) -> int:
    """Return the number of magnitudes in [low, high]."""
    found, least, width = 0, np.uint32(low), np.uint32(high - low)
    for i in range(bits.size):
        # Unsigned, what is below `low` is far above any width.
        if np.uint32((bits[i] & MAGNITUDE) - least) <= width:
            found += 1
    return found


def band(bits: Any, low: int, high: int, inside: Any) -> tuple[int, int]:
    """Write magnitudes in [low, high] to `inside`; return their number (-1 if too many) and the number above `high`."""
    found = above = 0
    least, most = np.uint32(low), np.uint32(high)
    for i in range(bits.size):
        magnitude = bits[i] & MAGNITUDE
        if magnitude > most:
            above += 1
        elif magnitude >= least:
            if found == inside.size:
                return -1, 0
            inside[found] = magnitude
            found += 1
    return found, above


def select(bits: Any, low: int, high: int, ties: int, indices: Any) -> int:
    """Write indices of magnitudes in (low, high] and of the first `ties` equal to `low`; return their number.

    The number is -1 if `indices` is too short for them.
    """
    found, least, width = 0, np.uint32(low), np.uint32(high - low)
    for i in range(bits.size):
        beyond = np.uint32((bits[i] & MAGNITUDE) - least)
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
