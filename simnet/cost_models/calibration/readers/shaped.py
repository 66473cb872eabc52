"""Measurements on links of known latency and bandwidth, as CSV with units in the names of the columns.

The columns are ``collective`` (``allreduce``, ``allgather``, ``bcast``) or ``method`` (``ag``, ``art``), ``N``,
``latency_ms``, ``rate_mbit``, ``size_bytes``, ``seconds``, and any of ``stack, algorithm, profile, rep, params, cr,
t_start_s, since_change_s, straddles_change, start_skew_s``. Sizes are those of MPI: the vector of an all-reduce or
broadcast, what a rank contributes to an all-gather; with ``method``, the values that a rank sends. Latency is from host
to host, the rate that of each host's link with Ethernet framing.
"""

from __future__ import annotations

from pathlib import Path

from simnet.collectives.registry import algorithm_in_logs
from simnet.cost_models.calibration.readers import tables
from simnet.cost_models.calibration.readers.conventions import collective_name, mpi_convention
from simnet.cost_models.calibration.readers.lines import read_lines
from simnet.cost_models.calibration.readers.tidy import csv_records, csv_values

SHAPED_COLUMNS = ("N", "latency_ms", "rate_mbit", "size_bytes", "seconds")
"""Columns without which a table is none of these."""

_METHODS = {"ag": "ag_topk", "art": "ar_topk"}


@tables.format_reader("shaped")
def read_shaped(path: Path, out: tables.RowCollector) -> dict[str, bool]:
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
        row: tables.TableRow = {
            "collective": kind,
            "algorithm": algorithm_in_logs(algorithm),
            "size_convention": "vector" if method else mpi_convention(kind),
            "tool": cells.get("stack", "").strip()[:60],
            "profile": cells.get("profile", "").strip()[:60],
            "statistic": "max",
            "seconds": tables.parse_printed(cells["seconds"]),
        }
        out.add(row | csv_values(cells, "shaped", out, line, SHAPED_COLUMNS), line)
    extra = {
        one.name: True for name, one in tables.log_columns("shaped").items() if name in names and one.form == "number"
    }
    return extra | ({"profile": False} if "profile" in names else {})
