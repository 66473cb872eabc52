"""``simnet export`` and ``simnet time``: schedules and networks, to and from files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from simnet.base.errors import InputError
from simnet.commands import common
from simnet.commands.common import Fields, Force, Seed

if TYPE_CHECKING:
    from simnet.studies.exporting import Sent

Collective: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A collective by name, such as allreduce_ring; with --workers, --size."),
]
Workers: TypeAlias = Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks of the collective.")]
Options: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=NUMBER", help="A parameter of the collective, as group_size=4; repeatable."),
]


class Export(StrEnum):
    """What `simnet export` writes."""

    GOAL = "goal"
    CHAKRA = "chakra"
    CSV = "csv"
    SIMGRID = "simgrid"
    NODELINK = "nodelink"


class Format(StrEnum):
    """What `simnet time` reads."""

    GOAL = "goal"
    CHAKRA = "chakra"
    MSCCL = "msccl"
    CSV = "csv"


class Routing(StrEnum):
    """How SimGrid finds routes."""

    FULL = "Full"
    DIJKSTRA = "Dijkstra"


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.command(epilog="Example: simnet export --collective allreduce_ring --workers 8 --size '64 MiB' --to goal")(
        export
    )
    app.command(
        "time", epilog="Example: simnet time ring.goal --topology star --latency '10 us' --bandwidth '10 Gbit/s'"
    )(time_)


@common.explained
def export(
    to: Annotated[Export, typer.Option(help="Schedules: goal, chakra, csv. Networks: simgrid, nodelink.")],
    scenario: Annotated[
        str | None, typer.Argument(help="The scenario whose exchange or network to write; none with --collective.")
    ] = None,
    collective: Collective = None,
    workers: Workers = None,
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of the collective's vector, such as '64 MiB'.")
    ] = None,
    option: Options = None,
    exchange: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which exchange of the scenario; may be left out if it has one.")
    ] = None,
    iteration: Annotated[int, typer.Option(min=0, help="Which iteration of the scenario.")] = 0,
    compute: Annotated[
        bool, typer.Option("--compute", help="Put each worker's time to compute and to select in front.")
    ] = False,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="How much of the weather to write, such as '10 min'.")
    ] = None,
    routing: Annotated[
        Routing, typer.Option(help="simgrid: the route of every pair of hosts, or shortest paths of its own.")
    ] = Routing.FULL,
    out: Annotated[
        Path | None, typer.Option(help="The file, for Chakra the folder; default: named after what it holds.")
    ] = None,
    force: Force = False,
    set_: Fields = None,
    seed: Seed = None,
) -> None:
    """Write a schedule, or the network of a scenario, for LogGOPSim, ASTRA-sim, SimGrid, networkx, spreadsheets."""
    from simnet.scenario import load
    from simnet.studies import exporting

    if (scenario is None) == (collective is None):
        raise InputError("needs either a scenario or --collective", file="simnet export")
    of_network = to in (Export.SIMGRID, Export.NODELINK)
    common.only("--collective", collective is not None, {"--workers": workers, "--size": size, "--option": option})
    common.only(
        "a scenario",
        scenario is not None,
        {"--exchange": exchange, "--iteration": iteration, "--compute": compute, "--set": set_, "--seed": seed},
    )
    common.only("--to simgrid", to is Export.SIMGRID, {"--duration": duration})
    common.only("schedules", not of_network, {"--exchange": exchange, "--compute": compute, "--collective": collective})
    if of_network:
        assert scenario is not None
        done = exporting.write_network(
            load(scenario, set_ or (), seed),
            "simgrid" if to is Export.SIMGRID else "nodelink",
            out,
            iteration=iteration,
            duration=common.seconds(duration, "--duration"),
            routing=routing.value,
            force=force,
        )
    else:
        if scenario is None:
            sent = _collective(collective, workers, size, option)
        else:
            sent = exporting.exchange(load(scenario, set_ or (), seed), exchange, iteration, compute=compute)
        done = exporting.write_schedule(sent, to.value, out, force=force)  # type: ignore[arg-type]
    typer.echo(f"Wrote {', '.join(map(str, done.paths))}: {done.what}")
    for one in done.missing:
        typer.echo(f"Not in it: {one}")


@common.explained
def time_(
    file: Annotated[
        str | None,
        typer.Argument(help="GOAL text, a folder of Chakra traces, an MSCCL algorithm, or a table of messages."),
    ] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="What the file is; default: told by its content.")
    ] = None,
    collective: Collective = None,
    workers: Workers = None,
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of the vector, for --collective and for MSCCL.")
    ] = None,
    option: Options = None,
    loose: Annotated[
        bool, typer.Option("--loose", help="Accept GOAL and Chakra that rounds express only as an upper bound.")
    ] = False,
    ranks: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Ranks of a table of messages.")] = None,
    scenario: Annotated[
        str | None, typer.Option(metavar="NAME", help="The network of a scenario, with weather and placement.")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(metavar="NAME", help="A network of a family: star, ring, fat_tree, ...")
    ] = None,
    platform: Annotated[
        str | None, typer.Option(metavar="FILE", help="A SimGrid platform, NCCL topology, node-link JSON, or fabric.")
    ] = None,
    hosts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Hosts of --topology; default: one per rank.")
    ] = None,
    latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="Latency of --topology, or inside the nodes of NCCL.")
    ] = None,
    bandwidth: Annotated[str | None, typer.Option(metavar="RATE", help="Bandwidth of --topology.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the scenario, topology or platform; repeatable."),
    ] = None,
    seed: Seed = None,
    iteration: Annotated[int, typer.Option(min=0, help="Iteration of the scenario, for its jitter and stages.")] = 0,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="When all ranks enter, as weather changes; default: 0 s.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    messages: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every message with start and finish as CSV.")
    ] = None,
    force: Force = False,
) -> None:
    """Time a schedule from a file, or a collective, on a network: finish, spread of the ranks, bytes, lower bound."""
    from simnet.interchange import read_schedule, write_messages
    from simnet.scenario import load
    from simnet.studies import timing

    if (file is None) == (collective is None):
        raise InputError("needs either a file with a schedule or --collective", file="simnet time")
    common.only("--collective", collective is not None, {"--workers": workers, "--option": option})
    common.only("a file", file is not None, {"--format": format_, "--loose": loose, "--ranks": ranks})
    if sum(one is not None for one in (scenario, topology, platform)) != 1:
        raise InputError("needs a network: one of --scenario, --topology, --platform", file="simnet time")
    common.only("--scenario", scenario is not None, {"--iteration": iteration})
    common.only("--topology", topology is not None, {"--hosts": hosts, "--bandwidth": bandwidth})
    common.only("--topology and --platform", scenario is None, {"--latency": latency})
    if file is None:
        schedule = _collective(collective, workers, size, option).schedule
    else:
        kind = None if format_ is None else format_.value
        nbytes = common.size(size, "--size")
        schedule = read_schedule(file, kind, nbytes=nbytes, strict=not loose, n_ranks=ranks)[1]  # type: ignore[arg-type]
    given = {"hosts": hosts, "latency": latency, "bandwidth": bandwidth}
    fields = {name: value for name, value in given.items() if value is not None}
    if scenario is not None:
        place = timing.in_scenario(load(scenario, set_ or (), seed), iteration)
    elif topology is not None:
        place = timing.on_topology(topology, fields, set_ or (), schedule.n_ranks, seed or 0)
    else:
        assert platform is not None
        place = timing.on_platform(platform, fields, set_ or (), seed or 0)
    timed = timing.time_schedule(
        schedule, place, common.seconds(start, "--start") or 0.0, messages=messages is not None
    )
    if messages is not None and timed.messages is not None:
        from simnet.studies.exporting import staged

        with staged([messages], force) as folder:
            write_messages(timed.messages, folder / messages.name)
    if json_:
        typer.echo(json.dumps(timing.figures(schedule, place, timed), indent=2))
        return
    for line in timing.sentences(schedule, place, timed):
        typer.echo(line)


def _collective(name: str | None, workers: int | None, size: str | None, options: Sequence[str] | None) -> Sent:
    """Return the schedule of a collective given by options."""
    from simnet.studies import exporting

    assert name is not None
    nbytes = common.size(size, "--size")
    if workers is None or nbytes is None:
        missing = "--workers" if workers is None else "--size"
        raise InputError(f"is missing; --collective {name} needs --workers and --size", file=missing)
    return exporting.collective(name, workers, nbytes, exporting.options_of(options or ()))
