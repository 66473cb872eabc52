"""Recording gradients while a model trains: what is written, when, what a crash leaves, and PyTorch's own hooks."""

import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

import killing
import needs
from simnet import sparsifier_models
from simnet.base.errors import InputError
from simnet.traces import Recorder, recorded
from simnet.traces.files import DTYPES, decode_stored, encode_stored, stored_tensor, write_tensors

SHAPES = {"weight": (4, 5), "bias": (5,)}
ROOT = Path(__file__).parents[1]


def gradient(step, worker):
    rng = np.random.default_rng([step, worker])
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def flat(step, worker):
    return np.concatenate([one.ravel() for one in gradient(step, worker).values()])


def run(recorder, steps, workers=1):
    for _ in range(steps):
        for worker in range(workers):
            recorder.take(gradient(recorder.step, worker), worker)
        recorder.end_step(loss=1 / (1 + recorder.step))


class TestTypes:
    @given(st.integers(0, 2**32 - 1))
    def test_bf16_is_the_nearest_of_its_numbers_and_the_even_one_of_two(self, bits):
        value = np.array([bits], dtype=np.uint32).view(np.float32)
        stored = encode_stored(value, "bf16")
        found = decode_stored(stored, "BF16")
        if not np.isfinite(value[0]):
            assert np.isnan(found[0]) == np.isnan(value[0])
            assert np.isnan(found[0]) or found[0] == value[0]
            return
        with np.errstate(over="ignore"):
            below = np.array([bits & 0xFFFF0000], dtype=np.uint32).view(np.float32).astype(np.float64)[0]
            step = abs(np.array([(bits & 0x7F800000)], dtype=np.uint32).view(np.float32).astype(np.float64)[0]) / 128
        step = max(step, 2.0**-133)
        above = below + np.copysign(step, value[0])
        low, high = abs(np.float64(value[0]) - below), abs(np.float64(value[0]) - above)
        nearest = above if high < low or (high == low and (bits >> 16) & 1) else below
        assert found[0] == np.float32(nearest) or (np.isinf(found[0]) and abs(nearest) > 3.3e38)

    def test_files_are_safetensors(self, tmp_path):
        for dtype in ("fp32", "fp16", "bf16"):
            path = tmp_path / f"{dtype}.safetensors"
            write_tensors(path, gradient(0, 0), dtype)
            for name, values in gradient(0, 0).items():
                expected = decode_stored(encode_stored(values, dtype), DTYPES[dtype])
                found = decode_stored(stored_tensor(path, name), "BF16") if dtype == "bf16" else load_file(path)[name]
                np.testing.assert_array_equal(found, expected)
        assert len(list(tmp_path.iterdir())) == 3


class TestSampling:
    @given(st.integers(1, 9), st.data(), st.integers(1, 40), st.none() | st.integers(1, 4))
    def test_steps(self, every, data, steps, samples):
        from tempfile import TemporaryDirectory

        consecutive = data.draw(st.integers(1, every))
        with TemporaryDirectory() as folder:
            with Recorder(folder, {"a": (1,)}, every=every, consecutive=consecutive, samples=samples) as recorder:
                for _ in range(steps):
                    recorder.take({"a": np.ones(1)})
                    recorder.end_step()
            expected = [step for step in range(steps) if step % every < consecutive][:samples]
            info = recorded(Path(folder)).info
        assert [point.step for point in info.points] == expected
        assert info.steps == steps

    @pytest.mark.parametrize("dtype", sorted(DTYPES))
    def test_all_entries(self, tmp_path, dtype):
        with Recorder(tmp_path, SHAPES, workers=3, every=2, dtype=dtype) as recorder:
            run(recorder, 5, 3)
        source = recorded(tmp_path)
        for step in (0, 2, 4):
            expected = np.stack([flat(step, worker) for worker in range(3)])
            np.testing.assert_array_equal(
                source.gradients(step), decode_stored(encode_stored(expected, dtype), DTYPES[dtype])
            )
        assert [point.loss for point in source.info.points] == [1, 1 / 3, 1 / 5]
        assert source.scale == 1

    def test_a_fraction_is_the_same_entries_always_and_says_so(self, tmp_path):
        with Recorder(tmp_path, SHAPES, workers=2, every=1, fraction=0.3, seed=4) as recorder:
            run(recorder, 3, 2)
        source = recorded(tmp_path)
        entries = load_file(tmp_path / "entries.safetensors")
        assert [entries[name].size for name in SHAPES] == [6, 2]
        assert source.true_parameters == 25
        assert source.parameters == 8
        assert [shape.shape for shape in source.shapes] == list(SHAPES.values())
        for step in range(3):
            for worker in range(2):
                parts = [gradient(step, worker)[name].ravel()[entries[name]] for name in SHAPES]
                np.testing.assert_array_equal(source.gradients(step)[worker], np.concatenate(parts))

    def test_workers_that_are_processes_of_their_own(self, tmp_path):
        recorders = [Recorder(tmp_path, SHAPES, workers=3, worker=rank, every=2) for rank in (0, 2, 1)]
        for step in range(4):
            for recorder, rank in zip(recorders, (0, 2, 1), strict=True):
                recorder.take(gradient(step, rank))
                recorder.end_step()
            if step == 0:
                assert not (tmp_path / "trace.json").exists()
        assert [point.step for point in recorded(tmp_path).info.points] == [0, 2]
        source = recorded(tmp_path, workers=[2, 1])
        np.testing.assert_array_equal(source.gradients(2), np.stack([flat(2, 2), flat(2, 1)]))
        smaller = recorded(tmp_path, scale=5)
        assert smaller.gradients(2).shape == (3, 5)
        (tmp_path / "000002.0001.safetensors").unlink()
        with pytest.raises(InputError, match=r"000002\.0001\.safetensors: cannot be read"):
            recorded(tmp_path)

    def test_memory_does_not_grow_with_the_run(self, tmp_path):
        n = 200_000
        values = np.ones(n, dtype=np.float32)
        with Recorder(tmp_path, {"a": (n,)}, every=1, dtype="fp32") as recorder:
            tracemalloc.start()
            for _ in range(8):
                recorder.take({"a": values})
                recorder.end_step()
            kept, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert kept < n
        assert peak < 3 * 4 * n


