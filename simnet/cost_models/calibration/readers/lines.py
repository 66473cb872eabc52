"""Lines of logs, without colour codes and prefixes of launchers and log collectors, and the JSON objects in them.

Files may be packed with gzip; limits apply to their content. One object is in memory at a time besides the text, so
that traces of a hundred megabytes fit.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simnet.base.errors import InputError
from simnet.base.reading import open_unpacked, read_text
from simnet.cost_models.calibration.readers.tables import MAX_RANKS, MAX_WHOLE

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


MAX_OBJECTS = 10_000_000
"""Maximum number of objects in a text."""

MAX_GROUP_NAME = 120
"""Maximum characters of a process group's name."""

_BETWEEN = re.compile(r"[\s,]*")


def json_objects(text: str, file: str, at: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and value of each JSON object in a text, from position `at` to the end of the list."""
    decode = json.JSONDecoder(parse_int=_parse_integer, parse_float=float).raw_decode
    line, seen = text.count("\n", 0, at) + 1, at
    at = _next_value(text, at)
    if text[at : at + 1] == "[":
        at = _next_value(text, at + 1)
    for _ in range(MAX_OBJECTS + 1):
        if at == len(text) or text[at] == "]":
            return
        line, seen = line + text.count("\n", seen, at), at
        try:
            value, end = decode(text, at)
        except json.JSONDecodeError as error:
            raise InputError(f"is not JSON, or was cut: {error.msg}", file=file, line=error.lineno) from None
        except RecursionError:
            raise InputError("is nested too deeply", file=file, line=line) from None
        if isinstance(value, dict):
            yield line, value
        at = _next_value(text, end)
    raise InputError(f"has more than {MAX_OBJECTS:,} objects, the most that are read", file=file, line=line)


def _parse_integer(text: str) -> int | float:
    return int(text) if len(text) <= 20 else float(text)


def _next_value(text: str, at: int) -> int:
    """Return the position of the next JSON value."""
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()


def read_count(value: object) -> int | None:
    """Return a whole number >= 0 from a number or text; None for other values."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_WHOLE:
        return None
    return value


def read_rank_count(value: object) -> int | None:
    """Return a number of ranks or nodes, 1 to `MAX_RANKS`; None for other values."""
    found = read_count(value)
    return None if found is None or found > MAX_RANKS else found or None


def short_text(value: object) -> str:
    """Return a text, shortened; "" for values that are not texts."""
    return value[:MAX_GROUP_NAME] if isinstance(value, str) else ""
