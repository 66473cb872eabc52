"""Signals: piecewise-constant functions of time, such as the bandwidth of a link, and their integrals.

The bytes a link can deliver since time zero are a piecewise-linear curve, so the finish of a transfer is one exact
inverse look-up, with no time step.
"""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.errors import SimnetError

Chunks: TypeAlias = Iterator[tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, float]]

MAX_CHANGES = 10_000_000
"""Maximum number of changes of one signal (160 MB, and as much again for integrals)."""

MAX_QUIET = 1_000_000
"""Generated points in a row without a change after which a signal counts as constant."""

CHUNK = 512
"""Points generated at a time."""

_FOREVER = sys.float_info.max
_NOTHING: Floats = np.zeros(0)


def constant(value: float) -> Signal:
    """Return a signal with the same value at all times.

    Examples
    --------
    >>> constant(1e9).inverse(2.0, 5e8)
    2.5
    """
    return Signal([0.0], [value])


def product(*signals: Signal) -> Signal:
    """Return the product of signals, such as a bandwidth, its daily cycle and its outages.

    It changes where a factor changes, and is generated on demand. While one factor is zero, the others are not
    generated, and their changes do not count for `MAX_QUIET`.

    Examples
    --------
    >>> from simnet.network.weather.processes import steps
    >>> product(constant(8.0), steps([0, 1], [1, 0.5]), steps([0, 2], [1, 0])).window(0, 5)
    (array([0., 1., 2.]), array([8., 4., 0.]))
    """

    def points_between(after: float, until: float) -> tuple[Floats, Floats]:
        """Return times and values of the product's changes in (`after`, `until`]."""
        segments = [one._segments(after, until) for one in signals]
        points = np.unique(np.concatenate([times[times > after] for times, _ in segments]))
        values = np.ones(points.size)
        staying, ending = np.full((2, points.size), math.inf)
        with np.errstate(over="ignore"):
            for times, levels in segments:
                now = np.searchsorted(times, points, side="right") - 1
                values *= levels[now]
                changes = times[now] == points
                before = now - changes
                zero_since = np.where(levels[before] == 0, times[before], math.inf)
                np.minimum(staying, zero_since, out=staying, where=~changes)
                np.minimum(ending, zero_since, out=ending, where=changes)
        # Inside a zero segment of the factor that has been zero for longest, changes of the others are none of the
        # product: they must not count as quiet points, however many there are.
        counting = (ending < staying) | np.isinf(staying)
        return points[counting], values[counting]

    def chunks() -> Chunks:
        reached = 0.0
        while reached < _FOREVER:
            zeros = [one._zero_segment(reached) for one in signals]
            if any(end == _FOREVER for _, end in zeros):
                return
            # As far as the factor that has been zero for longest is known to stay so, no other is looked at.
            _, zero_until = min(zeros, key=lambda segment: (segment[0], -segment[1]))
            until = min(one._known for one in signals)
            if until <= reached < zero_until:
                yield _NOTHING, _NOTHING, zero_until
                reached = zero_until
                continue
            for one in signals:
                while one._known <= reached:
                    one._extend()
            until = min(one._known for one in signals)
            yield *points_between(reached, until), until
            reached = until

    return Signal([0.0], [math.prod(one.at(0.0) for one in signals)], chunks() if signals else None)


def _check_points(times: ArrayLike, values: ArrayLike, known: float) -> tuple[Floats, Floats]:
    """Return times and values as arrays; ValueError if they cannot follow a signal's last known time `known` [s]."""
    points, levels = np.asarray(times, np.float64), np.asarray(values, np.float64)
    if points.ndim != 1 or points.shape != levels.shape or not points.size:
        raise ValueError(
            f"times and values must be one-dimensional, of one length >= 1, got {points.shape} and {levels.shape}"
        )
    if known < 0 and points[0] != 0:
        raise ValueError(f"the first time must be 0, got {points[0]:g}")
    wrong = np.flatnonzero(~(points > np.append(known, points[:-1])) | ~np.isfinite(points))
    if wrong.size:
        at = float(points[wrong[0]])
        why = f", as is the one before: numbers there are {math.ulp(at):.2g} s apart"
        same = why if at == np.append(known, points[:-1])[wrong[0]] else ""
        raise ValueError(f"times must be finite and ascend strictly, but number {wrong[0]} is {at:g}{same}")
    wrong = np.flatnonzero(~(np.isfinite(levels) & (levels >= 0)))
    if wrong.size:
        raise ValueError(f"values must be finite and >= 0, but number {wrong[0]} is {levels[wrong[0]]:g}")
    return points, levels + 0.0


