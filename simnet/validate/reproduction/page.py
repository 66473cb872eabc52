"""Text on reproductions of papers: table cells, summaries, and a page of all papers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from simnet.validate.published import read_published, read_sections
from simnet.validate.reproduction import MISSING, REPRODUCTIONS
from simnet.validate.reproduction.table import KINDS, Interval, Kind, Reproduction, Row, kind_counts, value, worst_row
from simnet.validate.reproduction.under_devices import DeviceColumn, device_rows

_TEXT = read_sections("page.md")
"""Introductory texts of the page, by section."""

_NO_GAIN = {"x": 1.0, "%": 0.0}

_FULL = 12
"""Maximum number of values for which a section shows all of them."""


def error(row: Row) -> str:
    """Return the error of a published value as text, in per cent or in the value's unit."""
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
    """Return two sentences on reproductions: how many contradict published values, and the values by kind."""
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


def kinds_text(one: Reproduction) -> str:
    """Return text on how many values of a reproduction are of each kind, such as tests."""
    return ", ".join(f"{number} {kind}" for kind, number in one.values.items())


def reproduction_section(one: Reproduction, rows: Sequence[Row] | None) -> str:
    """Return the Markdown section on a reproduction; if it has not been run, the section says why."""
    lines = [f"### {one.name}", "", _wrap_text(f"{one.paper}, {one.place}: {one.title}. {one.note}"), ""]
    if rows is None:
        return "\n".join([*lines, f"Not run: {one.needs()}.", ""])
    head = ["| value | published | ours | unit | error | tolerance | |", "|---|---|---|---|---|---|---|"]
    shown = rows
    if len(rows) > _FULL:
        few = one.values.get("orientation", 0) <= _FULL
        furthest = worst_row(rows)
        shown = [row for row in rows if row is furthest or row.contradicts or (few and row.tolerance is None)]
        judged = [row.passes for row in rows if row.passes is not None]
        within = f", {sum(judged)} of {len(judged)} within their tolerance" if judged else ", none judged"
        lines += [f"{len(rows)} values{within}{'; the furthest:' if shown else '.'}", ""]
    return "\n".join([*lines, *([*head, *map(_table_line, shown), ""] if shown else [])])


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


def _table_line(row: Row) -> str:
    return f"| {' | '.join(row_cells(row))} |"


def summary_line(one: Reproduction, rows: Sequence[Row] | None) -> str:
    """Return the Markdown table line on a reproduction in the summary."""
    against = "not run" if rows is None else str(sum(row.contradicts for row in rows) or "-")
    furthest = "-" if rows is None else worst_error(rows)
    cells_ = (f"[{one.name}](#{one.name})", f"{one.paper}, {one.place}", one.title, kinds_text(one), against, furthest)
    return f"| {' | '.join(cells_)} |"


def under_devices(columns: Sequence[DeviceColumn]) -> str:
    """Return the Markdown section on headline speed-ups under each device profile."""
    head, *others = device_rows(columns)
    return _TEXT["devices"] + _lines([head, ["---"] * len(head), *others])


def stated(section: str) -> str:
    """Return the Markdown section on settings that papers state, for the section ``runs`` or ``gains``."""
    table = read_published("stated.csv").query("page == @section").drop(columns="page")
    return _TEXT[section] + _lines(table.to_numpy().tolist())


def gain_reasons(found: Mapping[str, Sequence[Row] | None]) -> str:
    """Return the Markdown section on each published gain: setting, assumptions, simnet's value and its reason."""
    ours = {
        row.what: row_cells(row)[2] for name, rows in found.items() if name.startswith("gain-") for row in rows or ()
    }
    table = read_published("gains.csv").dropna(subset=["on"]).fillna("")
    notes = [[str(cell) for cell in row] for row in table[["scheme", "what", "on", "takes", "why"]].to_numpy().tolist()]
    rows = [(f"{scheme}, {what}", on, takes, ours.get(what, "not run"), why) for scheme, what, on, takes, why in notes]
    return _TEXT["reasons"] + _lines(rows)


def page(found: Mapping[str, Sequence[Row] | None], columns: Sequence[DeviceColumn]) -> str:
    """Return the Markdown page of all reproductions."""
    lines = [_wrap_text(f"- *{kind}*: {meaning}.", "  ") for kind, meaning in KINDS.items()]
    text = _TEXT["head"] + "\n".join(lines) + "\n" + _TEXT["summary"]
    text += "".join(f"{_wrap_text(line)}\n\n" for line in reproduction_summary(found))
    text += "| name | published | values | kind | contradictions | worst |\n|---|---|---|---|---|---|\n"
    text += "".join(summary_line(REPRODUCTIONS[name], rows) + "\n" for name, rows in found.items())
    text += stated("runs") + stated("gains") + gain_reasons(found)
    text += under_devices(columns) if columns else ""
    text += _TEXT["missing"] + "| paper | what | why |\n|---|---|---|\n" + _lines(MISSING)
    text += "\n## Each in turn\n\n"
    return text + "\n".join(reproduction_section(REPRODUCTIONS[name], rows) for name, rows in found.items())


def _lines(cells: Iterable[Iterable[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
