"""Policy tables of calibrated clusters: by workers, density and parameters."""

import dataclasses
import itertools
import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commands
from simnet.base.errors import InputError
from simnet.calibration import calibrate, cost_model_yaml
from simnet.calibration.cost_model_file import cost_model_of
from simnet.calibration.curves import Curve, Setting
from simnet.studies.choosing.choices import choices
from simnet.studies.choosing.decision import decide
from simnet.studies.choosing.fabric_policy import left_out, make
from simnet.studies.choosing.policy import entry
from simnet.studies.choosing.policy_file import PolicyTable, load_policy
from simnet.studies.choosing.problem import problem_from_fabric
from simnet.studies.choosing.request import ChooseRequest

did, refused = (partial(one, "choose") for one in (commands.did, commands.refused))
RANKS, SIZES = (4, 8, 12), 2.0 ** np.arange(10, 28)


def curve(setting):
    """A ring takes steps of 0.1 ms, and a gather sends what all have."""
    per_byte = 3e-9 if setting.algorithm == "recursive_doubling" else 1e-9
    steps = setting.ranks if setting.algorithm != "recursive_doubling" else np.log2(setting.ranks)
    return Curve(setting, SIZES, 1e-4 * steps + SIZES * per_byte)


@pytest.fixture(scope="module", params=["free", "pinned", "platform"])
def fabric(request):
    if request.param == "platform":
        return cost_model_of("dgx-h100")
    algorithms = ("ring", "recursive_doubling") if request.param == "pinned" else ("",)
    asked = [
        Setting(name, ranks, ranks, algorithm if name == "all_reduce" else "")
        for name, ranks in itertools.product(("all_reduce", "all_gather", "broadcast"), RANKS)
        for algorithm in (algorithms if name == "all_reduce" else ("",))
    ]
    return calibrate([curve(one) for one in asked], sources=["a log"])


@pytest.fixture
def file(tmp_path):
    asked = [Setting(name, ranks, ranks) for name in ("all_reduce", "all_gather", "broadcast") for ranks in RANKS]
    (tmp_path / "cluster.yaml").write_text(cost_model_yaml(calibrate([curve(one) for one in asked], sources=["a log"])))
    return tmp_path / "cluster.yaml"


def centres(edges):
    return np.sqrt(edges[1:] * edges[:-1]).tolist()


@settings(max_examples=6, deadline=None)
@given(
    parameters=st.integers(10**4, 10**9),
    density=st.floats(1e-3, 1.0),
    cells=st.integers(1, 4),
    workers=st.sampled_from([(), (5,), (2, 8, 16)]),
)
def test_lookups_at_the_centres_of_cells_are_the_decision(fabric, parameters, density, cells, workers):
    question = problem_from_fabric(fabric, ChooseRequest(parameters=parameters, density=density))
    table = make(question, fabric, workers, cells=cells)
    assert table.along("workers").tolist() == list(
        workers or sorted({one.setting.ranks for one in fabric.model.known}) or [8]
    )
    for count, kept, size in itertools.product(
        table.along("workers").astype(int).tolist(), centres(table.along("density")), centres(table.along("parameters"))
    ):
        point = dataclasses.replace(question.point, workers=count, density=kept, parameters=size)
        best = decide(question.among, point, question.cost_model, varies=()).best.choice
        found = table.lookup(workers=count, density=kept, parameters=size)
        assert found.entry == entry(best, kept)
        assert found.outside == ""


def test_axes_ascend_and_go_from_a_tenth_to_ten_times_what_is_asked(fabric):
    table = make(problem_from_fabric(fabric, ChooseRequest(parameters=10**6, density=0.5)), fabric, cells=5)
    for name in table.axes:
        assert (np.diff(table.along(name)) > 0).all() or len(table.along(name)) == 1
    assert table.along("parameters")[[0, -1]].tolist() == [1e5, 1e7]
    assert table.along("density")[[0, -1]].tolist() == [0.05, 1.0]


