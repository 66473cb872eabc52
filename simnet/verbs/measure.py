"""``simnet measure``: times of collectives and of selection kernels on a cluster, for ``simnet calibrate``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simnet.base import units
from simnet.base.errors import InputError, check_choice
from simnet.report.summary import Summary, table_columns
from simnet.studies import options
from simnet.verbs import terminal
from simnet.verbs.request import Words, refuse_given, verb

if TYPE_CHECKING:
    from simnet.cluster.measure.plan import Wanted

BACKENDS = ("gloo", "nccl", "mpi")
"""The communication libraries of ``--backend``."""


@verb
def measure(
    *,
    out: str | Path | None = None,
    what: Words = "links,collectives",
    sizes: str | None = None,
    groups: Words | None = None,
    backend: str | None = None,
    processes: int | None = None,
    launch: str | None = None,
    budget: str | None = None,
    force: bool = False,
) -> Summary | None:
    """Time this cluster's collectives and kernels.

    Run it on every rank, under torchrun, srun or mpirun, or start ranks on this machine with ``--processes``. Rank 0
    writes ``--out FILE.csv`` for `simnet calibrate`; with ``device`` it also writes a device profile, ``FILE.yaml``.
    ``--what device`` alone measures only the kernels of this machine.

    Parameters
    ----------
    what
        Any of links, collectives (or names), device.

        Options: links:of=nodes, device:library=torch,largest=100000,density=0.1,name=mine.
    sizes
        LO:HI:FACTOR; default: 1KiB:64MiB:2.
    groups
        Numbers of ranks, 4,8; with --launch 1x8,2x8.
    backend
        Library: gloo, nccl or mpi; default: gloo.
    processes
        Number of ranks to start on this machine.
    launch
        Command for nccl-tests or OSU: 'mpirun -n {ranks}'.
    budget
        Total time: 2 min; per kernel of a device: 250 ms.

    Returns
    -------
    Summary or None
        None at ranks other than the first.

    Raises
    ------
    SimnetError
        If what is given makes no sense, or nothing can be measured.
    """
    if out is None:
        raise InputError("is missing: the table to write, .csv, or of a device alone its profile, .yaml", file="--out")
    asked = _asked(what)
    device = asked.pop("device", None)
    if device is not None and not asked:
        others = {"--sizes": sizes, "--groups": groups, "--backend": backend, "--processes": processes}
        refuse_given({**others, "--launch": launch}, "collectives and links")
        return _measure_device(Path(out), device, budget, force)
    from simnet.cluster.measure.session import Session, run_session

    seconds = options.quantity(budget or "2 min", "--budget", units.seconds) or 0.0
    if not 1 <= seconds <= 86400:
        raise InputError(f"must be 1 s to a day, got {budget!r}", file="--budget")
    check_choice(backend or "gloo", "backend", BACKENDS, file="--backend")
    shapes = None if groups is None else groups if isinstance(groups, str) else ",".join(map(str, groups))
    wanted = _wanted(asked, sizes, None if launch else shapes, large=backend == "nccl" or launch is not None)
    if launch is not None:
        own = {"--backend": backend, "--processes": processes, "--what device": device is not None}
        refuse_given(own, "ranks of simnet's own, not for --launch")
        if shapes is None:
            raise InputError("is missing: nodes, and ranks on each, as 1x8,2x8", file="--groups")
        from simnet.cluster.measure.benchmarks import Benchmarks, parse_shapes, run_benchmarks

        asked_for = Benchmarks(Path(out), launch, parse_shapes(shapes), wanted, seconds, force)
        return _summary(run_benchmarks(asked_for, terminal.say))
    if device is not None and device:
        raise InputError("of device are for a device alone: beside collectives it is that of the job", file="--what")
    profile = None if device is None else Path(out).with_suffix(".yaml")
    session = Session(Path(out), backend or "gloo", wanted, seconds, profile, force)
    if len({one.name for one in session.files}) < len(session.files):
        raise InputError("must end in .csv: the device profile ends in .yaml", file="--out")
    if processes is not None:
        from simnet.base.file_io import refuse_existing
        from simnet.cluster.measure.session import on_this_machine

        refuse_existing(session.files, force)
        return _summary(on_this_machine(processes, session, terminal.say))
    if session.backend != "mpi" and not {"RANK", "SLURM_PROCID"} & set(os.environ):
        raise InputError("needs --processes N, which starts ranks here, or torchrun or srun", file="simnet measure")
    return _summary(run_session(session, terminal.say))


def _summary(lines: list[str]) -> Summary | None:
    """Return the command's answer: the files written, with remarks; None on MPI ranks that print nothing."""
    if not lines:
        return None
    *remarks, written = lines
    warnings = [one.removeprefix("warning: ") for one in remarks if one.startswith("warning: ")]
    table = written.removeprefix("Written: ")
    return Summary(
        answer=f"wrote {table}.",
        evidence="measured",
        depends_on="; ".join(warnings),
        columns=table_columns("measure"),
        rows=[{"left_out": one.removeprefix("left out: ")} for one in remarks if not one.startswith("warning: ")],
        next=f"simnet calibrate {table.partition(', ')[0]} --out fabric.yaml",
    )


