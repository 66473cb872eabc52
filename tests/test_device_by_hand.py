"""Device profiles of kernels that take as long as is made up: what is timed, left out, and written."""

import os

import pytest

from simnet.base.errors import InputError
from simnet.calibration import device, device_kernels
from simnet.calibration.device import LENGTHS, by_density, corrected, fitted, held_out, measure_device, profile_of
from simnet.calibration.device import profile_yaml as written
from simnet.calibration.device_kernels import Kernels, kernels_of
from simnet.calibration.encoding_kernels import SOURCES
from simnet.costs.devices import BesideCollectives, DeviceProfile, Method, SideStream
from simnet.costs.encodings import CODE_METHODS

CODES = ("encode_delta", "decode_delta")


def made_up(took, memory=1e12, on_host=True, methods=("topk", "scan", "norm", "copy", "gather", *CODES)):
    def make(n, density):
        k = max(1, round(density * n))
        return {one: (k if one in ("gather", *CODES) else n, (one, n, density)) for one in methods}

    sources = dict.fromkeys(methods, "made up")
    return Kernels("toy", "toy 1", memory, make, lambda call, count: count * took(*call), sources, on_host)


def linear(method, n, density):
    return 2e-9 + 1e-12 * n


def lengths(profile, method):
    return [round(entries) for entries, _ in profile.methods[method].corrections]


def test_lengths_are_four_in_a_decade_from_ten_to_a_billion():
    assert LENGTHS[:6] == (10, 18, 32, 56, 100, 178)
    assert (LENGTHS[-1], len(LENGTHS)) == (10**9, 33)


def test_what_is_timed():
    profile = profile_of(made_up(linear), "toy", 0.1, 100_000, 1e-5)
    assert lengths(profile, "topk") == list(LENGTHS[:17])
    assert lengths(profile, "gather") == [1, 2, 3, 6, 10, 18, 32, 56, 100, 178, 316, 562, 1000, 1778, 3162, 5623, 10000]
    # Codes at every second length, which is 10, 32, 100 and so on.
    assert lengths(profile, "encode_delta") == [1, 3, 10, 32, 100, 316, 1000, 3162, 10000]
    assert profile.memory_bandwidth == pytest.approx(8 * 100_000 / (2e-9 + 1e-7))
    assert profile.device == "toy, toy 1"
    assert "at density 0.1; memory bandwidth by the longest copy" in profile.source
    assert profile.source.endswith("at densities of 0.1, 0.01, 0.001 beside that.")
    assert profile.methods["topk"].source == "made up, 10 to 100000 entries; without corrections within 0 %."
    nothing = Method(0.0, 0.0, "the device is the host: nothing is copied", 0.0, 1.0, 1.0, "measured")
    assert profile.methods["copy_out"] == profile.methods["copy_in"] == nothing
    on_gpu = profile_of(made_up(linear, on_host=False), "toy", 0.1, 100_000, 1e-5)
    assert not {"copy_out", "copy_in"} & set(on_gpu.methods)


def test_what_memory_binds_is_in_bytes_and_what_selects_in_seconds():
    profile = profile_of(made_up(linear), "toy", 0.1, 100_000, 1e-5)
    for name in ("topk", "topk_layer", *CODES):
        assert profile.methods[name].bytes_per_entry == 0
        assert profile.methods[name].seconds_per_entry > 0
    for name in ("norm", "scan", "copy"):
        found = profile.methods[name]
        assert (found.launch, found.seconds_per_entry) == (pytest.approx(2e-9), 0)
        assert found.bytes_per_entry == pytest.approx(1e-12 * profile.memory_bandwidth)


def test_layers_go_to_a_million_entries():
    profile = profile_of(made_up(linear), "toy", 0.1, 10_000_000, 1e-4)
    assert (lengths(profile, "topk_layer")[-1], lengths(profile, "topk")[-1]) == (1_000_000, 10_000_000)


def test_what_takes_too_much_memory_or_time_is_left_out():
    few = profile_of(made_up(linear, memory=60 * 31_623), "toy", 0.1, 100_000, 1e-5)
    assert lengths(few, "topk")[-1] == 31_623
    fewer = profile_of(made_up(linear, memory=60 * 31_623 - 1), "toy", 0.1, 100_000, 1e-5)
    assert lengths(fewer, "topk")[-1] == 17_783
    # Three calls as long as the time before has it, for the length, may take ten times the budget.
    slow = made_up(lambda method, n, density: 1e-9 * n if method == "norm" else 1e-12 * n)
    for budget, last in ((3 * 1e-9 * 31_623 / 10 * 1.001, 31_623), (3 * 1e-9 * 31_623 / 10 * 0.999, 17_783)):
        profile = profile_of(slow, "toy", 0.1, 100_000, budget)
        assert lengths(profile, "norm")[-1] == last
        assert lengths(profile, "topk")[-1] == lengths(profile, "copy")[-1] == 100_000


