"""Reads measurements from CSV, and writes them.

*Tidy* is what simnet writes and users can supply. A row is one measurement. The first row names the columns, those of
`simnet.cost_models.calibration.readers.tables.TABLE_COLUMNS`; ``collective``, ``nbytes`` and ``seconds`` are required.
Values are in SI units. Other columns are kept, numbers as numbers. Lines that begin with ``#`` are remarks.

*Wide*: ``collective, algo, proto, nranks, nnodes, ranks_per_node, dtype, op, size_bytes, total_bytes``; ``time_us_oop,
algbw_gbs_oop, busbw_gbs_oop, err_oop`` and the same with ``_ip`` for in place; ``time_min_us, time_max_us, time_p50_us,
n_iter``, and ``variant, run`` for repetitions of a setting. Empty means not stated.

*Shaped*: ``collective`` (``allreduce``, ``allgather``, ``bcast``) or ``method`` (``ag``, ``art``), ``N``,
``latency_ms``, ``rate_mbit``, ``size_bytes``, ``seconds``, and others of `data/log_columns.csv`. Sizes are those of
MPI; with ``method``, the values that a rank sends. Latency is from host to host, the rate that of each host's link.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import pandas as pd

from simnet.base.errors import InputError, suggest_names
from simnet.base.file_io import csv_rows, explain_write_errors
from simnet.base.spreadsheets import guard_cell, unguard_cell
from simnet.collectives.registry import algorithm_in_logs
from simnet.cost_models.calibration.readers import conventions, tables
from simnet.cost_models.calibration.readers.lines import read_lines

REQUIRED_COLUMNS = ("collective", "nbytes", "seconds")
"""Required columns of a table of measurements."""

MAX_COLUMNS = 100
"""The most columns of a table."""

MAX_TEXT = 200
"""The longest text in a cell [characters]."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": None}


@tables.format_reader("tidy")
def read_tidy(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow]]:
    """Read a tidy CSV of measurements."""
    given = out.facts
    required = [name for name in REQUIRED_COLUMNS if name not in given]
    head, names, records = csv_records(read_lines(path), required, out.file)
    extra = [name for name in names if name not in tables.TABLE_COLUMNS]
    for name in extra:
        if close := difflib.get_close_matches(name, tables.TABLE_COLUMNS, n=1, cutoff=0.85):
            message = f"column {name!r} is not known and kept as it is; did you mean {close[0]!r}?"
            out.report(head, message, dropped=False)
    numeric = set(extra)
    for line, cells in records:
        row: tables.TableRow = {}
        for name, text in cells.items():
            if name in tables.TABLE_COLUMNS:
                row[name] = _parse_cell(name, text, out, line)
            else:
                row[name] = _check_length(text, name, out, line)
                if name in numeric and text.strip() and tables.parse_printed(text) is None:
                    numeric.discard(name)
        if row.get("nbytes", given.get("nbytes")) is None:
            out.refuse("must be a whole number >= 0, got ''", line, "nbytes")
        convention = str(row.get("size_convention") or given.get("size_convention") or "")
        if not convention:
            row["size_convention"] = conventions.nccl_convention(str(row.get("collective") or given.get("collective")))
        elif convention not in conventions.SIZE_CONVENTIONS:
            out.refuse(f"is {convention[:40]!r}; {suggest_names(convention, conventions.SIZE_CONVENTIONS)}", line)
        row |= {name: parse_rate(cells.get(name, ""), 0) for name in ("seconds", "algbw", "busbw")}
        yield line, row
    for row in out.rows:
        row |= {name: float(text) if (text := str(row[name]).strip()) else None for name in numeric}


