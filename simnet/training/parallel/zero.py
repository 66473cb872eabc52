"""Training steps of DeepSpeed's ZeRO. Stages 1 and 2 shard optimiser state and gradients, stage 3 parameters too.

Read in ``runtime/zero/stage_1_and_2.py``, ``stage3.py`` and ``partitioned_param_coordinator.py``; not recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from simnet.base.quantities import Count, WholeNumber
from simnet.collectives.registry import Operation
from simnet.cost_models.costs.models import Layer
from simnet.training.parallel import quantised
from simnet.training.parallel.graph import GraphBuilder, HeldMemory, Phase, StepGraph
from simnet.training.parallel.units import DTYPE_BYTES, CheckedOptions, ParameterDtype, Unit, check_layers, wrap_modules


@dataclass(frozen=True)
class Stage3Limits(CheckedOptions):
    """Limits of ZeRO stage 3 as numbers of elements, with DeepSpeed's names and defaults."""

    prefetch_bucket_size: WholeNumber = 50_000_000
    param_persistence_threshold: WholeNumber = 100_000
    max_live_parameters: WholeNumber = 1_000_000_000
    max_reuse_distance: WholeNumber = 1_000_000_000


@dataclass(eq=False)
class Stage3:
    """Program of a worker under ZeRO stage 3. It issues passes, all-gathers and reduce-scatters."""

    step: GraphBuilder
    layers: Sequence[Layer]
    dtype: str
    reduce_bucket_size: int
    limits: Stage3Limits
    plus: quantised.ZeroPlusPlus

    def __post_init__(self) -> None:
        self.nodes, self.forward = self.plus.nodes(self.step.workers), wrap_modules(self.layers)
        self.sizes = {layer.name: layer.size for layer in self.layers}
        # The modules of a microbatch, in the order in which they are used.
        self.order = [*self.forward, *reversed(self.forward)]
        self.kept = {one.name for one in self.layers if one.size <= self.limits.param_persistence_threshold}
        # Tensors that are gathered or on their way, and the call that does it; None where that was before the step.
        self.gathered: dict[str, int | None] = dict.fromkeys(self.kept) if self.step.iteration else {}
        self.passes = 0
        # Tensors of which a second shard is on every node until the optimiser's step.
        self.second: set[str] = set()

    def held_bytes(self) -> tuple[int, int, int]:
        """Return a worker's bytes of parameters, its bytes of gradients, and the number of elements it updates."""
        width, shard, parts = DTYPE_BYTES[self.dtype], self._shard(self.sizes), 0
        if self.step.workers > 1:
            # What stays gathered, and second shards.
            parts = sum(self.sizes[name] for name in self.kept) + self.nodes.nodes * self._shard(self.second)
        memories = quantised.memory_of_loco(self.layers, self.nodes) if self.plus.loco else 0
        return (shard + parts) * width, shard * width + memories, shard

    def issue_passes(self, last: bool) -> None:
        """Issue the forward and the backward pass of a microbatch."""
        traced = bool(self.step.iteration or self.passes)
        self.passes += 1
        self.live = 0
        self.queue = deque(
            (layer.name, place) for place, module in enumerate(self.order) for layer in module.layers if traced
        )
        # By which use each tensor has been looked for last.
        self.seen = dict.fromkeys(self.sizes, -1)
        bucket: list[Layer] = []
        begun = None
        scattered = []
        for place, module in enumerate(self.order):
            phase: Phase = "forward" if place < len(self.forward) else "backward"
            self._fetch(module, place, phase, traced)
            number = self.step.compute(module.name, phase, module.size)
            if phase == "backward":
                for layer in reversed(module.layers):
                    if bucket and sum(one.size for one in bucket) + layer.size > self.reduce_bucket_size:
                        scattered.append(self._scatter(bucket, begun))
                        bucket, begun = [], None
                    bucket.append(layer)
                    begun = number if begun is None else begun
            self._release(module, place + 1, traced)
        self.step.wait(*scattered, self._scatter(bucket, begun))

    def gather_updated(self) -> None:
        """Gather the tensors that stay whole on all workers, after the optimiser step."""
        if self.kept:
            one = self._shard(self.kept)
            sizes = one, one * self.step.workers
            call = self.step.call("all_gather", "model", sizes, self.dtype, "step", after=self.step.computed())
            self.step.wait(call)

    def _fetch(self, module: Unit, place: int, phase: Phase, traced: bool) -> None:
        names = [layer.name for layer in module.layers]
        missing = [name for name in names if name not in self.gathered]
        if missing:
            self._gather(missing, phase)
        self.step.wait(*(self.gathered[name] for name in names))
        if not traced:
            return
        for _ in range(sum(self.seen[name] < place for name in names)):
            name, used = self.queue.popleft()
            self.seen[name] = used
        most = min(self.limits.max_live_parameters - self.live, self.limits.prefetch_bucket_size)
        wanted: dict[str, None] = {}
        while self.queue and sum(self.sizes[name] for name in wanted) < most:
            name, used = self.queue.popleft()
            self.seen[name] = max(self.seen[name], used)
            if name not in self.gathered:
                wanted[name] = None
        if wanted:
            self._gather(wanted, phase)

    def _gather(self, names: Collection[str], phase: Phase) -> None:
        for group in (quantised.NODE, "world"):
            if some := [name for name in names if (name in self.second) == (group == quantised.NODE)]:
                unit = some[0].rpartition(".")[0]
                call = self.plus.gather(self.step, unit, self._shard(some), self.dtype, phase, group, ())
                self.gathered.update(dict.fromkeys(some, call))
                self.live += sum(self.sizes[name] for name in some)

    def _shard(self, names: Iterable[str]) -> int:
        return sum(-(-self.sizes[name] // self.step.workers) for name in names)

    def _release(self, module: Unit, place: int, traced: bool) -> None:
        """Free a module's tensors, except those that stay whole, are needed again soon, or are prefetched."""
        names = {layer.name for layer in module.layers}
        if traced:
            names -= self.kept
            names = {name for name in names if self.seen[name] <= place}
            passed = 0
            for later in self.order[place:]:
                if passed >= self.limits.max_reuse_distance or not names:
                    break
                names -= {layer.name for layer in later.layers}
                passed += later.size
        for name in sorted(names & set(self.gathered)):
            nbytes = self.sizes[name] * DTYPE_BYTES[self.dtype]
            self.step.hold("parameters", nbytes, self.gathered.pop(name), len(self.step.nodes) - 1)
            self.live -= self.sizes[name]
            if self.plus.zero_hpz_partition_size > 1:
                self.second.add(name)

    def _scatter(self, bucket: Sequence[Layer], begun: int | None) -> int | None:
        done = self.plus.scatter(self.step, "bucket", tuple(bucket), self.dtype, "world")
        held = sum(layer.size for layer in bucket)
        if not (self.plus.zero_quantized_gradients and self.nodes.nodes > 1):
            held = self._shard(layer.name for layer in bucket) * self.step.workers
        self.step.hold("gradients", held * DTYPE_BYTES[self.dtype], begun, done)
        return done


# Partitions begin at multiples of so many elements.
_ALIGNMENT = 2

# Moments of Adam, and the copy of parameters of 16 bits that it updates, in fp32.
_MOMENTS, _FP32 = 2, 4


@dataclass(frozen=True, kw_only=True)
class ZeroOptions(CheckedOptions):
    """Options of a training step with ZeRO, with DeepSpeed's names.

    `limits` and `plus` apply to stage 3, `sdp4bit` to stages 1 and 2, where workers own equal parts of each bucket.
    """

    iteration: WholeNumber = 0
    microbatches: Count = 1
    dtype: ParameterDtype = "float32"
    reduce_bucket_size: Count = 500_000_000
    allgather_bucket_size: Count = 500_000_000
    use_multi_rank_bucket_allreduce: bool = True
    loss_scaling: bool = False
    overlap_comm: bool | None = None
    limits: Stage3Limits = field(default_factory=Stage3Limits)
    plus: quantised.ZeroPlusPlus = field(default_factory=quantised.ZeroPlusPlus)
    sdp4bit: quantised.SDP4Bit = field(default_factory=quantised.SDP4Bit)


def zero(layers: Iterable[Layer], workers: int, *, stage: int, **options: Any) -> StepGraph:
    """Return a training step with ZeRO; keyword arguments are those of `ZeroOptions`."""
    found, given = check_layers(layers), ZeroOptions(**options)
    plus, sdp4bit = given.plus, given.sdp4bit
    nodes = plus.nodes(workers) if stage == 3 else sdp4bit.nodes(workers)
    overlap = stage == 3 if given.overlap_comm is None else given.overlap_comm
    step = GraphBuilder(workers, given.iteration, overlap=overlap, layout=quantised.layout_of(nodes))
    program: Stage3 | _ShardedGradients
    if stage == 3:
        program = Stage3(step, found, given.dtype, given.reduce_bucket_size, given.limits, plus)
    else:
        program = _ShardedGradients(step, found, stage, given, sdp4bit)
    for microbatch in range(given.microbatches):
        step.microbatch = microbatch
        program.issue_passes(microbatch == given.microbatches - 1)
    step.microbatch = None
    if given.loss_scaling:
        step.wait(step.call("all_reduce", "model", (1, 1), "uint8", "step", after=step.computed()))
    program.gather_updated()
    parameters, gradients, shard = program.held_bytes()
    copies = _MOMENTS + (DTYPE_BYTES[given.dtype] < _FP32)
    return step.built(HeldMemory(parameters, gradients, copies * shard * _FP32))


class _ShardedGradients(NamedTuple):
    """Program of a worker under ZeRO stage 1 or 2. It issues passes, gradient reductions and all-gathers."""

    step: GraphBuilder
    layers: Sequence[Layer]
    stage: int
    options: ZeroOptions
    sdp4bit: quantised.SDP4Bit

    @property
    def size(self) -> int:
        """Number of entries of the model."""
        return sum(layer.size for layer in self.layers)

    @property
    def partition(self) -> int:
        """Number of entries that each worker owns, padding included."""
        return -(-self.size // (_ALIGNMENT * self.step.workers)) * _ALIGNMENT

    def held_bytes(self) -> tuple[int, int, int]:
        """Return a worker's bytes of parameters, its bytes of gradients, and the number of elements it updates."""
        width, partition = DTYPE_BYTES[self.options.dtype], self.partition
        return self.size * width, (self.size if self.stage == 1 else partition) * width, partition

    def issue_passes(self, last: bool) -> None:
        """Issue the forward and the backward pass of a microbatch."""
        step, stage = self.step, self.stage
        step.compute("model", "forward", self.size)
        # Without overlap stage 1 reduces when all gradients are there, in the order of the model.
        at_once = stage == 1 and not step.overlap
        if at_once or (stage == 1 and not last):
            step.compute("model", "backward", self.size)
        if stage == 1 and not last:
            return
        before: list[int | None] = []
        for bucket in in_buckets(self.layers if at_once else self.layers[::-1], self.options.reduce_bucket_size):
            elements = sum(layer.size for layer in bucket)
            if not at_once:
                step.compute("bucket", "backward", elements)
            first = len(step.nodes) - 1
            # A bucket is only reduced, and computing only goes on, when the bucket before has been.
            step.wait(*before)
            before = self._reduce(bucket, elements)
            if stage == 2:
                step.hold("gradients", elements * DTYPE_BYTES[self.options.dtype], first, len(step.nodes) - 1)
        step.wait(*before)

    def _reduce(self, bucket: Sequence[Layer], elements: int) -> list[int | None]:
        """Add the reduction of a gradient bucket to the step graph; return the indices of the graph nodes added."""
        after = self.step.computed()
        if self.sdp4bit.quantized_gradients:
            return [quantised.reduce_bucket(self.step, self.sdp4bit, elements, after)]
        ends = np.cumsum([layer.size for layer in self.layers])
        starts = {layer.name: int(end) - layer.size for layer, end in zip(self.layers, ends, strict=True)}
        spans = bucket_owners(bucket, starts, self.partition)
        operation: Operation = "all_reduce" if self.options.use_multi_rank_bucket_allreduce else "reduce"
        owners = dict.fromkeys(owner for owner, _ in spans) if operation == "reduce" else (None,)
        calls = [
            (owner or 0, one)
            for owner in owners
            for one in _up_to([one for of, one in spans if owner in (None, of)], self.options.reduce_bucket_size)
        ]
        return [
            self.step.call(operation, "bucket", (one, one), self.options.dtype, "backward", after=after, root=owner)
            for owner, one in calls
        ]

    def gather_updated(self) -> None:
        """Gather the parameters after the optimiser step."""
        step = self.step
        if self.sdp4bit.quantized_weights:
            # In the order in which their gradients were reduced.
            order = self.layers if self.stage == 1 and not step.overlap else self.layers[::-1]
            for bucket in in_buckets(order, self.options.reduce_bucket_size):
                elements = sum(layer.size for layer in bucket)
                step.wait(quantised.gather_differences(step, self.sdp4bit, elements, step.computed()))
            return
        for one in gather_sizes(self.partition, step.workers, self.options.allgather_bucket_size):
            sizes = one, one * step.workers
            step.wait(step.call("all_gather", "model", sizes, self.options.dtype, "step", after=step.computed()))


def gather_sizes(partition: int, workers: int, allgather_bucket_size: int) -> list[int]:
    """Return a worker's input elements in each all-gather of parameters, after an update in ZeRO stage 1 or 2."""
    count = max(1, partition * workers // allgather_bucket_size)
    each = partition // count
    each -= each % _ALIGNMENT
    return [*[each] * (count - 1), partition - each * (count - 1)]


def in_buckets(layers: Iterable[Layer], most: int) -> list[list[Layer]]:
    """Pack tensors in order into buckets of at most `most` elements. A larger tensor gets a bucket of its own."""
    found: list[list[Layer]] = []
    filled = 0
    for layer in layers:
        if not found or filled + layer.size > most:
            found.append([])
            filled = 0
        found[-1].append(layer)
        filled += layer.size
    return found


def bucket_owners(bucket: Iterable[Layer], starts: dict[str, int], partition: int) -> list[tuple[int, int]]:
    """Return (owner, element count) of each run of consecutive elements in a bucket that one worker owns.

    `starts` is the offset of each tensor among all parameters, of which each worker owns `partition` entries.

    Examples
    --------
    >>> bucket_owners([Layer("b", (6,)), Layer("a", (4,))], {"a": 0, "b": 4}, 5)
    [(0, 1), (1, 5), (0, 4)]
    """
    found: list[tuple[int, int]] = []
    for layer in bucket:
        begin, end = starts[layer.name], starts[layer.name] + layer.size
        for owner in range(begin // partition, (end - 1) // partition + 1):
            elements = min(end, (owner + 1) * partition) - max(begin, owner * partition)
            if found and found[-1][0] == owner:
                elements += found.pop()[1]
            found.append((owner, elements))
    return found


def _up_to(parts: Iterable[int], most: int) -> list[int]:
    """Return sums of consecutive sizes; a sum is complete when it exceeds `most` elements."""
    found, filled = [], 0
    for elements in parts:
        filled += elements
        if filled > most:
            found.append(filled)
            filled = 0
    return [*found, filled] if filled else found
