"""Binary GOAL: round trips, the bytes of the format by hand, files of txt2bin, and what is refused."""

import contextlib
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commands
from schedules import canonical, schedules
from simnet.base.errors import InputError
from simnet.collectives import allreduce_ring
from simnet.interchange import kind_of, read_goal, read_goal_binary, write_goal_binary
from simnet.schedule import Round, Schedule

SEND, RECV, CALC = 1, 2, 3


@given(schedule=schedules(6, 10**12, 1e9))
def test_own_files_come_back_as_they_were(schedule, tmp_path_factory):
    path = tmp_path_factory.mktemp("goal") / "a.bin"
    write_goal_binary(schedule, path)
    assert kind_of(path) == "goal-binary"
    assert read_goal_binary(path) == canonical(schedule)


def rank(*operations, roots=None, needs=None):
    """A rank of (kind, peer, size, tag, cpu, waited for at their ends, at their starts), as the format has it."""
    ends = [[n for n, one in enumerate(operations) if place in one[5]] for place in range(len(operations))]
    starts = [[n for n, one in enumerate(operations) if place in one[6]] for place in range(len(operations))]
    nodes, places = b"", []
    for number, (kind, peer, size, tag, cpu, after, at_start) in enumerate(operations):
        count = len(after) + len(at_start) if needs is None else needs
        nodes += struct.pack("<IBIQIBB", count, kind, peer, size, tag, cpu, 0)
        for own in (ends[number], starts[number]):
            nodes += struct.pack("<II", len(own), len(places))
            places += own
    free = [n for n, one in enumerate(operations) if not one[5] and not one[6]] if roots is None else roots
    return (
        struct.pack(f"<II{len(free)}I", len(operations), len(free), *free)
        + nodes
        + struct.pack(f"<{len(places)}I", *places)
    )


def file(*ranks, mark=4223, n_ranks=None, shift=0, tail=b""):
    begin = 6 + 16 * len(ranks)
    table = b""
    for one in ranks:
        table += struct.pack("<QQ", begin + shift, begin + len(one))
        begin += len(one)
    return struct.pack("<QIBB", mark, len(ranks) if n_ranks is None else n_ranks, 0, 0) + table + b"".join(ranks) + tail


def send(peer, size, tag=0, after=(), at_start=()):
    return SEND, peer, size, tag, 0, after, at_start


def recv(peer, size, tag=0, after=(), at_start=()):
    return RECV, peer, size, tag, 0, after, at_start


def calc(size, after=(), tag=0, cpu=0):
    return CALC, 0, size, tag, cpu, after, ()


def test_bytes_of_a_file(tmp_path):
    write_goal_binary(Schedule(3, [Round([0], [2], [7]), Round([2], [0], [9], [5e-9, 0.0, 0.0])]), tmp_path / "a.bin")
    expected = file(
        rank(calc(0), send(2, 7, 0, after=[0]), calc(5, [0, 1], tag=1), recv(2, 9, 1, after=[2])),
        rank(),
        rank(calc(0), recv(0, 7, 0, after=[0]), calc(0, [0, 1], tag=1), send(0, 9, 1, after=[2])),
    )
    assert (tmp_path / "a.bin").read_bytes() == expected


def read(tmp_path, content, **options):
    (tmp_path / "a.bin").write_bytes(content)
    return read_goal_binary(tmp_path / "a.bin", **options)


def test_others_are_read_as_their_text(tmp_path):
    text = """num_ranks 3
rank 0 {
a: send 1b to 1
b: send 2b to 2
b irequires a
c: calc 5
c requires a
c requires b
}
rank 1 {
recv 1b from 0
}
rank 2 {
recv 2b from 0
}
"""
    (tmp_path / "a.goal").write_text(text)
    content = file(rank(send(1, 1), send(2, 2, at_start=[0]), calc(5, [0, 1])), rank(recv(0, 1)), rank(recv(0, 2)))
    assert read(tmp_path, content) == read_goal(tmp_path / "a.goal")


