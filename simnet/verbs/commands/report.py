"""``simnet report``: the page of a run drawn again, or several runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simnet.verbs.commands import terminal
from simnet.verbs.commands.options import Force


def report(
    run: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `simnet run` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for page and figures; default: that of the run, runs/report for several."),
    ] = None,
    force: Force = False,
) -> None:
    """Draw the report of a run again, or compare the policies of several runs on one page."""
    from simnet.base.writing import refuse_existing
    from simnet.report.sentences import sentence
    from simnet.studies import reports

    place = out if out is not None else run[0] if len(run) == 1 else Path("runs") / "report"
    if place != run[0]:
        refuse_existing([place / "report.html"], force)
    if len(run) == 1:
        terminal.say(f"Results: {reports.redraw(run[0], out)}")
        return
    summary, page = reports.compare(run, place)
    terminal.say(sentence(summary))
    terminal.say(f"Results: {page}")
