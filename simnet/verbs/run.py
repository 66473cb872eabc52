"""``simnet run``: policies of a scenario, or exchange schemes, simulated side by side, once or over a grid."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Unpack

from simnet.base import processes
from simnet.base.errors import InputError
from simnet.base.file_io import INCOMPLETE
from simnet.base.progress import progress_stage, report_share
from simnet.report.summary import Summary
from simnet.scenario.finding import Source
from simnet.scenario.marked_fields import Fields, overrides_of
from simnet.verbs import request, terminal
from simnet.verbs.request import Overrides, ScenarioSource, Words, scenario_path, set_texts, verb, word_list

if TYPE_CHECKING:
    from simnet.scenario.runner import Request
    from simnet.studies.runs import Batch
    from simnet.studies.sweeping.work import Cells

# About which share of the time simulating takes; the rest is writing.
_SIMULATING = 0.95
_MOST_SEEDS = 1000


class _Asked(NamedTuple):
    """Options of `simnet run`: number of seeds, where to run, how many runs at a time, and the results folder."""

    seeds: int
    on: str | None
    jobs: int | None
    out: str | Path | None
    force: bool


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
def _results_folder(asked: _Asked, usual: str, wanted: Request, written: str, what: tuple[str, str]) -> Iterator[Path]:
    """Yield the results folder (the user's, the default, or a temporary folder); print its path if it is kept."""
    # `what` works in it alone, and in a folder of that name inside.
    from simnet.scenario.runner import place_of
    from simnet.studies.runs import locked_folder

    own, named = Path(request.USUAL_FOLDER) / usual, asked.out != request.USUAL_FOLDER
    with TemporaryDirectory() if asked.out is None else nullcontext() as temporary:
        out = Path(str(asked.out)) if named else None
        folder = Path(temporary) if temporary else place_of(out, own, wanted, force=asked.force)
        with terminal.no_empty_folders(folder), locked_folder(folder, *what):
            yield folder
    if asked.out is not None:
        moved = "" if named or folder.name == usual else f"; {own} has the results of another request"
        terminal.say(f"wrote {folder / written}{moved}")


def _one_run(source: Source, asked: _Asked) -> Summary:
    """Run the policies of a scenario with one or several seeds, and write the results folder."""
    on = asked.on or ""
    if on.startswith("slurm"):
        raise InputError("is for the cells of a --grid; a single run takes processes:N or dask:", file=f"--on {on}")
    loaded = replace(source.load(), elsewhere=on.startswith("dask:"))
    from simnet.scenario import runner
    from simnet.studies import runs

    wanted = runner.request(loaded, "run", *([asked.seeds] if asked.seeds > 1 else []))
    report = loaded.config.output.report and asked.out is not None
    written = "report.html" if report else "summary.json"
    with _results_folder(asked, loaded.name, wanted, written, ("run", runs.CHECKPOINTS)) as folder:
        batch = runs.Batch(source, loaded, folder, asked.seeds, asked.jobs, asked.on)
        batch.report = report
        return _carry_out(batch, asked)


def _over_grid(source: Source, axes: Sequence[str], asked: _Asked) -> Summary:
    """Run a scenario for all combinations of field values, and write the results folder."""
    from simnet.studies.sweeping import cell, work
    from simnet.studies.sweeping import grid as grids

    most = grids.MOST_CELLS if asked.force else grids.MAX_CELLS
    planned = work.plan(source, axes, most=most, seeds=asked.seeds)
    wanted, on, jobs = cell.request_of(planned.base, planned.axes), asked.on, asked.jobs
    kind, _, count = (on or "").partition(":")
    if kind == "processes" and count.isdecimal():
        on, jobs = None, int(count)
    with (
        _results_folder(asked, f"grid-{planned.base.name}", wanted, "sweep.csv", ("sweep", work.CELLS)) as folder,
        processes.Pool(0 if jobs == 1 else jobs or os.cpu_count() or 1) as pool,
    ):
        return _carry_out(work.Cells(planned, folder, pool, on), asked)


def _carry_out(work: Batch | Cells, asked: _Asked) -> Summary:
    """Run all parts of a batch or grid, and write the results of finished parts, even after an error or Ctrl-C."""
    failure: BaseException | None = None
    for said in work.begin(asked.force):
        terminal.say(said)
    try:
        with progress_stage(_SIMULATING):
            work.run(_progress(work.total, work.unit))
    except (KeyboardInterrupt, Exception) as error:
        failure = error
    interrupted, lasts = isinstance(failure, KeyboardInterrupt), asked.out is not None
    how = "interrupted" if interrupted else "stopped by an error"
    with terminal.sheltered(), progress_stage(1.0):
        written = work.write(how)
    if failure is not None:
        goes_on = "; the same command goes on from there" if lasts and interrupted and work.resumes else ""
        if written is None and interrupted:
            said = "no results were" if goes_on else "nothing was"
            terminal.warn(f"interrupted before anything was done; {said} written{goes_on}")
        elif written is not None and lasts:
            terminal.warn(f"{how}: {', '.join(work.missing)} not done, as the file {INCOMPLETE} says{goes_on}")
    for said in work.errors if interrupted or failure is None else ():
        terminal.warn(f"error: {said}")
    if failure is not None:
        raise failure
    assert written is not None
    return written


def _progress(total: int, what: str) -> Callable[[Any, float], None]:
    """Return a callback that reports the share of work done, in which unfinished parts count partly."""
    parts: dict[Any, float] = {}

    def report_part(part: Any, done: float) -> None:
        parts[part] = done
        count = sum(map(int, parts.values()))
        report_share(min(sum(parts.values()) / total, 1.0), f"{count:,}/{total:,} {what}")

    return report_part


def grid_texts(grid: Grid) -> list[str]:
    """Return grid axes as texts ``field=values``, in the notation of ``--grid``.

    Examples
    --------
    >>> grid_texts({"bandwidth": ["1 Gbit/s", "5 Gbit/s"], "density": [0.01]})
    ['bandwidth=1 Gbit/s,5 Gbit/s', 'density=0.01']
    """
    if not isinstance(grid, Mapping):
        return [grid] if isinstance(grid, str) else list(grid)
    return [f"{name}={values if isinstance(values, str) else _joined(values)}" for name, values in grid.items()]


def _joined(values: Sequence[object]) -> str:
    texts = [one.partition("=")[2] for value in values for one in set_texts({"": value})]
    if found := [one for one in texts if "," in one]:
        raise InputError(f"cannot hold a comma, got {found[0]!r}", file="--grid")
    return ",".join(texts)
