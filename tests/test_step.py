"""`simnet step`: sharded steps, training strategies and jobs that exchange gradients, as `simnet run` has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import simnet
from commands import NO_PAGE, did, refused
from simnet.cost_models.costs.models import Layer, load_model
from simnet.cost_models.evidence.intervals import factor_in_job
from simnet.network import Network
from simnet.topologies import star
from simnet.training.parallel.pytorch import fsdp2
from simnet.training.parallel.units import wrap_units
from step_times import time_step
from test_parallel_traced import as_traces

LINKS = ("--latency", "10 us", "--bandwidth", "100 Gbit/s")


def asked(*words: object) -> dict[str, Any]:
    """Return what the command says, for programs."""
    found: dict[str, Any] = json.loads(did("step", *words, "--json").stdout)
    return found


def said(*words: object) -> str:
    """Return what the command says, for people, in one line."""
    return " ".join(did("step", *words).stdout.split())


# Sharded steps


def test_a_sharded_step_is_that_of_the_library() -> None:
    found = asked("--model", "gpt2", "--sharding", "fsdp2:replicas=2,slowdown=1.2", "--workers", 4, *LINKS)
    profile = load_model("gpt2")
    graph = fsdp2(wrap_units(profile.layers, behind=["wte.weight"]), 4, replicas=2)
    network = Network(star(4, latency=10e-6, bandwidth=100e9 / 8))
    passes = {"forward": profile.compute / 3, "backward": profile.compute * 2 / 3}
    timing = time_step(graph, network, **passes, slowdown=1.2)
    assert found["compute_slowdown"] == 1.2
    assert found["step_s"] == pytest.approx(timing.duration, rel=1e-9)
    assert found["slowed_s"] == pytest.approx(timing.slowed.max(), rel=1e-9)
    assert found["exposed_s"] == pytest.approx(timing.exposed.max(), rel=1e-9)
    assert found["utilisation"] == pytest.approx(profile.compute / timing.duration, rel=1e-9)
    assert sum(call["exposed_s"] for call in found["calls"]) == pytest.approx(found["exposed_s"], rel=1e-9)
    assert [call["in_B"] for call in found["calls"]] == [call.in_bytes for call in graph.calls]
    assert found["memory"] == {f"{name}_B": size for name, size in timing.memory()._asdict().items()}
    assert found["evidence"] == "assumed"


def test_the_range_of_a_step_has_all_errors_at_one_end() -> None:
    words = ("--model", "resnet18", "--sharding", "ddp", "--workers", 2, *LINKS, "--set", "job.update=0 s")
    idle, busy = (asked(*words, "--compute", one) for one in ("0 s", "10 s"))
    calls = [simnet.time("ring", size=one["in_B"], workers=2, latency="10 us", bandwidth="100 Gbit/s").rows[0]
             for one in idle["calls"]]  # fmt: skip
    for end in ("low_s", "high_s"):
        assert idle[end] == pytest.approx(sum(one[end] for one in calls), rel=1e-9)
    # Computing is off by what it was in jobs, and collectives slow it by at most 2.5 times while they last.
    low, high = (factor_in_job(end, "compute") for end in ("low", "high"))
    last = {end: calls[-1][end] for end in ("low_s", "high_s")}
    assert 10 * low <= busy["low_s"] <= 10 * low + last["low_s"] + 1e-9
    assert 10 * high < busy["high_s"] < 10 * high + 1.5 * idle["high_s"] + last["high_s"]


def test_parts_add_up_to_the_step_and_count_the_calls() -> None:
    found = asked("--model", "gpt2", "--sharding", "fsdp2:slowdown=1.76", *LINKS)
    rows = {one["part"]: one for one in found["rows"]}
    assert [*rows] == [
        *("compute", "slowed by collectives"),
        *("forward all_gather", "backward all_gather", "backward reduce_scatter"),
    ]
    assert sum(one["of_step_s"] for one in rows.values()) == pytest.approx(found["step_s"], rel=1e-9)
    assert rows["compute"]["of_step_s"] == pytest.approx(load_model("gpt2").compute, rel=1e-9)
    assert rows["forward all_gather"]["calls"] == 13
    # Every worker has the whole model once the last unit is gathered.
    assert rows["forward all_gather"]["vector_B"] == pytest.approx(4 * load_model("gpt2").parameters, rel=1e-4)
    assert rows["backward all_gather"]["of_step_s"] == 0


def test_the_answer_comes_first_and_all_calls_are_listed_when_asked_for() -> None:
    words = ("--model", "resnet18", "--sharding", "ddp", "--workers", 2, "--compute", "60 ms")
    lines = did("step", *words).stdout.splitlines()
    answer = "79.1 ms a step (63.0-176 if all errors go one way), 76 % utilisation; 234 MB + activations."
    assert " ".join(lines[:2]).startswith(answer)
    assert len(lines) < 20
    listed = did("step", *words, "--calls").stdout.splitlines()
    assert sum("all_reduce" in line for line in listed) == 3
    assert max(map(len, [*lines, *listed])) <= 80
    assert "--calls: is for sharded steps" in refused("step", "--calls")


def test_ways_of_sharding_are_rows_the_fastest_first() -> None:
    found = asked("sharded_nodes", "--set", "network.weather=[]", "--set", "job.compute.spread=0")
    rows = found["rows"]
    assert [one["policy"] for one in rows] == ["HSDP", "DDP", "FSDP2", "ZeRO-3"]
    assert rows == sorted(rows, key=lambda one: one["step_s"])
    alone = asked("sharded_nodes", "--set", "network.weather=[]", "--policies", "FSDP2")
    assert alone["step_s"] == rows[2]["step_s"]
    assert alone["memory"]["peak_B"] == rows[2]["memory_B"]
    assert "--policies names it" in refused("step", "sharded_nodes", "--calls")


def test_whether_a_step_fits_a_device_is_in_the_answer() -> None:
    words = ("--model", "gpt2", "--sharding", "ddp", "--workers", 2)
    # Parameters, gradients and buckets, and two moments.
    needed = 5 * 4 * load_model("gpt2").parameters
    for limit, fits in ((needed, True), (needed - 1, False)):
        found = asked(*words, "--memory", f"{limit} B")
        assert (found["memory"]["peak_B"], found["memory_limit_B"], found["fits"]) == (needed, limit, fits)
    assert "activations, does not fit 1 GB." in said(*words, "--memory", "1 GB")
    assert "activations, fits 16 GB." in said(*words, "--memory", "16 GB")


def test_parallelism_around_a_step_is_options_of_its_way() -> None:
    words = ("--model", "gpt2", "--sharding", "ddp:pipeline=2,tokens=64", "--workers", 2)
    found = asked(*words)
    assert [call["unit"] for call in found["calls"]] == ["activations", "gradients", "wte.weight"]
    # What each computes is its share of the whole.
    assert found["most_compute_s"] < load_model("gpt2").compute


def test_a_step_of_traces_is_named_by_their_folder(tmp_path: Path) -> None:
    step = fsdp2(wrap_units([Layer(f"h.{number}.weight", (64, 64)) for number in range(3)]), 4)
    as_traces(tmp_path, step, [50] * len(step.nodes))
    found = asked(tmp_path, *LINKS)
    network = Network(star(4, latency=10e-6, bandwidth=100e9 / 8))
    timing = time_step(step, network, forward=3 * 50e-6, backward=3 * 50e-6)
    assert found["step_s"] == pytest.approx(timing.duration, rel=1e-9)
    assert found["exposed_s"] == pytest.approx(timing.exposed.max(), rel=1e-9)
    assert found["workers"] == 4
    # Traces say how long they compute: only collectives are off.
    assert found["low_s"] == pytest.approx(found["step_s"], rel=0.01)
    assert found["high_s"] > 2 * found["step_s"]
    assert "none of rank 0" in refused("step", tmp_path.parent)


@pytest.mark.parametrize(("way", "codes"), [("zero3:zero_quantized_weights=true", True), ("fsdp2", False)])
def test_it_is_said_that_quantising_takes_no_time(way: str, codes: bool) -> None:
    text = said("--model", "resnet18", "--sharding", way, "--workers", 4, "--wide")
    assert ("Quantising takes no time" in text) == codes


@pytest.mark.parametrize(("verb", "now"), [("utilisation", "step --strategy"), ("predict job", "step SCENARIO")])
def test_verbs_of_before_name_this_one(verb: str, now: str) -> None:
    assert f"{verb!r} is now 'simnet {now}" in refused(*verb.split(), "--json")


# Platforms


def test_a_platform_times_collectives_as_simnet_time_does() -> None:
    found = asked("--network", "dgx-h100", "--workers", 16, "--model", "gpt2", "--sharding", "fsdp2")
    first = found["calls"][0]
    (predicted,) = simnet.time("all_gather", network="dgx-h100", workers=16, size=first["out_B"]).rows
    assert first["end_s"] - first["begin_s"] == pytest.approx(predicted["time_s"], rel=1e-6)
    assert found["cost_model"] == "dgx-h100"
    assert "cost model of dgx-h100" in said("--network", "dgx-h100", "--workers", 16, "--sharding", "ddp")
    # A stack that is given takes the place of the platform's.
    assert "cost_model" not in asked("--network", "dgx-h100", "--workers", 16, "--sharding", "ddp", "--stack", "ideal")


# One scenario, asked of step and of run


def ran(folder: Path, *words: object) -> pd.DataFrame:
    """Return the iterations of a run."""
    did("run", *words, *NO_PAGE, "--out", folder, "-q")
    return pd.read_csv(folder / "iterations.csv")


JOB = """
workers: 8
network: {topology: {star: {latency: 100 us, bandwidth: 10 Gbit/s}}}
job: {model: resnet50, scale: 2000, iterations: 6, density: 1 %}
exchanges: {AG: {scheme: topk}, ART: {scheme: artopk}, dense: {scheme: dense}}
"""


def test_a_job_takes_as_long_in_step_as_in_run_and_has_the_same_order(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    rows = {one["policy"]: one for one in asked(tmp_path / "job.yaml")["rows"]}
    # Its iteration is a median, that of a run a mean, and each says so.
    said = " ".join(did("step", tmp_path / "job.yaml").stdout.split())
    assert "an iteration in the median" in said
    iterations = ran(tmp_path / "run", tmp_path / "job.yaml")
    each = iterations[iterations["policy"] != "oracle"].groupby("policy")["iteration_s"]
    totals = each.sum().sort_values()
    assert [*rows] == [*totals.index]
    for policy, row in rows.items():
        assert row["simulated_s"] == pytest.approx(totals[policy], rel=1e-9)
        assert row["total_s"] == pytest.approx(each.median()[policy], rel=0.01)


@pytest.mark.parametrize("way", ["ddp", "fsdp2", "zero3"])
def test_a_sharded_step_takes_as_long_as_an_iteration_of_its_run(way: str, tmp_path: Path) -> None:
    text = JOB[: JOB.index("exchanges")].replace("scale: 2000", f"sharding: {{as: {way}}}")
    (tmp_path / "job.yaml").write_text(text.replace(", density: 1 %", ""))
    found = asked(tmp_path / "job.yaml")
    iterations = ran(tmp_path / "run", tmp_path / "job.yaml")["iteration_s"]
    assert found["step_s"] == pytest.approx(iterations.iloc[-1], rel=1e-9)
    assert found["step_s"] == pytest.approx(iterations.median(), rel=0.01)


def test_a_table_and_a_data_frame_have_the_rows_and_a_file_has_them_too(tmp_path: Path) -> None:
    found = simnet.step("quickstart", set={"job.iterations": 3}, policies="AG,ART-ring")
    assert found.best == "AG"
    assert found.to_pandas()["policy"].tolist() == ["AG", "ART-ring"]
    did("step", "quickstart", "--set", "job.iterations=3", "--policies", "AG,ART-ring", "--out", tmp_path / "step.csv")
    written = pd.read_csv(tmp_path / "step.csv")
    assert list(written) == list(found.to_pandas())
    assert written["total_s"].tolist() == pytest.approx(found.to_pandas()["total_s"].tolist(), rel=1e-12)


def test_what_nobody_said_is_named() -> None:
    text = said("--sharding", "ddp", "--model", "gpt2", "--bandwidth", "1 Gbit/s")
    assert "316 ms (0.57-1.9x) on V100 (fp32, batch 4 of 1,024 tokens; job.batch, job.tokens), stack ideal" in text
