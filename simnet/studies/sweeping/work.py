"""Execution of a sweep: plans its cells, checks their scenarios, and runs those without results."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from simnet.base.dask_cluster import connect_dask
from simnet.base.errors import InputError, import_extra, suggest_names
from simnet.base.file_io import mark_incomplete, write_files
from simnet.base.processes import Pool, Progress, TaskOutcome, run_task
from simnet.base.progress import progress_stage, report_share
from simnet.base.threads import THREADS
from simnet.scenario import Scenario, find
from simnet.scenario.finding import Source
from simnet.studies.sweeping import cell, grid
from simnet.studies.sweeping.answer import GridAnswer

PREFIX = "slurm"
"""Prefix of a scheduler text: ``slurm``, or ``slurm:partition=long,jobs=32``."""

FIELDS = {
    "jobs": "jobs",
    "at_once": "slurm_array_parallelism",
    "timeout_min": "timeout_min",
    "cpus_per_task": "cpus_per_task",
    "mem_gb": "mem_gb",
    "partition": "slurm_partition",
    "account": "slurm_account",
    "qos": "slurm_qos",
}
"""What may be said of the jobs, and its name in submitit: how many, how many of them at once, the limit of each
[minute], processors, memory [GB], and where they run."""

_TEXTS = ("partition", "account", "qos")
_JOBS, _LOOK = 16, 1.0


def slurm_parameters(scheduler: str) -> tuple[int, dict[str, Any]]:
    """Return the number of jobs and the Slurm parameters in a text such as ``slurm:jobs=4``.

    Examples
    --------
    >>> slurm_parameters("slurm:partition=long,jobs=4")
    (4, {'slurm_partition': 'long'})
    """
    found: dict[str, Any] = {}
    for part in filter(None, scheduler.removeprefix(PREFIX).removeprefix(":").split(",")):
        name, _, value = part.partition("=")
        if name not in FIELDS or not value:
            known = suggest_names(name, FIELDS)
            raise InputError(f"{part!r} is no FIELD=VALUE of a Slurm job; {known}", file=f"--on {scheduler}")
        if name not in _TEXTS and not re.fullmatch(r"[1-9][0-9]{0,8}", value):
            raise InputError(f"{name} must be a whole number > 0, got {value!r}", file=f"--on {scheduler}")
        found[FIELDS[name]] = value if name in _TEXTS else int(value)
    return found.pop("jobs", _JOBS), found


def run_share(tasks: Sequence[tuple[Source, str]]) -> list[TaskOutcome]:
    """Run the cells of one Slurm job one after the other, and return their outcomes."""
    return [run_task(cell.run_cell, task) for task in tasks]


def run_on_slurm(
    tasks: Sequence[tuple[Source, str]], scheduler: str, folder: Path, cluster: str = "slurm"
) -> Iterator[tuple[int, TaskOutcome]]:
    """Run cells in Slurm jobs; yield the index and outcome of each cell as jobs finish."""
    option = f"--on {scheduler}"
    count, parameters = slurm_parameters(scheduler)
    submitit = import_extra("submitit", "slurm", "needs submitit", option)
    shares = [range(first, len(tasks), count) for first in range(min(count, len(tasks)))]
    jobs: list[Any] = []
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        # As on one machine: with several threads sums of linear algebra have other last digits.
        setup = [f"export {name}=1" for name in THREADS]
        executor.update_parameters(name="simnet-sweep", slurm_setup=setup, **parameters)
        jobs = executor.map_array(run_share, [[tasks[number] for number in share] for share in shares])
    except (RuntimeError, OSError, submitit.core.utils.FailedJobError) as failure:
        raise InputError(f"cannot submit jobs: {failure}", file=option) from None
    waiting = dict(enumerate(jobs))
    try:
        while waiting:
            done = [number for number, job in waiting.items() if job.done()]
            for number in done:
                yield from zip(shares[number], _outcomes(waiting.pop(number), len(shares[number])), strict=True)
            if not done:
                time.sleep(_LOOK)
    finally:
        for job in waiting.values():
            with suppress(Exception):
                job.cancel()
        shutil.rmtree(folder, ignore_errors=True)


def _outcomes(job: Any, count: int) -> list[TaskOutcome]:
    """Return the outcomes of the cells of a finished job; all cells are lost if the job failed."""
    failure = job.exception()
    if failure is None:
        outcomes: list[TaskOutcome] = job.result()
        return outcomes
    why = " ".join(str(failure).strip().splitlines()[:2])
    return [TaskOutcome("lost", f"the job did not finish it: {why or repr(failure)}")] * count


def run_on_dask(tasks: Sequence[tuple[Source, str]], scheduler: str) -> Iterator[tuple[int, TaskOutcome]]:
    """Run cells on a Dask cluster; yield the index and outcome of each cell, in any order."""
    with connect_dask(scheduler.removeprefix("dask:"), f"--on {scheduler}") as client:
        from distributed import as_completed

        futures: list[Any] = []
        try:
            # The same cell under the same name: the scheduler runs it once, whoever asks.
            futures = client.map(
                partial(run_task, cell.run_cell),
                list(tasks),
                key=[f"simnet-{identity}" for _, identity in tasks],
            )
            numbers = {future.key: number for number, future in enumerate(futures)}
            for future in as_completed(futures, loop=client.loop):
                if future.status == "finished":
                    yield numbers[future.key], future.result()
                else:
                    why = "cancelled" if future.cancelled() else repr(future.exception())
                    yield numbers[future.key], TaskOutcome("lost", f"the cluster did not finish it: {why}")
                # Its bytes are no longer needed there.
                future.release()
        finally:
            # Whatever has become of the scheduler meanwhile.
            with suppress(Exception):
                client.cancel([future for future in futures if not future.done()])


CELLS = "cells"
"""Name of the folder of cell files."""

_LISTED = 20
# About which share of the time checking takes.
_CHECKING = 0.05


@dataclass(frozen=True)
class Plan:
    """Planned sweep: the base scenario, axes, cells, and how to load each cell's scenario.

    `zipped` says that some parameters vary together.
    """

    base: Scenario
    axes: list[grid.GridAxis]
    cells: list[grid.GridCell]
    tasks: list[Source]
    zipped: bool

    @property
    def columns(self) -> list[grid.AxisColumn]:
        """Axes of the grid as table columns."""
        return grid.axis_columns(self.axes, self.cells, ("cell", *cell.COLUMNS))


def plan(source: Source, parameters: Sequence[str], *, most: int = grid.MAX_CELLS, seeds: int = 1) -> Plan:
    """Return the sweep of a scenario over `parameters`, planned but not run."""
    base = source.load()
    if seeds > 1:
        own = ",".join(str(base.config.seed + later) for later in range(seeds))
        parameters, source = [*parameters, f"seed={own}"], replace(source, seed=None)
    groups = [grid.moving_together(one) for one in parameters]
    asked = math.prod(len(group[0].values) for group in groups)
    if asked > most:
        more = "; --force runs them" if asked <= grid.MOST_CELLS else ""
        raise InputError(f"there are {asked:,} cells, more than {most:,}{more}", file="--grid")
    cells = grid.grid_cells(source, base, groups)
    if source.seed is not None and any(one.startswith("seed=") for one in cells[0].overrides):
        raise InputError("is a parameter already", file="--seed")
    # Processes elsewhere have folders of their own to start from.
    found = find(source.path)
    path = str(found.resolve()) if found == Path(source.path) else source.path
    # What is drawn does not alter what is simulated.
    plain = "output={timeline: 0, report: false}"
    tasks = [replace(source, path=path, overrides=(*source.overrides, *one.overrides, plain)) for one in cells]
    axes = [one for group in groups for one in group]
    checked = len(axes) - (seeds > 1)
    grid.refuse_wrong_values([one.values[:checked] for one in cells], lambda number: tasks[number].load())
    return Plan(base, axes, cells, tasks, any(len(group) > 1 for group in groups))


class Cells:
    """Cells of a sweep in a folder: cells with invalid scenarios, cells with results, and cells to run."""

    unit = "cells"

    def __init__(self, planned: Plan, place: Path, workers: Pool, on: str | None = None) -> None:
        self.planned, self.place, self.total = planned, place, len(planned.cells)
        self.errors: list[str] = []
        """Traceback of a cell that failed, if any did."""
        self._workers, self._on, self._at_once = workers, on, grid.MOST_CELLS
        self._results: dict[int, list[dict[str, Any]]] = {}
        # Indices by identity: values may be written differently and mean the same cell.
        self._numbers: dict[str, list[int]] = {}

    def begin(self, force: bool = False) -> list[str]:
        """Check all cells, and mark the folder as in use; return a sentence on cells that have results.

        `force` reruns cells with results. InputError if no cell makes sense.
        """
        with progress_stage(_CHECKING):
            refused = self._check()
        if len(refused) == self.total:
            said = list(dict.fromkeys(refused[number] for number in sorted(refused)))
            more = [f"... and {len(said) - _LISTED} more"] if len(said) > _LISTED else []
            title = [f"none of the {self.total} cells makes sense"] if len(said) > 1 else []
            raise InputError("\n  ".join([*title, *said[:_LISTED], *more]))
        self._results = {one: cell.without_result("refused", _worker_line(said)) for one, said in refused.items()}
        for identity, numbers in self._numbers.items():
            with suppress(OSError):
                rows = None if force else cell.decoded((self.place / CELLS / f"{identity}.json").read_bytes(), identity)
                self._results |= {} if rows is None else dict.fromkeys(numbers, rows)
        there, left = len(self._results) - len(refused), self.total - len(self._results)
        mark_incomplete(self.place, self._marked("at work, or killed"))
        return [f"{there} of {self.total} cells are there already, {left} to run"] if there else []

    def _check(self) -> dict[int, str]:
        """Load and build every cell without results; return errors of invalid cells, by index."""
        refused, identities = dict[int, str](), dict[int, str]()
        tasks = [(source, str((self.place / CELLS).resolve()), self._workers.jobs) for source in self.planned.tasks]
        checked = self._workers.each(cell.check_cell, tasks, lambda number, done: None)
        for count, (number, outcome) in enumerate(checked, 1):
            if outcome.kind == "done":
                identities[number] = outcome.content.identity
                self._at_once = min(self._at_once, outcome.content.at_once)
            elif outcome.kind == "failed":
                raise RuntimeError(f"checking cell {number} ({self.planned.cells[number]}) failed:\n{outcome.content}")
            else:
                # One that is lost may make sense, but not in the memory that there is.
                said = f"could not be checked: {outcome.content}" if outcome.kind == "lost" else str(outcome.content)
                for one in self.planned.cells[number].overrides:
                    said = said.replace(f"--set {one}:", f"--grid {one}:")
                refused[number] = said
            report_share(count / self.total, f"{count:,}/{self.total:,} cells checked")
        for number in sorted(identities):
            self._numbers.setdefault(identities[number], []).append(number)
        return refused

    @property
    def missing(self) -> list[str]:
        """Texts on how many cells have no result."""
        return [f"{self.total - len(self._results)} cells"]

    @property
    def resumes(self) -> bool:
        """Whether some cells have results; if so, the same command does not run these cells again."""
        return any((self.place / CELLS).iterdir())

    def run(self, progress: Progress) -> None:
        """Run the cells that remain, and write the results file of each when it finishes."""
        # In the order of a hash: long cells and short ones mix, so that the time left can be told from that past.
        waiting = sorted(one for one, numbers in self._numbers.items() if numbers[0] not in self._results)
        tasks = [(self.planned.tasks[self._numbers[one][0]], one) for one in waiting]
        if self._on is None or not waiting:
            outcomes = self._workers.each(cell.run_cell, tasks, progress, at_once=self._at_once, retry=True)
        elif self._on.partition(":")[0] == PREFIX:
            outcomes = run_on_slurm(tasks, self._on, self.place / "slurm")
        else:
            outcomes = run_on_dask(tasks, self._on)
        for number, outcome in outcomes:
            self._take(waiting[number], outcome)
            progress(number, 1.0)

    def write(self, why: str = "") -> GridAnswer | None:
        """Write the sweep's files for finished cells, and return the answer; None if no cell is finished."""
        if not self._results:
            mark_incomplete(self.place, "")
            return None
        marked = self._marked(why) if len(self._results) < self.total else ""
        return cell.write_sweep(self.place, self.planned, self._results, incomplete=marked)

    def _marked(self, why: str) -> str:
        missing = self.total - len(self._results)
        return f"{why}: {missing} of {self.total} cells missing; the same command goes on from here"

    def _take(self, identity: str, outcome: TaskOutcome) -> None:
        rows: list[dict[str, Any]] | None = None
        if outcome.kind == "done":
            rows = cell.decoded(outcome.content, identity)
            if rows is not None:
                write_files(self.place / CELLS, {f"{identity}.json": outcome.content})
        elif outcome.kind == "failed":
            self.errors = self.errors or [outcome.content]
        if rows is None:
            # No file is written, as this may go better another time.
            status = "refused" if outcome.kind == "refused" else "failed"
            said = "what came back is not whole" if outcome.kind == "done" else str(outcome.content).strip()
            rows = cell.without_result(
                status, said.splitlines()[-1] if outcome.kind == "failed" else _worker_line(said)
            )
        self._results |= dict.fromkeys(self._numbers[identity], rows)


def _worker_line(said: str) -> str:
    return "; ".join(line.strip() for line in said.splitlines())
