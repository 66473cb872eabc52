"""What the Intel MPI benchmarks print.

``# Benchmarking Allreduce`` and ``# #processes = 16`` head a table whose columns its last header line names. Times are
per call: of the fastest and the slowest process, and the mean over processes. A megabyte is 10^6 bytes since version
2018, and was 2^20 bytes before.

References
----------
Intel MPI Benchmarks User Guide; https://github.com/intel/mpi-benchmarks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from simnet.calibration.readers.conventions import collective
from simnet.calibration.readers.lines import bare, read_lines
from simnet.calibration.readers.tables import MAX_RANKS, Collector, Row, mpi_row, printed, reader, whole

TITLE = re.compile(r"#\s*Benchmarking\s+(\w{1,40})")
"""What heads a table."""

_PROCESSES = re.compile(r"#\s*#processes\s*=\s*(\d{1,8})")
_HEADER = re.compile(r"#?\s*(?:#?Benchmarking\s+#procs\s+)?(?:#bytes\s+)?#repetitions\s")
_SETTING = re.compile(r"#\s*(MPI_Datatype for reductions|MPI_Op)\s*:\s*MPI_(\w{1,20})")
_TIMES = {"t[usec]": "seconds", "t_avg[usec]": "seconds", "t_min[usec]": "seconds_min", "t_max[usec]": "seconds_max"}
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_MESSAGES = {"p2p_latency": 1, "pingping": 1, "sendrecv": 2, "exchange": 4}
"""Messages of the size that a process sends and receives in the time, as its throughput counts them."""


@reader("imb")
def read_imb(path: Path, out: Collector) -> None:
    """Read what Intel MPI benchmarks printed.

    Raises
    ------
    InputError
        If the file cannot be read or holds no row.
    """
    name: str | None = None
    columns: list[str] = []
    ranks: int | None = None
    settings: dict[str, str] = {}
    table = 0
    for at, raw in enumerate(read_lines(path), 1):
        line = bare(raw)
        if "#repetitions" in line and _HEADER.match(line.lstrip()):
            columns = line.replace("# ", "#").split()
            continue
        if line.lstrip().startswith("#"):
            if title := TITLE.search(line):
                name, columns, ranks = collective(title[1]), [], None
                table += 1
                if name is None:
                    out.report(at, f"{title[1]!r} is no benchmark that is read")
            elif processes := _PROCESSES.search(line):
                ranks = whole(processes[1], MAX_RANKS)
            elif setting := _SETTING.search(line):
                settings[setting[1]] = setting[2].lower()
            continue
        words = line.split()
        if name is None or not columns or not words:
            continue
        if columns[0] == "#Benchmarking":
            if collective(words[0]) != name:
                continue
        elif whole(words[0]) is None:
            continue
        if len(words) != len(columns):
            out.report(at, f"the row has {len(words)} values, but there are {len(columns)} columns")
            continue
        cells = dict(zip(columns, words, strict=True))
        row = _row(cells, name)
        if row is None:
            out.report(at, f"the row is not of {name}: its size or its time is no number")
            continue
        if name in _REDUCING:
            row |= {"dtype": settings.get("MPI_Datatype for reductions", ""), "reduction": settings.get("MPI_Op", "")}
        row |= {"ranks": whole(cells.get("#procs", ""), MAX_RANKS) or ranks, "run": str(table), "tool": "imb"}
        wrong = _throughput(cells, name)
        if wrong is not None:
            out.report(at, wrong, dropped=out.inconsistent == "drop")
            if out.inconsistent == "drop":
                continue
        out.add(row, at)


def _row(cells: Mapping[str, str], name: str) -> Row | None:
    """Return a row from cells by column, or None if it has no size or no time."""
    size = whole(cells.get("#bytes", "0"))
    if size is None:
        return None
    row = mpi_row(name, size, cells, "#repetitions", _TIMES)
    return row if "seconds" in row else None


def _throughput(cells: Mapping[str, str], name: str) -> str | None:
    """Return what is wrong with the throughput of a row, or None."""
    rate = printed(cells.get("Mbytes/sec", ""))
    time = printed(cells.get("t_max[usec]", cells.get("t[usec]", "")), -6)
    size = whole(cells.get("#bytes", ""))
    if rate is None or time is None or size is None or name not in _MESSAGES:
        return None
    sent = _MESSAGES[name] * size
    for megabyte in (1e6, 2**20):
        low = sent / (time.value + time.half) / megabyte
        high = sent / max(time.value - time.half, 1e-30) / megabyte
        if low * (1 - 1e-6) <= rate.value + rate.half and rate.value - rate.half <= high * (1 + 1e-6):
            return None
    return (
        f"throughput is {rate.value:g} MB/s, but {sent} bytes in {time.value:.5g} s are {sent / time.value / 1e6:.5g}"
    )
