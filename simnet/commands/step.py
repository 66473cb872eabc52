"""``simnet step``: what a training step of a replicated or sharded model calls, and how long it takes on a network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import typer

from simnet.commands import completion, terminal
from simnet.commands.options import Json
from simnet.commands.time import Target
from simnet.studies.target import Target as NamedNetwork


@dataclass(frozen=True)
class Shared:
    """What is trained, and how it is shared between workers."""

    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A model of `simnet list models`.",
            autocompletion=completion.one_of(completion.models),
        ),
    ]
    sharding: Annotated[str, typer.Option(metavar="NAME", help="ddp, fsdp2, zero1, zero2 or zero3.")]
    workers: Annotated[int, typer.Option(min=1, max=100_000, metavar="P", help="Workers.")]
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of simnet.parallel, as replicas=2 or reshard_after_forward=false; repeatable.",
        ),
    ] = None
    compute: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Of a microbatch, forward and backward; default: the model's."),
    ] = None
    backward: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Share of the backward pass in it; default: the model's.")
    ] = None
    algorithm: Annotated[
        list[str] | None,
        typer.Option(metavar="OPERATION=NAME", help="As all_reduce=tree; default: rings; repeatable."),
    ] = None


def step(
    *,
    shared: Shared,
    target: Target,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000,
            metavar="N",
            help="Time N steps one after another, while links change, and tell how they spread.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Tell what a training step of a replicated or sharded model calls, how long it takes, and what memory."""
    where = NamedNetwork(**vars(target))
    where.refuse_unused("simnet step")
    from simnet.studies.step import timed
    from simnet.studies.timing import place_of

    with terminal.progress("steps"):
        found = timed(
            shared.model,
            shared.sharding,
            shared.workers,
            lambda: place_of(where, shared.workers),
            given=shared.option or (),
            compute=shared.compute,
            backward=shared.backward,
            algorithms=shared.algorithm or (),
            steps=steps or 1,
        )
    if json_:
        typer.echo(json.dumps(found.figures(), indent=2, allow_nan=False))
        return
    from simnet.report.tables import show_listing

    if steps is None:
        show_listing("collectives of a training step", found.headings(), found.rows())
    else:
        show_listing(f"{steps:,} training steps", *found.spread())
    for line in found.sentences():
        typer.echo(line)
