"""Lines that differ in their numbers alone: there and back, and what is left to a reader of single lines."""

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simnet.base.numbered_lines import read_lines, write_lines

WRITTEN = ["a#: send # to #\n", "b# needs a#\n", "}\n", "c# {\n"]
READ = ["?#: send # to #", "?# needs ?#", "}", "?# {"]
NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, 10**18 - 1), st.sampled_from([10**n for n in range(18)]))
ROWS = st.lists(st.tuples(st.integers(0, 3), NUMBERS, NUMBERS, NUMBERS), max_size=8)


def columns(rows):
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return table[:, 0], np.ascontiguousarray(table[:, 1:].T)


@given(rows=ROWS)
def test_written_lines_are_those_of_the_templates_and_come_back(rows):
    kinds, numbers = columns(rows)
    text = write_lines(WRITTEN, kinds, numbers)
    filled = [WRITTEN[kind].replace("#", "%d") % tuple(row[: WRITTEN[kind].count("#")]) for kind, *row in rows]
    assert text == "".join(filled).encode()
    found = read_lines(text, READ)
    assert found is not None
    for kind, one in enumerate(found):
        assert one.lines.tolist() == np.flatnonzero(kinds == kind).tolist()
        assert one.numbers.tolist() == numbers.T[kinds == kind][:, : one.numbers.shape[1]].tolist()
        assert {bytes(row) for row in one.letters} <= {(b"a", b"ba", b"", b"c")[kind]}


def by_line(text, templates):
    """Read line by line what `read_lines` reads; None for what it leaves."""
    found = [[] for _ in templates]
    for number, line in enumerate(text.decode("latin-1").split("\n")[:-1]):
        for kind, template in enumerate(templates):
            pattern = re.escape(template).replace(r"\#", "(0|[1-9][0-9]{0,17})").replace(r"\?", "[a-zA-Z]")
            if match := re.fullmatch(pattern, line):
                found[kind].append((number, [int(one) for one in match.groups()]))
                break
        else:
            return None
    return found


@given(text=st.text(alphabet="a7 10:send to#?{}\n", max_size=30))
@example(text="a7: send 1 to 2")
@example(text="7a: send 1 to 2")
@example(text="a7: send 1 to 02")
@example(text="a7: send 1 to 2x")
@example(text="a7: send 12 to ")
@example(text="a: send 12 to 13")
@example(text="?7: send 1 to 2")
@example(text="a1: send 1 to 1234567890123456789")
@example(text="}1")
@example(text="")
def test_any_text_is_read_as_line_by_line(text):
    whole = (text + "\n").encode()
    found = read_lines(whole, READ)
    expected = by_line(whole, READ)
    if expected is None or found is None:
        assert found is expected
    else:
        assert [[*zip(one.lines.tolist(), one.numbers.tolist(), strict=True)] for one in found] == expected


@pytest.mark.parametrize("text", [b"a7: send 1 to 2", b"}\n}", b"7"])
def test_a_line_that_is_not_closed_is_left(text):
    assert read_lines(text, READ) is None
