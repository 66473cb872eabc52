"""Baseline predictions of held-out measurements from the other measured curves: rules and two learned models.

A rival takes the curves that are kept and the sizes and setting of one that is left out. No choice in them depends on
the set of measurements. The *five-line rules* are what anybody writes first:

- another size: the straight line between neighbouring sizes in logarithms (`log_log`);
- another number of ranks: the curve of the nearest number (`nearest`), that by the ratio of bus factors
  (`nearest_by_bus_factor`), and the straight line between neighbouring numbers in logarithms (`log_log`), which beyond
  the last goes on;
- another collective: the all-reduce on the same ranks, else the nearest, by the ratio of bus factors
  (`rule_of_bus_factor`).

Between sizes, each takes the line in logarithms. The learned ones are scikit-learn's: a *Gaussian process* with a
linear trend, a Matern kernel of a length for each input and noise, all fitted by the marginal likelihood, and *gradient
boosting* of regression trees. They see the logarithms of size times bus factor, ranks and nodes, and which collective,
algorithm and protocol it is, and predict the logarithm of the time. The process is of the curve alone where its sizes
are left out, of all numbers of ranks of a collective where one is, and of everything where a collective is; boosting is
of everything.

References
----------
C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006. J. H. Friedman, "Greedy
function approximation: a gradient boosting machine", Annals of Statistics 29, 2001.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import TypeAlias

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.calibration.curves import Curve, Setting, fit_log_log
from simnet.cost_models.calibration.readers import bus_factor

NEIGHBOURS = "log_log"
"""Baseline: log-log interpolation between neighbouring sizes or numbers of ranks."""

NEAREST = "nearest"
"""Baseline: the curve of the nearest number of ranks."""

NEAREST_BY_BUS = "nearest_by_bus_factor"
"""Baseline: the curve of the nearest number of ranks, scaled by the ratio of bus factors."""

RULE = "rule_of_bus_factor"
"""Baseline: the all-reduce curve, scaled by the ratio of bus factors."""

LEARNED = ("gaussian_process", "gradient_boosting")
"""Baselines that need scikit-learn."""

RIVALS = (NEIGHBOURS, NEAREST, NEAREST_BY_BUS, RULE, *LEARNED)
"""The names of all baselines."""

# The most measurements of a Gaussian process, evenly taken: its cost grows with the third power.
_MOST = 150
# Of gradient boosting, in place of 20: there is one measurement for each size.
_LEAVES = 3

Rival: TypeAlias = Callable[[Curve], Floats]


def rival_times(
    split: str, kept: Sequence[Curve], held: Sequence[Curve], *, learned: bool = False
) -> list[dict[str, Floats]]:
    """Return the times that each baseline predicts for each held-out curve [s]: a dictionary per curve.

    Returns
    -------
    list of dict of str to ndarray of float, shape (n,)
        Times [s]; NaN where a rival says nothing.
    """
    found, like = [], _LIKE[split]
    process = cache(lambda key: gaussian_process([one for one in kept if like(one.setting) == key]))
    boosted = gradient_boosting(kept) if learned and held else None
    for one in held:
        said = {name: rule(kept, one) for name, rule in RULES[split].items()}
        if boosted is not None:
            said |= dict(zip(LEARNED, (process(like(one.setting))(one), boosted(one)), strict=True))
        found.append(said)
    return found


def installed() -> bool:
    """Return whether scikit-learn is installed, which the `LEARNED` baselines need."""
    return find_spec("sklearn") is not None


def gaussian_process(kept: Sequence[Curve]) -> Rival:
    """Return a Gaussian process, fitted to the logarithms of the times of at most 150 measurements."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern, WhiteKernel

    inputs = _ModelInputs(kept)
    known, logs = inputs.of(kept), np.log(np.concatenate([one.seconds for one in kept]))
    some = np.unique(np.linspace(0, len(logs) - 1, min(len(logs), _MOST)).round().astype(int))
    smooth = ConstantKernel() * Matern(np.ones(known.shape[1]), nu=1.5)
    model = GaussianProcessRegressor(smooth + DotProduct() + WhiteKernel(1e-2), normalize_y=True, random_state=0)
    with warnings.catch_warnings():
        # An input that does not matter has a length at the end of its range.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(known[some], logs[some])
    return lambda one: np.asarray(np.exp(model.predict(inputs.of([one]))))


