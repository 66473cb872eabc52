"""Fabric files: which values a field may have, what stands for those that are left out, how one is written."""

import copy
import math

import numpy as np
import pydantic
import pytest

from hand_made import MPI, NCCL, fitted, flat, predictor, reduce
from simnet.base.errors import InputError
from simnet.cost_models.calibration import CalibratedCostModel, cost_model_file, load_cost_model
from simnet.cost_models.calibration.cards import CARD_PER_RANK, CardCount
from simnet.cost_models.calibration.cost_model_file import (
    CostModelFile,
    _file_of,
    cost_model_of,
    cost_model_yaml,
    has_curves,
)
from simnet.cost_models.calibration.curve_models import CurveModel
from simnet.cost_models.calibration.jitter import FittedJitter
from simnet.cost_models.calibration.platform import load_platform
from simnet.cost_models.calibration.step_model import PARAMETERS, StepModel
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


@pytest.mark.parametrize(
    ("path", "least", "most", "beyond"),
    [
        ((*CURVE, "smallest"), 1e-30, None, 0.9e-30), ((*CURVE, "largest"), None, 1e30, 1.1e30),
        ((*FIRST, 1), 1e-200, 1e30, 1.1e30), ((*FIRST, 2), 0.0, 1e30, -1e-300),
        ((*CURVE, "ranks"), 1, 10**7, 10**7 + 1), ((*CURVE, "nodes"), 0, 10**7, -1),
        (("steps", "parameters", "gamma", "value"), 1e-30, 1e30, 1.1e30),
        (("steps", "parameters", "gamma", "relative_error"), 0.0, 1e30, -1e-9),
        (("intervals", "ranks", "below", 0), 0.0, 50.0, 50.1), (("intervals", "ranks", "above", 0), 0.0, 50.0, -1e-9),
        (("network", "star", "latency"), 0.0, 1e30, -1e-9),
    ],
)  # fmt: skip
def test_numbers_have_bounds(path, least, most, beyond):
    made = fields(steps=MPI)
    made["network"] = {"star": {"latency": 1e-5}}
    for value in (least, most):
        if value is not None:
            CostModelFile.model_validate(put(made, path, value))
    with pytest.raises(pydantic.ValidationError):
        CostModelFile.model_validate(put(made, path, beyond))


MODEL = (*CURVE, "models", 0)
JITTER = {"median": 1e-6, "sigma": 0.5, "settings": 3, "repetitions": 60}


def cards(count):
    """Return so many numbers of cards that are as likely, as a file has them."""
    return [{"number": float(one), "chance": 1 / count} for one in range(1, count + 1)]


def halves(first, second=None):
    """Return two models whose weights are these, or add to 1."""
    line = {"model": "line", "segments": [[0, 1e-5, 0]]}
    return [line | {"weight": first}, line | {"weight": 1 - first if second is None else second}]


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ((*CURVE, "models"), [halves(0.5), halves(0.0), halves(0.5, 0.5 + 0.9e-6)],
         [halves(0.5, 0.5 + 1.1e-6), halves(-5e-7), halves(1 + 5e-7, 0.0), []]),
        ((*CURVE, "models"), [[halves(1 / 7)[0]] * 7], [[halves(1 / 8)[0]] * 8]),
        ((*CURVE, "measured_sizes"), [1], [0, 1.5]),
        ((*CURVE, "smallest"), [2.0**30], [2.0**30 + 1]),
        ((*CURVE, "ranks"), [1, 10**7], [0, 10**7 + 1]),
        ((*CURVE, "nodes"), [0, 10**7], [-1, 10**7 + 1]),
        ((*MODEL, "segments"), [[[one, 1, 1] for one in range(20_000)]], [[[one, 1, 1] for one in range(20_001)]]),
        ((*MODEL, "corrections"), [[[one, 1] for one in range(1, 10_001)]], [[[one, 1] for one in range(1, 10_002)]]),
        ((*MODEL, "corrections"), [[[1e-30, 1], [1e30, 1]]], [[[0.9e-30, 1]], [[1.1e30, 1]]]),
        ((*MODEL, "segments"), [[[0, 1e-9, 0]], [[0, 0, 1e-9]]], [[[0, 0, 0]], [[-1, 1, 0]]]),
        ((*MODEL, "model"), ["log_log"], ["log-log"]),
        (("steps", "cards"), [cards(1), cards(100)], [cards(101), []]),
        (("steps", "cards"), [[{"number": 10**6, "chance": 1}]],
         [[{"number": 10**6 + 1, "chance": 1}], [{"number": 0.9, "chance": 1}], [{"number": 1, "chance": 1 + 5e-7}],
          [{"number": 1, "chance": 1.0}, {"number": 2, "chance": 0.0}]]),
        (("steps", "cards"), [[{"number": 1, "chance": 1 - 0.9e-6}]], [[{"number": 1, "chance": 1 - 1.1e-6}]]),
        (("steps", "ranks_on_a_node"), [1, 10**7], [0.9, 10**7 + 1]),
        (("steps", "parameters", "gamma", "relative_error"), [0, 1e30], [-1e-9, 1.1e30]),
        (("intervals", "sizes", "held_out"), [0], [-1]),
        (("intervals", "sizes", "below"), [[0.0, 50.0, 1.0, 1.0]], [[1.0] * 3, [1.0] * 5]),
        (("intervals", "sizes", "above"), [[0.0, 50.0, 1.0, 1.0]], [[1.0] * 3, [1.0] * 5, [50.1, 1, 1, 1]]),
        (("coverage",), [1e-6, 1 - 1e-6], [0, 1]),
        (("scores",), [{"line": 0.0}, {"x" * 200: 1}], [{"line": -1e-9}, {"x" * 201: 1}]),
        (("sources",), [["x" * 1000] * 1000], [["x"] * 1001, ["x" * 1001]]),
        (("system",), ["x" * 1000], ["x" * 1001]),
        (("topology",), ["x" * 1000], ["x" * 1001]),
        (("stack",), ["", "gloo"], ["glo"]),
        (("version",), [1], [0, 2]),
        (("network",), [{"star": {"hosts": 3, "x" * 200: 1.5}}], [{"ring": {}}, {"star": {"x" * 201: 1}}]),
        (("jitter",), [JITTER, JITTER | {"sigma": 0, "settings": 1}, JITTER | {"sigma": 10, "repetitions": 1}],
         [JITTER | change for change in ({"median": 0}, {"sigma": -0.1}, {"sigma": 10.1}, {"settings": 0},
                                         {"repetitions": 0})]),
    ],
)  # fmt: skip
def test_what_a_field_may_be_and_what_it_may_not(path, good, bad):
    made = fields(steps=MPI)
    for value in good:
        CostModelFile.model_validate(put(made, path, value))
    for value in bad:
        with pytest.raises(pydantic.ValidationError):
            CostModelFile.model_validate(put(made, path, value))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "path",
    [(*CURVE, "smallest"), (*FIRST, 1), (*MODEL, "weight"), ("intervals", "ranks", "below", 0), ("coverage",),
     ("jitter", "sigma"), ("jitter", "median"), ("scores", "line"), ("network", "star", "latency"),
     ("steps", "cards", 0, "number")],
)  # fmt: skip
def test_numbers_are_finite(path, value):
    made = fields(steps=MPI) | {"jitter": JITTER, "network": {"star": {"latency": 1e-5}}, "scores": {"line": 0.1}}
    CostModelFile.model_validate(made)
    with pytest.raises(pydantic.ValidationError):
        CostModelFile.model_validate(put(made, path, value))


