"""What `simnet choose --export` writes: policy tables for run time."""

import dataclasses
import json
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commands
from simnet.base.errors import InputError
from simnet.policies import moo
from simnet.scenario import load
from simnet.studies.choosing.decision import decide
from simnet.studies.choosing.policy import Exact, entry, lost_at, make
from simnet.studies.choosing.policy_file import load_policy
from simnet.studies.choosing.problem import problem_from_flags, problem_from_scenario
from simnet.studies.choosing.request import ChooseRequest

asked = st.builds(
    ChooseRequest,
    workers=st.sampled_from([2, 3, 8, 17, 64]),
    parameters=st.integers(10**5, 10**9),
    density=st.floats(1e-4, 0.3),
    latency=st.floats(1e-5, 0.1),
    bandwidth=st.floats(1e6, 5e10),
    device=st.sampled_from(["v100", "ideal"]),
)


def centres(edges):
    return np.sqrt(edges[1:] * edges[:-1]).tolist()


did, refused = (partial(one, "choose") for one in (commands.did, commands.refused))


@settings(max_examples=15, deadline=None)
@given(flags=asked, cells=st.integers(1, 6))
def test_lookups_at_the_centres_of_cells_are_the_decision(flags, cells):
    problem = problem_from_flags(flags)
    table = make(problem, cells=cells)
    for latency in centres(table.latency):
        for bandwidth in centres(table.bandwidth):
            point = dataclasses.replace(problem.point, latency=latency, bandwidth=bandwidth)
            best = decide(problem.among, point, problem.cost_model, varies=()).best.choice
            found = table.lookup(latency, bandwidth)
            assert found.entry == entry(best, problem.point.density)
            assert found.outside == ""


@pytest.mark.parametrize("weights", [None, moo.ObjectiveWeights(1, 1, 3)])
def test_densities_are_chosen_as_the_multi_objective_policy_does(weights):
    problem, densities = (
        problem_from_flags(ChooseRequest(workers=4, parameters=20_000, bandwidth=1e8)),
        (0.1, 0.01, 0.001),
    )
    table = make(problem, cells=3, densities=densities, weights=weights)
    gains = {(one.exchange, one.density): one.gain for one in table.gains.of}
    assert all(0 < one <= 1 for one in gains.values())
    for latency in centres(table.latency):
        for bandwidth in centres(table.bandwidth):
            best = [
                decide(
                    problem.among,
                    dataclasses.replace(problem.point, latency=latency, bandwidth=bandwidth, density=density),
                    problem.cost_model,
                    varies=(),
                ).best
                for density in densities
            ]
            gain = [gains.get((row.choice.label, one), 1.0) for row, one in zip(best, densities, strict=True)]
            taken = moo.choose_candidate(gain, [row.select for row in best], [row.communicate for row in best], weights)
            found = table.lookup(latency, bandwidth).entry
            assert found == entry(best[taken].choice, densities[taken])


@settings(max_examples=15, deadline=None)
@given(flags=asked, cells=st.integers(8, 12), parts=st.integers(2, 3))
def test_a_finer_grid_never_has_a_larger_mean_regret(flags, cells, parts):
    # A part of a cell has the choice that is right at its own centre. Where times go evenly in logarithms, the mean of
    # a part is its centre, so that no other choice is better there. Cells of half a decade are even enough.
    problem = problem_from_flags(flags)
    exact = Exact(problem, (problem.point.density,))
    wide = {"latency": (1e-5, 1e-1), "bandwidth": (1e6, 1e10)}
    grid = np.exp(np.linspace(0, np.log(1e4), 201)[1::2])
    latency, bandwidth = (one.ravel() for one in np.meshgrid(1e-5 * grid, 1e6 * grid))

    def mean(count):
        table = make(problem, **wide, cells=count)
        places = {one.label: place for place, one in enumerate(problem.among)}
        pairs = [(places[one.label], one.density) for one in table.choices]
        lost, *_ = lost_at(table, pairs, exact, latency, bandwidth)
        assert (lost >= 0).all()
        return float(np.log1p(lost).mean())

    coarse, fine = mean(cells), mean(cells * parts)
    assert fine <= coarse + 1e-4


@pytest.mark.parametrize("latency", [0.0, 1e-7, 50.0])
@pytest.mark.parametrize("bandwidth", [1.0, 1e5, 1e14])
def test_by_default_a_table_goes_around_the_operating_point(latency, bandwidth):
    table = make(problem_from_flags(ChooseRequest(latency=latency, bandwidth=bandwidth)), cells=3)
    assert table.bandwidth[[0, -1]] == pytest.approx([bandwidth / 10, bandwidth * 10], rel=1e-5)
    if latency > 0:
        assert table.latency[[0, -1]] == pytest.approx([latency / 10, latency * 10], rel=1e-5)


