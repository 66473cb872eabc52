"""Network weather: signals against rational arithmetic, processes against their laws, files against their bytes."""

import csv
import math
import sys
from bisect import bisect_right
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simnet.base.errors import InputError
from simnet.network.weather import (
    PROFILES,
    Signal,
    constant,
    diurnal,
    mahimahi,
    markov,
    ornstein_uhlenbeck,
    outages,
    product,
    profile,
    profile_state,
    steps,
    trace_csv,
)

EPS = sys.float_info.epsilon
TINY = Fraction(sys.float_info.min)


@st.composite
def pieces(draw, max_size=12):
    """Times from 0 and values, among them zeros and repeated ones."""
    waits = draw(st.lists(st.floats(1e-3, 100), max_size=max_size - 1))
    value = st.one_of(st.sampled_from([0.0, 1.0, 1e9]), st.floats(1e-3, 1e10))
    values = draw(st.lists(value, min_size=len(waits) + 1, max_size=len(waits) + 1))
    return np.cumsum([0.0, *waits]).tolist(), values


def exact_integral(times, values, start, end):
    """Integrate piece by piece in rational arithmetic."""
    ends = [*times[1:], math.inf]
    total = Fraction(0)
    for begin, finish, value in zip(times, ends, values, strict=True):
        low, high = max(begin, start), min(finish, end)
        if high > low:
            total += Fraction(value) * (Fraction(high) - Fraction(low))
    return total


def exact_inverse(times, values, start, amount):
    """Return the earliest time at which the exact integral from `start` reaches `amount`; None if never."""
    left, ends = Fraction(amount), [*times[1:], math.inf]
    if not left:
        return Fraction(start)
    for begin, finish, value in zip(times, ends, values, strict=True):
        low = Fraction(max(begin, start))
        if finish <= low or not value:
            continue
        if finish == math.inf or left <= Fraction(value) * (Fraction(finish) - low):
            return low + left / Fraction(value)
        left -= Fraction(value) * (Fraction(finish) - low)
    return None


def in_chunks(times, values, size=2):
    """Return the same signal, generated `size` points at a time."""
    parts = ((times[at : at + size], values[at : at + size]) for at in range(1, len(times), size))
    return Signal(times[:1], values[:1], parts)


def wild(seed=5, name=("link", 1)):
    """Return a bandwidth with everything in it."""
    noise = ornstein_uhlenbeck(0.3, 5, 0.25, mean=1e6, seed=seed, name=name)
    return product(noise, markov([1, 0.5, 0.1], [3, 2, 1], seed=seed, name=name), outages(20, 2, seed=seed, name=name))


# Signals: exactness


@given(pieces(), st.floats(0, 1000))
def test_at_is_the_last_value_begun(given_pieces, t):
    times, values = given_pieces
    signal = steps(times, values)
    assert signal.at(t) == values[bisect_right(times, t) - 1]
    assert [signal.at(time) for time in times] == values


@given(pieces(), st.floats(0, 500), st.floats(0, 500))
def test_integral_is_exact_to_rounding(given_pieces, start, duration):
    times, values = given_pieces
    expected = exact_integral(times, values, start, start + duration)
    for signal in (steps(times, values), in_chunks(times, values)):
        assert abs(Fraction(signal.integral(start, start + duration)) - expected) <= 8 * EPS * expected + TINY


@given(pieces(), st.floats(0, 500), st.floats(0, 1e12))
def test_inverse_is_the_earliest_time(given_pieces, start, amount):
    times, values = given_pieces
    expected = exact_inverse(times, values, start, amount)
    for signal in (steps(times, values), in_chunks(times, values)):
        found = signal.inverse(start, amount)
        if expected is None:
            assert found == math.inf
            continue
        # One rounding of the amount and one of the time, in the piece in which the transfer ends.
        rate = values[bisect_right(times, float(expected)) - 1] or 1.0
        slack = 16 * EPS * (expected + Fraction(amount) / Fraction(min(rate, *(v for v in values if v), 1e300))) + TINY
        assert abs(Fraction(found) - expected) <= slack
        assert found >= start


