"""Cross-validation of cost models on held-out sizes, ranks and collectives.

Every fourth size of a curve is held out in turn; numbers of ranks and collectives one at a time. The score of a model
is the mean absolute error of the logarithm of the time, each capped at a factor of 1.5. Models of a curve are averaged,
with weights that fall with their typical error [J. M. Bates, C. W. J. Granger, Operational Research Quarterly 20,
1969]; of two ways to predict other collectives one is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

import numpy as np

from simnet.base.progress import track_progress
from simnet.cost_models.calibration.curves import CURVE_FITS, MIXED_MODELS, Curve, Setting
from simnet.cost_models.calibration.predictor import Predictor, Transfer, fit_predictor
from simnet.cost_models.calibration.step_model import known_algorithms
from simnet.cost_models.evidence.intervals import Basis, HeldOut

FOLD_COUNT = 4
"""Number of folds: every fourth size is held out at a time."""

MIN_SIZES = 4
"""The fewest sizes of a curve of which some are held out."""

MIXTURE_NAME = "mixture"
"""Name of the weighted mixture of curve models, in tables of models."""

_CAP = np.log(1.5)
# With which power of the typical error a model of a curve weighs less. On 34 public sets, roots and powers from 3 to 6
# have medians of sizes left out within 3 % of each other, and are 2 to 5 % below means of errors and a power of 5
# without `log_log`; with 3 and 4 no set is more than 5 % worse than `log_log` alone.
_POWER = 4
_SHARED = 8
_LEAST_ERROR = 2e-3
_LEAST_WEIGHT = 0.1
_EXACT = 5e-4
_CLEARLY_BETTER = 0.8
_MUCH_BETTER = 0.6
_FASTEST_KERNEL = 6e-6
_FASTEST_STEP = 2e-6


def size_folds(curve: Curve) -> list[np.ndarray]:
    """Return, for each fold of cross-validation, a mask of a curve's held-out sizes; no fold holds out the smallest."""
    if len(curve.sizes) < MIN_SIZES:
        return []
    place = np.arange(len(curve.sizes))
    masks = [(place % FOLD_COUNT == fold) & (place > 0) for fold in range(FOLD_COUNT)]
    return [mask for mask in masks if mask.any()]


def leave_sizes_out(curves: Sequence[Curve], curve_model: str) -> list[HeldOut]:
    """Predict times at every fourth size from the other sizes, in turn, for each measured curve of time versus size."""
    found = []
    for curve in curves:
        for mask in size_folds(curve):
            kept, held = curve.at(~mask), curve.at(mask)
            predicted = CURVE_FITS[curve_model](kept.sizes, kept.seconds).at(held.sizes)
            found.append(HeldOut(curve.setting, held.sizes, predicted, held.seconds))
    return found


def mixture_weights(
    curves: Sequence[Curve], by_curve_model: Mapping[str, Sequence[HeldOut]]
) -> dict[Setting, dict[str, float]]:
    """Return the mixture weights of curve models for each measured curve, from held-out errors; {} without errors.

    A weight is the inverse fourth power of the typical error; weights below a tenth are dropped. The mean error on all
    curves counts like eight sizes of the curve. If models have errors below 0.05 %, the simplest of them is used alone.
    """
    if not any(by_curve_model.values()):
        return {}
    sums = {curve.setting: np.zeros(len(by_curve_model)) for curve in curves}
    counts = dict.fromkeys(sums, 0)
    for each in zip(*by_curve_model.values(), strict=True):
        counts[each[0].setting] += len(each[0].sizes)
        sums[each[0].setting] += [np.sqrt(np.minimum(np.abs(one.log_errors), _CAP)).sum() for one in each]
    shared = _SHARED * sum(sums.values()) / sum(counts.values())
    typical = {setting: ((sums[setting] + shared) / (count + _SHARED)) ** 2 for setting, count in counts.items()}
    return {setting: _model_weights(dict(zip(by_curve_model, one, strict=True))) for setting, one in typical.items()}


