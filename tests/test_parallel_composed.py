"""Tensor, expert and pipeline parallelism around data-parallel steps: bytes by formula, closed forms, and bounds."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simnet.collectives import registry
from simnet.cost_models.costs.models import Layer
from simnet.network import Network
from simnet.topologies import multi_gpu_nodes, star
from simnet.training.parallel.graph import CollectiveCall, ComputePart, StepGraph, StepTiming
from simnet.training.parallel.passes import (
    ModelParallelism,
    expert_capacity,
    expert_parallel,
    split_tensors,
    tensor_parallel,
)
from simnet.training.parallel.pipeline import pipeline
from simnet.training.parallel.pytorch import ddp, fsdp2
from simnet.training.parallel.units import wrap_units
from simnet.training.parallel.zero import zero
from step_times import time_step

ALPHA, RATE = 5e-6, 10e9
FORWARD, BACKWARD = 4e-3, 8e-3
BLOCKS = 3

LAYERS = [
    Layer("embedding.weight", (1000, 64)),
    *(
        Layer(f"h.{number}.{name}", shape)
        for number in range(BLOCKS)
        for name, shape in (("norm.weight", (64,)), ("up.weight", (256, 64)), ("down.weight", (64, 256)))
    ),
    Layer("head.weight", (1000, 64)),
]

WAYS: dict[str, Callable[..., StepGraph]] = {
    "ddp": lambda layers, workers, overlap: ddp(layers, workers, iteration=2, bucket_cap_mb=0.1, overlap=overlap),
    "accumulated": lambda layers, workers, overlap: ddp(
        layers, workers, iteration=2, bucket_cap_mb=0.1, microbatches=2, overlap=overlap
    ),
    "fsdp2": lambda layers, workers, overlap: fsdp2(wrap_units(layers), workers, overlap=overlap),
    "hsdp": lambda layers, workers, overlap: fsdp2(wrap_units(layers), workers, replicas=2, overlap=overlap),
    "zero2": lambda layers, workers, overlap: zero(
        layers, workers, stage=2, reduce_bucket_size=50_000, overlap_comm=overlap
    ),
    "zero3": lambda layers, workers, overlap: zero(layers, workers, stage=3, overlap_comm=overlap),
}
TOKENS, WIDTH, DEGREE = 96, 32, 2
EXPERTS: dict[str, Any] = {"experts": 8, "tokens": 100, "width": 16, "expert_parallel": 2}


def cost(call: CollectiveCall) -> float:
    """Seconds of a call alone, by the closed form of its algorithm."""
    algorithm = {"broadcast": "binomial", "reduce": "binomial", "alltoall": "pairwise"}.get(call.operation, "ring")
    formula = registry.collective_by_algorithm(call.operation, algorithm).cost
    assert formula is not None
    each = call.in_bytes / (call.ranks if call.operation == "alltoall" else 1)
    return float(formula(ALPHA, 1 / RATE, each, call.ranks))


def on_star(step: StepGraph, forward: float = FORWARD, backward: float = BACKWARD) -> StepTiming:
    network = Network(star(step.workers, latency=ALPHA, bandwidth=RATE))
    return time_step(step, network, forward=forward, backward=backward)


def microbatches(step: StepGraph) -> int:
    return 1 + max(node.does.microbatch for node in step.nodes if isinstance(node.does, ComputePart))


def tensor(way: str, *, overlap: bool, sequence_parallel: bool = False) -> StepGraph:
    part = split_tensors(LAYERS, DEGREE)
    step = WAYS[way](part, 4, overlap)
    around = ModelParallelism(tensor_parallel=DEGREE, tokens=TOKENS, width=WIDTH, sequence_parallel=sequence_parallel)
    return tensor_parallel(step, wrap_units(part), around)


def mixed(way: str, *, overlap: bool, **others: Any) -> StepGraph:
    step = WAYS[way](LAYERS, 4, overlap)
    around = ModelParallelism(**(EXPERTS | others))
    return expert_parallel(step, wrap_units(LAYERS), around, ["h.0", "h.2"], 5000, overlap=overlap)


MADE: dict[str, Callable[..., StepGraph]] = {
    "tensor": tensor,
    "sequence": lambda way, *, overlap: tensor(way, overlap=overlap, sequence_parallel=True),
    "experts": mixed,
    "experts, none dropped": lambda way, *, overlap: mixed(way, overlap=overlap, drop_tokens=False),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("made", MADE)
def test_without_overlap_a_step_takes_the_sum_of_its_parts(made: str, way: str) -> None:
    step = MADE[made](way, overlap=False)
    timing = on_star(step)
    computes = microbatches(step) * (FORWARD + BACKWARD)
    assert timing.duration == pytest.approx(computes + sum(map(cost, step.calls)), rel=1e-9)
    assert timing.computing == pytest.approx(computes, rel=1e-9)
    assert timing.waits().sum(axis=0) == pytest.approx(timing.exposed, rel=1e-9)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("made", MADE)
def test_with_overlap_it_takes_at_least_what_is_on_the_critical_path_and_less_than_the_sum(made: str, way: str) -> None:
    step = MADE[made](way, overlap=True)
    inside = sum(cost(call) for call in step.calls if call.group in ("tensor", "expert"))
    for pass_ in (1e-5, 1e-3):
        computes = 3 * pass_ * microbatches(step)
        duration = on_star(step, pass_, 2 * pass_).duration
        # Calls of several groups share links while they are under way together.
        assert (computes + inside) * (1 - 1e-9) <= duration
        assert duration <= (computes + sum(map(cost, step.calls))) * (1 + 1e-9)


@pytest.mark.parametrize("way", WAYS)
def test_a_block_has_two_all_reduces_of_tokens_by_width_each_way(way: str) -> None:
    step = tensor(way, overlap=True)
    calls = [call for call in step.calls if call.group == "tensor"]
    assert len(calls) == 4 * BLOCKS * microbatches(step)
    assert {(call.operation, call.ranks, call.in_elements, call.in_bytes) for call in calls} == {
        ("all_reduce", DEGREE, TOKENS * WIDTH, 2 * TOKENS * WIDTH)
    }
    halves = [call for call in tensor(way, overlap=True, sequence_parallel=True).calls if call.group == "tensor"]
    assert len(halves) == 2 * len(calls)
    whole, part = TOKENS * WIDTH, TOKENS * WIDTH // DEGREE
    assert [(call.operation, call.in_elements, call.out_elements) for call in halves] == [
        ("all_gather", part, whole),
        ("reduce_scatter", whole, part),
    ] * len(calls)
    assert sum(map(cost, halves)) == pytest.approx(sum(map(cost, calls)), rel=1e-12)


def test_splitting_divides_matrices_and_what_cannot_be_divided_is_refused() -> None:
    assert sum(one.size for one in split_tensors(LAYERS, 2)) == sum(
        one.size // (2 if len(one.shape) > 1 else 1) for one in LAYERS
    )
    with pytest.raises(ValueError, match=re.escape("tensor 'a' has 9 rows, which 2 workers cannot divide evenly")):
        split_tensors([Layer("a", (9, 2))], 2)
    part = split_tensors(LAYERS, 2)
    around = ModelParallelism(tensor_parallel=2, tokens=3, width=1, sequence_parallel=True)
    with pytest.raises(ValueError, match="tokens must be a multiple of the 2 workers"):
        tensor_parallel(ddp(part, 2), wrap_units(part), around)
    with pytest.raises(ValueError, match="attention must be <= 1"):
        ModelParallelism(attention=1.5)
    assert tensor_parallel(ddp(part, 2), wrap_units(part), ModelParallelism()) == ddp(part, 2)


@pytest.mark.parametrize("way", WAYS)
def test_a_block_of_experts_has_four_all_to_alls_and_its_gradients_are_reduced_once(way: str) -> None:
    step = mixed(way, overlap=True, choices=2, capacity_factor=1.25)
    room = math.ceil(100 / 8 * 1.25 * 2)
    assert expert_capacity(100, 8, 1.25, 2, 4) == room == 32
    calls = [call for call in step.calls if call.operation == "alltoall"]
    assert len(calls) == 4 * 2 * microbatches(step)
    assert {(call.group, call.ranks, call.in_elements) for call in calls} == {("expert", 2, 8 * room * 16)}
    assert [call.unit for call in calls if call.phase == "backward"][:4] == ["h.2", "h.2", "h.0", "h.0"]
    reduced = [call for call in step.calls if call.group == "expert_data"]
    assert [(call.unit, call.ranks, call.in_elements) for call in reduced] == [
        ("h.2", 2, 4 * 5000),
        ("h.0", 2, 4 * 5000),
    ]
    assert {call.microbatch for call in reduced} == {microbatches(step) - 1}
    assert step.groups("expert") == [[0, 1], [2, 3]]
    assert step.groups("expert_data") == [[0, 2], [1, 3]]
    plain = WAYS[way](LAYERS, 4, True)
    assert [call for call in step.calls if call.group not in ("expert", "expert_data")] == plain.calls
    more = np.subtract(step.held, plain.held)
    assert more.tolist() == [2 * 4 * 4 * 5000 * times for times in (1, 1, 2)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"choices": 3}, "choices must be 1 or 2 experts of a token, got 3"),
        ({"experts": 7}, "ranks must divide the 4 workers and the 7 experts of a block, got 2"),
        ({"capacity_factor": 0.0}, "capacity_factor"),
        ({"tokens": 0}, "tokens"),
    ],
)
def test_what_cannot_be_of_experts_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        mixed("ddp", overlap=True, **options)


def staged(stages: int, count: int, order: str, *, entries: int = 1, workers: int = 1) -> StepGraph:
    parts = [ddp(LAYERS, workers, iteration=2, microbatches=count) for _ in range(stages)]
    return pipeline(parts, tokens=entries, width=1, order=order)  # type: ignore[arg-type]


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_gpipe_fills_and_drains_once_each_way(stages: int, count: int) -> None:
    step = staged(stages, count, "gpipe", entries=100_000)
    send = ALPHA + 2 * 100_000 / RATE
    timing = on_star(step)
    expected = (count + stages - 1) * (FORWARD + BACKWARD) + 2 * (stages - 1) * send
    assert timing.duration == pytest.approx(expected, rel=1e-9)
    assert timing.computing == pytest.approx(count * (FORWARD + BACKWARD), rel=1e-9)
    assert timing.waits().sum(axis=0) == pytest.approx(timing.exposed, rel=1e-9)
    assert len(step.calls) == 2 * (stages - 1) * count
    assert {call.in_bytes for call in step.calls} <= {2 * 100_000}


def recurrence(stages: int, count: int, send: float) -> float:
    """Seconds of 1F1B, pass by pass, if sends meet nobody."""
    orders = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, count)
        passes = [("f", number) for number in range(ahead)]
        for number in range(count):
            passes += [("f", ahead + number)] * (ahead + number < count) + [("b", number)]
        orders.append(passes)
    free, arrived = [0.0] * stages, {("f", 0, number): 0.0 for number in range(count)}
    arrived |= {("b", stages - 1, number): 0.0 for number in range(count)}
    sent: dict[tuple[int, str], float] = defaultdict(float)
    while any(orders):
        for stage, passes in enumerate(orders):
            while passes and (passes[0][0], stage, passes[0][1]) in arrived:
                way, number = passes.pop(0)
                begin = max(free[stage], arrived[way, stage, number])
                free[stage] = begin + (FORWARD if way == "f" else BACKWARD)
                sent[stage, way] = max(sent[stage, way], free[stage]) + send
                arrived[way, stage + (1 if way == "f" else -1), number] = sent[stage, way]
    return max(free)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("alpha", [0.0, 1e-3, 20e-3])
def test_one_forward_one_backward_follows_its_recurrence(stages: int, count: int, alpha: float) -> None:
    step = staged(stages, count, "1f1b")
    network = Network(star(stages, latency=alpha, bandwidth=1e15))
    timing = time_step(step, network, forward=FORWARD, backward=BACKWARD)
    assert timing.duration == pytest.approx(recurrence(stages, count, alpha), rel=1e-9)
    if alpha == 0:
        assert timing.duration == pytest.approx((count + stages - 1) * (FORWARD + BACKWARD), rel=1e-9)


def test_all_of_them_go_together_on_nodes_and_rails() -> None:
    part = split_tensors(LAYERS, 2)
    units, around = wrap_units(part), ModelParallelism(tensor_parallel=2, tokens=TOKENS, width=WIDTH)
    stage = ddp(part, 4, iteration=2, microbatches=3)
    stage = expert_parallel(stage, units, ModelParallelism(**EXPERTS), ["h.0", "h.2"], 5000)
    stage = tensor_parallel(stage, units, around)
    step = pipeline([stage, stage], tokens=TOKENS, width=WIDTH // 2)
    assert step.workers == 16
    assert step.groups("tensor")[-1] == [14, 15]
    assert step.groups("expert")[:2] == [[0, 2], [1, 3]]
    assert step.groups("stage 1 to 0")[0] == [8, 0]
    assert {call.group: call.ranks for call in step.calls} == {
        "tensor": 2, "expert": 2, "expert_data": 2, "world": 4, "stage 0 to 1": 2, "stage 1 to 0": 2,
    }  # fmt: skip
    graph = multi_gpu_nodes(
        8, 2, intra_latency=1e-6, intra_bandwidth=2e11, nic_latency=4e-6, nic_bandwidth=2e10, rails=True
    )
    timing = time_step(step, Network(graph), forward=FORWARD, backward=BACKWARD)
    assert timing.duration > 4 * (FORWARD + BACKWARD)
    assert timing.waits().sum(axis=0) == pytest.approx(timing.exposed, rel=1e-9)
    assert timing.memory().peak >= sum(stage.held)