def test_points_are_ten_thousand_at_most_and_ascend():
    for many, starts in ((10_000, 1), (10_001, 1), (2, 0)):
        points = [[max(1, one + starts), 1.0] for one in range(many)]
        changed = put(put(fields(), (*MODEL, "segments"), []), (*MODEL, "points"), points)
        if (many, starts) == (10_000, 1):
            CostModelFile.model_validate(changed)
        else:
            with pytest.raises(pydantic.ValidationError):
                CostModelFile.model_validate(changed)


def test_curves_are_ten_thousand_at_most():
    made = fields()
    first = CostModelFile.model_validate(made).curves[0]
    curves = [first.model_copy(update={"ranks": ranks}) for ranks in range(1, 10_002)]
    assert len(CostModelFile.model_validate(made | {"curves": curves[1:]}).curves) == 10_000
    with pytest.raises(pydantic.ValidationError):
        CostModelFile.model_validate(made | {"curves": curves})


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
        ("a: 1\nversion: 2\n", ":2: version: must be 1, the version that is read, got 2"),
        ("a: 1\n", ":1: version: must be 1, the version that is read, got None"),
        (f"version: {'x' * 50}\n", f":1: version: must be 1, the version that is read, got {'x' * 40}"),
        ("version: 1\nmodel: lime\n", ":2: model: "),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, text, said):
    path = tmp_path / "fabric.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load_cost_model(path)
    told = str(refused.value)
    assert told == f"{path}{said}" or (said.endswith(" ") and told.startswith(f"{path}{said}"))


def test_what_could_not_be_read_again_is_not_written():
    with pytest.raises(InputError) as refused:
        cost_model_yaml(model(flat(reduce(4, 4, "x" * 201), 1e-5)))
    assert str(refused.value).startswith("algorithm: String should have at most 200 characters")


def test_files_of_some_mib_are_said_to_the_nearest(monkeypatch):
    monkeypatch.setattr(cost_model_file, "MAX_BYTES", 3 * 2**20 + 1)
    monkeypatch.setattr(cost_model_file, "yaml_text", lambda fields, width: "x" * 6_000_000)
    # These are 5.7 MiB.
    with pytest.raises(InputError, match="the fabric file would have 6 MiB, of which 3 are read; --where takes some"):
        cost_model_yaml(model())


def test_corrections_are_factors_up_to_e_to_the_fiftieth():
    made = fields()
    path = (*CURVE, "models", 0, "corrections")
    for low, high, good in ((-50, 50, True), (-50.1, 0, False), (0, 50.1, False)):
        changed = put(made, path, [[1.0, low], [2.0, high]])
        if good:
            CostModelFile.model_validate(changed)
        else:
            with pytest.raises(pydantic.ValidationError):
                CostModelFile.model_validate(changed)


