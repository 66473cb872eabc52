"""Signals: steps, once or periodic, and random processes, daily cycles and outages.

They scale or replace a bandwidth or latency. Steps that floating-point times cannot resolve are refused. Every
stochastic signal draws from the named stream ``(kind, *name)`` of its seed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.errors import SimnetError, check_int, check_positive, is_number
from simnet.base.quantities import Duration, Seconds, Share, Spread, Written
from simnet.base.rng import stream
from simnet.network.weather.signal import CHUNK, MAX_CHANGES, Chunks, Signal, constant

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
    """Yield the times and values of a signal; SimnetError once times are so large that floats cannot resolve its steps.

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


def markov(
    levels: Sequence[float],
    mean_dwell: Duration | Sequence[Duration],
    *,
    seed: int,
    name: tuple[str | int, ...] = (),
    transition: Annotated[ArrayLike, Written(Sequence[Sequence[Share]])] | None = None,
    start: Annotated[int, Ge(0)] | None = None,
) -> Signal:
    """Return a signal that stays in each level for an exponentially distributed time and then jumps (Markov chain).

    Parameters
    ----------
    levels : sequence of float, length n
        Value of each state, finite and >= 0.
    mean_dwell : float or sequence of float, length n
        Mean time in each state [s], > 0.
    seed, name
        The random stream.
    transition : array_like of float, shape (n, n), optional
        Jump probabilities from state i in row i, with zero diagonal. Default: uniform.
    start : int, optional
        State at time 0. Default: drawn from the stationary distribution.

    Raises
    ------
    ValueError
        If there is no level, a value is out of range, a length differs, or `transition` is no such matrix.

    References
    ----------
    W. Fischer, K. Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook", Performance Evaluation 18,
    1993: the modulating chain.

    Examples
    --------
    >>> signal = markov([1.0, 0.25], mean_dwell=[60, 10], seed=7, name=("uplink", 3), start=0)
    >>> signal.at(0), signal.at(signal.next_change(0))
    (1.0, 0.25)
    """
    n = len(levels)
    if n == 0:
        raise ValueError("markov needs at least one level")
    values = np.array(levels, np.float64)
    for index, level in enumerate(values.tolist()):
        if not 0 <= level < math.inf:
            raise ValueError(f"levels must be finite and >= 0, but number {index} is {level:g}")
    means = np.asarray(mean_dwell, np.float64)
    dwell: list[float] = means.tolist() if means.ndim else [float(means)] * n
    if len(dwell) != n:
        raise ValueError(f"mean_dwell must be one number or one per level ({n}), got {len(dwell)}")
    for mean in dwell:
        check_positive(mean, "mean_dwell")
    if n == 1:
        return constant(values[0])
    jumps = _jump_chain(transition, n)
    rng = stream(seed, "markov", *name)
    if start is None:
        first = int(rng.choice(n, p=_stationary_shares(jumps, np.array(dwell))))
    else:
        first = check_int(start, "start", 0, n - 1)

    def chunks() -> Chunks:
        cumulative, state, time = np.cumsum(jumps, axis=1).tolist(), first, 0.0
        while True:
            uniforms, waits = rng.random(CHUNK).tolist(), rng.standard_exponential(CHUNK).tolist()
            times, states = [], []
            for uniform, wait in zip(uniforms, waits, strict=True):
                time = max(time + wait * dwell[state], math.nextafter(time, math.inf))
                row = cumulative[state]
                state = bisect_right(row, uniform * row[-1])
                times.append(time)
                states.append(state)
            yield times, values[states]

    return Signal([0.0], [values[first]], resolved(chunks(), dwell))


