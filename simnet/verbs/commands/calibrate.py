"""``simnet calibrate``: cost models fitted to measured times, how long workers compute, and device profiles."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from simnet.base import units
from simnet.base.errors import InputError
from simnet.studies import options
from simnet.verbs.commands import completion, terminal
from simnet.verbs.commands.options import Force, Json


@dataclass(frozen=True)
class Measurements:
    """Which measured times, and what else is known of them."""

    logs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LOG]...",
            help="Logs or folders of them, or shipped measurements.",
            autocompletion=completion.one_of(completion.measured, "device"),
        ),
    ] = None
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Only rows with this, as variant=efa or link_bandwidth='100 Mbit/s'; repeatable.",
        ),
    ] = None
    fact: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAMES:]COLUMN=VALUE", help=options.FACT),
    ] = None
    in_place: Annotated[bool, typer.Option("--in-place", help="Take times in place rather than out of place.")] = False
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="What the ranks are on: star, multi_gpu_nodes, or a file of a network.",
            autocompletion=completion.one_of(completion.topologies),
        ),
    ] = None
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Of --topology: gpus_per_node=8.")
    ] = None
    stack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Transport stack of the library, of `simnet list stacks`; default: what the logs tell.",
            autocompletion=completion.one_of(completion.stacks),
        ),
    ] = None


def calibrate(
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The fabric file to write.")],
    *,
    measurements: Measurements,
    platform: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="No log: the specification of a platform alone, by its name or a file.",
            autocompletion=completion.one_of(completion.platforms),
        ),
    ] = None,
    coverage: Annotated[float, typer.Option(min=0.5, max=0.99, help="What intervals shall hold.")] = 0.9,
    json_: Json = False,
    force: Force = False,
) -> None:
    """Fit a fabric file to measured times; models are chosen by what they were not fitted to."""
    from simnet.base.writing import refuse_existing, write_new

    options.only("--topology", measurements.topology is not None, {"--set": measurements.set_})
    refuse_existing([out], force)
    if platform is None:
        text, figures, sentences = _fit_measurements(measurements, coverage)
    else:
        names = {"logs": "LOG", "in_place": "--in-place"}
        given = {names.get(name, f"--{name.strip('_')}"): value for name, value in asdict(measurements).items()}
        options.only("measurements, which --platform does without", False, given)
        text, figures, sentences = _specify_platform(platform, coverage)
    write_new({out: text}, force)
    if json_:
        typer.echo(json.dumps(figures, indent=2))
        return
    for line in [*sentences, f"Written: {out}"]:
        terminal.say(line)


def _fit_measurements(measurements: Measurements, coverage: float) -> tuple[str, dict[str, Any], list[str]]:
    """Return the file that is fitted to measurements, its figures and what they say."""
    from simnet.cost_models.calibration import summary
    from simnet.cost_models.calibration.readers.facts import parse_facts
    from simnet.cost_models.calibration.topology_links import place_ranks

    if not measurements.logs:
        raise InputError("needs logs of benchmarks, or --platform", file="simnet calibrate")
    rows, facts = options.fields(measurements.where, "--where"), parse_facts(measurements.fact or ())
    place = None if measurements.topology is None else place_ranks(measurements.topology, measurements.set_ or ())
    options.stack(measurements.stack)
    with terminal.progress("models"):
        made = summary.calibrate_logs(
            measurements.logs, rows, facts, measurements.in_place, place, coverage, measurements.stack
        )
    return made.yaml, made.figures(), made.sentences()


def _specify_platform(platform: str, coverage: float) -> tuple[str, dict[str, Any], list[str]]:
    """Return the file that follows from a specification alone, its figures and what they say."""
    from simnet.cost_models.calibration import cost_model_yaml, specification, specified_cost_model
    from simnet.cost_models.calibration.platform import load_platform

    described = load_platform(platform)
    text = cost_model_yaml(specified_cost_model(described, coverage))
    return text, {"platform": described.model_dump(mode="json")}, specification.describe_parameters(described)


def calibrate_compute(
    logs: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Logs of simnet.cluster.hooks, rank_0.csv, ...: iteration, compute_s."),
    ],
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write the lines of a scenario.")
    ] = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Fit how long workers compute: mean, spread, slow workers and stragglers, as job.compute of a scenario."""
    from simnet.base.arrays import PERCENTS
    from simnet.base.writing import write_new
    from simnet.cost_models.calibration.compute_fit import fit_compute, read_compute_logs

    found = fit_compute(read_compute_logs(logs))
    if out is not None:
        write_new({out: found.text()}, force)
    if json_:
        percentiles = {
            name: {f"p{percent}_s": one for percent, one in zip(PERCENTS, values, strict=True)}
            for name, values in (("measured", found.measured), ("fitted", found.fitted))
        }
        fitted = {name: getattr(found, name) for name in ("mean", "spread", "straggle", "slowdown")}
        slow = {str(worker): factor for worker, factor in found.slow.items()}
        typer.echo(json.dumps({**fitted, "slow": slow, "of_iterations_left_out": percentiles}, indent=2))
        return
    typer.echo(found.text().rstrip())
    terminal.say(
        f"Written: {out}" if out is not None else "--output keeps these lines; a scenario has them as they are."
    )


def calibrate_device(
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The device profile to write, YAML.")],
    library: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose kernels: numpy, torch, cuda; default: the best that is there."),
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
    from simnet.base.writing import refuse_existing, write_new
    from simnet.cost_models.calibration.device import measure_device, profile_yaml

    refuse_existing([out], force)
    each = options.quantity(budget, "--budget", units.seconds) or 0.0
    with terminal.progress("kernels"):
        made = measure_device(name or out.stem, library, density=density, largest=largest, budget=each)
    write_new({out: profile_yaml(made)}, force)
    terminal.say(f"Wrote {out}: {made.device}, {made.source}")
    for method, one in made.methods.items():
        each = one.seconds_per_entry + one.bytes_per_entry / made.memory_bandwidth
        within = f"{one.low:.2f} to {one.high:.2f} times that"
        terminal.say(f"{method:13} {one.launch:8.2e} s and {each:8.2e} s per entry, {within}: {one.source}")
