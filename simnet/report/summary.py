"""`Summary`, the answer to a request: one or two lines, a table of at most 80 characters, and its evidence.

Every command and every function of the library returns a `Summary`. The text on the console, the table of a notebook,
JSON, CSV and a data frame are views of it.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from simnet.base.errors import InputError, suggest_names
from simnet.base.file_io import read_shipped_rows, stage_files, write_new

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 80
"""Maximum width of a line in characters."""

ENDINGS = (".json", ".csv", ".txt", ".html", ".svg", ".png", ".md", ".yaml")
"""File suffixes that answers can be written to; which ones depends on the answer."""

SCHEMA = 1
"""Version of the JSON of a summary."""

Row: TypeAlias = Mapping[str, Any]
"""Values of a row by column name, in SI units; None if unknown."""

Unit: TypeAlias = Literal["time", "bytes", "rate", "throughput", "percent", "chance", "number", "text", "phrase"]
"""The kind of a column's values: seconds; bytes; byte/s, shown as bit/s or as byte/s; a share, shown in per cent with
three digits or in whole per cent; a number; text that is wrapped if too long; text that is cut if too long.
"""

_SCALES: Mapping[str, tuple[tuple[str, float], ...]] = {
    "time": (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("h", 3600.0), ("d", 86400.0)),
    "bytes": (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)),
    "rate": (("bit/s", 0.125), ("kbit/s", 125.0), ("Mbit/s", 1.25e5), ("Gbit/s", 1.25e8), ("Tbit/s", 1.25e11)),
    "throughput": (("B/s", 1.0), ("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12)),
    "percent": (("%", 0.01),),
    "chance": (("%", 0.01),),
}
_UNIT_OF_NAME: tuple[tuple[str, Unit], ...] = (("_Bps", "rate"), ("_s", "time"), ("_B", "bytes"))
_GAP, _LABEL, _ROWS = 2, 12, 100
_GLUE = "\N{NO-BREAK SPACE}"
_WITH_UNIT = re.compile(r"(?<=\d) (?=(?:[numk]?s|min|h|d|[kMGT]?B|[kMGT]?bit/s|[kMGT]?B/s)\b|%)")
TEXTS: tuple[Unit, ...] = ("text", "phrase")


class Column(NamedTuple):
    """Column of a table: the key of its values in rows, its heading without unit, its unit and its priority.

    `unit` follows from the end of the name where it is left out. `interval` names the columns of the ends of the
    interval, which stand in the same cell, and `interval_of` says what it holds. On a narrow line the columns with the
    largest `priority` are hidden first; those with 0 never are.
    """

    name: str
    heading: str
    unit: Unit | None = None
    priority: int = 0
    interval: tuple[str, str] | None = None
    interval_of: str = "90 %"


@cache
def table_columns(*tables: str) -> tuple[Column, ...]:
    """Return the columns of the named tables in ``simnet/data/tables.csv``, one table after the other.

    Examples
    --------
    >>> [column.heading for column in table_columns("calibrate compute")]
    ['of iterations left out', 'measured', 'fitted']
    """
    return tuple(
        Column(
            row["name"],
            row["heading"],
            row["unit"] or None,  # type: ignore[arg-type]
            int(row["priority"] or 0),
            (row["low"], row["high"]) if row["low"] else None,
            row["interval_of"] or "90 %",
        )
        for table in tables
        for row in read_shipped_rows("data/tables.csv")
        if row["table"] == table
    )


class Plot(NamedTuple):
    """Finished figure as PNG and SVG, with its name, title and explanation."""

    name: str
    title: str
    explanation: str
    png: bytes
    svg: bytes

    def __repr__(self) -> str:
        return f"Plot({self.name!r}, {self.title!r})"

    def _repr_png_(self) -> bytes:
        """Return the PNG for display in notebooks."""
        return self.png

    def save(self, path: Path | str, force: bool = False) -> None:
        """Write the figure to a new file. The suffix of the path, .png or .svg, sets the format."""
        path = Path(path)
        if path.suffix not in (".png", ".svg"):
            raise InputError("must end with .png or .svg", file=str(path))
        write_new({path: self.png if path.suffix == ".png" else self.svg}, force)


@dataclass(frozen=True, kw_only=True, repr=False)
class Summary:
    """Answer to a request, with views as text, JSON, CSV, data frame, HTML and figures.

    Parameters
    ----------
    answer : str
        The answer, with its interval, in one or two lines.
    columns : sequence of Column
        The columns of the table; the first one names the rows.
    rows : sequence of Row
        The rows, the best first.
    evidence, assumed, to_accuracy, depends_on, next : str
        How well the figures are known; what the user did not say; how many iterations the first need for the same
        accuracy; what would change the answer; what to ask next.
    details : mapping of str to Any
        What JSON has beside these, by name.
    plots : mapping of str to callable
        The figures by name, each drawn when it is asked for; by default there is one of the numbers of the table.
    notes : sequence of str
        What else is to be said, a line each; shown with ``--wide``, in notebooks and in JSON.
    """

    answer: str
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    evidence: str = ""
    assumed: str = ""
    to_accuracy: str = ""
    depends_on: str = ""
    next: str = ""
    next_saved: str | None = None
    """The next command when the answer is in a file, of which ``{out}`` is the name; by default `next`."""
    details: Mapping[str, Any] = field(default_factory=dict)
    plots: Mapping[str, Callable[[], Plot]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    writers: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)
    """Functions that write files of further formats, or replace a format of the table, by suffix."""
    exit_code: int = 0
    """The exit code of the command: 1 if a requested check failed."""

    @property
    def best(self) -> str | None:
        """Name in the table's first row, which is the best choice if rows are ranked; None without rows."""
        return str(self.rows[0][self.columns[0].name]) if self.rows and self.columns else None

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.answer.split('. ')[0]!r})"

    def text(self, width: int = WIDTH, *, wide: bool = False) -> str:
        """Return the answer as text with lines of at most `width` characters; `wide` adds hidden columns and notes."""
        blocks, hidden, (columns, rows) = [_wrapped(self.answer, width)], list[str](), self.shown()
        if rows and columns:
            shown, hidden = _fitting(columns, rows, width, wide)
            blocks.append("\n".join(_table_lines(list(shown.values()))))
        if not wide:
            hidden += [f"{len(rows) - _ROWS} rows"] * (len(rows) > _ROWS)
            hidden += [f"{len(self.notes)} note{'s' * (len(self.notes) > 1)}"] * bool(self.notes)
        labelled = [*self.labelled()]
        if hidden:
            labelled.insert(len(labelled) - bool(self.next), ("Hidden", f"--wide has {', '.join(hidden)}"))
        blocks.append("\n".join(_labelled_text(label, text, width, wide) for label, text in labelled))
        blocks.append("\n".join(_wrapped(one, width, whole_words=True) for one in self.notes if wide))
        return "\n\n".join(one for one in blocks if one)

    def shown(self) -> tuple[Sequence[Column], Sequence[Row]]:
        """Return the columns and rows of the table as readers see these on a console, a page or in a notebook."""
        return self.columns, self.rows

    def labelled(self) -> list[tuple[str, str]]:
        """Return (label, text) pairs of the statements below the table."""
        known = (("Evidence", self.evidence), ("Assumed", self.assumed), ("Accuracy", self.to_accuracy))
        return [one for one in (*known, ("Depends on", self.depends_on), ("Next", self.next)) if one[1]]

    def figures(self) -> dict[str, Any]:
        """Return what `to_json` writes, as a dictionary of numbers, texts and table rows."""
        said = {name: getattr(self, name) for name in ("evidence", "depends_on", "answer", "assumed", "next")}
        said |= {"to_accuracy": self.to_accuracy} if self.to_accuracy else {}
        found = {"schema": SCHEMA, **said, "notes": list(self.notes), **self.details}
        return found | ({"rows": [dict(one) for one in self.rows]} if self.columns else {})

    def to_json(self) -> str:
        """Return the answer as JSON, with times in seconds, sizes in bytes, and units at the end of names."""
        return json.dumps(json_value(self.figures()), indent=2, allow_nan=False)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame, with units at the end of column names."""
        import pandas as pd

        return pd.DataFrame([dict(one) for one in self.rows])

    def plot(self, name: str | None = None) -> Plot:
        """Return the figure called `name`, or the first figure if `name` is None.

        Raises
        ------
        InputError
            If there is none of that name.
        """
        plots = self._figures()
        found = plots.get(name or next(iter(plots), ""))
        if found is None:
            raise InputError(f"there is no figure {name!r}; {suggest_names(name or '', plots)}")
        return found()

    def _figures(self) -> Mapping[str, Callable[[], Plot]]:
        """Return functions that draw the figures, by name; by default there is one, which draws the table."""
        if self.plots or not any(with_unit(one).unit not in TEXTS for one in self.columns[1:]) or not self.rows:
            return self.plots
        from simnet.report.drawing import draw_table

        return {"table": lambda: draw_table(self)}

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the answer to a file in the format of its suffix: .json, .csv, .txt, .html, .svg or .png.

        Raises
        ------
        InputError
            If the file is there, or its ending is another.
        """
        path, plots = Path(path), self._figures()
        texts = {".json": lambda: self.to_json() + "\n", ".csv": self._csv, ".txt": lambda: self.text() + "\n"}
        writers: dict[str, Callable[[Path], object]] = {
            **{end: partial(_write_text, text) for end, text in {**texts, ".html": self._page}.items()},
            **dict.fromkeys((".svg", ".png") if plots else (), lambda file: self.plot().save(file)),
            **self.writers,
        }
        if path.suffix not in writers:
            raise InputError(f"must end with one of {', '.join(writers)}, got {path.name!r}", file="--out")
        with stage_files([path], force) as folder:
            writers[path.suffix](folder / path.name)

    def _csv(self) -> str:
        from simnet.base.spreadsheets import guard_table

        return str(guard_table(self.to_pandas()).to_csv(index=False, lineterminator="\n"))

    def _page(self) -> str:
        from simnet.report.html import answer_html

        return answer_html(self, "page", [self.plot()] if self._figures() else [])

    def _repr_html_(self) -> str:
        from simnet.report.html import answer_html

        return answer_html(self)


