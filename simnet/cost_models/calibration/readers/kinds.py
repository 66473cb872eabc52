"""Formats of measurement files: detection by content, and readers of single files and of folders of logs.

A package may register a `LogFormat` as an entry point ``simnet.log_readers``; it is asked after simnet's own. A folder
with a ``data.csv`` stands for that file. Of any other, all files are read, those of folders inside included, except
names that begin with a dot; a file that is no log is a problem. Traces of the ranks of one job, in one folder, count
once per call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from simnet.base import plugins
from simnet.base.errors import InputError, check_choice
from simnet.base.progress import track_progress
from simnet.cost_models.calibration.readers import csv_tables, job_traces, nccl_text
from simnet.cost_models.calibration.readers.job_traces import merge_ranks
from simnet.cost_models.calibration.readers.lines import MAX_LINE, NUMBERS, plain_text, read_head, read_lines
from simnet.cost_models.calibration.readers.tables import MAX_ROWS, TABLE_COLUMNS, LogFacts, LogProblem, Measurements
from simnet.cost_models.calibration.readers.text_tables import TEXT_READERS, TEXT_TABLES, read_iperf3_json

# No error for a name that is too long, as of `Path.is_dir`.
is_folder = os.path.isdir

DATA_FILE = "data.csv"
"""File that is read in place of a folder that has it."""


def _never_matches(_: str | bytes) -> bool:
    return False


class LogFormat(NamedTuple):
    """A format of measurement files: `read` returns the `Measurements` of a path; ``facts`` fill missing columns.

    A file is recognised by the `first` line that is no comment, by an `anchor`, what only its headings or rows begin
    with, by its `head`, the first 64 KiB, unpacked, or by the `name` of the file, where its content does not tell.
    """

    read: Callable[..., Measurements]
    first: Callable[[str], bool] = _never_matches
    anchor: re.Pattern[str] = re.compile(r"(?!)")
    head: Callable[[bytes], bool] = _never_matches
    name: Callable[[str], object] = _never_matches


def _column_names(line: str) -> set[str]:
    return {name.strip() for name in line.split(",")}


def _is_shaped(line: str) -> bool:
    names = _column_names(line)
    return names >= set(csv_tables.SHAPED_COLUMNS) and bool(names & {"collective", "method"})


def _is_tidy(line: str) -> bool:
    return len(_column_names(line) & set(csv_tables.REQUIRED_COLUMNS)) >= 2


def _is_json(head: bytes) -> bool:
    return re.match(rb"(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*(?:[\[{\]]|$))", head) is not None


_EXECUTION_TRACE = re.compile(rb'"schema"\s*:\s*"[\w.-]{1,40}"[\s\S]{0,2000}"nodes"\s*:\s*\[')
_UNTIMED = (
    "is an execution trace of PyTorch (ExecutionTraceObserver), which has no times; give the Kineto trace of the "
    "profiler, or the Chakra trace that chakra_trace_link and chakra_converter make of both"
)


def _is_kineto(head: bytes) -> bool:
    """Return whether a file starts like a PyTorch profiler trace."""
    return _is_json(head) and any(b'"%s"' % word in head for word in job_traces.KINETO_WORDS)


LOG_FORMATS: Mapping[str, LogFormat] = {
    "chakra": LogFormat(job_traces.read_chakra_collectives, head=job_traces.is_chakra),
    "kineto": LogFormat(job_traces.read_kineto, head=_is_kineto),
    "inspector": LogFormat(
        job_traces.read_inspector,
        head=lambda head: _is_json(head) and b'"header"' in head and b"_msg_size_bytes" in head,
    ),
    "rccl": LogFormat(
        nccl_text.read_rccl_records,
        head=lambda head: _is_json(head) and b'"numCycle"' in head and b'"algBw"' in head,
        first=lambda line: _column_names(line) >= set(nccl_text.RCCL_KEYS),
    ),
    **{
        kind: LogFormat(read, anchor=one.headings, name=one.names.search)
        for (kind, read), one in zip(TEXT_READERS.items(), TEXT_TABLES.values(), strict=True)
    },
    "iperf3-json": LogFormat(read_iperf3_json, head=lambda head: _is_json(head) and b'"iperf 3' in head),
    "nccl": LogFormat(nccl_text.read_nccl_text, anchor=nccl_text.NCCL_ANCHOR),
    "wide": LogFormat(csv_tables.read_wide, first=lambda line: _column_names(line) >= set(csv_tables.WIDE_COLUMNS)),
    "shaped": LogFormat(csv_tables.read_shaped, first=_is_shaped),
    "tidy": LogFormat(csv_tables.read_tidy, first=_is_tidy),
    "nccl-json": LogFormat(nccl_text.read_nccl_json),
}
"""The formats of simnet itself: traces of jobs (Chakra, PyTorch, NCCL inspector), records of rccl-tests, OSU and Intel
MPI benchmarks, perftest, other tables of benchmarks, text of nccl-tests, CSV with both sides in a row, CSV of
measurements on shaped links, tidy CSV, JSON of nccl-tests. Where a file fits several, the first counts."""

TOOL_FORMATS: Mapping[str, str] = {"nccl-tests": "nccl", "rccl-tests": "nccl", "osu": "osu", "imb": "imb"}
"""Formats of tables without a header, by the fact ``tool``."""


def log_format(path: str | Path, tool: str = "") -> str | None:
    r"""Return the format of a file, or of a folder's ``data.csv``, by its content; None if unknown.

    Where the content does not tell, as in a table without heading, the tool
    (of `TOOL_FORMATS`) or the name of the file does.
    """
    path = measurements_file(path)
    head = read_head(path)
    if found := next((name for name, one in LOG_FORMATS.items() if one.head(head)), None):
        return found
    lines = read_lines(path)
    registered = plugins.usable_plugins("log_readers", registered_format)
    own = _recognise_format(lines, LOG_FORMATS) or _recognise_format(lines, registered)
    if own is None and _is_json(head):
        if _EXECUTION_TRACE.search(head):
            raise InputError(_UNTIMED, file=str(path))
        return "nccl-json"
    if own is None and any(NUMBERS.search(line[:MAX_LINE]) for line in lines):
        own = TOOL_FORMATS.get(tool) or next((name for name, one in LOG_FORMATS.items() if one.name(path.name)), None)
    return own


def _recognise_format(lines: Sequence[str], formats: Mapping[str, LogFormat]) -> str | None:
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if found := next((name for name, one in formats.items() if one.first(first)), None):
        return found
    text = plain_text(lines)
    anchors = {name: at.start() for name, one in formats.items() if (at := one.anchor.search(text))}
    return min(anchors, key=lambda name: anchors[name], default=None)


def registered_format(name: str) -> LogFormat | None:
    """Return the log format that a plug-in registers under a name; None if there is none."""
    return plugins.load_plugin("log_readers", name, lambda found: plugins.check_instance(found, LogFormat))


def read_measurements(
    path: str | Path,
    kind: str | None = None,
    *,
    facts: Mapping[str, object] | None = None,
) -> Measurements:
    """Return the measurements in a file of any format; inconsistent rows are reported and skipped.

    The path is that of a log, a CSV, a trace, or a folder with a ``data.csv``; `kind` is by default found by the
    content; `facts` are values by column that the file lacks, as ``{"ranks": 16}``.
    """
    for name in facts or {}:
        check_choice(name, "column", TABLE_COLUMNS)
    path = measurements_file(path)
    known = [*LOG_FORMATS, *plugins.plugin_names("log_readers")]
    if kind is not None:
        check_choice(kind, "format", known, file=str(path))
    found = log_format(path, str((facts or {}).get("tool", ""))) if kind is None else kind
    if found is None:
        said, line = _unread(read_lines(path))
        own = f"; any other as CSV with {', '.join(csv_tables.REQUIRED_COLUMNS)}"
        message = f"{said}: {', '.join(sorted(known))}{own}{plugins.refused_names('log_readers')}"
        raise InputError(message, file=str(path), line=line)
    one = LOG_FORMATS.get(found) or registered_format(found)
    assert one is not None
    measured = one.read(path, facts=facts)
    if not isinstance(measured, Measurements):
        raise plugins.return_error(one.read, measured, "Measurements")
    return measured


def _unread(lines: Sequence[str]) -> tuple[str, int | None]:
    """Return an error message for a file of unknown format, and the line number of its first row of numbers if any."""
    rows = list(islice(((at, line) for at, line in enumerate(lines, 1) if NUMBERS.search(line[:MAX_LINE])), 2))
    if len(rows) < 2:
        return "holds no measurements in a format that is read", None
    row = " ".join(rows[0][1].split())[:80]
    return f"has rows of numbers ({row!r}), but holds no measurements in a format that is read", rows[0][0]


def measurements_file(path: str | Path) -> Path:
    """Return the path of a file, or of ``data.csv`` in a folder; raise InputError if it is missing."""
    path = Path(path)
    if is_folder(path) and not (path / DATA_FILE).is_file():
        raise InputError(f"is a folder without a {DATA_FILE}; give the file", file=str(path))
    return path / DATA_FILE if is_folder(path) else path


MAX_FILES = 10_000
"""The most files of a folder."""


def read_logs(path: str | Path, facts: LogFacts | None = None) -> Measurements:
    """Return the measurements in a log, or in all logs of a folder, and the problems of skipped rows and files."""
    path, known = Path(path), LogFacts() if facts is None else facts
    if not is_folder(path) or (path / DATA_FILE).is_file():
        found = read_measurements(path, facts=known.of(path))
        return Measurements(merge_ranks(found.rows), found.problems, found.kind)
    tables: list[pd.DataFrame] = []
    problems: list[LogProblem] = []
    kinds: set[str] = set()
    rows = 0
    for file in track_progress(list(_walk_files(path))):
        try:
            about = known.of(file)
            if (kind := log_format(file, str(about.get("tool", "")))) is None:
                said, line = _unread(read_lines(file))
                raise InputError(said, line=line)
            one = read_measurements(file, kind, facts=about)
        except InputError as error:
            said = error.message if error.field is None else f"{error.field}: {error.message}"
            problems.append(LogProblem(str(file), error.line, said, True))
            continue
        rows += len(one)
        if rows > MAX_ROWS:
            raise InputError(f"has more than {MAX_ROWS:,} rows, the most that are read", file=str(path))
        tables.append(one.rows)
        problems += one.problems
        kinds.add(one.kind)
    if not tables:
        why = f"; the first file: {problems[0].file}: {problems[0].message}" if problems else ", nor any file"
        raise InputError(f"is a folder without measurements in a format that is read{why}", file=str(path))
    joined = merge_ranks(pd.concat(tables, ignore_index=True))
    return Measurements(joined, tuple(problems), kinds.pop() if len(kinds) == 1 else "several")


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder tree, sorted; links to folders are not followed."""
    count = 0
    for base, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        for name in sorted(one for one in names if not one.startswith(".")):
            count += 1
            if count > MAX_FILES:
                raise InputError(f"has more than {MAX_FILES:,} files, the most that are read", file=str(folder))
            yield Path(base, name)