def test_inverse_ends_before_an_outage_when_the_last_byte_fits():
    signal = steps([0, 10, 20, 30], [4, 0, 1, 0])
    assert signal.inverse(5, 20) == 10
    assert signal.inverse(5, math.nextafter(20, 21)) > 20 - 1e-9
    assert signal.inverse(12, 5) == 25
    assert signal.inverse(5, 30) == 30
    assert signal.inverse(5, 31) == math.inf
    assert signal.inverse(40, 1) == math.inf
    assert signal.inverse(40, 0) == 40
    assert signal.inverse(0, math.inf) == math.inf


@given(pieces(), st.data())
def test_splitting_a_piece_changes_nothing(given_pieces, data):
    times, values = given_pieces
    index = data.draw(st.integers(0, len(times) - 1))
    end = times[index + 1] if index + 1 < len(times) else times[index] + 2
    middle = (times[index] + end) / 2
    split = [*times[: index + 1], middle, *times[index + 1 :]], [*values[: index + 1], *values[index:]]
    start, amount = data.draw(st.floats(0, 500)), data.draw(st.floats(0, 1e12))
    whole = steps(times, values)
    for halves in (steps(*split), in_chunks(*split, size=1), in_chunks(*split, size=3)):
        for t in (start, middle, times[index], end):
            assert halves.at(t) == whole.at(t)
            assert halves.next_change(t) == whole.next_change(t) != middle
            assert halves.inverse(t, amount) == whole.inverse(t, amount)
            assert halves.integral(0, t) == whole.integral(0, t)


@given(pieces(), st.floats(0, 500))
def test_next_change_is_the_next_other_value(given_pieces, t):
    times, values = given_pieces
    changes = [b for (a, x), (b, y) in pairwise(zip(times, values, strict=True)) if x != y]
    assert steps(times, values).next_change(t) == next((time for time in changes if time > t), math.inf)


@given(pieces(), st.floats(0, 300), st.floats(0, 300))
def test_window_holds_the_pieces(given_pieces, start, duration):
    signal = steps(*given_pieces)
    end = start + duration
    times, values = signal.window(start, end)
    if end == start:
        assert times.size == values.size == 0
        return
    assert times[0] == start
    assert (np.diff(times) > 0).all()
    assert times[-1] < end
    assert values.tolist() == [signal.at(t) for t in times.tolist()]
    total = (values * np.diff(times, append=end)).sum()
    assert total == pytest.approx(signal.integral(start, end), rel=1e-12)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 5)), min_size=1, max_size=6), st.integers(1, 4))
def test_a_period_repeats(steps_taken, rest):
    times = np.cumsum([0] + [wait / 8 for wait, _ in steps_taken])[:-1]
    values = [float(value) for _, value in steps_taken]
    period = float(times[-1]) + rest / 8
    once, signal = steps(times, values), steps(times, values, period)
    for t in (0.0, period / 3, period - 1 / 64):
        for count in (1, 2, 700):
            assert signal.at(t + count * period) == pytest.approx(once.at(t))
            assert signal.integral(t, t + count * period) == pytest.approx(count * once.integral(0, period), rel=1e-12)
    if len(set(values)) == 1:
        assert signal.next_change(3 * period) == math.inf


def test_a_step_shorter_than_the_clock_resolves_is_dropped_not_refused():
    signal = steps([0, 1e-12], [5, 1], period=1)
    assert signal.at(1e5 + 0.5) == 1
    assert signal.integral(1e5, 1e5 + 10) == pytest.approx(10)


# Signals: laziness and bounds


def test_answers_do_not_depend_on_the_order_of_questions():
    rng = np.random.default_rng(0)
    starts = rng.uniform(0, 400, 60).tolist()

    def ask(signal, start):
        return (
            signal.next_change(start),
            signal.at(start),
            signal.integral(start / 3, start),
            signal.inverse(start, 1e6 * start),
        )

    in_order = wild()
    expected = [ask(in_order, start) for start in starts]
    other_way = wild()
    assert [ask(other_way, start) for start in reversed(starts)] == expected[::-1]
    assert [ask(wild(), start) for start in starts[:10]] == expected[:10]


