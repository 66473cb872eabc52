"""Choosing by the whole job: samples against runs, fixed volumes against gradients, the decision against everything."""

import numpy as np
import pytest

from simnet import sparsifier_models
from simnet.policies import Fixed
from simnet.scenario import load
from simnet.studies.choosing.whole_job import candidates_of
from simnet.training.job.running import run_policy
from simnet.training.job.sampling import (
    IterationSampling,
    ProgressModel,
    RecordedExchanges,
    fit_iteration_time,
    total_time,
)

# Schemes that only with options, or with a shape, can be made of any size.
OPTIONS = {"hardthreshold": {"threshold": 1.0}}


def scheme(name, workers=5, parameters=1024, density=0.02):
    layers = (("a", 300), ("b", 600), ("c", 124))
    return sparsifier_models.create(name, workers, parameters, density, layers=layers, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("name", sparsifier_models.names())
def test_what_has_a_fixed_volume_sends_the_same_of_any_gradients(name):
    random = np.random.default_rng(1)
    sent = []
    for spread in (0.0, 0.5, 3.0):
        model = scheme(name)
        size = np.exp(spread * random.standard_normal((5, 1024)))
        exchanges = [model.exchange((size * random.standard_normal((5, 1024))).astype(np.float32)) for _ in range(5)]
        sent.append([one.schedule.bytes_sent().tolist() for one in exchanges])
    if scheme(name).traits.fixed_volume:
        assert sent[0] == sent[1] == sent[2]


def test_most_schemes_that_follow_gradients_are_known_to():
    followers = {name for name in sparsifier_models.names() if not scheme(name).traits.fixed_volume}
    assert {"oktopk", "topkdsa", "exdyna", "micro", "gaussiank", "dgc", "sidco", "redsync"} <= followers
    assert followers.isdisjoint({"dense", "fp16", "topk", "artopk", "gtopk", "spardl", "signsgd", "powersgd"})


@pytest.mark.parametrize("samples", [1, 3, 7, 50])
@pytest.mark.parametrize("block", [None, 0.7, 4.0])
def test_a_sample_stands_for_all_iterations_and_ends_when_they_do(samples, block):
    # Iterations of 1 s, and of 2 s from 20 s on: 20 of the former and 20 of the latter.
    sampling, number, now, seen = IterationSampling(40, samples, block=block), 0, 0.0, []
    while number < 40:
        seconds = 1.0 if now < 20 else 2.0
        seen.append((number, seconds))
        number, now = sampling.after(now, seconds)
    assert sum(sampling.stands_for) == pytest.approx(40)
    assert all(0 <= one < 40 for one, _ in seen)
    seconds = np.array([one for _, one in seen])
    whole, error = total_time(seconds, np.array(sampling.stands_for))
    if block == 0.7 or (block is None and samples == 50):
        assert (len(seen), whole, error) == (40, 60.0, 0.0)
    if samples >= 3 or block is not None:
        assert whole == pytest.approx(60, abs=max(3 * error, 1e-9))


@pytest.mark.parametrize("rate", [1.0, 7.3])
def test_iterations_stand_for_those_on_other_links_by_how_fast_these_are(rate):
    # Links that are ten times as slow in half of each period; an iteration lasts as long as its work takes on them.
    def slowness(moment):
        return 1.0 if moment % 40 < 20 else 10.0

    moments = np.linspace(0, 2000, 400_001)
    done = rate * np.concatenate([[0], np.cumsum(np.diff(moments) / np.vectorize(slowness)(moments[:-1]))])
    found = {}
    for name, pace in (("known", ProgressModel(0.25, slowness)), ("unknown", None)):
        sampling, number, now = IterationSampling(400, block=37.0, pace=pace), 0, 0.0
        while number < 400:
            ends = float(np.interp(np.interp(now, moments, done) + 1, done, moments))
            number, now = sampling.after(now, ends - now)
        lasts, stands_for = np.array(sampling.lasts), np.array(sampling.stands_for)
        found[name] = total_time(lasts / stands_for, stands_for, np.array(sampling.expected))
    whole = float(np.interp(400, done, moments))
    (known, error), (_, other) = found["known"], found["unknown"]
    assert known == pytest.approx(whole, rel=0.02)
    assert error < other / 4


def test_iterations_on_links_that_stay_say_nothing_of_others():
    same = np.ones(5)
    assert fit_iteration_time(same, same, np.arange(1.0, 6.0)) is None


def test_the_time_of_an_iteration_is_found_from_others_and_gives_the_pace_of_a_job():
    latency, bandwidth = np.array([0.1, 0.2, 0.1, 0.3]), np.array([1e6, 1e7, 1e8, 1e6])
    takes = fit_iteration_time(latency, bandwidth, 0.5 + 4 * latency + 1e6 / bandwidth)
    assert takes is not None
    slow, fast = 0.5 + 0.8 + 1.0, 0.5 + 0.8 + 0.1
    assert (takes(0.2, 1e6), takes(0.2, 1e7)) == pytest.approx((slow, fast))
    pace = ProgressModel(0.5, lambda moment: takes(0.2, 1e6 if moment < 10 else 1e7))
    assert pace.between(1.0, 4.0) == pytest.approx(3 / slow)
    assert pace.between(9.0, 14.0) == pytest.approx(1 / slow + 4 / fast)
    assert pace.until(9.0, 1 / slow + 4 / fast) == pytest.approx(14.0)


@pytest.mark.parametrize("label", ["AG", "ART-ring"])
def test_recordings_take_as_long_as_the_job_itself(label):
    run = load("quickstart", ["job.iterations=30"]).build()
    (one,) = [one for one in candidates_of(load("quickstart")) if one.label == label]
    whole = run_policy(run.job, label, Fixed(one)).iterations["iteration_s"]
    again = run_policy(run.job, label, Fixed(one), sparsifiers=RecordedExchanges(run.job, 30)).iterations["iteration_s"]
    assert again.to_numpy() == pytest.approx(whole.to_numpy(), rel=0.01)


def test_recordings_of_a_scheme_that_follows_gradients_are_its_exchanges():
    run = load("quickstart", ["job.iterations=12", "exchanges.DGC={scheme: dgc}"]).build()
    (one,) = [one for one in candidates_of(load("quickstart", ["exchanges.DGC={scheme: dgc}"])) if one.label == "DGC"]
    whole = run_policy(run.job, "DGC", Fixed(one)).iterations
    recordings = RecordedExchanges(run.job, 12)
    assert recordings.follows_gradients(one)
    again = run_policy(run.job, "DGC", Fixed(one), sparsifiers=recordings).iterations
    assert again["iteration_s"].tolist() == whole["iteration_s"].tolist()


@pytest.mark.parametrize("window", [1, 3, 5])
def test_recordings_make_the_exchanges_of_a_window_and_then_take_those_of_its_second_half_in_turn(window):
    settings = ["job.iterations=14", "exchanges.G={scheme: gaussiank}"]
    run = load("quickstart", settings).build()
    (one,) = [one for one in candidates_of(load("quickstart", settings)) if one.label == "G"]
    recordings = RecordedExchanges(run.job, window)
    sent = run_policy(run.job, "G", Fixed(one), sparsifiers=recordings).iterations["bytes_sent_B"].tolist()
    assert recordings.made(one) == window
    half = sent[window // 2 : window]
    assert sent[window:] == [half[at % len(half)] for at in range(14 - window)]
    assert len(set(sent[:window])) >= min(window, 3)
