"""Device profiles: the time of sparsifier kernels on a CPU or GPU.

A scheme reports the kernels it ran and between which of its messages. A device profile turns them into seconds: a fixed
time for each launch, and for each entry bytes, which stream at the memory bandwidth, or seconds. Each method says where
its figures come from and how far they may be off.

=================  ======================================================================================
method             one launch over `entries` entries
=================  ======================================================================================
``topk``           exact top-k of the whole, fused gradient
``topk_layer``     exact top-k of one layer
``topk_segments``  exact top-k of each of several segments, all in one launch
``scan``           one pass that picks out the entries above a threshold
``count``          one pass that leaves a number: a count, a mean, a maximum
``norm``           sum of squares, or another sum that reads every entry once
``gather``         values read at indices
``scatter``        values written at, or added to, indices
``cast``           entries read, and written in another format: half precision, levels, signs
``sum``            one vector added to another
``pack``           values and indices copied into one message
``copy_out``       values copied from the device to its host
``copy_in``        values copied from the host to the device
=================  ======================================================================================

Codes of indices and values have methods of their own, `simnet.cost_models.costs.encodings.CODE_METHODS`, and so have
operations of hooks as PyTorch runs them: ``qr`` of a factor, ``nonzero``, ``randperm`` and ``bernoulli``. Hooks of jobs
have ``hook_topk_begin``, ``hook_topk_end``, ``hook_topk_kept`` and ``hook_topk_came`` by the name of their scheme: over
the entries of a bucket before and after its first message, over those kept, and over each four bytes received.

Methods that a profile lacks are estimated, and marked so: segments are launches of `topk`, layers are `topk`, a `count`
is a `scan`; `cast`, `sum`, `pack` and copies stream their bytes after a launch of `norm`. A profile file is YAML, with
seconds, bytes and bytes per second:

.. code-block:: yaml

    name: my-gpu-torch2.6
    device: what was measured, and with which release
    source: how, when, or which table of which paper
    memory_bandwidth: 900.0e+9
    methods:
      norm: {launch: 9.0e-6, bytes_per_entry: 4, low: 0.8, high: 1.25, known: measured, source: measured so and so}
      topk: {launch: 1.0e-4, seconds_per_entry: 3.6e-11, low: 0.4, high: 2.5, known: scaled, source: from its relative}
    side_stream: {compute: 1.3, kernels: 2.0, source: measured so and so}
    beside_collectives: {compute: 1.5, source: measured so and so}
    host: {operation: 6.0e-6, view: 1.0e-6, sync: 1.0e-5, low: 0.9, high: 1.1, known: measured, source: so and so}

The two before the last say how exchange and backward pass slow each other down, the last is for
`simnet.cost_models.costs.hooks`. The method ``"*"`` stands for all that are not listed, ``memory: 16.0e+9`` for the
bytes of the device, ``chip: V100`` for its chip. A package may register a function that returns a `DeviceProfile`, as
an entry point ``simnet.devices``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from annotated_types import Ge, Gt, Le, MinLen
from numpy.typing import NDArray

from simnet.base import plugins
from simnet.base.errors import suggest_names
from simnet.base.file_io import read_text
from simnet.base.quantities import MOST_BYTES, MOST_RATE, MOST_SECONDS, NotTiny, Slowdown

DEFAULT_DEVICE = "v100-torch2.6"
"""Name of the default device profile."""

GLOO_DEVICE = "cpu-torch2.13"
"""The profile where none is named and messages go over gloo, which sends from PyTorch's CPU tensors."""

DEVICE_ALIASES = {"v100": DEFAULT_DEVICE}
"""Aliases of device profiles."""

KERNEL_METHODS = (
    "topk", "topk_layer", "topk_segments", "scan", "count", "norm", "gather", "scatter", "cast", "sum", "pack",
    "copy_out", "copy_in",
)  # fmt: skip
"""The methods of the schemes in `simnet.sparsifier_models`."""

Provenance: TypeAlias = Literal["measured", "scaled", "estimated", "not stated"]
"""How figures are known: measured there, scaled from a relative, or estimated; of older files nothing is known."""

_Seconds: TypeAlias = Annotated[float, Ge(0), Le(MOST_SECONDS)]
_Bytes: TypeAlias = Annotated[float, Ge(0), Le(MOST_BYTES)]
_Positive: TypeAlias = Annotated[float, Gt(0), Le(1e18)]

FilledText: TypeAlias = Annotated[str, MinLen(1)]
"""A non-empty text."""

