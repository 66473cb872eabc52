"""Gradient sources: the recorded trace, files from anywhere, and how like a trace synthetic gradients are."""

import importlib.util
import itertools
import json
import math
import struct
import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from gradients import build_up, compression_gain, overlap_between_workers
from simnet.base.errors import InputError
from simnet.cost_models.costs.models import load_model
from simnet.traces import Recorder, SyntheticParameters, fit, recorded, synthetic, trace_names
from simnet.traces.comparing import overlap, top_k_support
from simnet.traces.metadata import SHIPPED, LayerParameters
from simnet.traces.source import shrink_sizes
from simnet.traces.synthetic import row_count

ROOT = Path(__file__).parents[1]
SHAPES = {"weight": (4, 2), "bias": (4,)}
STEPS = (0, 3, 9)


def description(**changes):
    plain = {
        "version": 1,
        "name": "small",
        "workers": 3,
        "steps": 10,
        "layers": [{"name": name, "shape": list(shape)} for name, shape in SHAPES.items()],
        "points": [{"step": step} for step in STEPS],
    }
    return {name: value for name, value in (plain | changes).items() if value is not None}


def tensors(step, dtype=np.float32):
    """Entries that tell worker, layer and index: step * 1000 + worker * 100 + place."""
    found, start = {}, 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        place = np.arange(start, start + size) + 100 * np.arange(3)[:, None] + 1000 * step
        found[name] = place.reshape(3, *shape).astype(dtype)
        start += size
    return found


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "trace.json").write_text(json.dumps(description()))
    for step in STEPS:
        save_file(tensors(step), tmp_path / f"{step:06d}.safetensors")
    return tmp_path


@pytest.fixture(scope="module")
def digits():
    return recorded("digits")


def refusal(call, *args, **kwargs):
    with pytest.raises(InputError) as error:
        call(*args, **kwargs)
    return str(error.value)


class TestShippedTrace:
    def test_it_is_small_and_says_what_it_is(self, digits):
        assert sum(path.stat().st_size for path in (SHIPPED / "digits").iterdir()) <= 8e6
        info = digits.info
        assert "digits" in trace_names()
        assert (digits.workers, info.workers, digits.parameters) == (8, 8, 18_586)
        assert 10 <= len(info.points) <= 14
        assert info.points[0].step == 0
        assert info.points[-1].step == info.steps - 1
        assert all((info.model, info.data, info.how, info.license, info.date, "torch" in info.software))
        assert info.seed is not None

    def test_gradients_are_what_the_files_hold(self, digits):
        for point in (0, 5, 11):
            step = digits.info.points[point].step
            held = load_file(SHIPPED / "digits" / f"{step:06d}.safetensors")
            flat = np.concatenate([held[name].reshape(8, -1) for name, _ in digits.layers], axis=1)
            found = digits.gradients(step)
            assert found.dtype == np.float32
            assert found.flags.c_contiguous
            np.testing.assert_array_equal(found, flat)


class TestRecorded:
    def test_entries_stand_by_worker_layer_and_index(self, folder):
        source = recorded(folder)
        assert source.layers == (("weight", 8), ("bias", 4))
        expected = 3000 + 100 * np.arange(3)[:, None] + np.arange(12)
        np.testing.assert_array_equal(source.gradients(3), expected)

    def test_more_workers_than_recorded_are_refused_with_a_remedy(self, folder):
        with pytest.raises(ValueError, match=r"'small' has 3 workers, 4 are asked for: take --workers 3"):
            recorded(folder, workers=4)

    def test_half_precision_is_read_as_single(self, folder):
        save_file(tensors(0, np.float16), folder / "000000.safetensors")
        found = recorded(folder).gradients(0)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found[:, :8], tensors(0)["weight"].reshape(3, 8))

    def test_a_buffer_is_filled(self, folder):
        out = np.full((3, 12), np.nan, dtype=np.float32)
        assert recorded(folder).gradients(0, out) is out
        np.testing.assert_array_equal(out, recorded(folder).gradients(0))

    def test_gradients_are_fresh_in_every_call(self, folder):
        source = recorded(folder)
        source.gradients(0)[:] = 0
        assert source.gradients(0).any()

    @given(st.integers(1, 2000), st.integers(0, 3000))
    def test_an_iteration_meets_the_nearest_step(self, iterations, iteration):
        source = digits_over(iterations)
        step = min(iteration / max(iterations - 1, 1), 1) * 399
        distances = [abs(point.step - step) for point in source.info.points]
        assert distances[source.nearest(iteration)] == min(distances)


