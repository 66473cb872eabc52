"""How long workers compute, of times made up: what counts as slow, what is said, and what files may hold."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from simnet.base.arrays import PERCENTS
from simnet.base.errors import InputError
from simnet.cost_models.calibration.compute_fit import fit_compute, read_compute_logs


def test_twenty_iterations_are_the_fewest():
    assert fit_compute(np.full((20, 2), 0.5)).iterations == 20
    with pytest.raises(InputError, match="needs at least 20 iterations, got 19"):
        fit_compute(np.full((19, 2), 0.5))


def test_every_other_iteration_tells_and_those_between_are_held_against_it():
    times = np.where(np.arange(40)[:, None] % 2, 0.3, 0.1) * np.ones((40, 3))
    found = fit_compute(times)
    assert (found.mean, found.spread, found.straggle, found.slowdown) == pytest.approx((0.1, 0, 0, 1))
    assert not found.slow
    assert found.measured == pytest.approx([0.3] * len(PERCENTS))
    assert found.fitted == pytest.approx([0.1] * len(PERCENTS))
    assert (found.iterations, found.workers) == (40, 3)
    # From the last to the first it is the other way round.
    assert fit_compute(times[::-1]).measured == pytest.approx([0.1] * len(PERCENTS))


@pytest.mark.parametrize(("factor", "slow"), [(1.015, False), (1.025, True), (0.985, False), (0.975, True)])
def test_workers_that_are_off_by_two_per_cent_are_slow_or_fast(factor, slow):
    found = fit_compute(np.full((30, 5), 0.2) * np.array([1, 1, factor, 1, 1]))
    assert found.slow == (pytest.approx({2: factor}) if slow else {})
    assert not slow or found.mean == pytest.approx(0.2)


def test_draws_have_the_spread_and_the_stragglers_that_were_fitted():
    draws = np.random.default_rng(2)
    times = 0.1 * np.exp(0.1 * draws.standard_normal((4000, 2)) - 0.005)
    found = fit_compute(times)
    for percent, one in zip(PERCENTS, found.fitted, strict=True):
        assert one == pytest.approx(float(np.percentile(times, percent)), rel=0.03)
    often = fit_compute(times * np.where(draws.random((4000, 2)) < 0.3, 4.0, 1.0))
    assert (often.straggle, often.slowdown, often.spread) == pytest.approx((0.3, 4.0, 0.1), rel=0.05)
    late = fit_compute(times * np.where(draws.random((4000, 2)) < 0.1, 4.0, 1.0))
    assert (late.straggle, late.slowdown) == pytest.approx((0.1, 4.0), rel=0.1)
    assert late.fitted[-1] == pytest.approx(late.measured[-1], rel=0.1)
    assert late.fitted[-1] > 0.35


def gained(logs):
    """Return by how much two normals of one spread are likelier than one, at their best, as a logarithm."""

    def loss(given):
        share, middle, late, spread = 1 / (1 + math.exp(-given[0])), *given[1:3], math.exp(given[3])
        return -np.log((1 - share) * norm.pdf(logs, middle, spread) + share * norm.pdf(logs, late, spread)).sum()

    start = [-2, np.median(logs), logs.max(), math.log(np.diff(np.percentile(logs, [25, 75]))[0])]
    found = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-5, "fatol": 1e-5})
    return -found.fun - norm.logpdf(logs, logs.mean(), logs.std()).sum()


def test_two_kinds_of_iterations_make_up_for_their_two_parameters():
    # Two more parameters cost the logarithm of the iterations (Schwarz); one that is further on gains as far as it is.
    usual, shares = norm.ppf((np.arange(39) + 0.5) / 39), []
    for far in (4.0, 4.25, 4.75, 5.25):
        logs = 0.1 * np.append(usual, far)
        shares.append(gained(logs) / math.log(40))
        found = fit_compute(np.exp(np.repeat(logs, 2))[:, None])
        if shares[-1] > 1:
            assert (found.straggle, found.slowdown > 1) == (pytest.approx(1 / 40, rel=0.05), True), far
        else:
            assert (found.straggle, found.slowdown) == (0, 1), far
    assert shares[0] < 0.9
    assert any(1.1 < one < 1.9 for one in shares)


def test_two_kinds_that_overlap_are_those_that_are_likeliest():
    usual, late = (norm.ppf((np.arange(many) + 0.5) / many) for many in (200, 40))
    logs = 0.1 * np.concatenate([usual, 4.2 + late])

    def loss(given):
        share, middle, further, spread = given
        return -np.log(
            (1 - share) * norm.pdf(logs, middle, spread) + share * norm.pdf(logs, middle + further, spread)
        ).sum()

    best = minimize(loss, [0.15, 0.0, 0.4, 0.1], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9}).x
    found = fit_compute(np.exp(np.repeat(logs, 2))[:, None])
    middle = math.log(found.mean) - found.spread**2 / 2
    assert (found.straggle, middle, math.log(found.slowdown), found.spread) == pytest.approx(best, rel=1e-4, abs=1e-6)


def test_draws_have_the_percentiles_of_their_mixture():
    normal = norm.ppf((np.arange(1000) + 0.5) / 1000)
    times = 0.2 * np.exp(0.5 * np.repeat(normal, 2))[:, None] * np.ones(3)
    for percent, one in zip(PERCENTS, fit_compute(times).fitted, strict=True):
        # The percentiles of so many draws err by half a per cent.
        assert one == pytest.approx(0.2 * math.exp(0.5 * norm.ppf(percent / 100)), rel=0.02)


class TestLogs:
    def put(self, folder, *texts):
        for rank, text in enumerate(texts):
            (folder / f"rank_{rank}.csv").write_text(text)
        return folder

    def test_iterations_that_all_workers_have_are_taken_in_order(self, tmp_path):
        logs = self.put(
            tmp_path, "iteration,compute_s\n3,0.3\n1,0.1\n2,0.2\n", "compute_s,iteration\n5.0,3\n4.0,2\n7.0,9\n"
        )
        assert read_compute_logs(logs).tolist() == [[0.2, 4.0], [0.3, 5.0]]
        none = read_compute_logs(self.put(tmp_path, "iteration,compute_s\n1,0.1\n", "iteration,compute_s\n2,0.1\n"))
        assert none.shape == (0, 2)

    def test_ranks_count_from_zero(self, tmp_path):
        for rank in (1, 2):
            (tmp_path / f"rank_{rank}.csv").write_text("iteration,compute_s\n1,0.1\n")
        with pytest.raises(InputError, match=r"found ranks \[1, 2\]"):
            read_compute_logs(tmp_path)

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("iteration,compute_s\n1,0.1\n2,inf\n", 3), ("iteration,compute_s\n1,0\n", 2), ("compute_s\n1\n", 1),
            ("iteration\n1\n", 1),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_said_with_its_line(self, tmp_path, text, line):
        with pytest.raises(InputError) as refused:
            read_compute_logs(self.put(tmp_path, text))
        assert f"rank_0.csv:{line}: " in str(refused.value)
