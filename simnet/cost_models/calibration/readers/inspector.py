"""Output of the NCCL inspector: a JSON object for each collective of one rank of a job.

``header`` names communicator, rank, and numbers of ranks and nodes; ``coll_perf`` the collective, its number in the
communicator, its size and its time; ``p2p_perf`` the same of a message. Sizes of all-gathers and reduce-scatters are
per rank. The time is that of the kernel on this rank, with its wait for others. The name of the host is dropped.

References
----------
NVIDIA, nccl, ``ext-profiler/inspector/README.md`` and ``inspector.cc`` (``inspectorComputeCollBw``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simnet.base.checks import is_number
from simnet.cost_models.calibration.readers.conventions import collective_name, nccl_convention
from simnet.cost_models.calibration.readers.jobs import finish_trace
from simnet.cost_models.calibration.readers.json_values import json_objects, read_count, read_rank_count, short_text
from simnet.cost_models.calibration.readers.lines import read_trace
from simnet.cost_models.calibration.readers.tables import PrintedNumber, RowCollector, TableRow, format_reader

_PER_RANK = ("all_gather", "reduce_scatter")
_DIGITS = 5e-7
"""Half of the last digit of a bandwidth [GB/s]."""


@format_reader("inspector")
def read_inspector(path: Path, out: RowCollector) -> Mapping[str, bool]:
    """Read the output of the NCCL inspector."""
    for line, entry in json_objects(read_trace(path), out.file):
        header, perf, what = entry.get("header"), entry.get("coll_perf"), "coll"
        if not isinstance(perf, dict):
            perf, what = entry.get("p2p_perf"), "p2p"
        if not isinstance(header, dict) or not isinstance(perf, dict):
            continue
        printed_name = short_text(perf.get(what))
        name = "sendrecv" if what == "p2p" else collective_name(printed_name)
        nbytes = read_count(perf.get(f"{what}_msg_size_bytes"))
        micros, rate = perf.get(f"{what}_exec_time_us"), perf.get(f"{what}_algobw_gbs")
        if name is None or nbytes is None or not is_number(micros):
            out.report(line, f"{printed_name[:40]!r} has no size and time that are read")
            continue
        row: TableRow = {
            "group": short_text(header.get("id")),
            "rank": read_count(header.get("rank")),
            "ranks": read_rank_count(header.get("n_ranks")),
            "nodes": read_rank_count(header.get("nnodes")),
            "collective": name,
            "nbytes": nbytes,
            "size_convention": "per_rank" if name in _PER_RANK else nccl_convention(name),
            "sequence": read_count(perf.get(f"{what}_sn")),
            "statistic": "rank",
            "tool": "nccl",
            # Times are whole microseconds, and bandwidths those of the time before it was rounded down.
            "seconds": PrintedNumber(micros * 1e-6, 1e-6),
            "algbw": PrintedNumber(rate * 1e9, _DIGITS * 1e9) if is_number(rate) and 0 < rate < 1e9 else None,
        }
        out.add(row, line)
    return finish_trace(out)