class TestTrouble:
    def test_an_error_in_the_training_leaves_the_trace(self, tmp_path):
        recorder = Recorder(tmp_path, SHAPES, every=1)

        def training():
            with recorder:
                run(recorder, 3)
                raise RuntimeError("mine")

        with pytest.raises(RuntimeError, match="mine"):
            training()
        assert len(recorded(tmp_path).info.points) == 3

    @needs.posix
    def test_a_killed_run_leaves_what_was_written(self, tmp_path):
        code = (
            "import os, signal, numpy as np\n"
            "from simnet.traces import Recorder\n"
            f"recorder = Recorder({str(tmp_path / 'trace')!r}, {{'a': (1000,)}}, every=3)\n"
            "for step in range(20):\n"
            "    recorder.take({'a': np.full(1000, step)})\n"
            "    if step == 9: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    recorder.end_step()\n"
        )
        ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=killing.PATIENCE, capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        source = recorded(tmp_path / "trace")
        assert [point.step for point in source.info.points] == [0, 3, 6]
        assert (source.gradients(6) == 6).all()

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_a_step_that_is_not_finite_is_left_out_and_said(self, tmp_path, bad):
        recorder = Recorder(tmp_path, SHAPES, every=1)
        run(recorder, 1)
        recorder.take({"bias": np.full(5, bad)})
        with pytest.warns(UserWarning, match="layer 'bias' is not finite in fp32 at step 1"):
            recorder.end_step()
        run(recorder, 1)
        recorder.close()
        info = recorded(tmp_path).info
        assert [point.step for point in info.points] == [0, 2]
        assert info.recording.skipped == 1

    def test_a_full_disk_ends_the_recording_and_not_the_training(self, tmp_path, monkeypatch):
        recorder = Recorder(tmp_path, SHAPES, every=1)
        run(recorder, 2)

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("simnet.traces.recording.write_tensors", full)
        with pytest.warns(UserWarning, match="ends at step 2: No space left"):
            run(recorder, 5)
        recorder.close()
        assert recorder.step == 7
        assert [point.step for point in recorded(tmp_path).info.points] == [0, 1]
        assert not list(tmp_path.glob(".*"))


@pytest.fixture
def torch():
    import torch

    return torch


