"""Several seeds: what is told of them follows from the runs of each, and nothing depends on how they are run."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import killing
import needs
from commands import contents, did, invoke
from simnet.report import paired, seeds
from simnet.report.answers import seeds_answer
from simnet.report.run_summary import RunFacts, summarize
from simnet.studies import runs
from simnet.training.job.checkpoint import Checkpoint
from test_report import Page, frame

SMALL = """\
name: small
workers: 4
network:
  topology:
    star: {latency: 1 ms, bandwidth: 1 Gbit/s}
  weather:
    - {links: all, bandwidth: {noise: {sigma: 0.3, tau: 100 ms, every: 10 ms}}}
job:
  parameters: 4000
  iterations: 12
  density: 5 %
  compute: {mean: 10 ms, spread: 0.1}
exchanges: {AG: {scheme: topk}, ART-ring: {scheme: artopk, collective: ring}}
policies:
  AG: {fixed: AG}
  same: {fixed: AG}
  ART-ring: {fixed: ART-ring}
  oracle: {oracle: {among: [AG, ART-ring]}}
output: {report: false}
"""
TIMES = st.lists(st.floats(1, 100), min_size=3, max_size=12)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenario") / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def several(scenario, tmp_path_factory):
    """The folder of a run with four seeds, and what it said."""
    out = tmp_path_factory.mktemp("several") / "out"
    return out, did("run", scenario, "--seed", 5, "--seeds", 4, "--jobs", 1, "--out", out).stdout


# Intervals


@given(TIMES, st.integers(0, 2**31))
def test_paired_intervals_of_two_policies_are_those_of_the_paired_t_test(base, seed):
    first = np.array(base)
    second = first + np.random.default_rng(seed).normal(0.5, 2.0, len(first))
    found = paired.contest({"a": first, "b": second})
    slow, fast = (second, first) if found.policy == "a" else (first, second)
    (difference,) = found.differences.values()
    expected = stats.ttest_rel(slow, fast).confidence_interval(0.95)
    assert difference == pytest.approx((np.mean(slow - fast), *expected), rel=1e-9, abs=1e-9)
    assert bool(found.tied_with) == (expected[0] <= 0)


def test_several_intervals_hold_together():
    draws = np.random.default_rng(1).normal(10, 1, (6, 8))
    values = {f"p{number}": row for number, row in enumerate(draws)}
    found = paired.contest(values)
    for name, difference in found.differences.items():
        d = values[name] - values[found.policy]
        half = stats.t.ppf(1 - 0.05 / 2 / 5, 7) * d.std(ddof=1) / math.sqrt(8)
        assert difference == pytest.approx((d.mean(), d.mean() - half, d.mean() + half))


def test_the_truly_fastest_is_among_those_tied_with_the_first_as_often_as_is_said():
    random = np.random.default_rng(3)
    apart, lost, alone = 400, 0, 0
    for _ in range(apart):
        # What a seed does to all is ten times what it does to each; p0 is the fastest by little, p1 by nothing.
        common = random.normal(100, 10, 6)
        values = {f"p{n}": common + random.normal(0.5 * (n > 1), 1.0, 6) for n in range(5)}
        found = paired.contest(values)
        lost += "p0" not in (found.policy, *found.tied_with)
        alone += not found.tied_with
    assert lost / apart <= 0.05
    assert alone / apart <= 0.05


def test_equal_policies_are_tied_and_a_sure_difference_is_none():
    found = paired.contest({"b": [3.0, 9.0], "a": [3.0, 9.0], "c": [3.5, 9.5]})
    assert (found.policy, found.tied_with, found.order) == ("a", ["b"], ["a", "b", "c"])
    assert found.differences["c"] == (0.5, 0.5, 0.5)
    # A seed with which two are equal is a win of neither.
    assert found.fastest_in == {"b": 0, "a": 0, "c": 0}


def test_one_seed_tells_nobody_apart():
    found = paired.contest({"a": [1.0], "b": [9.0]})
    assert (found.tied_with, found.differences["b"]) == (["b"], (8.0, -math.inf, math.inf))


# Summaries


def summaries(times, **options):
    """Return a summary per seed, of policies that took so long with each."""
    count = len(next(iter(times.values())))
    return {
        7 + at: summarize(
            {name: frame([one[at]]) for name, one in times.items()}, RunFacts(setup={"seed": 7 + at}, **options)
        )
        for at in range(count)
    }


def test_the_sentence_names_who_is_tied_and_by_how_much_the_next_is_behind():
    times = {"a": [10.0, 20.0, 30.0], "b": [10.5, 19.0, 31.0], "c": [20.0, 30.0, 40.0], "oracle": [9.0, 9.0, 9.0]}
    summary, table, _ = seeds.summarize_seeds(summaries(times))
    # 1/6 s with a standard error of 0.601 s, times 6.205, as both pairs hold together with 95 %.
    assert seeds.sentence_over_seeds(summary) == (
        "a or b: tied over 3 seeds. a: 20.0 s on average; b 1 % more (-18 % to 19 %)."
    )
    assert summary["winner"] == {
        "policy": "a", "tied_with": ["b"], "runner_up": "c", "margin_s": 10.0, "margin_fraction": 0.333333333333,
    }  # fmt: skip
    assert summary["policies"]["oracle"]["simulated_rank"] is None
    names = ("simulated_s", "to_best", "paired", "fastest_with")
    cells = {row["policy"]: tuple(row[name] for name in names) for row in seeds_answer(summary).rows}
    assert cells["a"] == (20.0, "best, tied", "-", "2 of 3")
    assert cells["c"] == (30.0, "+50 %", "+50 % with every seed", "0 of 3")
    assert cells["(oracle)"] == (9.0, "bound", "-", None)
    assert len(table) == 12
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


# Runs


def test_the_folder_of_a_seed_has_the_bytes_of_a_run_with_that_seed(several, scenario, tmp_path):
    out, _ = several
    assert sorted(one.name for one in (out / "seeds").iterdir()) == ["5", "6", "7", "8"]
    for seed in (5, 8):
        did("run", scenario, "--seed", seed, "--out", tmp_path / str(seed), "-q")
        own, alone = contents(out / "seeds" / str(seed)), contents(tmp_path / str(seed))
        said = json.loads(alone.pop("summary.json"))
        # Other defaults are tried of a run with one seed alone.
        del said["depends_on"]
        assert json.loads(own.pop("summary.json")) == said
        assert own == alone


def test_tables_and_summary_tell_what_the_seeds_came_to(several):
    out, said = several
    summary, each = json.loads((out / "summary.json").read_text()), pd.read_csv(out / "paired.csv").set_index("policy")
    table = pd.read_csv(out / "seeds.csv")
    assert summary["seeds"] == [5, 6, 7, 8]
    assert list(table["seed"].unique()) == summary["seeds"]
    times = {}
    for seed in summary["seeds"]:
        one = json.loads((out / "seeds" / str(seed) / "summary.json").read_text())
        for name, policy in one["policies"].items():
            times.setdefault(name, []).append(policy["simulated_s"])
    contest = paired.contest({name: one for name, one in times.items() if name != "oracle"})
    assert summary["winner"]["policy"] == contest.policy
    assert summary["winner"]["tied_with"] == contest.tied_with
    for name, difference in contest.differences.items():
        columns = ["simulated_more_s", "simulated_more_low_s", "simulated_more_high_s"]
        assert each.loc[name, columns].tolist() == pytest.approx(difference, rel=1e-9, abs=1e-12)
        assert [summary["policies"][name][column] for column in columns] == pytest.approx(
            difference, rel=1e-9, abs=1e-12
        )
    # They are the same exchange under two names.
    assert each.loc["AG", "simulated_s"] == each.loc["same", "simulated_s"]
    assert each.loc["AG", "simulated_tied"] == each.loc["same", "simulated_tied"]
    assert "over 4 seeds" in said
    assert max(map(len, said.splitlines())) <= 80
    low = each["simulated_prediction_low_s"]["AG"]
    assert low < each["simulated_s"]["AG"]


@pytest.mark.parametrize("jobs", [2, 5])
def test_the_number_of_processes_alters_no_byte(jobs, several, scenario, tmp_path):
    did("run", scenario, "--seed", 5, "--seeds", 4, "--jobs", jobs, "--out", tmp_path / "out", "-q")
    assert contents(tmp_path / "out") == contents(several[0])


@needs.linux
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(several, scenario, tmp_path):
    out = tmp_path / "out"
    command = ["run", str(scenario), "--seed", "5", "--seeds", "4", "--out", str(out)]
    killing.run_killed([*command, "--jobs", "2", "-q"], "checkpoints", 40, eager=True)
    assert not (out / "summary.json").exists()
    result = did(*command)
    assert "goes on where it had stopped: " in result.stderr
    assert " with seed 5" in result.stderr
    assert contents(out) == contents(several[0])


def test_ctrl_c_keeps_the_seeds_that_are_done(scenario, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "EVERY", 0)
    real = Checkpoint.write

    def write(self, state, done, ended=False):
        real(self, state, done, ended)
        ends.append(ended)
        if sum(ends) == 9:
            raise KeyboardInterrupt

    ends = []
    monkeypatch.setattr(Checkpoint, "write", write)
    result = invoke("run", scenario, "--seeds", 4, "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 130
    assert "AG with seed 3" in (tmp_path / "INCOMPLETE").read_text()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["seeds"][:2] == [0, 1]
    assert summary["policies"]["AG"]["simulated_compared"] == 2
    assert "AG with seed 3" in result.stderr
    assert "not done, as the file INCOMPLETE says" in result.stderr


def test_trainings_over_seeds_have_no_mean_time_to_a_target_that_one_did_not_reach():
    def learning(seconds, accuracy):
        frames = frame([seconds, seconds]).assign(loss=[1.0, 0.5], accuracy=accuracy)
        return summarize({"a": frames, "b": frames}, RunFacts(target=0.5))

    reached = {1: learning(1.0, [0.4, 0.6]), 2: learning(2.0, [0.5, 0.7])}
    names = ("time_to_target_s", "soonest", "soonest_paired", "reached")
    rows = seeds_answer(seeds.summarize_seeds(reached)[0]).rows
    assert [row["policy"] for row in rows] == ["a", "b"]
    assert [rows[0][name] for name in names] == [2.0, "best, tied", "-", "2 of 2"]
    rows = seeds_answer(seeds.summarize_seeds(reached | {3: learning(1.0, [0.1, 0.2])})[0]).rows
    assert [rows[0][name] for name in names] == [None, "-", "-", "2 of 3"]
    told = seeds.sentence_over_seeds(seeds.summarize_seeds(reached)[0])
    assert told.startswith("a and b are tied as first to reach 50 % accuracy: 2 s on average, with 2 of 2 seeds. ")
    told = seeds.sentence_over_seeds(seeds.summarize_seeds(reached | {3: learning(1.0, [0.1, 0.2])})[0])
    assert told.startswith("No policy reaches 50 % accuracy with all seeds. Seeds that reach it: a 2 of 3, b 2 of 3. ")


def test_times_to_a_target_are_compared_seed_by_seed_among_policies_that_always_reach_it():
    def learning(seconds, of_c):
        times = {"a": (seconds, 0.6), "b": (1.1 * seconds, 0.7), "c": (0.1, of_c)}
        frames = {
            name: frame([each, each]).assign(loss=[1.0, 0.5], accuracy=[0.4, best])
            for name, (each, best) in times.items()
        }
        return summarize(frames, RunFacts(target=0.5))

    # Seeds differ by more than policies do, which pairs see through; c is the soonest, but not with every seed.
    given = {1: learning(1.0, 0.6), 2: learning(1.5, 0.6), 3: learning(2.0, 0.3), 4: learning(1.2, 0.6)}
    summary = seeds.summarize_seeds(given)[0]
    found = summary["policies"]
    assert [found[name]["time_to_target_rank"] for name in "abc"] == [1, 2, None]
    assert [found[name]["time_to_target_tied"] for name in "ab"] == [True, False]
    assert found["b"]["time_to_target_more_low_s"] > 0
    assert found["a"]["time_to_target_high_s"] > found["b"]["time_to_target_low_s"]
    assert seeds.sentence_over_seeds(summary).startswith(
        "a reaches 50 % accuracy first: 2.85 s on average, with 4 of 4 seeds, 10 % before b (3.13 s). "
        "Seeds that reach it: c 3 of 4. c: "
    )
    names = ("time_to_target_s", "soonest", "soonest_paired", "reached")
    told = {row["policy"]: tuple(row[name] for name in names) for row in seeds_answer(summary).rows}
    assert list(told) == ["a", "b", "c"]
    assert told["a"][1:] == ("best", "-", "4 of 4")
    assert told["b"][1].startswith("+10")
    assert told["c"] == (None, "-", "-", "3 of 4")


def test_the_page_stands_alone_and_says_everything_whatever_the_names_are(tmp_path):
    names = ["<script>alert(1)</script>", "$\\frac{a$_{", "[red]x[/red]", "plain"]
    times = {name: [1.0 + at, 2.0 + at, 2.5 + 2 * at] for at, name in enumerate(names)}
    (tmp_path / "figures").mkdir()
    summary, _ = seeds.write_seeds(tmp_path, summaries(times), "workers: 4\n")
    seen = Page((tmp_path / "report.html").read_text())
    assert not seen.open
    assert "script" not in seen.tags
    assert seen.tags.count("img") == 1
    for text in [seeds.sentence_over_seeds(summary), *(row["to_best"] for row in seeds_answer(summary).rows)]:
        assert " ".join(text.split()) in " ".join(seen.text.split())
    before = contents(tmp_path)
    seeds.write_seeds(tmp_path, summaries(times), "workers: 4\n")
    assert contents(tmp_path) == before
