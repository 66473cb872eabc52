"""Sparsifier kernels to be timed, from simnet (numpy) and PyTorch."""

from __future__ import annotations

import os
import platform
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from simnet.base.errors import InputError, suggest_names, to_install
from simnet.base.reading import read_shipped_rows
from simnet.base.rng import stream
from simnet.cost_models.costs.encodings import CODE_METHODS, INDEX_CODES, SORT_METHOD, VALUE_CODES
from simnet.sparsifier_models import selection
from simnet.sparsifier_models.codes import Bytes, decode_indices, decode_values, encode_indices, encode_values

KernelCall: TypeAlias = Callable[[], object]

Library: TypeAlias = Literal["numpy", "torch", "cuda"]

KERNEL_LIBRARIES: tuple[Library, ...] = ("numpy", "torch", "cuda")
"""simnet's own kernels; torch on the processor; torch on a GPU."""

CODE_SOURCES = {
    one: "indices and values put in order by numpy's argsort"
    if one == SORT_METHOD
    else f"numpy code that {'makes' if one.startswith('encode') else 'reads'} a message's {one.partition('_')[2]} codes"
    for one in CODE_METHODS
}
"""Source description of each encoding method."""

ROW_SEGMENTS = 16
"""Number of segments of a segmented top-k."""

FACTOR = (1024, 4)
"""Rows and columns of a factor of PowerSGD that is made orthonormal."""


@dataclass(frozen=True)
class LibraryKernels:
    """The sparsifier kernels of a library on one device, with `memory` bytes available.

    `make` returns, given entries and density, for each method the entries that it processes, and the call; `seconds`
    the time of several calls one after the other; `sources` describe them. A device `on_host` needs no copies. `host`
    are an ``operation`` and a ``view`` of 64 entries, a ``qr`` of a factor, and a ``wait`` for a device, if they cost.
    """

    device: str
    library: str
    memory: float
    make: Callable[[int, float], dict[str, tuple[int, KernelCall]]]
    seconds: Callable[[KernelCall, int], float]
    sources: Mapping[str, str]
    on_host: bool = True
    host: Mapping[str, KernelCall] = field(default_factory=dict)


def kernels_of(library: str | None = None) -> LibraryKernels:
    """Return the kernels of a library; default is the first available of PyTorch on GPU, PyTorch and numpy."""
    if library is not None and library not in KERNEL_LIBRARIES:
        allowed = suggest_names(library, KERNEL_LIBRARIES)
        raise InputError(f"there is no library {library!r}; {allowed}", file="--what device")
    for name in (library,) if library is not None else ("cuda", "torch"):
        try:
            return numpy_kernels() if name == "numpy" else _torch_there("cpu" if name == "torch" else "cuda")
        except InputError:
            if library is not None:
                raise
    return numpy_kernels()


def numpy_kernels() -> LibraryKernels:
    """Return simnet's numpy kernels, for the CPU."""

    def make(n: int, density: float) -> dict[str, tuple[int, KernelCall]]:
        values = stream(0, "device", n).standard_t(3, n).astype(np.float32)
        k, *_ = _entry_counts(n, density)
        chosen = selection.top_k(values, k)
        sent, total, copy = values[chosen], np.zeros(n, dtype=np.float32), np.zeros_like(values)
        half, message = np.empty(n, dtype=np.float16), np.empty(2 * k, dtype=np.int32)
        threshold = float(np.abs(sent).min())

        def scatter() -> None:
            total[chosen] += sent

        def pack() -> None:
            message[:k] = sent.view(np.int32)
            message[k:] = chosen

        return {
            "topk": (n, lambda: selection.top_k(values, k)),
            "scan": (n, lambda: selection.above(values, threshold, strict=False)),
            "count": (n, lambda: selection.count_above(values, threshold, strict=False)),
            "norm": (n, lambda: selection.squared_norm(values)),
            "gather": (k, lambda: values[chosen]),
            "scatter": (k, scatter),
            "cast": (n, lambda: np.copyto(half, values, casting="same_kind")),
            "sum": (n, lambda: np.add(copy, values, out=copy)),
            "pack": (k, pack),
            "copy": (n, lambda: np.copyto(total, values)),
            **encoding_calls(n, chosen, sent),
        }

    sources = _kernel_sources("numpy") | CODE_SOURCES
    return LibraryKernels(processor_name(), f"numpy {np.__version__}", _free_memory(), make, _host_timer, sources)