IntervalEnd: TypeAlias = Literal["low", "high"]
"""An end of the interval of a time."""

_LARGEST_FILE = 1_000_000
# Of files, whose fields pydantic checks.
_STRICT = {"extra": "forbid", "strict": True, "str_strip_whitespace": True, "allow_inf_nan": False}
_ANY = "*"
_MADE_OF = {"topk_segments": "topk", "topk_layer": "topk", "count": "scan"}
# Bytes read and written for each entry, of four bytes and with indices of four.
_STREAMED = {"cast": 6.0, "sum": 12.0, "pack": 16.0, "copy_out": 8.0, "copy_in": 8.0}
# By which factor that may be off: published kernels of this kind keep within 1.4 of their bytes, and of devices that
# nobody looked at more is allowed for; the link to the host of a GPU is up to a hundred times slower than its memory.
_STREAMS_WITHIN, _COPIES_WITHIN = 2.0, 100.0


class DeviceOp(NamedTuple):
    """One or more launches of a kernel on a device: its name in device profiles, entries, and segments per launch.

    Entries are one number for all workers or one each, shape (P,); a worker with 0 entries launches no kernel. `before`
    is the round of the schedule that a worker enters afterwards, 0 for work before the first message. If a device
    profile lacks the kernel, the kernels `instead` replace it. For a hook's stage, `priced` has expected, minimum and
    maximum seconds from `simnet.cost_models.costs.hooks`.
    """

    method: str
    entries: float | NDArray[np.floating[Any]] | NDArray[np.integer[Any]]
    launches: int = 1
    before: int = 0
    segments: int = 1
    instead: tuple[DeviceOp, ...] = ()
    priced: tuple[float, float, float] | None = None

    @property
    def passes(self) -> tuple[DeviceOp, ...]:
        """The kernels that replace this one on a device that lacks it; the kernel itself if there is no replacement."""
        return tuple(one._replace(before=self.before) for one in self.instead) or (self,)

    def scaled(self, factor: float) -> DeviceOp:
        """Return the operation over `factor` times as many entries."""
        return self._replace(entries=self.entries * factor, instead=tuple(one.scaled(factor) for one in self.instead))


@dataclass(frozen=True)
class KernelMethod:
    """Cost of a kernel: seconds per launch, bytes streamed per entry, and seconds per entry.

    The time lies between `low` and `high` times that, 0 < low <= 1 <= high. `corrections` are entries, ascending, and
    the factor of launches over as many: interpolated over the logarithm of entries. Raises ValueError for others.
    """

    __pydantic_config__ = _STRICT

    launch: _Seconds
    bytes_per_entry: _Bytes
    source: FilledText
    seconds_per_entry: _Seconds = 0.0
    low: Slowdown = 1.0
    high: Slowdown = 1.0
    known: Provenance = "not stated"
    corrections: tuple[tuple[_Positive, _Positive], ...] = ()

    def __post_init__(self) -> None:
        entries = [0.0, *(entries for entries, _ in self.corrections), math.inf]
        if not all(a < b for a, b in pairwise(entries)) or not all(0 < one < math.inf for _, one in self.corrections):
            raise ValueError("corrections must be pairs of entries > 0, ascending, and of factors > 0")
        if not 0 < self.low <= 1 <= self.high < math.inf:
            raise ValueError(f"low and high must be factors with 0 < low <= 1 <= high, got {self.low} and {self.high}")


@dataclass(frozen=True)
class HostPrices:
    """Time a host takes to launch an operation, to make a tensor view, and to wait for its device [s].

    The time lies between `low` and `high` times that, 0 < low <= 1 <= high.
    """

    __pydantic_config__ = _STRICT

    operation: _Seconds
    view: _Seconds
    sync: _Seconds
    source: FilledText
    low: Slowdown = 1.0
    high: Slowdown = 1.0
    known: Provenance = "not stated"


@dataclass(frozen=True)
class SideStreamSlowdown:
    """Slowdown factors > 0 of the backward pass and of exchange kernels while both run at once, on two streams."""

    __pydantic_config__ = _STRICT

    compute: Slowdown
    kernels: Slowdown
    source: FilledText


@dataclass(frozen=True)
class CollectiveSlowdown:
    """Slowdown, a factor > 0, of forward and backward passes while NCCL collectives run; under FSDP at least 1."""

    __pydantic_config__ = _STRICT

    compute: Slowdown
    source: FilledText


