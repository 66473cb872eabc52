"""Kalman filter that estimates link and kernel costs from measured times, which are weighted sums of the costs.

An exchange takes ``factor x (rounds x latency + bytes x seconds per byte)``, kernels a weighted sum of factors. The
state has latency, seconds per byte and factors of kernels as they are, and logarithms of factors of exchanges, for
which the filter is extended and iterated (B. Bell, F. Cathey, IEEE TAC 38, 1993). Costs that drift are modelled as a
random walk, whose rate is estimated from prediction errors (R. Mehra, IEEE TAC 17, 1972); the noise follows from
differences of consecutive times (J. von Neumann, Ann. Math. Stat. 12, 1941). A time that is far off counts less (C.
Masreliez, R. Martin, IEEE TAC 22, 1977); several are a jump (E. Page, Biometrika 41, 1954), after which drifting costs
are estimated from scratch. Constants are the best of a random search over 150 settings on the 120 jobs of
``benchmarks/adviser.py --seed 1``, by the time lost against the one-step oracle; nearby settings lose hardly more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Floats

# Allowance and limit of the cumulative sum, in standard deviations of a surprise.
_ALLOWANCE, _LIMIT = 1.0, 7.0
# From how many standard deviations on a surprise counts as this many.
_FAR = 3.0
# How often a time is taken in anew at the state that it leads to, at most, and by how little a factor then moves.
_ITERATIONS, _CLOSE = 4, 1e-4
# The least and the most by which what wanders may move from one time to the next, relative, as standard deviation;
# and what it does at first.
_STILL, _WILD, _DRIFT = 1e-3, 0.1, 0.01
# The relative standard deviation of what wanders, after a jump.
_JUMP = 1.0
# By how much a surprise changes drift, and a difference the noise.
_RATE = 0.2
# The relative standard deviation of a time: at first, and at least.
_NOISE, _LEAST_NOISE = 0.05, 0.01
# Of what it was taken to be at first, the least that a quantity is; none is negative.
_LEAST = 1e-6


class WeightedTimes(NamedTuple):
    """Model of a measured time: costs, as `coefficients` @ state, times a correction, exp(`factors` @ state)."""

    coefficients: Floats
    factors: Floats


class ExpectedTimes(NamedTuple):
    """Expected times [s] of one or k observations, shape () or (k,), and their gradients with respect to n states."""

    seconds: Floats
    gradient: Floats


@dataclass
class _SurpriseSum:
    """CUSUM of standardised prediction errors, to detect jumps; `before` is the filter's state before the sum rose."""

    sign: int
    total: float = 0.0
    before: tuple[Floats, Floats, float] | None = None


