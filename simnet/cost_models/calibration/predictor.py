"""Predicts times from all curves of a system, also for numbers of ranks and for collectives that were not measured.

Models of single curves, weighted by cross-validation, predict a measured curve. Another number of ranks is scaled size
by size (`simnet.cost_models.calibration.rank_scaling`); beyond those measured, the step model, corrected at the
neighbours, gets a part of the weight. Another collective follows from the step model alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from annotated_types import Ge
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.cost_models.calibration import cards as node_cards
from simnet.cost_models.calibration.curves import FILE_PART, Curve, CurveModel, Positive, Setting, fit_mixture
from simnet.cost_models.calibration.rank_scaling import CHUNKED_COLLECTIVES, scale_over_ranks
from simnet.cost_models.calibration.readers import bus_factor
from simnet.cost_models.calibration.step_model import CARD_PER_RANK, StepModel, fit_step_model
from simnet.cost_models.evidence.intervals import Basis

Transfer: TypeAlias = Literal["steps", "corrected"]
"""How a collective that was not measured is predicted: by the step model, or that corrected as at the others."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedCurve(Setting):
    """Models fitted to a curve of measured time versus size, its smallest and largest size [byte], and size count."""

    __pydantic_config__ = FILE_PART

    smallest: Positive
    largest: Positive
    measured_sizes: Annotated[int, Ge(1)]
    models: tuple[CurveModel, ...]

    @cached_property
    def setting(self) -> Setting:
        """The collective, ranks, nodes, algorithm and protocol with which the curve was measured."""
        return Setting(self.collective, self.ranks, self.nodes, self.algorithm, self.protocol)

    def at(self, sizes: ArrayLike) -> Floats:
        """Return times [s] at sizes [byte]: the weighted geometric mean of the models fitted to the curve."""
        logs = [one.weight * np.log(one.at(sizes)) for one in self.models if one.weight]
        return np.asarray(np.exp(np.sum(logs, axis=0)), dtype=np.float64)

    def through(self, sizes: Floats) -> Floats:
        """Return times [s] at sizes [byte] by the interpolating model, or by the mixture if there is none.

        Other numbers of ranks compare with measured times: libraries change protocol at similar sizes there.
        """
        exact = [one for one in self.models if one.model == "interpolated"]
        return exact[0].at(sizes) if exact else self.at(sizes)


class BoundedTimes(NamedTuple):
    """A collective's predicted times [s] with bounds, shape (sizes,); lower bounds are never below `floor`."""

    seconds: Floats
    least: Floats
    most: Floats
    floor: Floats | float = 0.0


class TimeGrowth(NamedTuple):
    """How a collective's time grows at the `largest` measured size [byte]: as size ** `power`, 0 <= `power` <= 1.

    `by_power`, in 0..1, is how clearly this power shows a limit by bandwidth, `by_bytes` how well latency plus bytes
    fits.
    """

    largest: float
    power: float
    by_power: float
    by_bytes: float

    def trust(self, ratio: Floats) -> Floats:
        """Return the weight, 0 to 1, of fitted models over a power law, at `ratio` times the largest known size."""
        fading = np.minimum(2 - np.log(ratio) / np.log(_GOES_ON), 1.0)
        return np.asarray(np.maximum(self.by_power, self.by_bytes * fading))


def _growth_of_curve(one: FittedCurve) -> TimeGrowth:
    """Return how a collective's measured times grow with size at the largest measured size."""
    sizes = np.maximum(one.largest / np.array([_SPAN**2, _SPAN, 1.0]), one.smallest)
    seconds = one.through(sizes)
    if sizes[1] == sizes[2]:
        return TimeGrowth(one.largest, 1.0, 1.0, 1.0)
    power = min(max(math.log(seconds[2] / seconds[1]) / math.log(sizes[2] / sizes[1]), 0.0), 1.0)
    before, last = seconds[1] - seconds[0], seconds[2] - seconds[1]
    # Of a latency and bytes that ratio is the one of the sizes, of what grows with their logarithm it is 1.
    more = last / max(before, last / _SPAN) if last > _SEEN * seconds[2] else 0.0
    by_power, by_bytes = (power - _FLAT) / (_TOLD - _FLAT), 2 * more / _SPAN - 1
    return TimeGrowth(one.largest, power, min(max(by_power, 0.0), 1.0), min(max(by_bytes, 0.0), 1.0))


