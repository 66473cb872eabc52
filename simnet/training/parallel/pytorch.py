"""Training steps of PyTorch 2.13: DistributedDataParallel, and `fully_shard` (FSDP2) with or without replicas.

A unit is gathered before its use; the next unit of the backward pass is gathered before gradients of this one are
reduced. Source: ``distributed/fsdp/_fully_shard``; sequences and sizes are those of recorded runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from simnet.base.errors import check_choice, check_positive
from simnet.base.quantities import Count, WholeNumber
from simnet.cost_models.costs.models import Layer
from simnet.training.parallel.graph import GraphBuilder, HeldMemory, Phase, StepGraph
from simnet.training.parallel.quantised import NODE, ZeroPlusPlus, layout_of, memory_of_loco
from simnet.training.parallel.units import DTYPE_BYTES, CheckedOptions, ParameterDtype, Unit, Units, check_layers

FIRST_BUCKET_MIB, BUCKET_MIB = 1.0, 25.0
"""Default size caps of the first bucket and of later ones [MiB]."""

# Moments of Adam, in the dtype of the parameters.
_MOMENTS = 2


@dataclass(frozen=True, kw_only=True)
class DdpOptions(CheckedOptions):
    """Options of DistributedDataParallel, with PyTorch's names; `ready` is the order in which gradients are ready."""

    iteration: WholeNumber = 0
    microbatches: Count = 1
    bucket_cap_mb: float | None = None
    static_graph: bool = False
    dtype: ParameterDtype = "float32"
    ready: Sequence[str] | None = None
    overlap: bool = True


def ddp(layers: Iterable[Layer], workers: int, **options: Any) -> StepGraph:
    """Return a training step with DistributedDataParallel; keyword arguments are those of `DdpOptions`.

    Before buckets are rebuilt in iteration 1 (2 with a static graph), a single bucket holds the whole model.
    """
    found, given = check_layers(layers), DdpOptions(**options)
    iteration, dtype = given.iteration, given.dtype
    size = sum(layer.size for layer in found)
    rebuilt = 2 if given.static_graph else 1
    step = GraphBuilder(workers, iteration, overlap=given.overlap)
    if given.ready is not None:
        of = {layer.name: layer for layer in found}
        if sorted(given.ready) != sorted(of):
            raise ValueError("ready must name each tensor of the model once")
        found = [of[name] for name in reversed(given.ready)]
    sizes = buckets(found, given.bucket_cap_mb, dtype)
    sizes = sizes if iteration >= rebuilt else [size]
    for microbatch in range(given.microbatches):
        step.microbatch = microbatch
        if iteration == rebuilt and microbatch == 0:
            for words in (len(found) + 1, len(sizes)):
                step.wait(step.call("broadcast", "bucket", (words, words), "int32", "forward"))
        step.compute("model", "forward", size)
        if microbatch < given.microbatches - 1:
            step.compute("model", "backward", size)
            continue
        for number, one in enumerate(sizes):
            computed = step.compute("bucket", "backward", one)
            if given.static_graph and iteration == 0 and not number:
                step.call("all_reduce", "bucket", (len(found),) * 2, "int32", "backward", after=[computed])
            step.call("all_reduce", "bucket", (one, one), dtype, "backward", after=[computed])
    nbytes = size * DTYPE_BYTES[dtype]
    # Buckets are a second copy of the gradients, unless these are made views of them.
    return step.built(HeldMemory(nbytes, 2 * nbytes, _MOMENTS * nbytes))


def buckets(layers: Sequence[Layer], bucket_cap_mb: float | None = None, dtype: str = "float32") -> list[int]:
    """Return the sizes in entries of the gradient buckets that DDP rebuilds, from the last tensor to the first."""
    if bucket_cap_mb is not None:
        check_positive(bucket_cap_mb, "bucket_cap_mb")
    first, later = (FIRST_BUCKET_MIB, BUCKET_MIB) if bucket_cap_mb is None else (bucket_cap_mb,) * 2
    sizes = [layer.size for layer in layers]
    return [sum(sizes[one]) for one in cut(sizes, DTYPE_BYTES[dtype], first * 2**20, later * 2**20)]


