"""Traces on the line: what they are said to be like, synthetic ones, the fit and its closeness, and conversion."""

import io
import json
import re
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import commands
from commands import did, refused
from gradients import build_up
from simnet.base.errors import InputError
from simnet.scenario import load
from simnet.traces import fit, recorded, synthetic
from simnet.traces.comparing import compare_with_synthetic, describe_trace, overlap
from simnet.traces.files import ReadArchive
from simnet.traces.ordering import SHARES, EntryKinds, count_largest, fit_order, overall_share_beyond, share_beyond
from simnet.traces.recording import trace_part, write_npz

STEPS = (0, 1, 20, 40, 41, 79)


def simnet(*arguments, ok=True):
    return did(*arguments).output if ok else refused(*arguments)


def written(folder, gradients, steps=80):
    """Write a trace: step -> layer -> (P, ...)."""
    folder.mkdir()
    layers = next(iter(gradients.values()))
    for step, tensors in gradients.items():
        arrays = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in tensors.items()}
        save_file(arrays, folder / f"{step:06d}.safetensors")
    said = {
        "version": 1,
        "name": folder.name,
        "workers": len(next(iter(layers.values()))),
        "steps": steps,
        "layers": [{"name": name, "shape": list(values.shape[1:])} for name, values in layers.items()],
        "points": [{"step": step} for step in gradients],
    }
    (folder / "trace.json").write_text(json.dumps(said))
    return folder


def heavy(freedom, spread, workers=8):
    """Student's t with scales of their own for each entry."""
    rng = np.random.default_rng(5)
    scales = {"weight": np.exp(spread * rng.standard_normal((120, 80))), "bias": np.ones(80)}
    return {
        step: {name: scale * rng.standard_t(freedom, (workers, *scale.shape)) for name, scale in scales.items()}
        for step in STEPS
    }


def logistic(workers=8, inputs=400, classes=10, batch=32):
    """Multinomial logistic regression that learns, on features of very different sizes."""
    rng = np.random.default_rng(3)
    truth, sizes = rng.standard_normal((inputs, classes)), np.exp(rng.standard_normal(inputs))
    weights, bias = np.zeros((inputs, classes)), np.zeros(classes)
    found = {}
    for step in range(80):
        of_workers = {"weight": [], "bias": []}
        for _ in range(workers):
            x = rng.standard_normal((batch, inputs)) * sizes
            labels = (x @ truth + 3 * rng.standard_normal((batch, classes))).argmax(1)
            scores = np.exp(x @ weights + bias - (x @ weights + bias).max(1, keepdims=True))
            miss = scores / scores.sum(1, keepdims=True)
            miss[np.arange(batch), labels] -= 1
            of_workers["weight"].append(x.T @ miss / batch)
            of_workers["bias"].append(miss.mean(0))
        stacked = {name: np.array(one) for name, one in of_workers.items()}
        if step in STEPS:
            found[step] = stacked
        weights -= 0.01 * stacked["weight"].mean(0)
        bias -= 0.01 * stacked["bias"].mean(0)
    return found


def embedding(workers=8, words=600, width=16):
    """Rows of words that are at a worker if its batch has them, and an output layer: words by Zipf's law."""
    rng = np.random.default_rng(4)
    often = 60 / (1 + np.arange(words)) ** 0.9
    sizes = np.exp(0.5 * rng.standard_normal((words, width)))
    found = {}
    for step in STEPS:
        batch = np.exp(rng.standard_normal((workers, 1, 1)))
        there = rng.poisson(often, (workers, words))[..., None]
        rows = np.sqrt(there) * rng.standard_normal((workers, words, width))
        out = rng.standard_normal((workers, words, width)) * 0.1 + (there - often[:, None]) / 10
        found[step] = {"embedding": batch * sizes * rows, "output": batch * np.exp(-step / 40) * out}
    return found


def shared_signs(workers=8):
    """Entries of which each has its sign, whatever the worker and the magnitude."""
    rng = np.random.default_rng(6)
    signs = np.sign(rng.standard_normal((100, 50)))
    return {step: {"w": signs * np.exp(rng.standard_normal((workers, 100, 50)))} for step in STEPS}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return written(tmp_path_factory.mktemp("traces") / "small", heavy(5, 0.5, workers=4))


FAR_APART = EntryKinds(np.array([0.3, 0.3, 0.4]), np.zeros(3), np.array([-12.0, -0.5, 0.8]))


