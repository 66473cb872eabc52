"""Checkpoints: a job that was killed after any iteration goes on to the results of one that was left alone."""

import warnings

import numpy as np
import pandas as pd
import pytest

import killing
import needs
from commands import contents, did, invoke
from jobs import AG, RING, Source, job_on
from simnet import sparsifier_models, topologies
from simnet.base.errors import InputError
from simnet.network import Network
from simnet.network.weather import Weather, steps
from simnet.policies import Candidate, Fixed, Flexible, Monitor, OneStepOracle, Ramp
from simnet.policies.moo import DensitySearch, Moo
from simnet.strategies import SGD
from simnet.studies import runs
from simnet.traces.live import train
from simnet.training.advise.adviser import Advised
from simnet.training.job.checkpoint import Checkpoint
from simnet.training.job.job import Compute, LocalSteps, Overlap
from simnet.training.job.running import run_policy

TREE = Candidate("ART-tree", "artopk", {"collective": "tree", "selection": "var"})
FEEDBACK = (AG, RING, TREE)
STREAMING = {"period": 12, "fragments": 3, "delay": 2, "mixing": 0.5}


class KilledError(Exception):
    """What ends a job from outside."""


class Counted(Source):
    """Gradients that grow with the iteration, and how often they were asked for."""

    asked = 0

    def gradients(self, iteration, out=None):
        self.asked += 1
        return super().gradients(iteration) * np.float32(1 + iteration)


def fickle(workers=4):
    """Return a star whose links slow down and recover while a job is under way."""
    graph = topologies.star(workers, 1e-3, 1e6)
    return Network(graph, dict.fromkeys(graph.edges, Weather(bandwidth=steps([0, 0.05, 0.15], [1e6, 2e4, 6e5]))))


def job(iterations=7, **changes):
    fields = {"source": Counted(), "compute": Compute(0.01, spread=0.3), "update": 1e-3, "device": "v100"}
    return job_on(fickle(), 4, iterations, **(fields | changes))


def learning(**changes):
    options = {"samples": 400, "features": 12, "classes": 3}
    source = train("mlp", "classification", workers=4, batch=4, hidden=[6], options=options, evaluate=2, seed=3)
    return job(source=source, **changes)


def flexible():
    return Flexible(FEEDBACK, Monitor(every=0.02, noise=0.4, change=0.05))


def moo(mode="grid", **search):
    monitor = Monitor(every=0.01, change=0.05)
    return Moo((RING, TREE), monitor, DensitySearch(mode, (0.5, 0.2, 0.1, 0.05), 2, gain_change=0.05, **search))


JOBS = {
    "fixed": (job, lambda: Fixed(AG)),
    "flexible": (job, flexible),
    "oracle": (job, lambda: OneStepOracle(FEEDBACK)),
    "moo": (job, moo),
    "moo as published": (lambda: job(iterations=9), lambda: moo("published", warm_up=3)),
    "buckets": (lambda: job(overlap=Overlap(bucket=200.0)), lambda: Fixed(RING)),
    "density that falls": (lambda: job(density=[Ramp(5, 1.0, 0.01)]), lambda: Fixed(AG)),
    "failures, others go on": (lambda: job(failures={1: 0.06, 2: 0.3}, patience=0.02), flexible),
    "failures, and exploration": (lambda: job(failures={1: 0.15}, patience=0.02), moo),
    "failures, the end": (lambda: job(failures={3: 0.2}), lambda: Fixed(AG)),
    "networks by iteration": (lambda: job(stages=[(0, fickle()), (3, Network(topologies.star(4, 1e-2, 1e5)))]), moo),
    "adviser": (lambda: job(iterations=9), lambda: Advised([AG, RING])),
    "adviser, failures": (lambda: job(iterations=9, failures={1: 0.15}, patience=0.02), lambda: Advised([AG, RING])),
    "no barrier": (lambda: job(barrier=False), flexible),
    "no barrier, failures": (lambda: job(barrier=False, failures={1: 0.06, 2: 0.3}, patience=0.02), lambda: Fixed(AG)),
    "local steps": (lambda: job(strategy=LocalSteps("diloco", {"period": 3}, 3)), lambda: Fixed(AG)),
    "fragments in turn": (lambda: job(strategy=LocalSteps("streaming", STREAMING, 4)), lambda: Fixed(AG)),
    "a round late": (lambda: job(strategy=LocalSteps("eager", {"period": 3}, 3)), lambda: Fixed(AG)),
    "a round of one step late": (lambda: job(strategy=LocalSteps("eager", {"period": 1}, 1)), lambda: Fixed(AG)),
    "no barrier, a round late": (
        lambda: job(strategy=LocalSteps("delayed", {"period": 2}, 2), barrier=False),
        lambda: Fixed(AG),
    ),
    "training, local steps": (
        lambda: learning(strategy=LocalSteps("diloco", {"period": 3, "inner": SGD(0.1)}, 3)),
        lambda: Fixed(AG),
    ),
    "training": (learning, lambda: Fixed(RING)),
    "training, moo": (learning, moo),
}


