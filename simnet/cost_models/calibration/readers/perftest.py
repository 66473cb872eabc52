"""Output of perftest's RDMA benchmarks (``ib_write_bw``, ``ib_send_lat``, ...) between two hosts.

``RDMA_Write BW Test`` heads the settings, ``#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]`` the
table; of latencies ``t_min[usec] t_max[usec] t_typical[usec] t_avg[usec]`` and others. A megabyte is 2^20 bytes,
whatever the column calls it, a gigabit 10^9 bits. Send and write latencies are half a round trip, as those of MPI;
reads are one-sided.
"""

# References: linux-rdma/perftest, ``src/perftest_parameters.h`` (``RESULT_FMT``, ``RESULT_FMT_LAT``) and
# ``src/perftest_parameters.c`` (``print_report_bw``).

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from simnet.cost_models.calibration.readers import tables
from simnet.cost_models.calibration.readers.lines import bare_lines

PERFTEST_HEADER = re.compile(r"#bytes[ \t]+#iterations[ \t].*(?:BW average|t_typical|t_avg)")
"""The line that names the columns of a table."""

_TITLE = re.compile(r"^\s*(RDMA_Write|RDMA_Read|Send|Raw_Ethernet|Atomic\w{0,20})\b.{0,40}? (BW|Latency) Test\b")
_PAIRS = re.compile(r"Number of qps\s*:\s*(\d{1,6})")
_COLUMN = re.compile(
    r"#bytes|#iterations|(?:BW peak|BW average)\[(?:Gb|MB|MiB)/sec\]|MsgRate\[Mpps\]"
    r"|99\.?9?% percentile\[usec\]|t_\w{1,12}\[usec\]|tps average"
)
_UNITS = {"Gb": 1e9 / 8, "MB": 2.0**20, "MiB": 2.0**20}


@tables.format_reader("perftest")
def read_perftest(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
    """Read the output of benchmarks of perftest."""
    title: re.Match[str] | None = None
    bidirectional = False
    columns: Sequence[str] = ()
    variant: dict[str, str] = {}
    table = 0
    for at, line in bare_lines(path, PERFTEST_HEADER):
        if found := _TITLE.search(line):
            title, bidirectional, variant, columns = found, "Bidirectional" in line, {}, ()
            if title[1].startswith("Atomic"):
                yield at, f"{title[1]!r} is no benchmark that is read"
        elif several := _PAIRS.search(line):
            variant = {"variant": f"{int(several[1])} queue pairs"} if int(several[1]) > 1 else {}
        elif PERFTEST_HEADER.search(line):
            columns = _COLUMN.findall(line)
            table += 1
        elif line.lstrip().startswith("#"):
            columns = ()
        if not columns or (title is not None and title[1].startswith("Atomic")):
            continue
        words = line.split()
        if not words or tables.parse_whole(words[0]) is None or len(words) < 2 or tables.parse_whole(words[1]) is None:
            continue
        if len(words) < len(columns) - (columns[-1] == "MsgRate[Mpps]"):
            yield at, f"the row has {len(words)} values, but there are {len(columns)} columns"
            continue
        cells = dict(zip(columns, words, strict=False))
        row = _perftest_row(cells, title[1] if title else "", bidirectional)
        yield at, row if isinstance(row, str) else row | variant | {"run": str(table)}


def _perftest_row(cells: Mapping[str, str], operation: str, bidirectional: bool) -> tables.TableRow | str:
    """Return a table row from cells by column, or an error message."""
    size = tables.parse_whole(cells["#bytes"]) or 0
    what, row = "latency", tables.cell_values(cells, "perftest")
    if "seconds" not in row and "seconds_p50" in row:
        row["seconds"] = row["seconds_p50"]
    for head, text in cells.items():
        rate = tables.parse_printed(text) if head.startswith("BW average") else None
        if rate is None:
            continue
        what = "bibw" if bidirectional else "bw"
        unit = _UNITS[head.partition("[")[2].partition("/")[0]]
        number = tables.parse_printed(cells.get("MsgRate[Mpps]", ""))
        if number is not None and size:
            low, high = ((number.value + sign * number.half) * 1e6 * size / unit for sign in (-1, 1))
            if not rate.may_be_within(low, high):
                return f"{rate.value:g} is not {number.value:g} million messages of {size} bytes a second"
        if rate.value > 0:
            row |= {"seconds": size / (rate.value * unit), "algbw": rate.value * unit}
    if "seconds" not in row:
        return "the row has no time and no bandwidth"
    name = f"{'get' if operation == 'RDMA_Read' else 'p2p'}_{what}"
    return row | {
        "collective": name,
        "nbytes": size,
        "in_place": False,
        "statistic": "rank0",
        "ranks": 2,
        "nodes": 2,
        "tool": "perftest",
    }
