"""Error buffers with weights: what stays decays from exchange to exchange, and a gradient enters it times a gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from annotated_types import Le
from numpy.typing import NDArray

from simnet.sparsifier_models.options import Options, Positive
from simnet.sparsifier_models.selection import Values, squared_norms

Decay: TypeAlias = Annotated[Positive, Le(1)]
"""The type of an option that is a factor in (0, 1]."""


@dataclass(frozen=True, kw_only=True)
class BufferOptions(Options):
    """Options of schemes whose error buffer has weights.

    Parameters
    ----------
    decay : float
        What the residual counts for when a gradient is added to it, in (0, 1].
    gain : float
        What the gradient counts for, > 0. Released codes have their learning rate here.
    """

    decay: Decay = 1.0
    gain: Positive = 1.0


def add_weighted(rows: Values, others: Values | None, out: Values, decay: float, gain: float) -> NDArray[np.float64]:
    """Put decay * residuals + gain * gradients into `out`, and return its sums of squares, shape (P,).

    Examples
    --------
    >>> out = np.zeros((1, 2), dtype=np.float32)
    >>> ones = np.ones((1, 2), dtype=np.float32)
    >>> add_weighted(ones, 4 * ones, out, 0.5, 3.0), out
    (array([50.]), array([[5., 5.]], dtype=float32))
    """
    for worker, (row, into) in enumerate(zip(rows, out, strict=True)):
        fresh = row * np.float32(gain)
        if others is None:
            into[:] = fresh
        else:
            np.multiply(others[worker], np.float32(decay), out=into)
            into += fresh
    return squared_norms(out)
