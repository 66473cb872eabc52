"""The first answer of what does not run a job: predictions, maps, buckets, utilisations, and what they rest on."""

import json
import re

import pytest

from commands import NO_PAGE, did, refused
from simnet.base.units import NOT_DETERMINED


def scenario(tmp_path, exchanges, *, network="{latency: 1 ms, bandwidth: 1 Gbit/s}", **fields):
    """A scenario of ResNet-18 on a star, with a fixed policy for each exchange."""
    job = {"iterations": 8, "model": "resnet18", "scale": 2000, "density": "1 %"} | fields
    lines = ["workers: 4", f"network: {{topology: {{star: {network}}}}}", "job:"]
    lines += [f"  {name}: {value}" for name, value in job.items()]
    lines += ["exchanges:", *(f"  {name}: {one}" for name, one in exchanges.items())]
    lines += ["policies:", *(f"  {name}: {{fixed: {name}}}" for name in exchanges)]
    path = tmp_path / "job.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


ALIKE = {"GRC": "{scheme: spardl, residual: global}", "local": "{scheme: spardl, residual: local}"}


def predicted(path, *more):
    """Return what a step says in one line, what it says for programs, and its rows by policy."""
    found = json.loads(did("step", path, *more, "--json").stdout)
    return " ".join(did("step", path, *more).stdout.split()), found, {one["policy"]: one for one in found["rows"]}


def test_a_predicted_job_begins_with_who_is_fastest_and_ties_are_no_wins(tmp_path):
    console, found, rows = predicted(scenario(tmp_path, {**ALIKE, "dense": "{scheme: dense}"}))
    assert rows["GRC"]["total_s"] == pytest.approx(rows["local"]["total_s"], rel=1e-3)
    assert console.startswith("GRC or local: tied of 3 tried (50 % and 50 % to be fastest). GRC: ")
    assert (found["fastest"], found["tied_with"]) == ("GRC", ["local"])
    assert console.count("accuracy ignored") == 1
    console, *_ = predicted(scenario(tmp_path, {"dense": "{scheme: dense}"}))
    assert console.startswith("dense: ")
    assert "ccuracy" not in console


def test_what_has_not_settled_has_no_rank_in_a_predicted_job(tmp_path):
    path = scenario(tmp_path, {"exdyna": "{scheme: exdyna, start: published}", "dense": "{scheme: dense}"})
    console, found, rows = predicted(path)
    assert f"exdyna has not settled, and has no rank: {rows['exdyna']['unsettled']}." in console
    assert console.startswith("dense is fastest of 2 tried (100 % sure): ")
    assert (found["fastest"], found["tied_with"]) == ("dense", [])
    assert "chance_to_be_fastest" not in rows["exdyna"]
    assert rows["dense"]["chance_to_be_fastest"] == 1
    assert [*rows] == ["dense", "exdyna"]


def test_no_exchange_is_predicted_to_take_less_than_its_bytes_on_the_links(tmp_path):
    """A ring sends 2 x 3/4 of 46.8 MB; at 10 Gbit/s of a gradient that is 56.1 ms, whatever calls were off by."""
    links = "{latency: 10 us, bandwidth: 10 Gbit/s}"
    path = scenario(tmp_path, {"dense": "{scheme: dense, algorithm: ring}"}, network=links, overlap="none")
    *_, rows = predicted(path)
    row = rows["dense"]
    least = 2 * 3 / 4 * 4 * 11_689_512 / 1.25e9
    assert least <= row["messages_low_s"] <= row["messages_s"] <= row["messages_high_s"]
    assert row["messages_low_s"] == pytest.approx(least, rel=1e-6)
    assert least < row["total_low_s"] <= row["total_s"] <= row["total_high_s"]


def test_ends_that_are_not_determined_are_null_with_the_reason_beside_them(tmp_path):
    path = scenario(tmp_path, {"dense": "{scheme: dense}"}, compute="{spread: 2}")
    *_, rows = predicted(path)
    row = rows["dense"]
    assert row["compute_s"] > 0
    names = ("compute_low_s", "compute_high_s", "compute_interval")
    assert [row[name] for name in names] == [None, None, NOT_DETERMINED]
    assert "update_interval" not in row


