"""How far a computation is: never backwards, to the end, whatever loops are inside."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.base.progress import progress_stage, report_progress, track_progress
from simnet.verbs import terminal

trees = st.recursive(
    st.just([]), lambda inner: st.lists(st.tuples(st.floats(0.01, 1), inner), max_size=4), max_leaves=9
)


def work(tree):
    """Go over a tree: each node is a loop over its parts, in stages and in shares."""
    for share, inner in track_progress(tree, 1.0):
        with progress_stage(share):
            for _ in track_progress(range(2), share):
                work(inner)
            work(inner)


@given(trees)
def test_what_is_done_grows_to_its_end(tree):
    shares = []
    with report_progress(shares.append):
        work(tree)
    assert shares == sorted(set(shares))
    assert all(0 < share <= 1 for share in shares)
    assert (shares[-1:] == [1.0]) == bool(tree)


@given(st.integers(1, 20), st.integers(1, 20))
def test_loops_in_loops_take_equal_parts(outer, inner):
    shares = []
    with report_progress(shares.append):
        for _ in track_progress(range(outer)):
            for _ in track_progress(range(inner)):
                pass
    assert shares == pytest.approx([number / (outer * inner) for number in range(1, outer * inner + 1)])


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_is_a_line_in_a_file_that_comes_ever_more_rarely(monkeypatch, capsys, quiet):
    now = 0.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    with terminal.verbosity(quiet, False), terminal.progress_line("run") as show:
        for second in range(1, 3600):
            now = float(second)
            show(second / 3600, f"{second}/3600 cells")
        show(1.0)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    if quiet:
        assert lines == []
        return
    assert lines[0] == "run: 2/3600 cells, 0 %"
    assert all(line.endswith(" left") for line in lines if int(line.split()[1].partition("/")[0]) >= 10)
    assert next(line for line in lines if "left" in line).endswith("%, 59.8 min left")
    assert 20 < len(lines) < 40
    begun = [int(line.split()[1].partition("/")[0]) for line in lines]
    gaps = [later - one for one, later in itertools.pairwise(begun)]
    assert gaps == sorted(gaps)
    assert all(gap <= max(2, 0.25 * one + 1) for one, gap in zip(begun, gaps, strict=False))


def test_progress_only_rises_and_is_wiped_from_a_terminal(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    monkeypatch.setattr(terminal.sys.stderr, "isatty", lambda: True, raising=False)
    with terminal.progress_line("choose") as show:
        for now, share in ((3.0, 0.5), (6.0, 0.25), (9.0, 0.75)):  # noqa: B007
            show(share)
    written = capsys.readouterr().err.split("\r")
    assert [re.findall(r"(\d+) %", one) for one in written if "%" in one] == [["50"], ["50"], ["75"]]
    assert written[-1] == ""
    assert written[-2].isspace()


def test_what_takes_no_two_seconds_leaves_no_line(monkeypatch, capsys):
    monkeypatch.setattr(terminal.time, "monotonic", lambda: 0.0)
    with terminal.progress_line("models"):
        list(track_progress("abc"))
    assert capsys.readouterr() == ("", "")
