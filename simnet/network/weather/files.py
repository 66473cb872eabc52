"""Recorded network traces: CSV tables of time, bandwidth and latency, and Mahimahi packet-opportunity traces.

Files are untrusted: sizes and numbers are checked, and errors name the file, the line and the value.
"""

from __future__ import annotations

import difflib
import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from simnet.base import units
from simnet.base.errors import InputError, check_choice, check_positive, read_number, shorten_text
from simnet.base.file_io import csv_rows, read_text
from simnet.base.quantities import Absolute, Duration, PositiveSize, Rate, Seconds, bounds_error
from simnet.network.weather.processes import steps
from simnet.network.weather.signal import Signal, Weather

MAX_BYTES = 64 * 2**20
"""Maximum size of a trace file."""

MAX_ROWS = 1_000_000
"""Maximum rows of a CSV trace, and bins of a Mahimahi trace."""

_READERS = {"time": units.seconds, "bandwidth": units.bandwidth, "latency": units.seconds}
_BOUNDS = {"time": Seconds, "bandwidth": Rate, "latency": Seconds}
_EXAMPLES = {"time": "time_s", "bandwidth": "bandwidth_Mbit_s", "latency": "latency_ms"}
_EXAMPLE = ",".join(_EXAMPLES.values())
# Words that name a quantity among others in the name of a column; a bandwidth is known by its unit.
_WORDS = {
    "bandwidth": {"bandwidth"},
    "latency": {"latency", "delay", "rtt", "ping", "owd"},
    "time": {"time", "t", "elapsed"},
}
_INSTANTS = {"timestamp", "ts", "epoch", "date", "datetime"}
_ROUND_TRIP = re.compile(r"(?i)(?<![a-z])(rtt|ping|round.?trip)(?![a-z])")
_RATE_UNIT = re.compile(r"(?i)([kmgt]?)(i?)(b|bits?|bytes?)(?:ps|/s|/sec|/seconds?)")
# Bytes of what a file has in a place that an error shows.
_SHOWN = 40
# In difflib's measure "bandwith" and "latencies" are alike enough, "timestamp" and "late" are names of their own.
_ALIKE = 0.75


def trace_csv(
    path: str | Path,
    *,
    at_end: Literal["hold", "repeat"] = "hold",
    period: Duration | None = None,
) -> Weather:
    r"""Read a link's bandwidth and latency over time from a CSV file.

    The first row names columns as quantity and unit, e.g. ``time_s,bandwidth_Mbit_s,latency_ms``. Other names are read
    by their words and units: a rate is the bandwidth (``throughput_mbps``), half of a round trip the latency
    (``Avg RTT (ms)``), a ``timestamp`` or ``date`` without a unit is in seconds or a date in ISO 8601. Bandwidth or
    latency may be missing. Other columns, empty rows, and rows that start with ``#`` are ignored; a misspelt column is
    an error. Each row holds until the time of the next; time counts from the first row.

    Parameters
    ----------
    path : str or Path
        UTF-8 file of at most `MAX_BYTES` bytes and `MAX_ROWS` rows.
    at_end : {"hold", "repeat"}
        After the last row, hold its values or repeat the trace.
    period : float, optional
        Length of a repetition [s]. Default: the last row lasts as long as the one before.

    Raises
    ------
    InputError
        If the file is missing, too large, empty or no such table; a value is not a finite number >= 0; or times do not
        ascend. With file and line.
    ValueError
        If `at_end` is invalid, or `period` is given without ``at_end="repeat"``.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "trace.csv")
    ...     _ = file.write_text("time_s,bandwidth_Mbit_s,latency_ms\n0,80,10\n60,8,25\n")
    ...     weather = trace_csv(file)
    >>> weather.bandwidth.at(59), weather.latency.at(61)
    (10000000.0, 0.025)
    """
    check_choice(at_end, "at_end", ("hold", "repeat"))
    if period is not None and at_end == "hold":
        raise ValueError("period needs at_end='repeat'")
    table = _TraceTable(path)
    times = np.array(table.times)
    if at_end == "repeat" and period is None:
        if times.size == 1:
            raise InputError("has one row; to repeat it needs a second, or a period", file=table.file)
        period = float(times[-1] + (times[-1] - times[-2]))
    if period is not None and not times[-1] < period < math.inf:
        raise InputError(f"lasts {times[-1]:g} s; the period must be longer, got {period!r}", file=table.file)
    signals = {name: steps(times, values, period) for name, values in table.values.items()}
    return Weather(bandwidth=signals.get("bandwidth"), latency=signals.get("latency"))


