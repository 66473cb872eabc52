"""What `simnet run` and `simnet compare` share: policies that are run, what they leave behind, and how it ends.

While a run is at work, its folder has checkpoints, of policies that are done and of those under way. The same command
goes on from them after a kill, Ctrl-C or an error; when all is done they go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from simnet.base.errors import SimnetError
from simnet.commands import common

if TYPE_CHECKING:
    from simnet.job import Checkpoint, PolicyResult
    from simnet.scenario.runner import Outcome, Progress

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in that of a run."""

Every: TypeAlias = Annotated[
    float,
    typer.Option(
        "--checkpoint", min=0, metavar="SECONDS", help="Between checkpoints, from which a killed run goes on."
    ),
]
Anew: TypeAlias = Annotated[bool, typer.Option("--force", help="Begin anew where an earlier run did not end.")]

_A_CHECKPOINT = re.compile(r"[0-9a-f]{32}\.safetensors")


def collected(
    outcomes: Iterable[tuple[str, Outcome]], take: Callable[[str, PolicyResult], None]
) -> list[BaseException]:
    """Take results one by one, so that those before Ctrl-C or an error are kept; return what went wrong."""
    wrong: list[BaseException] = []
    try:
        for name, outcome in outcomes:
            if isinstance(outcome, SimnetError):
                wrong.append(outcome)
            else:
                take(name, outcome)
    except (KeyboardInterrupt, Exception) as error:
        wrong.append(error)
    return wrong


@contextmanager
def kept(folder: Path, force: bool) -> Iterator[Path]:
    """Keep other runs out of a folder, and have a folder of checkpoints in it, which goes when it is empty.

    Parameters
    ----------
    folder : Path
        The folder of the run.
    force : bool
        Take away all checkpoints that are there.

    Raises
    ------
    InputError
        If another run is at work there.
    """
    from simnet.base import writing

    place = folder / CHECKPOINTS
    with writing.alone(folder, "run") as surely:
        if surely:
            for one in (folder, folder / "figures", folder / "inputs", place):
                writing.tidy(one)
        with writing.explained(place):
            place.mkdir(exist_ok=True)
        if force:
            _unlink([one for one in place.iterdir() if _A_CHECKPOINT.fullmatch(one.name)])
        try:
            yield place
        finally:
            # If nothing is left in it, which may also be files of somebody else.
            with suppress(OSError):
                place.rmdir()


def remove(own: Mapping[str, Checkpoint]) -> None:
    """Take away the checkpoints of a run that is done; those of others stay."""
    _unlink([one.path for one in own.values()])


def _unlink(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()


def going_on(runs: Mapping[str, Checkpoint], iterations: int, place: Path, quiet: bool) -> None:
    """Say where runs, each with its checkpoint, go on, and that there are checkpoints of others."""
    if quiet:
        return
    done = {label: one.done() for label, one in runs.items()}
    parts = [
        f"{label} {'done' if found[1] else f'after {found[0]:,} of {iterations:,} iterations'}"
        for label, found in done.items()
        if found is not None
    ]
    if parts:
        typer.echo(f"goes on where it had stopped: {', '.join(parts)}", err=True)
    own = {one.path for one in runs.values()}
    if any(_A_CHECKPOINT.fullmatch(one.name) and one not in own for one in place.iterdir()):
        typer.echo(f"{place} has checkpoints of other runs, too, which stay; --force takes them away", err=True)


@contextmanager
def shown(names: Sequence[str], iterations: int, quiet: bool) -> Iterator[Progress]:
    """Show how many iterations of all runs are done, and how long the rest will take."""
    done = dict.fromkeys(names, 0)
    total = iterations * len(done)
    with common.bar(f"{len(done)} runs", quiet) as show:

        def progress(name: str, iterations: int) -> None:
            done[name] = iterations
            count = sum(done.values())
            show(count / total, f"{len(done)} runs, {count:,} of {total:,} iterations")

        yield progress


def mark(folder: Path, done: Sequence[str], missing: Sequence[str]) -> None:
    """Leave a file that says what is missing, or take it away if nothing is."""
    from simnet.base.writing import INCOMPLETE, atomic_write

    if not missing:
        (folder / INCOMPLETE).unlink(missing_ok=True)
        return
    with atomic_write(folder / INCOMPLETE) as stream:
        stream.write(f"done: {', '.join(done)}\nmissing: {', '.join(missing)}\n".encode())


def end(wrong: Sequence[BaseException], missing: Sequence[str] | None, place: Path) -> None:
    """End a command after what went wrong, if something did; `missing` is None if nothing was done before it.

    Raises
    ------
    SimnetError
        With what there was of these.
    """
    if not wrong:
        return
    from simnet.base.writing import INCOMPLETE

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
