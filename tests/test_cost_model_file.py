"""Fabric files: which values a field may have, what stands for those that are left out, how one is written."""

import copy

import numpy as np
import pydantic
import pytest

from hand_made import MPI, NCCL, fitted, flat, predictor, reduce
from simnet.base.errors import InputError
from simnet.cost_models.calibration import CalibratedCostModel, load_cost_model
from simnet.cost_models.calibration.cards import CardCount
from simnet.cost_models.calibration.cost_model_file import (
    CostModelFile,
    _file_of,
    cost_model_of,
    cost_model_yaml,
    has_curves,
)
from simnet.cost_models.calibration.curves import CurveModel
from simnet.cost_models.calibration.platform import load_platform
from simnet.cost_models.calibration.step_model import CARD_PER_RANK, PARAMETERS, StepModel
from simnet.cost_models.evidence.intervals import BINS

BASES = ("sizes", "ranks", "beyond", "collectives")


def model(*known, **options):
    bounds = [(0.1 * number, 0.2 * number) for number in range(1, len(BINS) + 1)]
    known = known or (flat(reduce(4), 1e-5),)
    return CalibratedCostModel(predictor(*known, **options), dict.fromkeys(BASES, bounds), dict.fromkeys(BASES, 3), {})


def fields(**options):
    return _file_of(model(**options)).model_dump(mode="json")


def put(tree, path, value):
    """Return fields with another value at a path."""
    changed = copy.deepcopy(tree)
    *way, last = path
    at = changed
    for one in way:
        at = at[one]
    at[last] = value
    return changed


CURVE = ("curves", 0)
FIRST = (*CURVE, "models", 0, "segments", 0)


def test_models_are_of_files_or_platforms(tmp_path):
    assert cost_model_of("dgx-h100").platform == load_platform("dgx-h100")
    path = tmp_path / "fabric.yaml"
    path.write_text(cost_model_yaml(model()), encoding="utf-8")
    assert cost_model_of(str(path)).platform is None
    plain = tmp_path / "fabric"
    plain.write_text(cost_model_yaml(model()), encoding="utf-8")
    assert cost_model_of(str(plain)).platform is None
    with pytest.raises(InputError, match="there is no such file, and no platform 'dgx-h10'; did you mean 'dgx-h100'"):
        cost_model_of("dgx-h10")
    with pytest.raises(InputError, match=r"other\.yaml: "):
        cost_model_of(str(tmp_path / "other.yaml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nversion: 1\n", ":2: version: must be 2, the version that is read, got 1"),
        ("a: 1\n", ":1: version: must be 2, the version that is read, got None"),
        (f"version: {'x' * 50}\n", f":1: version: must be 2, the version that is read, got {'x' * 40}"),
        ("version: 2\nmodel: lime\n", ":2: model: "),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, text, said):
    path = tmp_path / "fabric.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load_cost_model(path)
    told = str(refused.value)
    assert told == f"{path}{said}" or (said.endswith(" ") and told.startswith(f"{path}{said}"))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*CURVE, "models", 0, "points"), [[1.0, 1.0]], "needs either segments or points"),
        ((*CURVE, "models", 0, "segments"), [], "needs either segments or points"),
        ((*CURVE, "models", 0, "segments"), [[0, 1, 0], [0, 2, 0]], "segments must ascend in size"),
        ((*CURVE, "models", 0, "corrections"), [[2, 1], [1, 1]], "corrections must ascend in size"),
        ((*FIRST, 0), 1.0, "segments must begin at size 0, each with a latency or seconds per byte above 0"),
        ((*CURVE, "models", 0, "segments"), [[0, 1, 0], [5, 0, 0]], "each with a latency or seconds per byte above 0"),
        ((*CURVE, "models", 0, "weight"), 0.99, "weights of models must add to 1"),
        ((*CURVE, "smallest"), 2.0**31, "smallest must not be above largest"),
        (("steps", "cards"), [{"number": 1, "chance": 0.5}], "chances of cards must add to 1"),
        (("steps", "cards"), [{"number": 1, "chance": 0.5}] * 2, "names a number of cards twice"),
        (("steps", "cards"), [{"number": 1, "chance": 0.4}, {"number": 2, "chance": 0.6}], "begin with the likeliest"),
        (("steps", "parameters"), {}, f"lacks {', '.join(PARAMETERS)}"),
        (("intervals",), {}, f"intervals lack {', '.join(BASES)}"),
        (("curves",), [], "needs curves that were measured, or a platform"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(path, value, said):
    with pytest.raises(pydantic.ValidationError) as refused:
        CostModelFile.model_validate(put(fields(steps=MPI), path, value))
    assert said in str(refused.value)


def test_curves_are_of_different_settings():
    made = fields()
    with pytest.raises(pydantic.ValidationError, match="two curves are of the same setting"):
        CostModelFile.model_validate(put(made, ("curves",), made["curves"] * 2))


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (MPI, "through the schedule"), (NCCL, "as NCCL does"),
        (StepModel(True, NCCL.values, (0.5,) * 16, switch=True), "as NCCL does, with in-switch reduction"),
    ],
)  # fmt: skip
def test_a_file_comes_back_as_it_went(tmp_path, steps, said):
    shape = CurveModel(points=((1.0, 1e-6), (2.0**30, 1.0)), corrections=((1.0, 0.1), (8.0, -0.1)))
    cards = (CardCount(2.0, 0.75), CardCount(CARD_PER_RANK, 0.25))
    before = model(fitted(reduce(8, 2, "ring"), shape, 16.0, 1e9), steps=steps, cards=cards, each=4.0)
    before.stack, before.eager = "gloo", True
    before.network = {"star": {"hosts": 8, "latency": 1e-5, "bandwidth": 1e9}}
    path = tmp_path / "fabric.yaml"
    path.write_text(cost_model_yaml(before), encoding="utf-8")
    assert f"counted: {said}" in path.read_text(encoding="utf-8")
    after = load_cost_model(path)
    assert (after.stack, after.eager, after.network) == ("gloo", True, before.network)
    assert (after.model.cards, after.model.each, after.model.steps.cards) == (cards, 4.0, 2.0)
    assert (after.model.steps.nccl, after.model.steps.switch) == (steps.nccl, steps.switch)
    assert after.model.steps.values == steps.values
    assert after.model.steps.errors == (steps.errors or (0.0,) * len(PARAMETERS))
    assert (after.intervals, after.held_out) == (before.intervals, before.held_out)
    (one,), (other,) = before.model.known, after.model.known
    assert (one.setting, one.smallest, one.largest, one.measured_sizes) == (
        other.setting, other.smallest, other.largest, other.measured_sizes,
    )  # fmt: skip
    sizes = np.array([0.5, 3.0, 100.0])
    assert one.at(sizes).tolist() == other.at(sizes).tolist()
    assert has_curves(path)
