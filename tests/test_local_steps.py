"""Jobs under a training strategy: what an iteration takes is known in closed form where links are idle and even."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from commands import did, refused
from jobs import AG, BANDWIDTH, DENSE, LATENCY, Source, check_split, job_on, star
from simnet import strategies
from simnet.base.errors import InputError
from simnet.costs import ring_allreduce
from simnet.costs.devices import load_device
from simnet.job import Compute, LocalSteps, Overlap, run_policy
from simnet.job.local_steps import StrategySet, started
from simnet.policies import Candidate, Fixed
from simnet.scenario import load
from simnet.strategies import SGD
from simnet.traces.live import train

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
    steps = started(Source(workers), name, options, candidate, bucket=bucket).steps
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
    steps = started(source, name, options, candidate, bucket=WHOLE).steps
    job = job_on(star(), 4, iterations, source=source, strategy=LocalSteps(name, options, steps, WHOLE))
    return run_policy(job, "p", Fixed(candidate)).iterations


def test_live_training_by_data_parallelism_is_that_of_a_job_without_a_strategy():
    found = trained("dataparallel", {"inner": SGD(0.2, momentum=0.9)})
    expected = run_policy(job_on(star(), 4, 6, source=learning()), "p", Fixed(DENSE)).iterations
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_local_sgd_after_every_step_is_data_parallelism_by_plain_descent():
    one, other = (trained(name, {"inner": SGD(0.2), **more}) for name, more in SAME.items())
    assert one["loss"].to_numpy() == pytest.approx(other["loss"].to_numpy(), rel=1e-4)


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
    by_hand = started(source, name, options, DENSE, bucket=WHOLE)
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
    said = did("run", "quickstart", *fields, "--no-report", "--out", tmp_path / "run").stdout
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
    monkeypatch.setattr(strategies.StreamingDiLoCo, "steps", property(lambda own: 12))
    with pytest.raises(ValueError, match="what begins after inner step 2 of 12 must arrive with the last of them"):
        under("streaming")


def test_a_strategy_with_several_exchanges_is_refused():
    job = job_on(star(), strategy=strategy("diloco"))
    with pytest.raises(ValueError, match="keeps to one exchange"):
        StrategySet(job, [DENSE, AG])


SCENARIO = ["job.iterations=4", "job.strategy={name: diloco, period: 5}"]
FIXED = ["policies={AG: {fixed: AG}}"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (SCENARIO, "policies.flexible: must be fixed: under job.strategy a policy keeps to one exchange"),
        (["job.strategy={name: dilco}"], "there is no strategy 'dilco': did you mean 'diloco'?"),
        (["job.strategy={name: diloco, perod: 5}"], "job.strategy.perod: there is no such option of diloco"),
        (["job.strategy={name: diloco, period: 0}", *FIXED], "period must be"),
        (["job.strategy={name: localsgd, period: 3}", *FIXED], "there is no default for inner"),
        (["job.strategy={name: sparta, inner: {sgd: {lr: 0.1}}}", *FIXED], "takes the scheme dense, got topk"),
        (["job.strategy={name: diloco, scaled: 'no'}", *FIXED], "scaled must be true or false, got 'no'"),
        (["job.strategy={name: diloco, outer: {adamw: {}}}", *FIXED], "outer must be stochastic gradient descent"),
        (["job.strategy={name: diloco, outer: {sgd: {lr: 0.1, nesterov: true}}}", *FIXED], "nesterov needs a momentum"),
        (["job.strategy={name: streaming, fragments: [1, 2]}", *FIXED], "fragments must be a whole number, or lists"),
        (["job.strategy={name: streaming, fragments: [[1]]}", *FIXED], "fragments must be a whole number, or lists"),
        (["job.strategy={name: streaming, fragments: 2.0}", *FIXED], "fragments must be a whole number, or lists"),
        ([*SCENARIO, *FIXED, "job.overlap={}"], "takes no overlap beside strategy"),
    ],
)
def test_what_a_strategy_does_not_go_with_is_said(fields, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace("?", r"\?")):
        load("quickstart", fields).build()


def test_commands_that_do_not_follow_a_strategy_refuse_it(tmp_path):
    fields = [word for one in (*SCENARIO, *FIXED) for word in ("--set", one)]
    assert "job.strategy: must be left out" in refused("predict", "job", "--scenario", "quickstart", *fields)


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
