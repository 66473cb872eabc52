"""Measures device profiles: kernel costs of sparsifiers on a CPU or GPU.

A kernel's times on gradients of growing length are fitted as a launch time plus seconds per entry, by least squares of
relative errors, with corrections at each length. Its error interval comes from predicting every second length from the
others and, for kernels that select, from other densities. Kernels are those of torch or simnet's own.
"""

from __future__ import annotations

import datetime
import itertools
import os
import platform
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from simnet.base.errors import InputError, check_choice, import_extra
from simnet.base.file_io import read_shipped_rows
from simnet.base.progress import track_progress
from simnet.base.rng import stream
from simnet.base.yaml_loader import yaml_text
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile, HostPrices, KernelMethod
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
    has calls to time the host: an ``operation`` and a ``view`` of 64 entries, a ``qr`` of a factor, a ``wait``.
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
    if library is not None:
        check_choice(library, "library", KERNEL_LIBRARIES, file="--what device")
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
    """Return, for each method that encodes or decodes messages, its number of entries and the function call to time.

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
    return {row["method"]: row["source"] for row in read_shipped_rows("data/kernels.csv") if row["library"] == library}


def _entry_counts(n: int, density: float) -> tuple[int, int, int]:
    """Return how many of `n` entries to select, the length of each of `ROW_SEGMENTS` parts, and how many in each."""
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
    torch = import_extra("torch", "replay", "needs torch, which is not installed", "--what device")
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


GRADIENT_LENGTHS = tuple(round(10 ** (power / 4)) for power in range(4, 37))
"""Entries of the gradients, four in a decade; those that need too much memory or time are left out.

