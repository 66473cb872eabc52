"""How much bandwidth a utilisation needs: against published tables, simnet's own clock, and a run event by event."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from commands import NO_PAGE, did, refused
from simnet import Network
from simnet.collectives import allreduce_ring
from simnet.studies.utilisation import (
    GRID,
    STRATEGIES,
    TARGETS,
    Training,
    bandwidth_for,
    bucket_times,
    interval_by_error,
    period_for,
    stall,
    utilisation,
)
from simnet.topologies import star
from simnet.validate.published import read
from simnet.validate.reproduction import lowcomm

ONE = Training(2, 10**9, 0.1, "diloco", period=100, bits=16, buckets=128)
GIGABIT = 1e9 / 8


@st.composite
def trainings(draw):
    strategy = draw(st.sampled_from(STRATEGIES))
    own = {}
    if strategy != "dataparallel":
        own["period"] = draw(st.integers(1, 300))
    if strategy == "streaming":
        own |= {"fragments": draw(st.integers(1, own["period"])), "delay": draw(st.integers(0, 9))}
    return Training(
        workers=draw(st.integers(2, 64)),
        parameters=draw(st.integers(1, 10**10)),
        compute=draw(st.floats(1e-3, 100)),
        strategy=strategy,
        bits=draw(st.floats(1, 64)),
        latency=draw(st.one_of(st.just(0.0), st.floats(0, 1e-2))),
        backward=draw(st.floats(0.01, 1)),
        buckets=draw(st.none() | st.integers(1, 300)),
        **own,
    )


RATES = st.floats(1e3, 1e14)
ANY_TARGET = st.floats(0.01, 0.999)


# Published tables


def test_71_of_the_75_published_bandwidths_are_within_a_step_of_their_grid():
    steps = [
        GRID.index(bandwidth_for(one.training, one.target, grid=True))
        - int(np.abs(np.array(GRID) * 8e-9 - lowcomm.on_grid(one.published)).argmin())
        for one in lowcomm.cells()
    ]
    assert len(steps) == 75
    assert sum(abs(one) <= 1 for one in steps) == 71
    assert sorted(one for one in steps if abs(one) > 1) == [-4, -2, -2, 2]


def test_a_run_of_the_page_by_others_has_the_same_bandwidths_as_printed():
    for one in lowcomm.cells():
        ours = 8e-9 * bandwidth_for(one.training, one.target, grid=True)
        # They print one decimal, of a value of the grid.
        assert ours == pytest.approx(one.page, abs=0.0501), one.what


def test_published_bandwidths_lie_on_the_grid():
    assert len(GRID) == 50
    for one in lowcomm.cells():
        assert lowcomm.on_grid(one.published) == pytest.approx(one.published, abs=0.06)


def test_shipped_values_are_the_sheets(shared):
    sheet = shared / "papers" / "data" / "lowcomm" / "published_compute_utilization.csv"
    assert read("utilisation.csv").to_csv() == pd.read_csv(sheet).to_csv()


# Against simnet's own clock, and event by event


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("latency", [0.0, 3e-3])
def test_an_exchange_takes_what_the_network_says(workers, latency):
    one = Training(workers, 12_345_678, 0.1, "diloco", bits=16, latency=latency, buckets=1)
    network = Network(star(workers, latency=latency, bandwidth=2e8))
    finish = network.time(allreduce_ring(workers, 2 * 12_345_678)).finish
    assert bucket_times(one, 2e8).sum() == pytest.approx(float(np.max(finish)), rel=1e-9)
    # Pieces have the same bytes, and a latency each.
    pieces = replace(one, buckets=7)
    apart = 7 * float(np.max(network.time(allreduce_ring(workers, 2 * 12_345_678 / 7)).finish))
    assert bucket_times(pieces, 2e8).sum() == pytest.approx(apart, rel=1e-9)


def run(one, bandwidth, rounds):
    """Return the utilisation of the last half of a run: steps, buckets and waits one by one."""
    between = one.steps // one.pieces
    takes = bucket_times(one, bandwidth)
    now = link = 0.0
    due, marks = {}, []
    for step in range(rounds * between):
        begin, now = now, now + one.compute
        if step % between == between - 1:
            first = begin + (1 - one.backward) * one.compute
            for ready, takes_it in zip(np.cumsum(one.shares), takes, strict=True):
                link = max(link, first + one.backward * one.compute * ready) + takes_it
            due[step + (one.steps if one.strategy == "eager" else one.delay or 0)] = link
        now = max(now, due.pop(step, 0.0))
        marks.append(now)
    half = rounds // 2 * between
    return (len(marks) - half) * one.compute / (marks[-1] - marks[half - 1])


@pytest.mark.parametrize(
    ("strategy", "period", "fragments", "delay"),
    [("dataparallel", None, None, None), ("diloco", 12, None, None), ("eager", 12, None, None),
     ("streaming", 12, 4, 0), ("streaming", 12, 4, 1), ("streaming", 12, 4, 2), ("streaming", 12, 12, 1)],
)  # fmt: skip
@pytest.mark.parametrize("buckets", [16, None])
@pytest.mark.parametrize("busy", [0.3, 0.9, 1.1, 2.0, 12.0])
def test_the_closed_form_is_a_run_bucket_by_bucket(strategy, period, fragments, delay, busy, buckets):
    one = Training(4, 10**8, 0.5, strategy, period, fragments, delay, latency=1e-4, buckets=buckets)
    # The link is busy for this part of the time from one exchange to the next, were there no waits.
    bandwidth = 1e8
    for _ in range(60):
        bandwidth *= bucket_times(one, bandwidth).sum() / (busy * one.compute * one.steps / one.pieces)
    assert utilisation(one, bandwidth) == pytest.approx(run(one, bandwidth, 400), rel=1e-6)


# What must hold


@given(trainings(), RATES, st.floats(1, 1e3))
def test_utilisation_rises_with_bandwidth_and_falls_with_bytes(one, rate, more):
    assert utilisation(one, rate * more) >= utilisation(one, rate) * (1 - 1e-12)
    assert utilisation(replace(one, bits=one.bits * more), rate) <= utilisation(one, rate) * (1 + 1e-12)


@given(trainings(), RATES, st.integers(1, 10**6), st.floats(1, 100))
def test_utilisation_rises_with_the_period_and_the_step(one, rate, more, longer):
    assert utilisation(replace(one, compute=one.compute * longer), rate) >= utilisation(one, rate) * (1 - 1e-12)
    if one.period is not None:
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
    rounded = bandwidth_for(one, target, grid=True)
    assert rounded >= found * (1 - 1e-9)
    assert rounded in GRID or GRID[-1] < found * (1 + 1e-9)


@given(trainings(), st.floats(0.02, 0.98))
def test_the_bandwidth_for_the_utilisation_of_a_bandwidth_is_that(one, share):
    # Only below what latency allows does a utilisation have one bandwidth.
    target = share * utilisation(one, math.inf)
    rate = bandwidth_for(one, target)
    assert utilisation(one, rate) == pytest.approx(target, rel=1e-9)
    assert bandwidth_for(one, utilisation(one, rate)) == pytest.approx(rate, rel=1e-9)


@given(trainings(), ANY_TARGET, RATES)
def test_the_period_for_a_utilisation_is_the_least(one, target, rate):
    assume(one.period is not None)
    least = period_for(one, target, rate)
    assert utilisation(replace(one, period=least), rate) >= target
    if least > one.pieces:
        assert utilisation(replace(one, period=least - 1), rate) < target


def test_limits():
    assert utilisation(ONE, math.inf) == 1
    assert utilisation(ONE, 1e-3) < 1e-10
    assert stall(replace(ONE, strategy="eager"), 100 * GIGABIT) == 0
    # One bucket leaves at the end of the step, and all of it is waited for.
    assert stall(replace(ONE, buckets=1), 16 * GIGABIT) == pytest.approx(1)
    # A latency that is longer than the steps beside it cannot be bought off.
    assert bandwidth_for(replace(ONE, latency=10.0), 0.99) == math.inf


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"period": 0}, "period must be a whole number >= 1, got 0"),
        ({"workers": 1}, "workers must be a whole number >= 2"),
        ({"parameters": 0}, "parameters must be"),
        ({"compute": 0.0}, "compute must be a number > 0"),
        ({"bits": 0}, "bits must be"),
        ({"latency": -1}, "latency must be"),
        ({"backward": 1.5}, "backward must be"),
        ({"buckets": 0}, "buckets must be"),
        ({"fragments": 2}, "fragments is not for diloco"),
        ({"strategy": "dilco"}, "did you mean 'diloco'"),
        ({"strategy": "sparta"}, "there is no strategy 'sparta'"),
        ({"strategy": "dataparallel"}, "period is not for dataparallel"),
        ({"strategy": "localsgd", "period": None}, "period must be given"),
        ({"strategy": "streaming"}, "fragments must be given"),
        ({"strategy": "streaming", "fragments": 101}, "period must be >= the 101 fragments, got 100"),
    ],
)
def test_what_cannot_be_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        replace(ONE, **change)


def test_values_out_of_range_are_refused():
    for target in (0, 1, -0.1, math.nan, "90 %"):
        with pytest.raises(ValueError, match="target must be"):
            bandwidth_for(ONE, target)
        with pytest.raises(ValueError, match="target must be"):
            period_for(ONE, target, GIGABIT)
    for bandwidth in (0, -1, math.nan):
        with pytest.raises(ValueError, match="bandwidth must be"):
            utilisation(ONE, bandwidth)
    with pytest.raises(ValueError, match="period is not for dataparallel"):
        period_for(replace(ONE, strategy="dataparallel", period=None), 0.9, GIGABIT)
    for off in (-0.1, 1, math.nan):
        with pytest.raises(ValueError, match="off must be"):
            interval_by_error(utilisation, ONE, GIGABIT, off)


def test_an_interval_is_from_what_its_ends_give():
    found = interval_by_error(utilisation, ONE, GIGABIT, 0.1)
    assert found.value == utilisation(ONE, GIGABIT)
    assert found.low == utilisation(replace(ONE, compute=0.9 * 0.1), 0.9 * GIGABIT)
    assert found.high == utilisation(replace(ONE, compute=1.1 * 0.1), 1.1 * GIGABIT)
    assert found.low < found.value < found.high


# The command

ASKED = ("utilisation", "--parameters", "1B", "--compute", "0.1 s", "--period", 100, "--bits", 16, "--buckets", 128)


def test_the_command_says_what_the_functions_do():
    found = json.loads(did(*ASKED, "--bandwidth", "10 Gbit/s", "--off", "10%", "--json").stdout)
    assert found["utilisation"] == interval_by_error(utilisation, ONE, 10 * GIGABIT, 0.1)._asdict()
    assert [one["utilisation"] for one in found["targets"]] == list(TARGETS)
    for one in found["targets"]:
        assert one["bandwidth_Bps"]["value"] == bandwidth_for(ONE, one["utilisation"])
        longer = bandwidth_for(replace(ONE, compute=1.1 * 0.1), one["utilisation"])
        assert one["bandwidth_Bps"]["low"] == longer < one["bandwidth_Bps"]["value"] < one["bandwidth_Bps"]["high"]
        assert one["steps_between_exchanges"]["value"] == period_for(ONE, one["utilisation"], 10 * GIGABIT)
        steps = one["steps_between_exchanges"]
        assert steps["low"] < steps["value"] < steps["high"]


def test_the_command_prints_a_table():
    said = did(*ASKED, "--target", "90%,0.5", "--bandwidth", "10 Gbit/s", "--grid").stdout
    rows = [line.split() for line in said.splitlines() if " %   " in line]
    assert rows == [["90", "%", "16", "Gbit/s", "139"], ["50", "%", "1.68", "Gbit/s", "16"]]
    assert "At 10 Gbit/s the utilisation is 86.7 %." in said
    alone = did(*ASKED[:5], "--strategy", "dataparallel", "--latency", "1 s", "--target", "99%").stdout
    assert "out of reach" in alone
    assert "H" not in alone


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--target", "100%"), "target must be a number > 0 and < 1, got 1.0"),
        (("--target", "often"), "--target: must be a fraction"),
        (("--bandwidth", "10"), "--bandwidth: '10' has no unit"),
        (("--bandwidth", "0 bit/s"), "bandwidth must be a number > 0"),
        (("--off", "100%"), "off must be a number >= 0 and < 1"),
        (("--strategy", "streming"), "did you mean 'streaming'?"),
        (("--strategy", "dataparallel"), "period is not for dataparallel"),
        (("--model", "gpt2"), "needs either --model or --parameters"),
    ],
)
def test_the_command_refuses(given, said):
    assert said in refused(*ASKED, *given)


# The same question, asked of other commands

GPT2 = ("--model", "gpt2", "--workers", 8, "--compute", "0.212 s")
JOB = """
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
STRATEGY
exchanges: {dense: {scheme: dense}}
"""


def asked(strategy, latency, bandwidth, **more):
    """Return the utilisation of GPT-2 that the command says."""
    others = [word for name, value in more.items() for word in (f"--{name}", value)]
    given = (*GPT2, "--strategy", strategy, "--latency", latency, "--bandwidth", bandwidth, *others)
    return json.loads(did("utilisation", *given, "--json").stdout)["utilisation"]["value"]


def simulated(folder, latency, bandwidth, strategy=""):
    """Return the utilisation that a run of it has."""
    under = f"  strategy: {{{strategy}}}" if strategy else ""
    text = JOB.replace("LATENCY", latency).replace("BANDWIDTH", bandwidth).replace("STRATEGY", under)
    (folder / "same.yaml").write_text(text)
    did("run", folder / "same.yaml", *NO_PAGE, "--out", folder / "run", "--force")
    found = json.loads((folder / "run" / "summary.json").read_text())["policies"]["dense"]
    return found["breakdown_s"]["compute"] / found["simulated_s"]


NETWORKS = [("10 us", "100 Gbit/s"), ("20 ms", "1 Gbit/s")]


@pytest.mark.parametrize(("latency", "bandwidth"), NETWORKS)
def test_data_parallelism_takes_as_long_as_in_a_step_and_in_a_run(latency, bandwidth, tmp_path):
    found = asked("dataparallel", latency, bandwidth)
    where = ("--topology", "star", "--set", f"latency={latency}", "--set", f"bandwidth={bandwidth}")
    step = json.loads(did("step", *GPT2, "--sharding", "ddp", *where, "--json").stdout)
    assert found == pytest.approx(0.212 / step["step_s"], rel=1e-6)
    assert found == pytest.approx(simulated(tmp_path, latency, bandwidth), rel=0.01)


def test_the_embedding_of_gpt2_comes_last_and_is_waited_for():
    # 154 MB round a ring of 8 take 25 ms at 100 Gbit/s, whatever goes beside the backward pass before them.
    last = 2 * 7 * (10e-6 + 4 * (50257 + 1024) * 768 / 8 / 12.5e9)
    assert 0.212 / (0.212 + 1.2 * last) < asked("dataparallel", "10 us", "100 Gbit/s") < 0.212 / (0.212 + last)


@pytest.mark.parametrize(("latency", "bandwidth"), NETWORKS)
@pytest.mark.parametrize(
    ("strategy", "more", "written"),
    [
        ("diloco", {"period": 500}, "name: diloco, period: 500"),
        ("localsgd", {"period": 30}, "name: localsgd, period: 30, inner: {sgd: {lr: 0.1}}"),
        ("diloco", {"period": 50, "buckets": 148}, "name: diloco, period: 50, bucket: 1 B"),
    ],
)
def test_strategies_take_as_long_as_in_a_run(strategy, more, written, latency, bandwidth, tmp_path):
    found, run_s = asked(strategy, latency, bandwidth, **more), simulated(tmp_path, latency, bandwidth, written)
    assert found == pytest.approx(run_s, rel=0.01)


def test_diloco_among_sites_sends_one_all_reduce_and_says_what_single_tensors_would_cost():
    given = (*GPT2, "--period", 500, "--bandwidth", "1 Gbit/s", "--latency", "20 ms")
    said = did("utilisation", *given).stdout
    assert "At 1 Gbit/s the utilisation is 93.6 %." in said
    assert "Tensor by tensor, as torchft and EXO gym send it: 68.7 % (--buckets 148)." in said
    assert "out of reach" not in said
    assert all(len(line) <= 80 for line in said.splitlines())
    # With more pieces each pays the latency.
    assert "the utilisation is 92.1 %." in did("utilisation", *given, "--buckets", 8).stdout
