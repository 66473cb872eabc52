"""``simnet run``: the policies of a scenario side by side, with figures, tables and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simnet.commands import options
from simnet.commands.options import Fields, Policies, Seed, Stack
from simnet.commands.resumable import Execution, carry_out

if TYPE_CHECKING:
    from simnet.report.summary import Summary


def run(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or the name of a scenario that comes with simnet.")],
    set_: Fields = None,
    stack: Stack = None,
    seed: Seed = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; default: runs/NAME. Files of an earlier run in it are replaced."),
    ] = None,
    policies: Policies = None,
    *,
    execution: Execution,
) -> None:
    """Run the policies of a scenario side by side, and write figures, tables and a report; resumes after a kill."""
    from simnet.scenario.runner import Source
    from simnet.studies import runs

    fields = [*(set_ or ()), *options.stack(stack)]
    source = Source(scenario, fields, seed, options.words(policies))
    loaded = source.load()
    folder = Path("runs") / loaded.name if out is None else out
    batch = runs.Batch({"": (source, loaded)}, folder, execution.checkpoint)

    def show(summary: Summary) -> None:
        from simnet.report.console import show

        show(summary)
        typer.echo(f"Results: {folder / ('report.html' if loaded.config.output.report else 'summary.json')}")

    carry_out(
        batch,
        execution,
        lambda label, result: result,
        lambda results: runs.write(folder, loaded, batch.built[""], results),
        show,
    )
