"""Ranks and workers that die: what stops when, who waits for whom, and how the others go on."""

import json
import math

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import did
from jobs import AG, BANDWIDTH, DENSE, LATENCY, RING, Source, check_spans, check_split, job_on, star
from simnet import collectives
from simnet.base.errors import InputError, SimnetError, StalledError, Waits
from simnet.network import OnOffFlow, Stack
from simnet.network.weather import Weather, markov, steps
from simnet.policies import Fixed, Flexible, Monitor, OneStepOracle
from simnet.scenario import load
from simnet.schedule import Round, Schedule
from simnet.training.job.exchange import SparsifierSet
from simnet.training.job.job import Compute, Overlap
from simnet.training.job.running import run_policy


def stall(network, *arguments, **options):
    with pytest.raises(StalledError) as caught:
        network.time(*arguments, **options)
    return caught.value


# Ranks on a network


def test_who_waits_in_which_round_for_whom_and_since_when():
    # Rank 1 takes 11 ms to hear from rank 0 in round 0, then sends on to rank 2, which dies before.
    chain = Schedule(4, [Round([0], [1], [10_000], phase="first"), Round([1, 2], [2, 3], [10_000, 1], phase="second")])
    error = stall(star(4), chain, deaths={2: 0.008})
    assert error.at == pytest.approx(0.011)
    assert error.failed == {2: 0.008}
    assert error.stuck == [Waits(1, 1, "second", (2,))]
    assert str(error) == (
        "the exchange stopped for ever at 0.011 s, after rank 2 died at 0.008 s:\n"
        "  rank 1 waits in round 1 (second) for 1 message: to rank 2, which died at 0.008 s"
    )
    # What has been sent vanishes, but leaves its sender's link.
    error = stall(star(4), chain, deaths={2: 0.015})
    assert (error.at, error.stuck) == (pytest.approx(0.021), [])
    error = stall(star(4), chain, deaths={1: 0.005})
    # Rank 0 sends its message to the end, and rank 2 has nothing to do before it sends to rank 3, which arrives.
    assert error.at == pytest.approx(0.01)
    assert [one.rank for one in error.stuck] == [2]
    assert error.stuck[0].peers == (1,)
    assert "from rank 1, which died at 0.005 s" in error.waiting[0]


def test_who_only_sends_goes_on_beside_a_message_to_the_dead_where_its_stack_posts_ahead():
    to_both = Schedule(3, [Round([0], [1], 1e3, phase="one call"), Round([0], [2], 1e3, phase="one call")])
    for ahead in (True, False):
        error = stall(star(3, stack=Stack("acknowledged", posts_ahead=ahead)), to_both, deaths={1: 0.0})
        assert (2 in {one.rank for one in error.stuck}) is not ahead
        waits = (
            "in round 1 (one call) for 1 message of rounds 0 to 1" if ahead else "in round 0 (one call) for 1 message"
        )
        assert error.waiting[0] == f"rank 0 waits {waits}: to rank 1, which died at 0 s"
        assert error.stuck[0].peers == (1,)


def test_those_who_wait_for_others_who_wait_are_told_apart():
    error = stall(star(4), collectives.allreduce_ring(4, 4e4), start=0.5, deaths={3: 0.2})
    assert error.failed == {3: 0.2}
    assert [one.rank for one in error.stuck] == [0, 1, 2]
    by_rank = {one.rank: one for one in error.stuck}
    assert 3 in by_rank[0].peers
    assert 3 in by_rank[2].peers
    assert by_rank[1].peers == (0,)
    assert "from rank 0" in error.waiting[1]
    assert "died" not in error.waiting[1]


def test_a_dead_sender_leaves_its_link_to_others():
    env = simpy.Environment()
    network = star(3, env=env)
    finished, failed = [], []

    def transfer():
        finished.append((yield network.transfer(1, 2, 10_000)))

    def job():
        try:
            yield network.run(Schedule(3, [Round([0], [2], [10_000])]), deaths={0: 0.005})
        except StalledError as error:
            failed.append((env.now, error))

    env.process(transfer())
    env.process(job())
    env.run()
    # Half of the link for 4 ms, then all of it.
    assert finished == [pytest.approx(LATENCY + 0.004 + (10_000 - 0.004 * BANDWIDTH / 2) / BANDWIDTH)]
    ((at, error),) = failed
    assert at == error.at == pytest.approx(0.005)


