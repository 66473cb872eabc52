"""A folder of results answers one request, which its lock names."""

import re
import shutil

import numpy as np
import pytest

from commands import NO_PAGE, contents, did, refused
from simnet import run
from simnet.base.errors import InputError
from simnet.traces import Recorder

FEW = ("--set", "job.iterations=3", "-q")
COMMANDS = {
    "run": ("run", "quickstart", *NO_PAGE, *FEW),
    "schemes": ("run", "quickstart", "--schemes", "topk,artopk", *NO_PAGE, *FEW),
    "grid": ("run", "quickstart", "--grid", "density=0.01,0.02", "--policies", "AG", *FEW),
}


@pytest.mark.parametrize(
    ("there", "other", "more"),
    [
        ("run", "run", ("--seed", 7)),
        ("run", "run", ("--seeds", 2)),
        ("run", "run", ("--policies", "AG")),
        ("run", "schemes", ()),
        ("run", "grid", ()),
        ("schemes", "run", ()),
        ("schemes", "schemes", ("--workers", 3)),
        ("grid", "run", ()),
        ("grid", "grid", ("--set", "job.compute.mean=2 ms")),
    ],
)
def test_results_of_another_request_stay_unless_they_are_forced_to_go(tmp_path, there, other, more):
    folder = tmp_path / "x"
    did(*COMMANDS[there], "--out", folder)
    before = contents(folder)
    said = refused(*COMMANDS[other], *more, "--out", folder)
    assert "has the results of another request, simnet run quickstart, seed 2026; --force replaces them" in said
    assert contents(folder) == before
    did(*COMMANDS[other], *more, "--out", folder, "--force")
    did(*COMMANDS[other], *more, "--out", tmp_path / "alone")
    kept = {name: content for name, content in contents(folder).items() if not name.startswith("cells/")}
    assert kept == {name: one for name, one in contents(tmp_path / "alone").items() if not name.startswith("cells/")}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_request_has_the_same_folder(tmp_path, command):
    did(*COMMANDS[command], "--out", tmp_path)
    before = contents(tmp_path)
    did(*COMMANDS[command], "--out", tmp_path)
    assert contents(tmp_path) == before


def test_a_page_is_no_other_request_and_a_grid_may_grow(tmp_path):
    did("run", "quickstart", *FEW, "--out", tmp_path / "run")
    did(*COMMANDS["run"], "--out", tmp_path / "run")
    did(*COMMANDS["grid"], "--out", tmp_path / "grid")
    more = [one if one != "density=0.01,0.02" else "density=0.01,0.02,0.05" for one in COMMANDS["grid"]]
    did(*more, "--out", tmp_path / "grid")
    assert len(list((tmp_path / "grid" / "cells").iterdir())) == 3


def test_without_a_folder_another_request_gets_one_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loud = [one for one in COMMANDS["run"] if one != "-q"]
    did(*loud)
    before = contents(tmp_path / "runs" / "quickstart")
    said = did(*loud, "--seed", 7).stderr
    assert "wrote runs/quickstart-2/summary.json; runs/quickstart has the results of another request" in said
    did(*loud, "--seed", 8)
    did(*loud, "--seed", 7)
    assert sorted(one.name for one in (tmp_path / "runs").iterdir()) == ["quickstart", "quickstart-2", "quickstart-3"]
    assert contents(tmp_path / "runs" / "quickstart") == before


@pytest.mark.parametrize(("command", "trace"), [*((one, "trace") for one in COMMANDS), ("run", "own.npz")])
def test_the_lock_names_the_request_and_what_was_recorded_by_content(tmp_path, command, trace):
    def record(last: float) -> None:
        if trace == "own.npz":
            np.savez(tmp_path / trace, **{"000000/weight": np.full((4, 400), last, dtype=np.float32)})
            return
        shutil.rmtree(tmp_path / trace, ignore_errors=True)
        with Recorder(tmp_path / trace, {"weight": (400,)}, workers=4, every=1) as recorder:
            for worker in range(4):
                recorder.take({"weight": np.full(400, last)}, worker)
            recorder.end_step(loss=1.0)

    record(3.0)
    scenario = tmp_path / "own.yaml"
    text = "workers: 4\nnetwork: {topology: {star: {latency: 1 ms, bandwidth: 1 Gbit/s}}}\n"
    text += f"job: {{gradients: {{recorded: ./{trace}}}, density: 10 %, compute: {{mean: 1 ms}}}}\n"
    scenario.write_text(
        f"{text}exchanges: {{AG: {{scheme: topk}}}}\npolicies: {{AG: {{fixed: AG}}}}\n", encoding="utf-8"
    )
    arguments = [one if one != "quickstart" else scenario for one in COMMANDS[command]]
    did(*arguments, "--out", tmp_path / "out")
    first, second, *_ = (tmp_path / "out" / "scenario.lock.yaml").read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"# simnet run own, seed \d+; request [0-9a-f]{32}", first)
    assert re.fullmatch(r"# input \S+ [0-9a-f]{64}", second)
    # Another content at the same place is another request.
    record(4.0)
    assert "has the results of another request" in refused(*arguments, "--out", tmp_path / "out")


def test_the_library_keeps_results_of_another_request_as_well(tmp_path):
    few = {"job.iterations": 2, "output.report": False}
    run("quickstart", set=few, seed=1, out=tmp_path, jobs=1)
    run("quickstart", set=few, seed=1, out=tmp_path, jobs=1)
    with pytest.raises(InputError, match="another request, simnet run quickstart, seed 1"):
        run("quickstart", set=few, seed=2, out=tmp_path, jobs=1)
    run("quickstart", set=few, seed=2, out=tmp_path, jobs=1, force=True)
