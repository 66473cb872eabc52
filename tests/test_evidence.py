"""Intervals, chances and evidence of whole jobs, as the commands give them."""

import json

import pandas as pd
import pytest

from commands import NO_PAGE, did, timed
from simnet.cost_models.calibration import cost_model_of
from simnet.cost_models.evidence.intervals import coverage_factors, error_models

SCENARIO = """
workers: 4
network:
  stack: STACK
  topology: {star: {latency: 1 ms, bandwidth: RATE}}
job: {parameters: 200000, scale: 20, iterations: 12, density: 2 %, compute: {mean: 20 ms, spread: 5 %}}
exchanges: {AG: {scheme: topk}, ART-ring: {scheme: artopk}, dense: {scheme: dense}}
policies: {AG: {fixed: AG}, ART-ring: {fixed: ART-ring}, dense: {fixed: dense}, again: {fixed: AG}}
"""


def scenario(tmp_path, stack="gloo", rate="50 Mbit/s"):
    path = tmp_path / "own.yaml"
    path.write_text(SCENARIO.replace("STACK", stack).replace("RATE", rate), encoding="utf-8")
    return path


def ran(tmp_path, path, *arguments):
    return json.loads(did("run", path, *NO_PAGE, "--json", "--out", tmp_path / "run", "--force", *arguments).stdout)


def test_policies_that_share_their_exchange_share_its_error(tmp_path):
    """Two names of one exchange are as likely, and lose nothing to each other, whatever it is off by."""
    policies = ran(tmp_path, scenario(tmp_path))["policies"]
    one, same = (policies[name]["judgement"] for name in ("AG", "again"))
    assert one == same
    alone = ran(tmp_path, scenario(tmp_path), "--policies", "AG,again")["policies"]["AG"]["judgement"]
    assert alone["chance_to_be_fastest"] == 0.5
    assert alone["regret_of_job"] == 0


def test_what_all_jobs_share_does_not_decide(tmp_path):
    """Computing ten times as long widens all intervals by as much, and leaves the order as sure as it was."""
    path = scenario(tmp_path)
    fields = (f"job.compute={{mean: {mean}}}" for mean in ("20 ms", "2 s"))
    first, slow = (ran(tmp_path, path, "--set", field)["policies"] for field in fields)
    for name in ("AG", "ART-ring", "dense"):
        before, after = (one[name]["judgement"] for one in (first, slow))
        assert after["chance_to_be_fastest"] == pytest.approx(before["chance_to_be_fastest"], abs=0.01)
        assert after["high_s"] - after["low_s"] > 10 * (before["high_s"] - before["low_s"])
    assert slow["dense"]["judgement"]["regret_of_job"] < first["dense"]["judgement"]["regret_of_job"]


@pytest.mark.parametrize(
    ("stack", "rate", "level", "beyond"),
    [
        ("gloo", "50 Mbit/s", "measured", "links and numbers of workers like these"),
        ("gloo", "10 Gbit/s", "extrapolated", "here 10 Gbit/s"),
        ("nccl", "50 Mbit/s", "extrapolated", "here nccl"),
    ],
)
def test_every_answer_names_its_evidence(tmp_path, stack, rate, level, beyond):
    path = scenario(tmp_path, stack, rate)
    run = did("run", path, *NO_PAGE, "--out", tmp_path / "run").stdout
    job = did("step", path).stdout
    did("run", path, "--grid", "density=0.02", "--out", tmp_path / "sweep")
    ring = ("allreduce_ring", "--workers", 4, "--size", "1 MB")
    links = ("--latency", "1 ms", "--bandwidth", rate, "--stack", stack)
    for said in (run, job, did("time", *ring, *links).stdout):
        line = next(one for one in said.splitlines() if one.startswith("Evidence    "))
        assert line.startswith(f"Evidence    {level}")
        assert beyond in line
    assert set(pd.read_csv(tmp_path / "sweep" / "sweep.csv")["evidence"]) == {level}
    assert timed(*ring, *links)["evidence"] == level