@dataclass(frozen=True, eq=False)
class Predictor:
    """Predicts times of any collective on a system from measured curves of time versus size.

    Cross-validation chose `curve_model` for single curves, and `transfer` for other collectives. `known` are the
    curves, `steps` is the step model, `cards` are the possible numbers of cards of a node, the likeliest first, `each`
    the ranks on the node with the highest rate. `ranks_by` is another way to predict ranks than by scaling.
    """

    curve_model: str
    transfer: Transfer
    known: tuple[FittedCurve, ...]
    steps: StepModel | None
    cards: tuple[node_cards.CardCount, ...] = node_cards.RAIL_CARDS
    each: float = 1.0
    ranks_by: Literal["scaling", "steps", "interpolation"] = "scaling"

    def basis(self, setting: Setting) -> Basis:
        """Return "sizes" if measured, "ranks" if between measured ranks, "beyond" if outside, else "collectives"."""
        family = self.family(setting)
        if any(one.setting == setting for one in family):
            return "sizes"
        if not family:
            return "collectives"
        return "ranks" if self.between(family, setting) else "beyond"

    def family(self, setting: Setting) -> list[FittedCurve]:
        """Return the fitted curves of a setting's collective, algorithm and protocol, sorted by ranks and nodes."""
        found = [one for one in self.known if one.setting.family == setting.family]
        return sorted(found, key=lambda one: (one.setting.ranks, one.setting.nodes))

    def near(self, setting: Setting) -> Sequence[FittedCurve]:
        """Return the curve measured with a setting, else the curves of its family, else all curves."""
        family = self.family(setting)
        return [one for one in family if one.setting == setting] or family or self.known

    def at(self, setting: Setting, sizes: ArrayLike) -> Floats | None:
        """Return a collective's predicted times [s] at sizes [byte]; None if the setting cannot be predicted."""
        found = self.within(setting, sizes)
        return None if found is None else found.seconds

    def within(self, setting: Setting, sizes: ArrayLike) -> BoundedTimes | None:
        """Return a collective's predicted times [s], with bounds if card counts or the peak bandwidth are unknown.

        Above the measured sizes, the times of the models are mixed with a power of the size whose exponent is in the
        middle of the possible ones; the less `growth` shows a limit by bandwidth, the more the power counts.
        """
        asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
        seen = self.growth(setting)
        beyond = asked > seen.largest
        if seen.by_power == 1 or not beyond.any():
            return self._within(setting, asked)
        found = self._within(setting, np.append(asked, seen.largest))
        if found is None:
            return None
        (seconds, least, most), end = (one[:-1] for one in found[:3]), BoundedTimes(*(one[-1] for one in found[:3]))
        ratio = np.maximum(asked / seen.largest, 1.0)
        middle, trust = end.seconds * ratio ** ((seen.power + 1) / 2), seen.trust(ratio)
        seconds = np.where(beyond, seconds**trust * middle ** (1 - trust), seconds)
        least = np.where(beyond, end.least * ratio**seen.power, least)
        most = np.where(beyond, end.most * ratio, most)
        return BoundedTimes(seconds, np.minimum(seconds, least), np.maximum(seconds, most))

    def growth(self, setting: Setting) -> TimeGrowth:
        """Return how time grows with size at the largest measured size, by the curves nearest to a setting."""
        near = self.near(setting)
        if not near:
            return TimeGrowth(math.inf, 1.0, 1.0, 1.0)
        largest = max(one.largest for one in near)
        found = max((_growth_of_curve(one) for one in near if one.largest == largest), key=lambda one: one[2:])
        # Models of a measured curve were chosen by what they say of its largest size, too.
        return found._replace(by_bytes=1.0) if near[0].setting == setting else found

    def _within(self, setting: Setting, asked: Floats) -> BoundedTimes | None:
        """Return a collective's median, least and largest times [s] over the possible numbers of cards."""
        family = self.family(setting)
        known = next((one for one in family if one.setting == setting), None)
        found = [] if known is not None else self.by_cards(setting, asked)
        if not found:
            if known is None and self.unmeasured_inside(setting):
                return self._within_bounds_inside(family, setting, asked)
            alone = self._elsewhere(family, setting, asked, self.steps) if known is None else known.at(asked)
            return None if alone is None else BoundedTimes(alone, alone, alone)
        chances, times = np.array([one.chance for one, _ in found]), np.array([seconds for _, seconds in found])
        order = np.argsort(times, axis=0, kind="stable")
        middle = (np.cumsum(chances[order], axis=0) < chances.sum() / 2).sum(axis=0)
        columns = np.arange(len(asked))
        median = times[order[middle, columns], columns]
        return BoundedTimes(median, times.min(axis=0), times.max(axis=0))

    def unmeasured_inside(self, setting: Setting) -> bool:
        """Return whether a setting is on one node, though nothing was measured inside a node."""
        return setting.nodes == 1 and self.steps is not None and not self.steps.measured_inside

    def _within_bounds_inside(
        self, family: Sequence[FittedCurve], setting: Setting, asked: Floats
    ) -> BoundedTimes | None:
        """Return times [s] on one node, with bounds as its inner bandwidth is not measured; None if unpredictable."""
        assert self.steps is not None
        each = [self._elsewhere(family, setting, asked, one) for one in self.steps.inside()]
        slow, usual, fast = each
        return None if slow is None or usual is None or fast is None else BoundedTimes(usual, fast, slow)

    def by_cards(self, setting: Setting, sizes: ArrayLike) -> list[tuple[node_cards.CardCount, Floats]]:
        """Return predicted times [s] at sizes [byte] for each possible number of cards per node.

        Empty if the setting cannot be predicted, or has as many ranks per node as all measurements.
        """
        family = self.family(setting)
        if self.steps is None or len(self.cards) == 1 or any(one.setting == setting for one in family):
            return []
        each = {one.ranks / one.nodes for one in (setting, *(one.setting for one in family)) if one.nodes > 1}
        if setting.nodes == 1 or each <= {self.each}:
            return []
        asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
        steps = [self.steps.as_if(one.number, self.each) for one in self.cards]
        found = [self._elsewhere(family, setting, asked, one) for one in steps]
        return [(one, seconds) for one, seconds in zip(self.cards, found, strict=True) if seconds is not None]

    def _elsewhere(
        self, family: Sequence[FittedCurve], setting: Setting, asked: Floats, steps: StepModel | None
    ) -> Floats | None:
        """Return times [s] of an unmeasured setting, by costs of `steps` and the collective's curves `family`."""
        model = self if steps is self.steps else replace(self, steps=steps)
        stepped = None if steps is None else steps.at(setting, asked)
        if family:
            return model._over_ranks(family, setting, asked, stepped)
        if stepped is None:
            return stepped
        found = stepped if self.transfer == "steps" else stepped * model._factor_at_others(setting, asked)
        ruled = self._by_bus_bandwidth(setting, asked)
        if ruled is None:
            return found
        share = _MOST_BY_RULE * asked / (asked + _BANDWIDTH) * self._misfit / (self._misfit + _MISFIT)
        return np.asarray(found ** (1 - share) * ruled**share)

    def _by_bus_bandwidth(self, setting: Setting, asked: Floats) -> Floats | None:
        """Return times [s] at the mean bus bandwidth of other collectives on equal ranks and nodes; None if unknown."""
        wanted = bus_factor(setting.collective, setting.ranks)
        here = [one for one in self.known if (one.ranks, one.nodes) == (setting.ranks, setting.nodes)]
        known = [(one, bus_factor(one.collective, one.ranks)) for one in here if one.setting.family in _RULED]
        logs = [np.log(wanted / factor * one.through(asked)) for one, factor in known if wanted and factor]
        return np.exp(np.mean(logs, axis=0)) if logs else None

    @cached_property
    def _misfit(self) -> float:
        """Mean absolute log ratio of measured times to times by the step model; 0 if the step model covers no curve."""
        found = [self._log_errors([one], np.geomspace(one.smallest, one.largest, _SIZES)) for one in self.known]
        return float(np.mean([np.abs(one) for one in found if one is not None] or 0.0))

    def _over_ranks(
        self, family: Sequence[FittedCurve], setting: Setting, asked: Floats, stepped: Floats | None
    ) -> Floats:
        """Return times [s] for an unmeasured number of ranks, from the collective's curves on other numbers."""
        ranks, corrected = [one.setting.ranks for one in family], None
        if stepped is not None and (log_errors := self._log_errors(family, asked)) is not None:
            corrected = stepped * np.exp(_interpolate_ranks(family, log_errors, setting))
            # No curve of several nodes has the bytes inside a node.
            alone = setting.nodes == 1 and self._counts_like_nccl and min(one.setting.nodes for one in family) > 1
            if self.ranks_by == "steps" or len(set(ranks)) == 1 or alone:
                return corrected
        if self.ranks_by == "interpolation" and self.between(family, setting):
            return np.exp(_interpolate_ranks(family, [np.log(one.through(asked)) for one in family], setting))
        settings, times = [one.setting for one in family], [one.through for one in family]
        chunked, nccl = self._chunked(setting), self._counts_like_nccl
        cards = CARD_PER_RANK if self.steps is None else self.steps.cards
        found = scale_over_ranks(settings, times, setting, asked, chunked=chunked, nccl=nccl, cards=cards)
        if corrected is None or self.between(family, setting):
            return found
        # The further the ranks are outside, the more the step model counts, up to a half.
        share = min(0.25 * min(abs(math.log2(setting.ranks / one)) for one in ranks), 0.5)
        return found ** (1 - share) * corrected**share

    @property
    def _counts_like_nccl(self) -> bool:
        return self.steps is not None and self.steps.nccl

    def _chunked(self, setting: Setting) -> bool:
        """Return whether curves on different numbers of ranks are compared at equal bytes per rank, as in rings."""
        rings = setting.algorithm.casefold().startswith("ring") or self._counts_like_nccl
        return rings and setting.collective in CHUNKED_COLLECTIVES

    @staticmethod
    def between(family: Sequence[FittedCurve], setting: Setting) -> bool:
        """Return whether a setting's number of ranks is within the range of ranks of the curves `family`."""
        ranks = [one.setting.ranks for one in family]
        return min(ranks) <= setting.ranks <= max(ranks)

    def widening(self, setting: Setting) -> float:
        """Return the factor, at least 1, by which to widen an interval when extrapolating in ranks.

        Errors are taken to add up like a random walk over doublings of the ranks: the factor is the square root of the
        number of doublings.
        """
        family = self.family(setting)
        if not family or self.between(family, setting):
            return 1.0
        return math.sqrt(max(min(abs(math.log2(setting.ranks / one.setting.ranks)) for one in family), 1.0))

    def _log_errors(self, family: Sequence[FittedCurve], asked: Floats) -> list[Floats] | None:
        """Return log(curve / step model) of times at sizes `asked`, by curve; None if the model lacks a curve."""
        bases = [None if self.steps is None else self.steps.at(one.setting, asked) for one in family]
        found = [np.log(one.through(asked) / base) for one, base in zip(family, bases, strict=True) if base is not None]
        return found if len(found) == len(family) else None

    def _factor_at_others(self, setting: Setting, asked: Floats) -> Floats:
        """Return the ratio of measured times to times by the step model, a geometric mean over measured collectives."""
        names = sorted({one.setting.family for one in self.known})
        families = [[one for one in self.known if one.setting.family == name] for name in names]
        known = [(family, off) for family in families if (off := self._log_errors(family, asked)) is not None]
        found = [_interpolate_ranks(family, log_errors, setting) for family, log_errors in known]
        return np.exp(np.mean(found, axis=0)) if found else np.ones(len(asked))


