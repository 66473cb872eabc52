"""SplitMix64: the hash that selects one of several equal-cost paths for a pair of hosts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1


def mix(value: int) -> int:
    """Return the SplitMix64 hash of `value`, 64 bits that each depend on every bit of `value`.

    References
    ----------
    G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.

    Examples
    --------
    >>> hex(mix(0))
    '0xe220a8397b1dcdaf'
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def mix_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the SplitMix64 hash of each number of an array, like `mix`; uint64 overflow is intended."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
