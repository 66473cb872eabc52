"""How long a model computes: given, measured on the device, or estimated there; and the throughput of workers."""

import csv
import json
import re
from importlib.resources import files
from statistics import median

import pytest

from commands import NO_PAGE, did, refused, wide
from simnet.cost_models.costs.computing import known_chips, published_utilisation
from simnet.cost_models.costs.devices import DeviceOp, load_device
from simnet.cost_models.costs.models import load_model, model_names, model_operations

POINT = ("choose", "--workers", "8", "--schemes", "topk,dense", "--json")
SCENARIO = """
workers: 4
network: {topology: {star: {latency: 1 ms, bandwidth: 10 Gbit/s}}}
job:
  model: gpt2
  scale: 20000
  iterations: 3
  density: 1 %
exchanges: {AG: {scheme: topk}, dense: {scheme: dense}}
policies: {AG: {fixed: AG}, dense: {fixed: dense}}
"""


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


def point(*flags):
    return json.loads(did(*POINT, *flags).stdout)


def ran(scenario, *flags):
    return json.loads(did("run", scenario, *NO_PAGE, "--quiet", "--json", *flags).stdout)


def published():
    with (files("simnet") / "data" / "step_times.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_gpt2_computes_on_an_h100_as_measured_there_and_not_as_on_a_v100():
    h100, v100 = (point("--model", "gpt2", "--device", name)["question"] for name in ("h100-torch2.6", "v100-torch2.6"))
    assert h100["passes_s"] == 0.21633
    assert {name: h100["compute_time"][name] for name in ("batch", "precision", "known")} == {
        "batch": 64, "precision": "bf16", "known": "measured",
    }  # fmt: skip
    assert "modded-nanogpt" in h100["compute_time"]["source"]
    assert (v100["compute_time"]["precision"], v100["compute_time"]["known"]) == ("fp32", "estimated")
    assert v100["compute_time"]["low_s"] < v100["passes_s"] < v100["compute_time"]["high_s"]
    # 64 sequences in 216 ms, 4 in 316 ms: 23 times the rate.
    rates = [one["compute_time"]["batch"] * 1024 / one["passes_s"] for one in (h100, v100)]
    assert rates[0] == pytest.approx(303e3, rel=1e-3)
    assert rates[0] / rates[1] == pytest.approx(23.4, rel=0.01)


def test_what_is_measured_is_scaled_by_the_batch():
    found = point("--model", "gpt2", "--device", "h100-torch2.6", "--set", "job.batch=16")
    assert found["question"]["passes_s"] == pytest.approx(0.21633 / 4, rel=1e-12)
    time = found["question"]["compute_time"]
    assert time["known"] == "scaled"
    assert time["low_s"] < time["seconds_s"] < time["high_s"]
    best = found["rows"][0]
    assert best["throughput_unit"] == "tokens/s"
    assert best["throughput"] == pytest.approx(8 * 16 * 1024 / best["mean_iteration_s"], rel=1e-9)


def test_an_estimate_has_its_interval_in_text_and_json():
    found = point("--model", "gpt2-xl", "--device", "a100-torch2.6")["question"]["compute_time"]
    assert found["known"] == "estimated"
    assert found["low_s"] < found["seconds_s"] < found["high_s"]
    text = wide(*POINT[:-1], "--model", "gpt2-xl", "--device", "a100-torch2.6")
    line = text.partition("Computing: ")[2]
    assert "78.5 ms (44.6 ms to 149 ms) forward and backward (A100, bf16, 1 sequence of 1,024 tokens: estimate" in line


def test_the_interval_is_that_of_published_steps_left_out_with_their_chip():
    rows = [row for row in published() if row["tokens"] and row["precision"] in ("fp16", "bf16")]
    shares = []
    for row in rows:
        tokens, name = int(row["tokens"]), row["model"]
        each = 6 * float(row["parameters"] or 0) * tokens
        if name in model_names():
            known = load_model(name)
            each = model_operations(known) if known.tokens == tokens else 6 * known.parameters * tokens
        peak = known_chips()[row["chip"]].peaks[row["precision"]]
        shares.append((row["chip"], each * int(row["batch"]) / float(row["seconds"]) / peak))
    missed = [own / median(one for other, one in shares if other != chip) for chip, own in shares]
    found = published_utilisation(transformer=True, precision="bf16")
    assert found.share == pytest.approx(median(one for _, one in shares))
    assert (found.low, found.high) == (pytest.approx(min(missed)), pytest.approx(max(missed)))
    assert found.steps == len(rows) >= 10


def test_seven_billion_parameters_are_estimated_by_tokens(scenario):
    sized = ["job.model=null", "job.parameters=7000000000", "job.scale=5000000", "job.device=h100-torch2.6"]
    fields = [part for one in [*sized, "job.tokens=2048", "job.batch=6"] for part in ("--set", one)]
    found = ran(scenario, *fields)["compute_time"]
    share = published_utilisation(transformer=True, precision="bf16").share
    assert found["seconds_s"] == pytest.approx(6 * 7e9 * 2048 * 6 / (share * 989.4e12))
    assert found["low_s"] < 1.15456 < found["high_s"]  # MPT 7B as published
    fields = [part for one in sized for part in ("--set", one)]
    assert "job.parameters with job.tokens and job.batch" in refused("run", scenario, *fields, "--out", "again")


def test_what_is_not_known_is_asked_for(scenario, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("{name: own, device: mine, source: me, memory_bandwidth: 1e12, methods: {'*': "
                   "{launch: 1e-5, bytes_per_entry: 4, source: me}}}")  # fmt: skip
    said = refused("run", scenario, "--set", f"job.device={own}")
    assert "job.compute: is missing: how long gpt2 computes is not known on own" in said
    assert "--compute, as '120 ms'" in said
    assert len(said.strip().splitlines()) == 1
    summary = ran(scenario, "--set", f"job.device={own}", "--compute", "120 ms", "--set", "job.batch=4")
    assert summary["policies"]["AG"]["throughput_unit"] == "tokens/s"
    asked = refused(*POINT[:-1], "--model", "gpt2", "--device", own)
    assert "how long gpt2 computes is not known on own, whose profile names no chip" in asked
    assert "--compute, as '120 ms'" in asked
    rate = refused(*POINT[:-1], "--model", "1000", "--set", "job.batch=2")
    assert "job.compute: is missing" in rate
    assert "give --compute" in rate
    own.write_text(own.read_text().replace("source: me, memory", "source: me, chip: H100, memory", 1))
    assert "H100 PCIe, H100 SXM, H200" in refused("run", scenario, "--set", f"job.device={own}")


def test_the_precision_is_that_in_which_people_train_unless_it_is_given(scenario):
    times = {
        precision: ran(scenario, "--set", f"job.precision={precision}")["compute_time"]
        for precision in ("fp32", "fp16")
    }
    assert times["fp16"]["seconds_s"] < times["fp32"]["seconds_s"] / 3
    assert [one["precision"] for one in times.values()] == ["fp32", "fp16"]
    assert "in bf16 is not known on V100; " in refused("run", scenario, "--set", "job.precision=bf16")
    sent = [ran(scenario, "--set", f"job.precision={one}")["policies"]["AG"]["total_bytes_sent_B"] for one in times]
    assert sent[0] == sent[1]


def test_gloo_takes_the_cpu_of_pytorch(scenario):
    summary = ran(scenario, "--stack", "gloo")
    assert summary["device"]["name"] == "cpu-torch2.13"
    assert "warnings" not in summary
    like = ran(scenario, "--set", "network.stack={like: gloo, before: 50 us}", "--compute", "1 s")
    assert like["device"]["name"] == "cpu-torch2.13"
    assert ran(scenario, "--stack", "tcp")["device"]["name"] == "v100-torch2.6"
    simulated = ("choose", "--workers", "2", "--model", "1000000", "--json")
    found = {stack: json.loads(did(*simulated, "--stack", stack).stdout) for stack in ("gloo", "tcp")}
    assert [one["question"]["device"] for one in found.values()] == ["cpu-torch2.13", "v100-torch2.6"]
    # A top-k of 700,810 entries takes PyTorch 6 to 8 ms there, and numpy a third of a millisecond.
    assert 4e-3 < float(load_device("cpu-torch2.13").once(DeviceOp("topk", 700_810))) < 9e-3


def test_run_and_choose_give_tokens_a_second(scenario):
    given = ("--compute", "50 ms", "--set", "job.batch=8")
    summary = ran(scenario, *given[:2], "--set", "job.batch=8")
    policy = summary["policies"]["AG"]
    assert policy["throughput"] == pytest.approx(4 * 8 * 1024 * 3 / policy["simulated_s"], rel=1e-9)
    assert policy["throughput_unit"] == "tokens/s"
    text = wide("run", scenario, *given[:2], "--set", "job.batch=8", "--out", "c")
    assert re.search(r"Throughput of all workers: \w+ [\d,]+ tokens/s", text)
    fields = ("--compute", "50 ms", "--set", "job.batch=8")
    chosen = json.loads(did("choose", scenario, *fields, "--json").stdout)
    assert chosen["question"]["passes_s"] == 0.05
    for row in chosen["rows"]:
        assert row["throughput"] == pytest.approx(4 * 8 * 1024 / row["mean_iteration_s"], rel=1e-6)


def test_a_sharded_run_gives_tokens_a_second_where_each_worker_has_a_batch(tmp_path):
    run = ("run", "sharded_nodes", "--json", *NO_PAGE, "--out", tmp_path, "--force")
    policies = json.loads(did(*run).stdout)["policies"]
    for policy in policies.values():
        assert policy["throughput"] == pytest.approx(4 * 4 * 1024 * 8 / policy["simulated_s"], rel=1e-9)
    split = ("--set", "job.sharding={DDP: {as: ddp, tensor_parallel: 2, tokens: 4096}}")
    assert "throughput" not in json.loads(did(*run, *split).stdout)["policies"]["DDP"]


def test_a_step_follows_the_device_and_gives_tokens_a_second():
    step = ("step", "--model", "gpt2", "--latency", "10us", "--bandwidth", "100Gbit/s", "--json")
    found = json.loads(did(*step, "--sharding", "ddp", "--device", "h100-torch2.6").stdout)
    assert found["microbatch_s"] == 0.21633
    assert found["throughput"] == pytest.approx(8 * 64 * 1024 / found["step_s"], rel=1e-9)
    # Workers that share a batch go through it together, which is not counted.
    shared = json.loads(did(*step, "--sharding", "ddp:tokens=2048,tensor_parallel=2,microbatches=2").stdout)
    assert "throughput" not in shared
    assert "--device: job.device: there is no device profile 'h10'" in refused(
        *step, "--sharding", "ddp", "--device", "h10"
    )
    text = did(*step[:-1], "--sharding", "ddp", "--device", "a100-torch2.6", "--wide").stdout
    assert "26.1 ms (14.8 ms to 49.6 ms) forward and backward" in " ".join(text.split())


def test_predicted_iterations_are_as_far_off_as_an_estimate_of_computing(scenario):
    def predicted(field):
        scenario.write_text(SCENARIO.replace("model: gpt2", f"model: gpt2\n  {field}"))
        rows = json.loads(did("step", scenario, "--json").stdout)["rows"]
        row = next(one for one in rows if one["policy"] == "AG")
        return {"seconds": row["compute_s"], "low": row["compute_low_s"], "high": row["compute_high_s"]}

    known = ran(scenario, "--set", "job.device=a100-torch2.6")["compute_time"]
    estimated, given = predicted("device: a100-torch2.6"), predicted(f"compute: {{mean: {known['seconds_s']!r} s}}")
    for end in ("low", "high"):
        assert estimated[end] == pytest.approx(known[f"{end}_s"])
    assert given["seconds"] == pytest.approx(estimated["seconds"])
    assert estimated["low"] < given["low"] < given["high"] < estimated["high"]
