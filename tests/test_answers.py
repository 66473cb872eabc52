"""The first answer that a user gets: what commands say of progress, of ties, and of what was not compared."""

import json
import re

import pandas as pd
import pytest

from commands import NO_PAGE, did
from simnet.scenario import load
from simnet.scenario.finding import shipped
from simnet.studies.assumptions import assumed_text

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
        ("run", "compare", "--schemes", "topk,dense"),
        ("run", "quickstart", "--grid", "density=0.01,0.1", "--policies", "AG,ART-ring"),
    ],
)
def test_nothing_is_said_of_progress_where_no_model_is_trained_but_that_accuracy_is_ignored(tmp_path, command):
    console = did(*command, *SHORT, "--out", tmp_path).stdout
    assert console.lower().replace("\n            ", " ").count("accuracy ignored") == 1
    for text in (console, *words(tmp_path)):
        assert "per gain" not in text
        assert "per_gain" not in text
        assert "time_per_unit" not in text
        assert '"gain' not in text
    page = tmp_path / "report.html"
    assert not page.exists() or page.read_text(encoding="utf-8").count("accuracy ignored") == 1


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
    assert page.index(f"{first} reaches 60 % accuracy first: ") < page.index("to target") < page.index("whole job")
    assert ("not reach it." in console) == (None in learnt.values())
    assert "ccuracy ignored" not in console
    assert "One seed; " in " ".join(console.split())
    grid = ("--grid", "bandwidth=20,40Mbit/s", "--out", tmp_path / "grid")
    console = did("run", "time_to_accuracy_wan", *overrides, *grid).stdout
    found = pd.read_csv(tmp_path / "grid" / "sweep.csv")
    soonest = found.loc[found.groupby("cell")["time_to_target_s"].idxmin(), "policy"].tolist()
    assert soonest[0] == soonest[1]
    assert console.startswith(f"{soonest[0]} in all 2 cells, ")
    assert " to the target" in console
    assert "ccuracy ignored" not in console


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
    console = did("run", scenario, "--grid", "bandwidth=1,5,10 Gbit/s", "--out", tmp_path / "out").stdout
    assert console.startswith("GRC or local: tied in all 3 cells, ")
    found = pd.read_csv(tmp_path / "out" / "sweep.csv")
    assert found["tied"].all()
    assert not found["wins"].any()
    said = did("run", scenario, *NO_PAGE, "--out", tmp_path / "run").stdout
    assert said.startswith("GRC or local: tied, ")
    said = did("choose", scenario).stdout
    assert said.startswith("GRC or local: tied, ")
    assert said.count("accuracy ignored") == 1
    assert json.loads(did("choose", scenario, "--json").stdout)["tied_with"] == ["local"]
    said = did("run", scenario, "--seeds", 2, *NO_PAGE, "--out", tmp_path / "seeds").stdout
    assert said.startswith("GRC or local: tied over 2 seeds. ")
    assert pd.read_csv(tmp_path / "seeds" / "paired.csv")["simulated_least_with"].tolist() == [0, 0]


def test_several_seeds_say_with_how_many_of_them_a_target_is_reached_and_who_misses_it_stands_last(tmp_path):
    command = ("run", "time_to_accuracy_wan", "--policies", "dense,AG-Topk,SparDL", *NO_PAGE)
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
    console = " ".join(console.split(" ")).replace("\n", " ", 3)
    assert ", with 2 of 2 seeds" in console
    assert f"Seeds that reach it: {missed[0]} {policies[missed[0]]['reached_with']} of 2" in console
    rows = [line.split() for line in console.splitlines() if line.split() and line.split()[0] in times]
    assert [row[0] for row in rows[-3:]] == sorted(times, key=lambda name: (times[name] is None, times[name] or 0))


def job(tmp_path, **fields):
    """A scenario of a whole-gradient scheme, one that a hook of DDP can have, and the dense exchange."""
    network = fields.pop("network", "{latency: 50 us, bandwidth: 10 Gbit/s}")
    more = "".join(f"  {name}: {value}\n" for name, value in fields.items())
    scenario = tmp_path / "overlapping.yaml"
    scenario.write_text(
        "workers: 4\n"
        f"network: {{topology: {{star: {network}}}}}\n"
        f"job:\n  iterations: 3\n  model: resnet50\n  scale: 1000\n  density: 1 %\n{more}"
        "exchanges:\n"
        "  AG: {scheme: topk}\n"
        "  dense: {scheme: dense}\n"
        "  SparDL: {scheme: spardl}\n"
        "policies: {AG: {fixed: AG}, dense: {fixed: dense}, SparDL: {fixed: SparDL}}\n",
        encoding="utf-8",
    )
    return scenario


def iteration(tmp_path, scenario, *arguments):
    """The time of an iteration under each policy [s], and the summary."""
    said = json.loads(did("run", scenario, *arguments, *NO_PAGE, "--json", "--out", tmp_path / "out", "--force").stdout)
    return {name: one["simulated_s"] / one["iterations"] for name, one in said["policies"].items()}, said