# With which power of the size times grow that tell nothing of bandwidth, and all that there is to tell; over how many
# times of it; by how much at least, as noise grows as well; and up to how many times of the largest size it goes on.
_FLAT, _TOLD, _SPAN, _SEEN, _GOES_ON = 0.1, 0.4, 4.0, 0.02, 16.0
# Collectives from which the rule of the bus factor predicts others, and its share: at most, half of it at a size [byte]
# where bandwidth begins to be most of the time and at a misfit of the step model. On eleven public sets the medians of
# collectives left out are 22 % from 1 to 64 MB and 18 % above without it (90 % within 70 and 47 %), with it 19 and 17
# (50 and 49 %), and no worse where the step model fits; a third in place of a half is as good.
_RULED = tuple((name, "", "") for name in ("all_reduce", "all_gather", "reduce_scatter"))
_MOST_BY_RULE, _BANDWIDTH, _MISFIT = 0.5, 2.0**21, 0.1
# Sizes at which the misfit of a curve is looked at.
_SIZES = 16
# By which power of its misfit a number of cards is less likely, so that one that fits twice as well all but decides;
# and the misfit of a step model that fits exactly.
_TELLING, _LEAST_MISFIT = 5, 0.01


def fit_predictor(
    curves: Sequence[Curve],
    curve_model: str = "interpolated",
    nccl: bool = False,
    transfer: Transfer = "steps",
    *,
    weights: Mapping[Setting, Mapping[str, float]] | None = None,
    with_steps: bool = True,
) -> Predictor:
    """Fit a predictor of times to the curves of a system; `transfer` is the method for unmeasured collectives.

    With `nccl`, steps are counted as NCCL does. `weights` are those of the models of each curve (default: `curve_model`
    alone). Without `with_steps`, other collectives are not predicted.
    """
    known = []
    for one in curves:
        named = (
            {curve_model: 1.0}
            if weights is None
            else {"interpolated": 0.0, **weights.get(one.setting, {curve_model: 1.0})}
        )
        models, count = fit_mixture(one.sizes, one.seconds, named), len(one.sizes)
        low, high, setting = float(one.sizes[0]), float(one.sizes[-1]), asdict(one.setting)
        known.append(FittedCurve(**setting, smallest=low, largest=high, measured_sizes=count, models=models))
    cards, steps = node_cards.RAIL_CARDS, None
    if with_steps:
        cards, steps = _fit_cards(curves) if nccl else (cards, fit_step_model(curves, nccl))
    each = node_cards.node_rate(curves)[1] if nccl else 1.0
    return Predictor(curve_model, transfer, tuple(known), steps, cards, each)