The shortest are what merges of sparse messages go through, and take as long as a launch.
"""

INTERVAL_DENSITIES = (0.1, 0.01, 0.001)
"""Densities at which the intervals of kernel times must hold."""

LARGEST_LAYER = 1_000_000
"""Entries of the longest gradient that top-k of a layer is fitted to."""

_LEAST_LENGTHS, _LEAST_LARGEST = 3, 10_000
# How long these take depends on how much is selected; at which lengths that is looked at.
_BY_DENSITY = (
    "topk", "topk_segments", "scan",
    *(one for one in CODE_METHODS if one.partition("_")[2] in INDEX_CODES),
)  # fmt: skip
_LENGTHS_BY_DENSITY = (10_000, 100_000, 1_000_000)
# Values, magnitudes, what selecting keeps beside them with its indices, and what takes them in other formats.
_BYTES_PER_ENTRY = 60
# Operations, views and waits that are timed together.
_TIMES = 1000
# What memory binds is said in bytes, so that it may be compared.
_NOT_STREAMED = ("topk", "topk_layer", "topk_segments", *CODE_METHODS)


def measure_device(
    name: str,
    library: str | None = None,
    *,
    density: float = 0.1,
    largest: int = GRADIENT_LENGTHS[-1],
    budget: float = 0.25,
) -> DeviceProfile:
    """Measure a device profile with the kernels of a library, by default the best available.

    `density` is the share that is selected, `largest` the longest gradient, `budget` the seconds for each method and
    length; a length is left out where three calls would take more than ten times that. Raises InputError for values out
    of range.
    """
    if not 0 < density < 1:
        raise InputError(f"density must be between 0 and 1, got {density}", file="--what device")
    if largest < _LEAST_LARGEST:
        raise InputError(f"largest must be at least {_LEAST_LARGEST:,}, got {largest:,}", file="--what device")
    if not 0 < budget <= 60:
        raise InputError(f"must be between 0 and 60 s, got {budget}", file="--budget")
    return profile_of(kernels_of(library), name, density, largest, budget)


def profile_of(kernels: LibraryKernels, name: str, density: float, largest: int, budget: float) -> DeviceProfile:
    """Return a device profile from timings of `kernels` at several gradient lengths; InputError for too few lengths."""
    timed: dict[str, dict[int, float]] = {}
    for n in track_progress([n for n in GRADIENT_LENGTHS if n <= largest and n * _BYTES_PER_ENTRY <= kernels.memory]):
        for method, (count, call) in track_progress(kernels.make(n, density).items()):
            if method in CODE_METHODS and n not in GRADIENT_LENGTHS[::2]:
                continue
            before = timed.setdefault(method, {})
            last, took = next(reversed(before.items()), (0, 0.0))
            expected = took * count / last if len(before) >= _LEAST_LENGTHS else 0.0
            if count > last and 3 * expected <= 10 * budget:
                before[count] = _median_seconds(kernels, call, budget)
    lacking = [one for one in kernels.sources if one not in CODE_METHODS and len(timed[one]) < _LEAST_LENGTHS]
    if lacking:
        said = f"at a density of {density:g} there are fewer than {_LEAST_LENGTHS} lengths of {', '.join(lacking)}"
        raise InputError(f"largest must be more, or density: {said}", file="--what device")
    longest = max(timed["copy"])
    bandwidth = 2 * 4 * longest / timed["copy"][longest]
    beside = density_factors(kernels, timed, density, budget)
    methods = {}
    layers = {count: took for count, took in timed["topk"].items() if count <= LARGEST_LAYER}
    methods["topk_layer"] = _profile_method("topk_layer", kernels.sources["topk"], layers, bandwidth, beside["topk"])
    for method, source in kernels.sources.items():
        # Of codes, passes that were measured say more than one length or two.
        if method not in CODE_METHODS or len(timed[method]) >= _LEAST_LENGTHS:
            methods[method] = _profile_method(method, source, timed[method], bandwidth, beside.get(method, ()))
    if kernels.on_host:
        nothing = KernelMethod(0, 0, "the device is the host: nothing is copied", known="measured")
        methods |= {"copy_out": nothing, "copy_in": nothing}
    host = _host_prices(kernels)
    if host is not None:
        took = _median_seconds(kernels, kernels.host["qr"], budget)
        said = f"QR of {FACTOR[0]} rows and {FACTOR[1]} columns, launches included"
        methods["qr"] = KernelMethod(took, 0.0, said, low=0.5, high=2.0, known="measured")
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return DeviceProfile(
        name=name,
        device=f"{kernels.device}, {kernels.library}",
        source=f"simnet measure --what device on {today}, at density {density:g}; memory bandwidth by the longest "
        "copy, bytes read and written. Intervals: every second length predicted from the others, and what selects at "
        f"densities of {', '.join(f'{one:g}' for one in INTERVAL_DENSITIES)} beside that.",
        memory_bandwidth=bandwidth,
        methods=methods,
        host=host,
    )


def _host_prices(kernels: LibraryKernels) -> HostPrices | None:
    """Return the host's measured times to launch an operation, create a tensor view, and wait for the device."""
    if not kernels.host:
        return None
    prices = {name: call for name, call in kernels.host.items() if name != "qr"}
    each = {name: [kernels.seconds(call, _TIMES) / _TIMES for _ in range(5)] for name, call in prices.items()}
    operation, view = (float(np.median(each[name])) for name in ("operation", "view"))
    # A wait is timed with the operation that it waits for.
    wait = max(float(np.median(each["wait"])) - operation, 0.0) if "wait" in each else 0.0
    low, high = (end(each["operation"]) / operation for end in (min, max))
    source = f"{_TIMES:,} additions in place of 64 entries, as many slices, the device synchronised at the ends"
    return HostPrices(operation, view, wait, source, min(low, 1.0), max(high, 1.0), "measured")


