"""The density that a job asks for, iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simnet.base.quantities import Density, Iterations


class Ramp(NamedTuple):
    """A stretch of iterations over which the density goes from `start` to `end`, linearly, both ends included.

    Parameters
    ----------
    iterations : int
        Length of the stretch.
    start, end : float
        The density at either end, in (0, 1].
    """

    iterations: Iterations
    start: Density
    end: Density


def density_at(ramps: Sequence[Ramp], iteration: int) -> float:
    """Return the density of an iteration; after the last ramp its end holds.

    Examples
    --------
    >>> warm_up = [Ramp(3, 1.0, 0.5), Ramp(1, 0.01, 0.01)]
    >>> [density_at(warm_up, iteration) for iteration in range(5)]
    [1.0, 0.75, 0.5, 0.01, 0.01]
    """
    for ramp in ramps:
        if iteration < ramp.iterations:
            share = iteration / (ramp.iterations - 1) if ramp.iterations > 1 else 1.0
            low, high = sorted((ramp.start, ramp.end))
            # Rounding must not carry it past an end, least of all past 1.
            return min(max(ramp.start + share * (ramp.end - ramp.start), low), high)
        iteration -= ramp.iterations
    return ramps[-1].end
