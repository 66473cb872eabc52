"""Output of the Intel MPI benchmarks, and of oneCCL's, which prints the same columns.

``# Benchmarking Allreduce`` and ``# #processes = 16``, in oneCCL 2021 with colons, head a table whose columns its last
header line names. Times are per call: of the fastest and the slowest process, and the mean over processes. Of
non-blocking collectives ``t_pure`` is the time of a call and its wait, with nothing computed between. A megabyte is
10^6 bytes since version 2018, 2^20 bytes before. A table without heading is of the collective in the name of the file.
"""

# References: Intel MPI Benchmarks User Guide; https://github.com/intel/mpi-benchmarks.

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from simnet.cost_models.calibration.readers import tables
from simnet.cost_models.calibration.readers.conventions import NON_BLOCKING, collective_name, named_collective
from simnet.cost_models.calibration.readers.lines import bare_lines

_TITLE = re.compile(r"#[ \t]*Benchmarking:?[ \t]+(?:Multi-)?(\w{1,40})\b(?! +\w)")

IMB_HEADER = re.compile(
    r"#?\s*(?:#?Benchmarking\s+#procs\s+)?(?:Group\s+)?(?:#bytes\s+)?(?:#elem_count\s+)?#repetitions\s"
)
"""The header line of a table."""

IMB_ANCHOR = re.compile(
    _TITLE.pattern + r"|(?:#?Benchmarking[ \t]+#procs[ \t]+)?(?:#bytes[ \t]+)?(?:#elem_count[ \t]+)?#repetitions[ \t]"
)
"""The title of a table, or the line that names its columns."""

_PROCESSES = re.compile(r"#processes\s*[=:]\s*(\d{1,8})")
_GROUPS = re.compile(r"\(\s*(\d{1,8}) groups of\s+(\d{1,8}) processes")
_SETTING = re.compile(r"#\s*(MPI_Datatype for reductions|MPI_Op)\s*:\s*MPI_(\w{1,20})")
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_MESSAGES = {"p2p_latency": 1, "pingping": 1, "sendrecv": 2, "exchange": 4}
"""Messages of the size that a process sends and receives in the time, as its throughput counts them."""

_UNNAMED: Mapping[int, Sequence[str]] = {
    4: ("#bytes", "#repetitions", "t[usec]", "Mbytes/sec"),
    5: ("#bytes", "#repetitions", "t_min[usec]", "t_max[usec]", "t_avg[usec]"),
    6: ("#bytes", "#repetitions", "t_min[usec]", "t_max[usec]", "t_avg[usec]", "Mbytes/sec"),
}
"""Columns of tables without a header, by number of columns."""


@tables.format_reader("imb")
def read_imb(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
    """Read the output of Intel MPI benchmarks."""
    given = out.facts.get("collective")
    name = _benchmark_name(path.name)[0] or named_collective(path.name) or (given if isinstance(given, str) else None)
    reported = False
    columns: Sequence[str] = ()
    ranks: int | None = None
    variant = ""
    settings: dict[str, str] = {}
    table = 1
    for at, line in bare_lines(path, IMB_ANCHOR):
        if "#repetitions" in line and IMB_HEADER.match(line.lstrip()):
            columns = line.replace("# ", "#").replace("overlap[%]", " overlap[%]").split()
            if name is None and not reported:
                yield at, "a table begins, but nothing says of which benchmark; give it, as collective=all_reduce"
                reported = True
            continue
        if line.lstrip().startswith("#"):
            if title := _TITLE.search(line):
                name, variant = _benchmark_name(title[1])
                columns, ranks, table, reported = (), None, table + 1, name is None
                if reported:
                    yield at, f"{title[1]!r} is no benchmark that is read"
            elif processes := _PROCESSES.search(line):
                ranks = tables.parse_whole(processes[1], tables.MAX_RANKS)
            elif groups := _GROUPS.search(line):
                ranks, variant = tables.parse_whole(groups[2], tables.MAX_RANKS), f"{groups[1]} groups"
            elif setting := _SETTING.search(line):
                settings[setting[1]] = setting[2].lower()
            continue
        words = line.split()
        if name is None or not words:
            continue
        if columns and columns[0] == "#Benchmarking":
            if _benchmark_name(words[0])[0] != name:
                continue
        elif tables.parse_whole(words[0]) is None:
            continue
        columns = columns or _guess_columns(words)
        if not columns:
            continue
        row = _imb_row(words, columns, name)
        if isinstance(row, str):
            yield at, row
            continue
        if name in _REDUCING:
            row |= {"dtype": settings.get("MPI_Datatype for reductions", ""), "reduction": settings.get("MPI_Op", "")}
        row |= {"variant": variant} if variant else {}
        yield at, row | {"ranks": row["ranks"] or ranks, "run": str(table), "tool": "imb"}


def _benchmark_name(title: str) -> tuple[str | None, str]:
    """Return a benchmark's collective, None if unknown, and `NON_BLOCKING` or ""."""
    word = title.strip().removesuffix("_pure")
    if found := collective_name(word):
        return found, ""
    found = collective_name(word[1:]) if word[:1] in ("I", "i") else None
    return found, NON_BLOCKING if found else ""


def _guess_columns(words: Sequence[str]) -> Sequence[str]:
    """Return the columns of a row in a table without a header, by its number of cells; empty if no match."""
    numbers = (
        tables.parse_whole(words[0]) is not None and tables.parse_whole(words[1] if len(words) > 1 else "") is not None
    )
    return _UNNAMED.get(len(words), ()) if numbers and all(tables.parse_printed(word) for word in words) else ()


def _imb_row(words: Sequence[str], columns: Sequence[str], name: str) -> tables.TableRow | str:
    """Return a table row from a line's words, or an error message."""
    if len(words) != len(columns):
        return f"the row has {len(words)} values, but there are {len(columns)} columns"
    cells = dict(zip(columns, words, strict=True))
    size = tables.parse_whole(cells.get("#bytes", "0"))
    row = tables.mpi_row(name, size or 0, cells, "imb")
    if size is None or "seconds" not in row:
        return f"the row is not of {name}: its size or its time is no number"
    ranks = tables.parse_whole(cells.get("#procs", ""), tables.MAX_RANKS)
    return _wrong_throughput(cells, name) or row | {"ranks": ranks}


def _wrong_throughput(cells: Mapping[str, str], name: str) -> str | None:
    """Return an error message if throughput contradicts time and size; None if consistent."""
    rate = tables.parse_printed(cells.get("Mbytes/sec", ""))
    time = tables.parse_printed(cells.get("t_max[usec]", cells.get("t[usec]", "")), -6)
    size = tables.parse_whole(cells.get("#bytes", ""))
    if rate is None or time is None or time.value <= 0 or size is None or name not in _MESSAGES:
        return None
    sent = float(_MESSAGES[name] * size)
    per_second = tables.parse_printed(cells.get("Msg/sec", ""))
    if per_second is not None:
        sent *= max(round(min(per_second.value * time.value, tables.MAX_WHOLE)), 1)
    for megabyte in (1e6, 2**20):
        low = sent / (time.value + time.half) / megabyte
        high = sent / (time.value - time.half) / megabyte
        if rate.may_be_within(low, high):
            return None
    return (
        f"throughput is {rate.value:g} MB/s, but {sent:g} bytes in {time.value:.5g} s are {sent / time.value / 1e6:.5g}"
    )
