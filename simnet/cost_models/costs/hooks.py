"""Computing time of schemes in existing implementations, from counted operations and the time of each operation.

    seconds = sum over loops of max(a operations + b views + s waits, bytes / B)  +  operations with their own price

On every GPU, eager PyTorch takes the time a per operation that launches a kernel, and b per view. Meanwhile the device
runs the kernels launched before, so the longer of both times counts; on a CPU their sum does. s is a wait of the host
for the device, B the device's memory bandwidth. a, b and s are `HostPrices`; times of top-k, QR, permutations and the
search for non-zero entries are those of the device profile.

``data/hook_operations.csv`` counts the operations of one reduce, by implementation, scheme and stage. A count is per
bucket (`model`) or, inside a bucket, per tensor, matrix, other tensor (`vector`), shape of matrices, worker, other
worker whose message is decoded, round of log P, or part of a worker. Copies to a host are methods of the device; the
work of numpy on the host is not counted. ``data/hosts.csv`` has prices of hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import check_choice
from simnet.base.file_io import read_shipped_rows
from simnet.cost_models.costs.computing import known_chips
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile, HostPrices, Provenance

FUSED, FRAMEWORK = "fused", "framework"
"""Implementations that every scheme has: kernels alone, and the first in the table."""

Overlapping: TypeAlias = Literal["bucket", "blocking", "after"]
"""When a hook works: beside the backward pass, bucket by bucket while that waits, or after all of it."""


_NEWEST = (999,)
# By which factors bytes at the memory bandwidth may be off: on GPUs published kernels keep within 1.4 of it; on a
# processor operations in place are twice as fast as copies, masks and mixed types two to three times as slow.
_STREAMS = {"gpu": (0.7, 1.4), "cpu": (0.5, 2.5)}


class HookOperations(NamedTuple):
    """Operation counts of one stage of a gradient compressor's code, for each item of kind `per`, such as a tensor.

    `bytes` are read and written for each entry, `kept_bytes` for each kept entry. `own` has pairs of a count and a
    method of the device, which works on the ``kept`` entries, on a worker's ``part``, or on all. The counts hold for
    numbers of workers between the two `ranks`. `rank_operations` and `rank_views` are per unit of PowerSGD's rank.
    """

    stage: str
    when: Literal["before", "between", "after"]
    per: str
    operations: float = 0.0
    rank_operations: float = 0.0
    views: float = 0.0
    rank_views: float = 0.0
    waits: float = 0.0
    bytes: float = 0.0
    kept_bytes: float = 0.0
    own: tuple[tuple[float, str], ...] = ()
    ranks: tuple[int, int] = (0, 10**9)


class Hook(NamedTuple):
    """An implementation of a scheme: its PyTorch releases, its counted operations, and the source of the counts."""

    implementation: str
    scheme: str
    releases: tuple[tuple[int, ...], tuple[int, ...]]
    overlap: Overlapping
    stacks: tuple[str, ...]
    rows: tuple[HookOperations, ...]
    known: str
    source: str


class HookedTensors(NamedTuple):
    """The input of a hook: gradient tensors, matrices to compress, kept entries, number of workers, PowerSGD's rank.

    `sides` are their first sides (T,); matrices of equal size and side have one shape.
    """

    sizes: Floats
    sides: Floats
    matrices: NDArray[np.bool_]
    kept: float
    workers: int
    rank: int = 1

    def items(self, per: str) -> Floats:
        """Return the number of entries of each item of kind `per`, such as a tensor or matrix."""
        what, _, worker = per.partition(" and ")
        if what.endswith("worker"):
            what, worker = "model", what
        of: dict[str, Floats] = {
            "model": self.sizes.sum(keepdims=True),
            "tensor": self.sizes,
            "matrix": self.sizes[self.matrices],
            "vector": self.sizes[~self.matrices],
            "shape": self._shape_sizes(),
            "part": self.sizes.sum(keepdims=True) / self.workers,
            "round": np.zeros((self.workers - 1).bit_length()),
        }
        return np.tile(of[what], {"": 1, "worker": self.workers, "other worker": self.workers - 1}[worker])

    def _shape_sizes(self) -> Floats:
        """Return the total number of entries of the matrices of each distinct shape."""
        pairs = np.stack([self.sizes, self.sides], axis=1)[self.matrices]
        which = np.unique(pairs, axis=0, return_inverse=True)[1].ravel()
        return np.bincount(which, pairs[:, 0]).astype(np.float64)


class StageCost(NamedTuple):
    """Number of operations in a stage, and the stage's time with its interval [s]."""

    stage: str
    when: Literal["before", "between", "after"]
    operations: float
    views: float
    waits: float
    nbytes: float
    seconds: float
    low: float
    high: float


