"""From measured times to a fabric that predicts others, with intervals, and says where it extrapolates.

`curves` makes curves of tables, `shapes` fits a single curve, `steps` and `per_step` go through the schedules of
algorithms, `scaling` goes over numbers of ranks, `predictor` puts them together, `crossval` judges them by what they
were not fitted to, `intervals` says how far to believe them, `fabric` is all of it, `fabric_file` its file;
`specification` does without measurements. See ``docs/calibration.md``.
"""

from simnet.calibration.crossval import choose
from simnet.calibration.curves import Curve, Setting, chosen_rows, curves_of, systems
from simnet.calibration.fabric import Fabric, Prediction, calibrate, specified
from simnet.calibration.fabric_file import fabric_of, load_fabric, written

__all__ = [
    "Curve",
    "Fabric",
    "Prediction",
    "Setting",
    "calibrate",
    "choose",
    "chosen_rows",
    "curves_of",
    "fabric_of",
    "load_fabric",
    "specified",
    "systems",
    "written",
]
