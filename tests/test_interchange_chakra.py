"""Chakra traces: round trips, the bytes of the wire format by hand, other writers' traces, and what is refused."""

import contextlib
import gzip
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules import canonical, schedules
from simnet.base.errors import InputError
from simnet.collectives import allgather_bruck, allreduce_ring, alltoallv_pairwise
from simnet.interchange.chakra import read_chakra, write_chakra
from simnet.network import Network
from simnet.schedule import Round, Schedule
from simnet.topologies import star


@given(schedule=schedules(5, 2**45, 1e6))
def test_there_and_back(tmp_path_factory, schedule):
    prefix = tmp_path_factory.mktemp("chakra") / "t"
    assert write_chakra(schedule, prefix) == [prefix.with_name(f"t.{rank}.et") for rank in range(schedule.n_ranks)]
    again = read_chakra(prefix)
    assert np.array_equal(again.bytes_sent(), schedule.bytes_sent())
    graph = star(schedule.n_ranks, 1e-3, 1e9)
    expected = Network(graph).time(schedule).rank_finish
    assert Network(graph).time(again).rank_finish == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "schedule",
    [allreduce_ring(4, 1000), allgather_bruck(5, 64), alltoallv_pairwise(np.arange(16).reshape(4, 4))],
    ids=["ring", "bruck", "alltoallv"],
)
def test_collectives_also_packed(tmp_path, schedule):
    for path in write_chakra(schedule, tmp_path / "t"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_chakra(tmp_path / "t") == canonical(schedule)


def packet(content):
    return bytes([len(content)]) + content


def attribute(name, kind, value):
    inner = bytes([1 << 3 | 2, len(name)]) + name.encode() + kind + bytes([value])
    return bytes([10 << 3 | 2, len(inner)]) + inner


INT32, INT64, BOOL = b"\x38", b"\x48", b"\xd8\x01"
METADATA = packet(b"\x0a\x051.0.0")


def node(number, kind, needs=(), packed=True, **numbers):
    deps = bytes([5 << 3 | 2, len(needs), *needs]) if packed and needs else bytes(x for d in needs for x in (5 << 3, d))
    content = bytes([1 << 3, number, 2 << 3 | 2, 1]) + b"n" + bytes([3 << 3, kind]) + deps
    if "micros" in numbers:
        content += bytes([7 << 3, numbers.pop("micros")])
    content += b"".join(
        attribute(f"comm_{key}", INT64 if key == "size" else INT32, value) for key, value in numbers.items()
    )
    assert len(content) < 128
    return packet(content)


def test_bytes_on_the_wire(tmp_path):
    write_chakra(Schedule(2, [Round([0], [1], [100], [0.0, 5e-6], "p")]), tmp_path / "t")
    sender = (tmp_path / "t.0.et").read_bytes()
    name = b"p send 0"
    expected = (
        bytes([1 << 3, 0, 2 << 3 | 2, len(name)])
        + name
        + bytes([3 << 3, 5])
        + attribute("is_cpu_op", BOOL, 0)
        + attribute("comm_src", INT32, 0)
        + attribute("comm_dst", INT32, 1)
        + attribute("comm_tag", INT32, 0)
        + attribute("comm_size", INT64, 100)
    )
    assert sender == METADATA + packet(expected)
    receiver = (tmp_path / "t.1.et").read_bytes()
    # Two nodes: the computation of 5 microseconds, and a receive that depends on it.
    assert bytes([3 << 3, 4, 7 << 3, 5]) in receiver
    assert bytes([5 << 3 | 2, 1, 0]) in receiver


def write(tmp_path, *ranks):
    for rank, nodes in enumerate(ranks):
        (tmp_path / f"t.{rank}.et").write_bytes(METADATA + b"".join(nodes))
    return tmp_path / "t"


@pytest.mark.parametrize("packed", [True, False])
def test_traces_of_others(tmp_path, packed):
    prefix = write(
        tmp_path,
        [
            node(7, 4, micros=9),
            node(1, 5, [7], packed, size=80, dst=1, src=0, tag=3),
            node(2, 6, [1], packed, size=4, src=1),
        ],
        [node(0, 6, size=80, src=0, tag=3), node(1, 1, [0], packed), node(5, 5, [1], packed, size=4, dst=0)],
    )
    assert read_chakra(prefix) == Schedule(2, [Round([0], [1], [80], [9e-6, 0.0]), Round([1], [0], [4])])


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "t.0.et: there is no such file"),
        ([[node(1, 7)]], "t.0.et: node 1: is a collective (n); only sends"),
        ([[node(1, 5, size=1)]], "t.0.et: node 1: needs a comm_dst >= 0"),
        ([[node(1, 6, src=1)]], "t.0.et: node 1: needs a comm_size >= 0"),
        ([[node(1, 5, size=1, dst=1)]], "t.0.et: node 1: there is no other rank 1; traces are of ranks 0..0"),
        ([[node(1, 5, size=1, dst=0)], []], "t.0.et: node 1: there is no other rank 0"),
        ([[node(1, 5, size=1, dst=1)], []], "t.0.et: node 1: rank 1 has no recv for this send"),
        (
            [[node(1, 5, size=1, dst=1)], [node(4, 6, size=2, src=0)]],
            "t.1.et: node 4: receives 2 bytes, but node 1 sends 1",
        ),
        ([[node(1, 4), node(1, 4)]], "t.0.et: node 1: stands twice"),
        ([[node(1, 4, [2]), node(2, 4, [1])]], "operations wait for each other in a circle"),
        (
            [
                [node(1, 5, size=1, dst=1), node(2, 4, micros=3), node(3, 5, [2], size=1, dst=1, tag=1)],
                [node(1, 6, size=1, src=0), node(2, 6, size=1, src=0, tag=1)],
            ],
            "t.0.et: node 1: does not wait for n (node 2)",
        ),
        ([[b"\x05abc"]], "t.0.et: ends inside of a message"),
        ([[b"\x02\x0b\x00"]], "t.0.et: is no Chakra trace: a field has the wire type 3"),
        ([[b"\x02\x12\x09"]], "t.0.et: is no Chakra trace: a field is longer than its message"),
        ([[b"\xff" * 12]], "t.0.et: is no Chakra trace: a number is longer than 64 bits"),
        ([[b"\x80"]], "t.0.et: is no Chakra trace: it ends inside of a number"),
    ],
)
def test_refusals(tmp_path, ranks, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read_chakra(write(tmp_path, *ranks))


@given(content=st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("chakra") / "t.0.et"
    path.write_bytes(METADATA + content)
    with contextlib.suppress(InputError):
        read_chakra(path.with_name("t"))
    path.write_bytes(b"\x1f\x8b" + content)
    with pytest.raises(InputError):
        read_chakra(path.with_name("t"))
