"""Choosing by closed forms: against the network, and against published tables."""

import math

import numpy as np
import pytest

from looping import each
from simnet import sparsifier_models, topologies
from simnet.cost_models.costs.devices import load_device
from simnet.network import Network
from simnet.studies.choosing.closed_forms import OperatingPoint, by_closed_form, fastest_by_form
from simnet.studies.choosing.forecast import usual_exchanges
from simnet.validate.published import table_vi

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


def test_table_vi_36_of_36():
    rows = table_vi()
    labels = {"AG": "AG-Topk", "ART-ring": "ART-ring", "ART-tree": "ART-tree"}
    among = [one for one in usual_exchanges() if one.label in labels.values()]
    cells = list(rows.groupby(["parameters", "bandwidth_Gbps", "density"]))
    for (parameters, rate, density), cell in cells:
        published = labels[cell.loc[cell["published_ms"].idxmin(), "collective"]]
        point = OperatingPoint(8, parameters, density, 1e-3, rate * 1.25e8)
        assert among[int(fastest_by_form(among, point, by_closed_form(IDEAL))[0])].label == published
    assert len(cells) == 36
