"""Selection kernels: compiled loops and numpy against stable sorts and each other, whatever the input."""

import json
import math
import os
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import needs
from looping import each
from simnet.base.jit_threshold import native_copy
from simnet.sparsifier_models import compiled_selection, selection
from simnet.sparsifier_models.selection import (
    above,
    count_above,
    indices_problem,
    kth_magnitude,
    squared_norm,
    squared_norms,
    take_mean,
    top_k,
)
from simnet.sparsifier_models.topk import bracket

PATHS = ["compiled", "numpy"]


@contextmanager
def on(path):
    """Send arrays of any length through the compiled loops, or through numpy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_LONG", 0)
        if path == "numpy":
            patch.setattr(selection, "_compiled_loops", lambda: None)
        yield


def loops():
    """The loops as native code."""
    return needs.compiled(native_copy(compiled_selection))


# Inputs

DENORMAL = 1e-45
KINDS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy": lambda rng, n: rng.standard_cauchy(n),
    "ties": lambda rng, n: rng.integers(-3, 4, n),
    "signs": lambda rng, n: rng.choice([-1.0, 1.0], n),
    "zeros of both signs": lambda rng, n: rng.choice([-0.0, 0.0], n),
    "constant": lambda rng, n: np.full(n, -0.1),
    "sparse": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 0.05),
    "dense with zeros": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 0.9),
    "denormal": lambda rng, n: rng.integers(-20, 21, n) * DENORMAL,
    "huge": lambda rng, n: rng.choice([-3e38, 3e38, 1e38, 1.0], n),
    "infinite": lambda rng, n: rng.choice([-np.inf, np.inf, 1.0, 0.0], n),
    "neighbours": lambda rng, n: np.float32(1) + rng.integers(-4, 5, n) * np.finfo(np.float32).eps,
    "ascending": lambda rng, n: np.sort(rng.standard_normal(n)),
    "descending": lambda rng, n: -np.sort(-np.abs(rng.standard_normal(n))),
    "layers": lambda rng, n: rng.standard_normal(n) * 10.0 ** -(np.arange(n) * 5 // max(n, 1)),
    "one of 64": lambda rng, n: (np.arange(n) % 64 == 5) * rng.standard_normal(n),
    "one of 512": lambda rng, n: (np.arange(n) % 512 == 0) * rng.standard_normal(n),
    "one large": lambda rng, n: np.where(np.arange(n) == n - 1, 9, 1e-3 * rng.standard_normal(n)),
}
kinds = st.sampled_from(sorted(KINDS))
# Around the words, the samples and the blocks that the compiled loops work in.
lengths = st.one_of(
    st.integers(1, 200),
    st.builds(lambda m, d: max(1, m + d), st.sampled_from([256, 512, 1024, 4096, 8192]), st.integers(-2, 2)),
    st.integers(1, 6000),
)
shares = st.one_of(st.sampled_from([0, 1e-5, 1e-3, 0.01, 0.1, 0.5, 1]), st.floats(0, 1))
seeds = st.integers(0, 2**32 - 1)


def values_of(kind, n, seed):
    return np.asarray(KINDS[kind](np.random.default_rng(seed), n), dtype=np.float32)


def ranked(values):
    """Indices by magnitude, the largest first, of equal ones the first."""
    return np.argsort(-np.abs(values), kind="stable")


# Against a stable sort


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150)
@given(kinds, lengths, shares, seeds)
@example("zeros of both signs", 8192, 0.5, 0)
@example("one of 512", 4096, 1e-3, 0)
def test_top_k_and_the_kth_magnitude_are_those_of_a_stable_sort(path, kind, n, share, seed):
    values = values_of(kind, n, seed)
    given_values, order = values.copy(), ranked(values)
    with on(path):
        for k in {math.ceil(share * n), 1, n - 1, n + 3}:
            found = top_k(values, k)
            np.testing.assert_array_equal(found, np.sort(order[:k]))
            assert found.dtype == np.int64
            if 0 < k <= n:
                assert kth_magnitude(values, k) == abs(values[order[k - 1]])
    np.testing.assert_array_equal(values, given_values)


@st.composite
def thresholds(draw, values):
    magnitude = np.abs(values)
    one = float(draw(st.sampled_from(magnitude.tolist())))
    special = [0.0, -0.0, -1.0, DENORMAL, 3.4e38, np.inf, -np.inf, np.nan]
    return draw(st.sampled_from([one, one, one * (1 + 2**-24), one / 2, *special]))


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150)
@given(kinds, lengths, seeds, st.booleans(), st.data())
def test_entries_above_a_threshold_are_those_that_compare_so(path, kind, n, seed, strict, data):
    values = values_of(kind, n, seed)
    threshold = data.draw(thresholds(values))
    limit, magnitude = np.float32(threshold), np.abs(values)
    expected = np.flatnonzero(magnitude > limit if strict else magnitude >= limit)
    with on(path):
        found = above(values, threshold, strict=strict)
        count = count_above(values, threshold, strict=strict)
    np.testing.assert_array_equal(found, expected)
    assert count == expected.size
    assert found.dtype == np.int64


@settings(max_examples=300)
@given(kinds, st.one_of(lengths, st.integers(8192, 40_000)), seeds)
def test_sums_of_squares_of_rows_are_those_of_each(kind, n, seed):
    values = values_of(kind, n, seed)
    found = squared_norm(values)
    assert found == pytest.approx(math.fsum((values.astype(np.float64) ** 2).tolist()), rel=1e-14)
    assert squared_norms(np.stack([values, -values])).tolist() == [found, found]


def test_what_receivers_do_not_read_is_left_and_summed():
    rows = 10 * values_of("normal", 20_000, 0).reshape(2, 10_000)
    indices = np.arange(0, 10_000, 3)
    read = np.floor(rows[:, indices])
    rest = rows.copy()
    rest[:, indices] -= read
    mean, sent = take_mean(rows, indices, np.floor)
    assert rows.tolist() == rest.tolist()
    assert mean[indices].tolist() == ((read[0] + read[1]) / 2).tolist()
    assert sent.tolist() == squared_norms(read).tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 8191, 8192, 19_999])
def test_the_sum_of_squares_of_what_is_not_finite_is_not_finite(bad, place):
    values = np.ones(20_000, dtype=np.float32)
    values[place] = bad
    assert squared_norm(values) == pytest.approx(bad * bad, nan_ok=True)


@pytest.mark.parametrize("n", [selection._LONG + d for d in (-1, 0, 1, 63, 4097)])
@pytest.mark.parametrize("kind", ["heavy", "ties", "sparse", "layers"])
def test_results_do_not_change_where_the_compiled_loops_take_over(kind, n):
    values = values_of(kind, n, n)
    order = ranked(values)
    for k in (1, n // 100, n // 2, n - 1):
        threshold = kth_magnitude(values, k)
        assert threshold == abs(values[order[k - 1]])
        np.testing.assert_array_equal(top_k(values, k), np.sort(order[:k]))
        np.testing.assert_array_equal(above(values, threshold), np.flatnonzero(np.abs(values) > threshold))


@each(
    "indices, said",
    [
        (np.array([3, 0]), ""),
        (np.array([4, 0]), "index 4 is not from 0 to 3"),
        (np.array([2, -1]), "index -1 is not from 0 to 3"),
        (np.array([0, 2, 0]), "index 0 is there twice"),
        (np.array([[0, 1]]), "they are int64 of shape (1, 2)"),
        ([0, 1], "they are list of shape (2,)"),
    ],
)
def test_what_is_wrong_with_indices_is_said(indices, said):
    assert indices_problem(indices, 4) == said


# Samples that mislead


class Counted:
    """The compiled loops; counts the calls of each."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        found = getattr(loops(), name)
        if callable(found) and name.islower():
            self.calls.append(name)
        return found


