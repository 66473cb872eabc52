"""Models of a single curve by hand: ends, joints, ties and the fewest sizes that they take."""

import math

import numpy as np
import pytest

from simnet.calibration import curve_models
from simnet.calibration.curve_models import (
    CURVE_FITS,
    MIXED_MODELS,
    CurveModel,
    Mixture,
    MixtureComponent,
    _crossover,
    fit_adjacent,
    fit_five_anchors,
    fit_interpolated,
    fit_line,
    fit_log_log,
    fit_mixture,
    fit_piecewise,
    fit_three_segments,
    log_correction,
)

SIZES = 2.0 ** np.arange(10, 22)


def test_a_stretch_holds_from_its_first_byte_on_and_the_first_one_below():
    model = CurveModel(segments=((0.0, 1.0, 0.0), (100.0, 2.0, 0.5), (1000.0, 0.0, 1.0)))
    assert model.at([0.0, 99.0, 100.0, 999.0, 1000.0, 4000.0]).tolist() == [1, 1, 52, 501.5, 1000, 4000]
    assert CurveModel(segments=((10.0, 3.0, 0.0), (20.0, 5.0, 0.0))).at([1.0, 15.0, 20.0]).tolist() == [3, 3, 5]
    assert model.at(100.0).tolist() == [52]


def test_beyond_its_points_a_model_falls_nowhere_and_grows_with_the_square_at_most():
    falling = CurveModel(points=((1.0, 8.0), (2.0, 4.0), (4.0, 2.0)))
    assert falling.at([0.25, 1.0, 2**0.5, 4.0, 64.0]) == pytest.approx([8, 8, 4 * 2**0.5, 2, 2])
    steep = CurveModel(points=((1.0, 1.0), (2.0, 8.0), (4.0, 64.0)))
    assert steep.at([0.5, 2**0.5, 3.0, 8.0]) == pytest.approx([0.25, 8**0.5, 27, 256])
    later = CurveModel(points=((4.0, 8.0), (16.0, 16.0), (64.0, 64.0)))
    assert later.at([1.0, 4.0, 8.0, 32.0, 256.0]) == pytest.approx([4, 8, 8 * 2**0.5, 32, 256])
    bent = CurveModel(points=((1.0, 1.0), (2.0, 2.0), (4.0, 16.0)))
    assert bent.at([0.25, 0.5, 2**1.5, 8.0, 16.0]) == pytest.approx([0.25, 0.5, 2 * 8**0.5, 64, 256])
    assert CurveModel(points=((5.0, 3.0),)).at([1.0, 5.0, 1e9]).tolist() == [3, 3, 3]


def test_no_bytes_take_as_long_as_a_billionth():
    rising = CurveModel(points=((1.0, 8.0), (4.0, 16.0)))
    assert rising.at([0.0, 1e-9, 1e-12]) == pytest.approx(3 * [8 * 1e-9**0.5])
    assert CurveModel(points=((1.0, 8.0), (4.0, 8.0))).at([0.0]) == pytest.approx([8])


def test_corrections_are_straight_where_they_are_alike_and_constant_beyond():
    assert log_correction(((10.0, 0.5),), np.array([1.0, 10.0, 1e9])).tolist() == [0.5, 0.5, 0.5]
    three = ((1.0, 0.0), (10.0, 1.0), (100.0, 2.0))
    assert log_correction(three, np.array([0.1, 1.0, 10**0.5, 10.0, 100.0, 1e6])) == pytest.approx([0, 0, 0.5, 1, 2, 2])
    base = CurveModel(segments=((0.0, 2.0, 0.0),), corrections=((1.0, 0.0), (4.0, np.log(3.0))))
    assert base.at([0.5, 1.0, 2.0, 4.0, 9.0]) == pytest.approx([2, 2, 2 * 3**0.5, 6, 6])


def test_parts_of_no_weight_say_nothing():
    parts = (MixtureComponent("line", 1.0, CurveModel(segments=((0.0, 3.0, 0.0),))),
             MixtureComponent("interpolated", 0.0, CurveModel(segments=((0.0, 0.0, 0.0),))))  # fmt: skip
    assert Mixture(parts).at([1.0]) == pytest.approx([3])
    both = Mixture(
        (parts[0]._replace(weight=0.75), MixtureComponent("line", 0.25, CurveModel(segments=((0.0, 0.0, 1.0),))))
    )
    assert both.at([3.0, 48.0, 243.0]) == pytest.approx([3, 6, 9])
    found = fit_mixture(SIZES, 1e-9 * SIZES, {"log_log": 1.0, "line": 4.0})
    assert [(one.model, one.weight) for one in found.parts] == [("log_log", 0.2), ("line", 0.8)]


