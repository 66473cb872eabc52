"""Rows kept as columns: what comes back is what went in, and what is no such row is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.training.job.columns import ColumnRows

ROWS = st.lists(
    st.fixed_dictionaries(
        {"number": st.integers(-(2**63), 2**63 - 1), "seconds": st.floats(allow_nan=False), "what": st.text(max_size=3)}
    )
)


def columns(rows):
    made = ColumnRows()
    for row in rows:
        made.append(row)
    return made


@given(ROWS, ROWS)
def test_rows_come_back_as_they_were_also_from_what_was_saved(rows, more):
    found = ColumnRows.restored(columns(rows).save())
    for row in more:
        found.append(row)
    assert len(found) == len(rows + more)
    listed = {name: list(column) for name, column in found.all().items()}
    assert listed == ({name: [row[name] for row in rows + more] for name in (rows + more)[0]} if rows + more else {})


@pytest.mark.parametrize("wrong", [{"number": 0.5}, {"number": "1"}, {"seconds": "1"}])
def test_a_row_of_other_types_is_refused(wrong):
    row = {"number": 1, "seconds": 0.5, "what": "train"}
    with pytest.raises(struct.error):
        columns([row, row | wrong])
