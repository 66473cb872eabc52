"""Device profiles that are measured: the fit, the file, and what is refused."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import did, refused
from simnet.cost_models.calibration.device import (
    LibraryKernels,
    fit_launch_cost,
    held_out_factors,
    kernels_of,
    measure_device,
    profile_of,
    profile_yaml,
    torch_kernels,
)
from simnet.cost_models.costs.devices import (
    KERNEL_METHODS,
    DeviceOp,
    DeviceProfile,
    KernelMethod,
    load_device,
    read_profile,
)
from simnet.cost_models.costs.encodings import CODE_METHODS, INDEX_CODES, encoded_index_bytes
from simnet.sparsifier_models.codes import read_back

# A processor has no kernel for segments of its own, and codes are made there alone.
EXPECTED = {*KERNEL_METHODS, *CODE_METHODS, "copy"} - {"topk_segments"}
positive = st.floats(1e-9, 1e3)


@given(st.lists(st.tuples(st.integers(1, 10**9), positive), min_size=1, max_size=5), positive, positive)
def test_no_other_launch_and_slope_are_nearer(points, launch, slope):
    entries, seconds = map(np.array, zip(*points, strict=True))

    def errors(launch, slope):
        return (launch + slope * entries) / seconds - 1

    *found, largest = fit_launch_cost(entries, seconds)
    assert np.abs(errors(*found)).max() == pytest.approx(largest)
    assert min(found) >= 0
    assert np.square(errors(*found)).sum() <= np.square(errors(launch, slope)).sum() * (1 + 1e-6) + 1e-9


@given(st.floats(1e-7, 1e-3), st.floats(1e-13, 1e-8), st.sets(st.integers(1000, 10**9), min_size=3, max_size=9))
def test_what_keeps_to_the_model_is_found_and_predicts_what_is_left_out(launch, slope, lengths):
    entries = sorted(lengths)
    seconds = [launch + slope * one for one in entries]
    assert fit_launch_cost(entries, seconds)[2] < 1e-6
    low, high = held_out_factors(entries, seconds)
    assert 1 - 1e-3 < low <= 1 <= high < 1 + 1e-3


def test_the_interval_holds_every_second_length():
    entries = [10**power for power in range(3, 8)]
    seconds = [1e-9 * one for one in entries]
    for place, factor, interval in ((1, 2, (1, 2)), (3, 0.5, (0.5, 1)), (4, 3, (0.5, 1))):
        changed = list(seconds)
        changed[place] *= factor
        # Of the longest, which is too long, the one before it knows half.
        assert held_out_factors(entries, changed) == pytest.approx(interval, rel=1e-3)


@given(st.text(max_size=40).map(lambda text: f"a{text}".replace("\x00", "").strip()))
def test_any_words_are_read_back(words):
    words = " ".join("".join(one for one in words if one.isprintable()).split())
    profile = DeviceProfile(words, words, words, 1e9, {"topk": KernelMethod(1e-6, 12.0, words)})
    back = read_profile(profile_yaml(profile), "x.yaml")
    assert (back.name, back.device, back.methods["topk"].source) == (words, words, words)


def measured(library, folder, expected=EXPECTED):
    profile = measure_device("mine", library, largest=100_000, budget=0.002)
    checked(profile, folder, expected)


def checked(profile, folder, expected):
    assert set(profile.methods) == expected
    (folder / "mine.yaml").write_text(profile_yaml(profile))
    back = load_device(folder / "mine.yaml")
    assert back.memory_bandwidth == pytest.approx(profile.memory_bandwidth, rel=1e-3)
    kernels = [DeviceOp("topk", 10_000), DeviceOp("scatter", 1000), DeviceOp("topk_segments", 1000, segments=4)]
    seconds = back.seconds(kernels, workers=2)
    assert (seconds > 0).all()
    assert (seconds < 1).all()
    for method in back.methods.values():
        assert method.known == "measured"
        assert method.low <= 1 <= method.high
    assert set(expected) - set(back.methods) == set()


def test_profile_of_numpy(tmp_path):
    measured("numpy", tmp_path)


@pytest.mark.extras
def test_profile_of_torch(tmp_path):
    measured("torch", tmp_path, EXPECTED | {"topk_segments", "qr"})
    host = load_device(tmp_path / "mine.yaml").host
    assert host is not None
    assert host.known == "measured"
    assert 0 < host.view < host.operation < 1e-3
    assert host.low <= 1 <= host.high


@pytest.mark.parametrize("density", [0.1, 0.003])
def test_what_is_timed_are_the_codes_of_messages(density):
    n = 3000
    calls = kernels_of("numpy").make(n, density)
    chosen, sent = calls["sort"][1]()
    k = round(density * n)
    assert (np.diff(chosen) > 0).all()
    assert set(CODE_METHODS) <= set(calls)
    for name in CODE_METHODS[1:]:
        does, _, code = name.partition("_")
        entries, call = calls[name]
        assert entries == (n if code == "bitmap" else k)
        found = call()
        if does == "encode":
            if code in INDEX_CODES and code not in ("auto", "delta"):
                assert found.size == encoded_index_bytes(code, n, k)
        elif code in INDEX_CODES:
            np.testing.assert_array_equal(found[0], chosen)
        else:
            np.testing.assert_array_equal(found, read_back(sent, code))


class Event:
    """An event of a GPU whose stream never waits: it is over when it is recorded."""

    def __init__(self, enable_timing=True):
        self.at = None

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        assert self.at is not None

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)


@pytest.mark.extras
def test_profile_of_torch_on_a_gpu(tmp_path):
    import torch

    class Gpu:
        """torch, whose GPU is the processor."""

        cuda = SimpleNamespace(
            Event=Event, mem_get_info=lambda: (10**9, 10**9), get_device_name=lambda: "A GPU", synchronize=lambda: None
        )  # fmt: skip
        version = SimpleNamespace(cuda="12.4")

        def __getattr__(self, name):
            found = getattr(torch, name)
            if name not in ("Generator", "randn", "empty", "zeros", "ones"):
                return found

            def on_the_processor(*arguments, device=None, **options):
                return found(*arguments, device="cpu", **options)

            return on_the_processor

    profile = profile_of(torch_kernels(Gpu(), "cuda"), "gpu", 0.1, 100_000, 0.002)
    assert profile.device.startswith("A GPU, torch ")
    checked(profile, tmp_path, {*KERNEL_METHODS, "copy", "qr"})
    assert profile.host is not None
    assert profile.host.sync >= 0


def made_up(took):
    """Return kernels that take as long as a function of method, entries of the gradient and density says."""

    def make(n, density):
        sizes = {"topk": n, "scan": n, "norm": n, "copy": n, "gather": max(1, round(density * n))}
        return {method: (size, (method, n, density)) for method, size in sizes.items()}

    sources = dict.fromkeys(("topk", "scan", "norm", "copy", "gather"), "made up")
    return LibraryKernels("toy", "toy", 1e9, make, lambda call, count: count * took(*call), sources)


def test_intervals_hold_what_selecting_takes_at_other_densities():
    factors = {"topk": {0.1: 1.0, 0.01: 0.5, 0.001: 0.2}, "scan": {0.1: 1.0, 0.01: 1.5, 0.001: 0.9}}
    kernels = made_up(lambda method, n, density: factors.get(method, {}).get(density, 1.0) * (1e-5 + 1e-9 * n))
    found = profile_of(kernels, "toy", 0.1, 100_000, 1e-4).methods
    assert (found["topk"].low, found["topk_layer"].low, found["scan"].low) == pytest.approx((0.2, 0.2, 0.9), rel=1e-3)
    assert (found["topk"].high, found["scan"].high) == pytest.approx((1, 1.5), rel=1e-3)
    assert (found["norm"].low, found["norm"].high) == pytest.approx((1, 1), rel=1e-3)


def test_time_of_a_kernel_is_that_of_its_calls():
    calls = []
    kernels = kernels_of("numpy")
    assert kernels.seconds(lambda: calls.append(1), 5) > 0
    assert len(calls) == 5


def test_command_writes_a_profile_and_refuses_what_it_cannot_do(tmp_path):
    small = ["measure", "-o", tmp_path / "here.yaml", "--what"]
    did(*small, device := "device:library=numpy,largest=10000", "--budget", "1 ms")
    assert load_device(tmp_path / "here.yaml").name == "here"
    refused(*small, device)
    assert "--budget: " in refused(*small, device, "--force", "--budget", "0 s")
    for option in ("library=nump", "density=2", "largest=5", "largest=many", "depth=1"):
        assert f"{option.partition('=')[0]}" in refused(*small, f"device:{option}", "--force")