def test_one_size_is_bandwidth_alone():
    assert fit_line(np.array([100.0]), np.array([5.0])).segments == ((0.0, 0.0, 0.05),)
    for name in ("piecewise", "adjacent"):
        assert CURVE_FITS[name](np.array([100.0]), np.array([5.0])).segments == ((0.0, 0.0, 0.05),)


@pytest.mark.parametrize("exponent", [-3, 0, 3])
def test_a_line_is_found_in_any_unit(exponent):
    seconds = 10.0**exponent * (1e-5 + 1e-9 * SIZES)
    ((start, latency, slope),) = fit_line(SIZES, seconds).segments
    assert (start, latency, slope) == pytest.approx((0, 1e-5 * 10.0**exponent, 1e-9 * 10.0**exponent), rel=1e-3)


def test_a_line_is_found_whose_bytes_take_next_to_nothing():
    # The largest size takes a part in 93 of the latency for its bytes: 2^30 1e-16 = 1.07e-7.
    sizes = 2.0 ** np.arange(3, 31)
    ((_, latency, slope),) = fit_line(sizes, 1e-5 + 1e-16 * sizes).segments
    assert (latency, slope) == pytest.approx((1e-5, 1e-16), rel=1e-3)


@pytest.mark.parametrize("wild", [1.0, 3.0])
def test_a_line_is_where_soft_errors_of_a_tenth_are_the_least(wild):
    # Of squared errors r the sum of (1 + (r / 0.1)^2)^(1/2) is the least where its slopes in both logarithms are 0:
    # each error counts by the share of latency, or of bytes, in its time, and the less the larger it is.
    factors = np.array([1.0, 1.2, 0.9, 1.1, wild, 0.8, 1.0, 1.3, 0.7, 1.1, 1.0, 0.9])
    seconds = factors * (1e-5 + 1e-10 * SIZES)
    ((_, latency, slope),) = fit_line(SIZES, seconds).segments
    errors = np.log((latency + slope * SIZES) / seconds)
    pulls = errors / np.sqrt(1 + (errors / 0.1) ** 2)
    share = latency / (latency + slope * SIZES)
    assert (pulls @ share, pulls @ (1 - share)) == pytest.approx((0, 0), abs=2e-5)


def test_an_outlier_pulls_a_line_no_more_than_an_error_of_a_tenth():
    # Two times of 1 and one far above it: 2 r / (1 + 100 r^2)^(1/2) = 0.1, so that 3 r^2 = 0.01.
    ((_, latency, slope),) = fit_line(np.array([1.0, 2.0, 3.0]), np.array([1e9, 1.0, 1.0])).segments
    assert latency == pytest.approx(math.exp((0.01 / 3) ** 0.5), rel=1e-4)
    assert slope < 1e-6


@pytest.mark.parametrize(
    ("count", "places"),
    [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (6, [0, 1, 2, 4, 5]), (12, [0, 3, 6, 8, 11])],
)
def test_five_anchors_are_spread_evenly(count, places):
    found = fit_five_anchors(SIZES[:count], np.arange(1.0, count + 1))
    assert found.points == tuple((SIZES[one], one + 1.0) for one in places)


def test_three_segments_need_five_sizes_and_join_at_measured_ones():
    logs = np.array([0.0, 0.0, 1.0, 2.0, 2.0])
    sizes = np.e ** np.arange(5.0)
    assert fit_three_segments(sizes[:4], np.exp(logs[:4])) == fit_five_anchors(sizes[:4], np.exp(logs[:4]))
    found = np.log(np.array(fit_three_segments(sizes, np.exp(logs)).points))
    np.testing.assert_allclose(found, [[0, 0], [1, 0], [3, 2], [4, 2]], atol=1e-9)
    # The best of all pairs of joints, the last ones among them.
    bent = np.where(np.arange(12) < 10, 0.0, np.arange(12) - 9.0) + np.where(np.arange(12) < 1, 5.0, 0.0)
    sizes = np.e ** np.arange(12.0)
    np.testing.assert_allclose(np.log(fit_three_segments(sizes, np.exp(bent)).at(sizes)), bent, atol=1e-6)


