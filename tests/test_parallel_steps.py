"""Steps one after another while links change, and the two ways in which a step is placed on a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simnet.cost_models.costs.models import Layer
from simnet.network import Network
from simnet.network.jitter import lognormal
from simnet.network.weather import Weather, steps
from simnet.topologies import multi_gpu_nodes, star
from simnet.training.parallel.graph import StepGraph, seconds_of
from simnet.training.parallel.placing import EventRun, PlacedStep
from simnet.training.parallel.pytorch import fsdp2
from simnet.training.parallel.units import wrap_units
from step_times import time_step

LAYERS = [
    Layer("embedding.weight", (1000, 64)),
    *(
        Layer(f"h.{number}.{name}", shape)
        for number in range(4)
        for name, shape in (("up.weight", (256, 64)), ("down.weight", (64, 256)))
    ),
    Layer("head.weight", (1000, 64)),
]
PASSES: dict[str, Any] = {"forward": 1e-3, "backward": 2e-3}


def on_rails(nodes: int, each: int) -> Network:
    return Network(
        multi_gpu_nodes(
            nodes, each, intra_latency=1e-6, intra_bandwidth=2e10, nic_latency=4e-6, nic_bandwidth=2e9, rails=True
        ),
        {(1, "rail:1"): Weather(bandwidth=steps([0, 2e-3, 4e-3], [2e9, 5e8, 1e9], period=5e-3))},
    )


@pytest.mark.parametrize(
    "step",
    [
        fsdp2(wrap_units(LAYERS), 6, replicas=3),
        fsdp2(wrap_units(LAYERS), 6, replicas=3, microbatches=2, all_reduce="last"),
        fsdp2(
            wrap_units(LAYERS), 6, replicas=3, separate_reduce_scatter_group=True, reduce_scatter_max_input_buffers=2
        ),
    ],
)
def test_calls_that_cannot_meet_take_as_long_by_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, step: StepGraph
) -> None:
    network, slow = on_rails(3, 2), np.array([1.0, 1.1, 1.0, 1.3, 1.0, 1.0])
    passes = {name: value * slow for name, value in PASSES.items()}
    separate = any(node.queue == "reduce_scatter" for node in step.nodes)
    assert PlacedStep(step, network).apart is not separate
    found = time_step(step, network, start=1e-3, **passes)
    monkeypatch.setattr(PlacedStep, "_never_meet", lambda self: False)
    expected = time_step(step, network, start=1e-3, **passes)
    assert found.begun == pytest.approx(expected.begun, rel=1e-9)
    assert found.ended == pytest.approx(expected.ended, rel=1e-9)
    assert np.ptp(found.ended[-1]) > 0 or separate


def test_one_step_stands_for_all_where_nothing_changes_or_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, step = star(4, latency=5e-6, bandwidth=1e9), fsdp2(wrap_units(LAYERS), 4)
    count: list[float] = []
    run = EventRun.run

    def counted(self: EventRun) -> Any:
        count.append(0.0)
        return run(self)

    monkeypatch.setattr(EventRun, "run", counted)
    seconds, still = seconds_of(step, **PASSES), PlacedStep(step, Network(graph))
    assert len({still.time(seconds, 0.1 * number, number).duration for number in range(5)}) == len(count) == 1
    drawn = PlacedStep(step, Network(graph, jitter=lognormal(1e-5, 0.5)))
    assert len({drawn.time(seconds, 0.1 * number, number).duration for number in range(5)}) == 5
