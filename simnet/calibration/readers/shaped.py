"""Measurements on links of known latency and bandwidth, as CSV with units in the names of the columns.

The columns are ``collective`` (``allreduce``, ``allgather``, ``bcast``) or ``method`` (``ag``, ``art``), ``N``,
``latency_ms``, ``rate_mbit``, ``size_bytes``, ``seconds``, and any of ``stack, algorithm, profile, rep, params, cr,
t_start_s, since_change_s, straddles_change, start_skew_s``. Sizes are those of MPI: the vector of an all-reduce or
broadcast, what a rank contributes to an all-gather; with ``method``, the values that a rank sends. Latency is from host
to host, the rate that of each host's link with Ethernet framing.
"""

from __future__ import annotations

from pathlib import Path

from simnet.calibration.readers.conventions import collective_name, mpi_convention
from simnet.calibration.readers.lines import read_lines
from simnet.calibration.readers.tables import (
    MAX_RANKS,
    MAX_WHOLE,
    RowCollector,
    TableRow,
    format_reader,
    parse_printed,
    parse_whole,
)
from simnet.calibration.readers.tidy import csv_records
from simnet.collectives.registry import algorithm_in_logs

SHAPED_COLUMNS = ("N", "latency_ms", "rate_mbit", "size_bytes", "seconds")
"""Columns without which a table is none of these."""

_NUMBERS = {
    "latency_ms": ("link_latency", 1e-3),
    "rate_mbit": ("link_bandwidth", 125e3),
    "params": ("parameters", 1.0),
    "cr": ("density", 1.0),
    "t_after_bcast_s": ("seconds_after_broadcast", 1.0),
    "start_skew_s": ("start_skew", 1.0),
    "t_start_s": ("began", 1.0),
    "since_change_s": ("since_change", 1.0),
    "straddles_change": ("straddles_change", 1.0),
}
_WHOLE = {"N": ("ranks", MAX_RANKS), "size_bytes": ("nbytes", MAX_WHOLE), "rep": ("iteration", MAX_WHOLE)}
_METHODS = {"ag": "ag_topk", "art": "ar_topk"}


@format_reader("shaped")
def read_shaped(path: Path, out: RowCollector) -> dict[str, bool]:
    r"""Read a CSV of measurements on links of known latency and bandwidth.

    Further columns are in SI units: ``link_latency`` [s], ``link_bandwidth`` [byte/s], ``profile``, ``parameters``,
    ``density``, ``seconds_after_broadcast``, ``start_skew``, ``began``, ``since_change``, ``straddles_change``.
    """
    head, names, records = csv_records(read_lines(path), SHAPED_COLUMNS, out.file)
    if not {"collective", "method"} & set(names):
        out.refuse("has neither a column 'collective' nor a column 'method'", head)
    for line, cells in records:
        method = cells.get("method", "").strip()
        named = cells.get("collective", "").strip()
        kind = _METHODS.get(method, method[:60]) if method else collective_name(named) or named[:60]
        algorithm = cells.get("algorithm", "").strip()[:60]
        row: TableRow = {
            "collective": kind,
            "algorithm": algorithm_in_logs(algorithm),
            "size_convention": "vector" if method else mpi_convention(kind),
            "tool": cells.get("stack", "").strip()[:60],
            "profile": cells.get("profile", "").strip()[:60],
            "statistic": "max",
        }
        for name, (column, most) in _WHOLE.items():
            text = cells.get(name, "").strip().removesuffix(".0")
            number = parse_whole(text, most)
            if number is None and (text or name in SHAPED_COLUMNS):
                out.refuse(f"must be a whole number >= 0, got {text[:40]!r}", line, name)
            row[column] = number
        for name, (column, unit) in _NUMBERS.items():
            text = cells.get(name, "").strip()
            value = parse_printed(text)
            if value is None and (text or name in SHAPED_COLUMNS):
                out.refuse(f"must be a number, got {text[:40]!r}", line, name)
            row[column] = None if value is None else value.value * unit
        out.add(row, line, time=parse_printed(cells["seconds"]))
    extra = {column: True for name, (column, _) in _NUMBERS.items() if name in names}
    return extra | ({"profile": False} if "profile" in names else {})
