"""Execution of a sweep: planned cells, their checks, and the cells left to run."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from simnet.base.dask_cluster import connect_dask
from simnet.base.errors import InputError, suggest_names, to_install
from simnet.base.processes import Pool, Progress, TaskOutcome, run_task
from simnet.base.threads import THREADS
from simnet.base.writing import explain_write_errors, lock_folder, mark_incomplete, write_files
from simnet.report.results import prepare_folder
from simnet.scenario import Scenario, find
from simnet.scenario.finding import Source
from simnet.studies.sweeping import cell, grid
from simnet.studies.sweeping.answer import GridAnswer

PREFIX = "slurm"
"""Prefix of a scheduler text: ``slurm``, or ``slurm:partition=long,jobs=32``."""

FIELDS = {
    "jobs": int,
    "at_once": int,
    "timeout_min": int,
    "cpus_per_task": int,
    "mem_gb": int,
    "partition": str,
    "account": str,
    "qos": str,
}
"""What may be said of the jobs: how many, how many of them at once, the limit of each [minute], processors, memory
[GB], and where they run."""

_JOBS = 16
_OF_SLURM = {"partition": "slurm_partition", "account": "slurm_account", "qos": "slurm_qos"}
_LOOK = 1.0


class SchedulerChoice(NamedTuple):
    """Parsed scheduler text: the number of jobs, and submitit parameters."""

    jobs: int
    parameters: dict[str, Any]


def asked(scheduler: str) -> SchedulerChoice:
    """Return the number of jobs and the Slurm parameters in a scheduler text.

    Examples
    --------
    >>> asked("slurm:partition=long,jobs=4")
    SchedulerChoice(jobs=4, parameters={'slurm_partition': 'long'})
    """
    found: dict[str, Any] = {}
    for part in filter(None, scheduler.removeprefix(PREFIX).removeprefix(":").split(",")):
        name, _, value = part.partition("=")
        if name not in FIELDS or not value:
            known = suggest_names(name, FIELDS)
            raise InputError(f"{part!r} is no FIELD=VALUE of a Slurm job; {known}", file=f"--on {scheduler}")
        if FIELDS[name] is int and not (value.isascii() and value.isdigit() and 0 < int(value[:9]) == int(value)):
            raise InputError(f"{name} must be a whole number > 0, got {value!r}", file=f"--on {scheduler}")
        found[name] = FIELDS[name](value)
    jobs, at_once = found.pop("jobs", _JOBS), found.pop("at_once", None)
    parameters = {_OF_SLURM.get(name, name): value for name, value in found.items()}
    return SchedulerChoice(jobs, parameters if at_once is None else parameters | {"slurm_array_parallelism": at_once})


def run_share(tasks: Sequence[tuple[Source, str]]) -> list[TaskOutcome]:
    """Run the cells assigned to one job in sequence, and return their outcomes."""
    return [run_task(cell.run_cell, task) for task in tasks]


def run_on_slurm(
    tasks: Sequence[tuple[Source, str]], scheduler: str, folder: Path, cluster: str = "slurm"
) -> Iterator[tuple[int, TaskOutcome]]:
    """Run cells, given with identities, in Slurm jobs; yield index and outcome of each as jobs finish."""
    option = f"--on {scheduler}"
    wanted = asked(scheduler)
    try:
        import submitit
    except ImportError:
        raise InputError(f"needs submitit: {to_install('slurm')}", file=option) from None
    shares = [range(first, len(tasks), wanted.jobs) for first in range(min(wanted.jobs, len(tasks)))]
    jobs: list[Any] = []
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        # As on one machine: with several threads sums of linear algebra have other last digits.
        setup = [f"export {name}=1" for name in THREADS]
        executor.update_parameters(name="simnet-sweep", slurm_setup=setup, **wanted.parameters)
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
    """Return the outcomes of a finished job's cells; all lost if the job failed."""
    failure = job.exception()
    if failure is None:
        outcomes: list[TaskOutcome] = job.result()
        return outcomes
    why = " ".join(str(failure).strip().splitlines()[:2])
    return [TaskOutcome("lost", f"the job did not finish it: {why or repr(failure)}")] * count