def test_sharded_steps_have_no_interval(tmp_path):
    run = ran(tmp_path, "sharded_nodes", "--set", "job.iterations=2")
    assert run["evidence"] == "assumed"
    assert all("judgement" not in one for one in run["policies"].values())
    step = ("step", "--model", "gpt2", "--sharding", "ddp", "--workers", 4, "--latency", "1 ms")
    assert json.loads(did(*step, "--bandwidth", "1 Gbit/s", "--json").stdout)["evidence"] == "assumed"


def test_no_interval_of_a_collective_is_below_what_its_bytes_take(tmp_path):
    for stack in ("ideal", "gloo", "tcp", "mpich", "openmpi"):
        ring = ("allreduce_ring", "--workers", 4, "--size", "8 MB", "--latency", "10 us", "--bandwidth", "1 Gbit/s")
        found = timed(*ring, "--stack", stack)
        assert found["low_s"] >= found["lower_bound_s"] >= 2 * 3 / 4 * 8e6 / 125e6
        assert found["low_s"] <= found["time_s"] <= found["high_s"]
    assert timed("allreduce_ring", "--size", "8 MB", "--network", "ring", "--workers", 1)["lower_bound_s"] == 0
    rates = "intra_latency=0s,intra_bandwidth=300GB/s,nic_latency=0s,nic_bandwidth=10GB/s"
    nodes = ("--network", f"multi_gpu_nodes:nodes=2,gpus_per_node=4,{rates}", "--workers", 8)
    found = timed("allreduce_ring", "--size", "8 MB", *nodes)
    assert (found["lower_bound_s"], found["lower_bound_of"]) == (2 * 7 / 8 * 8e6 / 10e9, "node:0 sends 14000000 B")


def test_several_seeds_have_the_error_of_the_model_in_their_interval(tmp_path):
    path = scenario(tmp_path)
    one = ran(tmp_path, path)["policies"]
    several = json.loads(did("run", path, "--seeds", 2, "--json", "--out", tmp_path / "seeds").stdout)
    for name in ("AG", "ART-ring", "dense"):
        own, judged = several["policies"][name], one[name]["judgement"]
        width = own["simulated_prediction_high_s"] - own["simulated_prediction_low_s"]
        assert width == pytest.approx(judged["high_s"] - judged["low_s"], rel=0.1)
        assert own["simulated_prediction_low_s"] < own["simulated_s"] < own["simulated_prediction_high_s"]
    assert several["run"]["evidence"] == "measured"


def test_a_lead_within_the_error_is_said_to_be_a_tie_over_seeds_too(tmp_path):
    own = scenario(tmp_path)
    words = ("--policies", "AG,ART-ring,dense", "--density", "3.2 %", "--seeds", 3)
    said = did("run", own, *words, "--out", tmp_path / "o").stdout
    several = json.loads((tmp_path / "o" / "summary.json").read_text())["policies"]
    chance = several["AG"]["chance_to_be_fastest"]
    assert 0.5 < chance < 0.95
    assert said.startswith("AG or ART-ring: tied over 3 seeds. AG: ")


def test_no_interval_over_seeds_has_no_width(tmp_path):
    """Without anything random all seeds take the same time, which is no interval of 95 %."""
    fixed = ("--set", "job.compute={mean: 20 ms}", "--set", "exchanges.AG.scheme=dense")
    said = did(
        "run", scenario(tmp_path), *fixed, "--policies", "AG,dense,ART-ring", "--seeds", 2, "--out", tmp_path / "o"
    )
    assert "with every seed" in " ".join(said.stdout.split())


def test_a_collective_has_the_interval_that_other_sites_gave_such_predictions():
    """A platform by its specification, of which nothing was measured."""
    found = timed("all_reduce", "--network", "dgx-h100", "--workers", 16, "--size", "64MB")
    own = cost_model_of("dgx-h100").predict("all_reduce", 16, 64e6)
    below, above = coverage_factors(own.kind, error_models()[own.kind])
    assert found["low_s"] == pytest.approx(own.seconds * (own.low / own.seconds) ** below, rel=1e-9)
    assert found["high_s"] == pytest.approx(own.seconds * (own.high / own.seconds) ** above, rel=1e-9)
    assert (below, above) != (1, 1)
