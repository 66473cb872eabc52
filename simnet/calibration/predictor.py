"""Predictions from all curves of a system: known curves, other numbers of ranks, other collectives.

A curve that was measured is predicted by models of single curves, which cross-validation weighs. Another number of
ranks of a measured collective comes from its curves on others: scaled size by size (`simnet.calibration.rank_scaling`),
interpolated over the logarithm of the ranks, or by the step model, corrected as it has to be at the neighbours;
cross-validation chooses again. A collective that was not measured comes from the step model alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.calibration.curve_models import CurveModel, Mixture, mixed
from simnet.calibration.curves import Curve, Setting
from simnet.calibration.rank_scaling import CHUNKED, over_ranks
from simnet.calibration.step_model import StepModel, fit_step_model

Basis: TypeAlias = Literal["sizes", "ranks", "beyond", "collectives"]
"""The basis of a prediction: the curve itself, fewer and more ranks, ranks on one side alone, other collectives."""

Interpolation: TypeAlias = Literal["scaled", "interpolated", "steps", "blended"]
"""How a number of ranks that was not measured is predicted from others; blended is between scaled and steps."""

Transfer: TypeAlias = Literal["steps", "corrected"]
"""How a collective that was not measured is predicted: by the step model, or that corrected as at the others."""


@dataclass(frozen=True, eq=False)
class FittedCurve:
    """A measured curve and its fitted model.

    Parameters
    ----------
    setting : Setting
        What was measured.
    shape : Mixture
        Its time over size.
    smallest, largest : float
        Sizes that were measured [byte].
    count : int
        How many.
    """

    setting: Setting
    shape: Mixture
    smallest: float
    largest: float
    count: int

    @property
    def through(self) -> CurveModel | Mixture:
        """The model that goes through every measured size, if it is among those of the curve, else all together.

        Other numbers of ranks are compared with what was measured: libraries change protocol at alike sizes there.
        """
        return next((one.shape for one in self.shape.parts if one.model == "interpolated"), self.shape)


@dataclass(frozen=True, eq=False)
class Predictor:
    """Predictions of times from all curves of a system.

    Parameters
    ----------
    curve_model : str
        The model of single curves that cross-validation found best over all of them.
    interpolation, extrapolation : str
        How other numbers of ranks are predicted: between those that were measured, and outside them.
    transfer : str
        How other collectives are predicted.
    known : tuple of FittedCurve
        The curves.
    steps : StepModel or None
        The step model, if an algorithm is known for any of the curves.
    """

    curve_model: str
    interpolation: Interpolation
    extrapolation: Interpolation
    transfer: Transfer
    known: tuple[FittedCurve, ...]
    steps: StepModel | None

    def basis(self, setting: Setting) -> Basis:
        """Return the basis of a prediction of a setting."""
        family = self.family(setting)
        if any(one.setting == setting for one in family):
            return "sizes"
        if not family:
            return "collectives"
        return "ranks" if self.between(family, setting) else "beyond"

    def family(self, setting: Setting) -> list[FittedCurve]:
        """Return the curves of the same collective, algorithm and protocol, by ranks and nodes."""
        found = [one for one in self.known if one.setting.family == setting.family]
        return sorted(found, key=lambda one: (one.setting.ranks, one.setting.nodes))

    def at(self, setting: Setting, sizes: ArrayLike) -> Floats | None:
        """Return times [s] of sizes [byte]; None where nothing is known."""
        asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
        family = self.family(setting)
        for one in family:
            if one.setting == setting:
                return one.shape.at(asked)
        stepped = None if self.steps is None else self.steps.at(setting, asked)
        if not family:
            return (
                stepped
                if stepped is None or self.transfer == "steps"
                else stepped * self._factor_at_others(setting, asked)
            )
        return self._over_ranks(family, setting, asked, stepped)

    def _over_ranks(
        self, family: Sequence[FittedCurve], setting: Setting, asked: Floats, stepped: Floats | None
    ) -> Floats:
        """Return times [s] on a number of ranks that was not measured, in the way that was chosen."""
        chosen = self.interpolation if self.between(family, setting) else self.extrapolation
        corrected = None
        if stepped is not None and chosen != "interpolated":
            log_errors = self._log_errors(family, asked)
            if log_errors is not None:
                corrected = stepped * np.exp(_over_ranks(family, log_errors, setting, extrapolation=False))
        alone = len({one.setting.ranks for one in family}) == 1
        if corrected is not None and (chosen == "steps" or alone):
            return corrected
        if chosen == "interpolated":
            logs = [np.log(one.through.at(asked)) for one in family]
            return np.exp(_over_ranks(family, logs, setting, extrapolation=True))
        settings, shapes = [one.setting for one in family], [one.through for one in family]
        nccl = self.steps is not None and self.steps.nccl
        found = over_ranks(settings, shapes, setting, asked, chunked=self._chunked(setting), nccl=nccl)
        if corrected is None or chosen != "blended":
            return found
        share = _share_of_steps([one.setting.ranks for one in family], setting.ranks)
        return found ** (1 - share) * corrected**share

    def _chunked(self, setting: Setting) -> bool:
        """Return whether curves of a collective are alike at the same size per rank: along rings they are."""
        rings = setting.algorithm.casefold().startswith("ring") or (self.steps is not None and self.steps.nccl)
        return rings and setting.collective in CHUNKED

    @staticmethod
    def between(family: Sequence[FittedCurve], setting: Setting) -> bool:
        """Return whether the ranks of a setting are between those of a family, or among them."""
        ranks = [one.setting.ranks for one in family]
        return min(ranks) <= setting.ranks <= max(ranks)

    def widening(self, setting: Setting) -> float:
        """Return the widening of intervals beyond the measured ranks over those one doubling beyond.

        Errors add up like those of a random walk over the doublings, so it is the root of their number; at least 1.
        """
        ranks = [one.setting.ranks for one in self.family(setting)]
        if not ranks or min(ranks) <= setting.ranks <= max(ranks):
            return 1.0
        return math.sqrt(max(min(abs(math.log2(setting.ranks / one)) for one in ranks), 1.0))

    def _log_errors(self, family: Sequence[FittedCurve], asked: Floats) -> list[Floats] | None:
        """Return logarithms of curves over what the step model says of them; None if it says nothing."""
        if self.steps is None:
            return None
        bases = [self.steps.at(one.setting, asked) for one in family]
        found = [
            np.log(one.through.at(asked) / base) for one, base in zip(family, bases, strict=True) if base is not None
        ]
        return found if len(found) == len(family) else None

    def _factor_at_others(self, setting: Setting, asked: Floats) -> Floats:
        """Return by which factor other collectives are slower than the step model says, in their mean."""
        found = []
        for name in sorted({one.setting.family for one in self.known}):
            family = [one for one in self.known if one.setting.family == name]
            log_errors = self._log_errors(family, asked)
            if log_errors is not None:
                found.append(_over_ranks(family, log_errors, setting, extrapolation=False))
        return np.exp(np.mean(found, axis=0)) if found else np.ones(len(asked))


def fit(
    curves: Sequence[Curve],
    curve_model: str = "interpolated",
    interpolation: Interpolation = "scaled",
    nccl: bool = False,
    transfer: Transfer = "steps",
    extrapolation: Interpolation = "blended",
    *,
    weights: Mapping[Setting, Mapping[str, float]] | None = None,
    with_steps: bool = True,
) -> Predictor:
    """Fit all models of a system to its curves.

    Parameters
    ----------
    curves : sequence of Curve
        What was measured.
    curve_model, interpolation, transfer, extrapolation : str
        The choices to be made; see `Predictor`.
    nccl : bool
        Whether steps are counted as NCCL does.
    weights : mapping of Setting to mapping of str to float, optional
        Models of each curve, with their weights; where omitted, `curve_model` alone.
    with_steps : bool
        Without, other collectives are not predicted; saves time where they are not asked for.

    Examples
    --------
    >>> sizes = 2.0 ** np.arange(10, 20)
    >>> curves = [Curve(Setting("all_reduce", p), sizes, p * 1e-5 + sizes * 1e-9) for p in (4, 16)]
    >>> float(fit(curves, interpolation="interpolated").at(Setting("all_reduce", 8), [1024.0])[0].round(6))
    8.1e-05
    """
    chosen = {} if weights is None else weights
    through = {} if weights is None else {"interpolated": 0.0}
    shapes = [
        mixed(one.sizes, one.seconds, through | dict(chosen.get(one.setting, {curve_model: 1.0}))) for one in curves
    ]
    known = tuple(
        FittedCurve(one.setting, shape, float(one.sizes[0]), float(one.sizes[-1]), len(one.sizes))
        for one, shape in zip(curves, shapes, strict=True)
    )
    return Predictor(
        curve_model, interpolation, extrapolation, transfer, known, fit_step_model(curves, nccl) if with_steps else None
    )


def _share_of_steps(known: Sequence[int], ranks: int) -> float:
    """Return the weight of the step model where ways are blended: half, but less where the ranks are just outside.

    Examples
    --------
    >>> [_share_of_steps((4, 16), ranks) for ranks in (8, 32, 64, 1024)]
    [0.5, 0.25, 0.5, 0.5]
    """
    if min(known) <= ranks <= max(known):
        return 0.5
    return min(0.25 * min(abs(math.log2(ranks / one)) for one in known), 0.5)


def _over_ranks(
    family: Sequence[FittedCurve], values: Sequence[Floats], setting: Setting, extrapolation: bool
) -> Floats:
    """Interpolate values over the logarithm of ranks.

    Beyond them they go along the last line with `extrapolation`, and are held constant without. Where a number of ranks
    was measured on several numbers of nodes, their mean stands for it.
    """
    same = [value for one, value in zip(family, values, strict=True) if one.setting.ranks == setting.ranks]
    if same:
        return np.asarray(np.mean(same, axis=0))
    ranks = sorted({one.setting.ranks for one in family})
    means = [
        np.mean([v for one, v in zip(family, values, strict=True) if one.setting.ranks == count], axis=0)
        for count in ranks
    ]
    if len(ranks) == 1:
        return np.asarray(means[0])
    x, at = np.log(ranks), np.log(setting.ranks)
    if not extrapolation:
        at = np.clip(at, x[0], x[-1])
    place = int(np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2))
    share = (at - x[place]) / (x[place + 1] - x[place])
    return np.asarray(means[place] + share * (means[place + 1] - means[place]))
