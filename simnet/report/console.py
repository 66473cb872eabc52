"""The end of a run on the console: one table and one sentence."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from simnet.report.summary import PHASES, Summary, headings, rows, sentence

_LEFT = ("policy", "most used choice")


def show(summary: Summary, console: Console) -> None:
    """Print the table and the sentence.

    A terminal too narrow for all columns gets the table without the breakdown, which the report has as well; a file or
    pipe gets long lines.
    """
    options = console.options.update(width=1_000)
    table = summary_table(summary)
    width = console.measure(table, options=options).maximum
    if width > console.width and console.is_terminal:
        table = summary_table(summary, leave_out=PHASES)
    console.print(table, width=None if console.is_terminal else width, crop=False, soft_wrap=not console.is_terminal)
    console.print(Text(sentence(summary), style="bold"), soft_wrap=True)


def summary_table(summary: Summary, leave_out: tuple[str, ...] = ()) -> Table:
    """Return one row per policy, the fastest first, without the columns named in `leave_out`."""
    winner, names = summary["winner"], headings()
    best = () if winner is None else (winner["policy"], *winner["tied_with"])
    table = Table(title=Text(summary["scenario"]["name"]), title_justify="left")
    for name in names:
        if name not in leave_out:
            table.add_column(name, justify="left" if name in _LEFT else "right")
    for cells in rows(summary):
        style = "bold" if cells[0] in best else "dim" if cells[0] == summary["bound"] else ""
        # Text, not str: a name such as "[red]" is a name, no markup.
        table.add_row(
            *(Text(cell) for cell, name in zip(cells, names, strict=True) if name not in leave_out), style=style
        )
    return table
