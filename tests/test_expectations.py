"""What is expected of exchanges by flags, against jobs with other gradients that are simulated in full."""

from importlib.resources import files

import numpy as np
import pandas as pd
import pytest
from scipy.special import stdtrit
from scipy.stats import norm

from simnet import sparsifier_models
from simnet.cost_models.costs.devices import load_device
from simnet.cost_models.costs.models import load_model
from simnet.policies import Candidate, Fixed, Ramp
from simnet.scenario import load
from simnet.studies.choosing import job_output
from simnet.studies.choosing import sampled_exchanges as rehearsing
from simnet.studies.choosing.choices import choices
from simnet.studies.choosing.cost_models import by_closed_form, network_of
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.sampled_exchanges import KEPT_EACH, SampledExchanges, kept_each, ratio
from simnet.studies.choosing.whole_job import decide_job
from simnet.studies.choosing.win_probability import over_job
from simnet.traces import synthetic
from simnet.training.job.job import Compute, Job
from simnet.training.job.running import run_in_step
from simnet.training.job.steady import last_half

WORKERS, MODEL, ENTRIES, ITERATIONS = 5, "resnet18", 10_000, 120
POINT = OperatingPoint(WORKERS, load_model(MODEL).parameters, 0.02, 1e-4, 1.25e8)
DEVICE = load_device("v100-torch2.6")
ALL = choices(every=True)
SETTLED = [one.label for one in ALL if one.follows_gradients]


@pytest.fixture(scope="module")
def expected():
    with pytest.MonkeyPatch.context() as patch:
        # A smaller sample will do for a few workers.
        patch.setattr(rehearsing, "_TOGETHER", 2**16)
        cost_model = by_closed_form(DEVICE, 0.0, SampledExchanges(ALL, shape=MODEL))
        return {one.label: cost_model(one, POINT) for one in ALL}


def run(labels, iterations):
    """Return what each iteration of a job takes with some exchanges."""
    source = synthetic(MODEL, WORKERS, scale=POINT.parameters / ENTRIES, seed=77)
    job = Job(source, iterations, [(0, network_of(POINT))], [Ramp(1, 0.02, 0.02)], Compute(0.0), DEVICE, seed=3)
    found = run_in_step(job, {one.label: Fixed(one.candidate) for one in ALL if one.label in labels})
    return {label: outcome.iterations["iteration_s"].to_numpy() for label, outcome in found}


@pytest.fixture(scope="module")
def took():
    """Take a minute, whichever test is the first that asks."""
    return run(SETTLED, ITERATIONS)


def last(took, label):
    """Return the mean of what counts of a job once it has settled, as of a rehearsal."""
    period = next(one.period for one in ALL if one.label == label)
    return took[label][last_half(len(took[label]), period) :].mean()


def check(estimate, seconds):
    ran = estimate.follows.ran
    least, most = float(estimate.least + ran[0] * estimate.select), float(estimate.most + ran[1] * estimate.select)
    near = float(estimate.seconds) == pytest.approx(seconds, rel=0.05)
    assert near or least <= seconds <= most, (float(estimate.seconds), least, most, seconds)


@pytest.mark.parametrize("label", SETTLED)
def test_intervals_hold_jobs_of_other_gradients_from_their_beginning_on(expected, took, label):
    check(expected[label], took[label].mean())
    check(expected[label], last(took, label))


@pytest.mark.slow
@pytest.mark.parametrize("label", ["dgc", "oktopk", "qsgd", "topkdsa", "uniontopk"])
def test_settled_periods_are_those_of_jobs(expected, label):
    # Of schemes that fit a threshold anew in each exchange single samples are off by more. Ok-Topk sends less from one
    # period to the next, so that the job is as long as a rehearsal.
    assert float(expected[label].seconds) == pytest.approx(last(run([label], 192), label), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["exdyna", "micro"])
def test_thresholds_that_are_estimated_have_settled_in_rehearsals_and_jobs(expected, took, label):
    closed = float(next(one for one in ALL if one.label == label).communicate(POINT))
    # As many entries as were asked for; the closed form knows no worker who selects more than the others.
    assert closed < float(expected[label].communicate) < 2 * closed
    # From the published start a job takes ten times as long.
    assert took[label].mean() == pytest.approx(float(expected[label].seconds), rel=0.2)


@pytest.mark.parametrize("label", [one.label for one in ALL if not one.follows_gradients])
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
    rehearsals = SampledExchanges(among)
    found = [len(rehearsals.of(one, POINT)) for one in among]
    assert asked == list(range(len(asked)))
    # Whole periods, of the half of them.
    assert found[0] <= among[0].period


def test_a_longer_rehearsal_begins_as_a_shorter_one_and_counts_its_last_half():
    choice = next(one for one in ALL if one.label == "uniontopk")
    short, long = (
        [one.schedule.bytes_sent().tolist() for one in SampledExchanges([choice], size=(2000, count)).of(choice, POINT)]
        for count in (150, 160)
    )
    assert (len(short), len(long)) == (75, 80)
    assert short[5:] == long[:70]
    periodic = next(one for one in ALL if one.label == "oktopk")
    assert len(SampledExchanges([periodic], size=(2000, 191)).of(periodic, POINT)) == periodic.period == 64


