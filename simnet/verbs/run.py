"""``simnet run``: policies of a scenario, or exchange schemes, simulated side by side, once or over a grid."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, Unpack

from simnet.base import processes
from simnet.base.errors import InputError, SimnetError
from simnet.base.progress import progress_stage, report_share
from simnet.base.writing import INCOMPLETE
from simnet.report.summary import Summary
from simnet.scenario.finding import Source
from simnet.scenario.marked_fields import Fields, overrides_of
from simnet.verbs import request, terminal
from simnet.verbs.request import Overrides, ScenarioSource, Words, scenario_path, set_texts, verb, word_list

if TYPE_CHECKING:
    from simnet.report.answers import RunAnswer
    from simnet.scenario.runner import Request
    from simnet.studies.runs import Batch
    from simnet.studies.sweeping.work import CellProgress
    from simnet.training.job.record import PolicyResult

# About which share of the time simulating takes, and checking cells before; the rest is writing.
_SIMULATING, _CHECKING = 0.95, 0.05
_MOST_SEEDS = 1000


class _Asked(NamedTuple):
    """How a run is carried out: its number of seeds, where and how many at a time, and the folder of results."""

    seeds: int
    on: str | None
    jobs: int | None
    out: str | Path | None
    force: bool


S = TypeVar("S")
T = TypeVar("T")

Grid: TypeAlias = Mapping[str, str | Sequence[object]] | Sequence[str] | str
"""Axes of a grid: ``{"density": [0.01, 0.1]}``, or ``["density=1,10%", "workers=4,8; bandwidth=1,2Gbit/s"]``."""


@verb
def run(
    scenario: ScenarioSource = "base",
    *,
    policies: Words | None = None,
    seeds: int = 1,
    grid: Grid = (),
    on: str | None = None,
    jobs: int | None = 1,
    set: Overrides = (),
    out: str | Path | None = None,
    force: bool = False,
    **fields: Unpack[Fields],
) -> Summary:
    """Simulate a job under its policies and write a report.

    Parameters
    ----------
    scenario
        A YAML file or the name of a scenario.
        `simnet list scenarios` has the names; in Python it may be a loaded scenario.
    policies
        Run only these policies of the scenario.
    seeds
        Number of seeds, from the scenario's seed on.
    grid
        Fields with values A,B,C or LO:HI:N[:log]; each is an axis, and `a=..; b=..` change together.
    on
        Use processes:N, dask:tcp://.. or slurm:..
        Distributes the workers of a run, or the cells of a grid.
    jobs
        Number of parallel processes.
        It does not change results. The default is one per CPU core; in Python one.
    set
        Fields of the scenario with other values, as ``{"job.iterations": 20}``.
    out
        Folder for the results, in which a killed run resumes; in Python nothing is written by default.
    force
        Overwrite results of another request, and repeat finished runs.
    **fields
        Marked fields of the scenario.

    Returns
    -------
    simnet.report.answers.RunAnswer or simnet.studies.sweeping.answer.GridAnswer
        With `iterations` and `workers`, or the `cells` of a grid, as tables.

    Raises
    ------
    SimnetError
        If something is wrong with the scenario, or a policy cannot go on.

    Examples
    --------
    >>> found = run("quickstart", set={"job.iterations": 2}, policies=["AG", "ART-ring"], jobs=1)
    >>> found.best, found.iterations[["policy", "iteration"]].to_numpy().tolist()
    ('AG', [['AG', 0], ['AG', 1], ['ART-ring', 0], ['ART-ring', 1]])
    """
    if not 1 <= seeds <= _MOST_SEEDS:
        raise InputError(f"must be from 1 to {_MOST_SEEDS:,}, got {seeds}", file="--seeds")
    if jobs is not None and jobs < 1:
        raise InputError(f"must be >= 1, got {jobs}", file="--jobs")
    seed, given = fields.pop("seed", None), set_texts(set)
    with scenario_path(scenario) as path:
        overrides = [*given, *overrides_of(path, fields, given)]
        source = Source(path, overrides, None if seed is None else int(seed), word_list(policies))
        asked = _Asked(seeds, on, jobs, out, force)
        return _over_grid(source, grid_texts(grid), asked) if grid else _one_run(source, asked)


@contextmanager
def _results_folder(asked: _Asked, usual: str, wanted: Request, written: str) -> Iterator[Path]:
    """Yield the results folder, named by the user, default or temporary; afterwards print its path if it lasts."""
    from simnet.scenario.runner import place_of

    if asked.out is None:
        with TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    own, named = Path(request.USUAL_FOLDER) / usual, asked.out != request.USUAL_FOLDER
    folder = place_of(Path(asked.out) if named else None, own, wanted, force=asked.force)
    yield folder
    moved = "" if named or folder.name == usual else f"; {own} has the results of another request"
    terminal.say(f"wrote {folder / written}{moved}")


def _one_run(source: Source, asked: _Asked) -> RunAnswer:
    """Run the policies of a scenario with one or several seeds, and write the results folder."""
    on = asked.on or ""
    if on.startswith("slurm"):
        raise InputError("is for the cells of a --grid; a single run takes processes:N or dask:", file=f"--on {on}")
    loaded = replace(source.load(), elsewhere=on.startswith("dask:"))
    from simnet.report import answers
    from simnet.scenario import runner
    from simnet.studies import runs

    wanted = runner.request(loaded, "run", *([asked.seeds] if asked.seeds > 1 else []))
    report = loaded.config.output.report and asked.out is not None
    with _results_folder(asked, loaded.name, wanted, "report.html" if report else "summary.json") as folder:
        batch = runs.Batch(source, loaded, folder, asked.seeds)
        kept = runs.Seeds(folder, loaded, wanted.lock, report=report)

        def write(done: dict[str, PolicyResult], missing: list[str]) -> RunAnswer:
            summary = runs.write(folder, loaded, batch.built, done, missing, source, report=report)
            return answers.run_answer(summary, done)

        def keep(label: str, result: PolicyResult) -> None:
            kept.take(*batch.labels[label], result)

        if asked.seeds == 1:
            return _carry_out(batch, asked, lambda label, result: result, write)
        summary = _carry_out(batch, asked, keep, lambda done, missing: kept.write(list(done), missing))
        return answers.seeds_answer(summary, kept.figures)


def _carry_out(
    batch: Batch,
    asked: _Asked,
    keep: Callable[[str, PolicyResult], S],
    write: Callable[[dict[str, S], list[str]], T],
) -> T:
    """Run all policies, write the completed ones, and re-raise errors and interrupts afterwards.

    `keep` takes the label and the result of a run, and returns what is kept of it; `write` takes what was kept, by
    label in the order of the batch, and the labels that are missing. It is called if any run is done.
    """
    kept: dict[str, S] = {}
    wrong: list[BaseException] = []
    with terminal.no_empty_folders(batch.folder), batch.alone(asked.force):
        for said in batch.resumed():
            terminal.say(said)
        batch.mark_begun()
        try:
            with progress_stage(_SIMULATING):
                report_part = _progress(batch.iterations * len(batch.labels), "iterations")
                for label, outcome in batch.outcomes(asked.jobs, report_part, asked.on):
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
            with terminal.sheltered(), progress_stage(1.0):
                written = write(done, missing)
        else:
            batch.mark_nothing()
        if not wrong:
            batch.remove_checkpoints()
    if wrong:
        _end(wrong, missing if done else None, batch, lasts=asked.out is not None)
    return written


def _progress(total: int, what: str) -> Callable[[Any, float], None]:
    """Return a callback that reports the share of all that is done, counting what has begun in part."""
    parts: dict[Any, float] = {}

    def report_part(part: Any, done: float) -> None:
        parts[part] = done
        count = sum(map(int, parts.values()))
        report_share(min(sum(parts.values()) / total, 1.0), f"{count:,}/{total:,} {what}")

    return report_part


def _end(wrong: Sequence[BaseException], missing: Sequence[str] | None, batch: Batch, *, lasts: bool) -> None:
    """Report unfinished runs and raise the errors; `missing` is None if no run was completed."""
    place = batch.place
    interrupted = isinstance(wrong[-1], KeyboardInterrupt)
    kept = lasts and interrupted and place.is_dir() and any(place.iterdir())
    goes_on = "; the same command goes on from there" if kept else ""
    if missing is not None and lasts:
        said = "interrupted" if interrupted else "stopped by an error"
        terminal.warn(f"{said}: {', '.join(missing)} not done, as the file {INCOMPLETE} says{goes_on}")
    elif interrupted:
        written = "no results were written" if goes_on else "nothing was written"
        terminal.warn(f"interrupted before anything was done; {written}{goes_on}")
    for error in wrong:
        if not isinstance(error, (SimnetError, KeyboardInterrupt)):
            raise error
    explained = "\n".join(dict.fromkeys(str(error) for error in wrong if isinstance(error, SimnetError)))
    if interrupted:
        if explained:
            terminal.warn(f"error: {explained}")
        raise wrong[-1]
    raise SimnetError(explained)


def _over_grid(source: Source, axes: Sequence[str], asked: _Asked) -> Summary:
    """Run a scenario over a grid of field values, and write the results folder."""
    from simnet.studies.sweeping import cell, work
    from simnet.studies.sweeping import grid as grids

    most = grids.MOST_CELLS if asked.force else grids.MAX_CELLS
    planned = work.plan(source, axes, most=most, seeds=asked.seeds)
    wanted, on, jobs = cell.request_of(planned.base, planned.axes), asked.on, asked.jobs
    kind, _, count = (on or "").partition(":")
    if kind == "processes" and count.isdecimal():
        on, jobs = None, int(count)
    with (
        _results_folder(asked, f"grid-{planned.base.name}", wanted, "sweep.csv") as folder,
        processes.Pool(0 if jobs == 1 else jobs or os.cpu_count() or 1) as pool,
        terminal.no_empty_folders(folder, work.CELLS),
        work.lock_sweep(folder),
    ):
        total = len(planned.cells)
        with progress_stage(_CHECKING):
            checks = work.check_cells(planned, folder, pool, _progress(total, "cells checked"))
        work.refuse_all(planned, checks)
        todo = work.CellProgress(planned, checks, folder, again=asked.force)
        if todo.there:
            terminal.say(f"{todo.there} of {total} cells are there already, {todo.missing} to run")
        return _run_cells(todo, pool, on)


def _run_cells(todo: CellProgress, pool: processes.Pool, on: str | None) -> Summary:
    """Run the pending cells of a grid, write the table, and re-raise any error afterwards."""
    failure: BaseException | None = None
    todo.mark("at work, or killed")
    try:
        with progress_stage(_SIMULATING):
            todo.run(pool, on, _progress(len(todo.planned.cells), "cells"))
    except (KeyboardInterrupt, Exception) as error:
        failure = error
    said = "interrupted" if isinstance(failure, KeyboardInterrupt) else "stopped by an error"
    if todo.results:
        with terminal.sheltered(), progress_stage(1.0):
            written = todo.write(said)
    else:
        todo.mark("")
    if failure is not None:
        if todo.results:
            terminal.warn(f"{said}: {todo.missing} cells not done, as the file {INCOMPLETE} says")
        elif isinstance(failure, KeyboardInterrupt):
            terminal.warn("interrupted before any cell was done")
        raise failure
    for trace in todo.failures[:1]:
        terminal.warn(trace)
    return written


def grid_texts(grid: Grid) -> list[str]:
    """Return grid axes as texts of the form ``field=values``, as for ``--grid``.

    Examples
    --------
    >>> grid_texts({"bandwidth": ["1 Gbit/s", "5 Gbit/s"], "density": [0.01]})
    ['bandwidth=1 Gbit/s,5 Gbit/s', 'density=0.01']
    """
    if isinstance(grid, str):
        return [grid]
    if not isinstance(grid, Mapping):
        return list(grid)
    return [f"{name}={values if isinstance(values, str) else _joined(values)}" for name, values in grid.items()]


def _joined(values: Sequence[object]) -> str:
    texts = [one.partition("=")[2] for value in values for one in set_texts({"": value})]
    if found := [one for one in texts if "," in one]:
        raise InputError(f"cannot hold a comma, got {found[0]!r}", file="--grid")
    return ",".join(texts)