def test_factors_shared_by_products_do_not_disturb_each_other():
    noise, other = ornstein_uhlenbeck(0.3, 5, 0.25, seed=1), outages(5, 1, seed=1)
    first, second = noise * other, noise * 2.0
    assert second.at(1000) == 2 * noise.at(1000)
    fresh = product(ornstein_uhlenbeck(0.3, 5, 0.25, seed=1), outages(5, 1, seed=1))
    assert first.integral(3, 900) == fresh.integral(3, 900)
    assert product(noise, noise).at(77) == noise.at(77) ** 2


def test_nothing_is_generated_before_it_is_asked_for():
    def drawing(drawn):
        for second in range(1, 10**6):
            drawn.append(second)
            yield [float(second)], [float(second % 7)]

    drawn = []
    signal = product(constant(2.0), Signal([0.0], [0.0], drawing(drawn)))
    assert signal.at(0) == 0
    assert drawn == []
    assert signal.at(10) == 6
    assert len(drawn) <= 11
    # A factor that is down for long spares the others.
    drawn = []
    signal = product(Signal([0.0], [5.0], drawing(drawn)), outages(at=[(10, 1e4)]))
    assert signal.at(9) == 2
    assert signal.at(9_999) == 0
    assert len(drawn) <= 12
    assert signal.at(10_010) == 10_010 % 7


def test_a_signal_that_never_changes_again_is_recognised():
    def same():
        second = 0.0
        while True:
            second += 1000
            yield np.arange(second - 999, second + 1), np.full(1000, 3.0)

    assert Signal([0.0], [3.0], same()).next_change(7) == math.inf
    assert Signal([0.0], [3.0], same()).inverse(0, 30) == 10
    never = product(steps([0, 1], [0, 1], period=2), steps([0, 1], [1, 0], period=2))
    assert never.next_change(0) == math.inf
    assert never.inverse(0, 1) == math.inf
    assert never.integral(0, 1e9) == 0


@pytest.mark.parametrize(
    ("times", "values", "words"),
    [
        ([], [], "length >= 1"),
        ([0, 1], [1], "length"),
        ([[0]], [[1]], "one-dimensional"),
        ([1], [1], "first time must be 0"),
        ([0, 2, 2], [1, 2, 3], "number 2 is 2"),
        ([0, 2, 1], [1, 2, 3], "ascend strictly"),
        ([0, math.nan], [1, 2], "finite"),
        ([0, math.inf], [1, 2], "finite"),
        ([0, 1], [1, -2], "number 1 is -2"),
        ([0, 1], [1, math.nan], "number 1 is nan"),
        ([0, 1], [math.inf, 1], "number 0 is inf"),
        ([0, 10], [1e308, 1], "largest float"),
    ],
)
def test_bad_signals_are_refused(times, values, words):
    with pytest.raises(ValueError, match=words):
        steps(times, values)


# Products


@given(st.lists(pieces(max_size=6), min_size=1, max_size=4), st.lists(st.floats(0, 600), min_size=1, max_size=5))
def test_product_is_pointwise(factors, points):
    signals = [steps(*factor) for factor in factors]
    for result in (product(*signals), product(*(in_chunks(*factor) for factor in factors))):
        for t in points:
            assert result.at(t) == math.prod(one.at(t) for one in signals)
        edges = np.unique([0.0, *points, *(t for times, _ in factors for t in times if t < max(points))])
        brute = sum(result.at(a) * (b - a) for a, b in pairwise(edges[edges <= max(points)].tolist()))
        assert result.integral(0, max(points)) == pytest.approx(brute, rel=1e-12)


def test_product_of_endless_factors_changes_where_they_do():
    noise = ornstein_uhlenbeck(0.3, 5, 0.25, mean=1e6, seed=5)
    state, day = markov([1, 0.5], [3, 2], seed=5), diurnal(0.5, period=17, every=1.3)
    result = product(noise, state, day)
    edges = np.unique(np.concatenate([one.window(0, 300)[0] for one in (noise, state, day)]))
    times, values = result.window(0, 300)
    assert np.array_equal(times, edges)
    assert values.tolist() == [noise.at(t) * state.at(t) * day.at(t) for t in times.tolist()]


# Processes


