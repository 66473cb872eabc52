"""The messages of an exchange: collectives of torch.distributed, with their times and sizes.

Sizes are those of `simnet.schedule`: of an all-reduce and a broadcast the vector, of an all-gather what each rank
gives, of messages between ranks what each receives from this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from simnet.cluster.hooks import group as groups
from simnet.cluster.hooks.log import Clock, Mark

if TYPE_CHECKING:
    from torch import Tensor


class Message(NamedTuple):
    """A call."""

    # As nccl-tests spells it: ``all_reduce``, ``all_gather``, ``broadcast``; ``send`` from rank to rank.
    operation: str
    # What this rank hands over [byte]: one number, and for ``send`` one for each rank.
    nbytes: tuple[int, ...]
    # Its start and end.
    began: Mark
    ended: Mark


class GroupMessages:
    """The calls of one exchange by a group of workers, all if None; `sent` lists the calls so far."""

    def __init__(self, group: Any, clock: Clock) -> None:
        import torch.distributed as dist

        self._dist, self._group, self._clock = dist, group, clock
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.sent: list[Message] = []

    def all_reduce(self, values: Tensor) -> None:
        """Sum `values` over the workers, in place."""
        began = self._clock.mark()
        self._dist.all_reduce(values, group=self._group)
        self._done("all_reduce", (values.nbytes,), began)

    def all_gather(self, own: Tensor) -> list[Tensor]:
        """Return the tensors of all workers, by rank; they are one-dimensional and of equal length."""
        found = list(own.new_empty(self.size * own.numel()).chunk(self.size)) if own.numel() else [own] * self.size
        began = self._clock.mark()
        if own.numel():
            self._dist.all_gather(found, own, group=self._group)
        self._done("all_gather", (own.nbytes,), began)
        return found

    def broadcast(self, values: Tensor, root: int) -> None:
        """Copy `values` of the worker `root` to all, in place."""
        began = self._clock.mark()
        self._dist.broadcast(values, self._global(root), group=self._group)
        self._done("broadcast", (values.nbytes,), began)

    def swap(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        """Send tensors, none empty, to some workers, and receive from some, all at once, by rank."""
        if not sends and not receives:
            return
        isend, irecv, way = self._dist.isend, self._dist.irecv, self._dist.P2POp
        began = self._clock.mark()
        ways = [way(isend, one, self._global(rank), self._group) for rank, one in sends.items()]
        ways += [way(irecv, one, self._global(rank), self._group) for rank, one in receives.items()]
        for work in self._dist.batch_isend_irecv(ways):
            work.wait()
        self._done("send", tuple(sends[rank].nbytes if rank in sends else 0 for rank in range(self.size)), began)

    def _global(self, rank: int) -> int:
        return groups.global_rank(self._group, rank)

    def _done(self, operation: str, nbytes: tuple[int, ...], began: Mark) -> None:
        self.sent.append(Message(operation, nbytes, began, self._clock.mark()))
