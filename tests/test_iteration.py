"""The prediction of a job's iterations, part by part, and logs of real jobs beside it."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measuring_jobs import scenarios

from commands import did, refused
from simnet.base.errors import InputError
from simnet.cluster.hooks.log import COLUMNS
from simnet.cost_models.calibration import measured
from simnet.cost_models.calibration.device import profile_yaml
from simnet.cost_models.costs.devices import load_device
from simnet.cost_models.evidence import intervals
from simnet.network import STACKS
from simnet.report.run_setup import stack_summary
from simnet.scenario import load
from simnet.sparsifier_models import create
from simnet.studies.iteration import PARTS, predict_job
from simnet.training.job.job import Overlap, create_sparsifier, gradient_buckets
from simnet.training.job.running import run_policy
from simnet.validate.jobs import report
from simnet.validate.jobs.comparing import compare_iterations
from simnet.validate.jobs.tables import over_ranks, read_job_logs

SCENARIO = """
workers: 4
network:
  topology:
    star: {latency: 5 ms, bandwidth: 100 Mbit/s}
  stack: gloo
job:
  parameters: 100000
  iterations: 4
  density: 1 %
  compute: {mean: 10 ms}
  device: device.yaml
  update: 2 ms
exchanges:
  dense: {scheme: dense}
  AG: {scheme: topk, allgather: ring}
"""
DEVICE = """
name: made-up
device: none
source: made up
memory_bandwidth: 1.0e+9
methods:
  "*": {launch: 1.0e-3, bytes_per_entry: 0, low: 0.5, high: 2, known: estimated, source: made up}
