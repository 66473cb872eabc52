"""Probability that each compared choice, such as an exchange, is the fastest, and its expected regret.

``residuals.csv`` has errors of held-out predictions by *kind* and measured *site* (a cluster, a set of measurements on
known links, or a job), as quantiles in parts of the half-width of the 90 % interval. An unknown system is drawn as one
of the sites, each equally likely, and the errors of all choices are from there. A Gaussian copula with one factor
describes the error that choices share: a choice is at the quantile ``sqrt(shared) a + sqrt(1 - shared) b``, where ``a``
is the same for all choices and ``b`` its own. Each part of a sum of times has its own draw. Streams of random numbers
go by the names of choices, so that a further choice changes no draw. As sites are few, a chance has a lower bound with
`CONFIDENCE`, by Student's t over the sites; a choice is called sure by that.
"""

# References: A. C. Davison, D. V. Hinkley, "Bootstrap Methods and their Application", Cambridge 1997, section 3.8
# (hierarchical data). R. B. Nelsen, "An Introduction to Copulas", 2nd ed., Springer 2006, section 2. `python
# benchmarks/validation.py --residuals FILE` makes the file.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.base.student_t import student_quantile
from simnet.base.units import determined
from simnet.cost_models.costs.devices import IntervalEnd
from simnet.cost_models.evidence import intervals
from simnet.cost_models.evidence.intervals import factor_in_job

SURE = 0.95
"""Minimum lower bound of a choice's win probability for the choice to be called sure."""

CONFIDENCE = 0.95
"""Confidence level of the lower bounds of win probabilities."""

# Between the normal scores of two sites in one table of all sites.
_APART = 2 * float(intervals.SCORES[-1]) + 1


class ErrorPart(NamedTuple):
    """One part, such as communication, of the predicted time of each choice, with its uncertainty.

    `seconds`, `low` and `high` are predicted times and their 90 % intervals [s], `kinds` names of `error_models`,
    `spread` 5 and 95 % quantiles of the factor for the gradients of the job. Parts of the same `name` have the same
    error in all choices; parts of one `source` have the errors of the same site.
    """

    seconds: Floats
    low: Floats
    high: Floats
    kinds: Sequence[str]
    spread: Sequence[tuple[float, float]] = ()
    name: str = ""
    source: int = -1


class Chances(NamedTuple):
    """For each choice, the probability of being the fastest, expected regret, and interval of its time; (choices,).

    `fastest` are the chances to be the fastest, which add up to 1, and `at_least` their lower bounds with `CONFIDENCE`.
    `regret` is the expected fraction by which a choice takes longer than the fastest; `low` and `high` are the 90 %
    interval of its time [s]. They are NaN where the interval is not determined.
    """

    fastest: Floats
    regret: Floats
    at_least: Floats
    low: Floats
    high: Floats

    @property
    def sure(self) -> list[bool]:
        """Whether each choice is surely the fastest: the lower bound of its probability is at least `SURE`."""
        return [bool(one) for one in self.at_least >= SURE]


def in_job(kernels: ErrorPart) -> ErrorPart:
    """Return kernel times with wider intervals, since kernels in a training job differ from kernels measured alone."""
    low, high = _selecting_in_job()
    return kernels._replace(low=kernels.low * low, high=kernels.high * high)


@cache
def _selecting_in_job() -> tuple[float, ...]:
    return tuple(factor_in_job(end, "select") for end in get_args(IntervalEnd))


def chances(
    names: Sequence[str],
    parts: Sequence[ErrorPart],
    models: Mapping[str, intervals.ErrorModel] | None = None,
    left_open: Floats | None = None,
) -> Chances:
    """Return each choice's probability of being the fastest, expected regret, and 90 % interval of its time.

    Choices have the `names` of their streams of random numbers; times are the sum of `parts`, whose errors are
    independent. `left_open` are standard errors of the logarithms of the times that a sample leaves open, shape
    (choices,).
    """
    known = intervals.error_models() if models is None else models
    drawn, ends = np.zeros((len(names), intervals.DRAWS)), np.zeros((2, len(names)))
    picked: dict[tuple[int, str], NDArray[np.intp]] = {}
    spreads = [(1.0, 1.0)] * len(names)
    for position, part in enumerate(parts):
        number = part.source if part.source >= 0 else position
        for place, (kind, own, low, high) in enumerate(zip(part.kinds, *part[:3], strict=True)):
            interval = intervals.corrected(kind, own, low, high, models)
            ends[:, place] += np.multiply(interval, (part.spread or spreads)[place])
        alike = [part.name] * len(names) if part.name else names
        for place, (name, kind) in enumerate(zip(alike, part.kinds, strict=True)):
            seconds, low, high = (float(one[place]) for one in part[:3])
            by_gradients = _gradient_factors(part.spread[place], name) if part.spread else 1.0
            if seconds <= 0 or low == high:
                drawn[place] += seconds * by_gradients
                continue
            sites = picked.setdefault((number, kind), _draw_sites(number, kind, len(known[kind].quantiles)))
            own = None if models is None else _draw_errors(known[kind], number, name, kind, sites)
            errors = _shipped_errors(number, name, kind) if own is None else own
            drawn[place] += seconds * by_gradients * factors(errors, seconds / low, high / seconds)
    for place, (name, error) in enumerate(zip(names, [] if left_open is None else left_open.tolist(), strict=False)):
        drawn[place] *= np.exp(error * _stratified_normal(0, "sample", name))
        ends[:, place] *= np.exp(error * intervals.SCORE_95 * np.array([-1.0, 1.0]))
    least = drawn.min(axis=0)
    fastest = drawn == least
    with np.errstate(divide="ignore", invalid="ignore"):
        # One at a time, as a processor keeps so many numbers near.
        lost = [np.where(own, 0.0, one / least - 1) for own, one in zip(fastest, drawn, strict=True)]
    told = [determined(low, high) for low, high in ends.T.tolist()]
    worst = [_worst_loss(place, ends, told) for place in range(len(names))]
    least_lost = [np.minimum(one, most).mean() for one, most in zip(lost, worst, strict=True)]
    regret = np.where(told, least_lost, math.nan)
    won = fastest / fastest.sum(axis=0)
    seconds = np.sum([part.seconds for part in parts], axis=0)
    low, high = np.where(told, np.quantile(drawn, [0.05, 0.95], axis=1), math.nan)
    counts = [count for _, kind in picked if (count := len(known[kind].quantiles)) > 1]
    wider = intervals.factor_for_another(min(counts, default=1))
    low, high = intervals.widened(seconds, np.minimum(low, seconds), np.maximum(high, seconds), wider, wider)
    return Chances(won.mean(axis=1), regret, _win_bounds(won, list(picked.values())), low, high)


