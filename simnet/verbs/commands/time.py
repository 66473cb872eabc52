"""Options of a network, as `simnet step` has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from simnet.verbs.commands import completion
from simnet.verbs.commands.options import Seed, Stack


@dataclass(frozen=True)
class Target:
    """The network that times it."""

    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The network of a scenario, with weather and placement.",
            autocompletion=completion.scenario,
        ),
    ] = None
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A network of a family: star, ring, fat_tree, ...",
            autocompletion=completion.one_of(completion.topologies),
        ),
    ] = None
    platform: Annotated[
        str | None, typer.Option(metavar="FILE", help="A SimGrid platform, NCCL topology, node-link JSON, or fabric.")
    ] = None
    hosts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Hosts of --topology; default: one per rank.")
    ] = None
    latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="Latency of --topology, or inside the nodes of NCCL.")
    ] = None
    bandwidth: Annotated[str | None, typer.Option(metavar="RATE", help="Bandwidth of --topology.")] = None
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the scenario, topology or platform; repeatable."),
    ] = None
    stack: Stack = None
    seed: Seed = None
    iteration: Annotated[int, typer.Option(min=0, help="Iteration of the scenario, for its jitter and stages.")] = 0
