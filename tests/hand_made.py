"""Fitted curves, and predictors of them, made by hand."""

from dataclasses import asdict, replace

import numpy as np

from simnet.cost_models.calibration import Setting
from simnet.cost_models.calibration.cards import RAIL_CARDS
from simnet.cost_models.calibration.curves import CurveModel
from simnet.cost_models.calibration.predictor import FittedCurve, Predictor
from simnet.cost_models.calibration.step_model import StepModel, _allowed_protocols, count_steps

VALUES = (8e-6, 6e-7, 6e-6, 3e-12, 2e-11, 5e-14, 2.0, 4.0, 4.0, 1.07, 0.8, 1.6, 4e-6, 1.1, 1.1, 1.18)
NCCL, MPI = StepModel(True, VALUES), StepModel(False, VALUES)


def times_of_ways(model, setting, sizes):
    """Return the times of a step model by the algorithm and the protocol."""
    counted = count_steps(setting, model.nccl, model.switch, model.cards)
    ways = [
        f"{one.kind}, {protocol}" if model.nccl else f"{number}: {protocol}"
        for number, one in enumerate(counted)
        for protocol in _allowed_protocols(one, model.nccl, setting.protocol)
    ]
    return dict(zip(ways, model.by_algorithm(setting, sizes).T, strict=True))


def fitted(setting, shape, smallest=2.0**10, largest=2.0**30):
    models = (replace(shape, model="line"),)
    return FittedCurve(**asdict(setting), smallest=smallest, largest=largest, measured_sizes=10, models=models)


def flat(setting, seconds, **sizes):
    return fitted(setting, CurveModel(segments=((0.0, seconds, 0.0),)), **sizes)


def power(setting, exponent, largest=2.0**20, smallest=2.0**10):
    """Return a curve of a microsecond at one byte that grows with a power of the size."""
    points = tuple((size, 1e-6 * size**exponent) for size in (1.0, 2.0**40))
    return fitted(setting, CurveModel(points=points), smallest, largest)


def stepped(setting, steps, factor):
    """Return a curve that is a step model's times a factor, at sixteen sizes and straight in logarithms between."""
    sizes = np.geomspace(2.0**10, 2.0**30, 16)
    points = tuple(zip(sizes.tolist(), (factor * steps.at(setting, sizes)).tolist(), strict=True))
    return fitted(setting, CurveModel(points=points)), sizes


def predictor(*known, inside="scaling", transfer="steps", steps=None, cards=RAIL_CARDS, each=1.0):
    return Predictor("line", transfer, known, steps, cards, each, inside)


def reduce(ranks, nodes=None, algorithm=""):
    return Setting("all_reduce", ranks, ranks if nodes is None else nodes, algorithm)
