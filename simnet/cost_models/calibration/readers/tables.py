"""Tables of measurements, their problems, consistency checks of rows, and facts that logs do not contain.

Facts are stated for all logs or for a pattern of file names, or parsed from file names. ``ranks=16`` holds for every
log. ``osu_*_n8.log:ranks=32`` holds for files so named, ``n8/*:ranks=32`` for those in a folder of that name, where
``*`` stands for any characters and ``?`` for one. ``*_n{ranks}.log`` takes the number of ranks from the name itself:
all digits that stand together. Later facts override earlier ones; the log overrides both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, cast

import numpy as np
import pandas as pd

from simnet.base.errors import InputError, check_choice
from simnet.base.file_io import read_shipped_rows
from simnet.cost_models.calibration.readers import conventions

ColumnForm: TypeAlias = Literal["text", "whole", "number", "flag"]
TableRow: TypeAlias = dict[str, object]


_UNITS = {f"{k}{b}": 1024.0**power for power, k in enumerate(["", "K", "M", "G", "T"]) for b in ("B", "Bytes")}
_UNITS |= {f"{k}iB": size for k in "KMGT" if (size := _UNITS[f"{k}B"])}
_UNITS |= {f"{k}Bytes/sec": _UNITS[f"{k}Bytes"] for k in ("", *"KMGT")}
_UNITS |= {f"{k}bits/sec": 1e3**power / 8 for power, k in enumerate(["", "K", "M", "G", "T"])}
_UNITS |= {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_WITH_UNIT = re.compile(rf"(\S+?) ?({'|'.join(_UNITS)})")


class LogColumn(NamedTuple):
    """A log column: name in the table, number format, and the `factor` and 10^`power` that convert to the table's unit.

    A unit in a cell stands for 10^`power`; ``16384x4`` is a product.
    """

    name: str
    form: ColumnForm
    factor: float
    power: int

    def value(self, text: str) -> int | float | None:
        """Return the number in a cell, converted to the table's unit; None for a cell without a number."""
        if (named := _WITH_UNIT.fullmatch(text)) is not None:
            number = parse_printed(named[1])
            found = None if number is None else number.value * _UNITS[named[2]] * self.factor
            return found if found is None or self.form != "whole" else round(min(found, MAX_WHOLE))
        if self.form == "whole":
            parts = [parse_whole(part.removesuffix(".0"), largest_whole(self.name)) for part in text.split("x")]
            whole = [part for part in parts if part is not None]
            return math.prod(whole, start=int(self.factor)) if len(whole) == len(parts) else None
        number = parse_printed(text, self.power)
        return None if number is None else number.value * self.factor


@cache
def log_columns(kind: str) -> dict[str, LogColumn]:
    """Return the `LogColumn` of each column that logs of the format `kind` may have, by the column's header."""
    found = {}
    for row in (row for row in read_shipped_rows("data/log_columns.csv") if row["format"] == kind):
        form, factor, power = cast(ColumnForm, row["form"]), float(row["factor"] or 1), int(row["power"] or 0)
        found[row["head"] or row["column"]] = LogColumn(row["column"], form, factor, power)
    return found


TABLE_COLUMNS: Mapping[str, ColumnForm] = {name: one.form for name, one in log_columns("table").items()}
"""Columns of every table, and what their values are; text is empty, the others missing, where it is not known."""

MAX_ROWS = 500_000
"""The most rows that are read from a file."""

MAX_PROBLEMS = 10_000
"""The most problems of a file that are listed."""

MAX_WHOLE = 2**62
"""The largest whole number that is read."""

MAX_RANKS = 10_000_000
"""The most ranks that a file may name."""

SHORTEST_TIME, LONGEST_TIME = 1e-12, 1e9
"""Times that a measurement may have [s]: a picosecond to thirty years."""

BETWEEN_NODES = 1e-7
"""The least time of a collective between nodes [s]: a message takes several times as long."""

