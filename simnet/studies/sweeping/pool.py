"""Cells on the processors of this machine: processes that take one task after another.

A task that fails, or whose process ends, costs no other. When this process is killed, so that it cannot tell anybody,
the others notice that it is gone and end themselves.
"""

from __future__ import annotations

import multiprocessing.resource_tracker as resource_tracker
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeAlias

from simnet.base.errors import SimnetError, plain_warnings
from simnet.base.threads import one_thread
from simnet.scenario.runner import context, end_with_parent, ending, interrupts_held_back
from simnet.studies.sweeping import cell

Step: TypeAlias = Callable[[int, float], None]
"""Called with the number of a task and the share of it that is done."""

_REPORT_EVERY = 0.25


class Outcome(NamedTuple):
    """What came of a task: ``done`` with what it returned, ``refused`` or ``failed`` with why, ``lost`` with how.

    A task is lost if its process ended, which is no fault of the task: it may have been short of memory, or killed.
    """

    kind: str
    content: Any


class _Worker(NamedTuple):
    connection: Connection
    process: BaseProcess


class Pool:
    """Processes that stay for one task after another; used in a ``with`` block, at whose end they are ended.

    Parameters
    ----------
    jobs : int
        At most so many at a time.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._started_by = context()
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[int, _Worker]] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *failure: object) -> None:
        everyone = [*self._idle, *(worker for _, worker in self._busy.values())]
        for worker in everyone:
            worker.process.terminate()
            worker.connection.close()
        for worker in everyone:
            worker.process.join()

    def check(self, tasks: Sequence[cell.Task], folder: str, step: Step) -> Iterator[tuple[int, Outcome]]:
        """Check cells; yield the number of each with a `cell.Checked`, in any order."""
        return self._each("check", [(task, folder, self._jobs) for task in tasks], self._jobs, step)

    def answer(self, tasks: Sequence[tuple[cell.Task, str]], at_once: int, step: Step) -> Iterator[tuple[int, Outcome]]:
        """Run cells with their identities, at most `at_once`; yield the number of each with its bytes, in any order.

        Those whose process ended are tried once more, one at a time, as they may have been short of memory together.
        """
        lost = []
        for number, outcome in self._each("answer", tasks, min(at_once, self._jobs), step):
            if outcome.kind == "lost":
                lost.append(number)
            else:
                yield number, outcome
        for number in lost:
            for _, outcome in self._each("answer", [tasks[number]], 1, _of(number, step)):
                yield number, outcome

    def _each(
        self, what: str, tasks: Sequence[tuple[Any, ...]], at_once: int, step: Step
    ) -> Iterator[tuple[int, Outcome]]:
        waiting = list(range(len(tasks)))[::-1]
        while waiting or self._busy:
            while waiting and len(self._busy) < at_once:
                worker = self._idle.pop() if self._idle else _start(self._started_by)
                number = waiting.pop()
                self._busy[worker.connection] = number, worker
                # A process that has ended is noticed when it should answer.
                with suppress(OSError):
                    worker.connection.send((what, tasks[number]))
            for ready in wait(list(self._busy)):
                assert isinstance(ready, Connection)
                number, worker = self._busy[ready]
                try:
                    kind, content = ready.recv()
                except (EOFError, OSError):
                    del self._busy[ready]
                    worker.process.join()
                    ready.close()
                    yield number, Outcome("lost", f"its process {ending(worker.process.exitcode)}")
                    continue
                if kind == "progress":
                    step(number, content)
                    continue
                del self._busy[ready]
                self._idle.append(worker)
                yield number, Outcome(kind, content)


def _of(number: int, step: Step) -> Step:
    return lambda _, share: step(number, share)


def _start(started_by: BaseContext) -> _Worker:
    ours, theirs = started_by.Pipe()
    process: BaseProcess = started_by.Process(  # type: ignore[attr-defined]
        target=_work, args=(theirs,), name="simnet sweep", daemon=True
    )
    # The tracker that goes with the first process would let interrupts through again: start it before.
    resource_tracker.ensure_running()
    with interrupts_held_back(), one_thread():
        process.start()
    # With the only other copy of their end in the process, its end closes the pipe.
    theirs.close()
    return _Worker(ours, process)


def _work(connection: Connection) -> None:
    """Do one task after another; the life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    plain_warnings()
    reported = -1.0

    def progress(share: float) -> None:
        nonlocal reported
        if time.monotonic() - reported >= _REPORT_EVERY:
            reported = time.monotonic()
            connection.send(("progress", share))

    # Nobody is there any more when reading or writing fails.
    with suppress(EOFError, OSError):
        while True:
            what, arguments = connection.recv()
            if what == "check":
                connection.send(_check(*arguments))
            else:
                task, identity = arguments
                connection.send(cell.answer(task, identity, progress))


def _check(*arguments: Any) -> tuple[str, Any]:
    try:
        return "done", cell.check(*arguments)
    except SimnetError as error:
        return "refused", str(error)
    except Exception:
        return "failed", traceback.format_exc()
