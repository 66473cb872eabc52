"""The multi-objective choice of the density: front, knee, weights; what triggers what; the charge for exploration."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jobs import AG, RING, SPLIT, TREE, job_on
from simnet import sparsifier_models, topologies
from simnet.base.errors import InputError
from simnet.cost_models import costs
from simnet.network import Network
from simnet.network.weather import PROFILES, Weather, profile_state, steps
from simnet.policies import Fixed, Monitor, Observation, PolicyContext, Ramp, closed_form, density_at, moo
from simnet.policies.moo import (
    DENSITIES,
    DensitySearch,
    Moo,
    ObjectiveWeights,
    choose_as_published,
    choose_candidate,
    knee_point,
    normalise_points,
    pareto_front,
    weighted_point,
)
from simnet.report.run_summary import summarize, with_exploration
from simnet.scenario import load
from simnet.sparsifier_models.artopk import windowed_mean
from simnet.training.job.job import Compute
from simnet.training.job.record import EXPLORE, TRAIN
from simnet.training.job.running import run_policy

SPARSE = (RING, TREE, AG)
RESNET18 = 46_758_048.0

POINTS = arrays(np.float64, st.tuples(st.integers(1, 25), st.integers(1, 3)), elements=st.integers(0, 6).map(float))
FRONTS = arrays(np.float64, st.tuples(st.integers(1, 15), st.just(3)), elements=st.integers(0, 40).map(float)).map(
    lambda points: np.unique(points[pareto_front(points)], axis=0)
)


def beats(one, other):
    return all(a <= b for a, b in zip(one, other, strict=True)) and any(a < b for a, b in zip(one, other, strict=True))


# The front and the choice on it


@given(POINTS)
def test_the_front_is_what_brute_force_finds(points):
    rows = points.tolist()
    expected = [index for index, one in enumerate(rows) if not any(beats(other, one) for other in rows)]
    assert pareto_front(points).tolist() == expected


POWERS = st.integers(-3, 3).map(lambda exponent: 2.0**exponent)


@given(FRONTS, POWERS, POWERS, st.integers(-5, 5), st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_units_origins_or_order(front, gain_unit, time_unit, origin, shuffle):
    order = list(range(len(front)))
    shuffle.shuffle(order)
    moved = (front * [gain_unit, time_unit, time_unit] + origin)[order]
    scaled, again = normalise_points(front, (0, 1, 1)), normalise_points(moved, (0, 1, 1))
    assert np.array_equal(again, scaled[order])
    assert merits(again, knee_point(again)) == pytest.approx(merits(scaled, knee_point(scaled)), abs=1e-8)
    weights = (2.0, 1.0, 1.0)
    one, other = weighted_point(scaled, weights), moo.weighted_point(again, weights)
    assert losses(again * weights, other) == pytest.approx(losses(scaled * weights, one), abs=1e-8)


def merits(front, index):
    """Distance from the chord of a point that is on the good side of it, else the losses that decide."""
    rest = front[:, 1:].sum(axis=1)
    first = front[min(range(len(front)), key=lambda row: (front[row, 0], rest[row], *front[row]))]
    last = front[min(range(len(front)), key=lambda row: (rest[row], *front[row]))]
    offset, chord = front[index] - first, last - first
    length = float(chord @ chord)
    off = offset - (offset @ chord / length) * chord if length else offset
    distance = float(np.linalg.norm(off))
    return (distance, 0.0) if off.sum() < 0 and distance > 1e-9 else losses(front, index)


def losses(front, index):
    return float(front[index].max()), float(front[index].sum())


@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)), max_size=10))
def test_the_knee_of_two_objectives_is_farthest_below_the_chord(inner):
    front = np.array([(0.0, 1.0), (1.0, 0.0), *inner])
    front = front[pareto_front(front)]
    below = (1 - front.sum(axis=1)) / math.sqrt(2)
    chosen = knee_point(front)
    if below.max() > 1e-6:
        assert below[chosen] == pytest.approx(below.max(), abs=1e-8)
    else:
        assert front[chosen].max() == pytest.approx(front.max(axis=1).min(), abs=1e-8)


# The published objective


def fig_3_gains(file):
    for (model, _), rows in pd.read_csv(file).groupby(["model", "compressor"]):
        ascending = rows.sort_values("CR")
        yield model, ascending["CR"].to_numpy(), ascending["mean_gain_over_run"].to_numpy()


def test_the_published_objective_takes_what_the_gains_of_fig_3_ask_for(shared):
    """Densities of 0.006 to 0.027 in every state of C1 and C2, by the gains of Fig. 3, interpolated in log c."""
    file = shared / "papers" / "data" / "artopk_fig3_compression_gain_summary.csv"
    messages = {"ResNet18": 46_758_048, "ResNet50": 102_228_128, "AlexNet": 244_403_360, "ViT": 531_453_344}
    states = {(state.latency, state.bandwidth) for name in ("C1", "C2") for state in PROFILES[name].states}
    found = []
    for model, ratios, measured in fig_3_gains(file):
        gain = np.interp(np.log(DENSITIES), np.log(ratios), measured)
        for latency, bandwidth in states:
            sync = costs.best_collective(latency, 1 / bandwidth, messages[model], DENSITIES, 8).seconds
            found.append(choose_as_published(DENSITIES, gain, sync))
    assert len(found) == 8 * len(states)
    assert min(found) >= 0.006
    assert max(found) <= 0.027


def test_fits_are_the_published_formulas():
    assert moo.communication_fit([0.0, 2.0], 0.5, 3.0) == pytest.approx([2.0, 3 * math.e - 1])
    above, below = math.exp(0.2) - math.exp(-0.4) + 5, math.exp(0.6) + math.exp(-0.8) + 6
    assert moo.gain_fit(0.2, 1, 2, 3, 4, 5, 6) == pytest.approx(above / below)


def test_fits_that_do_not_converge_are_said_so():
    assert choose_as_published(DENSITIES, [0.1, 0.9, 0.1, 0.9, 0.1], [1e6, 1e-3, 1e3, 0.0, 5.0]) is None


# When it explores and when it searches


def star(bandwidth=1.25e9, latency=1e-3, weather=None):
    return Network(topologies.star(8, latency, bandwidth), weather)


def star_with(levels, at=None):
    at = list(range(len(levels))) if at is None else at
    return star(weather={link: Weather(bandwidth=steps(at, levels)) for link in topologies.star(8, 1e-3, 1e9).edges})


class Course:
    """A policy in a world of constructed gains: what it did before and in each iteration, one second each."""

    def __init__(self, policy, networks, gains, iterations, monkeypatch):
        self.explored, self.trained, self.searches = {}, [], []
        grid = policy.search.mode == "grid"

        def counted(*arguments):
            self.searches.append(len(self.trained))
            return (choose_candidate if grid else choose_as_published)(*arguments)

        monkeypatch.setattr(moo, "choose_candidate" if grid else "choose_as_published", counted)
        policy.reset()
        for number in range(iterations):
            network = networks(number) if callable(networks) else networks
            context = PolicyContext(number, float(number), network, range(8), RESNET18, 0.5)
            while (decision := policy.decide(context)).attempt is not None:
                assert policy.decide(context) == decision
                self.explored.setdefault(number, []).append((decision.density, decision.shortlist[0].label))
                assert decision.attempt == (len(self.explored[number]) - 1) % policy.search.tries
                policy.observe(context, seen(decision, gains(number, decision.density), grid))
            self.trained.append((decision.density, decision.shortlist[0].label))
            policy.observe(context, seen(decision, gains(number, decision.density), grid))


def seen(decision, gain, grid=True):
    """What came of a decision; the gain that the mode does not go by is none."""
    told, released = (gain, math.nan) if grid else (math.nan, gain)
    return Observation(decision, decision.shortlist[0], told, released, 1e-3)


def by_density(number, density):
    return density**0.3


def grid(among=SPARSE, every=0.0, change=0.1, **search):
    return Moo(among, Monitor(every=every, change=change), DensitySearch(**search))


@given(st.floats(1e-4, 0.1), st.floats(1e7, 2e10), st.floats(0.05, 0.9), st.permutations(SPARSE))
@settings(max_examples=30)
def test_on_the_grid_the_choice_is_exact(latency, bandwidth, power, among):
    policy = grid(among, tries=1)
    context = PolicyContext(0, 0.0, star(bandwidth, latency), range(8), RESNET18, 0.5)
    while (decision := policy.decide(context)).attempt is not None:
        policy.observe(context, seen(decision, decision.density**power))
    sync = np.array([[closed_form(one)(latency, 1 / bandwidth, RESNET18, c, 8) for one in among] for c in DENSITIES])
    expected = choose_candidate(np.array(DENSITIES) ** power, [1e-3] * 5, sync.min(axis=1))
    assert decision.density == DENSITIES[expected]
    assert decision.shortlist == (among[int(sync[expected].argmin())],)


def test_with_nothing_new_it_explores_and_searches_once(monkeypatch):
    course = Course(grid(), star(), by_density, 40, monkeypatch)
    assert list(course.explored) == [0]
    assert [density for density, _ in course.explored[0]] == [density for density in DENSITIES for _ in range(10)]
    assert course.searches == [0]
    assert len(set(course.trained)) == 1


@pytest.mark.parametrize(("factor", "again"), [(0.95, []), (1.05, []), (0.8, [0]), (1.3, [0])])
def test_a_change_of_the_gain_calls_for_exploration_when_it_shows_in_the_smoothed_gain(monkeypatch, factor, again):
    def gains(number, density):
        return by_density(number, density) * (factor if number >= 20 else 1.0)

    course = Course(grid(), star(), gains, 40, monkeypatch)
    smoothed = [float(windowed_mean(np.array([1.0] * (5 - new) + [factor] * new), 5, 0.01)) for new in range(6)]
    due = [20 + new for new in range(1, 6) if abs(smoothed[new] - 1) >= 0.1][:1]
    assert list(course.explored) == [0, *due]
    assert bool(due) == bool(again)
    assert course.searches == [0, *due]


def test_a_gain_that_wanders_slowly_is_noticed_too(monkeypatch):
    course = Course(grid(), star(), lambda number, density: by_density(number, density) * 0.99**number, 60, monkeypatch)
    assert 3 <= len(course.explored) <= 7


def test_a_network_that_changes_is_searched_anew_without_exploration(monkeypatch):
    levels = [1.25e9] * 5 + [1.2e9] * 5 + [0.9e9] * 5 + [1.25e9] * 5
    course = Course(grid([AG]), star_with(levels), by_density, 20, monkeypatch)
    assert list(course.explored) == [0]
    assert course.searches == [0, 10, 15]
    course = Course(grid([AG], every=4.0), star_with(levels), by_density, 20, monkeypatch)
    assert course.searches == [0, 12, 16]


def test_an_exchange_that_becomes_the_fastest_is_explored_once_where_it_does(monkeypatch):
    levels = [1.25e9] * 5 + [1e7] * 5 + [1.25e9] * 5 + [1e7] * 5
    course = Course(grid(), star_with(levels), by_density, 20, monkeypatch)
    fast, slow = (
        [str(costs.best_collective(1e-3, 1 / level, RESNET18, c, 8).label) for c in DENSITIES]
        for level in (1.25e9, 1e7)
    )
    changed = [(c, after) for c, before, after in zip(DENSITIES, fast, slow, strict=True) if before != after]
    assert 0 < len(changed) < 5
    assert list(course.explored) == [0, 5]
    assert course.explored[5] == [pair for pair in changed for _ in range(10)]
    assert course.searches == [0, 5, 10, 15]


def published(warm_up=10, **search):
    return Moo(SPARSE, Monitor(every=0.0, change=0.0), DensitySearch(mode="published", warm_up=warm_up, **search))


def test_published_warms_up_explores_once_and_keeps_the_highest_until_the_network_changes(monkeypatch):
    course = Course(published(), star_with([1e8] * 20 + [2e7] * 10), by_density, 30, monkeypatch)
    densities = [density for density, _ in course.trained]
    assert densities[:10] == [density_at([Ramp(10, 1.0, 0.1)], number) for number in range(10)]
    assert (densities[0], densities[9]) == (1.0, 0.1)
    for number, (density, label) in enumerate(course.trained[:20]):
        at = density if number < 10 else 0.1
        assert label == str(costs.best_collective(1e-3, 1e-8, RESNET18, at, 8).label)
    assert list(course.explored) == [10]
    assert set(densities[10:20]) == {0.1}
    assert course.searches == [20]
    assert len(set(densities[20:])) == 1
    assert 0.001 < densities[20] < 0.1
    assert densities[20] not in DENSITIES


def test_published_notices_networks_by_iteration_one_iteration_late(monkeypatch):
    fast, slow = star(1e8), star(2e7)
    course = Course(published(), lambda number: fast if number < 20 else slow, by_density, 30, monkeypatch)
    assert course.searches == [21]


@pytest.mark.parametrize(("config", "shares"), [("C1", (5070, 2718, 2157)), ("C2", (9165, 378, 402))])
def test_published_replays_the_shares_of_fig_8(monkeypatch, config, shares):
    """Steps of AG, ring and tree in 51 epochs of 195, but for the one step by which each change is noticed late."""
    states = [profile_state(config, epoch) for epoch in range(51)]
    networks = {state: star(state.bandwidth, state.latency) for state in set(states)}
    policy = published(warm_up=390, tries=1)
    course = Course(policy, lambda number: networks[states[number // 195]], by_density, 51 * 195, monkeypatch)
    labels = [label for _, label in course.trained]
    changes = sum(a[1:] != b[1:] for a, b in itertools.pairwise(states))
    assert len(course.searches) == changes
    for label, steps_ in zip(("AG", "ART-ring", "ART-tree"), shares, strict=True):
        assert abs(labels.count(label) - steps_) <= changes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"densities": ()}, "densities"),
        ({"densities": (0.1, 1.5)}, "densities"),
        ({"weights": ObjectiveWeights(-1.0)}, "weights must be"),
        ({"weights": ObjectiveWeights(math.inf)}, "weights must be"),
        ({"tries": 0}, "tries"),
        ({"gain_change": 0.0}, "gain_change"),
        ({"gain_change": math.inf}, "gain_change"),
    ],
)
def test_wrong_searches_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DensitySearch(**arguments)


# In the simulated job


def job(iterations=12, workers=4, weather=None, **changes):
    return job_on(Network(topologies.star(workers, 1e-3, 1e6), weather), workers, iterations, device="v100", **changes)


def small(**search):
    return grid(**({"densities": (0.5, 0.1, 0.02), "tries": 3} | search))


def test_the_charge_for_exploration_adds_up():
    weather = {(0, "switch"): Weather(bandwidth=steps([0, 0.3], [1e6, 2e5]))}
    one = job(weather=weather, compute=Compute(0.01, spread=0.2), update=1e-3)
    result = run_policy(one, "moo", small())
    frame = result.iterations
    ends = (frame["start_s"] + frame["iteration_s"]).to_numpy()
    assert frame["start_s"].to_numpy()[1:] == pytest.approx(ends[:-1], abs=1e-12)
    assert math.fsum(frame["iteration_s"]) == pytest.approx(ends[-1])
    assert frame[SPLIT].sum(axis=1).to_numpy() == pytest.approx(frame["iteration_s"].to_numpy(), abs=1e-9)
    explored = frame[frame["purpose"] == EXPLORE]
    assert explored["density"].head(9).tolist() == [0.5] * 3 + [0.1] * 3 + [0.02] * 3
    assert (explored["iteration_s"] > 0.01 * 0.5).all()
    trained = frame[frame["purpose"] == TRAIN]
    assert trained["iteration"].tolist() == list(range(12))
    assert len(result.workers) == 4 * len(frame)
    assert (result.workers.groupby(["iteration", "purpose"]).size() % 4 == 0).all()

    merged = with_exploration(frame)
    assert merged["iteration"].tolist() == list(range(12))
    assert math.fsum(merged["iteration_s"]) == pytest.approx(ends[-1])
    assert merged[SPLIT].sum(axis=1).to_numpy() == pytest.approx(merged["iteration_s"].to_numpy())
    assert merged["start_s"].to_numpy()[1:] == pytest.approx((merged["start_s"] + merged["iteration_s"])[:-1])

    plain = run_policy(one, "AG", Fixed(AG)).iterations
    summary = summarize({"moo": frame, "AG": plain})
    said = summary["policies"]["moo"]
    assert said["iterations"] == 12
    assert said["exploration"]["iterations"] == len(explored)
    assert said["exploration"]["seconds"] == pytest.approx(math.fsum(explored["iteration_s"]))
    assert said["simulated_s"] == pytest.approx(ends[-1])
    assert math.fsum(said["breakdown_s"].values()) == pytest.approx(ends[-1])
    assert sum(said["choices"].values()) == 12
    assert summary["policies"]["AG"]["exploration"] == {"iterations": 0, "seconds": 0.0}


@pytest.mark.parametrize("candidate", [AG, RING])
def test_explored_gains_are_those_of_first_exchanges_at_each_density(candidate):
    frame = run_policy(job(), "p", small(among=[candidate], tries=1)).iterations
    gradients, expected = job().source.gradients(0), []
    for density in (0.5, 0.1, 0.02):
        model = sparsifier_models.create(candidate.scheme, 4, 200, density, **candidate.options)
        expected.append(model.exchange(gradients).stats["gain"])
    assert frame["gain"].head(3).to_numpy() == pytest.approx(expected)


# In scenarios

SCENARIO = """\
workers: 4
network:
  topology: {star: {latency: 1 ms, bandwidth: 1 Gbit/s}}
