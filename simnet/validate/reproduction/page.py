"""Text on reproductions of papers: table cells, summaries, and a page of all papers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simnet.report.summary import Column
from simnet.validate.published import read_published, read_sections
from simnet.validate.reproduction import MISSING, REPRODUCTIONS
from simnet.validate.reproduction.table import KINDS, Interval, Kind, Row, kind_counts, value, worst_row

# Introductory texts of the page, by section.
_TEXT = read_sections("page.md")

_NO_GAIN = {"x": 1.0, "%": 0.0}

# Priorities of value columns; the highest are hidden first on a narrow line.
_SPARE = {"unit": 1, "error": 2, "tolerance": 3}
_OUTCOME = [
    Column("name", "name", "text"),
    Column("published_in", "published", "phrase", priority=2),
    Column("kinds", "values", "text"),
    Column("contradictions", "contradict", "number", priority=1),
    Column("worst", "worst", "text"),
]


def error(row: Row) -> str:
    """Return a row's error as text: the published value's excess over simnet's, in per cent or the value's unit."""
    if math.isnan(row.error):
        return "-"
    if isinstance(row.ours, str):
        return "none" if row.error == 0 else "other"
    if row.error == 0:
        return "0"
    return f"{row.error:+.3g} {row.unit}".rstrip() if row.absolute else f"{100 * row.error:+.3g} %"


def tolerance(row: Row) -> str:
    """Return a row's tolerance as text: a number with unit, "equal", "inside", "at most" or "at least"."""
    if row.tolerance is None:
        return "-"
    if row.relation != "=":
        return "at most" if row.relation == "<=" else "at least"
    if row.tolerance == 0:
        return "inside" if isinstance(row.ours, Interval) else "equal"
    return f"{row.tolerance:g} {row.unit}".rstrip() if row.absolute else f"{100 * row.tolerance:g} %"


def worst_error(rows: Sequence[Row]) -> str:
    """Return the largest error of rows as text, with its tolerance."""
    row = worst_row(rows)
    if row is None:
        return "-"
    if row.relation != "=":
        return "bounds hold" if row.passes else f"{error(row)} ({tolerance(row)})"
    limit = tolerance(row)
    return error(row) if limit in ("-", "equal", "inside") or row.error == 0 else f"{error(row)} ({limit})"


def contradiction(name: str, rows: Sequence[Row]) -> str:
    """Return a phrase on values of a reproduction that contradict the published ones; '' if there are none."""
    found = [row for row in rows if row.contradicts]
    if not found:
        return ""
    compared = [row for row in rows if row.tolerance is not None or not math.isnan(row.error)]
    units = {row.unit if row.absolute else "%" for row in found if not isinstance(row.ours, str)}
    by = ""
    if len(units) == 1:
        sizes = [abs(row.error) * (1 if row.absolute else 100) for row in found if not isinstance(row.ours, str)]
        ends = dict.fromkeys(f"{one:.3g}" for one in (min(sizes), max(sizes)))
        by = f", off by {' to '.join(ends)} {units.pop()}"
    return f"{name} ({len(found)} of {len(compared)} values{by})"


def reproduction_summary(found: Mapping[str, Sequence[Row] | None]) -> list[str]:
    """Return two sentences on reproductions: which contradict published values, and how many values match, by kind."""
    told = [one for name, rows in found.items() if rows and (one := contradiction(name, rows))]
    rows = [row for one in found.values() for row in one or ()]
    parts = []
    for kind, number in kind_counts(rows).items():
        judged = [row.passes for row in rows if row.kind == kind and row.passes is not None]
        within = f", {sum(judged)} within tolerance" if judged else ", not judged"
        parts.append(f"{_plural_text(kind, number)}{within}")
    return [f"Contradictions: {'; '.join(told) if told else 'none'}.", f"{'; '.join(parts)}."]


def _plural_text(kind: Kind, number: int) -> str:
    words = {"test": ("test", "tests"), "echo": ("echo", "echoes"), "orientation": ("for orientation",) * 2}
    return f"{number} {words[kind][number != 1]}"


def value_table(found: Mapping[str, Sequence[Row] | None]) -> tuple[list[Column], list[dict[str, Any]]]:
    """Return the columns and rows of a table of the values of one reproduction."""
    names = ("what", "published", "ours", "unit", "error", "tolerance", "verdict")
    ((_, rows),) = found.items()
    others = (Column(name, name, "text", priority=_SPARE.get(name, 0)) for name in names[1:])
    cells = [dict(zip(names, row_cells(row), strict=True)) for row in rows or ()]
    return [Column("what", "value", "text"), *others], cells


