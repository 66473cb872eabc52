"""Jitter: random extra latency of messages, drawn in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.quantities import Seconds, Spread

Jitter: TypeAlias = Callable[["np.random.Generator", int], Floats]
"""Draws n extra latencies [s], >= 0, from a generator."""


def exponential(mean: Seconds) -> Jitter:
    """Return exponentially distributed jitter with mean `mean` [s], >= 0."""
    return lambda draws, n: draws.exponential(mean, n)


def uniform(low: Seconds = 0.0, *, high: Seconds) -> Jitter:
    """Return jitter that is uniformly distributed between `low` and `high` [s], >= 0.

    Raises
    ------
    ValueError
        If `high` is below `low`.
    """
    if high < low:
        raise ValueError(f"high must be at least low, got {high:g} s below {low:g} s")
    return lambda draws, n: draws.uniform(low, high, n)


def lognormal(median: Seconds, sigma: Spread) -> Jitter:
    """Return log-normal jitter, heavy-tailed as on the Internet; `sigma` is the standard deviation of the logarithm."""
    return lambda draws, n: np.asarray(median * np.exp(sigma * draws.standard_normal(n)))


# Messages drawn for at a time; fixed, so that a message's jitter does not depend on how many a caller asks for.
_BLOCK = 1 << 16


def draw_jitter(jitter: Jitter, draws: np.random.Generator, count: int) -> Floats:
    """Return the extra latency of `count` messages [s], drawn from the jitter's distribution.

    Raises
    ------
    ValueError
        If the draws are not `count` finite numbers >= 0.
    """
    delays = np.asarray(jitter(draws, count), dtype=np.float64)
    if delays.shape != (count,) or not (np.isfinite(delays) & (delays >= 0)).all():
        raise ValueError(f"jitter must draw {count} finite latencies >= 0, got {delays!r}")
    return delays


class Delays:
    """Extra latency of each message of a schedule; every read draws the same random values.

    Parameters
    ----------
    jitter : callable or None
        Function that draws the delays; None for no random delay.
    draws : callable
        Returns a new random generator in the same state each time.
    count : int
        Number of messages.
    beside : array_like of float, shape (count,)
        Extra latency that is not drawn [s]; none if empty.
    """

    def __init__(
        self, jitter: Jitter | None, draws: Callable[[], np.random.Generator], count: int, beside: ArrayLike = ()
    ) -> None:
        self._jitter, self._draws, self._count = jitter, draws, count
        self._beside = np.asarray(beside, dtype=np.float64)

    def __bool__(self) -> bool:
        return self._jitter is not None or self._beside.size > 0

    def all(self) -> Floats:
        """Return the extra latency of all messages [s]; empty if there is none."""
        return np.concatenate([np.zeros(0), *self._blocks()])

    def reader(self) -> Callable[[int], Floats]:
        """Return a function of n: the extra latencies [s] of the next n messages, or an empty array without jitter."""
        blocks, left = self._blocks(), np.zeros(0)

        def read(count: int) -> Floats:
            nonlocal left
            while self and left.size < count:
                left = np.concatenate([left, next(blocks)])
            taken, left = left[:count], left[count:]
            return taken

        return read

    def _blocks(self) -> Iterator[Floats]:
        if not self:
            return
        draws = self._draws()
        for first in range(0, self._count, _BLOCK):
            block = np.zeros(min(_BLOCK, self._count - first))
            if self._jitter is not None:
                block += draw_jitter(self._jitter, draws, block.size)
            yield block + self._beside[first : first + block.size] if self._beside.size else block
