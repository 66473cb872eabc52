"""JSON objects in a text, from a list, lines or a sequence, and typed values in them.

One object is in memory at a time besides the text, so that traces of a hundred megabytes fit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers.tables import MAX_RANKS, MAX_WHOLE

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