def test_a_message_in_its_latency_vanishes_too():
    env = simpy.Environment()
    network = star(2, env=env)
    event = network.run(Schedule(2, [Round([0], [1], [10_000])]), deaths={0: LATENCY / 2})
    with pytest.raises(StalledError) as caught:
        env.run(until=event)
    assert caught.value.at == env.now == LATENCY / 2
    env.run()
    assert env.now == pytest.approx(LATENCY / 2)


@pytest.mark.parametrize("on_outage", ["wait", "reroute"])
def test_a_rank_whose_only_send_cannot_leave_waits_for_its_own_link(on_outage):
    down = {(0, "switch"): Weather(steps([0.0], [0.0]))}
    error = stall(star(2, weather=down, on_outage=on_outage), Schedule(2, [Round([0], [1], [10])]))
    assert error.waiting == [
        "rank 0 waits in round 0 for 1 message: to rank 1 (no capacity on 0->switch)",
        "rank 1 waits in round 0 for 1 message: from rank 0 (no capacity on 0->switch)",
    ]


def test_a_standstill_is_noticed_while_others_go_on_for_ever():
    env = simpy.Environment()
    on_and_off = markov([1.0, 0.0], [0.01, 0.01], seed=1, name=("flow",))
    network = star(4, env=env, background=[OnOffFlow(3, 0, on_and_off)])

    def traffic():
        while True:
            yield network.transfer(2, 3, 1000)

    def beside():
        while True:
            yield network.run(collectives.allreduce_ring(4, 1000))

    env.process(traffic())
    env.process(beside())
    with pytest.raises(StalledError) as caught:
        env.run(until=network.run(collectives.allreduce_ring(4, 1e5), deaths={1: 0.05}))
    assert 0.05 <= caught.value.at == pytest.approx(env.now)
    assert env.now < 0.5


def test_all_may_die_and_the_last_one_with_nobody_waiting():
    error = stall(star(2), collectives.allreduce_ring(2, 1e5), deaths={0: 0.01, 1: 0.02})
    assert error.at == pytest.approx(0.01)
    assert error.failed == {0: 0.01}
    error = stall(star(2), collectives.allreduce_ring(2, 1e5), deaths={0: 0.0, 1: 0.0})
    assert error.failed == {0: 0.0, 1: 0.0}
    assert error.waiting == error.stuck == []
    lonely = Schedule(1, [Round([], [], [], compute=1.0)])
    assert stall(star(1), lonely, deaths={0: 0.5}).at == 0.5


def test_deaths_that_make_no_sense_are_refused():
    schedule = collectives.allreduce_ring(2, 1e5)
    for deaths, message in (
        ({2: 1.0}, "ranks 0..1, got 2"),
        ({-1: 1.0}, "ranks 0..1"),
        ({0: -1.0}, "finite time >= 0"),
        ({0: math.inf}, "finite time >= 0"),
        ({0: math.nan}, "finite time >= 0"),
        ({0.5: 1.0}, "ranks 0..1"),
        ({0: "1 s"}, "finite time >= 0, got '1 s' for rank 0"),
        ({0: None}, "finite time >= 0, got None"),
        ([(0, 1.0)], "must be a mapping from ranks to seconds"),
    ):
        with pytest.raises(ValueError, match=message):
            star(2).time(schedule, deaths=deaths)
    with pytest.raises(SimnetError, match=r"max-plus clock .* cannot time this: .* or ranks fail"):
        star(2, engine="vectorised").time(schedule, deaths={0: 1.0})


@st.composite
def schedules(draw):
    ranks = draw(st.integers(2, 6))
    rounds = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 6))
        pair = st.lists(st.integers(0, ranks - 1), min_size=2, max_size=2, unique=True)
        ends = draw(st.lists(pair, min_size=count, max_size=count))
        sizes = draw(st.lists(st.sampled_from([0, 1, 1000, 50_000]), min_size=count, max_size=count))
        compute = draw(st.sampled_from([0.0, 0.004]))
        rounds.append(Round([src for src, _ in ends], [dst for _, dst in ends], sizes, compute=compute))
    return Schedule(ranks, rounds)