class TestFit:
    @pytest.mark.parametrize("kind", ["digits", "heavy", "heavier", "logistic", "embedding"])
    def test_synthetic_gradients_match_the_trace(self, tmp_path, kind):
        made = {"heavy": lambda: heavy(3, 1.0), "heavier": lambda: heavy(1.7, 0.3), "logistic": logistic}
        made["embedding"] = embedding
        source = recorded("digits" if kind == "digits" else written(tmp_path / kind, made[kind]()))
        parameters = fit(source)
        figures = compare_with_synthetic(source, parameters)
        assert figures["workers"] == 8
        for one in figures["densities"]:
            assert one["gain"]["ratio"] == pytest.approx(1, abs=0.1), one
            # At the lowest density some workers select but four entries.
            few = one["density"] * source.parameters < 5
            assert one["build_up"]["ratio"] == pytest.approx(1, abs=0.2 if few else 0.1), one
            if one["density"] * source.parameters >= 100:
                # Two steps alone, at which sizes of workers are drawn: where those are far apart, it scatters.
                drift = one["threshold_drift"]
                assert abs(np.log(drift["ratio"])) <= max(0.12, 2 * drift["error"]), one
        parameters.save(tmp_path / "parameters.json")
        assert synthetic(10, 1, like=tmp_path / "parameters.json").like == parameters

    @pytest.mark.parametrize("shared", [0.0, 0.6])
    @pytest.mark.parametrize(
        "kinds",
        [
            EntryKinds(np.ones(1), np.zeros(1), np.zeros(1)),
            FAR_APART,
            EntryKinds(np.array([0.7, 0.3]), np.array([2.0, 0.0]), np.array([0.5, 0.0])),
        ],
    )
    def test_what_kinds_of_entries_draws_have(self, request, kinds, shared):
        """Draws are beyond thresholds as often as kinds say, and kinds that are fitted to draws do as those do."""
        if kinds is FAR_APART and not shared:
            request.applymarker(pytest.mark.xfail(strict=True, reason="11 % off at a share of 15 %, 8 % asked"))
        rng = np.random.default_rng(1)
        P, n = 6, 60_000
        which = rng.choice(len(kinds.share), n, p=kinds.share)
        x = np.abs(np.sqrt(shared) * rng.standard_normal(n) + np.sqrt(1 - shared) * rng.standard_normal((P, n)))
        above = x - kinds.shift[which]
        v = (np.exp(kinds.log_scale[which]) * np.maximum(above, 1e-4 * x)).astype(np.float32)
        levels = np.quantile(v, [0.5, 0.9, 0.99])
        np.testing.assert_allclose(overall_share_beyond(kinds, levels), [0.5, 0.1, 0.01], rtol=0.05)
        # The order is all that counts, so any ascending function of the magnitudes has the same kinds.
        count = count_largest(np.cbrt(v))
        order = fit_order([count], np.array([0.99]), np.zeros(1))
        assert np.isclose(order.shares.sum(), 1)
        if not shared:
            q = share_beyond(order.kinds, np.exp(np.linspace(-40, 40, 4000)))
            share, any_of = order.shares[0] @ q, order.shares[0] @ -np.expm1(P * np.log1p(-np.minimum(q, 1 - 1e-12)))
            at = -np.log(np.maximum(share, 1e-300))
            found = np.interp(-np.log(SHARES), at, any_of / np.maximum(share, 1e-300))
            many = (n * SHARES > 100) & (SHARES < 0.25)
            np.testing.assert_allclose(found[many], count.figures[0][many], rtol=0.08)

    @pytest.mark.parametrize("between", ["linear", "logarithmic"])
    def test_tables_go_from_step_to_step_as_magnitudes_did(self, tmp_path, between):
        def size(step):
            return 90.0 - step if between == "linear" else 5.0 - np.log1p(step)

        made = {step: {"w": size(step) * layers["w"]} for step, layers in shared_signs().items()}
        assert fit(recorded(written(tmp_path / "sizes", made))).between == between

    @pytest.mark.parametrize("ending", ["png", "svg"])
    def test_the_command(self, small, tmp_path, ending):
        out = tmp_path / "p.json"
        text = simnet("calibrate", small, "-o", out, "--density", "0.1%,0.1", "--wide")
        assert "build-up, P = 4" in text
        assert "threshold drift" in text
        assert "selects few entries (10 at 0.001)" in text
        assert synthetic(100, 2, like=out).like == fit(recorded(small))
        assert "is there already" in simnet("calibrate", small, "-o", out, ok=False)
        picture = tmp_path / f"f.{ending}"
        found = json.loads(simnet("calibrate", small, "-o", picture, "--json", "--quiet"))
        assert picture.stat().st_size > 1000
        assert [one["density"] for one in found["densities"]] == [0.001, 0.01, 0.1]
        assert len(list(tmp_path.iterdir())) == 2

    def test_one_worker_is_refused(self, tmp_path):
        alone = written(tmp_path / "alone", heavy(5, 0.1, workers=1))
        assert "at least two workers" in simnet("calibrate", alone, "-o", tmp_path / "p.json", ok=False)
        assert not (tmp_path / "p.json").exists()

    def test_tables_of_strangers(self, tmp_path):
        parameters = fit(recorded(written(tmp_path / "heavy", heavy(2, 0.0))))
        for change, says in (
            (lambda layer: layer["magnitudes"].pop(), "magnitudes of layer 'weight' must have 6 values"),
            (lambda layer: layer["magnitudes"][0].reverse(), "must ascend"),
            (lambda layer: layer["magnitudes"][0].pop(), "magnitudes[0]"),
            (lambda layer: layer["kinds"].pop(), "shares of layer 'weight' must have"),
            (lambda layer: layer.pop("shares"), "must have all of magnitudes, kinds, shares"),
            (lambda layer: layer["shares"].pop(), "shares of layer 'weight' must have 6 values"),
            (lambda layer: layer["shares"][0].__setitem__(0, -1.0), "shares[0][0]"),
            (lambda layer: layer["kinds"][0].__setitem__(1, 1e9), "kinds[0][1]"),
        ):
            content = json.loads(parameters.model_dump_json())
            change(content["layers"][0])
            (tmp_path / "bad.json").write_text(json.dumps(content))
            with pytest.raises(InputError) as error:
                synthetic(10, 1, like=tmp_path / "bad.json")
            assert says in str(error.value)


