"""The messages of an exchange: collectives of torch.distributed, each with when it was under way and what it carried.

A collective is counted as `simnet.schedule` has it: an all-reduce by its vector, an all-gather by what each rank gives,
a broadcast by its vector, messages from rank to rank by what each receives from this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from simnet.hooks import group as groups
from simnet.hooks.log import Clock, Mark

if TYPE_CHECKING:
    from torch import Tensor


class Message(NamedTuple):
    """A call.

    Parameters
    ----------
    operation : str
        As nccl-tests spells it: ``all_reduce``, ``all_gather``, ``broadcast``; ``send`` from rank to rank.
    nbytes : tuple of int
        What this rank hands over [byte]: one number, and of ``send`` one for each rank.
    began, ended : Mark
        When.
    """

    operation: str
    nbytes: tuple[int, ...]
    began: Mark
    ended: Mark


class Messages:
    """The calls of one exchange, one after another.

    Parameters
    ----------
    group : ProcessGroup, optional
        The workers; all when omitted.
    clock : Clock
        Tells when.

    Attributes
    ----------
    rank, size : int
        Which of how many workers this is.
    sent : list of Message
        The calls so far.
    """

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
        """Return what each worker gives, by rank: tensors like `own`, which is one-dimensional."""
        found = list(own.new_empty(self.size * own.numel()).chunk(self.size)) if own.numel() else [own] * self.size
        began = self._clock.mark()
        if own.numel():
            self._dist.all_gather(found, own, group=self._group)
        self._done("all_gather", (own.nbytes,), began)
        return found

    def broadcast(self, values: Tensor, root: int) -> None:
        """Give `values` of the worker `root` to all, in place."""
        began = self._clock.mark()
        self._dist.broadcast(values, self._global(root), group=self._group)
        self._done("broadcast", (values.nbytes,), began)

    def swap(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        """Send tensors, none empty, to some workers and fill some with what others send, at a time, by their ranks."""
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
        return groups.number(self._group, rank)

    def _done(self, operation: str, nbytes: tuple[int, ...], began: Mark) -> None:
        self.sent.append(Message(operation, nbytes, began, self._clock.mark()))
