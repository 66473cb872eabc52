"""Runs the policies of a scenario, in this process or side by side in processes of their own.

Each process reads the scenario itself and runs one policy, so the results do not depend on how many there are. They
come back over a pipe; the end of a process without a result is noticed at once.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.resource_tracker as resource_tracker
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

from simnet.base.errors import SimnetError, plain_warnings
from simnet.base.threads import one_thread
from simnet.job import EVERY, Checkpoint, PolicyResult, run_policy
from simnet.policies import Policy
from simnet.scenario import Run, load

Progress: TypeAlias = Callable[[str, int], None]
"""Called with the name of a policy and the number of its iterations that are done."""

Outcome: TypeAlias = PolicyResult | SimnetError
"""What became of a policy: its result, or why it has none."""

_REPORT_EVERY = 0.1
_PRELOADED = ["simnet.scenario.runner", "pandas"]


@dataclass(frozen=True)
class Source:
    """What a process needs to read the scenario for itself: the arguments of `simnet.scenario.load`."""

    path: str | Path
    overrides: Sequence[str] = ()
    seed: int | None = None

    def build(self) -> Run:
        """Read and build the scenario."""
        return load(self.path, self.overrides, self.seed).build()


@dataclass(frozen=True)
class Checkpoints:
    """Where the policies of a scenario leave their checkpoints.

    Parameters
    ----------
    folder : Path
        The folder, which is there when they are written.
    identities : mapping of str to str
        What the result of each policy depends on; see `simnet.scenario.identity`.
    every : float
        Seconds between two of a policy.
    """

    folder: Path
    identities: Mapping[str, str]
    every: float = EVERY

    def of(self, policy: str) -> Checkpoint:
        """Return the checkpoint of a policy."""
        identity = self.identities[policy]
        return Checkpoint(self.folder / f"{identity}.safetensors", identity, self.every)


def run_here(run: Run, progress: Progress, checkpoints: Checkpoints | None = None) -> Iterator[tuple[str, Outcome]]:
    """Run one policy after the other in this process; yield each with what became of it."""
    for name, policy in run.policies.items():
        outcome: Outcome
        try:
            outcome = _run(run, name, policy, _of(name, progress), checkpoints)
        except SimnetError as error:
            outcome = error
        yield name, outcome


def results_of(run: Run) -> dict[str, PolicyResult]:
    """Return the results of all policies, run in this process one after the other.

    Raises
    ------
    SimnetError
        If a policy failed with one.
    """
    found = {}
    for name, outcome in run_here(run, lambda name, done: None):
        if isinstance(outcome, SimnetError):
            raise outcome
        found[name] = outcome
    return found


def run_apart(
    source: Source, policies: Sequence[str], jobs: int, progress: Progress, checkpoints: Checkpoints | None = None
) -> Iterator[tuple[str, Outcome]]:
    """Run policies in processes of their own, at most `jobs` at a time; yield each, when it ends, with its outcome.

    Parameters
    ----------
    source : Source
        The scenario.
    policies : sequence of str
        Which of its policies, the ones that take longest first.
    jobs : int
        How many at a time.
    progress : callable
        Called now and then.
    checkpoints : Checkpoints, optional
        From where policies go on, and where they leave what they have done.

    Raises
    ------
    RuntimeError
        If a policy failed otherwise than with a `SimnetError`; the message holds the traceback.
    """
    started_by = context()
    waiting = list(policies)
    running: dict[Connection, tuple[str, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                receiver, process = _start(started_by, source, name, checkpoints)
                running[receiver] = name, process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                name, process = running[ready]
                kind, content = _received(ready, name, process)
                if kind == "progress":
                    progress(name, content)
                elif kind == "failed":
                    raise RuntimeError(f"policy {name!r} failed in its process:\n{content}")
                else:
                    del running[ready]
                    ready.close()
                    process.join()
                    yield name, content
    finally:
        for receiver, (_, process) in running.items():
            process.terminate()
            receiver.close()
        for _, process in running.values():
            process.join()


def _received(ready: Connection, name: str, process: BaseProcess) -> tuple[str, Any]:
    """Return what a process has sent; where it has ended instead, the error that says so."""
    try:
        kind, content = ready.recv()
    except (EOFError, OSError):
        process.join()
        return "refused", SimnetError(f"the process of policy {name!r} {ending(process.exitcode)}")
    return kind, SimnetError(content) if kind == "refused" else content


def _run(
    run: Run, name: str, policy: Policy, progress: Callable[[int], None], checkpoints: Checkpoints | None
) -> PolicyResult:
    checkpoint = None if checkpoints is None else checkpoints.of(name)
    return run_policy(
        run.job,
        name,
        policy,
        timeline=run.timeline,
        progress=progress,
        colocated=run.colocated,
        checkpoint=checkpoint,
    )


def _of(name: str, progress: Progress) -> Callable[[int], None]:
    return lambda done: progress(name, done)


def context() -> BaseContext:
    """Return how processes are started: by a server that forks, where there is one."""
    # Forking a process that has threads can hang; a server that imported everything and did nothing else forks safely.
    if "forkserver" in multiprocessing.get_all_start_methods():
        found = multiprocessing.get_context("forkserver")
        found.set_forkserver_preload(_PRELOADED)
        return found
    return multiprocessing.get_context("spawn")


def _start(
    started_by: BaseContext, source: Source, policy: str, checkpoints: Checkpoints | None
) -> tuple[Connection, BaseProcess]:
    receiver, sender = started_by.Pipe(duplex=False)
    process: BaseProcess = started_by.Process(  # type: ignore[attr-defined]
        target=_work, args=(sender, source, policy, checkpoints), name=f"simnet {policy}", daemon=True
    )
    # The tracker that goes with the first process would let interrupts through again: start it before.
    resource_tracker.ensure_running()
    with interrupts_held_back(), one_thread():
        process.start()
    # With the only other copy of the sender in the process, its end closes the pipe.
    sender.close()
    return receiver, process


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Let what starts meanwhile inherit that Ctrl-C does not reach it: it is for this process to tidy up."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(sender: Connection, source: Source, policy: str, checkpoints: Checkpoints | None) -> None:
    """Run one policy and send its result; the life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    plain_warnings()
    reported = -1.0

    def progress(done: int) -> None:
        nonlocal reported
        if time.monotonic() - reported >= _REPORT_EVERY:
            reported = time.monotonic()
            sender.send(("progress", done))

    message: tuple[str, Any]
    try:
        run = source.build()
        message = ("result", _run(run, policy, run.policies[policy], progress, checkpoints))
    except SimnetError as error:
        message = ("refused", str(error))
    except BrokenPipeError:
        return
    except Exception:
        message = ("failed", traceback.format_exc())
    with suppress(BrokenPipeError):
        sender.send(message)


def end_with_parent() -> None:
    """End this process when the one that started it is gone, be it in the middle of its work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def ending(exitcode: int | None) -> str:
    """Say how a process ended that left no result."""
    if exitcode is not None and exitcode < 0:
        with suppress(ValueError):
            name = signal.Signals(-exitcode).name
            reason = "; it may have run out of memory: try --jobs 1" if name == "SIGKILL" else ""
            return f"was ended by {name}{reason}"
    return f"ended without a result (exit code {exitcode})"
