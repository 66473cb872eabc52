"""The command line: ``simnet run`` and ``compare``, and all that `simnet.commands` has.

Everything heavy is imported by the command that needs it, so that ``simnet --help`` answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import simnet
from simnet.base import plugins
from simnet.base.errors import InputError, SimnetError, plain_warnings
from simnet.base.threads import one_thread
from simnet.commands import common, measuring, running, schedules, trace
from simnet.commands.choose import choose
from simnet.commands.common import Commands, Fields, Quiet, Seed
from simnet.commands.sweep import sweep

if TYPE_CHECKING:
    import pandas as pd

    from simnet.job import PolicyResult
    from simnet.report.summary import Summary
    from simnet.scenario import Run, Scenario
    from simnet.scenario.runner import Outcome

app = typer.Typer(
    cls=Commands,
    help="What a sparsified gradient exchange costs on a network whose links change while the job runs.",
    epilog="Example: simnet run quickstart",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    plain_warnings()
    with one_thread():
        app()


def _no_plugins(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.with_resource(plugins.refused())


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"simnet {simnet.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    no_plugins: Annotated[
        bool,
        typer.Option(
            "--no-plugins",
            callback=_no_plugins,
            is_eager=True,
            help="Run no code of others, be it registered by a package or in a file that a scenario names.",
        ),
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
    every: running.Every = 10.0,
    force: running.Anew = False,
    quiet: Quiet = False,
) -> None:
    """Run the policies of a scenario side by side, and write figures, tables and a report; goes on after a kill."""
    from simnet.report.results import prepare_folder
    from simnet.scenario import load
    from simnet.scenario.runner import Source, checkpoints, run_policies

    loaded = load(scenario, set_ or (), seed)
    if policies is not None:
        loaded = loaded.only([name.strip() for name in policies.split(",")])
    folder = prepare_folder(Path("runs") / loaded.name if out is None else out)
    built = loaded.build()
    results: dict[str, PolicyResult] = {}
    summary: Summary | None = None
    resumed = checkpoints(loaded, folder / running.CHECKPOINTS, every)
    own = {name: resumed.of(name) for name in built.policies}
    with running.kept(folder, force) as place:
        running.going_on(own, built.job.iterations, place, quiet)
        with running.shown(list(built.policies), built.job.iterations, quiet) as progress:
            source = Source(scenario, set_ or (), seed)
            finished = run_policies(source, loaded, built, jobs, progress, resumed)
            wrong = running.collected(finished, results.__setitem__)
        missing = [name for name in built.policies if name not in results]
        if results:
            with common.sheltered():
                done_in_order = {name: results[name] for name in built.policies if name in results}
                summary = _write(folder, loaded, built, done_in_order, missing)
        if not wrong:
            running.remove(own)
    # Only what was asked for is left to do: a closed terminal costs nothing any more.
    if summary is not None and not quiet:
        _show(summary, loaded, folder)
    running.end(wrong, missing if results else None, place)


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
    every: running.Every = 10.0,
    force: running.Anew = False,
    quiet: Quiet = False,
) -> None:
    """Compare schemes on one trace and network: time to select and to communicate, volume, density, build-up."""
    from simnet.report.results import prepare_folder
    from simnet.scenario.runner import checkpoints, run_policies
    from simnet.studies import comparison

    counts = common.counts(workers, "--workers")
    names = [] if schemes is None else [name.strip() for name in schemes.split(",")]
    found = comparison.sources(scenario, counts, names, density, set_ or (), seed)
    runs = {count: (source, source.load()) for count, source in found.items()}
    built = {count: loaded.build() for count, (_, loaded) in runs.items()}
    largest = runs[max(runs)][1]
    iterations = next(iter(built.values())).job.iterations
    skipped = iterations // 2 if skip is None else skip
    if skipped >= iterations:
        raise InputError(f"must be less than the {iterations} iterations, got {skipped}", file="--skip")
    folder = prepare_folder(Path("runs") / f"compare-{largest.name}" if out is None else out)
    rows: dict[tuple[int, str], dict[str, str | float]] = {}
    wanted = {f"{name} {count}": (count, name) for count, run in built.items() for name in run.policies}
    resumed = {count: checkpoints(loaded, folder / running.CHECKPOINTS, every) for count, (_, loaded) in runs.items()}
    own = {label: resumed[count].of(name) for label, (count, name) in wanted.items()}
    with running.kept(folder, force) as place:
        running.going_on(own, iterations, place, quiet)
        with running.shown(list(wanted), iterations, quiet) as progress:

            def finished() -> Iterator[tuple[str, Outcome]]:
                for count, (source, loaded) in runs.items():

                    def of_count(name: str, done: int, count: int = count) -> None:
                        progress(f"{name} {count}", done)

                    found = run_policies(source, loaded, built[count], jobs, of_count, resumed[count])
                    for name, outcome in found:
                        if isinstance(outcome, SimnetError):
                            outcome = SimnetError(f"with {count} workers: {outcome}")
                        yield f"{name} {count}", outcome

            def take(label: str, result: PolicyResult) -> None:
                rows[wanted[label]] = comparison.row(*wanted[label], result, skipped)

            wrong = running.collected(finished(), take)
        missing = [f"{name} with {count} workers" for count, name in wanted.values() if (count, name) not in rows]
        if not rows:
            running.end(wrong, None, place)
        with common.sheltered():
            running.mark(folder, [f"{name} with {count} workers" for count, name in rows], missing)
            table = comparison.write(folder, [rows[one] for one in wanted.values() if one in rows], largest)
        if not wrong:
            running.remove(own)
    if not quiet:
        _show_comparison(table, largest.name, folder)
    running.end(wrong, missing, place)


app.command(epilog="Example: simnet sweep quickstart --param bandwidth=1,5,10Gbit/s --param density=0.001:0.1:5:log")(
    sweep
)
app.command(epilog="Example: simnet choose --workers 8 --model resnet50 --latency '1 ms' --bandwidth '10 Gbit/s'")(
    choose
)


schedules.register(app)
measuring.register(app)
trace.register(app)


@app.command("list", epilog="Example: simnet list sparsifiers")
@common.explained
def list_(kind: Annotated[Kind | None, typer.Argument(help="What to list; default: everything.")] = None) -> None:
    """List what comes with simnet: sparsifiers, topologies, scenarios, models, ..."""
    from rich.console import Console

    from simnet.report.console import show_listing
    from simnet.studies import listing

    console = Console()
    for one in Kind if kind is None else (kind,):
        show_listing(one.value, *listing.LISTS[one.value](), console)


@app.command(epilog="Example: simnet schema > scenario.schema.json")
@common.explained
def schema() -> None:
    """Print the JSON Schema of scenario files, with which editors check and complete them."""
    from simnet.scenario import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


def _write(
    folder: Path,
    loaded: Scenario,
    built: Run,
    results: Mapping[str, PolicyResult],
    missing: Sequence[str],
) -> Summary:
    """Write the run folder."""
    from simnet.base.writing import atomic_write
    from simnet.report.results import write_run

    if missing:
        running.mark(folder, list(results), missing)
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
        reference=next(iter(built.policies)),
    )
    running.mark(folder, list(results), missing)
    return summary


def _show_comparison(table: pd.DataFrame, name: str, folder: Path) -> None:
    from rich.console import Console

    from simnet.report.comparison import comparison_table
    from simnet.report.console import print_wide

    print_wide(comparison_table(table, name), Console())
    typer.echo(f"Results: {folder / 'compare.csv'}, {folder / 'figures' / 'compare.png'}")


def _show(summary: Summary, loaded: Scenario, folder: Path) -> None:
    """Show the table and the sentence."""
    from rich.console import Console

    from simnet.report.console import show

    show(summary, Console())
    page = "report.html" if loaded.config.output.report else "summary.json"
    typer.echo(f"Results: {folder / page}")


if __name__ == "__main__":
    main()