def run(one, policy, **options):
    return run_policy(one, "p", policy, timeline=2, **options)


def killed_after(count, path, one, policy, **options):
    """Run a job with a checkpoint after each iteration until it is killed; return whether it was."""

    def progress(done):
        if done == count:
            raise KilledError

    try:
        run(one, policy, checkpoint=Checkpoint(path, "it", every=0), progress=progress, **options)
    except KilledError:
        return True
    return False


def assert_same(one, other):
    for name in ("iterations", "workers", "messages", "spans"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True, obj=name)
    assert (one.interruptions, one.job_shares) == (other.interruptions, other.job_shares)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_killed_after_any_iteration_goes_on_to_the_same_results(name, tmp_path):
    make, policy = JOBS[name]
    undisturbed = policy()
    whole, kills = run(make(), undisturbed), 0
    for count in range(1, make().iterations):
        path = tmp_path / f"{count}.npz"
        if killed_after(count, path, make(), policy()):
            kills += 1
            assert Checkpoint(path, "it").done() == (count, False)
            resumed = policy()
            assert_same(run(make(), resumed, checkpoint=Checkpoint(path, "it")), whole)
            # What an adviser has learnt is the same, too, whatever it chose.
            assert getattr(resumed, "log", None) == getattr(undisturbed, "log", None)
    assert kills == make().iterations - 1 or whole.interruptions
    assert kills > 1


@pytest.mark.parametrize("scheme", sparsifier_models.names())
def test_every_scheme_goes_on(scheme, tmp_path):
    path, policy = tmp_path / "a.npz", Fixed(Candidate(scheme, scheme))
    assert killed_after(2, path, job(4), policy)
    assert_same(run(job(4), policy, checkpoint=Checkpoint(path, "it")), run(job(4), policy))


def test_a_file_that_is_damaged_or_of_another_job_is_no_checkpoint(tmp_path):
    path = tmp_path / "a.npz"
    state = {"weights": np.arange(3.0), "rows": [{"loss": 0.5, "choice": "AG"}], "none": None}
    Checkpoint(path, "it").write(state, 3)
    data = path.read_bytes()
    assert Checkpoint(path, "other").read() is Checkpoint(path, "other").done() is None
    for place in range(0, len(data), 3):
        for changed in (data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], data[:place]):
            path.write_bytes(changed)
            found = Checkpoint(path, "it").read()
            # What is not part of the state, such as after how many iterations it was, may be altered.
            assert found is None or found.pop("weights").tolist() == [0, 1, 2]
            assert found is None or found == {name: one for name, one in state.items() if name != "weights"}
    path.unlink()
    assert Checkpoint(path, "it").read() is None


def test_a_state_that_does_not_fit_is_explained(tmp_path):
    path = tmp_path / "a.npz"
    assert killed_after(2, path, job(), Fixed(AG))
    with pytest.raises(InputError, match=r"a\.npz: is no checkpoint of this job; --force begins anew"):
        run(job(source=Counted(sizes=(50, 40))), Fixed(AG), checkpoint=Checkpoint(path, "it"))
    for wrong in ({"job_shares": 1}, {"now": 0.0, "number": 2, "attempts": 0, "active": np.array([9])}, {"now": 1}):
        Checkpoint(path, "it").write(wrong, 2)
        with pytest.raises(InputError, match="is no checkpoint of this job"):
            run(job(), Fixed(AG), checkpoint=Checkpoint(path, "it"))
    Checkpoint(path, "it").write([1], 2)
    assert Checkpoint(path, "it").read() is None


