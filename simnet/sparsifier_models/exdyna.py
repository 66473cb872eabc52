"""ExDyna: exclusive partitions made of blocks, balanced block by block, and a threshold scaled online.

The gradient is cut into equal blocks; a partition is a run of blocks. When a partition yielded more entries than the
average and its neighbour fewer, one block moves from one to the other. All workers know all counts, so each computes
the same partitions without a message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simnet.base.quantities import Count
from simnet.costs import exdyna
from simnet.sparsifier_models.base import Exchange, State, checked_part
from simnet.sparsifier_models.options import Positive
from simnet.sparsifier_models.partitioned import Partitioned, PartitionedOptions
from simnet.sparsifier_models.selection import Indices, Values


def block_layout(parameters: int, workers: int, blocks: int = 1024) -> tuple[int, int]:
    """Return the number and size of the blocks; the rest belongs to the last partition.

    Sizes are multiples of 32. A gradient too short for that, which the reference implementation does not support, has
    blocks of ``parameters // blocks`` entries, at least one.

    Examples
    --------
    >>> block_layout(40_000, 4), block_layout(32_767, 4), block_layout(1500, 4), block_layout(3, 4)
    ((1024, 32), (1057, 31), (1500, 1), (3, 1))
    """
    blocks = max(blocks, workers)
    size = parameters // blocks
    if size >= 32:
        return blocks, size - size % 32
    size = max(size, 1)
    return parameters // size, size


def allocate(
    part: NDArray[np.int64],
    counts: NDArray[np.int64],
    *,
    moved: int,
    minimum: float,
    give_above: float = 1.05,
    take_below: float = 0.95238,
) -> NDArray[np.int64]:
    """Dynamic partition allocation: let pairs of neighbours, from left to right, move one block.

    Parameters
    ----------
    part : ndarray of int64, shape (P,)
        Blocks of each partition.
    counts : ndarray of int64, shape (P,)
        Entries selected in each in the iteration before.
    moved : int
        Entries that are taken to move with a block.
    minimum : float
        Blocks that a partition keeps at least.
    give_above, take_below : float
        Ratios of a count to the average: a block moves if one of the pair exceeds the first and the other is below the
        second.

    Returns
    -------
    ndarray of int64, shape (P,)

    References
    ----------
    D. Yoon, S. Oh, "Preserving Near-Optimal Gradient Sparsification Cost for Scalable Distributed Deep Learning",
    CCGrid 2024, and the reference implementation.

    Examples
    --------
    The average is 10. The first partition hands a block to the second, which still counts as short, so that the third
    hands it one as well.

    >>> allocate(np.array([8, 8, 8]), np.array([13, 4, 13]), moved=1, minimum=2)
    array([ 7, 10,  7])
    """
    blocks, k = part.tolist(), counts.tolist()
    average = sum(k) // len(k)
    # Fewer entries than workers, which is possible only if some partitions are empty.
    if not average:
        return part
    for i in range(len(k) - 1):
        a, b = k[i] / average, k[i + 1] / average
        if a > give_above and b < take_below:
            giver, taker = i, i + 1
        elif a < take_below and b > give_above:
            giver, taker = i + 1, i
        else:
            continue
        if blocks[giver] - 1 >= minimum:
            blocks[giver] -= 1
            blocks[taker] += 1
            k[giver] -= moved
            k[taker] += moved
    return np.array(blocks, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class ExDynaOptions(PartitionedOptions):
    """Options of `ExDyna`.

    Parameters
    ----------
    blocks : int
        Blocks that the gradient is cut into, >= 1; see `block_layout`.
    give_above, take_below : float
        As of `allocate`; ``give_above`` >= ``take_below`` > 0.
    """

    blocks: Count = 1024
    give_above: Positive = 1.05
    take_below: Positive = 0.95238

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.give_above < self.take_below:
            raise ValueError(f"give_above must be >= take_below {self.take_below}, got {self.give_above}")


class ExDyna(Partitioned):
    """ExDyna: block-based partitions, dynamic partition allocation, cyclic rotation, online threshold scaling.

    Statistics beside those of `Partitioned`: ``blk_part`` and ``blk_pos``, (P,), blocks in each partition and before
    it.

    Attributes
    ----------
    num_blk, sz_blk : int
        Number and size of the blocks.
    min_blk : float
        Blocks that a partition keeps at least: a quarter of the average.

    References
    ----------
    D. Yoon, S. Oh, "Preserving Near-Optimal Gradient Sparsification Cost for Scalable Distributed Deep Learning",
    CCGrid 2024, and the reference implementation, which scales the threshold before it selects.

    Examples
    --------
    Two workers, each with its half; in the next iteration they change places.

    >>> model = ExDyna(workers=2, parameters=4, density=0.5, initial_threshold=3)
    >>> exchange = model.exchange(np.array([[4, 3, 9, 0], [9, 0, 1, -8]], dtype=np.float32))
    >>> exchange.update, exchange.selected
    (array([ 6.5,  1.5,  0. , -4. ], dtype=float32), array([2, 1]))
    >>> model.residual
    array([[0., 0., 9., 0.],
           [0., 0., 1., 0.]], dtype=float32)
    >>> exchange.schedule.bytes_sent()
    array([24., 24.])
    """

    name = "exdyna"
    separable = True
    paper = "Yoon and Oh, CCGrid 2024, arXiv 2402.13781"
    costs = (exdyna,)
    option_type = ExDynaOptions
    options: ExDynaOptions

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: object) -> None:
        super().__init__(workers, parameters, density, **options)
        self.num_blk, self.sz_blk = block_layout(parameters, workers, self.options.blocks)
        self.min_blk = self.num_blk / (4 * workers)
        i = np.arange(workers)
        self._blk_part = self.num_blk // workers + (i < self.num_blk % workers)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        exchange = super()._communicate(corrected, gradients)
        blk_pos = np.cumsum(self._blk_part) - self._blk_part
        exchange.stats |= {"blk_part": self._blk_part.astype(np.float64), "blk_pos": blk_pos.astype(np.float64)}
        return exchange

    def _partitions(self) -> Indices:
        if self._counts.size:
            K_prev = int(self._counts.sum())
            self._blk_part = allocate(
                self._blk_part,
                self._counts,
                moved=int(self.sz_blk * (K_prev / self.parameters)),
                minimum=self.min_blk,
                give_above=self.options.give_above,
                take_below=self.options.take_below,
            )
        edges = np.concatenate([[0], np.cumsum(self._blk_part)]) * self.sz_blk
        edges[-1] = self.parameters
        return edges

    def _own_state(self) -> State:
        return {**super()._own_state(), "blk_part": self._blk_part}

    def _restore_own(self, state: State) -> None:
        part = checked_part(state, "blk_part", np.int64, (self.workers,), 0)
        if part.sum() != self.num_blk:
            raise ValueError(f"blk_part must add up to {self.num_blk} blocks, got {part.sum()}")
        super()._restore_own(state)
        self._blk_part = part