RELATIVE_SLACK = 1e-6
"""Relative error that numbers may have beyond what is printed: products were rounded too."""

_TYPES: Mapping[ColumnForm, Any] = {
    "text": np.dtype(object),
    "whole": pd.Int64Dtype(),
    "number": np.dtype(float),
    "flag": pd.BooleanDtype(),
}
_MISSING: Mapping[str, object] = {"text": "", "number": math.nan}
_NUMBER = re.compile(r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,3})?", re.ASCII)


class LogProblem(NamedTuple):
    """A problem in a file: its line, a message, and whether the row was dropped."""

    file: str
    line: int | None
    message: str
    dropped: bool

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.message}{' (left out)' if self.dropped else ''}"


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measurements read from a file: a table in SI units with `TABLE_COLUMNS` first, problems, and the format."""

    rows: pd.DataFrame
    problems: tuple[LogProblem, ...] = ()
    kind: str = "tidy"

    def __len__(self) -> int:
        return len(self.rows)


class PrintedNumber(NamedTuple):
    """A printed number: its value, and half a unit of its last digit."""

    value: float
    half: float

    def may_be_within(self, low: float, high: float) -> bool:
        """Return whether the number before rounding may lie in low .. high; these bounds may be rounded, too."""
        least, most = self.value - self.half, self.value + self.half
        return low * (1 - RELATIVE_SLACK) <= most and least <= high * (1 + RELATIVE_SLACK)


@dataclass
class RowCollector:
    """Collects rows and problems while a file is read; `facts` fill values that the file lacks."""

    file: str
    kind: str
    facts: Mapping[str, object] = field(default_factory=dict)
    rows: list[TableRow] = field(default_factory=list)
    problems: list[LogProblem] = field(default_factory=list)

    def report(self, line: int | None, message: str, *, dropped: bool = True) -> None:
        """Add a problem; after `MAX_PROBLEMS`, further problems are ignored."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(LogProblem(self.file, line, message, dropped))
        elif len(self.problems) == MAX_PROBLEMS:
            self.problems.append(LogProblem(self.file, line, "has more problems, which are not listed", False))

    def refuse(self, message: str, line: int | None = None, name: str | None = None) -> NoReturn:
        """Raise InputError with the message and the file's name."""
        raise InputError(message, file=self.file, line=line, field=name)

    def add(self, given: Mapping[str, object], line: int | None, *, where: str = "") -> None:
        """Add a row; report it as a problem if it has no valid time or is inconsistent.

        Its ``seconds`` [s], ``algbw`` and ``busbw`` [byte/s] must agree where they are `PrintedNumber`; its size is as
        nccl-tests counts it unless it has a ``size_convention``. `where` names the part of the line in messages.
        """
        if len(self.rows) >= MAX_ROWS:
            self.refuse(f"has more than {MAX_ROWS:,} rows, the most that are read", line)
        row = {name: one.value if isinstance(one, PrintedNumber) else one for name, one in given.items()}
        found = (given.get(name) for name in ("seconds", "algbw", "busbw"))
        printed = [one if isinstance(one, PrintedNumber) else None for one in found]
        row.setdefault("size_convention", conventions.nccl_convention(str(row.get("collective"))))
        row |= {name: value for name, value in self.facts.items() if row.get(name) in (None, "")}
        row |= conventions.fill_nodes(row)
        before, wrong = f"{where}: " if where else "", _why_impossible(row)
        if wrong is None:
            count = row.get("wrong")
            if isinstance(count, float) and count > 0:
                self.report(line, f"{before}{count:g} elements of the result were wrong", dropped=False)
            wrong = find_inconsistency(row, *printed)
        if wrong is not None:
            self.report(line, before + wrong)
            return
        row["source"] = row.get("source") or self.file
        row["line"] = line if row.get("line") is None else row["line"]
        self.rows.append(row)

    def done(self) -> Measurements:
        """Return the collected measurements, with all extra columns of the rows; InputError if there are no rows."""
        if not self.rows:
            first = f"; the first problem: {self.problems[0].message}" if self.problems else ""
            line = self.problems[0].line if self.problems else None
            self.refuse(f"holds no measurement that can be read{first}", line)
        return Measurements(measurement_table(self.rows), tuple(self.problems), self.kind)