def test_calls_of_a_cluster_whose_intervals_are_not_determined_say_so(tmp_path, shared):
    logs = shared / "cases" / "all_gather_with_a_cliff.csv"
    did("calibrate", logs, "--network", "star", "-o", tmp_path / "cliff.yaml")
    job = tmp_path / "job.yaml"
    job.write_text(
        "workers: 4\nnetwork: {topology: {file: cliff.yaml}}\n"
        "job: {iterations: 1, model: resnet50, scale: 2000, density: 25 %}\n"
        "exchanges: {AG: {scheme: topk}}\npolicies: {AG: {fixed: AG}}\n",
        encoding="utf-8",
    )
    did("run", job, *NO_PAGE, "--out", tmp_path / "out")
    calls = json.loads((tmp_path / "out" / "summary.json").read_text())["calibration"]["calls"]
    assert any(one["low"] is None for one in calls)
    for one in calls:
        assert (one["low"] is None) == (one["high"] is None) == (one.get("interval") == NOT_DETERMINED)


@pytest.mark.parametrize("where", ["--set", "the file"])
def test_what_a_scenario_sets_to_its_default_is_no_default(tmp_path, where):
    path = scenario(tmp_path, {"AG": "{scheme: topk}", "dense": "{scheme: dense}"})
    out = ("--out", tmp_path / "out", "--force")

    def named(*given):
        did("run", path, *given, *NO_PAGE, *out)
        return {one["field"] for one in json.loads((tmp_path / "out" / "summary.json").read_text())["depends_on"]}

    left = {"network.stack", "job.device", "job.barrier", "job.gradients.synthetic.like"}
    assert named() >= left
    given = []
    if where == "--set":
        given = ["--set", "network.stack=ideal", "--set", "job.device=v100-torch2.6"]
        short = ("fluctuating_wan", "--set", "job.iterations=1", "--schemes", "topk", *NO_PAGE, *out, "--workers")
        packed = (6, "--set", "network.placement=packed", "--set", "network.weather[0].links=all")
        sites = [re.search(r"workers on . of . sites", did("run", *short, *one).stdout) for one in ((6,), (8,), packed)]
        assert [one and one[0] for one in sites] == ["workers on 3 of 4 sites", None, None]
    else:
        text = path.read_text(encoding="utf-8").replace("topology:", "stack: ideal, topology:", 1)
        path.write_text(text.replace("job:\n", "job:\n  device: v100-torch2.6\n"), encoding="utf-8")
    assert named(*given) & left == {"job.barrier", "job.gradients.synthetic.like"}


def test_a_utilisation_takes_the_time_of_a_model_on_a_device():
    asked = ("step", "--strategy", "diloco", "--model", "gpt2", "--bandwidth", "1 Gbit/s")
    found = json.loads(did(*asked, "--device", "h100-torch2.6", "--json").stdout)
    assert found["passes_s"] == pytest.approx(found["compute_time"]["seconds_s"], rel=1e-12)
    given = json.loads(did(*asked, "--compute", f"{found['passes_s']!r} s", "--json").stdout)
    assert found["rows"] == given["rows"]
    console = did(*asked, "--device", "h100-torch2.6", "--wide").stdout
    assert console.startswith(f"{100 * found['utilisation']:.3g} % utilisation (")
    assert "Computing: that of gpt2, 216 ms" in console
    assert "job.compute: is missing" in refused("step", "--strategy", "diloco", "--model", "7B")


def test_a_bandwidth_that_no_target_reaches_is_null_with_the_reason_beside_it():
    asked = ("step", "--model", "1M", "--compute", "10 ms", "--strategy", "diloco:period=1", "--latency", "1 s")
    found = json.loads(did(*asked, "--goal", "99%", "--json").stdout)
    assert found["rows"][0]["bandwidth_Bps"] is None
    said = "99 % is beyond all bandwidths, as latency forbids it, but needs a period of "
    assert said in " ".join(found["answer"].split())
