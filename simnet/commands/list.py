"""``simnet list``: what comes with simnet."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


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


def list_(kind: Annotated[Kind | None, typer.Argument(help="What to list; default: everything.")] = None) -> None:
    """List what comes with simnet: sparsifiers, topologies, scenarios, models, ..."""
    from simnet.report.console import show_listing
    from simnet.studies import listing

    for one in Kind if kind is None else (kind,):
        show_listing(one.value, *listing.LISTS[one.value]())