def run_on_dask(tasks: Sequence[tuple[Source, str]], scheduler: str) -> Iterator[tuple[int, TaskOutcome]]:
    """Run cells, given with identities, on a Dask cluster; yield index and outcome of each, in any order."""
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


@contextmanager
def lock_sweep(folder: Path) -> Iterator[None]:
    """Create and lock the output folder for the block; InputError if another sweep uses it."""
    prepare_folder(folder)
    with explain_write_errors(folder / CELLS):
        (folder / CELLS).mkdir(exist_ok=True)
    with lock_folder(folder, "sweep", (CELLS,)):
        yield


def stored_rows(folder: Path, identity: str) -> list[dict[str, Any]] | None:
    """Return the rows of a cell's results file; None if missing or incomplete."""
    try:
        return cell.decoded((folder / CELLS / f"{identity}.json").read_bytes(), identity)
    except OSError:
        return None


@dataclass(frozen=True)
class Plan:
    """A planned sweep: the base scenario, axes, cells, and the source of each cell's scenario.

    `zipped` says that some parameters vary together.
    """

    base: Scenario
    axes: list[grid.GridAxis]
    cells: list[grid.GridCell]
    tasks: list[Source]
    zipped: bool

    @property
    def columns(self) -> list[grid.AxisColumn]:
        """Parameters as table columns."""
        return grid.axis_columns(self.axes, self.cells, ("cell", *cell.COLUMNS))


@dataclass
class Checks:
    """Results of checking the cells, by index: identities of valid cells, errors of others."""

    identities: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    at_once: int = 1_000_000


def plan(source: Source, parameters: Sequence[str], *, most: int = grid.MAX_CELLS, seeds: int = 1) -> Plan:
    """Return the planned sweep of a scenario over parameters."""
    groups = [grid.moving_together(one) for one in parameters]
    axes = [one for group in groups for one in group]
    asked = math.prod(len(group[0].values) for group in groups) * seeds
    if asked > most:
        more = "; --force runs them" if asked <= grid.MOST_CELLS else ""
        raise InputError(f"there are {asked:,} cells, more than {most:,}{more}", file="--grid")
    base = source.load()
    cells = grid.grid_cells(source, base, groups)
    if source.seed is not None and any(one.startswith("seed=") for one in cells[0].overrides):
        raise InputError("is a parameter already", file="--seed")
    # Processes elsewhere have folders of their own to start from.
    found = find(source.path)
    path = str(found.resolve()) if found == Path(source.path) else source.path
    # What is drawn does not alter what is simulated.
    plain = "output={timeline: 0, report: false}"
    tasks = [
        replace(source, path=path, overrides=(*source.overrides, *one.overrides, plain), later=later)
        for one in cells
        for later in range(seeds)
    ]
    grid.refuse_wrong_values([one.values for one in cells], lambda number: tasks[number * seeds].load())
    if seeds > 1:
        if any(field.startswith("seed=") for field in cells[0].overrides):
            raise InputError("means nothing where seed is a parameter", file="--seeds")
        values = tuple(str(base.config.seed + later) for later in range(seeds))
        axes = [*axes, grid.GridAxis("seed", values)]
        cells = [
            grid.GridCell(one.number * seeds + later, (*one.values, value), (*one.overrides, f"seed={value}"))
            for one in cells
            for later, value in enumerate(values)
        ]
    return Plan(base, axes, cells, tasks, any(len(group) > 1 for group in groups))


def check_cells(planned: Plan, place: Path, workers: Pool, progress: Progress) -> Checks:
    """Check every cell by loading and building it, unless its results exist."""
    found = Checks()
    cells = str((place / CELLS).resolve())
    tasks = [(source, cells, workers.jobs) for source in planned.tasks]
    for number, outcome in workers.each(cell.check_cell, tasks, progress):
        if outcome.kind == "done":
            found.identities[number] = outcome.content.identity
            found.at_once = min(found.at_once, outcome.content.at_once)
        elif outcome.kind == "failed":
            raise RuntimeError(f"checking cell {number} ({planned.cells[number]}) failed:\n{outcome.content}")
        elif outcome.kind == "lost":
            # It may make sense, but not in the memory that there is.
            found.refused[number] = f"could not be checked: {outcome.content}"
        else:
            said = str(outcome.content)
            for one in planned.cells[number].overrides:
                said = said.replace(f"--set {one}:", f"--grid {one}:")
            found.refused[number] = said
        progress(number, 1.0)
    return found


