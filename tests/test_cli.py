"""The command line: what a newcomer types, what goes wrong, and what never depends on how it is run."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pytest

import killing
import needs
import simnet
from commands import did, invoke, refused
from simnet.base.errors import SimnetError
from simnet.base.file_io import INCOMPLETE
from simnet.policies import Candidate
from simnet.scenario import runner, schema, shipped
from simnet.studies import listing
from simnet.training.job.record import PolicyResult

SMALL = """\
name: small
workers: 4
network:
  topology:
    star: {latency: 1 ms, bandwidth: 1 Gbit/s}
  weather:
    - {links: all, bandwidth: {steps: {at: [0 s, 200 ms], factors: [1, 0.1]}}, latency: {noise: {sigma: 0.1, tau: 1 s}}}
  jitter: {exponential: {mean: 100 us}}
job:
  parameters: 4000
  iterations: 12
  density: 0.01
  compute: {mean: 10 ms, spread: 0.1}
exchanges: {AG: {scheme: topk}, ART-ring: {scheme: artopk, collective: ring}}
policies:
  AG: {fixed: AG}
  ART-ring: {fixed: ART-ring}
  flexible: {flexible: {probe_every: 50 ms, noise: 0.05}}
  oracle: {oracle: }
output: {report: false}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def simnet_process(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simnet.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=killing.PATIENCE,
        env=os.environ | environment,
    )


# Running


def test_a_run_leaves_its_folder_and_says_who_won(small: Path, tmp_path: Path) -> None:
    result = did("run", small, "--out", tmp_path / "out", "--set", "output.report=true")
    assert "flexible" in result.stdout
    assert "for 12 iterations" in result.stdout
    assert result.stderr == f"wrote {tmp_path / 'out' / 'report.html'}\n"
    names = "summary.json iterations.csv iterations.parquet report.html timeline.json scenario.lock.yaml"
    assert {*names.split()} <= {path.name for path in (tmp_path / "out").iterdir()}
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert list(summary["policies"]) == sorted(summary["policies"])
    assert summary["bound"] == "oracle"
    assert all(one["iterations"] == 12 for one in summary["policies"].values())
    assert not (tmp_path / "out" / INCOMPLETE).exists()


def test_lists_are_told_as_json_too() -> None:
    listed = json.loads(did("list", "models", "--json").stdout)["rows"]
    assert {"resnet50", "vgg16"} <= {row["model"] for row in listed}
    assert all(set(row) == set(listed[0]) for row in listed)


def test_the_lock_of_a_run_gives_the_same_run(small: Path, tmp_path: Path) -> None:
    (tmp_path / "link.csv").write_text("time_s,bandwidth_Mbit_s\n0,800\n1,80\n")
    trace = "network.weather=[{links: 'host:1', trace: {file: link.csv}}]"
    did("run", small, "--out", tmp_path / "one", "-q", "--set", trace, "--seed", "5")
    (tmp_path / "link.csv").unlink()
    did("run", tmp_path / "one" / "scenario.lock.yaml", "--out", tmp_path / "two", "-q")
    assert_same_results(tmp_path / "one", tmp_path / "two")


