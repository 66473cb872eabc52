"""``simnet utilisation``: how much bandwidth a utilisation needs, and how rarely workers must exchange for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import typer

from simnet.verbs.commands import completion
from simnet.verbs.commands.options import Batch, Device, Json, Size


@dataclass(frozen=True)
class Trained:
    """What is trained, and how."""

    compute: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Of an inner step, forward and backward; default: the model's on the device."
        ),
    ] = None
    device: Device = None
    batch: Batch = None
    workers: Annotated[int, typer.Option(min=2, metavar="P", help="Workers, or sites.")] = 2
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A model of `simnet list models`, or its config.json.",
            autocompletion=completion.one_of(completion.models),
        ),
    ] = None
    parameters: Size = None
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="dataparallel, localsgd, diloco, streaming, delayed or eager.")
    ] = "diloco"
    period: Annotated[
        int | None,
        typer.Option(min=1, max=10**12, metavar="H", help="Inner steps between exchanges; default: the strategy's."),
    ] = None
    fragments: Annotated[
        int | None, typer.Option(min=1, max=10**12, metavar="F", help="Fragments of streaming DiLoCo.")
    ] = None
    delay: Annotated[
        int | None,
        typer.Option(min=0, max=10**12, metavar="STEPS", help="Inner steps that a fragment may take to arrive."),
    ] = None
    bits: Annotated[float, typer.Option(min=0.01, max=1024, help="Of a value on the link: 16 of bf16, 4 of FP4.")] = 32
    backward: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Share of the backward pass in a step; default: 2/3 of it.")
    ] = None
    buckets: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10**6,
            metavar="N",
            help="Equal pieces in which an exchange leaves, evenly over the backward pass; default: DDP's buckets for "
            "dataparallel, else one.",
        ),
    ] = None


def utilisation(
    *,
    trained: Trained,
    latency: Annotated[str | None, typer.Option(metavar="TIME", help="From worker to worker; default: 0 s.")] = None,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Of a worker's link: also its utilisation, and the H it needs.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="90%,99%", help="Utilisations; default: 50, 80, 90, 95 and 99 %.")
    ] = None,
    off: Annotated[
        str | None,
        typer.Option(metavar="10%", help="By how much --compute and --bandwidth may be off; makes intervals."),
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Round bandwidths up to the 50 of the published tables, 0.1 to 1000 Gbit/s.")
    ] = False,
    json_: Json = False,
) -> None:
    """Say which bandwidth, or how rare an exchange, a utilisation of the workers needs."""
    from simnet.studies.utilisation import answer

    found = answer(**vars(trained), latency=latency, bandwidth=bandwidth, target=target, off=off, grid=grid)
    if json_:
        typer.echo(json.dumps(found.figures(), indent=2, allow_nan=False))
        return
    from simnet.report.tables import show_listing

    first, *others = found.sentences()
    typer.echo(first)
    show_listing("bandwidth for a utilisation", found.headings(), found.rows())
    for line in others:
        typer.echo(line)
