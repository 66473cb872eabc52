"""Measured times of collectives, read from what benchmarks print.

One module per format: `nccl_text` and `nccl_json` (nccl-tests, rccl-tests), `rccl_records` (records of rccl-tests),
`osu` (OSU micro-benchmarks), `imb` (Intel MPI benchmarks), `perftest` (RDMA benchmarks), `kineto`, `chakra` and
`inspector` (traces of jobs), `tidy` (tidy CSV, which simnet writes itself), `wide` (CSV with both sides in a row),
`shaped` (CSV of measurements on shaped links). `kinds` tells by the content of which format a file is, and knows those
that others register; `folders` reads all files of a folder, and `facts` says what single files do not. All give the
same table, described in `tables`; `conventions` says what a size means. What is read is data from strangers: sizes
are checked before parsing, secrets are not kept, and a refusal names the file, the line and the
reason.
"""

from simnet.calibration.readers.conventions import bus_factor, total_bytes
from simnet.calibration.readers.facts import Facts, facts_of
from simnet.calibration.readers.folders import read_logs
from simnet.calibration.readers.kinds import FORMATS, Format, kind_of, read
from simnet.calibration.readers.tables import COLUMNS, Inconsistent, Measurements, Problem
from simnet.calibration.readers.tidy import read_tidy, write_tidy

__all__ = [
    "COLUMNS",
    "FORMATS",
    "Facts",
    "Format",
    "Inconsistent",
    "Measurements",
    "Problem",
    "bus_factor",
    "facts_of",
    "kind_of",
    "read",
    "read_logs",
    "read_tidy",
    "total_bytes",
    "write_tidy",
]
