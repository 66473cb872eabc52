"""``simnet export``: schedules and networks as files for other simulators."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simnet.base import units
from simnet.base.errors import InputError
from simnet.studies import options
from simnet.verbs.commands import completion, terminal
from simnet.verbs.commands.options import Fields, Force, Seed

if TYPE_CHECKING:
    from simnet.studies.exporting import Exported, Sent


class Export(StrEnum):
    """What `simnet export` writes."""

    GOAL = "goal"
    CHAKRA = "chakra"
    CSV = "csv"
    SIMGRID = "simgrid"
    NODELINK = "nodelink"


class Routing(StrEnum):
    """How SimGrid finds routes."""

    FULL = "Full"
    DIJKSTRA = "Dijkstra"


@dataclass(frozen=True)
class Collective:
    """A collective in place of a schedule from elsewhere."""

    collective: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A collective by name, such as allreduce_ring; with --workers, --size.",
            autocompletion=completion.one_of(completion.collectives),
        ),
    ] = None
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks of the collective.")] = None
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of the whole vector, as '64 MiB'; of MSCCL, too.")
    ] = None
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="A parameter of the collective, as group_size=4; repeatable."),
    ] = None

    def sent(self) -> Sent:
        """Return its schedule."""
        from simnet.studies import exporting

        assert self.collective is not None
        return exporting.collective_asked(self.collective, self.workers, self.size, self.option or ())


@dataclass(frozen=True)
class Part:
    """What of a scenario is written."""

    exchange: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which exchange of the scenario; may be left out if it has one.")
    ] = None
    iteration: Annotated[int, typer.Option(min=0, help="Which iteration of the scenario.")] = 0
    compute: Annotated[
        bool, typer.Option("--compute", help="Put each worker's time to compute, to select and to merge on the rounds.")
    ] = False
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="How much of the weather to write, such as '10 min'.")
    ] = None
    routing: Annotated[
        Routing, typer.Option(help="simgrid: the route of every pair of hosts, or shortest paths of its own.")
    ] = Routing.FULL
    set_: Fields = None
    seed: Seed = None


def export(
    to: Annotated[Export, typer.Option(help="Schedules: goal, chakra, csv. Networks: simgrid, nodelink.")],
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="The scenario whose exchange or network to write; none with --collective.",
            autocompletion=completion.scenario,
        ),
    ] = None,
    *,
    collective: Collective,
    part: Part,
    out: Annotated[
        Path | None, typer.Option(help="The file, for Chakra the folder; default: named after what it holds.")
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Largest file; default: 1 GiB, of Chakra 256 MiB a rank, of SimGrid 64 MiB of routes."
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Write a schedule, or the network of a scenario, for LogGOPSim, ASTRA-sim, SimGrid, networkx, spreadsheets."""
    _refuse_unused(to, scenario, collective, part)
    options.only("schedules and --to simgrid", to is not Export.NODELINK, {"--limit": limit})
    size = options.quantity(limit, "--limit", units.size)
    largest = None if size is None else int(size)
    if to in (Export.SIMGRID, Export.NODELINK):
        assert scenario is not None
        done = _write_network(to, scenario, part, out, largest, force)
    else:
        done = _write_schedule(to, scenario, collective, part, out, largest, force)
    terminal.say(f"Wrote {', '.join(map(str, done.paths))}: {done.what}")
    for one in done.missing:
        terminal.say(f"Not in it: {one}")


def _refuse_unused(to: Export, scenario: str | None, collective: Collective, part: Part) -> None:
    """Refuse options that mean nothing for what is written."""
    name = collective.collective
    if (scenario is None) == (name is None):
        raise InputError("needs either a scenario or --collective", file="simnet export")
    own = {"--workers": collective.workers, "--size": collective.size, "--option": collective.option}
    options.only("--collective", name is not None, own)
    exchange = {"--exchange": part.exchange, "--compute": part.compute}
    chosen = {**exchange, "--iteration": part.iteration, "--set": part.set_, "--seed": part.seed}
    options.only("a scenario", scenario is not None, chosen)
    options.only("--to simgrid", to is Export.SIMGRID, {"--duration": part.duration})
    schedules = to not in (Export.SIMGRID, Export.NODELINK)
    options.only("schedules", schedules, {**exchange, "--collective": name})


def _write_network(
    to: Export, scenario: str, part: Part, out: Path | None, largest: int | None, force: bool
) -> Exported:
    """Write the network of a scenario."""
    from simnet.scenario import load
    from simnet.studies import exporting

    return exporting.write_network(
        load(scenario, part.set_ or (), part.seed),
        "simgrid" if to is Export.SIMGRID else "nodelink",
        out,
        iteration=part.iteration,
        duration=options.quantity(part.duration, "--duration", units.seconds),
        routing=part.routing.value,
        largest=largest,
        force=force,
    )


def _write_schedule(
    to: Export,
    scenario: str | None,
    collective: Collective,
    part: Part,
    out: Path | None,
    largest: int | None,
    force: bool,
) -> Exported:
    """Write the schedule of a collective, or of an exchange of a scenario."""
    from simnet.scenario import load
    from simnet.studies import exporting

    if scenario is None:
        sent = collective.sent()
    else:
        loaded = load(scenario, part.set_ or (), part.seed)
        sent = exporting.exchange(loaded, part.exchange, part.iteration, compute=part.compute)
    return exporting.write_schedule(sent, to.value, out, largest=largest, force=force)  # type: ignore[arg-type]
