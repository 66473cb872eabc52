"""Device profiles that are measured: the fit, the file, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from simnet.calibration.device import fitted, kernels_of, measure_device, profile_yaml
from simnet.cli import app
from simnet.costs.device_file import read_profile
from simnet.costs.devices import DeviceOp, DeviceProfile, Method, load_device

EXPECTED = {"topk", "topk_layer", "count", "scan", "norm", "gather", "scatter", "copy"}
positive = st.floats(1e-9, 1e3)


@given(positive, st.lists(st.tuples(st.integers(1, 10**9), positive), min_size=1, max_size=5), positive)
def test_no_other_slope_has_a_smaller_largest_error(launch, points, other):
    entries, seconds = map(np.array, zip(*points, strict=True))
    _, error = fitted(launch, entries, seconds)
    assert error <= np.abs((launch + other * entries) / seconds - 1).max() * (1 + 1e-9)


@given(st.text(max_size=40).map(lambda text: f"a{text}".replace("\x00", "").strip()))
def test_any_words_are_read_back(words):
    words = " ".join("".join(one for one in words if one.isprintable()).split())
    profile = DeviceProfile(words, words, words, 1e9, {"topk": Method(1e-6, 12.0, words)})
    back = read_profile(profile_yaml(profile), "x.yaml")
    assert (back.name, back.device, back.methods["topk"].source) == (words, words, words)


def measured(library, folder):
    profile = measure_device("mine", library, largest=100_000, budget=0.002)
    assert set(profile.methods) == EXPECTED
    (folder / "mine.yaml").write_text(profile_yaml(profile))
    back = load_device(folder / "mine.yaml")
    assert back.memory_bandwidth == pytest.approx(profile.memory_bandwidth, rel=1e-3)
    seconds = back.seconds([DeviceOp("topk", 10_000), DeviceOp("scatter", 1000)], workers=2)
    assert (seconds > 0).all()
    assert (seconds < 1).all()


def test_profile_of_numpy(tmp_path):
    measured("numpy", tmp_path)


@pytest.mark.extras
def test_profile_of_torch(tmp_path):
    measured("torch", tmp_path)


def test_time_of_a_kernel_is_that_of_its_calls():
    calls = []
    kernels = kernels_of("numpy")
    assert kernels.seconds(lambda: calls.append(1), 5) > 0
    assert len(calls) == 5


def test_command_writes_a_profile_and_refuses_what_it_cannot_do(tmp_path):
    runner = CliRunner()
    small = ["calibrate", "device", "-o", str(tmp_path / "here.yaml"), "--library", "numpy", "--largest", "10000"]
    done = runner.invoke(app, [*small, "--budget", "1 ms"])
    assert done.exit_code == 0, done.output
    assert load_device(tmp_path / "here.yaml").name == "here"
    again = runner.invoke(app, small)
    assert again.exit_code == 2
    for option, value in (("--library", "nump"), ("--density", "2"), ("--largest", "5"), ("--budget", "0 s")):
        bad = runner.invoke(app, [*small, "--force", option, value])
        assert bad.exit_code == 2, option
        assert bad.output.startswith("error:"), bad.output