job: {parameters: 5000, iterations: 6, density: 0.1, compute: {mean: 5 ms}}
exchanges:
  AG: {scheme: topk}
  ART: {scheme: artopk}
  odd: {scheme: artopk, monitored: true}
policies:
  moo: {moo: {among: [AG, ART]}}
"""


def scenario(tmp_path, moo="{among: [AG, ART]}", job=""):
    file = tmp_path / "a.yaml"
    file.write_text(SCENARIO.replace("{among: [AG, ART]}", moo).replace("job: {", f"job: {{{job}"))
    return load(file)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{amng: [AG]}", "did you mean 'among'"),
        ("{among: [AGG]}", "did you mean 'AG'"),
        ("{mode: publised}", "did you mean 'published'"),
        ("{}", "no closed form is known for 'odd'"),
        ("{among: [AG], mode: published}", "warm_up: is missing"),
        ("{among: [AG], warm_up: 2 epochs}", "no job.epoch"),
        ("{among: [AG], mode: published, warm_up: 3, weights: {gain: 2}}", "weights cannot be set"),
        ("{among: [AG], mode: published, warm_up: 3, densities: [0.1, 0.01]}", "at least 4"),
        ("{among: [AG], densities: [0.1, 0.1]}", "no two alike"),
        ("{among: [AG], densities: [2]}", "densities[0]"),
        ("{among: [AG], weights: {gain: 0, compression: 0, communication: 0}}", "must not all be 0"),
        ("{among: [AG], weights: {gian: 1}}", "did you mean 'gain'"),
    ],
)
def test_mistakes_are_explained(tmp_path, given, message):
    with pytest.raises(InputError) as error:
        scenario(tmp_path, given)
    assert message in str(error.value)
    assert "a.yaml:10" in str(error.value)


def test_densities_of_the_search_are_tried_with_the_scheme(tmp_path):
    run = scenario(tmp_path, "{among: [AG, ART], tries: 2}").build()
    frame = run_policy(run.job, "moo", run.policies["moo"]).iterations
    assert set(frame[frame["purpose"] == EXPLORE]["density"]) == set(DENSITIES)


@pytest.mark.slow
def test_the_shipped_scenario_changes_density_and_exchange():
    run = load("moo_wan").build()
    frame = run_policy(run.job, "moo", run.policies["moo"]).iterations
    trained = frame[frame["purpose"] == TRAIN]
    assert trained["density"].nunique() > 1
    assert frame["choice"].nunique() > 1
