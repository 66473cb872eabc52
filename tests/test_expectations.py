"""What is expected of exchanges by flags, against jobs with other gradients that are simulated in full."""

import numpy as np
import pytest

from simnet.costs.devices import load_device
from simnet.costs.models import model
from simnet.job import Compute, Job, run_in_step
from simnet.policies import Fixed, Ramp
from simnet.studies.choosing import OperatingPoint, by_closed_form, choices
from simnet.studies.choosing import rehearsals as rehearsing
from simnet.studies.choosing.cost_models import network_of
from simnet.studies.choosing.rehearsals import Rehearsals, volume
from simnet.traces import synthetic

WORKERS, MODEL, ENTRIES, ITERATIONS = 5, "resnet18", 10_000, 120
POINT = OperatingPoint(WORKERS, model(MODEL).parameters, 0.02, 1e-4, 1.25e8)
DEVICE = load_device("v100-torch2.6")
ALL = choices(every=True)
SETTLED = [one.label for one in ALL if one.settled]


@pytest.fixture(scope="module")
def expected():
    with pytest.MonkeyPatch.context() as patch:
        # A smaller sample will do for a few workers.
        patch.setattr(rehearsing, "_TOGETHER", 2**16)
        cost_model = by_closed_form(DEVICE, 0.0, Rehearsals(ALL, shape=MODEL))
        return {one.label: cost_model(one, POINT) for one in ALL}


def run(labels, iterations):
    """Return what each iteration of a job takes with some exchanges."""
    source = synthetic(MODEL, WORKERS, iterations=iterations, scale=POINT.parameters / ENTRIES, seed=77)
    job = Job(source, iterations, [(0, network_of(POINT))], [Ramp(1, 0.02, 0.02)], Compute(0.0), DEVICE, seed=3)
    found = run_in_step(job, {one.label: Fixed(one.candidate) for one in ALL if one.label in labels})
    return {label: outcome.iterations["iteration_s"].to_numpy() for label, outcome in found}


@pytest.fixture(scope="module")
def took():
    return run(SETTLED, ITERATIONS)


def check(estimate, seconds):
    least, most = float(estimate.least + estimate.select), float(estimate.most + estimate.select)
    near = float(estimate.seconds) == pytest.approx(seconds, rel=0.05)
    assert near or least <= seconds <= most, (float(estimate.seconds), least, most, seconds)


@pytest.mark.parametrize("label", SETTLED)
def test_intervals_hold_jobs_of_other_gradients_from_their_beginning_on(expected, took, label):
    check(expected[label], took[label].mean())
    check(expected[label], took[label][-ITERATIONS // 3 :].mean())


@pytest.mark.parametrize("label", ["dgc", "oktopk", "qsgd", "topkdsa", "uniontopk"])
def test_settled_periods_are_those_of_jobs(expected, took, label):
    # Of schemes that fit a threshold anew in each exchange single samples are off by more.
    assert float(expected[label].seconds) == pytest.approx(took[label][-ITERATIONS // 3 :].mean(), rel=0.1)


@pytest.mark.parametrize("label", ["exdyna", "micro"])
def test_thresholds_that_take_a_thousand_iterations_to_settle_have_settled(expected, took, label):
    closed = float(next(one for one in ALL if one.label == label).communicate(POINT))
    # As many entries as were asked for; the closed form knows no worker who selects more than the others.
    assert closed < float(expected[label].communicate) < 3 * closed
    # A job is far from that, and the interval says so.
    assert took[label].mean() > 3 * float(expected[label].seconds)


@pytest.mark.parametrize("label", [one.label for one in ALL if not one.settled])
def test_volumes_that_are_fixed_are_those_of_jobs(expected, label):
    check(expected[label], run([label], 2 * WORKERS)[label].mean())


def test_gradients_are_drawn_once_for_all(monkeypatch):
    asked = []
    real = rehearsing.synthetic

    def counted(*args, **options):
        source = real(*args, **options)
        drawn = source.gradients
        source.gradients = lambda iteration: asked.append(iteration) or drawn(iteration)
        return source

    monkeypatch.setattr(rehearsing, "synthetic", counted)
    monkeypatch.setattr(rehearsing, "_ENTRIES", 0)
    monkeypatch.setattr(rehearsing, "_TOGETHER", 0)
    among = [one for one in ALL if one.label in ("oktopk", "qsgd", "uniontopk")]
    rehearsals = Rehearsals(among)
    found = [len(rehearsals.of(one, POINT)) for one in among]
    assert asked == list(range(len(asked)))
    # Whole periods, of the half of them.
    assert found[0] <= among[0].period
    bucket = POINT.at("parameters", -(-POINT.parameters // 4))
    part = rehearsals.of_bucket(among[2], bucket, 4)
    whole = rehearsals.of(among[2], POINT)[-1]
    assert part.schedule.bytes_sent().sum() == pytest.approx(whole.schedule.bytes_sent().sum() / 4, rel=1e-6)
    assert asked == list(range(len(asked)))


def test_what_was_not_measured_may_be_off_as_anything_that_was():
    known = [volume(one) for one in SETTLED]
    assert all(least <= 1 <= most for least, most in known)
    assert volume("made up") == (min(np.array(known)[:, 0]), max(np.array(known)[:, 1]))