"""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "device.yaml").write_text(DEVICE)
    path = tmp_path / "job.yaml"
    path.write_text(SCENARIO)
    return path


def test_parts_add_up_to_the_iteration(scenario):
    rows = predict_job(load(scenario)).iterations
    assert set(rows["policy"]) == {"dense", "AG"}
    whole = rows["compute_s"] + rows["select_s"] + rows["exposed_s"] + rows["update_s"]
    assert np.allclose(whole, rows["total_s"], rtol=1e-12)
    assert np.allclose(rows["exposed_s"], rows["messages_s"] + rows["merge_s"], rtol=1e-9)
    assert np.allclose(rows["compute_s"], 10e-3)
    assert np.allclose(rows["update_s"], 2e-3)
    own = rows[rows["policy"] == "AG"]
    # Top-k, gather, scatter and pack before the first message; scatter after the last.
    assert np.allclose(own["select_s"], 4e-3)
    assert np.allclose(own["merge_s"], 1e-3)
    assert (rows[rows["policy"] == "dense"][["select_s", "merge_s"]] == 0).all(axis=None)


def test_workers_that_take_turns_on_a_device_wait_for_each_other(scenario):
    alone, shared = (
        predict_job(load(scenario, [f"job.workers_per_device={share}"])).medians().loc["AG"] for share in (1, 3)
    )
    for name in ("compute", "select", "merge", "update"):
        assert shared[f"{name}_s"] == pytest.approx(alone[f"{name}_s"], rel=1e-9)
    work = 10e-3 + 4e-3 + 1e-3 + 2e-3
    assert shared["total_s"] == pytest.approx(alone["total_s"] + 2 * work, rel=1e-6)
    assert shared["messages_s"] == pytest.approx(alone["messages_s"] + 2 * work, rel=1e-6)


def made_up():
    """Return a table of what predictions are off by."""
    rows = [
        ("links", "gloo", 1, "low", 0, 0.1, 0.5),
        ("links", "gloo", 1, "high", 2e-3, 0.5, 9),
        ("links", "gloo", 3, "low", 0, 0.1, 0.5),
        ("links", "gloo", 3, "high", 6e-3, 0.5, 9),
        ("links", "mpich", 2, "high", 1e-3, 0.7, 1.25),
        ("part", "compute", None, "low", None, None, 0.9),
        ("part", "compute", None, "high", None, None, 1.3),
        ("part", "select", None, "high", None, None, 1.5),
        ("part", "update", None, "low", None, None, 1.0),
        ("part", "update", None, "high", None, None, 1.5),
    ]
    return [dict(zip(intervals.ERROR_COLUMNS, map(str, row), strict=True)) for row in rows]


def test_intervals_join_those_of_device_links_and_computing(scenario, monkeypatch):
    monkeypatch.setattr(intervals, "iteration_errors", made_up)
    row = predict_job(load(scenario)).medians().loc["AG"]
    # The device says from half to twice as long, which is more than jobs differ by; computing has jobs alone.
    assert (row["select_low_s"], row["select_high_s"]) == pytest.approx((2e-3, 8e-3))
    assert (row["compute_low_s"], row["compute_high_s"]) == pytest.approx((9e-3, 13e-3))
    assert (row["update_low_s"], row["update_high_s"]) == pytest.approx((2e-3, 3e-3))
    # Three rounds of one message each.
    links = 3 * 2e-3 + 0.5 * row["messages_s"]
    assert row["messages_high_s"] == pytest.approx(row["messages_s"] + links)
    assert row["messages_low_s"] == pytest.approx(row["messages_s"] * 0.9)
    assert row["exposed_high_s"] == pytest.approx(row["exposed_s"] + np.hypot(links, 1e-3))
    own = 3e-3 + 4e-3 + 1e-3 + 1e-3
    assert row["total_high_s"] == pytest.approx(row["total_s"] + np.hypot(links, own))
    spread = predict_job(load(scenario, ["job.compute.spread=0.2"])).medians().loc["AG"]
    assert spread["compute_high_s"] > 1.35 * spread["compute_s"]
    # Whose turn comes later waits for others, and what those are off by.
    shared = predict_job(load(scenario, ["job.workers_per_device=3"])).medians().loc["AG"]
    links = 3 * 6e-3 + 0.5 * (shared["messages_s"] - 2 * (10e-3 + 4e-3 + 1e-3 + 2e-3))
    assert shared["total_high_s"] == pytest.approx(shared["total_s"] + np.hypot(links, 3 * own))
    assert shared["messages_high_s"] == pytest.approx(shared["messages_s"] + np.hypot(links, 2 * own))


# Layers of 64 * 64 + 64 and 64 * 64 + 64, and small ones at both ends; by words of 5 ms, 1 MB/s, nothing else.
TWO_BUCKETS = """
workers: 2
network:
  topology: {star: {latency: 5 ms, bandwidth: 1 MB/s}}
  stack: {send_completion: ready}
job:
  gradients: {train: {model: {mlp: {hidden: [64, 64]}}, data: classification}}
  iterations: 1
  density: 1 %
  compute: {mean: 90 ms}
  device: device.yaml
exchanges:
  AG: {scheme: topk, allgather: ring}