def hook_of(implementation: str, scheme: str) -> Hook | None:
    """Return the operation counts of a scheme's code in an implementation such as torch-1.10.

    Without a release, those of the newest. For "framework", those of any implementation, or None. Raises ValueError if
    there is no such implementation, not of this scheme, or not in this release.

    Examples
    --------
    >>> hook_of("torch-1.10", "powersgd").overlap
    'blocking'
    """
    name, release = parsed_implementation(implementation)
    check_implementation(name)
    named = [one for one in _hooks() if name in (FRAMEWORK, one.implementation)]
    own = [one for one in named if one.scheme == scheme]
    own = [one for one in own if one.implementation == own[0].implementation]
    if not own and name == FRAMEWORK:
        return None
    if not own and scheme == "dense":
        return hook_of("torch", scheme)
    if not own:
        raise ValueError(f"{name} has no {scheme}; it has {', '.join(sorted({one.scheme for one in named}))}")
    found = [one for one in own if not release or one.releases[0] <= release <= one.releases[1]]
    if not found:
        spans = " and ".join(f"{_release_text(one.releases[0])} to {_release_text(one.releases[1])}" for one in own)
        raise ValueError(f"{implementation} has no {scheme}; it is counted in releases {spans}")
    return max(found, key=lambda one: one.releases[1])


def check_implementation(text: str) -> None:
    """Raise ValueError unless `text` names an implementation of schemes, such as torch-1.10."""
    check_choice(parsed_implementation(text)[0], "implementation", implementation_names())


def check_stack(hook: Hook | None, stack: str | None) -> None:
    """Raise ValueError if a scheme's implementation `hook` does not exchange over a transport stack, such as gloo."""
    if hook is not None and hook.stacks and stack not in (None, "ideal", "custom", *hook.stacks):
        allowed = " and ".join(hook.stacks)
        raise ValueError(f"{hook.implementation} exchanges {hook.scheme} over {allowed}, not over {stack}; fused can")


def implementation_names() -> list[str]:
    """Return the implementations of schemes: "fused" and "framework", then those whose operations were counted."""
    return [FUSED, FRAMEWORK, *dict.fromkeys(one.implementation for one in _hooks())]


def parsed_implementation(text: str) -> tuple[str, tuple[int, ...]]:
    """Split a name such as torch-1.10 into the implementation of schemes and the PyTorch release, () if there is none.

    Examples
    --------
    >>> parsed_implementation("torch-1.10"), parsed_implementation("powersgd-paper")
    (('torch', (1, 10)), ('powersgd-paper', ()))
    """
    name, _, release = text.rpartition("-")
    numbers = release.split(".")
    return (name, _release(release)) if name and all(one.isdecimal() for one in numbers) else (text, ())


def _release(text: str) -> tuple[int, ...]:
    """Return the major and minor number of a release such as 1.10."""
    return tuple(int(one) for one in text.split(".")[:2])


def host_prices(device: DeviceProfile, implementation: str = FRAMEWORK) -> HostPrices:
    """Return a host's times to launch an operation, make a view and wait: measured ones, else typical ones."""
    if device.host is not None:
        return device.host
    release = parsed_implementation(implementation)[1]
    old = release < (2,) if release else "torch1" in device.name
    return _hosts()["cpu" if is_processor(device) else "2020" if old else "2026"]


def is_processor(device: DeviceProfile) -> bool:
    """Return whether a device is a CPU, by its chip."""
    return device.chip in known_chips() and known_chips()[device.chip].kind == "cpu"


def stage_costs(
    hook: Hook, tensors: HookedTensors, device: DeviceProfile, implementation: str = FRAMEWORK
) -> list[StageCost]:
    """Return the cost of each stage of a hook in the reduction of one gradient."""
    host = host_prices(device, implementation)
    found: dict[tuple[str, str], list[StageCost]] = {}
    for row in hook.rows:
        if row.ranks[0] <= tensors.rank <= row.ranks[1]:
            found.setdefault((row.stage, row.when), []).append(_row_cost(row, tensors, device, host))
    return [total_cost(costs) for costs in found.values()]


