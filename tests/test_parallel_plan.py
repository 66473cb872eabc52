"""Steps by names and options: they are those of the functions, and models are divided as pipelines and experts ask."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simnet.cost_models.costs.models import ComputeTime, Layer, ModelProfile
from simnet.network import Network
from simnet.topologies import star
from simnet.training.parallel.graph import CollectiveCall, ComputePart, StepGraph, StepTiming
from simnet.training.parallel.passes import ModelParallelism, expert_parallel, split_tensors, tensor_parallel
from simnet.training.parallel.pipeline import pass_order, pipeline
from simnet.training.parallel.plan import SHARDINGS, model_steps, plan_step, sharding_options
from simnet.training.parallel.pytorch import ddp, fsdp2
from simnet.training.parallel.units import wrap_units
from simnet.training.parallel.zero import zero
from step_times import time_step

BLOCKS = 4
LAYERS = (
    Layer("embedding.weight", (1001, 64)),
    *(
        Layer(f"h.{number}.{name}", shape)
        for number in range(BLOCKS)
        for name, shape in (("attn.weight", (64, 64)), ("mlp.up.weight", (256, 64)), ("mlp.down.weight", (64, 256)))
    ),
    Layer("head.weight", (1000, 64)),
)
PROFILE = ModelProfile("small", LAYERS, (ComputeTime(12e-3, 1, "made up", False),), "none")
ALPHA, RATE = 5e-6, 10e9
AROUND: dict[str, object] = {"tokens": 96}


def graph(sharding: str, workers: int, **options: object) -> StepGraph:
    return plan_step(PROFILE, sharding, workers, options).graph


def on_star(step: StepGraph, forward: Any = 4e-3, backward: Any = 8e-3) -> StepTiming:
    network = Network(star(step.workers, latency=ALPHA, bandwidth=RATE))
    return time_step(step, network, forward=forward, backward=backward)


def test_without_anything_around_it_steps_are_those_of_the_functions() -> None:
    whole = wrap_units(LAYERS)
    assert graph("ddp", 4, bucket_cap_mb=0.1) == ddp(LAYERS, 4, iteration=3, bucket_cap_mb=0.1)
    assert graph("fsdp2", 4, reshard_after_forward=["h.1"]) == fsdp2(
        whole, 4, iteration=3, reshard_after_forward=["h.1"]
    )
    assert graph("hsdp", 4, replicas=2) == fsdp2(whole, 4, iteration=3, replicas=2)
    for stage in (1, 2, 3):
        assert graph(f"zero{stage}", 4, microbatches=2) == zero(LAYERS, 4, stage=stage, iteration=3, microbatches=2)
    for sharding in SHARDINGS:
        options = {name: value for name, value in sharding_options(sharding).items() if value is not None}
        if sharding == "hsdp":
            options["replicas"] = 2
        assert graph(sharding, 4, **{**options, "iteration": 3}) == graph(
            sharding, 4, **({"replicas": 2} if sharding == "hsdp" else {})
        )


def test_what_is_around_a_step_is_what_the_functions_put_around_it() -> None:
    # Rows of a vocabulary are padded.
    padded = [Layer("embedding.weight", (1002, 64)), *LAYERS[1:]]
    parts = [split_tensors(padded[:7], 2), split_tensors(padded[7:], 2)]
    around = ModelParallelism(tensor_parallel=2, tokens=96, width=64, sequence_parallel=True)
    stages = [tensor_parallel(ddp(part, 2, iteration=3, microbatches=3), wrap_units(part), around) for part in parts]
    own = graph("ddp", 8, tensor_parallel=2, sequence_parallel=True, pipeline=2, microbatches=3, **AROUND)
    assert own == pipeline(stages, tokens=48, width=64)
    assert own.groups("tensor")[:2] == [[0, 1], [2, 3]]
    assert own.groups("stage 0 to 1")[0] == [0, 4]


# As input and output share it, and as they do not: with a copy of it behind the blocks.
SHARING = replace(PROFILE, layers=LAYERS[:-1], tied=("embedding.weight",))
APART = replace(PROFILE, layers=(*LAYERS[:-1], Layer("head.weight", (1001, 64))))


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("sharding", ["ddp", "zero1"])
def test_the_first_and_the_last_stage_exchange_the_weights_that_they_share(sharding: str, degree: int) -> None:
    options = {"pipeline": 3, "microbatches": 3, "tensor_parallel": degree, "bucket_cap_mb": 0.1, **AROUND}
    if sharding == "zero1":
        options.pop("bucket_cap_mb")
    sharing, apart = (plan_step(one, sharding, 6 * degree, options) for one in (SHARING, APART))
    own, others = sharing.graph, apart.graph
    number = next(place for place, node in enumerate(own.nodes) if node.queue == "tied")
    call = own.nodes[number].does
    assert isinstance(call, CollectiveCall)
    assert (call.operation, call.unit, call.in_elements) == ("all_reduce", "embedding.weight", -(-1001 // degree) * 64)
    behind = 4 * degree
    assert own.groups("tied") == [[worker, behind + worker] for worker in range(2 * degree)]
    # All else is as of a model with a copy.
    assert sorted(map(repr, (one for one in own.calls if one != call))) == sorted(map(repr, others.calls))
    assert own.held == others.held
    # Megatron exchanges it behind other gradients, DeepSpeed before.
    reduced = [place for place, node in enumerate(own.nodes) if getattr(node.does, "unit", "") == "bucket"]
    reduced = [place for place in reduced if isinstance(own.nodes[place].does, CollectiveCall)]
    ends = [place for place in reduced if not 2 * degree <= (own.nodes[place].workers or ())[0] < behind]
    if sharding == "ddp":
        assert set(ends) <= set(own.nodes[number].after)
    else:
        assert ends
        assert all(number in own.nodes[place].after for place in ends)
    # The output computes, and the input, which is looked up, does not.
    blocks = sum(layer.size for layer in LAYERS if layer.name.startswith("h.")) / BLOCKS
    expected = np.repeat([blocks, blocks, 2 * blocks + 1001 * 64], 2 * degree) / SHARING.parameters / degree
    np.testing.assert_allclose(sharing.shares, expected)


def test_experts_take_the_place_of_perceptrons() -> None:
    left = [layer for layer in LAYERS if "h.1.mlp" not in layer.name]
    asked = {"experts": 8, "expert_parallel": 2, "expert_blocks": ["h.1"], **AROUND}
    inner = ddp(left, 4, iteration=3)
    own = graph("ddp", 4, **asked)
    around = ModelParallelism(experts=8, expert_parallel=2, tokens=96, width=64)
    assert own == expert_parallel(inner, wrap_units(left), around, ["h.1"], 2 * 256 * 64)
    # Every block where none is named; and drawn sizes are others in every iteration.
    every = graph("ddp", 4, experts=8, expert_parallel=2, **AROUND)
    assert sum(call.operation == "alltoall" for call in every.calls) == 4 * BLOCKS
    step = model_steps(PROFILE, "ddp", 4, {**asked, "drop_tokens": False})
    sizes = [[one.in_elements for one in step(at).graph.calls if one.operation == "alltoall"] for at in (7, 8, 7)]
    assert sizes[0] == sizes[2] != sizes[1]


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
@pytest.mark.parametrize("reshard", [True, False])
def test_stages_of_fsdp_gather_for_each_microbatch_unless_units_stay(order: str, reshard: bool) -> None:
    count, stages = 3, 2
    own = graph(
        "fsdp2", 4, pipeline=stages, microbatches=count, order=order, reshard_after_forward=reshard, **AROUND
    )  # fmt: skip
    for place in range(stages):
        workers = tuple(range(2 * place, 2 * place + 2))
        nodes = [node for node in own.nodes if node.workers == workers]
        calls = [node.does for node in nodes if isinstance(node.does, CollectiveCall)]
        passes = [
            (node.does.phase, node.does.microbatch) for node in nodes if isinstance(node.does, ComputePart)
        ]  # fmt: skip
        assert [one for one, _ in itertools.groupby(passes)] == pass_order(place, stages, count, order)  # type: ignore[arg-type]
        # A unit is there for a pass if it was gathered since it was freed last: behind a forward pass, if at all.
        wanted = {}
        for unit in ("root", *(f"h.{number}" for number in range(2 * place, 2 * place + 2))):
            there, gathers = False, 0
            for phase, _ in pass_order(place, stages, count, order):  # type: ignore[arg-type]
                gathers += not there
                there = not (phase == "forward" and reshard and unit != "root")
            wanted[unit] = gathers
        gathered = [call.unit for call in calls if call.operation == "all_gather"]
        assert {unit: gathered.count(unit) for unit in wanted} == wanted
        # Gradients are reduced behind the last pass, in the order of the model.
        reduced = [call.unit for call in calls if call.operation == "reduce_scatter"]
        assert reduced == list(wanted)
        last = max(number for number, node in enumerate(nodes) if isinstance(node.does, ComputePart))
        first = min(
            number
            for number, node in enumerate(nodes)
            if isinstance(node.does, CollectiveCall) and node.does.operation == "reduce_scatter"
        )
        assert first > last
    # Nothing is left gathered.
    assert on_star(own).memory().peak > sum(own.held)


@pytest.mark.parametrize("count", [1, 4])
def test_a_pipeline_of_fsdp_on_an_ideal_network_takes_what_its_order_says(count: int) -> None:
    own = graph("fsdp2", 4, pipeline=2, microbatches=count, overlap=False, **AROUND)
    network = Network(star(4, latency=0.0, bandwidth=1e18))
    timing = time_step(own, network, forward=4e-3, backward=8e-3)
    assert timing.duration == pytest.approx((count + 1) * 12e-3, rel=1e-9)


def test_memory_between_passes_is_the_closed_form_of_each_way() -> None:
    n, workers = PROFILE.parameters, 4
    shard = sum(-(-layer.shape[0] // workers) * (layer.size // layer.shape[0]) for layer in LAYERS)
    part = -(-n // (2 * workers)) * 2
    held = {
        "ddp": (4 * n, 8 * n, 8 * n),
        "fsdp2": (4 * shard, 4 * shard, 8 * shard),
        "zero1": (4 * n, 4 * n, 8 * part),
        "zero2": (4 * n, 4 * part, 8 * part),
        "zero3": (4 * sum(-(-layer.size // workers) for layer in LAYERS),) * 2
        + (8 * sum(-(-layer.size // workers) for layer in LAYERS),),
    }
    for sharding, expected in held.items():
        more = {"param_persistence_threshold": 0} if sharding == "zero3" else {}
        assert tuple(graph(sharding, workers, **more).held) == expected, sharding
    assert tuple(graph("zero1", workers, dtype="bfloat16").held) == (2 * n, 2 * n, 12 * part)


def test_memory_at_the_worst_time_is_a_closed_form_where_nothing_overlaps() -> None:
    # In the backward pass this block and the next one are gathered, and gradients of this one and the root wait.
    one = wrap_units(LAYERS).blocks[0].shard(4) * 4 * 4
    root = wrap_units(LAYERS).root.shard(4) * 4 * 4
    memory = on_star(graph("fsdp2", 4, overlap=False)).memory()
    assert memory.peak - sum(memory[:3]) == 2 * root + 3 * one
    memory = on_star(graph("fsdp2", 4, overlap=False, reshard_after_forward=False)).memory()
    assert memory.peak - sum(memory[:3]) == 2 * root + (BLOCKS + 1) * one
    for sharding in ("ddp", "zero1"):
        memory = on_star(graph(sharding, 4)).memory()
        assert memory.peak == sum(memory[:3])
    size = 50_000
    memory = on_star(graph("zero2", 4, reduce_bucket_size=size)).memory()
    assert 0 < memory.peak - sum(memory[:3]) <= 2 * 4 * max(size, max(layer.size for layer in LAYERS))


@pytest.mark.parametrize(
    ("sharding", "options", "says"),
    [
        ("fsdp", {}, "there is no sharding 'fsdp': did you mean 'fsdp2'"),
        ("ddp", {"tensor_paralel": 2}, "there is no option of ddp 'tensor_paralel': did you mean 'tensor_parallel'"),
        ("ddp", {"tensor_parallel": 2}, "tensor_parallel needs tokens"),
        ("ddp", {"pipeline": 2}, "pipeline needs tokens"),
        ("ddp", {"experts": 2}, "experts needs tokens"),
        ("ddp", {"expert_parallel": 2}, "expert_parallel needs experts"),
        ("ddp", {"sequence_parallel": True}, "sequence_parallel needs tensor_parallel"),
        ("ddp", {"tensor_parallel": 3, **AROUND}, "tensor_parallel x pipeline, 3 x 1, must divide the 4 workers"),
        ("ddp", {"pipeline": 0}, "pipeline must be a whole number >= 1, got 0"),
        ("ddp", {"pipeline": 4, "order": "2f2b", **AROUND}, "order"),
        ("ddp", {"experts": 2, "expert_blocks": ["h.9"], **AROUND}, "expert_blocks"),
        ("ddp", {"experts": 2, "expert_tensors": ["ffn"], **AROUND}, "which are attn.weight, mlp.up.weight"),
        ("ddp", {"ready": ["a"], "pipeline": 2, **AROUND}, "ready is not for pipelines"),
        ("fsdp2", {"reshard_after_forward": "h.1"}, "reshard_after_forward must be a list of names, got 'h.1'"),
        ("fsdp2", {"reshard_after_forward": ["h.9"]}, "there is no reshard_after_forward 'h.9'"),
        ("fsdp2", {"clip": 1}, "clip must be true or false, got 1"),
        ("hsdp", {}, "hsdp needs replicas, >= 2"),
        ("zero2", {"pipeline": 2, **AROUND}, "zero2 is not for pipelines, as DeepSpeed's refuse it; zero1 is"),
        ("zero3", {"pipeline": 2, **AROUND}, "zero3 is not for pipelines"),
    ],
)
def test_what_cannot_be_is_refused_in_words(sharding: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        plan_step(PROFILE, sharding, 4, options)
