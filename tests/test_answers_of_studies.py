"""The first answer of what does not run a job: predictions, maps, buckets, utilisations, and what they rest on."""

import json

import pandas as pd
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
    command = ("predict", "job", "--scenario", path, *more)
    return did(*command).stdout, json.loads(did(*command, "--json").stdout)


def test_a_predicted_job_begins_with_who_is_fastest_and_ties_are_no_wins(tmp_path):
    console, found = predicted(scenario(tmp_path, {**ALIKE, "dense": "{scheme: dense}"}))
    seconds = {name: one["median_iteration"]["seconds"] for name, one in found["policies"].items()}
    assert seconds["GRC"] == pytest.approx(seconds["local"], rel=1e-3)
    assert console.startswith("GRC and local are tied as fastest: ")
    assert "before dense (" in console.splitlines()[0]
    assert (found["fastest"], found["tied_with"]) == ("GRC", ["local"])
    assert console.count("ccuracy is ignored.") == 1
    console, found = predicted(scenario(tmp_path, {"dense": "{scheme: dense}"}))
    assert console.startswith("dense takes ")
    assert "ccuracy" not in console


def test_what_has_not_settled_has_no_rank_in_a_predicted_job(tmp_path):
    path = scenario(tmp_path, {"exdyna": "{scheme: exdyna, start: published}", "dense": "{scheme: dense}"})
    console, found = predicted(path)
    why = found["policies"]["exdyna"]["unsettled"]
    assert f"exdyna has not settled, and has no rank: {why}." in console.splitlines()[0]
    assert console.startswith("dense is fastest: ")
    assert (found["fastest"], found["tied_with"]) == ("dense", [])
    assert "chance_to_be_fastest" not in found["policies"]["exdyna"]
    assert found["policies"]["dense"]["chance_to_be_fastest"] == 1
    row = next(line for line in console.splitlines() if line.split()[:1] == ["exdyna"])
    assert "not settled" in row


def test_no_exchange_is_predicted_to_take_less_than_its_bytes_on_the_links(tmp_path):
    """A ring sends 2 x 3/4 of 46.8 MB; at 10 Gbit/s of a gradient that is 56.1 ms, whatever calls were off by."""
    links = "{latency: 10 us, bandwidth: 10 Gbit/s}"
    _, found = predicted(
        scenario(tmp_path, {"dense": "{scheme: dense, algorithm: ring}"}, network=links, overlap="none")
    )
    part = found["policies"]["dense"]["messages"]
    least = 2 * 3 / 4 * 4 * 11_689_512 / 1.25e9
    assert least <= part["low"] <= part["seconds"] <= part["high"]
    assert part["low"] == pytest.approx(least, rel=1e-6)
    total = found["policies"]["dense"]["median_iteration"]
    assert total["low"] > least
    assert total["low"] <= total["seconds"] <= total["high"]


def test_ends_that_are_not_determined_are_null_with_the_reason_beside_them(tmp_path):
    path = scenario(tmp_path, {"dense": "{scheme: dense}"}, compute="{spread: 2}")
    _, found = predicted(path)
    part = found["policies"]["dense"]["compute"]
    assert part["seconds"] > 0
    assert (part["low"], part["high"], part["interval"]) == (None, None, NOT_DETERMINED)
    assert "interval" not in found["policies"]["dense"]["update"]


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


def test_no_choice_is_expected_to_lose_more_than_from_the_best_of_the_others_to_its_own_worst():
    """Who is ahead by more than both intervals hold loses nothing, whatever tails there are beyond them."""
    point = ("--workers", 8, "--parameters", 25_557_032, "--latency", "1 ms", "--bandwidth", "10 Gbit/s")
    rows = json.loads(did("choose", *point, "--error", 0.05, "--json").stdout)["ranking"]
    for row in rows:
        rival = min(other["low_s"] for other in rows if other is not row)
        assert 0 <= row["regret_of_exchange"] <= max(row["high_s"] / rival - 1, 0) + 1e-12
    two = ("--schemes", "fp16:algorithm=ring,dense:algorithm=ring", "--error", 0.33, "--json")
    apart = json.loads(did("choose", *point, *two).stdout)["ranking"]
    assert apart[0]["high_s"] < apart[1]["low_s"]
    assert apart[0]["regret_of_exchange"] == 0


