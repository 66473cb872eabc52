"""Cross-validation: what is held out has no say in what is predicted of it, and quantiles of intervals are exact."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.base.progress import report_progress
from simnet.cost_models.calibration.crossval import (
    choose_models,
    leave_collectives_out,
    leave_ranks_out,
    leave_sizes_out,
    without_ranks,
)
from simnet.cost_models.calibration.curves import Curve, Setting
from simnet.cost_models.calibration.step_model import StepModel
from simnet.cost_models.evidence.intervals import BINS, FEWEST, UNKNOWN, HeldOut, conformal, half_widths

SIZES = 16.0 ** np.arange(3, 7)
TRUTH = StepModel(False, (1e-5, 1e-6, 2e-5, 1e-11, 1e-9, 1e-12, 2.0, 3.0, 2.5, 1.1, 1.0, 1.0, 1e-5, 1.0, 1.0, 1.2))


def measured():
    """Return curves of two collectives on four numbers of ranks, with noise of their own."""
    noise = np.random.default_rng(3)
    settings = [Setting(name, ranks, ranks, "ring") for name in ("all_gather", "all_reduce") for ranks in (2, 4, 8, 16)]
    return [
        Curve(one, SIZES, TRUTH.at(one, SIZES) * np.exp(0.05 * noise.standard_normal(len(SIZES)))) for one in settings
    ]


def changed(curves, which):
    """Return curves of which some are slower by a factor that depends on the size."""
    factors = np.linspace(2.0, 5.0, len(SIZES))
    return [replace(one, seconds=one.seconds * factors) if which(one.setting) else one for one in curves]


def predictions(found, which):
    named = found.items() if isinstance(found, dict) else enumerate(found)
    return {name: [one.predicted.tolist() for one in held if which(one.setting)] for name, held in named if held}


@pytest.mark.parametrize(
    ("leave_out", "nccl", "which", "count"),
    [
        (leave_ranks_out, False, lambda one: one.ranks == 2, 2),
        (leave_ranks_out, True, lambda one: one.ranks == 8, 2),
        (leave_collectives_out, False, lambda one: one.collective == "all_reduce", 4),
    ],
)
def test_times_that_are_held_out_do_not_move_what_is_predicted_of_them(leave_out, nccl, which, count):
    here, other = (
        predictions(leave_out(curves, "interpolated", nccl), which)
        for curves in (measured(), changed(measured(), which))
    )
    assert other == here
    assert all(len(one) == count for one in here.values())


@pytest.mark.parametrize("curve_model", ["line", "interpolated"])
def test_times_of_sizes_that_are_held_out_do_not_move_what_is_predicted_of_them(curve_model):
    (curve,) = measured()[:1]
    for one in leave_sizes_out([curve], curve_model):
        held = np.isin(curve.sizes, one.sizes)
        other = replace(curve, seconds=np.where(held, 3 * curve.seconds, curve.seconds))
        (again,) = (each for each in leave_sizes_out([other], curve_model) if each.sizes.tolist() == one.sizes.tolist())
        assert again.predicted.tolist() == one.predicted.tolist()
        assert again.measured.tolist() == (3 * one.measured).tolist()


def test_every_curve_is_held_out_once_and_beside_its_own_times():
    curves = measured()
    own = {one.setting: one.seconds.tolist() for one in curves}
    shares: list[float] = []
    with report_progress(shares.append):
        chosen = choose_models(curves, plain=False)
    assert shares == sorted(shares), "progress goes forward"
    assert shares[-1] <= 1
    held = {basis: [(one.setting, one.measured.tolist()) for one in chosen.held[basis]] for basis in chosen.held}
    everywhere = sorted(held["ranks"] + held["beyond"])
    assert everywhere == sorted(own.items())
    assert {one.ranks for one, _ in held["ranks"]} == {4, 8}
    assert {one.ranks for one, _ in held["beyond"]} == {2, 16}
    assert sorted(held["collectives"]) == sorted(own.items())
    assert chosen.transfer == "steps", "which made these times"


def test_ranks_are_held_out_of_families_that_others_have():
    alone = Curve(Setting("broadcast", 8, 8), SIZES, SIZES)
    kept, held = without_ranks([*measured(), alone], 8)
    assert {one.setting.ranks for one in kept} == {2, 4, 16}
    assert [str(one.setting) for one in held] == [str(one.setting) for one in measured() if one.setting.ranks == 8]


@given(st.sets(st.integers(1, 1000), min_size=40, max_size=60), st.sampled_from([0.9, 0.95]), st.randoms())
def test_of_errors_left_out_in_turn_as_many_are_beyond_the_quantile_as_the_coverage_allows(errors, coverage, chance):
    """Leave each of n + 1 errors out: those above the quantile of the others are the n + 1 - k largest, exactly.

    k = ceil((n + 1) (1 - a / 2)) is the rank for which the interval covers the next error with 1 - a or more.
    """
    values = np.array(chance.sample(sorted(errors), len(errors)), dtype=float)
    widths = [conformal(np.delete(values, at), coverage) for at in range(len(values))]
    mirrored = [conformal(-np.delete(values, at), coverage) for at in range(len(values))]
    above = sum(value > high for value, (_, high) in zip(values, widths, strict=True))
    assert above == int(len(values) * (1 - coverage) / 2 + 1e-9)
    assert [(high, low) for low, high in widths] == mirrored
    assert {low for low, _ in widths} == {0.0}


@pytest.mark.parametrize("count", range(5))
def test_fewer_than_three_errors_tell_nothing_of_the_next(count):
    assert (conformal(np.linspace(-1.0, 1.0, count), 0.9) == (UNKNOWN, UNKNOWN)) == (count < 3)


@pytest.mark.parametrize("count", [FEWEST - 1, FEWEST])
def test_a_bin_of_enough_errors_has_a_width_of_its_own(count):
    few = HeldOut(Setting("gather", 4), np.full(count, BINS[0] + 1), np.ones(count), np.full(count, np.e))
    many = HeldOut(few.setting, np.full(200, BINS[2]), np.ones(200), np.full(200, np.exp(3.0)))
    own = half_widths([few, many], 0.5)
    assert own[0][1] == pytest.approx(1.0 if count == FEWEST else 3.0)
    assert [one for _, one in own[1:]] == pytest.approx([3.0] * 3)
