"""Jobs under a training strategy: what an iteration takes is known in closed form where links are idle and even."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import NO_PAGE, refused, wide
from jobs import AG, BANDWIDTH, DENSE, LATENCY, RING, Source, check_split, job_on, star
from simnet import strategies, topologies
from simnet.base.errors import InputError
from simnet.cost_models.costs import ring_allreduce
from simnet.cost_models.costs.devices import load_device
from simnet.network import Network
from simnet.policies import Candidate, Fixed, Flexible, Monitor, OneStepOracle, Ramp, closed_form
from simnet.policies.moo import DensitySearch, Moo
from simnet.scenario import load
from simnet.strategies import SGD, Averaging
from simnet.studies.exporting import exchange
from simnet.studies.iteration import job_summary, predict_job, spread_of
from simnet.traces.live import train
from simnet.training.advise.policy import Advised
from simnet.training.job.checkpoint import Checkpoint
from simnet.training.job.job import Compute, LocalSteps, Overlap
from simnet.training.job.local_steps import StrategySet, start_strategy
from simnet.training.job.running import run_policy

COMPUTE, WHOLE = 0.01, float("inf")
SAME = {"localsgd": {"period": 1}, "dataparallel": {}}
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
    steps = start_strategy(Source(workers), name, options, candidate, bucket=bucket).steps
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


@pytest.mark.parametrize("compute", [1e-4, 2e-3, 0.05])
def test_a_fragment_has_its_delay_to_arrive(compute):
    found = under("streaming", compute=compute, iterations=6)["iteration_s"].to_numpy()
    # Fragments are whole layers, of 60, 100 and 40 entries; 4 inner steps each, of which 2 go on meanwhile.
    exchange = np.tile([ring_seconds(entries) for entries in (60, 100, 40)], 2)
    assert found == pytest.approx(2 * compute + np.maximum(2 * compute, exchange), rel=1e-9)


@pytest.mark.parametrize("name", ["delayed", "eager"])
@pytest.mark.parametrize("compute", [1e-4, 0.05])
def test_an_exchange_that_may_be_a_round_late_goes_beside_the_next_round(name, compute):
    found = under(name, compute=compute)["iteration_s"].to_numpy()
    assert found[0] == pytest.approx(3 * compute, rel=1e-9)
    assert found[1:] == pytest.approx(max(3 * compute, ring_seconds(200)), rel=1e-9)


def test_updates_of_inner_steps_take_their_time():
    found = under("diloco", update=0.002)["iteration_s"].to_numpy()
    assert found == pytest.approx(3 * (COMPUTE + 0.002) + ring_seconds(200), rel=1e-9)


def test_compute_times_are_those_of_as_many_inner_steps():
    compute = Compute(COMPUTE, spread=0.3, straggle=0.2, slowdown=3.0)
    job = job_on(star(), 4, 5, compute=compute, strategy=strategy("diloco"))
    rows = run_policy(job, "p", Fixed(DENSE)).workers
    for iteration in range(5):
        each = np.stack([compute.seconds(7, 3 * iteration + inner, 4) for inner in range(3)])
        own = rows[rows["iteration"] == iteration]["compute_s"].to_numpy()
        assert own == pytest.approx(each.sum(axis=0), rel=1e-12)


@pytest.mark.parametrize("candidate", [DENSE, AG, Candidate("ok", "oktopk")], ids=lambda one: one.label)
def test_data_parallelism_as_a_strategy_is_the_job_without_one(candidate):
    compute = Compute(COMPUTE, spread=0.2)
    plain = job_on(star(), 4, 7, compute=compute, device="v100")
    own = strategy("dataparallel", candidate=candidate, inner=SGD(0.1))
    found = run_policy(job_on(star(), 4, 7, compute=compute, device="v100", strategy=own), "p", Fixed(candidate))
    expected = run_policy(plain, "p", Fixed(candidate))
    pd.testing.assert_frame_equal(found.iterations, expected.iterations, check_exact=True)
    pd.testing.assert_frame_equal(found.workers, expected.workers, check_exact=True)


def learning(**changes):
    options = {"samples": 400, "features": 12, "classes": 3}
    own = {"batch": 8, "hidden": [6], "evaluate": 1, "learning_rate": 0.2, "seed": 3}
    return train("mlp", "classification", workers=4, options=options, **(own | changes))


def trained(name, options, *, candidate=DENSE, iterations=6, dirichlet=None):
    source = learning(dirichlet=dirichlet)
    steps = start_strategy(source, name, options, candidate, bucket=WHOLE).steps
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


@pytest.mark.parametrize("name", ["streaming", "eager", "localsgd"])
def test_scores_are_those_of_the_global_parameters(name):
    source, options = learning(), SETTINGS[name] | ({"fragments": 2} if name == "streaming" else {})
    by_hand = start_strategy(source, name, options, DENSE, bucket=WHOLE)
    expected = []
    for number in range(3 * by_hand.steps):
        by_hand.step(source.gradients_at(by_hand.local, number))
        if by_hand.iteration % by_hand.steps == 0:
            expected.append(source.score(by_hand.global_parameters).loss)
    assert trained(name, options, iterations=3)["loss"].tolist() == expected


def test_workers_with_unlike_data_compute_gradients_at_their_own_parameters():
    source = learning(dirichlet=0.1)
    own = np.tile(source.initial(), (4, 1)) + np.arange(4, dtype=np.float32)[:, None]
    each = source.gradients_at(own, 5)
    for worker in range(4):
        alone = source.gradients_at(own[worker : worker + 1], 5, np.array([worker]))
        np.testing.assert_allclose(each[worker], alone[0], rtol=1e-5, atol=1e-7)
    assert not np.allclose(each, source.gradients_at(own[:1], 5))


def test_steps_with_nothing_to_exchange_are_iterations_that_compute():
    found = under("diloco", options={"period": 3, "compat": "gym"}, iterations=8)
    assert (found["bytes_sent_B"] > 0).tolist() == [False, False, False, True, False, False, True, False]
    alone = found["iteration_s"].to_numpy()[found["bytes_sent_B"].to_numpy() == 0]
    assert alone == pytest.approx(COMPUTE, rel=1e-12)
    assert found["gain"].isna().tolist() == [True] * 8


def test_residuals_and_gains_are_those_of_pseudo_gradients():
    found = under("diloco", AG, options={"inner": SGD(0.5), "outer": SGD(1.0), "period": 2}, iterations=3)
    assert found["gain"].between(0.0, 1.0, inclusive="neither").all()
    assert (found["global_error"] > 0).all()
    assert found["selected"].tolist() == [20.0] * 3


def test_what_is_not_known_of_an_exchange_is_left_open_and_nothing_is_made_up():
    options = {"period": 12, "fragments": 3, "delay": 1}
    assert under("streaming", options=options, iterations=4)["actual_density"].tolist() == [1.0] * 4
    masked = under("sparta", options={"inner": SGD(0.1)}, bucket=None)
    assert masked["actual_density"].isna().all()
    assert masked["gain"].isna().all()


def test_training_goes_on_from_inner_step_to_inner_step():
    fields = ["job.iterations=6", "job.strategy={name: diloco, period: 5}", *FIXED]
    source, plain = load("quickstart", fields).build().job.source, load("quickstart", ["job.iterations=30", *FIXED])
    for number in (0, 7, 29):
        np.testing.assert_array_equal(source.gradients(number), plain.build().job.source.gradients(number))


def test_a_run_says_by_which_strategy_workers_train(tmp_path):
    fields = [word for one in (*SCENARIO, *FIXED) for word in ("--set", one)]
    said = wide("run", "quickstart", *fields, *NO_PAGE, "--out", tmp_path / "run")
    assert "Workers train by diloco: an iteration is 5 inner steps" in said
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["strategy"] == {"name": "diloco", "steps": 5}


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


def test_sparta_exchanges_after_every_inner_step():
    masked = under("sparta", options={"inner": SGD(0.1), "masks": "broadcast"}, bucket=None)
    seeded = under("sparta", options={"inner": SGD(0.1), "masks": "seeded"}, bucket=None)
    # A byte for each parameter to each of the other workers.
    assert (masked["bytes_sent_B"] - seeded["bytes_sent_B"]).tolist() == [3 * 200.0] * 6


def test_an_exchange_that_would_end_in_the_middle_of_an_iteration_is_refused(monkeypatch):
    monkeypatch.setattr(strategies.StreamingDiLoCo, "steps", property(lambda own: 12, lambda own, steps: None))
    with pytest.raises(ValueError, match="what begins after inner step 2 of 12 must arrive with the last of them"):
        under("streaming")


# Policies that switch


OK = Candidate("ok", "oktopk")
# Latencies and bandwidths between which it turns which exchange is the fastest.
CHANGING = [
    (first, Network(topologies.star(4, latency, bandwidth)))
    for first, latency, bandwidth in ((0, 1e-5, 1e5), (3, 0.05, 1e7), (5, 1e-5, 1e5))
]
SWITCHING = {
    "flexible": lambda: Flexible([AG, RING, DENSE], Monitor(every=0.0)),
    "oracle": lambda: OneStepOracle([AG, OK, RING]),
    "advise": lambda: Advised([AG, RING], decide_every=1, horizon=10, margin=0.0),
    "moo": lambda: Moo([AG, RING], Monitor(every=0.0), DensitySearch(densities=(0.3, 0.1), tries=2)),
}


@pytest.mark.parametrize("name", list(SWITCHING))
def test_policies_under_data_parallelism_do_as_in_the_job_without_a_strategy(name):
    changes = {"compute": Compute(COMPUTE, spread=0.2), "device": "v100", "stages": CHANGING}
    own = strategy("dataparallel", candidate=AG, inner=SGD(0.1))
    found = run_policy(job_on(None, 4, 8, strategy=own, **changes), "p", SWITCHING[name]())
    expected = run_policy(job_on(None, 4, 8, **changes), "p", SWITCHING[name]())
    assert expected.iterations["choice"].nunique() > 1
    pd.testing.assert_frame_equal(found.iterations, expected.iterations, check_exact=True)
    pd.testing.assert_frame_equal(found.workers, expected.workers, check_exact=True)


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
    made = start_strategy(source, "dataparallel", {"inner": SGD(0.1)}, AG, bucket=bucket)
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


def test_a_policy_is_told_how_much_a_fragment_has():
    seen = []

    class Asked(Fixed):
        def shortlist(self, context):
            seen.append((context.message, *context.buckets))
            return super().shortlist(context)

    made = start_strategy(Source(), "streaming", SETTINGS["streaming"], DENSE)
    own = replace(strategy("streaming"), shares=made.shares)
    run_policy(job_on(star(), 4, 4, strategy=own), "p", Asked(DENSE))
    assert seen == [(4 * size, size) for size in (60, 100, 40, 60)]
    loaded = load("quickstart", ["job.iterations=4", "job.strategy={name: streaming, period: 4, fragments: 2}", *FIXED])
    assert sum(loaded.build().job.strategy.shares) == pytest.approx(1)


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
        (["job.strategy={name: localsgd, period: 3}", *FIXED], "there is no default for inner"),
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
PARALLEL = "job.strategy={name: dataparallel, inner: {sgd: {lr: 0.1}}, bucket: 1 GiB}"


def test_iterations_under_data_parallelism_are_predicted_as_without_a_strategy():
    plain, found = (predict_job(load("quickstart", fields)) for fields in (PLAIN, [*PLAIN, PARALLEL]))
    pd.testing.assert_frame_equal(found.iterations, plain.iterations, rtol=1e-12)
    assert (plain.strategy, plain.steps, found.strategy, found.steps) == ("", 1, "dataparallel", 1)
    without = {"strategy": {}}
    assert job_summary(found).details | without == job_summary(plain).details | without


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
    draws = jobs[25].computes(0, np.arange(4)).size
    assert draws == 4
    assert spread_of(jobs[1]) == 0.3
    many = np.array([jobs[25].compute.seconds(seed, 0, 4000).reshape(-1, 25).sum(axis=1) for seed in range(20)])
    assert spread_of(jobs[25]) == pytest.approx(np.log(many).std(), rel=0.05)


def test_what_is_sent_beside_inner_steps_is_no_wait():
    fields = ["job.iterations=4", *FIXED, "job.compute.spread=0"]
    streaming = "job.strategy={name: streaming, period: 8, fragments: 1, delay: 7, bucket: 1 GiB}"
    beside, after = (
        predict_job(load("quickstart", [*fields, one])).medians().loc["AG"]
        for one in (streaming, streaming.replace("delay: 7", "delay: 0"))
    )
    assert beside["exposed_s"] == pytest.approx(0.0, abs=1e-12)
    assert beside["messages_s"] == pytest.approx(after["exposed_s"], rel=0.05)
    assert beside["total_s"] < after["total_s"]


@pytest.mark.parametrize(
    "field", ["absences=[{worker: 1, leaves: 1 s}]", "churn={stay: 1 s, away: 1 s}", "deadline={after: 1 s}"]
)
def test_jobs_of_workers_that_come_and_go_are_not_predicted(field):
    fields = [word for one in (*SCENARIO, *FIXED, f"job.{field}") for word in ("--set", one)]
    name = field.partition("=")[0]
    assert f"job.{name}: must be left out: the iterations" in refused("step", "quickstart", *fields)


@pytest.mark.parametrize("compute", [False, True])
def test_an_exported_iteration_under_data_parallelism_is_that_without_a_strategy(compute):
    plain, found = (exchange(load("quickstart", one), "AG", 3, compute=compute) for one in (PLAIN, [*PLAIN, PARALLEL]))
    assert found.missing == plain.missing
    assert len(found.schedule.rounds) == len(plain.schedule.rounds)
    for one, other in zip(found.schedule.rounds, plain.schedule.rounds, strict=True):
        for column in ("src", "dst", "nbytes"):
            np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
        np.testing.assert_allclose(one.compute, other.compute, rtol=1e-12)


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


def test_overlap_and_a_strategy_do_not_meet_in_a_job():
    with pytest.raises(ValueError, match="overlap"):
        job_on(star(), strategy=strategy("diloco"), overlap=Overlap())
