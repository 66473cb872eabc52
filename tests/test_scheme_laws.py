"""Laws of what schemes are made of: shares that add up, factors within bounds, codes that hold what they must."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looping import each
from simnet.sparsifier_models import create
from simnet.sparsifier_models.codes import HALVES, LARGEST
from simnet.sparsifier_models.dense import round_to_format
from simnet.sparsifier_models.exdyna import start_factor
from simnet.sparsifier_models.samples import apportion, density_warning, divisible_sample_size
from simnet.sparsifier_models.sidco import stage_targets


@each("density", [1.0, 0.3, 0.25, 0.2499, 0.0625, 0.01, 1e-4])
def test_what_stages_leave_is_the_density(density):
    for stages in range(7):
        for ratio in (0.25, 0.5, 0.9):
            targets = stage_targets(density, stages, ratio)
            assert math.prod(targets) == pytest.approx(density)
            assert all(0 < one <= 1 for one in targets)
            assert len(targets) == stages or stages == 0 or density >= 0.25


@given(st.data(), st.integers(1, 6))
def test_shares_are_handed_out_in_whole_units_as_far_as_there_is_room(data, n):
    room = data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    units = data.draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    shares = [data.draw(st.floats(0, most * unit)) for most, unit in zip(room, units, strict=True)]
    found = apportion(shares, room, units)
    assert all(0 <= one <= most for one, most in zip(found, room, strict=True))
    assert any(found) or not any(shares)
    # Half a unit, of the largest, is what rounding leaves at most; and one part has something in any case.
    given_out = sum(one * unit for one, unit in zip(found, units, strict=True))
    assert abs(given_out - sum(shares)) <= max(units) / 2 + 1e-9 or (sum(found) == 1 and given_out > sum(shares))


@each("entries, density, size", [(64, 0.3, 70), (10, 0.01, 100), (1, 64 / 65, 65), (64, 1.0, 64), (64, 0.001, 1000)])
def test_a_sample_selects_whole_entries_and_is_no_larger_than_that_takes(entries, density, size):
    assert divisible_sample_size(entries, density) == size


@given(st.floats(1e-6, 1e6), st.integers(1, 50))
def test_the_factor_after_an_estimate_follows_the_selected_entries_within_bounds(ratio, exchange):
    factor = start_factor(ratio, exchange)
    assert math.exp(-1 / exchange) * (1 - 1e-12) <= factor <= math.exp(1 / exchange) * (1 + 1e-12)
    assert (factor > 1) == (ratio > 1) or abs(ratio - 1) < 1e-9
    if abs(math.log(ratio)) / 8 < 1 / exchange:
        assert factor**8 == pytest.approx(ratio)


def test_codes_of_sums_are_as_wide_as_the_largest_sum():
    for workers in range(1, 70):
        for granularity in (15, 16, 30):
            bits = 8 * create("thc", workers, 100, granularity=granularity).code_bytes[1]
            assert 2 ** (bits - 1) <= granularity * workers < 2**bits


def test_what_a_format_cannot_hold_becomes_its_largest_number():
    largest = {
        "fp16": float(np.finfo(np.float16).max),
        "bf16": float(np.array([0x7F7F0000], np.uint32).view(np.float32)[0]),
    }
    assert largest == LARGEST
    for form in HALVES.values():
        most = np.array([LARGEST[form], -np.finfo(np.float32).max, 1.0], np.float32)
        np.testing.assert_array_equal(round_to_format(most, form), np.float32([LARGEST[form], -LARGEST[form], 1.0]))


@pytest.mark.parametrize("scale", [1.5, 2.0, 3.0])
def test_a_sample_of_any_scale_above_one_may_be_too_small(scale):
    assert "keeps 1 of them, 10 % in place of " in density_warning([create("topk", 2, 10, 0.01, scale=scale)])
    assert density_warning([create("topk", 2, 10, 0.01)]) is None
