"""Tables for run time: what `simnet choose` writes of a grid of latencies and bandwidths."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from commands import did, refused
from simnet.base.errors import InputError
from simnet.policies import Candidate, moo
from simnet.scenario import load
from simnet.studies.choosing import policy
from simnet.studies.choosing.closed_forms import by_closed_form, closed_forms, fastest_by_form
from simnet.studies.choosing.policy import edges_around, entry, make
from simnet.studies.choosing.policy_file import load_policy
from simnet.studies.choosing.ranking import sampled_fields
from simnet.studies.choosing.whole_job import candidates_of, decide_job
from tables import made_table

FIELDS = ["job.overlap=none", "job.iterations=2", "job.scale=20000"]
LINKS = ("--grid", "latency=100us:10ms:5:log", "--grid", "bandwidth=1:10Gbit/s:4:log")


def closed(*fields):
    loaded = load("base", [*FIELDS, *fields])
    run = loaded.build()
    return closed_forms(loaded, run, decide_job(run, candidates_of(loaded), policies=False)), loaded, run.job


@pytest.mark.parametrize(("field", "cut"), [
    ("network.weather=[{links: all, latency: {steps: {at: [0 s, 1 s], factors: [1, 2]}}}]", None),
    ("job.density=[{iterations: 1, from: 10 %, to: 1 %}, {at: 1 %}]", None),
    ("job.strategy={name: diloco, period: 2}", None),
    ("network.stack=tcp", 1),
    ("network.topology={fat_tree: {k: 4, latency: 1 us, bandwidth: 1 Gbit/s}}", 1),
    ("exchanges={r: {scheme: randomk}}", 1),
    ("exchanges={r: {scheme: randomk}, t: {scheme: exdyna}}", 300),
])  # fmt: skip
def test_closed_forms_are_of_usual_exchanges_on_a_star_and_iterations_are_cut_where_all_are_alike(field, cut):
    assert closed(field)[0] is None
    fields = sampled_fields(load("base", ["job.model=7B", "job.compute.mean=1 ms", "job.iterations=3", field]))
    assert [one for one in fields if "iterations" in one] == [f"job.iterations={cut}"] * (cut is not None)


def test_lookups_at_the_centres_of_cells_are_the_fastest_exchange():
    forms, loaded, job = closed()
    latency, bandwidth = np.geomspace(1e-5, 0.1, 6), np.geomspace(1e7, 1e11, 5)
    table = make(forms, loaded, job, latency, bandwidth)
    for alpha in latency:
        for rate in bandwidth:
            point = dataclasses.replace(forms.point, latency=alpha, bandwidth=rate)
            best = forms.among[int(fastest_by_form(forms.among, point, forms.model)[0])]
            found = table.lookup(float(alpha), float(rate))
            assert (found.entry, found.outside) == (entry(best, 0.01), "")


@pytest.mark.parametrize("weights", [None, moo.ObjectiveWeights(1, 1, 3)])
def test_densities_are_chosen_as_the_multi_objective_policy_does(weights, monkeypatch):
    densities, gains = (0.1, 0.01, 0.001), {0.1: 0.6, 0.01: 0.2, 0.001: 0.02}
    monkeypatch.setattr(policy, "_mean_gain", lambda one, density, *_: gains[density])
    forms, loaded, job = closed()
    latency, bandwidth = np.geomspace(1e-4, 1e-2, 3), np.geomspace(1e7, 1e9, 3)
    table = make(forms, loaded, job, latency, bandwidth, densities=densities, weights=weights)
    exchange = by_closed_form(job.device)
    for alpha in latency:
        for rate in bandwidth:
            points = [dataclasses.replace(forms.point, latency=alpha, bandwidth=rate, density=one) for one in densities]
            best = [forms.among[int(fastest_by_form(forms.among, one, forms.model)[0])] for one in points]
            parts = [exchange(one, point) for one, point in zip(best, points, strict=True)]
            select, communicate = ([float(getattr(one, name)) for one in parts] for name in ("select", "communicate"))
            taken = moo.choose_candidate(list(gains.values()), select, communicate, weights)
            found = table.lookup(float(alpha), float(rate)).entry
            assert found == entry(best[taken], densities[taken])


def test_gains_are_those_of_the_gradients_with_error_feedback():
    _, loaded, job = closed()
    gain = [policy._mean_gain(Candidate("AG", "topk"), density, job, loaded, {}) for density in (0.1, 0.01)]
    assert 0 < gain[1] < gain[0] < 1
    assert policy._mean_gain(Candidate("whole", "dense"), 0.1, job, loaded, {}) == 1.0


def test_what_is_outside_gets_the_nearest_cell_and_says_so():
    table = made_table(cells=5)
    inside, outside = table.lookup(1.0001e-4, 9.999e9), table.lookup(0.0, 1e15)
    assert (inside.entry, inside.outside) == (outside.entry, "")
    assert outside.outside == "latency below the table, bandwidth above the table"
    assert table.lookup(table.edges.latency_s[0], table.edges.bandwidth_B_per_s[-1]).outside == ""
    for latency, bandwidth in ((-1, 1e9), (math.nan, 1e9), (1e-3, 0), (1e-3, math.inf), ("1", 1e9)):
        with pytest.raises(ValueError, match="must be a number"):
            table.lookup(latency, bandwidth)


def test_the_whole_gradient_has_no_density():
    # Between fast links nothing is worth selecting.
    links = {"latency": (1e-7, 1e-6), "bandwidth": (1e11, 1e12)}
    table = made_table(fields=["job.device=v100"], densities=(0.2, 0.1), **links)
    assert all(one.kind != "sparse" and one.density == 1.0 for one in table.choices)


def test_a_table_reads_back_as_it_was_and_is_made_alike_twice(tmp_path):
    fields = [word for one in FIELDS for word in ("--set", one)]
    for name in ("a.json", "b.json"):
        did("choose", *LINKS, *fields, "--out", tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    table = load_policy(tmp_path / "a.json")
    assert table.text() == (tmp_path / "a.json").read_text()
    assert list(table.edges.latency_s) == list(edges_around(np.geomspace(1e-4, 1e-2, 5)))
    assert "a.json" in refused("choose", *LINKS, *fields, "--out", tmp_path / "a.json")


def test_where_hooks_decide_a_table_is_simulated_and_has_the_choices_of_exact_runs(tmp_path):
    fields = ("--schemes", "dense,powersgd:rank=1", "--compute", "61ms", "--stack", "nccl", "--set", "job.iterations=2")
    axes = [("--grid", "latency=30,60,90us"), ("--grid", "bandwidth=16,64Gbit/s")]
    for name, order in (("p.json", axes), ("q.json", axes[::-1])):
        did("choose", *fields, *itertools.chain(*order), "--out", tmp_path / name)
    table = load_policy(tmp_path / "p.json")
    assert table == load_policy(tmp_path / "q.json")
    assert table.made_for.method == "simulated"
    # Kernels alone would leave PowerSGD first in both.
    for rate, label in ((16, "powersgd:rank=1"), (64, "dense")):
        exact = did("choose", *fields, "--latency", "30us", "--bandwidth", f"{rate}Gbit/s", "--exact", "--json").stdout
        assert table.lookup(30e-6, rate * 1e9 / 8).entry.label == json.loads(exact)["decision"] == label


@pytest.mark.parametrize(("axes", "said"), [
    (("latency=1ms", "bandwidth=1,2Gbit/s"), "needs two values or more above 0 for a table"),
    (("latency=0,1ms", "bandwidth=1,2Gbit/s"), "needs two values or more above 0 for a table"),
    (("latency=1,2ms", "bandwidth=1,2Gbit/s", "density=1%,1%"), "must be no two alike"),
    (("latency=1,2ms", "bandwidth=1,2Gbit/s", "density=1%,2%"), "is only for jobs whose times follow from closed"),
])  # fmt: skip
def test_what_no_table_can_be_made_of_is_refused(axes, said, tmp_path):
    grid = [word for one in axes for word in ("--grid", one)]
    fields = [word for one in FIELDS for word in ("--set", one)] + ["--stack", "tcp"] * ("only for jobs" in said)
    assert said in refused("choose", *grid, *fields, "--schemes", "topk,dense", "--out", tmp_path / "p.json")


def damaged(change):
    found = json.loads(made_table().text())
    change(found)
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "has no version"),
        ('{"version": 3}', "must be 2, the version that is read, got 3"),
        ('{"version": NaN}', "is no JSON"),
        (damaged(lambda one: one.update(matrx=[])), "there is no such field"),
        (damaged(lambda one: one["made_for"].update(worker=2)), "made_for.worker"),
        (damaged(lambda one: one["choices"][0].update(scheme="artpok")), "did you mean 'artopk'"),
        (damaged(lambda one: one["choices"][0].update(label="x" * 301)), "choices[0].label"),
        (damaged(lambda one: one["made_for"].update(title="x" * 300, seed=-1)), "made_for.seed"),
        (damaged(lambda one: one["choices"][0].update(density=2)), "choices[0].density"),
        (damaged(lambda one: one["made_for"].update(weights={"gain": "a"})), "made_for.weights"),
        (damaged(lambda one: one["matrix"].pop()), "must have 2 rows of 2 numbers"),
        (damaged(lambda one: one["matrix"][0].__setitem__(0, 99)), "has the number 99"),
        (damaged(lambda one: one["matrix"][0].__setitem__(0, -1)), "matrix[0][0]"),
        (damaged(lambda one: one["matrix"][0].pop()), "must have 2 rows of 2 numbers"),
        (damaged(lambda one: one["edges"]["latency_s"].__setitem__(1, one["edges"]["latency_s"][0])), "must ascend"),
        (damaged(lambda one: one["edges"]["latency_s"].__setitem__(2, 7e300)).replace("7e+300", "1e999"), "edges"),
        (damaged(lambda one: one["edges"]["latency_s"].__setitem__(0, 0)), "edges.latency_s[0]"),
        (damaged(lambda one: one.pop("edges")), "edges"),
    ],
)
def test_damaged_tables_are_refused_in_words(text, message, tmp_path):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(InputError, match=r"p\.json") as error:
        load_policy(tmp_path / "p.json")
    assert message in str(error.value)


def test_huge_files_are_not_read(tmp_path):
    for size, said in ((2**23 + 1, "is larger than"), (2**23, "is no JSON")):
        (tmp_path / "p.json").write_text(" " * size)
        with pytest.raises(InputError, match=said):
            load_policy(tmp_path / "p.json")