def test_several_sizes_are_predicted_as_each_alone(fabric):
    sizes = np.geomspace(100, 1e10, 25)
    for name, algorithm, ranks in itertools.product(("all_reduce", "broadcast"), ("ring", ""), (3, 8, 16)):
        found = fabric.fastest_of(name, algorithm, ranks, sizes)
        for place, nbytes in enumerate(sizes.tolist()):
            alone = fabric.fastest(name, algorithm, ranks, nbytes)
            *numbers, kind = (one[place] for one in found)
            assert numbers == pytest.approx(alone[:4], rel=1e-12)
            assert kind == alone.kind


def test_what_was_measured_is_told_from_what_was_not(fabric):
    question = problem_from_fabric(fabric, ChooseRequest(parameters=10**5))
    inside = make(question, fabric, RANKS, {"parameters": (1e5, 1e7), "density": (0.01, 0.1)}, cells=3)
    beyond = make(question, fabric, (64,), {"parameters": (1e5, 1e7), "density": (0.01, 0.1)}, cells=3)
    if fabric.platform is not None:
        assert inside.measured.share == beyond.measured.share == 0
        assert "specification" in inside.measured.beyond[0]
        return
    assert (inside.measured.share, inside.measured.beyond) == (1, ())
    assert beyond.measured.share == 0
    assert "64 ranks, measured were 4 to 12" in beyond.measured.beyond[0]


def test_a_table_reads_back_as_it_was_and_is_made_alike_twice(file, tmp_path):
    for name in ("a.json", "b.json"):
        said = did("--fabric", file, "--export", tmp_path / name, "--cells", 6, "--range", "model=1e5:1e11")
        assert "by workers, density, parameters" in said.stdout
        assert "warning: " in said.stderr
        assert "measured were 1024 to 1.34218e+08" in said.stderr
        assert "Not weighed" in said.stderr
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    table = load_policy(tmp_path / "a.json")
    assert table.text() == (tmp_path / "a.json").read_text()
    assert table.along("workers").tolist() == list(RANKS)
    assert table.made_for.method == "the calibrated fabric of a log"
    assert sum(table.shares().values()) == pytest.approx(1)
    said = did("--fabric", file, "--export", tmp_path / "c.json", "--workers", 8, "--range", "model=1e5:1e7")
    assert "rest on what was not measured" not in said.stderr
    assert load_policy(tmp_path / "c.json").along("workers").tolist() == [8]


def test_a_range_of_workers_is_of_whole_numbers(file, tmp_path):
    did("--fabric", file, "--export", tmp_path / "a.json", "--cells", 5, "--range", "workers=2:6")
    assert load_policy(tmp_path / "a.json").along("workers").tolist() == [2, 3, 4, 5, 6]


@pytest.fixture(scope="module")
def table():
    asked = [Setting(name, ranks, ranks) for name in ("all_reduce", "all_gather", "broadcast") for ranks in RANKS]
    known = calibrate([curve(one) for one in asked])
    return make(problem_from_fabric(known, ChooseRequest()), known, cells=3)


