"""``simnet measure``: times of collectives on the cluster that it runs on, for ``simnet calibrate``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simnet.base import units
from simnet.base.errors import InputError
from simnet.studies import options
from simnet.verbs.commands import terminal
from simnet.verbs.commands.options import Force

if TYPE_CHECKING:
    from simnet.cluster.measure.plan import Wanted


class Backend(StrEnum):
    """What carries the messages."""

    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"


class PairsOf(StrEnum):
    """Which pairs of ranks are measured."""

    ONE = "one"
    NODES = "nodes"
    NONE = "none"


@dataclass(frozen=True)
class Asked:
    """What is measured."""

    collectives: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="all_reduce, all_gather, reduce_scatter, broadcast, alltoall, sendrecv."),
    ] = None
    smallest: Annotated[str, typer.Option(metavar="SIZE", help="Total size as nccl-tests counts it.")] = "1 KiB"
    largest: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Default: 64 MiB, with nccl and --launch 1 GiB.")
    ] = None
    factor: Annotated[float, typer.Option(help="From one size to the next.")] = 2.0
    ranks: Annotated[
        str | None, typer.Option(metavar="4,8", help="Groups of these numbers of ranks; default: powers of two, all.")
    ] = None
    pairs: Annotated[
        PairsOf,
        typer.Option(help="Latency and bandwidth of a pair on a node and one between nodes, or of all nodes."),
    ] = PairsOf.ONE
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="For all of it; sizes that take too much of it are left out.")
    ] = "2 min"


@dataclass(frozen=True)
class Launched:
    """What others measure."""

    launch: Annotated[
        str | None,
        typer.Option(
            metavar="LINE",
            help="Run nccl-tests or OSU, whichever is on the PATH, by this, as 'mpirun -n {ranks}' or "
            "'srun -N {nodes} --ntasks-per-node {per_node}'.",
        ),
    ] = None
    shapes: Annotated[str | None, typer.Option(metavar="1x8,2x8", help="With --launch: nodes, and ranks on each.")] = (
        None
    )


def measure(
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The tidy CSV to write.")],
    *,
    asked: Asked,
    backend: Annotated[Backend | None, typer.Option(help="What carries the messages; default: gloo.")] = None,
    processes: Annotated[
        int | None, typer.Option(metavar="N", help="Start so many ranks here; else every rank of a job runs this.")
    ] = None,
    device: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measure what selecting costs, too: a device profile, YAML.")
    ] = None,
    launched: Launched,
    force: Force = False,
) -> None:
    """Time the collectives of this cluster's library, between all ranks, groups and pairs of them.

    Every rank of a job runs it, under torchrun, srun or mpirun. Rank 0 writes a table for `simnet calibrate`.
    """
    from simnet.cluster.measure.session import Session, run_session

    seconds = options.quantity(asked.budget, "--budget", units.seconds) or 0.0
    if not 1 <= seconds <= 86400:
        raise InputError(f"must be 1 s to a day, got {asked.budget!r}", file="--budget")
    wanted = _wanted_groups(asked, 2.0**30 if backend is Backend.NCCL or launched.launch is not None else 64 * 2.0**20)

    def say(text: str) -> None:
        terminal.say(text, err=True)

    if launched.launch is not None:
        own = {"--backend": backend, "--processes": processes, "--device": device, "--ranks": asked.ranks}
        options.only("ranks of simnet's own, not for --launch", False, own)
        lines = _launch_measurement(out, launched, wanted, seconds, force, say)
    else:
        options.only("--launch", False, {"--shapes": launched.shapes})
        session = Session(out, (backend or Backend.GLOO).value, wanted, seconds, device, force)
        if len({one.absolute().parent for one in session.files}) > 1:
            raise InputError("must be beside the --output", file="--device")
        if len({one.name for one in session.files}) < len(session.files):
            raise InputError("must be another file than the --output", file="--device")
        if processes is not None:
            from simnet.base.writing import refuse_existing
            from simnet.cluster.measure.local import on_this_machine

            refuse_existing(session.files, force)
            lines = on_this_machine(processes, session, say)
        elif session.backend != "mpi" and not {"RANK", "SLURM_PROCID"} & set(os.environ):
            raise InputError("needs --processes N, which starts ranks here, or torchrun or srun", file="simnet measure")
        else:
            lines = run_session(session, say)
    for line in lines:
        terminal.say(line)


def _wanted_groups(asked: Asked, largest: float) -> Wanted:
    from simnet.cluster.measure.plan import COLLECTIVES, Wanted

    return Wanted(
        options.words(asked.collectives) or COLLECTIVES,
        options.quantity(asked.smallest, "--smallest", units.size) or 0.0,
        options.quantity(asked.largest, "--largest", units.size) or largest,
        asked.factor,
        options.counts(asked.ranks, "--ranks"),
        asked.pairs.value,
    )


def _launch_measurement(
    out: Path, launched: Launched, wanted: Wanted, seconds: float, force: bool, say: Callable[[str], None]
) -> list[str]:
    from simnet.cluster.measure.benchmarks import Benchmarks, parse_shapes, run_benchmarks

    if launched.shapes is None:
        raise InputError("is missing: nodes, and ranks on each, as 1x8,2x8", file="--shapes")
    return run_benchmarks(
        Benchmarks(out, launched.launch or "", parse_shapes(launched.shapes), wanted, seconds, force), say
    )