def test_by_default_exchanges_overlap_as_ddp_does_where_their_implementation_can(tmp_path):
    scenario = job(tmp_path)
    default, said = iteration(tmp_path, scenario)
    none, _ = iteration(tmp_path, scenario, "--set", "job.overlap=none")
    given, _ = iteration(tmp_path, scenario, "--set", "job.overlap={first: 1 MiB, bucket: 25 MiB}")
    assert said["overlap"] == {"during": ["AG", "dense"], "after": ["SparDL"], "default": True}
    # The released code of SparDL exchanges after the backward pass, whatever DDP does.
    assert default["SparDL"] == none["SparDL"] != given["SparDL"]
    for name in ("AG", "dense"):
        assert default[name] == given[name] != none[name]
    # Of 18.7 ms of backward pass a dense exchange hides all but what the first bucket waits for.
    assert none["dense"] - default["dense"] == pytest.approx(18e-3, rel=0.1)


@pytest.mark.parametrize(("bandwidth", "changes"), [("10 Gbit/s", True), ("100 Mbit/s", False)])
def test_whether_no_overlap_would_change_the_first_place_is_what_a_run_of_it_shows(tmp_path, bandwidth, changes):
    scenario = job(tmp_path, network=f"{{latency: 50 us, bandwidth: {bandwidth}}}")
    default, _ = iteration(tmp_path, scenario)
    depends = json.loads((tmp_path / "out" / "summary.json").read_text())["depends_on"]
    none, _ = iteration(tmp_path, scenario, "--set", "job.overlap=none")
    first, otherwise = (min(times, key=times.__getitem__) for times in (default, none))
    assert (first != otherwise) == changes
    (told,) = (one["first"] for one in depends if one["field"] == "job.overlap")
    assert told == (otherwise if changes else None)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("run",), "Depends on Overlap: SparDL timed without it, as its code does; AG and dense during the backward"),
        (("run", "--seeds", 2), "Depends on Overlap: SparDL timed without it, as its code does; AG and dense during"),
        (("run", "--wide", "--set", "job.overlap=none"), "Overlap: none; exchanges begin after the backward pass."),
        (
            ("choose", "--schemes", "topk,dense,spardl"),
            "Depends on Overlap: spardl timed without it, as its code does; topk and dense during the backward pass",
        ),
        (("step",), "Depends on Overlap: SparDL timed without it, as its code does; AG and dense during the backward"),
        (
            ("run", "--grid", "density=0.01,0.02"),
            "Depends on Overlap: SparDL timed without it, as its code does; AG and dense during the backward pass",
        ),
    ],
)
def test_every_command_says_what_overlaps(tmp_path, command, line):
    scenario = job(tmp_path)
    out = ("--out", tmp_path / "out") if command[0] == "run" else ()
    assert line in " ".join(did(command[0], scenario, *command[1:], *out).stdout.split())


def chosen(*words):
    return json.loads(did("choose", *words, "--json").stdout)


def test_where_overlap_decides_the_first_place_flags_say_so():
    """A sparse exchange whose code cannot overlap would be first if none could."""
    point = ("--latency", "20 us", "--schemes", "topk,spardl")
    found = chosen(*point, "--exact")
    (none,) = (one["first"] for one in found["defaults"] if one["field"] == "job.overlap")
    assert (found["decision"], found["overlap"]["after"], none) == ("topk", ["spardl"], "spardl")
    alone = chosen(*point, "--set", "job.overlap=none")
    assert alone["decision"] == "spardl"
    said = " ".join(did("choose", *point, "--exact", "--wide").stdout.split())
    assert "Overlap: spardl timed without it, as its code does; topk during the backward pass, in DDP's" in said
    assert re.search(r"job.overlap=none \(not as in DDP\): spardl first, \d+ % ahead", said)
    assumed = "8 workers, bandwidth 10 Gbit/s, density 1 %, resnet50 in 28 ms on V100 (fp32), stack ideal, "
    local = "time of GPU kernels only (as PyTorch code, spardl-released, spardl takes "
    assert f"Assumed {assumed}accuracy ignored, {local}" in said
    assert "), 1 entry in 1,000 simulated." in said


def test_of_a_size_alone_the_exchange_is_ranked_by_itself():
    found = chosen("--model", "1M", "--workers", 4)
    assert found["question"]["passes_s"] == 0
    assert all(one["mean_compute_s"] == 0 for one in found["rows"])
    assert found == chosen("--model", "1M", "--workers", 4, "--compute", "0 s", "--set", "job.overlap=none")


