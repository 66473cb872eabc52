"""The folder of a run, with a table or the summary mutated, and what reads it."""

import io
import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz import mutations
from scenario_texts import SMALL
from simnet.scenario import load
from simnet.studies.reports import RunFolder
from simnet.verbs.app import run_line

TABLES = ("iterations.parquet", "spans.parquet", "messages.parquet")
# How a table is changed, and how often. A bomb takes a hundred times as long as any other, and there are few of them.
CHANGES = {
    **dict.fromkeys(["drop", "rename", "type", "nulls", "value", "rows", "many", "long", "double"], 20),
    "bomb": 1,
}


@cache
def _run():
    """Return the files of a run."""
    with TemporaryDirectory() as folder:
        (scenario := Path(folder, "a.yaml")).write_text(SMALL)
        assert run_line(["run", str(scenario), "--out", f"{folder}/out"]) == 0
        return {one.name: one.read_bytes() for one in Path(folder, "out").iterdir() if one.is_file()}


@cache
def _tables():
    return {name: pq.read_table(io.BytesIO(_run()[name])) for name in TABLES}


@cache
def _built():
    """Return the run of that scenario, which no mutation alters."""
    with TemporaryDirectory() as folder:
        (scenario := Path(folder, "a.yaml")).write_text(SMALL)
        return load(scenario).build()


def make(random, folder):
    """Write the folder of a run, with one of its tables mutated and valid as Parquet; of one in five the bytes."""
    files = dict(_run())
    name = random.choice([*TABLES, "summary.json"])
    if name == "summary.json":
        told = json.loads(files[name])
        changed = mutations.value(random, told)
        files[name] = json.dumps(changed).encode(errors="surrogatepass")
    elif random.random() < 0.2:
        files[name] = mutations.content(random, files[name])
    else:
        files[name] = _mutated(random, _tables()[name])
    for one in (*TABLES, "summary.json", "scenario.lock.yaml"):
        (folder / one).write_bytes(files[one])


def read(folder):
    """Read the tables of a run."""
    found = RunFolder.read(folder)
    found.iterations  # noqa: B018
    found.recorded(_built())


def _mutated(random, table):
    """Return a table with some of its columns or rows changed, as Parquet."""
    for _ in range(random.randint(1, 3)):
        names = table.column_names
        if not names or len(table) > 1_000:
            break
        table = _changed(random, table, random.randrange(len(names)), *random.choices(list(CHANGES), CHANGES.values()))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression=random.choice(["none", "zstd", "snappy"]))
    return buffer.getvalue()


def _changed(random, table, place, how):
    names, column = table.column_names, table.column(place)
    if how == "drop":
        return table.remove_column(place)
    if how == "rename":
        other = random.choice(["", "x", *names])
        return table.rename_columns([*names[:place], other, *names[place + 1 :]])
    if how == "type":
        # A type may not have what another one has.
        with suppress(OverflowError, pa.ArrowInvalid):
            return table.set_column(place, names[place], _of_another_type(random, column))
        return table
    if how == "nulls":
        return table.set_column(place, names[place], pa.nulls(len(column), column.type))
    if how == "value":
        with suppress(LookupError, ValueError, TypeError, OverflowError):
            return table.set_column(place, names[place], _with_another_value(random, column))
        return table
    if how == "rows":
        return table.slice(0, random.randrange(len(table) + 1))
    if how == "many":
        return pa.concat_tables([table] * random.choice([2, 50]))
    if how == "bomb":
        return _bomb(random, table)
    if how == "long":
        return table.set_column(place, names[place], pa.array(["k" * 10_000] * len(column)))
    return table.append_column(names[place], column)


def _of_another_type(random, column):
    values, count = column.to_pylist(), len(column)
    made = random.choice(
        [
            lambda: [str(one) for one in values],
            lambda: [[one] for one in values],
            lambda: [{"x": one} for one in values],
            lambda: [str(one).encode() + b"\xff" for one in values],
            lambda: pa.array([0] * count, pa.timestamp("us")),
            lambda: pa.array([True] * count),
            lambda: pa.array([2**63 + 1] * count, pa.uint64()),
            lambda: pa.array(["x"] * count).dictionary_encode(),
        ]
    )
    return pa.array(made())


def _with_another_value(random, column):
    """Return a column with a value that is junk; raise what pyarrow does if the column cannot have it."""
    numeric = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    values, junk = column.to_pylist(), [0, -1, 2**62] if numeric else ["", "x", "=1", "\x00", "ü" * 999]
    junk = [*junk, 1e999, float("nan"), 1e308] if pa.types.is_floating(column.type) else junk
    values[random.randrange(len(values))] = random.choice(junk)
    return pa.array(values, column.type)


def _bomb(random, table):
    """Return a table that is a file of some kB, whose texts or numbers take more memory than there is."""
    count = random.choice([10**4, 10**6])
    word = pa.array(["k" * random.choice([1, 10**5, 10**6])])
    indices = np.zeros(count, dtype=np.int32)
    columns = [
        pa.DictionaryArray.from_arrays(indices, word)
        if pa.types.is_string(one.type) or pa.types.is_large_string(one.type)
        else pa.array(np.zeros(count, dtype="f8"))
        for one in table.columns
    ]
    return pa.Table.from_arrays(columns, table.column_names)
