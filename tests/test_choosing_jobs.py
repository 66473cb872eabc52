"""Jobs that `simnet choose` sets side by side, and how it spends its effort: against runs, and against itself."""

import math

import numpy as np
import pytest

from commands import did
from simnet.policies import Candidate
from simnet.scenario import load
from simnet.studies.choosing.closed_forms import closed_forms
from simnet.studies.choosing.grids import Map
from simnet.studies.choosing.policy import table_of_map
from simnet.studies.choosing.whole_job import candidates_of, decide_job
from simnet.training.job.running import run_policy
from test_choosing_answers import FIELDS, TWO, asked, frame_of, means, means_in

TRAINED = (
    "job={gradients: {train: {data: digits, target: 0.6}}, iterations: 40, density: 1%, compute: {mean: 10 ms},"
    " strategy: {name: diloco, period: 5, inner: {sgd: {lr: 0.1}}}}"
)


def test_rarer_exchanges_take_the_step_times_of_their_runs_and_are_not_ranked():
    found = asked("--set", TWO, "--strategy", "diloco", "--grid", "strategy.period=5,3", "--set", "policies={}")
    rarer = {row["exchange"]: row for row in found["rows"] if row["to_best"] == "not ranked"}
    every = found["rows"][0]
    assert found["decision"] == every["exchange"] == "topk"
    assert [*rarer] == [f"diloco:period={period}, {label}" for period in (5, 3) for label in ("topk", "dense")]
    for period in (5, 3):
        for label in ("topk", "dense"):
            frame = frame_of("base", [*FIELDS, f"job.strategy={{name: diloco, period: {period}}}"], label)[:1]
            row = rarer[f"diloco:period={period}, {label}"]
            assert means_in(row) == means(frame, period, 8)
            assert row["iteration_low_s"] <= row["mean_iteration_s"] < row["iteration_high_s"]
            assert (row["steps_per_exchange"], row["iterations_simulated"]) == (period, 1)
            assert row["over_the_fastest"] == pytest.approx(row["mean_iteration_s"] / every["mean_iteration_s"] - 1)
    ratio = every["mean_iteration_s"] / rarer["diloco:period=5, topk"]["mean_iteration_s"]
    assert f"diloco:period=5, topk: 1.63 ms a step, {ratio:.2f}x less; accuracy ignored" in found["answer"]
    assert found["accuracy"] == "ignored"


def test_a_rarer_exchange_that_saves_little_or_cannot_be_is_said_to():
    words = ("--set", TWO, "--set", "policies={}", "--strategy", "diloco:period=5", "--compute", "30ms")
    found = asked(*words)
    row = next(row for row in found["rows"] if row["to_best"] == "not ranked")
    saved = 1 - row["mean_iteration_s"] / found["rows"][0]["mean_iteration_s"]
    assert f"{100 * saved:.0f} % less; accuracy ignored" in found["answer"]
    large = ("--set", "job.parameters=100000000", "--set", "job.scale=5000")
    limited = asked(*words, *large, "--memory", "2.7GB")
    assert any(note.startswith("diloco:period=5, topk is ruled out: it needs ") for note in limited["notes"])


def test_a_target_of_training_ranks_jobs_by_the_time_of_their_runs_until_it_is_reached():
    fields = [TRAINED, TWO, "policies={}", "seed=3"]
    found = asked("local_steps_wan", *(word for one in fields for word in ("--set", one)), small={})
    rows = {row["exchange"]: row for row in found["rows"]}
    assert set(rows) == {"topk", "dense", "diloco:period=5, topk", "diloco:period=5, dense"}
    for label, more in (("topk", ["job.strategy=null"]), ("diloco:period=5, dense", [])):
        frame, row = frame_of("local_steps_wan", [*fields, *more], label.rpartition(", ")[2]), rows[label]
        reached = int(np.flatnonzero(frame["accuracy"] >= 0.6)[0])
        assert row["time_to_target_s"] == pytest.approx(frame["iteration_s"][: reached + 1].sum())
        assert row["accuracy"] == pytest.approx(frame["accuracy"].dropna().iloc[-1])
        assert row["low_s"] < row["time_to_target_s"] < row["high_s"]
    first, second = found["rows"][:2]
    lead = second["time_to_target_s"] / first["time_to_target_s"] - 1
    assert f"{100 * lead:.0f} % before {second['exchange']}. One seed." in found["answer"]
    assert [row["to_best"] for row in found["rows"][:2]] == ["best", f"+{100 * lead:.0f} %"]
    assert found["target_accuracy"] == 0.6
    few = asked("local_steps_wan", *(word for one in fields for word in ("--set", one)), "--set", "job.strategy=null",
                "--set", "job.iterations=15", small={})  # fmt: skip
    assert [row["to_best"] for row in few["rows"]] == ["not reached", "not reached"]
    assert few["answer"] == "Nothing reaches an accuracy of 60 % in 15 iterations."
    alone = asked("local_steps_wan", *(word for one in fields for word in ("--set", one)), "--set",
                  "exchanges={dense: {scheme: dense}}", "--set", "job.strategy=null", small={})  # fmt: skip
    assert alone["answer"].endswith(" s. One seed.")