"""


def two_buckets(scenario, *changes):
    """Return what two buckets take to communicate beside and after a backward pass of 30 ms, and its messages."""
    scenario.write_text(TWO_BUCKETS)
    loaded = load(scenario, ["job.overlap.bucket=17 kB", "job.overlap.backward=0.3333333333333333", *changes])
    run = loaded.build()
    assert len(gradient_buckets(run.job.source, run.job.overlap)) == 2
    (row,) = predict_job(loaded).iterations.to_dict("records")
    return row, run_policy(run.job, "AG", run.policies["AG"], timeline=1).messages


@pytest.mark.parametrize("mean", [30, 3000])
def test_two_buckets_are_communicated_from_when_a_worker_is_ready_for_each(scenario, mean):
    # A word takes 5 ms, and the entries as long and 1 us a byte. Of 3 s the second bucket takes a part that the first
    # one leaves idle; of 30 ms it waits for that.
    row, messages = two_buckets(scenario, f"job.compute.mean={mean} ms")
    seconds = [2 * 5e-3 + own["nbytes_B"].iloc[0] / 1e6 for _, own in messages.groupby("round")]
    assert len(seconds) == 2
    # One merge of the first bucket and one selection of the second, of a millisecond each, are of the device.
    assert row["messages_s"] == pytest.approx(sum(seconds), rel=1e-9)


def test_buckets_on_gloo_messages_as_long_as_their_exchanges_take_alone(scenario):
    # All of gloo, but that words go before messages or behind by the number of the round, which counts across buckets.
    properties = {**stack_summary(STACKS["gloo"])["properties"], "by_turns": False}
    own = f"network.stack={json.dumps(properties)}", "network.engine=fluid"
    row, _ = two_buckets(scenario, *own, "job.compute.mean=3 ms")
    run = load(scenario, own).build()
    parts = gradient_buckets(run.job.source, Overlap(17e3, 1 / 3))
    gradients = run.job.source.gradients(0)
    alone = 0.0
    for part in parts:
        model = create_sparsifier(run.policies["AG"].candidates[0], part, run.job)
        model.density = 0.01
        exchange = model.exchange(gradients[:, part.entries])
        alone += run.job.network(0).time(exchange.schedule).duration
    assert row["messages_s"] == pytest.approx(alone, rel=1e-9)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stack=st.sampled_from(["ideal", "tcp", "gloo", "mpich"]),
    share=st.integers(1, 3),
    scheme=st.sampled_from(["topk", "oktopk", "artopk", "dense"]),
    spread=st.sampled_from([0, 0.5]),
)
def test_one_bucket_is_as_without_overlap(scenario, stack, share, scheme, spread):
    scenario.write_text(SCENARIO)
    changes = [
        f"network.stack={stack}",
        f"job.workers_per_device={share}",
        f"job.compute.spread={spread}",
        f"exchanges.AG={{scheme: {scheme}}}",
    ]
    plain, overlapped = (
        predict_job(load(scenario, [*changes, *more]), ["AG"]).iterations for more in ([], ["job.overlap.bucket=1 GB"])
    )
    for part in PARTS:
        assert overlapped[f"{part}_s"].to_numpy() == pytest.approx(plain[f"{part}_s"].to_numpy(), rel=1e-9), part


def logs(folder, prediction, factor):
    """Write the logs of a job that took `factor` times as long as was predicted, rank 1 a bit longer than rank 0."""
    for policy, rows in prediction.iterations.groupby("policy"):
        place = folder / str(policy)
        place.mkdir(parents=True)
        for rank in range(2):
            table = pd.DataFrame({"iteration": rows["iteration"], "exchange": rows["exchange"], "density": 0.01})
            table["began_s"] = rows["began_s"]
            for part in PARTS:
                table[f"{part}_s"] = rows[f"{part}_s"] * factor * (0.99 if rank == 0 else 1.01)
            table.to_csv(place / f"rank_{rank}.csv", index=False)


def test_logs_beside_the_prediction(tmp_path, scenario, monkeypatch):
    monkeypatch.setattr(intervals, "iteration_errors", made_up)
    prediction = predict_job(load(scenario))
    logs(tmp_path / "logs", prediction, 1.5)
    found = compare_iterations(over_ranks(read_job_logs(tmp_path / "logs")), prediction)
    parts = found.parts.set_index(["policy", "part"])
    assert parts.loc[("AG", "total"), "error"] == pytest.approx(1 / 1.5 - 1)
    assert parts.loc[("AG", "select"), "inside"] == 1
    assert parts.loc[("dense", "compute"), "inside"] == 0
    assert found.winner_is_right() is True
    assert found.pairs() == (1, 1)
    assert found.policies["same"].tolist() == [1.0, 1.0]
    assert "Fastest is as predicted: AG." in found.sentences()


def test_policies_with_the_same_exchange_are_equally_likely_the_fastest_and_lose_nothing_to_each_other(scenario):
    found = predict_job(load(scenario), ["AG"])
    twice = found.iterations.assign(policy="again")
    totals = dict.fromkeys(("AG", "again"), found.totals["AG"])
    both = replace(found, iterations=pd.concat([found.iterations, twice]), totals=totals).likely
    assert both.fastest.tolist() == [0.5, 0.5]
    assert both.regret.tolist() == [0.0, 0.0]


def test_a_wrong_winner_is_told(tmp_path, scenario):
    prediction = predict_job(load(scenario))
    logs(tmp_path / "logs", prediction, 1.0)
    rows = over_ranks(read_job_logs(tmp_path / "logs"))
    rows.loc[rows["policy"] == "AG", "total_s"] *= 10
    found = compare_iterations(rows, prediction)
    assert found.winner_is_right() is False
    assert found.pairs() == (1, 0)


def test_commands(tmp_path, scenario, monkeypatch):
    told = json.loads(did("step", scenario, "--json").stdout)
    row = next(one for one in told["rows"] if one["policy"] == "AG")
    ends = {f"{part}{end}_s" for part in PARTS for end in ("", "_low", "_high")}
    assert {*ends, "simulated_s", "low_s", "high_s", "chance_to_be_fastest", "regret_of_job", "sure"} <= {*row}
    assert sum(one["chance_to_be_fastest"] for one in told["rows"]) == pytest.approx(1)
    assert "fastest [%]" in did("step", scenario).stdout
    assert "fastest [%]" not in did("step", scenario, "--policies", "AG").stdout
    assert told["stack"] == "gloo"
    logs(tmp_path / "logs", predict_job(load(scenario)), 1.0)
    figure = tmp_path / "job.svg"
    compare = "validate", tmp_path / "logs", "--against", scenario
    assert "AG" in did(*compare, "--out", figure).stdout
    assert figure.stat().st_size > 1000
    assert json.loads(did(*compare, "--json").stdout)["winner_is_right"] is True


def test_what_came_of_the_shipped_jobs_is_told(tmp_path):
    did("validate", "jobs", "--out", tmp_path / "jobs.md")
    assert (tmp_path / "jobs.md").read_text() == report.job_section()
    told = json.loads(did("validate", "jobs", "--json").stdout)["jobs"]
    assert told == json.loads(json.dumps(report.job_figures(report.shipped_jobs())))
    logs_of = tmp_path / "logs"
    logs_of.mkdir()
    (logs_of / "rank_0.csv").write_text("")
    for arguments, said in (
        (["jobs", "--against", "job.yaml"], "--against: is only for measurements"),
        ([logs_of, "--against", "job.yaml:skip=many"], "takes one option, skip=N"),
        ([logs_of], "--against: is missing"),
    ):
        assert said in refused("validate", *arguments)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), "has no rank_<r>.csv"),
        (lambda path: path.write_text("iteration,exchange\n0,AG\n"), "rank_0.csv: density: is missing"),
        (
            lambda path: path.write_text(path.read_text().replace("0.01", "-1", 1)),
            "rank_0.csv:2: density: must be a number",
        ),
    ],
)
def test_logs_that_are_no_good_are_refused(tmp_path, scenario, change, said):
    logs(tmp_path / "logs", predict_job(load(scenario), ["AG"]), 1.0)
    (tmp_path / "logs" / "AG" / "rank_1.csv").unlink()
    change(tmp_path / "logs" / "AG" / "rank_0.csv")
    with pytest.raises(InputError, match=re.escape(said)):
        read_job_logs(tmp_path / "logs")


def test_a_hook_takes_time_where_the_profile_says_so(scenario):
    plain = predict_job(load(scenario)).medians()
    device = scenario.parent / "device.yaml"
    # Of 100,000 entries 1 % are kept; indices and values of three others come.
    own = {"topk_begin": 1e-8, "topk_kept": 2e-6, "topk_end": 3e-8, "topk_came": 1e-6, "dense_end": 5e-8}
    text = "  hook_{}: {{launch: 1.0e-3, bytes_per_entry: 0, seconds_per_entry: {}, source: made up}}\n"
    device.write_text(DEVICE + "".join(text.format(name, each) for name, each in own.items()))
    found = predict_job(load(scenario)).medians() - plain
    assert found.loc["AG", ["select_s", "merge_s", "total_s"]].tolist() == pytest.approx([5e-3, 11e-3, 16e-3])
    assert found.loc["dense", ["select_s", "merge_s", "total_s"]].tolist() == pytest.approx([0, 6e-3, 6e-3])


def test_what_a_hook_takes_is_found_in_logs_of_its_processes(tmp_path):
    each = {"begin": 1e-9, "kept": 8e-9, "end": 2e-9, "came": 6e-9}
    device = load_device("cpu")
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "device.yaml").write_text(profile_yaml(device))
    forward = []
    for model, density in itertools.product(("small", "deep", "mlp"), (0.01, 0.1)):
        entries = scenarios.ENTRIES[model]
        gradients = np.random.default_rng(entries).standard_normal((2, entries)).astype(np.float32)
        exchanged = create("topk", 2, entries, density, allgather="ring").exchange(gradients)
        before, between = device.work(exchanged.kernels, 2)
        kept, came = density * entries, 2 * round(density * entries)
        select = before[0] + 1e-4 + each["begin"] * entries + each["kept"] * kept
        merge = sum(one[0] for one in between.values()) + 2e-4 + each["end"] * entries + each["came"] * came
        rows = pd.DataFrame(0.0, index=range(8), columns=COLUMNS)
        rows = rows.assign(iteration=range(8), exchange="AG-Topk", select_s=select, merge_s=merge)
        log = tmp_path / "0" / model / "AG-Topk" / f"{density:g}"
        log.mkdir(parents=True)
        rows.drop(columns="density").to_csv(log / "rank_0.csv", index=False)
        forward += [(model, "AG-Topk", density, number, 1e-3) for number in range(8)]
    columns = ["model", "exchange", "density", "iteration", "forward_s"]
    pd.DataFrame(forward, columns=columns).to_csv(tmp_path / "0" / "forward.csv", index=False)
    found = scenarios.device_of(tmp_path).methods
    for name, seconds in each.items():
        assert found[f"hook_topk_{name}"].seconds_per_entry == pytest.approx(seconds, rel=1e-3), name
    assert [found[f"hook_topk_{name}"].launch for name in each] == pytest.approx([1e-4, 0, 2e-4, 0], rel=1e-3)


def test_the_first_measured_job_is_predicted_from_links_stack_and_device():
    folder = Path(measured.__file__).parent / "jobs"
    rows = pd.read_csv(folder / "first.csv").groupby("scheme")["total_s"].median()
    ours = predict_job(load(folder / "first.yaml")).medians()["total_s"]
    for exchange, most in {"dense": 0.05, "fp16": 0.05, "ag_packed": 0.08, "ag_two": 0.08, "artopk": 0.08}.items():
        assert ours[exchange] == pytest.approx(rows[exchange], rel=most), exchange
    # By how much AG-Topk is ahead of AR-Topk.
    for gathered in ("ag_packed", "ag_two"):
        assert ours["artopk"] / ours[gathered] == pytest.approx(rows["artopk"] / rows[gathered], abs=0.1)


@pytest.mark.parametrize("links", [(), ("--bandwidth", "100 Mbit/s"), ("--workers", "1", "--network", "ring")])
def test_an_iteration_is_no_better_known_than_the_mean_of_its_job(links):
    for row in json.loads(did("step", *links, "--json", "-q").stdout)["rows"]:
        share = row["total_s"] / row["simulated_s"]
        assert row["total_low_s"] <= share * row["low_s"] * (1 + 1e-9)
        assert row["total_high_s"] >= share * row["high_s"] * (1 - 1e-9)


def test_where_iterations_were_measured_their_own_interval_is_said():
    """Of DDP over gloo, whose iterations intervals were held against, the interval is not that of other kinds."""
    words = ("--stack", "gloo", "--bandwidth", "100Mbit/s", "--latency", "1ms", "--compute", "200ms")
    (row,) = json.loads(did("step", *words, "--schemes", "dense", "--json", "-q").stdout)["rows"]
    assert row["total_high_s"] / row["total_s"] < row["high_s"] / row["simulated_s"]
