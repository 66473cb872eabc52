"""The decision: what is fastest, by how much, how sure, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.progress import track_progress
from simnet.report.paired import NEAR, NO_RANGES, StartRanges
from simnet.report.paired import fastest as tied_first
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.cost_models import SAMPLED, CostModel, Estimate
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.win_probability import at_point, corrected_interval
from simnet.training.job.exchange import exposed_after_backward
from simnet.training.job.job import Overlap

QUANTITIES = ("latency", "bandwidth", "density", "workers")
"""What a decision is held against, one at a time."""

MISJUDGED = 2.0
"""By which factor latency and bandwidth may both be misjudged, either way, unless said otherwise."""

BUCKET = Overlap().bucket
"""Bytes of a bucket of an overlapped exchange, as by default in PyTorch."""

_FINE, _COARSE = 240, 24
_DECADES = 4.0
# From a step of 4 % to one of 1e-5.
_HALVINGS = 12
_MOST_WORKERS = 4096
_SIDE = 21


class Row(NamedTuple):
    """A choice in the ranking.

    Parameters
    ----------
    choice : Choice
        Which one.
    seconds, low, high : float
        Time to select and to communicate, and its interval [s].
    communicate, select : float
        Its parts [s].
    select_low, select_high : float
        Interval of the time to select [s].
    left : float
        What is left of it after a backward pass that it goes beside, in buckets of `BUCKET` bytes, if that is faster
        than to begin at its end [s].
    chance : float
        How likely it is the fastest, within 0..1.
    expected_regret : float
        By which fraction it is expected to take longer than the fastest.
    sure : bool
        Whether it is sure to be the fastest; see `simnet.cost_models.evidence.chances.Chances`.
    beyond : str
        What its errors were learnt from, if it goes beyond that; else empty.
    spread : tuple of float
        By how much it takes less, and more, as workers enter a little apart [s]; None if too much is sent to look.
    """

    choice: Choice
    seconds: float
    low: float
    high: float
    communicate: float
    select: float
    select_low: float
    select_high: float
    left: float
    chance: float
    expected_regret: float
    sure: bool
    beyond: str
    spread: tuple[float, float] | None = (0.0, 0.0)


class Flip(NamedTuple):
    """The nearest value of one quantity at which another choice becomes the fastest.

    Parameters
    ----------
    quantity : str
        One of `QUANTITIES`, or ``selecting``.
    value : float
        From there on, in SI units; of selecting a factor on the times of the device's kernels.
    label : str
        Which choice it is then.
    up : bool
        Whether the value is above that of the point.
    """

    quantity: str
    value: float
    label: str
    up: bool


class Regret(NamedTuple):
    """What it costs if latency and bandwidth are not what they were thought to be.

    Parameters
    ----------
    factor : float
        By which each of them is up to, either way.
    worst : float
        The most by which the choice is slower than the fastest, as a fraction of the fastest.
    latency, bandwidth : float
        Where [s], [byte/s].
    label : str
        What would be the fastest there.
    holds : float
        In which share of the range, on a logarithmic grid, the choice is the fastest.
    """

    factor: float
    worst: float
    latency: float
    bandwidth: float
    label: str
    holds: float


class Decision(NamedTuple):
    """What is fastest at a point, and how sure that is.

    Parameters
    ----------
    point : OperatingPoint
        Where.
    rows : tuple of Row
        All choices, the fastest first.
    flips : tuple of Flip
        What would change the decision.
    selection_flips : tuple of Flip
        The same for the cost of selecting, in parts of what the device profile says: `quantity` is ``selecting``.
    elasticities : dict of str to float
        By how many per cent the time of the fastest changes for one per cent of each quantity.
    regret : Regret or None
        If the network is misjudged; None where latency and bandwidth are not what a point says.
    """

    point: OperatingPoint
    rows: tuple[Row, ...]
    flips: tuple[Flip, ...]
    selection_flips: tuple[Flip, ...]
    elasticities: dict[str, float]
    regret: Regret | None

    @property
    def best(self) -> Row:
        """The fastest."""
        return self.rows[0]

    @property
    def margin(self) -> float:
        """By which fraction the runner-up is slower than the fastest; infinite if there is only one."""
        return self.over(self.rows[1]) if len(self.rows) > 1 else math.inf

    def over(self, row: Row) -> float:
        """Return by which fraction a choice is slower than the fastest; infinite if that takes no time at all."""
        if row.seconds == self.best.seconds:
            return 0.0
        return row.seconds / self.best.seconds - 1 if self.best.seconds > 0 else math.inf

    @property
    def tied_with(self) -> list[str]:
        """The choices that take as long as the fastest: `simnet.report.paired.fastest`, or within their spread."""
        seconds = {row.choice.label: row.seconds for row in self.rows}
        first = tied_first(seconds, self.starts.around(seconds))
        return [row.choice.label for row in self.rows[1:] if row.choice.label in first]

    @property
    def starts(self) -> StartRanges:
        """How far times of leaders depend on when workers enter; nothing if there is but one."""
        leaders = {row.choice.label: row.spread for row in self.rows if self.over(row) <= NEAR}
        if len(leaders) < 2:
            return NO_RANGES
        return StartRanges(
            {label: spread for label, spread in leaders.items() if spread is not None and any(spread)},
            {label: f"more than {SAMPLED:,} messages" for label, spread in leaders.items() if spread is None},
        )

    @property
    def sure(self) -> bool:
        """Whether the fastest is sure to be so."""
        return self.best.sure

    def gain_over_dense(self, *, overlapped: bool = False) -> float:
        """Return how many times as fast as the fastest choice that sends the whole gradient the fastest sparse one is.

        NaN if there is no choice of one of these kinds.
        """
        times = [(row.choice.kind, row.left if overlapped else row.seconds) for row in self.rows]
        whole = [seconds for kind, seconds in times if kind != "sparse"]
        sparse = [seconds for kind, seconds in times if kind == "sparse"]
        return min(whole) / min(sparse) if whole and sparse and min(sparse) > 0 else math.nan


def _exposed_time(choice: Choice, point: OperatingPoint, cost_model: CostModel, backward: float) -> float:
    """Return what a choice leaves after the backward pass [s]: beside it bucket by bucket, or after it as a whole."""
    whole = float(cost_model(choice, point).seconds)
    buckets = max(math.ceil(float(point.dense_bytes) / BUCKET), 1)
    if not backward or buckets == 1:
        return whole
    bucket = replace(point, parameters=max(math.ceil(point.parameters / buckets), 1))
    found = cost_model(choice, bucket)
    return min(whole, float(exposed_after_backward(backward, found.select, found.communicate, buckets)))


def decide(
    choices: Sequence[Choice],
    point: OperatingPoint,
    cost_model: CostModel,
    *,
    varies: Sequence[str] = QUANTITIES,
    misjudged: float = MISJUDGED,
    coarse: bool = False,
    backward: float = 0.0,
) -> Decision:
    """Rank the choices at a point.

    Examples
    --------
    >>> from simnet.studies.choosing.cost_models import by_closed_form
    >>> from simnet.studies.choosing.choices import choices
    >>> from simnet.cost_models.costs.devices import load_device
    >>> point = OperatingPoint(8, 11_689_512, 0.1, 1e-3, 1.25e9)
    >>> decision = decide(choices(), point, by_closed_form(load_device("ideal")))
    >>> decision.best.choice.label, f"{decision.best.seconds:.4f}"
    ('ART-ring', '0.0348')
    """
    found = [cost_model(choice, point) for choice in track_progress(choices, 0.2)]
    rows = [row._replace(left=_exposed_time(row.choice, point, cost_model, backward)) for row in ranked(choices, found)]
    best = rows[0].choice
    several = [row.choice for row in rows]
    return Decision(
        point,
        tuple(rows),
        tuple(flip for one in track_progress(varies, 0.7) for flip in flips(several, point, cost_model, one, coarse)),
        tuple(_selection_flips(rows)),
        {one: _time_elasticity(best, point, cost_model, one) for one in varies},
        _misjudged_regret(several, point, cost_model, misjudged) if {"latency", "bandwidth"} <= set(varies) else None,
    )


def ranked(choices: Sequence[Choice], found: Sequence[Estimate]) -> tuple[Row, ...]:
    """Return the choices at a point, the fastest first, without overlap."""
    likely = at_point([choice.candidate for choice in choices], found)
    rows = []
    said = zip(likely.fastest.tolist(), likely.regret.tolist(), likely.sure, strict=True)
    for choice, one, chances in zip(choices, found, said, strict=True):
        parts = one.seconds, *corrected_interval(one), one.communicate, *one.selecting
        select = float(one.select)
        seconds, low, high, communicate, _, least, most = map(float, parts)
        times = seconds, low, high, communicate, select, least, most
        rows.append(Row(choice, *times, seconds, *chances, one.known if one.beyond else "", one.spread))
    return tuple(sorted(rows, key=lambda row: row.seconds))


def fastest(choices: Sequence[Choice], point: OperatingPoint, cost_model: CostModel) -> tuple[np.ndarray, Floats]:
    """Return which choice is fastest, as its place among them, and its time [s]; of equals the first."""
    times = np.stack(np.broadcast_arrays(*(cost_model(choice, point).seconds for choice in choices)))
    return times.argmin(axis=0), times.min(axis=0)


def flips(
    choices: Sequence[Choice], point: OperatingPoint, cost_model: CostModel, quantity: str, coarse: bool = False
) -> Iterator[Flip]:
    """Yield the nearest flip below and above; the first of the `choices` is the fastest at the point."""
    own = float(getattr(point, quantity))
    for up in (False, True):
        values = _quantity_values(point, quantity, up, _COARSE if coarse else _FINE)
        if not len(values):
            continue
        which, _ = fastest(choices, point.at(quantity, values), cost_model)
        other = np.flatnonzero(which)
        if not len(other):
            continue
        at = int(other[0])
        near, far = (float(values[at - 1]) if at else own), float(values[at])
        if quantity != "workers":
            # Between the last value where the decision holds and the first where it does not.
            for _ in range(10 if coarse else _HALVINGS):
                middle = math.sqrt(near * far)
                found, _ = fastest(choices, point.at(quantity, np.array([middle])), cost_model)
                near, far = (near, middle) if found[0] else (middle, far)
        found, _ = fastest(choices, point.at(quantity, np.array([far])), cost_model)
        yield Flip(quantity, far, choices[int(found[0])].label, up)


def _selection_flips(rows: Sequence[Row]) -> Iterator[Flip]:
    """Yield the factors on the cost of selecting nearest to 1 at which another row is the fastest.

    A row takes its time to communicate and the factor times its time to select: of straight lines, that of the first
    row is the lowest at 1.
    """
    best = rows[0]
    met = [
        ((row.communicate - best.communicate) / (best.select - row.select), row)
        for row in rows[1:]
        if row.select != best.select
    ]
    # A device cannot select in less than no time.
    below = [one for one in met if 0 < one[0] < 1]
    above = [one for one in met if one[0] >= 1]
    for up, nearest in (
        (False, max(below, key=_factor_text, default=None)),
        (True, min(above, key=_factor_text, default=None)),
    ):
        if nearest is not None:
            yield Flip("selecting", nearest[0], nearest[1].choice.label, up)


def _factor_text(met: tuple[float, Row]) -> float:
    return met[0]


def _quantity_values(point: OperatingPoint, quantity: str, up: bool, steps: int) -> Floats:
    """Return values of a quantity away from that of the point, the nearest first."""
    own = float(getattr(point, quantity))
    if quantity == "workers":
        every = np.arange(own + 1, _MOST_WORKERS + 1) if up else np.arange(own - 1, 1, -1)
        whole: Floats = every[every % point.per_node == 0]
        return whole
    away = np.linspace(0, _DECADES, steps + 1)[1:]
    values = own * 10 ** (away if up else -away)
    if quantity == "density":
        values = np.minimum(values, 1.0)
        values = values[: int(np.searchsorted(values, 1.0)) + 1] if up else values[point.at("density", values).kept > 1]
    return np.asarray(values[values > 0])


def _time_elasticity(choice: Choice, point: OperatingPoint, cost_model: CostModel, quantity: str) -> float:
    """Return d ln t / d ln x of a choice, by what it takes at values 1 % below and above."""
    own = float(getattr(point, quantity))
    low, high = own / 1.01, own * 1.01
    if quantity == "workers":
        low, high = max(own - point.per_node, 1.0), own + point.per_node
    if quantity == "density":
        high = min(high, 1.0)
    if not 0 < low < high:
        return 0.0
    seconds = cost_model(choice, point.at(quantity, np.array([low, high]))).seconds
    before, after = np.broadcast_to(seconds, 2).tolist()
    return math.log(after / before) / math.log(high / low) if before > 0 else 0.0


def _misjudged_regret(choices: Sequence[Choice], point: OperatingPoint, cost_model: CostModel, factor: float) -> Regret:
    factors = np.geomspace(1 / factor, factor, _SIDE) if factor > 1 else np.ones(1)
    where = replace(
        point,
        latency=np.multiply(point.latency, factors)[:, np.newaxis],
        bandwidth=np.multiply(point.bandwidth, factors),
    )
    which, least = fastest(choices, where, cost_model)
    own = np.broadcast_to(cost_model(choices[0], where).seconds, which.shape)
    lost = np.divide(own, least, out=np.where(own > least, np.inf, 1.0), where=least > 0) - 1
    row, column = np.unravel_index(int(lost.argmax()), lost.shape)
    return Regret(
        factor,
        float(lost[row, column]),
        float(np.asarray(where.latency)[row, 0]),
        float(np.asarray(where.bandwidth)[column]),
        choices[int(which[row, column])].label,
        float((lost <= 0).mean()),
    )
