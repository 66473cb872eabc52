"""Shards of workers (`simnet.base.rows`): local processes, or actors on Dask workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from simnet.base.dask_cluster import connect_dask
from simnet.base.errors import InputError, SimnetError
from simnet.base.processes import Outcome, Report, Worker, end_workers, start_worker
from simnet.base.rows import Ask, Separable, Shard, Shards


@contextmanager
def open_shards(source: Separable, where: str) -> Iterator[Shards]:
    """Provide shards of a job's workers, each with a pickled copy of the source, as a context manager.

    They are ``processes:4``, or ``dask:tcp://10.0.0.1:8786`` for one per Dask worker. InputError if neither, if Dask is
    not installed, or the scheduler does not answer.
    """
    kind, _, rest = where.partition(":")
    if kind == "dask" and rest:
        with _on_dask(source, rest) as asks:
            yield Shards(source, asks)
        return
    if kind != "processes" or not rest.isdecimal() or len(rest) > 9 or not int(rest):
        raise InputError(f"got {where!r}, must be processes:N or dask:tcp://HOST:PORT", file="--workers-on")
    processes: list[_ProcessShard] = []
    try:
        count = min(int(rest), source.workers)
        # One after another, so that those are ended that are there when the next does not start.
        processes.extend(_ProcessShard(range(first, source.workers, count)) for first in range(count))
        for begun in [one.ask(_begin_shard, source, first, count) for first, one in enumerate(processes)]:
            begun.result()
        yield Shards(source, processes)
    finally:
        end_workers([one.worker for one in processes])


class _ProcessShard:
    """A shard in a local process."""

    def __init__(self, workers: Sequence[int]) -> None:
        self.worker: Worker = start_worker(__name__)
        self._workers = workers
        self._last: _PendingReply | None = None

    def __call__(self, *given: Any) -> _PendingReply:
        return self.ask(_answer_requests, *given)

    def ask(self, work: Any, *task: Any) -> _PendingReply:
        """Call a function there."""
        # If it were still sending, and this process too, both would wait for ever.
        if self._last is not None:
            self._last.read()
        with suppress(OSError):
            self.worker.connection.send((work, task))
        self._last = _PendingReply(self)
        return self._last

    def receive(self) -> Outcome:
        """Wait for an outcome."""
        try:
            found: Outcome = self.worker.connection.recv()
        except (EOFError, OSError):
            ending = self.worker.ended("have more processes, or another machine, by --workers-on")
            named = ", ".join(map(str, self._workers))
            return Outcome("lost", f"the process of worker{'s' * (len(self._workers) > 1)} {named} {ending}")
        return found


class _PendingReply:
    """A pending answer of a process."""

    def __init__(self, process: _ProcessShard) -> None:
        self._process = process
        self._outcome: Outcome | None = None

    def read(self) -> Outcome:
        """Wait for the outcome."""
        if self._outcome is None:
            self._outcome = self._process.receive()
        return self._outcome

    def result(self) -> Any:
        """Return the answer, or raise its error."""
        outcome = self.read()
        if outcome.kind == "done":
            return outcome.content
        if outcome.kind == "failed":
            raise RuntimeError(f"what a shard was asked for failed there:\n{outcome.content}")
        raise SimnetError(outcome.content)


_here: list[Shard] = []


def _begin_shard(source: Separable, first: int, shards: int, _: Report) -> None:
    """Create the shard of this process."""
    _here[:] = [Shard(source, first, shards)]


def _answer_requests(*given: Any) -> Any:
    *asked, _ = given
    return _here[0].answer(*asked)


@contextmanager
def _on_dask(source: Separable, scheduler: str) -> Iterator[list[Ask]]:
    """Provide a shard on each Dask worker."""
    option = f"--workers-on dask:{scheduler}"
    # An actor looks for its client there.
    with connect_dask(scheduler, option) as client, client.as_current():
        places = sorted(client.scheduler_info(n_workers=-1)["workers"])[: source.workers]
        if not places:
            raise InputError("the Dask scheduler has no workers", file=option)
        actors = [
            client.submit(Shard, source, first, len(places), actor=True, workers=[place], pure=False)
            for first, place in enumerate(places)
        ]
        yield [_ActorShard(actor.result(), place) for actor, place in zip(actors, places, strict=True)]


class _ActorShard:
    """A shard that is an actor on a Dask worker."""

    def __init__(self, actor: Any, place: str) -> None:
        self._actor, self._place = actor, place

    def __call__(self, *given: Any) -> _ActorReply:
        return _ActorReply(self._actor.answer(*given), self._place)


class _ActorReply:
    """A pending answer of an actor."""

    def __init__(self, future: Any, place: str) -> None:
        self._future, self._place = future, place

    def result(self) -> Any:
        """Return the answer, or raise its error."""
        try:
            return self._future.result()
        except Exception as failure:
            raise SimnetError(f"the Dask worker {self._place} did not answer: {failure!r}") from failure
