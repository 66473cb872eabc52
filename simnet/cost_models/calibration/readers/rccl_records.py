"""Records of rccl-tests with ``-Z json`` or ``-Z csv``, one for each side of each size.

Keys or columns are ``numCycle, name, nodes, ranks, ranksPerNode, gpusPerRank, size, type, redop, inPlace, time, algBw,
busBw, wrong``; older versions have no numbers of nodes and ranks. Ranks are processes.

References
----------
AMD, rccl-tests, ``src/common.cu`` (``Reporter``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simnet.cost_models.calibration.readers.conventions import collective_name
from simnet.cost_models.calibration.readers.json_values import json_objects, read_count, read_rank_count, short_text
from simnet.cost_models.calibration.readers.lines import read_lines
from simnet.cost_models.calibration.readers.tables import RowCollector, format_reader, parse_printed
from simnet.cost_models.calibration.readers.tidy import csv_records

RCCL_KEYS = ("name", "size", "inPlace", "time", "algBw", "busBw")
"""Keys or columns without which it is none of these."""


@format_reader("rccl")
def read_rccl_records(path: Path, out: RowCollector) -> None:
    """Read records of rccl-tests, as JSON or as CSV."""
    lines = read_lines(path)
    text = "\n".join(lines)
    records: Iterable[tuple[int, Mapping[str, Any]]] = json_objects(text, out.file)
    if text.lstrip()[:1] not in ("{", "["):
        records = csv_records(lines, RCCL_KEYS, out.file)[2]
    for line, one in records:
        if not set(RCCL_KEYS) <= set(one):
            continue
        name, nbytes = collective_name(short_text(one["name"])), read_count(one["size"])
        if name is None or nbytes is None:
            out.report(line, f"{short_text(one['name'])[:40]!r} of {one['size']!s:.20} bytes is nothing that is read")
            continue
        processes, each = (read_count(one.get(key)) for key in ("ranks", "gpusPerRank"))
        ranks = None if not processes else processes * (each or 1)
        wrong = parse_printed(str(one.get("wrong", "")))
        row = {
            "collective": name,
            "nbytes": nbytes,
            "dtype": short_text(one.get("type")),
            "reduction": short_text(one.get("redop")).replace("none", ""),
            "in_place": str(one["inPlace"]).strip() in ("1", "true", "True"),
            "ranks": read_rank_count(ranks),
            "nodes": read_rank_count(one.get("nodes")),
            "wrong": None if wrong is None else wrong.value,
            "statistic": "mean",
            "tool": "rccl-tests",
            "run": str(one.get("numCycle", "1"))[:20],
            "seconds": parse_printed(str(one["time"]), -6),
            "algbw": parse_printed(str(one["algBw"]), 9),
            "busbw": parse_printed(str(one["busBw"]), 9),
        }
        out.add(row, line)