@pytest.mark.parametrize(("count", "there"), [(42, True), (43, False)])
def test_joints_are_sought_at_forty_places(count, there):
    # Of 41 places between the ends that of number 21 is left out.
    sizes = np.e ** (np.arange(count) / 4)
    found = fit_three_segments(sizes, np.maximum(sizes, sizes[21])).points
    assert len(found) == 4
    assert any(size == pytest.approx(sizes[21]) for size, _ in found) == there


class TestStretches:
    def test_there_are_twelve_at_most(self):
        # Of stretches of four sizes, which take now 1 and now 1000, and at the end 3000, the last two become one.
        for count in (11, 12, 13):
            levels = np.where(np.arange(count) % 2, 1000.0, 1.0)
            levels[12:] = 3000.0
            seconds = np.repeat(levels, 4)
            assert len(fit_piecewise(2.0 ** (np.arange(len(seconds)) / 4), seconds).segments) == min(count, 12)

    @pytest.mark.parametrize(("count", "place", "there"), [(16, 4, True), (17, 9, False)])
    def test_of_many_sizes_they_begin_at_places_that_are_evenly_spread(self, monkeypatch, count, place, there):
        # Of 17 sizes and 16 places to begin at, that of number 9 is left out.
        monkeypatch.setattr(curve_models, "_MAX_BREAKS", 16)
        sizes = 2.0 ** np.arange(count)
        starts = [one[0] for one in fit_piecewise(sizes, np.where(np.arange(count) < place, 1e-5, 1e-3)).segments]
        assert (len(starts) == 2 and starts[1] == sizes[place]) == there

    @pytest.mark.parametrize(("ratio", "stretches"), [(0.92, 1), (0.91, 2)])
    def test_one_more_is_worth_three_logarithms_of_the_number_of_sizes(self, ratio, stretches):
        # Of six times of 1 and six of r after them the best line is flat, and off by (1 - r)^2 / (2 (1 + r^2)) in the
        # mean: 1.733 and 2.216 thousandths. A thousandth is noise. 12 ln 1.733 = 6.6, 12 ln 2.216 = 9.5, and
        # 3 ln 12 = 7.5.
        seconds = np.where(np.arange(12) < 6, 1.0, ratio)
        assert len(fit_piecewise(SIZES, seconds).segments) == stretches

    def test_one_size_alone_is_taken_for_latency(self):
        sizes, wild = 2.0 ** np.arange(12), np.where(np.arange(12) == 6, 64.0, 1.0)
        (_, first, _), (start, latency, slope), (_, last, _) = fit_piecewise(sizes, wild).segments
        assert (first, last) == pytest.approx((1, 1))
        assert (start, latency, slope) == (64, 64, 0)
        (_, latency, slope), (start, last, _) = fit_piecewise(sizes, np.where(np.arange(12) < 1, 64.0, 1.0)).segments
        assert (latency, slope, start, last) == (64, 0, pytest.approx(1, rel=2e-9), pytest.approx(1))
        (_, first, _), (start, *last) = fit_piecewise(sizes, np.where(np.arange(12) > 10, 8192.0, 1.0)).segments
        assert (first, start, last) == (pytest.approx(1), 2048, [8192, 0])

    def test_where_times_grow_by_more_than_the_size_bytes_are_all(self):
        segments = fit_piecewise(SIZES, SIZES**1.02).segments
        assert [latency for _, latency, _ in segments] == [0] * len(segments)

    @pytest.mark.parametrize("exponent", [-6, 0, 6])
    def test_they_are_the_same_in_any_unit(self, exponent):
        unit = 10.0**exponent
        # Latency alone; latency and bytes; bytes alone.
        seconds = np.select([np.arange(12) < 4, np.arange(12) < 8], [5.0, 1.0 + SIZES / 2**13], SIZES / 2**9)
        found = np.array(fit_piecewise(SIZES, unit * seconds).segments)
        assert found[:, 0] == pytest.approx([0, SIZES[3], SIZES[8]], rel=1e-6)
        assert found[:, 1] / unit == pytest.approx([5, 1, 0], abs=1e-6)
        assert found[:, 2] / unit * 2**13 == pytest.approx([0, 1, 16], abs=1e-6)

    def test_six_sizes_are_the_fewest(self):
        for count, stretches in ((5, 1), (6, 2)):
            sizes = SIZES[:count]
            seconds = np.where(np.arange(count) < 3, 1e-5, 1e-3) + 0 * sizes
            assert len(fit_piecewise(sizes, seconds).segments) == stretches

    def test_latencies_and_bandwidths_are_not_below_zero(self):
        falling = fit_piecewise(SIZES, 1.0 - 1e-8 * SIZES)
        assert all(latency >= 0 and slope >= 0 for _, latency, slope in falling.segments)
        steep = fit_piecewise(SIZES, 1e-9 * SIZES**1.02)
        assert all(latency >= 0 and slope >= 0 for _, latency, slope in steep.segments)
        ((_, latency, slope),) = fit_piecewise(SIZES, np.full(12, 0.25)).segments
        assert (latency, slope) == pytest.approx((0.25, 0))
        ((_, latency, slope),) = fit_piecewise(SIZES, 1e-9 * SIZES).segments
        assert (latency, slope) == pytest.approx((0, 1e-9), abs=1e-12)

    def test_errors_of_three_per_cent_are_noise_and_a_fifth_is_none(self):
        plain = 1e-5 + 1e-9 * SIZES
        for factor, stretches in ((1.03, 1), (1.5, 2)):
            seconds = plain * np.where(np.arange(12) < 6, 1.0, factor)
            assert len(fit_piecewise(SIZES, seconds).segments) == stretches

    def test_times_that_are_no_numbers_are_one_stretch_of_none(self):
        found = fit_piecewise(SIZES, np.full(12, np.nan))
        assert len(found.segments) == 1
        assert np.isnan(found.at(SIZES)).all()

    def test_where_lines_cross_between_two_sizes_they_change(self):
        seconds = np.minimum(1e-6 + 1e-9 * SIZES, 3e-5 + 2e-10 * SIZES)
        ((_, start, *_),) = [tuple(one[0] for one in fit_piecewise(SIZES, seconds).segments)]
        assert start == pytest.approx(2.9e-5 / 8e-10, rel=1e-6)

    def test_where_they_do_not_the_gap_is_the_faster_one_s(self):
        for slow_first in (True, False):
            factor = np.where((np.arange(12) < 6) == slow_first, 10.0, 1.0)
            (_, start) = (one[0] for one in fit_piecewise(SIZES, factor * 1e-5).segments)
            assert start == pytest.approx(SIZES[5] if slow_first else SIZES[6], rel=1e-6)
            assert SIZES[5] < start <= SIZES[6]


