"""Formats of measurements: how the content of a file tells its format, and who reads it.

A package may register a `Format` as an entry point ``simnet.log_readers``. It is asked when none of simnet's own is
recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from simnet.base import plugins
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


def _never(line: str) -> bool:
    return False


class Format(NamedTuple):
    """A format of measurements.

    Parameters
    ----------
    read : callable
        Returns the `Measurements` of a path; takes ``inconsistent`` and ``facts``, as `read` describes them.
    first : callable
        Says of the first line that is neither empty nor a comment whether this format begins so.
    line : callable
        Says of any line, without colours and labels of launchers, whether only this format has such a line.
    """

    read: Callable[..., Measurements]
    first: Callable[[str], bool] = _never
    line: Callable[[str], bool] = _never


def _columns(line: str) -> set[str]:
    return {name.strip() for name in line[: tidy.MAX_LINE].split(",")}


def _is_shaped(line: str) -> bool:
    names = _columns(line)
    return names >= set(shaped.NEEDED) and bool(names & {"collective", "method"})


def _is_tidy(line: str) -> bool:
    names = _columns(line)
    return len(names) > 1 and (names >= {"collective", "seconds"} or len(names & set(tidy.NEEDED)) >= 2)


def _in_table(line: str) -> bool:
    start = line.lstrip()[:1]
    return start == "#" or start.isdigit()


def _is_nccl(line: str) -> bool:
    return _in_table(line) and (is_table_header(line) or isinstance(parse_row(line), Cells))


FORMATS: Mapping[str, Format] = {
    "osu": Format(read_osu, line=lambda line: _in_table(line) and osu.TITLE.search(line) is not None),
    "imb": Format(read_imb, line=lambda line: _in_table(line) and imb.TITLE.search(line) is not None),
    "nccl": Format(read_nccl_text, line=_is_nccl),
    "nccl-json": Format(read_nccl_json, first=lambda line: line.lstrip().startswith("{")),
    "wide": Format(read_wide, first=lambda line: _columns(line) >= set(wide.NEEDED)),
    "shaped": Format(read_shaped, first=_is_shaped),
    "tidy": Format(read_tidy, first=_is_tidy),
}
"""The formats of simnet itself: OSU and Intel MPI benchmarks, text and JSON of nccl-tests, CSV with both sides in a
row, CSV of measurements on shaped links, tidy CSV. Where a line fits several, the first counts."""


def kind_of(path: str | Path) -> str | None:
    r"""Return the format of a file by its content, not by its name; None if it is none that is read.

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
    own = _recognised(lines, FORMATS)
    return own or _recognised(lines, plugins.usable("log_readers", registered))


def _recognised(lines: Sequence[str], formats: Mapping[str, Format]) -> str | None:
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    for name, one in formats.items():
        if one.first(first):
            return name
    for line in map(bare, lines):
        for name, one in formats.items():
            if one.line(line):
                return name
    return None


def registered(name: str) -> Format | None:
    """Return the format that others register under a name; None if nobody does."""
    return plugins.load("log_readers", name, lambda found: plugins.instance(found, Format))


def read(
    path: str | Path,
    kind: str | None = None,
    *,
    inconsistent: Inconsistent = "drop",
    facts: Mapping[str, object] | None = None,
    iterations: bool = False,
) -> Measurements:
    """Read measurements from a file of any format.

    Parameters
    ----------
    path : str or Path
        A log, a CSV, or a folder with a ``data.csv``.
    kind : str, optional
        One of `FORMATS`, or registered by others; by default what the content of the file says.
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
        If the file is of no format that is read, or as the reader of its format does.
    ValueError
        If a name of `facts` is no column.
    """
    for name in facts or {}:
        if name not in COLUMNS:
            raise ValueError(f"unknown column {name!r}; {nearest(name, COLUMNS)}")
    path = _file(path)
    known = [*FORMATS, *plugins.names("log_readers")]
    if kind is not None and kind not in known:
        raise InputError(f"unknown format {kind!r}; {nearest(kind, known)}", file=str(path))
    found = kind_of(path) if kind is None else kind
    if found is None:
        message = f"holds no measurements in a format that is read: {', '.join(sorted(known))}"
        message += plugins.left_out("log_readers")
        raise InputError(message, file=str(path))
    one = FORMATS.get(found) or registered(found)
    assert one is not None
    options = {"iterations": iterations} if found == "nccl-json" else {}
    measured = one.read(path, inconsistent=inconsistent, facts=facts, **options)
    if not isinstance(measured, Measurements):
        raise plugins.wrong(one.read, measured, "Measurements")
    return measured


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
