"""GOAL text: round trips of our own schedules, hand-written files of others, and what is refused and where."""

import contextlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules import schedules
from simnet.base.errors import InputError
from simnet.interchange.goal import read_goal
from simnet.network import Network
from simnet.schedule import Round, Schedule
from simnet.topologies import star


def read(tmp_path, text, **options):
    path = tmp_path / "a.goal"
    path.write_text(text)
    return read_goal(path, **options)


@given(schedule=schedules(6, 10**12, 1e9))
def test_own_files_take_the_same_time(tmp_path_factory, schedule):
    path = tmp_path_factory.mktemp("goal") / "a.goal"
    schedule.to_goal(path)
    again = read_goal(path)
    assert np.array_equal(again.bytes_sent(), schedule.bytes_sent())
    assert again.n_messages == schedule.n_messages
    graph = star(schedule.n_ranks, 1e-3, 1e9)
    expected = Network(graph).time(schedule).rank_finish
    assert Network(graph).time(again).rank_finish == pytest.approx(expected, rel=1e-12)


def test_receives_posted_together_of_messages_sent_in_turn(tmp_path):
    text = """num_ranks 2
rank 0 {
a: send 1b to 1 tag 1
b: send 2b to 1 tag 2
b requires a
}
rank 1 {
recv 2b from 0 tag 2
recv 1b from 0 tag 1
}
"""
    assert read(tmp_path, text) == Schedule(2, [Round([0], [1], [1]), Round([0], [1], [2])])


def test_messages_that_start_together_are_one_round(tmp_path):
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
    assert read(tmp_path, text) == Schedule(3, [Round([0, 0], [1, 2], [1, 2]), Round([], [], [], [5e-9, 0.0, 0.0])])


def test_equal_tags_match_in_order(tmp_path):
    text = """num_ranks 2
rank 0 {
a: send 1b to 1
b: send 2b to 1
b requires a
}
rank 1 {
a: recv 1b from 0
b: recv 2b from 0
b requires a
}
"""
    assert [one.nbytes.tolist() for one in read(tmp_path, text).rounds] == [[1.0], [2.0]]


OVERLAP = """num_ranks 2
rank 0 {
a: send 8b to 1
w: calc 50
b: send 4b to 1
b requires w
}
rank 1 {
recv 8b from 0
recv 4b from 0
}
"""


def test_overlap_is_refused_and_approximated_on_request(tmp_path):
    with pytest.raises(InputError, match=r"a\.goal:3: does not wait for w \(line 4\).*--loose"):
        read(tmp_path, OVERLAP)
    loose = read(tmp_path, OVERLAP, strict=False)
    assert loose.bytes_sent().tolist() == [12.0, 0.0]


def ranks(*bodies):
    """Return text of ranks from 0 on, each of whose bodies is lines."""
    return "num_ranks 2\n" + "".join(f"rank {rank} {{\n{body}\n}}\n" for rank, body in enumerate(bodies))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.goal:1: has no num_ranks"),
        ("num_ranks 0\n", "a.goal:1: num_ranks must be in 1..1,000,000, got 0"),
        ("num_ranks 99999999999\n", "a.goal:1: num_ranks must be in"),
        ("num_ranks 2\nnum_ranks 2\n", "a.goal:2: num_ranks stands twice"),
        ("rank 0 {\n}\n", "a.goal:1: num_ranks must stand before"),
        ("num_ranks 2\nrank 2 {\n}\n", "a.goal:2: there is no rank 2; ranks are 0..1"),
        ("num_ranks 2\nrank 0 {\n}\nrank 0 {\n}\n", "a.goal:4: rank 0 stands twice"),
        ("num_ranks 2\nrank 0 {\n", "a.goal:2: rank 0 is not closed"),
        ("num_ranks 2\nrank 0 {\nrank 1 {\n}\n", "a.goal:3: rank 0 of line 2 is not closed"),
        ("num_ranks 2\ncalc 1\n", "a.goal:2: stands outside of a rank"),
        (ranks("sent 1b to 1"), "a.goal:3: cannot be read: 'sent 1b to 1'; expected"),
        (ranks("send 1 to 1"), "a.goal:3: cannot be read"),
        (ranks("send -1b to 1"), "a.goal:3: cannot be read"),
        (ranks("calc 1.5"), "a.goal:3: cannot be read"),
        (ranks("send 1b to 2"), "a.goal:3: there is no rank 2"),
        (ranks("send 1b to 0"), "a.goal:3: rank 0 cannot send to or from itself"),
        (ranks("recv 1b from -1"), "a.goal:3: a recv must name its source"),
        (ranks("recv 1b from 1 tag -1"), "a.goal:3: a recv must name its tag"),
        (ranks("send 1b to 1"), "a.goal:3: rank 1 has no recv for this send of rank 0 with tag 0"),
        (ranks("recv 1b from 1"), "a.goal:3: rank 1 has no send for this recv"),
        (ranks("send 1b to 1 tag 3", "recv 1b from 0 tag 4"), "a.goal:3: rank 1 has no recv"),
        (ranks("send 1b to 1", "recv 2b from 0"), "a.goal:6: receives 2 bytes, but line 3"),
        (ranks("work: calc 1\nwork: calc 2"), "a.goal:4: label 'work' stands twice, first in line 3"),
        (
            ranks("work: calc 1\nb: calc 2\nb requires wrok"),
            "a.goal:5: there is no label 'wrok' in this rank; did you mean 'work'?",
        ),
        (ranks("a: calc 1\nb: calc 2\na requires b\nb requires a"), "operations wait for each other in a circle"),
        (
            ranks(*(f"a: recv 1b from {peer}\nb: send 1b to {peer}\nb requires a" for peer in (1, 0))),
            "ranks wait for each other in a circle",
        ),
        (ranks("a: calc 1 cpu 0\nb: calc 2 cpu 1"), "a.goal:4: does not wait for a (line 3)"),
    ],
)
def test_refusals_name_the_line(tmp_path, text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read(tmp_path, text)


@given(text=st.text(alphabet="num_ranks 01{}\nrecvsndtolabcq:b-/*", max_size=60))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("goal") / "a.goal"
    path.write_text("num_ranks 2\nrank 0 {\n" + text)
    with contextlib.suppress(InputError):
        read_goal(path)


WAYS = {
    "as written": lambda text: text,
    "blanks": lambda text: text.replace("{\n", "{ \n"),
    "comments": lambda text: text.replace("}\n", "} // end } {\n/* of\n } this */\n"),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "empty lines": lambda text: text.replace("rank ", "\nrank "),
    "no line feed at the end": lambda text: text.removesuffix("\n"),
    "byte order mark": lambda text: "\ufeff" + text,
}


@pytest.mark.parametrize("way", WAYS)
@given(schedule=schedules(6, 10**12, 1e9), data=st.data())
def test_files_are_read_alike_however_they_are_written(way, schedule, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("goal") / "a.goal"
    schedule.to_goal(path)
    expected = read_goal(path)
    head, *ranks = re.split(r"(?m)^(?=rank )", path.read_text())
    path.write_bytes(WAYS[way](head + "".join(data.draw(st.permutations(ranks)))).encode())
    again = read_goal(path)
    assert np.array_equal(again.bytes_sent(), expected.bytes_sent())
    assert [one.nbytes.sum() for one in again.rounds] == [one.nbytes.sum() for one in expected.rounds]
