"""Multi-objective choice of density and exchange, by compression gain, compression time and communication time.

The compression gain tells how much of the gradient a density keeps. A job tries candidate densities on a copy of its
state, drops those that another one beats in every respect, and picks one of the Pareto front: its knee, or the least
weighted loss. The communication time is the smallest of the closed forms on the links last probed. A network that has
changed calls for a new search, a gain that has changed for new exploration.

The mode ``grid`` is what the paper describes. The mode ``published`` is what its code does: it fits F1(c) = v2 exp(v1
c) - 1 to communication times [ms] and F2(c) = 1/gain(c), and takes any density between the candidates;
``docs/choosing.md`` describes both. Here the front is that of 1,001 log-spaced densities.

References
----------
S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE BigData
2023 (arXiv 2312.02493), section 3-E, Eqn 6, and the code released with it.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from annotated_types import Ge, Le, Len
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import check_int
from simnet.base.quantities import Density, Factor, Iterations, PositiveFactor, check_bounds, check_fields
from simnet.policies import Decision, Monitor, Observation, PolicyContext, Ramp, density_at
from simnet.policies.candidate import Candidate, check_distinct, closed_form
from simnet.sparsifier_models.artopk import GAIN_DECAY, GAIN_WINDOW, windowed_mean

# A front whose points are closer to the chord than this, in parts of its extent, is straight but for rounding.
_STRAIGHT = 1e-9


def pareto_front(points: ArrayLike) -> NDArray[np.intp]:
    """Return the indices of the Pareto-optimal rows of `points`, shape (D, m); every objective is minimised."""
    given = np.asarray(points, dtype=np.float64)
    beaten = [bool(((given <= one).all(axis=1) & (given < one).any(axis=1)).any()) for one in given]
    return np.flatnonzero(~np.array(beaten, dtype=bool))


def normalise_points(points: ArrayLike, units: Sequence[int]) -> Floats:
    """Scale objectives, shape (D, m), to 0 .. 1; those with equal numbers in `units` are divided by the same range."""
    given = np.asarray(points, dtype=np.float64)
    extent = np.ptp(given, axis=0)
    shared = np.array([max(extent[np.equal(units, unit)]) for unit in units])
    return np.asarray(np.divide(given - given.min(axis=0), shared, out=np.zeros_like(given), where=shared > 0))


def knee_point(front: ArrayLike) -> int:
    """Return the index of the knee of a front, shape (F, m): the point farthest below the chord between its ends.

    The chord joins the best point of the first objective and that with the smallest sum of the others. Without a point
    on that side it is the point of `weighted_point` with equal weights.

    Examples
    --------
    >>> knee_point([[0, 1], [0.1, 0.2], [0.5, 0.1], [1, 0]]), knee_point([[0, 1], [0.5, 0.5], [1, 0]])
    (1, 1)
    """
    given = np.asarray(front, dtype=np.float64)
    rest = given[:, 1:].sum(axis=1)
    # The last key is the first to sort by.
    order = [*given.T[::-1]]
    first, last = given[np.lexsort((*order, rest, given[:, 0]))[0]], given[np.lexsort((*order, rest))[0]]
    chord = last - first
    length = float(chord @ chord)
    along = (given - first) @ chord / length if length else np.zeros(len(given))
    off = given - first - np.outer(along, chord)
    distance = np.where(off.sum(axis=1) < 0, np.sqrt(np.square(off).sum(axis=1)), 0.0)
    if distance.max() > _STRAIGHT:
        return _first_least(-distance)
    return weighted_point(given, np.ones(given.shape[1]))


def weighted_point(front: ArrayLike, weights: ArrayLike) -> int:
    """Return the index of the point in a normalised front (F, m) that minimises the largest weighted objective."""
    losses = np.asarray(front, dtype=np.float64) * np.asarray(weights, dtype=np.float64)
    largest, total = losses.max(axis=1), losses.sum(axis=1)
    return _first_least(np.where(largest <= largest.min() + _STRAIGHT * max(1.0, largest.max()), total, math.inf))


def _first_least(values: Floats) -> int:
    """Return the index of the first value that equals the minimum, up to rounding."""
    least = float(values.min())
    return int(np.argmax(values <= least + _STRAIGHT * max(1.0, abs(least))))


Mode: TypeAlias = Literal["grid", "published"]

DENSITIES = (0.1, 0.033, 0.011, 0.004, 0.001)
"""The candidates of the paper: from 0.1 to 0.001 by a factor of about 3."""

RELEASED_WEIGHTS = (0.6, 0.4)
"""Weights of communication time and 1/gain in the released code."""

_FINE = 1001
# Parameters of the released fit of the gain, of which the anchors at 0 and 1 settle two.
_FEWEST = 4


class ObjectiveWeights(NamedTuple):
    """Weight of each objective in the choice of density and exchange.

    Parameters
    ----------
    gain, compression, communication : float
        Each >= 0, not all 0.
    """

    gain: Factor = 1.0
    compression: Factor = 1.0
    communication: Factor = 1.0


def choose_candidate(
    gain: ArrayLike, compression: ArrayLike, communication: ArrayLike, weights: ObjectiveWeights | None = None
) -> int:
    """Return the index of the best candidate: the knee of the Pareto front or, given weights, its `weighted_point`."""
    points = np.column_stack([1.0 / np.maximum(gain, 1e-30), compression, communication])
    front = pareto_front(points)
    scaled = normalise_points(points[front], units=(0, 1, 1))
    return int(front[knee_point(scaled) if weights is None else weighted_point(scaled, weights)])


def communication_fit(c: ArrayLike, v1: float, v2: float) -> Floats:
    """Return v2 exp(v1 c) - 1, the communication time [ms] at density c as AR-Topk's released code models it."""
    return np.asarray(v2 * np.exp(v1 * np.asarray(c)) - 1)