def test_results_do_not_depend_on_processes_or_hash_seeds(small: Path, tmp_path: Path) -> None:
    did("run", small, "--out", tmp_path / "here", "-q", "--jobs", "1")
    did("run", small, "--out", tmp_path / "apart", "-q", "--jobs", "2")
    for seed in "01":
        done = simnet_process("run", small, "--out", tmp_path / f"hash{seed}", "-q", "--jobs", "1", PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
    for other in ("apart", "hash0", "hash1"):
        assert_same_results(tmp_path / "here", tmp_path / other)
    did("run", small, "--out", tmp_path / "other", "-q", "--seed", "1")
    assert (tmp_path / "other" / "iterations.csv").read_bytes() != (tmp_path / "here" / "iterations.csv").read_bytes()


def assert_same_results(one: Path, other: Path) -> None:
    for name in ("summary.json", "iterations.csv", "timeline.json", "scenario.lock.yaml"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


# Being refused


@pytest.mark.parametrize(
    ("found", "written", "messages"),
    [
        ("1 Gbit/s", "1 Gbit", ["small.yaml:5: network.topology.star.bandwidth", "is not a bandwidth"]),
        ("links: all", "links: all, trace: {file: link.csv}", ["link.csv:3: bandwidth", "small.yaml:7"]),
        ("star: {", "star: {hosts: 2, ", ["small.yaml:2: workers: must be at most 2"]),
        ("name: small", "name: [", ["small.yaml", "is not YAML"]),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    small: Path, tmp_path: Path, found: str, written: str, messages: list[str]
) -> None:
    (tmp_path / "link.csv").write_text("time_s,bandwidth_Mbit_s\n0,80\n60,nan\n")
    small.write_text(SMALL.replace(found, written, 1))
    told = refused("run", small, "--out", tmp_path / "out")
    for message in messages:
        assert message in told
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_simulated(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(runner, "run_here", lambda *_: pytest.fail("it was simulated"))
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        assert "cannot be written" in refused("run", small, "--out", folder)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    if not os.access(locked, os.W_OK):
        assert "cannot be written" in refused("run", small, "--out", locked)


def test_a_job_that_waits_for_ever_is_told(small: Path, tmp_path: Path) -> None:
    down = "network.weather=[{links: 'host:1', bandwidth: {outages: {spans: [{at: 0 s, lasts: 100000 d}]}}}]"
    forever = "network.weather=[{links: 'host:1', bandwidth: {constant: 0 bps}}]"
    for jobs in ("1", "2"):
        told = refused("run", small, "--out", tmp_path / "out", "--jobs", jobs, "--set", forever)
        assert "stopped for ever" in told
        assert "rank" in told
    did("run", small, "--out", tmp_path / "out", "-q", "--set", down)


@pytest.mark.parametrize("more", [(), ("--grid", "density=1,2%")])
def test_two_options_that_set_the_seed_are_refused(more: tuple[str, ...], small: Path) -> None:
    said = refused("run", small, "--seed", 4, "--set", "seed=5", *more)
    assert said == "error: --seed 4: the seed is set by --set seed=5 too; give one of them\n"


# Being interrupted


def test_ctrl_c_keeps_the_policies_that_are_done(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = runner.run_in_step

    def run_in_step(*arguments: object, **options: object) -> Iterator[tuple[str, runner.Outcome]]:
        yield from itertools.islice(real(*arguments, **options), 2)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_in_step", run_in_step)
    result = invoke("run", small, "--out", tmp_path / "out", "--jobs", "1")
    assert result.exit_code == 130
    assert "interrupted: flexible, oracle not done" in result.stderr
    assert set(json.loads((tmp_path / "out" / "summary.json").read_text())["policies"]) == {"AG", "ART-ring"}
    assert (tmp_path / "out" / INCOMPLETE).read_text() == "done: AG, ART-ring\nmissing: flexible, oracle\n"
    monkeypatch.undo()
    did("run", small, "--out", tmp_path / "out", "-q")
    assert not (tmp_path / "out" / INCOMPLETE).exists()


def test_ctrl_c_before_anything_is_done_writes_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_here(*_: object) -> Iterator[tuple[str, PolicyResult]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_here", run_here)
    result = invoke("run", small, "--out", tmp_path / "out", "--jobs", "1")
    assert result.exit_code == 130
    assert "nothing was written" in result.stderr
    assert not (tmp_path / "out" / "summary.json").exists()


@needs.linux
def test_ctrl_c_ends_the_processes_too(small: Path, tmp_path: Path) -> None:
    command = ["run", small, "--out", tmp_path / "out", "--jobs", "2", "--set", "job.iterations=200000"]
    process = killing.start(command, eager=True, stderr=subprocess.PIPE, text=True)
    # All policies are at work, in two processes.
    killing.await_that(lambda: len(list((tmp_path / "out" / "checkpoints").glob("*.npz"))) == 4, process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=killing.PATIENCE)
    assert process.returncode == 130
    assert "\ninterrupted" in f"\n{errors}"
    assert "Traceback" not in errors
    killing.await_end(process.pid)


# The rest


def test_every_answer_names_device_and_barrier_and_the_interval_of_the_time_to_select(
    small: Path, tmp_path: Path
) -> None:
    fields = ("--set", "job.device=v100-torch1.5", "--set", "job.barrier=false", "--set", "output.report=true")
    for more, file in (((), "iterations.csv"), (("--grid", "density=1,5%"), "sweep.csv")):
        shown = did("run", small, *more, *fields, "--out", tmp_path / file, "--wide").stdout
        shown = " ".join(shown.split())
        assert more or "Device: v100-torch1.5 (" in shown
        assert more or "(job.barrier: false)" in shown
        rows = pd.read_csv(tmp_path / file / file)
        assert (rows["select_low_s"] < rows["select_s"]).all()
        assert (rows["select_s"] < rows["select_high_s"]).all()
    summary = json.loads((tmp_path / "iterations.csv" / "summary.json").read_text())
    assert summary["device"]["name"] == "v100-torch1.5"
    assert summary["device"]["known"] == {"estimated": 9, "measured": 2, "scaled": 4}
    assert summary["barrier"] is False
    assert not rows["barrier"].any()
    page = (tmp_path / "iterations.csv" / "report.html").read_text()
    assert "Device: v100-torch1.5" in page
    assert "each when done with the one before (job.barrier: false)" in page
    found = json.loads(invoke("choose", small, "--set", "job.barrier=false", "--json").stdout)["question"]
    assert (found["barrier"], found["device"]) == (False, "v100-torch2.6")


def test_version() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"simnet {simnet.__version__}\n")


@pytest.mark.parametrize("kind", listing.LISTS)
def test_lists(kind: str) -> None:
    result = invoke("list", kind, "--wide")
    assert result.exit_code == 0
    expected = {
        "schemes": ["artopk", "topk", "dense"],
        "collectives": ["allreduce_ring", "allgather_ring"],
        "networks": ["star", "wan", "fat_tree", "dgx-h100", "polaris"],
        "scenarios": list(shipped()),
        "models": ["resnet50", "25,557,032"],
        "devices": ["v100"],
        "strategies": ["diloco", "streaming", "eager"],
        "policies": [
            text
            for kind, one in schema.Policy.parts().items()
            for text in (f"{kind:8}  {listing._first_line(one)} ", f"  {', '.join(one.names())}\n")
        ],
        "weather": ["noise", "outages", "profile C1"],
        "traces": ["digits"],
        "measured": ["shaped_openmpi", "published_plateaus"],
        "readers": ["nccl-json", "Read the OSU micro-benchmarks;"],
        "stacks": ["gloo", "send_completion ready", "has no software"],
        "questions": ["spardl-unequal-links"],
        "columns": ["iteration_s", "total_bytes_sent_B"],
        "words": ["busbw", "artopk:selection=var"],
    }
    for name in expected[kind]:
        assert name in result.stdout
    assert max(map(len, invoke("list", kind).stdout.splitlines())) <= 80
    assert f"did you mean '{kind}'?" in refused("list", f"{kind}x")


def test_a_scenario_that_comes_with_simnet_is_shown_as_a_start_for_others() -> None:
    assert did("show", "quickstart").stdout == shipped()["quickstart"].read_text()
    assert "did you mean 'quickstart'?" in refused("show", "quikstart")


def test_words_labels_options_symbols_and_papers_are_explained() -> None:
    for label, scheme in (("ART-ring", "artopk:collective=ring"), ("STAR", "artopk:selection=star"), ("AG", "topk")):
        assert f"is {scheme}, " in " ".join(did("show", label).stdout.split())
        assert f"--schemes: {label!r} is a label of answers; write {scheme}" in refused("choose", "--schemes", label)
    assert did("show", "exposed").stdout.startswith("exposed communication: Communication that computing does not hide")
    said = " ".join(did("show", "artopk").stdout.split())
    for text in ("selection Who broadcasts its indices: the workers in turn", "on a ring at density c: 2 (N - 1)",
                 "N workers", "paper Flexible Communication for Optimal Distributed Learning"):  # fmt: skip
        assert text in said


@pytest.mark.parametrize("arguments", [[], ["run"], ["list"], ["convert"], ["show"]])
def test_help_shows_an_example(arguments: list[str]) -> None:
    result = invoke(*arguments, "--help")
    assert result.exit_code == 0
    assert "Example: simnet" in result.stdout


def test_the_overview_is_a_screen_that_ends_with_an_example() -> None:
    lines = did("--help").stdout.splitlines()
    assert lines[-1] == "Example: simnet run quickstart"
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_help_loads_nothing_heavy() -> None:
    # A schedule may be given to simnet.time, and is made of arrays.
    code = (
        "import sys\n"
        "from simnet.verbs.app import VERBS, run_line\n"
        "for verb in VERBS.keys() - {'time'}: run_line([verb, '-h'])\n"
        "run_line(['--help'])\n"
        "print([name for name in sys.modules if '.' not in name])\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=killing.PATIENCE, check=True)
    loaded = set(re.findall(r"'(\w+)'", done.stdout.splitlines()[-1]))
    assert not loaded & {"numpy", "pandas", "pydantic", "networkx", "matplotlib", "scipy", "ruamel", "simpy"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_scenarios_run(name: str, tmp_path: Path) -> None:
    did("run", name, "--out", tmp_path, "-q")
    summary = json.loads((tmp_path / "summary.json").read_text())
    seconds = {policy: one["simulated_s"] for policy, one in summary["policies"].items()}
    assert seconds
    assert all(one > 0 for one in seconds.values())
    if name == "time_to_accuracy_wan":
        assert all(one["learning"]["time_to_target_s"] for one in summary["policies"].values())
    if shipped()[name].parent.name == "papers" or "flexible" not in seconds:
        return
    fixed = set(seconds) - {"flexible", "moo", "oracle"}
    assert seconds["flexible"] < min(seconds[policy] for policy in fixed)
    assert summary["policies"]["flexible"]["switch_count"] >= 1
    if name == "fluctuating_wan":
        assert len(summary["policies"]["oracle"]["choices"]) >= 3
        assert len(summary["policies"]["flexible"]["choices"]) >= 3
        assert summary["policies"]["flexible"]["iterations"] >= 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["exchanges.ART-ring.error_feedback=false"],
            "policies.flexible.flexible: cannot switch between exchanges with error feedback (AG) and without (ART-",
        ),
        # The lowest density of a ramp, and the shortest bucket, leave SparDL's blocks empty.
        (
            [
                "exchanges.AG={scheme: spardl, compat: released}",
                "policies={AG: {fixed: AG}}",
                "job.density=[{iterations: 1, at: 0.5}, {at: 0.0001}]",
            ],
            "exchanges.AG: density 0.0001 keeps 0 entries of a block of 1000",
        ),
        (["exchanges.AG={scheme: powersgd, shapes: [[7, 7]]}"], "there is no such option of powersgd"),
        (["exchanges.AG={scheme: sidco, stages: 99999999999999999999}"], "stages must be a whole number in -1..100"),
        (["exchanges.AG={scheme: topk, value_bytes: 1.0e+200}"], "value_bytes must be <= 1000"),
        (["exchanges.AG={scheme: exdyna, initial_threshold: 1.0e+300}"], "initial_threshold must be <= 3.40282e+38"),
    ],
)
def test_exchanges_that_cannot_work_are_refused_before_the_run(small: Path, settings: list[str], said: str) -> None:
    arguments = [part for setting in settings for part in ("--set", setting)]
    message = refused("run", small, *arguments)
    assert said in message
    assert "exchanges.A" in message or "policies.flexible" in message


def test_what_is_done_is_kept_when_a_policy_fails(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(context: object) -> Sequence[Candidate]:
        raise SimnetError("a link fell off the table")

    real = runner.run_in_step

    def run_in_step(job, policies, **options):  # type: ignore[no-untyped-def]
        policies["ART-ring"].shortlist = fails
        return real(job, policies, **options)

    monkeypatch.setattr(runner, "run_in_step", run_in_step)
    result = invoke("run", small, "--jobs", "1", "--out", tmp_path / "kept")
    assert result.exit_code == 2
    assert "error: a link fell off the table" in result.stderr
    assert set(pd.read_csv(tmp_path / "kept" / "iterations.csv")["policy"]) == {"AG", "flexible", "oracle"}
    assert "missing: ART-ring\n" in (tmp_path / "kept" / INCOMPLETE).read_text()