@cache
def digits_over(iterations):
    return recorded("digits", iterations=iterations)


class TestScaleOfRecorded:
    @pytest.mark.parametrize("scale", [1, 2, 7.5, 100, 1e6])
    def test_each_layer_shrinks_in_proportion_and_bytes_stay_exact(self, digits, scale):
        source = recorded("digits", scale=scale)
        assert [size for _, size in source.layers] == [max(1, round(size / scale)) for _, size in digits.layers]
        assert source.parameters == sum(size for _, size in source.layers)
        assert source.true_parameters == 18_586
        assert source.scale == 18_586 / source.parameters
        assert source.gradients(0).shape == (8, source.parameters)

    def test_the_seed_decides_which(self):
        chosen = [recorded("digits", scale=10, seed=seed).gradients(0) for seed in (0, 0, 1)]
        np.testing.assert_array_equal(chosen[0], chosen[1])
        assert (chosen[0] != chosen[2]).any()

    @given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50), st.floats(1, 1e9))
    def test_shrunk(self, sizes, scale):
        smaller = shrink_sizes(sizes, scale)
        assert all(1 <= after <= before for before, after in zip(sizes, smaller, strict=True))
        assert all(abs(after - before / scale) <= 1 for before, after in zip(sizes, smaller, strict=True))
        assert shrink_sizes(sizes, 1) == sizes


class TestBadTraces:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"workers": None}, "workers: is missing"),
            ({"points": None}, "points: is missing"),
            ({"version": 2}, "version: there is no such choice"),
            ({"worker": 3}, "worker: there is no such field; did you mean 'workers'?"),
            ({"workers": 0}, "workers: must be >= 1, got"),
            ({"workers": "3"}, "workers: must be a whole number"),
            ({"workers": True}, "workers: must be a whole number"),
            ({"workers": 2**70}, "workers: "),
            ({"layers": []}, "layers: "),
            (
                {"layers": [{"name": "a", "shape": [2]}, {"name": "a", "shape": [2]}]},
                "layers: two layers are called 'a'",
            ),
            (
                {"layers": [{"name": "a", "shape": [2, -1]}]},
                "layers[0].shape[1]: must be >= 1, got",
            ),
            ({"layers": [{"name": "a", "shape": [2**62]}]}, "layers[0].shape[0]: must be <= "),
            ({"layers": [{"name": "a"}]}, "layers[0].shape: is missing"),
            ({"layers": [{"name": "a", "shape": [2], "size": 2}]}, "layers[0].size: there is no such field"),
            ({"points": []}, "points: "),
            ({"points": [{"step": 3}, {"step": 0}]}, "points: steps must ascend, got 3, 0"),
            ({"points": [{"step": 3}, {"step": 3}]}, "points: steps must ascend, got 3, 3"),
            ({"points": [{"step": 10}]}, "points: step 10 is not within the 10 steps of the run"),
            ({"points": [{"step": 0, "loss": float("nan")}]}, "points[0].loss: must be a finite number, got nan"),
            ({"points": [{"step": 3.5}]}, "points[0].step: "),
        ],
    )
    def test_descriptions(self, folder, changes, says):
        (folder / "trace.json").write_text(json.dumps(description(**changes)))
        message = refusal(recorded, folder)
        assert message.startswith(f"{folder / 'trace.json'}: ")
        assert says in message

    def test_descriptions_that_are_no_text(self, folder):
        (folder / "trace.json").write_bytes(b"\xff\xfe\x00")
        assert "is not UTF-8 text" in refusal(recorded, folder)

    def test_missing_files(self, folder, tmp_path):
        assert "nowhere" in refusal(recorded, tmp_path / "nowhere")
        assert "there is no such file" in refusal(recorded, str(tmp_path / "nowhere"))
        (folder / "000003.safetensors").unlink()
        assert "000003.safetensors: cannot be read: No such file" in refusal(recorded, folder)
        (folder / "000003.safetensors").mkdir()
        assert "000003.safetensors: cannot be read" in refusal(recorded, folder)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda t: t.pop("bias"), "has no tensor 'bias'"),
            (lambda t: t.update(biass=t["bias"]), "no layer 'biass' in trace.json: did you mean 'bias'?"),
            (lambda t: t.update(bias=t["bias"][:2]), "layer 'bias' has shape [2, 4], must be [3, 4]"),
            (lambda t: t.update(weight=t["weight"].reshape(3, 2, 4)), "shape [3, 2, 4], must be [3, 4, 2]"),
            (lambda t: t.update(bias=t["bias"].astype(np.int32)), "layer 'bias' is I32, must be F32, F16 or BF16"),
            (lambda t: t.update(bias=t["bias"].astype(np.float64)), "layer 'bias' is F64, must be F32, F16 or BF16"),
        ],
    )
    def test_tensors_that_are_not_what_the_description_says(self, folder, change, says):
        held = tensors(3)
        change(held)
        save_file(held, folder / "000003.safetensors")
        message = refusal(recorded, folder)
        assert says in message
        assert "000003.safetensors" in message

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\x00",
            struct.pack("<Q", 2**63) + b"{}",
            struct.pack("<Q", 20_000_000) + b"{}",
            struct.pack("<Q", 2) + b"{}",
            struct.pack("<Q", 8) + b"nonsense",
            struct.pack("<Q", 4000) + b"[" * 4000,
        ],
    )
    def test_files_that_are_no_safetensors(self, folder, content):
        (folder / "000000.safetensors").write_bytes(content)
        assert "000000.safetensors: " in refusal(recorded, folder)