def outcome_table(found: Mapping[str, Sequence[Row] | None]) -> tuple[list[Column], list[dict[str, Any]]]:
    """Return the columns and rows of a table with one row per reproduction."""
    return _OUTCOME, [outcome(name, rows) for name, rows in found.items()]


def outcome(name: str, rows: Sequence[Row] | None) -> dict[str, Any]:
    """Return a table row on a reproduction: paper and place, numbers of values and contradictions, largest error."""
    one = REPRODUCTIONS[name]
    return {
        "name": name,
        "published_in": f"{one.paper}, {one.place}",
        "kinds": ", ".join(f"{number} {kind}" for kind, number in kind_counts(rows or ()).items()),
        "contradictions": None if rows is None else sum(row.contradicts for row in rows),
        "worst": "left out" if rows is None else worst_error(rows),
    }


def reproduction_section(name: str, rows: Sequence[Row] | None) -> str:
    """Return the Markdown section on a reproduction, with a link to its picture, or why it has not been run."""
    one = REPRODUCTIONS[name]
    where = f"{one.paper}, {one.place}"
    if rows is None:
        last = f"Not run: {one.needs()}."
    else:
        last = f"![{where}. Contradictions: {contradiction(name, rows) or 'none'}]({name}.svg)"
    return "\n".join([f"### {name}", "", _wrap_text(f"{where}: {one.title}. {one.note}"), "", last, ""])


def _wrap_text(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def row_cells(row: Row) -> tuple[str, ...]:
    """Return the table cells of a row: name, published and simulated value, unit, error, tolerance, verdict."""
    said = "contradicts" if row.beyond or row.tolerance is None else "FAIL"
    passes = said if row.contradicts else "pass" if row.passes else "-"
    ours = value(row.ours)
    if isinstance(row.ours, Interval) and isinstance(row.published, Interval) and row.unit in _NO_GAIN:
        sign = row.ours.sign(row.published, _NO_GAIN[row.unit])
        ours += f", sign {sign}" if sign != "none" else ""
    return row.what, value(row.published), ours, row.unit, error(row), tolerance(row), passes


def summary_line(name: str, rows: Sequence[Row] | None) -> str:
    """Return the Markdown table line on a reproduction in the summary."""
    where, kinds, against, furthest = [*outcome(name, rows).values()][1:]
    cells = (f"[{name}](#{name})", where, REPRODUCTIONS[name].title, kinds, str(against or "-"), furthest)
    return f"| {' | '.join(cells)} |"


def stated(section: str) -> str:
    """Return a section of the Markdown page, ``runs`` or ``gains``, with the settings that the papers state."""
    table = read_published("stated.csv").query("page == @section").drop(columns="page")
    return _TEXT[section] + _lines(table.to_numpy().tolist())


def gain_reasons(found: Mapping[str, Sequence[Row] | None]) -> str:
    """Return a Markdown table of the speed-ups in papers: setting, assumptions, simnet's speed-up, and explanation."""
    ours = {
        row.what: row_cells(row)[2] for name, rows in found.items() if name.startswith("gain-") for row in rows or ()
    }
    table = read_published("gains.csv").dropna(subset=["on"]).fillna("")
    notes = [[str(cell) for cell in row] for row in table[["scheme", "what", "on", "takes", "why"]].to_numpy().tolist()]
    rows = [(f"{scheme}, {what}", on, takes, ours.get(what, "not run"), why) for scheme, what, on, takes, why in notes]
    return _TEXT["reasons"] + _lines(rows)


def page(found: Mapping[str, Sequence[Row] | None]) -> str:
    """Return the Markdown page of all reproductions, with links to their pictures in its folder."""
    lines = [_wrap_text(f"- *{kind}*: {meaning}.", "  ") for kind, meaning in KINDS.items()]
    text = _TEXT["head"] + "\n".join(lines) + "\n" + _TEXT["summary"]
    text += "".join(f"{_wrap_text(line)}\n\n" for line in reproduction_summary(found))
    text += "| name | published | values | kind | contradictions | worst |\n|---|---|---|---|---|---|\n"
    text += "".join(summary_line(name, rows) + "\n" for name, rows in found.items())
    text += stated("runs") + stated("gains") + gain_reasons(found)
    text += _TEXT["missing"] + "| paper | what | why |\n|---|---|---|\n" + _lines(MISSING)
    text += "\n## Each in turn\n\n"
    return text + "\n".join(reproduction_section(name, rows) for name, rows in found.items())


def _lines(cells: Iterable[Iterable[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