def test_what_is_outside_gets_the_nearest_cell_and_says_so(table):
    inside = table.lookup(workers=8, density=0.1, parameters=255570000)
    outside = table.lookup(workers=9, density=1.0, parameters=1e12)
    assert inside.outside == ""
    assert outside.outside == "workers not in the table, density above the table, parameters above the table"
    assert inside.entry.model_copy(update={"density": outside.entry.density}) == outside.entry


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"latency": 1e-3, "bandwidth": 1e9},
            "goes by workers, density, parameters; given were latency, b",
        ),
        ({"workers": 8, "density": 0.1}, "given were workers, density"),
        ({"workers": 8.5, "density": 0.1, "parameters": 1e6}, "workers must be a whole number >= 1"),
        ({"workers": 8, "density": 2, "parameters": 1e6}, "density must be a number > 0 and at most 1, got 2"),
        ({"workers": 8, "density": 0.1, "parameters": "1e6"}, "parameters must be a number > 0"),
    ],
)
def test_lookups_of_something_else_are_refused_in_words(table, asked, said):
    with pytest.raises(ValueError, match=said):
        table.lookup(**asked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one.update(version=1), "edges must be latency_s, bandwidth_B_per_s of a table of version 1"),
        (lambda one: one.update(version=3), "must be 1 or 2, the versions that are read, got 3"),
        (lambda one: one["edges"].update(worker=[1]), "did you mean 'workers'"),
        (lambda one: one["edges"].update(latency_s=[1, 2]), "got latency_s, workers, density, parameters"),
        (lambda one: one["edges"].pop("density"), "got workers, parameters"),
        (lambda one: one["edges"]["workers"].__setitem__(0, 1), "edges.workers.0"),
        (lambda one: one["edges"]["workers"].reverse(), "must ascend"),
        (lambda one: one["matrix"].pop(), "must have 9 rows of 3 numbers, a row per number of workers and density"),
        (lambda one: one["measured"].update(share=2), "measured.share"),
    ],
)
def test_damaged_tables_are_refused_in_words(table, change, message, tmp_path):
    found = json.loads(table.text())
    change(found)
    (tmp_path / "p.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match=r"p\.json") as error:
        load_policy(tmp_path / "p.json")
    assert message in str(error.value)


def test_exchanges_without_a_measured_algorithm_are_named(fabric):
    left = left_out(problem_from_fabric(fabric, ChooseRequest()))
    weighed = {one.label for one in problem_from_fabric(fabric, ChooseRequest()).among}
    assert weighed | set(left) == {one.label for one in choices()}
    assert not weighed & set(left)
    assert "dense tree" in left


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--ratios", "0.1,0.01"],
            "--ratios: is not for --fabric, whose table goes over density: give --range",
        ),
        (["--weights", "1,1,1"], "--weights: is not for --fabric"),
        (
            ["--range", "latency=1ms:2ms"],
            "latency is no axis of the policy table of a fabric; Allowed: density, ",
        ),
        (["--range", "workrs=2:4"], "did you mean 'workers'"),
        (["--range", "workers=4:2"], "LOW < HIGH"),
        (["--workers", "4", "--range", "workers=2:4"], "either --workers or --range workers"),
        (["--workers", "1"], "must be at least 2 for a policy table, got 1"),
        (["--cells", "200"], "must be from 1 to 115 for a table of 3 numbers of workers, got 200"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_words(file, arguments, message, tmp_path):
    assert message in refused("--fabric", file, "--export", tmp_path / "p.json", *arguments)
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--latency", "1ms"],
            "--latency: is not for --fabric, whose measured times stand for the network: --latency and",
        ),
        (["--bandwidth", "1Gbit/s"], "--map latency,bandwidth all of them"),
        (["--simulate"], "--simulate: is not for --fabric, whose measured times"),
        (["--topology", "star"], "--topology: is not for --fabric"),
        (["--stack", "gloo"], "--stack: is not for --fabric"),
        (["--stack", "glo"], "--stack: there is no"),
        (["--set", "seed=5"], "--set: is not for --fabric"),
        (["--all"], "--all: is not for --fabric"),
        (["--gpus-per-node", "4"], "--gpus-per-node: is not for --fabric"),
        (["--seed", "4"], "--seed: is only for simulations, scenarios and policy tables"),
        (["--misjudged", "3"], "--misjudged: is only for a decision by closed forms"),
        (["--map", "latency,bandwidth"], "the calibrated fabric does not heed it, but density, model"),
    ],
)
def test_what_a_fabric_does_not_heed_is_refused_with_the_way_out(file, arguments, message):
    assert message in refused("--fabric", file, *arguments)


def test_tables_of_links_are_as_they_were(tmp_path):
    did("--export", tmp_path / "p.json", "--cells", 2)
    loaded = json.loads((tmp_path / "p.json").read_text())
    assert list(loaded["edges"]) == ["latency_s", "bandwidth_B_per_s"]
    assert loaded["version"] == 1
    assert "measured" not in loaded
    assert "workers" not in loaded["regret"]
    with pytest.raises(ValueError, match="no axis 'density'; it goes by latency, bandwidth"):
        PolicyTable.model_validate(loaded).along("density")