def test_ways_of_sharding_are_ranked_with_exchanges_by_the_time_of_a_step(tmp_path):
    found = asked("--sharding", "fsdp2", small={})
    rows = found["rows"]
    did("choose", "--sharding", "fsdp2", "--save-scenario", tmp_path / "saved.yaml")
    run = load(tmp_path / "saved.yaml", ["job.iterations=1"]).build()
    frame = run_policy(run.job, "fsdp2", run.policies["fsdp2"]).iterations
    row = next(row for row in rows if row["kind"] == "sharded")
    assert means_in(row) == means(frame, 1, 8)
    times = [row["mean_iteration_s"] for row in rows]
    assert times == sorted(times)
    lead = f"{100 * (times[1] / times[0] - 1):.0f} %"
    assert found["answer"] == f"AG-Topk: 36.3 ms a step, {lead} before ART-tree."
    assert [row["to_best"] for row in rows[:2]] == ["best", f"+{lead}"]
    parallel = asked("--sharding", "fsdp2:tensor_parallel=2,tokens=64", "--model", "gpt2", small={})
    assert [row["kind"] for row in parallel["rows"]] == ["sharded"]
    assert "of exchanges" not in parallel["evidence"]


@pytest.fixture(scope="module")
def wan():
    loaded = load("fluctuating_wan", ["job.scale=20000", "job.iterations=150"])
    return loaded.build(), candidates_of(loaded)


def decided(wan, effort, labels=("AG", "ART-ring", "ART-tree", "dense-ring"), **options):
    run, among = wan
    return decide_job(run, [one for one in among if one.label in labels], effort=effort, **options)


def test_effort_goes_where_the_decision_is_and_is_the_same_on_every_machine(wan):
    """The iterations simulated, by a count of messages and entries, not by a clock."""
    found = {effort: decided(wan, effort) for effort in (0.1, 0.4, 1.0)}
    assert {
        effort: ({row.label: row.simulated for row in one.rows}, one.flexible[0].policy.simulated)
        for effort, one in found.items()
    } == SIMULATED
    full = {row.label: row.seconds for row in decided(wan, math.inf).rows}
    for one in found.values():
        assert one.best.label == min(full, key=full.__getitem__)
        for row in one.rows:
            if row.simulated > 16:
                assert row.seconds == pytest.approx(full[row.label], rel=0.2)
        assert all(row.complete == (row.simulated == 150) for row in one.rows)


SIMULATED = {
    0.1: ({"ART-ring": 13, "ART-tree": 13, "AG": 21, "dense-ring": 21}, 32),
    0.4: ({"ART-ring": 33, "ART-tree": 33, "AG": 43, "dense-ring": 49}, 32),
    1.0: ({"ART-ring": 150, "ART-tree": 150, "AG": 43, "dense-ring": 49}, 48),
}


def test_who_follows_the_gradients_or_takes_turns_is_simulated_as_long_as_its_exchanges_are_new():
    loaded = load("quickstart", ["job.iterations=120", "exchanges={G: {scheme: gaussiank}, T: {scheme: topk},"
                                 " A: {scheme: artopk}, D: {scheme: dense}}", "policies={}"])  # fmt: skip
    run = loaded.build()
    among = list(run.candidates.values())
    found = {effort: decide_job(run, among, effort=effort, policies=False) for effort in (0.1, 0.3, 1.0)}
    assert {effort: {row.label: row.simulated for row in one.rows} for effort, one in found.items()} == FOLLOWED


