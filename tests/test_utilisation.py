"""How much bandwidth a utilisation needs: against published tables, simnet's own clock, and a run event by event."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import NO_PAGE, did, refused
from simnet import Network
from simnet.collectives import allreduce_ring
from simnet.studies.utilisation import (
    TARGETS,
    TrainingPlan,
    bandwidth_for,
    bucket_times,
    equal_buckets,
    interval_by_error,
    period_for,
    utilisation,
)
from simnet.topologies import star
from simnet.validate.published import read_published
from simnet.validate.reproduction import lowcomm

ONE = TrainingPlan(2, 10**9, 0.1, period=100, bits=16, buckets=equal_buckets(128))
GIGABIT = 1e9 / 8


@st.composite
def trainings(draw):
    period = draw(st.integers(1, 300))
    return TrainingPlan(
        workers=draw(st.integers(2, 64)),
        parameters=draw(st.integers(1, 10**10)),
        compute=draw(st.floats(1e-3, 100)),
        period=period,
        fragments=draw(st.integers(1, period)),
        delay=draw(st.none() | st.integers(0, 9)),
        bits=draw(st.floats(1, 64)),
        latency=draw(st.one_of(st.just(0.0), st.floats(0, 1e-2))),
        backward=draw(st.floats(0.01, 1)),
        buckets=equal_buckets(draw(st.integers(1, 300))),
    )


RATES = st.floats(1e3, 1e14)
ANY_TARGET = st.floats(0.01, 0.999)


# Published tables


def test_71_of_the_75_published_bandwidths_are_within_a_step_of_their_grid():
    cells = list(lowcomm.bandwidth_cells())
    steps = [
        lowcomm.GRID.index(lowcomm.bandwidth_on_grid(one.training, one.target))
        - int(np.abs(np.array(lowcomm.GRID) * 8e-9 - lowcomm.on_grid(one.published)).argmin())
        for one in cells
    ]
    assert (len(cells), len(lowcomm.GRID), sum(abs(one) <= 1 for one in steps)) == (75, 50, 71)
    assert sorted(one for one in steps if abs(one) > 1) == [-4, -2, -2, 2]
    assert [lowcomm.on_grid(one.published) for one in cells] == [
        pytest.approx(one.published, abs=0.06) for one in cells
    ]


def test_shipped_values_are_the_sheets(shared):
    sheet = shared / "papers" / "data" / "lowcomm" / "published_compute_utilization.csv"
    assert read_published("utilisation.csv").to_csv() == pd.read_csv(sheet).to_csv()


# Against simnet's own clock, and event by event


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("latency", [0.0, 3e-3])
def test_an_exchange_takes_what_the_network_says(workers, latency):
    one = TrainingPlan(workers, 12_345_678, 0.1, bits=16, latency=latency)
    network = Network(star(workers, latency=latency, bandwidth=2e8))
    finish = network.time(allreduce_ring(workers, 2 * 12_345_678)).finish
    assert bucket_times(one, 2e8).sum() == pytest.approx(float(np.max(finish)), rel=1e-9)
    # Pieces have the same bytes, and a latency each.
    pieces = replace(one, buckets=equal_buckets(7))
    apart = 7 * float(np.max(network.time(allreduce_ring(workers, 2 * 12_345_678 / 7)).finish))
    assert bucket_times(pieces, 2e8).sum() == pytest.approx(apart, rel=1e-9)


def run(one, bandwidth, rounds):
    """Return the utilisation of the last half of a run: steps, buckets and waits one by one."""
    between = one.period // one.fragments
    takes = bucket_times(one, bandwidth)
    now = link = 0.0
    due, marks = {}, []
    for step in range(rounds * between):
        begin, now = now, now + one.compute
        if step % between == between - 1:
            first = begin + (1 - one.backward) * one.compute
            for (_, ready), takes_it in zip(one.buckets, takes, strict=True):
                link = max(link, first + one.backward * one.compute * ready) + takes_it
            due[step + (one.period if one.delay is None else one.delay)] = link
        now = max(now, due.pop(step, 0.0))
        marks.append(now)
    half = rounds // 2 * between
    return (len(marks) - half) * one.compute / (marks[-1] - marks[half - 1])


@pytest.mark.parametrize(
    ("period", "fragments", "delay"),
    [(1, 1, 0), (12, 1, 0), (12, 1, None), (12, 4, 0), (12, 4, 1), (12, 4, 2), (12, 12, 1)],
)
@pytest.mark.parametrize("buckets", [16, 1])
@pytest.mark.parametrize("busy", [0.3, 0.9, 1.1, 2.0, 12.0])
def test_the_closed_form_is_a_run_bucket_by_bucket(period, fragments, delay, busy, buckets):
    one = TrainingPlan(4, 10**8, 0.5, period, fragments, delay, latency=1e-4, buckets=equal_buckets(buckets))
    # The link is busy for this part of the time from one exchange to the next, were there no waits.
    bandwidth = 1e8
    for _ in range(60):
        bandwidth *= bucket_times(one, bandwidth).sum() / (busy * one.compute * one.period / one.fragments)
    assert utilisation(one, bandwidth) == pytest.approx(run(one, bandwidth, 400), rel=1e-6)


# What must hold


@given(trainings(), RATES, st.floats(1, 1e3))
def test_utilisation_rises_with_bandwidth_and_falls_with_bytes(one, rate, more):
    assert utilisation(one, rate * more) >= utilisation(one, rate) * (1 - 1e-12)
    assert utilisation(replace(one, bits=one.bits * more), rate) <= utilisation(one, rate) * (1 + 1e-12)


@given(trainings(), RATES, st.integers(1, 10**6), st.floats(1, 100))
def test_utilisation_rises_with_the_period_and_the_step(one, rate, more, longer):
    assert utilisation(replace(one, compute=one.compute * longer), rate) >= utilisation(one, rate) * (1 - 1e-12)
    rarer = replace(one, period=one.period + more)
    assert utilisation(rarer, rate) >= utilisation(one, rate) * (1 - 1e-12)


@given(trainings(), ANY_TARGET)
def test_the_bandwidth_for_a_utilisation_gives_it_and_no_less_does(one, target):
    found = bandwidth_for(one, target)
    if math.isinf(found):
        assert utilisation(one, math.inf) < target
        return
    assert utilisation(one, found) >= target
    assert utilisation(one, found * (1 - 1e-9)) < target
    rounded = lowcomm.bandwidth_on_grid(one, target)
    assert rounded >= found * (1 - 1e-9)
    assert rounded in lowcomm.GRID or lowcomm.GRID[-1] < found * (1 + 1e-9)


# The command

BILLION = ("--set", "job.model=null", "--set", "job.parameters=1000000000", "--workers", 2, "--compute", "0.1 s")
ASKED = ("step", *BILLION, "--strategy", "diloco:period=100,bits=16", "--latency", "0 s")
WHOLE = replace(ONE, buckets=equal_buckets(1))
"""What that is: each exchange is one all-reduce."""


def test_the_command_says_what_the_functions_do():
    found = json.loads(did(*ASKED, "--bandwidth", "10 Gbit/s", "--json").stdout)
    reached = interval_by_error(utilisation, WHOLE, 10 * GIGABIT, 1.1)
    names = ("utilisation", "utilisation_low", "utilisation_high")
    assert [found[one] for one in names] == pytest.approx(list(reached), rel=1e-9)
    assert found["step_s"] == pytest.approx(0.1 / reached.value, rel=1e-9)
    assert (found["low_s"], found["high_s"]) == pytest.approx((0.11 / reached.high, 0.09 / reached.low), rel=0.25)
    assert [one["utilisation"] for one in found["rows"]] == list(TARGETS)
    for one in found["rows"]:
        assert one["bandwidth_Bps"] == pytest.approx(bandwidth_for(WHOLE, one["utilisation"]), rel=1e-9)
        longer = bandwidth_for(replace(WHOLE, compute=1.1 * 0.1), one["utilisation"])
        assert one["bandwidth_low_Bps"] == pytest.approx(longer, rel=1e-9)
        assert one["bandwidth_low_Bps"] < one["bandwidth_Bps"] < one["bandwidth_high_Bps"]
        steps = [one[f"steps_between_exchanges{end}"] for end in ("_low", "", "_high")]
        assert steps[1] == period_for(WHOLE, one["utilisation"], 10 * GIGABIT)
        assert steps == sorted(set(steps))
    assert (found["evidence"], found["parameters"], found["bits"]) == ("assumed", 10**9, 16)


def test_the_answer_has_the_utilisation_and_what_the_goals_need():
    said = did(*ASKED, "--goal", "90%,0.5", "--bandwidth", "10 Gbit/s").stdout
    first, table = " ".join(said.split("\n\n")[0].split()), said.split("\n\n")[1]
    assert first.startswith("86.2 % utilisation (83.8-88.3 if computing and links are 10 % off); 116 ms a step")
    assert "90 % needs 14.4 Gbit/s (13.1-15.8), or a period of 144 steps (120-175)." in first
    assert "50 % needs 1.60 Gbit/s (1.45-1.76), or a period of 16 steps (14-20)." in first
    assert table.splitlines()[-2].split()[:3] == ["90.0", "14.4", "(13.1-15.8)"]
    assert max(map(len, said.splitlines())) <= 80
    for shared, why in (
        ("fat_tree:k=4,oversubscription=4", "links slower than a worker's own"),
        ("star", "one worker"),
    ):
        words = ("--network", shared, "--workers", 1 if shared == "star" else 8, "--goal", "90%")
        assert f"not for {why}" in refused("step", "--strategy", "diloco:period=10", *words)
    late = did("step", *BILLION, "--schemes", "dense", "--latency", "1 s", "--goal", "99%").stdout
    assert "With a dense exchange 99 % is beyond all bandwidths, as latency forbids it." in " ".join(late.split())
    for off in ("20%", "1.2"):
        wider = did(*ASKED, "--goal", "90%", "--bandwidth", "10 Gbit/s", "--link-uncertainty", off).stdout
        assert "90 % needs 14.4 Gbit/s (12.0-17.3), or a period of 144 steps (101-208)." in " ".join(wider.split())


# The same question, asked of a run

SAME = """
name: same
workers: 8
network: {topology: {star: {latency: LATENCY, bandwidth: BANDWIDTH}}}
job:
  model: gpt2
  scale: 20000
  density: 100 %
  iterations: 3
  compute: {mean: 0.212 s}
  device: ideal