def test_a_map_says_tied_where_exchanges_take_the_same(tmp_path):
    point = ("--workers", 2, "--model", "resnet18", "--schemes", "dense:algorithm=ring,fp16:algorithm=tree")
    ranges = ("--range", "bandwidth=1Mbit/s:10Gbit/s", "--range", "latency=10us:100ms")
    console = did("choose", *point, "--map", "latency,bandwidth", *ranges, "--cells", 8, "--out", tmp_path / "m").stdout
    cells = pd.read_csv(tmp_path / "m.csv")
    close = cells["margin"] <= 1e-3
    assert 0 < close.sum() < len(cells)
    both = "dense:algorithm=ring and fp16:algorithm=tree, tied"
    assert (cells["exchange"] == both).tolist() == close.tolist()
    share = f"{100 * close.mean():.3g}"
    assert f"{both} " in console
    assert f"{share} % of the map. Accuracy is ignored." in console.splitlines()[0]
    assert console.count("ccuracy") == 1
    page = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert page.count("Accuracy is ignored.") == 1
    shown = json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    assert shown["choices"][-1][0] == "tied"
    assert {cell[2] for cell in shown["cells"] if 0 <= cell[2] <= 1e-3} == {0}
    assert "tied" in (tmp_path / "m.svg").read_text(encoding="utf-8")


def test_a_policy_table_says_what_it_has_most_often_and_that_accuracy_is_ignored(tmp_path):
    console = did("choose", "--export", tmp_path / "t.json", "--cells", 4).stdout
    assert console.startswith("Fastest most often: ")
    assert console.count("ccuracy is ignored.") == 1


@pytest.mark.parametrize("where", ["--set", "the file"])
def test_what_a_scenario_sets_to_its_default_is_no_default(tmp_path, where):
    exchanges = {"AG": "{scheme: topk}", "dense": "{scheme: dense}"}
    path = scenario(tmp_path, exchanges)
    out = ("--out", tmp_path / "out")
    line = next(one for one in did("run", path, *out).stdout.splitlines() if one.startswith("Depends on: "))
    fields = ("network.stack=", "job.device=", "job.barrier=", "job.gradients.synthetic.like=")
    for field in fields:
        assert field in line
    given = []
    if where == "--set":
        given = ["--set", "network.stack=ideal", "--set", "job.device=v100-torch2.6"]
    else:
        text = path.read_text(encoding="utf-8").replace("topology:", "stack: ideal, topology:", 1)
        path.write_text(text.replace("job:\n", "job:\n  device: v100-torch2.6\n"), encoding="utf-8")
    said = did("run", path, *given, *out, "--force").stdout
    line = next(one for one in said.splitlines() if one.startswith("Depends on: "))
    for field, named in zip(fields, (False, False, True, True), strict=True):
        assert (field in line) == named


def test_a_utilisation_takes_the_time_of_a_model_on_a_device():
    asked = ("utilisation", "--model", "gpt2", "--bandwidth", "1 Gbit/s")
    found = json.loads(did(*asked, "--device", "h100-torch2.6", "--json").stdout)
    assert found["passes_s"] == pytest.approx(found["compute_time"]["seconds_s"], rel=1e-12)
    given = json.loads(did(*asked, "--compute", f"{found['passes_s']!r} s", "--json").stdout)
    assert found["targets"] == given["targets"]
    console = did(*asked, "--device", "h100-torch2.6").stdout
    assert console.startswith(f"At 1 Gbit/s the utilisation is {100 * found['utilisation']['value']:.3g} %.")
    assert "Computing: that of gpt2, 216 ms" in console
    assert "--batch" in refused(*asked, "--compute", "1 s", "--batch", 4)
    assert "--compute" in refused("utilisation", "--parameters", "7B")


def test_a_bandwidth_that_no_target_reaches_is_null_with_the_reason_beside_it():
    asked = ("utilisation", "--parameters", "1M", "--compute", "10 ms", "--period", 1, "--latency", "1 s")
    found = json.loads(did(*asked, "--json").stdout)["targets"][-1]["bandwidth_Bps"]
    assert (found["value"], found["reason"]) == (None, "out of reach")
    assert "of 99 %: out of reach" in did(*asked).stdout.splitlines()[0]
