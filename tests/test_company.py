"""Several jobs on one network: what they cost each other, and that company never helps."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import contents, did
from jobs import AG, BANDWIDTH, DENSE, LATENCY, RING, job_on, star
from simnet import collectives
from simnet.base.errors import InputError
from simnet.network.weather import Weather, ornstein_uhlenbeck
from simnet.policies import Fixed, Flexible, Monitor, Ramp
from simnet.scenario import load
from simnet.schedule import Schedule
from simnet.training.job.job import Compute, Overlap
from simnet.training.job.loop import ColocatedJob
from simnet.training.job.record import MAIN
from simnet.training.job.running import run_policy


@pytest.mark.parametrize("jittery", [False, True])
def test_run_alone_is_time(jittery):
    jitter = (lambda draws, n: draws.exponential(1e-3, n)) if jittery else None
    env = simpy.Environment()
    network = star(5, env=env, jitter=jitter, send_overhead=1e-5)
    parts = [
        (collectives.allreduce_ring(4, 5000), [0.3, 0.1, 0.2, 0.5]),
        (Schedule(4), 0.55),
        (collectives.allgather_bruck(4, 3000), [0.6, 0.0, 0.0, 0.7]),
    ]
    options = {"start": [0.3, 0.1, 0.2, 0.5], "placement": [4, 2, 0, 1], "messages": True, "stream": ("a", 1)}
    options["accounted_from"] = [0.4, 0.4, 0.4, 0.6]
    ran = env.run(until=network.run(parts, **options))
    timed = network.time(parts, **options)
    for name in ("rank_start", "rank_finish", "rank_communicate", "rank_compute", "rank_wait"):
        np.testing.assert_allclose(getattr(ran, name), getattr(timed, name), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ran.messages.finish, timed.messages.finish, rtol=1e-9)


traffic = st.lists(
    st.tuples(
        st.floats(0, 0.2), st.lists(st.integers(0, 4), min_size=2, max_size=2, unique=True), st.floats(0, 50_000)
    ),
    max_size=8,
)


@given(traffic, st.floats(0, 0.05), st.lists(st.floats(0, 0.05), min_size=4, max_size=4), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_schedule_whose_messages_share_no_link_is_never_faster_in_company(others, begin, start, noisy):
    weather = None
    if noisy:
        course = ornstein_uhlenbeck(0.8, 0.05, 0.01, mean=BANDWIDTH, seed=3, name=("test",))
        weather = {(rank, "switch"): Weather(bandwidth=course) for rank in (0, 2)}
    ring, second = collectives.allreduce_ring(4, 20_000), collectives.allgather_ring(5, 10_000)
    env = simpy.Environment()
    network = star(5, weather=weather, env=env)
    alone = network.time(ring, start, messages=True)

    def transfers(at, ends, nbytes):
        yield env.timeout(at)
        yield network.transfer(*ends, nbytes)

    for one in others:
        env.process(transfers(*one))
    network.run(second, begin)
    company = env.run(until=network.run(ring, start, messages=True))
    assert (company.rank_finish >= alone.rank_finish * (1 - 1e-9)).all()
    assert (company.messages.finish >= alone.messages.finish * (1 - 1e-9)).all()


def test_messages_that_meet_may_be_faster_in_company():
    """An anomaly of max-min sharing: company keeps two messages of a schedule from meeting on a link."""
    schedule, start = collectives.allgather_bruck(3, 8000), [0.0, 0.009, 0.0]
    env = simpy.Environment()
    network = star(3, env=env)

    def other():
        yield env.timeout(0.003)
        yield network.transfer(0, 1, 9000)

    env.process(other())
    assert network.time(schedule, start).finish == pytest.approx(0.035)
    assert env.run(until=network.run(schedule, start)).finish == pytest.approx(0.03)


# Jobs


@pytest.mark.parametrize("overlap", [None, Overlap(bucket=300.0)])
@pytest.mark.parametrize("policy", [Fixed(AG), Fixed(DENSE), Flexible([RING, AG], Monitor(every=0))])
def test_company_that_is_not_met_changes_nothing(policy, overlap):
    network = star(8, jitter=lambda draws, n: draws.exponential(1e-3, n))
    one = job_on(network, device="v100", overlap=overlap, update=1e-3, compute=Compute(0.01, spread=0.3))
    alone = run_policy(one, "p", policy, timeline=2)
    elsewhere = ColocatedJob(job_on(network, placement=[4, 5, 6, 7], iterations=3), DENSE)
    later = ColocatedJob(job_on(network), DENSE, start=1e6)
    beside = run_policy(one, "p", policy, timeline=2, colocated={"elsewhere": elsewhere, "later": later})
    for name in ("iterations", "workers", "messages", "spans"):
        pd.testing.assert_frame_equal(getattr(alone, name), getattr(beside, name), rtol=1e-9, atol=1e-12)
    assert [(share.job, share.workers, share.iterations, share.planned) for share in beside.job_shares] == [
        (MAIN, 4, 8, 8),
        ("elsewhere", 4, 3, 3),
        ("later", 4, 0, 8),
    ]
    assert [share.slowdown for share in beside.job_shares[:2]] == pytest.approx([1.0, 1.0])
    assert math.isnan(beside.job_shares[2].slowdown)


def test_two_equal_jobs_on_the_same_hosts_each_get_half_of_the_links():
    network = star(2)
    one, twin = (job_on(network, 2, density=[Ramp(1, 1.0, 1.0)]) for _ in range(2))
    result = run_policy(one, "p", Fixed(DENSE), colocated={"twin": ColocatedJob(twin, DENSE)})
    alone, shared = (0.01 + 2 * (LATENCY + share * 400 / BANDWIDTH) for share in (1, 2))
    assert result.iterations["iteration_s"].to_numpy() == pytest.approx(shared)
    for share in result.job_shares:
        assert (share.mean_iteration_s, share.alone_s) == pytest.approx((shared, alone))
        assert share.slowdown == pytest.approx(shared / alone)
    assert result.job_shares[0].iterations == 8


@given(st.integers(2, 4), st.floats(0, 0.1), st.sampled_from([AG, RING, DENSE]), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_a_job_is_never_faster_in_company(workers, start, exchange, shift):
    network = star(4)
    one = job_on(network, compute=Compute(0.005, spread=0.4))
    hosts = [(rank + shift) % 4 for rank in range(workers)]
    other = job_on(network, workers, 6, placement=hosts, compute=Compute(0.002, spread=0.4), seed=8)
    alone = run_policy(one, "p", Fixed(DENSE)).iterations
    result = run_policy(one, "p", Fixed(DENSE), colocated={"other": ColocatedJob(other, exchange, start)})
    ends = (result.iterations["start_s"] + result.iterations["iteration_s"]).to_numpy()
    assert (ends >= (alone["start_s"] + alone["iteration_s"]).to_numpy() * (1 - 1e-9)).all()
    assert result.job_shares[0].slowdown >= 1 - 1e-9
    assert len(result.workers) == 32


def test_others_run_until_the_job_is_done_and_again_for_every_policy():
    network = star(4)
    one, endless = job_on(network), ColocatedJob(job_on(network, iterations=10**6), DENSE)
    first, again = (run_policy(one, "p", Fixed(AG), colocated={"endless": endless}) for _ in range(2))
    assert 0 < first.job_shares[1].iterations < 100
    assert first.job_shares == again.job_shares
    assert first.iterations.equals(again.iterations)


def test_a_death_in_one_job_leaves_the_network_to_the_other():
    network = star(4)
    one = job_on(network, iterations=20)
    mortal = job_on(network, iterations=20, failures={2: 0.1})
    result = run_policy(one, "p", Fixed(DENSE), colocated={"mortal": ColocatedJob(mortal, DENSE)})
    (stop,) = result.interruptions
    assert (stop.job, stop.failed, stop.resumed) == ("mortal", {2: 0.1}, None)
    assert result.job_shares[1].iterations == stop.iteration < 20
    assert result.iterations["iteration_s"].iloc[-1] == pytest.approx(
        run_policy(one, "p", Fixed(DENSE)).iterations["iteration_s"].iloc[-1]
    )
    ended = run_policy(mortal, "p", Fixed(DENSE), colocated={"one": ColocatedJob(one, DENSE)})
    assert len(ended.iterations) == ended.interruptions[0].iteration == ended.job_shares[0].iterations
    assert ended.job_shares[1].iterations < 20


# In a scenario

SCENARIO = """
workers: 4
network: {topology: {star: {hosts: 8, latency: 1 ms, bandwidth: 100 Mbit/s}}, placement: [0, 2, 4, 6]}
job: {parameters: 3000, iterations: 6, density: 5 %, compute: {mean: 10 ms}}
exchanges: {AG: {scheme: topk}, dense: {scheme: dense}}
other_jobs:
  packed: {workers: 3, job: {parameters: 2000, iterations: 50, density: 1, compute: {mean: 1 ms}},
           exchange: {scheme: dense, algorithm: ring}}
  listed: {workers: 2, placement: [7, 0], start: 20 ms, exchange: {scheme: topk},
           job: {parameters: 2000, iterations: 2, density: 1 %, compute: {mean: 1 ms, spread: 10 %}}}