def _fit_cards(curves: Sequence[Curve]) -> tuple[tuple[node_cards.CardCount, ...], StepModel | None]:
    """Return possible numbers of network cards per node, and NCCL's costs per step and byte for the likeliest one."""
    settings = [one.setting for one in curves]
    several = len({one.ranks / one.nodes for one in settings if 1 < one.nodes <= one.ranks}) > 1
    cards = node_cards.likely_card_counts(curves, 0.0 if several else node_cards.LEAST_CHANCE)
    if not several:
        return cards, fit_step_model(curves, True, cards[0].number)
    fits = {one.number: fit_step_model(curves, True, one.number) for one in cards}
    misfits = {count: _fit_error(one, curves) for count, one in fits.items() if one is not None}
    if not misfits:
        return node_cards.RAIL_CARDS, None
    found = node_cards.normalise_chances({one.number: one.chance * misfits[one.number] ** -_TELLING for one in cards})
    return found, fits[found[0].number]


def _fit_error(steps: StepModel, curves: Sequence[Curve]) -> float:
    """Return the mean absolute log ratio of times by fitted costs per step and byte to measured times."""
    said = [(one, steps.at(one.setting, one.sizes)) for one in curves]
    off = [np.abs(np.log(found / one.seconds)) for one, found in said if found is not None]
    return max(float(np.concatenate(off).mean()), _LEAST_MISFIT)


def _interpolate_ranks(family: Sequence[FittedCurve], values: Sequence[Floats], setting: Setting) -> Floats:
    """Return values interpolated linearly over log(ranks), and constant outside the measured range."""
    ranks, places = np.unique([one.setting.ranks for one in family], return_inverse=True)
    means = np.array([np.mean(np.array(values)[places == place], axis=0) for place in range(len(ranks))])
    return np.array([np.interp(np.log(setting.ranks), np.log(ranks), column) for column in means.T])
