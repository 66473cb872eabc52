"""Measured times of collectives, read from the output of benchmarks.

`nccl_text` (nccl-tests, rccl-tests), `text_tables` (OSU, Intel MPI benchmarks, perftest and others),
`job_traces` (Kineto, Chakra, NCCL inspector) and `csv_tables` (simnet's own CSV and others) read; `kinds` recognises
formats, those of packages included, and reads folders. All return the table of `tables`, where facts add what files
lack; `conventions` defines sizes.
Files are untrusted data: sizes are checked before parsing, secrets are not kept, errors name the file and the line.
"""

from simnet.cost_models.calibration.readers.conventions import bus_factor, total_bytes
from simnet.cost_models.calibration.readers.csv_tables import read_tidy, write_tidy
from simnet.cost_models.calibration.readers.kinds import LOG_FORMATS, LogFormat, read_logs, read_measurements
from simnet.cost_models.calibration.readers.tables import TABLE_COLUMNS, LogFacts, LogProblem, Measurements, parse_facts

__all__ = [
    "LOG_FORMATS",
    "TABLE_COLUMNS",
    "LogFacts",
    "LogFormat",
    "LogProblem",
    "Measurements",
    "bus_factor",
    "parse_facts",
    "read_logs",
    "read_measurements",
    "read_tidy",
    "total_bytes",
    "write_tidy",
]