output: {timeline: 0, report: false}
"""


def test_the_table_of_jobs_is_written_and_shown_and_does_not_depend_on_processes(file, tmp_path):
    outs = [tmp_path / "a", tmp_path / "b"]
    for out, processes in zip(outs, ("1", "2"), strict=True):
        assert "Job AG, packed, 3, " in did("run", file, "--out", out, "--jobs", processes, "--wide").stdout
    assert contents(outs[0]) == contents(outs[1])
    summary = json.loads((outs[0] / "summary.json").read_text())
    shares = [one for policy in ("AG", "dense") for one in summary["policies"][policy]["shares"]]
    assert [one["job"] for one in shares] == [MAIN, "packed", "listed"] * 2
    assert all(one["slowdown"] is None or one["slowdown"] >= 1 - 1e-9 for one in shares)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("other_jobs.packed.workers=5", r"other_jobs\.packed\.workers: needs 5 free hosts, but of 8 only 3 are left"),
        ("other_jobs={'': {workers: 1, job: {parameters: 9, iterations: 1, density: 1}, exchange: {scheme: topk}}}",
         "other_jobs: must be a name of 1 to 80 characters, got ''"),
        ("other_jobs.packed.workers=1000000000", r"packed\.workers: must be <= 1e\+06"),
        ("other_jobs.packed.workers=1000000", r"packed\.workers: needs 1000000 free hosts"),
        ("other_jobs.listed.placement=[7]", r"other_jobs\.listed\.placement: must name a host for each of the 2"),
        ("other_jobs.listed.placement=[7, 8]", r"listed\.placement\[1\]: there is no host 8; allowed: 0 to 7"),
        ("other_jobs.packed.exchange.schem=topk", r"other_jobs\.packed\.exchange.*schem"),
        ("other_jobs.packed.exchange.scheme=topkk", r"other_jobs\.packed\.exchange\.scheme.*did you mean 'topk'"),
        ("other_jobs.packed.job.compute.slow={'3': 2.0}", r"other_jobs\.packed\.job\.compute\.slow.*allowed: 0 to 2"),
        ("other_jobs.packed.job.model=resnet", r"other_jobs\.packed\.job"),
        ("other_jobs.packed.job.device=v1000", r"other_jobs\.packed\.job\.device"),
        ("other_jobs.packed.job.scale=0.5", r"other_jobs\.packed\.job\.scale"),
        ("other_jobs.packed.job.deaths=[{worker: 3, at: 0 s}]", r"packed\.job\.deaths.*there is no worker 3"),
        ("other_jobs.packed.job.barrier=false", r"other_jobs\.packed\.job\.barrier: must be true beside other_jobs"),
        ("job.barrier=false", r"job\.barrier: must be true beside other_jobs"),
        ("policies={c: {oracle: }}", r"policies\.c\.oracle: tries several exchanges.*other_jobs"),
        ("network.engine=vectorised", "knows neither deaths nor company"),
        ("network.weather=[{links: all, profile: {name: C1}}]", "give epoch as a time"),
        ("other_jobs={job: {workers: 1, job: {parameters: 9, iterations: 1, density: 1}, exchange: {scheme: topk}}}",
         "take another name"),
    ],
)  # fmt: skip
def test_wrong_other_jobs_are_refused_with_their_place(file, assignment, message):
    with pytest.raises(InputError, match=message):
        load(file, [assignment]).build()


def test_one_exchange_is_nothing_to_try_and_may_be_called_oracle(file):
    load(file, ["policies={c: {oracle: {among: [AG]}}}"]).build()