def test_what_is_outside_gets_the_nearest_cell_and_says_so():
    table = make(problem_from_flags(ChooseRequest()), (1e-4, 1e-2), (1e8, 1e10), cells=5)
    inside = table.lookup(1.0001e-4, 9.999e9)
    outside = table.lookup(0.0, 1e15)
    assert (inside.entry, inside.outside) == (outside.entry, "")
    assert outside.outside == "latency below the table, bandwidth above the table"
    for latency, bandwidth in ((-1, 1e9), (math.nan, 1e9), (1e-3, 0), (1e-3, math.inf), ("1", 1e9)):
        with pytest.raises(ValueError, match="must be a number"):
            table.lookup(latency, bandwidth)


def test_the_whole_gradient_has_no_density():
    # Between fast links nothing is worth selecting.
    table = make(
        problem_from_flags(ChooseRequest(bandwidth=1e12, latency=1e-6, density=0.2)), cells=2, densities=(0.2, 0.1)
    )
    assert all(one.kind != "sparse" and one.density == 1.0 for one in table.choices)
    assert table.regret.same_density == 1


def test_a_scenario_gives_range_and_gradients():
    problem = problem_from_scenario(load("fluctuating_wan"), ChooseRequest())
    table = make(problem, cells=4, densities=(0.1, 0.05))
    seen = problem.trajectory
    assert table.latency[0] < seen.latency.min() <= seen.latency.max() < table.latency[-1]
    assert table.bandwidth[0] < seen.bandwidth.min() <= seen.bandwidth.max() < table.bandwidth[-1]
    assert table.gains.source == "those of fluctuating_wan"
    assert table.gains.workers == table.made_for.workers


STEADY = ["network.weather=[]", "policies={}", "job.iterations=6"]


def under(strategy, **flags):
    return problem_from_scenario(load("quickstart", [*STEADY, f"job.strategy={strategy}"]), ChooseRequest(**flags))


def test_under_data_parallelism_a_table_is_that_without_a_strategy():
    plain = problem_from_scenario(load("quickstart", STEADY), ChooseRequest())
    found = under("{name: dataparallel, inner: {sgd: {lr: 0.1}}, bucket: 1 GiB}")
    tables = [make(one, cells=4, densities=[0.1, 0.01]) for one in (plain, found)]
    one, other = (json.loads(table.text()) for table in tables)
    assert one["made_for"].pop("title") != other["made_for"].pop("title")
    assert one == other
    assert tables[1].made_for.title.endswith("4 workers, dataparallel after each inner step")


def test_under_a_strategy_a_table_is_of_the_exchanges_of_its_outer_steps():
    plain = make(problem_from_scenario(load("quickstart", STEADY), ChooseRequest()), cells=5)
    outer = make(under("{name: diloco, period: 20, bucket: 1 GiB}"), cells=5)
    # A pseudo-gradient is as long as a gradient; inner steps have no part in which exchange is the fastest.
    assert (outer.matrix, outer.choices) == (plain.matrix, plain.choices)
    assert "diloco after each of 20 inner steps" in outer.made_for.title
    half = under("{name: streaming, period: 20, fragments: 2, bucket: 1 GiB}")
    assert half.point.parameters == pytest.approx(outer.made_for.parameters / 2, rel=1e-6)
    assert (half.passes.backward, half.gradients_name) == (0.0, "those of quickstart")
    # Parameters are averaged as they are.
    fields = ["exchanges={a: {scheme: dense}}", "job.strategy={name: localsgd, period: 20, inner: {sgd: {lr: 0.1}}}"]
    averages = problem_from_scenario(load("quickstart", [*STEADY, *fields]), ChooseRequest())
    assert {one.kind for one in averages.among} == {"dense"} < {one.kind for one in half.among}


def test_what_has_no_table_under_a_strategy_is_refused_in_words(tmp_path):
    def said(strategy, *words):
        name = f"--set=job.strategy={strategy}"
        return refused("quickstart", name, "--set=policies={}", "--export", tmp_path / "a.json", *words)

    assert "job.strategy: eager: a policy keeps to one exchange, as" in said("{name: eager, period: 5}")
    assert "what is exchanged is its own" in said(
        "{name: sparta, inner: {sgd: {lr: 0.1}}}", "--set=exchanges={a: {scheme: dense}}"
    )
    ratios = said("{name: diloco, period: 5}", "--ratios", "0.1,0.01")
    assert "--ratios: are not weighed under diloco, whose gains are those of what it exchanges" in ratios
    assert not (tmp_path / "a.json").exists()