@pytest.mark.parametrize(
    "make",
    [
        lambda seed, name: ornstein_uhlenbeck(0.2, 10, 1, seed=seed, name=name),
        lambda seed, name: markov([1, 2, 3], 2.0, seed=seed, name=name),
        lambda seed, name: outages(5, 1, seed=seed, name=name),
    ],
)
def test_same_seed_and_name_same_signal(make):
    def course(seed, *name):
        times, values = make(seed, name).window(0, 3000)
        return times.tolist(), values.tolist()

    assert course(1, "a", 0) == course(1, "a", 0)
    assert len({str(course(*key)) for key in ((1, "a", 0), (1, "a", 1), (1, "b", 0), (2, "a", 0), (1,))}) == 5


@pytest.mark.parametrize(("sigma", "tau", "every"), [(0.5, 4.0, 1.0), (0.5, 4.0, 0.5), (0.1, 1.0, 3.0)])
def test_ornstein_uhlenbeck_law_over_many_links(sigma, tau, every):
    n, lag = 1500, 3 * every
    sample = np.array(
        [
            [signal.at(0), signal.at(lag)]
            for signal in (ornstein_uhlenbeck(sigma, tau, every, mean=7.0, seed=11, name=("l", i)) for i in range(n))
        ]
    )
    x = np.log(sample / 7.0) + sigma**2 / 2
    rho = math.exp(-lag / tau)
    assert np.abs(x.mean(axis=0)).max() < 5 * sigma / math.sqrt(n)
    assert np.abs(x.std(axis=0) - sigma).max() < 5 * sigma / math.sqrt(2 * n)
    assert abs(np.corrcoef(x.T)[0, 1] - rho) < 5 * (1 - rho**2) / math.sqrt(n) + 1e-3
    spread = 7.0 * math.sqrt(math.expm1(sigma**2))
    assert np.abs(sample.mean(axis=0) - 7.0).max() < 5 * spread / math.sqrt(n)


def test_ornstein_uhlenbeck_law_over_time():
    sigma, tau, every, n = 0.4, 5.0, 1.0, 40_000
    times, values = ornstein_uhlenbeck(sigma, tau, every, mean=2.0, seed=3).window(0, n * every)
    assert np.array_equal(times, np.arange(n) * every)
    x = np.log(values / 2.0) + sigma**2 / 2
    a = math.exp(-every / tau)
    independent = n * (1 - a) / (1 + a)
    assert abs(x.mean()) < 5 * sigma / math.sqrt(independent)
    assert abs(x.var() / sigma**2 - 1) < 5 * math.sqrt(2 * (1 + a**2) / (1 - a**2) / n)
    for lag in (1, 5, 10):
        assert (x[lag:] * x[:-lag]).mean() / sigma**2 == pytest.approx(a**lag, abs=5 * math.sqrt(2 / independent))
    assert values.mean() == pytest.approx(2.0, abs=5 * 2 * math.sqrt(math.expm1(sigma**2) / independent))


def test_markov_dwells_and_jumps():
    levels, dwell = [4.0, 2.0, 1.0], [1.0, 0.2, 3.0]
    transition = np.array([[0, 0.3, 0.7], [1, 0, 0], [0.5, 0.5, 0]])
    times, values = markov(levels, dwell, transition=transition, seed=2).window(0, 20_000)
    state = np.array([levels.index(value) for value in values.tolist()])
    assert (state[1:] != state[:-1]).all()
    waits, state, following = np.diff(times)[:-1], state[:-2], state[1:-1]
    for index, mean in enumerate(dwell):
        own, then = waits[state == index], following[state == index]
        n = own.size
        assert n > 1000
        assert abs(own.mean() - mean) < 5 * mean / math.sqrt(n)
        assert abs((own > mean).mean() - math.exp(-1)) < 5 * 0.5 / math.sqrt(n)
        for other in range(3):
            assert abs((then == other).mean() - transition[index, other]) < 5 * 0.5 / math.sqrt(n)


