"""Rows in a file: what is read is what was added, also after a kill at any moment, and nothing else is taken for it."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.training.job.row_file import RowFile

WIDTH = 3


def rows(count, seed=0):
    return np.random.default_rng(seed).random((count, WIDTH))


def filled(path, *blocks, held):
    made = RowFile(WIDTH, path, held=held)
    for block in blocks:
        made.append(block.tobytes())
    return made


@given(
    counts=st.lists(st.integers(0, 9), max_size=6),
    held=st.sampled_from([8, 24, 100, 10_000]),
    places=st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted),
    filed=st.booleans(),
)
def test_a_stretch_of_rows_is_that_of_all_wherever_they_lie(tmp_path_factory, counts, held, places, filed):
    path = tmp_path_factory.mktemp("rows") / "a.rows" if filed else None
    blocks = [rows(count, seed) for seed, count in enumerate(counts)]
    whole = np.concatenate([rows(0), *blocks])
    kept = filled(path, *blocks, held=held).kept()
    # A process sends them to another one by their place.
    for found in (kept, pickle.loads(pickle.dumps(kept))):
        assert found.total == len(whole)
        assert np.array_equal(found.between(*places), whole[slice(*places)])
        assert np.array_equal(np.concatenate([rows(0), *(piece for _, piece in found.pieces())]), whole)
    assert filed or kept.path is None


@given(
    before=st.integers(0, 9),
    lost=st.integers(0, 9),
    after=st.integers(0, 9),
    held=st.sampled_from([8, 100, 10_000]),
    torn=st.integers(0, 30),
)
def test_rows_go_on_from_a_checkpoint_whatever_came_after_it(tmp_path_factory, before, lost, after, held, torn):
    path = tmp_path_factory.mktemp("rows") / "a.rows"
    first, gone, then = rows(before, 1), rows(lost, 2), rows(after, 3)
    killed = filled(path, first, held=held)
    saved = killed.save()
    killed.append(gone.tobytes())
    if path.exists():
        path.write_bytes(path.read_bytes() + b"x" * torn)
    found = RowFile.restored(saved, path)
    found.append(then.tobytes())
    # It is the file that has to be right, too.
    found._file()
    assert np.array_equal(found.kept().between(0, 100), np.concatenate([first, then]))
    assert path.read_bytes() == np.concatenate([first, then]).tobytes()


@pytest.mark.parametrize("harm", ["gone", "cut", "altered"])
def test_a_file_that_is_not_that_of_the_checkpoint_is_refused(harm, tmp_path):
    path = tmp_path / "a.rows"
    saved = filled(path, rows(5), held=8).save()
    content = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    else:
        content[17] ^= 1
        path.write_bytes(content[:-1] if harm == "cut" else content)
    with pytest.raises(ValueError, match="rows"):
        RowFile.restored(saved, path)


def test_a_file_that_cannot_be_written_costs_a_warning_and_no_row(tmp_path):
    made = RowFile(WIDTH, tmp_path / "nowhere" / "a.rows", held=100)
    with pytest.warns(UserWarning, match=r"a\.rows cannot be written, rows stay in memory"):
        made.append(rows(5).tobytes())
    made.append(rows(2, 1).tobytes())
    assert np.array_equal(made.kept().between(0, 9), np.concatenate([rows(5), rows(2, 1)]))
