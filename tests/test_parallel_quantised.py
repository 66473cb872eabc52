"""Quantised collectives of sharded steps: ZeRO++, LoCo and SDP4Bit, call by call, and what they take."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gradients import gradients_of
from looping import each
from simnet.cost_models import costs
from simnet.cost_models.costs.models import Layer, load_model
from simnet.network import Network
from simnet.sparsifier_models import create
from simnet.topologies import star
from simnet.training.parallel.graph import StepGraph
from simnet.training.parallel.plan import plan_step
from simnet.training.parallel.pytorch import fsdp2
from simnet.training.parallel.quantised import ACROSS, NODE, SDP4Bit, ZeroPlusPlus
from simnet.training.parallel.units import wrap_units
from simnet.training.parallel.zero import Stage3Limits, zero
from step_times import time_step

MATRICES = [Layer(f"h.{number}.w", (256, 64 * (number + 1))) for number in range(3)]
MIXED = [Layer("h.0.w", (64, 96)), Layer("h.0.b", (96,)), Layer("h.1.w", (10, 7)), Layer("h.1.v", (32, 24))]
FREED = Stage3Limits(max_reuse_distance=0, prefetch_bucket_size=0, param_persistence_threshold=0)


def size(layers: list[Layer]) -> int:
    return sum(layer.size for layer in layers)


def stage3(layers: list[Layer], workers: int, **plus: Any) -> StepGraph:
    return zero(layers, workers, stage=3, iteration=3, dtype="float16", limits=FREED, plus=ZeroPlusPlus(**plus))


def sent(graph: StepGraph, phase: str, operation: str, group: str) -> float:
    """Bytes that each rank sends by calls of a kind."""
    factor = {"all_gather": lambda call: call.ranks - 1}.get(operation, lambda call: (call.ranks - 1) / call.ranks)
    return sum(
        call.in_bytes * factor(call)
        for call in graph.calls
        if (call.phase, call.operation, call.group) == (phase, operation, group)
    )


def test_what_crosses_nodes_is_a_quarter_with_zero_plus_plus() -> None:
    n = size(MATRICES)
    plain = stage3(MATRICES, 8)
    whole = 2 * n
    assert sent(plain, "forward", "all_gather", "world") == whole * 7 / 8
    assert sent(plain, "backward", "all_gather", "world") == whole * 7 / 8
    assert sent(plain, "backward", "reduce_scatter", "world") == whole * 7 / 8
    graph = stage3(MATRICES, 8, zero_quantized_weights=True, zero_quantized_gradients=True, zero_hpz_partition_size=4)
    scales = {call.dtype for call in graph.calls}
    assert scales == {"int8", "float32"}
    # In parts of the 2 n bytes of a model that a node gets, or has to give: 0.5 forward, nothing backward, 0.25.
    codes = [call for call in graph.calls if call.dtype == "int8"]
    forward = sum(call.out_bytes for call in codes if (call.phase, call.group) == ("forward", "world"))
    assert forward / whole == 0.5
    assert not sent(graph, "backward", "all_gather", "world")
    gradients = sum(4 * call.in_bytes for call in codes if call.group == ACROSS)
    assert gradients / whole == 0.25
    # Within the node everything is gathered once more, in eight bits.
    assert sum(call.out_bytes for call in codes if call.operation == "all_gather" and call.group == NODE) == n


@each("shard, groups", [(8000, 1), (24_000, 3), (8, 1), (8008, 7), (16_008, 3)])
def test_scales_of_quantised_weights(shard: int, groups: int) -> None:
    # Of two workers; a group is the largest multiple of 8 up to 8000 that divides the weights.
    graph = stage3([Layer("w", (2, shard))], 2, zero_quantized_weights=True)
    forward = [call for call in graph.calls if call.phase == "forward"]
    assert [(call.in_elements, call.out_elements, call.dtype) for call in forward] == [
        (shard, 2 * shard, "int8"),
        (groups, 2 * groups, "float32"),
    ]
    with pytest.raises(ValueError, match="must be a multiple of 8, got 12"):
        stage3([Layer("w", (24,))], 2, zero_quantized_weights=True)
    assert not stage3([Layer("w", (23,))], 1, zero_quantized_weights=True).calls


@each("nodes, each_", [(2, 2), (4, 2), (2, 4), (3, 2), (4, 1)])
def test_gradients_are_reduced_as_the_scheme_does(nodes: int, each_: int) -> None:
    workers = nodes * each_
    n = size(MIXED)
    graph = stage3(MIXED, workers, zero_quantized_gradients=True, ranks_per_node=each_)
    of_scheme = create(
        "qgz",
        workers,
        n,
        layers=[(one.name, one.shape if len(one.shape) > 1 else one.size) for one in MIXED],
        ranks_per_node=each_,
        shards="none",
    ).exchange(gradients_of("normal", workers, n, 0))
    found = sum(sent(graph, "backward", "alltoall", group) for group in (NODE, ACROSS))
    found += sent(graph, "backward", "reduce_scatter", "world")
    assert found == pytest.approx(of_scheme.schedule.bytes_sent()[0], rel=1e-12)
    # Tensors go one after another, the last first.
    last = [(call.operation, call.group, call.dtype) for call in graph.calls if call.operation != "all_gather"][:4]
    if each_ > 1:
        assert last == [("alltoall", group, dtype) for group in (NODE, ACROSS) for dtype in ("int8", "float32")]


def test_tensors_are_reduced_one_after_another() -> None:
    graph = stage3(MIXED, 4, zero_quantized_gradients=True, ranks_per_node=2)
    timing = time_step(graph, Network(star(4, latency=1e-5, bandwidth=1e9)), forward=1e-4, backward=2e-4)
    numbers = [
        number
        for number, node in enumerate(graph.nodes)
        if getattr(node.does, "operation", "") in ("alltoall", "reduce_scatter")
    ]
    # Vectors, which are reduce-scattered, stand between matrices.
    assert [graph.nodes[number].queue for number in numbers] == [*["two hops"] * 4, "world", "world", *["two hops"] * 4]
    for before, number in pairwise(numbers):
        assert (timing.begun[number] >= timing.ended[before] * (1 - 1e-12)).all()


@each("sharding", ["zero3", "fsdp2"])
def test_nothing_is_quantised_within_a_node_or_alone(sharding: str) -> None:
    for workers in (4, 1):
        plus = ZeroPlusPlus(zero_quantized_gradients=True, ranks_per_node=workers)
        if sharding == "zero3":
            with_it, without = stage3(MIXED, workers, **vars(plus)), stage3(MIXED, workers)
        else:
            with_it, without = fsdp2(wrap_units(MIXED), workers, plus=plus), fsdp2(wrap_units(MIXED), workers)
        assert with_it.calls == without.calls


def test_a_second_shard_takes_a_part_of_the_node_and_stays_until_the_optimisers_step() -> None:
    plain, near = stage3(MATRICES, 8), stage3(MATRICES, 8, zero_hpz_partition_size=4)
    assert near.held.parameters - plain.held.parameters == 2 * size(MATRICES) / 4
    assert [call.group for call in near.calls if call.operation == "all_gather"] == ["world"] * 3 + [NODE] * 3
    assert near.groups(NODE) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert near.groups(ACROSS) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    for one, other in zip(plain.calls, near.calls, strict=True):
        assert one.out_elements == other.out_elements
    several = zero(
        MATRICES,
        8,
        stage=3,
        iteration=3,
        microbatches=2,
        limits=FREED,
        plus=ZeroPlusPlus(zero_hpz_partition_size=4),
    )
    assert sum(call.group == "world" and call.operation == "all_gather" for call in several.calls) == 3
    # What is never freed has none.
    kept = zero(MATRICES, 8, stage=3, iteration=3, dtype="float16", plus=ZeroPlusPlus(zero_hpz_partition_size=4))
    assert kept.held == zero(MATRICES, 8, stage=3, iteration=3, dtype="float16").held


def test_fsdp2_gathers_within_the_node_what_it_freed() -> None:
    made = wrap_units(MATRICES)
    plain = fsdp2(made, 8, param_dtype="bfloat16", microbatches=2)
    near = fsdp2(made, 8, param_dtype="bfloat16", microbatches=2, plus=ZeroPlusPlus(zero_hpz_partition_size=4))
    assert [(call.operation, call.unit, call.out_elements) for call in near.calls] == [
        (call.operation, call.unit, call.out_elements) for call in plain.calls
    ]
    groups = {(call.phase, call.group) for call in near.calls if call.operation == "all_gather"}
    assert groups == {("forward", "shard"), ("backward", NODE)}
    network = Network(star(8, latency=1e-5, bandwidth=1e9))
    first, second = (time_step(one, network, forward=1e-3, backward=2e-3) for one in (plain, near))
    more = second.memory().gathered - first.memory().gathered
    assert 0 < more <= 2 * size(MATRICES) / 4
    gradients = fsdp2(made, 8, plus=ZeroPlusPlus(zero_quantized_gradients=True, ranks_per_node=4))
    units_of = [call.unit for call in gradients.calls if call.operation == "alltoall"]
    assert units_of == [unit for unit in ("h.2", "h.1", "h.0") for _ in range(4)]


def test_loco_holds_the_memories_of_its_scheme() -> None:
    plus = {"zero_quantized_gradients": True, "ranks_per_node": 2}
    more = stage3(MIXED, 4, loco=True, **plus).held.gradients - stage3(MIXED, 4, **plus).held.gradients
    layers = [(one.name, one.shape if len(one.shape) > 1 else one.size) for one in MIXED]
    scheme = create("loco", 4, size(MIXED), layers=layers, ranks_per_node=2)
    assert more == sum(scheme.held_bytes().values())
    assert stage3(MIXED, 4, loco=True, **plus).calls == stage3(MIXED, 4, **plus).calls


@each("stage", [1, 2])
def test_calls_of_sdp4bit(stage: int) -> None:
    layers, how = (
        [Layer("a", (256, 64)), Layer("b", (100, 41))],
        SDP4Bit(quantized_weights=True, quantized_gradients=True, ranks_per_node=2),
    )
    graph = zero(layers, 4, stage=stage, reduce_bucket_size=20_000, sdp4bit=how)
    # 16,384 entries, and 4,100 that are filled up to four times 1,056.
    buckets = [(4100, 1056), (16_384, 4096)] if stage == 2 else [(16_384, 4096), (4100, 1056)]
    expected = []
    for _, m in buckets:
        first, second = -(-m // 512), -(-m // 128)
        expected += [
            ("alltoall", NODE, 4 * m, "int8"),
            ("alltoall", NODE, 4 * first, "float32"),
            ("alltoall", ACROSS, m, "int8"),
            ("alltoall", ACROSS, 2 * second, "float32"),
        ]
    for _, m in buckets:
        weights = -(-m // 2048)
        expected += [("all_gather", "world", m // 2, "int8"), ("all_gather", "world", weights, "float32")]
    assert [(call.operation, call.group, call.in_elements, call.dtype) for call in graph.calls] == expected
    if stage == 2:
        n = size(layers)
        scheme = create("sdp4bit", 4, n, ranks_per_node=2, allgather="ring").exchange(gradients_of("normal", 4, n, 0))
        one = zero(layers, 4, stage=2, sdp4bit=how)
        found = sum(sent(one, "backward", "alltoall", group) for group in (NODE, ACROSS))
        found += sent(one, "step", "all_gather", "world")
        assert found == pytest.approx(scheme.schedule.bytes_sent()[0], rel=1e-12)


@each("which", ["zero3", "zero2", "fsdp2"])
def test_without_overlap_a_step_takes_the_sum_of_closed_forms(which: str) -> None:
    plus = ZeroPlusPlus(zero_quantized_weights=True, zero_quantized_gradients=True, zero_hpz_partition_size=2)
    if which == "zero3":
        graph = zero(MATRICES, 4, stage=3, iteration=3, limits=FREED, plus=plus, overlap_comm=False)
    elif which == "zero2":
        how = SDP4Bit(quantized_weights=True, quantized_gradients=True, ranks_per_node=2)
        graph = zero(MATRICES, 4, stage=2, sdp4bit=how)
    else:
        graph = fsdp2(wrap_units(MATRICES), 4, plus=plus, overlap=False)
    alpha, beta = 1e-5, 1e-9
    timing = time_step(graph, Network(star(4, latency=alpha, bandwidth=1 / beta)), forward=0.1, backward=0.2)
    cost = sum(
        float(costs.pairwise_alltoall(alpha, beta, call.in_bytes / call.ranks, call.ranks))
        if call.operation == "alltoall"
        else float(costs.ring_allgather(alpha, beta, call.in_bytes, call.ranks))
        for call in graph.calls
    )
    assert {call.operation for call in graph.calls} == {"alltoall", "all_gather"}
    assert timing.duration == pytest.approx(0.3 + cost, rel=1e-9)
    assert np.allclose(timing.exposed, cost)


@each("plus, said", [
    ({"zero_quantized_gradients": True}, "zero_quantized_gradients needs ranks_per_node"),
    ({"loco": True}, "loco needs zero_quantized_gradients"),
    ({"zero_hpz_partition_size": 4, "ranks_per_node": 2}, "must be 1 or ranks_per_node, 2, got 4"),
    ({"zero_hpz_partition_size": 0}, "zero_hpz_partition_size must be a whole number >= 1, got 0"),
    ({"zero_hpz_partition_size": 3}, "zero_hpz_partition_size must divide the 8 workers, got 3"),
    ({"ranks_per_node": 3}, "ranks_per_node must divide the 8 workers, got 3"),
])  # fmt: skip
def test_what_zero_plus_plus_refuses(plus: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        stage3(MATRICES, 8, **plus)


def test_what_other_steps_refuse() -> None:
    with pytest.raises(ValueError, match="for one replica, got 2"):
        fsdp2(wrap_units(MATRICES), 8, replicas=2, plus=ZeroPlusPlus(zero_quantized_weights=True))
    with pytest.raises(ValueError, match="first_group must be a whole number >= 1, got 0"):
        SDP4Bit(first_group=0)


def test_the_command_takes_the_options_by_name() -> None:
    profile = load_model("gpt2")
    asked = {"zero_quantized_gradients": True, "zero_hpz_partition_size": 4, "max_reuse_distance": 0}
    graph = plan_step(profile, "zero3", 8, asked).graph
    assert {call.group for call in graph.calls} == {"world", NODE, ACROSS}
    options = {"quantized_weights": True, "quantized_gradients": True, "ranks_per_node": 4}
    four = plan_step(profile, "zero1", 8, options).graph
    assert {call.dtype for call in four.calls} == {"int8", "float32"}
    with pytest.raises(ValueError, match="there is no option of zero1 'zero_quantized_weights'"):
        plan_step(profile, "zero1", 8, {"zero_quantized_weights": True})
    with pytest.raises(ValueError, match="zero_quantized_weights must be true or false, got 'maybe'"):
        plan_step(profile, "fsdp2", 8, {"zero_quantized_weights": "maybe"})
