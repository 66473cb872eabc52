"""Reads all logs in a folder into one table; reports a problem for each file that is no log.

A folder with a ``data.csv`` stands for that file. Of any other, all files are read, those of folders inside included,
except names that begin with a dot. Traces of the ranks of one job, in one folder, count once per call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.cost_models.calibration.readers.facts import LogFacts
from simnet.cost_models.calibration.readers.job_traces import merge_ranks
from simnet.cost_models.calibration.readers.kinds import DATA_FILE, is_folder, log_format, read_measurements
from simnet.cost_models.calibration.readers.tables import MAX_ROWS, LogProblem, Measurements

MAX_FILES = 10_000
"""The most files of a folder."""


def read_logs(path: str | Path, facts: LogFacts | None = None) -> Measurements:
    """Return the measurements in a log, or in all logs of a folder, with problems of skipped rows and files."""
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
                problems.append(LogProblem(str(file), None, "holds no measurements in a format that is read", True))
                continue
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
        for name in sorted(names):
            if name.startswith("."):
                continue
            count += 1
            if count > MAX_FILES:
                raise InputError(f"has more than {MAX_FILES:,} files, the most that are read", file=str(folder))
            yield Path(base, name)
