"""Sweep cells on a Slurm or Dask cluster, with the same results as on one machine.

The files that the scenario names, and simnet, must be where the nodes find them under the same path. Slurm jobs leave
what they return in the folder of the results, which the nodes share.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from simnet.base.dask_cluster import connect_dask
from simnet.base.errors import InputError, suggest_names, to_install
from simnet.base.processes import TaskOutcome, run_task
from simnet.base.threads import THREADS
from simnet.scenario.finding import Source
from simnet.studies.sweeping import cell

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