@pytest.mark.parametrize("path", [(*CURVE, "collective"), (*CURVE, "algorithm"), (*CURVE, "protocol")])
def test_names_have_two_hundred_characters_at_most(path):
    CostModelFile.model_validate(put(fields(), path, "x" * 200))
    with pytest.raises(pydantic.ValidationError):
        CostModelFile.model_validate(put(fields(), path, "x" * 201))


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


def test_what_may_go_together():
    made = fields(steps=MPI)
    for path, value in (
        ((*CURVE, "models", 0, "segments"), [[0, 0, 1e-9], [1, 1e-6, 0], [2, 1e-6, 1e-9]]),
        ((*CURVE, "smallest"), 2.0**30),
        (("steps", "cards"), [{"number": 1, "chance": 0.5}, {"number": None, "chance": 0.5}]),
        ((*CURVE, "models", 0, "weight"), 1 - 0.9e-6),
    ):
        CostModelFile.model_validate(put(made, path, value))


def test_curves_are_of_different_settings():
    made = fields()
    with pytest.raises(pydantic.ValidationError, match="two curves are of the same setting"):
        CostModelFile.model_validate(put(made, ("curves",), made["curves"] * 2))


def test_what_is_left_out_has_the_plainest_value(tmp_path):
    made = fields(steps=NCCL)
    for name in ("sources", "system", "topology", "network", "stack", "eager", "jitter", "beyond_ranks",
                 "across_collectives", "scores", "platform"):  # fmt: skip
        del made[name]
    for name in ("nodes", "algorithm", "protocol"):
        del made["curves"][0][name]
    for name in ("points", "corrections"):
        del made["curves"][0]["models"][0][name]
    del made["steps"]["cards"], made["steps"]["ranks_on_a_node"], made["steps"]["parameters"]["gamma"]["relative_error"]
    found = CostModelFile.model_validate(made)
    assert (found.sources, found.system, found.topology, found.network, found.stack) == ([], "", "", None, "")
    assert (found.eager, found.jitter, found.beyond_ranks, found.across_collectives) == (
        False,
        None,
        "blended",
        "steps",
    )
    assert [(one.number, one.chance) for one in found.steps.cards] == [(None, 1.0)]
    assert (found.steps.ranks_on_a_node, found.steps.parameters["gamma"].relative_error) == (1.0, 0.0)
    assert found.curves[0].nodes == 0


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
    before.jitter, before.stack, before.eager = FittedJitter(1e-6, 0.5, 3, 60), "gloo", True
    before.network = {"star": {"hosts": 8, "latency": 1e-5, "bandwidth": 1e9}}
    path = tmp_path / "fabric.yaml"
    path.write_text(cost_model_yaml(before), encoding="utf-8")
    assert f"counted: {said}" in path.read_text(encoding="utf-8")
    after = load_cost_model(path)
    assert (after.jitter, after.stack, after.eager, after.network) == (before.jitter, "gloo", True, before.network)
    assert (after.model.cards, after.model.each, after.model.steps.cards) == (cards, 4.0, 2.0)
    assert (after.model.steps.nccl, after.model.steps.switch) == (steps.nccl, steps.switch)
    assert after.model.steps.values == steps.values
    assert after.model.steps.errors == (steps.errors or (0.0,) * len(PARAMETERS))
    assert (after.intervals, after.held_out) == (before.intervals, before.held_out)
    (one,), (other,) = before.model.known, after.model.known
    assert (one.setting, one.smallest, one.largest, one.count) == (
        other.setting, other.smallest, other.largest, other.count,
    )  # fmt: skip
    sizes = np.array([0.5, 3.0, 100.0])
    assert one.shape.at(sizes).tolist() == other.shape.at(sizes).tolist()
    assert has_curves(path)
    assert "jitter" not in cost_model_yaml(model())


def test_files_of_so_many_bytes_are_written_and_no_longer_ones(monkeypatch):
    made = model()
    size = len(cost_model_yaml(made).encode())
    monkeypatch.setattr(cost_model_file, "MAX_BYTES", size)
    cost_model_yaml(made)
    monkeypatch.setattr(cost_model_file, "MAX_BYTES", size - 1)
    with pytest.raises(InputError, match="the fabric file would have 0 MiB, of which 0 are read"):
        cost_model_yaml(made)


@pytest.mark.parametrize(
    ("text", "curves"),
    [("curves:\n- x", True), ("curves: []", False), ("a: 1\ncurves:  []  ", False), (" curves: 3", False), ("", False)],
)
def test_curves_are_told_by_their_line(tmp_path, text, curves):
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    assert has_curves(path) == curves


def test_two_mib_are_read(tmp_path):
    path = tmp_path / "a.yaml"
    for longer in (0, 1):
        path.write_text("#".ljust(2 * 2**20 + longer), encoding="utf-8")
        if longer:
            with pytest.raises(InputError, match="larger than"):
                has_curves(path)
        else:
            assert not has_curves(path)
