"""Under software microseconds decide the order of messages: a lead that other start times take away is a tie."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from commands import NO_PAGE, contents, did, timed, wide
from simnet.network.start_spread import StartSpread, offsets_of_sum

LATENCY = "network.topology.fat_tree.latency"


@pytest.fixture(scope="module")
def all_gather(tmp_path_factory):
    """An all-gather of 5 MB each, and a dense all-reduce of 24 MB, on a fat-tree over Open MPI."""
    scenario = tmp_path_factory.mktemp("start-times") / "all_gather.yaml"
    scenario.write_text(
        "workers: 8\n"
        "network: {topology: {fat_tree: {k: 4, latency: 100 us, bandwidth: 1 Gbit/s}}, stack: openmpi}\n"
        "job:\n"
        "  {iterations: 3, parameters: 6000000, scale: 10000, density: 10.5 %, device: ideal, overlap: none,\n"
        "   compute: {mean: 10 ms}}\n"
        "exchanges: {AG: {scheme: topk, allgather: ring}, dense: {scheme: dense, algorithm: ring}}\n"
        "policies: {AG: {fixed: AG}, dense: {fixed: dense}}\n"
        "output: {report: false, timeline: 0}\n",
        encoding="utf-8",
    )
    return scenario


TIED = "AG or dense: tied, 512-588 ms an iteration."
REASON = ": these are tied."


def test_a_run_whose_lead_is_within_the_spread_of_start_times_ends_in_a_tie(all_gather, tmp_path):
    console = wide("run", all_gather, "--out", tmp_path)
    assert console.startswith(TIED)
    assert (
        "If workers enter a little apart, AG takes 1.16 s to 1.55 s and dense takes 1.32 s to 1.77 s" + REASON
        in console
    )
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["winner"]["tied_with"] == ["dense"]
    assert found["winner"]["runner_up"] is None
    gather, dense = found["policies"]["AG"], found["policies"]["dense"]
    # As a single timing has it, the all-reduce is 15 % behind.
    assert dense["simulated_s"] > 1.14 * gather["simulated_s"]
    assert dense["start_low_s"] < gather["simulated_s"] < gather["start_high_s"] < dense["simulated_s"]
    # The exchange alone, three times, is what `simnet time` says of it.
    links = ("--network", "fat_tree:k=4", "--bandwidth", "1 Gbit/s", "--latency", "100 us")
    alone = timed("allreduce_ring", "--workers", 8, "--size", "24 MB", "--stack", "openmpi", *links)
    for end in ("low", "high"):
        assert dense[f"start_{end}_s"] == pytest.approx(3 * (0.01 + alone[f"duration_{end}_s"]), rel=1e-6)


def test_a_lead_beyond_the_spread_stays_one_and_the_spread_is_said(all_gather, tmp_path):
    console = wide("run", all_gather, "--set", f"{LATENCY}=1ms", "--out", tmp_path)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert (found["winner"]["policy"], found["winner"]["tied_with"]) == ("AG", [])
    assert "If workers enter a little apart, AG takes" in console
    assert ": AG stays first." in console


def test_a_comparison_says_the_tie_with_one_seed_and_with_several(all_gather, tmp_path):
    console = did("run", all_gather, "--seeds", 2, "--out", tmp_path / "run").stdout
    assert console.startswith("AG or dense: tied over 2 seeds. ")
    found = pd.read_csv(tmp_path / "run" / "paired.csv").set_index("policy")
    assert found.loc["dense", "start_high_s"] == pytest.approx(3 * 0.588, rel=2e-3)
    assert found.loc["dense", "start_low_s"] < found.loc["AG", "start_high_s"] < found.loc["dense", "simulated_s"]
    assert found["simulated_tied"].all()
    assert found["simulated_least_with"].tolist() == [0, 0]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["winner"]["tied_with"] == ["dense"]
    assert summary["policies"]["dense"]["simulated_least_with"] == 0


def test_a_sweep_counts_ties_cell_by_cell(all_gather, tmp_path):
    command = ("run", all_gather, "--grid", f"{LATENCY}=10us,100us,1us,200us,500us,1ms", "--out", tmp_path)
    console = wide(*command)
    # At 1 us and from 500 us on the all-reduce is behind even at its best, at the others it is not.
    assert "If workers enter a little apart, leaders of 6 cells take start_low_s to start_high_s" in console
    found = pd.read_csv(tmp_path / "sweep.csv")
    for _, cell in found.groupby("cell"):
        first, second = cell.sort_values("iteration_s").itertuples()
        overlaps = second.start_low_s <= first.start_high_s
        assert [first.tied, second.tied, first.wins] == [overlaps, overlaps, not overlaps]
    assert not found.loc[found["cell"] == 1, "wins"].any()
    assert found.loc[(found["cell"] == 4) & (found["policy"] == "AG"), "wins"].all()


def test_a_choice_on_a_whole_job_says_the_tie(all_gather):
    command = ("choose", all_gather, "--schemes", "topk:allgather=ring,dense:algorithm=ring")
    found = json.loads(did(*command, "--json").stdout)
    first, second = found["rows"]
    assert first["start_high_s"] > second["start_low_s"]
    assert second["job_s"] > 1.14 * first["job_s"]
    assert found["tied_with"] == ["dense:algorithm=ring"]
    console = did(*command).stdout
    assert " or dense:algorithm=ring: tied" in console.splitlines()[0]
    assert any(REASON in one for one in found["notes"])


@pytest.mark.parametrize("fields", [("network.stack=ideal",), ("job.compute.spread=0.01",)])
def test_nothing_is_drawn_where_no_software_waits_or_workers_enter_apart_anyway(all_gather, tmp_path, fields):
    more = [word for field in fields for word in ("--set", field)]
    for number, command in enumerate((("run", all_gather), ("run", all_gather, "--grid", "seed=0,1"))):
        console = wide(*command, *more, "--out", tmp_path / str(number))
        assert "a little apart" not in console
        assert "not sampled" not in console
    assert "a little apart" not in did("choose", all_gather, *more, "--wide").stdout
    for name, content in contents(tmp_path).items():
        if not name.endswith((".png", ".svg", ".parquet", ".yaml")):
            assert b"start_low_s" not in content, name


def test_the_same_is_drawn_however_many_processes_there_are(all_gather, tmp_path):
    for jobs in (1, 2):
        did("run", all_gather, "--jobs", jobs, "--out", tmp_path / str(jobs))
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_what_is_too_large_to_sample_is_said(tmp_path):
    scenario = tmp_path / "large.yaml"
    scenario.write_text(
        "workers: 72\n"
        "network: {topology: {star: {latency: 10 us, bandwidth: 10 Gbit/s}}, stack: gloo}\n"
        "job: {iterations: 1, parameters: 100000, density: 1 %, device: ideal, overlap: none, compute: {mean: 1 ms}}\n"
        "exchanges: {ring: {scheme: dense, algorithm: ring}, half: {scheme: fp16, algorithm: ring}}\n"
        "policies: {ring: {fixed: ring}, half: {fixed: half}}\n",
        encoding="utf-8",
    )
    line = "Spread not sampled of ring and half (an exchange has more than 10,000 messages): times may depend on"
    assert line in wide("run", scenario, *NO_PAGE, "--out", tmp_path / "run")
    assert "starts_not_sampled" in json.loads((tmp_path / "run" / "summary.json").read_text())
    swept = wide("run", scenario, "--grid", "density=0.01,0.02", "--out", tmp_path / "sweep")
    assert swept.count("Spread not sampled") == 1


# Of an exchange that takes 9 to 13 s, and 10 s with all ranks at once.
SPREADS = {"AG": StartSpread(11.0, 9.0, 13.0, 10.0, 5e-6, 16)}


class TestSums:
    """How far a sum of exchanges is off."""

    def test_exchanges_that_are_the_same_are_one_draw_that_counts_often(self):
        found = offsets_of_sum(np.full(100, 10.0), ["AG"] * 100, np.ones(100), SPREADS)
        assert found == pytest.approx((-100.0, 300.0))

    def test_of_exchanges_that_differ_less_is_left(self):
        seconds = np.linspace(9.0, 13.0, 100)
        found = offsets_of_sum(seconds, ["AG"] * 100, np.ones(100), SPREADS)
        # The median is 1 s above the timings at once, and of a hundred draws a tenth of the range is left.
        assert found == pytest.approx((0.0, 100.0 + 2.0 * math.sqrt(100)))

    def test_what_stands_for_several_counts_as_often(self):
        found = offsets_of_sum(np.array([9.0, 12.0]), ["AG", "AG"], np.array([3.0, 4.0]), SPREADS)
        assert found == pytest.approx((7.0 - 2.0 * 5.0, 7.0 + 2.0 * 5.0))

    def test_of_others_nothing_is_known(self):
        found = offsets_of_sum(np.array([9.0, 12.0]), ["AG", "dense"], np.ones(2), SPREADS)
        assert found == pytest.approx((-1.0, 3.0))


@pytest.mark.parametrize("shift", [-0.5, 0.0, 0.5])
def test_offsets_of_a_sum_follow_the_median_and_hold_none_at_all(shift):
    spread = StartSpread(1 + shift, 0.9 + shift, 1.2 + shift, 1.0, 5e-6, 16)
    low, high = offsets_of_sum(np.ones(4), ["ring"] * 4, np.full(4, 2.0), {"ring": spread})
    assert (low, high) == pytest.approx((min(8 * (shift - 0.1), 0.0), max(8 * (shift + 0.2), 0.0)))
