"""How messages of a calibrated system scatter: what was drawn comes back, from logs through files into simulations."""

import numpy as np
import pandas as pd
import pytest

from commands import did, refused
from simnet import collectives, topologies
from simnet.base.rng import stream
from simnet.cost_models.calibration import CalibratedSoftware, Curve, Setting, calibrate, load_cost_model
from simnet.cost_models.calibration.jitter import (
    LEAST_REPETITIONS,
    FittedJitter,
    RepeatedCall,
    draw_extra_times,
    fit_jitter,
    fit_links,
    median_extra_time,
    messages_of,
)
from simnet.network import STACKS, Network, Stack
from simnet.network.jitter import lognormal
from simnet.scenario import load
from simnet.schedule import Round, Schedule

IDEAL = Stack()
RING, TREE, PAIR = (
    Setting("all_reduce", 4, 4, "ring"),
    Setting("broadcast", 8, 8, "binomial"),
    Setting("sendrecv", 2, 2),
)
LATENCY, BANDWIDTH = 2e-3, 1e8
SIZES = 2.0 ** np.arange(10, 19)


def network(ranks=8, median=0.0, sigma=0.0, **options):
    jitter = lognormal(median, sigma) if median else None
    return Network(topologies.star(ranks, LATENCY, BANDWIDTH), jitter=jitter, **options)


def timed(setting, size, count, one):
    schedule = messages_of(setting, size)
    return np.array([one.time(schedule, stream=(str(setting), repr(size), at)).duration for at in range(count)])


def scattering(median, sigma, count, settings=(RING, TREE), seed=0):
    """Return repetitions of calls whose longest chains of messages are known by hand."""
    draws, found = np.random.default_rng(seed), []
    # Each rank of a ring ends a chain of six messages; down a tree of eight ranks there is one of three.
    chains = {RING: (4, 6), TREE: (1, 3), PAIR: (2, 1)}
    for setting in settings:
        for size in SIZES:
            late = median * np.exp(sigma * draws.standard_normal((count, *chains[setting])))
            found.append(RepeatedCall(setting, size, LATENCY + size / BANDWIDTH + late.sum(axis=2).max(axis=1)))
    return found


@pytest.mark.parametrize(("median", "sigma", "count"), [(2e-5, 0.5, 400), (5e-6, 1.5, 400), (1e-5, 1.0, 400)])
def test_extra_latencies_that_were_drawn_are_found_again(median, sigma, count):
    found = fit_jitter(scattering(median, sigma, count), IDEAL)
    assert found.sigma == pytest.approx(sigma, rel=0.1)
    assert found.median == pytest.approx(median, rel=0.25)
    assert (found.settings, found.repetitions) == (18, 18 * count)


def test_no_scatter_gives_none_and_so_do_few_repetitions():
    assert fit_jitter(scattering(0.0, 0.0, 10), IDEAL) is None
    still = [RepeatedCall(RING, size, np.full(10, 0.1) * (1 + 1e-13 * np.arange(10))) for size in SIZES]
    assert fit_jitter(still, IDEAL) is None
    one = scattering(1e-5, 1.0, LEAST_REPETITIONS, [PAIR])[:1]
    assert fit_jitter(one, IDEAL) is not None
    assert fit_jitter([one[0]._replace(seconds=one[0].seconds[1:])], IDEAL) is None


@pytest.mark.parametrize(
    ("stack", "setting"), [("ideal", RING), ("ideal", TREE), ("openmpi", RING), ("gloo", TREE)], ids=str
)
def test_extra_time_of_a_call_is_that_of_its_simulation(stack, setting):
    own = network(median=1e-6, sigma=0.8, stack=stack)
    late = timed(setting, 8.0, 150, own) - timed(setting, 8.0, 1, network(stack=stack))
    expected = 1e-6 * draw_extra_times(STACKS[stack].cut(messages_of(setting, 8.0)), 0.8, 4000)
    np.testing.assert_allclose(np.percentile(late, [20, 50, 90]), np.percentile(expected, [20, 50, 90]), rtol=0.15)


