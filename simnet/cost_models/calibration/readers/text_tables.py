"""Reads tables that benchmarks print, by the names of their columns.

``data/text_tables.csv`` has the benchmarks, with what heads their tables, and ``data/log_columns.csv`` their columns.
"""

# References: pytorch/gloo, ``gloo/benchmark/runner.cc``. facebookresearch/param, ``train/comms/pt/comms.py``.
# openucx/ucc, ``tools/perf/ucc_pt_benchmark.cc``. DeepSpeedExamples, ``benchmarks/communication``; DeepSpeed,
# ``deepspeed/utils/comms_logging.py``. Ascend, HCCL Test User Guide. microsoft/mscclpp, ``test/mscclpp-test/common.cc``
# and ``python/mscclpp_benchmark``. esnet/iperf, ``src/iperf_locale.c``. iputils, ``ping/ping_common.c``.

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from simnet.base.checks import is_number
from simnet.base.reading import read_shipped_rows
from simnet.cost_models.calibration.readers import conventions, tables
from simnet.cost_models.calibration.readers.lines import (
    HEADS,
    bare_lines,
    json_objects,
    launch_facts,
    read_count,
    read_trace,
    short_text,
)


class TextTable(NamedTuple):
    """How a benchmark prints its results; a row of ``data/text_tables.csv``."""

    what: str
    """Whose output it is, and of which releases."""

    anchor: re.Pattern[str]
    """The line that names the columns, or rows with named groups, where these are no words in columns."""

    above: re.Pattern[str]
    """What lines say of the rows below, in groups named as columns of the table."""

    heads: Sequence[str]
    """Names of the columns, where the line of the anchor does not name them one by one."""

    wanted: Sequence[str]
    """Patterns of rows that count; the first that fits any row, and all rows if none does."""

    same: tables.TableRow
    """What holds for all rows."""

    sizes: str
    """Whose convention sizes follow: "nccl", "mpi", or "gathered", nccl's but per rank in an all-gather."""

    def size_convention(self, name: str) -> str:
        """Return the convention for the size of a collective."""
        if self.sizes == "gathered" and name.startswith("all_gather"):
            return "per_rank"
        return conventions.mpi_convention(name) if self.sizes == "mpi" else conventions.nccl_convention(name)


def _text_table(row: Mapping[str, str]) -> TextTable:
    ranks = tables.parse_whole(row["ranks"])
    same: tables.TableRow = {"statistic": row["statistic"], "tool": row["format"].partition("-")[0]}
    same |= {"collective": row["collective"], "ranks": ranks, "nodes": ranks} if ranks else {}
    heads, wanted = (row[name].split(";") if row[name] else () for name in ("heads", "wanted"))
    return TextTable(
        row["what"], re.compile(row["anchor"]), re.compile(row["above"] or r"(?!)"), heads, wanted, same, row["sizes"]
    )


TEXT_TABLES: Mapping[str, TextTable] = {
    row["format"]: _text_table(row) for row in read_shipped_rows("data/text_tables.csv")
}
"""The tables by the name of their format."""

_CELL = re.compile(r"[^\s|]+(?: (?:[KMGT]?i?B|[mun]?s)(?![^\s|]))?")
_FAILED = re.compile(r"\b(?:failed|FAIL)\b")


def _read(kind: str, path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
    """Yield the rows of a benchmark's tables."""
    table = TEXT_TABLES[kind]
    lines = list(bare_lines(path, table.anchor))
    found = [line for _, line in lines if table.anchor.search(line)] if table.anchor.groups else []
    wanted = next((one for one in table.wanted if any(re.search(one, line) for line in found)), "")
    stated, heads, run, reported = dict(table.same), table.heads[:0], 0, False
    for at, line in lines:
        stated |= launch_facts(line)
        for said in table.above.finditer(line):
            stated |= _stated_values(said.groupdict())
        if not table.anchor.groups and table.anchor.search(line):
            heads, run, reported = table.heads or HEADS.split(line.strip(" \t#|")), run + 1, False
            continue
        row, named = _table_row(kind, line, heads, stated), stated.get("variant") or None
        name = stated.get("collective") or (None if named else _given_collective(path, out))
        if isinstance(row, str):
            yield at, row
        elif row and name is None:
            if not reported:
                why = "nothing says of which collective; give it, as collective=all_reduce"
                yield at, f"a table begins, but {why if named is None else f'{named!r} is no collective that is read'}"
            reported = True
        elif row and re.search(wanted, line):
            row |= {"size_convention": table.size_convention(str(name)), "run": str(run or 1)}
            yield at, stated | row | {"collective": name}


def _given_collective(path: Path, out: tables.RowCollector) -> str | None:
    given = out.facts.get("collective")
    return conventions.named_collective(path.name) or (given if isinstance(given, str) else None)


def _stated_values(groups: Mapping[str, str | None]) -> tables.TableRow:
    """Return column values that a line above a table states; the full name of an unusual collective is its variant."""
    row: tables.TableRow = {
        name: tables.parse_whole(text, tables.largest_whole(name)) if tables.TABLE_COLUMNS[name] == "whole" else text
        for name, text in groups.items()
        if text
    }
    if (text := groups.get("collective")) is not None:
        plain = conventions.collective_name(text)
        row["collective"] = plain or conventions.named_collective(text)
        row["variant"] = "" if plain else text.casefold()
    return row


def _table_row(kind: str, line: str, heads: Sequence[str], stated: tables.TableRow) -> tables.TableRow | str | None:
    """Return the values of a row, an error message if it lacks size or time, None for a line that is no row."""
    words, anchor = _CELL.findall(line), TEXT_TABLES[kind].anchor
    if anchor.groups:
        found = anchor.search(line)
        cells = {head: text or "" for head, text in found.groupdict().items()} if found else {}
    else:
        cells = dict(zip(heads, words, strict=False)) if len(words) > 1 else {}
    row = tables.cell_values(cells, kind)
    size, rate = row.setdefault("nbytes", stated.get("nbytes")), row.get("algbw")
    if isinstance(size, int) and isinstance(rate, float) and rate > 0:
        row["seconds"] = size / rate
    if size is not None and row.get("seconds") is not None:
        return row | ({"wrong": 1.0} if _FAILED.search(line) else {})
    if cells and not anchor.groups and tables.parse_whole(words[0]) is not None:
        return f"the row has {len(words)} values under {len(heads)} columns: its size or its time is no number"
    return None


def _text_reader(kind: str, what: str) -> Callable[..., tables.Measurements]:
    def fill(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
        return _read(kind, path, out)

    fill.__doc__ = what
    return tables.format_reader(kind)(fill)


TEXT_READERS = {kind: _text_reader(kind, one.what) for kind, one in TEXT_TABLES.items()}
"""Readers of the tables by the name of their format."""


@tables.format_reader("iperf3")
def read_iperf3_json(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
    """Read the JSON output of iperf3 (``-J``)."""
    for line, result in json_objects(read_trace(path), out.file):
        end = result.get("end")
        received = end.get("sum_received", end.get("sum")) if isinstance(end, dict) else None
        nbytes = read_count(received.get("bytes")) if isinstance(received, dict) else None
        seconds = received.get("seconds") if isinstance(received, dict) else None
        if nbytes is None or not is_number(seconds):
            yield (
                line,
                f"has no result: {short_text(result.get('error')) or 'no end.sum_received with bytes and seconds'}",
            )
        else:
            yield line, {"nbytes": nbytes, "seconds": float(seconds), "tool": "iperf3", **TEXT_TABLES["iperf3"].same}