def mixture_held(
    by_curve_model: Mapping[str, Sequence[HeldOut]], weights: Mapping[Setting, Mapping[str, float]]
) -> list[HeldOut]:
    """Return held-out predictions by each curve's weighted mixture of models (time versus size)."""
    found = []
    for place, held in enumerate(next(iter(by_curve_model.values()))):
        named = weights[held.setting].items()
        logs = np.sum([weight * np.log(by_curve_model[name][place].predicted) for name, weight in named], axis=0)
        found.append(held._replace(predicted=np.exp(logs)))
    return found


def without_ranks(curves: Sequence[Curve], ranks: int) -> tuple[list[Curve], list[Curve]]:
    """Split curves into training curves, not on `ranks` ranks, and test curves, on `ranks` ranks.

    Collective, algorithm and protocol of each test curve are those of some training curve; other curves are dropped.
    """
    kept = [one for one in curves if one.setting.ranks != ranks]
    families = {one.setting.family for one in kept}
    return kept, [one for one in curves if one.setting.ranks == ranks and one.setting.family in families]


def leave_ranks_out(curves: Sequence[Curve], curve_model: str, nccl: bool) -> tuple[list[HeldOut], list[HeldOut]]:
    """Predict each number of ranks from all others; return predictions by the default model and by costs per step."""
    usual, stepped = list[HeldOut](), list[HeldOut]()
    for ranks in track_progress(sorted({curve.setting.ranks for curve in curves}), 0.5):
        kept, held = without_ranks(curves, ranks)
        if held:
            model = fit_predictor(kept, curve_model, nccl=nccl)
            usual += _predict_held_out(model, held)
            stepped += _predict_held_out(replace(model, ranks_by="steps"), held)
    return usual, stepped


def leave_collectives_out(curves: Sequence[Curve], curve_model: str, nccl: bool) -> dict[Transfer, list[HeldOut]]:
    """Predict each collective from the curves of all others; return predictions for each method in `Transfer`."""
    found: dict[Transfer, list[HeldOut]] = {name: [] for name in get_args(Transfer)}
    for collective in track_progress(sorted({curve.setting.collective for curve in curves})):
        kept = [one for one in curves if one.setting.collective != collective]
        held = [one for one in curves if one.setting.collective == collective]
        if kept:
            model = fit_predictor(kept, curve_model, nccl=nccl)
            for name, predictions in found.items():
                predictions += _predict_held_out(replace(model, transfer=name), held)
    return found


def mean_log_error(held: Sequence[HeldOut]) -> float:
    """Return the mean of capped absolute log ratios of predicted to measured time; inf without predictions."""
    if not held:
        return float("inf")
    return float(np.minimum(np.abs(np.concatenate([one.log_errors for one in held])), _CAP).mean())


class ModelChoice(NamedTuple):
    """The models chosen by cross-validation, as arguments of `fit_predictor`, with held-out predictions.

    `by_curve_model` has held-out sizes by model of single curves, `held` those of the chosen models by basis.
    """

    curve_model: str
    transfer: Transfer
    nccl: bool
    weights: dict[Setting, dict[str, float]]
    by_curve_model: dict[str, list[HeldOut]]
    held: dict[Basis, list[HeldOut]]

    def fitted(self, curves: Sequence[Curve]) -> Predictor:
        """Return a predictor with the chosen models, fitted to measured curves of time versus size."""
        return fit_predictor(curves, self.curve_model, self.nccl, self.transfer, weights=self.weights)


