"""Signals given as steps, once or periodic; an error is raised if floating-point times cannot resolve the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.errors import SimnetError
from simnet.base.quantities import Seconds, Written
from simnet.network.weather.signal import CHUNK, Chunks, Signal

# A step is so many times as long as doubles are apart at its time, so that it lasts as long as it should to 0.1 %.
_RESOLVED = 1000
_NEGLIGIBLE = 1e-9


def steps(
    times: Annotated[ArrayLike, Written(Sequence[Seconds])], values: ArrayLike, period: Seconds | None = None
) -> Signal:
    """Return the signal that has the value ``values[i]`` from ``times[i]`` on.

    Parameters
    ----------
    times : array_like of float, shape (n,)
        Start of each value [s], strictly ascending from 0.
    values : array_like of float, shape (n,)
        Finite and >= 0, in any unit.
    period : float, optional
        Time [s], > ``times[-1]``, after which the steps repeat. Default: the last value holds.

    Raises
    ------
    ValueError
        If times do not ascend from 0, lengths differ, a value is out of range, or `period` is too short.

    Examples
    --------
    >>> signal = steps([0, 1, 3], [10, 0, 5], period=4)
    >>> signal.at(2.5), signal.next_change(3.5), signal.integral(0, 8)
    (0.0, 4.0, 30.0)
    """
    once = Signal(times, values)
    if period is None:
        return once
    last = float(np.asarray(times)[-1])
    if not last < period < math.inf:
        raise ValueError(f"period must be finite and longer than the last time {last:g}, got {period!r}")
    offsets, levels = once.window(0.0, period)
    if offsets.size == 1:
        return once

    def chunks() -> Chunks:
        at_once = max(1, CHUNK // offsets.size)
        first = 1
        while True:
            starts = np.arange(first, first + at_once + 1) * period
            points = np.append((starts[:-1, np.newaxis] + offsets).ravel(), starts[-1])
            lasting = points[:-1] < points[1:]
            yield points[:-1][lasting], np.tile(levels, at_once)[lasting]
            first += at_once

    return Signal(offsets, levels, resolved(chunks(), np.diff(offsets, append=period)))


def resolved(points: Chunks, lasting: ArrayLike) -> Chunks:
    """Yield a signal's points while floating-point times can resolve its steps; after that, raise SimnetError.

    Steps below 1e-9 of the longest may be lost. `lasting` are the step lengths [s]; a step needs a thousandfold
    resolution.

    Raises
    ------
    SimnetError
        When later points are requested.
    """
    lengths = np.asarray(lasting, np.float64)
    step = float(lengths[lengths >= _NEGLIGIBLE * lengths.max()].min())
    until = math.ldexp(1.0, math.frexp(step / _RESOLVED)[1] + 52)
    for times, values, *_ in points:
        near = np.asarray(times) < until
        if near.any():
            yield np.asarray(times)[near], np.asarray(values)[near]
        if not near.all():
            raise unresolved(step, until)


def unresolved(step: float, t: float) -> SimnetError:
    """Return the error for a step [s] that floating-point times cannot resolve at time `t` [s].

    Examples
    --------
    >>> unresolved(1e-6, 1e12)
    SimnetError('1e-06 s cannot be told at 1e+12 s, where numbers are 0.00012 s apart; take longer steps, or begin ...')
    """
    apart = f"where numbers are {math.ulp(t):.2g} s apart"
    return SimnetError(f"{step:g} s cannot be told at {t:g} s, {apart}; take longer steps, or begin nearer to 0")
