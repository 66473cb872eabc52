"""Wrong answers that follow from one wrong line, each asked for as a user would."""

import json

import pandas as pd
import pytest

from commands import NO_PAGE, did, refused


def test_a_worker_that_averages_parameters_holds_the_messages_that_come(tmp_path):
    """What is averaged is gathered apart from the parameters, and two chunks of a ring are under way."""
    scenario = tmp_path / "averaged.yaml"
    scenario.write_text(
        """
workers: 4
network: {topology: {star: {latency: 1 ms, bandwidth: 1 Gbit/s}}}
job:
  parameters: 100000
  iterations: 2
  density: 1 %
  compute: {mean: 1 ms}
  strategy: {name: sparta, share: 0.1, inner: {sgd: {lr: 0.1}}, masks: seeded}
exchanges: {dense: {scheme: dense}}
policies: {dense: {fixed: dense}}
""",
        encoding="utf-8",
    )
    out = tmp_path / "run"
    said = json.loads(did("run", scenario, "--json", *NO_PAGE, "--out", out).stdout)["policies"]["dense"]["memory"]
    # A ring of P sends 2 (P - 1) / P of the vector from each of P workers.
    vector = pd.read_csv(out / "iterations.csv")["bytes_sent_B"].mean() / (2 * 3)
    assert vector == pytest.approx(0.1 * 4 * 100_000, rel=0.05)
    assert said["received_B"] == pytest.approx(vector + 2 * vector / 4, rel=0.05)
    assert said["peak_B"] == sum(value for name, value in said.items() if name != "peak_B")


SHORT = ("--set", "job.iterations=1", "--schemes", "topk,dense")


def assumed(*words):
    """What an answer names as assumed, and as evidence."""
    found = did(*words).stdout.partition("Evidence")[2].partition("Assumed")
    texts = (found[0], found[2].partition("Depends on")[0].partition("Hidden")[0])
    return [" ".join(one.split()) for one in texts]


@pytest.mark.parametrize("verb", ["choose", "step", "run"])
def test_a_platform_computes_on_its_own_device_and_the_batch_of_its_times_is_said(tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    nodes = ("--workers", 16, "--model", "resnet50", *SHORT)
    said = assumed(verb, "--network", "dgx-h100", *nodes)[1]
    assert "resnet50 in 461 ms on H100 SXM (fp16, batch 1,280)" in said
    assert "accuracy ignored" in said
    given = assumed(verb, "--network", "dgx-h100", *nodes, "--device", "a100-torch2.6", "--set", "job.batch=640")
    assert "resnet50 in 405 ms on A100 (fp16)" in given[1]
    other = assumed(verb, "--network", "oci-mi300x", *nodes)
    assert "No device profile is of MI300X, so that v100-torch2.6 computes" in other[0]
    assert "28 ms on V100 (fp32)" in other[1]


@pytest.mark.parametrize("verb", ["choose", "step", "run"])
def test_the_share_of_the_entries_that_logic_runs_on_is_said(tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    assert "1 entry in 1,000 simulated" in assumed(verb, *SHORT)[1]
    whole = ("--model", "100k", "--compute", "1ms", "--set", "job.scale=1")
    assert "logic" not in assumed(verb, *SHORT, *whole)[1]


@pytest.mark.parametrize("verb", ["choose", "step", "run"])
def test_a_density_of_one_is_all_entries_and_said_to_be(tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    warning = "Warning: density 1 is 100 %: write 1% for one in a hundred."
    for density, warned in ((1, True), ("1%", False), ("100%", False), (0.5, False)):
        evidence, said = assumed(verb, *SHORT, "--density", density)
        assert (warning in evidence) == warned
        assert ("density 100 %" in said) == (density in (1, "100%"))
    assert warning not in assumed(verb, *SHORT[:2], "--schemes", "dense,fp16", "--density", 1)[0]


def test_a_grid_does_not_name_as_assumed_what_it_varies():
    said = did("choose", "--grid", "bandwidth=1,10Gbit/s", *SHORT).stdout
    assert "latency 1 ms" in said
    assert "bandwidth 10 Gbit/s" not in said


def test_a_scheme_in_a_file_is_named_with_its_class_and_stands_beside_its_parent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "from simnet.sparsifier_models.topk import Topk\n\n\nclass Mine(Topk):\n    pass\n"
    (tmp_path / "mine.py").write_text(code)
    for name in ("./mine.py", "mine.py"):
        assert "name a class in the file, such as mine.py:Mine" in refused("choose", "--schemes", name)
    assert "--schemes mine.py:CLASS" in refused("choose", "mine.py")
    found = did("choose", *SHORT[:2], "--schemes", "mine.py:Mine,topk,dense").stdout
    assert found.startswith("Mine or topk: 36.3 ms ")


def test_a_step_says_of_how_many_its_fastest_is_and_leads_have_three_digits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert did("step", *SHORT[:2]).stdout.startswith("AG-Topk is fastest of 3 tried (")
    few = ("--policies", "AG-Topk,dense ring")
    leads = [
        did(verb, *SHORT[:2], *(few if verb == "run" else ())).stdout.split("\n\n")[0].replace("\n", " ")
        for verb in ("choose", "run")
    ]
    assert ", 4.16x faster than the best dense exchange" in leads[0]
    assert ", 6.13x faster than dense ring" in leads[1]