@pytest.mark.parametrize("seed", range(8))
def test_calls_are_late_by_the_latest_of_their_longest_chains(seed):
    draws = np.random.default_rng(seed)
    once = Schedule(5, [Round(*draws.permutation(5)[: 2 * many].reshape(2, many), 1.0) for many in (2, 1, 2, 1, 2, 1)])
    numbers = stream(0, "extra latency", 5, once.n_messages)
    chains = {rank: [(0, 0.0)] for rank in range(5)}
    for one in once.rounds:
        late = np.exp(0.9 * numbers.standard_normal((len(one), 7)))[:, 4]
        arriving = [
            (dst, [(length + 1, sum_ + more) for length, sum_ in chains[src]])
            for src, dst, more in zip(one.src.tolist(), one.dst.tolist(), late, strict=True)
        ]
        for dst, found in arriving:
            chains[dst] = chains[dst] + found
    every = [one for found in chains.values() for one in found]
    longest = max(length for length, _ in every)
    found = draw_extra_times(once, 0.9, 7)
    assert found.shape == (7,)
    assert found[4] == pytest.approx(max(sum_ for length, sum_ in every if length == longest))


JITTER = FittedJitter(2e-4, 0.9, 10, 100)
CALLS = Setting("all_reduce", 8, 8, "ring"), Setting("broadcast", 8, 8, "binomial")


@pytest.fixture(scope="module")
def model():
    """Return a cost model of a star that has jitter."""
    sizes = 2.0 ** np.arange(8, 23, 2)
    found = calibrate([Curve(one, sizes, 2.5e-2 + sizes * 4e-8) for one in CALLS])
    found.network, found.jitter = {"star": {"hosts": 8, "latency": 1e-3, "bandwidth": 1e9}}, JITTER
    return found


def simulation(model, named):
    software = CalibratedSoftware(model, topologies.star(8, 1e-3, 1e9), jitter=named)
    drawn = lognormal(JITTER.median, JITTER.sigma) if named else None
    return Network(software.graph, stack=software.stack, software=software, jitter=drawn)