class Estimator:
    """Kalman filter that estimates link costs, kernel costs and the logarithms of their correction factors."""

    def __init__(self, state: Sequence[float], deviation: Sequence[float], wanders: Sequence[bool]) -> None:
        self.state: Floats = np.asarray(state, dtype=np.float64)
        self.covariance: Floats = np.diag(np.square(np.asarray(deviation, dtype=np.float64)))
        self._least = _LEAST * self.state
        self._wanders = np.asarray(wanders, dtype=bool)
        self.noise, self.drift, self.jumps = _NOISE, _DRIFT, 0
        self._runs = _SurpriseSum(1), _SurpriseSum(-1)
        self._last: tuple[Floats, float] | None = None

    def expected(self, kinds: WeightedTimes) -> ExpectedTimes:
        """Return the expected times [s] of measurements, and the derivatives with respect to the filter's state."""
        return _expect_times(kinds, self.state)

    def learn(self, kind: WeightedTimes, seconds: float, noise: float | None = None) -> None:
        """Update the state from a measured time > 0 [s]. If `noise` is None, also adapt noise, drift and jumps."""
        if noise is not None:
            self._take_in(kind, seconds, noise)
            return
        before = self.state, self.covariance, self.drift
        moves = np.where(self._wanders, self.drift * self.state, _STILL)
        self.covariance = self.covariance + np.diag(np.square(moves))
        surprise = self._take_in(kind, seconds, self.noise)
        self._adapt(kind, seconds, surprise)
        self._watch(kind, seconds, surprise, before)

    def _take_in(self, kind: WeightedTimes, seconds: float, noise: float) -> float:
        """Update the state with a measured time; return the prediction error in standard deviations."""
        before, free = self.state, self.covariance
        state, self.covariance, surprise = _kalman_update(kind, seconds, noise, before, free)
        # What would fall below its least is there; the others then account for the time.
        while (below := (kind.coefficients > 0) & (state < self._least)).any():
            before, free = np.where(below, self._least, before), np.where(below | below[:, np.newaxis], 0.0, free)
            state, _, _ = _kalman_update(kind, seconds, noise, before, free)
        self.state = state
        return surprise

    def _adapt(self, kind: WeightedTimes, seconds: float, surprise: float) -> None:
        """Update the noise from consecutive times of the same kind, and the drift from the standardised error."""
        if self._last is not None and np.array_equal(self._last[0], kind.coefficients):
            differs = min(math.log(seconds / self._last[1]) ** 2 / 2, (_FAR * self.noise) ** 2)
            self.noise = math.sqrt(max((1 - _RATE) * self.noise**2 + _RATE * differs, _LEAST_NOISE**2))
        self._last = kind.coefficients, seconds
        more = _RATE * (min(surprise**2, _FAR**2) - 1.0)
        self.drift = min(max(self.drift * math.exp(more), _STILL), _WILD)

    def _watch(
        self, kind: WeightedTimes, seconds: float, surprise: float, before: tuple[Floats, Floats, float]
    ) -> None:
        """Update the CUSUMs of positive and negative errors; on a jump, restore an earlier state with more variance."""
        clipped = min(max(surprise, -_FAR - _ALLOWANCE), _FAR + _ALLOWANCE)
        for run in self._runs:
            run.total = max(0.0, run.total + run.sign * clipped - _ALLOWANCE)
            run.before = (run.before or before) if run.total else None
        run = max(self._runs, key=lambda one: one.total)
        if run.total <= _LIMIT or run.before is None:
            return
        # What was there before the jump may now be anywhere about it, and each alone may account for the jump.
        self.state, covariance, self.drift = run.before
        found = _expect_times(kind, self.state)
        off = abs(seconds - float(found.seconds))
        moves = np.maximum(_JUMP * self.state, off / np.maximum(found.gradient, 1e-300))
        self.covariance = covariance + np.diag(np.square(np.where(self._wanders & (found.gradient > 0), moves, 0.0)))
        self._runs, self._last = (_SurpriseSum(1), _SurpriseSum(-1)), None
        self.jumps += 1
        # Of the times since, the first may be from before it.
        self._take_in(kind, seconds, self.noise)


def _kalman_update(
    kind: WeightedTimes, seconds: float, noise: float, before: Floats, prior: Floats
) -> tuple[Floats, Floats, float]:
    """Return the mean and covariance after a measured time, and the prediction error in standard deviations."""
    at, factor, surprise = before, int(kind.factors.argmax()) if kind.factors.any() else None, 0.0
    for turn in range(1 if factor is None else _ITERATIONS):
        found = _expect_times(kind, at)
        spread = prior @ found.gradient
        variance = float(spread @ found.gradient) + (noise * float(found.seconds)) ** 2
        off = seconds - float(found.seconds) - float(found.gradient @ (before - at))
        if turn == 0:
            surprise = off / math.sqrt(variance)
        # Of a time far off, so much that it counts as one at the limit.
        weight = min(1.0, _FAR * math.sqrt(variance) / max(abs(off), 1e-300))
        moved = before + spread * (off * weight / variance)
        at, last = moved, at
        if factor is not None:
            # A factor goes no further than e at a time, or its exponential would run away.
            moved[factor] = min(max(moved[factor], last[factor] - 1.0), last[factor] + 1.0)
            if abs(moved[factor] - last[factor]) < _CLOSE:
                break
    return at, prior - np.outer(spread, spread) * (weight / variance), surprise


def _expect_times(kinds: WeightedTimes, state: Floats) -> ExpectedTimes:
    gradient = kinds.coefficients * np.exp(kinds.factors @ state)[..., np.newaxis]
    seconds = gradient @ state
    return ExpectedTimes(seconds, gradient + kinds.factors * seconds[..., np.newaxis])
