"""The device profile of a processor or GPU: what the kernels of the sparsifiers cost there, measured.

For each kernel, times on gradients of growing length are fitted by the model of `simnet.costs.devices`: a launch, and
bytes per entry that stream at the memory bandwidth. The launch is the time on ten entries; the bytes per entry have the
least maximal relative error on all longer gradients. That error is stated with them; it is large where short gradients
stay in a cache and long ones do not. A time is the best of several repetitions.

The kernels are those of torch where it is installed, on a GPU if there is one; otherwise simnet's own, on the
processor.
"""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from simnet.base.errors import InputError, nearest
from simnet.base.progress import tracked
from simnet.base.rng import stream
from simnet.costs.devices import DeviceProfile, Method
from sparsifier_models import selection

Call: TypeAlias = Callable[[], object]
Library: TypeAlias = Literal["numpy", "torch", "cuda"]

LIBRARIES: tuple[Library, ...] = ("numpy", "torch", "cuda")
"""simnet's own kernels; torch on the processor; torch on a GPU."""

LENGTHS = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
"""Entries of the gradients; those that need too much memory or time are left out."""

_SHORTEST = 10
# Values, magnitudes, and what selecting keeps beside them, with its indices.
_BYTES_PER_ENTRY = 40


@dataclass(frozen=True)
class Kernels:
    """The kernels of a library on a device.

    Parameters
    ----------
    device, library : str
        What runs them, and which version of what.
    memory : float
        Bytes that may be used.
    make : callable
        Given entries and density, returns for each method the entries that it goes through, and the call.
    seconds : callable
        How long `count` calls one after the other take [s].
    sources : mapping of str
        For each method, what is called.
    """

    device: str
    library: str
    memory: float
    make: Callable[[int, float], dict[str, tuple[int, Call]]]
    seconds: Callable[[Call, int], float]
    sources: Mapping[str, str]


def measure_device(
    name: str, library: str | None = None, *, density: float = 0.1, largest: int = LENGTHS[-1], budget: float = 0.25
) -> DeviceProfile:
    """Measure a device profile.

    Parameters
    ----------
    name : str
        What to call it.
    library : {"numpy", "torch", "cuda"}, optional
        Whose kernels; by default the last of these that is there.
    density : float
        Share of the entries that is selected, in (0, 1).
    largest : int
        The longest gradient, >= 10,000.
    budget : float
        Seconds for each method and length, > 0. A length is left out where three calls would take more than ten times
        that.

    Raises
    ------
    InputError
        If the library is not there, or a parameter is out of range.
    """
    if not 0 < density < 1:
        raise InputError(f"must be between 0 and 1, got {density}", file="--density")
    if largest < LENGTHS[0]:
        raise InputError(f"must be at least {LENGTHS[0]:,}, got {largest:,}", file="--largest")
    if not 0 < budget <= 60:
        raise InputError(f"must be between 0 and 60 s, got {budget}", file="--budget")
    kernels = kernels_of(library)
    entries: dict[str, list[int]] = {}
    seconds: dict[str, list[float]] = {}
    for n in tracked([_SHORTEST, *(n for n in LENGTHS if n <= largest and n * _BYTES_PER_ENTRY <= kernels.memory)]):
        for method, (count, call) in tracked(kernels.make(n, density).items()):
            before = list(zip(entries.get(method, ()), seconds.get(method, ()), strict=True))
            if len(before) > 1 and before[-1][1] * count / before[-1][0] * 3 > 10 * budget:
                continue
            entries.setdefault(method, []).append(count)
            seconds.setdefault(method, []).append(_best(kernels, call, budget))
    bandwidth = 2 * 4 * entries["copy"][-1] / seconds["copy"][-1]
    methods = {}
    for method, source in kernels.sources.items():
        launch, counts = seconds[method][0], entries[method][1:]
        slope, error = fitted(launch, counts, seconds[method][1:])
        said = f"{source}, {counts[0]} to {counts[-1]} entries. Within {100 * error:.0f} %."
        methods[method] = Method(launch, slope * bandwidth, said)
    methods["topk_layer"] = methods["topk"]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return DeviceProfile(
        name=name,
        device=kernels.device,
        source=f"simnet calibrate device on {today}, {kernels.library}, at density {density:g}; memory bandwidth by "
        "the longest copy, bytes read and written.",
        memory_bandwidth=bandwidth,
        methods=methods,
    )


def kernels_of(library: str | None = None) -> Kernels:
    """Return the kernels of a library; of the best one that is there when omitted.

    Raises
    ------
    InputError
        If there is no such library, it is not installed, or there is no GPU for it.
    """
    if library is not None and library not in LIBRARIES:
        raise InputError(f"there is no library {library!r}; {nearest(library, LIBRARIES)}", file="--library")
    if library == "numpy":
        return _numpy()
    try:
        import torch
    except ImportError:
        if library is None:
            return _numpy()
        raise InputError("needs torch, which is not installed: pip install torch", file=library) from None
    if library is None:
        library = "cuda" if torch.cuda.is_available() else "torch"
    if library == "cuda" and not torch.cuda.is_available():
        raise InputError("torch finds no GPU", file=library)
    return _torch(torch, "cuda" if library == "cuda" else "cpu")


