"""Tables written piece by piece are those written at once, and pieces are those of the whole."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.report import results as run_tables
from simnet.report.results import round_iterations


def iterations(count, seed, losses=True):
    draws = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "policy": "of the record",
            "iteration": np.arange(count),
            "start_s": draws.exponential(size=count) * 1e-7,
            "bytes_sent_B": draws.exponential(size=count) * 1e6,
            "purpose": np.array(["train"] * count, dtype=object),
        }
    )
    return table.assign(loss=np.where(draws.random(count) < 0.5, np.nan, 1.5)) if losses else table


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    piece=st.integers(1, 40),
    losses=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_a_table_in_pieces_has_the_rows_of_the_whole(tmp_path_factory, counts, piece, losses):
    folder = tmp_path_factory.mktemp("tables")
    of = zip(counts, losses, strict=False)
    rows = {f"p{one}": run_tables.table_rows(iterations(count, one, has)) for one, (count, has) in enumerate(of)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_tables, "_PIECE", piece)
        run_tables.write_table(folder, "table", rows, round_iterations)
    whole = round_iterations(run_tables.join_frames({name: one.between(0, one.total) for name, one in rows.items()}))
    assert (folder / "table.csv").read_text() == whole.to_csv(index=False, lineterminator="\n")
    plain = pa.Table.from_pandas(whole, preserve_index=False).replace_schema_metadata(None)
    assert pq.read_table(folder / "table.parquet").equals(plain)