def test_times_are_medians_of_calls_of_three_repetitions_and_more():
    counts = []

    def seconds(call, count):
        counts.append(count)
        return count * {0: 5.0, 1: 9e-6, 2: 1e-5, 3: 4e-5}.get(len(counts) - 1, 1e-5)

    one = made_up(linear)
    kernels = Kernels(one.device, one.library, one.memory, one.make, seconds, one.sources, one.on_host)
    found = by_density(
        kernels, {"topk": {10_000: 1e-5}, "scan": {}, "topk_segments": {}} | {c: {} for c in CODES}, 0.1, 1e-9
    )
    # The first call warms up; what is short is called so often that a millisecond passes, a thousand times at most.
    assert counts[:4] == [1, 1, 111, 111]
    assert found["topk"][0] == pytest.approx(1.0)


def test_other_densities_are_looked_at_where_they_were_timed():
    kernels = made_up(lambda method, n, density: n * density)
    timed = {name: dict.fromkeys((10000, 31623, 100000, 1000000), 1.0) for name in ("topk", "scan", "norm")}
    timed |= {"encode_delta": {100: 1.0}}
    found = by_density(kernels, timed | {"decode_delta": {}, "topk_segments": {}}, 0.01, 1e-9)
    wanted = [n * density for n in (10_000, 100_000, 1_000_000) for density in (0.1, 0.001)]
    assert found["topk"] == pytest.approx(wanted)
    assert found["scan"] == found["topk"]
    assert found["encode_delta"] == pytest.approx([100.0])
    assert "norm" not in found


def test_no_other_density_than_that_of_the_profile_is_timed_twice():
    kernels = made_up(
        lambda method, n, density: {0.1: 1.0, 0.01: 4.0, 0.001: 0.5}[density] * 1e-12 * n,
        methods=("topk", "scan", "norm", "gather", "copy"),
    )
    for density, low, high in ((0.1, 0.5, 4.0), (0.01, 0.125, 1.0), (0.001, 1.0, 8.0)):
        found = profile_of(kernels, "toy", density, 10_000, 1e-5).methods
        for name in ("topk", "topk_layer", "scan"):
            assert (found[name].low, found[name].high) == pytest.approx((low, high)), (name, density)
        assert (found["norm"].low, found["norm"].high) == pytest.approx((1, 1))


@pytest.mark.parametrize(("density", "there"), [(2.5e-4, False), (3.2e-4, True)])
def test_three_lengths_are_the_fewest(density, there):
    # Of 10,000 entries are 2.5 and 3.2 selected, which are two and three; of the lengths before one or two.
    kernels = made_up(linear, methods=("topk", "scan", "norm", "copy", "gather"))
    if there:
        assert lengths(profile_of(kernels, "toy", density, 10_000, 1e-5), "gather") == [1, 2, 3]
        return
    with pytest.raises(InputError) as refused:
        profile_of(kernels, "toy", density, 10_000, 1e-5)
    assert str(refused.value) == (
        "--largest: must be more, or --density: at a density of 0.00025 there are fewer than 3 lengths of gather"
    )


@pytest.mark.parametrize(("density", "entries"), [(2.5e-4, None), (5e-4, [1, 2, 5])])
def test_codes_of_fewer_than_three_lengths_are_left_out(density, entries):
    # Of 17,783 entries four are selected or nine; codes, at every second length, go up to 10,000.
    others = ("topk", "scan", "norm", "copy")
    profile = profile_of(made_up(linear, methods=(*CODES, "gather", *others)), "toy", density, 17_783, 1e-5)
    # What comes after a code or a length that is left out is timed all the same.
    for name in others:
        assert lengths(profile, name) == list(LENGTHS[:14])
    for name in CODES:
        assert (name in profile.methods) == (entries is not None)
        assert entries is None or lengths(profile, name) == entries


def test_three_lengths_are_timed_however_long_they_take():
    slow = made_up(lambda method, n, density: 1e-9 * n if method == "norm" else 1e-12 * n)
    assert lengths(profile_of(slow, "toy", 0.1, 10_000, 1e-12), "norm") == [10, 18, 32]