def fitted(launch: float, entries: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the seconds per entry that fit best beside the launch time, and the largest relative error of the fit.

    Parameters
    ----------
    launch : float
        Seconds of a launch.
    entries : sequence of int
        Lengths that were measured.
    seconds : sequence of float
        Their times [s].

    Examples
    --------
    >>> slope, error = fitted(1.0, [10, 20], [21.0, 41.0])
    >>> round(slope, 9), round(error, 9)
    (2.0, 0.0)
    """
    x, y = np.array(entries, dtype=np.float64), np.array(seconds)
    # The error of a slope s is max |a + s b|, convex in s: the best one is where two of these lines meet, or at 0.
    a, b = launch / y - 1, x / y
    meet = [-(a[i] + a[j]) / (b[i] + b[j]) for i in range(len(y)) for j in range(len(y))]
    slopes = [max(0.0, float(s)) for s in (0.0, *meet)]
    worst = [float(np.abs(a + s * b).max()) for s in slopes]
    best = int(np.argmin(worst))
    return slopes[best], worst[best]


def profile_yaml(profile: DeviceProfile) -> str:
    """Return a profile as the YAML that `simnet.costs.devices.load_device` reads."""
    lines = [
        f"name: {_quoted(profile.name)}",
        f"device: {_quoted(profile.device)}",
        f"source: {_quoted(profile.source)}",
        f"memory_bandwidth: {profile.memory_bandwidth:.3e}",
        "methods:",
    ]
    for name, method in profile.methods.items():
        lines += [
            f"  {name}:",
            f"    launch: {method.launch:.3e}",
            f"    bytes_per_entry: {method.bytes_per_entry:.4e}",
            f"    source: {_quoted(method.source)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + " ".join(text.split()).replace("'", "''") + "'"


def _best(kernels: Kernels, call: Call, budget: float) -> float:
    """Return the shortest time of a call among the repetitions that fit into `budget` [s], three at least."""
    best, repetitions, count, stop = np.inf, 0, 1, time.perf_counter() + budget
    kernels.seconds(call, 1)
    while repetitions < 3 or time.perf_counter() < stop:
        took = kernels.seconds(call, count)
        best = min(best, took / count)
        repetitions += 1
        # What is shorter than the clock is good for is called several times in a row.
        count = max(1, min(1000, int(1e-3 / best))) if best > 0 else 1000
    return float(best)


def _numpy() -> Kernels:
    def make(n: int, density: float) -> dict[str, tuple[int, Call]]:
        values = stream(0, "device", n).standard_t(3, n).astype(np.float32)
        k = max(1, round(density * n))
        chosen = selection.top_k(values, k)
        sent, total, copy = values[chosen], np.zeros(n, dtype=np.float32), np.empty_like(values)
        threshold = float(np.abs(sent).min())

        def scatter() -> None:
            total[chosen] += sent

        return {
            "topk": (n, lambda: selection.top_k(values, k)),
            "count": (n, lambda: selection.count_above(values, threshold, strict=False)),
            "scan": (n, lambda: selection.above(values, threshold, strict=False)),
            "norm": (n, lambda: selection.squared_norm(values)),
            "gather": (k, lambda: values[chosen]),
            "scatter": (k, scatter),
            "copy": (n, lambda: np.copyto(copy, values)),
        }

    sources = {
        "topk": "exact top-k as simnet selects it",
        "count": "entries above a threshold counted, as simnet does",
        "scan": "comparison of the magnitudes and compaction, as simnet does",
        "norm": "squares summed in double precision, as simnet does",
        "gather": "numpy take at ascending indices",
        "scatter": "numpy add at ascending indices",
        "copy": "numpy copyto, entries of four bytes",
    }
    return Kernels(_processor(), f"numpy {np.__version__}", _free_memory(), make, _in_a_row, sources)


def _in_a_row(call: Call, count: int) -> float:
    """Return how long `count` calls one after the other take [s]."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def _torch(torch: Any, where: str) -> Kernels:
    on_gpu = where == "cuda"

    def make(n: int, density: float) -> dict[str, tuple[int, Call]]:
        generator = torch.Generator(device=where).manual_seed(0)
        values = torch.randn(n, device=where, generator=generator)
        k = max(1, round(density * n))
        sent, chosen = torch.topk(values.abs(), k, sorted=False)
        chosen = chosen.sort().values
        threshold = float(sent.min())
        total, copy = torch.zeros_like(values), torch.empty_like(values)
        return {
            "topk": (n, lambda: torch.topk(values.abs(), k, sorted=False)),
            "count": (n, lambda: torch.count_nonzero(values.abs() >= threshold)),
            "scan": (n, lambda: torch.nonzero(values.abs() >= threshold)),
            "norm": (n, lambda: torch.linalg.vector_norm(values)),
            "gather": (k, lambda: values[chosen]),
            "scatter": (k, lambda: total.index_add_(0, chosen, sent)),
            "copy": (n, lambda: copy.copy_(values)),
        }

    def in_a_row_on_gpu(call: Call, count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        _in_a_row(call, count)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    sources = {
        "topk": "torch.topk of the magnitudes, unsorted",
        "count": "torch.count_nonzero of magnitudes at or above a threshold",
        "scan": "torch.nonzero of magnitudes at or above a threshold",
        "norm": "torch.linalg.vector_norm in single precision",
        "gather": "entries taken at ascending indices",
        "scatter": "torch index_add_ at ascending indices",
        "copy": "torch copy_, entries of four bytes",
    }
    if on_gpu:
        free = float(torch.cuda.mem_get_info()[0])
        library = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
        return Kernels(torch.cuda.get_device_name(), library, free, make, in_a_row_on_gpu, sources)
    library = f"torch {torch.__version__} with {torch.get_num_threads()} threads"
    return Kernels(_processor(), library, _free_memory(), make, _in_a_row, sources)


def _free_memory() -> float:
    """Return half of the memory that is free [byte]; others may want the rest."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    except (ValueError, OSError, AttributeError):
        return 2.0 * 2**30


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        pairs = (line.partition(":") for line in lines)
        fields = {name.strip(): value.strip() for name, _, value in pairs}
        return f"{fields['model name']}, family {fields['cpu family']} model {fields['model']}"
    except (OSError, KeyError):
        return platform.processor() or platform.machine()