def fit_launch_cost(entries: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return launch time [s], seconds per entry, and largest relative error of a non-negative least-squares fit."""
    from scipy.optimize import nnls

    x, y = np.array(entries, dtype=np.float64), np.array(seconds)
    # Columns of the relative time per unit of each; neither may be negative.
    columns = np.column_stack([1 / y, x / y])
    scale = columns.max(axis=0)
    launch, slope = nnls(columns / scale, np.ones(len(y)))[0] / scale
    error = np.abs(columns @ (launch, slope) - 1).max()
    return float(launch), float(slope), float(error)


def fit_method(entries: Sequence[int], seconds: Sequence[float]) -> KernelMethod:
    """Return a kernel cost fitted to measured times [s], with a correction factor at each measured length."""
    launch, slope, error = fit_launch_cost(entries, seconds)
    factors = (took / (launch + slope * count) for count, took in zip(entries, seconds, strict=True))
    pairs = tuple((float(count), round(factor, 4)) for count, factor in zip(entries, factors, strict=True))
    said = f"{entries[0]} to {entries[-1]} entries; without corrections within {100 * error:.0f} %"
    return KernelMethod(launch, 0.0, said, slope, known="measured", corrections=pairs)


def held_out_factors(entries: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the lowest (<= 1) and highest (>= 1) ratio of measured to predicted time at held-out gradient lengths."""
    left_out = range(1, len(entries) - 1, 2)
    others = [place for place in range(len(entries)) if place not in left_out]
    method = fit_method([entries[one] for one in others], [seconds[one] for one in others])
    profile = DeviceProfile("", "", "", 1.0, {"held out": method})
    factors = [seconds[one] / float(profile.once(DeviceOp("held out", entries[one]))) for one in left_out]
    return min(1.0, *factors), max(1.0, *factors)


def density_factors(
    kernels: LibraryKernels, timed: Mapping[str, Mapping[int, float]], density: float, budget: float
) -> dict[str, list[float]]:
    """Return, by selection kernel, ratios of times at other densities (share of entries kept) to that at `density`."""
    found: dict[str, list[float]] = {name: [] for name in _BY_DENSITY}
    lengths, others = set(_LENGTHS_BY_DENSITY) & set(timed["topk"]), set(INTERVAL_DENSITIES) - {density}
    for n, other in itertools.product(sorted(lengths), sorted(others, reverse=True)):
        for method, (count, call) in kernels.make(n, other).items():
            if method in found and count in timed[method]:
                found[method].append(_median_seconds(kernels, call, budget) / timed[method][count])
    return found


def _profile_method(
    name: str, source: str, timed: Mapping[int, float], bandwidth: float, beside: Sequence[float]
) -> KernelMethod:
    entries, seconds = list(timed), list(timed.values())
    found = fit_method(entries, seconds)
    low, high = held_out_factors(entries, seconds)
    found = replace(found, source=f"{source}, {found.source}.", low=min((low, *beside)), high=max((high, *beside)))
    if name in _NOT_STREAMED:
        return found
    return replace(found, bytes_per_entry=found.seconds_per_entry * bandwidth, seconds_per_entry=0.0)


def profile_yaml(profile: DeviceProfile) -> str:
    """Return a device profile as YAML that `simnet.cost_models.costs.devices.load_device` reads."""
    fields = asdict(profile, dict_factory=lambda pairs: {name: _rounded(one) for name, one in pairs if one or one == 0})
    return yaml_text(fields, width=120)


def _rounded(value: Any) -> Any:
    """Return a number rounded to five digits, a text joined into one line, any other value unchanged."""
    if isinstance(value, float):
        return float(f"{value:.4e}")
    return " ".join(value.split()) if isinstance(value, str) else value


def _median_seconds(kernels: LibraryKernels, call: KernelCall, budget: float) -> float:
    """Return the median time [s] of a call, over at least three repetitions that fit into `budget` [s]."""
    took: list[float] = []
    count, stop = 1, time.perf_counter() + budget
    kernels.seconds(call, 1)
    while len(took) < 3 or time.perf_counter() < stop:
        took.append(kernels.seconds(call, count) / count)
        # What is shorter than the clock is good for is called several times in a row.
        count = max(1, min(1000, int(1e-3 / min(took)))) if min(took) > 0 else 1000
    return max(float(np.median(took)), 1e-12)
