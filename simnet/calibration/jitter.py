"""How messages of a calibrated system scatter, fitted to calls that were measured several times, each for itself.

Every message has an extra latency of its own, log-normal, as `simnet.network.jitter.lognormal` draws it; which other
forms were held against the same data is in ``docs/calibration.md``. The time of a call without any is not known, and a
few repetitions tell their median badly. So what is fitted are the distances of repetitions from the median of their own
setting, and they are held against distances that were drawn in the same way: as many repetitions, around the median of
these. That median errs in both alike.

Where repetitions scatter in proportion to how long calls take, no latency of messages is what delays them, and none is
fitted: it would be far too long for short calls (`fit_links`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.calibration.curves import Setting, systems
from simnet.calibration.readers import total_bytes
from simnet.collectives import registry
from simnet.network.stack import Stack
from simnet.schedule import Round, Schedule

LEAST = 50
"""Repetitions that a fit takes, at least: with fewer, none would be beyond the highest quantile that is matched."""

MOST_RANKS = 64
"""The most ranks of a call that is fitted to or simulated; an all-to-all of thousands has millions of messages."""

MATCHED = (10, 20, 30, 70, 80, 90, 95, 98)
"""Percentiles of distances from the median that the fit matches; between them are the medians themselves, at 0."""

_SIGMAS = np.geomspace(0.1, 4.0, 24)
# Repetitions that are drawn for each kind of call, and normal numbers for all of its messages.
_DRAWN, _NUMBERS, _FEWEST = 4000, 4_000_000, 25
_IDEAL = Stack()
_ALONE = Setting("broadcast", 2, 0, "binomial")
# Distances below this share of a time are roundings.
_ROUNDING = 1e-9


class FittedJitter(NamedTuple):
    """The extra latency of each message, and what it was fitted to.

    Parameters
    ----------
    median : float
        Its median [s].
    sigma : float
        Standard deviation of its logarithm.
    settings, repetitions : int
        How many settings (collective, algorithm, ranks, size) there were, and how many repetitions in all.
    """

    median: float
    sigma: float
    settings: int
    repetitions: int


class Repeated(NamedTuple):
    """A setting that was measured several times.

    Parameters
    ----------
    setting : Setting
        What was measured.
    size : float
        Total size as nccl-tests counts it [byte].
    seconds : ndarray, shape (n,)
        The time of each repetition [s]; two at least.
    """

    setting: Setting
    size: float
    seconds: Floats


def repeated(rows: pd.DataFrame) -> list[Repeated]:
    """Return what was measured several times, one call at a time, under the same conditions.

    Means over several calls, and rows that do not say which repetition they are (column ``iteration``), are left out: a
    mean scatters less than what it is of, by how much depends on what the calls have in common.

    Parameters
    ----------
    rows : DataFrame
        Measurements, as `simnet.calibration.readers.read` gives them.

    Examples
    --------
    >>> from simnet.calibration.measured import load
    >>> found = repeated(load("shaped_gloo").rows)
    >>> len(found), {one.seconds.size for one in found}
    (60, {5})
    >>> repeated(load("superbench_a100_8").rows)
    []
    """
    single = rows["iteration"].notna() & (rows["iterations"].isna() | (rows["iterations"] == 1))
    found = []
    for part in systems(rows[single]).values():
        keys = [
            part["collective"].astype(str),
            part["ranks"].fillna(0).astype(int),
            part["nodes"].fillna(0).astype(int),
            part["algorithm"].fillna("").astype(str),
            part["protocol"].fillna("").astype(str),
            total_bytes(part).rename("size"),
        ]
        for key, times in part["seconds"].groupby(keys, sort=True):
            collective, ranks, nodes, algorithm, protocol, size = map(str, key)
            setting = Setting(collective, int(ranks), int(nodes), algorithm, protocol)
            if len(times) > 1 and float(size) > 0 and _exchanged(setting) is not None:
                found.append(Repeated(setting, float(size), times.to_numpy(dtype=float)))
    return found


def fit_links(measured: Sequence[Repeated], stack: Stack) -> FittedJitter | None:
    """Fit the extra latency of messages, where these describe repetitions better than factors on calls would.

    Parameters
    ----------
    measured, stack
        As of `fit`.

    Returns
    -------
    FittedJitter or None
        None as of `fit`, or unless `holds`.
    """
    fitted = fit(measured, stack)
    return fitted if fitted is not None and holds(fitted, measured, stack) else None


def holds(fitted: FittedJitter, measured: Sequence[Repeated], stack: Stack) -> bool:
    """Return whether extra latencies describe repetitions at least as well as a factor on the time of each call.

    Both forms have two parameters, and are held against the distances that they were fitted to, by `unevenness`.

    Parameters
    ----------
    fitted : FittedJitter
        What `fit` returned.
    measured, stack
        As of `fit`.
    """
    factors = [in_proportion(one) for one in measured]
    factor = fit(factors, _IDEAL)
    if factor is None:
        return True
    took = [np.full(one.seconds.size, np.median(one.seconds)) for one in measured]
    seconds = np.concatenate(took)
    own, other = (
        unevenness(np.concatenate([below(one, given, by) for one in listed]), seconds)
        for listed, given, by in ((measured, fitted, stack), (factors, factor, _IDEAL))
    )
    return own <= other


def in_proportion(one: Repeated) -> Repeated:
    """Return repetitions over their median, as of a call of one message: a factor on the time of a call scatters them.

    Parameters
    ----------
    one : Repeated
        Repetitions of a setting.
    """
    return Repeated(_ALONE, one.size, one.seconds / np.median(one.seconds))


def below(one: Repeated, fitted: FittedJitter, stack: Stack) -> Floats:
    """Return which share of the distances that a fit predicts lies below each that was seen, shape (n,).

    Parameters
    ----------
    one : Repeated
        Repetitions of a setting.
    fitted : FittedJitter
        What may scatter them.
    stack : Stack
        How its library sends messages.
    """
    sent = _exchanged(one.setting)
    assert sent is not None
    schedule, count = stack.cut(sent), one.seconds.size
    drawn = extra(schedule, fitted.sigma, _drawn(schedule, count)).reshape(-1, count)
    expected = np.sort((drawn - np.median(drawn, axis=1, keepdims=True)).ravel()) * fitted.median
    low, high = (np.searchsorted(expected, _distances(one.seconds), side=side) for side in ("left", "right"))
    # Of an odd number of repetitions one is the median, in what is seen and in what is drawn.
    share = stream(0, "ties", one.setting.collective, one.setting.ranks, repr(one.size)).random(count)
    return np.asarray((low + share * (high - low)) / expected.size)


def unevenness(shares: Floats, seconds: Floats) -> float:
    """Return how far shares are from being spread evenly, as those of a form that holds are; 0 is right, 1 wrong.

    It is the largest difference between their distribution and the even one (Kolmogorov and Smirnov), the mean over
    thirds of the calls by their time. A form that is wrong about short or about long calls is seen there.

    Parameters
    ----------
    shares : ndarray, shape (n,)
        As of `below`.
    seconds : ndarray, shape (n,)
        What the calls take [s].

    Examples
    --------
    >>> even = (np.arange(300) % 100 + 0.5) / 100
    >>> time = np.arange(300.0)
    >>> round(unevenness(even, time), 3), round(unevenness(even / 2, time), 3)
    (0.005, 0.502)
    """
    parts = np.array_split(shares[np.argsort(seconds, kind="stable")], 3)
    found = []
    for part in parts:
        part, places = np.sort(part), np.arange(part.size)
        found.append(max(((places + 1) / part.size - part).max(), (part - places / part.size).max()))
    return float(np.mean(found))


def fit(measured: Sequence[Repeated], stack: Stack) -> FittedJitter | None:
    """Fit the extra latency of messages, whether that is what scatters calls or not.

    Parameters
    ----------
    measured : sequence of Repeated
        Repetitions of one system.
    stack : Stack
        How its library sends messages; see `simnet.calibration.software.stack_of`.

    Returns
    -------
    FittedJitter or None
        None if there are fewer than `LEAST` repetitions, or if they do not scatter.

    Examples
    --------
    >>> draws = np.random.default_rng(1)
    >>> def time():
    ...     return 1e-3 + 1e-5 * np.exp(0.5 * draws.standard_normal())
    >>> sizes = 2.0 ** np.arange(10, 20)
    >>> calls = [Repeated(Setting("sendrecv", 2), size, np.array([time() for _ in range(100)])) for size in sizes]
    >>> found = fit(calls, Stack())
    >>> round(found.repetitions), round(found.sigma, 1)
    (1000, 0.5)
    """
    repetitions = sum(one.seconds.size for one in measured)
    if repetitions < LEAST:
        return None
    kinds: dict[tuple[Setting, int], list[Repeated]] = {}
    for one in measured:
        kinds.setdefault((one.setting, one.seconds.size), []).append(one)
    seen = np.percentile(np.concatenate([_distances(one.seconds) for one in measured]), MATCHED)
    if seen[MATCHED.index(90)] <= 0:
        return None
    schedules = [stack.cut(sent) for setting, _ in kinds if (sent := _exchanged(setting)) is not None]
    shortest = np.array([min(float(np.median(one.seconds)) for one in listed) for listed in kinds.values()])
    shares = np.array([count * len(listed) for (_, count), listed in kinds.items()], dtype=float)

    def tried(sigma: float) -> tuple[float, float]:
        """Return by how much quantiles are off (mean square of logarithms), and the median latency that fits best."""
        parts = []
        middles = np.zeros(len(kinds))
        for at, (schedule, (_, count)) in enumerate(zip(schedules, kinds, strict=True)):
            drawn = extra(schedule, sigma, _drawn(schedule, count)).reshape(-1, count)
            middles[at] = np.median(drawn)
            parts.append((drawn - np.median(drawn, axis=1, keepdims=True)).ravel())
        weights = np.repeat(shares / [one.size for one in parts], [one.size for one in parts])
        found = _percentiles(np.concatenate(parts), weights)
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


def extra(schedule: Schedule, sigma: float, count: int) -> Floats:
    """Draw by how much longer a schedule takes if every message has an extra latency, of median 1.

    The latencies are taken as short against a message, so that the longest chain of messages stays among the longest.

    Parameters
    ----------
    schedule : Schedule
        What is sent.
    sigma : float
        Standard deviation of the logarithm of an extra latency.
    count : int
        How many times; equal schedules get equal draws, whatever `sigma`.
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


