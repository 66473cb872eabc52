"""Rows of a job: what is read is what was added, also after a checkpoint and in another process."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simnet.training.job.checkpoint import RowTable


def rows(count, seed=0):
    draws = np.random.default_rng(seed)
    return {
        "worker": draws.integers(-(2**63), 2**63 - 1, count),
        "seconds": draws.random(count),
        "what": f"t{seed % 3}",
    }


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    places=st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted),
)
def test_a_stretch_of_rows_is_that_of_all_also_after_a_checkpoint(counts, places):
    blocks = [rows(count, seed) for seed, count in enumerate(counts)]
    kept, restored = RowTable(policy="p"), RowTable(policy="p")
    for block in blocks[:-1]:
        kept.append(block)
    restored.restore(kept.save())
    for table in (kept, restored):
        table.append(blocks[-1])
    # A process sends them to another one by their place.
    for found in (kept, restored, pickle.loads(pickle.dumps(kept))):
        assert len(found) == sum(counts)
        for first, last in ((0, None), places):
            read = found.between(first, last)
            for name in read:
                whole = [one for block in blocks for one in np.broadcast_to(block[name], block["worker"].shape)]
                assert read[name].tolist() == whole[first:last]
        frame = found.frame(*places)
        assert list(frame) == ["policy", "worker", "seconds", "what"]
        assert frame["worker"].tolist() == found.between(*places)["worker"].tolist()


def test_a_table_without_rows_has_its_columns():
    assert list(RowTable(("worker", "seconds"), policy="p").frame()) == ["policy", "worker", "seconds"]