@pytest.mark.parametrize("part", ["messages", "kernels"])
def test_what_was_not_measured_may_be_off_as_anything_that_was(part):
    known = np.array([ratio(one, part) for one in SETTLED])
    assert (known[:, 0] == 1).all()
    assert (known[:, 1] <= 1).all()
    assert (known[:, 2] >= 1).all()
    assert ratio("made up", part) == (1.0, known[:, 1].min(), known[:, 2].max())


@pytest.mark.parametrize("label", SETTLED)
@pytest.mark.parametrize("part", ["messages", "kernels"])
def test_what_few_entries_do_goes_away_as_they_become_more(label, part):
    found = [ratio(label, part, kept) for kept in (0.1, 0.5, 1.7, 5.0, 9.999, KEPT_EACH)]
    for one in found:
        assert 0 < one.least <= one.middle <= one.most
    assert found[-2] == pytest.approx(found[-1], rel=1e-2)
    # Nothing was measured of fewer.
    assert found[0] == found[1]


def test_rehearsals_of_few_entries_are_corrected(monkeypatch):
    choice = next(one for one in ALL if one.label == "oktopk")
    monkeypatch.setattr(rehearsing, "_TOGETHER", 0)
    point = POINT.at("workers", 16)
    few = kept_each(point)
    assert few < KEPT_EACH
    entries = round(few * 16 / 0.02)
    as_they_are = SampledExchanges([choice], size=(entries, 64)).of(choice, point)
    corrected = SampledExchanges([choice], size=None)
    monkeypatch.setattr(rehearsing, "_size", lambda point: (entries, 64))
    middle = ratio("oktopk", "messages", few).middle
    assert middle < 0.95
    for one, other in zip(corrected.of(choice, point), as_they_are, strict=True):
        assert one.schedule.bytes_sent() == pytest.approx(middle * other.schedule.bytes_sent())
    assert corrected.kept_each(point) == few


def test_more_entries_take_what_few_are_corrected_to():
    # Of 16 workers that keep 2 entries each for each other, regions are less even than of ten times as many.
    choice = next(one for one in ALL if one.label == "oktopk")
    point = POINT.at("workers", 16)
    few, many = (
        np.mean([one.schedule.bytes_sent().max() for one in SampledExchanges([choice], 5, size=size).of(choice, point)])
        for size in ((1600, 96), (16_000, 96))
    )
    found = ratio("oktopk", "messages", 2.0)
    assert found.least <= many / few <= found.most
    assert many / few < 0.95


def test_kernels_of_dgc_do_not_hang_on_how_far_a_job_is_scaled_down():
    # A sample of the whole is close to its threshold, and nothing is selected anew.
    for entries in (2_000, 20_000):
        source = synthetic(MODEL, 2, iterations=4, scale=POINT.parameters / entries, seed=9)
        scheme = sparsifier_models.create("dgc", 2, source.parameters, 0.02, scale=source.scale)
        for iteration in range(4):
            found = scheme.exchange(source.gradients(iteration))
            assert (found.stats["tries"] == 1).all()
            sampled = next(one for one in found.kernels if one.method == "topk")
            assert sampled.entries == pytest.approx(POINT.parameters / 100, rel=0.1)
            assert sum(one.method == "topk" for one in found.kernels) == 1


def test_answers_say_what_few_entries_do():
    job = load("quickstart", ["workers=16", "job.scale=20000", "job.iterations=100", "job.density=1 %"])
    run = job.build()
    among = [(Candidate(one, one), "sparse") for one in ("oktopk", "topk")]
    found = decide_job(run, among, policies=False)
    said = job_output.sentences(job_output.Asked("job", 0, run.job, 0.01), found, over_job(found.rows, run.job))
    few = [one for one in said if one.startswith("A sample in which a worker keeps")]
    assert len(few) == 1
    assert "oktopk 0." in few[0]
    assert "topk" not in few[0].replace("oktopk", "")
    enough = job_output.Asked("job", 0, run.job, 0.5)
    assert set(said) - set(job_output.sentences(enough, found, over_job(found.rows, run.job))) == set(few)


def test_intervals_of_exchanges_that_follow_the_gradients_go_as_far_as_those_of_a_further_cell():
    rows = pd.read_csv(files("simnet.cost_models.calibration.measured") / "volumes.csv")
    own = rows[(rows["scheme"] == "exdyna") & (rows["part"] == "messages") & (rows["kept_each"] == KEPT_EACH)].iloc[0]
    found, wider = ratio("exdyna", "messages"), stdtrit(3, 0.95) * np.sqrt(5 / 4) / norm.ppf(0.95)
    assert own["cells"] == 4
    assert (found.least, found.most) == pytest.approx((own["least"] ** wider, own["most"] ** wider))
