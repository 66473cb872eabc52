"""Of what kind a file of measurements is, told by its content, and measurements read from files of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from simnet.base.errors import InputError, nearest
from simnet.calibration.readers import imb, osu, shaped, tidy, wide
from simnet.calibration.readers.imb import read_imb
from simnet.calibration.readers.lines import bare, read_lines
from simnet.calibration.readers.nccl_json import read_nccl_json
from simnet.calibration.readers.nccl_text import Cells, is_table_header, parse_row, read_nccl_text
from simnet.calibration.readers.osu import read_osu
from simnet.calibration.readers.shaped import read_shaped
from simnet.calibration.readers.tables import COLUMNS, Inconsistent, Measurements
from simnet.calibration.readers.tidy import read_tidy
from simnet.calibration.readers.wide import read_wide

Kind: TypeAlias = Literal["nccl", "nccl-json", "osu", "imb", "tidy", "wide", "shaped"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Formats by name: text and JSON of nccl-tests, OSU, Intel MPI benchmarks, tidy CSV, CSV with both sides in a row, CSV
of measurements on shaped links."""


def kind_of(path: str | Path) -> Kind | None:
    r"""Return the kind of a file by its content, not by its name; None if it is none that is read.

    Raises
    ------
    InputError
        If it cannot be read, is too large, or no text.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "job.out")
    ...     _ = file.write_text("mpirun -np 4 osu_allreduce\n# OSU MPI Allreduce Latency Test v7.5\n")
    ...     kind_of(file)
    'osu'
    """
    lines = read_lines(_file(path))
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if first.lstrip().startswith("{"):
        return "nccl-json"
    names = {name.strip() for name in first[: tidy.MAX_LINE].split(",")}
    if names >= set(wide.NEEDED):
        return "wide"
    if names >= set(shaped.NEEDED) and names & {"collective", "method"}:
        return "shaped"
    if len(names) > 1 and (names >= {"collective", "seconds"} or len(names & set(tidy.NEEDED)) >= 2):
        return "tidy"
    for raw in lines:
        line = bare(raw)
        first = line.lstrip()[:1]
        if first != "#" and not first.isdigit():
            continue
        if osu.TITLE.search(line):
            return "osu"
        if imb.TITLE.search(line):
            return "imb"
        if is_table_header(line) or isinstance(parse_row(line), Cells):
            return "nccl"
    return None


def read(
    path: str | Path,
    kind: Kind | None = None,
    *,
    inconsistent: Inconsistent = "drop",
    facts: Mapping[str, object] | None = None,
    iterations: bool = False,
) -> Measurements:
    """Read measurements from a file of any kind.

    Parameters
    ----------
    path : str or Path
        A log, a CSV, or a folder with a ``data.csv``.
    kind : str, optional
        One of `KINDS`; by default what its content says.
    inconsistent : {"keep", "drop"}
        What becomes of rows that do not agree with themselves: algorithm bandwidth that is not size over time, bus
        bandwidth that does not fit the collective and its ranks, wrong results. They are reported in either case.
    facts : mapping, optional
        Values by column for what the file does not say, as ``{"ranks": 16}``. What the file says, counts.
    iterations : bool
        A row per iteration where the file has them (JSON of nccl-tests).

    Returns
    -------
    Measurements
        The rows, and what is wrong in the file.

    Raises
    ------
    InputError
        If the file is of no kind that is read, or as the reader of its kind does.
    ValueError
        If a name of `facts` is no column.
    """
    for name in facts or {}:
        if name not in COLUMNS:
            raise ValueError(f"unknown column {name!r}; {nearest(name, COLUMNS)}")
    path = _file(path)
    if kind is not None and kind not in KINDS:
        raise InputError(f"unknown format {kind!r}; {nearest(kind, KINDS)}", file=str(path))
    found = kind_of(path) if kind is None else kind
    if found is None:
        message = f"holds no measurements in a format that is read: {', '.join(KINDS)}"
        raise InputError(message, file=str(path))
    if found == "nccl-json":
        return read_nccl_json(path, inconsistent=inconsistent, facts=facts, iterations=iterations)
    readers = {
        "nccl": read_nccl_text,
        "osu": read_osu,
        "imb": read_imb,
        "tidy": read_tidy,
        "wide": read_wide,
        "shaped": read_shaped,
    }
    return readers[found](path, inconsistent=inconsistent, facts=facts)


def _file(path: str | Path) -> Path:
    """Return a file, or the data.csv of a folder.

    Raises
    ------
    InputError
        If a folder has none.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            return path
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)[:200]) from None
    inside = path / "data.csv"
    if not inside.is_file():
        raise InputError("is a folder without a data.csv; give the file", file=str(path))
    return inside
