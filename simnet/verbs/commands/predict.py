"""``simnet predict job``: the iterations of a job part by part, with intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from simnet.studies import options
from simnet.verbs.commands import completion, terminal
from simnet.verbs.commands.options import Changes, Force, Json


def predict_job(
    scenario: Annotated[
        str,
        typer.Option(
            "--scenario",
            metavar="SCENARIO",
            help="A scenario, by its name or file.",
            autocompletion=completion.scenario,
        ),
    ],
    set_: Changes = None,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Only these of its policies, separated by commas.",
            autocompletion=completion.policies,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write the parts of each iteration as a table.")
    ] = None,
    json_: Json = False,
    force: Force = False,
) -> None:
    """Predict the iterations of a job part by part, with intervals, from its links, stack, device and computing."""
    from simnet.base.spreadsheets import guard_table
    from simnet.base.writing import refuse_existing, write_new
    from simnet.report.tables import show_listing
    from simnet.scenario import load
    from simnet.studies.iteration import predict_job as predicted

    if out is not None:
        refuse_existing([out], force)
    with terminal.progress("iterations"):
        found = predicted(load(scenario, set_ or ()), options.words(policies))
    if out is not None:
        write_new({out: guard_table(found.iterations).to_csv(index=False)}, force)
    if json_:
        typer.echo(json.dumps(found.figures(), indent=2, allow_nan=False))
        return
    typer.echo(found.headline())
    show_listing(f"an iteration of {found.scenario}", found.headings(), found.rows())
    for line in found.sentences():
        typer.echo(line)