def test_a_full_disk_does_not_end_the_job(tmp_path):
    nowhere = Checkpoint(tmp_path / "nowhere" / "a.npz", "it", every=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = run(job(), Fixed(AG), checkpoint=nowhere)
    assert_same(result, run(job(), Fixed(AG)))
    assert "cannot be written" in str(said[0].message)


# The command line

LEARNING = """\
name: learning
workers: 4
network:
  topology:
    star: {latency: 20 ms, bandwidth: 20 Mbit/s}
  jitter: {exponential: {mean: 1 ms}}
job:
  gradients:
    train: {model: mlp, data: {classification: {samples: 600, features: 20, classes: 4}}, batch: 4}
  iterations: 40
  density: 5 %
  compute: {mean: 10 ms, spread: 0.1}
exchanges:
  AG: {scheme: topk}
  ART-ring: {scheme: artopk, collective: ring}
  ART-tree: {scheme: artopk, collective: tree}
policies:
  AG: {fixed: AG}
  moo: {moo: {among: [ART-ring, ART-tree], tries: 2}}
output: {report: false}
"""


def interrupted_when(monkeypatch, when):
    """Let Ctrl-C come after so many checkpoints have been written, one after each iteration."""
    monkeypatch.setattr(runs, "EVERY", 0)
    real, written = Checkpoint.write, []

    def write(self, state, done, ended=False):
        real(self, state, done, ended)
        written.append(done)
        if when(len(written)):
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "write", write)


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "learning.yaml"
    path.write_text(LEARNING)
    return path


@needs.linux
@pytest.mark.parametrize(("jobs", "number", "when"), [(1, 50, "before"), (2, 25, "after")])
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(jobs, number, when, scenario, tmp_path):
    out = tmp_path / "killed"
    command = ["run", str(scenario), "--out", str(out), "--jobs", str(jobs)]
    killing.run_killed([*command, "-q"], "checkpoints", number, when=when, eager=True)
    assert not (out / "summary.json").exists()
    result = did(*command)
    assert "goes on where it had stopped: " in result.stderr
    did("run", scenario, "--out", tmp_path / "whole", "-q")
    assert contents(out) == contents(tmp_path / "whole")


def test_ctrl_c_says_that_the_same_command_goes_on(scenario, tmp_path, monkeypatch):
    arguments = ("run", scenario, "--out", tmp_path / "out", "--jobs", 1)
    arguments += ("--set", "job.iterations=8")
    # After the fourth iteration of AG; then after its other four and its end, and the fourth of moo.
    interrupted_when(monkeypatch, lambda count: count in (4, 4 + 5 + 4))
    result = invoke(*arguments)
    assert result.exit_code == 130
    assert "no results were written; the same command goes on from there" in result.stderr
    result = invoke(*arguments)
    assert "AG after 4 of 8 iterations" in result.stderr
    # AG gets to its end, moo is interrupted.
    assert (
        "interrupted: moo not done, as the file INCOMPLETE says; the same command goes on from there" in result.stderr
    )
    monkeypatch.undo()
    assert "AG done, moo after 4 of 8 iterations" in invoke(*arguments).stderr
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert invoke(*arguments, "-q").stderr == ""


def test_an_interrupted_write_keeps_the_last_file(tmp_path, monkeypatch):
    one = Checkpoint(tmp_path / "a.npz", "it")
    one.write({"a": np.ones(3)}, 1)

    def save(file, **arrays):
        file.write(b"begun")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", save)
    with pytest.raises(KeyboardInterrupt):
        one.write({"a": np.zeros(3)}, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]
    assert one.done() == (1, False)


@needs.linux
def test_processes_end_with_the_one_that_started_them(scenario, tmp_path):
    out = tmp_path / "out"
    command = ["run", scenario, "--out", out, "--jobs", "2", "-q"]
    process = killing.start([*command, "--set", "job.iterations=100000"], eager=True)
    killing.await_that(lambda: list((out / "checkpoints").glob("*.npz")), process)
    process.kill()
    process.wait()
    killing.await_end(process.pid)
