"""Cross-validation: every model is judged by what it was not fitted to.

Sizes are left out in folds of every fourth size of a curve; numbers of ranks and collectives one at a time. The score
of a model is the mean of absolute errors of the logarithm of the time, each counted up to a factor of 1.5, so that a
few wild measurements do not decide. Models of a curve are averaged, each with the more weight the smaller its score;
of ways to predict other numbers of ranks and collectives one is taken.

References
----------
J. M. Bates, C. W. J. Granger, "The combination of forecasts", Operational Research Quarterly 20, 1969.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

import numpy as np

from simnet.base.progress import tracked
from simnet.calibration.curves import Curve, Floats, Setting
from simnet.calibration.predictor import Across, Model, Transfer, Way, fit
from simnet.calibration.shapes import FITS, OURS
from simnet.calibration.steps import ALGORITHMS

FOLDS = 4
"""Sizes that are held out at once: every fourth."""

MIN_SIZES = 4
"""The fewest sizes of a curve of which some are held out."""

MIXTURE = "mixture"
"""What the models of each curve together are called, beside the names of single ones."""

_CAP = np.log(1.5)
_POWER = 5
_SHARED = 8
_LEAST_ERROR = 2e-3
_LEAST_WEIGHT = 0.1
_EXACT = 5e-4
_CLEARLY = 0.8
_MUCH = 0.6
_FASTEST_KERNEL = 6e-6
_FASTEST_STEP = 2e-6


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
    reach : float
        How much wider than one doubling outside an interval is to be; see `Model.reach`.
    """

    setting: Setting
    sizes: Floats
    predicted: Floats
    measured: Floats
    outside: bool = False
    reach: float = 1.0

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


def mixtures(curves: Sequence[Curve], forms: Mapping[str, Sequence[Held]]) -> dict[Setting, dict[str, float]]:
    """Weigh the models of each curve by how well they predict sizes of it that were left out.

    A weight is the inverse fifth power of the score, those below a tenth are left out. Few sizes say little, so the
    scores of all curves of the system together count as much as eight sizes of the curve. Errors below 0.2 % are no
    better than 0.2 %, as measurements are not; the plainest model with less than 0.05 % is taken alone.

    Parameters
    ----------
    curves : sequence of Curve
        Of one system.
    forms : mapping of str to sequence of Held
        What was held out, by model; see `leave_sizes_out`.

    Returns
    -------
    dict of Setting to dict of str to float
        By curve and model; empty if nothing was held out.

    Examples
    --------
    >>> sizes = 2.0 ** np.arange(10, 20)
    >>> curve = Curve(Setting("gather", 4), sizes, 1e-5 + sizes * 1e-9)
    >>> mixtures([curve], {name: leave_sizes_out([curve], name) for name in ("line", "five_anchors")})[curve.setting]
    {'line': 1.0}
    """
    if not any(forms.values()):
        return {}
    counts = dict.fromkeys((curve.setting for curve in curves), 0)
    sums = {setting: np.zeros(len(forms)) for setting in counts}
    for each in zip(*forms.values(), strict=True):
        counts[each[0].setting] += len(each[0].sizes)
        sums[each[0].setting] += [float(np.minimum(np.abs(one.off), _CAP).sum()) for one in each]
    shared = _SHARED * sum(sums.values()) / sum(counts.values())
    return {
        setting: _weights(dict(zip(forms, (sums[setting] + shared) / (count + _SHARED), strict=True)))
        for setting, count in counts.items()
    }


def mixture_held(forms: Mapping[str, Sequence[Held]], weights: Mapping[Setting, Mapping[str, float]]) -> list[Held]:
    """Return what the models of each curve together say of the sizes that were held out."""
    found = []
    for place, held in enumerate(next(iter(forms.values()))):
        named = weights[held.setting].items()
        logs = np.sum([weight * np.log(forms[name][place].predicted) for name, weight in named], axis=0)
        found.append(held._replace(predicted=np.exp(logs)))
    return found


def leave_ranks_out(curves: Sequence[Curve], form: str, nccl: bool) -> dict[Across, list[Held]]:
    """Predict every number of ranks from the others, in each way."""
    ways: tuple[Across, ...] = get_args(Across)
    found: dict[Across, list[Held]] = {way: [] for way in ways}
    for ranks in tracked(sorted({curve.setting.ranks for curve in curves}), 0.5):
        kept = [one for one in curves if one.setting.ranks != ranks]
        families = {one.setting.family for one in kept}
        held = [one for one in curves if one.setting.ranks == ranks and one.setting.family in families]
        if held:
            model = fit(kept, form, nccl=nccl)
            for way in ways:
                found[way] += _predicted(replace(model, across=way, beyond=way), held)
    return found