def refuse_all(planned: Plan, checks: Checks) -> None:
    """Raise InputError if no cell is valid."""
    if len(checks.refused) < len(planned.cells):
        return
    said = list(dict.fromkeys(checks.refused[number] for number in sorted(checks.refused)))
    if len(said) == 1:
        raise InputError(said[0])
    more = [f"... and {len(said) - _LISTED} more"] if len(said) > _LISTED else []
    raise InputError("\n  ".join([f"none of the {len(planned.cells)} cells makes sense", *said[:_LISTED], *more]))


class CellProgress:
    """Finished and remaining cells of a sweep; `again` reruns cells whose results exist."""

    def __init__(self, planned: Plan, checks: Checks, place: Path, *, again: bool = False) -> None:
        self.planned, self.checks, self.place = planned, checks, place
        self.results = {one: cell.without_result("refused", _worker_line(said)) for one, said in checks.refused.items()}
        self.failures: list[str] = []
        # Values may be written differently and mean the same cell.
        self._numbers: dict[str, list[int]] = {}
        for number in sorted(checks.identities):
            self._numbers.setdefault(checks.identities[number], []).append(number)
        for identity, numbers in self._numbers.items():
            rows = None if again else stored_rows(place, identity)
            if rows is not None:
                self.results |= dict.fromkeys(numbers, rows)
        self.there = len(self.results) - len(checks.refused)
        # In the order of a hash: long cells and short ones mix, so that the time left can be told from that past.
        self.waiting = sorted(one for one, numbers in self._numbers.items() if numbers[0] not in self.results)

    @property
    def missing(self) -> int:
        """Number of unfinished cells."""
        return len(self.planned.cells) - len(self.results)

    def run(self, workers: Pool, scheduler: str | None, progress: Progress) -> None:
        """Run the remaining cells, and write each results file when its cell finishes."""
        if not self.waiting:
            return
        tasks = [(self.planned.tasks[self._numbers[one][0]], one) for one in self.waiting]
        if scheduler is None:
            outcomes = workers.each(cell.run_cell, tasks, progress, at_once=self.checks.at_once, retry=True)
        elif scheduler.partition(":")[0] == PREFIX:
            outcomes = run_on_slurm(tasks, scheduler, self.place / "slurm")
        else:
            outcomes = run_on_dask(tasks, scheduler)
        for number, outcome in outcomes:
            self._take(self.waiting[number], outcome)
            progress(number, 1.0)

    def mark(self, why: str) -> None:
        """Write a marker file with the number of missing cells and the reason; remove it if complete."""
        mark_incomplete(self.place, self._missing(why))

    def _missing(self, why: str) -> str:
        said = f"{why}: {self.missing} of {len(self.planned.cells)} cells missing; the same command goes on from here"
        return said if why else ""

    def write(self, why: str = "") -> GridAnswer:
        """Write the sweep's files for the finished cells, and return the answer."""
        return cell.write_sweep(
            self.place, self.planned, self.results, incomplete=self._missing(why if self.missing else "")
        )

    def _take(self, identity: str, outcome: TaskOutcome) -> None:
        rows: list[dict[str, Any]] | None = None
        if outcome.kind == "done":
            rows = cell.decoded(outcome.content, identity)
            if rows is not None:
                write_files(self.place / CELLS, {f"{identity}.json": outcome.content})
        elif outcome.kind == "failed":
            self.failures.append(outcome.content)
        if rows is None:
            # No file is written, as this may go better another time.
            status = "refused" if outcome.kind == "refused" else "failed"
            said = "what came back is not whole" if outcome.kind == "done" else str(outcome.content).strip()
            rows = cell.without_result(
                status, said.splitlines()[-1] if outcome.kind == "failed" else _worker_line(said)
            )
        self.results |= dict.fromkeys(self._numbers[identity], rows)


def _worker_line(said: str) -> str:
    return "; ".join(line.strip() for line in said.splitlines())
