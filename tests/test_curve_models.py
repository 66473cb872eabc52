"""Models of a single curve by hand: ends, joints, ties and the fewest sizes that they take."""

import numpy as np
import pytest

from simnet.calibration.curve_models import (
    FITS,
    OURS,
    Component,
    CurveModel,
    Mixture,
    adjacent,
    corrected,
    five_anchors,
    interpolated,
    line,
    log_log,
    mixed,
    piecewise,
    three_segments,
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
    bent = CurveModel(points=((1.0, 1.0), (2.0, 2.0), (4.0, 16.0)))
    assert bent.at([0.25, 0.5, 2**1.5, 8.0, 16.0]) == pytest.approx([0.25, 0.5, 2 * 8**0.5, 64, 256])
    assert CurveModel(points=((5.0, 3.0),)).at([1.0, 5.0, 1e9]).tolist() == [3, 3, 3]


def test_corrections_are_straight_where_they_are_alike_and_constant_beyond():
    assert corrected(((10.0, 0.5),), np.array([1.0, 10.0, 1e9])).tolist() == [0.5, 0.5, 0.5]
    three = ((1.0, 0.0), (10.0, 1.0), (100.0, 2.0))
    assert corrected(three, np.array([0.1, 1.0, 10**0.5, 10.0, 100.0, 1e6])) == pytest.approx([0, 0, 0.5, 1, 2, 2])
    base = CurveModel(segments=((0.0, 2.0, 0.0),), corrections=((1.0, 0.0), (4.0, np.log(3.0))))
    assert base.at([0.5, 1.0, 2.0, 4.0, 9.0]) == pytest.approx([2, 2, 2 * 3**0.5, 6, 6])


def test_parts_of_no_weight_say_nothing():
    parts = (Component("line", 1.0, CurveModel(segments=((0.0, 3.0, 0.0),))),
             Component("interpolated", 0.0, CurveModel(segments=((0.0, 0.0, 0.0),))))  # fmt: skip
    assert Mixture(parts).at([1.0]) == pytest.approx([3])
    found = mixed(SIZES, 1e-9 * SIZES, {"log_log": 1.0, "line": 4.0})
    assert [(one.model, one.weight) for one in found.parts] == [("log_log", 0.2), ("line", 0.8)]


def test_one_size_is_bandwidth_alone():
    assert line(np.array([100.0]), np.array([5.0])).segments == ((0.0, 0.0, 0.05),)
    for name in ("piecewise", "adjacent"):
        assert FITS[name](np.array([100.0]), np.array([5.0])).segments == ((0.0, 0.0, 0.05),)


@pytest.mark.parametrize("exponent", [-3, 0, 3])
def test_a_line_is_found_in_any_unit(exponent):
    seconds = 10.0**exponent * (1e-5 + 1e-9 * SIZES)
    ((start, latency, slope),) = line(SIZES, seconds).segments
    assert (start, latency, slope) == pytest.approx((0, 1e-5 * 10.0**exponent, 1e-9 * 10.0**exponent), rel=1e-3)


@pytest.mark.parametrize(
    ("count", "places"),
    [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (6, [0, 1, 2, 4, 5]), (12, [0, 3, 6, 8, 11])],
)
def test_five_anchors_are_spread_evenly(count, places):
    found = five_anchors(SIZES[:count], np.arange(1.0, count + 1))
    assert found.points == tuple((SIZES[one], one + 1.0) for one in places)


def test_three_segments_need_five_sizes_and_join_at_measured_ones():
    logs = np.array([0.0, 0.0, 1.0, 2.0, 2.0])
    sizes = np.e ** np.arange(5.0)
    assert three_segments(sizes[:4], np.exp(logs[:4])) == five_anchors(sizes[:4], np.exp(logs[:4]))
    found = np.log(np.array(three_segments(sizes, np.exp(logs)).points))
    np.testing.assert_allclose(found, [[0, 0], [1, 0], [3, 2], [4, 2]], atol=1e-9)
    # The best of all pairs of joints, the last ones among them.
    bent = np.where(np.arange(12) < 10, 0.0, np.arange(12) - 9.0) + np.where(np.arange(12) < 1, 5.0, 0.0)
    sizes = np.e ** np.arange(12.0)
    np.testing.assert_allclose(np.log(three_segments(sizes, np.exp(bent)).at(sizes)), bent, atol=1e-6)


class TestStretches:
    def test_six_sizes_are_the_fewest(self):
        for count, stretches in ((5, 1), (6, 2)):
            sizes = SIZES[:count]
            seconds = np.where(np.arange(count) < 3, 1e-5, 1e-3) + 0 * sizes
            assert len(piecewise(sizes, seconds).segments) == stretches

    def test_latencies_and_bandwidths_are_not_below_zero(self):
        falling = piecewise(SIZES, 1.0 - 1e-8 * SIZES)
        assert all(latency >= 0 and slope >= 0 for _, latency, slope in falling.segments)
        steep = piecewise(SIZES, 1e-9 * SIZES**1.02)
        assert all(latency >= 0 and slope >= 0 for _, latency, slope in steep.segments)
        ((_, latency, slope),) = piecewise(SIZES, np.full(12, 0.25)).segments
        assert (latency, slope) == pytest.approx((0.25, 0))
        ((_, latency, slope),) = piecewise(SIZES, 1e-9 * SIZES).segments
        assert (latency, slope) == pytest.approx((0, 1e-9), abs=1e-12)

    def test_errors_of_three_per_cent_are_noise_and_a_fifth_is_none(self):
        plain = 1e-5 + 1e-9 * SIZES
        for factor, stretches in ((1.03, 1), (1.5, 2)):
            seconds = plain * np.where(np.arange(12) < 6, 1.0, factor)
            assert len(piecewise(SIZES, seconds).segments) == stretches

    def test_where_lines_cross_between_two_sizes_they_change(self):
        seconds = np.minimum(1e-6 + 1e-9 * SIZES, 3e-5 + 2e-10 * SIZES)
        ((_, start, *_),) = [tuple(one[0] for one in piecewise(SIZES, seconds).segments)]
        assert start == pytest.approx(2.9e-5 / 8e-10, rel=1e-6)

    def test_where_they_do_not_the_gap_is_the_faster_one_s(self):
        for slow_first in (True, False):
            factor = np.where((np.arange(12) < 6) == slow_first, 10.0, 1.0)
            (_, start) = (one[0] for one in piecewise(SIZES, factor * 1e-5).segments)
            assert start == pytest.approx(SIZES[5] if slow_first else SIZES[6], rel=1e-6)
            assert SIZES[5] < start <= SIZES[6]


class TestAdjacent:
    def test_lines_are_continued_where_time_jumps_or_falls(self):
        sizes = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
        jumps = adjacent(sizes, np.array([3.0, 4.0, 60.0, 100.0, 180.0]))
        # Before the jump one more byte costs one, after it ten.
        assert jumps.at([1.5, 2.0, 3.0, 4.0, 6.0, 16.0, 32.0]) == pytest.approx([3.5, 4, 5, 60, 80, 180, 340])
        falls = adjacent(sizes, np.array([30.0, 40.0, 14.0, 18.0, 26.0]))
        assert falls.at([1.5, 2.0, 3.0, 4.0, 12.0]) == pytest.approx([35, 40, 13, 14, 22])

    def test_times_that_stay_or_fall_have_no_bandwidth_beyond(self):
        flat = adjacent(np.array([1.0, 2.0, 4.0]), np.array([3.0, 3.0, 3.0]))
        assert flat.at([0.5, 3.0, 1e6]) == pytest.approx([3, 3, 3])
        falls = adjacent(np.array([1.0, 2.0, 4.0]), np.array([5.0, 4.0, 3.0]))
        assert falls.at([1.0, 2.0, 4.0, 1e6]) == pytest.approx([5, 4, 3, 3])
        # Bytes alone, which one line has all along.
        assert adjacent(np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 9.0])).segments[0] == (0.0, 0.0, 2.0)
        # More than the size grows: bandwidth alone.
        steep = adjacent(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
        assert steep.at([1.0, 2.0, 10.0]) == pytest.approx([1, 4, 20])

    def test_two_sizes_are_one_line(self):
        model = adjacent(np.array([1.0, 3.0]), np.array([2.0, 4.0]))
        assert model.at([0.0, 2.0, 3.0, 5.0]) == pytest.approx([1, 3, 4, 6])


def test_the_interpolated_one_is_a_line_and_what_is_off():
    seconds = (1e-5 + 1e-9 * SIZES) * np.where(np.arange(12) % 2, 1.1, 1.0)
    found = interpolated(SIZES, seconds)
    assert found.segments == line(SIZES, seconds).segments
    assert [size for size, _ in found.corrections] == SIZES.tolist()
    assert found.at(SIZES) == pytest.approx(seconds)
    assert log_log(SIZES, seconds).points == tuple(zip(SIZES.tolist(), seconds.tolist(), strict=True))
    assert set(OURS) == set(FITS) - {"five_anchors"}
    assert OURS[0] == "line"
