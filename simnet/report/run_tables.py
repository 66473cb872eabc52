"""The tables of a run, written piece by piece, so that what they take beside the results does not grow with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simnet.base.spreadsheets import guard_table
from simnet.base.writing import atomic_write

if TYPE_CHECKING:
    from simnet.job import PolicyResult

# Rows of a group, which is in memory as a whole, and those that are made at a time.
_GROUP, _PIECE = 1 << 16, 1 << 14


class Rows(NamedTuple):
    """The rows of a policy, made on demand: their number, and those of a range."""

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
    return {name: Rows(one.worker_rows.total, one.worker_rows.table) for name, one in results.items()}


def joined(rows: Mapping[str, Rows]) -> pd.DataFrame:
    """Return the rows of all policies one below the other, with a column ``policy``."""
    frames = [one.between(0, one.total).assign(policy=name) for name, one in rows.items()]
    # An empty frame has no types of its own and would spoil those of the others.
    return pd.concat([one for one in frames if len(one)] or frames[:1], ignore_index=True)


def write_table(
    folder: Path, name: str, rows: Mapping[str, Rows], told: Callable[[pd.DataFrame], pd.DataFrame], *, csv: bool = True
) -> None:
    """Write the rows of all policies as Parquet, and as CSV, with the bytes of the table of all of them."""
    rows = _alike(rows)
    if csv:
        with atomic_write(folder / f"{name}.csv") as stream:
            begun = False
            for piece in (one for stretches in _groups(rows, _PIECE) for one in _made(rows, stretches)):
                guard_table(told(piece)).to_csv(stream, index=False, lineterminator="\n", mode="wb", header=not begun)
                begun = True
    with atomic_write(folder / f"{name}.parquet") as stream:
        writer: pq.ParquetWriter | None = None
        for stretches in _groups(rows, _GROUP):
            group = _arrow(map(told, _made(rows, stretches)))
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


def _groups(rows: Mapping[str, Rows], most: int) -> Iterator[list[tuple[str, int, int]]]:
    """Yield ranges of `most` rows, with their policy, and a last shorter one."""
    stretches: list[tuple[str, int, int]] = []
    room = most
    for name, one in rows.items():
        first = 0
        while first < one.total:
            last = min(one.total, first + room)
            stretches.append((name, first, last))
            room -= last - first
            first = last
            if not room:
                yield stretches
                stretches, room = [], most
    if stretches or not any(one.total for one in rows.values()):
        yield stretches or [(next(iter(rows)), 0, 0)]


def _made(rows: Mapping[str, Rows], stretches: Iterable[tuple[str, int, int]]) -> Iterator[pd.DataFrame]:
    """Yield the rows of stretches, a few at a time, with a column ``policy``."""
    for name, begin, end in stretches:
        for first in range(begin, max(end, begin + 1), _PIECE):
            piece = rows[name].between(first, min(end, first + _PIECE))
            yield piece.assign(policy=name) if name else piece


def _arrow(pieces: Iterable[pd.DataFrame]) -> pa.Table:
    """Return pieces as one table of Parquet, without the metadata of pandas."""
    columns: dict[str, list[pa.Array]] = {}
    types: dict[str, pa.DataType] = {}
    for piece in pieces:
        for name in piece.columns:
            found = pa.Array.from_pandas(piece[name])
            types.setdefault(name, found.type)
            columns.setdefault(name, []).extend(found.chunks if isinstance(found, pa.ChunkedArray) else [found])
    return pa.table(
        {name: pa.chunked_array(columns.pop(name), type=one).combine_chunks() for name, one in types.items()}
    )