def test_markov_begins_stationary_or_where_told():
    n, dwell = 400, [1.0, 9.0]
    begun = [markov([1.0, 0.0], dwell, seed=1, name=(i,)).at(0) for i in range(n)]
    assert abs(np.mean(begun) - 0.1) < 5 * math.sqrt(0.1 * 0.9 / n)
    assert {markov([1.0, 0.0], dwell, seed=1, name=(i,), start=1).at(0) for i in range(20)} == {0.0}
    # Every second visit is to the first of ten levels, from which all others are as likely.
    transition = np.zeros((10, 10))
    transition[0, 1:], transition[1:, 0] = 1 / 9, 1
    begun = [markov(range(10), 1.0, seed=1, name=(i,), transition=transition).at(0) for i in range(n)]
    assert abs(begun.count(0) / n - 0.5) < 5 * 0.5 / math.sqrt(n)


def test_the_ends_of_what_is_allowed_are_allowed():
    assert ornstein_uhlenbeck(0, 1, 1, mean=0, seed=0).window(0, 9)[1].tolist() == [0]
    assert markov([1, 0], 1.0, seed=0, start=1).at(0) == 0
    assert markov([7], 1.0, seed=0).window(0, 9)[1].tolist() == [7]
    assert [diurnal(amplitude).at(0) > 0 for amplitude in (0.0, 1.0)] == [True, True]
    assert outages(at=[(0, 0)]).window(0, 9)[1].tolist() == [1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: profile("C1", epoch_seconds=0.0), "epoch_seconds must be a number > 0"),
        (lambda: markov([], 1.0, seed=0), "at least one level"),
        (lambda: markov([1, 2], [1.0], seed=0), "one per level"),
        (lambda: markov([1, 2], [1.0, 0.0], seed=0), "mean_dwell must be a number > 0 and finite"),
        (lambda: markov([1, 2], math.nan, seed=0), "mean_dwell must be a number > 0 and finite"),
        (lambda: markov([1, -2], 1.0, seed=0, start=1), "levels must be finite and >= 0, but number 1 is -2"),
        (lambda: markov([math.nan, 2], 1.0, seed=0, start=1), "but number 0 is nan"),
        (lambda: markov([math.inf, 2], 1.0, seed=0, start=1), "but number 0 is inf"),
        (lambda: markov([1, 2], 1.0, seed=0, start=2), r"start must be a whole number in 0\.\.1, got 2"),
        (lambda: markov([1, 2], 1.0, seed=0, transition=[[0, 1]]), "shape"),
        (lambda: markov([1, 2], 1.0, seed=0, transition=[[0, 1], [0.5, 0.5]]), "diagonal"),
        (lambda: markov([1, 2], 1.0, seed=0, transition=[[0, 1], [0.9, 0]]), "add up to 1"),
        (lambda: markov([1, 2], 1.0, seed=0, transition=[[0, 1], [math.nan, 0]]), "probabilities"),
        (lambda: markov([1, 2], 1.0, seed=-1), "seed"),
        (lambda: ornstein_uhlenbeck(-0.1, 1, 1, seed=0), "sigma"),
        (lambda: ornstein_uhlenbeck(0.1, 0, 1, seed=0), "tau must be a number > 0 and finite"),
        (lambda: ornstein_uhlenbeck(0.1, 1, 1, mean=-1, seed=0), "mean"),
        (lambda: diurnal(1.1), "amplitude"),
        (lambda: diurnal(0.5, period=0), "period must be a number > 0 and finite"),
        (lambda: diurnal(0.5, every=1e-9), "pieces"),
        (lambda: diurnal(0.5, phase=math.inf), "phase"),
        (lambda: diurnal(0.5).integral(2.0, 1.0), "end 1.0 lies before start 2.0"),
        (lambda: outages(), "either"),
        (lambda: outages(1.0, 1.0), "a seed"),
        (lambda: outages(1.0, 1.0, at=[], seed=0), "either"),
        (lambda: outages(0.0, 1.0, seed=0), "mean_up must be a number > 0 and finite"),
        (lambda: outages(at=[(-1, 1)]), "start >= 0"),
        (lambda: outages(at=[(1, -1)]), "duration >= 0"),
        (lambda: outages(at=[(1, "5")]), "duration >= 0"),
        (lambda: outages(at=[(1,)]), r"an outage is a pair \(start, duration\) in seconds, got \(1,\)"),
        (lambda: outages(at=[7]), "an outage is a pair .* got 7"),
    ],
)
def test_bad_parameters_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@settings(max_examples=30)
@given(st.floats(0, 1), st.floats(1, 100), st.floats(-200, 200), st.integers(1, 40), st.floats(0, 0.9))
def test_diurnal_pieces_are_means_of_the_sinusoid(amplitude, period, phase, count, more):
    every = period / (count + more)
    signal = diurnal(amplitude, period=period, phase=phase, every=every)
    omega = 2 * math.pi / period

    def course(t):
        return t - amplitude / omega * (math.cos(omega * (t + phase)) - math.cos(omega * phase))

    for index in range(3):
        t = min(index * every, period)
        assert signal.integral(0, t) == pytest.approx(course(t), abs=1e-9 * period)
    assert signal.integral(0, period) == pytest.approx(period, rel=1e-12)
    assert signal.at(1.5 * period) == pytest.approx(signal.at(0.5 * period), abs=8 * amplitude / (count + more) + 1e-9)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=6))
