"""Comparison of policies over several seeds: the fastest, its lead, and the policies tied with it.

All policies of a seed get the same gradients, compute times and weather. So policies are compared by their differences
for each seed, however much the seeds differ. For a mean over seeds, and for a mean of such differences, the interval is
that of Student's t. Differences are from the policy with the least mean. As there are several, each interval is at the
level that makes all of them hold together (Bonferroni), and the policy that is truly the fastest is among the first and
those tied with it at least as often as the level says, even though the first is found from the same seeds: it is lost
only if its difference from some other policy is outside the interval of that pair.

With few seeds the percentile bootstrap gives intervals that are too short, as it has no values beyond the observed
ones; ``docs/comparing.md`` compares the coverage of both methods with the nominal one.

References
----------
A. M. Law, *Simulation Modeling and Analysis*, 5th ed., 2015, 10.2.1 (paired t), 10.3.1 (comparisons with a standard,
Bonferroni); 11.2 (common random numbers). B. L. Nelson, J. Swann, D. Goldsman, W. Song, "Simple procedures for
selecting the best simulated system when the number of alternatives is large", Operations Research 49(6), 2001
(screening by paired differences).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.student_t import student_quantile

LEVEL = 0.95
"""Confidence level of intervals."""

METHOD = "Student t over seeds; differences paired by seed, Bonferroni over the policies compared"
"""The method behind the intervals, as a phrase."""


TIE = 1e-3
"""Relative lead below which times are tied: no clock of simnet was compared with a measurement as closely as that."""


NEAR = 0.3
"""By which fraction exchanges of a leader may take longer than those of the first: one was found to vary so much."""

START_COLUMNS = ("start_low_s", "start_high_s")
"""Columns with the least and the greatest time under small differences between the workers' starts [s]."""


class StartRanges(NamedTuple):
    """Change of each policy's time [s] if workers start microseconds apart, or the reason why that is unknown."""

    offsets: Mapping[str, tuple[float, float]]
    not_sampled: Mapping[str, str]

    def around(self, seconds: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        """Return policies' (shortest, longest) times [s] if workers start microseconds apart, from times `seconds`."""
        known = {name: one for name, one in self.offsets.items() if name in seconds}
        return {name: (seconds[name] + less, seconds[name] + more) for name, (less, more) in known.items()}


def start_ranges(each: Mapping[str, Mapping[Any, Any]]) -> dict[str, tuple[float, float]]:
    """Return each row's shortest and longest time [s] if workers start microseconds apart, by name, where known."""
    low, high = START_COLUMNS
    known = {name: one for name, one in each.items() if one.get(low) is not None and not math.isnan(one[low])}
    return {name: (one[low], one[high]) for name, one in known.items()}


NO_RANGES = StartRanges({}, {})
"""Start ranges with no entries."""


def fastest(seconds: Mapping[str, float], ranges: Mapping[str, tuple[float, float]] | None = None) -> list[str]:
    """Return the name with the shortest time, then names tied with it: times within `TIE`, or overlapping ranges.

    Examples
    --------
    >>> fastest({"local": 1.0 + 1e-12, "GRC": 1.0, "dense": 1.1})
    ['GRC', 'local']
    >>> fastest({"local": 1.05, "GRC": 1.0, "dense": 1.1}, {"GRC": (1.0, 1.02), "local": (1.01, 1.3)})
    ['GRC', 'local']
    """
    order = sorted(seconds, key=lambda name: (seconds[name], name))
    known = ranges or {}
    most = next((max([(1 + TIE) * seconds[one], *known.get(one, ())]) for one in order), 0.0)
    return [name for name in order if min([seconds[name], *known.get(name, ())]) <= most]


class Estimate(NamedTuple):
    """A mean and the ends of its confidence interval."""

    mean: float
    low: float
    high: float


class Contest(NamedTuple):
    """Result of comparing policies over seeds: the fastest, those tied with it, the order, and paired differences.

    `order` lists all policies by mean, `policy` is the first, and `tied_with` those whose difference from it may be 0,
    by the interval or under small start differences, or is less than `TIE`. `differences` are paired seed by seed.
    `fastest_in` is the number of seeds with which a policy was the fastest and no other was within `TIE`.
    """

    policy: str
    tied_with: list[str]
    order: list[str]
    differences: dict[str, Estimate]
    fastest_in: dict[str, int]


def estimate(values: ArrayLike, comparisons: int = 1) -> Estimate:
    """Return the mean of values over seeds and its Student's t interval, Bonferroni-corrected for `comparisons`.

    All three are NaN without values; with one value the interval is infinite.

    Examples
    --------
    >>> [round(one, 3) for one in estimate([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    >>> estimate([2.0, 2.0])
    Estimate(mean=2.0, low=2.0, high=2.0)
    """
    given = np.asarray(values, dtype=np.float64)
    mean = math.fsum(given) / given.size if given.size else math.nan
    if given.size < 2:
        return Estimate(mean, mean - math.inf, mean + math.inf)
    if (given == given[0]).all():
        return Estimate(*3 * [float(given[0])])
    quantile = student_quantile(given.size - 1, 1 - (1 - LEVEL) / (2 * comparisons))
    half = quantile * math.sqrt(math.fsum((given - mean) ** 2) / (given.size - 1) / given.size)
    return Estimate(mean, mean - half, mean + half)


def contest(values: Mapping[str, ArrayLike], offsets: Mapping[str, ArrayLike] | None = None) -> Contest:
    """Rank policies by the mean of their values over seeds, lowest first, and test differences from the first.

    Examples
    --------
    >>> found = contest({"a": [2.0, 3.0, 5.0], "b": [2.5, 3.5, 5.5], "c": [1.0, 3.0, 7.0]})
    >>> found.policy, found.tied_with, found.order, found.differences["b"]
    ('a', ['c'], ['a', 'c', 'b'], Estimate(mean=0.5, low=0.5, high=0.5))
    """
    given = {name: np.asarray(one, dtype=np.float64) for name, one in values.items()}
    means = {name: estimate(one).mean for name, one in given.items()}
    order = sorted(given, key=lambda name: (means[name], name))
    first = order[0]
    differences = {name: estimate(given[name] - given[first], len(given) - 1) for name in order[1:]}
    ends = {name: given[name] + np.asarray(one) for name, one in (offsets or {}).items()}
    within = fastest(means, {name: (float(low.mean()), float(high.mean())) for name, (low, high) in ends.items()})
    firsts = [
        fastest(dict(zip(given, times, strict=True)), {name: (low[at], high[at]) for name, (low, high) in ends.items()})
        for at, times in enumerate(zip(*given.values(), strict=True))
    ]
    return Contest(
        first,
        [name for name in order[1:] if differences[name].low <= 0 or name in within],
        order,
        differences,
        {name: firsts.count([name]) for name in given},
    )
