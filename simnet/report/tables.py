"""Tables for people: on the console, where a narrow terminal has fewer columns or blocks of lines, and in notebooks."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from html import escape
from itertools import repeat
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

    from simnet.report.drawing import Plot


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


def text_table(
    title: str,
    headings: Iterable[str],
    rows: Iterable[Sequence[str]],
    left: Collection[str] = (),
    styles: Iterable[str] | None = None,
) -> Table:
    """Return a table of texts, with the style of each row."""
    table = empty_table(title, headings, left)
    for cells, style in zip(rows, repeat("") if styles is None else styles, strict=False):
        table.add_row(*map(Text, cells), style=style)
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


def show_listing(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console | None = None
) -> None:
    """Print rows of text: as a table if it fits the terminal, else a block of lines for each.

    A file or pipe gets one line for each row, as long as it needs to be, unless the variable COLUMNS gives it a width.
    """
    console = console or Console()
    table = text_table(title, columns, rows, columns)
    table.pad_edge = False
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


class ReprHtml(ABC):
    """A result that notebooks show as a table with what is to be said about it, and that gives tables and figures."""

    @abstractmethod
    def to_pandas(self) -> pd.DataFrame:
        """Return the numbers as a table; names of columns end in their units."""

    @abstractmethod
    def plot(self) -> Plot:
        """Return the figure, which a notebook shows, and `Plot.save` writes as PNG or SVG."""

    @abstractmethod
    def table(self) -> Table:
        """Return the table for people."""

    @abstractmethod
    def sentences(self) -> list[str]:
        """Return the sentences that accompany the table."""

    def _repr_html_(self) -> str:
        return table_html(self.table(), self.sentences())


def table_html(table: Table, sentences: Iterable[str]) -> str:
    """Return a table of the console, and sentences, as HTML; what they say is text, no markup.

    Examples
    --------
    >>> table = Table("name", title="a <b>")
    >>> table.add_row("[red]")
    >>> table_html(table, ["1 < 2"])
    '<table><caption>a &lt;b&gt;</caption><tr><th>name</th></tr><tr><td>[red]</td></tr></table><p>1 &lt; 2</p>'
    """
    sides = ["" if column.justify == "left" else ' style="text-align: right"' for column in table.columns]
    heads = "".join(f"<th{side}>{_text(one.header)}</th>" for side, one in zip(sides, table.columns, strict=True))
    columns = [list(column.cells) for column in table.columns]
    rows = "".join(
        f"<tr>{''.join(_html_cell(str(row.style), side, one) for side, one in zip(sides, cells, strict=True))}</tr>"
        for row, cells in zip(table.rows, zip(*columns, strict=True), strict=True)
    )
    said = "".join(f"<p>{escape(one)}</p>" for one in sentences if one)
    caption = "" if table.title is None else f"<caption>{_text(table.title)}</caption>"
    return f"<table>{caption}<tr>{heads}</tr>{rows}</table>{said}"


def _html_cell(style: str, side: str, cell: object) -> str:
    text = _text(cell)
    return f"<td{side}>{f'<b>{text}</b>' if 'bold' in style else text}</td>"


def _text(cell: object) -> str:
    return escape(cell.plain if isinstance(cell, Text) else str(cell))
