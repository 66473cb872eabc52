"""``simnet list``: what comes with simnet."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from simnet.studies import options


class Kind(StrEnum):
    """What `simnet list` can list."""

    SPARSIFIERS = "sparsifiers"
    COLLECTIVES = "collectives"
    TOPOLOGIES = "topologies"
    SCENARIOS = "scenarios"
    MODELS = "models"
    DEVICES = "devices"
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
        str | None, typer.Option(metavar="NAME", help="scenarios: print the one of this name, as a start for your own.")
    ] = None,
) -> None:
    """List what comes with simnet: sparsifiers, topologies, scenarios, models, ..."""
    from simnet.report.tables import show_listing
    from simnet.studies import listing

    options.only("scenarios", kind is Kind.SCENARIOS, {"--show": show})
    if show is not None:
        typer.echo(listing.scenario_text(show), nl=False)
        return
    for one in Kind if kind is None else (kind,):
        show_listing(one.value, *listing.listing(one.value))
