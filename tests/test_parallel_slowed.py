"""Computing that collectives slow down: by hand, and what holds for every way of sharding."""

from __future__ import annotations

import numpy as np
import pytest

from simnet.cost_models.costs.models import Layer
from simnet.network import Network
from simnet.topologies import multi_gpu_nodes, star
from simnet.training.job.spans import intersect_intervals, merge_intervals
from simnet.training.parallel.graph import CollectiveCall, GraphBuilder, HeldMemory, StepGraph, StepTiming
from simnet.training.parallel.placing import PlacedStep
from simnet.training.parallel.pytorch import ddp, fsdp2
from simnet.training.parallel.units import wrap_units
from simnet.training.parallel.zero import zero
from step_times import time_step

LAYERS = [
    Layer("embedding.weight", (1000, 64)),
    *(Layer(f"h.{number}.up.weight", (256, 64)) for number in range(4)),
    Layer("head.weight", (1000, 64)),
]
WAYS = {
    "ddp": ddp(LAYERS, 4, iteration=2, bucket_cap_mb=0.1),
    "fsdp2": fsdp2(wrap_units(LAYERS), 4, microbatches=2),
    "hsdp": fsdp2(wrap_units(LAYERS), 4, replicas=2),
    "zero2": zero(LAYERS, 4, stage=2, reduce_bucket_size=50_000, overlap_comm=True),
    "zero3": zero(LAYERS, 4, stage=3),
}


def two_parts(parts: tuple[float, float], nbytes: int, queues: tuple[str, ...] = ("world",)) -> StepGraph:
    """A part, then all-reduces on queues of their own beside another part: entries are thousandths of a second."""
    step = GraphBuilder(2, layout=dict.fromkeys(queues, ((0, 1),)))
    step.microbatch = 0
    first = step.compute("a", "backward", round(1000 * parts[0]))
    for queue in queues:
        step.call("all_reduce", "a", (nbytes, nbytes), "int8", "backward", group=queue, after=[first])
    step.compute("b", "backward", round(1000 * parts[1]))
    return step.built(HeldMemory(0, 0, 0))


def timed(step: StepGraph, slowdown: float, backward: float) -> StepTiming:
    # An all-reduce of a gigabyte between two takes two rounds of half of it: a second.
    network = Network(star(2, latency=0.0, bandwidth=1e9))
    return time_step(step, network, forward=0.0, backward=backward, slowdown=slowdown)


@pytest.mark.parametrize(
    ("nbytes", "slowdown", "end"),
    [
        # Of 2 s half a second is done in the first, beside which the call is; 1.5 s are left.
        (10**9, 2.0, 1 + 1 + 1.5),
        # The call takes 4 s, and what takes 2 s alone is through after 3.
        (4 * 10**9, 1.5, 1 + 3),
        # It ends at the same moment.
        (3 * 10**9, 1.5, 1 + 3),
        (10**9, 1.0, 1 + 2),
    ],
)
def test_a_part_is_slower_while_a_call_is_under_way_and_then_as_fast_as_alone(
    nbytes: int, slowdown: float, end: float
) -> None:
    found = timed(two_parts((1.0, 2.0), nbytes), slowdown, 3.0)
    assert found.ended[0] == pytest.approx([1.0, 1.0])
    assert found.ended[2] == pytest.approx([end, end])
    assert found.computing == pytest.approx([end, end])
    assert found.slowed == pytest.approx(2 * [end - 3.0])
    # Calls take what they take.
    assert found.lasts[1] == pytest.approx(2 * [nbytes / 1e9])


def test_workers_that_compute_beside_a_call_for_other_times_are_slowed_each_for_its_own() -> None:
    step = two_parts((1.0, 2.0), 10**9)
    network = Network(star(2, latency=0.0, bandwidth=1e9))
    found = time_step(step, network, forward=0.0, backward=[3.0, 4.5], slowdown=2.0)
    # The call waits for the second worker, until 1.5, and goes until 2.5. The first has done half a second of its 2
    # by then, half of one beside the call, and 1 s is left; the second half of one of its 3.
    assert found.begun[1] == pytest.approx([1.5, 1.5])
    assert found.ended[2] == pytest.approx([2.5 + 1.0, 2.5 + 2.5])


def beside(timing: StepTiming, worker: int) -> float:
    """Seconds for which a worker computes while a collective of its own is under way."""
    calls = np.array([isinstance(node.does, CollectiveCall) for node in timing.graph.nodes])
    times = np.stack([timing.begun[:, worker], timing.ended[:, worker]], axis=1)
    under_way = list(merge_intervals(sorted(map(tuple, times[calls].tolist()))))
    return sum(
        b - a for one in sorted(map(tuple, times[~calls].tolist())) for a, b in intersect_intervals(one, under_way)
    )


def network(nodes: int = 2) -> Network:
    graph = multi_gpu_nodes(
        nodes, 4 // nodes, intra_latency=1e-6, intra_bandwidth=2e10, nic_latency=4e-6, nic_bandwidth=2e9
    )
    return Network(graph)


@pytest.mark.parametrize("slowdown", [1.2, 1.8])
@pytest.mark.parametrize("way", list(WAYS))
def test_what_is_computed_beside_collectives_takes_that_much_longer(way: str, slowdown: float) -> None:
    passes = {"forward": np.array([1.0, 1.1, 1.0, 1.3]) * 1e-3, "backward": np.array([2.0, 2.0, 2.3, 2.0]) * 1e-3}
    found, fast = (time_step(WAYS[way], network(), slowdown=one, **passes) for one in (slowdown, 1.0))
    expected = [beside(found, worker) * (1 - 1 / slowdown) for worker in range(4)]
    assert max(expected) > 1e-5
    assert found.slowed == pytest.approx(expected, rel=1e-6)
    assert fast.duration < found.duration <= fast.duration + max(expected) * (1 + 1e-9)
    assert not fast.slowed.any()


@pytest.mark.parametrize("way", list(WAYS))
def test_calls_that_cannot_meet_slow_computing_as_the_event_loop_says(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    step, graph = WAYS[way], star(4, latency=5e-6, bandwidth=1e9)
    found = time_step(step, Network(graph), forward=1e-3, backward=2e-3, slowdown=1.5, start=1e-3)
    monkeypatch.setattr(PlacedStep, "_never_meet", lambda self: False)
    expected = time_step(step, Network(graph), forward=1e-3, backward=2e-3, slowdown=1.5, start=1e-3)
    assert found.begun == pytest.approx(expected.begun, rel=1e-9)
    assert found.ended == pytest.approx(expected.ended, rel=1e-9)
