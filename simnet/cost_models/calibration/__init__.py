"""Calibrated cost models, which predict times of collectives with prediction intervals from measured times.

`readers` reads logs, `curves` makes curves of their rows and fits each, `step_model` counts schedules of algorithms,
`rank_scaling` extrapolates over numbers of ranks, `predictor` combines them, `crossval` judges them by held-out data,
`intervals` makes prediction intervals of that. `cost_model` is the whole, `cost_model_file` its file. `platform` and
`specification` need no measurements. See ``docs/calibration.md``.
"""

from simnet.base.lazy import lazy_names

_HOMES = {
    "cost_model": ("CalibratedCostModel", "Prediction", "calibrate", "specified_cost_model"),
    "cost_model_file": ("cost_model_of", "has_curves", "load_cost_model", "cost_model_yaml"),
    "crossval": ("choose_models",),
    "curves": ("Curve", "Setting", "chosen_rows", "curves_of", "split_systems"),
    "software": ("CalibratedSoftware",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)

# Who needs a reader, or a specification, does not wait for what fits curves.
__getattr__ = lazy_names(__name__, _HOMES)
