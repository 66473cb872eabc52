"""Rows in a file: what is read is what was added, also after a kill at any moment, and nothing else is taken for it."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.training.job import checkpoint
from simnet.training.job.checkpoint import RowTable

HELD = st.sampled_from([8, 24, 100, 10_000])


def rows(count, seed=0):
    draws = np.random.default_rng(seed)
    return {
        "worker": draws.integers(-(2**63), 2**63 - 1, count),
        "seconds": draws.random(count),
        "what": f"t{seed % 3}",
    }


def filled(path, blocks, held):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_HELD", held)
        made = RowTable(path, policy="p")
        for block in blocks:
            made.append(block)
    return made


def check(found, blocks, first=0, last=None):
    """Check that a stretch of rows is that of the blocks that were added."""
    read = found.between(first, last)
    for name in read:
        whole = [one for block in blocks for one in np.broadcast_to(block[name], block["worker"].shape).tolist()]
        assert read[name].tolist() == whole[first:last]


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    held=HELD,
    places=st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted),
    filed=st.booleans(),
)
def test_a_stretch_of_rows_is_that_of_all_wherever_they_lie(tmp_path_factory, counts, held, places, filed):
    path = tmp_path_factory.mktemp("rows") / "a.rows" if filed else None
    blocks = [rows(count, seed) for seed, count in enumerate(counts)]
    kept = filled(path, blocks, held)
    # A process sends them to another one by their place.
    for found in (kept, pickle.loads(pickle.dumps(kept))):
        assert len(found) == sum(counts)
        check(found, blocks)
        check(found, blocks, *places)
        frame = found.frame(*places)
        assert list(frame) == ["policy", "worker", "seconds", "what"]
        assert frame["worker"].tolist() == found.between(*places)["worker"].tolist()


@given(before=st.integers(0, 9), lost=st.integers(0, 9), after=st.integers(0, 9), held=HELD, torn=st.integers(0, 30))
def test_rows_go_on_from_a_checkpoint_whatever_came_after_it(tmp_path_factory, before, lost, after, held, torn):
    path = tmp_path_factory.mktemp("rows") / "a.rows"
    first, gone, then = rows(before, 1), rows(lost, 2), rows(after, 3)
    killed = filled(path, [first], held)
    saved = killed.save()
    killed.append(gone)
    if path.exists():
        path.write_bytes(path.read_bytes() + b"x" * torn)
    found = filled(path, [], held)
    found.restore(saved)
    found.append(then)
    check(found, [first, then])
    # It is the file that has to be right, too.
    found._file(path)
    check(found, [first, then])
    assert path.stat().st_size == 24 * (before + after)


@pytest.mark.parametrize("harm", ["gone", "cut", "altered"])
def test_a_file_that_is_not_that_of_the_checkpoint_is_refused(harm, tmp_path):
    path = tmp_path / "a.rows"
    saved = filled(path, [rows(5)], 8).save()
    content = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    else:
        content[17] ^= 1
        path.write_bytes(content[:-1] if harm == "cut" else content)
    with pytest.raises(ValueError, match="rows"):
        RowTable(path).restore(saved)


def test_a_file_that_cannot_be_written_costs_a_warning_and_no_row(tmp_path):
    with pytest.warns(UserWarning, match=r"a\.rows cannot be written, rows stay in memory"):
        made = filled(tmp_path / "nowhere" / "a.rows", [rows(5)], 100)
    made.append(rows(2, 1))
    check(made, [rows(5), rows(2, 1)])


def test_a_table_without_rows_has_its_columns():
    assert list(RowTable(None, ("worker", "seconds"), policy="p").frame()) == ["policy", "worker", "seconds"]