def job(torch, seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(12, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def batch(torch, step, worker=0):
    generator = torch.Generator().manual_seed(100 * step + worker)
    return torch.randn(16, 12, generator=generator), torch.randint(0, 4, (16,), generator=generator)


def of_model(model):
    return np.concatenate([one.grad.reshape(-1).numpy() for one in model.parameters()]).copy()


@pytest.mark.extras
class TestTorch:
    def test_the_optimizer_says_when_a_step_is(self, torch, tmp_path):
        from simnet.traces import record

        model, optimizer = job(torch)
        seen = []
        with record(model, tmp_path, optimizer=optimizer, every=3) as recording:
            for step in range(7):
                inputs, labels = batch(torch, step)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
                seen.append(of_model(model))
                optimizer.step()
            assert recording.overhead > 0
        optimizer.step()
        source = recorded(tmp_path)
        assert [point.step for point in source.info.points] == [0, 3, 6]
        for point, step in enumerate((0, 3, 6)):
            np.testing.assert_array_equal(source.recorded(point)[0], seen[step])

    @pytest.mark.parametrize("accumulates", [True, False])
    def test_micro_batches_are_workers_and_select_what_the_gradients_select(self, torch, tmp_path, accumulates):
        from simnet.traces import record

        model, optimizer = job(torch)
        live = []
        with record(model, tmp_path, every=2, microbatches=4, accumulates=accumulates) as recording:
            for step in range(3):
                optimizer.zero_grad()
                for worker in range(4):
                    inputs, labels = batch(torch, step, worker)
                    alone = torch.autograd.grad(
                        torch.nn.functional.cross_entropy(model(inputs), labels), model.parameters()
                    )
                    live.append(np.concatenate([one.reshape(-1).numpy() for one in alone]))
                    if not accumulates:
                        optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                    loss.backward()
                    recording.step(loss)
                optimizer.step()
        source = recorded(tmp_path)
        assert source.workers == 4
        first = np.stack(live[:4])
        np.testing.assert_allclose(source.gradients(0), first, atol=1e-6)
        for scheme in ("topk", "oktopk", "gaussiank"):
            counts = [
                sparsifier_models.create(scheme, 4, first.shape[1], 0.05).exchange(one.copy()).selected
                for one in (source.gradients(0), first)
            ]
            np.testing.assert_array_equal(counts[0], counts[1])

    def test_the_communication_hook_records_what_each_process_has(self, torch, tmp_path):
        code = (
            "import os, sys, numpy as np, torch, torch.distributed as dist\n"
            "sys.path[:0] = [sys.argv[3], sys.argv[3] + '/tests']\n"
            "from test_recorder import batch, job\n"
            "from simnet.traces import record\n"
            "rank = int(sys.argv[1])\n"
            "dist.init_process_group('gloo', init_method='file://' + sys.argv[2] + '/meet', rank=rank, world_size=2)\n"
            "model, _ = job(torch)\n"
            "ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005)\n"
            "optimizer = torch.optim.SGD(ddp.parameters(), 0.1)\n"
            "with record(ddp, sys.argv[2] + '/trace', every=2):\n"
            "    for step in range(5):\n"
            "        inputs, labels = batch(torch, step, rank)\n"
            "        optimizer.zero_grad()\n"
            "        torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()\n"
            "        optimizer.step()\n"
            "np.save(sys.argv[2] + f'/end{rank}.npy', next(model.parameters()).detach().numpy())\n"
            "dist.barrier()\n"
            # As the threads of gloo that DDP keeps may still be busy with the hook, see test_ddp_hook.py.
            "os._exit(0)\n"
        )
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen([sys.executable, "-c", code, str(rank), str(tmp_path), str(ROOT)], env=environment)
            for rank in range(2)
        ]
        assert [one.wait(timeout=killing.PATIENCE) for one in ranks] == [0, 0]
        source = recorded(tmp_path / "trace")
        assert [point.step for point in source.info.points] == [0, 2, 4]
        model, optimizer = job(torch)
        for step in range(5):
            of_workers = []
            for worker in range(2):
                inputs, labels = batch(torch, step, worker)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
                of_workers.append(of_model(model))
            if step % 2 == 0:
                np.testing.assert_allclose(source.gradients(step), of_workers, atol=1e-6)
            start = 0
            for one in model.parameters():
                mean = np.mean(of_workers, axis=0)[start : start + one.numel()].reshape(one.shape)
                one.grad.copy_(torch.from_numpy(mean))
                start += one.numel()
            optimizer.step()
        ends = [np.load(tmp_path / f"end{rank}.npy") for rank in range(2)]
        np.testing.assert_array_equal(ends[0], ends[1])
        np.testing.assert_allclose(ends[0], next(model.parameters()).detach().numpy(), atol=1e-6)


@pytest.mark.extras
@pytest.mark.parametrize("processes", [1, 2])
def test_the_example_records_a_trace(tmp_path, processes):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if processes > 1 else []
    example = [*launcher, ROOT / "examples" / "recording" / "digits.py", tmp_path / "trace", "--steps", "5"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *example, "--every", "4"],
        env=environment, capture_output=True, text=True, timeout=killing.PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss ")
    source = recorded(tmp_path / "trace")
    assert source.workers == (8 if processes == 1 else 2)
    assert [point.step for point in source.info.points] == [0, 4]