def _row_cost(row: HookOperations, tensors: HookedTensors, device: DeviceProfile, host: HostPrices) -> StageCost:
    items, rank, share = tensors.items(row.per), tensors.rank, float(tensors.kept / tensors.sizes.sum())
    count, nbytes = items.size, float(items.sum()) * (row.bytes + share * row.kept_bytes)
    operations = count * (row.operations + rank * row.rank_operations)
    views, waits = count * (row.views + rank * row.rank_views), count * row.waits
    launched = max(0.0, operations) * host.operation + views * host.view + waits * host.sync
    # Rows that take back what others count once too often are bytes below zero.
    streamed = max(nbytes, 0.0) / device.memory_bandwidth
    # A processor runs an operation itself before it goes on.
    both = sum if is_processor(device) else max
    seconds = both((launched, streamed))
    slow, fast = _STREAMS["cpu" if is_processor(device) else "gpu"]
    low, high = both((host.low * launched, slow * streamed)), both((host.high * launched, fast * streamed))
    for times, method in row.own:
        name, _, part = method.partition(" of ")
        of = {"": 1.0, "kept": share, "part": 1.0 / tensors.workers}[part]
        for size, same in zip(*np.unique(items, return_counts=True), strict=True):
            call = DeviceOp(name, float(size) * of)
            one, least, most = (times * float(same) * price for price in _own_price(call, device, host))
            seconds, low, high = seconds + one, low + least, high + most
        operations += times * count
    return StageCost(row.stage, row.when, operations, views, waits, nbytes, seconds, low, high)


def _own_price(call: DeviceOp, device: DeviceProfile, host: HostPrices) -> tuple[float, float, float]:
    """Return expected, lowest and highest time of a kernel [s], estimated from its bytes if the profile lacks it."""
    try:
        device.method(call.method)
    except ValueError:
        one = max(host.operation, 8.0 * float(call.entries) / device.memory_bandwidth)
        return one, host.low * one, host.high * one
    return float(device.once(call)), float(device.once(call, "low")), float(device.once(call, "high"))


def total_cost(costs: Sequence[StageCost]) -> StageCost:
    """Return the sum of stage costs, with the stage name of the first."""
    numbers = np.sum([one[2:] for one in costs], axis=0).tolist()
    return StageCost(costs[0].stage, costs[0].when, *numbers)


def hook_operations(costs: Iterable[StageCost], rounds: int, between: int) -> tuple[DeviceOp, ...]:
    """Return the kernels of stages, placed before the first message, before round `between`, or after all `rounds`."""
    place = {"before": 0, "between": between, "after": rounds}
    priced = [(one, (one.seconds, one.low, one.high)) for one in costs]
    return tuple(DeviceOp(f"hook_{one.stage}", 1.0, before=place[one.when], priced=took) for one, took in priced)


@cache
def _hosts() -> dict[str, HostPrices]:
    found = {}
    for row in read_shipped_rows("data/hosts.csv"):
        numbers = {name: float(row[name]) for name in ("operation", "view", "sync", "low", "high")}
        found[row["host"]] = HostPrices(source=row["source"], known=cast(Provenance, row["known"]), **numbers)
    return found


@cache
def _hooks() -> tuple[Hook, ...]:
    found: dict[tuple[str, ...], Hook] = {}
    for row in read_shipped_rows("data/hook_operations.csv"):
        key = (row["implementation"], row["scheme"], row["releases"])
        first, _, last = row["releases"].partition("-")
        releases = (_release(first) if first else (), _release(last) if last else _NEWEST)
        overlap, stacks = cast(Overlapping, row["overlap"]), tuple(row["stacks"].split())
        empty = Hook(key[0], key[1], releases, overlap, stacks, (), row["known"], row["source"])
        hook = found.setdefault(key, empty)
        found[key] = hook._replace(rows=(*hook.rows, _parsed_row(row)))
    return tuple(found.values())


def _parsed_row(row: dict[str, str]) -> HookOperations:
    least, _, most = (row["ranks"] or "-").partition("-")
    named = (one.partition(" ") for one in row["own"].split("; ") if one)
    own = tuple((float(times), name) for times, _, name in named)
    when, ranks = cast(Literal["before", "between", "after"], row["when"]), (int(least or 0), int(most or 10**9))
    numbers = {name: float(row[name] or 0) for name in HookOperations._fields[3:10]}
    return HookOperations(row["stage"], when, row["per"], own=own, ranks=ranks, **numbers)


def _release_text(release: tuple[int, ...]) -> str:
    return "the newest" if release == _NEWEST else ".".join(map(str, release))
