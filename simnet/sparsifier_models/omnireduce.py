"""OmniReduce: aggregators sum nonzero blocks, which workers send in parallel streams (slots), block after block."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from simnet.base.quantities import Count
from simnet.cost_models.costs import omnireduce
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier
from simnet.sparsifier_models.options import Options
from simnet.sparsifier_models.selection import Values, squared_norm

# With each block travels the offset of the next one.
_OFFSET = 4.0


class Turns(NamedTuple):
    """Blocks that workers send to aggregators, each with its senders, its stream (slot), and its turn in the stream."""

    # Shape (u,): The blocks that travel, ascending: the first of each slot, and all that somebody has.
    block: NDArray[np.int64]
    # Shape (u,): The slot of each, and how many blocks of it came before.
    slot: NDArray[np.int64]
    turn: NDArray[np.int64]
    # Shape (P, u): Who sends each.
    senders: NDArray[np.bool_]


def turns(filled: NDArray[np.bool_], slots: int) -> Turns:
    """Return the turn in which each block is sent; `filled`, shape (P, blocks), marks each worker's nonzero blocks.

    All workers send the first block of each of the `slots`, dealt round robin. Then an aggregator asks for the next
    block that any of them has, and those send it.
    """
    sends = filled.copy()
    sends[:, :slots] = True
    block = np.flatnonzero(sends.any(axis=0))
    slot, turn = block % slots, np.zeros(block.size, dtype=np.int64)
    for one in range(slots):
        own = slot == one
        turn[own] = np.arange(np.count_nonzero(own))
    return Turns(block, slot, turn, sends[:, block])


class OmniReduceOptions(Options):
    """Options of `OmniReduce`.

    Parameters
    ----------
    block : int
        Entries of a block, >= 1.
    slots : int
        Blocks on their way at the same time, >= 1. The fewer, the more round trips.
    threshold : float
        A block of which no magnitude exceeds this is dropped, >= 0.
    aggregators : {"all", "first"}
        Whether all workers aggregate, slot s at worker s mod P, or the first one alone.
    """

    block: Count = 256
    slots: Count = 8
    threshold: Annotated[float, Ge(0)] = 0.0
    aggregators: Literal["all", "first"] = "all"


class OmniReduce(Sparsifier, sends_all=True, reads_gradients=False, costs=(omnireduce,)):
    """OmniReduce: workers send only the nonzero blocks of the gradient to aggregators, which add them.

    A worker sends its blocks that are not zero, and the first one of each slot in any case. The aggregator of a slot
    adds what comes, sends the sum to all, and says in it which block is next: the first that any worker has.
    Aggregators are workers, as there are no other ranks, and send nothing to themselves.

    The released code sets blocks that it drops to zero and remembers nothing: ``error_feedback=false``, or
    ``compat="released"``. Otherwise they are the residual. At a threshold of zero there is no residual. In the released
    code aggregators are separate machines. Wires ``paper`` and ``released`` are the same.

    The last block is as long as others. All slots take their turns together, and what a worker sends an aggregator in a
    turn is one message; sums are made as blocks come, which takes no time. If the gradient is a sample, a block stands
    for ``scale`` blocks in one message, so there are fewer turns than for the model.

    Statistics of its own: ``blocks``, shape (P,), that each worker sends; ``union_blocks`` that come back; ``turns``.

    References
    ----------
    J. Fei, C.-Y. Ho, A. N. Sahu, M. Canini, A. Sapio, "Efficient Sparse Collective Communication and its Application to
    Accelerate Distributed Deep Learning", SIGCOMM 2021; code sands-lab/omnireduce, commit dafb113.

    Examples
    --------
    Each worker has one block of two; block 0 is sent by both, as it is the first:

    >>> model = OmniReduce(workers=2, parameters=4, block=2, slots=1)
    >>> exchange = model.exchange(np.array([[1, 2, 0, 0], [0, 0, 4, 0]], dtype=np.float32))
    >>> exchange.update, exchange.stats["blocks"], exchange.stats["union_blocks"]
    (array([0.5, 1. , 2. , 0. ], dtype=float32), array([1., 2.]), 2.0)
    """

    name = "omnireduce"
    paper = "Fei et al., SIGCOMM 2021"
    options: OmniReduceOptions

    def _option_traits(self) -> dict[str, Any]:
        keeps = self.options.compat == "paper"
        return {"keeps_residual": keeps, "conserves": keeps or self.options.threshold == 0}

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        n, block = self.parameters, self.options.block
        starts = np.arange(0, n, block)
        filled = np.empty((self.workers, starts.size), dtype=np.bool_)
        sent, selected = np.zeros(self.workers), np.zeros(self.workers, dtype=np.int64)
        total, lengths = np.zeros(n, dtype=np.float32), np.diff([*starts.tolist(), n])
        for worker, row in enumerate(corrected):
            filled[worker] = np.maximum.reduceat(np.abs(row), starts) > np.float32(self.options.threshold)
            own = np.repeat(filled[worker], lengths)
            values = np.where(own, row, np.float32(0))
            total += values
            sent[worker], selected[worker] = squared_norm(values), np.count_nonzero(own)
            row[own] = 0
        found = turns(filled, min(self.options.slots, starts.size))
        return self._make_exchange(
            total / np.float32(self.workers),
            [DeviceOp("scan", n), self._messages(found)],
            sent,
            selected=selected,
            union=int(lengths[filled.any(axis=0)].sum()),
            stats={
                "blocks": found.senders.sum(axis=1).astype(np.float64),
                "union_blocks": float(found.block.size),
                "turns": float(found.turn.max() + 1),
            },
        )

    def _messages(self, found: Turns) -> Schedule:
        """Return the messages of an exchange: in each turn blocks go to aggregators, then sums to all workers."""
        P = self.workers
        place = found.slot % P if self.options.aggregators == "all" else np.zeros_like(found.slot)
        rounds: list[Round] = []
        order = np.argsort(found.turn, kind="stable")
        for now in np.split(order, np.flatnonzero(np.diff(found.turn[order])) + 1) if P > 1 else ():
            to = np.zeros((P, P))
            for aggregator in np.unique(place[now]).tolist():
                to[:, aggregator] = found.senders[:, now[place[now] == aggregator]].sum(axis=1)
            sums = np.bincount(place[now], minlength=P)
            rounds += self._round(to, "blocks"), self._round(np.repeat(sums[:, np.newaxis], P, axis=1), "sums")
        return Schedule(P, rounds)

    def _round(self, blocks: NDArray[Any], phase: str) -> Round:
        """Return the round in which rank i sends `blocks[i, j]` blocks to rank j."""
        np.fill_diagonal(blocks, 0)
        src, dst = np.nonzero(blocks)
        # Each block with the offset of the next one.
        each = self.options.scale * (float(self.options.value_bytes or 4) * self.options.block + _OFFSET)
        return Round(src, dst, each * blocks[src, dst], phase=phase)