def test_what_is_asked_of_a_profile_and_what_is_not(monkeypatch):
    asked = []
    monkeypatch.setattr(device, "profile_of", lambda kernels, *given: asked.append((kernels.library[:5], *given)))
    measure_device("mine", "numpy")
    measure_device("mine", "numpy", density=0.999, largest=10_000, budget=60)
    assert asked == [("numpy", "mine", 0.1, 10**9, 0.25), ("numpy", "mine", 0.999, 10_000, 60)]


class Clock:
    """Kernels whose calls take as long as is told, one after the other, on a clock that they alone move."""

    def __init__(self, monkeypatch, took):
        self.now, self.took, self.counts = 100.0, iter(took), []
        monkeypatch.setattr(device.time, "perf_counter", lambda: self.now)

    def seconds(self, call, count):
        self.counts.append(count)
        took = count * next(self.took)
        self.now += took
        return took


def test_a_time_is_the_median_of_what_fits_into_the_budget(monkeypatch):
    # The first call is not looked at, and its time counts: of ten seconds, five are left for the others.
    clock = Clock(monkeypatch, [5.0, 2.0, 1.0, 1.5, 0.5, 9.0])
    assert device._median(clock, None, 10.0) == 1.25
    assert clock.counts == [1] * 5
    assert clock.now == 110.0


def test_three_repetitions_are_the_fewest_however_long_they_take(monkeypatch):
    clock = Clock(monkeypatch, [50.0, 7.0, 3.0, 4.0, 1.0])
    assert device._median(clock, None, 10.0) == 4.0
    assert len(clock.counts) == 4


def test_calls_in_a_row_are_as_many_as_take_a_millisecond_by_the_shortest(monkeypatch):
    clock = Clock(monkeypatch, [1.0, 2.1e-4, 1.1e-4, 3e-4, 1.5e-3, 1.0])
    device._median(clock, None, 1.0 + 4e-3)
    # A millisecond holds four calls of 0.21 ms, and nine of 0.11 ms, however long others take.
    assert clock.counts == [1, 1, 4, 9, 9]
    still = Clock(monkeypatch, [1.0, 0.0, 0.0, 0.0])
    assert device._median(still, None, 1e-9) == 1e-12
    assert still.counts == [1, 1, 1000, 1000]
    short = Clock(monkeypatch, [1.0, 1e-7, 1e-7, 1e-7])
    device._median(short, None, 1e-9)
    assert short.counts == [1, 1, 1000, 1000]


def test_corrections_have_four_digits_behind_the_point():
    found = corrected([10, 20, 40], [10.0, 20.0, 4000.0])
    # Of relative errors the least squares are at 2.01 / 2.0001.
    assert [factor for _, factor in found.corrections] == [0.9951, 0.9951, 99.5075]


def test_best_pairs_may_lie_on_an_edge():
    assert fitted([10, 20, 40], [3.0, 3.0, 3.0]) == pytest.approx((3, 0, 0), abs=1e-9)
    assert fitted([10, 20, 40], [1.0, 2.0, 4.0]) == pytest.approx((0, 0.1, 0), abs=1e-9)
    launch, slope, error = fitted([10, 20, 40], [1.0, 4.0, 16.0])
    assert launch == 0
    assert slope == pytest.approx((10 + 5 + 2.5) / (100 + 25 + 6.25))
    assert error == pytest.approx(max(abs(slope * 10 - 1), abs(slope * 5 - 1), abs(slope * 2.5 - 1)))
    launch, slope, _ = fitted([10, 20, 40], [4.0, 2.0, 1.0])
    assert slope == 0
    assert launch == pytest.approx((1 / 4 + 1 / 2 + 1) / (1 / 16 + 1 / 4 + 1))


def test_intervals_hold_what_was_left_out():
    entries = [10, 20, 40, 80, 160]
    assert held_out(entries, [10.0, 20, 40, 80, 160]) == pytest.approx((1, 1))
    assert held_out(entries, [10.0, 10, 40, 80, 160]) == pytest.approx((0.5, 1))
    assert held_out(entries, [10.0, 60, 40, 20, 160]) == pytest.approx((0.25, 3))
    found = corrected([10, 20, 40], [10.0, 20.0, 4000.0])
    slope = 2.01 / 2.0001
    assert found.source == f"10 to 40 entries; without corrections within {100 - slope:.0f} %"
    assert [factor for _, factor in found.corrections] == pytest.approx([1 / slope, 1 / slope, 100 / slope], abs=1e-4)
    assert [one for one, _ in found.corrections] == [10, 20, 40]
    assert found.known == "measured"