def _worst_loss(place: int, ends: Floats, told: Sequence[bool]) -> float:
    """Return a choice's largest relative loss: its upper bound over the lowest known bound of the others, minus 1."""
    rival = min((low for other, low in enumerate(ends[0].tolist()) if other != place and told[other]), default=0.0)
    return max(float(ends[1, place]) / rival - 1, 0.0) if rival > 0 else math.inf


def _gradient_factors(spread: tuple[float, float], name: str) -> Floats | float:
    """Return sampled factors, (draws,), by which unknown gradients change an exchange's time; 1.0 if they do not."""
    if spread == (1.0, 1.0):
        return 1.0
    least, most = np.log(spread) / intervals.SCORE_95
    scores = _stratified_normal(0, "gradients", name)
    return np.asarray(np.exp(np.where(scores < 0, -least, most) * scores))


def _win_bounds(won: Floats, picked: Sequence[NDArray[np.intp]]) -> Floats:
    """Return lower confidence bounds of win probabilities, (choices,), as errors are known for only a few systems."""
    several = [(sites, counts) for sites in picked if len(counts := np.bincount(sites)) > 1]
    if not several:
        return np.asarray(won.mean(axis=1))
    each = [np.array([np.bincount(sites, weights=one) for one in won]) / counts for sites, counts in several]
    variance = np.sum([one.var(axis=1, ddof=1) / one.shape[1] for one in each], axis=0)
    half = student_quantile(min(one.shape[1] for one in each) - 1, CONFIDENCE) * np.sqrt(variance)
    return np.asarray(np.maximum(won.mean(axis=1) - half, 0.0))


def factors(errors: Floats, below: Floats | float, above: Floats | float) -> Floats:
    """Return measured over predicted time for errors e in half-widths: `above` ** e, or `below` ** e if e < 0."""
    return np.asarray(np.exp(errors * np.where(errors < 0, np.log(below), np.log(above))))


@lru_cache(256)
def _shipped_errors(part: int, name: str, kind: str) -> Floats:
    model = intervals.error_models()[kind]
    return _draw_errors(model, part, name, kind, _draw_sites(part, kind, len(model.quantiles)))


def _draw_errors(model: intervals.ErrorModel, part: int, name: str, kind: str, sites: NDArray[np.intp]) -> Floats:
    """Return a sampled prediction error per draw, in half-widths, from the error quantiles of that draw's system."""
    shared = model.shared
    alike, own_part = _stratified_normal(part, "all", kind), _stratified_normal(part, "own", name)
    scores = np.sqrt(shared) * alike + np.sqrt(1 - shared) * own_part
    own: Floats = (np.arange(len(model.quantiles)) * _APART)[:, np.newaxis] + intervals.SCORES
    at = np.clip(scores, intervals.SCORES[0], intervals.SCORES[-1]) + sites * _APART
    return np.asarray(np.interp(at, own.ravel(), model.quantiles.ravel()))


@lru_cache(256)
def _stratified_normal(part: int, whose: str, name: str) -> Floats:
    """Return a standard normal sample, (draws,): one value from each of equally likely strata, in random order."""
    drawn = stream(0, "chances", part, whose, name).permutation(intervals.normal_strata())
    drawn.flags.writeable = False
    return drawn


@lru_cache(64)
def _draw_sites(part: int, kind: str, count: int) -> NDArray[np.intp]:
    """Return the index of a measured system (site) for each draw, (draws,); all sites are about equally frequent."""
    drawn = stream(0, "chances", part, "site", kind).permutation(np.arange(intervals.DRAWS) % count)
    drawn.flags.writeable = False
    return drawn