def torch_kernels(torch: Any, where: str) -> LibraryKernels:
    """Return the PyTorch kernels for the device ``cpu`` or ``cuda``; `torch` is the module."""
    on_gpu = where == "cuda"

    def make(n: int, density: float) -> dict[str, tuple[int, KernelCall]]:
        generator = torch.Generator(device=where).manual_seed(0)
        values = torch.randn(n, device=where, generator=generator)
        k, row, in_row = _entry_counts(n, density)
        sent, chosen = torch.topk(values.abs(), k, sorted=False)
        chosen = chosen.sort().values
        threshold = float(sent.min())
        total, copy = torch.zeros_like(values), torch.zeros_like(values)
        half, message = values.half(), torch.empty(2 * k, dtype=torch.int32, device=where)
        rows = torch.randn(ROW_SEGMENTS, row, device=where, generator=generator)

        def pack() -> None:
            message[:k] = sent.view(torch.int32)
            message[k:] = chosen

        calls: dict[str, tuple[int, KernelCall]] = {
            "topk": (n, lambda: torch.topk(values.abs(), k, sorted=False)),
            "topk_segments": (ROW_SEGMENTS * row, lambda: torch.topk(rows.abs(), in_row, dim=1, sorted=False)),
            "scan": (n, lambda: torch.nonzero(values.abs() >= threshold)),
            "count": (n, lambda: torch.count_nonzero(values.abs() >= threshold)),
            "norm": (n, lambda: torch.linalg.vector_norm(values)),
            "gather": (k, lambda: values[chosen]),
            "scatter": (k, lambda: total.index_add_(0, chosen, sent)),
            "cast": (n, lambda: half.copy_(values)),
            "sum": (n, lambda: copy.add_(values)),
            "pack": (k, pack),
            "copy": (n, lambda: total.copy_(values)),
        }
        if on_gpu:
            host = sent.cpu()
            return calls | {"copy_out": (k, lambda: sent.cpu()), "copy_in": (k, lambda: sent.copy_(host))}
        return calls | encoding_calls(n, chosen.numpy(), values[chosen].numpy())

    sources, small, factor = _kernel_sources("torch"), torch.zeros(64, device=where), torch.ones(FACTOR, device=where)
    host: dict[str, KernelCall] = {
        "operation": lambda: small.add_(1.0),
        "view": lambda: small[1:2],
        "qr": lambda: torch.linalg.qr(factor),
    }
    if on_gpu:
        host["wait"] = lambda: (small.add_(1.0), torch.cuda.synchronize())
        sources |= _kernel_sources("cuda")
        library = f"torch {torch.__version__}, CUDA {torch.version.cuda}, timed by events"
        event = partial(torch.cuda.Event, enable_timing=True)
        seconds = event_timer(event, lambda begin, end: float(begin.elapsed_time(end)))
        free = float(torch.cuda.mem_get_info()[0])
        return LibraryKernels(torch.cuda.get_device_name(), library, free, make, seconds, sources, False, host)
    sources |= CODE_SOURCES
    threads = torch.get_num_threads()
    library = f"torch {torch.__version__} with {threads} thread{'s' if threads > 1 else ''}"
    return LibraryKernels(processor_name(), library, _free_memory(), make, _host_timer, sources, host=host)


def encoding_calls(n: int, chosen: selection.Indices, sent: selection.Values) -> dict[str, tuple[int, KernelCall]]:
    """Return for each method of `CODE_METHODS` the number of entries it processes and the call to time.

    `chosen` are the indices sent of n entries, ascending int64, shape (k,); `sent` their float32 values.
    """
    k = chosen.size

    @cache
    def unsorted() -> tuple[selection.Indices, selection.Values]:
        order = stream(0, "device", "order", k).permutation(k)
        return chosen[order], sent[order]

    def sort() -> tuple[selection.Indices, selection.Values]:
        indices, values = unsorted()
        order = np.argsort(indices)
        return indices[order], values[order]

    found: dict[str, tuple[int, KernelCall]] = {SORT_METHOD: (k, sort)}

    def add(code: str, entries: int, encode: Callable[[], Bytes], decode: Callable[[Bytes], object]) -> None:
        encoded = cache(encode)
        found[f"encode_{code}"], found[f"decode_{code}"] = (entries, encode), (entries, lambda: decode(encoded()))

    for index in INDEX_CODES:
        decode = partial(decode_indices, n=n, code=index, k=k)
        add(index, n if index == "bitmap" else k, partial(encode_indices, chosen, n, index), decode)
    for value in VALUE_CODES:
        add(value, k, partial(encode_values, sent, value), partial(decode_values, k=k, code=value))
    return {name: found[name] for name in CODE_METHODS}


def _kernel_sources(library: str) -> dict[str, str]:
    """Return the source description of each kernel method of a library."""
    return {row["method"]: row["source"] for row in read_shipped_rows("data/kernels.csv") if row["library"] == library}


def _entry_counts(n: int, density: float) -> tuple[int, int, int]:
    """Return the number of entries selected out of `n`, entries per segment, and selected per segment; each >= 1."""
    row = max(1, n // ROW_SEGMENTS)
    return max(1, round(density * n)), row, max(1, round(density * row))


def event_timer(event: Callable[[], Any], elapsed: Callable[[Any, Any], float]) -> Callable[[KernelCall, int], float]:
    """Return a function that times calls with GPU events; `elapsed` returns milliseconds between two events."""

    def seconds(call: KernelCall, count: int) -> float:
        begin, end = event(), event()
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return elapsed(begin, end) / 1e3

    return seconds


def _torch_there(where: str) -> LibraryKernels:
    try:
        import torch
    except ImportError:
        raise InputError(f"needs torch, which is not installed: {to_install('replay')}", file="--what device") from None
    if where == "cuda" and not torch.cuda.is_available():
        raise InputError("torch finds no GPU", file="--what device")
    return torch_kernels(torch, where)


def _host_timer(call: KernelCall, count: int) -> float:
    """Return the time [s] of `count` successive calls, by the host clock."""
    return timeit.timeit(call, number=count)


def _free_memory() -> float:
    """Return half of the free main memory [byte]; 2 GiB if unknown."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    except (ValueError, OSError, AttributeError):
        return 2.0 * 2**30


def processor_name() -> str:
    """Return the name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        pairs = (line.partition(":") for line in lines)
        fields = {name.strip(): value.strip() for name, _, value in pairs}
        return f"{fields['model name']}, family {fields['cpu family']} model {fields['model']}"
    except (OSError, KeyError):
        return platform.processor() or platform.machine()
