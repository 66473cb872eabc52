"""Starts shards: processes or Dask actors that together store arrays with a row per worker, some rows each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from simnet.base.dask_cluster import connect_dask
from simnet.base.errors import InputError, SimnetError
from simnet.base.processes import Report, TaskOutcome, Worker, end_workers, start_worker
from simnet.base.rows import Ask, Separable, Shard, Shards


@contextmanager
def open_shards(source: Separable, where: str) -> Iterator[Shards]:
    """Context manager: processes or Dask actors that each draw the gradients of some of the workers from `source`.

    `where` is ``processes:4``, or ``dask:tcp://10.0.0.1:8786`` for a shard per Dask worker. InputError if neither, if
    Dask is not installed, or the scheduler does not answer.
    """
    kind, _, rest = where.partition(":")
    if kind == "dask" and rest:
        with _on_dask(source, rest) as asks:
            yield Shards(source, asks)
        return
    if kind != "processes" or not rest.isdecimal() or len(rest) > 9 or not int(rest):
        raise InputError(f"got {where!r}, must be processes:N or dask:tcp://HOST:PORT", file="--on")
    processes: list[Worker] = []
    try:
        count = min(int(rest), source.workers)
        # One after another, so that those are ended that are there when the next does not start.
        processes.extend(start_worker(__name__) for _ in range(count))
        shares = [range(first, source.workers, count) for first in range(count)]
        answers = [partial(_call_in_process, *one) for one in zip(processes, shares, strict=True)]
        with _in_threads(answers) as asks:
            for begun in [ask(_begin_shard, source, first, count) for first, ask in enumerate(asks)]:
                begun.result()
            yield Shards(source, [partial(ask, _answer_requests) for ask in asks])
    finally:
        end_workers(processes)


@contextmanager
def _in_threads(answers: Sequence[Callable[..., Any]]) -> Iterator[list[Ask]]:
    """Provide non-blocking versions of functions: a call returns a future, and a thread per function runs the calls."""
    threads = [ThreadPoolExecutor(1) for _ in answers]
    try:
        yield [partial(thread.submit, answer) for thread, answer in zip(threads, answers, strict=True)]
    finally:
        for thread in threads:
            thread.shutdown(wait=False, cancel_futures=True)


def _call_in_process(worker: Worker, workers: Sequence[int], work: Callable[..., Any], *task: Any) -> Any:
    """Call `work` in the process of a shard; return its result, or raise an error if it failed or the process died."""
    try:
        worker.connection.send((work, task))
        outcome: TaskOutcome = worker.connection.recv()
    except (EOFError, OSError):
        ending = worker.ended("have more processes, or another machine, by --on")
        named = ", ".join(map(str, workers))
        raise SimnetError(f"the process of worker{'s' * (len(workers) > 1)} {named} {ending}") from None
    if outcome.kind == "failed":
        raise RuntimeError(f"what a shard was asked for failed there:\n{outcome.content}")
    if outcome.kind == "refused":
        raise SimnetError(outcome.content)
    return outcome.content


_here: list[Shard] = []


def _begin_shard(source: Separable, first: int, shards: int, _: Report) -> None:
    _here[:] = [Shard(source, first, shards)]


def _answer_requests(*given: Any) -> Any:
    *asked, _ = given
    return _here[0].answer(*asked)


@contextmanager
def _on_dask(source: Separable, scheduler: str) -> Iterator[list[Ask]]:
    """Start a `Shard` as an actor on each Dask worker; provide a function per shard to call the shard's methods."""
    option = f"--on dask:{scheduler}"
    # An actor looks for its client there.
    with connect_dask(scheduler, option) as client, client.as_current():
        places = sorted(client.scheduler_info(n_workers=-1)["workers"])[: source.workers]
        if not places:
            raise InputError("the Dask scheduler has no workers", file=option)
        actors = [
            client.submit(Shard, source, first, len(places), actor=True, workers=[place], pure=False)
            for first, place in enumerate(places)
        ]
        answers = [partial(_call_actor, actor.result(), place) for actor, place in zip(actors, places, strict=True)]
        with _in_threads(answers) as asks:
            yield asks


def _call_actor(actor: Any, place: str, *given: Any) -> Any:
    """Call a method of a `Shard` that is an actor on a Dask worker; return the result or raise its error."""
    try:
        return actor.answer(*given).result()
    except Exception as failure:
        raise SimnetError(f"the Dask worker {place} did not answer: {failure!r}") from failure
