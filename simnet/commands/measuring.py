"""``simnet calibrate`` and ``predict``: from measured times to times that are predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from simnet.base.errors import InputError, nearest
from simnet.commands import common
from simnet.commands.common import Force


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    one_of_them = "--where link_latency=0.001 --where link_bandwidth=12500000.0"
    app.command(epilog=f"Example: simnet calibrate shaped_openmpi {one_of_them} -o fabric.yaml")(calibrate)
    app.command("calibrate device", epilog="Example: simnet calibrate device -o my-machine.yaml")(calibrate_device)
    app.command(epilog="Example: simnet predict dgx-h100 all_reduce --ranks 16 --size 25MB")(predict)


@common.explained
def calibrate(
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The fabric file to write.")],
    logs: Annotated[
        list[str] | None, typer.Argument(metavar="[LOG]...", help="Logs of benchmarks, or shipped measurements.")
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="No log: the specification of a platform alone, by its name or a file."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Only rows with this, as variant=efa; repeatable."),
    ] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="What the logs do not say, as ranks=16; repeatable."),
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Take times in place rather than out of place.")] = False,
    topology: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="What the ranks are on: star, multi_gpu_nodes, or a file of a network."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Of --topology: gpus_per_node=8.")
    ] = None,
    coverage: Annotated[float, typer.Option(min=0.5, max=0.99, help="What intervals shall hold.")] = 0.9,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    force: Force = False,
) -> None:
    """Fit a fabric file to measured times; models are chosen by what they were not fitted to."""
    from simnet.calibration import specification, specified, summary, written
    from simnet.calibration.platform import load_platform
    from simnet.calibration.topology_links import placed
    from simnet.studies.exporting import staged

    common.only("--topology", topology is not None, {"--set": set_})
    if platform is not None:
        measured = {"LOG": logs, "--where": where, "--fact": fact, "--in-place": in_place, "--topology": topology}
        common.only("measurements, which --platform does without", False, measured)
        described = load_platform(platform)
        with staged([out], force) as folder:
            (folder / out.name).write_text(written(specified(described, coverage)), encoding="utf-8")
        if json_:
            typer.echo(json.dumps({"platform": described.model_dump(mode="json")}, indent=2))
            return
        for line in [*specification.sentences(described), f"Written: {out}"]:
            typer.echo(line)
        return
    if not logs:
        raise InputError("needs logs of benchmarks, or --platform", file="simnet calibrate")
    with staged([out], force) as folder:
        rows, facts = common.fields(where, "--where"), common.fields(fact, "--fact")
        place = None if topology is None else placed(topology, set_ or ())
        with common.progress("models"):
            made = summary.calibrated(logs, rows, facts, in_place, place, coverage)
        (folder / out.name).write_text(made.yaml, encoding="utf-8")
    if json_:
        typer.echo(json.dumps(made.figures(), indent=2))
        return
    for line in made.sentences():
        typer.echo(line)
    typer.echo(f"Written: {out}")


@common.explained
def calibrate_device(
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The device profile to write, YAML.")],
    library: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose kernels: numpy, torch, cuda; default: the last that is there."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call the device; default: the name of the file.")] = None,
    density: Annotated[float, typer.Option(help="Share of the entries that is selected.")] = 0.1,
    largest: Annotated[int, typer.Option(metavar="N", help="Entries of the longest gradient.")] = 1_000_000_000,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="For each kernel and length; what takes far longer is left out.")
    ] = "250 ms",
    force: Force = False,
) -> None:
    """Measure what selecting costs on this machine's processor or GPU, and write a device profile."""
    from simnet.calibration.device import measure_device, profile_yaml
    from simnet.studies.exporting import staged

    with staged([out], force) as folder:
        each = common.seconds(budget, "--budget") or 0.0
        with common.progress("kernels"):
            made = measure_device(name or out.stem, library, density=density, largest=largest, budget=each)
        (folder / out.name).write_text(profile_yaml(made), encoding="utf-8")
    typer.echo(f"Wrote {out}: {made.device}, {made.source}")
    for method, one in made.methods.items():
        typer.echo(f"{method:11} {one.launch:9.2e} s and {one.bytes_per_entry:7.1f} bytes per entry: {one.source}")


@common.explained
def predict(
    fabric: Annotated[
        str,
        typer.Argument(metavar="FABRIC", help="A file that `simnet calibrate` wrote, or a platform: its name or file."),
    ],
    collective: Annotated[str, typer.Argument(help="As nccl-tests names it, such as all_reduce.")],
    ranks: Annotated[int, typer.Option(min=1, help="Number of ranks.")],
    size: Annotated[str, typer.Option(metavar="SIZE", help="Total size as nccl-tests counts it, as 25MB.")],
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes that they are on; default: as measured, or full.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(metavar="NAME", help="A pinned algorithm.")] = None,
    protocol: Annotated[str | None, typer.Option(metavar="NAME", help="A pinned protocol.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse to extrapolate.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Predict the time of a collective from a fabric file or a specification alone, with its interval."""
    from simnet.base.units import format_seconds
    from simnet.calibration import cost_model_of

    loaded = cost_model_of(fabric)
    for option, value in (("--algorithm", algorithm), ("--protocol", protocol)):
        known = loaded.pinned(option.removeprefix("--"))
        if value is not None and value.casefold() not in map(str.casefold, known):
            raise InputError(f"there is no {value!r}; {nearest(value, known)}", file=option)
    nbytes = common.size(size, "--size")
    assert nbytes is not None
    found = loaded.predict(
        collective, ranks, nbytes, nodes=nodes, algorithm=algorithm, protocol=protocol, strict=strict
    )
    if json_:
        typer.echo(json.dumps(found._asdict(), indent=2))
        return
    low, high = format_seconds(found.low), format_seconds(found.high)
    typer.echo(f"{format_seconds(found.seconds)}, {100 * loaded.coverage:.0f} % interval {low} to {high}")
    typer.echo(f"{'extrapolation; ' if found.extrapolates else ''}{found.why}")
