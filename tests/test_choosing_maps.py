"""Maps by simulation: every cell is what simulating it alone says, and what would take too long is refused."""

import dataclasses
import itertools
from functools import partial

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commands
from simnet.studies.choosing.maps import axis, cells_within, draw_map
from simnet.studies.choosing.problem import problem_from_flags
from simnet.studies.choosing.request import ChooseRequest

did, refused = (partial(one, "choose") for one in (commands.did, commands.refused))

asked = st.builds(
    ChooseRequest,
    workers=st.sampled_from([2, 3, 6]),
    parameters=st.integers(10**4, 10**8),
    density=st.floats(1e-3, 0.3),
    simulate=st.just(True),
    topology=st.sampled_from([None, "ring"]),
    seed=st.integers(0, 3),
)


@settings(max_examples=4, deadline=None)
@given(flags=asked, second=st.sampled_from(["bandwidth", "density", "model"]))
def test_cells_are_what_simulating_them_alone_says(flags, second):
    x, y = axis("latency", "50us:20ms", 2), axis(second, {"density": "0.01:0.5"}.get(second), 2)
    made = draw_map(problem_from_flags(flags, over=True), x, y)
    names = {"model": "parameters"}
    for (row, down), (column, across) in itertools.product(enumerate(y.values), enumerate(x.values)):
        own = round(down) if second == "model" else float(down)
        alone = dataclasses.replace(flags, latency=float(across), **{names.get(second, second): own})
        rows = problem_from_flags(alone).answer().rows
        assert made.seconds[row, column] == pytest.approx(rows[0].seconds, rel=1e-9)
        assert made.runner_up[row, column] == pytest.approx(rows[1].seconds, rel=1e-9)
        label = made.problem.among[made.which[row, column]].label
        assert label in {one.choice.label for one in rows if one.seconds <= rows[0].seconds * (1 + 1e-9)}


def test_workers_of_a_map_are_simulated_each_on_a_network_of_their_own():
    flags = ChooseRequest(simulate=True, parameters=10**6, gpus_per_node=2)
    made = draw_map(problem_from_flags(flags, over=True), axis("workers", "2:6", 9), axis("latency", "50us:20ms", 2))
    assert made.x.values.tolist() == [2, 4, 6]
    best = problem_from_flags(dataclasses.replace(flags, workers=4, latency=made.y.values[1])).answer().best
    assert made.seconds[1, 1] == pytest.approx(best.seconds, rel=1e-9)


def test_simulated_maps_have_as_many_cells_as_time_allows(tmp_path):
    few, many = (problem_from_flags(ChooseRequest(simulate=True, workers=count), over=True) for count in (2, 64))
    names = ("latency", "bandwidth")
    assert cells_within(few, names, {}, 30) > cells_within(many, names, {}, 30) > 1
    assert cells_within(few, names, {}, 120) == pytest.approx(2 * cells_within(few, names, {}, 30), abs=1)
    assert cells_within(few, ("workers", "latency"), {"workers": "2:64"}, 30) == cells_within(many, names, {}, 30)
    did("--simulate", "--map", "latency,bandwidth", "--cells", 3, "--out", tmp_path / "map", "--workers", 3)
    assert len(pd.read_csv(tmp_path / "map.csv")) == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--simulate", "--map", "latency,bandwidth", "--cells", "4000"],
            "can be simulated in about 10 minutes, got 4000",
        ),
        (["--simulate", "--map", "latency,density", "--range", "latency=2:x"], "--range latency: '2' has no unit"),
        (
            ["quickstart", "--simulate", "--map", "latency,bandwidth"],
            "closed forms heed all, and so does --simulate of",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_words(arguments, message, tmp_path):
    assert message in refused(*arguments, "--out", tmp_path / "map")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--map", "latency,bandwidth", "--misjudged", "4"], "--misjudged: is only for a decision by closed forms"),
        (["--map", "latency,bandwidth", "--seed", "4"], "--seed: is only for jobs, simulations and policy tables"),
        (["--parameters", "1M", "--seed", "4"], "--seed: is only for jobs, simulations and policy tables"),
        (["--simulate", "--misjudged", "3"], "--misjudged: is only for"),
        (["--simulate", "--stack", "glo"], "--stack: there is no stack 'glo': did you mean 'gloo'?"),
        (["quickstart", "--misjudged", "3"], "--misjudged: is only for"),
        (["quickstart", "--seed", "4", "--set", "seed=5"], "--seed 4: the seed is set by --set seed=5 too"),
        *(
            (["--fabric", "cluster.yaml", *words], f"{words[0]}: is not for --fabric, whose measured times stand")
            for words in (
                ["--latency", "1ms"],
                ["--bandwidth", "1Gbit/s"],
                ["--simulate"],
                ["--topology", "star"],
                ["--stack", "gloo"],
                ["--set", "seed=5"],
                ["--all"],
                ["--gpus-per-node", "4"],
            )
        ),
        (["--fabric", "cluster.yaml", "--stack", "glo"], "--stack: there is no"),
        (["--fabric", "cluster.yaml", "--misjudged", "3"], "--misjudged: is only for a decision by closed forms"),
    ],
)
def test_options_that_an_answer_would_not_heed_are_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "more", [["--map", "latency,bandwidth"], ["--simulate", "--parameters", "1M"], ["--export", "p.json"]]
)
def test_an_error_of_closed_forms_is_for_decisions(more):
    result = commands.invoke("choose", "--error", "0.3", *more)
    assert result.exit_code == 2
    assert result.stderr == "error: --error: is only for a decision by closed forms or over a whole job\n"
