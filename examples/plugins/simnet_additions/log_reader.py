"""A log reader: ``all_reduce 8 1048576 1234.5`` is a collective, its ranks, its bytes and its microseconds.

The first line of such a log is ``stopwatch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simnet.cost_models.calibration.readers import LogFormat, Measurements
from simnet.cost_models.calibration.readers.lines import read_lines
from simnet.cost_models.calibration.readers.tables import RowCollector, parse_printed, parse_whole


def read_stopwatch(path: Path, *, facts: Mapping[str, object] | None = None) -> Measurements:
    """Read a log; what is wrong with a line is reported, and the line left out."""
    out = RowCollector(str(path), "stopwatch", facts or {})
    for number, line in enumerate(read_lines(path)[1:], 2):
        words = line.split()
        if len(words) == 4:
            ranks, nbytes, time = parse_whole(words[1]), parse_whole(words[2]), parse_printed(words[3], -6)
            row = {"collective": words[0], "ranks": ranks, "nbytes": nbytes, "seconds": time, "tool": "stopwatch"}
            out.add(row, number)
        elif words:
            out.report(number, f"has {len(words)} words, and not 4")
    return out.done()


STOPWATCH = LogFormat(read_stopwatch, first=lambda line: line.strip() == "stopwatch")
