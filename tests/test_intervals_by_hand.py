"""Intervals by hand: quantiles of few errors, bins of sizes, and how far widths are drawn to typical ones."""

import math

import numpy as np
import pytest

from simnet.calibration import Setting
from simnet.calibration.crossval import HeldOut
from simnet.calibration.intervals import BIN_NAMES, TYPICAL, bin_of, conformal, half_widths, intervals, widest

KIB, MIB = 2.0**10, 2.0**20
THREE = (math.log(3), math.log(3))


def held(log_error, count=24, size=8.0, collective="all_reduce", ranks=4, widening=1.0):
    """Return predictions of one size that measured times are all above by so much, as logarithms."""
    ones = np.ones(count)
    return HeldOut(Setting(collective, ranks), size * ones, ones, math.exp(log_error) * ones, widening=widening)


def test_bins_begin_at_64_kib_a_mib_and_64_mib():
    sizes = [0.0, 64 * KIB - 1, 64 * KIB, MIB - 1, MIB, 64 * MIB - 1, 64 * MIB, 1e15]
    assert bin_of(np.array(sizes)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(BIN_NAMES) == 4


class TestQuantiles:
    @pytest.mark.parametrize(
        ("errors", "coverage", "below", "above"),
        [
            # A quarter may be outside on either side: of eight and one more, the sixth of seven is the bound.
            ([-3, -2, -1, 0, 1, 2, 3], 0.5, 2, 2),
            ([-9, -2, -1, 0, 1, 4, 5], 0.5, 2, 4),
            # Of nine 6.75, so the seventh.
            ([-5, -3, -2, -1, 1, 2, 3, 4], 0.5, 3, 3),
            # Of three the largest, as 4 * 3 / 4 = 3, and -ln(1 / 4) is ln 4.
            ([-1, 0.5, 2], 0.5, 1, 2),
            ([0.5, 2, -1], 0.5, 1, 2),
            # Of too few the largest is stretched: ln 20 over ln 4, and over ln 8.
            ([-1, 0.5, 2], 0.9, math.log(20) / math.log(4), 2 * math.log(20) / math.log(4)),
            ([-1, 0, 0, 0, 0, 0, 2], 0.9, math.log(20) / math.log(8), 2 * math.log(20) / math.log(8)),
            # Where all are above, nothing is below.
            ([1, 2, 3], 0.5, 0, 3),
            ([-3, -2, -1], 0.5, 3, 0),
        ],
    )
    def test_are_those_of_one_error_more(self, errors, coverage, below, above):
        assert conformal(np.array(errors, dtype=float), coverage) == pytest.approx((below, above))

    def test_of_nineteen_errors_are_the_largest_as_they_are(self):
        # 20 * 0.95 = 19, and ln 20 over ln 20.
        errors = np.arange(19.0)
        assert conformal(errors, 0.9) == pytest.approx((0, 18))
        assert conformal(-errors, 0.9) == pytest.approx((18, 0))

    @pytest.mark.parametrize("count", [0, 2])
    def test_of_fewer_than_three_errors_are_a_factor_of_three(self, count):
        assert conformal(np.zeros(count), 0.9) == pytest.approx(THREE)


class TestBins:
    def test_of_twenty_errors_have_widths_of_their_own_and_others_those_of_all(self):
        # Of 93 in all the largest are 1.5, which is what a bin of 19 of them has.
        few, enough = held(0.7, 19, size=MIB), held(0.8, 20, size=64 * KIB)
        found = half_widths([few, enough, held(0.5, 24, size=1.0), held(1.5, 30, size=64 * MIB)], 0.9)
        assert [above for _, above in found] == pytest.approx([0.5, 0.8, 1.5, 1.5])
        assert [below for below, _ in found] == [0, 0, 0, 0]
        assert [below for below, _ in half_widths([held(-1.0)], 0.9)] == pytest.approx([1] * 4)
        assert half_widths([], 0.9) == [THREE] * 4

    def test_have_errors_as_they_were_a_doubling_beyond(self):
        assert half_widths([held(3.0, widening=2.0)], 0.9)[0] == pytest.approx((0, 1.5))

    def test_of_the_worst_collective_have_the_width_on_either_side(self):
        found = widest([held(1.0), held(0.5), held(-0.7, collective="alltoall"), held(0.2, collective="gather")], 0.9)
        assert found == [pytest.approx((0.7, 1))] * 4
        assert widest([], 0.9) == [THREE] * 4


class TestTypicalOnes:
    def test_are_of_few_groups_two_thirds(self):
        # One group beside two, whose widths are 0 below and 1 above.
        for basis, groups in (("ranks", {"ranks": 4}), ("beyond", {"ranks": 8}), ("collectives", {})):
            (found,) = intervals({basis: [held(1.0, **groups), held(1.0, **groups)]}, 0.9).values()
            usual = np.array(TYPICAL[basis])
            assert [below for below, _ in found] == pytest.approx(2 / 3 * usual)
            assert [above for _, above in found] == pytest.approx(1 / 3 + 2 / 3 * usual)

    def test_count_beside_numbers_of_ranks_or_collectives(self):
        many = [held(1.0, ranks=2), held(1.0, ranks=4), held(1.0, ranks=4, collective="gather")]
        found = intervals({"sizes": many, "ranks": many, "beyond": many, "collectives": many}, 0.9)
        assert found["sizes"] == [pytest.approx((0, 1))] * 4
        for basis in ("ranks", "beyond", "collectives"):
            usual = np.array(TYPICAL[basis])
            assert [below for below, _ in found[basis]] == pytest.approx(usual / 2)
            assert [above for _, above in found[basis]] == pytest.approx((1 + usual) / 2)

    def test_grow_with_the_logarithm_of_what_is_outside(self):
        # A twentieth is outside, 1.3 times the logarithm of a tenth, and of 60 errors none is stretched.
        wide = math.log(20) / math.log(10) * np.array(TYPICAL["ranks"])
        found = intervals({"ranks": [held(2.0, 60)]}, 0.95)["ranks"]
        assert [below for below, _ in found] == pytest.approx(2 / 3 * wide)
        assert [above for _, above in found] == pytest.approx(2 / 3 + 2 / 3 * wide)
        assert intervals({"sizes": []}, 0.95)["sizes"] == [THREE] * 4

    def test_of_other_collectives_go_with_single_ones_and_else_with_all_errors_together(self):
        # One error of a collective tells nothing, and among 49 is nothing.
        errors = [held(1.0, 48), held(3.0, 1, collective="gather")]
        for basis, own in (("ranks", (0, 1)), ("beyond", (0, 1)), ("collectives", THREE)):
            share = 1 / 2 if basis == "collectives" else 1 / 3
            below, above = intervals({basis: errors}, 0.9)[basis][0]
            usual = (1 - share) * TYPICAL[basis][0]
            assert (below, above) == pytest.approx((share * own[0] + usual, share * own[1] + usual))

    def test_of_other_collectives_are_of_the_worst_of_those_held_out(self):
        two = [held(1.0), held(-0.5, collective="gather")]
        found = intervals({"collectives": two}, 0.9)["collectives"]
        usual = np.array(TYPICAL["collectives"])
        assert [below for below, _ in found] == pytest.approx((0.5 + usual) / 2)
        assert [above for _, above in found] == pytest.approx((1 + usual) / 2)

    def test_are_factors_between_1_4_and_4_and_more_beyond_ranks_than_between(self):
        for widths in TYPICAL.values():
            assert all(1.4 < math.exp(one) < 4 for one in widths)
        assert all(one < other for one, other in zip(TYPICAL["ranks"], TYPICAL["beyond"], strict=True))
