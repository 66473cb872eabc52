"""Weather: an hour, or less, of every day in which links are slow."""

from __future__ import annotations

from simnet.base.quantities import Factor, Seconds
from simnet.network.weather import Signal, steps


def rush_hour(begins: Seconds, ends: Seconds, factor: Factor = 0.5) -> Signal:
    """Return a factor on a bandwidth or latency that is 1 but for some time of each day.

    Parameters
    ----------
    begins, ends : float
        When it is another one [s since midnight], 0 < `begins` < `ends` < 86,400.
    factor : float
        What it is then.
    """
    return steps([0, begins, ends], [1, factor, 1], period=86_400)
