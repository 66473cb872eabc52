"""Choosing by closed forms: against the network, and against published tables."""

import math
from collections import Counter

import numpy as np
import pytest

from looping import each
from simnet import sparsifier_models, topologies
from simnet.cost_models.costs.devices import load_device
from simnet.network import Network
from simnet.policies import Candidate
from simnet.studies.choosing.closed_forms import OperatingPoint, by_closed_form, fastest_by_form
from simnet.studies.choosing.forecast import JobForecast, leading_iterations, usual_exchanges
from simnet.validate.published import PARAMETERS, read_published

IDEAL = load_device("ideal")
ALPHA, BANDWIDTH = 1e-3, 1e8


def exchanged(choice, point):
    """Return an exchange of made-up gradients at a point."""
    workers, entries = int(point.workers), int(point.parameters)
    model = sparsifier_models.create(choice.scheme, workers, entries, float(point.density), **choice.options)
    return model.exchange(np.random.default_rng(0).standard_normal((workers, entries)).astype(np.float32))


@each("workers", [*range(1, 18), 32])
@pytest.mark.parametrize("choice", usual_exchanges(), ids=lambda one: one.label)
def test_closed_forms_are_what_the_network_says(choice, workers):
    point = OperatingPoint(workers, 20_000, 0.05, ALPHA, BANDWIDTH)
    network = Network(topologies.star(workers, latency=ALPHA, bandwidth=BANDWIDTH))
    found, expected = (
        network.time(exchanged(choice, point).schedule).finish,
        float(by_closed_form(IDEAL)(choice, point).communicate),
    )
    exact = workers & (workers - 1) == 0 or choice.label in ("dense ring", "fp16 ring", "AG-Topk", "ART-ring")
    # Who has passed the indices on need not wait for them to be there: at most a level of the tree for each level.
    saved = ALPHA * math.log2(workers) if choice.label.startswith("ART-tree") else 0.0
    off = 1e-9 if exact else 0.15
    assert (expected - saved) * (1 - off) <= found <= expected * (1 + off)


@pytest.mark.parametrize("choice", usual_exchanges(), ids=lambda one: one.label)
@each("workers", [1, 2, 8, 12])
def test_what_selecting_costs_is_what_the_schemes_report(choice, workers):
    point = OperatingPoint(workers, 100_000, 0.01, ALPHA, BANDWIDTH)
    kernels = exchanged(choice, point).kernels
    for profile in (load_device("artopk-tables"), load_device("v100-torch2.6")):
        found = float(by_closed_form(profile)(choice, point).select)
        assert found == pytest.approx(profile.seconds(kernels, workers).max(), rel=0.02)


def test_of_a_part_of_an_entry_all_is_sent():
    points = [OperatingPoint(4, entries, 0.1, 0.0, BANDWIDTH) for entries in (0.5, 1)]
    part, whole = (float(by_closed_form(IDEAL)(usual_exchanges()[4], point).communicate) for point in points)
    assert 2 * part == whole > 0


def test_table_vi_36_of_36():
    rows = read_published("table_vi.csv")
    labels = {"AG": "AG-Topk", "ART-ring": "ART-ring", "ART-tree": "ART-tree"}
    among = [one for one in usual_exchanges() if one.label in labels.values()]
    cells = list(rows.groupby(["model", "bandwidth_Gbps", "density"]))
    for (model, rate, density), cell in cells:
        published = labels[cell.loc[cell["published_ms"].idxmin(), "collective"]]
        point = OperatingPoint(8, PARAMETERS[model], density, 1e-3, rate * 1.25e8)
        assert among[int(fastest_by_form(among, point, by_closed_form(IDEAL))[0])].label == published
    assert len(cells) == 36


def forecast(label, seconds, stands_for, scheme="topk", **columns):
    one = Candidate(label, scheme)
    sample = columns | {"iteration_s": np.array(seconds), "stands_for": np.array(stands_for)}
    return JobForecast(one, sample, int(np.sum(stands_for)), 0.0)


@each("seed", range(20))
def test_figures_of_a_sample_are_those_of_the_iterations_that_it_stands_for(seed):
    random = np.random.default_rng(seed)
    stands_for, seconds = random.integers(1, 9, 30), random.integers(1, 40, 30)
    choices, selecting = random.choice(["a", "b", "c"], 30), random.random(30)
    row = forecast("sample", seconds, stands_for, choice=choices.tolist(), select_s=selecting)
    every = np.repeat(seconds, stands_for)
    assert row.seconds == every.sum()
    assert row.spread() == tuple(np.quantile(every, (0.05, 0.95), method="inverted_cdf"))
    assert forecast("all", range(1, 21), np.ones(20)).spread() == (1, 19)
    assert row.mean("select_s") == pytest.approx(np.repeat(selecting, stands_for).mean())
    times = Counter(np.repeat(choices, stands_for).tolist()).most_common()
    assert list(row.shares().values()) == pytest.approx([count / len(every) for _, count in times])


@each("seed", range(20))
def test_an_exchange_leads_in_the_seconds_in_which_it_is_the_fastest(seed):
    random = np.random.default_rng(seed)
    blocks = [(random.integers(1, 6, count), random.integers(1, 5, count)) for count in (1, 7, 12)]
    per_second = [np.repeat(1 / seconds, seconds * stands_for) for seconds, stands_for in blocks]
    speeds = np.array([one[: min(map(len, per_second))] for one in per_second])
    found = leading_iterations([forecast(str(number), *block) for number, block in enumerate(blocks)])
    expected = [speeds.max(axis=0)[speeds.argmax(axis=0) == number].sum() for number in range(3)]
    assert list(found.values()) == pytest.approx(expected)
