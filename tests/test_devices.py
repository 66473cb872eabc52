"""Device profiles: the streaming model, the published times that profiles stand for, every refusal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.base.errors import InputError
from simnet.cost_models.costs.devices import (
    KERNEL_METHODS,
    CollectiveSlowdown,
    DeviceOp,
    DeviceProfile,
    KernelMethod,
    SideStreamSlowdown,
    device_names,
    load_device,
)
from simnet.scenario import load
from simnet.scenario.runner import results_of

# Tensors and parameters of the models of the AR-Topk paper. What it calls ViT has the parameters of VGG-11, and by
# Fig. 2 also its number of tensors.
MODELS = {
    "ResNet18": (62, 11_689_512),
    "ResNet50": (161, 25_557_032),
    "AlexNet": (16, 61_100_840),
    "ViT": (22, 132_863_336),
}

# Fig. 2, digitized: compression time [ms] at density 0.1, 0.01, 0.001.
FIGURE_2 = {
    ("LWTopk", "ResNet18"): (13.85, 14.81, 14.76),
    ("LWTopk", "ResNet50"): (35.99, 36.7, 35.13),
    ("LWTopk", "AlexNet"): (4.49, 4.27, 4.46),
    ("LWTopk", "ViT"): (5.79, 5.9, 5.7),
    ("MSTopk", "ResNet18"): (34.98, 35.65, 35.75),
    ("MSTopk", "ResNet50"): (30.13, 29.91, 29.77),
    ("MSTopk", "AlexNet"): (62.16, 62.23, 62.16),
    ("MSTopk", "ViT"): (187.07, 186.44, 186.84),
}
# Tables IV and V, in ms: STAR-Topk less compute and the ART-Tree formula, and what VAR-Topk takes beyond STAR-Topk and
# 12 ms of latency at these densities.
STAR_MS = {"ResNet18": 2, "ResNet50": 3, "AlexNet": 2, "ViT": 2}
VAR_MINUS_STAR_MS = {
    "ResNet18": (0.37, 0.42, 0.33),
    "ResNet50": (0.60, 0.32, 0.13),
    "AlexNet": (0.50, 0.30, 0.02),
    "ViT": (0.88, 0.87, 0.79),
}


def milliseconds(*kernels):
    return 1e3 * load_device("artopk-tables").seconds(kernels, 1)[0]


@pytest.mark.parametrize("model", MODELS)
def test_artopk_tables_explains_the_layerwise_times_of_figure_2_within_7_1_per_cent(model):
    tensors, parameters = MODELS[model]
    # The cost is linear in entries: layers of equal size cost as much together as those of the model.
    ours = milliseconds(*[DeviceOp("topk_layer", parameters / tensors)] * tensors)
    assert np.abs(ours / np.array(FIGURE_2["LWTopk", model]) - 1).max() < 0.071


@pytest.mark.parametrize("model", MODELS)
def test_artopk_tables_explains_the_threshold_searches_of_figure_2_within_28_2_per_cent(model):
    ours = milliseconds(DeviceOp("scan", MODELS[model][1], launches=28))
    assert np.abs(ours / np.array(FIGURE_2["MSTopk", model]) - 1).max() < 0.282


def test_artopk_tables_orders_the_two_methods_as_figure_2_does_but_at_resnet50_where_it_has_them_level():
    for model, (tensors, parameters) in MODELS.items():
        layerwise = milliseconds(*[DeviceOp("topk_layer", parameters / tensors)] * tensors)
        search = milliseconds(DeviceOp("scan", parameters, launches=28))
        if model == "ResNet50":
            assert layerwise == pytest.approx(search, rel=0.02)
        else:
            assert layerwise < search
            assert FIGURE_2["LWTopk", model] < FIGURE_2["MSTopk", model]


@pytest.mark.parametrize("model", MODELS)
def test_artopk_tables_explains_the_fused_top_k_of_table_4_within_30_per_cent(model):
    assert milliseconds(DeviceOp("topk", MODELS[model][1])) == pytest.approx(STAR_MS[model], rel=0.3)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("column", range(3))
def test_artopk_tables_explains_what_var_adds_in_table_5_within_half_a_millisecond(model, column):
    k = MODELS[model][1] * (0.1, 0.01, 0.001)[column]
    assert milliseconds(DeviceOp("norm", k)) == pytest.approx(VAR_MINUS_STAR_MS[model][column], abs=0.5)


def test_shipped_profiles_state_where_they_come_from():
    gpus = {f"{one}-torch2.6" for one in ("v100", "a100", "h100", "h200", "rtx4090", "l40s", "t4")} | {"v100-torch1.5"}
    assert device_names() == sorted({"artopk-tables", "cpu", "cpu-torch2.13", "ideal"} | gpus)
    for name in device_names():
        profile = load_device(name)
        assert profile.name == name
        assert profile.source
        assert profile.device
        assert all(method.source for method in profile.methods.values())


GPUS = [name for name in device_names() if "-torch" in name and not name.startswith("cpu")]


@pytest.mark.parametrize("name", GPUS)
def test_profiles_of_gpus_say_how_each_kernel_is_known(name):
    profile = load_device(name)
    assert set(profile.methods) | {"topk_segments"} == {*KERNEL_METHODS, "qr", "nonzero", "randperm"}
    for method in profile.methods.values():
        assert method.known in ("measured", "scaled", "estimated")
        assert method.low < 1 < method.high
        # What rests on no row of its own says so; all others name it.
        assert "github.com/" in method.source or "As " in method.source or method.known == "estimated"
    one = profile.method("norm")
    assert profile.once(DeviceOp("norm", 10**9)) >= 4e9 / profile.memory_bandwidth
    assert (one.low, one.high) == pytest.approx((1 / 1.4, 1.4), rel=1e-3)


@pytest.mark.parametrize(
    ("tensors", "parameters", "seconds", "method", "within"),
    [
        (62, 11_173_962, 0.106313, "topk_layer", 0.12),
        (62, 11_220_132, 0.107808, "topk_layer", 0.12),
        (14, 28_949_319, 0.340847, "topk_layer", 0.12),
        (62, 11_173_962, 6.425e-3, "scan", 0.01),
        (14, 28_949_319, 2.755e-3, "scan", 0.01),
    ],
)
def test_v100_with_torch_1_5_takes_as_long_as_the_published_logs(tensors, parameters, seconds, method, within):
    kernels = [DeviceOp(method, parameters / tensors, launches=tensors)]
    profile = load_device("v100-torch1.5")
    assert profile.seconds(kernels, 1)[0] == pytest.approx(seconds, rel=within)
    low, high = (profile.seconds(kernels, 1, end)[0] for end in ("low", "high"))
    assert low <= seconds <= high


@pytest.mark.parametrize("name", ["cpu", "cpu-torch2.13"])
def test_profiles_of_the_processor_were_measured_with_all_methods(name):
    profile = load_device(name)
    assert set(KERNEL_METHODS) - set(profile.methods) <= {"topk_segments"}
    for kind, method in profile.methods.items():
        if kind in ("qr", "nonzero", "randperm", "bernoulli"):
            assert method.known == "scaled"
            continue
        assert method.known == "measured"
        if kind.startswith("copy_"):
            assert profile.once(DeviceOp(kind, 10**6)) == 0
            continue
        assert method.low <= 1 <= method.high
        assert len(method.corrections) >= 10
        times = profile.once(DeviceOp(kind, np.geomspace(1000, 10**7, 5)))
        assert (np.diff(times) > 0).all()


PROFILE = DeviceProfile(
    "toy", "toy", "toy", 1e9, {"scan": KernelMethod(1e-5, 8, "toy"), "norm": KernelMethod(0, 4, "toy")}
)


@given(st.lists(st.tuples(st.sampled_from(["scan", "norm"]), st.integers(0, 10**9), st.integers(0, 30)), max_size=5))
def test_seconds_are_launches_and_bytes_over_bandwidth(kernels):
    expected = sum(
        launches * ((1e-5 + 8 * n / 1e9) if method == "scan" else 4 * n / 1e9) for method, n, launches in kernels if n
    )
    seconds = PROFILE.seconds([DeviceOp(*one) for one in kernels], 3)
    assert seconds.shape == (3,)
    np.testing.assert_allclose(seconds, expected, rtol=1e-12)


def test_corrections_follow_what_caches_make_of_a_kernel():
    method = KernelMethod(1e-6, 4, "toy", corrections=((100, 0.5), (10_000, 1.5)))
    profile = DeviceProfile("toy", "toy", "toy", 1e9, {"scan": method})
    lengths = np.array([10, 100, 1000, 10_000, 10**6])
    factors = profile.once(DeviceOp("scan", lengths)) / (1e-6 + 4e-9 * lengths)
    np.testing.assert_allclose(factors, [0.5, 0.5, 1.0, 1.5, 1.5])
    # Segments together are as long as a cache sees them.
    together = profile.once(DeviceOp("scan", 100, segments=100))
    assert together == profile.once(DeviceOp("scan", 10_000))
    for wrong in (((5, 1), (5, 2)), ((0, 1),), ((5, 0),)):
        with pytest.raises(ValueError, match="corrections must be pairs"):
            KernelMethod(0, 4, "toy", corrections=wrong)


def test_work_stands_before_the_rounds_that_come_after_it():
    kernels = [DeviceOp("norm", 10**6), DeviceOp("scan", np.array([0, 10**6]), before=2), DeviceOp("norm", 5, before=7)]
    kernels += [DeviceOp("norm", 10**6, before=2), DeviceOp("scan", 10**6)]
    first, between = PROFILE.work(kernels, 2)
    np.testing.assert_allclose(first, [1.201e-2] * 2)
    assert sorted(between) == [2, 7]
    np.testing.assert_allclose(between[2], [4e-3, 1.201e-2])
    np.testing.assert_allclose(PROFILE.seconds(kernels, 2), first + sum(between.values()))
    assert PROFILE.work([], 3)[0].tolist() == [0, 0, 0]


def test_what_an_older_profile_lacks_is_made_of_what_it_has_and_marked():
    old = DeviceProfile(
        "old", "toy", "toy", 1e9, {"norm": KernelMethod(1e-5, 4, "toy"), "scan": KernelMethod(3e-5, 9, "toy")}
    )
    assert old.method("count") is old.method("scan")
    for name, moved, high in (("cast", 6, 2), ("sum", 12, 2), ("pack", 16, 2), ("copy_in", 8, 100)):
        made = old.method(name)
        assert (made.launch, made.bytes_per_entry, made.high, made.known) == (1e-5, moved, high, "estimated")
    with pytest.raises(ValueError, match="has no method 'topk_layer'"):
        old.method("topk_layer")


@given(st.lists(st.tuples(st.sampled_from(["scan", "norm"]), st.integers(0, 10**9)), max_size=5))
def test_the_interval_holds_the_time_and_is_that_of_each_kernel(kernels):
    methods = {
        "scan": KernelMethod(1e-5, 8, "toy", 1e-10, 0.5, 3.0),
        "norm": KernelMethod(0, 4, "toy", low=0.9, high=1.25),
    }
    profile = DeviceProfile("toy", "toy", "toy", 1e9, methods)
    ops = [DeviceOp(*one) for one in kernels]
    low, time, high = (profile.seconds(ops, 2, end) for end in ("low", None, "high"))
    factors = {"scan": (0.5, 3.0), "norm": (0.9, 1.25)}
    for at, found in ((0, low), (1, high)):
        expected = sum(factors[one.method][at] * profile.seconds([one], 2) for one in ops)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    ends = (low.sum() / time.sum(), high.sum() / time.sum()) if time.any() else (1.0, 1.0)
    np.testing.assert_allclose(profile.within(ops, 2), ends)
    np.testing.assert_allclose(profile.work(ops, 2, "high")[0], high)


GOOD = """
name: mine
device: a machine
source: measured
memory_bandwidth: 1.0e+9
methods:
  scan: {launch: 1.0e-6, bytes_per_entry: 4, source: measured}