def test_a_table_reads_back_as_it_was_and_is_made_alike_twice(tmp_path):
    job = ("--ratios", "10%,1%", "--weights", "2,1,1", "--parameters", "20000")
    arguments = (*job, "--cells", "5", "--range", "latency=1ms:100ms")
    for name in ("a.json", "b.json"):
        result = did("--export", tmp_path / name, *arguments)
        assert "slower than the exact choice" in result.output
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    table = load_policy(tmp_path / "a.json")
    assert table.text() == (tmp_path / "a.json").read_text()
    assert table.latency[[0, -1]].tolist() == [1e-3, 0.1]
    assert table.made_for.weights == moo.ObjectiveWeights(2, 1, 1)
    assert sum(table.shares().values()) == pytest.approx(1)
    refused("--export", tmp_path / "a.json", *arguments)


def damaged(change):
    found = json.loads(make(problem_from_flags(ChooseRequest()), cells=2).text())
    change(found)
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "has no version"),
        ('{"version": 3}', "must be 1, the version that is read, got 3"),
        ('{"version": NaN}', "is no JSON"),
        (damaged(lambda one: one.update(matrx=[])), "did you mean 'matrix'"),
        (damaged(lambda one: one["made_for"].update(worker=2)), "did you mean 'workers'"),
        (damaged(lambda one: one["choices"][0].update(scheme="artpok")), "did you mean 'artopk'"),
        (damaged(lambda one: one["choices"][0].update(density=2)), "choices.0.density"),
        (damaged(lambda one: one["made_for"].update(weights={"gan": 1})), "made_for.weights"),
        (damaged(lambda one: one["matrix"].pop()), "must have 2 rows of 2 numbers"),
        (damaged(lambda one: one["matrix"][0].__setitem__(0, 99)), "has the number 99"),
        (damaged(lambda one: one["matrix"][0].__setitem__(0, -1)), "matrix.0.0"),
        (damaged(lambda one: one["edges"]["latency_s"].reverse()), "must ascend"),
        (damaged(lambda one: one["edges"]["latency_s"].__setitem__(0, 0)), "edges.latency_s.0"),
        (damaged(lambda one: one.pop("edges")), "edges"),
    ],
)
def test_damaged_tables_are_refused_in_words(text, message, tmp_path):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(InputError, match=r"p\.json") as error:
        load_policy(tmp_path / "p.json")
    assert message in str(error.value)


def test_huge_files_are_not_read(tmp_path):
    (tmp_path / "p.json").write_text(" " * (2**23 + 1))
    with pytest.raises(InputError, match="is larger than"):
        load_policy(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--export", "p.yaml"], "must end with .json"),
        (["--export", "p.csv"], "must end with .json, got 'p.csv'"),
        (["--export", "p.json", "--map", "latency,bandwidth"], "either --map or --export"),
        (["--export", "p.json", "--ratios", "0.1,2"], "> 0 and at most 1"),
        (["--export", "p.json", "--ratios", "0.1,0.1"], "no two alike"),
        (["--export", "p.json", "--ratios", ","], "must be a fraction"),
        (["--export", "p.json", "--workers", "1"], "must be at least 2"),
        (["--export", "p.json", "--ratios", "0.1", "--density", "0.1"], "either --density or --ratios"),
        (["--export", "p.json", "--weights", "1,1,1"], "is only for --ratios"),
        (["--export", "p.json", "--ratios", "0.1,0.2", "--weights", "1,1"], "three numbers"),
        (["--export", "p.json", "--ratios", "0.1,0.2", "--weights", "0,0,0"], "not all 0"),
        (["--export", "p.json", "--range", "density=0.1:0.2"], "no axis of a policy table"),
        (["--export", "p.json", "--range", "latency=2s:1s"], "LOW < HIGH"),
        (["--export", "p.json", "--cells", "201"], "from 1 to 200"),
        (["--export", "p.json", "--simulate"], "does not heed it"),
        (["--export", "p.json", "--all"], "is not for --export"),
        (["--export", "no/such/p.json", "--cells", "2"], "cannot be written"),
        (["--ratios", "0.1"], "is only for --export"),
        (["--cells", "5"], "is only for --map or --export"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_words(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)
    assert not list(tmp_path.iterdir())
