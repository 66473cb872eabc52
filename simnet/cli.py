"""The command line: ``simnet run``, ``compare``, ``export``, ``time``, ``calibrate``, ``validate``, ``predict``, ...

Everything heavy is imported by the command that needs it, so that ``simnet --help`` answers at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

import simnet
from simnet.commands import common, trace
from simnet.commands.choose import choose
from simnet.commands.common import Fields, Force, Quiet, Seed, TwoWords
from simnet.commands.reproduce import reproduce
from simnet.commands.sweep import sweep
from simnet.errors import InputError, nearest

if TYPE_CHECKING:
    from simnet.exporting import Sent
    from simnet.scenario import Run, Scenario
    from simnet.scenario.runner import Progress, Source
    from simnet.training import PolicyResult

INCOMPLETE = "INCOMPLETE"
"""File in a run folder whose run was interrupted: which policies are there, and which are missing."""

# Starting processes takes about this long; what is done sooner is done here.
_WORTH_PROCESSES = 3.0

app = typer.Typer(
    cls=TwoWords,
    help="What a sparsified gradient exchange costs on a network whose links change while the job runs.",
    epilog="Example: simnet run quickstart",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# Options that commands share.
Collective: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A collective by name, such as allreduce_ring; with --workers, --size."),
]
Workers: TypeAlias = Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks of the collective.")]
Options: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=NUMBER", help="A parameter of the collective, as group_size=4; repeatable."),
]


class Kind(StrEnum):
    """What `simnet list` can list."""

    SPARSIFIERS = "sparsifiers"
    TOPOLOGIES = "topologies"
    SCENARIOS = "scenarios"
    MODELS = "models"
    DEVICES = "devices"
    POLICIES = "policies"
    WEATHER = "weather"
    TRACES = "traces"
    MEASURED = "measured"
    PLATFORMS = "platforms"


class Split(StrEnum):
    """What `simnet validate` leaves out."""

    SIZES = "sizes"
    RANKS = "ranks"
    COLLECTIVES = "collectives"
    LINKS = "links"


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


def main() -> None:
    """Run the command line; the entry point of the console script."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"simnet {simnet.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: simnet run fluctuating_wan --set job.iterations=50 --out runs/short")
@common.explained
def run(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or the name of a scenario that comes with simnet.")],
    set_: Fields = None,
    seed: Seed = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; default: runs/NAME. Files of an earlier run in it are replaced."),
    ] = None,
    policies: Annotated[
        str | None, typer.Option(metavar="A,B", help="Run these policies only, by their names in the scenario.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Policies at a time; default: one per processor. Never alters results.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run the policies of a scenario side by side, and write figures, tables and a report."""
    from simnet.results import prepare_folder
    from simnet.scenario import load
    from simnet.scenario.runner import Source

    loaded = load(scenario, set_ or (), seed)
    if policies is not None:
        loaded = loaded.only([name.strip() for name in policies.split(",")])
    folder = Path("runs") / loaded.name if out is None else out
    prepare_folder(folder)
    built = loaded.build()
    results: dict[str, PolicyResult] = {}
    failure: BaseException | None = None
    try:
        with _progress(list(built.policies), built.job.iterations, quiet) as progress:
            # One by one: what is done when Ctrl-C comes, or when a policy fails, is kept.
            for done in _finished(Source(scenario, set_ or (), seed), loaded, built, jobs, progress):
                results.update([done])
    except (KeyboardInterrupt, Exception) as error:
        failure = error
    missing = [name for name in built.policies if name not in results]
    if results:
        with common.sheltered():
            done_in_order = {name: results[name] for name in built.policies if name in results}
            _write(folder, loaded, built, done_in_order, missing, quiet)
    _end(failure, missing if results else None)


@app.command(epilog="Example: simnet compare --schemes topk,oktopk,spardl --workers 2,4,8 --density 0.01")
@common.explained
def compare(
    scenario: Annotated[
        str, typer.Argument(help="A YAML file, or the name of a scenario that comes with simnet.")
    ] = "compare",
    schemes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|all", help="Schemes with their default options, in place of the exchanges of the scenario."
        ),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="2,4,8", help="Numbers of workers; default: that of the scenario.")
    ] = None,
    density: Annotated[
        str | None, typer.Option(metavar="0.01|1%", help="Density in place of that of the scenario.")
    ] = None,
    skip: Annotated[
        int | None, typer.Option(min=0, help="First iterations that do not count; default: half of them.")
    ] = None,
    set_: Fields = None,
    seed: Seed = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; default: runs/compare-NAME. Files of an earlier run are replaced."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Exchanges at a time; default: one per processor. Never alters results.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare schemes on one trace and network: time to select and to communicate, volume, density, build-up."""
    from simnet import comparison
    from simnet.results import prepare_folder
    from simnet.scenario import load

    counts = common.counts(workers, "--workers")
    names = [] if schemes is None else [name.strip() for name in schemes.split(",")]
    found = comparison.sources(scenario, counts, names, density, set_ or (), seed)
    runs = {count: (source, load(source.path, source.overrides, source.seed)) for count, source in found.items()}
    built = {count: loaded.build() for count, (_, loaded) in runs.items()}
    largest = runs[max(runs)][1]
    iterations = next(iter(built.values())).job.iterations
    skipped = iterations // 2 if skip is None else skip
    if skipped >= iterations:
        raise InputError(f"must be less than the {iterations} iterations, got {skipped}", file="--skip")
    folder = Path("runs") / f"compare-{largest.name}" if out is None else out
    prepare_folder(folder)
    rows: dict[tuple[int, str], dict[str, str | float]] = {}
    failure: BaseException | None = None
    wanted = [(count, name) for count, run in built.items() for name in run.policies]
    try:
        with _progress([f"{name} {count}" for count, name in wanted], iterations, quiet) as progress:
            for count, (source, loaded) in runs.items():

                def of_count(name: str, done: int, count: int = count) -> None:
                    progress(f"{name} {count}", done)

                for name, result in _finished(source, loaded, built[count], jobs, of_count):
                    rows[count, name] = comparison.row(count, name, result, skipped)
    except (KeyboardInterrupt, Exception) as error:
        failure = error
    missing = [f"{name} with {count} workers" for count, name in wanted if (count, name) not in rows]
    if not rows:
        _end(failure, None)
    with common.sheltered():
        _mark(folder, [f"{name} with {count} workers" for count, name in rows], missing)
        table = comparison.write(folder, [rows[one] for one in wanted if one in rows], largest)
    if not quiet:
        from rich.console import Console

        from simnet.report.comparison import comparison_table
        from simnet.report.console import print_wide

        print_wide(comparison_table(table, largest.name), Console())
        typer.echo(f"Results: {folder / 'compare.csv'}, {folder / 'figures' / 'compare.png'}")
    _end(failure, missing)


@app.command(epilog="Example: simnet export --collective allreduce_ring --workers 8 --size '64 MiB' --to goal")
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
    from simnet import exporting
    from simnet.scenario import load

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


@app.command("time", epilog="Example: simnet time ring.goal --topology star --latency '10 us' --bandwidth '10 Gbit/s'")
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
    from simnet import timing
    from simnet.interchange import read_schedule, write_messages
    from simnet.scenario import load

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
        from simnet.exporting import staged

        with staged([messages], force) as folder:
            write_messages(timed.messages, folder / messages.name)
    if json_:
        typer.echo(json.dumps(timing.figures(schedule, place, timed), indent=2))
        return
    for line in timing.sentences(schedule, place, timed):
        typer.echo(line)


app.command(epilog="Example: simnet sweep quickstart --param bandwidth=1,5,10Gbit/s --param density=0.001:0.1:5:log")(
    sweep
)
app.command(epilog="Example: simnet choose --workers 8 --model resnet50 --latency '1 ms' --bandwidth '10 Gbit/s'")(
    choose
)
app.command(epilog="Example: simnet reproduce artopk-table-vi --check")(reproduce)


@app.command(epilog="Example: simnet calibrate all_reduce.log all_gather.log -o fabric.yaml")
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
    from simnet.exporting import staged
    from validate.calibration import reporting, specification, specified, written
    from validate.calibration.network import placed

    common.only("--topology", topology is not None, {"--set": set_})
    if platform is not None:
        measured = {"LOG": logs, "--where": where, "--fact": fact, "--in-place": in_place, "--topology": topology}
        common.only("measurements, which --platform does without", False, measured)
        described = specification.load_platform(platform)
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
        made = reporting.calibrated(
            logs,
            common.fields(where, "--where"),
            common.fields(fact, "--fact"),
            in_place,
            None if topology is None else placed(topology, set_ or ()),
            coverage,
        )
        (folder / out.name).write_text(made.yaml, encoding="utf-8")
    if json_:
        typer.echo(json.dumps(made.figures(), indent=2))
        return
    for line in made.sentences():
        typer.echo(line)
    typer.echo(f"Written: {out}")


@app.command("calibrate device", epilog="Example: simnet calibrate device -o my-machine.yaml")
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
    from simnet.exporting import staged
    from validate.device import measure_device, profile_yaml

    with staged([out], force) as folder:
        each = common.seconds(budget, "--budget") or 0.0
        made = measure_device(name or out.stem, library, density=density, largest=largest, budget=each)
        (folder / out.name).write_text(profile_yaml(made), encoding="utf-8")
    typer.echo(f"Wrote {out}: {made.device}, {made.source}")
    for method, one in made.methods.items():
        typer.echo(f"{method:11} {one.launch:9.2e} s and {one.bytes_per_entry:7.1f} bytes per entry: {one.source}")


@app.command(epilog="Example: simnet validate shaped_gloo --split sizes")
@common.explained
def validate(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATASET|LOG]...", help="Shipped measurements or logs; default: all that are shipped."),
    ] = None,
    split: Annotated[
        list[Split] | None, typer.Option(help="What is left out; repeatable; default: each in turn.")
    ] = None,
    fabric: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with this fabric file; nothing is fitted.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="With --fabric: refuse to extrapolate.")] = False,
    fact: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="What the logs do not say, as ranks=16; repeatable."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw predicted against measured, as .png or .svg; one source.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="End with 1 if a figure is worse than recorded.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    force: Force = False,
) -> None:
    """Say how well measured times are predicted that were left out, beside what simpler models make of them."""
    from validate import evaluation
    from validate.calibration.reporting import typed_facts
    from validate.measured import datasets

    common.only("--fabric", fabric is not None, {"--strict": strict})
    common.only("what is left out, which --fabric does without", fabric is None, {"--split": split, "--check": check})
    names = list(sources or datasets())
    common.only("shipped measurements", set(names) <= set(datasets()), {"--check": check})
    if figure is not None and (len(names) != 1 or figure.suffix not in (".png", ".svg")):
        raise InputError("needs one source, and a file that ends in .png or .svg", file="--figure")
    facts = typed_facts(common.fields(fact, "--fact"))
    splits = [one.value for one in split or Split]
    found = []
    for name in names:
        if fabric is not None:
            found.append(evaluation.compare(fabric, name, facts, strict=strict))
        else:
            found.append(evaluation.evaluate(name, facts, splits))
        if not json_:
            typer.echo("\n".join([*found[-1].sentences(), ""]))
    figures = [one.figures() for one in found]
    if json_:
        typer.echo(json.dumps(figures, indent=2))
    if figure is not None:
        from simnet.exporting import staged

        drawing = evaluation.drawn(found[0])
        with staged([figure], force) as folder:
            (folder / figure.name).write_bytes(drawing.png if figure.suffix == ".png" else drawing.svg)
    if check:
        recorded = evaluation.recorded_figures()
        wanted = {
            name: {key: one for key, one in recorded.get(name, {}).items() if key.partition("_")[0] in splits}
            for name in names
        }
        said = [line for one in figures for line in evaluation.worse(one, wanted[one["dataset"]])]
        for line in said:
            typer.echo(f"worse: {line}", err=True)
        if said:
            raise typer.Exit(1)