def _write_text(text: Callable[[], str], path: Path) -> None:
    path.write_text(text(), encoding="utf-8", newline="\n")


def three_digits(value: float) -> str:
    """Return a number as text, rounded to three significant digits.

    Examples
    --------
    >>> [three_digits(one) for one in (44.93, 1542.3, 0.95678, 999.7, 4.0, 0.0, 8.4e-6)]
    ['44.9', '1,540', '0.957', '1,000', '4.00', '0', '8.40e-06']
    """
    if not math.isfinite(value):
        return "-"
    rounded = float(f"{value:.2e}")
    if rounded == 0:
        return "0"
    if abs(rounded) < 1e-4:
        return f"{rounded:.2e}"
    return f"{rounded:,.{max(2 - math.floor(math.log10(abs(rounded))), 0)}f}"


def percent(share: float, sign: str = "") -> str:
    """Return a share as text in per cent: in whole numbers, as "<1 %" below 0.5 %, and as ">99 %" above 99.5 %.

    Examples
    --------
    >>> percent(0.143), percent(0.0004), percent(0.14, "+"), percent(0.0), percent(0.9996), percent(1.0)
    ('14 %', '<1 %', '+14 %', '0 %', '>99 %', '100 %')
    """
    if 0 < abs(share) < 0.005:
        return "<1 %"
    if 0.995 <= share < 1 and not sign:
        return ">99 %"
    return f"{100 * share:{sign}.0f} %"


