"""Jitter of messages of a calibrated system, fitted to repeated single calls.

Every message has an extra latency, log-normal, as `simnet.network.jitter.lognormal` draws it. The fit matches distances
of repetitions from the median of their setting with distances that are drawn in the same way. Where repetitions scatter
in proportion to the time of calls, no latency of messages causes it, and none is fitted (`fit_links`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.collectives import registry
from simnet.cost_models.calibration.curves import Setting, setting_groups, split_systems
from simnet.network.stack import Stack
from simnet.schedule import Round, Schedule

LEAST_REPETITIONS = 50
"""Repetitions that a fit takes, at least: with fewer, none would be beyond the highest quantile that is matched."""

MOST_RANKS = 64
"""The most ranks of a call that is fitted to or simulated; an all-to-all of thousands has millions of messages."""

MATCHED_PERCENTILES = (10, 20, 30, 70, 80, 90, 95, 98)
"""Percentiles of distances from the median that the fit matches; between them are the medians themselves, at 0."""

_SIGMAS = np.geomspace(0.1, 4.0, 24)
# Repetitions that are drawn for each kind of call, and normal numbers for all of its messages.
_DRAWN, _NUMBERS, _FEWEST = 4000, 4_000_000, 25
_IDEAL_STACK = Stack()
_SINGLE_MESSAGE = Setting("broadcast", 2, 0, "binomial")
# Distances below this share of a time are roundings.
_ROUNDING = 1e-9


class FittedJitter(NamedTuple):
    """The extra latency of each message: median [s] and sigma of its logarithm, settings and repetitions of the fit."""

    median: float
    sigma: float
    settings: int
    repetitions: int


class RepeatedCall(NamedTuple):
    """Repeated times [s], shape (n >= 2,), of a setting and a total size [byte] as nccl-tests counts it."""

    setting: Setting
    size: float
    seconds: Floats


def repeated_calls(rows: pd.DataFrame) -> list[RepeatedCall]:
    """Return the settings that were measured several times, one call at a time, under the same conditions.

    Means over several calls, and rows without a repetition (column ``iteration``), are left out: a mean scatters less
    than single calls, by an unknown factor.
    """
    single = rows["iteration"].notna() & (rows["iterations"].isna() | (rows["iterations"] == 1))
    found = []
    for part in split_systems(rows[single]).values():
        for setting, calls in setting_groups(part):
            for key, times in calls.groupby("size")["seconds"]:
                size = float(str(key))
                if len(times) > 1 and size > 0 and _unit_schedule(setting) is not None:
                    found.append(RepeatedCall(setting, size, times.to_numpy(dtype=float)))
    return found


def fit_links(measured: Sequence[RepeatedCall], stack: Stack) -> FittedJitter | None:
    """Fit the extra latency of messages; None as of `fit_jitter`, or unless it `describes_calls`."""
    fitted = fit_jitter(measured, stack)
    return fitted if fitted is not None and describes_calls(fitted, measured, stack) else None


def describes_calls(fitted: FittedJitter, measured: Sequence[RepeatedCall], stack: Stack) -> bool:
    """Return whether extra latencies describe repetitions at least as well as a factor on the time of each call.

    Both forms have two parameters and are compared by `uniformity_distance` on the distances that they were fitted to.
    """
    factors = [as_call_factors(one) for one in measured]
    factor = fit_jitter(factors, _IDEAL_STACK)
    if factor is None:
        return True
    took = [np.full(one.seconds.size, np.median(one.seconds)) for one in measured]
    seconds = np.concatenate(took)
    own, other = (
        uniformity_distance(np.concatenate([predicted_shares(one, given, by) for one in listed]), seconds)
        for listed, given, by in ((measured, fitted, stack), (factors, factor, _IDEAL_STACK))
    )
    return own <= other


def as_call_factors(one: RepeatedCall) -> RepeatedCall:
    """Return repetitions over their median, as of a call of one message that a factor scatters."""
    return RepeatedCall(_SINGLE_MESSAGE, one.size, one.seconds / np.median(one.seconds))


def predicted_shares(one: RepeatedCall, fitted: FittedJitter, stack: Stack) -> Floats:
    """Return the share of the predicted distances below each observed one, shape (n,)."""
    sent = _unit_schedule(one.setting)
    assert sent is not None
    schedule, count = stack.cut(sent), one.seconds.size
    drawn = draw_extra_times(schedule, fitted.sigma, _draw_count(schedule, count)).reshape(-1, count)
    expected = np.sort((drawn - np.median(drawn, axis=1, keepdims=True)).ravel()) * fitted.median
    low, high = (np.searchsorted(expected, _median_distances(one.seconds), side=side) for side in ("left", "right"))
    # Of an odd number of repetitions one is the median, in what is seen and in what is drawn.
    share = stream(0, "ties", one.setting.collective, one.setting.ranks, repr(one.size)).random(count)
    return np.asarray((low + share * (high - low)) / expected.size)


def uniformity_distance(shares: Floats, seconds: Floats) -> float:
    """Return the Kolmogorov-Smirnov distance of shares from uniform ones, the mean over thirds of the calls by time.

    A form that is wrong for short or for long calls shows there. 0 is right, 1 wrong.
    """
    parts = np.array_split(shares[np.argsort(seconds, kind="stable")], 3)
    found = []
    for part in parts:
        part, places = np.sort(part), np.arange(part.size)
        found.append(max(((places + 1) / part.size - part).max(), (part - places / part.size).max()))
    return float(np.mean(found))


def fit_jitter(measured: Sequence[RepeatedCall], stack: Stack) -> FittedJitter | None:
    """Fit the extra latency of messages; None for few repetitions, or if they do not scatter."""
    repetitions = sum(one.seconds.size for one in measured)
    if repetitions < LEAST_REPETITIONS:
        return None
    kinds: dict[tuple[Setting, int], list[RepeatedCall]] = {}
    for one in measured:
        kinds.setdefault((one.setting, one.seconds.size), []).append(one)
    seen = np.percentile(np.concatenate([_median_distances(one.seconds) for one in measured]), MATCHED_PERCENTILES)
    if seen[MATCHED_PERCENTILES.index(90)] <= 0:
        return None
    schedules = [stack.cut(sent) for setting, _ in kinds if (sent := _unit_schedule(setting)) is not None]
    shortest = np.array([min(float(np.median(one.seconds)) for one in listed) for listed in kinds.values()])
    shares = np.array([count * len(listed) for (_, count), listed in kinds.items()], dtype=float)

    def tried(sigma: float) -> tuple[float, float]:
        """Return by how much quantiles are off (mean square of logarithms), and the median latency that fits best."""
        parts = []
        middles = np.zeros(len(kinds))
        for at, (schedule, (_, count)) in enumerate(zip(schedules, kinds, strict=True)):
            drawn = draw_extra_times(schedule, sigma, _draw_count(schedule, count)).reshape(-1, count)
            middles[at] = np.median(drawn)
            parts.append((drawn - np.median(drawn, axis=1, keepdims=True)).ravel())
        weights = np.repeat(shares / [one.size for one in parts], [one.size for one in parts])
        found = _weighted_percentiles(np.concatenate(parts), weights)
        both = (seen != 0) & (np.sign(seen) == np.sign(found))
        off = np.log(np.abs(seen[both] / found[both]))
        median = float(np.exp(off.mean()))
        # Without its extra latencies a call cannot have taken less than no time.
        possible = bool((median * middles < shortest).all())
        return (float(np.mean((off - off.mean()) ** 2)) if possible else math.inf), median

    misfits = np.array([tried(sigma)[0] for sigma in _SIGMAS])
    best = int(np.argmin(misfits))
    if not math.isfinite(misfits[best]):
        return None
    around = _SIGMAS[max(best - 1, 0)], _SIGMAS[min(best + 1, len(_SIGMAS) - 1)]
    sigma = min(np.geomspace(*around, 9).tolist(), key=lambda one: tried(one)[0])
    return FittedJitter(tried(sigma)[1], sigma, len(measured), repetitions)


def draw_extra_times(schedule: Schedule, sigma: float, count: int) -> Floats:
    """Draw the extra time of a schedule whose messages have extra latencies of median 1 and this sigma, shape (count,).

    The latencies are taken as short against a message, so that the longest chain of messages stays among the longest.
    Equal schedules get equal draws, whatever `sigma`.
    """
    draws = stream(0, "extra latency", schedule.n_ranks, schedule.n_messages)
    steps, late = np.zeros(schedule.n_ranks, dtype=int), np.zeros((schedule.n_ranks, count))
    for one in schedule.rounds:
        step = steps[one.src] + 1
        arrived = late[one.src] + np.exp(sigma * draws.standard_normal((len(one), count)))
        longest = steps.copy()
        np.maximum.at(longest, one.dst, step)
        late[longest > steps] = 0.0
        last = step == longest[one.dst]
        np.maximum.at(late, one.dst[last], arrived[last])
        steps = longest
    return np.asarray(late[steps == steps.max()].max(axis=0))


def median_extra_time(jitter: FittedJitter, schedule: Schedule) -> float:
    """Return the median extra time of a schedule [s], in the pieces that the stack sends."""
    return jitter.median * float(np.median(draw_extra_times(schedule, jitter.sigma, _draw_count(schedule, 1))))


def algorithm_of(setting: Setting) -> str:
    """Return the algorithm that a setting names, else the first that is known; empty without one."""
    known = [one.algorithm for one in registry.every() if one.operation == setting.collective and one.calibrated]
    return next((name for name in (setting.algorithm.casefold(), "ring", *known) if name in known), "")


def messages_of(setting: Setting, size: float) -> Schedule | None:
    """Return the messages of a setting of a total size [byte]; None for an unknown collective."""
    found = registry.find_collective(setting.collective, algorithm_of(setting))
    if found is None or not found.ranks.among(setting.ranks):
        return None
    return found.schedule_of_vector(setting.ranks, size)


def _unit_schedule(setting: Setting) -> Schedule | None:
    """Return the messages of a setting that a fit takes, of one byte in all."""
    if not 1 < setting.ranks <= MOST_RANKS:
        return None
    if setting.collective == "sendrecv":
        ranks = np.arange(setting.ranks)
        return Schedule(setting.ranks, [Round(ranks, (ranks + 1) % setting.ranks, 1.0)])
    return messages_of(setting, 1.0)


def _draw_count(schedule: Schedule, each: int) -> int:
    """Return the number of drawn repetitions of a schedule, a multiple of `each`."""
    wanted = min(_DRAWN, max(_NUMBERS // max(schedule.n_messages, 1), _FEWEST))
    return max(wanted // each, 1) * each


def _median_distances(seconds: Floats) -> Floats:
    middle = float(np.median(seconds))
    far = seconds - middle
    return np.where(np.abs(far) > _ROUNDING * middle, far, 0.0)


def _weighted_percentiles(values: Floats, weights: Floats) -> Floats:
    """Return the percentiles `MATCHED_PERCENTILES` of weighted values."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) - weights[order] / 2
    return np.asarray(np.interp(np.array(MATCHED_PERCENTILES) / 100 * weights.sum(), reached, values[order]))