class TestInfo:
    def test_figures_are_the_statistics(self, small):
        source = recorded(small)
        found = describe_trace(source, [0.01])
        gradients = [source.recorded(point) for point in range(len(STEPS))]
        row = found["densities"][0]
        assert row["build_up"] == pytest.approx(np.mean([build_up(one, 0.01) for one in gradients]))
        assert row["overlap_next"] == pytest.approx(
            np.mean([overlap(gradients[a], gradients[a + 1], 0.01) for a in (0, 3)])
        )
        assert row["overlap_first_last"] == pytest.approx(overlap(gradients[0], gradients[-1], 0.01))
        assert found["dtypes"] == ["F32"]
        assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)
        weight = np.stack(gradients)[:, :, :9600]
        assert found["layers"][0]["rms"] == pytest.approx(
            np.sqrt(np.square(weight, dtype=np.float64).mean(axis=(1, 2))).mean(), rel=1e-5
        )

    def test_the_tail_index_of_students_t(self, tmp_path):
        source = recorded(written(tmp_path / "t", {0: {"w": np.random.default_rng(0).standard_t(2, (2, 200_000))}}))
        assert describe_trace(source)["tail_index"] == pytest.approx(2, rel=0.15)

    def test_the_command(self, small, tmp_path):
        text = " ".join(simnet("show", "digits", "--out", tmp_path / "i.svg").split())
        assert "8 workers, 18,586 parameters in 13 layers" in text
        assert "tail index" in text
        assert (tmp_path / "i.svg").read_text().startswith("<?xml")
        assert json.loads(simnet("show", small, "--json"))["entries"] == 9680

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("digit",), "did you mean 'digits'"),
            (("./nowhere",), "nor a file of that name"),
            (("digits", "--density", "0.1,2"), "> 0 and at most 1"),
            (("digits", "--out", "a.pdf"), "must end with one of"),
        ],
    )
    def test_what_cannot_be_done(self, arguments, says):
        assert says in simnet("show", *arguments, ok=False)


SYNTHETIC = ("--to", "trace", "--compute", "1 s", "--set", "job.gradients={synthetic: {like: digits}}")


def fields(*given):
    return [word for one in given for word in ("--set", one)]


class TestSynth:
    def test_a_written_trace_is_the_source(self, tmp_path):
        chosen = fields("job.scale=2000", "job.iterations=50")
        simnet(
            "convert", "base", tmp_path / "made", *SYNTHETIC, "--model", "resnet18", "--workers", 3, "--seed", 7,
            *chosen, "--part", "every=20",
        )  # fmt: skip
        source = load("base", [*chosen[1::2], SYNTHETIC[-1]], model="resnet18", workers=3, seed=7).build().job.source
        found = recorded(tmp_path / "made")
        assert [point.step for point in found.info.points] == [0, 20, 40]
        for step in (0, 20, 40):
            np.testing.assert_array_equal(found.gradients(step), source.gradients(step))
        assert found.true_parameters == source.true_parameters
        assert found.scale == source.scale

    def test_nothing_is_written_over(self, tmp_path):
        made = "convert", "base", tmp_path / "made", *SYNTHETIC, "--model", 100, *fields("job.scale=1")
        simnet(*made)
        assert "is there already" in simnet(*made, ok=False)


