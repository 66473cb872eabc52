"""The first answer that a user gets: what commands say of progress, of ties, and of what was not compared."""

import json

import pandas as pd
import pytest

from commands import did

SHORT = ("--set", "job.iterations=4", "--set", "job.scale=2000")


def words(folder):
    """What console, page and tables of a folder say, but for the record of each iteration."""
    texts = [one.read_text(encoding="utf-8") for one in folder.rglob("*") if one.suffix in (".csv", ".json", ".html")]
    return [text for text in texts if not text.startswith("policy,iteration,")]


@pytest.mark.parametrize(
    "command",
    [
        ("run", "quickstart"),
        ("run", "quickstart", "--seeds", "2"),
        ("compare", "--schemes", "topk,dense"),
        ("sweep", "quickstart", "--param", "density=0.01,0.1", "--policies", "AG,ART-ring"),
    ],
)
def test_nothing_is_said_of_progress_where_no_model_is_trained_but_that_accuracy_is_ignored(tmp_path, command):
    console = did(*command, *SHORT, "--out", tmp_path).stdout
    assert console.count("Accuracy is ignored.") == 1
    for text in (console, *words(tmp_path)):
        assert "per gain" not in text
        assert "per_gain" not in text
        assert "time_per_unit" not in text
        assert '"gain' not in text
    page = tmp_path / "report.html"
    assert not page.exists() or page.read_text(encoding="utf-8").count("Accuracy is ignored.") == 1


def test_a_choice_at_a_point_says_who_is_tied_and_that_accuracy_is_ignored():
    # Between two workers a tree sends a gradient twice, of half the bytes; rounding it takes 0.05 % of that time.
    point = ("--workers", 2, "--model", "resnet18", "--latency", "1ms", "--bandwidth", "1Gbit/s", "--density", "1%")
    command = ("choose", *point, "--schemes", "dense:algorithm=ring,fp16:algorithm=tree")
    console, found = did(*command).stdout, json.loads(did(*command, "--json").stdout)
    assert 0 < found["margin"] < 1e-3
    assert found["tied_with"] == ["fp16:algorithm=tree"]
    assert "tied with fp16:algorithm=tree" in console
    assert console.count("ccuracy") == 1


def test_where_a_model_is_trained_the_time_to_its_target_is_the_headline(tmp_path):
    overrides = (
        "--set",
        "job.iterations=30",
        "--set",
        "job.gradients.train.target=0.6",
        "--policies",
        "dense,AG-Topk,SparDL",
    )
    console = did("run", "time_to_accuracy_wan", *overrides, "--out", tmp_path).stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    learnt = {name: one["learning"]["time_to_target_s"] for name, one in summary["policies"].items()}
    reached = {name: time for name, time in learnt.items() if time is not None}
    first = min(reached, key=reached.__getitem__)
    assert console.startswith(f"{first} reaches 60 % accuracy first: ")
    assert summary["first_to_target"]["policy"] == first
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.index(f"{first} reaches 60 % accuracy first: ") < page.index("time to target") < page.index("vs best")
    assert ("not reach it." in console) == (None in learnt.values())
    assert "ccuracy is ignored" not in console
    said = did("compare", "time_to_accuracy_wan", *overrides[:4], "--out", tmp_path / "compare").stdout
    assert said.startswith("AG reaches 60 % accuracy first: ")
    assert f"{first.removesuffix('-Topk')} reaches" in said
    assert "One seed; " in said
    grid = ("--param", "bandwidth=20,40Mbit/s", "--out", tmp_path / "grid")
    console = did("sweep", "time_to_accuracy_wan", *overrides, *grid).stdout
    found = pd.read_csv(tmp_path / "grid" / "sweep.csv")
    soonest = found.loc[found.groupby("cell")["time_to_target_s"].idxmin(), "policy"].tolist()
    assert soonest[0] == soonest[1]
    assert console.startswith(f"First to 60 % accuracy: {soonest[0]} in 2 of 2 cells. Fastest: ")
    assert "ccuracy is ignored" not in console


def test_policies_that_take_the_same_time_are_tied_and_none_of_them_wins(tmp_path):
    """GRC and local residuals of SparDL differ in what they keep, not in what they send."""
    scenario = tmp_path / "residuals.yaml"
    scenario.write_text(
        "workers: 4\n"
        "network: {topology: {star: {latency: 1 ms, bandwidth: 1 Gbit/s}}}\n"
        "job: {iterations: 3, model: resnet18, scale: 2000, density: 1 %}\n"
        "exchanges:\n"
        "  GRC: {scheme: spardl, residual: global}\n"
        "  local: {scheme: spardl, residual: local}\n"
        "policies: {GRC: {fixed: GRC}, local: {fixed: local}}\n",
        encoding="utf-8",
    )
    console = did("sweep", scenario, "--param", "bandwidth=1,5,10 Gbit/s", "--out", tmp_path / "out").stdout
    assert console.startswith("Fastest: GRC and local, tied, in 3 of 3 cells.")
    found = pd.read_csv(tmp_path / "out" / "sweep.csv")
    assert found["tied"].all()
    assert not found["wins"].any()
    for line in console.splitlines():
        if line.split()[:1] in (["GRC"], ["local"]):
            assert line.split()[1:4] == ["0", "3", "3"]
    said = did("run", scenario, "--no-report", "--out", tmp_path / "run").stdout
    assert said.startswith("GRC and local are tied as fastest: ")
    said = did("choose", scenario).stdout
    assert "Take GRC or local" in said
    assert said.count("ccuracy") == 1
    assert json.loads(did("choose", scenario, "--json").stdout)["tied_with"] == ["local"]
    for seeds in (1, 2):
        said = did("compare", scenario, "--seeds", seeds, "--out", tmp_path / f"compare-{seeds}").stdout
        assert said.startswith("GRC and local are tied as fastest: ")
    did("run", scenario, "--seeds", 2, "--no-report", "--out", tmp_path / "seeds")
    assert pd.read_csv(tmp_path / "seeds" / "paired.csv")["simulated_least_with"].tolist() == [0, 0]


def test_several_seeds_say_with_how_many_of_them_a_target_is_reached_and_who_misses_it_stands_last(tmp_path):
    command = ("run", "time_to_accuracy_wan", "--policies", "dense,AG-Topk,SparDL", "--no-report")
    short = ("--set", "job.iterations=25", "--set", "job.gradients.train.target=0.6", "--seeds", 2)
    console = did(*command, *short, "--out", tmp_path).stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    policies = summary["policies"]
    times = {name: one["time_to_target_s"] for name, one in policies.items()}
    missed = [name for name, time in times.items() if time is None]
    assert missed
    first = min(times.keys() - missed, key=times.__getitem__)
    assert console.startswith(f"{first} reaches 60 % accuracy first: ")
    assert summary["first_to_target"]["policy"] == first
    assert ", with 2 of 2 seeds" in console
    assert f"Seeds that reach it: {missed[0]} {policies[missed[0]]['reached_with']} of 2" in console
    rows = [line.split() for line in console.splitlines() if line.split() and line.split()[0] in times]
    assert [row[0] for row in rows[1:4]] == sorted(times, key=lambda name: (times[name] is None, times[name] or 0))
