"""Calibrated cost models: measured times of collectives in, predictions of others out, with prediction intervals.

`readers` reads logs, `curves` makes curves of their rows, `curve_models` fits a single curve, `step_counts` and
`step_model` go through the schedules of algorithms, `rank_scaling` goes over numbers of ranks, `predictor` puts them
together, `crossval` judges them by what they were not fitted to, `intervals` says how far to believe them, `cost_model`
is all of it, `cost_model_file` its file. `platform` and `specification` do without measurements; `summary` is what
`simnet calibrate` shows; `software` carries it into simulations. See ``docs/calibration.md``.
"""

from simnet.calibration.cost_model import CalibratedCostModel, Prediction, calibrate, specified
from simnet.calibration.cost_model_file import cost_model_of, has_curves, load_cost_model, written
from simnet.calibration.crossval import choose
from simnet.calibration.curves import Curve, Setting, chosen_rows, curves_of, systems
from simnet.calibration.software import CalibratedSoftware

__all__ = [
    "CalibratedCostModel",
    "CalibratedSoftware",
    "Curve",
    "Prediction",
    "Setting",
    "calibrate",
    "choose",
    "chosen_rows",
    "cost_model_of",
    "curves_of",
    "has_curves",
    "load_cost_model",
    "specified",
    "systems",
    "written",
]
