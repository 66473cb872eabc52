"""SparseLoCo, its predecessor CCLoco and its successor Templar: the largest entries of each block, in a few bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.checks import check_choice
from simnet.base.quantities import Count
from simnet.schedule import Schedule
from simnet.sparsifier_models.chunked import Bins, Chunked, ChunkedOptions
from simnet.sparsifier_models.chunking import Blocks, whole_rows
from simnet.sparsifier_models.error_buffer import Decay

Code = Literal["sparseloco", "ccloco", "templar"]
"""The released code that a scheme follows."""

_LARGEST_BLOCK = 4096
# Templar's constant against a division by a norm of zero.
_LEAST_NORM = 1e-8


@dataclass(frozen=True, kw_only=True)
class SparseLoCoOptions(ChunkedOptions):
    """Options of `SparseLoCo`. ``gain`` is the outer learning rate in the codes of SparseLoCo and CCLoco, else 1.

    Parameters
    ----------
    code : {"sparseloco", "ccloco", "templar"}
        The released code to follow.
    decay : float
        Of the error buffer: 0.95 in the codes of SparseLoCo and Templar, 0.999 in that of CCLoco.
    topk : int, optional
        Entries to keep of a block of C x C (``sparseloco``; other blocks keep as large a share, at least one entry), or
        of any block: CCLoco keeps 32, Templar 64. If None, the density decides.
    bins : int, optional
        As of `ChunkedOptions`: 4, and None in the code of CCLoco.
    dct : bool
        Whether blocks are transformed as in DeMo; for ``ccloco`` only.
    """

    code: Code = "sparseloco"
    decay: Decay = 0.95
    topk: Count | None = 128
    bins: Bins | None = 4
    dct: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.code, "code", get_args(Code))
        if self.dct and self.code != "ccloco":
            raise ValueError(f"dct is an option of the code ccloco, not of {self.code}")


class SparseLoCo(Chunked):
    """SparseLoCo. An exchange takes what H inner steps changed: old parameters less new ones.

    The update is the aggregate before the outer step, of plain SGD. The wire ``released`` has a code of two bits in a
    byte, and its index in eight more.

    With ``code="ccloco"``, ``compat="released"`` and no transform, a chunk of a matrix is one full row: the released
    code arranges the tensor in another order than it takes the chunks in.

    With ``code="templar"`` what a worker sent of a tensor is scaled down to the median of the norms of all workers (the
    lower one of two) if its norm exceeds that. A worker keeps an even number of entries of each block, at least two; a
    block has at most 4096 entries, as an index has 12 bits. The files of Templar's store travel by an all-gather.
    Neither wire counts the format of the file, nor the table of a tensor in it, as the published factor does not. The
    wire ``released`` has 12 bits for an index and a byte for a value; ``paper`` the bits that a block and the bins
    need: 112 bytes for 64 x 64 values, 146 times fewer.

    References
    ----------
    A. Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", 2025; first commit of
    QErywan/RobustDiLoCo, 276fa59. CCLoco: tplr-ai/CCLoco, commit c01a785. Templar: one-covenant/templar, commit
    142666f; "Covenant-72B", 2026, arXiv 2603.08163.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[4, 1, 0, 2], [4, 0, 3, 0]], dtype=np.float32)
    >>> SparseLoCo(2, 4, chunk=4, topk=8, bins=None).exchange(rows).update
    array([4., 0., 3., 2.], dtype=float32)

    A worker of Templar that sends four times what the other sends counts as much:

    >>> rows = np.array([[1, 1, 0, 0], [0, 0, 4, 4]], dtype=np.float32)
    >>> SparseLoCo(2, 4, code="templar", chunk=4, topk=2, bins=None).exchange(rows).update
    array([1., 1., 1., 1.], dtype=float32)
    """

    name = "sparseloco"
    paper = "Sarfi et al., 2025, arXiv 2508.15706"
    option_type = SparseLoCoOptions
    options: SparseLoCoOptions

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        super().__init__(workers, parameters, density, **options)
        largest = max(one.whole.size for one in self.tensors)
        if self._clips and largest > _LARGEST_BLOCK:
            raise ValueError(
                f"chunk must leave blocks of at most {_LARGEST_BLOCK} entries, for indices of 12 bits; one has "
                f"{largest}"
            )

    @property
    def _clips(self) -> bool:
        return self.options.code == "templar"

    @property
    def conserves(self) -> bool:
        """Whether the update is the mean over all workers: not if Templar clips what a worker sent."""
        return super().conserves and not self._clips

    @property
    def transforms(self) -> bool:
        """Whether blocks are transformed."""
        return self.options.dct

    def _blocks(self, shape: tuple[int, ...]) -> Blocks:
        options = self.options
        if options.code == "ccloco" and options.compat == "released" and not options.dct:
            return whole_rows(shape, options.chunk)
        return super()._blocks(shape)

    def _top(self, blocks: Blocks) -> int:
        found = super()._top(blocks)
        if self.options.code == "sparseloco" and self.options.topk is not None:
            found = max(1, round(blocks.size * self.options.topk / self.options.chunk**2))
        elif self._clips:
            found = max(2, found - found % 2)
        return min(found, blocks.size)

    def _factors(self, norms: Floats) -> Floats:
        if not self._clips:
            return super()._factors(norms)
        factors: Floats = np.minimum(1.0, np.sort(norms)[(norms.size - 1) // 2] / (norms + _LEAST_NORM))
        return factors

    def _index_bits(self, blocks: Blocks) -> float:
        released = self._clips and self.wire.released and self.options.index_bytes is None
        return 12.0 if released else super()._index_bits(blocks)

    def _table_bytes(self) -> float:
        return 0.0 if self._clips else super()._table_bytes()

    def _messages(self) -> Schedule:
        return self._gathered("file", self.contributed) if self._clips else super()._messages()
