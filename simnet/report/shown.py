"""What notebooks show: the tables and sentences of the console, as HTML."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from html import escape

import pandas as pd
from rich.table import Table
from rich.text import Text

from simnet.report.drawing import Plot

_NUMBER = ' style="text-align: right"'


class Shown(ABC):
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
        return html(self.table(), self.sentences())


def html(table: Table, sentences: Iterable[str]) -> str:
    """Return a table of the console, and sentences, as HTML; what they say is text, no markup.

    Examples
    --------
    >>> table = Table("name", title="a <b>")
    >>> table.add_row("[red]")
    >>> html(table, ["1 < 2"])
    '<table><caption>a &lt;b&gt;</caption><tr><th>name</th></tr><tr><td>[red]</td></tr></table><p>1 &lt; 2</p>'
    """
    sides = ["" if column.justify == "left" else _NUMBER for column in table.columns]
    heads = "".join(f"<th{side}>{_text(one.header)}</th>" for side, one in zip(sides, table.columns, strict=True))
    columns = [list(column.cells) for column in table.columns]
    rows = "".join(
        f"<tr>{''.join(_cell(str(row.style), side, one) for side, one in zip(sides, cells, strict=True))}</tr>"
        for row, cells in zip(table.rows, zip(*columns, strict=True), strict=True)
    )
    said = "".join(f"<p>{escape(one)}</p>" for one in sentences if one)
    caption = "" if table.title is None else f"<caption>{_text(table.title)}</caption>"
    return f"<table>{caption}<tr>{heads}</tr>{rows}</table>{said}"


def _cell(style: str, side: str, cell: object) -> str:
    text = _text(cell)
    return f"<td{side}>{f'<b>{text}</b>' if 'bold' in style else text}</td>"


def _text(cell: object) -> str:
    return escape(cell.plain if isinstance(cell, Text) else str(cell))