_Fill: TypeAlias = Callable[[Path, RowCollector], Iterator[tuple[Any, ...]]]


def format_reader(kind: str) -> Callable[[_Fill], Callable[..., Measurements]]:
    """Return a decorator that turns a generator of rows into a reader of the log format `kind`.

    It yields the line, a row or why there is none, and optionally the part of the line for messages. The reader takes
    ``facts`` by keyword, as of `simnet.cost_models.calibration.readers.read_measurements`.
    """

    def wrapped(fill: _Fill) -> Callable[..., Measurements]:
        @wraps(fill)
        def read(path: str | Path, *, facts: Mapping[str, object] | None = None) -> Measurements:
            out = RowCollector(str(path), kind, dict(facts or {}))
            for line, found, *where in fill(Path(path), out):
                if isinstance(found, str):
                    out.report(line, found)
                else:
                    out.add(found, line, where="".join(where))
            return out.done()

        return read

    return wrapped


def measurement_table(rows: Iterable[TableRow]) -> pd.DataFrame:
    """Return rows as a table with `TABLE_COLUMNS` first, then all other columns, as texts or numbers."""
    listed = list(rows)
    made = {}
    for name in dict.fromkeys([*TABLE_COLUMNS, *(name for row in listed for name in row)]):
        cells = [row.get(name) for row in listed]
        form = TABLE_COLUMNS.get(name) or ("text" if any(isinstance(one, str) for one in cells) else "number")
        made[name] = pd.Series([_MISSING.get(form) if one is None else one for one in cells], dtype=_TYPES[form])
    return pd.DataFrame(made, pd.RangeIndex(len(listed)))


def parse_printed(text: str, power: int = 0) -> PrintedNumber | None:
    """Return a printed number times 10^`power`; None for a text without a number, such as ``nan``."""
    word = text.strip()
    if not _NUMBER.fullmatch(word):
        return None
    digits, _, exponent = word.lower().partition("e")
    last = int(exponent or 0) - len(digits.partition(".")[2]) + power
    value, half = float(Decimal(word).scaleb(power)), float(f"5e{last - 1}")
    return PrintedNumber(value, half) if math.isfinite(value) and math.isfinite(half) else None


def parse_whole(text: str, most: int = MAX_WHOLE) -> int | None:
    """Return a whole number in 0 .. `most`; None for other texts."""
    word = text.strip()
    if not (word.isascii() and word.isdigit() and len(word) <= 19):
        return None
    return int(word) if int(word) <= most else None


def largest_whole(column: str) -> int:
    """Return the largest value allowed in a column of whole numbers."""
    return MAX_RANKS if column in ("ranks", "nodes", "ranks_per_node") else MAX_WHOLE


def cell_values(cells: Mapping[str, str], kind: str) -> TableRow:
    """Return table values from a log's cells; of several headers for one column, the first that has a value counts."""
    row: TableRow = {}
    for head, one in log_columns(kind).items():
        if one.name not in row and (value := one.value(cells.get(head, "").strip())) is not None:
            row[one.name] = value
    return row