@pytest.mark.parametrize("effort", [(), ("--exact",)])
def test_a_choice_on_a_job_is_about_the_overlap_of_the_exchanges_that_are_asked_about(tmp_path, effort):
    """A training has one hook: what switches to an exchange that overlaps from one that does not is no policy."""
    command = ("choose", job(tmp_path), "--schemes", "topk,artopk,oktopk", *effort)
    said = json.loads(did(*command, "--json").stdout)
    assert (said["overlap"]["during"], said["overlap"]["after"]) == (["topk", "artopk"], ["oktopk"])
    # Nothing changes from iteration to iteration, so that there is nothing to pick.
    assert said["best_of_each_iteration"] is None


def test_the_resolved_scenario_has_the_overlap_that_was_assumed_and_is_read_again_as_it(tmp_path):
    default, _ = iteration(tmp_path, job(tmp_path))
    lock = tmp_path / "lock.yaml"
    lock.write_text((tmp_path / "out" / "scenario.lock.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    overlap = r"overlap: \{bucket: 25 MiB, backward: 0\.\d+, first: 1 MiB, exchanges: able\}"
    assert re.search(overlap, lock.read_text(encoding="utf-8"))
    again, said = iteration(tmp_path, lock)
    assert again == default
    assert said["overlap"]["default"]


@pytest.mark.parametrize("command", ["run", "choose"])
def test_defaults_that_would_change_the_first_place_are_named_as_runs_with_them_show(tmp_path, command):
    scenario = job(tmp_path, network="{latency: 1 ms, bandwidth: 10 Gbit/s}")
    choice = ("--schemes", "topk,dense,spardl", "--exact", "--wide")
    arguments = choice if command == "choose" else ("--out", tmp_path / "out", "--wide")
    console = did(command, scenario, *arguments).stdout
    fields = {"network.stack=tcp", "job.device=h100-torch2.6", "job.barrier=false", "job.overlap=none"}
    if command == "choose":
        assert all(field in "".join(console.split()) for field in fields)
    else:
        found = json.loads((tmp_path / "out" / "summary.json").read_text())["depends_on"]
        assert {f"{one['field']}={one['other']}" for one in found} >= fields
        told = " ".join(console.partition("Depends on")[2].split())
        for one in found:
            assert (f"{one['field']}={one['other']}: then {one['first']}" in told) == (one["lead"] is not None)
            then, _ = iteration(tmp_path, scenario, "--set", f"{one['field']}={one['other']}")
            here, _ = iteration(tmp_path, scenario)
            was = min(here, key=here.__getitem__)
            fastest = min(then, key=then.__getitem__)
            assert one["first"] == (None if then[was] <= 1.001 * then[fastest] else fastest)


def test_exchanges_under_a_strategy_are_not_ranked_without_it(tmp_path):
    diloco = ("--set", "job.strategy={name: diloco, period: 2}", "--set", "job.iterations=4")
    console = did("run", job(tmp_path), "--schemes", "topk,dense", *diloco, "--out", tmp_path / "out").stdout
    assert "depends_on" not in json.loads((tmp_path / "out" / "summary.json").read_text())
    assert "Depends on" not in console


@pytest.mark.parametrize(
    ("name", "settings", "fields", "said"),
    [
        ("fluctuating_wan", [], {}, "8 workers, density 10 %, 300 iterations, "),
        ("fluctuating_wan", [], {"density": "2%"}, "8 workers, 300 iterations, "),
        ("fluctuating_wan", ["job.iterations=3"], {"workers": 8}, "density 10 %, "),
        ("own.yaml", [], {}, "28 ms on V100"),
        ("var_selection_non_iid", [], {"density": 0.02}, "8 workers, 133 iterations, gradients of convolutional-dir"),
        ("base", [], {"density": "2%"}, "8 workers, 1 ms, 10 Gbit/s, resnet50 in 28 ms on V100"),
        ("quickstart", ["job={parameters: 2000, iterations: 2, density: 1%, compute: 1 ms}"], {}, "4 workers, V100"),
    ],
)
def test_values_that_the_user_did_not_write_are_assumed(tmp_path, name, settings, fields, said):
    (tmp_path / "own.yaml").write_bytes(shipped()["fluctuating_wan"].read_bytes())
    loaded = load(tmp_path / name if name == "own.yaml" else name, settings, **fields)
    assert assumed_text(loaded, written=True).startswith(said)


def test_a_flip_that_a_simulation_refutes_is_not_told():
    """By closed forms a tree is faster from 13.7 Gbit/s on; there, simulated, AG is the first."""
    among = ("--schemes", "topk,artopk:collective=ring,artopk:collective=tree,fp16:algorithm=ring")
    slow = (*among, "--bandwidth", "100 Mbit/s", "--latency", "20 us")
    assert chosen(*slow)["decision"] == "artopk:collective=ring"
    assert chosen(*among, "--bandwidth", "14.2 Gbit/s", "--latency", "20 us")["decision"] == "topk"
    told = [one["exchange"] for one in chosen(*slow)["flips"] or () if one["quantity"] == "bandwidth"]
    assert told in ([], ["topk"])
