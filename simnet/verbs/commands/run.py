"""``simnet run``: the policies of a scenario side by side, with figures, tables and a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simnet.studies import options
from simnet.verbs.commands.options import Batch, Compute, Fields, Policies, Scenario, Seed, Seeds, Stack
from simnet.verbs.commands.resumable import Execution, carry_out, say_where

if TYPE_CHECKING:
    from simnet.report.run_summary import RunSummary
    from simnet.training.job.record import PolicyResult


def run(
    scenario: Scenario,
    compute: Compute = None,
    batch_: Batch = None,
    set_: Fields = None,
    stack: Stack = None,
    seed: Seed = None,
    seeds: Seeds = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; default: runs/NAME."),
    ] = None,
    policies: Policies = None,
    no_report: Annotated[
        bool, typer.Option("--no-report", help="No figures and no page, as output.report=false of a scenario.")
    ] = False,
    *,
    execution: Execution,
) -> None:
    """Run the policies of a scenario side by side, and write figures, tables and a report; resumes after a kill."""
    from simnet.scenario.source import Source

    fields = [
        *(set_ or ()),
        *options.passes(compute, batch_),
        *options.stack(stack),
        *(["output.report=false"] if no_report else []),
    ]
    source = Source(scenario, fields, seed, options.words(policies))
    loaded = replace(source.load(), elsewhere=execution.elsewhere)
    # What is wrong with a scenario is told before all that a run takes is loaded.
    from simnet.scenario.identity import place_of, request
    from simnet.studies import runs

    asked = request(loaded, "run", *([seeds] if seeds > 1 else []))
    usual = Path("runs") / loaded.name
    folder = place_of(out, usual, asked, force=execution.force)
    batch = runs.Batch({"": (source, loaded)}, folder, execution.checkpoint, seeds)
    say_where(out, usual, folder)
    report = folder / ("report.html" if loaded.config.output.report else "summary.json")

    def show(summary: RunSummary) -> None:
        from simnet.report.console import show

        if execution.json_:
            typer.echo(json.dumps(summary, indent=2, sort_keys=True, allow_nan=False))
            return
        show(summary)
        typer.echo(f"Results: {report}")

    def show_seeds(summary: dict[str, Any]) -> None:
        from simnet.report.console import show_seeds
        from simnet.report.results import SEEDS

        if execution.json_:
            typer.echo(json.dumps(summary, indent=2, sort_keys=True, allow_nan=False))
            return
        show_seeds(summary)
        typer.echo(f"Results: {report}, {folder / SEEDS}")

    if seeds == 1:
        carry_out(
            batch,
            execution,
            lambda label, result: result,
            lambda results, missing: runs.write(
                folder, loaded, batch.built[""], results, done=list(results), missing=missing
            ),
            show,
        )
        return
    kept = runs.Seeds(folder, loaded, asked.lock)

    def keep(label: str, result: PolicyResult) -> None:
        _, name, own = batch.labels[label]
        kept.take(own, name, result)

    carry_out(
        batch,
        execution,
        keep,
        lambda done, missing: kept.write(list(done), missing),
        show_seeds,
    )
