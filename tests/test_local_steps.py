"""Jobs under a training strategy: what an iteration takes is known in closed form where links are idle and even."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import AG, BANDWIDTH, DENSE, LATENCY, RING, Source, check_split, job_on, star
from simnet import topologies
from simnet.base.errors import InputError
from simnet.cost_models.costs import ring_allreduce
from simnet.cost_models.costs.devices import load_device
from simnet.network import Network
from simnet.policies import Candidate, Fixed, Flexible, Monitor, Ramp, closed_form
from simnet.scenario import load
from simnet.strategies import SGD, Averaging
from simnet.studies.exporting import exchange
from simnet.studies.iteration import predict_job, spread_of
from simnet.traces.live import train
from simnet.training.job.checkpoint import Checkpoint
from simnet.training.job.job import Compute, LocalSteps
from simnet.training.job.local_steps import RecordedRounds, StrategySet, start_strategy
from simnet.training.job.running import run_policy

COMPUTE, WHOLE = 0.01, float("inf")
SETTINGS = {
    "accumulation": {"inner": SGD(0.1), "period": 4},
    "localsgd": {"inner": SGD(0.1), "period": 5},
    "diloco": {"period": 3},
    "delayed": {"period": 3},
    "eager": {"period": 3},
    "streaming": {"period": 12, "fragments": 3, "delay": 2},
}


def strategy(name, bucket=WHOLE, candidate=DENSE, workers=4, **options):
    options = options or SETTINGS[name]
    steps = start_strategy(Source(workers), LocalSteps(name, options, 1, bucket), candidate).steps
    return LocalSteps(name, options, steps, bucket)


def under(name, candidate=DENSE, *, workers=4, iterations=6, compute=COMPUTE, bucket=WHOLE, options=None, **changes):
    own = strategy(name, bucket, candidate, workers, **(options or {}))
    job = job_on(star(workers), workers, iterations, compute=Compute(compute), strategy=own, **changes)
    result = run_policy(job, "p", Fixed(candidate))
    check_split(result)
    return result.iterations


def ring_seconds(entries, workers=4):
    return float(ring_allreduce(LATENCY, 1 / BANDWIDTH, 4.0 * entries, workers))


@pytest.mark.parametrize("workers", [2, 4, 7, 16])
@pytest.mark.parametrize("name", ["accumulation", "localsgd", "diloco"])
def test_an_iteration_is_its_inner_steps_and_one_exchange(name, workers):
    found = under(name, workers=workers)
    expected = SETTINGS[name]["period"] * COMPUTE + ring_seconds(200, workers)
    assert found["iteration_s"].to_numpy() == pytest.approx(expected, rel=1e-9)
    assert found["compute_s"].to_numpy() == pytest.approx(SETTINGS[name]["period"] * COMPUTE, rel=1e-9)
    # A ring sends 2 (P - 1) / P of the message from each worker.
    assert found["bytes_sent_B"].to_numpy() == pytest.approx(2 * (workers - 1) * 4 * 200, rel=1e-12)


@pytest.mark.parametrize("name", ["delayed", "eager"])
@pytest.mark.parametrize("compute", [1e-4, 0.05])
def test_an_exchange_that_may_be_a_round_late_goes_beside_the_next_round(name, compute):
    found = under(name, compute=compute)["iteration_s"].to_numpy()
    assert found[0] == pytest.approx(3 * compute, rel=1e-9)
    assert found[1:] == pytest.approx(max(3 * compute, ring_seconds(200)), rel=1e-9)


GYM = {"period": 3, "compat": "gym"}
ROUNDS = [("diloco", AG, {}), ("streaming", RING, {}), ("diloco", DENSE, GYM)]


@pytest.mark.parametrize(("name", "candidate", "options"), [*ROUNDS, *((name, DENSE, {}) for name in [*SETTINGS][1:])])
def test_recorded_rounds_take_as_long_as_the_rounds_themselves(name, candidate, options):
    own = strategy(name, candidate=candidate, **options)
    job = job_on(star(4), 4, 7, compute=Compute(COMPUTE, spread=0.1), strategy=own)
    recorded = RecordedRounds.of(job, [candidate])
    assert recorded is not None
    whole, again = (run_policy(job, "p", Fixed(candidate), sparsifiers=one).iterations for one in (None, recorded))
    times = ["start_s", "iteration_s", "compute_s", "select_s", "communicate_s", "wait_s", "bytes_sent_B"]
    pd.testing.assert_frame_equal(whole[times], again[times], check_exact=True)
    # Fragments have sizes of their own, and what is delayed or late does not begin in the first iteration.
    assert whole["bytes_sent_B"].nunique() == {"streaming": 3, "delayed": 2, "eager": 2}.get(name, 1 + bool(options))


def test_updates_of_inner_steps_take_their_time():
    found = under("diloco", update=0.002)["iteration_s"].to_numpy()
    assert found == pytest.approx(3 * (COMPUTE + 0.002) + ring_seconds(200), rel=1e-9)


def learning(**changes):
    options = {"samples": 400, "features": 12, "classes": 3}
    own = {"batch": 8, "hidden": [6], "evaluate": 1, "learning_rate": 0.2, "seed": 3}
    return train("mlp", "classification", workers=4, options=options, **(own | changes))


def trained(name, options, *, candidate=DENSE, iterations=6, dirichlet=None):
    source = learning(dirichlet=dirichlet)
    steps = start_strategy(source, LocalSteps(name, options, 1, WHOLE), candidate).steps
    job = job_on(star(), 4, iterations, source=source, strategy=LocalSteps(name, options, steps, WHOLE))
    return run_policy(job, "p", Fixed(candidate)).iterations


@pytest.mark.parametrize(
    ("name", "candidate"),
    [("localsgd", DENSE), *((name, one) for name in ("diloco", "streaming", "eager") for one in (DENSE, AG))],
    ids=lambda one: getattr(one, "label", one),
)
def test_a_model_learns_under_a_strategy(name, candidate):
    more = {"streaming": {"fragments": 2, "delay": 1, "mixing": 0.5}}.get(name, {})
    outer = {} if name == "localsgd" else {"outer": SGD(0.7, momentum=0.5, nesterov=True)}
    period = 8 if name == "streaming" else 4
    found = trained(name, {"inner": SGD(0.2), "period": period, **outer, **more}, candidate=candidate, iterations=30)
    # As many inner steps of data parallelism get as far, about.
    apart = trained("dataparallel", {"inner": SGD(0.2)}, iterations=120)["loss"].to_numpy()
    assert found["loss"].to_numpy()[-1] < apart[-1] + 0.25 * (apart[0] - apart[-1])


def test_workers_with_unlike_data_compute_gradients_at_their_own_parameters():
    source = learning(dirichlet=0.1)
    own = np.tile(source.initial(), (4, 1)) + np.arange(4, dtype=np.float32)[:, None]
    each = source.gradients_at(own, 5)
    for worker in range(4):
        alone = source.gradients_at(own[worker : worker + 1], 5, np.array([worker]))
        np.testing.assert_allclose(each[worker], alone[0], rtol=1e-5, atol=1e-7)
    assert not np.allclose(each, source.gradients_at(own[:1], 5))


def test_what_a_hook_does_with_gradients_counts_under_a_strategy_too():
    device = load_device("v100")
    slow = replace(device.methods["scan"], launch=0.01, seconds_per_entry=0.0)
    device = replace(device, methods={**device.methods, "hook_topk_begin": slow})
    own = strategy("dataparallel", candidate=AG, inner=SGD(0.1))
    found = [
        run_policy(job_on(star(), 4, 3, device=device, strategy=one), "p", Fixed(AG)).iterations for one in (own, None)
    ]
    pd.testing.assert_frame_equal(*found, check_exact=True)
    assert (found[0]["iteration_s"] > 0.02).all()


# Policies that switch


# Latencies and bandwidths between which it turns which exchange is the fastest.
CHANGING = [
    (first, Network(topologies.star(4, latency, bandwidth)))
    for first, latency, bandwidth in ((0, 1e-5, 1e5), (3, 0.05, 1e7), (5, 1e-5, 1e5))
]


def test_a_policy_chooses_the_exchange_and_the_density_of_each_outer_step():
    own = strategy("diloco")
    job = job_on(None, 4, 7, stages=CHANGING, strategy=own, density=[Ramp(3, 0.2, 0.05), Ramp(1, 0.05, 0.05)])
    found = run_policy(job, "p", Flexible([AG, RING, DENSE], Monitor(every=0.0))).iterations
    forms = {one.label: closed_form(one) for one in (AG, RING, DENSE)}
    for row in found.to_dict("records"):
        latency, bandwidth = row["latency_s"], row["bandwidth_Bps"]
        costs = {name: float(form(latency, 1 / bandwidth, 800.0, row["density"], 4)) for name, form in forms.items()}
        assert row["choice"] == min(costs, key=costs.get)
        # With as many entries of the pseudo-gradient as that has, whatever it is after.
        if row["choice"] == "AG":
            assert row["actual_density"] >= row["density"] - 1e-9
    assert found["choice"].nunique() > 1
    assert found["compute_s"].to_numpy() == pytest.approx(3 * COMPUTE, rel=1e-9)


@pytest.mark.parametrize("bucket", [None, WHOLE], ids=["tensors", "whole"])
@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=6), st.integers(0, 2**32 - 1))
def test_what_one_scheme_keeps_back_the_next_one_sends(bucket, turns, seed):
    source = Source(3)
    made = start_strategy(source, LocalSteps("dataparallel", {"inner": SGD(0.1)}, 1, bucket), AG)
    for scheme, options in (("oktopk", {}), ("artopk", {"collective": "ring"})):
        made.offer(Averaging(scheme, 0.1, options, bucket=60 * 4 if scheme == "artopk" else bucket))
    draws = np.random.default_rng(seed)
    for model in made.schemes:
        model.density = 0.1
    before = np.zeros(source.parameters)
    for turn in turns:
        made.switch(turn)
        gradients = draws.standard_normal((3, source.parameters)).astype(np.float32)
        syncs = made.step(gradients).syncs
        update = np.concatenate([one.exchange.update for one in syncs]).astype(np.float64)
        kept = np.concatenate([model.residual for model in made.schemes], axis=1).astype(np.float64).sum(axis=0)
        np.testing.assert_allclose(3 * update + kept, before + gradients.sum(axis=0), atol=1e-5)
        before = kept


def test_a_strategy_that_switches_resumes_to_the_same(tmp_path):
    job = job_on(None, 4, 7, stages=CHANGING, strategy=strategy("streaming"))

    class StopError(Exception):
        pass

    def stop(done):
        if done == 4:
            raise StopError

    def ran(**changes):
        return run_policy(job, "p", Flexible([AG, RING], Monitor(every=0.0)), **changes).iterations

    whole, path = ran(), tmp_path / "kept"
    assert whole["choice"].iloc[:4].nunique() == 2
    with pytest.raises(StopError):
        ran(checkpoint=Checkpoint(path, "job", every=0.0), progress=stop)
    assert ran(checkpoint=Checkpoint(path, "job", every=0.0)).equals(whole)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("delayed", {"period": 3}, "over the links of the iteration after"),
        ("sparta", {"inner": SGD(0.1)}, "what is exchanged is its own"),
    ],
)
def test_strategies_that_cannot_switch_say_why(name, options, why):
    job = job_on(star(), strategy=LocalSteps(name, options, 3))
    with pytest.raises(ValueError, match=f"a policy keeps to one exchange, as .*{why}"):
        StrategySet(job, [DENSE, AG])
    forgets = Candidate("forgets", "topk", {"error_feedback": False})
    with pytest.raises(ValueError, match=r"without \(forgets\): the residual"):
        StrategySet(job_on(star(), strategy=strategy("diloco")), [AG, forgets])


SCENARIO = ["job.iterations=4", "job.strategy={name: diloco, period: 5}"]
FIXED = ["policies={AG: {fixed: AG}}"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (["job.strategy={name: eager, period: 5}"], "policies.flexible: eager: a policy keeps to one exchange"),
        (["job.strategy={name: dilco}"], "there is no strategy 'dilco': did you mean 'diloco'?"),
        (["job.strategy={name: diloco, perod: 5}"], "job.strategy.perod: there is no such option of diloco"),
        (["job.strategy={name: diloco, period: 0}", *FIXED], "period must be"),
        (["job.strategy={name: localsgd, period: 3}", *FIXED], "has no default for inner"),
        (["job.strategy={name: sparta, inner: {sgd: {lr: 0.1}}}", *FIXED], "takes the scheme dense, got topk"),
        (["job.strategy={name: diloco, scaled: 'no'}", *FIXED], "scaled must be true or false, got 'no'"),
        (["job.strategy={name: diloco, outer: {adamw: {}}}", *FIXED], "outer must be stochastic gradient descent"),
        (["job.strategy={name: diloco, outer: {sgd: {lr: 0.1, nesterov: true}}}", *FIXED], "needs a momentum > 0"),
        (["job.strategy={name: streaming, fragments: [1, 2]}", *FIXED], "fragments must be a whole number, or lists"),
        (["job.strategy={name: streaming, fragments: [[1]]}", *FIXED], "fragments must be a whole number, or lists"),
        (["job.strategy={name: streaming, fragments: 2.0}", *FIXED], "fragments must be a whole number, or lists"),
        ([*SCENARIO, *FIXED, "job.overlap={}"], "takes no overlap beside strategy"),
    ],
)
def test_what_a_strategy_does_not_go_with_is_said(fields, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace("?", r"\?")):
        load("quickstart", fields).build()


# What is predicted and exported of jobs under a strategy

PLAIN = ["job.iterations=5", "job.update=2 ms", "policies={AG: {fixed: AG}, flexible: {flexible: {probe_every: 0 s}}}"]


def test_rounds_are_predicted_part_by_part_and_take_what_a_run_of_them_takes():
    own = "job.strategy={name: diloco, period: 5, bucket: 1 GiB}"
    predicted = predict_job(load("quickstart", [*PLAIN, own]))
    run = load("quickstart", [*PLAIN, own]).build()
    rows = predicted.iterations.set_index(["policy", "iteration"])
    for name in ("AG", "flexible"):
        ran = run_policy(run.job, name, run.policies[name]).iterations
        found = rows.loc[name]
        assert found["total_s"].to_numpy() == pytest.approx(ran["iteration_s"].to_numpy(), rel=1e-12)
        assert found["exchange"].tolist() == ran["choice"].tolist()
        assert found["update_s"].to_numpy() == pytest.approx(5 * 2e-3, rel=1e-12)
        parts = found[["compute_s", "select_s", "exposed_s", "update_s"]].sum(axis=1)
        assert parts.to_numpy() == pytest.approx(found["total_s"].to_numpy(), rel=1e-12)
        assert (found["total_low_s"] <= found["total_s"]).all()
        assert (found["total_s"] <= found["total_high_s"]).all()
    # Compute times of inner steps vary each for itself, those of a round by less; one by one they are as far off.
    jobs = {steps: load("quickstart", [*PLAIN, own.replace("5", str(steps))]).build().job for steps in (1, 25)}
    jobs = {steps: replace(job, compute=Compute(COMPUTE, spread=0.3)) for steps, job in jobs.items()}
    assert spread_of(jobs[1]) == 0.3
    many = np.array([jobs[25].compute.seconds(seed, 0, 4000).reshape(-1, 25).sum(axis=1) for seed in range(20)])
    assert spread_of(jobs[25]) == pytest.approx(np.log(many).std(), rel=0.05)


def test_an_exported_round_takes_as_long_as_a_run_says():
    loaded = load("quickstart", ["job.iterations=3", "job.strategy={name: diloco, period: 5, bucket: 1 GiB}", *FIXED])
    run = loaded.build()
    ran = run_policy(run.job, "AG", run.policies["AG"]).iterations.iloc[2]
    sent = exchange(loaded, "AG", 2, compute=True)
    assert sent.schedule.nbytes == pytest.approx(ran["bytes_sent_B"], rel=1e-12)
    timing = run.job.network(2).time(sent.schedule, origin=float(ran["start_s"]))
    assert timing.lasts_from(float(ran["start_s"])) == pytest.approx(ran["iteration_s"], rel=1e-9)
    streams = ["job.iterations=3", "job.strategy={name: streaming, period: 6, fragments: 2, delay: 1}", *FIXED]
    assert "computed beside exchanges" in exchange(load("quickstart", streams), "AG", 1).missing[0]


def test_a_scenario_spells_the_strategy_out():
    loaded = load("quickstart", [*SCENARIO, *FIXED])
    assert loaded.config.job.strategy.name == "diloco"
    assert "adamw: {lr: 0.0004" in loaded.lock()
    assert load("quickstart", [*SCENARIO, *FIXED, "job.strategy.inner={sgd: {lr: 0.5}}"]).build().job.strategy.options[
        "inner"
    ] == SGD(0.5)