def test_outages_are_the_union(down):
    signal = outages(at=down)
    for t in range(60):
        assert signal.at(t) == (0.0 if any(start <= t < start + lasts for start, lasts in down) else 1.0)


def test_random_outages_alternate():
    times, values = outages(30, 2, seed=4).window(0, 60_000)
    assert values[:4].tolist() == [1, 0, 1, 0]
    assert (values[1:] != values[:-1]).all()
    waits = np.diff(times)
    for index, mean in ((0, 30), (1, 2)):
        assert abs(waits[index::2].mean() - mean) < 5 * mean / math.sqrt(waits[index::2].size)


# Files


def written(folder, text, name="trace.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_csv_units_and_extra_columns(tmp_path):
    text = "\ufeff# measured by hand\ntime_ms,note,bandwidth_Mbit_s,latency_ms\n\n1000,a,80,10\n2500,b,0,250\n"
    weather = trace_csv(written(tmp_path, text))
    assert weather.bandwidth.window(0, 9)[0].tolist() == [0, 1.5]
    assert weather.bandwidth.window(0, 9)[1].tolist() == [10e6, 0]
    assert [weather.latency.at(t) for t in (0, 1.4, 1.5, 1e6)] == pytest.approx([0.01, 0.01, 0.25, 0.25])


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency"),
    [
        ("timestamp,throughput_mbps,rtt_ms\n0,120,40\n1,80,55\n", [15e6, 10e6], [0.02, 0.0275]),
        ("ts_ms,speed_MBps,ping_ms,jitter_ms\n500,1,10,2\n1500,2,20,3\n", [1e6, 2e6], [0.005, 0.01]),
        ("datetime,bw_gbit_per_s\n2025-03-03 09:00:01,1\n2025-03-03T09:00:02,2\n", [125e6, 250e6], None),
        # A name that begins with the quantity counts more.
        (
            "time_s,mean_latency_s,latency_ms,line_mbps,bandwidth_Mbit_s\n0,9,1,9,8\n1,9,2,9,16\n",
            [1e6, 2e6],
            [1e-3, 2e-3],
        ),
        ("Timestamp,Avg delay (ms),Throughput_Kibps\n1741000000,10,8\n1741000001,12,8\n", [1024, 1024], [0.01, 0.012]),
    ],
)
def test_csv_columns_are_known_by_their_words_and_units(tmp_path, text, bandwidth, latency):
    weather = trace_csv(written(tmp_path, text))
    for signal, wanted in ((weather.bandwidth, bandwidth), (weather.latency, latency)):
        assert (None if signal is None else [signal.at(0.5), signal.at(1.5)]) == (wanted and pytest.approx(wanted))


