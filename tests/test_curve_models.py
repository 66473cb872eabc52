"""Models of a single curve by hand: ends, joints, ties and the fewest sizes that they take."""

import numpy as np
import pytest

from simnet.cost_models.calibration.curves import CurveModel, fit_adjacent, fit_piecewise, log_correction

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


def test_corrections_are_straight_where_they_are_alike_and_constant_beyond():
    assert log_correction(((10.0, 0.5),), np.array([1.0, 10.0, 1e9])).tolist() == [0.5, 0.5, 0.5]
    three = ((1.0, 0.0), (10.0, 1.0), (100.0, 2.0))
    assert log_correction(three, np.array([0.1, 1.0, 10**0.5, 10.0, 100.0, 1e6])) == pytest.approx([0, 0, 0.5, 1, 2, 2])
    base = CurveModel(segments=((0.0, 2.0, 0.0),), corrections=((1.0, 0.0), (4.0, np.log(3.0))))
    assert base.at([0.5, 1.0, 2.0, 4.0, 9.0]) == pytest.approx([2, 2, 2 * 3**0.5, 6, 6])


class TestStretches:
    @pytest.mark.parametrize("exponent", [-6, 0, 6])
    def test_they_are_the_same_in_any_unit(self, exponent):
        unit = 10.0**exponent
        # Latency alone; latency and bytes; bytes alone.
        seconds = np.select([np.arange(12) < 4, np.arange(12) < 8], [5.0, 1.0 + SIZES / 2**13], SIZES / 2**9)
        found = np.array(fit_piecewise(SIZES, unit * seconds).segments)
        assert found[:, 0] == pytest.approx([0, SIZES[3], SIZES[8]], rel=1e-6)
        assert found[:, 1] / unit == pytest.approx([5, 1, 0], abs=1e-6)
        assert found[:, 2] / unit * 2**13 == pytest.approx([0, 1, 16], abs=1e-6)

    def test_latencies_and_bandwidths_are_not_below_zero(self):
        falling = fit_piecewise(SIZES, 1.0 - 1e-8 * SIZES)
        assert all(latency >= 0 and slope >= 0 for _, latency, slope in falling.segments)
        steep = fit_piecewise(SIZES, 1e-9 * SIZES**1.02)
        assert all(latency >= 0 and slope >= 0 for _, latency, slope in steep.segments)
        ((_, latency, slope),) = fit_piecewise(SIZES, np.full(12, 0.25)).segments
        assert (latency, slope) == pytest.approx((0.25, 0))
        ((_, latency, slope),) = fit_piecewise(SIZES, 1e-9 * SIZES).segments
        assert (latency, slope) == pytest.approx((0, 1e-9), abs=1e-12)

    def test_where_lines_cross_between_two_sizes_they_change(self):
        seconds = np.minimum(1e-6 + 1e-9 * SIZES, 3e-5 + 2e-10 * SIZES)
        ((_, start, *_),) = [tuple(one[0] for one in fit_piecewise(SIZES, seconds).segments)]
        assert start == pytest.approx(2.9e-5 / 8e-10, rel=1e-6)


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
