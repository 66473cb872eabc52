"""Steps from Chakra traces: those of the library come back in time, and what cannot be a step is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simnet.base.errors import InputError
from simnet.cost_models.costs.models import Layer
from simnet.interchange import chakra
from simnet.interchange.chakra import COLLECTIVE_TYPES
from simnet.network import Network
from simnet.topologies import star
from simnet.training.parallel.graph import CollectiveCall, StepGraph, StepTiming
from simnet.training.parallel.passes import ModelParallelism, tensor_parallel
from simnet.training.parallel.pipeline import pipeline
from simnet.training.parallel.placing import PlacedStep
from simnet.training.parallel.pytorch import ddp, fsdp2
from simnet.training.parallel.traced import TracedStep, read_traced_step
from simnet.training.parallel.units import wrap_units
from simnet.training.parallel.zero import zero
from step_times import time_step

LAYERS = [
    Layer("embedding.weight", (100, 64)),
    *(Layer(f"h.{number}.{name}.weight", (128, 64)) for number in range(3) for name in ("up", "down")),
    Layer("head.weight", (100, 64)),
]
COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
TYPES = {name.lower(): number for number, name in enumerate(COLLECTIVE_TYPES)} | {"alltoall": 6}


def node(
    number: int, kind: int, needs: Sequence[int] = (), *, micros: int = 0, group: str = "", **numbers: int
) -> bytes:
    fields = chakra._varint_field(7, micros)
    fields += b"".join(chakra._encode_attribute(name, chakra._INT64, value) for name, value in numbers.items())
    if group:
        fields += chakra._bytes_field(
            10, chakra._encode_text(1, "pg_name") + chakra._encode_text(chakra._STRING, group)
        )
    return chakra._encode_node(number, f"n{number}", kind, list(needs), fields)


def write(folder: Path, *ranks: Sequence[bytes]) -> Path:
    for rank, nodes in enumerate(ranks):
        (folder / f"t.{rank}.et").write_bytes(chakra._encode_packet(chakra._encode_text(1, "1.0.0")) + b"".join(nodes))
    return folder / "t"


def as_traces(folder: Path, step: StepGraph, micros: Sequence[int]) -> Path:
    """Write what each worker does; the nodes of a queue wait for each other."""
    ranks: list[list[bytes]] = [[] for _ in range(step.workers)]
    does, last = step.does(), [dict[str, int]() for _ in range(step.workers)]
    for number, one in enumerate(step.nodes):
        call = one.does
        groups = step.groups_of(one) if isinstance(call, CollectiveCall) else []
        for rank in np.flatnonzero(does[number]).tolist():
            needs = {other for other in one.after if does[other, rank]}
            needs |= {last[rank][one.queue]} if one.queue in last[rank] else set()
            last[rank][one.queue] = number
            if not isinstance(call, CollectiveCall):
                ranks[rank].append(node(number, COMP, sorted(needs), micros=micros[number]))
                continue
            place = next(index for index, members in enumerate(groups) if rank in members)
            called = f"{one.queue} {call.group} {groups[place]}"
            kind = TYPES[call.operation]
            ranks[rank].append(
                node(number, COLLECTIVE, sorted(needs), group=called, comm_type=kind, comm_size=call.in_bytes)
            )
    return write(folder, *ranks)


TENSOR = ModelParallelism(tensor_parallel=2, tokens=64, width=64)
STEPS = {
    "ddp": ddp(LAYERS, 4, iteration=2, bucket_cap_mb=0.05),
    "fsdp2": fsdp2(wrap_units(LAYERS), 4),
    "hsdp": fsdp2(wrap_units(LAYERS), 4, replicas=2, separate_reduce_scatter_group=True),
    "zero3": zero(LAYERS, 4, stage=3),
    "alone": fsdp2(wrap_units(LAYERS), 4, overlap=False),
    "tensor": tensor_parallel(ddp(LAYERS, 2, iteration=2), wrap_units(LAYERS), TENSOR),
    "pipeline": pipeline([ddp(LAYERS, 2, iteration=2, microbatches=3)] * 2, tokens=64, width=64),
}


def timed(step: TracedStep, network: Network) -> StepTiming:
    return PlacedStep(step.graph, network).time(step.seconds())


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_the_library_takes_as_long_from_its_traces(tmp_path: Path, name: str) -> None:
    step = STEPS[name]
    network = Network(star(step.workers, latency=5e-6, bandwidth=1e9))
    rng = np.random.default_rng(5)
    micros = rng.integers(0, 400, len(step.nodes))
    computes = np.array([not isinstance(one.does, CollectiveCall) for one in step.nodes])
    seconds = np.where(computes[:, np.newaxis] & step.does(), micros[:, np.newaxis] * 1e-6, 0.0)
    expected = PlacedStep(step, network).time(seconds)
    found = read_traced_step(as_traces(tmp_path, step, micros.tolist()))
    timing = timed(found, network)
    assert timing.ended.max(axis=0) == pytest.approx(expected.ended.max(axis=0), rel=1e-9)
    assert timing.computing == pytest.approx(expected.computing, rel=1e-9)
    assert sorted(call.in_bytes for call in found.graph.calls) == sorted(
        call.in_bytes for one in step.nodes if isinstance(call := one.does, CollectiveCall) for _ in step.groups_of(one)
    )


def test_messages_and_collectives_wait_as_the_trace_says(tmp_path: Path) -> None:
    all_reduce: dict[str, Any] = {"comm_type": TYPES["all_reduce"], "comm_size": 1000}
    prefix = write(
        tmp_path,
        [
            node(0, COMP, micros=100),
            node(1, SEND, [0], comm_dst=1, comm_size=500, comm_tag=3),
            node(2, COMP, micros=50),
            node(3, COLLECTIVE, [2], **all_reduce),
        ],
        [
            node(9, RECV, comm_src=0, comm_size=500, comm_tag=3),
            node(4, COMP, [9], micros=200),
            node(5, COLLECTIVE, [4], **all_reduce),
        ],
    )
    step = read_traced_step(prefix)
    alpha, rate = 1e-5, 1e8
    timing = timed(step, Network(star(2, latency=alpha, bandwidth=rate)))
    message, ring = alpha + 500 / rate, 2 * (alpha + 500 / rate)
    assert timing.duration == pytest.approx(100e-6 + message + 200e-6 + ring, rel=1e-9)
    assert timing.computing == pytest.approx([150e-6, 200e-6])
    plain = time_step(step.graph, Network(star(2, latency=alpha, bandwidth=rate)), forward=[150e-6, 200e-6], backward=0)
    assert plain.duration == pytest.approx(timing.duration)


def test_calls_of_a_group_keep_the_order_of_the_trace(tmp_path: Path) -> None:
    late = [
        node(0, COLLECTIVE, [2], comm_type=TYPES["all_reduce"], comm_size=1000),
        node(1, COLLECTIVE, comm_type=TYPES["all_reduce"], comm_size=4000),
        node(2, COMP, micros=100),
    ]
    alpha, rate = 1e-5, 1e8
    timing = timed(read_traced_step(write(tmp_path, late, late)), Network(star(2, latency=alpha, bandwidth=rate)))
    first, second = (2 * (alpha + size / 2 / rate) for size in (1000, 4000))
    # The second could begin at once, if it did not wait for the first.
    assert timing.duration == pytest.approx(100e-6 + first + second, rel=1e-9)


def test_a_group_of_one_rank_sends_nothing(tmp_path: Path) -> None:
    prefix = write(tmp_path, [node(0, COLLECTIVE, comm_type=0, comm_size=8, micros=7, group="own")], [])
    found = read_traced_step(prefix)
    assert not found.graph.calls
    assert not found.seconds().any()


SUM: dict[str, Any] = {"comm_type": 0, "comm_size": 8}


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([], "t.0.et: there is no such file"),
        ([[node(1, COMP), node(1, COMP)]], "t.0.et: node 1: stands twice"),
        ([[node(1, COMP, [2]), node(2, COMP, [1])]], "t.0.et: node 1: waits for itself"),
        (
            [[node(1, COLLECTIVE, **SUM), node(2, COLLECTIVE, **SUM)], [node(1, COLLECTIVE, **SUM)]],
            "t.0.et: node 2: is call 2 of group '', of which rank 1 has 1",
        ),
        (
            [[node(1, COLLECTIVE, **SUM)], [node(5, COLLECTIVE, comm_type=0, comm_size=9)]],
            "t.1.et: node 5: is ALL_REDUCE of 9 bytes, which is ALL_REDUCE of 8 bytes at rank 0",
        ),
        (
            [[node(1, COLLECTIVE, comm_type=9, comm_size=8)]] * 2,
            "t.0.et: node 1: is a collective of kind BARRIER; allowed: ALL_REDUCE, ALL_GATHER",
        ),
        ([[node(1, COLLECTIVE, comm_type=0)]] * 2, "t.0.et: node 1: needs a comm_size >= 0"),
        ([[node(1, SEND, comm_dst=1, comm_size=8)], []], "t.0.et: node 1: rank 1 has no receive for this message"),
        ([[], [node(1, RECV, comm_src=0, comm_size=8)]], "t.1.et: node 1: rank 0 has no send for this message"),
        ([[node(1, SEND, comm_dst=7, comm_size=8)]], "t.0.et: node 1: there is no other rank 7"),
    ],
)  # fmt: skip
def test_what_is_no_step_is_refused(tmp_path: Path, ranks: list[list[bytes]], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        read_traced_step(write(tmp_path, *ranks))
