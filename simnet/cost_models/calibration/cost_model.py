"""The calibrated cost model of a system: times of collectives with prediction intervals, and notes on extrapolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, get_args

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.errors import InputError, suggest_names
from simnet.base.units import format_bytes
from simnet.cost_models.calibration import specification
from simnet.cost_models.calibration.crossval import ModelChoice, choose_models, mean_log_error
from simnet.cost_models.calibration.curves import Curve, Setting
from simnet.cost_models.calibration.platform import Platform
from simnet.cost_models.calibration.predictor import BoundedTimes, FittedCurve, Predictor
from simnet.cost_models.calibration.step_model import MAX_RANKS, PROTOCOLS, known_algorithms
from simnet.cost_models.evidence.intervals import Basis, bin_of, corrected, intervals

NOT_MEASURED_INSIDE = "inside a node nothing was measured"
"""Why a time on one node is hardly known if all logs are of several nodes."""

_OTHER_RANKS = "other numbers of ranks or nodes"

DEFAULT_COVERAGE = 0.9
"""Share of measurements that prediction intervals shall hold."""


class Prediction(NamedTuple):
    """A predicted time [s] and its prediction interval [s]; `why` explains in words what the prediction rests on.

    `kind` says which errors the interval comes from: ``sizes``, ``ranks``, ``beyond``, ``collectives`` or
    ``specified``. `least` [s] is a lower bound for any links between the ranks.
    """

    seconds: float
    low: float
    high: float
    extrapolates: bool
    why: str
    kind: str = "sizes"
    least: float = 0.0

    def corrected(self) -> Prediction:
        """Return the prediction with its interval corrected by the errors observed on other clusters."""
        low, high = corrected(self.kind, *np.array(self[:3]))
        return self._replace(low=max(float(low), self.least), high=float(high))


@dataclass(eq=False)
class CalibratedCostModel:
    """A cost model fitted to measurements of one system; it predicts times of collectives with intervals.

    `intervals` are half-widths by basis of a prediction and bin of sizes, `held_out` the predictions behind each,
    `scores` the mean errors of models. `sources`, `system` and `topology` say what was measured; `network` has the
    links of simulations [s], [byte/s], `stack` the transport stack ("" if not known), `eager` whether its limit was
    raised.
    """

    model: Predictor
    intervals: dict[Basis, list[tuple[float, float]]]
    held_out: dict[Basis, int]
    scores: dict[str, float]
    coverage: float = DEFAULT_COVERAGE
    sources: Sequence[str] = ()
    system: str = ""
    topology: str = ""
    network: dict[str, dict[str, int | float]] | None = None
    stack: str = ""
    eager: bool = False

    @property
    def platform(self) -> Platform | None:
        """The platform whose specification alone gives the model; None if the model is fitted to measurements."""
        return self.model.steps.platform if isinstance(self.model.steps, specification.SpecifiedStepModel) else None

    def predict(
        self,
        collective: str,
        ranks: int,
        nbytes: float,
        *,
        nodes: int | None = None,
        algorithm: str | None = None,
        protocol: str | None = None,
        strict: bool = False,
    ) -> Prediction:
        """Return the time of a collective of `nbytes` bytes, counted as in nccl-tests, with its prediction interval.

        Nodes, algorithm and protocol are by default those that were measured. Raises InputError if nothing is known, a
        value is out of range, or it would extrapolate and is `strict`.
        """
        if not (math.isfinite(nbytes) and nbytes > 0):
            raise InputError(f"must be a finite number of bytes > 0, got {nbytes}", field="nbytes")
        if not 1 <= ranks <= 10**7:
            raise InputError(f"must be a whole number from 1 to 10,000,000, got {ranks}", field="ranks")
        if nodes is not None and not 1 <= nodes <= ranks:
            raise InputError(f"must be a whole number from 1 to {ranks:,}, the ranks, got {nodes}", field="nodes")
        setting = self._setting(collective, ranks, nodes, algorithm, protocol)
        found = self.times(setting, np.array([nbytes]))
        if found is None:
            raise self._unknown(setting)
        seconds, low, high, least = (float(np.squeeze(one)) for one in found)
        if not 0 < seconds < math.inf:
            raise InputError(f"{setting}, {nbytes:g} bytes have no time that can be predicted, but {seconds:g} s")
        basis = self.model.basis(setting)
        kind = "specified" if self.platform is not None else self._interval_basis(setting, basis)
        reasons = self._extrapolated(setting, basis, nbytes)
        if strict and reasons:
            raise InputError(f"{setting}, {nbytes:g} bytes would be an extrapolation: {'; '.join(reasons)}")
        what = {"sizes": "the curve itself", "collectives": "other collectives"}.get(basis, _OTHER_RANKS)
        if self.platform is not None:
            what = f"the specification of {self.platform.name} alone"
        why = "; ".join([f"from {what}", *reasons])
        return Prediction(seconds, low, high, bool(reasons), why, kind, least)

    def times(self, setting: Setting, sizes: Floats) -> BoundedTimes | None:
        """Return a collective's times [s], with bounds, at sizes [byte] as in nccl-tests; None if unpredictable."""
        basis, platform = self.model.basis(setting), self.platform
        known = self.model.within if platform is None else partial(specification.specified_bounds, platform)
        found = known(setting, sizes)
        if found is None:
            return None
        bounds = np.array(self.intervals[self._interval_basis(setting, basis)])[bin_of(sizes)]
        below, above = bounds.T * self.model.widening(setting) * self._size_widening(setting, sizes)
        low = np.maximum(found.least * np.exp(-below), found.floor)
        return BoundedTimes(found.seconds, low, found.most * np.exp(above), found.floor)

    def fastest(
        self, collective: str, algorithm: str, ranks: int, nbytes: float, *, nodes: int | None = None
    ) -> Prediction:
        """Return the predicted time of a call by `algorithm` if measured, else by the fastest measured algorithm."""
        ways = self._variants(collective, algorithm)
        found = [self.predict(collective, ranks, nbytes, nodes=nodes, algorithm=a, protocol=b) for a, b in ways]
        return min(found, key=lambda one: one.seconds)

    def _variants(self, collective: str, algorithm: str) -> list[tuple[str | None, str | None]]:
        """Return the (algorithm, protocol) pairs to compare for a call; None means that the library chooses."""
        families = {one.setting.family[1:] for one in self.model.known if one.setting.collective == collective}
        own = {one for one in families if one[0].casefold() == algorithm}
        if not families and algorithm in known_algorithms() and any(one.setting.algorithm for one in self.model.known):
            own = {(algorithm, "")}
        return [(one or None, protocol or None) for one, protocol in sorted(own or families or {("", "")})]

    def _interval_basis(self, setting: Setting, basis: Basis) -> Basis:
        """Return `basis`, but "beyond" in place of "ranks" if nodes or ranks per node are out of the measured range."""
        return "beyond" if basis == "ranks" and self._unlike_nodes(setting) else basis

    def pinned(self, name: str) -> list[str]:
        """Return the sorted algorithms (`name` "algorithm") or protocols ("protocol") whose times can be predicted."""
        known = known_algorithms() if name == "algorithm" else PROTOCOLS
        return sorted({*known, *(getattr(one.setting, name) for one in self.model.known)} - {""})

    def refuse_unknown(self, algorithm: str | None, protocol: str | None) -> None:
        """Raise InputError for an unknown algorithm or protocol."""
        for name, value in (("algorithm", algorithm), ("protocol", protocol)):
            known = self.pinned(name)
            if value is not None and value.casefold() not in map(str.casefold, known):
                raise InputError(f"there is no {name} {value!r}; {suggest_names(value, known)}")

    def _setting(
        self, collective: str, ranks: int, nodes: int | None, algorithm: str | None, protocol: str | None
    ) -> Setting:
        """Return the setting (collective, ranks, nodes, ...) to predict; missing values come from measured ones."""
        given = {"algorithm": algorithm, "protocol": protocol}
        named = {"collective": collective, **{name: value for name, value in given.items() if value is not None}}
        known = [one.setting for one in self.model.known]
        matching = [one for one in known if all(getattr(one, name) == value for name, value in named.items())]
        words = {}
        for name, value in given.items():
            choices = {getattr(one, name) for one in matching}
            if value is None and len(choices) > 1 and "" not in choices:
                listed = ", ".join(sorted(choices))
                raise InputError(f"several were measured of {collective}: {listed}; name one", field=name)
            words[name] = value if value is not None else "" if len(choices) != 1 else choices.pop()
        if self.platform is not None:
            least = self.platform.nodes(ranks)
            if nodes is not None and nodes < least:
                what = f"{ranks} ranks need {least} nodes of {self.platform.name}"
                raise InputError(f"{what}, got {nodes}", field="nodes")
            nodes = nodes or least
        if nodes is None:
            family = [one for one in matching if (one.algorithm, one.protocol) == tuple(words.values())] or known
            same = [one for one in family if one.ranks == ranks]
            close = min(family, key=lambda one: abs(math.log(one.ranks / ranks)))
            # As many ranks on each node as there; 0 if unknown.
            nodes = max(one.nodes for one in same) if same else -(-ranks * close.nodes // close.ranks)
        return Setting(collective, ranks, nodes, words["algorithm"], words["protocol"])

    def _unknown(self, setting: Setting) -> InputError:
        name = setting.collective
        known = {one.setting.collective for one in self.model.known}
        known |= set(() if self.model.steps is None else specification.SPECIFIED_COLLECTIVES)
        if name not in known:
            return InputError(f"nothing is known of {name!r}; {suggest_names(name, known)}", field="collective")
        some = "2 or more" if self.model.steps is not None and self.model.steps.nccl else f"2 to {MAX_RANKS:,}"
        return InputError(f"{name} was not measured; without, {some} are allowed, got {setting.ranks}", field="ranks")

    def _unlike_nodes(self, setting: Setting) -> bool:
        """Return whether nodes or ranks per node are outside the range measured for the same collective."""
        if not setting.nodes:
            return False
        known = [one for one in self.model.family(setting) if one.nodes]
        filled = [-(-setting.ranks * one.nodes // one.ranks) for one in known]
        ranges = [one.nodes for one in known], filled
        return not known or not all(min(one) <= setting.nodes <= max(one) for one in ranges)

    def _extrapolated(self, setting: Setting, basis: Basis, nbytes: float) -> list[str]:
        """Return the reasons, in words, why a prediction is an extrapolation; empty if it is not."""
        if self.platform is not None:
            mean = "on two nodes the mean of ring and tree, which sends less over a card"
            return ["nothing was measured", *([mean] if _is_ring_or_tree(self.platform, setting) else [])]
        family, reasons = self.model.family(setting), list[str]()
        if not family:
            return [f"{', '.join(filter(None, setting.family))} was not measured"]
        ranks = sorted({one.setting.ranks for one in family})
        if basis == "beyond":
            reasons.append(f"{_counted_of(setting.ranks, 'rank')}, measured: {_describe_range(ranks)}")
        elif basis == "ranks" and self._unlike_nodes(setting):
            asked = f"{_counted_of(setting.ranks, 'rank')} on {_counted_of(setting.nodes, 'node')}"
            reasons.append(f"{asked}, {_measured_nodes(family)}")
        if self.model.unmeasured_inside(setting):
            reasons.insert(0, NOT_MEASURED_INSIDE)
        low, high = self._measured(setting)
        if not low <= nbytes <= high:
            reasons.append(f"{format_bytes(nbytes)}, measured: {format_bytes(low)} to {format_bytes(high)}")
        return reasons

    def _measured(self, setting: Setting) -> tuple[float, float]:
        """Return the smallest and largest size [byte] measured in the settings most similar to `setting`."""
        near = self.model.near(setting)
        return min(one.smallest for one in near), max(one.largest for one in near)

    def _size_widening(self, setting: Setting, sizes: Floats) -> Floats:
        """Return the factors that widen intervals beyond the measured sizes: sqrt(1 + number of doublings)."""
        if self.platform is not None:
            return np.ones(len(sizes))
        low, high = self._measured(setting)
        doublings = np.maximum(np.log2(low / sizes), np.log2(sizes / high))
        return np.asarray(np.sqrt(1.0 + np.maximum(doublings, 0.0)))


def calibrate(
    curves: Sequence[Curve],
    *,
    coverage: float = DEFAULT_COVERAGE,
    sources: Sequence[str] = (),
    system: str = "",
    topology: str = "",
    chosen: ModelChoice | None = None,
) -> CalibratedCostModel:
    """Fit a cost model to one system's measured times; cross-validation chooses the model and gives intervals.

    `coverage` is the share of measurements that intervals shall hold, in (0, 1). Raises InputError without curves.

    Examples
    --------
    >>> sizes = 2.0 ** np.arange(10, 20)
    >>> model = calibrate([Curve(Setting("all_reduce", p), sizes, p * 1e-5 + sizes * 1e-9) for p in (4, 8, 16)])
    >>> round(model.predict("all_reduce", 8, 100_000).seconds, 6)
    0.00018
    """
    if not curves:
        raise InputError("there is no curve to calibrate on: no row has a size above 0 and a number of ranks")
    made = choose_models(curves) if chosen is None else chosen
    model = made.fitted(curves)
    bounds = intervals(made.held, coverage)
    counts = {basis: sum(len(one.sizes) for one in held) for basis, held in made.held.items()}
    scores = {name: mean_log_error(held) for name, held in made.by_curve_model.items() if held}
    return CalibratedCostModel(model, bounds, counts, scores, coverage, sources, system, topology)


def specified_cost_model(platform: Platform, coverage: float = DEFAULT_COVERAGE) -> CalibratedCostModel:
    """Return a cost model derived only from a platform specification; it marks all predictions as extrapolations."""
    bounds = specification.specified_half_widths(platform, coverage)
    intervals: dict[Basis, list[tuple[float, float]]] = dict.fromkeys(get_args(Basis), bounds)
    model = Predictor("interpolated", "steps", (), specification.specified_step_model(platform))
    held_out: dict[Basis, int] = dict.fromkeys(get_args(Basis), 0)
    held_out["collectives"] = specification.HELD_OUT_COUNTS[platform.counted]
    return CalibratedCostModel(model, intervals, held_out, {}, coverage, platform.sources, platform.description)


def _is_ring_or_tree(platform: Platform, setting: Setting) -> bool:
    """Return whether NCCL may choose between ring and tree for a setting: an all-reduce on two nodes."""
    nccl = platform.counted == "as NCCL does" and not setting.algorithm
    nodes = platform.nodes(setting.ranks, setting.nodes)
    return nccl and setting.collective == "all_reduce" and nodes == 2 < setting.ranks


def _counted_of(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _measured_nodes(family: Sequence[FittedCurve]) -> str:
    """Return a phrase that states the measured ranges of nodes and of ranks per node."""
    known = [one.setting for one in family if one.setting.nodes]
    if not known:
        return "on how many was measured is not known"
    nodes, each = {one.nodes for one in known}, {-(-one.ranks // one.nodes) for one in known}
    return f"measured: {_describe_range(sorted(nodes))}, with {_describe_range(sorted(each))} on each"


def _describe_range(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