def gradient_boosting(kept: Sequence[Curve]) -> Rival:
    """Return boosted regression trees, fitted to the logarithms of the times of all measurements."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    inputs = _ModelInputs(kept)
    model = HistGradientBoostingRegressor(min_samples_leaf=_LEAVES, early_stopping=False, random_state=0)
    model.fit(inputs.of(kept), np.log(np.concatenate([one.seconds for one in kept])))
    return lambda one: np.asarray(np.exp(model.predict(inputs.of([one]))))


class _ModelInputs:
    """Inputs of learned models, standardised over the fitted curves; inputs that are constant there are left out."""

    def __init__(self, kept: Sequence[Curve]) -> None:
        self.families = [sorted({one.setting.family[part] for one in kept}) for part in range(3)]
        raw = self._raw(kept)
        self.mean, self.deviation = raw.mean(axis=0), raw.std(axis=0)
        # One is kept where all are constant, as for a single measurement.
        self.telling = (self.deviation > 1e-9) | (np.arange(raw.shape[1]) == 0)
        self.deviation[self.deviation <= 1e-9] = 1.0

    def of(self, curves: Sequence[Curve]) -> Floats:
        """Return the standardised inputs of curves, one row per size."""
        return np.asarray(((self._raw(curves) - self.mean) / self.deviation)[:, self.telling])

    def _raw(self, curves: Sequence[Curve]) -> Floats:
        rows = []
        for one in curves:
            setting = one.setting
            factor = bus_factor(setting.collective, setting.ranks) or 1.0
            named = [float(setting.family[part] == name) for part in range(3) for name in self.families[part]]
            fixed = [math.log(setting.ranks), math.log(max(setting.nodes, 1)), *named]
            rows += [[math.log(size * factor), *fixed] for size in one.sizes.tolist()]
        return np.array(rows)


def _neighbouring_sizes(kept: Sequence[Curve], held: Curve) -> Floats:
    same = [one for one in kept if one.setting == held.setting]
    return fit_log_log(same[0].sizes, same[0].seconds).at(held.sizes)


def _by_ranks(kept: Sequence[Curve], held: Curve) -> dict[int, Floats]:
    """Return log times of curves like `held` by ascending number of ranks, averaged over numbers of nodes."""
    family = [one for one in kept if one.setting.family == held.setting.family]
    return {
        ranks: np.mean([_log_curve(one, held.sizes) for one in family if one.setting.ranks == ranks], axis=0)
        for ranks in sorted({one.setting.ranks for one in family})
    }


def _neighbouring_ranks(kept: Sequence[Curve], held: Curve) -> Floats:
    found = _by_ranks(kept, held)
    ranks, logs, at = np.log(list(found)), np.array(list(found.values())), math.log(held.setting.ranks)
    if len(ranks) == 1:
        return np.asarray(np.exp(logs[0]))
    first = int(np.clip(np.searchsorted(ranks, at) - 1, 0, len(ranks) - 2))
    share = (at - ranks[first]) / (ranks[first + 1] - ranks[first])
    return np.asarray(np.exp(logs[first] + share * (logs[first + 1] - logs[first])))


def _nearest_ranks(kept: Sequence[Curve], held: Curve, *, by_bus: bool = False) -> Floats:
    """Return times at the nearest measured number of ranks [s]; `by_bus` scales them by bus factors."""
    found, setting = _by_ranks(kept, held), held.setting
    nearest = _nearest(list(found), setting)
    logs = [found[ranks] + (_log_ratio(setting.collective, ranks, setting) if by_bus else 0.0) for ranks in nearest]
    return np.asarray(np.exp(np.mean(logs, axis=0)))


def _rule_of_bus_factor(kept: Sequence[Curve], held: Curve) -> Floats:
    """Return times of all-reduce at the nearest number of ranks, scaled by bus factors (nccl-tests) [s]."""
    setting = held.setting
    reduced = [one for one in kept if one.setting.collective == "all_reduce"]
    nearest = _nearest([one.setting.ranks for one in reduced], setting)
    reduced = [one for one in reduced if one.setting.ranks in nearest]
    reduced = [one for one in reduced if one.setting.nodes == setting.nodes] or reduced
    reduced = [one for one in reduced if one.setting.family[1:] == setting.family[1:]] or reduced
    logs = [_log_curve(one, held.sizes) + _log_ratio("all_reduce", one.setting.ranks, setting) for one in reduced]
    return np.asarray(np.exp(np.mean(logs, axis=0))) if logs else np.full(len(held.sizes), math.nan)


def _nearest(known: Sequence[int], asked: Setting) -> list[int]:
    """Return the measured number of ranks nearest to the requested number on a log scale, or both on a tie."""
    off = {ranks: abs(math.log(ranks / asked.ranks)) for ranks in known}
    return [ranks for ranks, one in off.items() if one <= min(off.values()) + 1e-9]


def _log_ratio(collective: str, ranks: int, asked: Setting) -> float:
    """Return log(bus factor of `asked` / bus factor of the collective on `ranks`), by nccl-tests; NaN if unknown."""
    known, wanted = bus_factor(collective, ranks), bus_factor(asked.collective, asked.ranks)
    return math.log(wanted / known) if known and wanted else math.nan


def _log_curve(curve: Curve, sizes: Floats) -> Floats:
    return np.log(fit_log_log(curve.sizes, curve.seconds).at(sizes))


RULES: dict[str, dict[str, Callable[[Sequence[Curve], Curve], Floats]]] = {
    "sizes": {NEIGHBOURS: _neighbouring_sizes},
    "ranks": {
        NEIGHBOURS: _neighbouring_ranks,
        NEAREST: _nearest_ranks,
        NEAREST_BY_BUS: partial(_nearest_ranks, by_bus=True),
    },
    "collectives": {RULE: _rule_of_bus_factor},
}
"""Five-line rules by split and name."""

# Keys, by split, that the fitted curves share with the curve that a Gaussian process predicts.
_LIKE: dict[str, Callable[[Setting], Hashable]] = {
    "sizes": lambda one: one,
    "ranks": lambda one: one.family,
    "collectives": lambda one: None,
}
