"""SimGrid profiles: a link's bandwidth or latency over time, as lines of a date and a value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from simnet.base.checks import read_number
from simnet.base.errors import InputError
from simnet.base.quantities import Rate, Seconds, bounds_error
from simnet.base.reading import read_text
from simnet.network.weather import Signal

MAX_PROFILE_BYTES = 64 * 2**20
"""The largest profile that is read."""


def read_link_profile(path: str | Path, nominal: float, quantity: Any = Rate) -> Signal:
    r"""Read a link's profile: each line has a date [s] and a value, a bandwidth [byte/s] or a latency [s].

    ``PERIODICITY p`` repeats the pattern every p seconds, ``LOOPAFTER d`` d seconds after its last date. Dates count
    from the start of the pattern; before the first, the value is `nominal`. `quantity` has the bounds of values. Raises
    InputError, with file and line, if the file is no such profile, or is stochastic.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "link.profile")
    ...     _ = file.write_text("4 1000\n8 2000\nLOOPAFTER 12\n")
    ...     signal = read_link_profile(file, nominal=500)
    >>> [signal.at(t) for t in (0, 4, 8, 23, 24, 28)]
    [500.0, 1000.0, 2000.0, 2000.0, 1000.0, 2000.0]
    """
    points: dict[float, float] = {}
    last, loop = 0.0, None

    def refuse(line: int | None, message: str) -> NoReturn:
        raise InputError(message, file=str(path), line=line)

    for line, raw in enumerate(read_text(Path(path), MAX_PROFILE_BYTES).split("\n"), start=1):
        words = raw.split()
        if not words or words[0][0] in "#%":
            continue
        if words[0] == "STOCHASTIC" or any(word.isalpha() for word in words[1:]):
            refuse(line, "is stochastic; only profiles with fixed dates and values are read")
        if len(words) != 2:
            refuse(line, f"must be a date and a value, PERIODICITY p or LOOPAFTER d, got {raw.strip()[:40]!r}")
        repeats = words[0] in ("PERIODICITY", "LOOPAFTER")
        numbers = [read_number(word) for word in words[repeats:]]
        for word, number, kind in zip(words[repeats:], numbers, (Seconds, quantity), strict=False):
            if wrong := bounds_error(number, kind, word[:40]):
                refuse(line, wrong)
        if repeats:
            if loop is not None:
                refuse(line, f"repeats twice; {loop[0]} stands in line {loop[2]}")
            loop = words[0], numbers[0], line
            continue
        if numbers[0] < last:
            refuse(line, f"must not be earlier than the date before ({last:g}), got {words[0][:40]}")
        last, points[numbers[0]] = numbers
    if not points:
        refuse(None, "has no dates")
    times, levels = np.array([*points]), np.array([*points.values()])
    before = ([], []) if times[0] == 0 else ([0.0], [nominal])
    start = np.append(before[0], times), np.append(before[1], levels)
    if loop is None:
        return Signal(*start)
    word, seconds, line = loop
    period = seconds if word == "PERIODICITY" else last + seconds
    if period < last or period == 0:
        refuse(line, f"repeats after {period:g} s, before its last date {last:g}")
    if times[0] + period == last:
        # The pattern begins again in the very moment of its last date, which therefore never lasts.
        times, levels, start = times[:-1], levels[:-1], (start[0][:-1], start[1][:-1])

    def chunks() -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        at_once = max(1, 512 // times.size)
        first = 1
        while True:
            starts = np.arange(first, first + at_once) * period
            points = (starts[:, np.newaxis] + times).ravel()
            lasting = np.append(points[:-1] < points[1:], True)
            yield points[lasting], np.tile(levels, at_once)[lasting]
            first += at_once

    return Signal(*start, chunks())