class TestConvert:
    @pytest.mark.parametrize("per_worker", [False, True])
    def test_parts(self, small, tmp_path, per_worker):
        simnet(
            "convert", small, tmp_path / "out",
            "--part", "steps=1+40:80,workers=3+0:2,entries=100" + (",per-worker" if per_worker else ""),
        )  # fmt: skip
        found, source = recorded(tmp_path / "out"), recorded(small)
        assert [point.step for point in found.info.points] == [1, 40, 41, 79]
        assert [size for _, size in found.layers] == [100, 80]
        assert found.true_parameters == source.true_parameters
        columns = [int(np.flatnonzero(source.gradients(1)[3] == value)[0]) for value in found.gradients(1)[0]]
        for step in (1, 40, 79):
            np.testing.assert_array_equal(found.gradients(step), source.gradients(step)[[3, 0, 1]][:, columns])

    def test_archives_and_back(self, small, tmp_path):
        simnet("convert", small, tmp_path / "a.npz")
        with np.load(tmp_path / "a.npz") as archive:
            held = load_file(small / "000020.safetensors")["weight"]
            np.testing.assert_array_equal(archive["000020/weight"], held)
        simnet("convert", tmp_path / "a.npz", tmp_path / "back")
        for step in STEPS:
            np.testing.assert_array_equal(recorded(tmp_path / "back").gradients(step), recorded(small).gradients(step))
        assert recorded(tmp_path / "back").info == recorded(small).info
        part = {"workers": [2, 0], "scale": 3.0, "seed": 5}
        read, wanted = recorded(tmp_path / "a.npz", **part), recorded(small, **part)
        np.testing.assert_array_equal(read.gradients(20), wanted.gradients(20))
        np.testing.assert_array_equal(read.recorded(1), wanted.recorded(1))
        assert simnet("show", tmp_path / "a.npz").replace("a.npz", "") == simnet("show", small).replace(str(small), "")

    def test_archives_of_strangers(self, small, tmp_path):
        def refused(change):
            path = tmp_path / "bad.npz"
            write_npz(trace_part(recorded(small), steps=[0]), path, "fp32")
            with zipfile.ZipFile(path) as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
            change(members)
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in members.items():
                    archive.writestr(name, content)
            with pytest.raises(InputError) as error:
                ReadArchive(path)
            return str(error.value)

        def array(values, **options):
            stream = io.BytesIO()
            np.lib.format.write_array(stream, values, **options)
            return stream.getvalue()

        weight = "000000/weight.npy"
        assert "no array of layer 'weight'" in refused(lambda m: m.pop(weight))
        assert "must be [4, 120, 80]" in refused(lambda m: m.update({weight: array(np.zeros((4, 2)))}))
        assert "must be float16" in refused(lambda m: m.update({weight: array(np.zeros((4, 120, 80), int))}))
        assert "it holds objects, not numbers" in refused(
            lambda m: m.update({weight: array(np.full((4, 120, 80), None), allow_pickle=True)})
        )
        assert "index [0, 0] is nan" in refused(lambda m: m.update({weight: array(np.full((4, 120, 80), np.nan))}))
        assert "must be float16" in refused(lambda m: m.update({weight: b"nonsense"}))
        assert "is no array" in refused(lambda m: m.update({weight: m[weight][:-8]}))
        assert "is larger than" in refused(lambda m: m.update({weight: m[weight] + bytes(10**6)}))
        assert "trace.json" in refused(lambda m: m.update({"trace.json": b"{}"}))
        huge = json.dumps(
            {"version": 1, "name": "x", "workers": 2**30, "steps": 1, "layers": [{"name": "a", "shape": [2**30]}],
             "points": [{"step": 0}]}
        )  # fmt: skip
        assert "GiB of memory" in refused(lambda m: m.update({"trace.json": huge.encode()}))
        named = refused(lambda m: (m.clear(), m.update({"a.npy": b""})))
        assert "is not named STEP/LAYER, such as 000020/fc1.weight: STEP is a number" in named
        for shape, advice in (((9,), r"stack those of all workers, as numpy\.stack"), ((9, 1), r"transpose them")):
            np.savez(tmp_path / "own.npz", **{f"0/w{place}": np.ones(shape, np.float32) for place in range(3)})
            with pytest.raises(InputError, match=f"has 9 workers of 3 entries each: .*; {advice}"):
                ReadArchive(tmp_path / "own.npz")
        np.save(tmp_path / "own.npy", np.ones(9))
        (tmp_path / "own.pt").touch()
        for place, said in (
            *((name, "is no trace; .* or an archive, as numpy.savez") for name in ("own.npy", "own.pt")),
            ("none.npz", "is no such file"),
        ):
            assert re.search(said, commands.refused("show", tmp_path / place))
            said = commands.refused("run", "--gradients", tmp_path / place, "--compute=1ms", "--out", tmp_path / "out")
            assert said.endswith("(needed by --gradients: job.gradients)\n")
        (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04nonsense")
        with pytest.raises(InputError, match="is no npz archive"):
            ReadArchive(tmp_path / "bad.npz")
