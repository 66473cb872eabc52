"""What kernels of each library do and what is said of them, torch's by numpy, so that it need not be there."""

import inspect
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from simnet.base.errors import InputError
from simnet.base.rng import stream
from simnet.calibration import device_kernels
from simnet.calibration.device_kernels import kernels_of, numpy_kernels, processor, torch_kernels
from simnet.calibration.encoding_kernels import encoding_calls
from simnet.costs.encodings import CODE_METHODS

WHOLE = ("topk", "scan", "count", "norm", "cast", "sum", "copy")
CHOSEN = ("gather", "scatter", "pack")


def kept(call):
    """Return what a call has of what was made for it, by name."""
    return inspect.getclosurevars(call).nonlocals


class Tensor(np.ndarray):
    """What kernels ask of a tensor, by numpy."""

    def abs(self):
        return np.abs(self)

    def half(self):
        return np.zeros_like(self, dtype=np.float16)

    def sort(self):
        return SimpleNamespace(values=np.sort(np.asarray(self)).view(Tensor))

    def index_add_(self, dim, index, source):
        assert dim == 0
        np.add.at(self, index, source)

    def copy_(self, other):
        self[:] = other

    def add_(self, other):
        self += other
        return self

    def cpu(self):
        return self.copy()

    def numpy(self):
        return np.asarray(self)


def torch_by_numpy(threads=3, gpu=True, milliseconds=250.0):
    """Return what kernels take of torch; tensors are where they are asked for."""
    where = []

    def topk(values, k, dim=0, sorted=True):  # noqa: A002
        assert not sorted
        found = np.argsort(-np.asarray(values), axis=dim).take(range(k), axis=dim)
        return np.take_along_axis(values, found, dim).view(Tensor), found[::-1].view(Tensor)

    def randn(*shape, device, generator):
        where.append(device)
        assert generator == ("seed", device, 0)
        return np.random.default_rng(1).standard_normal(shape, dtype=np.float32).view(Tensor)

    def empty(count, dtype, device):
        where.append(device)
        return np.empty(count, dtype).view(Tensor)

    event = SimpleNamespace(
        record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: milliseconds,
    )  # fmt: skip
    return SimpleNamespace(
        where=where,
        Generator=lambda device: SimpleNamespace(manual_seed=lambda seed: ("seed", device, seed)),
        randn=randn,
        topk=topk,
        empty=empty,
        zeros_like=np.zeros_like,
        int32=np.int32,
        nonzero=lambda values: np.flatnonzero(values),
        count_nonzero=np.count_nonzero,
        linalg=SimpleNamespace(vector_norm=np.linalg.norm),
        get_num_threads=lambda: threads,
        __version__="9.1",
        version=SimpleNamespace(cuda="12.4"),
        cuda=SimpleNamespace(
            is_available=lambda: gpu, Event=lambda enable_timing: enable_timing and event,
            mem_get_info=lambda: (10**9, 4 * 10**9), get_device_name=lambda: "A GPU",
        ),
    )  # fmt: skip


def test_kernels_of_numpy_do_what_they_are_called_after():
    kernels = numpy_kernels()
    calls = kernels.make(1000, 0.01)
    assert {name: count for name, (count, _) in calls.items() if name not in CODE_METHODS} == {
        **dict.fromkeys(WHOLE, 1000), **dict.fromkeys(CHOSEN, 10),
    }  # fmt: skip
    values = stream(0, "device", 1000).standard_t(3, 1000).astype(np.float32)
    largest = np.sort(np.argsort(-np.abs(values))[:10])
    call = {name: one for name, (_, one) in calls.items()}
    assert sorted(call["topk"]()) == sorted(call["scan"]()) == largest.tolist()
    assert call["count"]() == 10
    assert call["norm"]() == pytest.approx(np.square(values, dtype=float).sum())
    assert call["gather"]().tolist() == values[kept(call["gather"])["chosen"]].tolist()
    total = kept(call["scatter"])["total"]
    assert not total.any()
    call["scatter"]()
    assert np.flatnonzero(total).tolist() == largest.tolist()
    call["scatter"]()
    assert total[largest].tolist() == (2 * values[largest]).tolist()
    call["copy"]()
    assert total.tolist() == values.tolist()
    call["cast"]()
    assert kept(call["cast"])["half"].tolist() == values.astype(np.float16).tolist()
    assert call["sum"]().tolist() == values.tolist()
    assert call["sum"]().tolist() == (2 * values).tolist()
    call["pack"]()
    message, chosen = kept(call["pack"])["message"], kept(call["pack"])["chosen"]
    assert message[:10].view(np.float32).tolist() == values[chosen].tolist()
    assert message[10:].tolist() == chosen.tolist()
    assert set(kernels.sources) == set(calls)
    assert (kernels.library, kernels.on_host) == (f"numpy {np.__version__}", True)


