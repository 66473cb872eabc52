"""The simulated job: accounting, determinism, what policies share, overlap, scale."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import AG, DENSE, RING, SPLIT, TREE, Source, check_spans, check_split, job_on
from simnet import topologies
from simnet.cost_models import costs
from simnet.cost_models.costs.devices import DeviceProfile, KernelMethod, load_device
from simnet.network import Network
from simnet.network.weather import Weather, ornstein_uhlenbeck, steps
from simnet.policies import Candidate, Fixed, Flexible, Monitor, OneStepOracle, Ramp
from simnet.training.job.exchange import SparsifierSet
from simnet.training.job.job import Compute, Overlap
from simnet.training.job.running import run_policy


def job(workers=4, iterations=6, *, weather=None, latency=1e-3, bandwidth=1e6, network=None, **changes):
    network = network or Network(topologies.star(workers, latency, bandwidth), weather)
    return job_on(network, workers, iterations, **changes)


def noisy_weather(workers=4):
    return {
        (rank, "switch"): Weather(bandwidth=ornstein_uhlenbeck(0.8, 0.05, 0.01, mean=1e5, seed=3, name=("test", rank)))
        for rank in range(workers)
    }


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("overlap", [None, Overlap(bucket=300.0)])
def test_the_split_of_an_iteration_adds_up_for_every_worker(workers, overlap):
    compute = Compute(0.01, spread=0.3, slow={0: 2.0}, straggle=0.2, slowdown=5.0)
    one = job(workers, weather=noisy_weather(workers), compute=compute, device="v100", overlap=overlap, update=1e-3)
    for candidate in (AG, RING, TREE, DENSE):
        result = run_policy(one, "p", Fixed(candidate))
        check_split(result)
        assert len(result.workers) == 6 * workers
        means = result.workers.groupby("iteration")[SPLIT].mean()
        assert means.to_numpy() == pytest.approx(result.iterations[SPLIT].to_numpy())


@pytest.mark.parametrize("overlap", [None, Overlap(bucket=300.0)])
@pytest.mark.parametrize("stack", ["ideal", "gloo"])
def test_without_a_barrier_workers_go_on_where_they_have_ended(stack, overlap):
    network = Network(topologies.star(4, 1e-3, 1e6), noisy_weather(4), stack=stack)
    one = job(
        network=network, compute=Compute(0.01, spread=0.5), device="v100", overlap=overlap, update=1e-3, barrier=False
    )
    probing = Flexible([AG], Monitor(every=0.0), decide_every=2, probe_bytes=1e3)
    for policy in (Fixed(AG), Fixed(TREE), Fixed(DENSE), probing):
        result = run_policy(one, "p", policy, timeline=6)
        each, means = result.workers, result.iterations.set_index("iteration")
        assert (each[SPLIT].to_numpy() >= -1e-12).all()
        assert each.groupby("iteration")[SPLIT].mean().sum(axis=1).to_numpy() == pytest.approx(means["iteration_s"])
        # Nobody waits for anybody between iterations, and what a worker does has no holes.
        spans = result.spans.groupby(["worker", "iteration"])
        begin, end = spans["start_s"].min().unstack(), spans["finish_s"].max().unstack()
        assert begin.to_numpy()[:, 1:] == pytest.approx(end.to_numpy()[:, :-1], abs=1e-9)
        totals = each.set_index(["worker", "iteration"])[SPLIT].sum(axis=1).unstack()
        assert (end - begin).to_numpy() == pytest.approx(totals.to_numpy(), abs=1e-9)
        starts = means["start_s"].to_numpy()
        assert starts == pytest.approx(begin.mean().to_numpy(), abs=1e-9)
        assert np.diff(starts) == pytest.approx(means["iteration_s"].to_numpy()[:-1], abs=1e-9)
        assert begin[0].nunique() > 1


def test_who_is_slow_now_and_then_holds_others_up_less_without_a_barrier():
    # One all-reduce in a ring of two: each worker needs the other's gradient of the same iteration, and no more.
    compute = Compute(0.01, straggle=0.3, slowdown=5.0)
    took = {
        barrier: run_policy(job(2, 40, compute=compute, barrier=barrier), "p", Fixed(DENSE)).iterations["iteration_s"]
        for barrier in (True, False)
    }
    assert took[False].sum() <= took[True].sum() * (1 + 1e-9)


def test_probes_hold_up_the_iterations_before_which_workers_decide():
    # Of two lengths three messages each, one after another, and an all-reduce of what they found.
    network = Network(topologies.star(4, 1e-3, 1e6))
    every = {"decide_every": 2, "probe_bytes": 1e4, "probe_times": 3}
    took, free = (
        run_policy(job(network=network), "p", Flexible([AG], Monitor(every=0.0), **options), timeline=6)
        for options in (every, {})
    )
    more = 3 * (1e-3 + 4e-6) + 3 * (1e-3 + 1e-2) + 6 * (1e-3 + 4e-6)
    expected = free.iterations["iteration_s"] + np.where(free.iterations["iteration"] % 2 == 0, more, 0.0)
    assert took.iterations["iteration_s"].to_numpy() == pytest.approx(expected.to_numpy())
    check_split(took)
    check_spans(took)


MERGING = [Candidate(name, name) for name in ("gtopk", "spardl", "oktopk", "topkdsa", "signsgd")]
"""Exchanges whose workers work between their messages."""


@pytest.mark.parametrize("stack", ["ideal", "gloo", "tcp"])
@pytest.mark.parametrize("candidate", [AG, RING, DENSE, *MERGING], ids=lambda one: one.label)
def test_spans_tell_the_same_as_the_split(candidate, stack):
    network = Network(topologies.star(3, 1e-3, 1e6), noisy_weather(3), stack=stack)
    one = job(3, iterations=4, network=network, compute=Compute(0.01, spread=0.5), device="v100", update=1e-3)
    result = run_policy(one, "p", Fixed(candidate), timeline=4)
    check_split(result)
    check_spans(result)
    for _, own in result.spans.groupby(["iteration", "worker", "resource"]):
        own = own.sort_values("start_s")
        assert (own["start_s"].to_numpy()[1:] >= own["finish_s"].to_numpy()[:-1] - 1e-12).all()


@pytest.mark.parametrize("overlap", [None, Overlap(bucket=400.0)])
def test_the_time_to_select_has_the_interval_of_the_kernels_that_ran(overlap):
    profile = DeviceProfile(
        "toy",
        "toy",
        "toy",
        1e9,
        {"*": KernelMethod(0, 4, "toy", low=0.5, high=3), "topk": KernelMethod(1e-3, 8, "toy", high=2)},
    )
    result = run_policy(job(3, iterations=3, device=profile, overlap=overlap), "p", Fixed(AG)).iterations
    low, high = (result[f"select_{end}_s"] / result["select_s"] for end in ("low", "high"))
    # Nearly all of it is launches of top-k.
    assert low.between(0.99, 1).all()
    assert high.between(2, 2.01).all()
    cheap = run_policy(job(3, iterations=1, device=load_device("ideal")), "p", Fixed(AG)).iterations
    assert cheap[["select_s", "select_low_s", "select_high_s"]].to_numpy().tolist() == [[0, 0, 0]]


def test_an_iteration_on_an_idle_star_takes_compute_plus_closed_form():
    source = Source(8, sizes=(1000, 3000))
    one = job(8, source=source, iterations=3, latency=2e-3, bandwidth=1e6, density=[Ramp(1, 0.01, 0.01)])
    for candidate, cost in ((AG, costs.topk_allgather), (RING, costs.artopk_ring), (TREE, costs.artopk_tree)):
        took = run_policy(one, "p", Fixed(candidate)).iterations["iteration_s"].to_numpy()
        # What is on its way down a tree from worker 1, 2 or 3 (0b11) is not waited for by whom the way up begins with.
        saved = 2e-3 * np.array([1, 1, 2]) if candidate is TREE else 0.0
        assert took == pytest.approx(0.01 + float(cost(2e-3, 1e-6, 16_000.0, 0.01, 8)) - saved, rel=1e-9)


def test_scale_multiplies_bytes_but_not_the_norms_of_var():
    small = job(4, source=Source(4), bandwidth=1e6)
    large = job(4, source=Source(4, scale=50.0), bandwidth=50e6)
    for candidate in (AG, RING, DENSE):
        a, b = (run_policy(one, "p", Fixed(candidate)).iterations for one in (small, large))
        assert b["bytes_sent_B"].to_numpy() == pytest.approx(50 * a["bytes_sent_B"].to_numpy())
        assert b["iteration_s"].to_numpy() == pytest.approx(a["iteration_s"].to_numpy())
    var = Candidate("VAR", "artopk", {"selection": "var"})
    extra = [
        run_policy(one, "p", Fixed(var)).iterations["bytes_sent_B"]
        - run_policy(one, "p", Fixed(RING)).iterations["bytes_sent_B"]
        for one in (small, large)
    ]
    assert extra[0].to_numpy() == pytest.approx(extra[1].to_numpy())
    assert extra[0].to_numpy() == pytest.approx(4 * 4 * 3)


def test_policies_meet_the_same_compute_times_and_the_run_repeats_itself():
    one = job(4, weather=noisy_weather(), compute=Compute(0.01, spread=0.5))
    first, again = (run_policy(one, "p", Fixed(AG)) for _ in range(2))
    assert first.iterations.equals(again.iterations)
    assert first.workers.equals(again.workers)
    other = run_policy(one, "q", Fixed(DENSE))
    assert first.workers["compute_s"].equals(other.workers["compute_s"])


def test_an_oracle_is_never_slower_than_any_fixed_policy_it_may_imitate():
    # Bandwidth varies, latency does not, and no two messages share a link: starting earlier never ends later.
    weather = noisy_weather()
    one = job(4, iterations=25, weather=weather, latency=5e-3, source=Source(4, scale=40.0))
    best = run_policy(one, "best", OneStepOracle([RING, DENSE, AG]))
    ends = (best.iterations["start_s"] + best.iterations["iteration_s"]).to_numpy()
    for candidate in (RING, DENSE, AG):
        fixed = run_policy(one, "p", Fixed(candidate)).iterations
        assert (ends <= (fixed["start_s"] + fixed["iteration_s"]).to_numpy() * (1 + 1e-12)).all()
    assert best.iterations["choice"].nunique() > 1


def test_the_residual_goes_along_when_the_exchange_changes(monkeypatch):
    """Whatever is chosen when, no gradient is lost: what entered equals what was applied plus what is kept."""
    slow_then_fast = steps([0, 0.1], [1e5, 1e8])
    weather = {link: Weather(bandwidth=slow_then_fast) for link in topologies.star(4, 1e-3, 1e6).edges}
    source = Source(4, scale=100.0)
    one = job(4, iterations=12, weather=weather, source=source, density=[Ramp(1, 0.05, 0.05)])
    policy = Flexible([RING, AG], Monitor(every=0))
    applied = np.zeros(source.parameters)
    kept = []

    original = SparsifierSet.step

    def spying(self, *arguments):
        step = yield from original(self, *arguments)
        applied[:] += 4 * step.exchanges[0].update
        kept[:] = [model.residual for model in self._in_force]
        return step

    monkeypatch.setattr(SparsifierSet, "step", spying)
    result = run_policy(one, "p", policy)
    assert result.iterations["choice"].nunique() == 2
    entered = sum(source.gradients(iteration).sum(axis=0, dtype=np.float64) for iteration in range(12))
    assert applied + kept[0].sum(axis=0) == pytest.approx(entered, abs=1e-3)


def test_overlap_hides_communication_behind_the_backward_pass():
    source = Source(4, sizes=(100,) * 8)
    # Latency is paid once per bucket; make it small so that hiding is what shows.
    plain, hidden = (
        run_policy(job(4, source=source, latency=1e-9, overlap=overlap), "p", Fixed(DENSE)).iterations
        for overlap in (None, Overlap(400.0, 0.9))
    )
    assert (hidden["iteration_s"] < plain["iteration_s"]).all()
    assert hidden["bytes_sent_B"].to_numpy() == pytest.approx(plain["bytes_sent_B"].to_numpy())


@given(st.integers(1, 8), st.floats(0, 1), st.floats(1, 10))
def test_stragglers_and_slow_workers(workers, straggle, slowdown):
    plain = Compute(0.02, spread=0.1)
    slower = Compute(0.02, spread=0.1, slow={workers - 1: 3.0}, straggle=straggle, slowdown=slowdown)
    a, b = (compute.seconds(5, 3, workers) for compute in (plain, slower))
    assert (b >= a * (1 - 1e-12)).all()
    assert b[-1] >= 3 * a[-1] * (1 - 1e-12)


def test_compute_times_have_the_mean_and_spread_asked_for():
    drawn = np.concatenate([Compute(0.05, spread=0.2).seconds(1, iteration, 8) for iteration in range(500)])
    assert drawn.mean() == pytest.approx(0.05, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.2, rel=0.05)
    late = np.concatenate([Compute(1.0, straggle=0.1, slowdown=4.0).seconds(1, i, 8) for i in range(500)])
    assert np.mean(late > 2) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (job, {"placement": [0, 1, 2]}, "4 workers need as many hosts"),
        (job, {"placement": [0, 1, 2, 9]}, "within 0..3"),
    ],
)
def test_wrong_jobs_and_parts_of_jobs_are_refused(build, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
