"""``simnet compare``: schemes on one trace and network, for several numbers of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simnet.base.errors import InputError
from simnet.studies import options
from simnet.verbs.commands import completion
from simnet.verbs.commands.options import Batch, Compute, Fields, Memory, Scenario, Seed, Seeds, Stack
from simnet.verbs.commands.resumable import Execution, carry_out, say_where

if TYPE_CHECKING:
    import pandas as pd

    from simnet import scenario as scenarios_
    from simnet.training.job.record import PolicyResult


def compare(
    scenario: Scenario = "compare",
    schemes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B:OPTION=VALUE|all",
            help="Schemes, as artopk or artopk:collective=tree, in place of the exchanges of the scenario.",
            autocompletion=completion.several_of(completion.schemes, "all"),
        ),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="2,4,8", help="Numbers of workers; default: that of the scenario.")
    ] = None,
    density: Annotated[
        str | None, typer.Option(metavar="0.01|1%", help="Density in place of that of the scenario.")
    ] = None,
    skip: Annotated[
        int | None, typer.Option(min=0, help="First iterations that means leave out; default: until all have settled.")
    ] = None,
    compute: Compute = None,
    batch_: Batch = None,
    memory: Memory = None,
    set_: Fields = None,
    stack: Stack = None,
    seed: Seed = None,
    seeds: Seeds = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; default: runs/compare-NAME."),
    ] = None,
    *,
    execution: Execution,
) -> None:
    """Compare schemes on one trace and network: time to select and to communicate, volume, density, build-up."""
    from simnet.scenario.identity import place_of, request
    from simnet.studies import assumptions, comparison, runs
    from simnet.studies.samples import sample_warnings

    fields = [*(set_ or ()), *options.passes(compute, batch_), *options.stack(stack), *options.memory(memory)]
    counts = options.counts(workers, "--workers")
    sources = comparison.sources(scenario, counts, options.words(schemes) or [], density, fields, seed)
    scenarios = {
        f" with {count} workers": (source, replace(source.load(), elsewhere=execution.elsewhere))
        for count, source in sources.items()
    }
    largest = scenarios[f" with {max(sources)} workers"][1]
    several = [seeds] if seeds > 1 else []
    asked = request(largest, "compare", sorted(sources), skip, *several)
    usual = Path("runs") / f"compare-{largest.name}"
    folder = place_of(out, usual, asked, force=execution.force)
    batch = runs.Batch(scenarios, folder, execution.checkpoint, seeds)
    by_workers = {count: batch.built[f" with {count} workers"] for count in sources}
    built = by_workers[max(sources)]
    device = comparison.device_facts(largest, built.job.device)
    if skip is not None and skip >= batch.iterations:
        raise InputError(f"must be less than the {batch.iterations} iterations, got {skip}", file="--skip")

    say_where(out, usual, folder)
    held = comparison.Held(elsewhere=execution.elsewhere)
    source = scenarios[f" with {max(sources)} workers"][0]

    @cache
    def assumed() -> assumptions.Assumed:
        def load(fields: Sequence[str]) -> scenarios_.Scenario:
            return replace(source, overrides=[*source.overrides, *fields]).load()

        return assumptions.assumed(load, largest, built)

    warnings = {key: sample_warnings(run.job, run.policies.values()) for key, run in batch.built.items()}

    def row(label: str, result: PolicyResult) -> dict[str, Any]:
        key, name, own = batch.labels[label]
        job = batch.built[key].job
        known = held.of(job, batch.built[key].policies[name])
        found = comparison.row(job.source.workers, name, result, known, warnings[key].get(name))
        return {"seed": own} | found if seeds > 1 else found

    def show(table: pd.DataFrame) -> None:
        from simnet.report import paired
        from simnet.report.comparison import SPARE, comparison_table, headline
        from simnet.report.console import show_calls
        from simnet.report.tables import print_fitting, records

        if execution.json_:
            typer.echo(records(table))
            return
        if said := headline(table, seeds):
            typer.echo(said)
        print_fitting(comparison_table(table, comparison.title(largest, device, seeds)), SPARE)
        if seeds > 1:
            typer.echo(f"Intervals at {100 * paired.LEVEL:.0f} %: {paired.METHOD}.")
        for line in [*comparison.sentences(largest, held, table), *assumed().sentences()]:
            typer.echo(line)
        show_calls(runs.calibration_of(loaded, batch.built[key].job) for key, (_, loaded) in scenarios.items())
        typer.echo(
            f"Results: {folder / ('paired.csv' if seeds > 1 else 'compare.csv')}, {folder / 'figures' / 'compare.png'}"
        )

    carry_out(
        batch,
        execution,
        row,
        lambda rows, missing: comparison.write(
            folder, rows, largest, asked.lock, device, missing, held.sentences(), skip, assumed(), by_workers
        ),
        show,
    )
