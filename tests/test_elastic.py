"""Workers that come and go, and exchanges that do not wait for all: mass, times, resumption, refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import did
from jobs import BANDWIDTH, DENSE, LATENCY, SPLIT, Source, check_spans, job_on, star
from simnet.base.errors import InputError
from simnet.cost_models.costs import ring_allreduce
from simnet.policies import Candidate, Fixed
from simnet.scenario import load
from simnet.strategies import SGD, Averaging, Replicas, create
from simnet.training.job.checkpoint import Checkpoint
from simnet.training.job.job import Absence, Churn, Compute, LocalSteps, WorkerPresence, deadline_at
from simnet.training.job.local_steps import start_strategy
from simnet.training.job.running import run_policy

WORKERS, ENTRIES = 5, 40
TOPK = Candidate("topk", "topk")
COMPUTE = 0.01
PARALLEL = LocalSteps("dataparallel", {"inner": SGD(0.1)}, 1, math.inf)
MODEL = 4.0 * 200 / BANDWIDTH + LATENCY
"""How long the parameters of a worker take to another one of an idle star [s]."""


def ring_seconds(workers, entries=200):
    return float(ring_allreduce(LATENCY, 1 / BANDWIDTH, 4.0 * entries, workers))


def job(strategy=PARALLEL, *, compute=None, iterations=6, workers=4, **changes):
    return job_on(star(workers), workers, iterations, compute=compute or Compute(COMPUTE), strategy=strategy, **changes)


def ran(one, candidate=DENSE):
    return run_policy(one, "p", Fixed(candidate))


def crews(result):
    """Return who took part in each iteration on time."""
    return [set(part["worker"]) for _, part in result.workers.groupby("iteration")]


# What is averaged.


@pytest.mark.parametrize("scheme", ["topk", "dgc", "oktopk", "demo"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_mass_balances_whoever_comes_goes_or_is_late(scheme, data):
    options = {"mean_over": "workers"} if scheme == "demo" else {}
    options |= {"momentum": 0.0} if scheme == "dgc" else {}
    replicas = Replicas(WORKERS, np.zeros(ENTRIES, np.float32), seed=3)
    strategy = create("dataparallel", replicas, inner=SGD(0.1), averaging=Averaging(scheme, 0.1, options))
    (model,) = strategy.schemes
    assert model.traits.conserves or model.traits.transforms
    draws = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    for _ in range(data.draw(st.integers(1, 4))):
        crew = np.array(sorted(data.draw(st.sets(st.integers(0, WORKERS - 1), min_size=1))))
        late = np.array(sorted(data.draw(st.sets(st.sampled_from(crew.tolist()), max_size=len(crew) - 1))), dtype=int)
        gradients = draws.standard_normal((len(crew), ENTRIES)).astype(np.float32)
        before = model.residual.astype(np.float64)
        decay, gain = model.traits.weights
        on_time = np.isin(crew, late, invert=True)
        (sync,) = strategy.step(gradients, crew, late).syncs
        after = model.residual.astype(np.float64)
        for worker in range(WORKERS):
            if worker not in crew:
                np.testing.assert_array_equal(after[worker], before[worker])
        for worker, row in zip(crew[~on_time], gradients[~on_time], strict=True):
            np.testing.assert_allclose(after[worker], decay * before[worker] + gain * row, atol=1e-6)
        held = (decay * before[crew[on_time]] + gain * gradients[on_time]).sum(axis=0)
        out = on_time.sum() * sync.exchange.update + after[crew[on_time]].sum(axis=0)
        if not model.traits.transforms:
            np.testing.assert_allclose(out, held, atol=1e-6 * max(1.0, float(np.abs(held).max())) * WORKERS)
        assert sync.schedule.n_ranks == on_time.sum()


def test_what_comes_too_late_is_lost_without_error_feedback_and_said():
    replicas = Replicas(3, np.zeros(4, np.float32))
    strategy = create("diloco", replicas, inner=SGD(1.0), outer=SGD(1.0), period=1)
    gradients = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = strategy.step(gradients, late=np.array([2]))
    assert found.stats["late_lost"] == pytest.approx(np.linalg.norm(gradients[2]))
    # The others' mean is what everybody goes on from, who is late as well.
    np.testing.assert_allclose(strategy.global_parameters, -gradients[:2].mean(axis=0))
    np.testing.assert_array_equal(strategy.local, np.tile(strategy.global_parameters, (3, 1)))
    with pytest.raises(ValueError, match="all workers are late"):
        strategy.step(gradients, late=np.arange(3))
    eager = create("eager", replicas, inner=SGD(1.0), outer=SGD(1.0), period=1)
    with pytest.raises(ValueError, match="in eager no worker may be late"):
        eager.step(gradients, late=np.array([2]))


@pytest.mark.parametrize("name", ["diloco", "localsgd", "streaming"])
def test_who_comes_back_goes_on_from_where_the_others_are(name):
    rest = {"fragments": 1} if name == "streaming" else {}
    rest |= {} if name == "localsgd" else {"outer": SGD(0.7, momentum=0.9, nesterov=True)}
    strategy = create(name, Replicas(3, np.ones(4, np.float32)), inner=SGD(0.1, momentum=0.5), period=2, **rest)
    draws = np.random.default_rng(1)
    for _ in range(4):
        strategy.step(draws.standard_normal((2, 4)).astype(np.float32), [0, 2])
    np.testing.assert_array_equal(strategy.local[1], np.ones(4))
    strategy.forget(np.array([1]))
    strategy.rejoin(np.array([1]), np.array([0, 2]))
    np.testing.assert_allclose(strategy.local[1], strategy.local[0], rtol=1e-6)
    assert not strategy.save()["inner.momentum"][1].any()
    assert strategy.save()["inner.momentum"][0].any()


# Times.


def test_an_iteration_is_that_of_those_who_are_there_and_who_comes_back_has_the_parameters_first():
    away = [Absence(3, 0.0, 0.03, True), Absence(1, 0.02, math.inf, True)]
    found = ran(job(absences=away))
    seconds = found.iterations["iteration_s"].to_numpy()
    assert seconds[0] == pytest.approx(COMPUTE + ring_seconds(3), rel=1e-9)
    begins = np.concatenate([[0.0], np.cumsum(seconds)])[:-1]
    for number, crew in enumerate(crews(found)):
        assert crew == {one for one in range(4) if one in (0, 2) or (one == 3 and begins[number] >= 0.03 + MODEL)
                        or (one == 1 and begins[number] < 0.02)}  # fmt: skip
    # Nobody waits for who comes back.
    counts = np.array([len(crew) for crew in crews(found)])
    assert seconds == pytest.approx([COMPUTE + ring_seconds(count) for count in counts], rel=1e-9)


def test_an_exchange_waits_until_the_deadline_for_who_is_slow():
    slow = Compute(COMPUTE, slow={2: 3.0})
    waited = ran(job(compute=slow))
    assert waited.iterations["iteration_s"].to_numpy() == pytest.approx(3 * COMPUTE + ring_seconds(4), rel=1e-9)
    found = ran(job(compute=slow, deadline=0.005))
    assert crews(found)[0] == {0, 1, 3}
    begins, seconds = (found.iterations[name].to_numpy() for name in ("start_s", "iteration_s"))
    # Nobody knows who is late before the deadline, so that the others wait until then; for who computes still, they do
    # not. It comes back, to be late again, with the first iteration that begins once it has the parameters as well.
    back = next(number for number, begin in enumerate(begins) if begin >= 3 * COMPUTE + MODEL)
    assert begins[1] < 3 * COMPUTE
    assert 1 < back < 6
    waits = [0.005 * (number in (0, back)) for number in range(back + 1)]
    assert found.iterations["wait_s"].to_numpy()[: back + 1] == pytest.approx(waits, abs=1e-12)
    assert found.iterations[SPLIT].sum(axis=1).to_numpy() == pytest.approx(seconds, rel=1e-12)
    assert seconds[: back + 1] - waits == pytest.approx(COMPUTE + ring_seconds(3), rel=1e-9)
    assert all(crew == {0, 1, 3} for crew in crews(found))
    check_spans(run_policy(job(compute=slow, deadline=0.005), "p", Fixed(DENSE), timeline=6))
    generous = ran(job(compute=slow, deadline=2.5 * COMPUTE))
    assert generous.iterations["iteration_s"].to_numpy() == pytest.approx(waited.iterations["iteration_s"].to_numpy())


def test_who_leaves_without_notice_is_missed_after_the_patience_and_the_others_exchange_again():
    at = COMPUTE + ring_seconds(4) / 2
    found = ran(job(absences=[Absence(2, at, 0.3, False)], patience=0.25))
    seconds = found.iterations["iteration_s"].to_numpy()
    (stop,) = found.interruptions
    assert set(stop.failed) == {2}
    assert seconds[0] == pytest.approx(stop.stopped + 0.25 + ring_seconds(3), rel=1e-9)
    assert at <= stop.stopped < COMPUTE + ring_seconds(4)
    assert crews(found)[0] == {0, 1, 3}
    assert crews(found)[-1] == {0, 1, 2, 3}
    # The exchange that was interrupted leaves no trace: the rest is as if it had not been there from the start.
    alike = ran(job(absences=[Absence(2, 0.0, 0.3, True)], iterations=1), TOPK).iterations
    stopped = ran(job(absences=[Absence(2, COMPUTE + 1e-4, 0.3, False)], patience=0.25, iterations=1), TOPK)
    assert len(stopped.interruptions) == 1
    assert not alike["gain"].isna().any()
    for name in ("gain", "actual_density", "global_error"):
        np.testing.assert_array_equal(alike[name], stopped.iterations[name])


def test_who_was_late_comes_back_though_parameters_take_longer_than_the_deadline():
    # Worker 2 is slow in one iteration of seven.
    class Once(Compute):
        def seconds(self, seed, iteration, workers):
            found = np.full(workers, self.mean)
            found[2] *= 2.0 if iteration % 7 == 1 else 1.0
            return found

    assert MODEL > 1e-3
    found = ran(job(compute=Once(COMPUTE), deadline=1e-3, iterations=21))
    missed = [number for number, crew in enumerate(crews(found)) if 2 not in crew]
    assert missed[:2] == [1, 2]
    assert 6 <= len(missed) <= 7
    assert 2 in crews(found)[-1]


@pytest.mark.parametrize("notice", [True, False])
@pytest.mark.parametrize("back", [math.inf, 10 * COMPUTE + MODEL / 2 - 6 * (COMPUTE + ring_seconds(2))])
def test_who_is_late_has_to_compute_its_part_though_all_others_leave(notice, back):
    # Worker 2 takes ten times as long at first, and the others are gone, with this exchange or while it is under way.
    class First(Compute):
        def seconds(self, seed, iteration, workers):
            found = np.full(workers, self.mean)
            found[2] *= 1.0 if iteration else 10.0
            return found

    leaves = COMPUTE + (1e-4 if notice else 0.005 + ring_seconds(3) + 1e-4)
    away = [Absence(one, leaves, back if one else math.inf, notice) for one in (0, 1, 3)]
    found = ran(job(compute=First(COMPUTE), deadline=0.005, absences=away, patience=0.02, iterations=12))
    assert crews(found)[0] == {0, 1, 3}
    begins = found.iterations["start_s"].to_numpy()
    alone = next(number for number, crew in enumerate(crews(found)) if 2 in crew)
    # Nobody has parameters for it but itself, or it gets them from those that came back before it was done.
    assert begins[alone] >= 10 * COMPUTE - 1e-12
    if back == math.inf:
        assert begins[alone] == pytest.approx(10 * COMPUTE, rel=1e-12)
    else:
        # With notice the seventh iteration of the two begins while parameters are on their way.
        assert begins[alone - 1] < 10 * COMPUTE + MODEL <= begins[alone]
        assert not notice or begins[alone - 1] > 10 * COMPUTE


def test_absences_at_random_have_the_means_they_are_given_and_do_not_depend_on_who_asks():
    one = job(churn=Churn(10.0, 2.0))
    elastic, everybody = WorkerPresence(one), np.arange(4)
    moments = np.arange(0, 20_000, 1.0)
    there = np.array([elastic.present(everybody, now) for now in moments])
    # 1,700 spells of each worker; a standard error is some 0.5 %.
    assert there.mean(axis=0) == pytest.approx(10 / 12, abs=0.02)
    again = WorkerPresence(one)
    assert [again.present(everybody, now).tolist() for now in moments[::7]] == there[::7].tolist()
    assert again.returns(everybody, 19_000.0) > 19_000.0
    assert WorkerPresence(job(churn=Churn(10.0, 2.0, notice=False), patience=1.0)).leaves(everybody, 5.0).keys() == {
        0,
        1,
        2,
        3,
    }


@pytest.mark.parametrize("name", ["dataparallel", "diloco", "streaming"])
def test_jobs_with_workers_that_come_and_go_resume_to_the_same(name, tmp_path):
    options = {"dataparallel": {"inner": SGD(0.1)}, "diloco": {"period": 3}, "streaming": {"period": 6, "fragments": 2}}
    own = start_strategy(Source(4), LocalSteps(name, options[name], 1, math.inf), TOPK)
    one = job(
        LocalSteps(name, options[name], own.steps, math.inf),
        compute=Compute(COMPUTE, spread=0.5), iterations=12, churn=Churn(0.1, 0.05, notice=False), patience=0.01,
        deadline=0.01,
    )  # fmt: skip
    whole = ran(one, TOPK)

    class StopError(Exception):
        pass

    def stop(done):
        if done == 5:
            raise StopError

    path = tmp_path / "kept"
    with pytest.raises(StopError):
        run_policy(one, "p", Fixed(TOPK), checkpoint=Checkpoint(path, "job", every=0.0), progress=stop)
    again = run_policy(one, "p", Fixed(TOPK), checkpoint=Checkpoint(path, "job", every=0.0))
    assert again.iterations.equals(whole.iterations)
    assert again.workers.equals(whole.workers)
    assert len({len(crew) for crew in crews(whole)}) > 1


# Scenarios.

FIELDS = ["job.iterations=3", "job.scale=200000", "job.strategy.period=5", "exchanges={topk: {scheme: topk}}"]


def test_scenarios_say_who_is_away_and_how_long_the_others_wait(tmp_path):
    set_ = [*FIELDS, "job.absences=[{worker: 2, leaves: 1 s, returns: 2 s}]", "job.deadline={quantile: 90%}"]
    one = load("local_steps_wan", set_).build().job
    assert one.absences[0] == Absence(2, 1.0, 2.0, True)
    assert one.deadline == deadline_at(replace(one, deadline=None), 0.9)
    fields = [word for field in set_ for word in ("--set", field)]
    shown = did("run", "local_steps_wan", *fields, "--wide", "--out", tmp_path / "run").stdout
    assert "after the first, not for all" in " ".join(shown.split())
    churn = load("local_steps_wan", [*FIELDS, "job.churn={stay: 1 h, away: 5 min}"]).build().job
    assert churn.churn == Churn(3600.0, 300.0, True)


@pytest.mark.parametrize(("fields", "said"), [
    (["job.absences=[{worker: 4, leaves: 1 s}]"], "there is no worker 4; allowed: 0 to 3"),
    (["job.absences=[{worker: 1, leaves: 2 s, returns: 1 s}]"], "returns must be later than leaves"),
    (["job.absences=[{worker: 1, leaves: 2 s, notice: false}]"], "must be {continue: {after: ...}}"),
    (["job.deadline={after: 1 s, quantile: 50%}"], "deadline"),
    (["job.deadline={after: 1 s}", "job.barrier=false"], "takes deadline with barrier: true alone"),
    (["job.churn={stay: 1 us, away: 1 us}"], "job.churn.stay: must be >= 0.001"),
    (["job.prices={currency: USD}"], "needs a price: device_hour or gigabyte"),
    (["job.deadline={quantile: 50%}", "job.compute={spread: 0}"], "is 0 s, as workers compute alike; give after"),
    (["job.deadline={after: 1 s}", "job.strategy={name: eager, period: 5}"], "needs all workers that sent it"),
    (["job.churn={stay: 1 h, away: 5 min}", "job.absences=[{worker: 1, leaves: 2 s}]"], "either absences or churn"),
    (["job.churn={stay: 1 h, away: 5 min}", "job.deaths=[{worker: 1, at: 2 s}]"], "either deaths or churn"),
])  # fmt: skip
def test_scenarios_that_are_refused(fields, said):
    with pytest.raises(InputError, match="(?s)" + said.replace("{", r"\{").replace("}", r"\}")):
        load("local_steps_wan", [*FIELDS, *fields]).build()