def test_csv_at_its_end_holds_or_repeats(tmp_path):
    path = written(tmp_path, "time_s,latency_s\n0,1\n1,2\n3,3\n")
    assert trace_csv(path).latency.at(1000) == 3
    repeated = trace_csv(path, at_end="repeat").latency
    assert repeated.window(0, 10)[0].tolist() == [0, 1, 3, 5, 6, 8]
    assert trace_csv(path, at_end="repeat", period=4).latency.at(4) == 1
    with pytest.raises(InputError, match="lasts 3 s; the period must be longer, got 3"):
        trace_csv(path, at_end="repeat", period=3)
    with pytest.raises(InputError, match="one row"):
        trace_csv(written(tmp_path, "time_s,latency_s\n0,1\n"), at_end="repeat")
    with pytest.raises(ValueError, match="did you mean 'repeat'"):
        trace_csv(path, at_end="repeats")
    with pytest.raises(ValueError, match="at_end"):
        trace_csv(path, period=4)


BAD_CSV = [
    ("time_s,latency_s\n0,1\n1,nan\n", r":3: latency: .*>= 0, got 'nan'"),
    ("time_s,latency_s\n0,1\n\n# x\n1,inf\n", r":5: latency: .*'inf'"),
    ("time_s,bandwidth_Bps\n0,1\n1,-5\n", r":3: bandwidth: .*'-5'"),
    ("time_s,bandwidth_Bps\n0,1\n1,\n", r":3: bandwidth: .*''"),
    ("time_s,bandwidth_Bps\n0,1\n1," + "x" * 40 + "\n", f"'{'x' * 40}'"),
    ("time_s,bandwidth_Bps\n0,1\n1," + "x" * 41 + "\n", rf"'{'x' * 20}\.\.\.{'x' * 17}'"),
    ("time_s,bandwidth_Bps\n0,1e999\n", r":2: bandwidth"),
    ("time_s,bandwidth_Gbit_s\n0,2e10\n", r":2: bandwidth: must be <= 1e\+18, got '2e10'"),
    ("time_s,bandwidth_Bps\nnan,1\n", r":2: time: .*'nan'"),
    ("time_s,bandwidth_Bps\n-1,1\n", r":2: time: .*'-1'"),
    ("time_s,bandwidth_Bps\n0,1\n2,1\n1,1\n", r":4: time: must be later than the row before \(2\), got 1"),
    ("time_s,bandwidth_Bps\n0,1\n1,1\n1,2\n", r":4: time: must be later than the row before \(1\), got 1"),
    ("time_s,bandwidth_Bps\n0,1,2\n", r":2: expected 2 columns, got 3"),
    ("time_s,bandwidth_Bps\n", "no rows"),
    ("time_s,bandwidth_Bps\n0,1_000\n", r":2: bandwidth: .*'1_000'"),
    ("time_s,bandwidth_Bps\n0,\u0661\n", r":2: bandwidth"),
    ("", r"the\.link: is empty$"),
    ("\n \n", r"the\.link: is empty$"),
    ("# nothing\n", "no row that names its columns; expected e.g. time_s,"),
    ("time_s,bandwith_units\n0,1\n", r":1: has a column 'bandwith_units'; did you mean 'bandwidth_units'\?"),
    ("tme_ms,latency_s\n0,1\n", "has a column 'tme_ms'; did you mean 'time_ms'"),
    ("time_s,latenzy\n0,1\n", "has a column 'latenzy'; did you mean 'latency_ms'"),
    ("time_s,speed\n0,1\n", r":1: has no column for bandwidth or latency; columns: time_s, speed"),
    ("bandwidth_Bps\n1\n", r":1: has no column for time"),
    ("time,bandwidth_Bps\n0,1\n", r":1: column 'time' needs a unit in its name, e\.g\. 'time_s'"),
    ("time_s,bandwidth\n0,1\n", r":1: column 'bandwidth' needs a unit in its name, e\.g\. 'bandwidth_Mbit_s'"),
    ("TIME_s,RATE_MBPS\n0,1\n", r":1: column 'RATE_MBPS' needs a unit in its name, e\.g\. 'bandwidth_Mbit_s'"),
    ("time_s,rtt_min\n0,1\n", r":1: column 'rtt_min' needs a unit in its name, e\.g\. 'latency_ms'"),
    ("time_s,bandwidth_ms\n0,1\n", r":1: column 'bandwidth_ms' .*not a bandwidth"),
    ("time_s,up_mbps,down_mbps\n0,1,1\n", r":1: has two columns for bandwidth: up_mbps and down_mbps"),
    ("time_s,latency_s,latency_ms\n0,1,1\n", r":1: has two columns for latency"),
    ("time_s,latency_s,latency_s\n0,1,1\n", r":1: has more than one column 'latency_s'"),
    ('time_s,latency_s\n0,"1\n', "is not CSV"),
    ("time_s,latency_s\n0," + "1" * 200_000 + "\n", "is not CSV"),
    (b"time_s,latency_s\n\xff\xfe,1\n", "is not UTF-8"),
]
BAD_MAHIMAHI = [
    ("1\n2\nx\n", r":3: .*'x'"),
    ("1\n-2\n", r":2: .*'-2'"),
    ("1\n2.5\n", r":2: .*'2\.5'"),
    ("5\n4\n", r":2: must not be smaller than the line before \(5\), got 4"),
    ("0\n0\n", r":2: must end later"),
    ("", r"the\.link: is empty$"),
    ("1\n" + "9" * 5000 + "\n", r":2: "),
    ("1\n999999999999\n", r":2: lasts 999999999999 ms"),
    ("\u0661\n", r":1: "),
]


