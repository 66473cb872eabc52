"""What `simnet run` and `simnet compare` share: they say where runs resume, show how far they are, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from simnet.base.errors import SimnetError
from simnet.verbs.commands import terminal
from simnet.verbs.commands.options import Force, Json

if TYPE_CHECKING:
    from simnet.scenario.runner import Progress
    from simnet.studies.runs import Batch
    from simnet.training.job.record import PolicyResult

T = TypeVar("T")
S = TypeVar("S")


def say_where(out: Path | None, usual: Path, folder: Path) -> None:
    """Say where results go if the usual folder has those of another request."""
    if out is None and folder != usual:
        terminal.say(f"{usual} has the results of another request: those of this one go to {folder}", err=True)


@dataclass(frozen=True)
class Execution:
    """How runs are carried out."""

    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one per processor. Never alters results.")
    ] = None
    checkpoint: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Between checkpoints, from which a killed run goes on.")
    ] = 10.0
    force: Force = False
    json_: Json = False
    workers_on: Annotated[
        str | None,
        typer.Option(
            metavar="processes:N|dask:tcp://HOST:PORT",
            help="Where gradients and residuals of the simulated workers live: in N processes, or on the workers of a "
            "Dask scheduler (needs simnet-sparse[dask]). Never alters results.",
        ),
    ] = None

    @property
    def elsewhere(self) -> bool:
        """Whether the simulated workers live on other machines."""
        return self.workers_on is not None and self.workers_on.startswith("dask:")


def carry_out(
    batch: Batch,
    execution: Execution,
    keep: Callable[[str, PolicyResult], T],
    write: Callable[[dict[str, T], list[str]], S],
    show: Callable[[S], None],
) -> None:
    """Run all policies, write what is done, show it, and end as they ended.

    Parameters
    ----------
    batch : Batch
        The runs.
    execution : Execution
        How they are carried out.
    keep : callable
        Takes the label and the result of a run, and returns what is kept of it.
    write : callable
        Writes what was kept, by label, in the order of the batch, and says which labels are missing; called if any run
        is done.
    show : callable
        Takes what `write` returned.

    Raises
    ------
    SimnetError
        If a run ended with one.
    """
    kept: dict[str, T] = {}
    wrong: list[BaseException] = []
    with terminal.no_empty_folders(batch.folder), batch.alone(execution.force):
        for said in batch.resumed():
            terminal.say(said, err=True)
        batch.mark_begun()
        try:
            with _shown_progress(list(batch.labels), batch.iterations) as progress:
                for label, outcome in batch.outcomes(execution.jobs, progress, execution.workers_on):
                    if isinstance(outcome, SimnetError):
                        wrong.append(outcome)
                    else:
                        kept[label] = keep(label, outcome)
        except (KeyboardInterrupt, Exception) as error:
            # Results before Ctrl-C or an error are written all the same.
            wrong.append(error)
        done = {label: kept[label] for label in batch.labels if label in kept}
        missing = [label for label in batch.labels if label not in kept]
        if done:
            with terminal.sheltered():
                written = write(done, missing)
        else:
            batch.mark_nothing()
        if not wrong:
            batch.remove_checkpoints()
    # Only what was asked for is left to do: a closed terminal costs nothing any more.
    if done and (execution.json_ or not terminal.quiet()):
        show(written)
    _end_command(wrong, missing if done else None, batch)


@contextmanager
def _shown_progress(labels: Sequence[str], iterations: int) -> Iterator[Progress]:
    """Show how many iterations of all runs are done, and how long the rest will take."""
    done = dict.fromkeys(labels, 0)
    total = iterations * len(done)
    with terminal.bar(f"{len(done)} runs") as show:

        def progress(label: str, iterations: int) -> None:
            done[label] = iterations
            count = sum(done.values())
            show(count / total, f"{len(done)} runs, {count:,} of {total:,} iterations")

        yield progress


def _end_command(wrong: Sequence[BaseException], missing: Sequence[str] | None, batch: Batch) -> None:
    """End a command after what went wrong, if something did; `missing` is None if nothing was done before it."""
    if not wrong:
        return
    from simnet.base.writing import INCOMPLETE

    place = batch.place
    interrupted = isinstance(wrong[-1], KeyboardInterrupt)
    goes_on = "; the same command goes on from there" if interrupted and place.is_dir() and any(place.iterdir()) else ""
    if missing is not None:
        said = "interrupted" if interrupted else "stopped by an error"
        typer.echo(f"{said}: {', '.join(missing)} not done, as the file {INCOMPLETE} says{goes_on}", err=True)
    elif interrupted:
        written = "no results were written" if goes_on else "nothing was written"
        typer.echo(f"interrupted before anything was done; {written}{goes_on}", err=True)
    for error in wrong:
        if not isinstance(error, (SimnetError, KeyboardInterrupt)):
            raise error
    explained = "\n".join(dict.fromkeys(str(error) for error in wrong if isinstance(error, SimnetError)))
    if interrupted:
        if explained:
            typer.echo(f"error: {explained}", err=True)
        raise typer.Exit(130)
    raise SimnetError(explained)