def ornstein_uhlenbeck(
    sigma: Spread,
    tau: Duration,
    every: Duration = 1.0,
    *,
    mean: float = 1.0,
    seed: int,
    name: tuple[str | int, ...] = (),
) -> Signal:
    """Return correlated noise: the exponential of a stationary Ornstein-Uhlenbeck process, in steps of `every` [s].

    At t = k `every` the logarithm x has mean 0, standard deviation `sigma` and autocorrelation exp(-lag / `tau`)
    exactly (AR(1) form). The value is ``mean * exp(x - sigma**2 / 2)``, with expectation `mean`.

    Parameters
    ----------
    sigma : float
        Standard deviation of the logarithm, >= 0: 0.1 is about 10 %.
    tau : float
        Correlation time [s], > 0.
    every : float
        Interval over which a value holds [s], > 0.
    mean : float
        The expectation, in any unit, >= 0.
    seed, name
        The random stream.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    References
    ----------
    D. T. Gillespie, "Exact numerical simulation of the Ornstein-Uhlenbeck process and its integral", Phys. Rev. E 54,
    1996, eq. 2.4.

    Examples
    --------
    >>> signal = ornstein_uhlenbeck(sigma=0.2, tau=30, every=0.5, mean=1e9, seed=7)
    >>> signal.next_change(0)
    0.5
    """
    check_positive(tau, "tau")
    check_positive(every, "every")
    if not (0 <= sigma < math.inf and 0 <= mean < math.inf):
        raise ValueError(f"sigma and mean must be >= 0 and finite, got {sigma!r} and {mean!r}")
    if sigma == 0 or mean == 0:
        return constant(mean)
    keep = math.exp(-every / tau)
    spread = sigma * math.sqrt(-math.expm1(-2 * every / tau))
    rng = stream(seed, "ornstein_uhlenbeck", *name)
    begin = sigma * rng.standard_normal()

    def value(x: ArrayLike) -> Floats:
        return mean * np.exp(np.asarray(x) - sigma**2 / 2)

    def chunks() -> Chunks:
        x, done = begin, 0
        while True:
            shocks = (spread * rng.standard_normal(CHUNK)).tolist()
            path = list(accumulate(shocks, lambda before, shock: keep * before + shock, initial=x))[1:]
            yield np.arange(done + 1, done + CHUNK + 1) * every, value(path)
            x, done = path[-1], done + CHUNK

    return Signal([0.0], [float(value(begin))], chunks())


def diurnal(
    amplitude: Share, *, period: Duration = 86400.0, phase: Seconds = 0.0, every: Duration | None = None
) -> Signal:
    """Return a daily cycle, 1 + `amplitude` sin(2 pi (t + `phase`) / `period`), in steps of `every` [s].

    Each piece is the mean of the sinusoid over its interval, so the mean over a period is 1.

    Parameters
    ----------
    amplitude : float
        Between 0 and 1.
    period : float
        Period [s], > 0; a day by default.
    phase : float
        Phase shift [s].
    every : float, optional
        Length of the intervals [s]. Default: a 96th of the period, a quarter of an hour of a day.

    Raises
    ------
    ValueError
        If a parameter is out of range, or a period has too many intervals.

    Examples
    --------
    >>> signal = diurnal(0.5, every=6 * 3600)
    >>> [round(signal.at(hour * 3600), 3) for hour in (0, 6, 12, 18, 24)]
    [1.318, 1.318, 0.682, 0.682, 1.318]
    """
    interval = period / 96 if every is None else every
    check_positive(period, "period")
    check_positive(interval, "every")
    if not 0 <= amplitude <= 1:
        raise ValueError(f"amplitude must lie between 0 and 1, got {amplitude!r}")
    if not math.isfinite(phase):
        raise ValueError(f"phase must be finite, got {phase!r}")
    if period / interval > MAX_CHANGES:
        raise ValueError(
            f"every = {interval:g} s cuts the period of {period:g} s into more than {MAX_CHANGES:,} pieces"
        )
    # The allowance keeps a rounded quotient from leaving a last piece of no length.
    count = math.ceil(period / interval - 1e-9)
    edges = np.append(np.arange(count) * interval, period)
    angles = 2 * math.pi / period * (edges + math.fmod(phase, period))
    half, middle = np.diff(angles) / 2, (angles[:-1] + angles[1:]) / 2
    values = 1 + amplitude * np.sin(middle) * np.sin(half) / half
    return steps(edges[:-1], np.maximum(values, 0.0), period)


