"""``simnet sweep``: a scenario over a grid of values of some of its fields."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simnet.studies import options
from simnet.verbs.commands import terminal
from simnet.verbs.commands.options import Fields, Json, Policies, Scenario, Seed, Seeds, Stack
from simnet.verbs.commands.resumable import say_where

if TYPE_CHECKING:
    import pandas as pd

    from simnet.base.processes import Pool, Progress
    from simnet.studies.sweeping.work import Checks, Plan, Work

# Cells without a result that are listed.
_LISTED = 20


def sweep(
    scenario: Scenario,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUES", help="A field, in full or in short, with values a,b,c or lo:hi:n[:log]; repeatable."
        ),
    ] = None,
    zip_: Annotated[
        bool, typer.Option("--zip", help="First values together, second values together, ..., in place of the grid.")
    ] = False,
    set_: Fields = None,
    stack: Stack = None,
    seed: Seed = None,
    seeds: Seeds = 1,
    policies: Policies = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; default: runs/sweep-NAME. Cells that are there do not run again."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Run also the cells that are there already, and replace results of another request."
        ),
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; default: one per processor. Never alters results.")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT|slurm[:FIELD=VALUE,...]",
            help="Run the cells on a Dask cluster (needs simnet-sparse[dask]) or as Slurm jobs (needs "
            "simnet-sparse[slurm]), 16 of them unless said, as slurm:partition=long,jobs=32,timeout_min=60.",
        ),
    ] = None,
    max_cells: Annotated[int, typer.Option(min=1, max=1_000_000, help="Refuse a larger grid.")] = 10_000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list the cells, run none.")] = False,
    json_: Json = False,
) -> None:
    """Run a scenario over a grid of values, on all processors or a cluster; resumes where it was killed."""
    from simnet.base.processes import Pool
    from simnet.scenario.identity import place_of
    from simnet.studies.sweeping import table, work

    fields = [*(set_ or ()), *options.stack(stack)]
    planned = work.plan(
        scenario, param or (), fields, seed, options.words(policies), zipped=zip_, most=max_cells, seeds=seeds
    )
    asked = table.request_of(planned.base, planned.axes)
    usual = Path("runs") / f"sweep-{planned.base.name}"
    place = place_of(out, usual, asked, force=force)

    def check(pool: Pool) -> Checks:
        with _cell_progress(len(planned.cells), "cells checked") as progress:
            return work.check(planned, place, pool, progress)

    with Pool(jobs or os.cpu_count() or 1) as pool:
        if dry_run:
            _list_cells(planned, check(pool), place)
            return
        with terminal.no_empty_folders(place, work.CELLS), work.lock_sweep(place):
            checks = check(pool)
            work.refuse_all(planned, checks)
            todo = work.Work(planned, checks, place, again=force)
            say_where(out, usual, place)
            _announce_cells(todo)
            _carry_out(todo, pool, scheduler, json_)


def _carry_out(todo: Work, pool: Pool, scheduler: str | None, json_: bool) -> None:
    """Run the cells that are waiting, write the table, and end as they ended."""
    from simnet.base.writing import INCOMPLETE

    failure: BaseException | None = None
    todo.mark("at work, or killed")
    try:
        with _cell_progress(len(todo.waiting), "cells") as progress:
            todo.run(pool, scheduler, progress)
    except (KeyboardInterrupt, Exception) as error:
        failure = error
    said = "interrupted" if isinstance(failure, KeyboardInterrupt) else "stopped by an error"
    if todo.results:
        with terminal.sheltered():
            written = todo.write(said)
            if json_ or not terminal.quiet():
                _print_table(written, todo.planned, todo.place, json_)
    else:
        todo.mark("")
    if failure is None:
        _report_missing(todo)
        return
    if todo.results:
        typer.echo(f"{said}: {todo.missing} cells not done, as the file {INCOMPLETE} says", err=True)
    elif isinstance(failure, KeyboardInterrupt):
        typer.echo("interrupted before any cell was done", err=True)
    if isinstance(failure, KeyboardInterrupt):
        raise typer.Exit(130)
    raise failure


def _list_cells(planned: Plan, checks: Checks, place: Path) -> None:
    """List the cells."""
    from simnet.studies.sweeping import work

    for cell in planned.cells:
        if cell.number in checks.refused:
            state = f"refused: {checks.refused[cell.number]}"
        else:
            there = work.stored_rows(place, checks.identities[cell.number]) is not None
            state = "is there" if there else "to run"
        typer.echo(terminal.printable(f"{cell.number}: {cell}: {state}"))
    work.refuse_all(planned, checks)


def _announce_cells(todo: Work) -> None:
    """Say before the first cell runs what there is and what is refused."""
    total = len(todo.planned.cells)
    if todo.there:
        terminal.say(f"{todo.there} of {total} cells are there already, {todo.missing} to run", err=True)
    if todo.checks.refused:
        terminal.say(f"{len(todo.checks.refused)} of {total} cells are refused, {todo.missing} to run", err=True)


def _print_table(written: pd.DataFrame, planned: Plan, place: Path, json_: bool) -> None:
    from simnet.report.tables import print_fitting, records
    from simnet.studies.sweeping.drawing import MEASURES, SPARE, headline, notes, sweep_table

    if json_:
        typer.echo(records(written))
        return
    if said := headline(written):
        typer.echo(terminal.printable(said))
    print_fitting(sweep_table(written, planned.base.name, planned.base.bound, planned.columns), SPARE)
    for line in notes(written):
        typer.echo(terminal.printable(line))
    figures = (place / "figures" / f"{measure.figure}.png" for measure in MEASURES)
    typer.echo(f"Results: {', '.join(map(str, (place / 'sweep.csv', *(one for one in figures if one.exists()))))}")


def _report_missing(todo: Work) -> None:
    """Say which cells have no result and why, and end with 1 if there are some."""
    said = [
        f"cell {cell.number} ({cell}){', ' + row['policy'] if row['policy'] else ''}: {row['status']}: {row['message']}"
        for cell in todo.planned.cells
        for row in todo.results[cell.number]
        if row["status"] in ("refused", "failed")
    ]
    if not said:
        return
    more = [f"... and {len(said) - _LISTED} more; see sweep.csv"] if len(said) > _LISTED else []
    typer.echo("\n  ".join(["without result:", *map(terminal.printable, said[:_LISTED]), *more]), err=True)
    for trace in todo.failures[:1]:
        typer.echo(trace, err=True)
    raise typer.Exit(1)


@contextmanager
def _cell_progress(total: int, what: str) -> Iterator[Progress]:
    """Show how many cells are done, those in progress in part, and how long the rest will take."""
    begun: dict[int, float] = {}
    done = 0
    with terminal.bar(f"0 of {total} {what}") as show:

        def step(number: int, share: float) -> None:
            nonlocal done
            if share < 1:
                begun[number] = share
            else:
                begun.pop(number, None)
                done += 1
            show((done + sum(begun.values())) / total, f"{done} of {total} {what}")

        yield step