PAIR = rank(recv(0, 1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.bin: is not binary GOAL"),
        (file(rank(), mark=2342), "a.bin: was used up by a simulation with --save-mem"),
        (file(rank())[:11], "a.bin: ends before its ranks"),
        (file(n_ranks=0), "a.bin: must have 1..1,000,000 ranks, got 0"),
        (file(rank(), n_ranks=2**32 - 1), "a.bin: must have 1..1,000,000 ranks, got 4,294,967,295"),
        (file(rank(), n_ranks=900_000), "a.bin: ends before its ranks"),
        (file(rank(), shift=1), "a.bin: rank 0: does not lie behind the rank before"),
        (file(rank())[:14] + struct.pack("<QQ", 22, 2**62), "a.bin: rank 0: ends behind 1,073,741,824 bytes"),
        (file(rank(send(1, 1)), PAIR)[:-1], "a.bin: rank 1: ends behind the end of the file"),
        (file(struct.pack("<II", 2**31, 0)), "a.bin: rank 0: has no room for its 2,147,483,648 operations"),
        (file(struct.pack("<II", 1, 2**31)), "a.bin: rank 0: has no room for its 1 operations"),
        (file(b"\0" * 4), "a.bin: rank 0: has no room for its 0 operations"),
        (
            file(rank(send(1, 1), (7, 0, 0, 0, 0, (), ())), PAIR),
            "rank 0, operation 1: is neither send nor recv nor calc",
        ),
        (file(rank(send(1, 2**63)), PAIR), "rank 0, operation 0: has a size of 2**63 or more"),
        (file(rank(recv(2**32 - 1, 1)), PAIR), "rank 0, operation 0: must name its source"),
        (file(rank(recv(1, 1, 2**32 - 1)), PAIR), "rank 0, operation 0: must name its tag"),
        (file(rank(send(1, 1), needs=1, roots=[]), PAIR), "rank 0, operation 0: waits for another number of others"),
        (file(rank(send(1, 1), roots=[]), PAIR), "rank 0: begins with other operations"),
        (file(rank(send(5, 1)), PAIR), "rank 0, operation 0: there is no other rank 5"),
        (file(rank(send(1, 1)), rank()), "rank 0, operation 0: rank 1 has no recv for this send"),
        (file(rank(send(1, 1)), rank(recv(0, 2))), "rank 1, operation 0: receives 2 bytes, but operation 0 sends 1"),
        (file(rank(calc(1), calc(2, cpu=1))), "rank 0, operation 1: works on another cpu"),
        (
            file(rank(send(1, 1))[:-16] + struct.pack("<IIII", 1, 0, 0, 0), PAIR),
            "rank 0, operation 0: has dependents where there are none",
        ),
        (
            file(rank(send(1, 1))[:-16] + struct.pack("<IIIII", 1, 0, 0, 0, 9), PAIR),
            "rank 0: has a dependent 9, but operations are 0..0",
        ),
    ],
)
def test_refusals_say_where(tmp_path, content, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read(tmp_path, content)


@given(at=st.integers(0, 400), byte=st.integers(0, 255), cut=st.integers(0, 400))
def test_any_bytes_are_read_or_refused(at, byte, cut, tmp_path_factory):
    path = tmp_path_factory.mktemp("goal") / "a.bin"
    write_goal_binary(allreduce_ring(2, 64), path)
    content = bytearray(path.read_bytes())
    content[at % len(content)] = byte
    path.write_bytes(content[: len(content) - max(0, cut - 300)])
    with contextlib.suppress(InputError):
        read_goal_binary(path)


def test_a_larger_file_is_read_if_the_limit_says_so(tmp_path):
    path = tmp_path / "a.bin"
    write_goal_binary(allreduce_ring(4, 10**6), path)
    size = path.stat().st_size
    assert read_goal_binary(path, largest=size).n_messages == 24
    with pytest.raises(InputError, match=f"is larger than {size - 1:,} bytes"):
        read_goal_binary(path, largest=size - 1)


def test_commands_write_and_time_it(tmp_path):
    out = tmp_path / "ring.bin"
    ring = ("--collective", "allreduce_ring", "--workers", 4, "--size", "1 MB")
    assert (
        "binary GOAL: 24 messages of 4 ranks"
        in commands.did("export", *ring, "--to", "goal-binary", "--out", out).stdout
    )
    star = ("--topology", "star", "--latency", "10 us", "--bandwidth", "10 Gbit/s")
    assert commands.did("time", out, *star).stdout == commands.did("time", *ring, *star).stdout


def test_what_is_too_large_for_the_format_is_refused_by_the_command(tmp_path):
    sizes = ("--collective", "broadcast_binomial", "--workers", 2, "--size", "1000000 TB")
    said = commands.refused("export", *sizes, "--to", "goal-binary", "--out", tmp_path / "a.bin")
    assert "the most that is written is 999999999999999999" in said
    assert not (tmp_path / "a.bin").exists()
