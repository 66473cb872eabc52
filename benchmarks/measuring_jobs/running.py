"""Real jobs on a shaped network: what ranks do between messages is measured first, then the jobs are run."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from measuring_jobs import worker
from measuring_jobs.settings import CORES, Setting
from simnet.base.errors import InputError
from simnet.validate.shapednet.links import Change
from simnet.validate.shapednet.namespaces import IDLE, Star, shaped_star

LIMIT = 300.0
"""Seconds that the jobs of one call may take; ranks have a limit of as much processor time."""

WAITING = Change(0.0, 5e-3, IDLE[1])
"""Links on which work between messages is measured: who waits for messages finds caches and processor as in a job."""

_LOOK = 2e-3


def measure_work(models: Sequence[str], folder: Path) -> None:
    """Measure computing, updating and kernels, one process on each processor, and leave the figures in a folder."""
    with _ranks(CORES, worker.work, list(models), str(folder)) as (net, gate, check):
        net.change(WAITING)
        for _ in range(len(worker.worked(models)) + 2):
            _pass(gate, check)


def run(jobs: Sequence[tuple[Setting, str, Path]]) -> None:
    """Run jobs one after another, all with the same number of ranks.

    A job is its setting, the label of the exchange or the file of a policy, and the folder of the log.
    """
    listed = [(setting, exchange, str(folder)) for setting, exchange, folder in jobs]
    ranks = jobs[0][0].ranks
    with _ranks(ranks, worker.train, listed) as (net, gate, check):
        for setting, _, _ in jobs:
            for links in (Change(0.0, *IDLE), setting.links[0]):
                _pass(gate, check)
                net.change(links)
                _pass(gate, check)
            _change(net, setting.links[1:], gate)
        _pass(gate, check)


def _pass(gate: Barrier, check: Callable[[], None]) -> None:
    """Wait until all ranks are at the gate, and let them through."""
    stop = time.perf_counter() + LIMIT
    while gate.n_waiting < gate.parties - 1:
        check()
        if time.perf_counter() > stop:
            raise InputError(f"the ranks did not come within {LIMIT:.0f} s", file="shaped network")
        time.sleep(_LOOK)
    gate.wait()


def _change(net: Star, changes: Sequence[Change], gate: Barrier) -> None:
    """Change the links on time while the job runs; no rank waits at the gate."""
    origin = time.perf_counter()
    for one in changes:
        while (ahead := origin + one.at - time.perf_counter()) > 0 and not gate.n_waiting:
            time.sleep(min(ahead, _LOOK))
        if gate.n_waiting:
            return
        net.change(one)


@contextmanager
def _ranks(
    count: int, does: Callable[..., None], *arguments: Any
) -> Iterator[tuple[Star, Barrier, Callable[[], None]]]:
    """Start a process on each host of a star; yield the star, their gate, and what raises if one of them has failed."""
    context: ForkServerContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "simnet.cluster.hooks"])
    gate = context.Barrier(count + 1)
    started: list[ForkServerProcess] = []

    def check() -> None:
        if any(one.exitcode for one in started):
            raise InputError("a rank has failed; what it said is above", file="shaped network")

    with shaped_star(count, *IDLE) as net:
        try:
            for rank in range(count):
                place = worker.Place(rank, net.namespaces[rank], net.addresses[0], count, os.getpid(), LIMIT)
                started.append(context.Process(target=does, args=(place, gate, *arguments)))
                started[-1].start()
            yield net, gate, check
            for one in started:
                one.join(LIMIT)
            check()
        finally:
            for one in started:
                one.kill()
                one.join()