FOLLOWED = {
    0.1: {"A": 12, "D": 20, "G": 13, "T": 11},
    0.3: {"A": 36, "D": 44, "G": 13, "T": 33},
    1.0: {"A": 120, "D": 120, "G": 120, "T": 120},
}


def test_exchanges_whose_iterations_take_the_same_times_are_one_row(wan):
    found = decided(wan, 0.4, ("AG", "AG-Topk", "ART-ring"))
    assert found.alike == {"AG": ["AG-Topk"]}
    assert {row.label for row in found.rows} == {"AG", "ART-ring"}
    full = decided(wan, math.inf, ("AG", "AG-Topk", "ART-ring"), policies=False)
    assert full.alike == {"AG": ["AG-Topk"]}
    assert all(row.complete for row in full.rows)


def test_a_policy_that_switches_is_compared_with_the_best_exchange_over_the_same_iterations(wan):
    found = decided(wan, 1.0)
    gain, (flexible,) = found.per_stretch, found.flexible
    assert gain.fixed.label == flexible.fixed.label == found.best.label
    assert gain.policy.label == "best of each iteration"
    assert gain.saved == pytest.approx(1 - gain.policy.seconds / gain.fixed.seconds)
    taken = run_policy(wan[0].job, "flexible", wan[0].policies["flexible"]).iterations["iteration_s"].sum()
    assert flexible.policy.seconds == pytest.approx(taken, rel=0.05)
    # Nobody who takes one exchange an iteration saves more than who takes the fastest.
    assert 0 < flexible.saved < gain.saved < 0.5
    assert sum(gain.policy.shares().values()) == pytest.approx(1)
    steady = decide_job(load("base", FIELDS).build(), candidates_of(load("base", FIELDS))[:3])
    assert (steady.per_stretch, steady.flexible) == (None, ())
    alone = decided(wan, 1.0, ("ART-ring",))
    assert alone.per_stretch is None


@pytest.mark.parametrize("field", [
    "network.topology={fat_tree: {k: 4, latency: 1 ms, bandwidth: 1 Gbit/s}}",
    "network.weather=[{links: all, bandwidth: {steps: {at: [0 s, 1 s], factors: [1, 0.5], period: 2 s}}}]",
    "network.stack=gloo",
    "job.density=[{iterations: 2, from: 0.1, to: 0.01}, {at: 0.01}]",
    "exchanges={d: {scheme: dgc}}",
    "exchanges={d: {scheme: topk, allgather: ring}}",
])  # fmt: skip
def test_closed_forms_are_for_usual_exchanges_on_a_star_of_constant_links(field):
    usual, other = load("base", FIELDS), load("base", [*FIELDS, field])
    for loaded, there in ((usual, True), (other, False)):
        run = loaded.build()
        found = decide_job(run, list(run.candidates.values()), policies=False)
        forms = closed_forms(loaded, run, found)
        assert (forms is not None) == there
    assert (
        forms or closed_forms(usual, usual.build(), decide_job(usual.build(), [*usual.build().candidates.values()]))
    ).point


@pytest.mark.parametrize("names", [("latency", "bandwidth"), ("bandwidth", "latency")])
def test_a_table_of_a_simulated_map_has_its_choices_without_two_levels(names):
    loaded = load("base", FIELDS)
    values = {"latency": np.array([1e-5, 1e-4, 1e-3]), "bandwidth": np.array([1e8, 1e9])}
    among = [Candidate("two-level ring", "two_level/dense", {"ranks_per_node": 2}), Candidate("half", "fp16"),
             Candidate("AG", "topk")]  # fmt: skip
    seconds = np.array([np.full((2, 3), 0.1), [[3.0, 1.0, 1.0], [1.0, 1.0, 3.0]], np.full((2, 3), 2.0)])
    seconds = seconds if names[1] == "bandwidth" else seconds.swapaxes(1, 2)
    table = table_of_map(Map(among, {name: values[name] for name in names}, seconds), loaded, loaded.build().job)
    chosen = [[table.lookup(a, b).entry.label for a in values["latency"]] for b in values["bandwidth"]]
    assert chosen == [["AG", "half", "half"], ["half", "half", "AG"]]
    assert {one.label: one.density for one in table.choices} == {"half": 1.0, "AG": 0.01}
    assert (table.made_for.workers, table.made_for.parameters, table.made_for.method) == (8, 20000, "simulated")
