"""The tables of a run, written piece by piece, so that what they take beside the results does not grow with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simnet.base.writing import atomic_write

if TYPE_CHECKING:
    from simnet.job import PolicyResult

# Rows that pyarrow puts into a group by itself, and those that become text at a time.
_GROUP, _TEXT = 1024 * 1024, 1 << 14


class Rows(NamedTuple):
    """The rows of a policy, of which as many are made as are asked for: how many there are, and those of a stretch."""

    total: int
    between: Callable[[int, int], pd.DataFrame]


def rows_of(table: pd.DataFrame) -> Rows:
    """Return the rows of a table."""
    return Rows(len(table), lambda first, last: table.iloc[first:last])


def iterations_of(results: Mapping[str, PolicyResult]) -> dict[str, Rows]:
    """Return the iterations of each policy."""
    return {name: rows_of(one.iterations) for name, one in results.items()}


def workers_of(results: Mapping[str, PolicyResult]) -> dict[str, Rows]:
    """Return what workers did under each policy."""
    return {name: Rows(len(one.worker_rows.split), one.worker_rows.table) for name, one in results.items()}


def joined(rows: Mapping[str, Rows]) -> pd.DataFrame:
    """Return the rows of all policies one below the other, with a column ``policy``."""
    frames = [one.between(0, one.total).assign(policy=name) for name, one in rows.items()]
    # An empty frame has no types of its own and would spoil those of the others.
    return pd.concat([one for one in frames if len(one)] or frames[:1], ignore_index=True)


def write_table(
    folder: Path, name: str, rows: Mapping[str, Rows], told: Callable[[pd.DataFrame], pd.DataFrame], *, csv: bool = True
) -> None:
    """Write the rows of all policies as Parquet, and as CSV, with the bytes of the table of all of them.

    Parameters
    ----------
    folder : Path
        Where.
    name : str
        Of the files, without what tells their kinds.
    rows : mapping of policy name to Rows
        The rows.
    told : callable
        Returns columns as they are to be written; it is asked for pieces, and for single columns.
    csv : bool
        Whether to write CSV, too.
    """
    rows = _alike(rows)
    if csv:
        with atomic_write(folder / f"{name}.csv") as stream:
            begun = False
            for piece in (one for pieces in _pieces(rows, _TEXT) for one in pieces):
                told(piece).to_csv(stream, index=False, lineterminator="\n", mode="wb", header=not begun)
                begun = True
    with atomic_write(folder / f"{name}.parquet") as stream:
        writer: pq.ParquetWriter | None = None
        for pieces in _pieces(rows, _GROUP):
            group = _arrow(pieces, told)
            writer = writer or pq.ParquetWriter(stream, group.schema, compression="zstd")
            writer.write_table(group, row_group_size=_GROUP)
        assert writer is not None
        writer.close()


def _alike(rows: Mapping[str, Rows]) -> Mapping[str, Rows]:
    """Return the rows of all policies such that all have the same columns of the same types."""
    filled = {name: one for name, one in rows.items() if one.total} or dict(list(rows.items())[:1])
    types = [one.between(0, 0).dtypes.to_dict() for one in filled.values()]
    if all(list(one.items()) == list(types[0].items()) for one in types):
        return filled
    return {"": rows_of(joined(filled))}


def _pieces(rows: Mapping[str, Rows], most: int) -> Iterator[list[pd.DataFrame]]:
    """Yield tables with a column ``policy`` that together have `most` rows, and at last the rest; at least one."""
    pieces: list[pd.DataFrame] = []
    room = most
    for name, one in rows.items():
        first = 0
        while first < one.total or not one.total:
            last = min(one.total, first + room)
            piece = one.between(first, last)
            pieces.append(piece.assign(policy=name) if name else piece)
            room -= last - first
            first = last
            if not room:
                yield pieces
                pieces, room = [], most
            if not one.total:
                break
    if pieces:
        yield pieces


def _arrow(pieces: list[pd.DataFrame], told: Callable[[pd.DataFrame], pd.DataFrame]) -> pa.Table:
    """Return pieces as one table of Parquet, made column by column; without the metadata of pandas."""
    columns = {}
    for name in pieces[0].columns:
        column = told(pd.concat([one[[name]] for one in pieces], ignore_index=True))[name]
        columns[name] = pa.Array.from_pandas(column)
    return pa.table(columns)