def find_inconsistency(
    row: Mapping[str, object], time: PrintedNumber | None, algbw: PrintedNumber | None, busbw: PrintedNumber | None
) -> str | None:
    """Return a message if values of a row contradict each other; None if they are consistent.

    Algorithm bandwidth must be size over time, bus bandwidth algorithm bandwidth times the factor of the collective
    and its ranks, both within the printed digits of time [s] and bandwidths [byte/s].
    """
    ranks, name, nbytes = row.get("ranks"), str(row.get("collective")), row.get("nbytes")
    known = ranks if isinstance(ranks, int) and ranks > 0 else None
    size = conventions.total_size(nbytes, str(row.get("size_convention")), known) if isinstance(nbytes, int) else None
    found = []
    for algorithm_factor, bus_factor in conventions.bandwidth_factors(name, known):
        wrong = None
        if size is not None and time is not None and algbw is not None:
            moved = algorithm_factor * size
            high = moved / (time.value - time.half) if time.value > time.half else math.inf
            if not algbw.may_be_within(moved / (time.value + time.half), high):
                wrong = f"algorithm bandwidth is {algbw.value / 1e9:.5g} GB/s, but {size:g} bytes in "
                wrong += f"{time.value:.5g} s are {moved / time.value / 1e9:.5g} GB/s"
        if wrong is None and bus_factor is not None and algbw is not None and busbw is not None:
            must = bus_factor * algbw.value
            if abs(must - busbw.value) > bus_factor * algbw.half + busbw.half + RELATIVE_SLACK * abs(busbw.value):
                wrong = f"bus bandwidth is {busbw.value / 1e9:.5g} GB/s, but {bus_factor:.5g} times the algorithm "
                wrong += f"bandwidth is {must / 1e9:.5g} GB/s ({name}, {known} ranks)"
        if wrong is None:
            return None
        found.append(wrong)
    return found[0]


def _why_impossible(row: TableRow) -> str | None:
    """Return a message if time, collective or nodes of a row are impossible; None if plausible."""
    seconds, name, nodes = row.get("seconds"), str(row.get("collective") or ""), row.get("nodes")
    shown = "none" if seconds is None else f"{seconds:g}" if isinstance(seconds, float) else str(seconds)[:40]
    if not isinstance(seconds, float) or not 0 < seconds < math.inf:
        return f"the time must be a number > 0, got {shown}"
    if not SHORTEST_TIME <= seconds <= LONGEST_TIME:
        return f"the time must be {SHORTEST_TIME:g} to {LONGEST_TIME:g} s, got {shown} s"
    if meant := conventions.misspelt_collective(name):
        return f"there is no collective {name[:40]!r}: did you mean {meant!r}?"
    if isinstance(nodes, int) and nodes > 1 and seconds < BETWEEN_NODES:
        return f"nothing can have been sent between {nodes} nodes in {shown} s; are there fewer elements than ranks?"
    return None


MAX_PATTERN = 200
"""Characters of a pattern; it has at most eight stars."""

_ANY_NAME = re.compile(".*", re.DOTALL)
_PLAIN_FACT = re.compile(r"([A-Za-z_]\w{0,59})=(.{0,200})", re.DOTALL)
_FOR_SOME = re.compile(r"(.+):([A-Za-z_]\w{0,59})=(.{0,200})", re.DOTALL)
_FROM_NAME = re.compile(r"\{([A-Za-z_]\w{0,59})\}")


class FactRule(NamedTuple):
    """Facts, as column values, about the logs whose file names match a pattern."""

    text: str
    """The rule as the user wrote it."""

    pattern: re.Pattern[str]
    """Pattern for the full name of a log."""

    values: Mapping[str, Any]
    """Values by column; None stands for the text that the pattern's group of this name matches."""


@dataclass
class LogFacts:
    """Rules that state facts about logs; later rules override earlier ones. `fitted` has the indices of rules used."""

    rules: tuple[FactRule, ...] = ()
    fitted: set[int] = field(default_factory=set)

    def of(self, path: str | Path) -> dict[str, Any]:
        """Return the facts about a log, by column; raise InputError for an invalid value in the log's file name."""
        found: dict[str, Any] = {}
        name = Path(path).as_posix()[-2000:]
        for number, rule in enumerate(self.rules):
            if (fits := rule.pattern.fullmatch(name)) is None:
                continue
            self.fitted.add(number)
            for column, value in rule.values.items():
                found[column] = typed_fact(column, fits[column]) if value is None else value
        return found

    def refuse_idle(self) -> None:
        """Raise InputError if there is a rule whose file-name pattern has matched no log."""
        for number, rule in enumerate(self.rules):
            if number not in self.fitted and rule.pattern is not _ANY_NAME:
                raise InputError(f"{rule.text[:120]!r} fits the name of no log", file="--fact")