@pytest.mark.parametrize(
    ("where", "said"), [("cpu", "torch 9.1 with 3 threads"), ("cuda", "torch 9.1, CUDA 12.4, timed by events")]
)
def test_kernels_of_torch_do_what_they_are_called_after(where, said):
    torch = torch_by_numpy()
    kernels = torch_kernels(torch, where)
    calls = kernels.make(1600, 0.02)
    assert set(torch.where) == {where}
    entries = {name: count for name, (count, _) in calls.items() if name not in CODE_METHODS}
    copies = dict.fromkeys(("copy_out", "copy_in"), 32) if where == "cuda" else {}
    expected = dict.fromkeys(WHOLE, 1600) | dict.fromkeys(CHOSEN, 32) | copies | {"topk_segments": 1600}
    assert entries == expected
    assert (kernels.library, kernels.on_host, set(kernels.sources)) == (said, where == "cpu", set(calls))
    call = {name: one for name, (_, one) in calls.items()}
    values, chosen = kept(call["gather"])["values"], kept(call["gather"])["chosen"]
    assert chosen.tolist() == sorted(np.argsort(-np.abs(values))[:32])
    assert call["topk"]()[0].tolist() == sorted(np.abs(values).tolist(), reverse=True)[:32]
    # Two of the hundred entries of each segment.
    assert call["topk_segments"]()[0].shape == (16, 2)
    rows = np.sort(np.abs(np.asarray(kept(call["topk_segments"])["rows"])), axis=1)
    assert np.sort(np.asarray(call["topk_segments"]()[0]), axis=1).tolist() == rows[:, -2:].tolist()
    assert call["scan"]().tolist() == chosen.tolist()
    assert call["count"]() == 32
    assert call["norm"]() == pytest.approx(np.linalg.norm(values))
    assert call["gather"]().tolist() == values[chosen].tolist()
    total, sent = kept(call["scatter"])["total"], kept(call["scatter"])["sent"]
    call["scatter"]()
    assert total[chosen].tolist() == sent.tolist() == sorted(np.abs(values).tolist(), reverse=True)[:32]
    call["copy"]()
    assert total.tolist() == values.tolist()
    call["cast"]()
    assert kept(call["cast"])["half"].tolist() == values.astype(np.float16).tolist()
    assert call["sum"]().tolist() == values.tolist()
    call["pack"]()
    message = kept(call["pack"])["message"]
    assert message[:32].view(np.float32).tolist() == sent.tolist()
    assert message[32:].tolist() == chosen.tolist()
    if where == "cuda":
        assert call["copy_out"]().tolist() == sent.tolist()
        assert (kernels.device, kernels.memory) == ("A GPU", 1e9)
        assert kernels.seconds(lambda: None, 3) == 0.25
    else:
        assert (kernels.device, kernels.memory > 0) == (processor(), True)
        assert call["decode_delta"]()[0].tolist() == chosen.tolist()


def test_one_thread_is_no_threads():
    assert torch_kernels(torch_by_numpy(threads=1), "cpu").library == "torch 9.1 with 1 thread"


def test_without_a_name_kernels_are_those_of_a_gpu_then_those_of_torch_then_its_own(monkeypatch):
    there = {"cuda", "cupy", "torch", "numpy"}

    def kernels(name):
        if name not in there:
            raise InputError(f"no {name}")
        return name

    monkeypatch.setattr(
        device_kernels,
        "_KERNELS",
        {name: lambda name=name: kernels(name) for name in ("numpy", "torch", "cuda", "cupy")},
    )
    monkeypatch.setattr(device_kernels, "numpy_kernels", lambda: "own")
    for name in ("cuda", "cupy", "torch"):
        assert kernels_of() == kernels_of(name) == name
        there.remove(name)
        with pytest.raises(InputError, match=f"no {name}"):
            kernels_of(name)
    assert (kernels_of(), kernels_of("numpy")) == ("own", "numpy")


def test_libraries_that_are_not_there_and_have_no_gpu_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name, said in (("torch", "torch"), ("cuda", "torch"), ("cupy", "CuPy")):
        with pytest.raises(InputError, match=f"^--library: needs {said}, which is not installed: pip install "):
            kernels_of(name)
    monkeypatch.setitem(sys.modules, "torch", torch_by_numpy(gpu=False))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    for name, said in (("cuda", "torch"), ("cupy", "CuPy")):
        with pytest.raises(InputError, match=f"^--library: {said} finds no GPU$"):
            kernels_of(name)
    assert kernels_of("torch").on_host
    assert kernels_of().on_host
    monkeypatch.setitem(sys.modules, "torch", torch_by_numpy())
    assert kernels_of().device == kernels_of("cuda").device == "A GPU"


def test_calls_in_a_row_take_from_before_the_first_to_after_the_last(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(device_kernels.time, "perf_counter", lambda: now[0])

    def call():
        now[0] += 0.5

    assert device_kernels._in_a_row(call, 3) == 1.5


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("model name\t: A CPU : fast\ncpu family : 25\nmodel\t: 1\n\nmodel : 17\n", "A CPU : fast, family 25 model 17"),
        ("Hardware : a board\n", "some machine"),
    ],
)
def test_processors_are_named_as_the_system_describes_them(monkeypatch, told, name):
    monkeypatch.setattr(device_kernels.Path, "read_text", lambda path, encoding: told)
    monkeypatch.setattr(device_kernels.platform, "processor", lambda: "")
    monkeypatch.setattr(device_kernels.platform, "machine", lambda: "some machine")
    assert processor() == name


def test_codes_are_made_of_what_is_sent_and_read_back():
    chosen, sent = np.array([1, 7, 50, 99]), np.array([4.0, -3.0, 2.0, 1.0], dtype=np.float32)
    calls = encoding_calls(100, chosen, sent)
    assert tuple(calls) == CODE_METHODS
    assert {name: count for name, (count, _) in calls.items() if count != 4} == {
        "encode_bitmap": 100,
        "decode_bitmap": 100,
    }
    # What is put in order are the same in another order, that of a stream of its own.
    indices, values = calls["sort"][1]()
    assert (indices.tolist(), values.tolist()) == (chosen.tolist(), sent.tolist())
    order = stream(0, "device", "order", 4).permutation(4)
    unsorted = kept(calls["sort"][1])["unsorted"]()
    assert [one.tolist() for one in unsorted] == [chosen[order].tolist(), sent[order].tolist()]
    for name, (_, call) in calls.items():
        if name.startswith("decode_") and isinstance(found := call(), tuple):
            assert found[0].tolist() == chosen.tolist(), name
