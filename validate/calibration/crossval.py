"""Cross-validation: every model is judged by what it was not fitted to, and the best one is taken.

Sizes are left out in folds of every fourth size of a curve; numbers of ranks and collectives one at a time. The score
of a model is the mean of absolute errors of the logarithm of the time, each counted up to a factor of 1.5, so that a
few wild measurements do not decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

import numpy as np

from validate.calibration.curves import Curve, Floats, Setting
from validate.calibration.predictor import Across, Model, Transfer, Way, fit
from validate.calibration.shapes import FITS, OURS

FOLDS = 4
"""Sizes that are held out at once: every fourth."""

MIN_SIZES = 4
"""The fewest sizes of a curve of which some are held out."""

_CAP = np.log(1.5)
_CLEARLY = 0.8


class Held(NamedTuple):
    """Predictions of what was held out.

    Parameters
    ----------
    setting : Setting
        The curve.
    sizes, predicted, measured : ndarray of float, shape (n,)
        Sizes [byte] and times [s].
    outside : bool
        Whether its ranks are outside those from which it was predicted.
    """

    setting: Setting
    sizes: Floats
    predicted: Floats
    measured: Floats
    outside: bool = False

    @property
    def off(self) -> Floats:
        """Logarithms of predicted over measured times, shape (n,)."""
        return np.asarray(np.log(self.predicted / self.measured))


def folds(curve: Curve) -> list[np.ndarray]:
    """Return which sizes are held out at a time; the smallest is always kept, as nothing is said of what is below.

    Examples
    --------
    >>> one = Curve(Setting("all_reduce", 2), np.arange(1.0, 9.0), np.ones(8))
    >>> [np.flatnonzero(held).tolist() for held in folds(one)]
    [[4], [1, 5], [2, 6], [3, 7]]
    """
    if len(curve.sizes) < MIN_SIZES:
        return []
    place = np.arange(len(curve.sizes))
    masks = [(place % FOLDS == fold) & (place > 0) for fold in range(FOLDS)]
    return [mask for mask in masks if mask.any()]


def leave_sizes_out(curves: Sequence[Curve], form: str) -> list[Held]:
    """Predict every fourth size of a curve from its others, with a model of single curves.

    Examples
    --------
    >>> one = Curve(Setting("all_reduce", 2), np.arange(1.0, 9.0), 1e-5 * np.arange(1.0, 9.0))
    >>> bool(max(np.abs(held.off).max() for held in leave_sizes_out([one], "line")) < 1e-3)
    True
    """
    found = []
    for curve in curves:
        for mask in folds(curve):
            kept, held = curve.at(~mask), curve.at(mask)
            predicted = FITS[form](kept.sizes, kept.seconds).at(held.sizes)
            found.append(Held(curve.setting, held.sizes, predicted, held.seconds))
    return found


def leave_ranks_out(
    curves: Sequence[Curve], form: str, across: Sequence[Across], nccl: bool
) -> dict[Across, list[Held]]:
    """Predict every number of ranks from the others, in each of some ways."""
    found: dict[Across, list[Held]] = {way: [] for way in across}
    for ranks in sorted({curve.setting.ranks for curve in curves}):
        kept = [one for one in curves if one.setting.ranks != ranks]
        families = {one.setting.family for one in kept}
        held = [one for one in curves if one.setting.ranks == ranks and one.setting.family in families]
        if held:
            model = fit(kept, form, nccl=nccl, with_steps="steps" in across)
            for way in across:
                found[way] += _predicted(replace(model, across=way, beyond=way), held)
    return found


def leave_collectives_out(curves: Sequence[Curve], form: str, nccl: bool) -> dict[Transfer, list[Held]]:
    """Predict every collective from the others, in each way."""
    ways: tuple[Transfer, ...] = get_args(Transfer)
    found: dict[Transfer, list[Held]] = {way: [] for way in ways}
    for collective in sorted({curve.setting.collective for curve in curves}):
        kept = [one for one in curves if one.setting.collective != collective]
        held = [one for one in curves if one.setting.collective == collective]
        if kept:
            model = fit(kept, form, nccl=nccl)
            for way in ways:
                found[way] += _predicted(replace(model, transfer=way), held)
    return found


def score(held: Sequence[Held]) -> float:
    """Return the mean absolute logarithm of predicted over measured, each capped; infinite if there is nothing."""
    if not held:
        return float("inf")
    return float(np.minimum(np.abs(np.concatenate([one.off for one in held])), _CAP).mean())


class Chosen(NamedTuple):
    """What cross-validation chose, and what it saw.

    Parameters
    ----------
    form, across, beyond, transfer, nccl
        The choices; see `validate.calibration.predictor.fit`.
    forms : dict of str to list of Held
        Held-out sizes by model of single curves, those of others included.
    held : dict of str to list of Held
        Held-out predictions of the chosen model by what they rest on.
    """

    form: str
    across: Across
    beyond: Across
    transfer: Transfer
    nccl: bool
    forms: dict[str, list[Held]]
    held: dict[Way, list[Held]]


def choose(curves: Sequence[Curve], *, plain: bool = True, wide: bool = True) -> Chosen:
    """Choose models by cross-validation.

    Parameters
    ----------
    curves : sequence of Curve
        Of one system.
    plain : bool
        Also judge the models of others, for comparison.
    wide : bool
        Also judge predictions of other numbers of ranks and collectives.

    Examples
    --------
    >>> sizes = 2.0 ** np.arange(10, 20)
    >>> choose([Curve(Setting("gather", 4), sizes, 1e-5 + sizes * 1e-9)]).form
    'line'
    """
    names = tuple(FITS) if plain else OURS
    forms = {name: leave_sizes_out(curves, name) for name in names}
    measured = any(forms.values())
    form = min(OURS, key=lambda name: round(score(forms[name]), 4)) if measured else "interpolated"
    held: dict[Way, list[Held]] = {"sizes": forms[form], "ranks": [], "collectives": []}
    across: Across = "steps"
    beyond: Across = "steps"
    transfer: Transfer = "steps"
    nccl = False
    if wide:
        counted = {counting: _wide(curves, form, counting) for counting in (False, True)}
        nccl = min(counted, key=lambda counting: counted[counting][0])
        _, across, beyond, transfer, held["ranks"], held["collectives"] = counted[nccl]
    return Chosen(form, across, beyond, transfer, nccl, forms, held)


def _wide(
    curves: Sequence[Curve], form: str, nccl: bool
) -> tuple[float, Across, Across, Transfer, list[Held], list[Held]]:
    """Return for one way to count steps a score, the best ways, and what they say of held-out ranks and collectives."""
    by_way = leave_ranks_out(curves, form, ("blended", "steps", "interpolated"), nccl)
    across, inside = _best(by_way, outside=False)
    beyond, outside = _best(by_way, outside=True)
    by_transfer = leave_collectives_out(curves, form, nccl)
    corrected = score(by_transfer["corrected"]) < _CLEARLY * score(by_transfer["steps"])
    transfer: Transfer = "corrected" if corrected else "steps"
    others = by_transfer[transfer]
    model = fit(curves, form, nccl=nccl)
    own = [] if model.steps is None else _stepped(model, curves)
    ranked = [value for value in (score(by_way["steps"]), score(others), score(own)) if np.isfinite(value)]
    return float(np.mean(ranked)) if ranked else float("inf"), across, beyond, transfer, inside + outside, others


def _best(by_way: Mapping[Across, Sequence[Held]], outside: bool) -> tuple[Across, list[Held]]:
    """Return the best way for ranks inside or outside, and what it says; without evidence, the mean or the steps."""
    chosen = {way: [one for one in held if one.outside == outside] for way, held in by_way.items()}
    if not any(chosen.values()):
        return ("steps" if outside else "blended"), []
    best = min(chosen, key=lambda way: score(chosen[way]))
    return best, chosen[best]


def _stepped(model: Model, curves: Sequence[Curve]) -> list[Held]:
    """Return what the model of steps says of the curves that it was fitted to."""
    assert model.steps is not None
    found = []
    for one in curves:
        predicted = model.steps.at(one.setting, one.sizes)
        if predicted is not None:
            found.append(Held(one.setting, one.sizes, predicted, one.seconds))
    return found


def _predicted(model: Model, held: Sequence[Curve]) -> list[Held]:
    found = []
    for one in held:
        predicted = model.at(one.setting, one.sizes)
        if predicted is not None:
            family = model.family(one.setting)
            outside = bool(family) and not model.between(family, one.setting)
            found.append(Held(one.setting, one.sizes, predicted, one.seconds, outside))
    return found
