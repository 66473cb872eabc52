"""Reads CSV measurements with units in column names: in-place and out-of-place pairs, and times over shaped links.

*Wide*: ``collective, algo, proto, nranks, nnodes, ranks_per_node, dtype, op, size_bytes, total_bytes``; ``time_us_oop,
algbw_gbs_oop, busbw_gbs_oop, err_oop`` and the same with ``_ip`` for in place; ``time_min_us, time_max_us, time_p50_us,
n_iter``, and ``variant, run`` for repetitions of a setting. Empty means not stated.

*Shaped*: ``collective`` (``allreduce``, ``allgather``, ``bcast``) or ``method`` (``ag``, ``art``), ``N``,
``latency_ms``, ``rate_mbit``, ``size_bytes``, ``seconds``, and others of `data/log_columns.csv`. Sizes are those of
MPI; with ``method``, the values that a rank sends. Latency is from host to host, the rate that of each host's link.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from simnet.collectives.registry import algorithm_in_logs
from simnet.cost_models.calibration.readers import tables
from simnet.cost_models.calibration.readers.conventions import collective_name, mpi_convention
from simnet.cost_models.calibration.readers.lines import read_lines
from simnet.cost_models.calibration.readers.tidy import csv_records, csv_values, parse_rate

WIDE_COLUMNS = ("collective", "nranks", "size_bytes", "time_us_oop")
"""Required columns, by which the format is recognised."""

_TEXT = {"algo": "algorithm", "proto": "protocol", "dtype": "dtype", "op": "reduction"}
_WORD = re.compile(r"[\w .:/+-]{0,120}")


@tables.format_reader("wide")
def read_wide(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow, str]]:
    """Read a CSV with in-place and out-of-place times in each row; the size is ``total_bytes``, else ``size_bytes``."""
    for line, cells in csv_records(read_lines(path), WIDE_COLUMNS, out.file)[2]:
        measured = collective_name(cells["collective"]) or cells["collective"][:60]
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
        kind = _METHODS.get(method, method[:60]) if method else collective_name(named) or named[:60]
        row: tables.TableRow = {
            "collective": kind,
            "algorithm": algorithm_in_logs(algorithm[:60]),
            "size_convention": "vector" if method else mpi_convention(kind),
            "tool": cells.get("stack", "").strip()[:60],
            "statistic": "max",
            "seconds": tables.parse_printed(cells["seconds"]),
        }
        row |= {"profile": cells["profile"].strip()[:60]} if "profile" in cells else {}
        yield line, row | csv_values(cells, "shaped", out, line, SHAPED_COLUMNS)
