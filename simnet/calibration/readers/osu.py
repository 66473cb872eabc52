"""What the OSU micro-benchmarks print: collectives, latency and bandwidth between two ranks.

``# OSU MPI Allreduce Latency Test v7.5`` heads a table whose columns its second line names; ``-f`` adds the fastest and
the slowest rank and the number of iterations. The number of ranks stands nowhere but in the command that started it.

References
----------
OSU Micro-Benchmarks, ``c/mpi/collective`` and ``c/util/osu_util_mpi.c``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from simnet.calibration.readers.conventions import collective
from simnet.calibration.readers.lines import bare, read_lines
from simnet.calibration.readers.tables import MAX_RANKS, Collector, Row, mpi_row, printed, reader, whole

TITLE = re.compile(r"#\s*OSU (?:MPI|NCCL|RCCL)\S{0,20} (.{1,60}?)(?: Latency)? Test\b")
"""What heads a table."""

_COLUMNS = re.compile(
    r"Transfer Size|Size|Avg Latency\s?\(us\)|Min Latency\s?\(us\)|Max Latency\s?\(us\)|Latency\s?\(us\)|Iterations"
    r"|Bandwidth \(MB/s\)|P50 Tail Lat\(us\)|P90 Tail Lat\(us\)|P99 Tail Lat\(us\)|P\d\d Tail BW\(MB/s\)|Validation"
)
_TYPE = re.compile(r"#\s*Datatype:\s*MPI_(\w{1,20})")
_LAUNCH = re.compile(r"\b(?:mpirun|mpiexec\S*|srun|aprun|prun|flux run)\b(.*)")
_RANKS = re.compile(r"(?:\s|^)(?:-np|-n|--n|--np|--ntasks|-nranks)(?:\s+|=)(\d{1,8})\b")
_NODES = re.compile(r"(?:\s|^)(?:-N\s*|--nodes[= ])(\d{1,8})\b")
_SHORT = {"CHAR": "int8", "INT": "int32", "FLOAT": "float", "DOUBLE": "double"}
_TIMES = {
    "Avg Latency(us)": "seconds",
    "Latency(us)": "seconds",
    "Min Latency(us)": "seconds_min",
    "Max Latency(us)": "seconds_max",
    "P50 Tail Lat(us)": "seconds_p50",
    "P99 Tail Lat(us)": "seconds_p99",
}


@reader("osu")
def read_osu(path: Path, out: Collector) -> None:
    """Read what OSU micro-benchmarks printed.

    Raises
    ------
    InputError
        If the file cannot be read or holds no row.
    """
    name: str | None = None
    dtype = ""
    columns: list[str] = []
    started: dict[str, object] = {}
    table = 0
    for at, raw in enumerate(read_lines(path), 1):
        line = bare(raw)
        title = TITLE.search(line)
        if title is not None:
            name, columns, dtype = collective(title[1].removesuffix(" Latency")), [], ""
            table += 1
            if name is None:
                out.report(at, f"{title[1]!r} is no benchmark that is read", dropped=True)
            continue
        if launch := _LAUNCH.search(line):
            started = _started(launch)
        if name is None:
            continue
        if line.lstrip().startswith("#"):
            if found := _TYPE.search(line):
                dtype = _SHORT.get(found[1], found[1].lower())
            elif heads := _COLUMNS.findall(line):
                columns = [head.replace(" (us)", "(us)") for head in heads]
            continue
        words = line.split()
        if not columns or not words or (whole(words[0]) is None and printed(words[0]) is None):
            continue
        if len(words) < len(columns):
            out.report(at, f"the row has {len(words)} values, but there are {len(columns)} columns")
            continue
        row = _row(dict(zip(columns, words, strict=False)), name)
        if row is None:
            out.report(at, f"the row is not of {name}: its size or its time is no number")
            continue
        pair = {"ranks": 2} if name.startswith("p2p") else {}
        row |= started | pair | {"dtype": dtype, "run": str(table), "tool": "osu"}
        out.add(row, at)


def _started(launch: re.Match[str]) -> dict[str, object]:
    """Return ranks and nodes that a command of a launcher names; nodes only where -N are nodes."""
    options = launch[1].partition("osu_")[0]
    said: dict[str, object] = {}
    if ranks := _RANKS.search(options):
        said["ranks"] = whole(ranks[1], MAX_RANKS)
    nodes = _NODES.search(options) if launch[0].startswith(("srun", "flux")) else None
    if nodes:
        said["nodes"] = whole(nodes[1], MAX_RANKS)
    return said


def _row(cells: Mapping[str, str], name: str) -> Row | None:
    """Return a row from cells by column, or None if it has no size or no time."""
    size = whole(cells.get("Size", cells.get("Transfer Size", "0")))
    if size is None:
        return None
    row = mpi_row(name, size, cells, "Iterations", _TIMES)
    rate = printed(cells.get("Bandwidth (MB/s)", ""), 6)
    if rate is not None and rate.value > 0:
        row |= {"seconds": size / rate.value, "algbw": rate.value}
    if cells.get("Validation", "Pass").casefold() != "pass":
        row["wrong"] = 1.0
    return row if "seconds" in row else None
