"""Training steps on a network: closed forms without overlap, bounds with it, who waits for what, and memory."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from simnet.base.arrays import Floats
from simnet.collectives import registry
from simnet.cost_models.costs.models import Layer
from simnet.network import Network
from simnet.topologies import multi_gpu_nodes, star
from simnet.training.parallel.graph import CollectiveCall, ComputePart, StepGraph, StepTiming
from simnet.training.parallel.pytorch import ddp, fsdp2
from simnet.training.parallel.units import wrap_units
from simnet.training.parallel.zero import Stage3Limits, zero
from step_times import time_step

ALPHA, RATE = 5e-6, 10e9
FORWARD, BACKWARD = 4e-3, 8e-3

LAYERS = [
    Layer("embedding.weight", (1000, 64)),
    *(
        Layer(f"h.{number}.{name}", shape)
        for number in range(5)
        for name, shape in (("norm.weight", (64,)), ("up.weight", (256, 64)), ("down.weight", (64, 256)))
    ),
    Layer("head.weight", (1000, 64)),
]
MODEL = wrap_units(LAYERS)
LIMITS = Stage3Limits(prefetch_bucket_size=30_000, param_persistence_threshold=100, max_reuse_distance=20_000)


def steps(workers: int, *, overlap: bool) -> dict[str, StepGraph]:
    return {
        "ddp": ddp(LAYERS, workers, iteration=1, bucket_cap_mb=0.1, overlap=overlap),
        "fsdp2": fsdp2(MODEL, workers, clip=True, overlap=overlap),
        "kept": fsdp2(MODEL, workers, reshard_after_forward=False, overlap=overlap),
        "mixed": fsdp2(MODEL, workers, param_dtype="bfloat16", reduce_dtype="float32", overlap=overlap),
        "accumulated": fsdp2(MODEL, workers, microbatches=3, gradient_sync="last", overlap=overlap),
        "zero1": zero(LAYERS, workers, stage=1, reduce_bucket_size=50_000, loss_scaling=True, overlap_comm=overlap),
        "zero2": zero(LAYERS, workers, stage=2, reduce_bucket_size=50_000, microbatches=2, overlap_comm=overlap),
        "zero3": zero(LAYERS, workers, stage=3, overlap_comm=overlap),
        "zero3 traced": zero(LAYERS, workers, stage=3, iteration=1, limits=LIMITS, overlap_comm=overlap),
    }


def cost(call: CollectiveCall, alpha: float = ALPHA, rate: float = RATE) -> float:
    """Seconds of a call alone, by the closed form of its algorithm."""
    algorithm = "binomial" if call.operation in ("broadcast", "reduce") else "ring"
    formula = registry.collective_by_algorithm(call.operation, algorithm).cost
    assert formula is not None
    return float(formula(alpha, 1 / rate, call.in_bytes, call.ranks))


def on_star(step: StepGraph, forward: float = FORWARD, backward: float = BACKWARD) -> StepTiming:
    network = Network(star(step.workers, latency=ALPHA, bandwidth=RATE))
    return time_step(step, network, forward=forward, backward=backward)


def microbatches(step: StepGraph) -> int:
    return 1 + max(node.does.microbatch for node in step.nodes if isinstance(node.does, ComputePart))


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("name", list(steps(2, overlap=False)))
def test_without_overlap_a_step_takes_the_sum_of_its_parts(name: str, workers: int) -> None:
    step = steps(workers, overlap=False)[name]
    timing = on_star(step)
    expected = microbatches(step) * (FORWARD + BACKWARD) + sum(map(cost, step.calls))
    assert timing.duration == pytest.approx(expected, rel=1e-9)
    assert timing.computing == pytest.approx(microbatches(step) * (FORWARD + BACKWARD), rel=1e-9)


def longest_path(timing: StepTiming) -> float:
    """Seconds of the longest chain of nodes that wait for each other, if collectives did not queue."""
    ends: list[float] = []
    computed = 0.0
    for node, lasts in zip(timing.graph.nodes, timing.lasts[:, 0].tolist(), strict=True):
        begin = max((ends[one] for one in node.after), default=0.0)
        if isinstance(node.does, ComputePart):
            begin = max(begin, computed)
            computed = begin + lasts
        ends.append(begin + lasts)
    return max(ends)


@pytest.mark.parametrize("pass_", [1e-5, 2e-3, 1.0])
@pytest.mark.parametrize("name", list(steps(2, overlap=True)))
def test_with_overlap_a_step_takes_at_least_its_longest_path_and_less_than_the_sum(name: str, pass_: float) -> None:
    step = steps(4, overlap=True)[name]
    timing = on_star(step, pass_, 2 * pass_)
    whole = 3 * pass_ * microbatches(step) + sum(map(cost, step.calls))
    assert longest_path(timing) * (1 - 1e-9) <= timing.duration <= whole * (1 + 1e-9)
    assert timing.duration >= sum(map(cost, step.calls)) * (1 - 1e-9)
    if name not in ("zero1", "zero3"):
        assert timing.duration < on_star(steps(4, overlap=False)[name], pass_, 2 * pass_).duration


def test_with_much_computing_fsdp_exposes_its_first_gathers_and_its_last_scatter() -> None:
    step = fsdp2(MODEL, 4)
    timing = on_star(step, 10.0, 20.0)
    of = {(call.operation, call.unit): cost(call) for call in step.calls}
    # The first block is gathered while the embedding is computed.
    exposed = of["all_gather", "root"] + of["reduce_scatter", "root"]
    assert timing.exposed == pytest.approx(exposed, rel=1e-6)
    behind = on_star(fsdp2(wrap_units(LAYERS, behind=["embedding.weight"]), 4), 10.0, 20.0)
    exposed += of["all_gather", "h.0"] + of["reduce_scatter", "h.0"]
    assert behind.exposed == pytest.approx(exposed, rel=1e-6)


def waits_for(step: StepGraph) -> list[set[int]]:
    """All that each node waits for, by what is said of it and the queue of computing; queues of collectives apart."""
    found: list[set[int]] = []
    computed: list[int] = []
    for number, node in enumerate(step.nodes):
        direct = {*node.after, *(computed[-1:] if isinstance(node.does, ComputePart) else [])}
        found.append(direct.union(*(found[one] for one in direct)))
        if isinstance(node.does, ComputePart):
            computed.append(number)
    return found


def place(step: StepGraph, what: str, unit: str, phase: str) -> int:
    """The number of the last such node; what is an operation or "compute"."""
    return max(
        number
        for number, node in enumerate(step.nodes)
        if (node.does.unit, node.does.phase) == (unit, phase)
        and (node.does.operation if isinstance(node.does, CollectiveCall) else "compute") == what
    )


def test_what_fsdp_computes_and_calls_waits_for_what_its_streams_wait_for() -> None:
    step = fsdp2(MODEL, 8, replicas=2)
    behind = waits_for(step)
    for number, block in enumerate(MODEL.blocks):
        for phase in ("forward", "backward"):
            assert place(step, "all_gather", block.name, phase) in behind[place(step, "compute", block.name, phase)]
        scattered = place(step, "reduce_scatter", block.name, "backward")
        assert place(step, "compute", block.name, "backward") in behind[scattered]
        assert scattered in behind[place(step, "all_reduce", block.name, "backward")]
        # One input of a reduce-scatter is alive: computing goes on when the one before has ended.
        if number + 2 < len(MODEL.blocks):
            before = place(step, "reduce_scatter", MODEL.blocks[number + 2].name, "backward")
            assert before in behind[place(step, "compute", block.name, "backward")]
            assert before not in behind[place(step, "compute", MODEL.blocks[number + 1].name, "backward")]
        # An all-gather waits for the copy of the last but one gathered, which comes behind what was computed before.
        if number >= 3:
            gathered = place(step, "all_gather", block.name, "forward")
            assert place(step, "compute", f"h.{number - 3}", "forward") in behind[gathered]
            assert place(step, "compute", f"h.{number - 2}", "forward") not in behind[gathered]
    two = fsdp2(MODEL, 8, replicas=2, reduce_scatter_max_input_buffers=2)
    later = waits_for(two)[place(two, "compute", "h.1", "backward")]
    assert place(two, "reduce_scatter", "h.4", "backward") in later
    assert place(two, "reduce_scatter", "h.3", "backward") not in later


@pytest.mark.parametrize(
    "step",
    [
        fsdp2(MODEL, 8, replicas=2, microbatches=2),
        fsdp2(MODEL, 8, microbatches=2, separate_reduce_scatter_group=True),
        zero(LAYERS, 4, stage=2, microbatches=2, reduce_bucket_size=50_000, overlap_comm=True),
        zero(LAYERS, 4, stage=3, microbatches=2, reduce_bucket_size=50_000),
    ],
)
def test_a_microbatch_begins_when_the_one_before_has_been_reduced(step: StepGraph) -> None:
    behind = waits_for(step)
    second = next(
        number
        for number, node in enumerate(step.nodes)
        if isinstance(node.does, ComputePart) and node.does.microbatch == 1
    )
    reduced = {
        number
        for number, node in enumerate(step.nodes)
        if isinstance(node.does, CollectiveCall) and node.does.microbatch == 0 and node.does.phase == "backward"
    }
    assert reduced
    assert reduced <= behind[second]


def test_zero_2_computes_on_when_the_bucket_before_has_been_reduced() -> None:
    step = zero(LAYERS, 4, stage=2, reduce_bucket_size=20_000, overlap_comm=True)
    behind = waits_for(step)
    reduced = [number for number, node in enumerate(step.nodes) if isinstance(node.does, CollectiveCall)][:-1]
    computed = [number for number, node in enumerate(step.nodes) if isinstance(node.does, ComputePart)][1:]
    assert len(reduced) == len(computed) > 3
    for bucket in range(2, len(computed)):
        assert reduced[bucket - 2] in behind[computed[bucket]]
        assert reduced[bucket - 1] not in behind[computed[bucket]]


def test_zero_3_computes_a_module_when_it_has_been_gathered() -> None:
    step = zero(LAYERS, 4, stage=3)
    behind = waits_for(step)
    for phase in ("forward", "backward"):
        for unit in ("h.2.up", "head"):
            assert place(step, "all_gather", unit, phase) in behind[place(step, "compute", unit, phase)]


def test_ddp_buckets_follow_the_recurrence_of_one_queue() -> None:
    step = ddp(LAYERS, 4, iteration=2, bucket_cap_mb=0.1)
    size = sum(layer.size for layer in LAYERS)
    ready, free = FORWARD, 0.0
    for call in step.calls:
        ready += BACKWARD * call.in_elements / size
        free = max(ready, free) + cost(call)
    assert len(step.calls) > 3
    assert on_star(step).duration == pytest.approx(free, rel=1e-9)


def test_gradients_of_one_unit_at_a_time_are_scattered_and_all_gathers_wait_for_copies() -> None:
    step = fsdp2(MODEL, 4, separate_reduce_scatter_group=True)
    timing = on_star(step, 1e-5, 2e-5)
    spans = {
        (node.does.operation, node.does.unit, node.does.phase): (timing.begun[number, 0], timing.ended[number, 0])
        for number, node in enumerate(step.nodes)
        if isinstance(node.does, CollectiveCall)
    }
    scattered = [span for (operation, *_), span in spans.items() if operation == "reduce_scatter"]
    assert all(former[1] <= later[0] for former, later in pairwise(scattered))
    # On a group of its own a reduce-scatter goes beside the all-gather that was issued before it.
    begin, end = spans["all_gather", "h.2", "backward"]
    assert spans["reduce_scatter", "h.4", "backward"][0] < end
    assert begin < spans["reduce_scatter", "h.4", "backward"][1]
    assert end - begin > 1.01 * cost(next(call for call in step.calls if call.unit == "h.2"))  # both share the links
    ends = {
        node.does.unit: timing.ended[number, 0]
        for number, node in enumerate(step.nodes)
        if isinstance(node.does, ComputePart) and node.does.phase == "forward" and node.does.unit != "root"
    }
    assert all(spans["all_gather", f"h.{number}", "forward"][0] >= ends[f"h.{number - 3}"] for number in range(3, 5))


def test_hsdp_on_nodes_takes_two_levels() -> None:
    nodes, each = 3, 4
    inside, outside, card = (1e-6, 200e9), 4e-6, 20e9
    graph = multi_gpu_nodes(
        nodes, each, intra_latency=inside[0], intra_bandwidth=inside[1], nic_latency=outside, nic_bandwidth=card
    )
    step = fsdp2(MODEL, nodes * each, replicas=nodes, overlap=False)
    expected = FORWARD + BACKWARD
    for call in step.calls:
        # The ranks of a node reduce their shards at the same time, over one card.
        between = call.operation == "all_reduce"
        expected += cost(call, inside[0] + outside, card / each) if between else cost(call, *inside)
    timing = time_step(step, Network(graph), forward=FORWARD, backward=BACKWARD)
    assert timing.duration == pytest.approx(expected, rel=1e-9)
    beside = fsdp2(MODEL, nodes * each, replicas=nodes)
    assert time_step(beside, Network(graph), forward=FORWARD, backward=BACKWARD).duration < timing.duration


def test_collectives_wait_for_the_slowest_worker() -> None:
    step = fsdp2(MODEL, 4, overlap=False)
    network = Network(star(4, latency=ALPHA, bandwidth=RATE))
    slow: Floats = np.array([1.0, 3.0, 1.0, 1.0])
    timing = time_step(step, network, forward=slow * FORWARD, backward=slow * BACKWARD)
    assert timing.duration == pytest.approx(3 * (FORWARD + BACKWARD) + sum(map(cost, step.calls)), rel=1e-9)
    assert timing.exposed[0] == pytest.approx(2 * (FORWARD + BACKWARD) + sum(map(cost, step.calls)), rel=1e-9)
    assert timing.waits().sum(axis=0) == pytest.approx(timing.exposed, rel=1e-9)


def test_memory_is_that_of_shards_and_of_what_is_gathered() -> None:
    size, workers = sum(layer.size for layer in LAYERS), 4
    block = MODEL.blocks[0].size
    whole = on_star(ddp(LAYERS, workers, iteration=2)).memory()
    assert whole[:3] == (4 * size, 8 * size, 8 * size)
    assert whole.peak == 20 * size
    one = on_star(fsdp2(MODEL, workers, overlap=False)).memory()
    assert one[:3] == (size, size, 2 * size)
    assert one.gathered == 4 * (
        MODEL.root.size + 2 * block
    )  # the next one is gathered before this one is used backward
    assert one.reduced == 4 * (MODEL.root.size + block)
    kept = on_star(fsdp2(MODEL, workers, reshard_after_forward=False)).memory()
    assert kept.gathered == 4 * size
    half = on_star(fsdp2(MODEL, workers, param_dtype="bfloat16", overlap=False)).memory()
    assert half.gathered == one.gathered / 2
    sums = on_star(fsdp2(MODEL, workers, microbatches=2, gradient_sync="last")).memory()
    assert sums.gradients == size + 4 * size
    stages = [on_star(zero(LAYERS, workers, stage=stage, dtype="float16")).memory() for stage in (1, 2, 3)]
    small = sum(layer.size for layer in LAYERS)  # all are below the threshold of stage 3
    assert [one.optimizer for one in stages] == [3 * size] * 3
    assert [one.parameters for one in stages] == [2 * size, 2 * size, size / 2 + 2 * small]
    assert [one.gradients for one in stages] == [2 * size, size / 2, size / 2]


def test_what_cannot_be_timed_is_refused_in_words() -> None:
    step, network = fsdp2(MODEL, 2), Network(star(2, latency=ALPHA, bandwidth=RATE))
    for options, says in (
        ({"forward": 1.0, "backward": 1.0, "algorithms": {"gather": "ring"}}, "did you mean 'all_gather'"),
        ({"forward": 1.0, "backward": 1.0, "algorithms": {"all_gather": "rng"}}, "did you mean 'ring'"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            time_step(step, network, **options)
