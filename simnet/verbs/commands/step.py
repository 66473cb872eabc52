"""``simnet step``: what a training step of a replicated or sharded model calls, and how long it takes on a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from simnet.base.errors import InputError
from simnet.studies import options
from simnet.studies.target import Target as NamedNetwork
from simnet.verbs.commands import completion, terminal
from simnet.verbs.commands.options import Device, Json
from simnet.verbs.commands.time import Target

if TYPE_CHECKING:
    from simnet.studies.step import Step, TracedSteps
    from simnet.studies.timing import Place


@dataclass(frozen=True)
class Around:
    """Parallelism around that, and what a microbatch is."""

    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, metavar="T", help="Workers that share each matrix; default: 1.")
    ] = None
    pipeline: Annotated[int | None, typer.Option(min=1, metavar="S", help="Stages of a pipeline; default: 1.")] = None
    experts: Annotated[int | None, typer.Option(min=1, metavar="E", help="Experts of a block; default: none.")] = None
    expert_parallel: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Workers that share the experts of a block; default: 1.")
    ] = None
    microbatches: Annotated[
        int | None, typer.Option(min=1, metavar="M", help="Microbatches of a step; default: 1.")
    ] = None
    tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of a microbatch; needed by any of these.")
    ] = None

    def options(self, given: Sequence[str]) -> list[str]:
        """Return options of a step with these among them; InputError if one is given twice."""
        own = {name: value for name, value in vars(self).items() if value is not None}
        for name in own.keys() & options.fields(given, "--option").keys():
            raise InputError(f"is given by --option, too: {name}", file=f"--{name.replace('_', '-')}")
        return [*given, *(f"{name}={value}" for name, value in own.items())]


@dataclass(frozen=True)
class Shared:
    """What is trained, and how it is shared between workers."""

    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A model of `simnet list models`, or its config.json.",
            autocompletion=completion.one_of(completion.models),
        ),
    ] = None
    sharding: Annotated[str | None, typer.Option(metavar="NAME", help="ddp, fsdp2, hsdp, zero1, zero2 or zero3.")] = (
        None
    )
    workers: Annotated[int | None, typer.Option(min=1, max=100_000, metavar="P", help="Workers.")] = None
    trace: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Chakra traces with collectives of all ranks, in place of these three."),
    ] = None
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of simnet.training.parallel, as replicas=2 or reshard_after_forward=false; repeatable.",
        ),
    ] = None
    device: Device = None
    compute: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Of a microbatch, forward and backward; default: the model's on the device."),
    ] = None
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples of a microbatch; default: as --tokens says.")
    ] = None
    backward: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Share of the backward pass in it; default: the model's.")
    ] = None
    slowdown: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=100,
            metavar="FACTOR",
            help="Times as long computing takes while collectives are under way beside it; default: 1. Beside NCCL "
            "1.76 to 2.5 were measured by kernel; 1.2 is an assumption, as NCCL has 15 % of the multiprocessors.",
        ),
    ] = None
    algorithm: Annotated[
        list[str] | None,
        typer.Option(metavar="OPERATION=NAME", help="As all_reduce=tree; default: rings; repeatable."),
    ] = None


def step(
    *,
    shared: Shared,
    around: Around,
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
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What a worker's device holds, as '80 GB'; tells whether the step fits."),
    ] = None,
    json_: Json = False,
) -> None:
    """Time a training step of a replicated or sharded model: its collectives, exposed time and memory."""
    where = NamedNetwork(**vars(target))
    where.refuse_unused("simnet step")
    own = {"--model": shared.model, "--sharding": shared.sharding, "--workers": shared.workers}
    if shared.trace is not None:
        others = {
            "--option": shared.option,
            "--compute": shared.compute,
            "--device": shared.device,
            "--batch": shared.batch,
            "--backward": shared.backward,
            "--slowdown": shared.slowdown,
        }
        others |= {f"--{name.replace('_', '-')}": value for name, value in vars(around).items()}
        options.only("a model, not for --trace", False, {**own, **others, "--memory": memory})
    elif lacks := [name for name, value in own.items() if value is None]:
        raise InputError(f"needs {' and '.join(lacks)}, or --trace in place of a model", file="simnet step")
    from simnet.studies.timing import place_of

    with terminal.progress("steps"):
        found = _time_steps(shared, around, lambda ranks: place_of(where, ranks), steps or 1, memory)
    if json_:
        typer.echo(json.dumps(found.figures(), indent=2, allow_nan=False))
        return
    from simnet.report.tables import show_listing

    answer, *lines = found.sentences()
    typer.echo(answer)
    if steps is None:
        show_listing("collectives of a training step", found.headings(), found.rows())
    else:
        show_listing(f"{steps:,} training steps", *found.spread())
    for line in lines:
        typer.echo(line)


def _time_steps(
    shared: Shared, around: Around, place: Callable[[int], Place], steps: int, memory: str | None
) -> Step | TracedSteps:
    """Return the steps of a model, or of traces."""
    algorithms = shared.algorithm or ()
    if shared.trace is not None:
        from simnet.studies.step import timed_trace

        return timed_trace(shared.trace, place, algorithms=algorithms, steps=steps)
    from simnet.studies.step import timed

    workers = shared.workers
    assert shared.model is not None
    assert shared.sharding is not None
    assert workers is not None
    return timed(
        shared.model,
        shared.sharding,
        workers,
        lambda: place(workers),
        given=around.options(shared.option or ()),
        compute=shared.compute,
        device=shared.device,
        batch=shared.batch,
        backward=shared.backward,
        slowdown=1.0 if shared.slowdown is None else shared.slowdown,
        algorithms=algorithms,
        steps=steps,
        memory=memory,
    )