def test_a_profile_is_written_line_by_line():
    methods = {
        "topk": Method(1e-6, 0.0, "it's  by\nhand", 2e-9, known="measured", corrections=((10.0, 1.5), (1e6, 0.25))),
        "*": Method(3e-6, 12.0, "all others", low=0.5, high=2.0),
    }
    plain = DeviceProfile("mine", "toy", "hand", 1.5e12, methods)
    assert written(plain).splitlines() == [
        "name: 'mine'", "device: 'toy'", "source: 'hand'", "memory_bandwidth: 1.500e+12", "methods:",
        "  topk:", "    launch: 1.000e-06", "    bytes_per_entry: 0.0000e+00", "    seconds_per_entry: 2.0000e-09",
        f"    low: {methods['topk'].low:.4e}", f"    high: {methods['topk'].high:.4e}", "    known: measured",
        "    corrections: [[10, 1.5000], [1000000, 0.2500]]", "    source: 'it''s by hand'",
        "  '*':", "    launch: 3.000e-06", "    bytes_per_entry: 1.2000e+01", "    seconds_per_entry: 0.0000e+00",
        "    low: 5.0000e-01", "    high: 2.0000e+00", f"    known: {methods['*'].known}", "    source: 'all others'",
    ]  # fmt: skip


def test_what_runs_beside_each_other_is_written_with_its_source():
    profile = DeviceProfile(
        "mine", "toy", "hand", 1e9, {}, SideStream(1.25, 2.5, "some run"), BesideCollectives(1.5, "another"), 16e9
    )
    assert written(profile).splitlines()[3:] == [
        "memory_bandwidth: 1.000e+09",
        "memory: 1.600000e+10",
        "side_stream: {compute: 1.2500e+00, kernels: 2.5000e+00, source: 'some run'}",
        "beside_collectives: {compute: 1.5000e+00, source: 'another'}",
        "methods:",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0.0}, "--density: must be between 0 and 1, got 0.0"),
        ({"density": 1.0}, "--density: must be between 0 and 1, got 1.0"),
        ({"largest": 9_999}, "--largest: must be at least 10,000, got 9,999"),
        ({"budget": 0.0}, "--budget: must be between 0 and 60 s, got 0.0"),
        ({"budget": 60.1}, "--budget: must be between 0 and 60 s, got 60.1"),
        ({"library": "numpi"}, "--library: there is no library 'numpi'; did you mean 'numpy'?"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(InputError) as refused:
        measure_device("mine", **{"library": "numpy"} | options)
    assert str(refused.value).startswith(message)


def test_half_of_the_free_memory_may_be_used_and_2_gib_where_that_is_not_told(monkeypatch):
    told = {"SC_AVPHYS_PAGES": 1001, "SC_PAGE_SIZE": 4097}
    monkeypatch.setattr(os, "sysconf", told.__getitem__)
    assert kernels_of("numpy").memory == 1001 * 4097 / 2

    def unknown(name):
        raise ValueError("unrecognised")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert kernels_of("numpy").memory == 2 * 2**30


def test_what_is_called_for_codes_is_said():
    assert SOURCES["encode_delta"] == "numpy code that makes a message's delta codes"
    assert SOURCES["decode_bitmap"] == "numpy code that reads a message's bitmap codes"
    assert SOURCES["sort"] == "indices and values put in order by numpy's argsort"
    assert set(SOURCES) == set(CODE_METHODS)


@pytest.mark.parametrize(
    ("n", "density", "counts"),
    [
        (1, 0.001, (1, 1, 1)),
        (15, 0.1, (2, 1, 1)),
        (16, 0.9, (14, 1, 1)),
        (160, 0.2, (32, 10, 2)),
        (100, 0.5, (50, 6, 3)),
    ],
)
def test_sixteen_segments_select_their_share_of_entries_and_one_at_least(n, density, counts):
    assert device_kernels._counts(n, density) == counts


@pytest.mark.parametrize("named", ["some processor", ""])
def test_processors_that_the_system_does_not_describe_have_the_name_of_their_kind(monkeypatch, named):
    def unreadable(*given, **options):
        raise OSError

    monkeypatch.setattr(device_kernels.Path, "read_text", unreadable)
    monkeypatch.setattr(device_kernels.platform, "processor", lambda: named)
    monkeypatch.setattr(device_kernels.platform, "machine", lambda: "some machine")
    assert device_kernels.processor() == (named or "some machine")
