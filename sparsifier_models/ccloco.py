"""CCLoco, the predecessor of SparseLoCo: the largest entries of each chunk of what inner steps changed."""

from __future__ import annotations

from dataclasses import dataclass

from simnet.sparsifier_models.chunked import Chunked, ChunkedOptions
from simnet.sparsifier_models.chunking import Blocks, whole_rows
from simnet.sparsifier_models.error_buffer import Decay


@dataclass(frozen=True, kw_only=True)
class CCLocoOptions(ChunkedOptions):
    """Options of `CCLoco`. ``gain`` is the outer learning rate in the released code, which applies it again.

    Parameters
    ----------
    decay : float
        Of the error buffer; 0.999 in the released code, as ``chunk`` 64 and ``topk`` 32.
    dct : bool
        Whether blocks are transformed, as in DeMo.
    """

    decay: Decay = 0.999
    dct: bool = False


class CCLoco(Chunked):
    """CCLoco: blocks as those of DeMo, with or without its transform, and values in 2 to 256 bins or as they are.

    With ``compat="released"`` and without the transform, a chunk of a matrix is one full row: the released code
    arranges the tensor in another order than it takes the chunks in.

    References
    ----------
    Code tplr-ai/CCLoco, commit c01a785; see `SparseLoCo`.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[1, 2, 5, 6], [1, 2, 0, 0]], dtype=np.float32).reshape(1, 8)
    >>> layers = [("w", (2, 4))]
    >>> CCLoco(1, 8, chunk=2, topk=1, layers=layers).exchange(rows).update
    array([0., 2., 0., 6., 0., 0., 0., 0.], dtype=float32)
    >>> CCLoco(1, 8, chunk=2, topk=1, layers=layers, compat="released").exchange(rows).update
    array([0., 0., 0., 6., 0., 2., 0., 0.], dtype=float32)
    """

    name = "ccloco"
    paper = "tplr-ai/CCLoco, 2025; Sarfi et al., 2025, arXiv 2508.15706"
    option_type = CCLocoOptions
    options: CCLocoOptions

    @property
    def transforms(self) -> bool:
        """Whether blocks are transformed."""
        return self.options.dct

    def _blocks(self, shape: tuple[int, ...]) -> Blocks:
        if self.options.compat == "released" and not self.options.dct:
            return whole_rows(shape, self.options.chunk)
        return super()._blocks(shape)
