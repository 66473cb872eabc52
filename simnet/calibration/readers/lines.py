"""The lines of a log: without colours, and without what launchers and log collectors put in front of them."""

from __future__ import annotations

import re
from pathlib import Path

from simnet.base.errors import InputError
from simnet.base.reading import read_text

MAX_BYTES = 64 * 2**20
"""The largest log or table that is read."""

MAX_LINES = 2_000_000
"""The most lines that are read."""

MAX_LINE = 4096
"""What of a line is looked at; no row is longer, and noise may be."""

_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_LAUNCHER = re.compile(
    r"\s{0,40}(?:\[\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:"  # mpirun --tag-output
    r"|\d{1,9}: "  # srun --label
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[-+]\d\d:?\d\d)? )"  # kubectl --timestamps
)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file.

    Raises
    ------
    InputError
        If it cannot be read, is too large, not UTF-8, has too many lines, or holds a NUL byte.
    """
    text = read_text(path, MAX_BYTES)
    nul = text.find("\0")
    if nul >= 0:
        line = text.count("\n", 0, nul) + 1
        raise InputError("holds a NUL byte; it is no text, or was damaged", file=str(path), line=line)
    if text.count("\n") > MAX_LINES:
        raise InputError(f"has more than {MAX_LINES:,} lines, the most that are read", file=str(path))
    return text.split("\n")


def bare(line: str) -> str:
    """Return a line of a log without colours and labels of launchers, cut at `MAX_LINE` characters.

    Examples
    --------
    >>> bare("[1,0]<stdout>:  1048576   262144")
    '  1048576   262144'
    >>> bare("0: # Rank  0 Group  0")
    '# Rank  0 Group  0'
    """
    short = line[:MAX_LINE].rstrip("\r")
    if "\x1b" in short:
        short = _COLOUR.sub("", short)
    label = _LAUNCHER.match(short)
    return short[label.end() :] if label else short