class TestSynthetic:
    @pytest.mark.parametrize("workers", [1, 2, 3, 8, 17])
    @pytest.mark.parametrize("name", ["resnet18", "gpt2"])
    def test_any_number_of_workers_and_any_model(self, workers, name):
        source = synthetic(name, workers, scale=10_000)
        gradients = source.gradients(3)
        assert gradients.shape == (workers, source.parameters)
        assert gradients.dtype == np.float32
        assert gradients.flags.c_contiguous
        assert np.isfinite(gradients).all()
        assert source.workers == workers
        assert [layer for layer, _ in source.layers] == [layer.name for layer in load_model(name).layers]
        assert sum(size for _, size in source.layers) == source.parameters
        assert source.true_parameters == load_model(name).parameters
        assert source.scale == source.true_parameters / source.parameters

    @given(st.lists(st.integers(0, 300), min_size=1, max_size=6), st.integers(0, 3))
    @settings(max_examples=20)
    def test_an_iteration_is_the_same_whatever_was_asked_for_before(self, before, seed):
        used, fresh = (synthetic(2000, 2, iterations=200, seed=seed) for _ in range(2))
        for iteration in before:
            used.gradients(iteration)
        np.testing.assert_array_equal(used.gradients(before[0]), fresh.gradients(before[0]))

    def test_more_workers_leave_the_others_as_they_are(self):
        few, many = (synthetic("resnet18", workers, scale=5000).gradients(5) for workers in (3, 11))
        np.testing.assert_array_equal(few, many[:3])

    def test_nothing_of_the_run_is_stored(self):
        # Long enough that what each stream of normals holds of its own, 330 kB, is little.
        workers, n = 8, 500_000
        source = synthetic(n, workers, iterations=200)
        out = np.empty((workers, n), dtype=np.float32)
        tracemalloc.start()
        for iteration in range(40):
            source.gradients(iteration, out)
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept <= (row_count() + 0.1) * 4 * n
        assert peak <= (workers + 2) * 4 * n

    def test_a_model_like_the_recorded_one_has_its_layers(self, digits):
        source = synthetic(digits.shapes, 1)
        assert source.layers == digits.layers
        assert source.scale == 1


def record(folder, shapes, gradients):
    """Write gradients, by step, as a trace."""
    workers = len(next(iter(gradients.values())))
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1]
    with Recorder(folder, shapes, workers=workers, every=1) as recorder:
        for step, rows in gradients.items():
            recorder.step = step
            for worker, row in enumerate(rows):
                recorder.take(dict(zip(shapes, np.split(row, ends), strict=True)), worker)
            recorder.end_step()
    return recorded(folder)