@dataclass(frozen=True)
class DeviceProfile:
    """Kernel costs of a device by method name; ``"*"`` is the cost of all methods that are not listed.

    Without `side_stream`, exchange kernels wait for the only stream; `beside_collectives` is the slowdown of the passes
    by NCCL collectives. `memory` [byte] and `chip` are 0 and "" if unknown. `host` has the host's times per operation,
    by default typical ones. A job sets `implementation`, the code whose operations count; None for kernels only.

    Examples
    --------
    >>> profile = DeviceProfile("toy", "none", "made up", 1e9, {"scan": KernelMethod(1e-5, 4, "made up")})
    >>> profile.seconds([DeviceOp("scan", 1_000_000)], workers=2)
    array([0.00401, 0.00401])
    """

    __pydantic_config__ = _STRICT

    name: FilledText
    device: FilledText
    source: FilledText
    memory_bandwidth: Annotated[float, Gt(0), Le(MOST_RATE), NotTiny(1 / MOST_SECONDS)]
    methods: Mapping[str, KernelMethod]
    side_stream: SideStreamSlowdown | None = None
    beside_collectives: CollectiveSlowdown | None = None
    memory: _Bytes = 0.0
    chip: str = ""
    host: HostPrices | None = None
    implementation: str | None = None

    def seconds(self, kernels: Iterable[DeviceOp], workers: int, end: IntervalEnd | None = None) -> NDArray[np.float64]:
        """Return the total time of kernels at each worker [s], shape (P,), or the low or high end of its interval.

        Raises ValueError for an unknown method, or impossible workers, entries, launches or segments.
        """
        if workers < 1:
            raise ValueError(f"workers must be >= 1, got {workers}")
        total = np.zeros(workers)
        for kernel in self.resolved(kernels):
            entries = np.asarray(kernel.entries, dtype=np.float64)
            if entries.shape not in ((), (workers,)):
                wanted = f"must be one number or {workers}, got shape {entries.shape}"
                raise ValueError(f"entries of {kernel.method!r} {wanted}")
            if not np.isfinite(entries).all() or entries.min() < 0 or kernel.launches < 0 or kernel.segments < 0:
                raise ValueError(f"entries, launches and segments of {kernel.method!r} must be finite and >= 0")
            total += self.once(kernel, end)
        return total

    def resolved(self, kernels: Iterable[DeviceOp]) -> Iterator[DeviceOp]:
        """Yield the kernels; `DeviceOp.instead` replaces kernels that the profile has no cost for."""
        for kernel in kernels:
            if kernel.method in self.methods:
                yield kernel
            else:
                yield from kernel.passes

    def once(self, kernel: DeviceOp, end: IntervalEnd | None = None) -> NDArray[np.float64]:
        """Return the time of one kernel [s], in the shape of its entries; ValueError for an unknown method."""
        if kernel.priced is not None:
            return np.asarray(kernel.priced[("low", "high").index(end) + 1 if end else 0])
        if kernel.instead and kernel.method not in self.methods:
            return np.asarray(sum(self.once(one, end) for one in kernel.instead))
        method, launches, segments = self.method(kernel.method), kernel.launches, kernel.segments
        if segments != 1 and kernel.method not in self.methods and method is self.methods.get("topk"):
            launches, segments = launches * segments, 1
        entries = np.asarray(kernel.entries, dtype=np.float64) * segments
        each = method.bytes_per_entry / self.memory_bandwidth + method.seconds_per_entry
        factor = 1.0 if end is None else getattr(method, end)
        one = factor * launches * (method.launch + entries * each)
        if method.corrections:
            lengths, factors = zip(*method.corrections, strict=True)
            one = one * np.interp(np.log(np.maximum(entries, 1.0)), np.log(lengths), factors)
        return np.where(entries > 0, one, 0.0)

    def within(self, kernels: Iterable[DeviceOp], workers: int) -> tuple[float, float]:
        """Return the ends of the interval of the kernels' total time, as ratios to that time; both 1 if it is 0."""
        kernels = tuple(kernels)
        total = float(self.seconds(kernels, workers).sum())
        if not total:
            return 1.0, 1.0
        low, high = (float(self.seconds(kernels, workers, end).sum()) / total for end in get_args(IntervalEnd))
        return low, high

    def work(
        self, kernels: Iterable[DeviceOp], workers: int, end: IntervalEnd | None = None
    ) -> tuple[NDArray[np.float64], dict[int, NDArray[np.float64]]]:
        """Return each worker's kernel time [s] before its first message, (P,), and before each later round, by round.

        `simnet.schedule.Schedule.with_work` takes the latter, by numbers of rounds.
        """
        places: dict[int, list[DeviceOp]] = {0: []}
        for kernel in kernels:
            places.setdefault(kernel.before, []).append(kernel)
        found = {place: self.seconds(places[place], workers, end) for place in sorted(places)}
        return found.pop(0), found

    def method(self, name: str) -> KernelMethod:
        """Return a kernel's cost, derived from other methods if it is not listed; ValueError if no method fits."""
        found = self.methods.get(name) or self.methods.get(_MADE_OF.get(name, ""))
        found = found or self.methods.get(_ANY) or self._streamed(name)
        if found is None:
            allowed = suggest_names(name, self.methods)
            raise ValueError(f"device profile {self.name!r} has no method {name!r}: {allowed}")
        return found

    def _streamed(self, name: str) -> KernelMethod | None:
        """Return a cost by memory bandwidth for a kernel that only reads and writes memory; None for other kernels."""
        norm, moved = self.methods.get("norm"), _STREAMED.get(name)
        if norm is None or moved is None:
            return None
        within = _COPIES_WITHIN if name.startswith("copy_") else _STREAMS_WITHIN
        low, high = min(norm.low, 1 / _STREAMS_WITHIN), max(norm.high, within)
        source = f"not in the profile: a launch of norm, and {moved:g} bytes at the memory bandwidth"
        return KernelMethod(norm.launch, moved, source, low=low, high=high, known="estimated")