"""


def test_a_profile_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    for given_path in (path, str(path)):
        profile = load_device(given_path)
        assert profile.seconds([DeviceOp("scan", 1e9)], 1)[0] == pytest.approx(4 + 1e-6)
    with pytest.raises(ValueError, match="'mine' has no method 'topk'"):
        profile.seconds([DeviceOp("topk", 1)], 1)


BESIDE = """
side_stream: {compute: 1.3, kernels: 2, source: measured}
beside_collectives: {compute: 1.5, source: measured}
"""


def test_a_profile_says_how_exchange_and_backward_pass_slow_each_other_down(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + BESIDE)
    profile = load_device(path)
    assert profile.side_stream == SideStreamSlowdown(1.3, 2.0, "measured")
    assert profile.beside_collectives == CollectiveSlowdown(1.5, "measured")
    path.write_text(GOOD)
    assert load_device(path).side_stream is load_device(path).beside_collectives is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("memory_bandwidth: 1.0e+9", "", "memory_bandwidth: is missing"),
        ("1.0e+9", "fast", "memory_bandwidth: must be a number, got 'fast'"),
        ("1.0e+9", "0", "memory_bandwidth: must be > 0, got 0"),
        ("1.0e-6", "-1", "methods.scan.launch: must be >= 0, got -1"),
        ("bytes_per_entry: 4, ", "", "methods.scan.bytes_per_entry: is missing"),
        ("bytes_per_entry", "byte_per_entry", "methods.scan.byte_per_entry: there is no such field; did you mean"),
        ("source: measured\n", "source: ''\n", "source: String should have at least 1 character"),
        ("name: mine", "name: mine\nname: yours", ":3: name: is given twice, first on line 2"),
        ("bytes_per_entry: 4", "bytes_per_entry: 4, low: 1.5", "methods.scan: low and high must be factors"),
        (
            "bytes_per_entry: 4",
            "bytes_per_entry: 4, known: guessed",
            "methods.scan.known: there is no such choice",
        ),
        (
            "bytes_per_entry: 4",
            "bytes_per_entry: 4, corrections: [[9, 1], [9, 2]]",
            "methods.scan: corrections must be pairs of entries > 0, ascending",
        ),
        (GOOD, "", "is not a device profile: it has no fields"),
        (GOOD, "!!python/object:os.system {}", "has the tag"),
        (GOOD, "[" * 2000, "nested more than 40 deep"),
        (GOOD, "name: " + "x" * 1_000_001, "larger than 1,000,000 bytes"),
    ],
)
def test_bad_files_are_refused_with_file_and_field(tmp_path, old, new, message):
    path = tmp_path / "bad.yaml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError, match=message) as error:
        load_device(path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("name", GPUS)
def test_one_per_cent_of_resnet50_pays_nowhere_for_sure_at_100_gbit(name):
    run = load("resnet50_100g", [f"job.device={name}", "job.iterations=2"]).build()
    rows = {label: result.iterations.mean(numeric_only=True) for label, result in results_of(run).items()}
    dense = rows.pop("dense")["iteration_s"]
    most = [one["iteration_s"] + one["select_high_s"] - one["select_s"] for one in rows.values()]
    assert min(most) > dense
    # On the device and with the releases of which it was published, not even by what is expected.
    if name.startswith("v100"):
        assert min(one["iteration_s"] for one in rows.values()) > dense