def gain_fit(c: ArrayLike, v1: float, v2: float, v3: float, v4: float, v5: float, v6: float) -> Floats:
    """Return the compression gain at density c by the six-parameter curve of AR-Topk's released code."""
    given = np.asarray(c)
    above, below = np.exp(v1 * given) - np.exp(-v2 * given) + v5, np.exp(v3 * given) + np.exp(-v4 * given) + v6
    return np.asarray(above / below)


def choose_as_published(densities: ArrayLike, gain: ArrayLike, communication: ArrayLike) -> float | None:
    """Return the density that AR-Topk's released code would choose in the range of `densities`; None if a fit fails.

    Arrays have shape (D,), D >= 4: densities, released gain, and the smallest communication time [s].
    """
    c = np.asarray(densities, dtype=np.float64)
    fine = np.geomspace(c.max(), c.min(), _FINE)
    times = _fit_curve(communication_fit, c, 1e3 * np.asarray(communication), 2)
    gains = _fit_curve(gain_fit, np.append(c, [1.0, 0.0]), np.append(gain, [1.0, 0.0]), 6)
    if times is None or gains is None:
        return None
    with np.errstate(all="ignore"):
        points = np.column_stack([communication_fit(fine, *times), 1 / gain_fit(fine, *gains)])
    # Where the fit of the gain goes to zero or below, its inverse means nothing.
    sound = np.isfinite(points).all(axis=1) & (points[:, 1] > 0)
    if not sound.any():
        return None
    points, fine = points[sound], fine[sound]
    front = pareto_front(points)
    return float(fine[front[weighted_point(normalise_points(points[front], units=(0, 1)), RELEASED_WEIGHTS)]])


def _fit_curve(function: Callable[..., Floats], x: Floats, y: Floats, parameters: int) -> Floats | None:
    # Half a second to load, for those that ask for it.
    from scipy.optimize import curve_fit

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found: Floats = curve_fit(function, x, y, p0=np.ones(parameters))[0]
        except (RuntimeError, ValueError):
            return None
    return found if np.isfinite(found).all() else None


