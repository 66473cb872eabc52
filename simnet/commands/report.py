"""``simnet report``: the page of a run drawn again, or several runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `simnet run` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for page and figures; default: that of the run, runs/report for several."),
    ] = None,
) -> None:
    """Draw the report of a run again, or compare the policies of several runs on one page."""
    from simnet.report.sentences import sentence
    from simnet.studies import reports

    if len(run) == 1:
        typer.echo(f"Results: {reports.redraw(run[0], out)}")
        return
    summary, page = reports.compare(run, Path("runs") / "report" if out is None else out)
    typer.echo(sentence(summary))
    typer.echo(f"Results: {page}")
