"""How long workers compute, fitted to logs: what was drawn comes back, and files of strangers are answered."""

import csv
import json

import numpy as np
import pytest

from commands import did, refused
from simnet.base.errors import InputError
from simnet.cost_models.calibration.compute_fit import PERCENTS, fit_compute, read_compute_logs
from simnet.scenario import load
from simnet.training.job.job import Compute


def drawn(compute, iterations=4000, workers=4):
    return np.array([compute.seconds(5, number, workers) for number in range(iterations)])


@pytest.mark.parametrize("compute", [
    Compute(0.1),
    Compute(0.1, spread=0.03),
    Compute(0.02, spread=0.2, slow={2: 1.7}),
    Compute(0.5, spread=0.05, straggle=0.03, slowdown=2.5),
    Compute(0.5, spread=0.05, slow={0: 0.6, 3: 3.0}, straggle=0.05, slowdown=1.8),
])  # fmt: skip
def test_what_was_drawn_comes_back(compute):
    found = fit_compute(drawn(compute))
    assert found.mean == pytest.approx(compute.mean, rel=0.01)
    assert found.spread == pytest.approx(compute.spread, rel=0.05, abs=1e-6)
    assert found.slow.keys() == compute.slow.keys()
    for worker, factor in compute.slow.items():
        assert found.slow[worker] == pytest.approx(factor, rel=0.02)
    assert found.straggle == pytest.approx(compute.straggle, rel=0.15, abs=1e-12)
    assert found.slowdown == pytest.approx(compute.slowdown if compute.straggle else 1.0, rel=0.03)
    # Percentiles lie on steps between kinds of workers; of continuous parts they are near.
    if not compute.slow:
        np.testing.assert_allclose(found.fitted[:2], found.measured[:2], rtol=0.03)


def test_times_that_are_no_mixture_have_no_stragglers():
    draws = np.random.default_rng(3).lognormal(0.0, 0.3, (2000, 3))
    assert fit_compute(draws).straggle == 0
    # A heavy tail is told by how far the percentiles are off.
    heavy = np.exp(np.random.default_rng(3).standard_t(2, (2000, 3)) * 0.1)
    found = fit_compute(heavy)
    assert max(abs(one / other - 1) for one, other in zip(found.fitted, found.measured, strict=True)) > 0.05


def write(folder, times):
    folder.mkdir()
    for rank, column in enumerate(times.T):
        with (folder / f"rank_{rank}.csv").open("w", newline="") as text:
            rows = csv.writer(text)
            rows.writerow(["iteration", "compute_s", "total_s"])
            rows.writerows([number, one, 2 * one] for number, one in enumerate(column))


def test_logs_become_the_compute_of_a_scenario(tmp_path):
    compute = Compute(0.1, spread=0.04, slow={1: 2.0}, straggle=0.02, slowdown=3.0)
    times = drawn(compute, 1000, 3)
    write(tmp_path / "logs", times)
    np.testing.assert_allclose(read_compute_logs(tmp_path / "logs"), times)
    out = tmp_path / "compute.yaml"
    shown = did("calibrate", tmp_path / "logs", "--out", out).stdout
    assert "fitted to every other of 1000 iterations of 3 workers" in shown
    assert out.read_text() == fit_compute(times).text()
    told = shown.partition(".\n")[0].partition("\n\n")[0].replace("\n", " ")
    assert load("quickstart", [told]).config.job.compute.mean == pytest.approx(0.1, rel=0.1)
    found = json.loads(did("calibrate", tmp_path / "logs", "--json").stdout)
    fields = fit_compute(times).fields()
    one = load("quickstart", [f"job.compute={json.dumps(fields)}"]).build().job.compute
    assert one.mean == pytest.approx(found["mean"], rel=1e-5)
    assert one.slow[1] == pytest.approx(2.0, rel=0.02)
    assert one.straggle == pytest.approx(found["straggle"], rel=1e-2)
    assert found["of_iterations_left_out"]["measured"].keys() == {f"p{one}_s" for one in PERCENTS}


@pytest.mark.parametrize(("files", "said"), [
    ({}, "must have rank_0.csv, rank_1.csv"),
    ({"rank_1.csv": "iteration,compute_s\n"}, "must have rank_0.csv"),
    ({"rank_x.csv": ""}, "whose names do not end with a number"),
    ({"rank_0.csv": "iteration,seconds\n1,2\n"}, "has no column 'compute_s'"),
    ({"rank_0.csv": "iteration,compute_s\n1,-2\n"}, "compute_s must be > 0 and finite, got -2"),
    ({"rank_0.csv": "iteration,compute_s\n1,nan\n"}, "must be a whole number and seconds, got '1' and 'nan'"),
    ({"rank_0.csv": "iteration,compute_s\none,2\n"}, "must be a whole number and seconds, got 'one' and '2'"),
    ({"rank_0.csv": "iteration,compute_s\n1\n"}, "has 1 values, but there are 2 columns"),
    ({"rank_0.csv": "iteration,compute_s\n1,2\n"}, "needs at least 20 iterations, got 1"),
])  # fmt: skip
def test_logs_that_are_refused(files, said, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        fit_compute(read_compute_logs(tmp_path))
    if files:
        assert said in " ".join(refused("calibrate", tmp_path).split())