def _asked(what: Words) -> dict[str, dict[str, Any]]:
    """Return the measurements that ``--what`` names, each with its options."""
    from simnet.cluster.measure.plan import COLLECTIVES
    from simnet.scenario.choice_text import read_choice, split_choices

    found = dict(read_choice(one) for one in split_choices(what))
    known = ("links", "collectives", *COLLECTIVES, "device")
    options = {"links": ("of",), "device": ("library", "name", "density", "largest")}
    for name, given in found.items():
        check_choice(name, "measurement", known, file="--what")
        for option in given:
            check_choice(option, f"option of {name}", options.get(name, ()), file="--what")
    return found


def _wanted(asked: Mapping[str, Mapping[str, Any]], sizes: str | None, ranks: str | None, *, large: bool) -> Wanted:
    from simnet.cluster.measure.plan import COLLECTIVES, Wanted

    smallest, largest, factor, *more = [*map(str.strip, (sizes or "").split(":")), "", "", ""]
    if any(more) or not re.fullmatch(r"(\d+(\.\d+)?)?", factor):
        raise InputError(f"must be LO:HI:FACTOR, as 1KiB:64MiB:2, got {sizes!r}", file="--sizes")
    links = asked.get("links")
    pairs = "none" if links is None else {"one": "one", "nodes": "nodes"}.get(str(links.get("of", "one")))
    if pairs is None:
        raise InputError(f"links are of one or nodes, got {links!r}", file="--what")
    return Wanted(
        COLLECTIVES if "collectives" in asked else tuple(name for name in asked if name in COLLECTIVES),
        options.quantity(smallest or "1 KiB", "--sizes", units.size) or 0.0,
        options.quantity(largest or ("1 GiB" if large else "64 MiB"), "--sizes", units.size) or 0.0,
        float(factor or 2),
        options.counts(ranks, "--groups"),
        pairs,  # type: ignore[arg-type]
    )


def _measure_device(out: Path, given: Mapping[str, Any], budget: str | None, force: bool) -> Summary:
    """Measure the selection kernels of this machine, and write a device profile."""
    from simnet.base.file_io import refuse_existing, write_new
    from simnet.cost_models.calibration.device import measure_device, profile_yaml

    refuse_existing([out], force)
    numbers = {name: given[name] for name in ("density", "largest") if name in given}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{name} of device must be a number, got {value!r}", file="--what")
    seconds = options.quantity(budget or "250 ms", "--budget", units.seconds) or 0.0
    made = measure_device(str(given.get("name", out.stem)), given.get("library"), budget=seconds, **numbers)
    write_new({out: profile_yaml(made)}, force)
    rows = [
        {"method": name, "launch_s": one.launch, "entry_s": one.seconds_per_entry
         + one.bytes_per_entry / made.memory_bandwidth, "low": one.low, "high": one.high, "source": one.source}
        for name, one in made.methods.items()
    ]  # fmt: skip
    return Summary(
        answer=f"wrote {out}: {made.device}, {len(rows)} kernels.",
        columns=table_columns("measure device"),
        rows=rows,
        evidence=f"measured: {made.source}",
        next=f"simnet choose --device {out}",
    )
