"""Tables on the console: as wide as they need to be, or in blocks of lines where a terminal is too narrow."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd


def records(table: pd.DataFrame) -> str:
    """Return a table as JSON, an object per row by the names of the columns; null for what is not a number.

    Examples
    --------
    >>> import pandas as pd
    >>> print(records(pd.DataFrame({"scheme": ["AG"], "wait_s": [float("nan")], "select_s": [0.1 + 0.2]})))
    [
      {
        "scheme":"AG",
        "wait_s":null,
        "select_s":0.3
      }
    ]
    """
    text: str = table.to_json(orient="records", indent=2, double_precision=15, force_ascii=False)
    return text


def empty_table(title: str, headings: Iterable[str], left: Collection[str] = ()) -> Table:
    """Return a table without rows."""
    # Text, not str, here and in the cells: a name such as "[red]" is a name, no markup.
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    return table


def fits(table: Table, console: Console) -> bool:
    """Return whether a table fits the console; any fits a file or pipe, unless COLUMNS sets a width."""
    bounded = console.is_terminal or "COLUMNS" in os.environ
    return not bounded or console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width


def print_wide(table: Table, console: Console | None = None) -> None:
    """Print a table as wide as it needs to be; a narrow terminal wraps its lines."""
    console = console or Console()
    width = console.measure(table, options=console.options.update(width=10_000)).maximum
    lines = console.render(table, console.options.update(width=max(width, console.width)))
    console.print(Segments(lines), crop=False, soft_wrap=True)


def print_fitting(table: Table, spare: Iterable[Sequence[str]], console: Console | None = None) -> None:
    """Print a table; where that is too narrow, without as many columns as it takes to fit, and say without which."""
    console, shown = console or Console(), table
    left_out: list[str] = []
    there = {_on_one_line(column.header) for column in table.columns}
    for names in spare:
        if fits(shown, console):
            break
        left_out += [name for name in names if name in there]
        shown = _without(table, left_out)
    print_wide(shown, console)
    if left_out:
        text = Text(f"Too narrow for: {', '.join(left_out)}; --json has them.")
        console.print(text, soft_wrap=not console.is_terminal)


def _on_one_line(heading: object) -> str:
    return str(heading).replace("-\n", "").replace("\n", " ")


def _without(table: Table, names: Collection[str]) -> Table:
    kept = [one for one in table.columns if _on_one_line(one.header) not in names]
    left = [str(one.header) for one in kept if one.justify == "left"]
    shown = empty_table(str(table.title), [str(one.header) for one in kept], left)
    for row, cells in zip(table.rows, zip(*(one.cells for one in kept), strict=True), strict=True):
        shown.add_row(*cells, style=row.style, end_section=row.end_section)
    return shown


def show_listing(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console | None = None
) -> None:
    """Print rows of text: as a table if it fits the terminal, else a block of lines for each.

    A file or pipe gets one line for each row, as long as it needs to be, unless the variable COLUMNS gives it a width.
    """
    console = console or Console()
    table = empty_table(title, columns, columns)
    table.pad_edge = False
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if fits(table, console):
        print_wide(table, console)
        return
    console.print(Text(title, style="bold"))
    for name, what, *others in rows:
        console.print(Padding(Text.assemble((name, "bold cyan"), f"  {what}"), (1, 0, 0, 0)))
        for column, text in zip(columns[2:], others, strict=True):
            if text:
                console.print(Padding(Text.assemble((f"{column}: ", "dim"), text), (0, 0, 0, 4)))
    console.print()
