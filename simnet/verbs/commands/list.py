"""``simnet list``: what comes with simnet."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from simnet.studies import options
from simnet.verbs.commands import completion
from simnet.verbs.commands.options import Json


class Kind(StrEnum):
    """What `simnet list` can list."""

    SPARSIFIERS = "sparsifiers"
    COLLECTIVES = "collectives"
    TOPOLOGIES = "topologies"
    SCENARIOS = "scenarios"
    MODELS = "models"
    DEVICES = "devices"
    STRATEGIES = "strategies"
    POLICIES = "policies"
    WEATHER = "weather"
    TRACES = "traces"
    MEASURED = "measured"
    PLATFORMS = "platforms"
    READERS = "readers"
    STACKS = "stacks"


def list_(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; default: everything.")] = None,
    show: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="scenarios: print the one of this name, as a start for your own.",
            autocompletion=completion.one_of(completion.scenarios),
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """List what comes with simnet: sparsifiers, topologies, scenarios, models, ..."""
    from simnet.report.tables import show_listing
    from simnet.studies import listing

    options.only("scenarios", kind is Kind.SCENARIOS, {"--show": show})
    options.only("a list, not for --show", show is None, {"--json": json_})
    if show is not None:
        typer.echo(listing.scenario_text(show), nl=False)
        return
    lists = ((one.value, *listing.listing(one.value)) for one in (Kind if kind is None else (kind,)))
    if json_:
        found = {name: [dict(zip(columns, row, strict=True)) for row in rows] for name, columns, rows in lists}
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    for name, columns, rows in lists:
        show_listing(name, columns, rows)
