"""The simulated job: accounting, determinism, what policies share, overlap, scale."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import AG, DENSE, RING, SPLIT, TREE, Source, check_spans, check_split, job_on
from simnet import topologies
from simnet.base.errors import StalledError
from simnet.collectives import allreduce_ring
from simnet.cost_models import costs
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile, KernelMethod, load_device
from simnet.network import Network, Stack
from simnet.network.weather import Weather, ornstein_uhlenbeck, steps
from simnet.policies import Candidate, Decision, Fixed, Flexible, Monitor, OneStepOracle, Ramp, density_at
from simnet.schedule import Round, Schedule
from simnet.training.job.exchange import SparsifierSet
from simnet.training.job.job import Compute, Overlap, gradient_buckets
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


def test_workers_compute_when_they_are_through_with_probing():
    network, shift = Network(topologies.star(4, 1e-3, 1e6)), [1, 2, 3, 0]
    one = job(network=network, iterations=1, barrier=False)
    policy = Flexible([AG], Monitor(every=0.0), probe_bytes=1e4, probe_times=2)
    spans = run_policy(one, "p", policy, timeline=1).spans
    assert "host thread" not in set(spans["resource"])
    begun = spans[spans["what"] == "compute"].groupby("worker")["start_s"].min()
    begins = one.begins(0.0)
    assert begins.max() > 0
    rounds = [Round(range(4), shift, nbytes) for nbytes in (4, 4, 1e4, 1e4)]
    probe = Schedule(4, rounds).concat(allreduce_ring(4, 16))
    assert begun.to_numpy() == pytest.approx(network.time(probe, begins).left)


def test_the_host_does_the_software_of_probes():
    network = Network(topologies.star(2, 1e-3, 1e6), stack=Stack("taken", before=2e-3, after=1e-3))
    policy = Flexible([DENSE], Monitor(every=0.0), probe_bytes=1e4, probe_times=1)
    one = job(2, iterations=1, network=network, barrier=False)
    result = run_policy(one, "p", policy, timeline=1)
    spans = result.spans[result.spans["worker"] == 0]
    host, computing = (spans[spans[name] == what] for name, what in (("resource", "host thread"), ("what", "compute")))
    # It sends 4 bytes, then 1e4, and gathers what was found in two rounds; then its gradient goes in two rounds.
    probing = host[host["finish_s"] <= computing["start_s"].min()]
    for rounds, own in ((4, probing), (6, host)):
        assert (own["finish_s"] - own["start_s"]).sum() == pytest.approx(rounds * 3e-3)


def test_a_probe_that_stalls_says_whose_iteration_it_was():
    down = {(1, "switch"): Weather(bandwidth=steps([0, 0.015], [1e6, 0.0]))}
    policy = Flexible([AG], Monitor(every=0.0), decide_every=1, probe_bytes=1e4)
    with pytest.raises(StalledError, match=r"(?s)p, iteration 0: .*\(probe\)"):
        run_policy(job(3, network=Network(topologies.star(3, 1e-3, 1e6), down)), "p", policy)


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


class Watching(Fixed):
    """A policy that keeps what it observes."""

    def __init__(self, exchange):
        super().__init__(exchange)
        self.observed = []

    def decide(self, context):
        return Decision(self.shortlist(context))

    def observe(self, context, observation):
        self.observed.append(observation)


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


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_a_merge_keeps_its_worker_from_sending_on(workers):
    n, k, levels = 4000, 40, int(math.log2(workers))
    source = Source(workers, sizes=(1000, 3000))
    one = job(workers, source=source, iterations=2, latency=2e-3, device="v100", density=[Ramp(1, 0.01, 0.01)])
    result = run_policy(one, "p", Fixed(Candidate("gtopk", "gtopk")), timeline=2)
    merge = one.device.seconds([DeviceOp("scatter", k), DeviceOp("topk", 2 * k)], 1)[0]
    rest = one.device.seconds([DeviceOp("topk", n), DeviceOp("gather", k), DeviceOp("scatter", k, 2)], 1)[0]
    network = float(costs.gtopk(2e-3, 1e-6, 4.0 * n, 0.01, workers))
    took = 0.01 + rest + levels * merge + network
    assert result.iterations["iteration_s"].to_numpy() == pytest.approx(took, rel=1e-9)
    # Who receives in all levels merges in all, who is a leaf in none; a worker merges while others send.
    select = result.workers.loc[result.workers["iteration"] == 0].set_index("worker")["select_s"]
    merges = [levels if worker == 0 else (worker & -worker).bit_length() - 1 for worker in range(workers)]
    assert select.sort_index().to_numpy() == pytest.approx(rest + np.array(merges) * merge, rel=1e-9)


def test_policies_observe_how_long_the_slowest_worker_selects_and_merges():
    one = job(8, source=Source(8), iterations=1, device="v100", compute=Compute(0.01, spread=0.5))
    policy = Watching(Candidate("gtopk", "gtopk"))
    result = run_policy(one, "p", policy)
    (observed,) = policy.observed
    assert observed.compression == pytest.approx(result.workers["select_s"].max(), rel=1e-9)
    assert observed.compression > 1.5 * result.workers["select_s"].min()


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


def test_an_entry_that_a_sample_selects_costs_what_it_stands_for():
    """0.7 entries of the sample are one, which stands for 1000 of the model: what is trained with is what is sent."""
    one = job(4, source=Source(4, sizes=(50, 20), scale=1000.0), density=[Ramp(1, 0.01, 0.01)])
    sent = run_policy(one, "p", Fixed(RING)).iterations["bytes_sent_B"].to_numpy()
    # A broadcast of 1000 indices to three workers, and a ring all-reduce of 1000 values.
    assert sent == pytest.approx(4 * 1000 * (3 + 2 * 3))
    layers = job(4, source=Source(4, sizes=(50, 20), scale=1000.0), density=[Ramp(1, 0.01, 0.01)])
    sent = run_policy(layers, "p", Fixed(Candidate("LW", "lwtopk"))).iterations["bytes_sent_B"].to_numpy()
    assert sent == pytest.approx(4 * 3 * 8 * 1000)


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


def test_stages_change_the_network_by_iteration():
    fast, slow = (Network(topologies.star(4, 1e-3, bandwidth)) for bandwidth in (1e9, 1e4))
    one = job(4, iterations=6, stages=[(0, fast), (2, slow), (5, fast)])
    took = run_policy(one, "p", Fixed(DENSE)).iterations["iteration_s"].to_numpy()
    assert took[[0, 1, 5]] == pytest.approx(took[0])
    assert (took[2:5] > 2 * took[0]).all()


def test_buckets_cover_the_gradient_from_the_last_layer_to_the_first():
    source = Source(2, sizes=(10, 20, 30, 40), scale=2.0)
    found = gradient_buckets(source, Overlap(bucket=300.0))
    assert [bucket.entries for bucket in found] == [slice(60, 100), slice(10, 60), slice(0, 10)]
    assert [bucket.ready for bucket in found] == [0.25, 0.75, 1.0]
    assert [bucket.layers for bucket in found] == [slice(3, 4), slice(1, 3), slice(0, 1)]
    (whole,) = gradient_buckets(source, None)
    assert (whole.entries, whole.ready) == (slice(0, 100), 1.0)


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
        (Compute, {"mean": -1.0}, "mean"),
        (Compute, {"mean": math.inf}, "mean"),
        (Compute, {"mean": 1.0, "spread": math.nan}, "spread"),
        (Compute, {"mean": 1.0, "straggle": 1.5}, "probability"),
        (Compute, {"mean": 1.0, "slowdown": 0.0}, "factors"),
        (Compute, {"mean": 1.0, "slow": {1: -2.0}}, "factors"),
        (job, {"stages": []}, "stages must start"),
        (job, {"stages": [(1, None)]}, "stages must start"),
        (job, {"density": []}, "density needs ramps"),
        (job, {"density": [Ramp(1, 0.0, 0.1)]}, "density needs ramps"),
        (job, {"iterations": 0}, "at least 1 iteration"),
        (job, {"update": -0.2}, "update must be"),
        (job, {"compute": Compute(1.0, slow={9: 2.0})}, r"slow workers must be within 0..3, got \[9\]"),
        (job, {"placement": [0, 1, 2]}, "4 workers need as many hosts"),
        (job, {"placement": [0, 1, 2, 9]}, "within 0..3"),
        (job, {"failures": {4: 1.0}}, "workers that fail must be within 0..3"),
        (job, {"failures": {0: -1.0}}, "failures and patience"),
        (job, {"failures": {0: math.inf}}, "failures and patience"),
        (job, {"patience": -1.0}, "failures and patience"),
        (Overlap, {"bucket": 0.0}, "bucket must be"),
        (Overlap, {"bucket": math.nan}, "bucket must be"),
        (Overlap, {"backward": 2.0}, "backward is a share"),
    ],
)
def test_wrong_jobs_and_parts_of_jobs_are_refused(build, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


def test_a_policy_does_not_mix_exchanges_with_and_without_error_feedback():
    forgetful = Candidate("forgetful", "topk", {"error_feedback": False})
    with pytest.raises(ValueError, match=r"with error feedback \(ART-ring\) and without \(forgetful\)"):
        run_policy(job(4), "p", OneStepOracle([RING, forgetful]))


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0.01, 1), st.floats(0.01, 1)), min_size=1, max_size=4))
@settings(max_examples=30)
def test_density_stays_within_its_ramps_and_holds_the_last(ramps):
    ramps = [Ramp(*ramp) for ramp in ramps]
    length = sum(ramp.iterations for ramp in ramps)
    seen = [density_at(ramps, iteration) for iteration in range(length + 3)]
    assert seen[length:] == [ramps[-1].end] * 3
    at = 0
    for ramp in ramps:
        low, high = sorted((ramp.start, ramp.end))
        assert all(low <= density <= high for density in seen[at : at + ramp.iterations])
        if ramp.iterations > 1:
            assert seen[at] == ramp.start
        assert seen[at + ramp.iterations - 1] == pytest.approx(ramp.end)
        at += ramp.iterations
