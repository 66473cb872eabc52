"""Templar: SparseLoCo between peers that do not trust each other, by files, with indices of 12 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.schedule import Schedule
from simnet.sparsifier_models.chunked import Bins, Chunked, ChunkedOptions
from simnet.sparsifier_models.chunking import Blocks
from simnet.sparsifier_models.error_buffer import Decay

_MOST = 4096
# What keeps the released code from dividing by a norm of zero.
_LEAST_NORM = 1e-8


@dataclass(frozen=True, kw_only=True)
class TemplarOptions(ChunkedOptions):
    """Options of `Templar`.

    Parameters
    ----------
    decay : float
        Of the error buffer; 0.95 in the configuration of the run of 72 billion parameters, as ``chunk`` 64, ``topk`` 64
        and four ``bins``.
    topk : int, optional
        As of `ChunkedOptions`, rounded down to an even number.
    bins : int, optional
        As of `ChunkedOptions`.
    """

    decay: Decay = 0.95
    topk: Count | None = 64
    bins: Bins | None = 4


class Templar(Chunked):
    """Templar, as configured for Covenant-72B. An exchange takes what H inner steps changed.

    Of each tensor, what a worker sent is scaled down to the median of the norms of all, the lower one of two, if its
    norm exceeds that. A worker keeps an even number of entries of each block, two at least; of a block of one, that.
    Blocks have 4096 entries at most, as an index has 12 bits.

    A worker puts one file in a store, and gets those of the others from there. Here it sends it to them by an
    all-gather, as there is no store. Neither wire counts the format of the file, nor the table of a tensor in it, seven
    numbers at four bins: the published factor does not, either. The wire ``released`` has 12 bits for an index and a
    byte for a value; ``paper`` the bits that a block and the bins need, of 64 x 64 values 112 bytes, 146 times fewer.

    References
    ----------
    Code one-covenant/templar, commit 142666f; "Covenant-72B", 2026, arXiv 2603.08163.

    Examples
    --------
    The second worker sends four times what the first does, and counts as much:

    >>> import numpy as np
    >>> rows = np.array([[1, 1, 0, 0], [0, 0, 4, 4]], dtype=np.float32)
    >>> Templar(2, 4, chunk=4, topk=2, bins=None).exchange(rows).update
    array([1., 1., 1., 1.], dtype=float32)
    """

    name = "templar"
    paper = "one-covenant/templar, 2025; Covenant-72B, 2026, arXiv 2603.08163"
    option_type = TemplarOptions
    options: TemplarOptions

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        super().__init__(workers, parameters, density, **options)
        largest = max(one.whole.size for one in self.tensors)
        if largest > _MOST:
            raise ValueError(
                f"chunk must leave blocks of at most {_MOST} entries, for indices of 12 bits; one has {largest}"
            )

    @property
    def conserves(self) -> bool:
        """False: what the clip takes from a worker is neither applied nor kept."""
        return False

    def _top(self, blocks: Blocks) -> int:
        found = super()._top(blocks)
        return min(max(2, found - found % 2), blocks.size)

    def _factors(self, norms: Floats) -> Floats:
        median = np.sort(norms)[(norms.size - 1) // 2]
        factors: Floats = np.minimum(1.0, median / (norms + _LEAST_NORM))
        return factors

    def _index_bits(self, blocks: Blocks) -> float:
        if self.options.index_bytes is None and self.wire.released:
            return 12.0
        return super()._index_bits(blocks)

    def _table_bytes(self) -> float:
        return 0.0

    def _messages(self) -> Schedule:
        return self._gathered("file", self.contributed)
