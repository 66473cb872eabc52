"""``simnet run``: policies of a scenario, or exchange schemes, simulated side by side, once or over a grid."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias, TypeVar, Unpack

from simnet.base import processes
from simnet.base.errors import InputError, SimnetError
from simnet.base.progress import progress_stage, report_share
from simnet.base.writing import INCOMPLETE
from simnet.report.summary import Summary
from simnet.scenario.finding import Source
from simnet.scenario.marked_fields import Fields, overrides_of
from simnet.verbs import terminal
from simnet.verbs.request import (
    USUAL_FOLDER,
    Overrides,
    ScenarioSource,
    Words,
    scenario_path,
    set_texts,
    verb,
    word_list,
)

if TYPE_CHECKING:
    from simnet.report.answers import RunAnswer
    from simnet.report.drawing import Plot
    from simnet.report.run_summary import RunSummary
    from simnet.scenario import Scenario
    from simnet.scenario.runner import Request
    from simnet.studies.runs import Batch, Seeds
    from simnet.studies.sweeping.work import CellProgress
    from simnet.training.job.record import PolicyResult

# About which share of the time simulating takes, and checking cells before; the rest is writing.
_SIMULATING, _CHECKING = 0.95, 0.05
_MOST_SEEDS = 1000

_How: TypeAlias = tuple[int | None, str | None, bool, bool]
"""Number of jobs, where they run (``--on``), whether to replace existing files, and whether the folder lasts."""

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
        if grid:
            return _over_grid(source, grid_texts(grid), seeds, on, jobs, out, force=force)
        return _one_run(source, seeds, on, jobs, out, force=force)


@contextmanager
def _results_folder(out: str | Path | None, usual: str, asked: Request, written: str, *, force: bool) -> Iterator[Path]:
    """Yield the results folder, named by the user, default or temporary; afterwards print its path if it lasts."""
    from simnet.scenario.runner import place_of

    if out is None:
        with TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    own = Path(USUAL_FOLDER) / usual
    folder = place_of(None if out == USUAL_FOLDER else Path(out), own, asked, force=force)
    yield folder
    moved = f"; {own} has the results of another request" if out == USUAL_FOLDER and folder.name != usual else ""
    terminal.say(f"wrote {folder / written}{moved}")


def _one_run(
    source: Source, seeds: int, on: str | None, jobs: int | None, out: str | Path | None, *, force: bool
) -> RunAnswer:
    """Run the policies of a scenario with one or several seeds, and write the results folder."""
    if on is not None and on.startswith("slurm"):
        raise InputError("is for the cells of a --grid; a single run takes processes:N or dask:", file=f"--on {on}")
    loaded = replace(source.load(), elsewhere=on is not None and on.startswith("dask:"))
    from simnet.scenario.runner import request
    from simnet.studies import runs

    asked = request(loaded, "run", *([seeds] if seeds > 1 else []))
    report = loaded.config.output.report and out is not None
    how = jobs, on, force, out is not None
    written = "report.html" if report else "summary.json"
    with _results_folder(out, loaded.name, asked, written, force=force) as folder:
        batch = runs.Batch(source, loaded, folder, seeds)
        if seeds == 1:
            return _one_seed(batch, how, source, loaded, report=report)
        return _several_seeds(batch, how, runs.Seeds(folder, loaded, asked.lock, report=report))


def _one_seed(batch: Batch, how: _How, source: Source, loaded: Scenario, *, report: bool) -> RunAnswer:
    from simnet.report import answers
    from simnet.studies import runs

    def write(done: dict[str, PolicyResult], missing: list[str]) -> tuple[RunSummary, Mapping[str, PolicyResult]]:
        return runs.write(batch.folder, loaded, batch.built, done, missing, source, report=report), done

    return answers.run_answer(*_carry_out(batch, how, lambda label, result: result, write))


def _several_seeds(batch: Batch, how: _How, kept: Seeds) -> RunAnswer:
    from simnet.report import answers
    from simnet.report.seeds import by_seed

    def keep(label: str, result: PolicyResult) -> None:
        name, seed = batch.labels[label]
        kept.take(seed, name, result)

    def figures() -> list[Plot]:
        from simnet.report.figures import seed_comparison

        return seed_comparison(summary, by_seed(kept.summaries))

    summary = _carry_out(batch, how, keep, lambda done, missing: kept.write(list(done), missing))
    return answers.seeds_answer(summary, figures)


def _carry_out(
    batch: Batch,
    how: _How,
    keep: Callable[[str, PolicyResult], S],
    write: Callable[[dict[str, S], list[str]], T],
) -> T:
    """Run all policies, write the completed ones, and re-raise errors and interrupts afterwards.

    `keep` takes the label and the result of a run, and returns what is kept of it; `write` takes what was kept, by
    label in the order of the batch, and the labels that are missing. It is called if any run is done.
    """
    jobs, on, force, lasts = how
    kept: dict[str, S] = {}
    wrong: list[BaseException] = []
    with terminal.no_empty_folders(batch.folder), batch.alone(force):
        for said in batch.resumed():
            terminal.say(said)
        batch.mark_begun()
        try:
            with progress_stage(_SIMULATING):
                for label, outcome in batch.outcomes(jobs, _progress(batch), on):
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
        _end(wrong, missing if done else None, batch, lasts=lasts)
    return written


def _progress(batch: Batch) -> Callable[[str, int], None]:
    """Return a callback that reports the share of completed iterations over all runs."""
    done = dict.fromkeys(batch.labels, 0)
    total = batch.iterations * len(done)

    def told(label: str, iterations: int) -> None:
        done[label] = iterations
        count = sum(done.values())
        report_share(count / total, f"{count:,}/{total:,} iterations")

    return told


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


def _over_grid(
    source: Source,
    axes: Sequence[str],
    seeds: int,
    on: str | None,
    jobs: int | None,
    out: str | Path | None,
    *,
    force: bool,
) -> Summary:
    """Run a scenario over a grid of field values, and write the results folder."""
    from simnet.studies.sweeping import cell, work
    from simnet.studies.sweeping import grid as grids

    most = grids.MOST_CELLS if force else grids.MAX_CELLS
    planned = work.plan(str(source.path), axes, source.overrides, source.seed, source.policies, most=most, seeds=seeds)
    asked = cell.request_of(planned.base, planned.axes)
    kind, _, count = (on or "").partition(":")
    if kind == "processes" and count.isdecimal():
        on, jobs = None, int(count)
    with (
        _results_folder(out, f"grid-{planned.base.name}", asked, "sweep.csv", force=force) as folder,
        processes.Pool(0 if jobs == 1 else jobs or os.cpu_count() or 1) as pool,
        terminal.no_empty_folders(folder, work.CELLS),
        work.lock_sweep(folder),
    ):
        total = len(planned.cells)
        with progress_stage(_CHECKING):
            checks = work.check_cells(planned, folder, pool, _cell_progress(total, "cells checked"))
        work.refuse_all(planned, checks)
        todo = work.CellProgress(planned, checks, folder, again=force)
        if todo.there:
            terminal.say(f"{todo.there} of {total} cells are there already, {todo.missing} to run")
        return _run_cells(todo, pool, on)


def _run_cells(todo: CellProgress, pool: processes.Pool, on: str | None) -> Summary:
    """Run the pending cells of a grid, write the table, and re-raise any error afterwards."""
    failure: BaseException | None = None
    todo.mark("at work, or killed")
    try:
        with progress_stage(_SIMULATING):
            todo.run(pool, on, _cell_progress(len(todo.planned.cells), "cells"))
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


def _cell_progress(total: int, what: str) -> Callable[[int, float], None]:
    """Return a callback that reports the share of completed cells, counting running cells in part."""
    shares: dict[int, float] = {}

    def told(number: int, share: float) -> None:
        shares[number] = share
        done = sum(one >= 1 for one in shares.values())
        report_share(min(sum(shares.values()) / total, 1.0), f"{done}/{total} {what}")

    return told


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
