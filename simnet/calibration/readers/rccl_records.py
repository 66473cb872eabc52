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

from simnet.calibration.readers.conventions import collective, nccl_convention
from simnet.calibration.readers.jobs import count, positive, short
from simnet.calibration.readers.json_values import objects
from simnet.calibration.readers.lines import read_lines
from simnet.calibration.readers.tables import Collector, printed, reader
from simnet.calibration.readers.tidy import records_of

NEEDED = ("name", "size", "inPlace", "time", "algBw", "busBw")
"""Keys or columns without which it is none of these."""


@reader("rccl")
def read_rccl_records(path: Path, out: Collector) -> None:
    """Read records of rccl-tests, as JSON or as CSV; raise InputError if the file is neither, or holds no record."""
    lines = read_lines(path)
    text = "\n".join(lines)
    records: Iterable[tuple[int, Mapping[str, Any]]] = objects(text, out.file)
    if text.lstrip()[:1] not in ("{", "["):
        records = records_of(lines, NEEDED, out.file)[2]
    for line, one in records:
        if not set(NEEDED) <= set(one):
            continue
        name, nbytes = collective(short(one["name"])), positive(one["size"])
        if name is None or nbytes is None:
            out.report(line, f"{short(one['name'])[:40]!r} of {one['size']!s:.20} bytes is nothing that is read")
            continue
        processes, each = (positive(one.get(key)) for key in ("ranks", "gpusPerRank"))
        ranks = None if not processes else processes * (each or 1)
        wrong = printed(str(one.get("wrong", "")))
        row = {
            "collective": name,
            "nbytes": nbytes,
            "size_convention": nccl_convention(name),
            "dtype": short(one.get("type")),
            "reduction": short(one.get("redop")).replace("none", ""),
            "in_place": str(one["inPlace"]).strip() in ("1", "true", "True"),
            "ranks": count(ranks),
            "nodes": count(one.get("nodes")),
            "wrong": None if wrong is None else wrong.value,
            "statistic": "mean",
            "tool": "rccl-tests",
            "run": str(one.get("numCycle", "1"))[:20],
        }
        time, algbw, busbw = (
            printed(str(one[key]), power) for key, power in (("time", -6), ("algBw", 9), ("busBw", 9))
        )
        out.add(row, line, time=time, algbw=algbw, busbw=busbw)
