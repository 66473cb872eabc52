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

from simnet.calibration.readers.chakra import read_chakra_collectives
from simnet.calibration.readers.conventions import bus_factor, total_bytes
from simnet.calibration.readers.facts import Facts, facts_of
from simnet.calibration.readers.folders import read_logs
from simnet.calibration.readers.imb import read_imb
from simnet.calibration.readers.inspector import read_inspector
from simnet.calibration.readers.kinds import FORMATS, Format, kind_of, read
from simnet.calibration.readers.kineto import read_kineto
from simnet.calibration.readers.nccl_json import read_nccl_json
from simnet.calibration.readers.nccl_text import read_nccl_text
from simnet.calibration.readers.osu import read_osu
from simnet.calibration.readers.perftest import read_perftest
from simnet.calibration.readers.rccl_records import read_rccl_records
from simnet.calibration.readers.shaped import read_shaped
from simnet.calibration.readers.tables import COLUMNS, Inconsistent, Measurements, Problem
from simnet.calibration.readers.tidy import read_tidy, write_tidy
from simnet.calibration.readers.wide import read_wide

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
    "read_chakra_collectives",
    "read_imb",
    "read_inspector",
    "read_kineto",
    "read_logs",
    "read_nccl_json",
    "read_nccl_text",
    "read_osu",
    "read_perftest",
    "read_rccl_records",
    "read_shaped",
    "read_tidy",
    "read_wide",
    "total_bytes",
    "write_tidy",
]