def constant_facts(values: Mapping[str, Any]) -> LogFacts:
    """Return facts, by column, that hold for every log."""
    return LogFacts((FactRule("", _ANY_NAME, dict(values)),))


def parse_facts(texts: Iterable[str]) -> LogFacts:
    """Return facts parsed from texts such as ``ranks=16``, ``osu_*_n8.log:ranks=32`` or ``*_n{ranks}.log``."""
    rules: list[FactRule] = []
    for text in texts:
        plain, some = _PLAIN_FACT.fullmatch(text), _FOR_SOME.fullmatch(text)
        if plain is not None and (plain[1] in TABLE_COLUMNS or some is None):
            rules.append(FactRule(text, _ANY_NAME, {plain[1]: typed_fact(plain[1], plain[2])}))
        elif some is not None:
            rules.append(FactRule(text, _name_pattern(some[1], {}), {some[2]: typed_fact(some[2], some[3])}))
        elif columns := dict.fromkeys(_FROM_NAME.findall(text)):
            for column in columns:
                _form_of(column)
                if text.count(f"{{{column}}}") > 1:
                    raise InputError(f"names {column!r} twice: {text[:60]!r}", file="--fact")
            rules.append(FactRule(text, _name_pattern(text, columns), columns))
        else:
            allowed = "COLUMN=VALUE, PATTERN:COLUMN=VALUE or a pattern with {COLUMN}"
            raise InputError(f"must be {allowed}, got {text[:60]!r}", file="--fact")
    return LogFacts(tuple(rules))


def _form_of(column: str) -> ColumnForm:
    check_choice(column, "column", TABLE_COLUMNS, file="--fact")
    return TABLE_COLUMNS[column]


def typed_fact(name: str, value: str) -> Any:
    """Return a fact's value, as a number in numeric columns; raise InputError for an invalid value."""
    form = _form_of(name)
    if form == "text":
        return value
    if value.isascii() and value.isdigit() and len(value) < 16:
        return int(value) if form == "whole" else float(value)
    raise InputError(f"must be a whole number, got {value[:40]!r}", file="--fact", field=name)


def _name_pattern(text: str, groups: Mapping[str, Any]) -> re.Pattern[str]:
    """Return the regular expression for a glob with ``{column}`` groups; it matches file names and ends of paths."""
    if len(text) > MAX_PATTERN or text.count("*") + len(groups) > 8:
        message = f"a pattern has at most {MAX_PATTERN} characters and eight stars or columns, got {text[:60]!r}"
        raise InputError(message, file="--fact")
    words = "|".join(re.escape(f"{{{column}}}") for column in groups if TABLE_COLUMNS[column] == "text")
    if words and (beside := re.search(rf"\*({words})|({words})\*", text)):
        word = beside[1] or beside[2]
        message = f"has a star beside {word}, so that nothing says where it begins or ends: {text[:60]!r}"
        raise InputError(message, file="--fact")
    pattern = re.sub(r"(\\\*)+", "\0", re.escape(text.replace("\\", "/"))).replace(r"\?", "[^/]")
    for column in groups:
        of_text = TABLE_COLUMNS[column] == "text"
        group = f"(?P<{column}>" + ("[^/]{1,60}?)" if of_text else r"(?<!\d)\d{1,15}(?!\d))")
        pattern = pattern.replace(re.escape(f"{{{column}}}"), group)
    # What follows a star is taken where it first stands, for good: else time grows with a power of the length.
    first, *middle = pattern.split("\0")
    last = "[^/]*" + middle.pop() if middle else ""
    return re.compile("(?:.*/)?" + first + "".join(f"(?>[^/]*?{part})" for part in middle) + last, re.DOTALL)