class TestParameters:
    def test_the_shipped_ones_are_those_of_the_shipped_trace(self, digits):
        spec = importlib.util.spec_from_file_location("digits_parameters", ROOT / "benchmarks/digits_parameters.py")
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        again, shipped = script.fit_by_moments(digits), synthetic(10, 1).like
        assert [layer.name for layer in again.layers] == [layer.name for layer in shipped.layers]
        assert (again.memory, again.fixed) == pytest.approx((shipped.memory, shipped.fixed), rel=1e-3, abs=1e-3)
        for ours, theirs in zip(again.layers, shipped.layers, strict=True):
            for table in ("rms", "dead", "spread", "tail", "shared"):
                assert getattr(ours, table) == pytest.approx(getattr(theirs, table), rel=1e-3, abs=1e-3)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda p: p.pop("memory"), "memory: is missing"),
            (lambda p: p.update(memry=0), "memry: there is no such field; did you mean 'memory'?"),
            (lambda p: p.update(memory=1.0), "memory: must be <= 0.9"),
            (lambda p: p.update(period=0.0), "period: "),
            (lambda p: p["knots"].reverse(), "knots must ascend"),
            (lambda p: p["knots"].pop(), "must have 11 values, one for each knot"),
            (lambda p: p["layers"][3]["tail"].pop(), "must have 12 values, one for each knot"),
            (lambda p: p["layers"][3]["dead"].__setitem__(0, 1.0), "layers[3].dead[0]: must be < 1"),
            (lambda p: p["layers"][3]["rms"].__setitem__(0, float("nan")), "layers[3].rms[0]: must be"),
            (lambda p: p["layers"][3]["spread"].__setitem__(0, 1e9), "layers[3].spread[0]: must be"),
            (lambda p: p.update(layers=[]), "layers: "),
            # No normal is beyond such a shift.
            (
                lambda p: p["layers"][3].update(kinds=[[8.0, 0.0]]),
                "layers[3].kinds[0][0]: must be <= ",
            ),
        ],
    )
    def test_bad_files(self, tmp_path, change, says):
        content = json.loads(synthetic(10, 1).like.model_dump_json())
        change(content)
        (tmp_path / "bad.json").write_text(json.dumps(content))
        message = refusal(synthetic, 10, 1, like=tmp_path / "bad.json")
        assert says in message
        assert "bad.json" in message

    def test_fitting_finds_the_parameters_that_gradients_were_made_with(self, tmp_path):
        def at_both_knots(name, matrix, **values):
            return LayerParameters(name=name, matrix=matrix, **{key: (one, one) for key, one in values.items()})

        made = SyntheticParameters(
            name="made",
            steps=60,
            knots=(0.0, 1.0),
            worker_spread=(0.3, 0.3),
            memory=0.5,
            fixed=0.4,
            period=2.0,
            layers=(
                at_both_knots("weight", matrix=True, rms=0.1, dead=0.2, spread=0.5, tail=0.3, shared=0.2),
                at_both_knots("bias", matrix=False, rms=0.4, dead=0.0, spread=0.3, tail=0.0, shared=0.1),
            ),
        )
        shapes = {"weight": (200, 200), "bias": (10_000,)}
        source = synthetic(list(shapes.items()), 8, like=made)
        steps = [0, 1, 2, 5, 6, 12, 13, 25, 26, 40, 41, 58, 59]
        record(tmp_path, shapes, {step: source.gradients(step) for step in steps})
        found = fit(recorded(tmp_path))
        again = synthetic(list(shapes.items()), 8, like=found)
        for density in DENSITIES:
            for figure in (compression_gain, build_up):
                one, other = (
                    np.mean([figure(its.gradients(step), density) for step in steps]) for its in (again, source)
                )
                assert one == pytest.approx(other, rel=0.05)
        assert np.median(np.array(found.layers[1].magnitudes)[:, 40] / np.array(found.layers[0].magnitudes)[:, 40]) > 2
        assert np.log(found.worker_sizes).std() == pytest.approx(0.3, rel=0.25)
        for first, second in itertools.pairwise(steps):
            common = (overlap(its.gradients(first), its.gradients(second), 0.1) for its in (again, source))
            assert next(common) == pytest.approx(next(common), abs=0.06)


DENSITIES = (0.001, 0.01, 0.1)


@pytest.fixture(scope="module")
def real(digits):
    return [digits.recorded(point) for point in range(len(digits.info.points))]


@pytest.fixture(scope="module")
def made(digits):
    """Synthetic gradients at the steps of the trace, of three seeds."""
    sources = [synthetic(digits.shapes, 8, like="digits", seed=seed) for seed in range(3)]
    return [[source.gradients(point.step) for source in sources] for point in digits.info.points]


def ratios(figure, real, made):
    """Return synthetic over recorded at each point."""
    return np.array(
        [np.mean([figure(one) for one in many]) / figure(single) for single, many in zip(real, made, strict=True)]
    )


