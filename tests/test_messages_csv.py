"""Tables of messages: there and back, whatever their form, and what is refused."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.base.errors import InputError
from simnet.interchange import messages_csv
from simnet.interchange.messages_csv import read_messages, write_messages
from simnet.schedule import Round, Schedule

PHASES = st.sampled_from(["", "reduce-scatter", "gather", "layer 3", 'a "b", c', "é", "#", "x\ny", "a\r"])
SIZES = st.one_of(st.integers(0, 10**6), st.sampled_from([0.5, 1e17, 2.0**53, 1e-3, 12345678901234567.0]))


@st.composite
def tables(draw):
    rounds = []
    for _ in range(draw(st.integers(0, 4))):
        pairs = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), SIZES), min_size=1, max_size=4))
        src, apart, sizes = zip(*pairs, strict=True)
        rounds.append(Round(src, [(s + d) % 4 for s, d in zip(src, apart, strict=True)], sizes, phase=draw(PHASES)))
    return Schedule(4, rounds)


@given(schedule=tables(), windows=st.booleans())
def test_tables_come_back(schedule, windows, tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    write_messages(schedule, path)
    if windows and '"' not in path.read_text():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_messages(path, 4) == schedule


@pytest.mark.parametrize(
    ("head", "rows", "said"),
    [
        ("src,dst,round,nbytes_B", ["0,1,2,5", "1,2,0,1e3"], [(0, 1, 2, 1000.0), (2, 0, 1, 5.0)]),
        (" nbytes_B,src,phase,dst,round", ["5,0,p,1,0", "", ",,,,", "6,1,p,0,0"], [(0, 0, 1, 5.0), (0, 1, 0, 6.0)]),
        ("round,src,dst,nbytes_B,x", ["0,0,1,5,anything"], [(0, 0, 1, 5.0)]),
        ("round,phase,src,dst,nbytes_B", ["0,p,0,1,5", "0,q,1,0,5"], "a.csv:3: phase: is 'q'"),
        ("round,phase,src,dst,nbytes_B", ["0,p,1,9,5"], "a.csv:2: dst: must be a whole number in 0..3"),
        ("round,phase,src,dst,nbytes_B", ["0,p,1,1,5"], "a.csv:2: rank 1 sends to itself"),
        ("round,phase,src,dst,nbytes_B", ["9999999,p,0,1,5"], "a.csv:2: round: must be a whole number"),
        ("round,phase,src,dst,nbytes_B", ["0,1,2,3"], "a.csv:2: has 4 values, but there are 5 columns"),
        ("round,src,dst,nbytes_B", ["3,0,1,x"], "a.csv:2: nbytes_B: "),
    ],
)
def test_columns_stand_in_any_order(head, rows, said, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    if isinstance(said, str):
        with pytest.raises(InputError, match=re.escape(said)):
            read_messages(path, 4)
        return
    read = read_messages(path, 4)
    columns = ((n, one.src, one.dst, one.nbytes) for n, one in enumerate(read.rounds))
    assert [(n, *row) for n, *values in columns for row in zip(*(v.tolist() for v in values), strict=True)] == said


def test_many_rows_row_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(messages_csv, "_ROWS", 7)
    schedule = Schedule(3, [Round([0, 1], [2, 2], np.array([0.5, 1.5]) + n, phase="p") for n in range(20)])
    write_messages(schedule, tmp_path / "a.csv")
    assert read_messages(tmp_path / "a.csv") == schedule


def test_a_refusal_far_down_names_its_line(tmp_path):
    good = [f"{n},p,0,1,5" for n in range(50)]
    text = "\n".join(itertools.chain(["round,phase,src,dst,nbytes_B"], good, ["3,other,0,1,5"], good)) + "\n"
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=r"a\.csv:52: phase: is 'other', but other messages of round 3 are 'p'"):
        read_messages(tmp_path / "a.csv")