def cut(sizes: Sequence[int], entry: float, first: float, later: float) -> list[slice]:
    """Group tensors into gradient buckets, in the order of reduction; return buckets as slices of `sizes` (entries).

    Gradients become ready from the last tensor to the first. A bucket closes when it reaches its cap [byte], `first` or
    `later`, at `entry` bytes an entry; it may exceed the cap by a tensor.

    Examples
    --------
    >>> cut([4, 1, 2], 4.0, 4.0, 12.0)
    [slice(2, 3, None), slice(0, 2, None)]
    """
    found: list[slice] = []
    end, filled = len(sizes), 0
    for place in reversed(range(len(sizes))):
        filled += sizes[place]
        if filled * entry >= (later if found else first) or place == 0:
            found.append(slice(place, end))
            end, filled = place, 0
    return found


When: TypeAlias = Literal["each", "last"]


@dataclass(frozen=True, kw_only=True)
class Fsdp2Options(CheckedOptions):
    """Options of FSDP2 (`fully_shard`); `docs/sharded.md` describes them.

    Each of the N `replicas` is sharded between P / N workers. `reshard_after_forward` frees all units but the root,
    none, or those named. Gradients are reduced after ``"each"`` or the ``"last"`` microbatch, ``"behind"`` all passes
    in pipelines. `passes` orders the passes of the microbatches; `plus` has the options of ZeRO++.
    """

    replicas: Count = 1
    iteration: WholeNumber = 0
    reshard_after_forward: bool | Collection[str] = True
    dtype: ParameterDtype = "float32"
    param_dtype: ParameterDtype | None = None
    reduce_dtype: ParameterDtype | None = None
    microbatches: Count = 1
    gradient_sync: Literal["each", "last", "behind"] = "each"
    all_reduce: When = "each"
    clip: bool = False
    forward_prefetch: WholeNumber = 0
    backward_prefetch: Count = 1
    separate_reduce_scatter_group: bool = False
    reduce_scatter_max_input_buffers: Count = 1
    reshard_after_backward: bool = True
    passes: Sequence[tuple[Phase, int]] | None = None
    overlap: bool = True
    plus: ZeroPlusPlus = field(default_factory=ZeroPlusPlus)

    @property
    def dtypes(self) -> tuple[str, str]:
        """Data types of the parameter all-gather and of the gradient reduction."""
        gathered = self.param_dtype or self.dtype
        return gathered, self.reduce_dtype or gathered


def fsdp2(model: Units, workers: int, **options: Any) -> StepGraph:
    """Return a training step with a model sharded by `fully_shard`; keyword arguments are those of `Fsdp2Options`."""
    given = Fsdp2Options(**options)
    microbatches, plus = given.microbatches, given.plus
    freed, nodes = _freed_units(model, given.reshard_after_forward), plus.nodes(workers)
    step = GraphBuilder(workers, given.iteration, given.replicas, given.overlap, layout_of(nodes))
    if given.replicas > 1 and plus != ZeroPlusPlus():
        raise ValueError(f"ZeRO++ is for one replica, got {given.replicas}")
    in_turn: list[tuple[Phase, int]] = [
        (phase, number) for number in range(microbatches) for phase in ("forward", "backward")
    ]
    _Program(step, model, freed, given, plus).issue(in_turn if given.passes is None else given.passes)
    step.microbatch = None
    if given.clip:
        norms = len(model.layers)
        step.call("all_reduce", "root", (norms, norms), "float32", "clip", group="shard", after=step.computed())
    ranks, width = workers // given.replicas, DTYPE_BYTES[given.dtype]
    shard = sum(unit.shard(ranks) for unit in (model.root, *model.blocks)) * width
    # Without a reduction, the gradients of all units are kept as they are.
    keeps_all = microbatches > 1 and given.gradient_sync != "each"
    whole_gradients = model.size * DTYPE_BYTES[given.dtypes[1]] if keeps_all else 0
    memories = memory_of_loco(model.layers, nodes) if plus.loco else 0
    return step.built(HeldMemory(shard, shard + whole_gradients + memories, _MOMENTS * shard))