@dataclass(frozen=True)
class DensitySearch:
    """Parameters of the search for a density in the multi-objective policy `Moo`.

    Raises ValueError if a value is out of range, or values exclude each other.

    Parameters
    ----------
    mode : {"grid", "published"}
        Whether as the paper describes it, or by the objective and the rules of the released code.
    densities : sequence of float
        Candidates, each in (0, 1], no two alike; at least 4 in the mode ``published``.
    tries : int
        Iterations for which each candidate is tried.
    weights : ObjectiveWeights, optional
        The weighted choice instead of the knee; not in the mode ``published``, which has weights of its own.
    gain_change : float
        Relative change of the gain from which on the candidates are explored again.
    warm_up : int
        First iterations, over which the density goes from 1 to the highest candidate, linearly, both included; the
        exchange is that whose closed form is smallest. Exploration comes after them.
    """

    mode: Mode = "grid"
    densities: Annotated[Sequence[Density], Len(1, 100)] = DENSITIES
    tries: Annotated[int, Ge(1), Le(10_000)] = 10
    weights: ObjectiveWeights | None = None
    gain_change: PositiveFactor = 0.1
    warm_up: Iterations = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for density in self.densities:
            check_bounds(density, Density, "densities")
        if len(set(self.densities)) < max(len(self.densities), 1):
            raise ValueError(f"densities must be at least one, and no two alike, got {list(self.densities)}")
        if self.mode == "published" and len(self.densities) < _FEWEST:
            raise ValueError(f"densities must be at least {_FEWEST} in mode published, as its fits need so many")
        check_int(self.warm_up, "warm_up", 0)
        if self.weights is not None and self.mode == "published":
            raise ValueError("weights cannot be set in mode published, whose weights are those of the released code")
        if self.weights is not None and not (
            all(0 <= weight < math.inf for weight in self.weights) and any(self.weights)
        ):
            raise ValueError(f"weights must be >= 0 and finite, and must not all be 0, got {tuple(self.weights)}")


