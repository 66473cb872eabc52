"""The command line: ``simnet run`` and ``compare``, and all that `simnet.commands` has.

Everything heavy is imported by the command that needs it, so that ``simnet --help`` answers at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import simnet
from simnet.commands import common, measuring, schedules, trace
from simnet.commands.choose import choose
from simnet.commands.common import Fields, Quiet, Seed, TwoWords
from simnet.commands.reproduce import reproduce
from simnet.commands.sweep import sweep
from simnet.errors import InputError

if TYPE_CHECKING:
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


app.command(epilog="Example: simnet sweep quickstart --param bandwidth=1,5,10Gbit/s --param density=0.001:0.1:5:log")(
    sweep
)
app.command(epilog="Example: simnet choose --workers 8 --model resnet50 --latency '1 ms' --bandwidth '10 Gbit/s'")(
    choose
)
app.command(epilog="Example: simnet reproduce artopk-table-vi --check")(reproduce)


schedules.register(app)
measuring.register(app)
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
