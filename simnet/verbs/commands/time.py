"""``simnet time``: a schedule from a file, or a collective, on a network of any origin."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simnet.base import units
from simnet.base.errors import InputError
from simnet.studies import options
from simnet.studies.target import Target as NamedNetwork
from simnet.verbs.commands import completion
from simnet.verbs.commands.export import Collective
from simnet.verbs.commands.options import Force, Json, Seed, Stack

if TYPE_CHECKING:
    from simnet.schedule import Schedule


class Format(StrEnum):
    """What `simnet time` reads."""

    GOAL = "goal"
    CHAKRA = "chakra"
    MSCCL = "msccl"
    CSV = "csv"


@dataclass(frozen=True)
class Source:
    """Where the schedule comes from, if it is no collective."""

    file: Annotated[
        str | None,
        typer.Argument(
            help="GOAL, text or binary, a folder of Chakra traces, an MSCCL algorithm, or a table of messages."
        ),
    ] = None
    format_: Annotated[
        Format | None, typer.Option("--format", help="What the file is; default: told by its content.")
    ] = None
    loose: Annotated[
        bool, typer.Option("--loose", help="Accept GOAL and Chakra that rounds express only as an upper bound.")
    ] = False
    ranks: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Ranks of a table of messages.")] = None
    limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Largest file to read; default: 1 GiB, of Chakra 256 MiB a rank.")
    ] = None


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


def time_(
    *,
    source: Source,
    collective: Collective,
    target: Target,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="When all ranks enter, as weather changes; default: 0 s.")
    ] = None,
    json_: Json = False,
    messages: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every message with start and finish as CSV.")
    ] = None,
    force: Force = False,
) -> None:
    """Time a schedule from a file, or a collective, on a network: finish, spread of the ranks, bytes, lower bound."""
    _refuse_unused(source, collective)
    where = NamedNetwork(**vars(target))
    where.refuse_unused()
    schedule = _read_schedule(source, collective)
    # What is wrong with a file is told before all that reads networks is loaded.
    from simnet.studies import timing

    begin = options.quantity(start, "--start", units.seconds) or 0.0
    timed = timing.time_schedule(
        schedule, timing.place_of(where, schedule.n_ranks), begin, messages=messages is not None
    )
    if messages is not None and timed.timing.messages is not None:
        from simnet.base.writing import stage_files
        from simnet.interchange import write_messages

        with stage_files([messages], force) as folder:
            write_messages(timed.timing.messages, folder / messages.name)
    if json_:
        typer.echo(json.dumps(timing.figures(timed), indent=2))
        return
    for line in timing.sentences(timed):
        typer.echo(line)


def _refuse_unused(source: Source, collective: Collective) -> None:
    """Refuse options that mean nothing for where the schedule comes from."""
    if (source.file is None) == (collective.collective is None):
        raise InputError("needs either a file with a schedule or --collective", file="simnet time")
    own = {"--workers": collective.workers, "--option": collective.option}
    options.only("--collective", collective.collective is not None, own)
    of_file = {"--format": source.format_, "--loose": source.loose, "--ranks": source.ranks, "--limit": source.limit}
    options.only("a file", source.file is not None, of_file)


def _read_schedule(source: Source, collective: Collective) -> Schedule:
    """Read the schedule, or make that of the collective."""
    from simnet.interchange import read_schedule

    if source.file is None:
        return collective.sent().schedule
    kind = None if source.format_ is None else source.format_.value
    nbytes = options.quantity(collective.size, "--size", units.size)
    limit = options.quantity(source.limit, "--limit", units.size)
    largest = None if limit is None else int(limit)
    return read_schedule(
        source.file,
        kind,  # type: ignore[arg-type]
        nbytes=nbytes,
        strict=not source.loose,
        n_ranks=source.ranks,
        largest=largest,
    )[1]
