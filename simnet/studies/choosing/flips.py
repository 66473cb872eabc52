"""Sensitivity of the fastest exchange: flip points by closed forms, confirmed by simulation on both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.errors import SimnetError
from simnet.scenario import Run, Scenario
from simnet.studies.assumptions import is_large
from simnet.studies.choosing.closed_forms import (
    AGREE,
    QUANTITIES,
    ClosedForms,
    OperatingPoint,
    closed_forms,
    fastest_by_form,
)
from simnet.studies.choosing.forecast import WholeJob
from simnet.studies.choosing.whole_job import decide_job

AWAY = 1.03
"""Factor on both sides of a flip at which simulations must confirm it."""

FIELDS = {
    "latency": "network.topology.star.latency={!r} s",
    "bandwidth": "network.topology.star.bandwidth={!r} B/s",
    "density": "job.density={!r}",
    "workers": "workers={:.0f}",
}
"""Override template of each quantity."""

# Values looked at on each side, over how many decades, and how often a step of 4 % is halved.
_STEPS, _DECADES, _HALVINGS = 240, 4.0, 12
_MOST_WORKERS = 4096
_SIDE = 21


class Flip(NamedTuple):
    """The nearest value of a quantity, above or below the job's, at which another exchange becomes fastest."""

    quantity: str
    value: float
    label: str
    up: bool


class Misjudged(NamedTuple):
    """Cost of choosing with latency and bandwidth estimates that are off by up to a `factor`, either way.

    At `worst` the chosen exchange is slower than the fastest one, `label`, by this fraction; the choice is right in the
    share `holds` of a logarithmic grid over the range.
    """

    factor: float
    worst: float
    latency: float
    bandwidth: float
    label: str
    holds: float


def _agree(forms: ClosedForms, found: WholeJob) -> bool:
    """Return whether closed forms match the simulated times of the two fastest exchanges within `AGREE`."""
    pairs = zip(forms.among, found.rows[:2], strict=False)
    took = [(float(forms.model(one, forms.point).seconds), row.seconds / row.iterations) for one, row in pairs]
    return all(abs(said - seconds) <= AGREE * seconds for said, seconds in took)


def first_place_flips(
    load: Callable[[Sequence[str]], Scenario], loaded: Scenario, run: Run, found: WholeJob, factor: float
) -> tuple[tuple[Flip, ...] | None, Misjudged | None]:
    """Return the nearest value of each quantity that changes the fastest exchange, and the cost of wrong links.

    None if closed forms do not apply, disagree with the simulated times of the two fastest exchanges, or are not
    confirmed by simulations at a factor `AWAY` on both sides of a flip.
    """
    forms = closed_forms(loaded, run, found)
    if forms is None or not _agree(forms, found):
        return None, None
    told = tuple(flip for quantity in QUANTITIES for flip in _nearest_flips(forms, quantity))
    if not all(_is_confirmed(load, one, found, run.job.source.workers) for one in told):
        return None, None
    return told, _misjudged_links(forms, factor)


def _is_confirmed(load: Callable[[Sequence[str]], Scenario], flip: Flip, found: WholeJob, workers: int) -> bool:
    """Return whether simulations confirm a flip: the fastest exchange before it, and the other one after it."""
    rivals = [(row.candidate, row.kind) for row in found.rows if row.label in (found.best.label, flip.label)]
    step = AWAY if flip.up else 1 / AWAY
    sides = {found.best.label: flip.value / step, flip.label: flip.value * step}
    if flip.quantity == "workers":
        before = flip.value - 1 if flip.up else flip.value + 1
        sides = {flip.label: flip.value} | ({} if before == workers else {found.best.label: before})
    for first, value in sides.items():
        try:
            run = load([FIELDS[flip.quantity].format(value)]).build()
            if is_large(run) or decide_job(run, rivals, policies=False).best.label != first:
                return False
        except SimnetError:
            return False
    return True


def _nearest_flips(forms: ClosedForms, quantity: str) -> Iterator[Flip]:
    """Yield the nearest flip below and above; the first candidate is fastest at the operating point."""
    choices, point, model = forms
    own = float(getattr(point, quantity))
    for up in (False, True):
        values = _quantity_values(point, quantity, up)
        if not len(values):
            continue
        which, _ = fastest_by_form(choices, point.at(quantity, values), model)
        other = np.flatnonzero(which)
        if not len(other):
            continue
        at = int(other[0])
        near, far = (float(values[at - 1]) if at else own), float(values[at])
        if quantity != "workers":
            # Between the last value where the decision holds and the first where it does not.
            for _ in range(_HALVINGS):
                middle = math.sqrt(near * far)
                found, _ = fastest_by_form(choices, point.at(quantity, np.array([middle])), model)
                near, far = (near, middle) if found[0] else (middle, far)
        found, _ = fastest_by_form(choices, point.at(quantity, np.array([far])), model)
        yield Flip(quantity, far, choices[int(found[0])].label, up)


def _quantity_values(point: OperatingPoint, quantity: str, up: bool) -> Floats:
    """Return trial values of a quantity on one side of the point's value, the nearest first."""
    own = float(getattr(point, quantity))
    if quantity == "workers":
        return np.arange(own + 1, _MOST_WORKERS + 1) if up else np.arange(own - 1, 1, -1)
    away = np.linspace(0, _DECADES, _STEPS + 1)[1:]
    values = own * 10 ** (away if up else -away)
    if quantity == "density":
        values = np.minimum(values, 1.0)
        values = values[: int(np.searchsorted(values, 1.0)) + 1] if up else values[point.at("density", values).kept > 1]
    return np.asarray(values[values > 0])


def _misjudged_links(forms: ClosedForms, factor: float) -> Misjudged:
    choices, point, model = forms
    factors = np.geomspace(1 / factor, factor, _SIDE) if factor > 1 else np.ones(1)
    where = replace(
        point,
        latency=np.multiply(point.latency, factors)[:, np.newaxis],
        bandwidth=np.multiply(point.bandwidth, factors),
    )
    which, least = fastest_by_form(choices, where, model)
    own = np.broadcast_to(model(choices[0], where).seconds, which.shape)
    lost = np.divide(own, least, out=np.where(own > least, np.inf, 1.0), where=least > 0) - 1
    row, column = np.unravel_index(int(lost.argmax()), lost.shape)
    latency, bandwidth = float(np.asarray(where.latency)[row, 0]), float(np.asarray(where.bandwidth)[column])
    label = choices[int(which[row, column])].label
    return Misjudged(factor, float(lost[row, column]), latency, bandwidth, label, float((lost <= 0).mean()))
