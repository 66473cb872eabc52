"""A pool of worker processes that run one task after another.

A failed task, or a process that dies, does not affect other tasks. Workers end themselves when the parent dies.
"""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.resource_tracker as resource_tracker
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Literal, NamedTuple, TypeAlias

from simnet.base.errors import SimnetError, plain_warnings
from simnet.base.plugins import name_authors
from simnet.base.threads import one_thread

Report: TypeAlias = Callable[[Any], None]
"""Called by a task, as its last argument, with its progress."""

Progress: TypeAlias = Callable[[int, Any], None]
"""Called with the number of a task and its last progress."""

_REPORT_EVERY = 0.1


class TaskOutcome(NamedTuple):
    """Result of a task: ``done`` and its value, ``refused`` or ``failed`` and why, or ``lost`` if the process died."""

    kind: Literal["done", "refused", "failed", "lost"]
    content: Any


class Worker(NamedTuple):
    """A worker process. It repeatedly receives a function with arguments, calls it, and sends back a `TaskOutcome`."""

    connection: Connection
    process: BaseProcess

    def ended(self, remedy: str) -> str:
        """Return a phrase that says how the process ended, with `remedy` if it may have run out of memory."""
        self.process.join()
        self.connection.close()
        exitcode = self.process.exitcode
        if exitcode is not None and exitcode < 0:
            with suppress(ValueError):
                name = signal.Signals(-exitcode).name
                reason = f"; it may have run out of memory: {remedy}" if name == "SIGKILL" else ""
                return f"was ended by {name}{reason}"
        return f"ended without a result (exit code {exitcode})"


class Pool:
    """A context manager of up to `jobs` worker processes, which are reused; if `jobs` is 0, this process runs tasks."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._idle: list[Worker] = []
        self._busy: dict[Connection, tuple[int, Worker]] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *failure: object) -> None:
        end_workers([*self._idle, *(worker for _, worker in self._busy.values())])

    def each(
        self,
        work: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        progress: Progress,
        *,
        at_once: int | None = None,
        retry: bool = False,
    ) -> Iterator[tuple[int, TaskOutcome]]:
        """Run `work` on each task, in any order; yield the index and the `TaskOutcome` of each task.

        `work` is a module-level function, called with the arguments of a task, taken in this order, and a `Report`;
        `at_once` bounds concurrent tasks. With `retry` lost tasks run again one at a time, as they may have run out of
        memory together.
        """
        for number, task in enumerate(tasks if not self.jobs else ()):
            yield number, run_task(work, task, partial(progress, number))
        waiting = list(range(len(tasks)))[::-1] if self.jobs else []
        lost: list[int] = []
        while waiting or self._busy or lost:
            if not waiting and not self._busy:
                waiting, lost, at_once, retry = lost[::-1], [], 1, False
            while waiting and len(self._busy) < min(at_once or self.jobs, self.jobs):
                worker = self._idle.pop() if self._idle else start_worker(work.__module__)
                number = waiting.pop()
                self._busy[worker.connection] = number, worker
                # A process that has ended is noticed when it should answer.
                with suppress(OSError):
                    worker.connection.send((work, tasks[number]))
            for ready in wait(list(self._busy)):
                assert isinstance(ready, Connection)
                number, worker = self._busy[ready]
                try:
                    found = ready.recv()
                except (EOFError, OSError):
                    del self._busy[ready]
                    ending = worker.ended("try --jobs 1")
                    if retry:
                        lost.append(number)
                    else:
                        yield number, TaskOutcome("lost", f"its process {ending}")
                    continue
                if isinstance(found, TaskOutcome):
                    del self._busy[ready]
                    self._idle.append(worker)
                    yield number, found
                else:
                    progress(number, *found)


def run_task(work: Callable[..., Any], task: tuple[Any, ...], report: Report = lambda done: None) -> TaskOutcome:
    """Run a task in this process and return its outcome; errors become part of the outcome."""
    try:
        with name_authors():
            return TaskOutcome("done", work(*task, report))
    except SimnetError as error:
        return TaskOutcome("refused", str(error))
    except Exception:
        return TaskOutcome("failed", traceback.format_exc())


def _start_context(module: str) -> BaseContext:
    """Return the multiprocessing context: a fork server, which is safe with threads, if the system has one."""
    # Forking a process that has threads can hang; a server that imported everything and did nothing else forks safely.
    if "forkserver" in multiprocessing.get_all_start_methods():
        found = multiprocessing.get_context("forkserver")
        found.set_forkserver_preload([module, "pandas"])
        return found
    return multiprocessing.get_context("spawn")


def start_worker(module: str) -> Worker:
    """Start a worker process that preloads a module."""
    started_by = _start_context(module)
    ours, theirs = started_by.Pipe()
    process: BaseProcess = started_by.Process(  # type: ignore[attr-defined]
        target=_serve_tasks, args=(theirs,), name="simnet worker", daemon=True
    )
    # The tracker that goes with the first process would let interrupts through again: start it before.
    resource_tracker.ensure_running()
    with _interrupts_held_back(), one_thread():
        process.start()
    # With the only other copy of their end in the process, its end closes the pipe.
    theirs.close()
    return Worker(ours, process)


def end_workers(workers: Sequence[Worker]) -> None:
    """Terminate worker processes."""
    for worker in workers:
        worker.process.terminate()
        worker.connection.close()
    for worker in workers:
        worker.process.join()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Block SIGINT inside the block, so that processes started there ignore Ctrl-C; the parent ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve_tasks(connection: Connection) -> None:
    """Run the main loop of a worker process: receive tasks, run them and send their outcomes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    plain_warnings()
    reported = -math.inf

    def report(done: Any) -> None:
        nonlocal reported
        if time.monotonic() - reported >= _REPORT_EVERY:
            reported = time.monotonic()
            connection.send((done,))

    # Nobody is there any more when reading or writing fails.
    with suppress(EOFError, OSError):
        while True:
            work, task = connection.recv()
            # The first report of a task comes at once, however soon it follows another task.
            reported = -math.inf
            connection.send(run_task(work, task, report))


def _end_with_parent() -> None:
    """End this process when its parent dies."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, so that started processes are ended first."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    # Python lets no other thread take signals.
    here = threading.current_thread() is threading.main_thread()
    before = {one: signal.signal(one, leave) for one in (signal.SIGTERM, signal.SIGHUP) if here}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