def choose_models(curves: Sequence[Curve], *, plain: bool = True, wide: bool = True) -> ModelChoice:
    """Choose by cross-validation: curve models, how steps of collectives are counted, and a method for new collectives.

    With `plain`, models for comparison are judged too; with `wide`, predictions of other ranks and collectives.
    """
    names = tuple(CURVE_FITS) if plain else MIXED_MODELS
    by_curve_model = {name: leave_sizes_out(curves, name) for name in track_progress(names, 0.3 if wide else 1.0)}
    best = min(MIXED_MODELS, key=lambda name: round(mean_log_error(by_curve_model[name]), 4))
    curve_model = best if any(by_curve_model.values()) else "interpolated"
    ours = {name: by_curve_model[name] for name in MIXED_MODELS}
    weights = mixture_weights(curves, ours)
    by_curve_model[MIXTURE_NAME] = mixture_held(ours, weights)
    held: dict[Basis, list[HeldOut]] = {basis: [] for basis in get_args(Basis)}
    held["sizes"], nccl = by_curve_model[MIXTURE_NAME], False
    transfer: Transfer = "steps"
    if wide:
        counted = {way: _judge_counting(curves, curve_model, way) for way in track_progress((False, True), 0.8)}
        # Ranks alone hardly tell how steps are counted, as what is wrong with them is corrected there.
        known = any(found[-1] for found in counted.values())
        nccl = could_be_nccl(curves) and (1 if known else _MUCH_BETTER) * counted[True][0] <= counted[False][0]
        _, transfer, ranked, held["collectives"] = counted[nccl]
        held["ranks"], held["beyond"] = ([one for one in ranked if one.outside is beyond] for beyond in (False, True))
    return ModelChoice(curve_model, transfer, nccl, weights, by_curve_model, held)


def could_be_nccl(curves: Sequence[Curve]) -> bool:
    """Return whether measured times may be NCCL's: none is too short for GPUs, and no algorithm is unknown to NCCL.

    Starting a kernel takes some 6 us, a message between GPUs of two nodes 2 us or more; MPI in host memory has neither
    cost. The least time is that of a tree, which has the fewest steps.
    """
    others = set(known_algorithms()) - {"ring", "tree"}
    for curve in curves:
        one, phases = curve.setting, 2 if curve.setting.collective == "all_reduce" else 1
        fastest = _FASTEST_KERNEL + _FASTEST_STEP * phases * np.log2(max(one.nodes, 1))
        if curve.seconds.min() <= fastest or any(name in one.algorithm.casefold() for name in others):
            return False
    return True


def _model_weights(typical: Mapping[str, float]) -> dict[str, float]:
    """Return mixture weights by model, which sum to 1, from typical errors of models in order of complexity."""
    exact = [name for name, value in typical.items() if value < _EXACT]
    if exact:
        return {exact[0]: 1.0}
    raw = {name: max(value, _LEAST_ERROR) ** -_POWER for name, value in typical.items()}
    whole = sum(raw.values())
    kept = {name: value for name, value in raw.items() if value >= _LEAST_WEIGHT * whole}
    return {name: value / sum(kept.values()) for name, value in kept.items()}


def _judge_counting(
    curves: Sequence[Curve], curve_model: str, nccl: bool
) -> tuple[float, Transfer, list[HeldOut], list[HeldOut]]:
    """Return the mean error, the `Transfer` to use, and predictions of held-out ranks and of held-out collectives."""
    ranked, stepped = leave_ranks_out(curves, curve_model, nccl)
    by_transfer = leave_collectives_out(curves, curve_model, nccl)
    corrected = mean_log_error(by_transfer["corrected"]) < _CLEARLY_BETTER * mean_log_error(by_transfer["steps"])
    transfer: Transfer = "corrected" if corrected else "steps"
    others = by_transfer[transfer]
    # What the step model says of the curves that it was fitted to.
    steps = fit_predictor(curves, curve_model, nccl=nccl).steps
    said = [] if steps is None else [(one, steps.at(one.setting, one.sizes)) for one in curves]
    own = [HeldOut(one.setting, one.sizes, found, one.seconds) for one, found in said if found is not None]
    errors = [mean_log_error(found) for found in (stepped, others, own) if found]
    return float(np.mean(errors)) if errors else float("inf"), transfer, ranked, others


def _predict_held_out(model: Predictor, held: Sequence[Curve]) -> list[HeldOut]:
    said = [(one, model.at(one.setting, one.sizes), model.basis(one.setting) == "beyond") for one in held]
    return [
        HeldOut(one.setting, one.sizes, found, one.seconds, outside, model.widening(one.setting))
        for one, found, outside in said
        if found is not None
    ]
