"""What quantities are, learnt from times that are weighted sums of them: a Kalman filter.

An exchange takes ``factor x (rounds x latency + bytes x seconds per byte)``, kernels take a weighted sum of factors.
The state has latency, seconds per byte and factors of kernels as they are, in which times are linear, so that times of
one kind tell nothing of what they do not depend on; and the logarithms of factors of exchanges, for which the filter is
extended and iterated [1]_. What wanders does so as a random walk, which forgets old times exponentially; how fast
follows from how large surprises are [2]_, the noise from how times of a kind differ from one to the next [3]_. A single
time that is far off counts less [4]_; several in a row are a jump, found by a cumulative sum of surprises [5]_: then
what wanders is forgotten, and learnt anew from the last of them.

References
----------
.. [1] B. Bell, F. Cathey, "The iterated Kalman filter update as a Gauss-Newton method", IEEE Transactions on Automatic
   Control 38, 1993.
.. [2] R. Mehra, "Approaches to adaptive filtering", IEEE Transactions on Automatic Control 17, 1972.
.. [3] J. von Neumann et al., "The mean square successive difference", Annals of Mathematical Statistics 12, 1941.
.. [4] C. Masreliez, R. Martin, "Robust Bayesian estimation for the linear model and robustifying the Kalman filter",
   IEEE Transactions on Automatic Control 22, 1977.
.. [5] E. Page, "Continuous inspection schemes", Biometrika 41, 1954; with allowance 0.5 and limit 5, the usual ones
   (D. Montgomery, "Introduction to Statistical Quality Control", section 9.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Floats

# Allowance and limit of the cumulative sum, in standard deviations of a surprise.
_ALLOWANCE, _LIMIT = 0.5, 5.0
# From how many standard deviations on a surprise counts as this many.
_FAR = 3.0
# How often a time is taken in anew at the state that it leads to.
_ITERATIONS = 5
# The least and the most by which what wanders may move from one time to the next, relative, as standard deviation.
_STILL, _WILD = 1e-3, 0.3
# The relative standard deviation of what wanders, after a jump.
_JUMP = 3.0
# By how much a surprise changes drift, and a difference the noise.
_RATE = 0.05
# The least noise of a time: what is left of the formulas themselves from one iteration to the next.
_LEAST_NOISE = 0.01
# Of what it was taken to be at first, the least that a quantity is; none is negative.
_LEAST = 1e-6


class Sum(NamedTuple):
    """A time: a factor, by its place in the state if there is one, times the sum of coefficients times quantities."""

    coefficients: Mapping[int, float]
    factor: int | None = None


class Expected(NamedTuple):
    """The expected time [s], and its gradient by the state, shape (n,)."""

    seconds: float
    gradient: Floats


class _Seen(NamedTuple):
    kind: Sum
    seconds: float
    noise: float


@dataclass
class _Run:
    """A sum of surprises, and the state before the first of them; None while it is zero."""

    total: float = 0.0
    before: tuple[Floats, Floats] | None = None


class Estimator:
    """A state of quantities and logarithms of factors, normally distributed, and what times tell of it.

    Parameters
    ----------
    state : sequence of float
        What it is taken to be at first.
    deviation : sequence of float
        Its standard deviations at first.
    wanders : sequence of bool
        Which quantities wander from one time to the next; all else stays, but for a thousandth each time.
    noise : float
        Relative standard deviation of a time, at first.

    Attributes
    ----------
    state : ndarray, shape (n,)
        Its mean.
    covariance : ndarray, shape (n, n)
        Its covariance.
    noise, drift : float
        Relative standard deviations of a time, and of how what wanders moves from one to the next.
    jumps : int
        How many have been found.

    Examples
    --------
    >>> links = Estimator([1e-3, 1e-9], [1.0, 1e-6], [True, True])
    >>> for _ in range(5):
    ...     links.learn(Sum({0: 1.0}), 0.02)
    ...     links.learn(Sum({0: 1.0, 1: 1e8}), 0.52)
    >>> links.state.round(10)
    array([2.e-02, 5.e-09])
    """

    def __init__(
        self, state: Sequence[float], deviation: Sequence[float], wanders: Sequence[bool], *, noise: float = 0.05
    ) -> None:
        self.state: Floats = np.asarray(state, dtype=np.float64)
        self.covariance: Floats = np.diag(np.square(np.asarray(deviation, dtype=np.float64)))
        self._least = _LEAST * self.state
        self._wanders = np.asarray(wanders, dtype=bool)
        self.noise, self.drift, self.jumps = noise, math.sqrt(_STILL * _WILD), 0
        self._up, self._down = _Run(), _Run()
        self._before: tuple[Sum, float] | None = None

    def expected(self, kind: Sum) -> Expected:
        """Return what a time of a kind is expected to be, and its gradient."""
        return _expected(kind, self.state)

    def deviation(self, gradient: Floats) -> float:
        """Return the standard deviation of what has this gradient."""
        return math.sqrt(max(float(gradient @ self.covariance @ gradient), 0.0))

    def learn(self, kind: Sum, seconds: float, *, part_of_a_series: bool = False) -> None:
        """Take in what something took.

        Parameters
        ----------
        kind : Sum
            What it consists of.
        seconds : float
            What it took, > 0.
        part_of_a_series : bool
            Whether a time comes every iteration. Noise and drift are learnt from these, and jumps are found in them.
        """
        seen = _Seen(kind, seconds, self.noise)
        if not part_of_a_series:
            self._take_in(seen)
            return
        before = self.state, self.covariance
        moves = np.where(self._wanders, self.drift * self.state, _STILL)
        self.covariance = self.covariance + np.diag(np.square(moves))
        surprise = self._take_in(seen)
        self._adapt(seen, surprise)
        self._watch(seen, surprise, before)

    def _take_in(self, seen: _Seen) -> float:
        """Update the state, and return by how many standard deviations the time was off."""
        before, free = self.state, self.covariance
        state, covariance, surprise = _updated(seen, before, free)
        # What would fall below its least is there; the others then account for the time.
        while below := [place for place in seen.kind.coefficients if state[place] < self._least[place]]:
            before, free = before.copy(), free.copy()
            before[below], free[below], free[:, below] = self._least[below], 0.0, 0.0
            state, _, _ = _updated(seen, before, free)
        self.state, self.covariance = state, covariance
        return surprise

    def _adapt(self, seen: _Seen, surprise: float) -> None:
        """Learn the noise from the difference to the time before, if that is of the kind; the drift from a surprise."""
        if self._before is not None and self._before[0] == seen.kind:
            differs = min(math.log(seen.seconds / self._before[1]) ** 2 / 2, (_FAR * self.noise) ** 2)
            self.noise = math.sqrt(max((1 - _RATE) * self.noise**2 + _RATE * differs, _LEAST_NOISE**2))
        self._before = seen.kind, seen.seconds
        more = _RATE * (min(surprise**2, _FAR**2) - 1.0)
        self.drift = min(max(self.drift * math.exp(more), _STILL), _WILD)

    def _watch(self, seen: _Seen, surprise: float, before: tuple[Floats, Floats]) -> None:
        """Sum up surprises in either direction, and forget what wanders where a sum goes beyond the limit."""
        clipped = min(max(surprise, -_FAR - _ALLOWANCE), _FAR + _ALLOWANCE)
        for run, sign in ((self._up, 1), (self._down, -1)):
            run.total = max(0.0, run.total + sign * clipped - _ALLOWANCE)
            if not run.total:
                run.before = None
            elif run.before is None:
                run.before = before
        run = self._up if self._up.total > self._down.total else self._down
        if run.total <= _LIMIT or run.before is None:
            return
        # What was there before the jump may now be anywhere about it, and each alone may account for the jump.
        self.state, covariance = run.before
        found = _expected(seen.kind, self.state)
        off = abs(seen.seconds - found.seconds)
        moves = np.maximum(_JUMP * self.state, off / np.maximum(found.gradient, 1e-300))
        self.covariance = covariance + np.diag(np.square(np.where(self._wanders & (found.gradient > 0), moves, 0.0)))
        self._up, self._down, self._before = _Run(), _Run(), None
        self.jumps += 1
        # Of the times since, the first may be from before it.
        self._take_in(seen)


def _updated(seen: _Seen, before: Floats, prior: Floats) -> tuple[Floats, Floats, float]:
    """Return mean and covariance after a time, and by how many standard deviations that was off."""
    factor, at, surprise = seen.kind.factor, before, 0.0
    for turn in range(1 if factor is None else _ITERATIONS):
        found = _expected(seen.kind, at)
        spread = found.gradient @ prior
        variance = float(spread @ found.gradient) + (seen.noise * found.seconds) ** 2
        off = seen.seconds - found.seconds - float(found.gradient @ (before - at))
        if turn == 0:
            surprise = off / math.sqrt(variance)
        # Of a time far off, so much that it counts as one at the limit.
        weight = min(1.0, _FAR * math.sqrt(variance) / max(abs(off), 1e-300))
        moved = before + spread * (off * weight / variance)
        if factor is not None:
            moved[factor] = np.clip(moved[factor], at[factor] - 1.0, at[factor] + 1.0)
        at, last = moved, at
        if np.allclose(at, last, rtol=1e-9, atol=0.0):
            break
    covariance = prior - np.outer(spread, spread) * (weight / variance)
    return at, (covariance + covariance.T) / 2, surprise


def _expected(kind: Sum, state: Floats) -> Expected:
    gradient = np.zeros(state.size)
    for place, coefficient in kind.coefficients.items():
        gradient[place] = coefficient
    total = float(gradient @ state)
    if kind.factor is not None:
        factor = math.exp(state[kind.factor])
        gradient *= factor
        total *= factor
        gradient[kind.factor] = total
    return Expected(max(total, 1e-300), gradient)
