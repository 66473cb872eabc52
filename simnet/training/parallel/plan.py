"""Planning of the training step of a named model under data, tensor, pipeline and expert parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.errors import check_choice, check_int
from simnet.cost_models.costs.models import Layer, ModelProfile
from simnet.training.parallel.graph import StepGraph, seconds_of
from simnet.training.parallel.passes import ModelParallelism, expert_parallel, split_tensors, tensor_parallel
from simnet.training.parallel.pipeline import TiedWeights, pass_order, pipeline
from simnet.training.parallel.placing import schedules_of
from simnet.training.parallel.pytorch import DdpOptions, Fsdp2Options, ddp, fsdp2
from simnet.training.parallel.quantised import SDP4Bit, ZeroPlusPlus
from simnet.training.parallel.traced import TracedStep
from simnet.training.parallel.units import PassShares, Units, wrap_units
from simnet.training.parallel.zero import Stage3Limits, ZeroOptions, zero


class ShardingKind(NamedTuple):
    """A kind of sharding: the function that builds its step graph, and the classes of its options.

    Options of `further` classes are passed as one argument each, by name.
    """

    build: Callable[..., StepGraph]
    options: type
    further: Mapping[str, type]


_BELOW_STAGE_3 = ShardingKind(zero, ZeroOptions, {"sdp4bit": SDP4Bit})
SHARDINGS: Mapping[str, ShardingKind] = {
    "ddp": ShardingKind(ddp, DdpOptions, {}),
    "fsdp2": ShardingKind(fsdp2, Fsdp2Options, {"plus": ZeroPlusPlus}),
    "hsdp": ShardingKind(fsdp2, Fsdp2Options, {}),
    "zero1": _BELOW_STAGE_3,
    "zero2": _BELOW_STAGE_3,
    "zero3": ShardingKind(zero, ZeroOptions, {"limits": Stage3Limits, "plus": ZeroPlusPlus}),
}
"""Kinds of sharding by name; all have the options of `ModelParallelism`, too."""

LATER = 3
"""First iteration from which all steps are equal."""

# What groups and the parts of a model decide.
_HIDDEN = ("around", "plus", "limits", "sdp4bit", "passes")
# PyTorch's stages keep what a backward pass has gathered, and reduce gradients behind the last one.
_IN_PIPELINES: dict[str, object] = {"reshard_after_backward": False, "gradient_sync": "behind"}
# Whose pipelines share weights between the first and the last stage; PyTorch's stages share none.
_WITH_TIED = ("ddp", "zero1")


@dataclass(frozen=True, repr=False)
class PlannedStep:
    """Step graph, and the share of the whole model's compute that each worker does, shape (P,)."""

    graph: StepGraph
    shares: Floats
    backward: float
    work: PassShares | None = None

    def seconds(self, whole: ArrayLike) -> Floats:
        """Return each node's compute seconds, (nodes, P), given the seconds of a microbatch on the `whole` model."""
        own = np.asarray(whole) * self.shares
        return seconds_of(self.graph, (1 - self.backward) * own, self.backward * own, self.work)


def sharding_options(sharding: str, *, pipeline: bool = False) -> dict[str, object]:
    """Return the options of a kind of sharding with their defaults, which may differ inside a `pipeline`."""
    check_choice(sharding, "sharding", SHARDINGS)
    known = {name: one.default for name, one in _known_options(sharding).items()}
    return known | (_IN_PIPELINES if pipeline and SHARDINGS[sharding].build is fsdp2 else {})


def _known_options(sharding: str) -> dict[str, Field[Any]]:
    kind = SHARDINGS[sharding]
    found = [one for group in (kind.options, ModelParallelism, *kind.further.values()) for one in fields(group)]
    return {one.name: one for one in found if one.name not in _HIDDEN}


