"""Calibrated cost models: measured times of collectives in, predictions of others with prediction intervals out.

`readers` reads logs, `curves` makes curves of their rows, `curve_models` fits a single curve, `step_counts` and
`step_model` count schedules of algorithms, `rank_scaling` extrapolates over numbers of ranks, `predictor` combines
them, `crossval` judges them by held-out data, `intervals` makes prediction intervals of that. `cost_model` is the
whole, `cost_model_file` its file. `platform` and `specification` need no measurements. See ``docs/calibration.md``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simnet.cost_models.calibration.cost_model import CalibratedCostModel as CalibratedCostModel
    from simnet.cost_models.calibration.cost_model import Prediction as Prediction
    from simnet.cost_models.calibration.cost_model import calibrate as calibrate
    from simnet.cost_models.calibration.cost_model import specified_cost_model as specified_cost_model
    from simnet.cost_models.calibration.cost_model_file import cost_model_of as cost_model_of
    from simnet.cost_models.calibration.cost_model_file import cost_model_yaml as cost_model_yaml
    from simnet.cost_models.calibration.cost_model_file import has_curves as has_curves
    from simnet.cost_models.calibration.cost_model_file import load_cost_model as load_cost_model
    from simnet.cost_models.calibration.crossval import choose_models as choose_models
    from simnet.cost_models.calibration.curves import Curve as Curve
    from simnet.cost_models.calibration.curves import Setting as Setting
    from simnet.cost_models.calibration.curves import chosen_rows as chosen_rows
    from simnet.cost_models.calibration.curves import curves_of as curves_of
    from simnet.cost_models.calibration.curves import split_systems as split_systems
    from simnet.cost_models.calibration.software import CalibratedSoftware as CalibratedSoftware

_HOMES = {
    "cost_model": ("CalibratedCostModel", "Prediction", "calibrate", "specified_cost_model"),
    "cost_model_file": ("cost_model_of", "has_curves", "load_cost_model", "cost_model_yaml"),
    "crossval": ("choose_models",),
    "curves": ("Curve", "Setting", "chosen_rows", "curves_of", "split_systems"),
    "software": ("CalibratedSoftware",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> object:
    # Who needs a reader, or a specification, does not wait for what fits curves.
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'simnet.cost_models.calibration' has no attribute {name!r}")
    found: object = getattr(import_module(f"simnet.cost_models.calibration.{home}"), name)
    return found
