"""Baseline predictions of held-out measurements by learned models of scikit-learn.

A *Gaussian process* with a linear trend, a Matern kernel with a length for each input, and noise, all fitted by the
marginal likelihood; and *gradient boosting* of regression trees. They see the logarithms of size times bus factor,
ranks and nodes, and the names of collective, algorithm and protocol, and predict the logarithm of the time. The process
is of the curve alone where its sizes are left out, of all numbers of ranks of a collective where one is, and of
everything where a collective is; boosting is of everything.

References
----------
C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006. J. H. Friedman, "Greedy
function approximation: a gradient boosting machine", Annals of Statistics 29, 2001.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.calibration.curves import Curve, Setting
from simnet.cost_models.calibration.readers import bus_factor
from simnet.validate.rivals import Rival

LEARNED = ("gaussian_process", "gradient_boosting")
"""The names of the baselines, which need scikit-learn."""

# The most measurements of a Gaussian process, evenly taken: its cost grows with the third power.
_MOST = 150
# Of gradient boosting, in place of 20: there is one measurement for each size.
_LEAVES = 3

# Keys, by split, that the fitted curves share with the curve that a Gaussian process predicts.
_LIKE: dict[str, Callable[[Setting], Hashable]] = {
    "sizes": lambda one: one,
    "ranks": lambda one: one.family,
    "collectives": lambda one: None,
}


def fit_learned(split: str, kept: Sequence[Curve]) -> Mapping[str, Rival]:
    """Return the learned baselines, fitted to the curves that a split keeps; none without scikit-learn."""
    if find_spec("sklearn") is None:
        return {}
    like = _LIKE[split]
    process = cache(lambda key: gaussian_process([one for one in kept if like(one.setting) == key]))
    return dict(zip(LEARNED, (lambda one: process(like(one.setting))(one), gradient_boosting(kept)), strict=True))


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
