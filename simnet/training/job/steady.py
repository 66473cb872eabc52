"""Detection of the steady part of a run, in which traffic and density do not drift. Policies are ranked by this part.

A run has settled if between the halves of its last half no mean of bytes, density and build-up moves by more than 10 %
or two standard errors, at most 10 % of the time goes on exploration, and half to twice the entries asked for are
selected. A scheme that sends the same in all of that half has settled, whatever its build-up. The last half has whole
periods of a scheme. The steady part begins at the earliest of T/2, T/4, ... (s) from which on no mean over s to 2s is
more than 10 % off that of the last half, and after exploration in the first half. Times are not considered, as they
also vary with the weather of the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Columns, Floats
from simnet.base.units import format_seconds
from simnet.training.job.record import EXPLORE

MOVED = 0.1
"""Relative difference from which two means count as different, also the maximum share of exploration time."""

FEWEST, MOST = 0.5, 2.0
"""Bounds of the ratio of selected to requested entries in a steady part."""

_WORDS = {"bytes_sent_B": "what it sends", "density_ratio": "its density", "build_up": "its build-up"}


class SteadyPart(NamedTuple):
    """First iteration of the steady part of a run; if there is no steady part, `unsettled` is the reason."""

    start: int
    unsettled: str = ""


def common_start(found: Iterable[SteadyPart]) -> int:
    """Return the first iteration from which runs are compared, the latest start of their steady parts."""
    each = list(found)
    return max((one.start for one in [one for one in each if not one.unsettled] or each), default=0)


def steady_part(rows: Columns) -> SteadyPart:
    """Return the steady part of a run under one policy, given a table of all iterations, including exploration."""
    columns = {name: np.asarray(rows[name]) for name in map(str, rows)}
    aside = columns["purpose"] == EXPLORE if "purpose" in columns else np.zeros(columns["iteration_s"].size, bool)
    trained = {name: one[~aside] for name, one in columns.items()}
    total = trained["iteration_s"].size
    half = total // 2
    if not total:
        return SteadyPart(0)
    first = 0
    if aside.any():
        explored = {name: columns[name][aside] for name in ("iteration", "iteration_s")}
        late = explored["iteration"] >= half
        seconds = math.fsum(explored["iteration_s"][late])
        spent = seconds + math.fsum(trained["iteration_s"][half:])
        if seconds > MOVED * spent:
            told = f"it explored for {format_seconds(seconds)} of the last {format_seconds(spent)}"
            return SteadyPart(half, told)
        first = min(int(explored["iteration"][~late].max()) if (~late).any() else 0, half)
    kept = [name for name in ("choice", "density") if name in trained]
    if any(len({*trained[name][half:].tolist()}) > 1 for name in kept):
        return SteadyPart(first)
    period = int(trained["period"].max()) if "period" in trained else 1
    known = {name: trained[name] for name in _WORDS if name in trained}
    asked = float(trained["density"][-1]) if "density" in trained else 1.0
    found = detect_steady_part(
        known, total, period, asked, int(trained["iteration"][0]) if "iteration" in trained else 0
    )
    return found._replace(start=max(found.start, first))


def last_half(iterations: int, period: int = 1) -> int:
    """Return the first iteration of a run's last half, whose length is rounded down to a multiple of `period`."""
    return max(iterations - max(iterations // 2 // period, 1) * period, 0)


def detect_steady_part(
    columns: Mapping[str, Floats], iterations: int, period: int = 1, asked: float = 1.0, earlier: int = 0
) -> SteadyPart:
    """Return the steady part of a run with one exchange, given statistics of its iterations.

    `columns` are ``bytes_sent_B``, ``density_ratio`` and ``build_up``, if known, of shape (iterations,); the scheme
    restarts after `period` exchanges; `asked` is the requested density; the job had `earlier` iterations.

    Examples
    --------
    >>> detect_steady_part({"build_up": np.arange(8.0)}, 8)
    SteadyPart(start=4, unsettled='its build-up moved by +44 % in the last half')
    >>> detect_steady_part({}, 40, period=32).unsettled
    '40 iterations, and its thresholds begin anew after 32: it needs --set job.iterations=48'
    >>> detect_steady_part({"build_up": np.arange(8.0), "bytes_sent_B": np.full(8, 48e3)}, 8).unsettled
    ''
    """
    last = last_half(iterations, period)
    if period > 1 and last < period // 2:
        needed = f"it needs --set job.iterations={earlier + period + period // 2}"
        return SteadyPart(last, f"{iterations} iterations, and its thresholds begin anew after {period}: {needed}")
    known = {name: one for name, one in columns.items() if np.isfinite(one[last:]).all()}
    ratio = float(known["density_ratio"][last:].mean()) if "density_ratio" in known else 1.0
    if not FEWEST <= ratio <= MOST:
        return SteadyPart(last, f"{100 * ratio * asked:.3g} % of the entries, {100 * asked:.3g} % asked")
    middle = last + (iterations - last) // period // 2 * period
    volume = [known[name][last:] for name in ("bytes_sent_B", "density_ratio") if name in known]
    # What always sends the same follows no gradients, and its build-up is that of the gradients.
    fixed = "bytes_sent_B" in known and all(np.ptp(one) == 0 for one in volume)
    for name, one in known.items():
        if name == "build_up" and fixed:
            continue
        before, after = one[last:middle], one[middle:]
        if before.size and _means_differ(before, after):
            moved = f"{100 * (after.mean() / before.mean() - 1):+.0f} %" if before.mean() else "from nothing"
            return SteadyPart(last, f"{_WORDS[name]} moved by {moved} in the last half")
    start = last
    while start and not any(_is_transient(name, one, start // 2, last) for name, one in known.items()):
        start //= 2
    return SteadyPart(iterations - (iterations - start) // period * period)


def _means_differ(one: Floats, other: Floats) -> bool:
    """Return whether two means differ by more than 10 % and by more than chance explains."""
    error = math.hypot(*(float(each.std()) / math.sqrt(each.size) for each in (one, other)))
    difference = abs(float(one.mean() - other.mean()))
    return difference > max(MOVED * abs(float(other.mean())), 2 * error)


def _is_transient(name: str, values: Floats, start: int, last: int) -> bool:
    """Return whether the mean of `values` over [start, 2 start) differs by over 10 % from that over [last, end)."""
    steady, block = values[last:], values[start : max(2 * start, 1)]
    if not np.isfinite(block).all():
        return True
    goal = float(steady.mean())
    if name == "density_ratio" and abs(goal - 1) <= MOVED:
        goal = 1.0
    return abs(float(block.mean()) - goal) > MOVED * abs(goal)
