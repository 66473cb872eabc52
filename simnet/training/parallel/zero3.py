"""Stage 3 of DeepSpeed's ZeRO: when parameters are gathered, prefetched, kept and released.

References
----------
DeepSpeed, ``runtime/zero/partitioned_param_coordinator.py``: `fetch_sub_module` and `release_sub_module`. Its limit of
two fetches that the processor has not seen the end of is not modelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from simnet.cost_models.costs.layers import Layer
from simnet.training.parallel.graph import GraphBuilder, Phase
from simnet.training.parallel.quantised import NODE, ZeroPlusPlus, memory_of_loco
from simnet.training.parallel.units import DTYPE_BYTES, CheckedOptions, Unit, wrap_modules


@dataclass(frozen=True)
class Stage3Limits(CheckedOptions):
    """Limits of stage 3, in elements, by DeepSpeed's names and with its defaults.

    Raises ValueError if a limit is negative.

    Parameters
    ----------
    prefetch_bucket_size : int
        Parameters are prefetched until so many are under way; 0 for no prefetch.
    param_persistence_threshold : int
        Tensors of at most so many stay gathered. They are gathered anew behind the optimiser's step.
    max_live_parameters : int
        No more is prefetched once so many are gathered.
    max_reuse_distance : int
        A tensor that is used again within so many is not released.
    """

    prefetch_bucket_size: int = field(default=50_000_000, metadata={"least": 0})
    param_persistence_threshold: int = field(default=100_000, metadata={"least": 0})
    max_live_parameters: int = field(default=1_000_000_000, metadata={"least": 0})
    max_reuse_distance: int = field(default=1_000_000_000, metadata={"least": 0})


class Stage3:
    """The calls that a worker issues in stage 3; arguments are those of `simnet.training.parallel.zero.zero`."""

    def __init__(
        self,
        step: GraphBuilder,
        layers: Sequence[Layer],
        dtype: str,
        reduce_bucket_size: int,
        limits: Stage3Limits,
        plus: ZeroPlusPlus,
    ) -> None:
        self.step, self.dtype, self.reduce_bucket_size, self.limits = step, dtype, reduce_bucket_size, limits
        self.plus, self.nodes = plus, plus.nodes(step.workers)
        self.layers, self.forward = layers, wrap_modules(layers)
        self.sizes = {layer.name: layer.size for layer in layers}
        # The modules of a microbatch, in the order in which they are used.
        self.order = [*self.forward, *reversed(self.forward)]
        self.kept = {layer.name for layer in layers if layer.size <= limits.param_persistence_threshold}
        # Tensors that are gathered or on their way, and the call that does it; None where that was before the step.
        self.gathered: dict[str, int | None] = dict.fromkeys(self.kept) if step.iteration else {}
        self.passes = 0
        # Tensors of which a second shard is on every node until the optimiser's step.
        self.second: set[str] = set()

    def held_bytes(self) -> tuple[int, int, int]:
        """Return the bytes of parameters and gradients of a worker, and the elements that it updates."""
        width, shard, parts = DTYPE_BYTES[self.dtype], self._shard(self.sizes), 0
        if self.step.workers > 1:
            # What stays gathered, and second shards.
            parts = sum(self.sizes[name] for name in self.kept) + self.nodes.nodes * self._shard(self.second)
        memories = memory_of_loco(self.layers, self.nodes) if self.plus.loco else 0
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
        """Gather the tensors that stay gathered, behind the optimiser's step."""
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
        for group in (NODE, "world"):
            if some := [name for name in names if (name in self.second) == (group == NODE)]:
                unit = some[0].rpartition(".")[0]
                call = self.plus.gather(self.step, unit, self._shard(some), self.dtype, phase, group, ())
                self.gathered.update(dict.fromkeys(some, call))
                self.live += sum(self.sizes[name] for name in some)

    def _shard(self, names: Iterable[str]) -> int:
        return sum(-(-self.sizes[name] // self.step.workers) for name in names)

    def _release(self, module: Unit, place: int, traced: bool) -> None:
        """Free the tensors of a module that are not kept, nor used again soon, nor passed over by a prefetch."""
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