def test_one_line_follows_another_where_they_cross_within_a_gap_and_else_at_the_end_that_leaves_it_the_faster():
    just_above = pytest.approx(4, rel=2e-9)
    for before, after, wanted in (
        ((0.0, 1.0), (8.5, 0.0), 8.5), ((8.5, 0.0), (0.0, 1.0), 8.5),
        # They cross at one of the ends, from where on the second, or until where the first, is the slower one.
        ((0.0, 1.0), (4.0, 0.0), just_above), ((4.0, 0.0), (0.0, 1.0), 16),
        ((16.0, 0.0), (0.0, 1.0), just_above), ((0.0, 1.0), (16.0, 0.0), 16),
        # Before the gap, behind it, nowhere, and everywhere.
        ((0.0, 1.0), (2.0, 0.0), just_above), ((2.0, 0.0), (0.0, 1.0), 16),
        ((0.0, 1.0), (32.0, 0.0), 16), ((32.0, 0.0), (0.0, 1.0), just_above),
        ((1.0, 1.0), (2.0, 1.0), 16), ((2.0, 1.0), (1.0, 1.0), just_above),
        ((1.0, 0.0), (2.0, 0.0), 16), ((1.0, 1.0), (1.0, 1.0), 16),
    ):  # fmt: skip
        found = _crossover(before, after, 4.0, 16.0)
        assert found == wanted, (before, after)
        assert found > 4