def device_names() -> list[str]:
    """Return the names of shipped and plug-in device profiles, sorted."""
    return sorted({*_shipped_names(), *plugins.plugin_names("devices")})


def usable_devices() -> dict[str, DeviceProfile]:
    """Return device profiles by name, sorted; plug-ins that cannot be used are skipped with a warning."""
    shipped = {name: _shipped_profile(name) for name in _shipped_names()}
    return dict(sorted({**plugins.usable_plugins("devices", load_device), **shipped}.items()))


def load_device(name_or_path: str | Path) -> DeviceProfile:
    """Return a device profile by name or from a file.

    A name is one of `device_names` or `DEVICE_ALIASES`; a path has a directory or ends in ``.yaml`` or ``.yml``. Raises
    ValueError for an unknown name, InputError for a wrong file.

    Examples
    --------
    >>> load_device("v100").name
    'v100-torch2.6'
    """
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return read_profile(read_text(path, _LARGEST_FILE), str(path))
    name = DEVICE_ALIASES.get(str(path), str(path))
    if name in _shipped_names():
        return _shipped_profile(name)
    found = plugins.load_plugin("devices", name, lambda device: plugins.check_instance(device(), DeviceProfile))
    if found is None:
        allowed = suggest_names(name, device_names())
        raise ValueError(f"there is no device profile {name!r} (nor a .yaml file): {allowed}")
    return found


@cache
def _shipped_names() -> frozenset[str]:
    paths = (Path(one.name) for one in (files("simnet") / "data" / "devices").iterdir())
    return frozenset(path.stem for path in paths if path.suffix == ".yaml")


@cache
def _shipped_profile(name: str) -> DeviceProfile:
    text = (files("simnet") / "data" / "devices" / f"{name}.yaml").read_text(encoding="utf-8")
    return read_profile(text, f"{name}.yaml")


def read_profile(text: str, file: str) -> DeviceProfile:
    """Return the device profile in a YAML text; raise InputError, with `file`, for an invalid field."""
    # Only who loads a profile pays for the parser.
    from pydantic import TypeAdapter, ValidationError

    from simnet.base.yaml_loader import load_yaml_mapping, validation_refusal

    read = load_yaml_mapping(text, file, "a device profile")
    methods = read.value.get("methods")
    for one in methods.values() if isinstance(methods, dict) else ():
        if isinstance(one, dict) and "seconds_per_entry" in one:
            one.setdefault("bytes_per_entry", 0.0)
    try:
        # As JSON lists stand for tuples, and nothing but a number for a number.
        return TypeAdapter(DeviceProfile).validate_json(json.dumps(read.value))
    except ValidationError as error:
        parts = (DeviceProfile, KernelMethod, SideStreamSlowdown, CollectiveSlowdown, HostPrices)
        raise validation_refusal(error, file, read, [one.name for part in parts for one in fields(part)]) from None
