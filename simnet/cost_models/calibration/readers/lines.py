"""Reads the lines of logs, without colour codes and launchers' labels, and JSON objects in logs.

A *label* is what stands in front of all rows of a table alike, whoever wrote it: a rank, a host, a pod, a time. Labels
are found from where tables begin in their lines, not from a list of launchers; their digits may differ.

Files may be packed with gzip; limits apply to their content. One object is in memory at a time besides the text, so
that traces of a hundred megabytes fit.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from simnet.base.errors import InputError
from simnet.base.file_io import open_unpacked, read_text
from simnet.cost_models.calibration.readers import tables

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

NUMBERS = re.compile(r"(?<![\d.,-])(?<!\d:)\d{1,19}(?:[ \t|,;]{1,40}\d[\d.]{0,20}){1,40}[ \t\r]*$", re.MULTILINE)
"""A row of numbers, to the end of its line."""

HEADS = re.compile(r"\s*[\t|]\s*|\s{2,}")
"""What stands between the names of columns."""

_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_LONGEST_LABEL = 400
_MOST_LABELS = 50
_GAPS_AND_DIGITS = re.compile(r"(\d+|\s+)")
_SIGN = re.compile(r"[^\w\s.+-]")
_QUOTES = ('"', "'")


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


def plain_text(lines: Iterable[str]) -> str:
    """Return lines as one text, each cut to `MAX_LINE` characters, without colour codes."""
    text = "\n".join(line[:MAX_LINE].rstrip("\r") for line in lines)
    return _COLOUR.sub("", text) if "\x1b" in text else text


def bare_lines(path: Path, anchor: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield line numbers and lines of a log, cut to `MAX_LINE` characters, without colour codes and prefixes (labels).

    `anchor` matches what the heading of a table or a row begins with; what stands in front of it is a label. Where
    nothing matches, rows of numbers stand in its place.
    """
    text = plain_text(read_lines(path))
    lines, anchor = text.split("\n"), anchor if anchor.search(text) else NUMBERS
    fronts = [line[: found.start()] if (found := anchor.search(line)) else "" for line in lines]
    labels = {one for one in map(_label_shape, set(fronts)) if one}
    if not 0 < len(labels) <= _MOST_LABELS:
        yield from enumerate(lines, 1)
        return
    shapes = re.compile("|".join(sorted(labels, key=len, reverse=True)))
    for at, (line, front) in enumerate(zip(lines, fronts, strict=True), 1):
        if not _label_shape(front):
            front = "" if anchor.match(line.lstrip()) or not (found := shapes.match(line)) else found[0]
        yield at, _without_label(line, front.rstrip()) if front else line


@lru_cache(10_000)
def _label_shape(label: str, digits: str = "+") -> str:
    """Return a regex for line prefixes that differ from `label` only in digits and gaps; "" for no valid label."""
    label = label.rstrip()
    if not label or len(label) > _LONGEST_LABEL or label.lstrip().startswith("#"):
        return ""
    parts = (
        re.escape(one) if at % 2 == 0 else r"\s+" if one.isspace() else rf"\d{digits or f'{{{len(one)}}}'}"
        for at, one in enumerate(_GAPS_AND_DIGITS.split(label))
    )
    return "".join(parts)


def _without_label(line: str, label: str) -> str:
    """Return a line without a launcher's label, which is removed at the start and inside the line."""
    rest = line[len(label) :]
    if label.endswith(_QUOTES):
        return rest.partition(label[-1])[0].removesuffix("\\n")
    # Inside, digits of the row may stand right before those of the label.
    return re.sub(_label_shape(label.lstrip(), ""), " ", rest) if _SIGN.search(label) else rest


MAX_OBJECTS = 10_000_000
"""Maximum number of objects in a text."""

MAX_GROUP_NAME = 120
"""Maximum characters of a process group's name."""

_BETWEEN = re.compile(r"[\s,]*")


def json_objects(text: str, file: str, at: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and value of each JSON object after position `at`, in a JSON array or one after another."""
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
    """Return the position of the next JSON value in a text, at or after `at`."""
    return at if (found := _BETWEEN.match(text, at)) is None else found.end()


_LAUNCH = re.compile(r"\b(?:mpirun|mpiexec\S*|srun|aprun|jsrun|prun|flux run)\b.*")
_RANKS = re.compile(r"(?:\s|^)(?:-np|-n|--n|--np|--ntasks|-nranks)(?:\s*|=)(\d{1,8})\b")
_NODES = re.compile(r"(?:\s|^)(?:-N\s*|--nodes[= ])(\d{1,8})\b")
_EACH = re.compile(r"(?:\s|^)--ntasks-per-node[= ](\d{1,8})\b")


def launch_facts(line: str) -> dict[str, int]:
    """Return the numbers of ranks and nodes in a launcher's command; nodes only if its option -N means nodes."""
    if not (launch := _LAUNCH.search(line)):
        return {}
    # What the program is told comes after its name.
    options = re.split(r"\s\S*(?:osu_|_test|_perf|/bin/)", launch[0], maxsplit=1)[0]
    ranks, each = _RANKS.search(options), _EACH.search(options)
    nodes = _NODES.search(options) if launch[0].startswith(("srun", "flux")) else None
    count = int(ranks[1]) if ranks else int(nodes[1]) * int(each[1]) if nodes and each else None
    said = {"ranks": count, "nodes": int(nodes[1]) if nodes else None}
    return {name: min(number, tables.MAX_RANKS) for name, number in said.items() if number is not None}


def read_count(value: object) -> int | None:
    """Return a number or text as a whole number >= 0; None for other values."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= tables.MAX_WHOLE:
        return None
    return value


def short_text(value: object) -> str:
    """Return a text, shortened; "" for values that are not texts."""
    return value[:MAX_GROUP_NAME] if isinstance(value, str) else ""


def record_values(record: object, kind: str, decimals: int | None = None) -> tables.TableRow:
    """Return table values from a JSON object; of several keys for one column, the first that has a number counts.

    Numbers are rounded to their last digit, or to so many `decimals`.
    """
    row: tables.TableRow = {}
    values: Mapping[str, object] = record if isinstance(record, dict) else {}
    for key, one in tables.log_columns(kind).items():
        value, count = values.get(key), read_count(values.get(key))
        if one.form == "text":
            row[one.name] = short_text(value).replace("none", "")
        elif one.form == "whole" and count is not None and count <= tables.largest_whole(one.name):
            row[one.name] = count if tables.largest_whole(one.name) > tables.MAX_RANKS else count or None
        elif one.form == "number" and (number := tables.parse_printed(str(value), one.power)) is not None:
            half = number.half if decimals is None else float(f"5e{one.power - decimals - 1}")
            row.setdefault(one.name, number._replace(half=half))
    return row