def leave_collectives_out(curves: Sequence[Curve], form: str, nccl: bool) -> dict[Transfer, list[Held]]:
    """Predict every collective from the others, in each way."""
    ways: tuple[Transfer, ...] = get_args(Transfer)
    found: dict[Transfer, list[Held]] = {way: [] for way in ways}
    for collective in tracked(sorted({curve.setting.collective for curve in curves})):
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
    form, across, beyond, transfer, nccl, weights
        The choices; see `simnet.calibration.predictor.fit`.
    forms : dict of str to list of Held
        Held-out sizes by model of single curves, those of others and the mixture included.
    held : dict of str to list of Held
        Held-out predictions of the chosen model by what they rest on.
    """

    form: str
    across: Across
    beyond: Across
    transfer: Transfer
    nccl: bool
    weights: dict[Setting, dict[str, float]]
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
    forms = {name: leave_sizes_out(curves, name) for name in tracked(names, 0.3 if wide else 1.0)}
    measured = any(forms.values())
    form = min(OURS, key=lambda name: round(score(forms[name]), 4)) if measured else "interpolated"
    ours = {name: forms[name] for name in OURS}
    weights = mixtures(curves, ours)
    forms[MIXTURE] = mixture_held(ours, weights)
    held: dict[Way, list[Held]] = {"sizes": forms[MIXTURE], "ranks": [], "beyond": [], "collectives": []}
    across: Across = "scaled"
    beyond: Across = "blended"
    transfer: Transfer = "steps"
    nccl = False
    if wide:
        counted = {counting: _wide(curves, form, counting) for counting in tracked((False, True), 0.8)}
        # Ranks alone hardly tell how steps are counted, as what is wrong with them is corrected there.
        known = any(found[-1] for found in counted.values())
        nccl = could_be_nccl(curves) and (1 if known else _MUCH) * counted[True][0] <= counted[False][0]
        _, across, beyond, transfer, held["ranks"], held["beyond"], held["collectives"] = counted[nccl]
    return Chosen(form, across, beyond, transfer, nccl, weights, forms, held)


def could_be_nccl(curves: Sequence[Curve]) -> bool:
    """Return whether no curve is faster than a collective of GPUs can be, or of an algorithm that NCCL has not.

    Starting a kernel takes some 6 us, a message between GPUs of two nodes 2 us or more; MPI in host memory has neither
    cost. The steps of a tree are the fewest. NCCL has no recursive doubling, to name one.

    Examples
    --------
    >>> sizes = np.array([8.0, 1024.0])
    >>> [could_be_nccl([Curve(Setting("all_reduce", 8, 2), sizes, np.full(2, us * 1e-6))]) for us in (4, 25)]
    [False, True]
    """
    for one in curves:
        phases = 2 if one.setting.collective == "all_reduce" else 1
        steps = phases * np.log2(max(one.setting.nodes, 1))
        foreign = any(name in one.setting.algorithm.casefold() for name in ALGORITHMS if name not in ("ring", "tree"))
        if foreign or one.seconds.min() <= _FASTEST_KERNEL + _FASTEST_STEP * steps:
            return False
    return True


def _weights(scores: Mapping[str, float]) -> dict[str, float]:
    """Return weights by model, which add to 1, of scores, plainest models first."""
    exact = [name for name, value in scores.items() if value < _EXACT]
    if exact:
        return {exact[0]: 1.0}
    raw = {name: max(value, _LEAST_ERROR) ** -_POWER for name, value in scores.items()}
    whole = sum(raw.values())
    kept = {name: value for name, value in raw.items() if value >= _LEAST_WEIGHT * whole}
    return {name: value / sum(kept.values()) for name, value in kept.items()}


def _wide(
    curves: Sequence[Curve], form: str, nccl: bool
) -> tuple[float, Across, Across, Transfer, list[Held], list[Held], list[Held]]:
    """Return for one way to count steps a score, the best ways, and what they say of what was held out.

    That is numbers of ranks inside those kept, outside them, and collectives.
    """
    by_way = leave_ranks_out(curves, form, nccl)
    across, inside = _best(by_way, "scaled", outside=False)
    beyond, outside = _best(by_way, "blended", outside=True)
    by_transfer = leave_collectives_out(curves, form, nccl)
    corrected = score(by_transfer["corrected"]) < _CLEARLY * score(by_transfer["steps"])
    transfer: Transfer = "corrected" if corrected else "steps"
    others = by_transfer[transfer]
    model = fit(curves, form, nccl=nccl)
    own = [] if model.steps is None else _stepped(model, curves)
    ranked = [value for value in (score(by_way["steps"]), score(others), score(own)) if np.isfinite(value)]
    return float(np.mean(ranked)) if ranked else float("inf"), across, beyond, transfer, inside, outside, others


def _best(by_way: Mapping[Across, Sequence[Held]], usual: Across, outside: bool) -> tuple[Across, list[Held]]:
    """Return the best way for ranks inside or outside, and what it says: the usual one if none is clearly better."""
    chosen = {way: [one for one in held if one.outside == outside] for way, held in by_way.items()}
    best = min(chosen, key=lambda way: score(chosen[way]))
    if not score(chosen[best]) < _CLEARLY * score(chosen[usual]):
        best = usual
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
            found.append(Held(one.setting, one.sizes, predicted, one.seconds, outside, model.reach(one.setting)))
    return found