class TestLikeness:
    @pytest.mark.parametrize("density", [0.001, 0.003, 0.01, 0.03, 0.1])
    def test_compression_gain(self, real, made, density):
        found = ratios(lambda g: compression_gain(g, density), real, made)
        assert found.mean() == pytest.approx(1, abs=0.05)
        assert np.abs(found - 1).max() < 0.15

    @pytest.mark.parametrize(("density", "each"), [(0.001, 0.35), (0.01, 0.1), (0.03, 0.1), (0.1, 0.1)])
    def test_build_up_at_eight_workers(self, real, made, density, each):
        found = ratios(lambda g: build_up(g, density), real, made)
        assert found.mean() == pytest.approx(1, abs=0.07)
        assert np.abs(found - 1).max() < each

    @pytest.mark.parametrize("workers", [2, 4])
    def test_build_up_at_fewer(self, real, made, workers):
        found = ratios(lambda g: build_up(g[:workers], 0.01), real, made)
        assert found.mean() == pytest.approx(1, abs=0.05)

    @pytest.mark.parametrize(("density", "close"), [(0.003, 0.25), (0.01, 0.1), (0.1, 0.1)])
    def test_overlap_between_workers(self, real, made, density, close):
        of_real = np.mean([overlap_between_workers(g, density) for g in real])
        of_made = np.mean([overlap_between_workers(g, density) for many in made for g in many])
        assert of_made == pytest.approx(of_real, rel=close)

    def test_what_workers_share_adds_up(self):
        """Correlation between workers is `shared`, so the mean gradient of many does not vanish."""
        source = synthetic([("w", (300, 300))], 16, iterations=400)
        gradients = source.gradients(60).astype(np.float64)
        correlation = np.corrcoef(gradients)[np.triu_indices(16, 1)].mean()
        parameters = next(layer for layer in source.like.layers if layer.name == "conv3.weight")
        shared = np.interp(60 / 399, source.like.knots, parameters.shared)
        assert correlation == pytest.approx(shared, abs=0.02)


@pytest.fixture(scope="module")
def at_scale(digits):
    """Means over training of what schemes depend on, at three scales, of a model of 372 thousand parameters."""
    shapes = [(name, (20, *shape) if len(shape) > 1 else (20 * shape[0],)) for name, shape in digits.shapes]
    found = {}
    for scale in (1, 10, 100):
        source = synthetic(shapes, 8, scale=scale)
        figures = [
            [
                compression_gain(one, 0.01),
                compression_gain(one, 0.1),
                build_up(one, 0.01),
                build_up(one, 0.1),
                source.scale * (np.abs(one) > 0.08).sum(),
                source.scale * (np.abs(one) > 0.15).sum(),
            ]
            for one in map(source.gradients, (0, 60, 200, 399))
        ]
        found[scale] = np.mean(figures, axis=0)
    return found


@pytest.mark.parametrize(("scale", "error"), [(10, 0.04), (100, 0.1)])
def test_the_sampling_error_of_scale_is_small(at_scale, scale, error):
    """Gain, build-up and what hard thresholds select: within 4 % with 37 thousand entries, 10 % with 4 thousand."""
    np.testing.assert_allclose(at_scale[scale], at_scale[1], rtol=error)


class TestStatistics:
    @given(st.integers(1, 6), st.integers(2, 60), st.floats(0.001, 1), st.integers(0, 99), st.booleans())
    def test_against_sets(self, P, n, density, seed, alike):
        gradients = np.random.default_rng(seed).standard_normal((P, n)).astype(np.float32)
        if alike:
            gradients = np.copysign(np.ceil(np.abs(gradients)), gradients)
        k = max(1, round(density * n))
        chosen = [set(np.argsort(-np.abs(row), kind="stable")[:k].tolist()) for row in gradients]
        assert [set(np.flatnonzero(row).tolist()) for row in top_k_support(gradients, density)] == chosen
        assert build_up(gradients, density) == pytest.approx(len(set().union(*chosen)) / k)
        gains = [
            np.square(row[sorted(one)], dtype=float).sum() / np.square(row, dtype=float).sum()
            for row, one in zip(gradients, chosen, strict=True)
        ]
        assert compression_gain(gradients, density) == pytest.approx(np.mean(gains))
        assert overlap(gradients, gradients[::-1], density) == pytest.approx(
            np.mean([len(one & other) / k for one, other in zip(chosen, chosen[::-1], strict=True)])
        )
        if P > 1:
            pairs = [len(chosen[a] & chosen[b]) / k for a in range(P) for b in range(a)]
            assert overlap_between_workers(gradients, density) == pytest.approx(np.mean(pairs))

    def test_a_gradient_of_zeros_loses_nothing(self):
        assert compression_gain(np.zeros((2, 10), dtype=np.float32), 0.1) == 1