def _freed_units(model: Units, reshard_after_forward: bool | Collection[str]) -> set[str]:
    """Return the names of the units whose full parameters are freed after the forward pass."""
    names = [one.name for one in (model.root, *model.blocks)]
    if isinstance(reshard_after_forward, bool):
        return set(names[1:]) if reshard_after_forward else set()
    for one in reshard_after_forward:
        check_choice(one, "reshard_after_forward", names)
    return set(reshard_after_forward)


class _Program:
    """Program of an FSDP2 worker. It issues passes and collectives, and records what streams wait for."""

    def __init__(
        self, step: GraphBuilder, model: Units, freed: set[str], options: Fsdp2Options, plus: ZeroPlusPlus
    ) -> None:
        self.step, self.model, self.freed, self.options, self.plus = step, model, freed, options, plus
        self.dtypes, self.ranks, self.nodes = options.dtypes, step.ranks("shard"), plus.nodes(step.workers)
        # Units that were freed but for a second shard, and behind which node.
        self.second: dict[str, int] = {}
        # Units that are gathered or on their way, and the call that does it.
        self.unsharded: dict[str, int | None] = {}
        # Units whose call has been waited for.
        self.copied: set[str] = set()
        # What all-gathers wait for, and what they will once the next one has been waited for.
        self.gate: set[int] = set()
        self.held_back: set[int] = set()
        # Reduce-scatters whose inputs are alive, and what reduced gradients wait for.
        self.inputs: list[int | None] = []
        self.reduced: list[int | None] = []

    def issue(self, passes: Sequence[tuple[Phase, int]]) -> None:
        """Issue the forward and backward passes of microbatches in the given order."""
        given = self.options
        for phase, microbatch in passes:
            self.step.microbatch, last = microbatch, 2 * (microbatch + 1) == len(passes)
            if phase == "forward":
                self.forward()
                continue
            self.backward(
                reduces=given.gradient_sync == "each" or (last and given.gradient_sync == "last"),
                all_reduces=last or given.all_reduce == "each",
                frees=given.reshard_after_backward or (last and given.gradient_sync != "behind"),
            )
            if last and given.gradient_sync == "behind":
                self.reduce_all()

    def forward(self) -> None:
        """Issue a forward pass."""
        step, root, blocks = self.step, self.model.root, self.model.blocks
        self.gate |= step.computed()
        order = [root, *blocks]
        for place, unit in enumerate(order):
            self._use(unit, "forward")
            for ahead in order[place + 1 : place + 1 + self.options.forward_prefetch]:
                self._gather(ahead, "forward")
            elements = self.model.before if unit is root else unit.size
            if elements:
                step.compute(unit.name, "forward", elements)
            if unit is not root:
                self._free_after_forward(unit)
        if root.size > self.model.before:
            step.compute("root", "forward", root.size - self.model.before)
        self._free_after_forward(root)
        self.gate |= self.held_back
        self.held_back = set()

    def backward(self, *, reduces: bool, all_reduces: bool, frees: bool) -> None:
        """Issue a backward pass. The flags say whether it reduces, all-reduces over replicas, and reshards."""
        step, root, blocks = self.step, self.model.root, self.model.blocks
        order = [root, *reversed(blocks)]
        first = len(step.nodes)
        for place, unit in enumerate(order):
            self._use(unit, "backward")
            if unit.layers:
                for ahead in order[place + 1 : place + 1 + self.options.backward_prefetch]:
                    self._gather(ahead, "backward")
            elements = root.size - self.model.before if unit is root else unit.size
            if elements:
                step.compute(unit.name, "backward", elements)
            if unit is not root:
                self._done(unit, len(step.nodes) - 1, reduces=reduces, all_reduces=all_reduces, frees=frees)
        if self.model.before:
            step.compute("root", "backward", self.model.before)
        self._done(root, first, reduces=reduces, all_reduces=all_reduces, frees=frees)
        self._wait_for_reduced()

    def reduce_all(self) -> None:
        """Reshard all units, and reduce their gradients one after the other."""
        last = len(self.step.nodes) - 1
        for unit in (self.model.root, *self.model.blocks):
            self._done(unit, last, reduces=True, all_reduces=True, frees=True)
        self._wait_for_reduced()

    def _wait_for_reduced(self) -> None:
        self.step.wait(*self.inputs, *self.reduced)
        self.inputs, self.reduced = [], []

    def _gather(self, unit: Unit, phase: Phase) -> None:
        if unit.name in self.unsharded or not unit.layers:
            return
        since = self.second.pop(unit.name, None)
        one, group = unit.shard(self.ranks), "shard" if since is None else NODE
        call = self.plus.gather(self.step, unit.name, one, self.dtypes[0], phase, group, self.gate)
        self.unsharded[unit.name] = call
        self.step.hold("parameters", one * self.nodes.nodes * DTYPE_BYTES[self.dtypes[0]], since, call)

    def _use(self, unit: Unit, phase: Phase) -> None:
        """Make the next compute node wait until a unit's parameters are gathered and copied."""
        self._gather(unit, phase)
        if unit.name in self.copied or unit.name not in self.unsharded:
            return
        self.copied.add(unit.name)
        if phase == "forward":
            self.gate |= self.held_back
        self.step.wait(self.unsharded[unit.name])
        copied = self.step.computed()
        if phase == "forward":
            self.held_back = copied
        else:
            self.gate |= copied

    def _free_after_forward(self, unit: Unit) -> None:
        if unit.name in self.freed:
            self._free(unit)
            if self.plus.zero_hpz_partition_size > 1 and unit.layers:
                self.second[unit.name] = len(self.step.nodes) - 1

    def _free(self, unit: Unit) -> None:
        if unit.name not in self.unsharded:
            return
        nbytes = unit.shard(self.ranks) * self.ranks * DTYPE_BYTES[self.dtypes[0]]
        self.copied.discard(unit.name)
        self.step.hold("parameters", nbytes, self.unsharded.pop(unit.name), len(self.step.nodes) - 1)

    def _done(self, unit: Unit, first: int, *, reduces: bool, all_reduces: bool, frees: bool) -> None:
        """Finish a unit's backward pass: reshard the unit if `frees`, and reduce its gradients if `reduces`."""
        if unit.layers and frees:
            self._free(unit)
        if not unit.layers or not reduces:
            return
        step = self.step
        while len(self.inputs) >= self.options.reduce_scatter_max_input_buffers:
            step.wait(self.inputs.pop(0))
        one = unit.shard(self.ranks)
        queue = "reduce_scatter" if self.options.separate_reduce_scatter_group else None
        scattered = self.plus.scatter(step, unit.name, unit.layers, self.dtypes[1], "shard", queue)
        self.inputs.append(scattered)
        done = scattered
        if all_reduces:
            after = step.computed() if scattered is None else {scattered}
            reduced = step.call(
                "all_reduce", unit.name, (one, one), self.dtypes[1], "backward", group="replicate", after=after
            )
            done = scattered if reduced is None else reduced
        self.reduced.append(done)
        nbytes = one * self.ranks * DTYPE_BYTES[self.dtypes[1]]
        step.hold("gradients", nbytes, first, scattered if scattered is not None else done)