@pytest.mark.parametrize(
    ("read", "text", "words"), [*((trace_csv, *one) for one in BAD_CSV), *((mahimahi, *one) for one in BAD_MAHIMAHI)]
)
def test_bad_files_are_refused_with_their_line(tmp_path, read, text, words):
    with pytest.raises(InputError, match=words) as caught:
        read(written(tmp_path, text, "the.link"))
    assert "the.link" in str(caught.value)
    assert len(str(caught.value)) < (300 if read is mahimahi else 400) + len(str(tmp_path))


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    for read in (trace_csv, mahimahi):
        with pytest.raises(InputError, match="no such file"):
            read(tmp_path / "absent")
        with pytest.raises(InputError, match="not a file"):
            read(tmp_path)
    path = written(tmp_path, "time_s,latency_s\n0,1\n1,1\n2,1\n")
    monkeypatch.setattr("simnet.network.weather.files.MAX_ROWS", 2)
    with pytest.raises(InputError, match=r":4: has more than 2 rows"):
        trace_csv(path)
    monkeypatch.setattr("simnet.network.weather.files.MAX_BYTES", 10)
    with pytest.raises(InputError, match="larger than 10 bytes"):
        trace_csv(path)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 500), min_size=1, max_size=60), st.integers(1, 120))
def test_mahimahi_conserves_bytes(tmp_path_factory, stamps, width):
    stamps = sorted(stamps)
    assume(stamps[-1] > 0)
    path = written(tmp_path_factory.mktemp("mahimahi"), "".join(f"{stamp}\n" for stamp in stamps))
    signal, period = mahimahi(path, every=width / 1000), stamps[-1]
    for edge in [*range(width, period, width), period]:
        delivered = 1500 * bisect_right(stamps, edge)
        assert signal.integral(0, edge / 1000) == pytest.approx(delivered, rel=1e-12)
    for count in (1, 7):
        end = (count + 1) * period / 1000
        assert signal.integral(count * period / 1000, end) == pytest.approx(1500 * len(stamps), rel=1e-9)


# Published schedules


def test_profiles_equal_the_published_table(shared):
    source = shared / "papers" / "data" / "artopk_network_schedules.csv"
    found = dict.fromkeys(PROFILES, 0)
    with source.open(newline="") as file:
        for row in csv.DictReader(file):
            name = row["config"] + ("-resnet50" if "ResNet50" in row["models"] else "")
            state = profile_state(name, int(row["epoch_index"]))
            assert state.latency == pytest.approx(float(row["alpha_ms"]) * 1e-3, rel=1e-15)
            assert state.bandwidth == float(row["bandwidth_Gbps"]) * 1e9 / 8
            weather, t = profile(name, epoch_seconds=60.0), 60.0 * int(row["epoch_index"])
            assert (weather.latency.at(t), weather.bandwidth.at(t)) == (state.latency, state.bandwidth)
            found[name] += 1
    assert found == {name: schedule.epochs for name, schedule in PROFILES.items()}