@pytest.mark.parametrize("exponent", [-6, 0, 6])
class TestAdjacentInAnyUnit:
    def at(self, exponent, seconds, asked):
        unit, sizes = 10.0**exponent, np.array([1.0, 2.0, 4.0, 8.0])
        model = fit_adjacent(sizes, unit * np.array(seconds))
        starts = [start for start, *_ in model.segments]
        assert starts[0] == 0
        assert (np.diff(starts) > 0).all()
        return [one / unit for one in model.at(asked)]

    def test_times_that_stay_are_flat_beside_others_that_grow(self, exponent):
        found = self.at(exponent, [1.0, 2.0, 2.0, 4.0], [0.5, 1.0, 3.0, 6.0, 16.0])
        assert found == pytest.approx([0.5, 1, 2, 3, 8])

    def test_what_falls_at_once_has_no_bandwidth_before(self, exponent):
        # From 2 to 4 a byte more costs a half; taken back that is 3.5 and 3 at the first sizes, below 5.
        found = self.at(exponent, [5.0, 4.0, 5.0, 7.0], [0.5, 1.0, 1.5, 3.0])
        assert found == pytest.approx([5, 5, 3.75, 4.5])

    def test_what_falls_again_and_again_is_flat_from_the_next_size_on(self, exponent):
        # At the end bytes alone, an eighth each, take less than what was before.
        found = self.at(exponent, [8.0, 4.0, 2.0, 1.0], [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0])
        assert found == pytest.approx([8, 8, 4, 4, 2, 2, 0.75, 1])

    def test_what_grows_by_more_than_the_size_at_the_end_has_no_latency(self, exponent):
        found = self.at(exponent, [1.0, 2.0, 3.0, 16.0], [3.0, 5.0, 7.0, 8.0, 32.0])
        # A half a byte, then two; the last ones would cross at a third of a byte, and are slower on.
        assert found == pytest.approx([2.5, 3.5, 4.5, 16, 64])

    def test_a_line_that_cannot_go_on_is_bytes_alone(self, exponent):
        # From 4 to 8 the time is five times as long. What is before grows by 0.5; what ends there by 1.25 at most.
        found = self.at(exponent, [2.0, 1.0, 2.0, 10.0], [3.0, 4.0, 6.0, 8.0, 12.0])
        assert found == pytest.approx([1.5, 2, 3, 10, 15])

    def test_before_and_after_a_jump_lines_of_both_sides_go_on_until_they_cross(self, exponent):
        # 1 and 1 a byte until 2, and 3.5 and a quarter from 4 on: 1 + 1 s = 3.5 + s / 4 at 10 / 3.
        found = self.at(exponent, [2.0, 3.0, 4.5, 5.5], [1.0, 2.0, 3.0, 10 / 3, 4.0, 6.0])
        assert found[:2] == pytest.approx([2, 3])
        assert found[4:] == pytest.approx([4.5, 5])


class TestAdjacent:
    def test_lines_are_continued_where_time_jumps_or_falls(self):
        sizes = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
        jumps = fit_adjacent(sizes, np.array([3.0, 4.0, 60.0, 100.0, 180.0]))
        # Before the jump one more byte costs one, after it ten.
        assert jumps.at([1.5, 2.0, 3.0, 4.0, 6.0, 16.0, 32.0]) == pytest.approx([3.5, 4, 5, 60, 80, 180, 340])
        falls = fit_adjacent(sizes, np.array([30.0, 40.0, 14.0, 18.0, 26.0]))
        assert falls.at([1.5, 2.0, 3.0, 4.0, 12.0]) == pytest.approx([35, 40, 13, 14, 22])

    def test_times_that_stay_or_fall_have_no_bandwidth_beyond(self):
        flat = fit_adjacent(np.array([1.0, 2.0, 4.0]), np.array([3.0, 3.0, 3.0]))
        assert flat.at([0.5, 3.0, 1e6]) == pytest.approx([3, 3, 3])
        falls = fit_adjacent(np.array([1.0, 2.0, 4.0]), np.array([5.0, 4.0, 3.0]))
        assert falls.at([1.0, 2.0, 4.0, 1e6]) == pytest.approx([5, 4, 3, 3])
        # Bytes alone, which one line has all along.
        assert fit_adjacent(np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 9.0])).segments[0] == (0.0, 0.0, 2.0)
        # More than the size grows: bandwidth alone.
        steep = fit_adjacent(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
        assert steep.at([1.0, 2.0, 10.0]) == pytest.approx([1, 4, 20])

    def test_two_sizes_are_one_line(self):
        model = fit_adjacent(np.array([1.0, 3.0]), np.array([2.0, 4.0]))
        assert model.at([0.0, 2.0, 3.0, 5.0]) == pytest.approx([1, 3, 4, 6])


def test_the_interpolated_one_is_a_line_and_what_is_off():
    seconds = (1e-5 + 1e-9 * SIZES) * np.where(np.arange(12) % 2, 1.1, 1.0)
    found = fit_interpolated(SIZES, seconds)
    assert found.segments == fit_line(SIZES, seconds).segments
    assert [size for size, _ in found.corrections] == SIZES.tolist()
    assert found.at(SIZES) == pytest.approx(seconds)
    assert fit_log_log(SIZES, seconds).points == tuple(zip(SIZES.tolist(), seconds.tolist(), strict=True))
    assert set(MIXED_MODELS) == set(CURVE_FITS) - {"five_anchors"}
    assert MIXED_MODELS[0] == "line"