def _failing_iterator(error: Exception) -> Chunks:
    """Return an iterator that raises the same `error` each time it is advanced."""

    def fail() -> tuple[ArrayLike, ArrayLike]:
        raise error

    return iter(fail, None)


@dataclass(frozen=True)
class Weather:
    """Bandwidth and latency of a link over time, as absolute values.

    Parameters
    ----------
    bandwidth : Signal, optional
        Bytes per second. None: the link keeps its own.
    latency : Signal, optional
        Seconds. None: the link keeps its own.
    """

    bandwidth: Signal | None = None
    latency: Signal | None = None


class Signal:
    """A non-negative, piecewise-constant, right-continuous function of time on [0, inf).

    Queries take O(log n) for n changes, in any order. Sums are carried in double-double precision, so that late short
    integrals are exact.

    Parameters
    ----------
    times : array_like of float, shape (n,)
        Seconds, strictly ascending from 0.
    values : array_like of float, shape (n,)
        ``values[i]`` holds from ``times[i]`` to ``times[i + 1]``. Finite and >= 0.
    chunks : iterator of (times, values), optional
        Generates later points on demand, at least one per chunk, in ascending order. At its end, or without it, the
        last value holds. A third entry says until when the chunk is complete; it may then be empty.

    Raises
    ------
    ValueError
        If times do not ascend from 0, lengths differ, or a value is out of range; for a bad chunk, when it is reached.

    Notes
    -----
    After `MAX_QUIET` generated points in a row without a change a signal counts as constant: `next_change` is then inf,
    and so is `inverse` if the value is 0. More than `MAX_CHANGES` changes raise `SimnetError`.

    Examples
    --------
    >>> signal = Signal([0, 10, 20], [4.0, 0.0, 1.0])
    >>> signal.at(10), signal.next_change(10), signal.integral(5, 25)
    (0.0, 20.0, 25.0)
    >>> signal.inverse(5, 20), signal.inverse(5, 25)
    (10.0, 25.0)
    """

    __slots__ = ("_known", "_quiet", "_source", "_times", "_total", "_totals", "_trailing", "_values")

    def __init__(self, times: ArrayLike, values: ArrayLike, chunks: Chunks | None = None) -> None:
        # The total up to a change is the unevaluated sum of _totals and the much smaller _trailing, for as many
        # changes as integrals have needed; _total is that up to the last one.
        self._times, self._values, self._totals, self._trailing = array("d"), array("d"), array("d"), array("d")
        self._total, self._known = 0.0, -1.0
        self._quiet = 0
        self._source = chunks
        self._append(times, values, most_quiet=sys.maxsize)
        self._quiet = 0
        if chunks is None:
            self._known = _FOREVER

    def __repr__(self) -> str:
        more = "" if self._source is None else f", more from {self._known:g} s on"
        return f"Signal({self._values[0]:g} at 0 s, {len(self._times) - 1} changes{more})"

    def __mul__(self, other: Signal | float) -> Signal:
        if isinstance(other, Signal):
            return product(self, other)
        if isinstance(other, int | float):
            return product(self, constant(other))
        return NotImplemented

    __rmul__ = __mul__

    def at(self, t: float) -> float:
        """Return the value at time `t` [s]; at a change, the new value.

        Raises
        ------
        ValueError
            If `t` is negative or not finite, as for all times below.
        """
        if not 0.0 <= t <= self._known:
            self._reach(t)
        return self._values[bisect_right(self._times, t) - 1]

    def next_change(self, t: float) -> float:
        """Return the first time after `t` at which the value changes [s]; inf if it never does."""
        if not 0.0 <= t <= self._known:
            self._reach(t)
        index = bisect_right(self._times, t)
        while index == len(self._times):
            if self._source is None:
                return math.inf
            self._extend()
        return self._times[index]

    def integral(self, start: float, end: float) -> float:
        """Return the integral from `start` to `end` [s], such as the bytes that a link can deliver.

        Raises
        ------
        ValueError
            If `end` is before `start`.
        """
        if not 0.0 <= start <= end <= self._known:
            self._reach(start)
            self._reach(end)
            if end < start:
                raise ValueError(f"end {end!r} lies before start {start!r}")
        first = bisect_right(self._times, start)
        last = bisect_right(self._times, end, first - 1) - 1
        if last < first:
            return self._values[last] * (end - start)
        head = self._values[first - 1] * (self._times[first] - start)
        return head + self._between(first, last) + self._values[last] * (end - self._times[last])

    def inverse(self, start: float, amount: float) -> float:
        """Return the earliest time t >= `start` at which ``integral(start, t)`` reaches `amount`; inf if never.

        Raises
        ------
        ValueError
            If `amount` is negative or NaN.
        """
        if not 0.0 <= start <= self._known:
            self._reach(start)
        if not 0.0 < amount < math.inf:
            if amount == 0:
                return start
            if amount == math.inf:
                return math.inf
            raise ValueError(f"amount must be >= 0, got {amount!r}")
        times, values = self._times, self._values
        first = bisect_right(times, start)
        while first == len(times) and self._source is not None:
            self._extend()
        rate = values[first - 1]
        if first == len(times):
            return start + amount / rate if rate else math.inf
        head = rate * (times[first] - start)
        if amount <= head:
            return min(start + amount / rate, times[first])
        return self._inverse_from(first, amount - head)

    def window(self, start: float, end: float) -> tuple[Floats, Floats]:
        """Return the times and values of the segments in [`start`, `end`), with the first time moved to `start`."""
        self._reach(start)
        self._reach(end)
        if end < start:
            raise ValueError(f"end {end!r} lies before start {start!r}")
        segments = slice(bisect_right(self._times, start) - 1, bisect_left(self._times, end))
        times, values = np.array(self._times[segments]), np.array(self._values[segments])
        if start == end:
            return times[:0], values[:0]
        times[0] = start
        return times, values

    def ahead(self, start: float, until: float, known: int) -> tuple[int, int, float]:
        """Return the first and one-past-last index of the segments that cover `start` to `until`, and the last end [s].

        Segments that begin before `until` [s] are generated if needed and possible; at least `known` segments are
        returned if so many exist already.

        Returns
        -------
        first, last : int
            The segment at `start`, and the one after the last.
        end : float
            Later than `start`; infinity if the last value holds for ever.

        Examples
        --------
        >>> from simnet.network.weather.processes import steps
        >>> constant(5.0).ahead(3.0, 4.0, 1)
        (0, 1, inf)
        >>> steps([0, 1, 3, 4], [10, 0, 5, 6]).ahead(2.0, 2.0, 2)
        (1, 3, 4.0)
        """
        if not 0.0 <= start < self._known:
            self._reach(start)
            while self._source is not None and self._known <= start:
                self._extend()
        if until > self._known:
            try:
                self._reach(until)
            except (SimnetError, ValueError):
                # A caller that asks for a moment that far will hear of it.
                until = self._known
        times = self._times
        first = bisect_right(times, start) - 1
        last = min(max(bisect_left(times, until, first), first + known), len(times))
        if last < len(times):
            return first, last, times[last]
        return first, last, math.inf if self._source is None else math.nextafter(self._known, math.inf)

    def change_rate(self, t: float) -> float:
        """Return the mean number of changes per second after time `t` [s], estimated from a limited number of changes.

        Examples
        --------
        >>> from simnet.network.weather.processes import steps
        >>> steps([0, 2], [2, 4], period=4).change_rate(100), constant(1.0).change_rate(0)
        (0.5, 0.0)
        """
        first, last, _ = self.ahead(t, t, CHUNK)
        return (last - 1 - first) / (self._times[last - 1] - self._times[first]) if last - first > 1 else 0.0

    def write(self, first: int, last: int, times: array[float], values: array[float]) -> None:
        """Append the start times and values of segments `first` .. `last` - 1 to the arrays."""
        times.extend(self._times[first:last])
        values.extend(self._values[first:last])

    def _inverse_from(self, first: int, amount: float) -> float:
        """Return when the integral from the start of segment `first` on reaches `amount` [s]; infinity if never."""
        times, values = self._times, self._values
        searched = first
        while self._between(first, len(times) - 1) < amount and self._source is not None:
            searched = len(times) - 1
            self._extend()
        after = bisect_left(
            range(len(times)), amount, searched, len(times), key=lambda index: self._between(first, index)
        )
        begin, rate = times[after - 1], values[after - 1]
        if after == len(times):
            return begin + (amount - self._between(first, after - 1)) / rate if rate else math.inf
        return min(begin + (amount - self._between(first, after - 1)) / rate, times[after])

    def _between(self, first: int, last: int) -> float:
        """Return the integral from the start of segment `first` to the start of segment `last`."""
        if len(self._totals) <= last:
            self._add_up()
        return (self._totals[last] - self._totals[first]) + (self._trailing[last] - self._trailing[first])

    def _segments(self, after: float, until: float) -> tuple[Floats, Floats]:
        """Return times and values of the segments that overlap [`after`, `until`]."""
        segments = slice(bisect_right(self._times, after) - 1, bisect_right(self._times, until))
        return np.array(self._times[segments]), np.array(self._values[segments])

    def _zero_segment(self, t: float) -> tuple[float, float]:
        """Return the start and the last known time of the segment at `t` [s] if its value is 0; otherwise (inf, t)."""
        index = bisect_right(self._times, t)
        if self._values[index - 1]:
            return math.inf, t
        last = math.nextafter(self._times[index], 0) if index < len(self._times) else self._known
        return self._times[index - 1], last

    def _reach(self, t: float) -> None:
        if not 0.0 <= t < math.inf:
            raise ValueError(f"time must be finite and >= 0, got {t!r}")
        while self._known < t:
            self._extend()

    def _extend(self) -> None:
        assert self._source is not None
        try:
            chunk = next(self._source, None)
            if chunk is None:
                self._finish()
            elif len(chunk) == 2:
                self._append(*chunk, MAX_QUIET)
            else:
                times, values, until = chunk
                if np.size(times):
                    self._append(times, values, MAX_QUIET)
                self._known = max(self._known, until)
        except BaseException as error:
            # A generator that has raised is at its end; asked again, the signal must not pass for constant from here.
            lasting = (
                error if isinstance(error, Exception) else SimnetError("the generation of a signal was interrupted")
            )
            self._source = _failing_iterator(lasting)
            raise

    def _finish(self) -> None:
        self._source = None
        self._known = _FOREVER

    def _append(self, times: ArrayLike, values: ArrayLike, most_quiet: int) -> None:
        points, levels = _check_points(times, values, self._known)
        previous = np.append(self._values[-1] if self._values else -1.0, levels[:-1])
        changes = np.flatnonzero(levels != previous)
        quiet_runs = np.diff(np.concatenate([[-1 - self._quiet], changes, [points.size]])) - 1
        too_quiet = np.flatnonzero(quiet_runs > most_quiet)
        if too_quiet.size:
            changes = changes[: too_quiet[0]]
        if len(self._times) + changes.size > MAX_CHANGES:
            raise SimnetError(
                f"a signal changes more than {MAX_CHANGES:,} times before {points[-1]:g} s; make it coarser, or check "
                "whether the time asked for is meant"
            )
        self._store(points[changes], levels[changes])
        self._quiet = int(quiet_runs[-1])
        self._known = float(points[-1])
        if too_quiet.size:
            self._finish()

    def _store(self, times: Floats, values: Floats) -> None:
        if not times.size:
            return
        before = (self._times[-1], self._values[-1]) if self._times else (0.0, 0.0)
        self._total = float(_running_totals(*before, self._total, times, values)[1][-1])
        if self._total == math.inf:
            raise ValueError(f"the integral of a signal exceeds the largest float before {times[-1]:g} s")
        self._times.frombytes(times.tobytes())
        self._values.frombytes(values.tobytes())

    def _add_up(self) -> None:
        """Extend the running integral of the signal to all changes generated so far."""
        n = len(self._totals)
        times, values = np.array(self._times[n:]), np.array(self._values[n:])
        time, value, total, trail = (
            (self._times[n - 1], self._values[n - 1], self._totals[-1], self._trailing[-1]) if n else (0.0,) * 4
        )
        amounts, totals = _running_totals(time, value, total, times, values)
        # Knuth's two-sum: what rounding lost at each addition, exactly.
        added = totals[1:] - totals[:-1]
        lost = (totals[:-1] - (totals[1:] - added)) + (amounts - added)
        self._totals.frombytes(totals[1:].tobytes())
        self._trailing.frombytes(np.add.accumulate(np.append(trail, lost))[1:].tobytes())


def _running_totals(time: float, value: float, total: float, times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return the integral over each new segment and the running total, given the last change before them."""
    with np.errstate(over="ignore"):
        amounts = np.append(value, values[:-1]) * np.diff(times, prepend=time)
        return amounts, np.add.accumulate(np.append(total, amounts))