exchanges: {dense: {scheme: dense}}
"""
NETWORKS = [("10 us", "100 Gbit/s"), ("20 ms", "1 Gbit/s")]


def asked(path, latency, bandwidth, *words):
    """Return the utilisation that the command says of a scenario, which it writes."""
    path.write_text(SAME.replace("LATENCY", latency).replace("BANDWIDTH", bandwidth))
    found = json.loads(did("step", path, *words, "--json").stdout)
    return found["utilisation"] if "utilisation" in found else found["rows"][0]["utilisation"]


def simulated(path, folder, *words):
    """Return the utilisation that a run of it has, in its last round."""
    overrides = [f"--set=job.strategy={words[1]}"] if words else []
    did("run", path, *overrides, *NO_PAGE, "--out", folder, "--force")
    last = pd.read_csv(folder / "iterations.csv").iloc[-1]
    return last["compute_s"] / last["iteration_s"]


@pytest.mark.parametrize(("latency", "bandwidth"), NETWORKS)
def test_goals_of_data_parallelism_are_those_of_ddp_as_run_and_sharded_steps_have_it(latency, bandwidth, tmp_path):
    path = tmp_path / "same.yaml"
    found = asked(path, latency, bandwidth)
    assert found == pytest.approx(simulated(path, tmp_path / "run"), rel=1e-6)
    ddp = ("--model", "gpt2", "--compute", "0.212 s", "--sharding", "ddp:slowdown=1", "--bandwidth", bandwidth)
    sharded = json.loads(did("step", *ddp, "--latency", latency, "--json").stdout)
    # The run has a sample of the entries of each tensor.
    assert found == pytest.approx(sharded["utilisation"], rel=2e-3)
    # What the goal needs gives it, in a run.
    goal = did("step", path, "--goal", "80%", "--json").stdout
    needed = json.loads(goal)["goals"][0]["bandwidth_Bps"]
    if needed is not None:
        assert asked(path, latency, f"{needed:.9g} B/s") == pytest.approx(0.8, rel=1e-6)


@pytest.mark.parametrize(("latency", "bandwidth"), NETWORKS)
@pytest.mark.parametrize(
    "strategy",
    [
        "{name: diloco, period: 50, bits: 16}",
        "{name: localsgd, period: 30, inner: {sgd: {lr: 0.1}}}",
        "{name: diloco, period: 50, bucket: 1 B}",
        "{name: eager, period: 4}",
        "{name: streaming, period: 12, fragments: 4, delay: 2}",
    ],
)
def test_strategies_take_as_long_as_in_a_run(strategy, latency, bandwidth, tmp_path):
    path, words = tmp_path / "same.yaml", (f"--set=job.strategy={strategy}",)
    found = asked(path, latency, bandwidth, *words)
    # Fragments are whole tensors, which differ, and take turns; all of them are a round.
    if "streaming" not in strategy:
        assert found == pytest.approx(simulated(path, tmp_path / "run", "--strategy", strategy), rel=0.01)
        return
    did("run", path, *words, "--set=job.iterations=8", *NO_PAGE, "--out", tmp_path / "run")
    rounds = pd.read_csv(tmp_path / "run" / "iterations.csv").iloc[-4:]
    assert found == pytest.approx(rounds["compute_s"].sum() / rounds["iteration_s"].sum(), rel=0.02)


@pytest.mark.parametrize("words", [("--network", "fat_tree:k=4"), ("--stack", "gloo"), ("--schemes", "fp16")])
def test_a_closed_form_holds_on_other_networks_and_stacks(words, tmp_path):
    given = ("--set", "job.iterations=3", "--strategy", "diloco:period=10", "--bandwidth", "1 Gbit/s", *words)
    found = json.loads(did("step", *given, "--json", "--save-scenario", tmp_path / "saved.yaml").stdout)
    did("run", tmp_path / "saved.yaml", *NO_PAGE, "--out", tmp_path / "run")
    last = pd.read_csv(tmp_path / "run" / "iterations.csv").iloc[-1]
    assert found["utilisation"] == pytest.approx(last["compute_s"] / last["iteration_s"], rel=0.01)