@pytest.mark.parametrize("setting", CALLS, ids=str)
def test_calls_take_as_predicted_in_the_median_and_scatter_as_fitted(setting, model):
    times = timed(setting, 65536.0, 150, simulation(model, named=True))
    predicted = model.predict(setting.collective, 8, 65536, algorithm=setting.algorithm).seconds
    schedule = messages_of(setting, 65536.0)
    late = JITTER.median * draw_extra_times(schedule, JITTER.sigma, 2000)
    # Three standard errors of the median of so many.
    assert np.median(times) == pytest.approx(predicted, abs=3 * 1.25 * np.std(late) / 150**0.5)
    beyond = np.percentile(times, 90) - np.median(times)
    assert beyond == pytest.approx(np.percentile(late, 90) - np.median(late), rel=0.3)
    assert median_extra_time(JITTER, schedule) == pytest.approx(float(np.median(late)), rel=0.05)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a log of repetitions, one of means, and their fabric files."""
    folder = tmp_path_factory.mktemp("jitter")
    rows = [
        (setting.collective, setting.algorithm, setting.ranks, int(one.size), seconds, number)
        for setting in (RING, TREE)
        for one in scattering(5e-5, 1.0, 60, [setting])
        for number, seconds in enumerate(one.seconds)
    ]
    table = pd.DataFrame(rows, columns=["collective", "algorithm", "ranks", "nbytes", "seconds", "iteration"])
    table.to_csv(folder / "calls.csv", index=False)
    keys = ["collective", "algorithm", "ranks", "nbytes"]
    table.groupby(keys)["seconds"].mean().reset_index().to_csv(folder / "means.csv", index=False)
    said = {}
    for name in ("calls", "means"):
        out = folder / f"{name}.yaml"
        said[name] = did("calibrate", folder / f"{name}.csv", "--network", "star", "-o", out, "--wide").stdout
    (folder / "job.yaml").write_text(
        "workers: 4\nseed: 3\nnetwork: {topology: {file: calls.yaml}}\n"
        "job: {parameters: 20000, iterations: 3, density: 1, compute: {mean: 1 ms}}\n"
        "exchanges: {dense: {scheme: dense}}\noutput: {report: false}\n"
    )
    folder.joinpath("said.txt").write_text(said["calls"] + "\n---\n" + said["means"])
    return folder


def test_what_was_fitted_is_written_said_and_read(folder):
    calls, means = folder.joinpath("said.txt").read_text().split("\n---\n")
    assert "jitter: each message has an extra latency" in " ".join(calls.split())
    assert "jitter: not known: 0 repetitions" in " ".join(means.split())
    found = load_cost_model(folder / "calls.yaml").jitter
    assert found == FittedJitter(found.median, found.sigma, 18, 1080)
    # Medians and sigmas that make up for each other give almost the same calls.
    assert found.sigma == pytest.approx(1.0, rel=0.25)
    late = found.median * draw_extra_times(messages_of(RING, 8.0), found.sigma, 4000)
    drawn = 5e-5 * draw_extra_times(messages_of(RING, 8.0), 1.0, 4000)
    for percent, within in ((90, 0.2), (99, 0.3)):
        own, other = (np.percentile(one, percent) - np.median(one) for one in (late, drawn))
        assert own == pytest.approx(other, rel=within)
    assert load_cost_model(folder / "means.yaml").jitter is None
    assert "\njitter:" not in folder.joinpath("means.yaml").read_text()


def test_runs_that_name_it_have_the_percentiles_that_were_measured(folder):
    def exchanges(*change):
        job = load(folder / "job.yaml", list(change)).build().job
        schedule = collectives.allreduce_ring(4, 80000.0)
        times = [job.network(0).time(schedule, stream=("iteration", number)).duration for number in range(100)]
        return np.array(times)

    rows = pd.read_csv(folder / "calls.csv")
    own = rows[rows["collective"] == "all_reduce"]
    far = own["seconds"] - own.groupby("nbytes")["seconds"].transform("median")
    plain, late = exchanges(), exchanges("network.jitter=calibrated")
    assert plain.max() == plain.min()
    # The median of so many errs by a tenth of what lies between it and the 90 % quantile.
    beyond = far.quantile(0.9)
    assert np.median(late) == pytest.approx(np.median(plain), abs=0.3 * beyond)
    assert np.quantile(late, 0.9) - np.median(late) == pytest.approx(beyond, rel=0.3)
    assert (exchanges("network.jitter=calibrated") == late).all()
    assert (exchanges("network.jitter=calibrated", "seed=4") != late).all()


def test_scenarios_that_name_what_is_not_there_are_refused(folder):
    said = refused("run", folder / "job.yaml", "--set", "network.jitter=calibrated",
                   "--set", f"network.topology={{file: {folder / 'means.yaml'}}}")  # fmt: skip
    assert "network.jitter: is not in" in said
    assert "do not tell how messages scatter" in " ".join(said.split())
    said = refused("run", "quickstart", "--set", "network.jitter=calibrated")
    assert "network.jitter: is known of a topology from a file of simnet calibrate alone" in " ".join(said.split())
    said = refused("run", "quickstart", "--set", "network.jitter=calibratd")
    assert "calibrated" in said


def test_calls_that_scatter_in_proportion_to_their_time_have_no_jitter_of_messages():
    draws = np.random.default_rng(2)
    sizes = 2.0 ** np.arange(14, 27)
    proportional = [
        RepeatedCall(RING, size, (LATENCY + size / BANDWIDTH) * (1 + 0.01 * np.exp(0.5 * draws.standard_normal(20))))
        for size in sizes
    ]
    assert fit_links(proportional, IDEAL) is None
    late = 5e-5 * np.exp(0.5 * draws.standard_normal((sizes.size, 20, 4, 6))).sum(axis=3).max(axis=2)
    delayed = [
        RepeatedCall(RING, size, LATENCY + size / BANDWIDTH + one) for size, one in zip(sizes, late, strict=True)
    ]
    assert fit_links(delayed, IDEAL) == fit_jitter(delayed, IDEAL)