@dataclass(eq=False)
class Moo:
    """The multi-objective choice of density and exchange from the AR-Topk paper, as an adaptive policy.

    While a probe finds a link down, the decision stands, and no exploration begins.
    """

    candidates: Sequence[Candidate]
    monitor: Monitor = field(default_factory=Monitor)
    search: DensitySearch = DensitySearch()

    def __post_init__(self) -> None:
        self.candidates = check_distinct(self.candidates)
        self._densities = np.array(sorted(self.search.densities, reverse=True), dtype=np.float64)
        self._published = self.search.mode == "published"
        self._costs = [closed_form(candidate) for candidate in self.candidates]
        self.reset()

    def reset(self) -> None:
        """Forget all measurements and decisions, as at the start of a job."""
        self._choice, self._density = self.candidates[0], float(self._densities[0])
        # Latency and bandwidth that the last search was based on.
        self._basis: tuple[float, float] | None = None
        self._before: PolicyContext | None = None
        # What is left to explore, gain and compression time of the attempts at the first of it, and means of those
        # that are complete, by density and exchange.
        self._left: list[tuple[float, Candidate]] = []
        self._attempts: list[tuple[float, float]] = []
        self._measured: dict[tuple[float, str], tuple[float, float]] = {}
        self._explores, self._searches = True, False
        self._watch_anew()

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return a list with one candidate, the exchange that was chosen for this iteration."""
        return self.decide(context).shortlist

    def decide(self, context: PolicyContext) -> Decision:
        """Return a trial (density and exchange to measure) if one is due, otherwise the chosen density and exchange."""
        state = self._state(context)
        up = state[1] > 0
        if context.iteration < self.search.warm_up:
            top = float(self._densities[0])
            density = density_at([Ramp(self.search.warm_up, 1.0, top)], context.iteration)
            if up:
                self._settle(density, state, context)
            return Decision((self._choice,), density)
        if up and self._basis is None:
            self._settle(self._density, state, context)
        if up and self._explores:
            self._explores, self._measured = False, {}
            self._left = self._unknown(state, context)
        changed = self._basis is not None and self.monitor.departs(state, self._basis)
        if up and not self._left and self._measured and (self._searches or changed):
            self._left = self._unknown(state, context)
            if not self._left:
                self._decide(state, context)
        if self._left:
            density, candidate = self._left[0]
            return Decision((candidate,), density, attempt=len(self._attempts), fresh=self._published)
        return Decision((self._choice,), self._density)

    def observe(self, context: PolicyContext, observation: Observation) -> None:
        """Record compression gain and time of a trial; after an iteration, plan new trials if the gain has changed."""
        self._before = context
        gain = observation.released_gain if self._published else observation.gain
        if observation.decision.attempt is not None:
            self._attempts.append((gain, observation.compression))
            if len(self._attempts) < self.search.tries:
                return
            (density, candidate), *self._left = self._left
            gains, times = zip(*self._attempts, strict=True)
            self._measured[self._key(density, candidate)] = (fmean(gains), fmean(times))
            self._attempts = []
            if not self._left:
                self._searches = not self._published
                self._watch_anew()
        elif context.iteration >= self.search.warm_up:
            self._explores = self._explores or self._gain_has_changed(gain)

    def _state(self, context: PolicyContext) -> tuple[float, float]:
        """Return the probed latency [s] and bandwidth [byte/s]; in mode ``published``, the previous iteration's."""
        if self._published and self._before is not None:
            context = dataclasses.replace(context, network=self._before.network)
        return self.monitor.probe(context)

    def _communication(
        self, density: ArrayLike, state: tuple[float, float], context: PolicyContext
    ) -> tuple[Floats, NDArray[np.intp]]:
        """Return the shortest communication time [s] of a candidate at each density, and that candidate's index."""
        latency, bandwidth = state
        workers, c = len(context.placement), np.atleast_1d(np.asarray(density, dtype=np.float64))
        found = (cost(latency, 1.0 / bandwidth, context.message, c, workers) for cost in self._costs)
        seconds = np.stack([np.broadcast_to(one, c.shape) for one in found])
        return seconds.min(axis=0), seconds.argmin(axis=0)

    def _settle(self, density: float, state: tuple[float, float], context: PolicyContext) -> None:
        """Choose the candidate that is fastest by formulas at `density`, and record the link state of this choice."""
        self._basis = state
        self._choice = self.candidates[int(self._communication(density, state, context)[1][0])]

    def _key(self, density: float, candidate: Candidate) -> tuple[float, str]:
        # The released code knows one gain for each density.
        return density, "" if self._published else candidate.label

    def _unknown(self, state: tuple[float, float], context: PolicyContext) -> list[tuple[float, Candidate]]:
        """Return the (density, candidate) pairs not measured yet; the candidate is the fastest one by formulas."""
        fastest = self._communication(self._densities, state, context)[1].tolist()
        pairs = zip(self._densities.tolist(), [self.candidates[one] for one in fastest], strict=True)
        return [pair for pair in pairs if self._key(*pair) not in self._measured]

    def _decide(self, state: tuple[float, float], context: PolicyContext) -> None:
        communication, fastest = self._communication(self._densities, state, context)
        pairs = zip(self._densities.tolist(), [self.candidates[one] for one in fastest.tolist()], strict=True)
        gain, compression = np.array([self._measured[self._key(*pair)] for pair in pairs]).T
        before, self._searches = (self._density, self._choice), False
        if self._published:
            found = choose_as_published(self._densities, gain, communication)
            self._density = self._density if found is None else found
        else:
            self._density = float(
                self._densities[choose_candidate(gain, compression, communication, self.search.weights)]
            )
        self._settle(self._density, state, context)
        if (self._density, self._choice) != before:
            self._watch_anew()

    def _watch_anew(self) -> None:
        self._gains: list[float] = []
        self._reference: float | None = None

    def _gain_has_changed(self, gain: float) -> bool:
        self._gains = [*self._gains, gain][-GAIN_WINDOW - 1 :]
        gains = np.array(self._gains)
        if self._published:
            changes = np.abs(np.diff(gains)) / np.maximum(gains[:-1], 1e-30)
            return float(windowed_mean(changes, GAIN_WINDOW, GAIN_DECAY)) >= self.search.gain_change
        if len(gains) < GAIN_WINDOW:
            return False
        smoothed = float(windowed_mean(gains, GAIN_WINDOW, GAIN_DECAY))
        if self._reference is None:
            self._reference = smoothed
        return abs(smoothed - self._reference) >= self.search.gain_change * self._reference