@app.command(epilog="Example: simnet predict dgx-h100 all_reduce --ranks 16 --size 25MB")
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
    from simnet.units import format_seconds
    from validate.calibration import fabric_of

    loaded = fabric_of(fabric)
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


trace.register(app)


@app.command("list", epilog="Example: simnet list sparsifiers")
@common.explained
def list_(kind: Annotated[Kind | None, typer.Argument(help="What to list; default: everything.")] = None) -> None:
    """List what comes with simnet: sparsifiers, topologies, scenarios, models, ..."""
    from rich.console import Console

    from simnet import listing
    from simnet.report.console import show_listing

    console = Console()
    for one in Kind if kind is None else (kind,):
        show_listing(one.value, *listing.LISTS[one.value](), console)


@app.command(epilog="Example: simnet schema > scenario.schema.json")
@common.explained
def schema() -> None:
    """Print the JSON Schema of scenario files, with which editors check and complete them."""
    from simnet.scenario import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


def _finished(
    source: Source, loaded: Scenario, built: Run, jobs: int | None, progress: Progress
) -> Iterator[tuple[str, PolicyResult]]:
    """Yield each policy with its result, as they are done."""
    from simnet.scenario.runner import run_apart, run_here

    at_once = loaded.at_once(min(jobs or os.cpu_count() or 1, len(built.policies)))
    if at_once == 1 or (jobs is None and sum(map(built.effort, built.policies)) < _WORTH_PROCESSES):
        return run_here(built, progress)
    longest_first = sorted(built.policies, key=built.effort, reverse=True)
    return run_apart(source, longest_first, at_once, progress)


