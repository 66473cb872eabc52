"""`simnet choose` as users ask it: one job, jobs side by side, grids and maps; flags, files and the library alike."""

import json

import pandas as pd
import pytest

import simnet
from commands import did, refused
from scenario_texts import TRAINING

QUICK = {"job.iterations": 2, "job.scale": 20000}
SETS = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
PROBLEMS = [
    {},
    {"workers": 3, "model": "bert-base", "bandwidth": "100Mbit/s", "seed": 7},
    {"workers": 4, "model": "resnet18", "latency": "10us", "density": "0.1%", "stack": "gloo"},
    {"model": "7B"},
    {"device": "h100-torch2.6", "compute": "50ms", "memory": "16GB"},
    {"compute": "0s", "network": "fat_tree:k=4"},
    {"schemes": "topk,artopk:collective=tree,fp16:algorithm=ring"},
    {"strategy": "diloco:period=3"},
    {"sharding": "fsdp2"},
    {"gradients": "train", "compute": "1ms"},
]


def asked(*words):
    return json.loads(did("choose", *words, "--json").stdout)


@pytest.mark.parametrize("fields", PROBLEMS, ids=lambda one: "-".join(map(str, one.values())) or "base")
def test_flags_a_saved_scenario_and_the_library_say_the_same(fields, tmp_path):
    few = {} if {"schemes", "sharding"} & set(fields) else {"schemes": "topk,dense"}
    flags = [word for name, value in (fields | few).items() for word in (f"--{name}", value)]
    quick = [] if "sharding" in fields else SETS
    by_flags = asked(*flags, *quick, "--save-scenario", tmp_path / "saved.yaml")
    assert by_flags["rows"]
    assert asked(tmp_path / "saved.yaml") == by_flags
    found = simnet.choose(**fields, **few, set=QUICK if quick else ())
    assert json.loads(found.to_json()) == by_flags
    assert all(len(line) <= 80 for line in str(found).splitlines())


def test_the_answer_comes_first_and_fits_a_terminal():
    shown = did("choose").stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    found = asked()
    first = found["rows"][0]
    assert shown.startswith(f"AG-Topk: {1e3 * first['mean_iteration_s']:.1f} ms (")
    assert f"fastest with {100 * first['chance_to_be_fastest']:.0f}" in " ".join(shown.split())
    assert not any("regret" in line for line in shown.splitlines()[:3])


def test_shardings_are_ranked_by_the_time_of_a_step_beside_exchanges_that_need_no_other_samples():
    step = ("--workers", "4", "--bandwidth", "10Gbit/s")
    rows = asked(*step, "--sharding", "fsdp2", "--model", "resnet18")["rows"]
    assert {"fsdp2", "AG-Topk", "dense ring"} < {row["exchange"] for row in rows}
    times = [row["mean_iteration_s"] for row in rows]
    assert times == sorted(times)
    parallel = "fsdp2:tensor_parallel=2,tokens=1024"
    assert [row["exchange"] for row in asked(*step, "--sharding", parallel, "--model", "gpt2")["rows"]] == ["fsdp2"]


def test_exchanges_that_do_not_reach_the_target_come_last_and_have_no_time(tmp_path):
    path = tmp_path / "learn.yaml"
    path.write_text(TRAINING.replace("TARGET", "60 %"))
    found = asked(path)
    first, second = found["rows"]
    assert (first["exchange"], second["exchange"]) == ("dense", "AG")
    assert found["answer"].startswith(
        f"dense reaches an accuracy of 60 % first: {1e3 * first['time_to_target_s']:.0f} ms"
    )
    assert first["low_s"] < first["time_to_target_s"] < first["high_s"]
    assert second["to_best"] == "not reached"
    assert not {"time_to_target_s", "low_s", "high_s"} & {name for name, one in second.items() if one is not None}
    assert first["accuracy"] >= 0.6 > second["accuracy"]


def test_a_grid_has_at_most_64_cells_unless_it_is_a_map():
    assert "has 65 cells, more than the 64 that are" in refused("choose", "--grid", "job.iterations=1:65:65")
    assert "40,000" in refused("choose", "--grid", "bandwidth=1Gbit/s:9Gbit/s:201", "--grid", "latency=1ms:9ms:200")


def test_policies_of_a_scenario_are_ranked_beside_exchanges():
    found = asked("quickstart")
    assert [one["exchange"] for one in found["rows"]][:2] == ["flexible", "AG"]
    assert all(one["chance_to_be_fastest"] > 0 for one in found["rows"] if one["to_best"] == "tied")
    few = asked("quickstart", "--policies", "AG,ART-ring", "--set", "job.iterations=3")
    assert {one["exchange"] for one in few["rows"]} == {"AG", "ART-ring"}
    assert [one["exchange"] for one in asked("--policies", "AG-Topk")["rows"]] == ["AG-Topk"]
    assert "flexbile" in refused("choose", "quickstart", "--policies", "flexbile")


def test_what_wrong_links_do_stands_in_the_answer_where_it_was_asked_for():
    among = ("--workers", 4, "--model", "resnet18", "--density", "5%", "--schemes", "topk,dense:algorithm=ring")
    near, same = (asked(*among, "--link-uncertainty", factor) for factor in (1.5, "50%"))
    assert near == same
    assert "With links up to 1.5x off, topk stays first" in near["depends_on"]
    assert "With links" not in asked(*among)["depends_on"]


def test_a_map_is_written_as_figure_table_and_page(tmp_path):
    axes = ("--grid", "latency=10us:10ms:12:log", "--grid", "density=0.1%:10%:10:log")
    fields = ("--set", "job.overlap=none", "--schemes", "topk,artopk:collective=ring", *SETS)
    for name in ("map.png", "map.svg", "map.csv", "map.html"):
        did("choose", *axes, *fields, "--out", tmp_path / name)
    table = pd.read_csv(tmp_path / "map.csv")
    assert (len(table), [*table]) == (120, ["latency_s", "density", "exchange", "iteration_s", "margin"])
    svg = (tmp_path / "map.svg").read_text()
    assert "<!-- Fastest exchange -->" in svg
    assert "<!-- model resnet50, 25,557,032 parameters, workers 8, bandwidth 10 Gbit/s -->" in svg
    assert "data:image/svg+xml" in (tmp_path / "map.html").read_text()
