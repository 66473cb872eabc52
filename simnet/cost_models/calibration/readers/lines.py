"""Lines of logs, without colour codes and prefixes of launchers and log collectors.

Files may be packed with gzip; limits apply to their content.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from simnet.base.errors import InputError
from simnet.base.reading import open_unpacked, read_text

MAX_BYTES = 64 * 2**20
"""The largest log or table that is read, unpacked."""

MAX_TRACE_BYTES = 512 * 2**20
"""The largest trace of a job that is read, unpacked."""

HEAD_BYTES = 64 * 2**10
"""Bytes at the start of a file from which its format is recognised."""

MAX_LINES = 2_000_000
"""Maximum number of lines."""

MAX_LINE = 4096
"""What of a line is looked at; no row is longer, and noise may be."""

_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_LAUNCHER = re.compile(
    r"\s{0,40}(?:\[\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:"  # mpirun --tag-output
    r"|\d{1,9}: "  # srun --label
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[-+]\d\d:?\d\d)? )"  # kubectl --timestamps
)


def read_head(path: Path) -> bytes:
    """Return the first `HEAD_BYTES` bytes of a file, decompressed; empty if it is unreadable."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return open_unpacked(file).read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file."""
    text = read_text(path, MAX_BYTES, unpack=True)
    nul = text.find("\0")
    if nul >= 0:
        line = text.count("\n", 0, nul) + 1
        raise InputError("holds a NUL byte; it is no text, or was damaged", file=str(path), line=line)
    if text.count("\n") > MAX_LINES:
        raise InputError(f"has more than {MAX_LINES:,} lines, the most that are read", file=str(path))
    return text.split("\n")


def read_trace(path: Path) -> str:
    """Return the text of a job trace; raise InputError if it is unreadable, too large or not UTF-8."""
    return read_text(path, MAX_TRACE_BYTES, unpack=True)


def bare_line(line: str) -> str:
    """Return a log line without colour codes and launcher prefix, cut to `MAX_LINE` characters."""
    short = line[:MAX_LINE].rstrip("\r")
    if "\x1b" in short:
        short = _COLOUR.sub("", short)
    label = _LAUNCHER.match(short)
    return short[label.end() :] if label else short


def bare_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line numbers and lines of a log, as `bare_line` returns them."""
    yield from enumerate(map(bare_line, read_lines(path)), 1)