def _collective(name: str | None, workers: int | None, size: str | None, options: Sequence[str] | None) -> Sent:
    """Return the schedule of a collective given by options."""
    from simnet import exporting

    assert name is not None
    nbytes = common.size(size, "--size")
    if workers is None or nbytes is None:
        missing = "--workers" if workers is None else "--size"
        raise InputError(f"is missing; --collective {name} needs --workers and --size", file=missing)
    return exporting.collective(name, workers, nbytes, exporting.options_of(options or ()))


@contextmanager
def _progress(names: Sequence[str], iterations: int, quiet: bool) -> Iterator[Progress]:
    """Show how many iterations of all runs are done, and how long the rest will take."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    done = dict.fromkeys(names, 0)
    console = Console(stderr=True)
    columns = (
        TextColumn(f"{len(done)} runs"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("iterations, left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("", total=iterations * len(done))

        def progress(name: str, iterations: int) -> None:
            done[name] = iterations
            bar.update(task, completed=sum(done.values()))

        yield progress


def _end(failure: BaseException | None, missing: Sequence[str] | None) -> None:
    """End a command after what went wrong, if something did; `missing` is None if nothing was done before it."""
    if failure is None:
        return
    interrupted = isinstance(failure, KeyboardInterrupt)
    said = "interrupted" if interrupted else "stopped by an error"
    if missing is not None:
        typer.echo(f"{said}: {', '.join(missing)} not done, as the file {INCOMPLETE} says", err=True)
    elif interrupted:
        typer.echo("interrupted before anything was done; nothing was written", err=True)
    if interrupted:
        raise typer.Exit(130)
    raise failure


def _mark(folder: Path, done: Sequence[str], missing: Sequence[str]) -> None:
    """Leave a file that says what is missing, or take it away if nothing is."""
    from simnet.results import atomic_write

    if not missing:
        (folder / INCOMPLETE).unlink(missing_ok=True)
        return
    with atomic_write(folder / INCOMPLETE) as stream:
        stream.write(f"done: {', '.join(done)}\nmissing: {', '.join(missing)}\n".encode())


def _write(
    folder: Path,
    loaded: Scenario,
    built: Run,
    results: Mapping[str, PolicyResult],
    missing: Sequence[str],
    quiet: bool,
) -> None:
    """Write the run folder, and show the table and the sentence."""
    from rich.console import Console

    from simnet.report.console import show
    from simnet.results import atomic_write, write_run

    if missing:
        _mark(folder, list(results), missing)
    for name, path in loaded.inputs().items():
        copy = folder / name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(copy) as stream:
                stream.write(path.read_bytes())
    trained = loaded.config.job.gradients.train
    summary = write_run(
        folder,
        results,
        scenario=loaded.name,
        scenario_lock=loaded.lock(),
        seed=loaded.config.seed,
        bound=built.bound,
        links=built.links,
        report=loaded.config.output.report,
        missing=missing,
        target=None if trained is None else trained.target,
    )
    _mark(folder, list(results), missing)
    if not quiet:
        show(summary, Console())
        page = "report.html" if loaded.config.output.report else "summary.json"
        typer.echo(f"Results: {folder / page}")


if __name__ == "__main__":
    main()
