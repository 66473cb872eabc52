"""Steps one after another while links change, and the two ways in which a step is placed on a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simnet.base.arrays import Floats
from simnet.cost_models.costs.layers import Layer
from simnet.network import Network
from simnet.network.jitter import lognormal
from simnet.network.weather import Weather, steps
from simnet.topologies import multi_gpu_nodes, star
from simnet.training.parallel import ddp, fsdp2, repeat_step, seconds_of, time_step, wrap_units, zero
from simnet.training.parallel.graph import StepGraph
from simnet.training.parallel.placing import PlacedStep, StepSeries

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


def changing(workers: int) -> Network:
    graph = star(workers, latency=5e-6, bandwidth=1e9)
    link = next(iter(graph.edges))
    return Network(graph, {link: Weather(bandwidth=steps([0, 7e-3, 9e-3], [1e9, 1e8, 5e8], period=20e-3))})


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


def series_of(step: StepGraph, network: Network, count: int, start: float = 0.0) -> StepSeries:
    return repeat_step(PlacedStep(step, network), seconds_of(step, **PASSES), count, start)


@pytest.mark.parametrize("way", ["ddp", "fsdp2", "zero2"])
def test_each_step_is_as_if_it_alone_began_then(way: str) -> None:
    step = {
        "ddp": ddp(LAYERS, 4, iteration=2),
        "fsdp2": fsdp2(wrap_units(LAYERS), 4),
        "zero2": zero(LAYERS, 4, stage=2),
    }[way]
    network = changing(4)
    series = series_of(step, network, 7, 0.5)
    assert series.began[0] == 0.5
    assert series.began[1:] == pytest.approx(series.began[:-1] + series.durations[:-1], rel=1e-12)
    for number, began in enumerate(series.began.tolist()):
        alone = time_step(step, network, start=began, iteration=number, **PASSES)
        assert series.durations[number] == alone.duration
        assert series.exposed[number] == alone.exposed.max()
    assert np.ptp(series.durations) > 1e-4
    assert series.first.duration == series.durations[0]


def test_one_step_stands_for_all_where_nothing_changes_or_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, step = star(4, latency=5e-6, bandwidth=1e9), fsdp2(wrap_units(LAYERS), 4)
    count: list[float] = []
    times = PlacedStep._in_order

    def counted(self: PlacedStep, seconds: Floats, start: float, name: tuple[str | int, ...]) -> Any:
        count.append(start)
        return times(self, seconds, start, name)

    monkeypatch.setattr(PlacedStep, "_in_order", counted)
    still = series_of(step, Network(graph), 5)
    assert len(count) == 1
    assert still.durations == pytest.approx([still.first.duration] * 5)
    assert still.began == pytest.approx(still.first.duration * np.arange(5))
    drawn = series_of(step, Network(graph, jitter=lognormal(1e-5, 0.5)), 5)
    assert len(set(drawn.durations.tolist())) == 5


def test_a_series_needs_a_step() -> None:
    with pytest.raises(ValueError, match="steps must be"):
        series_of(fsdp2(wrap_units(LAYERS), 4), changing(4), 0)