def write_tidy(rows: pd.DataFrame, path: str | Path, remarks: Sequence[str] = ()) -> None:
    """Write measurements as tidy CSV without empty columns; `read_tidy` returns exactly the same numbers.

    `remarks` are lines above the table.
    """
    missing = [name for name in REQUIRED_COLUMNS if name not in rows]
    if missing:
        raise ValueError(f"rows must have columns {', '.join(REQUIRED_COLUMNS)}; missing: {', '.join(missing)}")
    ordered = [name for name in dict.fromkeys([*tables.TABLE_COLUMNS, *map(str, rows)]) if name in rows]
    written = {name: [_format_cell(value) for value in rows[name].tolist()] for name in ordered}
    kept = [name for name in ordered if name in REQUIRED_COLUMNS or any(written[name])]
    with explain_write_errors(Path(path), advice=""), Path(path).open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {one}\n" for one in remarks)
        out = csv.writer(file, lineterminator="\n")
        out.writerow(kept)
        out.writerows(zip(*(written[name] for name in kept), strict=True))


def csv_records(
    lines: Sequence[str], needed: Iterable[str], file: str
) -> tuple[int, list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Return a CSV's header line number, its column names, and an iterator of line number and cells by column."""
    rows = csv_rows(lines, file)
    line, head = next(rows, (1, []))
    names = [name.strip() for name in head]
    if not names:
        raise InputError("is empty", file=file, line=line)
    if len(names) > MAX_COLUMNS:
        raise InputError(f"has {len(names):,} columns; at most {MAX_COLUMNS} are read", file=file, line=line)
    for at, name in enumerate(names):
        if not _NAME.fullmatch(name):
            message = f"column {at + 1} is named {name[:60]!r}; allowed are letters, digits and _, from a letter on"
            raise InputError(message, file=file, line=line)
        if name in names[:at]:
            raise InputError(f"column {name!r} stands twice", file=file, line=line)
    for name in needed:
        if name not in names:
            message = f"has no column {name!r}; {suggest_names(name, names)}".replace("Allowed:", "Given:")
            raise InputError(message, file=file, line=line)

    def records() -> Iterator[tuple[int, dict[str, str]]]:
        for at, cells in rows:
            if len(cells) != len(names):
                raise InputError(f"has {len(cells)} values, but there are {len(names)} columns", file=file, line=at)
            yield at, dict(zip(names, map(unguard_cell, cells), strict=True))

    return line, names, records()


def csv_values(
    cells: Mapping[str, str], kind: str, out: tables.RowCollector, line: int, needed: Iterable[str] = ()
) -> tables.TableRow:
    """Return table values from a row's cells; raise InputError for invalid numbers and empty `needed` cells."""
    row: tables.TableRow = {}
    for name, one in tables.log_columns(kind).items():
        if name not in cells:
            continue
        text = cells[name].strip()
        row[one.name] = one.value(text)
        if row[one.name] is None and (text or name in needed):
            allowed = "a whole number >= 0" if one.form == "whole" else "a number"
            out.refuse(f"must be {allowed}, got {text[:40]!r}", line, name)
    return row


def parse_rate(text: str, power: int) -> tables.PrintedNumber | float | None:
    """Parse a printed rate by `parse_printed`, but return plain 0.0 for zero, as its rounding error is unknown."""
    found = tables.parse_printed(text, power)
    return found if found is None or found.value else 0.0


def _parse_cell(name: str, text: str, out: tables.RowCollector, line: int) -> object:
    """Return a cell's value in the type of its column."""
    word = text.strip()
    form = tables.TABLE_COLUMNS[name]
    if form == "text":
        return _check_length(word, name, out, line)
    if form == "flag":
        if word.casefold() not in _FLAGS:
            out.refuse(f"must be true or false, got {word[:40]!r}", line, name)
        return _FLAGS[word.casefold()]
    if not word:
        return None
    value, most = tables.log_columns("table")[name].value(word), tables.largest_whole(name)
    low = int(most == tables.MAX_RANKS)
    if value is None or value < low:
        allowed = "a finite number >= 0" if form == "number" else f"a whole number in {low}..{most}"
        out.refuse(f"must be {allowed}, got {word[:40]!r}", line, name)
    return value


def _check_length(text: str, name: str, out: tables.RowCollector, line: int) -> str:
    if len(text) > MAX_TEXT:
        out.refuse(f"is longer than {MAX_TEXT} characters", line, name)
    return text


def _format_cell(value: object) -> str:
    """Return a value as CSV text; numbers get the fewest digits from which they can be restored."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = Decimal(repr(value)).normalize()
        plain = f"{short:f}"
        return plain if -5 < short.adjusted() < 5 and not (len(plain) > 1 and plain.endswith("0")) else f"{short:e}"
    return guard_cell(str(value))


WIDE_COLUMNS = ("collective", "nranks", "size_bytes", "time_us_oop")
"""Required columns, by which the format is recognised."""

_TEXT = {"algo": "algorithm", "proto": "protocol", "dtype": "dtype", "op": "reduction"}
_WORD = re.compile(r"[\w .:/+-]{0,120}")


@tables.format_reader("wide")
def read_wide(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow, str]]:
    """Read a CSV with in-place and out-of-place times in each row, and sizes in ``total_bytes`` or ``size_bytes``."""
    for line, cells in csv_records(read_lines(path), WIDE_COLUMNS, out.file)[2]:
        measured = conventions.collective_name(cells["collective"]) or cells["collective"][:60]
        size = tables.parse_whole(cells.get("total_bytes") or cells["size_bytes"])
        if size is None:
            out.refuse(f"must be a whole number >= 0, got {cells['size_bytes'][:40]!r}", line, "size_bytes")
        common: tables.TableRow = {
            "collective": measured,
            "nbytes": size,
            "statistic": "mean",
            "tool": "",
            "run": cells.get("run", "")[:120],
        }
        common |= {"variant": cells["variant"][:120]} if "variant" in cells else {}
        for name, column in _TEXT.items():
            word = cells.get(name, "").strip()
            common[column] = word[:60] if _WORD.fullmatch(word) and word != "none" else ""
        common |= {name: number or None for name, number in csv_values(cells, "wide", out, line).items()}
        for side, in_place in (("oop", False), ("ip", True)):
            text = cells.get(f"time_us_{side}", "").strip()
            if not text:
                continue
            row = common | {
                "in_place": in_place,
                "seconds": tables.parse_printed(text, -6),
                "algbw": parse_rate(cells.get(f"algbw_gbs_{side}", ""), 9),
                "busbw": parse_rate(cells.get(f"busbw_gbs_{side}", ""), 9),
            }
            error = tables.parse_printed(cells.get(f"err_{side}", ""))
            if error is not None:
                row["wrong" if error.value == int(error.value) else "max_error"] = error.value
            yield line, row, "in place" if in_place else "out of place"


SHAPED_COLUMNS = ("N", "latency_ms", "rate_mbit", "size_bytes", "seconds")
"""Required columns, by which the format is recognised."""

_METHODS = {"ag": "ag_topk", "art": "ar_topk"}


@tables.format_reader("shaped")
def read_shaped(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow]]:
    """Read a CSV of measurements on links of known latency and bandwidth."""
    head, names, records = csv_records(read_lines(path), SHAPED_COLUMNS, out.file)
    if not {"collective", "method"} & set(names):
        out.refuse("has neither a column 'collective' nor a column 'method'", head)
    for line, cells in records:
        method, named, algorithm = (cells.get(name, "").strip() for name in ("method", "collective", "algorithm"))
        kind = _METHODS.get(method, method[:60]) if method else conventions.collective_name(named) or named[:60]
        row: tables.TableRow = {
            "collective": kind,
            "algorithm": algorithm_in_logs(algorithm[:60]),
            "size_convention": "vector" if method else conventions.mpi_convention(kind),
            "tool": cells.get("stack", "").strip()[:60],
            "statistic": "max",
            "seconds": tables.parse_printed(cells["seconds"]),
        }
        row |= {"profile": cells["profile"].strip()[:60]} if "profile" in cells else {}
        yield line, row | csv_values(cells, "shaped", out, line, SHAPED_COLUMNS)