def plan_step(
    profile: ModelProfile,
    sharding: str,
    workers: int,
    given: Mapping[str, object],
    seed: int = 0,
    backward: float | None = None,
) -> PlannedStep:
    """Return the training step of a model under a kind of sharding, with the options `given`."""
    chosen: dict[str, Any] = {"iteration": LATER, **_check_options(sharding, given)}
    groups = {}
    for group, options in {"around": ModelParallelism, **SHARDINGS[sharding].further}.items():
        own = {one.name: chosen.pop(one.name) for one in fields(options) if one.name in chosen}
        if own:
            groups[group] = options(**own)
    around = groups.pop("around", ModelParallelism())
    if sharding == "hsdp" and chosen.get("replicas", 1) == 1:
        raise ValueError("hsdp needs replicas, >= 2: between how many groups of workers the model is replicated")
    split = around.tensor_parallel * around.pipeline
    if check_int(workers, "workers", 1) % split:
        sizes = f"{around.tensor_parallel} x {around.pipeline}"
        raise ValueError(f"tensor_parallel x pipeline, {sizes}, must divide the {workers} workers")
    _check_names(profile, around, chosen)
    if _is_divided(around) and around.width is None:
        if len(profile.layers[0].shape) != 2:
            raise ValueError(f"width is missing: {profile.name} does not begin with the matrix of an embedding")
        around = replace(around, width=profile.layers[0].shape[1])
    planner = _StagePlanner(profile, sharding, workers // split, around, {**chosen, **groups}, seed)
    parts = _stage_layers(profile, around.pipeline)
    both = [layer for layer in parts[0] if layer.name in profile.tied]
    if around.pipeline == 1 or sharding not in _WITH_TIED:
        both = []
    # Of what is shared it is the output that computes.
    entries = [sum(layer.size for layer in part if place or layer not in both) for place, part in enumerate(parts)]
    entries[-1] += sum(layer.size for layer in both)
    each = np.array(entries) / profile.parameters / around.tensor_parallel
    shares = np.repeat(each, workers // around.pipeline)
    parts[-1] = [*parts[-1], *both]
    stages = [planner.step(part, place) for place, part in enumerate(parts)]
    share = profile.backward_fraction if backward is None else backward
    if len(stages) == 1:
        size, work = {layer.name: layer.size for layer in profile.layers}, profile.work
        if sharding == "ddp" and not (work or _is_divided(around)):
            work = (1.0,) * len(size)
        order = reversed(chosen.get("ready") or [*reversed(size)])
        passes = PassShares([size[one] for one in order], work) if work else None
        return PlannedStep(stages[0], shares, share, passes)
    # Between stages goes what a worker has of a sequence.
    tokens = (around.tokens or 1) // (around.tensor_parallel if around.sequence_parallel else 1)
    tied = planner.tied(both) if both else None
    joint = pipeline(
        stages, tokens=tokens, width=around.width or 1, dtype=around.activations, order=around.order, tied=tied
    )
    return PlannedStep(joint, shares, share)


def _is_divided(around: ModelParallelism) -> bool:
    """Return whether tensor, pipeline or expert parallelism divides the model."""
    return around.pipeline > 1 or around.tensor_parallel > 1 or around.experts is not None


def _check_names(profile: ModelProfile, around: ModelParallelism, chosen: Mapping[str, Any]) -> None:
    """Raise ValueError for unknown block names, or for options that do not fit a model given as a list of units."""
    wrapped = wrap_units(profile.layers)
    blocks = [block.name for block in wrapped.blocks]
    for name in around.expert_blocks or ():
        check_choice(name, "expert_blocks", blocks)
    if isinstance(freed := chosen.get("reshard_after_forward"), list | tuple):
        for name in freed:
            check_choice(name, "reshard_after_forward", [*(["root"] if wrapped.root.layers else []), *blocks])
    if profile.work and _is_divided(around):
        raise ValueError("units are not for tensor_parallel, pipeline and experts, whose parts go by entries")
    if profile.work and "ready" in chosen:
        raise ValueError("ready is not for a model of units, whose gradients become ready from the last to the first")


def _check_options(sharding: str, given: Mapping[str, object]) -> Mapping[str, object]:
    """Return the options of a sharding. ValueError: an unknown option, or an option that must be a list of names."""
    known = sharding_options(sharding)
    for name, value in given.items():
        check_choice(name, f"option of {sharding}", known)
        listed = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        kind = _known_options(sharding)[name].type
        if "[str]" in kind and not listed and not ("bool" in kind and isinstance(value, bool)):
            raise ValueError(f"{name} must be a list of names, got {value!r}")
    return given


def _stage_layers(profile: ModelProfile, stages: int) -> list[list[Layer]]:
    """Return the tensors of each pipeline stage; blocks are spread as evenly as possible."""
    layers = list(profile.layers)
    if stages == 1:
        return [layers]
    of = wrap_units(layers)
    if len(of.blocks) < stages:
        raise ValueError(f"{profile.name} has {len(of.blocks)} blocks, too few for a pipeline of {stages} stages")
    number = {layer.name: place for place, block in enumerate(of.blocks) for layer in block.layers}
    firsts = [place * len(of.blocks) // stages for place in range(1, stages)]
    found: list[list[Layer]] = [[] for _ in range(stages)]
    stage = 0
    for layer in layers:
        if layer.name in number:
            stage = sum(number[layer.name] >= first for first in firsts)
        found[stage].append(layer)
    return found


class _StagePlanner(NamedTuple):
    """Planner of pipeline stages; each has `workers` data-parallel workers, each split by tensor parallelism."""

    profile: ModelProfile
    sharding: str
    workers: int
    around: ModelParallelism
    chosen: Mapping[str, Any]
    seed: int

    def tied(self, both: Sequence[Layer]) -> TiedWeights:
        """Return one tensor-parallel worker's part of the weights that the first and last stage share."""
        degree = self.around.tensor_parallel
        elements = sum(layer.size for layer in split_tensors(_pad_rows(both, degree), degree))
        names, dtype = ", ".join(layer.name for layer in both), str(self.chosen.get("dtype", "float32"))
        return TiedWeights(names, elements, dtype, first=self.sharding == "zero1")

    def step(self, layers: Sequence[Layer], place: int) -> StepGraph:
        """Return the step of a pipeline stage, with expert and tensor parallelism."""
        around, chosen, degree = self.around, self.chosen, self.around.tensor_parallel
        layers, experts = _without_experts(layers, around)
        layers = split_tensors(_pad_rows(layers, degree), degree)
        model = wrap_units(layers, behind=self.profile.tied if around.pipeline == 1 else ())
        step = self._sharded(model, layers, place)
        if experts:
            sizes = {size // degree for size in experts.values()}
            if len(sizes) > 1:
                raise ValueError(f"expert_tensors must come to as many entries in each block, got {sorted(sizes)}")
            dtype = str(chosen.get("reduce_dtype") or chosen.get("dtype") or "float32")
            step = expert_parallel(step, model, around, [*experts], sizes.pop(), reduce_dtype=dtype, seed=self.seed)
        return tensor_parallel(step, model, around)

    def _sharded(self, model: Units, layers: Sequence[Layer], place: int) -> StepGraph:
        """Return the step of a pipeline stage with data parallelism only."""
        build, chosen, stages = SHARDINGS[self.sharding].build, dict(self.chosen), self.around.pipeline
        if build is zero:
            if stages > 1 and self.sharding != "zero1":
                raise ValueError(f"{self.sharding} is not for pipelines, as DeepSpeed's refuse it; zero1 is")
            return zero(layers, self.workers, stage=int(self.sharding[-1]), **chosen)
        if build is ddp:
            if chosen.get("ready") and stages > 1:
                raise ValueError("ready is not for pipelines, of which each stage has an order of its own")
            return ddp(layers, self.workers, **chosen)
        if stages > 1:
            chosen = {**_IN_PIPELINES, **chosen}
            if isinstance(freed := chosen.get("reshard_after_forward"), list | tuple):
                own = {"root", *(block.name for block in model.blocks)}
                chosen["reshard_after_forward"] = [one for one in freed if one in own]
            microbatches = check_int(chosen.get("microbatches", 1), "microbatches", 1)
            chosen["passes"] = pass_order(place, stages, microbatches, self.around.order)
        return build(model, self.workers, **chosen)


def _without_experts(layers: Sequence[Layer], around: ModelParallelism) -> tuple[Sequence[Layer], dict[str, int]]:
    """Return the tensors outside experts, and the number of entries of one expert by block."""
    if around.experts is None:
        return layers, {}
    blocks = {block.name: block for block in wrap_units(layers).blocks}
    wanted = [name for name in blocks if around.expert_blocks is None or name in around.expert_blocks]
    gone: set[str] = set()
    sizes = {}
    for name in wanted:
        begins = tuple(f"{name}.{one}" for one in around.expert_tensors)
        own = [layer for layer in blocks[name].layers if layer.name.startswith(begins)]
        if not own or len(own) == len(blocks[name].layers):
            inside = ", ".join(layer.name[len(name) + 1 :] for layer in blocks[name].layers)
            raise ValueError(f"expert_tensors must be with what some tensors of {name} begin, which are {inside}")
        gone |= {layer.name for layer in own}
        sizes[name] = sum(layer.size for layer in own)
    return [layer for layer in layers if layer.name not in gone], sizes


def _pad_rows(layers: Sequence[Layer], degree: int) -> list[Layer]:
    """Pad matrices outside transformer blocks, such as embeddings, to multiples of `degree` rows, as Megatron does."""
    inside = {layer.name for block in wrap_units(layers).blocks for layer in block.layers}
    return [
        layer
        if layer.name in inside or len(layer.shape) < 2
        else Layer(layer.name, (-(-layer.shape[0] // degree) * degree, *layer.shape[1:]))
        for layer in layers
    ]


@dataclass(frozen=True)
class TrainingSteps:
    """Steps of a training run: ``step(i)`` returns the step of iteration i, as the same object if steps are equal."""

    step: Callable[[int], PlannedStep | TracedStep]
    algorithms: Mapping[str, str] = field(default_factory=dict)
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        schedules_of(self.algorithms)


def model_steps(
    profile: ModelProfile,
    sharding: str,
    workers: int,
    options: Mapping[str, object],
    *,
    backward: float | None = None,
    seed: int = 0,
) -> Callable[[int], PlannedStep]:
    """Return a function from an iteration number to a planned step; ``iteration`` in `options` overrides the number."""
    draws = options.get("experts") is not None and options.get("drop_tokens") is False
    known: dict[int, PlannedStep] = {}

    def step(iteration: int) -> PlannedStep:
        number = iteration if draws else min(iteration, LATER)
        if number not in known:
            if draws:
                known.clear()
            given = {"iteration": number, **options}
            known[number] = plan_step(profile, sharding, workers, given, seed, backward)
        return known[number]

    step(LATER)
    return step