def outages(
    mean_up: Duration | None = None,
    mean_down: Duration | None = None,
    *,
    at: Iterable[tuple[float, float]] | None = None,
    seed: int | None = None,
    name: tuple[str | int, ...] = (),
) -> Signal:
    """Return a signal that is 1 while a link is up and 0 while it is down.

    Parameters
    ----------
    mean_up, mean_down : float
        Mean of the exponential times up and down [s]. The link is up at time 0.
    at : iterable of (start, duration)
        Alternatively the outages [s]. They may overlap; inf lasts for ever.
    seed, name
        The random stream of the first form.

    Raises
    ------
    ValueError
        If not exactly one form is given in full, or a time is out of range.

    Examples
    --------
    >>> outages(at=[(10, 5), (12, 8)]).window(0, 60)
    (array([ 0., 10., 20.]), array([1., 0., 1.]))
    >>> outages(mean_up=3600, mean_down=20, seed=7).at(0)
    1.0
    """
    if at is None and mean_up is not None and mean_down is not None and seed is not None:
        check_positive(mean_up, "mean_up")
        check_positive(mean_down, "mean_down")
        return markov([1.0, 0.0], [mean_up, mean_down], seed=seed, name=("outages", *name), start=0)
    if at is None or mean_up is not None or mean_down is not None:
        raise ValueError("outages needs either mean_up, mean_down and a seed, or at")
    changes: list[tuple[float, int]] = []
    for one in at:
        try:
            start, duration = one
        except (TypeError, ValueError):
            raise ValueError(f"an outage is a pair (start, duration) in seconds, got {one!r}") from None
        if not (is_number(start) and is_number(duration) and 0 <= start < math.inf and duration >= 0):
            raise ValueError(f"an outage needs a start >= 0 and a duration >= 0, got ({start!r}, {duration!r})")
        if not math.isclose((start + duration) - start, duration, rel_tol=1e-3):
            raise ValueError(f"an outage of {unresolved(duration, start)}")
        changes += [(start, 1), (start + duration, -1)]
    times, down = [0.0], [0]
    for time, change in sorted(changes):
        if time > times[-1]:
            times.append(time)
            down.append(down[-1])
        down[-1] += change
    lasting = [(time, 0.0 if count else 1.0) for time, count in zip(times, down, strict=True) if time < math.inf]
    return steps([time for time, _ in lasting], [value for _, value in lasting])


def _jump_chain(transition: ArrayLike | None, n: int) -> Floats:
    """Return the checked (n, n) matrix of transition probabilities between n levels, by default uniform."""
    if transition is None:
        return (1 - np.eye(n)) / (n - 1)
    jumps = np.array(transition, np.float64)
    if jumps.shape != (n, n):
        raise ValueError(f"transition must have shape ({n}, {n}), one row per level, got {jumps.shape}")
    if not (np.isfinite(jumps) & (jumps >= 0)).all() or np.diag(jumps).any():
        raise ValueError("transition must hold probabilities, with a diagonal of zeros")
    if not np.allclose(jumps.sum(axis=1), 1, rtol=0, atol=1e-9):
        raise ValueError(f"each row of transition must add up to 1, got {jumps.sum(axis=1).tolist()}")
    return jumps


def _stationary_shares(jumps: Floats, means: Floats) -> Floats:
    """Return the long-run share of time in each level, given transition probabilities and mean dwell times."""
    n = means.size
    balance = np.vstack([jumps.T - np.eye(n), np.ones(n)])
    visits = np.linalg.lstsq(balance, np.append(np.zeros(n), 1.0), rcond=None)[0]
    time = np.maximum(visits, 0) * means
    shares: Floats = time / time.sum()
    return shares