def typical(jitter: FittedJitter, schedule: Schedule) -> float:
    """Return by how much longer a schedule takes in the median for its extra latencies [s].

    Parameters
    ----------
    jitter : FittedJitter
        The extra latency of each message.
    schedule : Schedule
        What is sent, in the pieces that the stack sends.
    """
    return jitter.median * float(np.median(extra(schedule, jitter.sigma, _drawn(schedule, 1))))


def algorithm_of(setting: Setting) -> str:
    """Return the algorithm that a setting names, else the first that is known; empty if there is none.

    Parameters
    ----------
    setting : Setting
        What was measured.
    """
    known = [one.algorithm for one in registry.every() if one.operation == setting.collective and one.calibrated]
    return next((name for name in (setting.algorithm.casefold(), "ring", *known) if name in known), "")


def messages_of(setting: Setting, size: float) -> Schedule | None:
    """Return the messages of a setting; None if there is no such collective.

    Parameters
    ----------
    setting : Setting
        What was measured.
    size : float
        Total size as nccl-tests counts it [byte].
    """
    found = registry.known(setting.collective, algorithm_of(setting))
    if found is None or not found.ranks.among(setting.ranks):
        return None
    return found.schedule_of_vector(setting.ranks, size)


def _exchanged(setting: Setting) -> Schedule | None:
    """Return the messages of a setting that a fit takes, of one byte in all."""
    if not 1 < setting.ranks <= MOST_RANKS:
        return None
    if setting.collective == "sendrecv":
        ranks = np.arange(setting.ranks)
        return Schedule(setting.ranks, [Round(ranks, (ranks + 1) % setting.ranks, 1.0)])
    return messages_of(setting, 1.0)


def _drawn(schedule: Schedule, each: int) -> int:
    """Return how many repetitions are drawn of a schedule, a multiple of `each`; more where it has few messages."""
    wanted = min(_DRAWN, max(_NUMBERS // max(schedule.n_messages, 1), _FEWEST))
    return max(wanted // each, 1) * each


def _distances(seconds: Floats) -> Floats:
    middle = float(np.median(seconds))
    far = seconds - middle
    return np.where(np.abs(far) > _ROUNDING * middle, far, 0.0)


def _percentiles(values: Floats, weights: Floats) -> Floats:
    """Return the percentiles `MATCHED` of values that count unequally."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) - weights[order] / 2
    return np.asarray(np.interp(np.array(MATCHED) / 100 * weights.sum(), reached, values[order]))