def sampled_places(n):
    taken = np.empty(n // selection._SAMPLED, dtype=np.uint32)
    loops().sample(np.arange(n, dtype=np.uint32), n // taken.size, taken)
    return taken


def test_a_sample_takes_one_entry_of_each_stretch_at_ever_other_places():
    n = 100 * selection._SAMPLED + 77
    places = sampled_places(n)
    step = n // places.size
    np.testing.assert_array_equal(places // step, np.arange(places.size))
    # Spread evenly: each quarter of the stretches is hit about as often, and no two neighbours alike.
    quarters = np.bincount(places % step * 4 // step)
    assert quarters.min() >= 20
    assert (np.diff((places % step).astype(np.int64)) != 0).all()


N = 64 * selection._SAMPLED


def misleading(kind):
    """Gradients that the sample says nothing of, or the contrary."""
    rng, places = np.random.default_rng(0), sampled_places(N)
    values = rng.standard_normal(N).astype(np.float32)
    match kind:
        case "sample too small":
            values[places] *= 1e-6
        case "sample too large":
            values[places] *= 1e6
        case "all else tied":
            values[:] = 1
            values[places] = np.linspace(0, 2, places.size)
        case "all else between two":
            values[:] = np.linspace(0.9999, 1.0001, N)
            values[places] = np.where(np.arange(places.size) % 2, 0, 2)
        case "all else larger":
            values = 5 + np.abs(values)
            values[places] = 1
        case "all else zero":
            values[:] = 0
            values[places] = 1
    return values


TELLING = "sample too small, sample too large, all else tied, all else between two, all else larger, all else zero"


@pytest.mark.parametrize("kind", TELLING.split(", "))
def test_a_misleading_sample_costs_passes_but_nothing_else(kind, monkeypatch):
    values = misleading(kind)
    order, magnitude = ranked(values), np.abs(values)
    most = 0
    with on("compiled"):
        # The last but one of these is, in one case, how many are larger than all that is sampled.
        for k in (1, 2, N // 1000, N // 100, N // 10, N // 2, N - sampled_places(N).size, N - 1):
            counted = Counted()
            monkeypatch.setattr(selection, "_compiled_loops", lambda counted=counted: counted)
            threshold = kth_magnitude(values, k)
            assert threshold == magnitude[order[k - 1]]
            assert counted.calls.count("band") <= 3
            most = max(most, counted.calls.count("band"))
            np.testing.assert_array_equal(top_k(values, k), np.sort(order[:k]))
            for strict in (True, False):
                expected = np.flatnonzero(magnitude > threshold if strict else magnitude >= threshold)
                counted.calls.clear()
                indices = above(values, threshold, strict=strict)
                assert counted.calls.count("select") <= 2
                np.testing.assert_array_equal(indices, expected)
    assert most > 1


@settings(max_examples=300)
@given(kinds, st.integers(1, 400), st.integers(-3, 3), st.integers(0, 400), seeds)
def test_loops_never_write_past_the_end_of_a_buffer(kind, n, spare, ties, seed):
    bits = values_of(kind, n, seed).view(np.uint32)
    magnitude = bits & 0x7FFFFFFF
    low, high = np.sort(np.random.default_rng(seed).choice(magnitude, 2)).tolist()
    inside = magnitude[(magnitude >= low) & (magnitude <= high)]
    equal = np.flatnonzero(magnitude == low)
    places = np.setdiff1d(np.flatnonzero((magnitude >= low) & (magnitude <= high)), equal[ties:])

    room, buffer = max(0, inside.size + spare), np.full(1000, 123, dtype=np.uint32)
    found, larger = loops().band(bits, low, high, buffer[:room])
    assert (buffer[room:] == 123).all()
    assert found == inside.size or (found == -1 and spare < 0)
    if found >= 0:
        np.testing.assert_array_equal(buffer[:found], inside)
        assert larger == np.count_nonzero(magnitude > high)

    room = max(0, places.size + spare)
    indices = np.full(1000, -5)
    found = loops().select(bits, low, high, ties, indices[:room])
    assert (indices[room:] == -5).all()
    assert found == places.size or (found == -1 and spare < 0)
    if found >= 0:
        np.testing.assert_array_equal(indices[:found], places)


# What is passed in and what comes back


@pytest.mark.parametrize("path", PATHS)
def test_views_of_any_kind_are_taken(path):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3, 5000)).astype(np.float32)
    raw = np.zeros(4 * 5000 + 1, dtype=np.uint8)
    unaligned = raw[1:].view(np.float32)
    unaligned[:] = rows[0]
    frozen = rows[1].copy()
    frozen.flags.writeable = False
    for values in (rows[2], rows[0, ::-1], rows.T[7], rows[1, ::3], unaligned, frozen):
        order = ranked(values)
        k = values.size // 3
        with on(path):
            np.testing.assert_array_equal(top_k(values, k), np.sort(order[:k]))
            assert kth_magnitude(values, max(k, 1)) == abs(values[order[max(k, 1) - 1]])
            np.testing.assert_array_equal(above(values, 1), np.flatnonzero(np.abs(values) > 1))
            assert squared_norm(values) == pytest.approx(float((values.astype(np.float64) ** 2).sum()), rel=1e-13)


@pytest.mark.parametrize("path", PATHS)
def test_nan_does_no_harm(path):
    values = values_of("normal", 5000, 0)
    values[[3, 64, 4999]] = np.nan
    with on(path):
        assert np.isnan(kth_magnitude(values, 3))
        assert kth_magnitude(values, 4) == np.nanmax(np.abs(values))
        assert top_k(values, 2).size <= 2
        assert top_k(values, values.size).size == values.size
        assert not np.isin([3, 64, 4999], above(values, 0)).any()
        assert count_above(values, np.inf, strict=False) == 0
        # Nothing exceeds what is no number, or is as large.
        values[5] = np.inf
        for strict in (True, False):
            assert count_above(values, np.nan, strict=strict) == above(values, np.nan, strict=strict).size == 0


# The search of MSTopk counts with these kernels


@given(kinds.filter(lambda kind: kind not in ("infinite", "huge")), lengths, shares, seeds)
def test_the_bracket_is_the_same_on_both_paths_and_brackets(kind, n, share, seed):
    magnitude = np.abs(values_of(kind, n, seed))
    k = min(int(share * n), n - 1)
    with on("compiled"):
        low, high = bracket(magnitude, k)
    with on("numpy"):
        assert bracket(magnitude, k) == (low, high)
    assert np.count_nonzero(magnitude >= np.float32(low)) > k >= np.count_nonzero(magnitude >= np.float32(high))
    assert low <= high
    if low > 0 and np.isfinite(high):
        # Twenty-five halvings of the range from mean to maximum, to float32 resolution.
        span = float(magnitude.max()) - float(magnitude.mean(dtype=np.float64))
        assert high - low <= span / 2**25 + 4 * np.finfo(np.float32).eps * float(magnitude.max())


# Loading


def fresh(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    ).stdout


REPORT = """
import json, sys
import numpy as np
from simnet.sparsifier_models import selection
values = np.random.default_rng(0).standard_t(3, selection._LONG).astype(np.float32)
before = "llvmlite" in sys.modules
result = [selection.top_k(values, 99).tolist(), selection.kth_magnitude(values, 1000), selection.squared_norm(values)]
result += [selection.above(values, 2.5).size, selection.count_above(values, 2.5)]
print(json.dumps([before, "llvmlite" in sys.modules, selection._compiled_loops() is not None, result]))
"""


def test_importing_does_not_load_native_code_and_a_long_array_does():
    before, after, compiled, result = json.loads(fresh(REPORT))
    assert (before, after, compiled) == (False, True, True)
    missing = "import sys; sys.modules['numba'] = None\n" + REPORT
    assert json.loads(fresh(missing)) == [False, True, False, result]
    assert json.loads(fresh(REPORT, NUMBA_DISABLE_JIT="1")) == [False, True, False, result]


@pytest.mark.parametrize("share", [0.5, 0.95, 1.0, 1.05, 3.0])
def test_zeros_that_are_most_are_not_put_in_order(share):
    random = np.random.default_rng(0)
    values = np.zeros(1 << 20, dtype=np.float32)
    values[random.choice(values.size, 100_000, replace=False)] = random.standard_normal(100_000)
    k = int(share * np.count_nonzero(values))
    selection._compiled_loops()
    tracemalloc.start()
    found = selection.kth_magnitude(values, k)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == np.sort(np.abs(values))[-k]
    # All of them would take four bytes each.
    assert peak < values.size
    assert (np.diff(selection.top_k(values, k)) > 0).all()