def mahimahi(
    path: str | Path, *, packet_bytes: PositiveSize = 1500.0, every: Duration = 0.1
) -> Annotated[Signal, Absolute]:
    r"""Read a Mahimahi link trace as bandwidth [byte/s].

    Each line is a millisecond at which the link can deliver one packet; the trace repeats after its last line.
    Opportunities in a bin (a, b] give the rate from a to b, so that the integral is exact at the end of every bin.

    Parameters
    ----------
    path : str or Path
        File of at most `MAX_BYTES` bytes.
    packet_bytes : float
        Data per opportunity [byte], > 0.
    every : float
        Bin width [s], an integer number of milliseconds; the last bin may be shorter.

    Raises
    ------
    InputError
        If the file is missing, too large or empty, a line is not an integer or decreases, or all are 0. With file and
        line.
    ValueError
        If a parameter is out of range.

    References
    ----------
    R. Netravali et al., "Mahimahi: Accurate Record-and-Replay for HTTP", USENIX ATC 2015; manual page mm-link(1).

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "link.down")
    ...     _ = file.write_text("10\n10\n20\n")
    ...     signal = mahimahi(file, every=0.01)
    >>> signal.at(0), signal.at(0.01), signal.at(0.02)
    (300000.0, 150000.0, 300000.0)
    """
    if not 0 < every < 1e9 or not math.isclose(every, round(every * 1000) / 1000, rel_tol=1e-9):
        raise ValueError(f"every must be a whole number of milliseconds >= 0.001 s, got {every!r} s")
    width = round(every * 1000)
    check_positive(packet_bytes, "packet_bytes")
    opportunities = _delivery_times(path)
    duration = int(opportunities[-1])
    bins = -(-duration // width)
    if bins > MAX_ROWS:
        raise InputError(
            f"lasts {duration} ms, more than {MAX_ROWS:,} bins of {width} ms; choose a larger bin (every)",
            file=str(path),
            line=opportunities.size,
        )
    # An opportunity at 0 coincides with the end of the period before, but belongs to this one.
    counts = np.bincount(np.maximum(-(-opportunities // width) - 1, 0), minlength=bins)
    edges = np.minimum(np.arange(bins + 1) * width, duration)
    rates = counts * packet_bytes * 1000 / np.diff(edges)
    for rate in (float(rates.max()), float(rates[rates > 0].min())):
        if wrong := bounds_error(rate, Rate):
            raise InputError(f"a rate of it, with packets of {packet_bytes:g} B, {wrong}", file=str(path))
    return steps(edges[:-1] / 1000, rates, period=duration / 1000)


class _TraceTable:
    """A CSV trace in SI units: `times` [s since the first row], and a list of `values` for each quantity."""

    def __init__(self, path: str | Path) -> None:
        self.file = str(path)
        self.times: list[float] = []
        # Times such as those since 1970 are read exactly before the first is subtracted.
        self._first = self._last = Decimal("-Infinity")
        self.values: dict[str, list[float]] = {}
        rows = csv_rows(_read_text(path).splitlines(), self.file)
        line, header = next(rows, (1, []))
        if not header:
            raise InputError(f"has no row that names its columns; expected e.g. {_EXAMPLE}", file=self.file)
        places = self._places([name.strip() for name in header], line)
        self.values = {name: [] for name in places if name != "time"}
        for line, row in rows:
            self._take(row, line, len(header), places)
        if not self.times:
            raise InputError("has no rows below its header", file=self.file)

    def _places(self, header: list[str], line: int) -> dict[str, tuple[int, float]]:
        """Return for each quantity the index of its column, and the factor that converts its unit to SI."""
        named = self._named(header, line)
        for column, _ in named.values():
            if header.count(column) != 1:
                raise self._wrong(f"has more than one column {column!r}", line)
        if "time" not in named or len(named) == 1:
            missing = "time" if "time" not in named else "bandwidth or latency"
            told = f"columns: {', '.join(header)}; expected e.g. {_EXAMPLE}"
            raise self._wrong(f"has no column for {missing}; {told}", line)
        places = {}
        for name, (column, unit) in named.items():
            try:
                halved = 0.5 if name == "latency" and _ROUND_TRIP.search(column) else 1.0
                places[name] = (header.index(column), halved * _READERS[name](f"1 {unit}"))
            except ValueError as error:
                raise self._wrong(f"column {column!r} needs a unit, as in {_EXAMPLE}: {error}", line) from None
        return places

    def _named(self, header: list[str], line: int) -> dict[str, tuple[str, str]]:
        """Return column and unit for each quantity, found by column names such as ``bandwidth_Mbit_s``."""
        named: dict[str, tuple[str, str]] = {}
        said = {column: _quantity_and_unit(column) for column in header}
        # A name such as ``latency_ms`` counts more than others of the same quantity.
        for plain in (True, False):
            there = set(named)
            for column, (name, unit) in said.items():
                if not name or name in there or (column.partition("_")[0] == name) != plain:
                    continue
                if name in named:
                    raise self._wrong(f"has two columns for {name}: {named[name][0]} and {column}", line)
                if not unit:
                    raise self._wrong(f"column {column!r} needs a unit in its name, e.g. {_EXAMPLES[name]!r}", line)
                named[name] = (column, unit)
        lacking = [name for name in _READERS if name not in named]
        for column in header:
            name, _, unit = column.partition("_")
            meant = difflib.get_close_matches(name.casefold(), lacking, n=1, cutoff=_ALIKE)
            if meant:
                right = f"{meant[0]}_{unit}" if unit else _EXAMPLES[meant[0]]
                raise self._wrong(f"has a column {column!r}; did you mean {right!r}?", line)
        return named

    def _take(self, row: list[str], line: int, width: int, places: dict[str, tuple[int, float]]) -> None:
        if len(row) != width:
            raise self._wrong(f"expected {width} columns, got {len(row)}", line)
        if len(self.times) == MAX_ROWS:
            raise self._wrong(f"has more than {MAX_ROWS:,} rows", line)
        for name, (place, factor) in places.items():
            text = _plain_time(row[place]) if name == "time" else row[place]
            value = self._number(text, line, name, factor)
            if name != "time":
                self.values[name].append(value)
                continue
            written = Decimal(text.strip())
            if written <= self._last:
                raise self._wrong(f"must be later than the row before ({self._last}), got {written}", line, name)
            self._last = written
            if not self.times:
                self._first = written
            self.times.append(float(written - self._first) * factor)

    def _number(self, text: str, line: int, name: str, factor: float) -> float:
        """Return a cell of the table as a number in SI units, to which `factor` converts it."""
        value = read_number(text)
        shown = shorten_text(text.strip(), _SHOWN)
        if not math.isfinite(value) or value < 0:
            raise self._wrong(f"must be a finite number >= 0, got {shown!r}", line, name)
        if wrong := bounds_error(value * factor, _BOUNDS[name], shown):
            raise self._wrong(wrong, line, name)
        return value * factor

    def _wrong(self, what: str, line: int, field: str | None = None) -> InputError:
        return InputError(what, file=self.file, line=line, field=field)


def _quantity_and_unit(column: str) -> tuple[str, str]:
    """Return the quantity and the unit that a column's name states, "" in place of a missing one.

    Examples
    --------
    >>> [_quantity_and_unit(name) for name in ("throughput_mbps", "Avg RTT (ms)", "timestamp", "loss_percent")]
    [('bandwidth', 'Mbit/s'), ('latency', 'ms'), ('time', 's'), ('', 'percent')]
    >>> [_quantity_and_unit(name) for name in ("RTT_MIN_MS", "rtt_min", "THROUGHPUT_MBPS")]
    [('latency', 'MS'), ('latency', ''), ('bandwidth', '')]
    """
    words = [word for word in re.split(r"[^A-Za-z\u00b5\u03bc]+", column) if word]
    folded = {word.casefold() for word in words}
    for count in (3, 2, 1):
        tail = "/".join(word for word in words[-count:] if word.casefold() != "per")
        if rate := _RATE_UNIT.fullmatch(tail):
            # In capitals, MBPS may be of bits or of bytes.
            if tail.endswith("BPS"):
                return "bandwidth", ""
            prefix = rate[1].casefold() if rate[1] in "kK" else rate[1].upper()
            size = "B" if rate[3] == "B" or rate[3].casefold().startswith("byte") else "bit"
            return "bandwidth", f"{prefix.upper() if rate[2] else prefix}{rate[2].casefold()}{size}/s"
    name = next((name for name, known in _WORDS.items() if folded & known), "")
    if not name and folded & _INSTANTS:
        name, words = "time", [*words, *(["s"] if words[-1].casefold() in _INSTANTS else [])]
    # The "min" of a latency is the smallest, not a minute.
    words = [word for word in words if name != "latency" or word != "min"]
    durations = [word for word in words if _is_duration(word)]
    durations = [word for word in durations if word != "min"] or durations or words[1:]
    return name, durations[-1] if durations else ""


def _is_duration(word: str) -> bool:
    try:
        units.seconds(f"1 {word}")
    except ValueError:
        return False
    return True


def _plain_time(text: str) -> str:
    """Return the seconds since 1970, as text, of a date such as 2025-03-03T09:00:01Z; other texts are unchanged."""
    try:
        moment = datetime.fromisoformat(text.strip()) if "-" in text[1:] and ":" in text else None
    except ValueError:
        moment = None
    return text if moment is None else str(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())


def _delivery_times(path: str | Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the packet-delivery times of a Mahimahi trace [ms]."""
    lines = _read_text(path).removesuffix("\n").split("\n")
    times: list[int] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise InputError(
                f"must be a whole number of milliseconds >= 0, got {shorten_text(text, _SHOWN)!r}",
                file=str(path),
                line=number,
            )
        times.append(int(text))
        if number > 1 and times[-1] < times[-2]:
            raise InputError(
                f"must not be smaller than the line before ({times[-2]}), got {text}", file=str(path), line=number
            )
    if times[-1] == 0:
        raise InputError("must end later than at 0 ms", file=str(path), line=len(times))
    return np.array(times, dtype=np.int64)


def _read_text(path: str | Path) -> str:
    """Return the text of a trace file, which must not be empty."""
    text = read_text(Path(path), MAX_BYTES)
    if not text.strip():
        raise InputError("is empty", file=str(path))
    return text
