"""A hook's own process groups, its collective calls with logged times, and probes of the network.

The threads of a gloo group release tensors after a call has returned, for which they take the lock of the interpreter;
if the interpreter ends meanwhile, the process aborts. DDP never releases its group, so only a group of our own ends
with its threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from simnet.cluster.hooks.log import Mark, StageClock
from simnet.cluster.lazy_torch import dist, torch


def new_group_like(group: Any, backend: str | None = None) -> Any:
    """Return a new process group with the workers of `group` (None: all workers); every worker must call this."""
    if group is None:
        return dist.new_group(backend=backend)
    ranks = dist.get_process_group_ranks(group)
    return dist.new_group(ranks, backend=backend or dist.get_backend(group), use_local_synchronization=True)


def global_rank(group: Any, rank: int) -> int:
    """Return the global rank of the worker with number `rank` in `group`; the number itself if `group` is None."""
    return rank if group is None else int(dist.get_global_rank(group, rank))


def destroy_group(group: Any) -> None:
    """Destroy a process group unless it is already destroyed; its threads end with the last reference to it."""
    with suppress(ValueError):
        dist.destroy_process_group(group)


class HookMessage(NamedTuple):
    """A log entry of a collective call, or of messages sent together: operation, bytes, and start and end marks."""

    # As nccl-tests spells it: ``all_reduce``, ``all_gather``, ``broadcast``; ``send`` from rank to rank.
    operation: str
    # What this rank hands over [byte]: one number, and for ``send`` one for each rank.
    nbytes: tuple[int, ...]
    # Its start and end.
    began: Mark
    ended: Mark


class GroupMessages:
    """Collective calls of one exchange in a process group (None: all workers); `sent` logs all calls with times."""

    def __init__(self, group: Any, clock: StageClock) -> None:

        self._group, self._clock = group, clock
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.sent: list[HookMessage] = []

    def all_reduce(self, values: torch.Tensor) -> None:
        """Sum `values` over the workers, in place."""
        began = self._clock.mark()
        dist.all_reduce(values, group=self._group)
        self._done("all_reduce", (values.nbytes,), began)

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all workers in order of rank; all must be one-dimensional and of the same length."""
        found = list(own.new_empty(self.size * own.numel()).chunk(self.size)) if own.numel() else [own] * self.size
        began = self._clock.mark()
        if own.numel():
            dist.all_gather(found, own, group=self._group)
        self._done("all_gather", (own.nbytes,), began)
        return found

    def broadcast(self, values: torch.Tensor, root: int) -> None:
        """Copy `values` from the worker `root` to all workers, in place."""
        began = self._clock.mark()
        dist.broadcast(values, self._global(root), group=self._group)
        self._done("broadcast", (values.nbytes,), began)

    def swap(self, sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor]) -> None:
        """Send non-empty tensors to other workers while receiving tensors from others; both are given by rank."""
        if not sends and not receives:
            return
        isend, irecv, way = dist.isend, dist.irecv, dist.P2POp
        began = self._clock.mark()
        ways = [way(isend, one, self._global(rank), self._group) for rank, one in sends.items()]
        ways += [way(irecv, one, self._global(rank), self._group) for rank, one in receives.items()]
        for work in dist.batch_isend_irecv(ways):
            work.wait()
        self._done("send", tuple(sends[rank].nbytes if rank in sends else 0 for rank in range(self.size)), began)

    def _global(self, rank: int) -> int:
        return global_rank(self._group, rank)

    def _done(self, operation: str, nbytes: tuple[int, ...], began: Mark) -> None:
        self.sent.append(HookMessage(operation, nbytes, began, self._clock.mark()))


Probe: TypeAlias = Callable[[Any], tuple[float, float]]
"""A function that returns latency [s] and bandwidth [byte/s] for a device; all workers call it at the same time."""

NBYTES = 2**22
"""Length of the longer message of `shifted` [byte]."""


def shifted(device: Any = "cpu", nbytes: int = NBYTES, times: int = 5, group: Any = None) -> tuple[float, float]:
    """Measure the network while every worker sends to the next worker; return latency [s] and bandwidth [byte/s].

    Messages of four bytes and of `nbytes` [byte] on `device` are sent `times` times each, and the fastest of each
    length counts. `group` are the workers, all if None.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    ahead, behind = (global_rank(group, (rank + step) % size) for step in (1, -1))
    seconds = []
    for entries in (1, nbytes // 4):
        sent, received, took = torch.zeros(entries, device=device), torch.zeros(entries, device=device), []
        for _ in range(times):
            begin = time.perf_counter()
            ways = dist.P2POp(dist.isend, sent, ahead, group), dist.P2POp(dist.irecv, received, behind, group)
            for work in dist.batch_isend_irecv(list(ways)):
                work.wait()
            received[0].item()  # Waits for a GPU, too.
            took.append(time.perf_counter() - begin)
        seconds.append(min(took))
    return seconds[0], nbytes / max(seconds[1] - seconds[0], 1e-9)