@given(schedules(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_schedule_fails_exactly_if_somebody_dies_before_he_is_done(schedule, data):
    network = star(schedule.n_ranks, engine="fluid")
    plain = network.time(schedule, messages=True)
    rank = data.draw(st.integers(0, schedule.n_ranks - 1))
    death = data.draw(st.sampled_from([0.0, 0.5, 0.999, 1.001, 2.0])) * (plain.finish + 1e-6)
    done = plain.rank_finish[rank]
    if death > done * (1 + 1e-9):
        timing = network.time(schedule, deaths={rank: death}, messages=True)
        np.testing.assert_array_equal(timing.rank_finish, plain.rank_finish)
        np.testing.assert_array_equal(timing.messages.finish, plain.messages.finish)
    elif death <= done:
        error = stall(network, schedule, deaths={rank: death})
        assert error.failed == {rank: death}
        assert error.at >= death
        waiting = {one.rank for one in error.stuck}
        assert rank not in waiting
        # Who waits had not been done when the other died.
        assert all(plain.rank_finish[one] >= death * (1 - 1e-9) for one in waiting)
        # Everybody waits for the dead, or for somebody who waits.
        assert all(one.peers and set(one.peers) <= waiting | {rank} for one in error.stuck)


@given(schedules(), st.data())
@settings(max_examples=100, deadline=None)
def test_those_wait_who_need_the_dead_or_somebody_who_waits(schedule, data):
    """Against a walk through the rounds: what is not delivered when one dies never is, nor sent to it later."""
    ranks = schedule.n_ranks
    network = star(ranks, engine="fluid")
    plain = network.time(schedule, messages=True)
    dead = data.draw(st.integers(0, ranks - 1))
    death = data.draw(st.floats(0, 1)) * float(plain.rank_finish[dead])
    stuck = set()
    messages = plain.messages
    for index in range(len(schedule.rounds)):
        new = set()
        for position in np.flatnonzero(messages.round == index):
            src, dst = int(messages.src[position]), int(messages.dst[position])
            if dead in (src, dst) and messages.finish[position] >= death:
                new.add(dst)
                # What is sent before leaves its host.
                if src == dead or messages.start[position] >= death:
                    new.add(src)
            elif src in stuck:
                new.add(dst)
        stuck |= new
    assert {one.rank for one in stall(network, schedule, deaths={dead: death}).stuck} == stuck - {dead}


# Workers of a job


def job(workers=4, iterations=8, **changes):
    return job_on(star(workers), workers, iterations, **changes)


def ring_seconds(workers, nbytes=800.0):
    return 2 * (workers - 1) * (LATENCY + nbytes / workers / BANDWIDTH)


def test_a_job_that_stops_has_done_what_it_would_have_done_without_the_death():
    options = {"compute": Compute(0.01, spread=0.3), "device": "v100", "update": 1e-3}
    plain = run_policy(job(**options), "p", Fixed(AG))
    death = float(plain.iterations["start_s"][5]) + 0.004
    result = run_policy(job(**options, failures={2: death}), "p", Fixed(AG))
    assert result.iterations.equals(plain.iterations.head(5))
    assert result.workers.equals(plain.workers.head(20))
    (stop,) = result.interruptions
    assert (stop.iteration, stop.resumed, stop.left, stop.failed) == (5, None, 3, {2: death})
    assert {one.worker for one in stop.blocked} == {0, 1, 3}
    assert stop.blocked[0].workers[0] == 2
    assert stop.stopped > death


def test_a_death_after_the_end_is_no_matter_nor_is_one_between_done_and_the_end_of_the_iteration():
    plain = run_policy(job(update=0.5), "p", Fixed(DENSE)).iterations
    end = float(plain["start_s"].iloc[-1] + plain["iteration_s"].iloc[-1])
    for death in (end + 1, end - 0.2):
        result = run_policy(job(update=0.5, failures={1: death}), "p", Fixed(DENSE))
        assert result.iterations.equals(plain)
        assert not result.interruptions
    early = float(plain["start_s"][1]) - 0.2
    (stop,) = run_policy(job(update=0.5, failures={1: early}), "p", Fixed(DENSE)).interruptions
    assert stop.iteration == 1


def test_who_dies_while_it_computes_never_enters_the_exchange():
    one = job(2, failures={1: 0.005})
    result = run_policy(one, "p", Fixed(DENSE))
    assert len(result.iterations) == 0
    (stop,) = result.interruptions
    assert stop.stopped == pytest.approx(0.01)
    assert [(one.worker, one.round, one.workers) for one in stop.blocked] == [(0, 0, (1,))]


@pytest.mark.parametrize("patience", [0.0, 0.7])
def test_the_others_notice_repeat_the_exchange_and_go_on(patience):
    whole, fewer = 0.01 + ring_seconds(4), 0.01 + ring_seconds(3)
    death = 2 * whole + 0.005
    result = run_policy(job(failures={1: death}, patience=patience), "p", Fixed(DENSE))
    took = result.iterations["iteration_s"].to_numpy()
    (stop,) = result.interruptions
    assert stop.resumed == stop.stopped + patience
    # The ring goes on for two more rounds at most, until nobody has anything of its predecessor.
    assert 0.01 <= stop.stopped - 2 * whole <= 0.01 + 2 * ring_seconds(4) / 6 + 1e-9
    again = stop.resumed - 2 * whole + ring_seconds(3)
    assert took == pytest.approx([whole, whole, again, *[fewer] * 5])
    assert result.workers.groupby("iteration")["worker"].agg(tuple).tolist() == [(0, 1, 2, 3)] * 2 + [(0, 2, 3)] * 6
    assert result.workers.groupby("iteration")["bytes_sent_B"].sum().tolist() == pytest.approx(
        [6 * 800.0] * 2 + [4 * 800.0] * 6
    )


@pytest.mark.parametrize("overlap", [None, Overlap(bucket=300.0)])
@pytest.mark.parametrize("candidate", [AG, RING, DENSE])
def test_the_split_still_adds_up_and_spans_tell_the_same(candidate, overlap):
    one = job(
        5,
        compute=Compute(0.01, spread=0.5),
        device="v100",
        update=1e-3,
        overlap=overlap,
        failures={4: 0.03, 0: 0.05, 2: 2.0},
        patience=0.3,
    )
    result = run_policy(one, "p", Fixed(candidate), timeline=8)
    assert len(result.iterations) == 8
    assert 0 < len(result.interruptions) <= 3
    check_split(result)
    if overlap is None:
        check_spans(result)
    last = result.messages[result.messages["iteration"] == 7]
    assert set(last["src"]) | set(last["dst"]) <= set(result.workers.loc[result.workers["iteration"] == 7, "worker"])


@pytest.mark.parametrize(
    "policy", [Fixed(AG), Fixed(RING), Flexible([RING, AG], Monitor(every=0)), OneStepOracle([AG, RING])]
)
def test_survivors_keep_their_residuals_and_nothing_of_theirs_is_lost(policy, monkeypatch):
    original = SparsifierSet.step
    source, crews = Source(4), []
    residual = {worker: np.zeros(source.parameters) for worker in range(4)}

    def spying(self, where, shortlist):
        step = yield from original(self, where, shortlist)
        if not isinstance(step.result, StalledError):
            crew = where.active.tolist()
            entered = sum(source.gradients(where.number)[worker].astype(float) + residual[worker] for worker in crew)
            kept = self._in_force[0].residual
            left = len(crew) * step.exchanges[0].update.astype(float) + kept.sum(axis=0, dtype=float)
            np.testing.assert_allclose(left, entered, atol=1e-4)
            residual.update(zip(crew, kept.astype(float), strict=True))
            crews.append(crew)
        return step

    monkeypatch.setattr(SparsifierSet, "step", spying)
    result = run_policy(job(failures={1: 0.04, 3: 0.09}, patience=0.01), "p", policy)
    assert len(result.iterations) == 8
    assert len(result.interruptions) == 2
    assert crews[0] == [0, 1, 2, 3]
    assert crews[-1] == [0, 2]


def test_one_may_be_left_and_when_all_have_died_the_job_ends():
    result = run_policy(job(3, failures={0: 0.02, 2: 0.02}, patience=0.1), "p", Fixed(AG))
    assert len(result.iterations) == 8
    assert set(result.workers.loc[result.workers["iteration"] == 7, "worker"]) == {1}
    assert result.iterations["iteration_s"].iloc[-1] == pytest.approx(0.01)
    result = run_policy(job(3, failures={0: 0.02, 1: 0.145, 2: 0.02}, patience=0.1), "p", Fixed(AG))
    assert [stop.left for stop in result.interruptions] == [1, 0]
    assert result.interruptions[-1].resumed is None
    assert result.interruptions[-1].blocked == ()
    assert 0 < len(result.iterations) < 8
    result = run_policy(job(3, failures=dict.fromkeys(range(3), 0.0), patience=0.1), "p", Fixed(AG))
    assert (len(result.iterations), len(result.interruptions), result.interruptions[0].left) == (0, 1, 0)
    assert result.interruptions[0].stopped == 0.0
    result = run_policy(job(3, failures={0: 0.001, 1: 0.003, 2: 0.002}), "p", Fixed(AG))
    assert result.interruptions[0].stopped == 0.003


def test_who_dies_while_the_others_wait_is_missed_together_with_the_first():
    result = run_policy(job(5, failures={0: 0.02, 1: 0.5}, patience=1.0), "p", Fixed(AG))
    (stop,) = result.interruptions
    assert stop.failed == {0: 0.02, 1: 0.5}
    assert stop.left == 3


# In a scenario

SCENARIO = """
workers: 4
network: {topology: {star: {latency: 1 ms, bandwidth: 100 Mbit/s}}}
job:
  parameters: 3000
  iterations: 10
  density: 5 %
  compute: {mean: 10 ms}
  deaths: [{worker: 3, at: 50 ms}]
exchanges: {AG: {scheme: topk}, dense: {scheme: dense}}
output: {timeline: 0, report: false}
"""


def test_a_run_with_deaths_says_so_and_is_no_error(file, tmp_path):
    out = tmp_path / "out"
    ran = did("run", file, "--out", out, "--wide")
    assert "No policy got to its end." in ran.stdout
    assert "worker 3 died at 50 ms" in ran.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert summary["winner"] is None
    one = summary["policies"]["AG"]
    assert one["ended"]
    assert one["stops"][0]["died"] == [{"worker": 3, "at_s": 0.05}]
    assert 3 in one["stops"][0]["waited"][0]["waits_for"]
    assert one["stops"][0]["iteration"] == one["iterations"]
    go_on = ("--set", "job.on_death={continue: {after: 30 s}}")
    assert "went on as 3 workers" in " ".join(
        did("run", file, "--out", out, "--force", "--wide", *go_on).stdout.split()
    )


def test_a_policy_that_ends_early_takes_no_part_in_the_contest(file, tmp_path):
    fields = ("--set", "job.deaths=[{worker: 1, at: 150 ms}]", "--set", "output.report=true")
    ran = did("run", file, "--out", tmp_path / "out", *fields)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    ended = {name for name, one in summary["policies"].items() if one["ended"]}
    assert ended == {"dense"}
    assert summary["winner"]["policy"] == "AG"
    assert summary["policies"]["dense"]["regret"] is None
    assert "dense after" in ran.stdout
    assert "worker 1 died at 150 ms" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("job.deaths=[{worker: 4, at: 1 s}]", "there is no worker 4; allowed: 0 to 3"),
        ("job.deaths=[{worker: 1, at: 1 s}, {worker: 1, at: 2 s}]", "worker 1 dies twice"),
        ("job.deaths=[{worker: 1, at: 5}]", "job.deaths"),
        ("job.on_death=go", "Allowed: stop, or a mapping with continue"),
        ("job.on_death={continue: {}}", "after: is missing"),
        ("job.on_death={carry_on: {after: 1 s}}", "no such field"),
        ("network.engine=vectorised", "knows neither deaths nor company"),
    ],
)  # fmt: skip
def test_wrong_deaths_are_refused_with_their_place(file, assignment, message):
    with pytest.raises(InputError, match=message):
        load(file, [assignment]).build()
