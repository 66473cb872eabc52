"""DeMo: the largest coefficients of the cosine transform of each block, at every step, over all-gather."""

from __future__ import annotations

from dataclasses import dataclass

from simnet.sparsifier_models.chunked import Chunked, ChunkedOptions
from simnet.sparsifier_models.error_buffer import Decay


@dataclass(frozen=True, kw_only=True)
class DeMoOptions(ChunkedOptions):
    """Options of `DeMo`. ``gain`` is the learning rate in the released code, which divides it out again by a sign.

    Parameters
    ----------
    decay : float
        Of the error buffer; 0.999 in the released code, as ``chunk`` 64 and ``topk`` 32.
    """

    decay: Decay = 0.999


class DeMo(Chunked):
    """DeMo: decoupled momentum. The error buffer is the momentum, whose fast components are sent.

    The update is the mean of the coefficients, transformed back: what a released optimiser takes the sign of. A density
    counts coefficients. The released code sends indices of 8 bytes, though none exceeds 4095, and values as wide as
    parameters: ``value_bytes=2`` in bfloat16. The gradient must not be averaged before.

    What rounding makes of a transform and its inverse is lost as well.

    References
    ----------
    B. Peng, J. Quesnelle, D. P. Kingma, "DeMo: Decoupled Momentum Optimization", 2024; code bloc97/DeMo, commit
    0e48145.

    Examples
    --------
    >>> import numpy as np
    >>> model = DeMo(workers=1, parameters=4, chunk=4, topk=1, decay=0.5)
    >>> model.exchange(np.array([[1, 1, 1, 2]], dtype=np.float32)).update, model.residual
    (array([1.25, 1.25, 1.25, 1.25], dtype=float32), array([[-0.25, -0.25, -0.25,  0.75]], dtype=float32))
    """

    name = "demo"
    paper = "Peng et al., 2024, arXiv 2411.19870"
    option_type = DeMoOptions
    options: DeMoOptions

    @property
    def transforms(self) -> bool:
        """True: coefficients are sent."""
        return True
