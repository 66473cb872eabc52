"""SparseLoCo: the largest entries of each block of what inner steps changed, in two bits each."""

from __future__ import annotations

from dataclasses import dataclass

from simnet.base.quantities import Count
from simnet.sparsifier_models.chunked import Bins, Chunked, ChunkedOptions
from simnet.sparsifier_models.chunking import Blocks
from simnet.sparsifier_models.error_buffer import Decay


@dataclass(frozen=True, kw_only=True)
class SparseLoCoOptions(ChunkedOptions):
    """Options of `SparseLoCo`. ``gain`` is the outer learning rate in the released code, 1 in the runs of the paper.

    Parameters
    ----------
    decay : float
        Of the error buffer; 0.95 in the released sweep of 512 million parameters, as ``chunk`` 64, ``topk`` 128 and
        four ``bins``.
    topk : int, optional
        Entries to keep of a block of C x C; of others as large a share, one at least. Without it the density says how
        many; with it the density does not matter.
    bins : int, optional
        As of `ChunkedOptions`.
    """

    decay: Decay = 0.95
    topk: Count | None = 128
    bins: Bins | None = 4


class SparseLoCo(Chunked):
    """SparseLoCo. An exchange takes what H inner steps changed: old parameters less new ones.

    The update is the aggregate before the outer step, of plain SGD. The wire ``released`` has a code of two bits in a
    byte, and its index in eight more.

    References
    ----------
    A. Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", 2025; first commit of
    QErywan/RobustDiLoCo, 276fa59.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[4, 1, 0, 2], [4, 0, 3, 0]], dtype=np.float32)
    >>> SparseLoCo(2, 4, chunk=4, topk=8, bins=None).exchange(rows).update
    array([4., 0., 3., 2.], dtype=float32)
    """

    name = "sparseloco"
    paper = "Sarfi et al., 2025, arXiv 2508.15706"
    option_type = SparseLoCoOptions
    options: SparseLoCoOptions

    def _top(self, blocks: Blocks) -> int:
        if self.options.topk is None:
            return super()._top(blocks)
        share = round(blocks.size * self.options.topk / self.options.chunk**2)
        return min(max(1, share), blocks.size)
