"""``simnet predict``: the time of a collective on a cluster, or of the iterations of a job, with its interval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from simnet.base import units
from simnet.studies import options
from simnet.verbs.commands import completion, terminal
from simnet.verbs.commands.options import Changes, Force, Json


def predict(
    fabric: Annotated[
        str,
        typer.Argument(
            metavar="FABRIC",
            help="A file that `simnet calibrate` wrote, or a platform: its name or file.",
            autocompletion=completion.one_of(completion.platforms, "job"),
        ),
    ],
    collective: Annotated[str, typer.Argument(help="As nccl-tests names it, such as all_reduce.")],
    ranks: Annotated[int, typer.Option(min=1, help="Number of ranks.")],
    size: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of the whole vector, as 25MB.")],
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes that they are on; default: as measured, or full.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(metavar="NAME", help="A pinned algorithm.")] = None,
    protocol: Annotated[str | None, typer.Option(metavar="NAME", help="A pinned protocol.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse to extrapolate.")] = False,
    json_: Json = False,
) -> None:
    """Predict the time of a collective from a fabric file or a specification alone, with its interval."""
    from simnet.cost_models.calibration import cost_model_of

    loaded = cost_model_of(fabric)
    loaded.refuse_unknown(algorithm, protocol)
    nbytes = options.quantity(size, "--size", units.size)
    assert nbytes is not None
    found = loaded.predict(
        collective, ranks, nbytes, nodes=nodes, algorithm=algorithm, protocol=protocol, strict=strict
    ).corrected()
    if json_:
        typer.echo(json.dumps(found._asdict() | units.interval_figures(found.low, found.high), indent=2))
        return
    interval = f"{100 * loaded.coverage:.0f} % interval {units.format_interval(found.low, found.high)}"
    typer.echo(f"{units.format_seconds(found.seconds)}, {interval}")
    typer.echo(f"{'extrapolation; ' if found.extrapolates else ''}{found.why}")
    typer.echo("device: none; a collective alone, without selecting")


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
