"""Tables of messages: there and back, in columns as row by row, whatever their form, and what is refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.base.errors import InputError
from simnet.collectives import allreduce_ring
from simnet.interchange import messages_csv, read_messages, write_messages
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


def outcome(path):
    try:
        return read_messages(path, 4)
    except InputError as error:
        return str(error)


@given(schedule=tables(), block=st.sampled_from([16, 60, 2**20]), windows=st.booleans())
def test_tables_come_back_however_they_are_cut(schedule, block, windows, tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    write_messages(schedule, path)
    if windows and '"' not in path.read_text():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages_csv, "_BLOCK", block)
        assert read_messages(path, 4) == schedule


HEADS = [
    "round,phase,src,dst,nbytes_B",
    "src,dst,round,nbytes_B",
    " nbytes_B,src,phase,dst,round",
    "round,src,dst,nbytes_B,x",
]
ROWS = ["0,p,0,1,5", "1,2,3,0", "1,p,0,2,3", "", ",,,,", "0,q,0,1,5", "0,p,1,1,5", "0,p,1,9,5", "7,p,0,1,1e3",
        "0,1,2,3,4", "0,,0,1,5", "9999999,p,0,1,5", "a\r", "3,0,1,\x0b5", "0,0,1,5,"]  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
def test_columns_say_what_rows_say(head, tmp_path):
    path = tmp_path / "a.csv"
    for first, second in itertools.product(["0,p,2,1,5", *ROWS], ROWS):
        path.write_text("\n".join([head, first, second]) + "\n" * (first > second), newline="")
        quick = outcome(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(messages_csv._Table, "_as_columns", lambda *_: False)
            assert outcome(path) == quick, (first, second)


def test_what_simnet_writes_is_read_as_columns(tmp_path, monkeypatch):
    ring = allreduce_ring(6, 6000)
    write_messages(ring, tmp_path / "a.csv")
    rows = []
    real = messages_csv._Table._values
    monkeypatch.setattr(messages_csv._Table, "_values", lambda *given: rows.append(given) or real(*given))
    read = read_messages(tmp_path / "a.csv")
    assert read == ring
    assert not rows
    assert len({id(one) for one in read.rounds}) == 2


def test_many_rows_row_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(messages_csv, "_ROWS", 7)
    schedule = Schedule(3, [Round([0, 1], [2, 2], np.array([0.5, 1.5]) + n, phase="p") for n in range(20)])
    write_messages(schedule, tmp_path / "a.csv")
    assert read_messages(tmp_path / "a.csv") == schedule


def test_a_refusal_far_down_names_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(messages_csv, "_BLOCK", 64)
    good = [f"{n},p,0,1,5" for n in range(50)]
    text = "\n".join(itertools.chain(["round,phase,src,dst,nbytes_B"], good, ["3,other,0,1,5"], good)) + "\n"
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=r"a\.csv:52: phase: is 'other', but other messages of round 3 are 'p'"):
        read_messages(tmp_path / "a.csv")


def test_a_larger_table_is_read_if_the_limit_says_so(tmp_path):
    write_messages(allreduce_ring(4, 4096), tmp_path / "a.csv")
    size = (tmp_path / "a.csv").stat().st_size
    assert read_messages(tmp_path / "a.csv", largest=size).n_messages == 24
    with pytest.raises(InputError, match=f"is larger than {size - 1} bytes"):
        read_messages(tmp_path / "a.csv", largest=size - 1)
