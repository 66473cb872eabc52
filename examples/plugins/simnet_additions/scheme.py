"""Block top-k: every worker sends the blocks of its gradient that have the largest norm, over all-gather.

A block is a stretch of entries that stand side by side, so that one index stands for all of them: a quarter of a byte
per entry at 16 entries a block, where top-k sends four.
"""

from __future__ import annotations

import numpy as np

from simnet.base.errors import check_int
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.gathered import Gathered, GatheredOptions
from simnet.sparsifier_models.selection import Indices, Values, top_k


class BlockTopkOptions(GatheredOptions):
    """Options of `BlockTopk`.

    Parameters
    ----------
    block : int
        Entries of a block, >= 1.
    """

    block: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(self.block, "block", 1)


class BlockTopk(Gathered):
    """Block top-k: the blocks of largest norm of each worker, over all-gather.

    Examples
    --------
    >>> model = BlockTopk(workers=1, parameters=6, density=0.3, block=2)
    >>> exchange = model.exchange(np.array([[5, 0, 4, 4, 0, 1]], dtype=np.float32))
    >>> exchange.update
    array([0., 0., 4., 4., 0., 0.], dtype=float32)
    """

    name = "blocktopk"
    paper = "an example of simnet"
    options: BlockTopkOptions

    @property
    def k_of_model(self) -> int:
        """Whole blocks, as many as come nearest to k from above; the last block may be short."""
        block = self.options.block
        return min(self.true_parameters, -(-super().k_of_model // block) * block)

    @property
    def unit(self) -> int:
        """Entries of a block."""
        return self.options.block

    def _select(self, values: Values, worker: int) -> Indices:
        block = self.options.block
        squares = np.zeros(-(-values.size // block) * block)
        np.square(values, out=squares[: values.size], dtype=np.float64)
        norms = np.sqrt(squares.reshape(-1, block).sum(axis=1)).astype(np.float32)
        blocks = top_k(norms, -(-self.k // block))
        indices = (blocks[:, np.newaxis] * block + np.arange(block)).ravel()
        return indices[indices < values.size]

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return DeviceOp("norm", self.parameters), DeviceOp("topk", -(-self.parameters // self.options.block))

    def _allgather(self, entries: np.ndarray, nbytes: np.ndarray) -> Schedule:
        entry = self.wire.value_bytes + self.wire.index_bytes / self.options.block
        return self.options.gather(entries * entry).in_phase("blocks")