def interval_text(
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    *,
    unit: Unit = "time",
    each: str = "",
    by: str = "",
) -> str:
    """Format a value and its interval, as in ``44.9 ms (38.0-56.5)``; `each` follows the unit, `by` the interval.

    Examples
    --------
    >>> interval_text(0.0449, 0.038, 0.0565, each=" a step"), interval_text(2e9, unit="throughput")
    ('44.9 ms a step (38.0-56.5)', '2.00 GB/s')
    """
    name, factor = common_unit(unit, [value])
    found = f"{_number(value, factor)} {name}".rstrip() + each
    if low is None or high is None or low == high:
        return found
    return f"{found} ({_number(low, factor)}-{_number(high, factor)}{by})"


def with_unit(column: Column) -> Column:
    """Return a column with its unit, by default the one in the suffix of the column's name."""
    found = (unit for end, unit in _UNIT_OF_NAME if column.name.endswith(end))
    return column._replace(unit=column.unit or next(found, "number"))


def column_cells(column: Column, rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Return a column's heading with its unit, and the text of each cell."""
    column = with_unit(column)
    values = [one.get(column.name) for one in rows]
    if column.unit in TEXTS:
        return column.heading, ["-" if one is None else str(one) for one in values]
    name, factor = common_unit(column.unit or "number", values)
    heading = column.heading + (f" ({column.interval_of})" if column.interval else "") + (f" [{name}]" if name else "")
    cells = []
    for row, value in zip(rows, values, strict=True):
        text = _number(value, factor, column.unit == "chance")
        ends = [] if column.interval is None else [row.get(one) for one in column.interval]
        if ends and None not in ends and value is not None:
            text += f" ({'-'.join(_number(one, factor) for one in ends)})"
        cells.append(text)
    return heading, cells


def _number(value: Any, factor: float, whole: bool = False) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if whole:
        return percent(value).removesuffix(" %")
    if isinstance(value, int) and factor == 1.0:
        return f"{value:,}"
    return three_digits(value / factor)


def common_unit(unit: Unit, values: Sequence[Any]) -> tuple[str, float]:
    """Return the unit in which all values of a column are shown, and its size in SI units."""
    scales = _SCALES.get(unit, (("", 1.0),))
    known = sorted(abs(one) for one in values if isinstance(one, int | float) and math.isfinite(one) and one)
    if not known:
        return next((one for one in scales if one[1] == 1.0), scales[0])
    # The unit of the least, so that columns of one kind compare; of the median where values are far apart.
    typical = known[0] if known[-1] < 1e4 * known[0] else known[len(known) // 2]
    return max((one for one in scales if one[1] <= typical * (1 + 1e-9)), key=lambda one: one[1], default=scales[0])


class _Shown(NamedTuple):
    """Column as text: the lines of its heading, its cells, and whether they are left-aligned."""

    heading: list[str]
    cells: list[str]
    left: bool

    @property
    def width(self) -> int:
        return max((len(one) for cell in (*self.heading, *self.cells) for one in cell.split("\n")), default=0)


def _fitting(
    columns: Sequence[Column], rows: Sequence[Row], width: int, wide: bool
) -> tuple[dict[str, _Shown], list[str]]:
    """Return as text the columns that fit into the width, and the headings of the hidden columns."""
    rows = rows if wide else rows[:_ROWS]
    made = {}
    for place, column in enumerate(columns):
        heading, cells = column_cells(column, rows)
        # The first column, phrases, and what stands alone beside the first.
        left = not place or column.unit == "phrase" or (len(columns) == 2 and column.unit == "text")
        made[column.name] = _Shown(_broken(heading, cells), cells, left)
    hidden: list[str] = []
    spare = sorted((one for one in columns if one.priority), key=lambda one: -one.priority)
    while not wide and spare and _table_width(made.values()) > width:
        gone = spare.pop(0)
        del made[gone.name]
        hidden.append(gone.heading)
    if not wide:
        _narrow(made, columns, width)
    # On a terminal of 40 characters not even what matters most has room.
    for column in reversed(columns[2:] if not wide else ()):
        if column.name in made and _table_width(made.values()) > width:
            del made[column.name]
            hidden.append(column.heading)
    return made, hidden


def _narrow(made: dict[str, _Shown], columns: Sequence[Column], width: int) -> None:
    """Wrap or cut the widest text columns of a table, in place, until the table fits the width."""
    texts = {one.name: one.unit for one in columns if one.unit in TEXTS and one.name in made}
    while texts and (over := _table_width(made.values()) - width) > 0:
        name = max(texts, key=lambda one: made[one].width)
        cells = made[name].cells
        room, unit = max(made[name].width - over, 12), texts.pop(name)
        if unit == "phrase":
            cells = [textwrap.shorten(one, room, placeholder=" ...") for one in cells]
        else:
            cells = ["\n".join(textwrap.wrap(one, room)) for one in cells]
        made[name] = made[name]._replace(cells=cells)


def _broken(heading: str, cells: Sequence[str]) -> list[str]:
    """Return a heading wrapped to about the width of its cells."""
    longest = max(map(len, (*cells, *heading.split(" "))), default=1)
    glued = heading.replace(" [", "\0[").replace(" %)", "\0%)")
    lines = textwrap.wrap(glued, max(longest, 4), break_long_words=False, break_on_hyphens=False)
    if len(lines) > 3:
        lines = textwrap.wrap(glued, -(-len(glued) // 2) + 2, break_long_words=False)
    return [one.replace("\0", " ") for one in lines]


def _table_width(columns: Collection[_Shown]) -> int:
    return sum(one.width for one in columns) + _GAP * (len(columns) - 1)


def _table_lines(columns: Sequence[_Shown]) -> Iterator[str]:
    """Yield the lines of a table, with texts aligned left and numbers aligned right."""
    height = max(len(one.heading) for one in columns)
    heads = ["\n".join([""] * (height - len(one.heading)) + one.heading) for one in columns]

    def lines(cells: Sequence[str]) -> Iterator[str]:
        for line in zip_longest(*(one.split("\n") for one in cells), fillvalue=""):
            padded = (
                one.ljust(column.width) if column.left else one.rjust(column.width)
                for one, column in zip(line, columns, strict=True)
            )
            yield (" " * _GAP).join(padded).rstrip()

    yield from lines(heads)
    yield "-" * _table_width(columns)
    for cells in zip(*(one.cells for one in columns), strict=True):
        yield from lines(cells)


def _wrapped(text: str, width: int, *, whole_words: bool = False) -> str:
    return "\n".join(line for one in text.split("\n") for line in _lines(one, width, None, whole_words) or [""])


def _lines(text: str, width: int, most: int | None = None, whole_words: bool = False) -> list[str]:
    """Return a text wrapped into lines. Units stay with their numbers; `whole_words` never splits words."""
    glued = _WITH_UNIT.sub(_GLUE, text)
    lines = textwrap.wrap(
        glued, width, max_lines=most, placeholder=" ...", break_on_hyphens=False, break_long_words=not whole_words
    )
    return [one.replace(_GLUE, " ") for one in lines]


def _labelled_text(label: str, text: str, width: int, wide: bool) -> str:
    """Return a text wrapped after its label, in at most two lines unless `wide` is true."""
    lines = _lines(text, max(width - _LABEL, 20), None if wide else 2)
    return textwrap.indent("\n".join(lines), " " * _LABEL).replace(" " * _LABEL, f"{label:{_LABEL}}", 1)


def json_value(value: Any, shorten: Callable[[float], float] = float) -> Any:
    """Return a value as JSON types. `shorten` rounds floats; non-finite floats become None.

    Examples
    --------
    >>> json_value({"a": 1.25, "b": (math.inf, 1)}, round)
    {'a': 1, 'b': [None, 1]}
    """
    if isinstance(value, Mapping):
        return {str(name): json_value(one, shorten) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one, shorten) for one in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    return shorten(float(value)) if math.isfinite(value) else None
